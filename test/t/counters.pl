# pg_stat_task: what has become of tasks, per database and queue.  A TAP test because it stops the
# server, and kills tasks.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', period => '1 s', conf => q{
	pg_task.max_executors = 2
	pg_task.stat_max = 10});

sql(q{CREATE ROLE app LOGIN; CREATE ROLE other LOGIN;
	GRANT SELECT, INSERT, UPDATE ON task TO app, other});
make_gates($node);

my $counters = q{concat_ws(' ', planned, started, done, failed, retried, stopped, gone, timed_out,
	crashed)};

# Waits until the figures of a queue are these: processes report them a little later.
sub counted
{
	my ($queue, $expected, $name) = @_;

	wait_until($node, 'SELECT ' . $counters . ' FROM pg_stat_task() WHERE queue = '
		  . PgTask::literal($queue), expected => $expected);
	return pass($name);
}

subtest 'what happens to tasks' => sub {
	run_task($node, queue => 'good', request => 'SELECT 1') for 1 .. 3;
	counted('good', '3 3 3 0 0 0 0 0 0', 'done');
	run_task($node, queue => 'bad', request => 'SELECT 1/0', retry => 1, delay => '0');
	run_task($node, queue => 'bad', request => 'SELECT pg_sleep(60)', timeout => '10 ms');
	counted('bad', '2 3 0 2 1 0 0 1 0', 'failed, tried again, and timed out');
	my $id = insert_task($node, queue => 'stop', request => q{SELECT hold('a')});
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	sql("SELECT pg_task_cancel($id)");
	$id = insert_task($node, queue => 'stop', request => 'SELECT 1', dt => '2100-01-01');
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	counted('stop', '2 1 0 0 0 2 0 0 0', 'stopped while it runs, and while it waits');
	$id = insert_task($node, queue => 'late', request => 'SELECT 1', dt => '2020-01-01',
		active => '1 s');
	wait_for_state($node, $id, 'GONE');
	counted('late', '1 0 0 0 0 0 1 0 0', 'gone');
	sql("UPDATE task SET state = 'PLAN', active = NULL WHERE id = $id");
	counted('late', '2 1 1 0 0 0 1 0 0', 'planned again');
	sql(q{BEGIN; INSERT INTO task (queue, request) VALUES ('never', 'SELECT 1'); ROLLBACK});
	is(sql(q{SELECT count(*) FROM pg_stat_task() WHERE queue = 'never'}), 0, 'not rolled back');
	sql(q{INSERT INTO task (queue, request, repeat) VALUES ('chain', 'SELECT 1', '1 day')});
	counted('chain', '2 1 1 0 0 0 0 0 0', 'the next run of a chain is planned');
};

subtest 'times' => sub {
	sql('SELECT pg_stat_task_reset()');
	my $id = run_task($node, queue => 'slow', request => 'SELECT pg_sleep(0.2)',
		dt => '2020-01-01');
	counted('slow', '1 1 1 0 0 0 0 0 0', 'a task');
	my $figures = q{FROM pg_stat_task() WHERE queue = 'slow'};
	is(sql("SELECT run_time >= 200 AND wait_time > 1e10 $figures"), 't', 'in milliseconds');
	is(sql("SELECT last_start BETWEEN start AND stop FROM pg_stat_task() JOIN task USING (queue)
		WHERE id = $id"), 't', 'when the last one began');
	is(sql(qq{SELECT array_length(run_histogram, 1) = 28 AND n BETWEEN 12 AND 28
		AND run_time < 0.125 * 2 ^ (n - 1) AND run_time >= 0.125 * 2 ^ (n - 2)
		FROM (SELECT *, array_position(run_histogram, 1) AS n $figures) AS h}), 't',
		'the bucket of the histogram');
	is(sql("SELECT array_position(wait_histogram, 1) $figures"), 28,
		'what is longer is in the last');
	is(sql("SELECT (SELECT sum(i) FROM unnest(run_histogram) AS i) $figures"), 1, 'it is in one');
	sql(q{INSERT INTO task (queue, request, dt)
		SELECT 'ages', 'SELECT 1', '4713-12-01 BC' FROM generate_series(1, 50)});
	counted('ages', '50 50 50 0 0 0 0 0 0', 'rows that have waited for ages');
	is(sql(q{SELECT wait_time > 9e15 FROM pg_stat_task() WHERE queue = 'ages'}), 't',
		'the sum of their times does not become negative');
};

subtest 'a name that is too long' => sub {
	sql('SELECT pg_stat_task_reset()');
	sql(q{ALTER TABLE task DISABLE TRIGGER USER;
		INSERT INTO task (queue, request) VALUES (repeat('x', 254) || repeat('é', 50), 'SELECT 1');
		ALTER TABLE task ENABLE TRIGGER USER});
	wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_task() WHERE failed = 1});
	is(sql(q{SELECT queue = repeat('x', 254) FROM pg_stat_task() WHERE failed = 1}), 't',
		'no character of it is split, which would break the query of whoever reads it');
};

subtest 'rights' => sub {
	sql('SELECT pg_stat_task_reset()');
	run_task($node, queue => 'mine', request => 'SELECT 1', role => 'app');
	run_task($node, queue => 'mine', request => 'SELECT 1');
	counted('mine', '2 2 2 0 0 0 0 0 0', 'tasks of all roles');
	my $seen = q{SELECT concat_ws(' ', datname, queue, done) FROM pg_stat_task()};
	is(sql_as('app', $seen), '', 'a role does not see them');
	sql('GRANT pg_read_all_stats TO other');
	is(sql_as('other', $seen), 'postgres mine 2', 'unless it may read all statistics ...');
	sql('CREATE ROLE keeper LOGIN');
	my $owner = sql(q{SELECT datdba::regrole FROM pg_database WHERE datname = 'postgres'});
	sql('ALTER DATABASE postgres OWNER TO keeper');
	is(sql_as('keeper', $seen), 'postgres mine 2', '... or owns the database');
	sql("ALTER DATABASE postgres OWNER TO $owner");
	is(sqlstate_of('other', 'SELECT pg_stat_task_reset()'), '42501', 'reset is granted to nobody');
	run_task($node, queue => 'kept', request => 'SELECT 1');
	counted('kept', '1 1 1 0 0 0 0 0 0', 'another queue');
	sql(q{SELECT pg_stat_task_reset(queue => 'mine')});
	is(sql($seen), 'postgres kept 1', 'the figures of a queue are reset');
	sql(q{SELECT pg_stat_task_reset('template1')});
	is(sql($seen), 'postgres kept 1', 'those of another database');
};

subtest 'a restart' => sub {
	$node->restart;
	wait_for_table($node);
	is(sql('SELECT count(*) FROM pg_stat_task()'), 0, 'the figures begin anew');
	run_task($node, queue => 'found', request => 'SELECT 1');
	counted('found', '1 1 1 0 0 0 0 0 0', 'tasks are counted');
	is(sql(q{SELECT stats_since > pg_postmaster_start_time() FROM pg_stat_task()}), 't',
		'since when');
};

subtest 'a database that is dropped' => sub {
	my $left = q{SELECT count(*) FROM pg_stat_task() WHERE datname IS NULL OR datname = 'short'};

	sql(q{CREATE DATABASE short});
	wait_until($node, q{SELECT to_regclass('task') IS NOT NULL}, db => 'short');
	sql(q{INSERT INTO task (queue, request) VALUES ('found', 'SELECT 1'), ('brief', 'SELECT 1')},
		db => 'short');
	wait_until($node, q{SELECT sum(done) = 2 FROM pg_stat_task() WHERE datname = 'short'});
	sql('DROP DATABASE short');
	is(sql($left), 0, 'its figures are gone');
	counted('found', '1 1 1 0 0 0 0 0 0', 'those of others are not');
};

subtest 'a crash of a task' => sub {
	wait_for_table($node);
	my $id = insert_task($node, queue => 'crash',
		request => q{SELECT CASE WHEN (SELECT crashed FROM task WHERE id =
			current_setting('pg_task.id')::int8) = 0 THEN hold('b') END});
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	kill 'KILL', task($node, $id, 'pid');
	wait_for_state($node, $id, 'DONE');
	counted('crash', '0 1 1 0 1 0 0 0 1', 'the run has crashed, and the task is tried again');
};

subtest 'more queues than entries' => sub {
	sql('SELECT pg_stat_task_reset()');
	run_task($node, queue => 'often', request => 'SELECT 1') for 1 .. 3;
	counted('often', '3 3 3 0 0 0 0 0 0', 'one that has an entry');
	sql(q{INSERT INTO task (queue, request) SELECT 'q' || i, 'SELECT 1'
		FROM generate_series(1, 40) AS i});
	wait_until($node, q{SELECT count(*) = 40 FROM task WHERE queue LIKE 'q%' AND state = 'DONE'});
	wait_until($node, q{SELECT count(*) = 11 AND sum(done) = 43 AND
		sum(done) FILTER (WHERE queue IS NULL AND datname IS NULL) = 31 FROM pg_stat_task()});
	pass('the others are counted together');
	run_task($node, queue => 'often', request => 'SELECT 1');
	counted('often', '4 4 4 0 0 0 0 0 0', 'it is counted on its own');
	is(sql_as('keeper', 'SELECT count(*) FROM pg_stat_task() WHERE queue IS NULL'), 0,
		'only who sees all queues sees the others');
	sql('SELECT pg_stat_task_reset()');
	is(sql('SELECT count(*) FROM pg_stat_task()'), 0, 'a reset makes place');
};

done_testing();
