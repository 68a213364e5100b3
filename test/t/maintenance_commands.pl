# pg_task does not block maintenance: commands that need a database for themselves, dumps,
# upgrades, single-user mode.  A TAP test because it needs several processes and servers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', init => { allows_streaming => 1 }, conf => q{
	max_worker_processes = 40
	pg_task.idle_timeout = '1 h'});

# A database with an idle scheduler and idle executors of two roles.
sub busy_database
{
	my ($db) = @_;

	sql("CREATE DATABASE $db") unless sql("SELECT count(*) FROM pg_database WHERE datname = '$db'");
	wait_for_table($node, db => $db);
	run_task($node, db => $db, request => 'SELECT 1', role => $_) for qw(postgres worker);
	# there may be a second executor of a role, if the first one was still cleaning up
	wait_until($node,
		qq{SELECT count(DISTINCT (backend_type, usename)) = 3 FROM pg_stat_activity
		WHERE datname = '$db' AND backend_type LIKE 'pg_task%'});
}

# Checks that a command succeeds at the first try.
sub succeeds
{
	my ($command, $name) = @_;
	my ($ret, $out, $err) = run_psql($node, 'postgres', $command);

	is($err, '', $name // $command);
}

sql('CREATE ROLE worker LOGIN; CREATE ROLE owner LOGIN CREATEDB; CREATE ROLE stranger LOGIN');

my ($ret, $out, $err);

subtest 'rename, copy, tablespace, drop' => sub {
	for my $round (1 .. 3)
	{
		busy_database('one');
		succeeds('DROP DATABASE one', "DROP DATABASE $round");
	}
	busy_database('one');
	succeeds('ALTER DATABASE one RENAME TO two');
	busy_database('two');
	is(sql_in('two', 'SELECT count(*) FROM task'), 4,
		'after a rename tasks run, and the rows are there');
	succeeds('CREATE DATABASE copy TEMPLATE two');
	sql_in('copy', 'SELECT pg_task_release()');
	busy_database($_) for qw(two copy);
	is(sql_in('copy', 'SELECT count(*) FROM task'), 6,
		'the copy has the rows of the original');
	succeeds('ALTER DATABASE two SET TABLESPACE pg_default');
	sql('ALTER DATABASE copy OWNER TO owner');
	busy_database('copy');
	($ret, $out, $err) = run_psql($node, 'postgres', 'SET ROLE owner; DROP DATABASE copy');
	is($err, '', 'DROP DATABASE by the owner succeeds');
	succeeds('DROP DATABASE two WITH (FORCE)');
};

# A running task blocks DROP DATABASE, as a session of its user does.  When the command has failed,
# all is as before.
subtest 'a running task blocks DROP DATABASE' => sub {
	busy_database('one');
	make_gates($node, db => 'one');
	my $running = insert_task($node, db => 'one', request => "SELECT hold('drop')");
	wait_for_running($node, 1, db => 'one', id => $running, event => 'PgSleep');
	my $executor = task($node, $running, 'pid', db => 'one');
	my $session = open_session($node, 'one');
	($ret, $out, $err) = run_psql($node, 'postgres', 'DROP DATABASE one');
	like($err, qr/database "one" is being accessed by other users.*2 other sessions/s,
		'a running task blocks a DROP, an idle executor does not');
	$session->quit;
	open_gate($node, 'drop', db => 'one');
	wait_for_state($node, $running, 'DONE', db => 'one');
	is(task($node, $running, 'attempt', db => 'one'), 1, 'the running task goes on');
	# it was asked to exit after that task
	wait_for_exit($node, $executor);
	busy_database('one');
	pass('and the processes come back');
};

# A user who may not drop the database does not disturb it.
subtest 'a user without the privilege' => sub {
	my $before = sql(q{SELECT string_agg(pid::text, ',') FROM pg_stat_activity
		WHERE datname = 'one' AND backend_type LIKE 'pg_task%'});
	my $gone = qq{SELECT count(*) FROM unnest('{$before}'::int[]) AS pid
		WHERE pid NOT IN (SELECT pid FROM pg_stat_activity WHERE pid IS NOT NULL)};
	for my $command ('DROP DATABASE one', 'ALTER DATABASE one RENAME TO x',
		'CREATE DATABASE x TEMPLATE one',
		'ALTER DATABASE one SET TABLESPACE pg_default')
	{
		($ret, $out, $err) = run_psql($node, 'postgres', "SET ROLE stranger; $command");
		like($err, qr/must be owner|permission denied/, "$command by another");
		is(sql($gone), 0, 'no process has exited for it');
	}
	($ret, $out, $err) = run_psql($node, 'postgres', 'BEGIN; DROP DATABASE one');
	like($err, qr/cannot run inside a transaction block/,
		'the command is refused in a transaction block');
	busy_database('one');
};

# Tasks inserted while a database is copied run when the copy is complete.
subtest 'CREATE DATABASE with a template' => sub {
	sql('CREATE DATABASE big');
	busy_database('big');
	sql_in('big',
		'CREATE TABLE bulk AS SELECT n, repeat(\'x\', 500) FROM generate_series(1, 20000) AS n');
	succeeds('CREATE DATABASE big2 TEMPLATE big STRATEGY file_copy');
	is(task($node, run_task($node, db => 'big', request => 'SELECT 1'), q{start - dt < '30 s'},
		db => 'big'), 't', 'a task starts soon after the command');
};

# A dump and its restore while no new tasks start: the rows are restored, and waiting tasks run in
# the new database when they are released.
subtest 'dump and restore' => sub {
	sql_in('big', q{TRUNCATE task;
		INSERT INTO task (request, state) VALUES ('SELECT ''old''', 'DONE');
		INSERT INTO task (request, dt) VALUES ('SELECT ''later''', 'infinity');
		ALTER TABLE task ADD COLUMN mine text DEFAULT 'here'});
	my $dump = $node->basedir . '/dump';
	set_conf($node, 'pg_task.enabled = off');
	wait_for_schedulers($node);
	sql_in('big', q{INSERT INTO task (request) VALUES ('SELECT ''now''')});
	$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, 'big' ], 'pg_dump');
	end_sessions($node);
	$node->command_ok([ 'pg_restore', '--create', '--clean', '--exit-on-error', '-d', 'postgres',
		$dump ], 'pg_restore');
	sql_in('big', 'SELECT pg_task_release()');
	set_conf($node, 'pg_task.enabled = on');
	wait_until($node,
		q{SELECT count(*) = 3 AND bool_or(response = 'now') FROM task WHERE mine = 'here'},
		db => 'big');
	is(sql_in('big', q{SELECT string_agg(state, ',' ORDER BY id) FROM task}),
		'DONE,PLAN,DONE', 'the rows are there, and due tasks ran');
	is(task($node, run_task($node, db => 'big', request => 'SELECT 42'), 'response', db => 'big'),
		'42',
		'new tasks run');
	is(sql_in('big', q{SELECT count(*) FROM pg_index WHERE indrelid = 'task'::regclass}),
		8,
		'no index was created twice');
	is(sql_in('big',
		q{SELECT string_agg(tgenabled, '') FROM pg_trigger WHERE tgrelid = 'task'::regclass}),
		'AAAAAA',
		'all triggers are there, always enabled');
};

# A base backup works.  The server that is started from it holds the tasks back, also when it is
# started again, until they are released.
subtest 'base backup' => sub {
	my $waits = insert_task($node, request => 'SELECT 1', hold => 'for the copy');
	$node->backup('copy');
	sql("DELETE FROM task WHERE id = $waits");
	my $copy = PostgreSQL::Test::Cluster->new('copy');
	$copy->init_from_backup($node, 'copy');
	$copy->start;
	my $held = q{SELECT state = 'held back' FROM pg_stat_task_scheduler()
		WHERE datname = 'postgres'};
	wait_until($copy, $held);
	$copy->restart;
	wait_until($copy, $held);
	is(sql('SELECT pg_task_release()', node => $copy), 't', 'a copy holds the tasks back');
	is(task($copy, run_task($copy, request => 'SELECT 42'), 'response'), '42',
		'the copy of a backup works');
	$copy->stop;
};

# Single-user mode, and the server that pg_upgrade starts, have no processes of pg_task.
subtest 'single-user mode and binary upgrade' => sub {
	$node->stop;
	my $input =
		"SELECT count(*) AS waiting FROM task;\nINSERT INTO task (request) "
			. "VALUES ('SELECT ''single''');\n";
	my $single;
	IPC::Run::run([ $node->installed_command('postgres'), '--single', '-D', $node->data_dir,
		'postgres' ], '<', \$input, '>&', \$single);
	unlike($single, qr/ERROR|FATAL|PANIC/, 'single-user mode accepts a task');
	$node->start;
	wait_until($node, q{SELECT response = 'single' FROM task WHERE request LIKE '%single%'});
	$node->stop;
	is(system('pg_ctl', '-s', '-w', '-D', $node->data_dir, '-l', $node->logfile, '-o',
		"--cluster-name=upgrade -b -c synchronous_commit=off", 'start'), 0,
		'a server in binary upgrade mode starts');
	is(sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'pg_task%'}), 0,
		'there is no process of pg_task');
	sql(q{INSERT INTO task (request) VALUES ('SELECT 2')});
	my $comment = q{SELECT obj_description('pg_task_release()'::regprocedure)};
	my $before = sql($comment);
	sql("COMMENT ON FUNCTION pg_task_release() IS '" . $before =~ s{/\d+/0/}{/1/0/}r . "'");
	is(sql($comment), $before, 'a table that pg_upgrade brings along is at home');
	is(sql(q{SHOW pg_task.max_executors}), 4, 'the settings are known');
	is(system('pg_ctl', '-s', '-w', '-D', $node->data_dir, 'stop'), 0, 'the server stops');
};

# If pg_task is not preloaded, inserts work, and the tasks wait until it is.
subtest 'a server without the library' => sub {
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\npg_task.nonsense = 1");
	$node->start;
	my $waiting = insert_task($node, request => 'SELECT current_setting(\'pg_task.id\')');
	is(sql("UPDATE task SET priority = 1 WHERE id = $waiting RETURNING state"), "PLAN",
		'a row waits and may be changed');
	is(sql(q{SELECT pg_task_next('2024-01-01Z', '1 day', true, '2024-01-01Z',
		'UTC') = '2024-01-02Z'}),
		't', 'pg_task_next works');
	is(sql("SELECT coalesce(parent::text, 'none') FROM task WHERE id = $waiting"), 'none',
		'the task has no parent');
	is(sql("SET pg_task.flow = 'nightly';
		INSERT INTO task (request, state) VALUES ('SELECT 1', 'STOP') RETURNING flow"), 'nightly',
		'a task has the workflow that the session sets');
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_task'");
	$node->restart;
	wait_for_state($node, $waiting, 'DONE');
	is(task($node, $waiting, 'response'), $waiting,
		'the task runs when the library is there again');
};

done_testing();
