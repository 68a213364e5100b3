# pg_stat_task: what has become of tasks, per database, queue and role.  A TAP test because it stops
# and kills the server.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Fcntl;
use IO::Select;
use POSIX qw(mkfifo);
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => q{
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
	my $id = run_task($node, queue => 'slow', request => 'SELECT pg_sleep(0.2)', dt => '2020-01-01');
	counted('slow', '1 1 1 0 0 0 0 0 0', 'a task');
	my $figures = q{FROM pg_stat_task() WHERE queue = 'slow'};
	is(sql("SELECT run_time >= 200 AND max_run_time = run_time AND wait_time > 1e10
		AND max_wait_time = wait_time $figures"), 't', 'in milliseconds');
	is(sql(qq{SELECT array_length(run_histogram, 1) = 28 AND n BETWEEN 12 AND 28
		AND run_time < 0.125 * 2 ^ (n - 1) AND run_time >= 0.125 * 2 ^ (n - 2)
		FROM (SELECT *, array_position(run_histogram, 1) AS n $figures) AS h}), 't',
		'the bucket of the histogram');
	is(sql("SELECT array_position(wait_histogram, 1) $figures"), 28, 'what is longer is in the last');
	is(sql("SELECT (SELECT sum(i) FROM unnest(run_histogram) AS i) $figures"), 1, 'it is in one');
	sql(q{INSERT INTO task (queue, request, dt)
		SELECT 'ages', 'SELECT 1', '4713-12-01 BC' FROM generate_series(1, 50)});
	counted('ages', '50 50 50 0 0 0 0 0 0', 'rows that have waited for ages');
	is(sql(q{SELECT wait_time >= 43 * max_wait_time FROM pg_stat_task() WHERE queue = 'ages'}), 't',
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
	wait_until($node, 'SELECT count(*) = 2 AND sum(done) = 2 FROM pg_stat_task()');
	my $seen = q{SELECT string_agg(concat_ws(' ', datname, queue, role, done), ',' ORDER BY role)
		FROM pg_stat_task()};
	is(sql_as('app', $seen), 'postgres mine app 1', 'a role sees its own');
	is(sql_as('other', $seen), '', 'and no others');
	sql('GRANT pg_read_all_stats TO other');
	is(sql_as('other', $seen), 'postgres mine app 1,postgres mine postgres 1', 'or all');
	is(sqlstate_of('other', 'SELECT pg_stat_task_reset()'), '42501', 'reset is granted to nobody');
	sql(q{SELECT pg_stat_task_reset(role => 'app')});
	is(sql($seen), 'postgres mine postgres 1', 'the figures of a role are reset');
	is(sql('SELECT dealloc FROM pg_stat_task_info()'), 0, 'nothing was dropped');
};

subtest 'over restarts' => sub {
	sql('SELECT pg_stat_task_reset()');
	run_task($node, queue => 'kept', request => 'SELECT 1') for 1 .. 2;
	counted('kept', '2 2 2 0 0 0 0 0 0', 'before');
	my $reset = sql('SELECT stats_reset FROM pg_stat_task_info()');
	my $figures = sql(q{SELECT t FROM pg_stat_task() AS t WHERE queue = 'kept'});
	$node->restart;
	is(sql(q{SELECT t FROM pg_stat_task() AS t WHERE queue = 'kept'}), $figures, 'they are kept');
	is(sql('SELECT stats_reset FROM pg_stat_task_info()'), $reset, 'and the time of the reset');
	run_task($node, queue => 'kept', request => 'SELECT 1');
	counted('kept', '3 3 3 0 0 0 0 0 0', 'and go on');
	ok(!-e $node->data_dir . '/pg_stat/pg_task.stat', 'there is no file while the server runs');
	$node->stop('immediate');
	$node->start;
	is(sql(q{SELECT count(*) FROM pg_stat_task() WHERE queue = 'kept'}), 0, 'not after a crash');
	my $file = $node->data_dir . '/pg_stat/pg_task.stat';
	$node->stop;
	my $valid = slurp_file($file);
	my ($magic, $size) = unpack 'LL', $valid;
	for my $broken ('x' x 5000, substr($valid, 0, -1), map { pack('LLl', $magic, $size, $_)
			. substr($valid, 12) } 100_000, int(0x3fffffff / $size))
	{
		open my $handle, '>:raw', $file or die $!;
		print $handle $broken;
		close $handle or die $!;
		$node->start;
		is(sql('SELECT count(*) FROM pg_stat_task() WHERE done > 0'), 0, 'a broken file is ignored');
		ok(!-e $file, 'and removed');
		$node->stop;
	}
	$node->start;
};

subtest 'a file that cannot be written' => sub {
	my $file = $node->data_dir . '/pg_stat/pg_task.stat';

	wait_for_table($node);
	run_task($node, queue => 'lost', request => 'SELECT 1');
	counted('lost', '1 1 1 0 0 0 0 0 0', 'before');
	symlink '/dev/full', "$file.tmp" or die $!;
	$node->restart;
	like(slurp_file($node->logfile), qr/could not write file .*pg_task\.stat\.tmp.*No space left/,
		'the log says so');
	is(sql(q{SELECT count(*) FROM pg_stat_task() WHERE queue = 'lost'}), 0, 'they are lost');
	ok(!-l "$file.tmp", 'nothing is left of the file');
	wait_for_table($node);
	run_task($node, queue => 'found', request => 'SELECT 1');
	counted('found', '1 1 1 0 0 0 0 0 0', 'others are counted');
	# as a postmaster leaves it that is killed while it writes
	PostgreSQL::Test::Utils::append_to_file("$file.tmp", 'half');
	$node->restart;
	counted('found', '1 1 1 0 0 0 0 0 0', 'they are kept beside half a file');
	ok(!-e "$file.tmp", 'which is gone');
};

# The file is a pipe that is full before all is written.
subtest 'a server that is killed while it writes the file' => sub {
	my $file = $node->data_dir . '/pg_stat/pg_task.stat';
	my ($pid) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');

	wait_for_table($node);
	# the rows are counted before a task runs: an entry that is made again has what comes after
	insert_rule('cut%', paused => 't');
	sql(q{INSERT INTO task (queue, request) SELECT 'cut' || i, 'SELECT 1'
		FROM generate_series(1, 20) AS i});
	sql('DELETE FROM task_queue');
	# what is left would be counted after the restart
	wait_until($node, q{SELECT count(*) = 20 FROM task WHERE queue LIKE 'cut%' AND state = 'DONE'});
	wait_until($node, 'SELECT count(*) = 10 FROM pg_stat_task() WHERE done > 0');
	mkfifo("$file.tmp", 0600) or die $!;
	sysopen my $pipe, "$file.tmp", O_RDONLY | O_NONBLOCK or die $!;
	fcntl $pipe, 1031, 4096 or die $!;    # F_SETPIPE_SZ
	kill 'INT', $pid;
	ok(IO::Select->new($pipe)->can_read(180), 'it writes');
	kill_server($node);
	sysread $pipe, my $half, 4096;
	cmp_ok(length $half, '>', 1000, 'a part is written');
	unlink "$file.tmp" or die $!;
	PostgreSQL::Test::Utils::append_to_file("$file.tmp", $half);
	$node->start;
	is(sql('SELECT count(*) FROM pg_stat_task() WHERE done > 0'), 0, 'the figures begin anew');
	wait_for_table($node);
	run_task($node, queue => 'found', request => 'SELECT 1');
	counted('found', '1 1 1 0 0 0 0 0 0', 'others are counted');
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
	sql(q{INSERT INTO task (queue, request) SELECT 'q' || i, 'SELECT 1'
		FROM generate_series(1, 40) AS i});
	wait_until($node, q{SELECT count(*) = 40 FROM task WHERE queue LIKE 'q%' AND state = 'DONE'});
	wait_until($node, 'SELECT dealloc >= 30 FROM pg_stat_task_info()');
	# while an entry makes way for another one, there is a row less
	wait_until($node, 'SELECT count(*) = 10 FROM pg_stat_task()');
	pass('there are no more rows than entries');
};

done_testing();
