# The queue table <table>_queue: it is made and completed beside the task table, whatever stands in
# its place is left alone, its checks, its row security, and the defaults that it has for tasks.  A
# TAP test because it needs roles, databases and the server's log.
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
		AND relowner = '$owner'::regrole AND relrowsecurity
		AND EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid)", %opt);
}

# How often a failing task of this queue runs: its rule says.
sub runs
{
	my ($queue, %column) = @_;

	return task($node, run_task($node, queue => $queue, request => 'SELECT 1/0', %column), 'attempt');
}

sub rule
{
	my ($queue, %column) = @_;
	my @names = sort keys %column;

	sql('INSERT INTO task_queue (queue, ' . join(', ', @names) . ') VALUES (' . literal($queue)
		. ', ' . join(', ', map { literal($column{$_}) } @names) . ')');
}

wait_for_queue_table('task_queue', 'postgres');

subtest 'its columns' => sub {
	is(sql(q{SELECT string_agg(attname || ' ' || format_type(atttypid, NULL), ', ' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = 'task_queue'::regclass AND attnum > 0}),
		'queue text, paused boolean, max integer, rate integer, per interval, burst integer, '
		  . 'until timestamp with time zone, strict boolean, fair boolean, retry integer, '
		  . 'delay interval, backoff real, timeout interval, active interval, keep interval, '
		  . 'comment text', 'all are there');
	is(sql(q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'task_queue'::regclass
		AND attnum > 1 AND (attnotnull OR atthasdef)}), '0', 'NULL, unless something is said');
};

subtest 'values that are refused' => sub {
	my @wrong = ([max => -1], [retry => -1], [delay => '-1 s'], [backoff => -1],
		[backoff => 'NaN'], [timeout => '0'], [keep => '-1 s'], [active => '0']);
	for (@wrong)
	{
		my ($column, $value) = @$_;
		my $insert = "INSERT INTO task_queue (queue, $column) VALUES ('q', '$value')";

		like(error_of('postgres', $insert, sqlstate => 1),
			qr/22023: "$column" of a queue must be/, "$column = $value");
	}
	is(sqlstate_of('postgres', "INSERT INTO task_queue VALUES ('a%\\')"), '22023',
		'a pattern that ends with an escape character');
	is(sqlstate_of('postgres', "INSERT INTO task_queue VALUES (repeat('x', 256))"), '22023',
		'a name of 256 bytes');
	is(sqlstate_of('postgres', "INSERT INTO task_queue VALUES (NULL)"), '23502', 'no name');
	sql("INSERT INTO task_queue VALUES (repeat('x', 255))");
	like(error_of('postgres', "UPDATE task_queue SET retry = -1"), qr/must be/, 'by UPDATE');
	is(sqlstate_of('postgres', 'CREATE TABLE t (a int); CREATE TRIGGER t AFTER INSERT ON t FOR EACH
		ROW EXECUTE FUNCTION pg_task_queue_changed(); INSERT INTO t VALUES (1)'), '42809',
		'the trigger on another table');
	is(sqlstate_of('postgres', 'CREATE TRIGGER u BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION
		pg_task_queue_changed(); INSERT INTO t VALUES (1)'), '39P01', 'the trigger, called otherwise');
	sql('TRUNCATE task_queue');
};

subtest 'defaults for tasks: the row, then the queue, then the role' => sub {
	is(runs('plain'), 1, 'no rule: no retry');
	rule('plain', retry => 2, delay => '0', comment => 'not retried for long');
	is(runs('plain'), 3, 'retry of the queue');
	is(runs('plain', retry => 1), 2, 'the column wins');
	is(runs('other'), 1, 'another queue');
	sql('ALTER ROLE postgres SET pg_task.retry = 1; ALTER ROLE postgres SET pg_task.delay = 0');
	is(runs('plain'), 3, 'the queue wins over the role');
	is(runs('other'), 2, 'the role decides where the queue says nothing');
	sql('ALTER ROLE postgres RESET ALL');
	sql(q{UPDATE task_queue SET timeout = '30 ms', retry = 0});
	is_row($node, run_task($node, queue => 'plain', request => 'SELECT pg_sleep(60)'),
		{ state => 'FAIL', sqlstate => 'TK001', attempt => 1 }, 'timeout of the queue');
	sql('BEGIN; UPDATE task_queue SET retry = 5; ROLLBACK');
	is(runs('plain'), 1, 'a rollback changes nothing');
	sql('TRUNCATE task_queue');
	is(runs('plain', retry => 0), 1, 'TRUNCATE');
	is_row($node, run_task($node, queue => 'plain', request => 'SELECT pg_sleep(0.05)'),
		{ state => 'DONE' }, 'TRUNCATE takes the timeout away');
};

subtest 'patterns: the name wins, then the longest' => sub {
	sql(q{INSERT INTO task_queue (queue, retry, delay) VALUES ('a%', 1, '0'), ('a.%.z', 2, '0'),
		('a.%', 3, '0'), ('a.b', 0, '0'), ('under_score', 1, '0'), ('%\\_x', 4, '0')});
	my %runs = ('a' => 2, 'a.q' => 4, 'a.q.z' => 3, 'a.b' => 1, 'b' => 1, 'under_score' => 2,
		'underXscore' => 1, 'u_x' => 5, 'u-x' => 1);
	is(runs($_), $runs{$_}, "queue $_") for sort keys %runs;
	sql(q{DELETE FROM task_queue WHERE queue = 'a.b'});
	is(runs('a.b'), 4, 'DELETE of a name: the pattern holds');
	sql(q{UPDATE task_queue SET queue = 'c%' WHERE queue = 'a.%'});
	is(runs('a.b') . runs('cc'), '24', 'UPDATE of a pattern');
	sql('DELETE FROM task_queue');
};

subtest 'keep of a queue' => sub {
	rule('kept%', keep => '0');
	my $id = run_task($node, queue => 'stays', request => 'SELECT 1');

	insert_task($node, queue => 'kept.1', request => 'SELECT 1');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE queue = 'kept.1'});
	is(task($node, $id, 'state'), 'DONE', 'other rows stay');
	sql('DELETE FROM task_queue; DELETE FROM task');
};

subtest 'a prepared transaction, a disabled trigger' => sub {
	rule('two', retry => 1, delay => '0');
	is(runs('two'), 2, 'before');
	sql('ALTER TABLE task_queue DISABLE TRIGGER ALL; UPDATE task_queue SET retry = 2');
	wait_until($node, q{WITH n AS (INSERT INTO task (queue, request) VALUES ('two', 'SELECT 1/0'))
		SELECT coalesce(max(attempt), 0) = 3 FROM task WHERE queue = 'two'});
	sql('ALTER TABLE task_queue ENABLE ALWAYS TRIGGER pg_task_queue_changed;
		ALTER TABLE task_queue ENABLE ALWAYS TRIGGER pg_task_queue_truncated; DELETE FROM task_queue');
	pass('is found by itself');
};

subtest 'dropped, renamed, changed' => sub {
	sql('DROP TABLE task_queue');
	wait_for_queue_table('task_queue', 'postgres');
	rule('r', retry => 1, delay => '0');
	is(runs('r'), 2, 'it is made again after DROP TABLE');
	sql('ALTER TABLE task_queue RENAME TO mine');
	wait_for_queue_table('task_queue', 'postgres');
	is(runs('r'), 1, 'the renamed one does not count');
	sql('BEGIN; DROP TABLE task_queue; ALTER TABLE mine RENAME TO task_queue; COMMIT');
	wait_for_queue_table('task_queue', 'postgres');
	wait_until($node, q{WITH n AS (INSERT INTO task (queue, request) VALUES ('r', 'SELECT 1/0'))
		SELECT coalesce(max(attempt), 0) = 2 FROM task WHERE queue = 'r' AND id > }
		  . sql('SELECT max(id) FROM task'));
	sql('ALTER TABLE task_queue DROP COLUMN comment, DROP COLUMN keep, ADD COLUMN mine text');
	wait_until($node, q{SELECT count(*) = 2 FROM pg_attribute
		WHERE attrelid = 'task_queue'::regclass AND attname IN ('comment', 'keep')});
	is(runs('r'), 2, 'columns are added again, others stay');
	sql('DROP TRIGGER pg_task_queue_truncated ON task_queue');
	wait_for_queue_table('task_queue', 'postgres');
	pass('so is a trigger');
	sql('DROP TABLE task');
	wait_for_table($node);
	is(runs('r'), 2, 'a new task table has it as well');
};

# Each of these has the name of the queue table.  Tasks run without one, and the log says why.
subtest 'what cannot be a queue table' => sub {
	my @wrong = (
		['CREATE VIEW task_queue AS SELECT 1 AS queue', 'DROP VIEW task_queue', 'a view'],
		['CREATE TABLE task_queue (queue text PRIMARY KEY)', 'DROP TABLE task_queue',
			'no column "paused"'],
		['CREATE TABLE task_queue (queue text, paused bool)', 'DROP TABLE task_queue',
			'primary key is not \(queue\)'],
		['CREATE TABLE task_queue (queue text PRIMARY KEY, paused bool, max int GENERATED ALWAYS AS
			(1) STORED)', 'DROP TABLE task_queue', 'column "max" is generated'],
		['CREATE TABLE task_queue (queue text PRIMARY KEY, paused bool) PARTITION BY LIST (queue)',
			'DROP TABLE task_queue', 'partitioned'],
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
	rule('r', retry => 1, delay => '0');
	is(runs('r'), 2, 'both tables have another owner');
	sql('ALTER TABLE task OWNER TO postgres; ALTER TABLE task_queue OWNER TO postgres');
	wait_for_queue_table('task_queue', 'postgres');
};

subtest 'a task table with a long name' => sub {
	my $name = 'x' x 63;
	my $cut = 'x' x 57 . '_queue';

	sql('CREATE DATABASE long');
	sql(qq{ALTER DATABASE long SET pg_task."table" = '$name'});
	$node->reload;
	wait_for_queue_table($cut, 'postgres', db => 'long');
	pass('the name is cut as that of an index');
};

done_testing();
