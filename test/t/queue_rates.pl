# Queues with a rate: what starts, what a restart remembers, a rule that changes, the rate table.  A
# TAP test because it stops the server.  limits_under_kills.pl checks the windows.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => 'pg_task.period = 100ms');

# Plans tasks of a queue.
sub plan_tasks
{
	my ($queue, $count) = @_;

	sql("INSERT INTO task (queue, request) SELECT '$queue', 'SELECT 1'"
		  . " FROM generate_series(1, $count)");
	return;
}

sub done_in { return sql("SELECT count(*) FROM task WHERE queue = '$_[0]' AND state = 'DONE'") }

# Waits until this number of tasks of a queue are done, and until a task that was planned later is:
# no more of the queue could start.
sub wait_for_done
{
	my ($queue, $count) = @_;

	wait_until($node, "SELECT count(*) >= $count FROM task"
		  . " WHERE queue = '$queue' AND state = 'DONE'");
	for (1 .. 2)
	{
		my $other = insert_task($node, queue => 'other', request => 'SELECT 1');
		wait_for_state($node, $other, 'DONE');
	}
	return;
}

sql(q{CREATE ROLE "Tenant"; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC, "Tenant";
	DROP TABLE task_rate});
wait_for_table($node, table => 'task_rate');
run_task($node, queue => 'one', max => 1, request => 'SELECT 1');

# Ends the scheduler, or the server.
sub end_scheduler
{
	my ($how) = @_;
	my ($pid) = backends($node, 'scheduler');

	if ($how eq 'terminate')
	{
		terminate($node, $pid);
		wait_for_exit($node, $pid);
	}
	elsif ($how eq 'kill')
	{
		# the server starts its processes again
		kill 'KILL', $pid;
		wait_until($node, "SELECT pid <> $pid FROM pg_stat_activity
			WHERE backend_type = 'pg_task scheduler'");
	}
	else
	{
		$node->stop($how);
		$node->start;
	}
	return;
}

subtest 'a pause between two starts outlives the scheduler' => sub {
	for my $how (qw(terminate kill immediate fast))
	{
		my $queue = "pause.$how";

		sql("INSERT INTO task (queue, max, request)
			SELECT '$queue', -3600000, 'SELECT 1' FROM generate_series(1, 2)");
		wait_for_done($queue, 1);
		end_scheduler($how);
		wait_for_done($queue, 1);
		is(done_in($queue), 1, "after $how the next one waits");
	}

	# a task without a limit counts as a start, and goes before the one that waits
	plan_tasks('pause.other', 1);
	wait_for_done('pause.other', 1);
	sql(q{INSERT INTO task (queue, max, request) VALUES ('pause.other', -3600000, 'SELECT 1')});
	plan_tasks('pause.other', 1);
	wait_for_done('pause.other', 2);
	end_scheduler('immediate');
	wait_for_done('pause.other', 2);
	is(done_in('pause.other'), 2, 'one of the same queue without a pause is a start, too');

	sql(q{UPDATE task SET max = -100 WHERE state = 'PLAN'});
	wait_for_done("pause.$_", 2) for qw(terminate kill immediate fast);
	wait_for_done('pause.other', 3);
	pass('they start when the pause is over');
	wait_until($node, q{SELECT count(*) = 5 FROM task_rate WHERE queue LIKE 'pause.%'});
	sql(q{INSERT INTO task (queue, max, request)
		SELECT 'short', -10, 'SELECT 1' FROM generate_series(1, 5)});
	wait_for_done('short', 5);
	wait_until($node, q{SELECT count(*) = 0 FROM task_rate WHERE queue = 'short'});
	pass('a row is removed when the pause is over');
};

# Until this number of rows more could not be claimed.
sub wait_for_missed
{
	my ($before) = @_;

	wait_until($node, "SELECT missed > $before FROM pg_stat_task_scheduler()"
		  . " WHERE datname = 'postgres'");
	return;
}

subtest 'what is chosen, and not claimed, begins no pause' => sub {
	my $missed = sql(q{SELECT missed FROM pg_stat_task_scheduler() WHERE datname = 'postgres'});
	my $holder = open_session($node, 'postgres');
	my $id;

	# beside one of the same round that is claimed
	insert_rule($_, paused => 't') for qw(pause.locked pause.free);
	$id = insert_task($node, queue => 'pause.locked', max => -3600000, request => 'SELECT 1');
	insert_task($node, queue => 'pause.free', max => -3600000, request => 'SELECT 1');
	$holder->query_safe("BEGIN; SELECT FROM task WHERE id = $id FOR UPDATE");
	sql(q{DELETE FROM task_queue WHERE queue LIKE 'pause.%'});
	wait_for_missed($missed);
	wait_for_done('pause.free', 1);
	$holder->quit;
	wait_for_done('pause.locked', 1);
	pass('a row that was locked');

	# claimed together with a long one, for the same process, and returned when that is long
	make_gates($node);
	sql('CREATE ROLE single LOGIN CONNECTION LIMIT 1');
	# tasks that have been quick are claimed together
	sql(q{INSERT INTO task (queue, role, request) SELECT 'quick ones', 'single', 'SELECT 1'
		FROM generate_series(1, 100)});
	wait_for_done('quick ones', 100);
	sql(q{INSERT INTO task (queue, role, max, request)
		SELECT 'long', 'single', NULL, $$SELECT hold('long')$$ UNION ALL
		SELECT 'pause.behind ' || n, 'single', -3600000, 'SELECT 1'
			FROM generate_series(1, 20) AS n});
	wait_for_running($node, 1, user => 'single');
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE role = 'single' AND state = 'WORK'});
	open_gate($node, 'long');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE role = 'single' AND state <> 'DONE'});
	pass('tasks that were returned before they have begun');

	sql(q{CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE 'the start is refused'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON task_rate FOR EACH ROW
			WHEN (NEW.queue = 'pause.refused') EXECUTE FUNCTION refuse()});
	my $from = log_position($node);
	insert_task($node, queue => 'pause.refused', max => -3600000, request => 'SELECT 1');
	wait_for_log_line($node, qr/the start is refused/, $from);
	sql(q{DROP TRIGGER refuse ON task_rate});
	wait_for_done('pause.refused', 1);
	pass('a claim that was rolled back');
};

subtest 'as many start as the rate says, and the others wait' => sub {
	sql(q{INSERT INTO task_queue (queue, rate, per) VALUES
		('hour.%', 3, '1 hour'), ('', 3, '1 hour'), ('none', 0, '1 s'), ('quick', 5, '50 ms')});
	plan_tasks('hour.a', 5);
	plan_tasks('hour.b', 2);
	plan_tasks('none', 1);
	plan_tasks('quick', 40);
	wait_for_done('hour.a', 3);
	wait_for_done('hour.b', 2);
	wait_for_done('quick', 40);
	is(done_in('hour.a'), 3, 'three of five');
	is(done_in('hour.b'), 2, 'another queue that matches has a window of its own');
	is(done_in('none'), 0, 'a rate of 0 lets none start');
	cmp_ok(sql(q{SELECT max(start) - min(start) >= interval '350 ms' FROM task
		WHERE queue = 'quick'}), 'eq', 't', '40 tasks take at least seven windows');
	is(sql(q{SELECT string_agg(DISTINCT grantee::regrole::text, ',') FROM pg_class,
		aclexplode(coalesce(relacl, acldefault('r', relowner))) WHERE relname = 'task_rate'}),
		'postgres', 'nobody but the owner has rights on the rate table');
};

subtest 'a scheduler remembers what another one has started' => sub {
	plan_tasks('', 5);
	wait_for_done('', 3);
	for my $how (qw(terminate immediate fast))
	{
		my $queue = "hour.$how";

		plan_tasks($queue, 5);
		wait_for_done($queue, 3);
		end_scheduler($how);
		wait_for_done($queue, 3);
		is(done_in($queue), 3, "after $how no more start");
	}
	is(done_in('hour.a'), 3, 'nor of the first queue');
};

subtest 'a rule that changes takes effect, and forgets no start' => sub {
	sql(q{INSERT INTO task_queue (queue, rate, per) VALUES ('hour.a', 4, '1 hour')});
	wait_for_done('hour.a', 4);
	is(done_in('hour.a'), 4, 'a higher rate: one more');
	sql(q{UPDATE task_queue SET rate = 100 WHERE queue = 'hour.%'});
	wait_for_done('hour.immediate', 5);
	is(done_in('hour.a'), 4, 'the name wins over the pattern');
	sql(q{UPDATE task_queue SET rate = NULL WHERE queue = 'hour.a'});
	wait_for_done('hour.a', 5);
	pass('no rate: the last one starts');
	sql(q{DELETE FROM task_queue WHERE queue = 'none'});
	wait_for_done('none', 1);
	pass('no row: the task starts');
};

subtest 'together with a limit, and with retries' => sub {
	sql(q{INSERT INTO task_queue (queue, rate, per) VALUES ('both', 3, '1 hour')});
	sql(q{INSERT INTO task (queue, max, retry, delay, request)
		VALUES ('both', 1, 9, '1 ms', 'SELECT 1/0')});
	wait_until($node, q{SELECT attempt = 3 AND state = 'PLAN' FROM task WHERE queue = 'both'});
	wait_for_done('both', 0);
	is(sql(q{SELECT attempt FROM task WHERE queue = 'both'}), 3, 'a retry is a start');
};

# The scheduler sees each try begin: it has started another task since.
subtest 'tries after a conflict are part of one claim' => sub {
	my $id;

	sql(q{CREATE SEQUENCE tries;
		INSERT INTO task_queue (queue, rate, per) VALUES ('tries', 2, '1 hour')});
	$id = insert_task($node, queue => 'tries', request => q{SELECT nextval('tries');
		SELECT hold('try ' || currval('tries'));
		DO $$ BEGIN IF currval('tries') < 4 THEN RAISE SQLSTATE '40001'; END IF; END $$});
	for my $try (1 .. 4)
	{
		wait_until($node, "SELECT last_value = $try AND is_called FROM tries");
		wait_for_done('tries', 0);
		open_gate($node, "try $try");
	}
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'attempt'), 1, 'four tries, one claim');
	plan_tasks('tries', 2);
	wait_for_done('tries', 2);
	is(done_in('tries'), 2, '... which counts once');
};

subtest 'the rate table' => sub {
	wait_until($node, q{SELECT count(*) = 0 FROM task_rate WHERE queue = 'quick'});
	pass('a row is removed when its window is empty');

	sql(q{DROP TABLE task_rate});
	wait_until($node, q{SELECT to_regclass('task_rate') IS NOT NULL});
	plan_tasks('hour.b', 1);
	wait_for_done('hour.b', 3);
	is(sql(q{SELECT count(*) FROM task_rate WHERE queue = 'hour.b'}), 1,
		'one that was dropped is made again, and has a queue from its next claim on');

	my $from = log_position($node);
	sql(q{BEGIN; DROP TABLE task_rate; CREATE VIEW task_rate AS SELECT 1 AS a; COMMIT});
	wait_for_log_line($node, qr/tasks of queues with a rate do not start.*\n.*is not usable/, $from);
	plan_tasks('quick', 1);
	wait_for_done('quick', 40);
	is(done_in('quick'), 40, 'another relation of this name: no task of a queue with a rate starts');
	end_scheduler('terminate');
	my $paced = run_task($node, queue => 'paced', max => -50, request => 'SELECT 1');
	is(task($node, $paced, 'state'), 'DONE', 'one with a pause starts');
	sql(q{DROP VIEW task_rate});
	my ($pid) = backends($node, 'scheduler');
	terminate($node, $pid);
	wait_for_done('quick', 41);
	is(done_in('quick'), 41, 'without it, it starts');

	wait_until($node, q{SELECT to_regclass('task_rate') IS NOT NULL});
	$from = log_position($node);
	my $holder = open_session($node, 'postgres');
	$holder->query_safe(q{ALTER TABLE task_rate OWNER TO "Tenant"});
	$holder->query_safe('BEGIN; LOCK TABLE task_rate');
	terminate($node, backends($node, 'scheduler'));
	wait_for_log_line($node, qr/do not start.*\n.*another owner/, $from);
	wait_for_done('quick', 41);
	my $waiting = insert_task($node, queue => 'hour.b', request => 'SELECT 1');
	isnt(sql("SET statement_timeout = '60 s'; SELECT pg_task_why($waiting)"), '',
		'one that a stranger owns and has locked stops neither the scheduler nor a session');
	$holder->quit;
	sql(q{DROP TABLE task_rate});
	terminate($node, backends($node, 'scheduler'));
	wait_until($node, q{SELECT to_regclass('task_rate') IS NOT NULL});

	wait_for_table($node, table => 'task_rate');
	sql(q{BEGIN; ALTER TABLE task_rate RENAME TO old;
		CREATE TABLE task_rate (LIKE old); INSERT INTO task_rate TABLE old;
		UPDATE task_rate SET image = '\xdeadbeef'; ALTER TABLE task_rate ADD PRIMARY KEY (queue);
		INSERT INTO task_rate (queue, image, until) VALUES ('forged', '\xdeadbeef', 'infinity');
		ALTER TABLE task_rate ADD note text; COMMIT});
	$node->restart;
	plan_tasks('quick', 10);
	wait_for_done('quick', 51);
	is(done_in('quick'), 51, 'rows that pg_task has not written say nothing');
};

subtest 'wrong values' => sub {
	my %wrong = (
		q{('w', -2, '1 s')} => '"rate must be zero or more, or -1"',
		q{('w', 1, '0 s')} => '"per must be greater than zero"',
		q{('w', 1, '-1 s')} => '"per must be greater than zero"');

	for my $values (sort keys %wrong)
	{
		like(error_of('postgres',
			"INSERT INTO task_queue (queue, rate, per) VALUES $values"),
			qr/\Q$wrong{$values}\E/, $values);
	}
};

# The claim waits for the table, and so does the window: the next one is a window behind it.
subtest 'a claim that waits for a lock counts when it is made' => sub {
	my $session = open_session($node, 'postgres');

	sql(q{INSERT INTO task_queue (queue, rate, per) VALUES ('waits', 1, '2 s');
		CREATE TABLE begun (id bigint, at timestamptz DEFAULT clock_timestamp());
		INSERT INTO task (queue, dt, request) SELECT 'waits', now() + interval '1 s',
			'INSERT INTO begun SELECT current_setting(''pg_task.id'')::bigint'
		FROM generate_series(1, 2)});
	$session->query_safe('BEGIN; LOCK TABLE task IN SHARE MODE');
	wait_until($node, q{SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_stat_activity USING (pid)
		WHERE NOT granted AND relation = 'task'::regclass AND backend_type = 'pg_task scheduler')});
	$session->query_safe('SELECT pg_sleep(1.5); COMMIT');
	$session->quit;
	wait_until($node, 'SELECT count(*) = 2 FROM begun');
	is(sql("SELECT max(at) - min(at) > '1.9 s' FROM begun"), 't', 'the next task starts after it');
	sql("DROP TABLE begun; DELETE FROM task_queue WHERE queue = 'waits'");
};

done_testing();
