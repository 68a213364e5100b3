# The queue table <table>_queue: it is made and completed beside the task table, whatever stands in
# its place is left alone, its checks, its row security.  A TAP test because it needs roles,
# databases and the server's log.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 20\npg_task.period = '20 ms'");

# Waits until the queue table is complete, with this owner.
sub wait_for_queue_table
{
	my ($table, $owner, %opt) = @_;

	wait_until($node, "SELECT count(*) = 2 FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = tgrelid
		WHERE c.oid = to_regclass('$table') AND tgname ~ 'pg_task_queue' AND tgenabled = 'A'
		AND relowner = ${\literal($owner)}::regrole AND relrowsecurity
		AND EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid)", %opt);
}

# How often a failing task of this queue runs: its rule says.
sub runs
{
	my ($queue, %column) = @_;

	return task($node, run_task($node, queue => $queue, request => 'SELECT 1/0', %column),
		'attempt');
}

# They come to run so often.  After a command that has locked the queue table the rules that were
# read before may hold for a moment.
sub runs_become
{
	my ($queue, $count, $name) = @_;

	return ok(poll_for(sub { return runs($queue) == $count }), $name);
}

wait_for_queue_table('task_queue', 'postgres');

subtest 'its columns' => sub {
	is(sql(q{SELECT string_agg(attname || ' ' || format_type(atttypid, NULL), ', ' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = 'task_queue'::regclass AND attnum > 0}),
		'queue text, paused boolean, max integer, rate integer, per interval, '
		  . 'until timestamp with time zone, strict boolean, fair boolean, retry integer, '
		  . 'delay interval, backoff real, timeout interval, active interval, keep interval, '
		  . 'batch integer, total integer, taker name, comment text', 'all are there');
	is(sql(q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'task_queue'::regclass
		AND attnum > 1 AND (attnotnull OR atthasdef)}), '0', 'NULL, unless something is said');
};

subtest 'values that are refused' => sub {
	my @wrong = ([max => -2], [total => -2], [retry => -1], [delay => '-1 s'], [backoff => -1],
		[backoff => 'NaN'], [timeout => '0'], [keep => '-1 s'], [active => '0'], [batch => 0],
		[batch => 65]);
	for (@wrong)
	{
		my ($column, $value) = @$_;
		my $insert = "INSERT INTO task_queue (queue, $column) VALUES ('q', '$value')";

		like(error_of('postgres', $insert, sqlstate => 1),
			qr/23514: .*"$column must be [\w ,-]+"\nDETAIL:  Failing row contains \(q, /,
			"$column = $value");
	}
	is(sqlstate_of('postgres', "INSERT INTO task_queue VALUES ('a%\\')"), '23514',
		'a pattern that ends with an escape character');
	is(sqlstate_of('postgres', "INSERT INTO task_queue VALUES (repeat('x', 256))"), '23514',
		'a name of 256 bytes');
	is(sqlstate_of('postgres', "INSERT INTO task_queue VALUES (NULL)"), '23502', 'no name');
	sql("INSERT INTO task_queue VALUES (repeat('x', 255))");
	like(error_of('postgres', "UPDATE task_queue SET retry = -1"), qr/must be/, 'by UPDATE');
	is(sqlstate_of('postgres', 'CREATE TABLE t (a int); CREATE TRIGGER t AFTER INSERT ON t FOR EACH
		ROW EXECUTE FUNCTION pg_task_queue_changed(); INSERT INTO t VALUES (1)'), '',
		'the trigger on another table does nothing');
	is(sqlstate_of('postgres', 'CREATE TRIGGER u BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION
		pg_task_queue_changed(); INSERT INTO t VALUES (1)'), '39P01', 'the trigger, called otherwise');
	sql('TRUNCATE task_queue');
};

# Tenants see the rows of queues in which a task of theirs waits or runs, if they are granted that.
subtest 'tenants' => sub {
	sql(q{CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN; GRANT INSERT, SELECT ON task TO ann, bob;
		INSERT INTO task_queue (queue, comment) VALUES ('ann', '1'), ('ann.%', '2'), ('bob', '3'),
		('%', '4'), ('none', '5'), ('x%', '6')});
	is(sqlstate_of('ann', 'TABLE task_queue'), '42501', 'no right to read without a grant');
	sql('GRANT SELECT ON task_queue TO ann, bob');
	is(sql_as('ann', 'SELECT count(*) FROM task_queue'), '0', 'no tasks, no rows');
	sql_as('ann', q{INSERT INTO task (queue, dt, request) VALUES ('ann', 'infinity', 'SELECT 1'),
		('ann.1', 'infinity', 'SELECT 1')});
	sql_as('bob', q{INSERT INTO task (queue, dt, request) VALUES ('bob', 'infinity', 'SELECT 1')});
	my $seen = q{SELECT string_agg(comment, '' ORDER BY comment) FROM task_queue};
	is(sql_as('ann', $seen), '124', 'rows of her queues, by name and pattern');
	is(sql_as('bob', $seen), '34', 'of his');
	is(sql($seen), '123456', 'the owner sees all');
	for ("INSERT INTO task_queue (queue) VALUES ('ann.2')", 'UPDATE task_queue SET paused = true',
		'DELETE FROM task_queue', 'TRUNCATE task_queue', 'BEGIN; LOCK task_queue IN SHARE MODE')
	{
		is(sqlstate_of('ann', $_), '42501', "denied: $_");
	}
	sql('GRANT INSERT, UPDATE, DELETE ON task_queue TO ann');
	is(sqlstate_of('ann', "INSERT INTO task_queue (queue) VALUES ('bob.1')"), '42501',
		'with a grant: no row of a queue in which she has no task');
	is(sql_as('ann', q{WITH u AS (UPDATE task_queue SET retry = 1 WHERE queue = 'bob' RETURNING 1)
		SELECT count(*) FROM u}), '0', 'nor a change of one');
	is(sql_as('ann', q{SELECT pg_task_queue_own('%'), pg_task_queue_own('%\\')}), 't|f',
		'a pattern that LIKE refuses is for no queue');
	sql('REVOKE SELECT ON task FROM bob');
	is(sql_as('bob', $seen), '', 'without a right to see tasks none is seen');
	sql('REVOKE ALL ON task_queue FROM ann, bob; DELETE FROM task; DELETE FROM task_queue');
};

subtest 'what the owner puts on the table has no part in the reading' => sub {
	sql(q{CREATE FUNCTION stop() RETURNS bool LANGUAGE plpgsql AS $$
		BEGIN RAISE 'called as %', current_user; END $$;
		INSERT INTO task_queue (queue, retry, delay) VALUES ('r', 1, '0');
		CREATE POLICY stop ON task_queue AS RESTRICTIVE USING (stop());
		ALTER TABLE task_queue FORCE ROW LEVEL SECURITY});
	wait_for_queue_table('task_queue', 'postgres');
	runs_become('r', 2, 'a policy');
	sql('DROP POLICY stop ON task_queue; ALTER TABLE task_queue NO FORCE ROW LEVEL SECURITY;
		ALTER TABLE task_queue RENAME comment TO note; ALTER TABLE task_queue ADD more text');
	runs_become('r', 2, 'columns');
	sql('DELETE FROM task_queue');
};

subtest 'dropped, renamed, changed' => sub {
	sql('DROP TABLE task_queue');
	wait_for_queue_table('task_queue', 'postgres');
	insert_rule('r', retry => 1, delay => '0');
	runs_become('r', 2, 'it is made again after DROP TABLE');
	sql('ALTER TABLE task_queue RENAME TO mine');
	wait_for_queue_table('task_queue', 'postgres');
	runs_become('r', 1, 'the renamed one does not count');
	sql('BEGIN; DROP TABLE task_queue; ALTER TABLE mine RENAME TO task_queue; COMMIT');
	wait_for_queue_table('task_queue', 'postgres');
	runs_become('r', 2, 'unless its name is given back');
	sql('ALTER TABLE task_queue DROP COLUMN comment, DROP COLUMN keep, ADD COLUMN mine text');
	wait_until($node, q{SELECT count(*) = 2 FROM pg_attribute
		WHERE attrelid = 'task_queue'::regclass AND attname IN ('comment', 'keep')});
	runs_become('r', 2, 'columns are added again, others stay');
	sql('DROP TRIGGER pg_task_queue_truncated ON task_queue');
	wait_for_queue_table('task_queue', 'postgres');
	pass('so is a trigger');
	sql('DROP TABLE task');
	wait_for_table($node);
	runs_become('r', 2, 'a new task table has it as well');
};

# Each of these has the name of the queue table.  Tasks run without one, and the log says why.
subtest 'what cannot be a queue table' => sub {
	my @wrong = (
		['CREATE VIEW task_queue AS SELECT 1 AS queue', 'DROP VIEW task_queue', 'a view'],
		['CREATE TABLE task_queue (queue text PRIMARY KEY)', 'DROP TABLE task_queue',
			'no column "paused"'],
		['CREATE TABLE task_queue (queue text, paused bool)', 'DROP TABLE task_queue',
			'column "queue" may be NULL'],
		['CREATE TABLE task_queue (queue text NOT NULL, paused bool)', 'DROP TABLE task_queue',
			'column "queue" is not unique'],
		['CREATE TABLE task_queue (queue text PRIMARY KEY, paused bool, max int GENERATED ALWAYS AS
			(1) STORED)', 'DROP TABLE task_queue', 'column "max" is generated'],
		['CREATE TABLE task_queue (queue text PRIMARY KEY, paused bool) PARTITION BY LIST (queue)',
			'DROP TABLE task_queue', 'not a plain table'],
		['CREATE ROLE other; CREATE TABLE task_queue (queue text PRIMARY KEY, paused bool);
			ALTER TABLE task_queue OWNER TO other', 'DROP TABLE task_queue', 'another owner'],
	);
	for (@wrong)
	{
		my ($make, $drop, $why) = @$_;
		my $position = log_position($node);

		sql("BEGIN; DROP TABLE task_queue; $make; COMMIT");
		wait_for_log_line($node,
			qr/WARNING:  public\.task_queue is not the queue table.*?DETAIL:  .*$why/s, $position);
		is(runs('r', retry => 1, delay => '0'), 2, "$why: tasks run");
		sql($drop);
		wait_for_queue_table('task_queue', 'postgres');
	}
	my $position = log_position($node);
	sql('ALTER TABLE task_queue OWNER TO other');
	wait_for_log_line($node, qr/another owner/, $position);
	sql('ALTER TABLE task OWNER TO other');
	wait_for_queue_table('task_queue', 'other');
	sql('GRANT postgres TO other');
	insert_rule('r', retry => 1, delay => '0');
	runs_become('r', 2, 'both tables have another owner');
	sql('ALTER TABLE task OWNER TO postgres; ALTER TABLE task_queue OWNER TO postgres');
	wait_for_queue_table('task_queue', 'postgres');
};

# The task table gets another owner, without the tables beside it: everything says so.
subtest 'the owner changes' => sub {
	my $owners = q{SELECT string_agg(relname || ' ' || relowner::regrole, ', ' ORDER BY relname)
		FROM pg_class WHERE relname IN ('task', 'task_queue', 'task_rate', 'task_id_seq')};
	my $insert = q{INSERT INTO task_queue (queue, paused) VALUES ('one', true), ('two', true)};
	my $position;

	runs_become('r', 2, 'the queue table is read');
	$position = log_position($node);
	sql('CREATE ROLE "O\'Hara" LOGIN; GRANT CREATE ON SCHEMA public TO "O\'Hara";
		GRANT postgres TO "O\'Hara"; DELETE FROM task_queue; ALTER TABLE task OWNER TO "O\'Hara"');
	wait_for_log_line($node,
		qr/belongs to role "O'Hara" and not to "postgres"\n.*\n.*SELECT pg_task_change_owner\('postgres'\)/,
		$position);
	wait_for_log_line($node, qr/task_queue is not the queue table.*\n.*It has another owner/,
		$position);
	becomes_true(q{SELECT error LIKE 'queue table public.task_queue: It has another owner%'
		FROM pg_stat_task_scheduler()}, 'pg_stat_task_scheduler says that rules do not count');
	is(notices_of('postgres', $insert),
		qq{WARNING:  the rules in "task_queue" have no effect: the task table has another owner\n}
		. q{HINT:  SELECT pg_task_change_owner('O''Hara') gives it to that one.},
		'so does an INSERT, once');
	is(sql(q{SELECT pg_task_change_owner('O''Hara')}), '', 'one statement changes all');
	is(sql($owners), join(', ', map { qq($_ "O'Hara") } qw(task task_id_seq task_queue task_rate)),
		'all have one owner');
	wait_for_queue_table('task_queue', q("O'Hara"));
	my $id = insert_task($node, queue => 'one', request => 'SELECT 1');
	becomes_true("SELECT pg_task_why($id) = 'its queue is paused'", 'and the rules hold');
	is(notices_of('postgres', q{UPDATE task_queue SET paused = NULL}), '', 'without a warning');

	sql('CREATE ROLE thief LOGIN; GRANT CREATE ON SCHEMA public TO thief');
	is(sqlstate_of('thief', q{SELECT pg_task_change_owner('thief')}), '42501', 'not by just anybody');
	is(sqlstate_of('thief', q{SELECT pg_task_change_owner('nobody')}), '42704', 'to nobody');
	sql_as('thief', 'CREATE TABLE theirs (); CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql
		AS $$ BEGIN RETURN NULL; END $$');
	sql('CREATE TABLE mine (LIKE task_queue INCLUDING ALL); ALTER TABLE mine OWNER TO thief;
		BEGIN; DROP TABLE task_queue; ALTER TABLE mine RENAME TO task_queue; COMMIT');
	sql_as('thief', 'CREATE TRIGGER trap AFTER INSERT ON task_queue EXECUTE FUNCTION trap()');
	like(error_of('postgres', q{SELECT pg_task_change_owner('postgres')}),
		qr/table "task_queue" belongs to another role, "thief"
HINT:  ALTER TABLE public\.task_queue OWNER TO postgres; after/, 'nothing of a third role');
	sql(q{ALTER TABLE task_queue OWNER TO "O'Hara"});
	like(error_of('postgres', q{SELECT pg_task_change_owner('postgres')}),
		qr/table "task_queue" has code .*\nDETAIL: .*trigger trap on/,
		'not with the code of somebody else');
	sql('BEGIN; DROP TABLE task_queue; CREATE VIEW task_queue AS SELECT 1 AS queue; COMMIT');
	like(error_of('postgres', q{SELECT pg_task_change_owner('postgres')}),
		qr/table "task_queue" cannot be used/, 'nor with something else');
	sql('DROP VIEW task_queue');
	wait_for_queue_table('task_queue', q("O'Hara"));
	is(sql_as(q(O'Hara), q{SELECT pg_task_change_owner('postgres')}), '',
		'the owner may, who may become the other');
	wait_for_queue_table('task_queue', 'postgres');
	sql(q{ALTER TABLE task OWNER TO "O'Hara"; SELECT pg_task_change_owner('postgres')});
	is(sql(q{SELECT relowner::regrole FROM pg_class WHERE relname = 'task'}), 'postgres',
		'at once after ALTER TABLE');

	# the task table was given away by itself, and the owner of the others is not the caller
	sql('CREATE ROLE "old owner"; CREATE ROLE new_owner;
		GRANT CREATE ON SCHEMA public TO "old owner", new_owner');
	wait_for_queue_table('task_queue', 'postgres');
	sql('ALTER TABLE task_queue OWNER TO "old owner"; ALTER TABLE task_rate OWNER TO "old owner";
		ALTER TABLE task OWNER TO new_owner');
	my ($hint) = error_of('postgres', q{SELECT pg_task_change_owner('new_owner')}) =~ /HINT:  (.*)/;
	is($hint, 'ALTER TABLE public.task_queue OWNER TO new_owner; '
		. 'ALTER TABLE public.task_rate OWNER TO new_owner; '
		. 'after a look at its rows, grants and triggers, which stay.',
		'the hint has a statement for each');
	sql($hint =~ s/ after.*//r);
	wait_for_queue_table('task_queue', 'new_owner');
	is(sql(q{SELECT pg_task_change_owner('postgres')}), '', 'then one statement changes all again');
};

# REASSIGN OWNED changes the owner of the database, too.  Until the supervisor has seen that, the
# scheduler is that of the former owner; the log advises nobody to undo it.  The supervisor looks at
# once, not with its period of 10 seconds.
subtest 'the database changes its owner with all tables' => sub {
	my $schedulers = q{FROM pg_stat_activity WHERE datname = 'given'
		AND backend_type = 'pg_task scheduler'};
	my $position = log_position($node);
	my $supervisor = (backends($node, 'supervisor'))[0];

	sql('CREATE ROLE chief LOGIN; CREATE ROLE heir LOGIN; CREATE DATABASE given OWNER chief');
	wait_for_table($node, db => 'given', table => $_) for qw(task task_queue);
	for (['chief', 'heir'], ['heir', 'chief'])
	{
		my ($from, $to) = @$_;
		my $pid = sql("SELECT pid $schedulers");

		kill 'STOP', $supervisor;
		sql_in('given', "REASSIGN OWNED BY $from TO $to");
		my $id = run_task($node, db => 'given', request => 'SELECT 1', role => $to);
		is(task($node, $id, 'state', db => 'given'), 'DONE', "the table is that of $to");
		kill 'CONT', $supervisor;
		wait_until($node, "SELECT count(*) = 1 $schedulers AND pid <> $pid", seconds => 8);
	}
	unlike(log_since($node, $position), qr/pg_task_change_owner/, 'nothing is to be changed');
	sql('DROP DATABASE given');
};

# Who may create in the schema has these names first: by transactions that are open, and by a type.
# Tasks run without the tables, and the log says why.
subtest 'what cannot be created' => sub {
	my ($holder, $position, $id);

	sql('CREATE DATABASE held');
	wait_for_table($node, db => 'held', table => $_) for qw(task task_queue);
	sql('ALTER DATABASE held SET pg_task.enabled = off');
	wait_for_schedulers($node, 'postgres');
	sql('CREATE ROLE stranger LOGIN');
	sql_in('held', 'GRANT CREATE ON SCHEMA public TO stranger;
		DROP TABLE task_queue; DROP TABLE IF EXISTS task_rate');
	$holder = open_session($node, 'held', extra_params => ['-U', 'stranger']);
	$holder->query_safe('BEGIN; CREATE TABLE public.task_queue (); CREATE TABLE public.task_rate ()');
	$position = log_position($node);
	sql('ALTER DATABASE held RESET pg_task.enabled');
	wait_for_log_line($node,
		qr/task_queue is not the queue table.*?DETAIL:  It could not be created: .*lock timeout/s,
		$position);
	$id = insert_task($node, db => 'held', queue => 'q', max => -1, request => 'SELECT 1');
	wait_for_log_line($node, qr/will forget the pauses.*?DETAIL:  .*lock timeout/s, $position);
	wait_for_state($node, $id, 'DONE', db => 'held');
	$id = insert_task($node, db => 'held', after => "{$id}", request => 'SELECT 1');
	wait_for_state($node, $id, 'DONE', db => 'held');
	pass('tasks run');
	$holder->quit;
};

subtest 'a task table with a long name' => sub {
	my $name = 'x' x 63;
	my $cut = 'x' x 57 . '_queue';

	sql('CREATE DATABASE long');
	sql(qq{ALTER DATABASE long SET pg_task.table_name = '$name'});
	$node->reload;
	wait_for_queue_table($cut, 'postgres', db => 'long');
	pass('the name is cut as that of an index');
};

done_testing();
