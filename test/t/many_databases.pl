# Databases without a scheduler: while nothing happens there, or because nobody has asked for a task
# table.  A TAP test because it counts processes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', period => '1 s', conf => q{
max_worker_processes = 8
max_prepared_transactions = 1
pg_task_table.moved = 'jobs'
});

# There are places for three schedulers.
my @databases = map { "db$_" } 1 .. 8;

sub wait_until_asleep
{
	my ($db) = @_;

	wait_until($node, qq{SELECT count(*) = 0 FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler' AND datname = '$db'});
}

sub wait_until_state_is
{
	my ($db, $state) = @_;

	wait_until($node, qq{SELECT state FROM pg_stat_task_scheduler() WHERE datname = '$db'},
		expected => $state);
}

# Where a table is there, it is served; elsewhere there is nothing, until somebody asks for it.
subtest 'pg_task.create_table' => sub {
	my $position = log_position($node);
	my $nothing = q{SELECT to_regclass('task') IS NULL
		AND NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_task')};

	set_conf($node, 'pg_task.create_table = off');
	wait_until($node, q{SHOW pg_task.create_table}, expected => 'off');
	sql('CREATE DATABASE plain');
	sql(q{CREATE DATABASE placed; ALTER DATABASE placed SET pg_task.schema_name = 'jobs'});
	wait_until_state_is($_, 'no table') for qw(plain placed);
	wait_for_schedulers($node, 'postgres');
	is(sql_in('plain', $nothing), 't', 'neither a table nor an extension');
	is(sql_in('placed', q{SELECT to_regnamespace('jobs') IS NULL}), 't', 'and no schema');

	# there are places for all databases with a table, even while somebody looks at another one
	sql("CREATE DATABASE $_"), sql("ALTER DATABASE $_ SET pg_task.create_table = on")
	  for qw(one two);
	wait_for_schedulers($node, qw(one postgres two));
	wait_until_state_is('plain', 'no table');
	my $full = log_position($node);
	sql('ALTER DATABASE placed SET pg_task.enabled = off');
	wait_until_state_is('placed', 'disabled');
	sql('ALTER DATABASE placed RESET pg_task.enabled');
	wait_until_state_is('placed', 'no table');
	wait_for_schedulers($node, qw(one postgres two));
	unlike(log_since($node, $full), qr/take turns/, 'a look at it is no reason for taking turns');
	sql("DROP DATABASE $_") for qw(one two);

	run_task($node, request => 'SELECT 1');
	pass('a table that exists is served');

	sql('ALTER DATABASE plain SET pg_task.create_table = on');
	wait_for_table($node, db => 'plain');
	run_task($node, db => 'plain', request => 'SELECT 1');
	pass('a table is made when somebody asks for one');
	sql('ALTER DATABASE plain RESET pg_task.create_table');
	run_task($node, db => 'plain', request => 'SELECT 1');
	pass('it is served from then on');
	sql_in('plain', 'ALTER TABLE task RENAME TO other');
	wait_until_state_is('plain', 'no table');
	sql_in('plain', 'ALTER TABLE other RENAME TO task');
	my $id = run_task($node, db => 'plain', request => 'SELECT 1');
	is_row($node, $id, { q{start < dt + interval '50 s'} => 'true' },
		'a table that has come otherwise is found by the first commit', db => 'plain');
	sql_in('plain', 'DROP TABLE task');
	wait_for_schedulers($node, 'postgres');
	is(sql_in('plain', q{SELECT to_regclass('task') IS NULL}), 't',
		'it is not made again when it is dropped');
	unlike(log_since($node, $position), qr/creates no task table/, 'which is no news for the log');
	set_conf($node, 'pg_task.create_table = on');
	wait_for_table($node, db => 'plain');
	wait_for_table($node, db => 'placed', table => 'jobs.task');
	pass('a reload is enough to ask for all');
};

# With more databases than places a scheduler that has nothing to do leaves.  What it waited for
# brings it back: not a visit, which comes a minute later.
subtest 'what brings a scheduler back' => sub {
	sql("CREATE DATABASE $_") for @databases;
	sql('CREATE ROLE owner');
	wait_for_table($node, db => $_) for @databases;

	my $ahead = q{clock_timestamp() + interval '9 s'};
	my $planned = sql_in('db1',
		"INSERT INTO task (request, dt) VALUES ('SELECT 1', $ahead) RETURNING id");
	my $failing = insert_task($node, db => 'db2', request => 'SELECT 1/0', retry => 1,
		delay => '9 s');
	my $repeating = insert_task($node, db => 'db3', request => 'SELECT 1', repeat => '9 s');
	sql_in('db4', qq{INSERT INTO task_queue (queue, "until") VALUES ('later', $ahead)});
	my $pausing = insert_task($node, db => 'db4', request => 'SELECT 1', queue => 'later');
	sql_in('db5', q{INSERT INTO task_queue (queue, rate, per) VALUES ('slow', 1, '9 s')});
	insert_task($node, db => 'db5', request => 'SELECT 1', queue => 'slow') for 1 .. 2;
	my $watched = insert_task($node, db => 'db6', request => 'SELECT 1', dt => 'infinity');
	my $waiting = insert_task($node, db => 'db6', request => 'SELECT 1', after => "{$watched}",
		rule => 'ended');
	sql_in('db7', q{BEGIN; INSERT INTO task (request) VALUES ('SELECT 1');
		PREPARE TRANSACTION 'task'});
	my $session = open_session($node, 'db8');
	sql_in('db8', q{INSERT INTO task_queue (queue, paused) VALUES ('closed', true)});
	my $expiring = sql_in('db8', q{INSERT INTO task (request, queue, active, dt)
		VALUES ('SELECT 1', 'closed', '1 s', clock_timestamp() + interval '2 s') RETURNING id});
	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $expiring FOR UPDATE");
	wait_until($node, "SELECT attempt >= 1 FROM task WHERE id = $failing", db => 'db2');
	wait_for_state($node, $repeating, 'DONE', db => 'db3');
	wait_until($node, q{SELECT count(*) > 0 FROM task WHERE queue = 'slow' AND state = 'DONE'},
		db => 'db5');
	wait_until($node, "SELECT dt + active < clock_timestamp() FROM task WHERE id = $expiring",
		db => 'db8');
	my $looking = sql(q{SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler' AND datname = 'db8'});
	wait_until_asleep($_) for qw(db1 db2 db4 db5 db6 db7 plain placed postgres);
	wait_until_state_is($_, 'asleep') for qw(db6 postgres);
	pass('no scheduler stays where nothing happens');

	# the owner first: the supervisor must not look before that, and see the schema after it
	sql(q{ALTER DATABASE placed OWNER TO owner;
		ALTER DATABASE placed SET pg_task.schema_name = 'theirs';
		ALTER DATABASE db1 RENAME TO renamed;
		ALTER DATABASE plain SET pg_task.table_name = 'jobs'});
	wait_for_exit($node, $looking) if $looking ne '';
	$session->query_safe('COMMIT');
	$session->quit;
	ok(poll_for(sub { task($node, $expiring, 'state', db => 'db8') eq 'GONE' }, 50),
		'the end of the lock of a row that has expired');
	sql('ALTER DATABASE db8 RENAME TO moved');
	my $id = run_task($node, request => 'SELECT 1');
	is_row($node, $id, { q{start < dt + interval '50 s'} => 'true' }, 'a commit');
	my $committed = sql_in('db7', q{COMMIT PREPARED 'task'; SELECT clock_timestamp()});
	wait_until($node, q{SELECT state = 'DONE' FROM task}, db => 'db7');
	is(sql_in('db7', "SELECT start < '$committed'::timestamptz + interval '50 s' FROM task"), 't',
		'the commit of a prepared transaction');
	my $ended = sql_in('db6',
		"UPDATE task SET state = 'GONE' WHERE id = $watched RETURNING clock_timestamp()");
	wait_for_state($node, $waiting, 'DONE', db => 'db6');
	is_row($node, $waiting, { qq{start < '$ended'::timestamptz + interval '50 s'} => 'true' },
		'the end of a task that others wait for', db => 'db6');

	for my $place ([ 'plain', 'jobs' ], [ 'placed', 'theirs.task' ], [ 'moved', 'jobs' ])
	{
		my ($db, $table) = @$place;
		my $query = "SELECT to_regclass('$table') IS NOT NULL";

		ok(poll_for(sub { sql_in($db, $query) eq 't' }, 50), "settings that change for $db");
	}
	is(sql_in('placed', q{SELECT relowner::regrole FROM pg_class
		WHERE oid = 'theirs.task'::regclass}), 'owner', 'and the owner');
	sql('DROP DATABASE plain');
	wait_until($node, q{SELECT count(*) = 0 FROM pg_stat_task_scheduler()
		WHERE datname IS NULL OR datname = 'plain'});
	pass('a database is dropped');

	wait_for_state($node, $planned, 'DONE', db => 'renamed');
	is_row($node, $planned, { q{start >= dt AND start < dt + interval '50 s'} => 'true' },
		'a planned time, in a database that was renamed', db => 'renamed');
	wait_for_state($node, $failing, 'FAIL', db => 'db2');
	is_row($node, $failing, { attempt => 2, q{start < planned + interval '59 s'} => 'true' },
		'a retry', db => 'db2');
	wait_until($node, "SELECT count(*) > 0 FROM task WHERE parent = $repeating AND state = 'DONE'",
		db => 'db3');
	is(sql_in('db3', qq{SELECT start < dt + interval '50 s' FROM task
		WHERE parent = $repeating AND state = 'DONE' ORDER BY id LIMIT 1}), 't', 'a repeat');
	wait_for_state($node, $pausing, 'DONE', db => 'db4');
	is(sql_in('db4', qq{SELECT t.start >= q."until" AND t.start < q."until" + interval '50 s'
		FROM task AS t JOIN task_queue AS q USING (queue) WHERE t.id = $pausing}), 't',
		'the time of a queue');
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE queue = 'slow' AND state = 'DONE'},
		db => 'db5');
	# it is counted from the claim of the first one, which comes before its start
	is(sql_in('db5', q{SELECT max(start) - min(dt) >= interval '9 s',
		max(start) - min(start) < interval '59 s' FROM task WHERE queue = 'slow'}), 't|t', 'a rate');
};

# Tasks that cannot start until somebody changes a limit keep no scheduler, and then they start.
subtest 'a connection limit of 0' => sub {
	sql(q{CREATE ROLE barred LOGIN CONNECTION LIMIT 0; CREATE ROLE app LOGIN;
		CREATE ROLE waiting LOGIN CONNECTION LIMIT 0; ALTER DATABASE db7 CONNECTION LIMIT 0});
	my %role = (db4 => 'waiting', db6 => 'barred', db7 => 'app');
	my %id = map { $_ => insert_task($node, db => $_, request => 'SELECT 1', role => $role{$_}) }
	  keys %role;
	my %change = (db4 => q{COMMIT PREPARED 'limit'; DO 'BEGIN PERFORM pg_reload_conf(); END'},
		db6 => 'ALTER ROLE barred CONNECTION LIMIT 1',
		db7 => 'ALTER DATABASE db7 CONNECTION LIMIT 1');
	sql(q{BEGIN; ALTER ROLE waiting CONNECTION LIMIT 1; PREPARE TRANSACTION 'limit'});
	for my $db (sort keys %change)
	{
		wait_until_state_is($db, 'asleep');
		is(task($node, $id{$db}, 'state', db => $db), 'PLAN', "$db sleeps with a due task");
		my $changed = sql("$change{$db}; SELECT clock_timestamp()");
		wait_for_state($node, $id{$db}, 'DONE', db => $db);
		is_row($node, $id{$db}, { qq{start < '$changed'::timestamptz + interval '50 s'} => 'true' },
			$change{$db}, db => $db);
	}
};

# What the sleeping databases wait for is in their tables.
subtest 'another supervisor' => sub {
	my $id = sql_in('renamed', q{INSERT INTO task (request, dt)
		VALUES ('SELECT 1', clock_timestamp() + interval '1 s') RETURNING id});

	sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE backend_type = 'pg_task supervisor'});
	wait_for_state($node, $id, 'DONE', db => 'renamed');
	is_row($node, $id, { q{start < dt + interval '50 s'} => 'true' },
		'it looks at each database', db => 'renamed');
};

# At the start nobody knows which databases have a table: those that have none do not take turns.
subtest 'what the log says of turns' => sub {
	$node->stop;
	my $few = new_node('few', conf => 'max_worker_processes = 8');
	my $state = 'FROM pg_stat_task_scheduler() WHERE state';
	my $position;

	$few->append_conf('postgresql.conf', 'pg_task.create_table = off');
	$few->reload;
	wait_until($few, 'SHOW pg_task.create_table', expected => 'off');
	sql("CREATE DATABASE few$_", node => $few) for 1 .. 5;
	$position = log_position($few);
	$few->restart;
	wait_until($few, "SELECT count(*) $state = 'no table'", expected => 5);
	wait_until($few, "SELECT count(*) $state = 'running'", expected => 1);
	unlike(log_since($few, $position), qr/take turns/, 'one has a table');
	$few->append_conf('postgresql.conf', 'pg_task.create_table = on');
	$position = log_position($few);
	$few->restart;
	wait_for_log_line($few,
		qr/6 databases take turns at having a scheduler of pg_task: there are places for 3/, $position);
	unlike(log_since($few, $position), qr/take turns.*take turns/s, 'all have one');
};

done_testing();
