# Strict queues: nothing overtakes the first task, while it waits for a retry, is locked, is refused
# or has no executor.  A TAP test because it terminates executors and holds locks in other sessions.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# the C library fills what is freed with this byte, so that no process can use it unnoticed
local $ENV{MALLOC_PERTURB_} = 165;

my $node = new_node('main', conf => 'pg_task.period = 100ms');

make_gates($node);
sql(q{
	CREATE TABLE ran (number bigserial, queue text, id bigint);
	CREATE ROLE other LOGIN;
	GRANT INSERT, SELECT, UPDATE ON task TO other;
	GRANT INSERT ON ran TO PUBLIC;
	GRANT USAGE ON SEQUENCE ran_number_seq TO PUBLIC;
	INSERT INTO task_queue (queue, strict) VALUES ('customer.%', true)});

# Plans a task that records that it ran, and then does what the request says.  Returns its id.
sub plan_task
{
	my ($queue, $then, %columns) = @_;

	return insert_task($node, queue => $queue, max => 1, %columns,
		request => "INSERT INTO ran (queue, id) VALUES ('$queue',"
		  . " current_setting('pg_task.id')::bigint)" . ($then ? "; $then" : ''));
}

sub ran
{
	return sql("SELECT string_agg(id::text, ' ' ORDER BY number) FROM ran WHERE queue = '$_[0]'");
}

sub wait_for_ran
{
	my ($queue, @ids) = @_;

	wait_until($node, "SELECT string_agg(id::text, ' ' ORDER BY number) FROM ran"
		  . " WHERE queue = '$queue'", expected => "@ids");
	return;
}

# Fails as often as the name of the sequence says.
sql('CREATE SEQUENCE tries');
my $fails_twice = q{DO $$ BEGIN IF nextval('tries') % 3 > 0 THEN RAISE 'not yet'; END IF; END $$};

# Waits until all due tasks of other queues are done: what could start has started.
sub settle
{
	for (1 .. 3)
	{
		my $other = insert_task($node, queue => 'elsewhere', request => 'SELECT 1');
		wait_for_state($node, $other, 'DONE');
	}
	return;
}

subtest 'a retry keeps its place' => sub {
	my @ids = map { plan_task('customer.1', $_ == 2 ? $fails_twice : '', retry => 5,
			delay => '100 ms') } 1 .. 4;

	wait_for_ran('customer.1', @ids);
	is(ran('customer.1'), "@ids", 'in order');
	is(sql("SELECT attempt FROM task WHERE id = $ids[1]"), 3,
		'the second one was tried three times');
	is(sql("SELECT count(*) FROM task AS a, task AS b WHERE a.id = $ids[1] AND b.id = $ids[2]"
			  . ' AND b.start >= a.stop'),
		1, 'the third one started after that');
	cmp_ok(sql("SELECT extract(epoch FROM stop - dt) >= 0.25 FROM task WHERE id = $ids[1]"),
		'eq', 't', 'it has waited for its retries');
};

subtest 'a task that has failed for good is out of the way' => sub {
	my @ids = map { plan_task('customer.2', $_ == 1 ? 'SELECT 1/0' : '') } 1 .. 3;

	wait_for_ran('customer.2', @ids[ 1, 2 ]);
	is(task($node, $ids[0], 'state'), 'FAIL', 'it has failed');
};

subtest 'a task that waits for its retry is stopped, deleted or planned anew' => sub {
	my %changes = (
		stopped => q{UPDATE task SET state = 'STOP'},
		deleted => 'DELETE FROM task',
		'planned anew' => 'UPDATE task SET failed = 0, request = $$SELECT 2$$');

	for my $name (sort keys %changes)
	{
		my $queue = "customer.$name";
		my $first = plan_task($queue, 'SELECT 1/0', retry => 5, delay => '1 hour');

		wait_until($node, "SELECT failed = 1 AND state = 'PLAN' FROM task WHERE id = $first");
		my $second = plan_task($queue, '');
		settle();
		is(ran($queue), '', "nothing runs before it is $name");
		sql("$changes{$name} WHERE id = $first");
		wait_for_ran($queue, $second);
		pass("then the next one does");
	}
};

subtest 'a restart of the scheduler does not forget who waits' => sub {
	my $first = plan_task('customer.3', 'SELECT 1/0', retry => 5, delay => '1 hour');
	wait_until($node, "SELECT failed = 1 AND state = 'PLAN' FROM task WHERE id = $first");
	my $second = plan_task('customer.3', '');
	$node->restart;
	settle();
	is(ran('customer.3'), '', 'the second one waits');
	sql("UPDATE task SET delay = '1 ms', request = 'SELECT 1' WHERE id = $first");
	sql("UPDATE task SET state = 'STOP' WHERE id = $first");
	wait_for_ran('customer.3', $second);
};

# Stops the scheduler and calls this.
sub without_scheduler
{
	my ($action) = @_;

	set_conf($node, 'pg_task.enabled = off');
	# the supervisor has forgotten the databases: it starts none that was under way
	wait_until($node, 'SELECT count(*) = 0 FROM pg_stat_task_scheduler()');
	wait_for_schedulers($node);
	$action->();
	set_conf($node, 'pg_task.enabled = on');
	return;
}

subtest 'a new scheduler and many strict queues whose first tasks wait for a retry' => sub {
	my $attempts = "SELECT sum(attempt) FROM task WHERE queue LIKE 'many.%'";
	my $last;

	without_scheduler(sub {
		sql(q{INSERT INTO task_queue (queue, strict) VALUES ('many.%', true)});
		sql(q{INSERT INTO task (queue, request, retry, delay)
			SELECT 'many.' || i, 'SELECT 1/0', 5, '1 hour' FROM generate_series(1, 1000) AS i});
		sql(q{UPDATE task SET failed = 1, stop = clock_timestamp() WHERE queue LIKE 'many.%'});
		$last = insert_task($node, queue => 'numerous', request => 'SELECT 1');
	});
	wait_for_state($node, $last, 'DONE');
	is(sql($attempts), 0, 'they wait');
	my $one = sql(q{UPDATE task SET failed = 0, request = 'SELECT 1' WHERE queue = 'many.7'
		RETURNING id});
	wait_for_state($node, $one, 'DONE');
	is(sql($attempts), 1, 'one that is planned anew runs, the others wait');
	sql(q{DELETE FROM task WHERE queue LIKE 'many.%'});
};

subtest 'a task that is locked while it waits' => sub {
	my $session = open_session($node, 'postgres');
	my $gate = plan_task('customer.5', q{SELECT hold('five')});
	wait_until($node, "SELECT state = 'WORK' FROM task WHERE id = $gate");
	my $first = plan_task('customer.5', '');
	my $second = plan_task('customer.5', '');
	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $first FOR UPDATE");
	open_gate($node, 'five');
	wait_for_state($node, $gate, 'DONE');
	settle();
	is(ran('customer.5'), $gate, 'the one behind it waits');
	$session->query_safe('ROLLBACK');
	wait_for_ran('customer.5', $gate, $first, $second);
	$session->quit;
	pass('then both run, in order');
};

subtest 'an executor is terminated' => sub {
	my $first = plan_task('customer.6', q{SELECT hold('six')});
	wait_for_running($node, 1, id => $first, event => 'PgSleep');
	my @ids = map { plan_task('customer.6', '') } 1 .. 3;
	my $pid = task($node, $first, 'pid');
	terminate($node, $pid);
	wait_until($node, "SELECT attempt = 2 AND state = 'WORK' FROM task WHERE id = $first");
	is(ran('customer.6'), '', 'it runs again, before the others');
	open_gate($node, 'six');
	wait_for_ran('customer.6', $first, @ids);
	pass('then they do');
};

subtest 'tasks of several roles, and without a limit' => sub {
	sql(q{INSERT INTO task_queue (queue, strict) VALUES ('mixed', true)});
	sql(q{INSERT INTO task (queue, role, max, request)
		SELECT 'mixed', (ARRAY['other', 'postgres'])[1 + n % 2]::name, 1,
			format('INSERT INTO ran (queue, id) VALUES (%L, %s)', 'mixed', n)
		FROM generate_series(1, 20) AS n});
	wait_until($node, q{SELECT count(*) = 20 FROM ran WHERE queue = 'mixed'});
	is(ran('mixed'), join(' ', 1 .. 20), 'in order');
};

# The commit names the groups of the second tasks; those of the first ones are found by a scan that
# takes a while.
subtest 'groups that a scan has not found yet' => sub {
	sql(q{INSERT INTO task (queue, dt, request) SELECT 'backlog ' || n, now() + '1 day', 'SELECT 1'
		FROM generate_series(1, 40000) AS n});
	settle();
	sql(q{BEGIN;
		INSERT INTO task (queue, max, dt, request)
		SELECT 'customer.scan ' || q, 1, now() - '1 s'::interval,
			format('INSERT INTO ran (queue, id) VALUES (%L, 2)', 'customer.scan ' || q)
		FROM generate_series(1, 16) AS q;
		INSERT INTO task (queue, dt, priority, request)
		SELECT 'backlog', now() + '1 day', n, 'SELECT 1' FROM generate_series(1, 40) AS n;
		INSERT INTO task (queue, max, dt, role, request)
		SELECT 'customer.scan ' || q, 1, now() - '2 s'::interval, 'other',
			format('INSERT INTO ran (queue, id) VALUES (%L, 1)', 'customer.scan ' || q)
		FROM generate_series(1, 16) AS q;
		COMMIT});
	wait_until($node, q{SELECT count(*) = 32 FROM ran WHERE queue LIKE 'customer.scan %'});
	is(sql(q{SELECT count(*) FROM ran AS a, ran AS b WHERE a.queue LIKE 'customer.scan %'
		AND a.queue = b.queue AND a.id = 1 AND b.id = 2 AND a.number > b.number}), 0, 'in order');
	sql(q{DELETE FROM task WHERE queue LIKE 'backlog%'});
};

# The one executor of the role is given the first tasks behind a long one.  They are reclaimed, and
# the second ones, for which there is an executor, wait for them.
subtest 'tasks that are reclaimed' => sub {
	sql('ALTER ROLE other SET pg_task.role_executors = 1');
	run_task($node, role => $_, request => 'SELECT 1') for qw(other postgres);
	for my $try (1 .. 3)
	{
		my $queue = "customer.$try behind";

		sql(qq{INSERT INTO task (queue, max, dt, role, request)
			SELECT x.* FROM (VALUES (2, 1, 'other'), (1, 2, 'postgres')) AS n (back, place, role),
				generate_series(1, 10) AS q, LATERAL (SELECT '$queue ' || q, 1,
				now() - back * interval '1 s', role, format('INSERT INTO ran (queue, id)
				VALUES (%L, %s)', '$queue ' || q, place)) AS x
			UNION ALL SELECT 'long', NULL, now() - interval '3 s', 'other',
				'SELECT hold(''long $try'')'});
		settle();
		open_gate($node, "long $try");
		wait_until($node, qq{SELECT count(*) = 20 FROM ran WHERE queue LIKE '$queue %'});
		is(sql(qq{SELECT count(*) FROM ran AS a JOIN ran AS b USING (queue)
			WHERE queue LIKE '$queue %' AND a.id < b.id AND a.number > b.number}), 0, 'in order');
	}
	sql('ALTER ROLE other RESET pg_task.role_executors');
};

subtest 'a task that a trigger refuses' => sub {
	sql(q{CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.state = 'WORK' AND NEW.request LIKE '%refused%' THEN RAISE 'refused'; END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION refuse()});
	my $first = plan_task('customer.7', q{SELECT 'refused'});
	my $second = plan_task('customer.7', '');
	settle();
	is(ran('customer.7'), '', 'the one behind it waits');
	sql(q{DROP TRIGGER refuse ON task});
	wait_for_ran('customer.7', $first, $second);
	pass('then both run, in order');
};

subtest 'a task whose role was renamed' => sub {
	sql("INSERT INTO task_queue (queue, strict, paused) VALUES ('customer.8', true, true)");
	my $first = plan_task('customer.8', '', role => 'other', dt => '2020-01-01');
	my $second = plan_task('customer.8', '', dt => '2020-01-02');
	my $locker = open_session($node);

	$locker->query_safe("BEGIN; SELECT FROM task WHERE id = $first FOR UPDATE");
	sql(q{ALTER ROLE other RENAME TO renamed});
	sql(q{UPDATE task_queue SET paused = false WHERE queue = 'customer.8'});
	settle();
	is(ran('customer.8'), '', 'the one behind it waits until the new name is written');
	$locker->query_safe('COMMIT');
	wait_for_ran('customer.8', $first, $second);
	pass('then both run, in order');
	$locker->quit;
};

subtest 'a task whose role may not run it' => sub {
	sql(q{UPDATE task_queue SET paused = true WHERE queue = 'customer.8'});
	my $first = plan_task('customer.8', '', role => 'renamed', dt => '2020-01-01');
	my $second = plan_task('customer.8', '', dt => '2020-01-02');
	my $locker = open_session($node);

	$locker->query_safe("BEGIN; SELECT FROM task WHERE id = $first FOR UPDATE");
	sql(q{REVOKE CONNECT ON DATABASE postgres FROM PUBLIC});
	sql(q{UPDATE task_queue SET paused = false WHERE queue = 'customer.8'});
	settle();
	unlike(ran('customer.8'), qr/\b$second\b/, 'the one behind it waits until it has failed');
	$locker->query_safe('COMMIT');
	wait_for_state($node, $second, 'DONE');
	is_row($node, $first, { state => 'FAIL', attempt => 0 }, 'it has failed');
	$locker->quit;
};

subtest 'errors after a task was claimed' => sub {
	sql('CREATE ROLE keeper LOGIN; CREATE ROLE stranger; CREATE DATABASE mine OWNER keeper');
	wait_for_table($node, db => 'mine', table => $_) for qw(task task_queue);
	my $pid = q{SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler' AND datname = 'mine'};
	my $scheduler = sql($pid);

	# the round that claims also fails a row of a role that may run nothing: that ends with an
	# error when the owner cannot read the table any more
	sql_as('keeper', q{
		INSERT INTO task_queue (queue, strict) VALUES ('s', true);
		CREATE FUNCTION lack() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			WHILE has_table_privilege('public.task', 'SELECT') LOOP
				PERFORM pg_sleep(0.05);
			END LOOP;
			RAISE SQLSTATE '53100' USING MESSAGE = 'nothing is left';
		END $$;
		CREATE TRIGGER lack BEFORE UPDATE ON task FOR EACH ROW WHEN (NEW.state = 'FAIL')
			EXECUTE FUNCTION lack()}, db => 'mine');
	run_task($node, db => 'mine', role => 'keeper', queue => 's', request => 'SELECT 1');
	sql_in('mine', q{INSERT INTO task (queue, role, request)
		VALUES ('s', 'keeper', 'SELECT 2'), ('n', 'stranger', 'SELECT 3')});
	wait_until($node, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $scheduler");
	sql_in('mine', 'REVOKE SELECT ON task FROM keeper');
	wait_until($node, q{SELECT errors >= 4 FROM pg_stat_task_scheduler() WHERE datname = 'mine'});
	sql_in('mine', 'DROP TRIGGER lack ON task; GRANT SELECT ON task TO keeper');
	my $last = run_task($node, db => 'mine', role => 'keeper', queue => 's',
		request => 'SELECT 4');
	is(task($node, $last, 'state', db => 'mine'), 'DONE', 'the next task runs');
	is(sql($pid), $scheduler, 'the scheduler is the same process');
};

done_testing();
