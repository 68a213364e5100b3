# A copy of a database, and one that was restored from a dump, does not run what waits in it until
# somebody says so; a database that was only renamed, moved or promoted does. A TAP test because it
# needs several databases and servers, pg_dump and pg_restore.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', period => '1 s', conf => 'max_worker_processes = 20',
	init => { allows_streaming => 1 });
my $held = qr/LOG:  pg_task holds back the tasks of public\.task in database "(\w+)"/;
my $found = qr/LOG:  pg_task has found the task table public\.task of role "\w+" in database/;

# What waits in a database, by the task that it would run.
sub waiting
{
	my ($db, %opt) = @_;

	return sql("SELECT string_agg(request || ' ' || state, ', ' ORDER BY id) FROM task
		WHERE request <> 'SELECT 0'", db => $db, %opt);
}

# Waits until the tasks of a database are held back.
sub wait_for_hold
{
	my ($db, %opt) = @_;

	wait_until($opt{node} // $node,
		"SELECT state = 'held back' FROM pg_stat_task_scheduler() WHERE datname = '$db'");
}

sub release
{
	my ($db, %opt) = @_;

	return sql('SELECT pg_task_release()', db => $db, %opt);
}

# A database in which a task has run and one waits that is due, but may not start.
sub make_origin
{
	my ($db) = @_;

	sql("CREATE DATABASE $db");
	wait_for_table($node, db => $db, table => 'task_queue');
	run_task($node, db => $db, request => 'SELECT 0');
	sql_in($db, q{INSERT INTO task_queue (queue, paused) VALUES ('waits', true);
		INSERT INTO task (queue, request) VALUES ('waits', 'SELECT 1'), ('waits', 'SELECT 2')});
}

# Let what waits run, as far as the scheduler lets it.
sub unpause
{
	my ($db, %opt) = @_;

	sql(q{UPDATE task_queue SET paused = false}, db => $db, %opt);
}

# Waits until all that came from the origin has run.
sub wait_until_run
{
	my ($db) = @_;

	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE state = 'DONE'
		AND request <> 'SELECT 0'}, db => $db);
}

# The tasks of a copy of the origin are held back, and run when they are released.
sub runs_when_released
{
	my ($db) = @_;

	unpause($db);
	wait_for_hold($db);
	is(waiting($db), 'SELECT 1 PLAN, SELECT 2 PLAN', "$db: what waits is held back");
	is(release($db), 't', 'released');
	wait_until_run($db);
	sql("DROP DATABASE $db");
}

# The rows of a copy have arrived in a table that is at home, and are on hold.
sub wait_for_copied_rows
{
	my ($db) = @_;

	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE hold LIKE 'copied%pg_task_release'},
		db => $db);
}

# A dump as a script, without what psql of other minor versions does not know.
sub script_of
{
	my (@options) = @_;
	my $file = $node->basedir . '/script.sql';

	is(client('pg_dump', @options, '-f', $file), '', "pg_dump @options");
	return slurp_file($file) =~ s/^\\(?:un)?restrict .*//mgr;
}

# Runs a script; the first error ends it.
sub run_script
{
	my ($script, @options) = @_;
	my $file = $node->basedir . '/script.sql';

	unlink $file;
	append_to_file($file, $script);
	return client('psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $file, @options);
}

# Runs a client program; returns what it says of errors.
sub client
{
	my (@command) = @_;
	my ($out, $err) = ('', '');

	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	IPC::Run::run(\@command, '>', \$out, '2>', \$err);
	return $err;
}

# Restores a dump in place of what is there.
sub restore_clean
{
	my ($db, $dump) = @_;

	is(client('pg_restore', '--clean', '--if-exists', '-1', '-d', $db, $dump), '', "$db: restored");
	return;
}

make_origin('origin');
sql('CREATE ROLE tenant LOGIN; CREATE ROLE chief LOGIN');

subtest 'CREATE DATABASE with a template' => sub {
	my $position = log_position($node);
	sql('CREATE DATABASE clone TEMPLATE origin');
	unpause('clone');
	wait_for_hold('clone');
	wait_for_log_line($node, qr/$held/, $position);
	like(log_since($node, $position), qr/database "clone"\n.*DETAIL:.*\n.*HINT:.*pg_task_release/,
		'the log says how to release it');
	my $id = sql_in('clone', q{SELECT min(id) FROM task WHERE state = 'PLAN'});
	like(sql_in('clone', "SELECT pg_task_why($id)"), qr/held back.*pg_task_release/, 'and why');
	like(sql_in('clone', q{SELECT text FROM pg_task_top() WHERE what = 'note'}),
		qr/held back.*pg_task_release/, 'so does pg_task_top');
	like(sqlstate_of('tenant', 'SELECT pg_task_release()', db => 'clone'), qr/42501/,
		'another role must not release it');
	sql_in('clone', "UPDATE task SET state = 'STOP' WHERE id = $id;
		INSERT INTO task (request) VALUES ('SELECT 3')");
	is(release('clone'), 't', 'it is released');
	wait_until($node, q{SELECT bool_and(state NOT IN ('PLAN', 'WORK')) FROM task}, db => 'clone');
	is(waiting('clone'), 'SELECT 1 STOP, SELECT 2 DONE, SELECT 3 DONE', 'what was left has run');
	is(sql_in('clone', q{SELECT count(*) FROM pg_task_top() WHERE what = 'note'}), 0, 'without a note');
	is(release('clone'), 'f', 'it was not held back any more');
	is(waiting('origin'), 'SELECT 1 PLAN, SELECT 2 PLAN', 'the original waits');
	is(() = log_since($node, $position) =~ /$held/g, 1, 'said once');
	is(() = log_since($node, $position) =~ /$found "clone"/g, 1, 'and so is which table it is');
};

# The clone is at home now, so a copy of it is not.
subtest 'a copy of a copy, and a restart' => sub {
	sql_in('clone', q{INSERT INTO task (request, hold) VALUES ('SELECT 3', 'for the copy')});
	sql('CREATE DATABASE again TEMPLATE clone');
	sql_in('again', q{INSERT INTO task (request) VALUES ('SELECT 4')});
	wait_for_hold('again');
	my $position = log_position($node);
	$node->restart;
	wait_for_log_line($node, qr/$held/, $position);
	wait_for_hold('again');
	is(() = log_since($node, $position) =~ /$held/g, 1, 'said once again, of this one alone');
	is(() = log_since($node, $position) =~ /$found "again"/g, 1, 'and which table it is');
	is(run_task($node, db => 'clone', request => 'SELECT 5') ? 1 : 0, 1, 'the clone runs tasks');
	like(waiting('again'), qr/SELECT 4 PLAN/, 'the copy does not');
	sql('ALTER DATABASE again OWNER TO chief');
	sql_in('again', 'ALTER TABLE task OWNER TO chief; ALTER TABLE task_queue OWNER TO chief');
	is(sql_as('chief', 'SELECT pg_task_release()', db => 'again'), 't', 'by the owner');
	wait_until($node, q{SELECT state = 'FAIL' FROM task WHERE request = 'SELECT 4'},
		db => 'again');
	is(() = log_since($node, $position) =~ /$found "again"/g, 1, 'not again at its release');
	sql('DROP DATABASE again');
};

# Each table has a mark of its own: that another one was served meanwhile changes nothing.
subtest 'another table meanwhile' => sub {
	sql('CREATE DATABASE between TEMPLATE origin');
	wait_for_hold('between');
	sql(q{ALTER DATABASE between SET pg_task.table_name = 'other'});
	wait_for_table($node, db => 'between', table => 'other');
	sql_in('between', q{INSERT INTO other (request) VALUES ('SELECT 1')});
	wait_until($node, q{SELECT state = 'DONE' FROM other}, db => 'between');
	sql('ALTER DATABASE between RESET pg_task.table_name');
	runs_when_released('between');
};

subtest 'rename and tablespace' => sub {
	my $position = log_position($node);
	my $folder = $node->basedir . '/elsewhere';

	mkdir $folder;
	sql("CREATE TABLESPACE elsewhere LOCATION '$folder'");
	sql('ALTER DATABASE clone RENAME TO renamed');
	run_task($node, db => 'renamed', request => 'SELECT 0');
	sql('ALTER DATABASE renamed SET TABLESPACE elsewhere');
	run_task($node, db => 'renamed', request => 'SELECT 0');
	unlike(log_since($node, $position), $held, 'nothing is held back');
	sql('DROP DATABASE renamed');
	sql('DROP TABLESPACE elsewhere');
};

# Into a database that is empty, in which the scheduler has made its table: with --clean in one
# transaction, as the manual says, that table is replaced; otherwise what the restore creates exists
# already, and the rows arrive in the table that is at home: each tells where it comes from.
subtest 'a dump' => sub {
	my $dump = $node->basedir . '/dump';
	is(client('pg_dump', '-Fc', '-f', $dump, 'origin'), '', 'pg_dump');
	is(client('pg_dump', '-f', "$dump.sql", 'origin'), '', 'pg_dump, as a script');
	my %ways = (
		clean => sub { restore_clean('clean', $dump) },
		script => sub { client('psql', '-Xq', '-f', "$dump.sql", '-d', 'script') },
		data => sub { client('pg_restore', '--data-only', '-d', 'data', '-t', 'task',
			'-t', 'task_id_seq', $dump) });
	for my $db (sort keys %ways)
	{
		sql("CREATE DATABASE $db");
		wait_for_table($node, db => $db, table => 'task_queue');
		$ways{$db}->();
		unpause($db);
		$db eq 'clean' ? wait_for_hold($db) : wait_for_copied_rows($db);
		is(waiting($db), 'SELECT 1 PLAN, SELECT 2 PLAN', "$db: the rows are there, and wait");
		run_task($node, db => $db, request => 'SELECT 0') if $db ne 'clean';
		is(release($db), 't', 'released');
		wait_until_run($db);
		is(release($db), 'f', 'nothing is held back any more');
		sql("DROP DATABASE $db");
	}
	sql('CREATE DATABASE fresh IS_TEMPLATE true');
	is(client('pg_restore', '-j2', '--exit-on-error', '-d', 'fresh', $dump), '', 'a whole restore');
	unpause('fresh');
	sql('ALTER DATABASE fresh IS_TEMPLATE false');
	wait_for_hold('fresh');
	is(waiting('fresh'), 'SELECT 1 PLAN, SELECT 2 PLAN', 'and its rows wait');
};

# What is copied and locked is passed over; what runs when the server starts is no exception.
subtest 'copied rows' => sub {
	sql('CREATE DATABASE rows');
	wait_for_table($node, db => 'rows', table => 'task_queue');
	sql_in('rows', q{INSERT INTO task (request, role_id, cron, state) VALUES
		('SELECT 1', 4294967297, NULL, 'PLAN'), ('SELECT 2', 4294967297, '@reboot', 'PLAN'),
		('SELECT 3', 4294967297, NULL, 'WORK'), ('SELECT 4', 4294967297, NULL, 'DONE')});
	is(sql_in('rows', q{SELECT string_agg(request || coalesce(left(hold, 6), ''), ',' ORDER BY id)
		FROM task}), 'SELECT 1copied,SELECT 2copied,SELECT 3copied,SELECT 4', 'they are on hold');
	my $health = q{SELECT level, problem FROM pg_task_health() WHERE datname = 'rows'};
	# that in WORK is planned again first
	wait_until($node, $health, db => 'rows',
		expected => 'warning|tasks on hold, copied from another database: 3');
	my $locker = open_session($node, 'rows');
	$locker->query_safe(q{BEGIN; SELECT FROM task WHERE request = 'SELECT 1' FOR UPDATE});
	is(release('rows'), 't', 'released');
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE state = 'DONE'
		AND request IN ('SELECT 2', 'SELECT 3')}, db => 'rows');
	is(sql_in('rows', q{SELECT hold LIKE 'copied%' FROM task WHERE request = 'SELECT 1'}), 't',
		'a locked one is passed over');
	$locker->query_safe('COMMIT');
	$locker->quit;
	is(release('rows'), 't', 'released again');
	wait_until($node, q{SELECT state = 'DONE' FROM task WHERE request = 'SELECT 1'}, db => 'rows');
	is(release('rows'), 'f', 'that was all');
	is(sql_in('rows', $health), '', 'and pg_task_health is content');
	# code of the owner's that a query would run
	sql_in('rows', q{CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
			RETURN NEW; END';
		CREATE TRIGGER counted BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION counted()});
	sql('CREATE DATABASE rows2 TEMPLATE rows');
	is(release('rows2'), 't', 'a trigger of the owner is in the way of no release');
	sql("DROP DATABASE $_") for qw(rows2 rows);
};

# A dump has no roles: what waits for one that is not there has not failed before it may run.
subtest 'roles that do not exist' => sub {
	my $dump = $node->basedir . '/roles';
	sql(q{CREATE ROLE "a B" LOGIN; CREATE DATABASE source TEMPLATE origin});
	sql_in('source', q{GRANT INSERT, SELECT ON task TO "a B"; DELETE FROM task;
		INSERT INTO task (role, key, repeat, dt, request)
		VALUES ('a B', 'k', '1 day', 'infinity', 'SELECT 1');
		INSERT INTO task (role, dt, request)
		VALUES ('a B', 'infinity', 'SELECT 2'), (current_user, 'infinity', 'SELECT 3')});
	is(client('pg_dump', '-Fc', '-x', '-f', $dump, 'source'), '', 'pg_dump');
	sql('DROP DATABASE source; DROP ROLE "a B"');
	for my $db ('away', 'home')
	{
		sql("CREATE DATABASE $db");
		wait_for_table($node, db => $db, table => 'task_queue');
		$db eq 'away' ? restore_clean($db, $dump)
			: client('pg_restore', '--data-only', '-d', $db, '-t', 'task', $dump);
		$db eq 'away' ? wait_for_hold($db)
			: wait_until($node, q{SELECT count(*) = 3 FROM task WHERE hold LIKE 'copied%'}, db => $db);
		# a scan of the scheduler goes by
		run_task($node, db => $db, request => 'SELECT 0') if $db eq 'home';
		like(error_of('postgres', 'SELECT pg_task_release()', db => $db),
			qr/tasks wait for roles that do not exist: "a B"/, "$db: refused");
		is(sql_in($db, q{SELECT count(*) FROM task WHERE state = 'PLAN'}), 3, 'they wait');
		sql('CREATE ROLE "a B" LOGIN');
		is(release($db), 't', 'released');
		sql_in($db, q{UPDATE task SET dt = now() WHERE state = 'PLAN'});
		wait_until($node, q{SELECT count(*) = 3 FROM task WHERE state = 'DONE'
			AND request <> 'SELECT 0'}, db => $db);
		is(sql_in($db, q{SELECT count(*) FROM task WHERE state = 'PLAN' AND key = 'k'}), 1,
			'and the schedule goes on');
		sql("DROP DATABASE $db; DROP ROLE \"a B\"");
	}
};

# It is the role that counts, and not its name, where the row was bound in this database.
subtest 'a role that was dropped' => sub {
	my $refused = qr/tasks wait for roles that do not exist: late$/m;

	sql(q{CREATE ROLE late LOGIN; CREATE DATABASE bound});
	wait_for_table($node, db => 'bound', table => 'task_queue');
	sql_in('bound', q{INSERT INTO task (role, key, repeat, dt, hold, request) VALUES ('late', 'k',
		'1 day', 'infinity', 'copied from another database: see pg_task_release', 'SELECT 1')});
	sql('DROP ROLE late');
	for my $before ('SELECT 1', 'CREATE ROLE late LOGIN')
	{
		sql($before);
		like(error_of('postgres', 'SELECT pg_task_release()', db => 'bound'), $refused, $before);
	}
	sql_in('bound', q{UPDATE task SET role = 'late', role_id = 0});
	wait_until($node, 'SELECT role_id <> 0 FROM task', db => 'bound');
	sql('ALTER ROLE late RENAME TO later');
	is(release('bound'), 't', 'one that was renamed');
	is(sql_in('bound', 'SELECT state, hold FROM task'), 'PLAN|', 'its task waits');
	sql('DROP DATABASE bound; DROP ROLE later');
};

# All rows count, also those that the owner does not see.
subtest 'a role of a row that is hidden from the owner' => sub {
	sql(q{CREATE ROLE keeper LOGIN; CREATE ROLE late LOGIN});
	sql('CREATE DATABASE source OWNER keeper');
	wait_for_table($node, db => 'source', table => 'task_queue');
	sql_in('source', q{ALTER TABLE task ENABLE ROW LEVEL SECURITY;
		ALTER TABLE task FORCE ROW LEVEL SECURITY;
		INSERT INTO task (role, dt, request) VALUES ('late', 'infinity', 'SELECT 1')});
	sql_as('keeper', q{CREATE SCHEMA own; CREATE FUNCTION own.touch() RETURNS trigger
		LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER touch BEFORE UPDATE ON task
		FOR EACH ROW EXECUTE FUNCTION own.touch()}, db => 'source');
	sql('CREATE DATABASE forced TEMPLATE source OWNER keeper');
	wait_for_hold('forced');
	sql('DROP DATABASE source; DROP ROLE late');
	is(sql_as('keeper', 'SELECT count(*) FROM task', db => 'forced'), 0, 'the owner sees no row');
	like(error_of('keeper', 'SELECT pg_task_release()', db => 'forced'), qr/do not exist: late$/m,
		'refused');
	sql('CREATE ROLE late LOGIN');
	is(sql_as('keeper', 'SELECT pg_task_release()', db => 'forced'), 't', 'released');
	sql('DROP DATABASE forced; DROP ROLE late, keeper');
};

# A restore in many transactions, step by step, into a database that has a scheduler but no table:
# the scheduler leaves the table alone until all of it is there.
subtest 'while a dump is being restored' => sub {
	my $missing = q{SELECT count(*) FROM pg_task_missing('task', 'public'::regnamespace, 'task')};

	# as a template at first, so that no scheduler comes before the setting
	sql(q{CREATE DATABASE steps IS_TEMPLATE true;
		ALTER DATABASE steps SET pg_task.create_table = off;
		ALTER DATABASE steps IS_TEMPLATE false});
	my ($tables, $rest) = script_of('origin') =~ /^(.*?)(^CREATE INDEX .*)/ms;
	my ($most, $policies) = $rest =~ /^(.*?)(^CREATE POLICY .*)/ms;

	for my $step ($tables, $most)
	{
		is(run_script($step, '-d', 'steps'), '', 'a step');
		# a database without a table is looked at every few minutes, or when its settings change
		sql(q{ALTER DATABASE steps SET pg_task.keep = '7 d'}) if $step eq $tables;
		wait_for_hold('steps');
	}
	isnt(sql_in('steps', $missing), 0, 'what is missing has not been made');
	is(run_script($policies, '-d', 'steps'), '', 'the last step finds nothing in its way');
	is(sql_in('steps', $missing), 0, 'nothing is missing');
	runs_when_released('steps');
};

# Until the scheduler looks at a database again in which it has found no table, pg_task_health says
# that nothing is known of what was restored.
subtest 'restored where there was no table' => sub {
	my $health = q{SELECT level, problem FROM pg_task_health() WHERE datname = 'unseen'};

	sql(q{CREATE DATABASE unseen IS_TEMPLATE true;
		ALTER DATABASE unseen SET pg_task.create_table = off;
		ALTER DATABASE unseen IS_TEMPLATE false});
	wait_until($node, q{SELECT state FROM pg_stat_task_scheduler() WHERE datname = 'unseen'},
		expected => 'no table');
	sql_in('unseen', 'CREATE EXTENSION pg_task');
	is(sql_in('unseen', $health), '', 'nothing is wrong without a table');
	is(run_script(script_of('origin') =~ s/^CREATE EXTENSION .*//mr, '-d', 'unseen'), '', 'restored');
	is(sql_in('unseen', $health),
		'info|the task table has not been looked at yet: nothing is known of it', 'nothing is known');
	is(sql_in('unseen', q{SELECT DISTINCT pg_task_why(id) FROM task WHERE state = 'PLAN'}),
		'no scheduler has looked at the task table yet: it may have to be released,'
		. ' see pg_task_release', 'pg_task_why promises no start');
	sql(q{ALTER DATABASE unseen SET pg_task.keep = '7 d'});    # then it looks
	wait_for_hold('unseen');
	is(sql_in('unseen', $health), 'critical|no task starts: the database is held back', 'it is');
	runs_when_released('unseen');
};

# That of another owner than the database is found by a scheduler alone, which looks when a superuser
# wants it to be released.
subtest 'restored where there was no table, for another owner' => sub {
	sql(q{CREATE DATABASE theirs IS_TEMPLATE true OWNER chief;
		ALTER DATABASE theirs SET pg_task.create_table = off;
		ALTER DATABASE theirs IS_TEMPLATE false});
	wait_until($node, q{SELECT state FROM pg_stat_task_scheduler() WHERE datname = 'theirs'},
		expected => 'no table');
	sql_in('theirs', 'CREATE EXTENSION pg_task');
	is(run_script(script_of('origin') =~ s/^CREATE EXTENSION .*//mr, '-d', 'theirs'), '', 'restored');
	ok(poll_for(sub { return eval { release('theirs') } }), 'released soon');
};

# Migrations and test databases: what has no rows that wait has nothing to hold back, and nothing in
# a dump of the schema tells in which database it was made.
subtest 'an empty copy, and a dump of the schema' => sub {
	sql('CREATE ROLE developer LOGIN; CREATE DATABASE empty OWNER developer');
	wait_for_table($node, db => 'empty', table => 'task_queue');
	run_task($node, db => 'empty', request => 'SELECT 0', role => 'developer');
	sql('CREATE DATABASE twin TEMPLATE empty');
	# what is inserted before the scheduler has looked counts as copied
	wait_until($node, q{SELECT state = 'running' FROM pg_stat_task_scheduler()
		WHERE datname = 'twin'});
	run_task($node, db => 'twin', request => 'SELECT 1', role => 'developer');
	pass('a copy with nothing but history runs tasks');
	is(release('twin'), 'f', 'it is not held back');
	# the extension comes from a superuser, all the rest from the owner of the database
	sql('CREATE DATABASE development TEMPLATE template0 OWNER developer IS_TEMPLATE true;
		ALTER DATABASE development SET pg_task.create_table = off');
	sql_in('development', 'CREATE EXTENSION pg_task');
	my $schema = script_of('-s', 'empty');
	is(run_script($schema, '-U', 'developer', '-d', 'development'), '',
		'restored by the owner of the database');
	sql('ALTER DATABASE development IS_TEMPLATE false');
	wait_until($node, q{SELECT state = 'running' FROM pg_stat_task_scheduler()
		WHERE datname = 'development'});
	run_task($node, db => 'development', request => 'SELECT 1', role => 'developer');
	is(sql_in('development', 'SELECT pg_task_create()'), 'task', 'pg_task_create again');
	is(script_of('-s', 'development'), $schema, 'its schema is the same as that of the first');
	unlike($schema, qr/COMMENT ON EXTENSION|\[pg_task/, 'without a mark');
	sql("DROP DATABASE $_") for qw(empty twin development);
};

# The mark is in the comment on a function of the extension.
subtest 'the mark' => sub {
	my $comment = q{SELECT obj_description('pg_task_release()'::regprocedure)};

	like(sql_in('origin', $comment), qr{ \[pg_task home \d+/\d+/0/\d+\]$},
		'it is at the end of the comment');
	like(sqlstate_of('tenant', q{COMMENT ON FUNCTION pg_task_release() IS ''}, db => 'origin'),
		qr/42501/, 'not for a tenant');
	sql_in('origin', q{COMMENT ON FUNCTION pg_task_release() IS NULL; ALTER TABLE task ADD extra int});
	wait_until($node, qq{SELECT ($comment) LIKE '[pg_task home %'}, db => 'origin');
	run_task($node, db => 'origin', request => 'SELECT 0');
	pass('the rows of a table without a mark tell that they are at home');
};

# A standby is the same system: after its promotion tasks run.  It was made of a backup that knows
# of another restore than the primary, as after a recovery of the primary to a point in time.
subtest 'a promoted standby' => sub {
	$node->backup('copy');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'copy', has_streaming => 1);
	append_to_file($standby->data_dir . '/pg_stat/pg_task.restored', "50\n");
	$standby->start;
	sql_in('origin', q{INSERT INTO task (request, dt) VALUES ('SELECT 7', 'infinity')});
	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	like(sqlstate_of('postgres', 'SELECT pg_task_release()', db => 'origin', node => $standby),
		qr/25006/, 'not on a standby');
	$node->stop('immediate');
	$standby->promote;
	sql(q{UPDATE task SET dt = now() WHERE request = 'SELECT 7'}, db => 'origin',
		node => $standby);
	wait_until($standby, q{SELECT state = 'DONE' FROM task WHERE request = 'SELECT 7'},
		db => 'origin');
	wait_for_log_line($standby, qr/holds back.*"fresh"/, 0);
	pass('what was held back before the promotion still is');
	unlike(slurp_file($standby->logfile), qr/holds back.*"origin"/, 'and nothing else');
};

# A restored server whose tasks were released, its standby, and back: each goes on as the other did.
subtest 'a standby of a restored server' => sub {
	$node->start;
	my ($restored, $standby) = map { PostgreSQL::Test::Cluster->new($_) } qw(restored its_standby);

	$restored->init_from_backup($node, 'copy');
	$restored->start;
	wait_for_hold('origin', node => $restored);
	release('origin', node => $restored);
	$restored->backup('restored');
	$standby->init_from_backup($restored, 'restored', has_streaming => 1);
	$standby->start;
	$restored->wait_for_catchup($standby);
	$restored->stop;
	$standby->promote;
	run_task($standby, db => 'origin', request => 'SELECT 10');
	pass('tasks run on the standby when it is promoted');
	sql('CREATE DATABASE since', node => $standby);
	wait_for_table($standby, db => 'since');
	run_task($standby, db => 'since', request => 'SELECT 11');
	$restored->enable_streaming($standby);
	$restored->start;
	$standby->wait_for_catchup($restored, 'replay', $standby->lsn('insert'));
	$standby->stop;
	$restored->promote;
	run_task($restored, db => $_, request => 'SELECT 12') for qw(origin since);
	pass('and on the restored server when that is promoted again');
	wait_for_hold('fresh', node => $restored);
	is(waiting('fresh', node => $restored), waiting('fresh', node => $node),
		'what nobody has released is held back');
	$restored->stop;
};

# A standby that is to end its recovery at some point is no successor of its primary, which goes on.
subtest 'a standby with a recovery target' => sub {
	$node->backup('targeted');
	my $copy = PostgreSQL::Test::Cluster->new('targeted');
	$copy->init_from_backup($node, 'targeted', has_streaming => 1);
	$copy->append_conf('postgresql.conf',
		"recovery_target_name = 'here'\nrecovery_target_action = promote");
	sql_in('origin', q{INSERT INTO task (request, dt) VALUES ('SELECT 8', 'infinity');
		SELECT pg_create_restore_point('here')});
	$copy->start;
	wait_until($copy, 'SELECT NOT pg_is_in_recovery()');
	wait_for_hold('origin', node => $copy);
	$copy->restart;
	wait_for_hold('origin', node => $copy);
	sql(q{UPDATE task SET dt = now() WHERE request = 'SELECT 8'}, db => 'origin', node => $copy);
	is(release('origin', node => $copy), 't', 'it is held back, also after a restart');
	wait_until($copy, q{SELECT state = 'DONE' FROM task WHERE request = 'SELECT 8'},
		db => 'origin');
	$copy->restart;
	is(task($copy, run_task($copy, db => 'origin', request => 'SELECT 9'), 'state',
			db => 'origin'),
		'DONE', 'it was released for good');
	$copy->stop;
};

# It makes a subscriber of a standby, which is a primary with the same identifier for a while.
subtest 'pg_createsubscriber' => sub {
	plan skip_all => 'from 17 on' if $node->pg_version < 17;
	my $publisher = new_node('publisher', init => { allows_streaming => 'logical' },
		conf => "pg_task.period = '20 ms'");
	$publisher->backup('standby');
	my $subscriber = PostgreSQL::Test::Cluster->new('subscriber');
	$subscriber->init_from_backup($publisher, 'standby', has_streaming => 1);
	$subscriber->set_standby_mode;
	my $port = $subscriber->port;
	sql(q{CREATE TABLE ran (port text, no serial PRIMARY KEY);
		INSERT INTO task (request, repeat)
		SELECT 'INSERT INTO ran VALUES (current_setting(''port''))', '10 ms'
		FROM generate_series(1, 3)}, node => $publisher);
	$subscriber->start;
	$publisher->wait_for_catchup($subscriber);
	$subscriber->stop;
	command_ok([ 'pg_createsubscriber',
			'--recovery-timeout', $PostgreSQL::Test::Utils::timeout_default,
			'--pgdata', $subscriber->data_dir, '--publisher-server',
			$publisher->connstr('postgres'), '--socketdir', $subscriber->host,
			'--subscriber-port', $port, '--database', 'postgres' ], 'it ends well');
	my $position = log_position($subscriber);
	$subscriber->start;
	wait_for_hold('postgres', node => $subscriber);
	is(sql("SELECT count(*) FROM ran WHERE port = '$port'", node => $subscriber), 0,
		'no task has run meanwhile');
	is(sql('SELECT count(*) > 0 FROM ran', node => $subscriber), 't', 'it has what others ran');
};

done_testing();
