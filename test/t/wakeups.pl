# When tasks start: when they are due, when something wakes the scheduler, at the latest after the
# period; and when they are ended.  A TAP test because of the period and a prepared transaction.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

# With a period of an hour only the wakeup at commit, and the sleep until the next planned time,
# start tasks.
my $node = new_node('main', conf => q{
	pg_task.period = '1 h'
	pg_task.max_executors = 8
	max_prepared_transactions = 2});

# Whether a task has started within seconds: without the wakeup it would start after the period.
sub is_soon { return task($node, $_[0], "start - $_[1] BETWEEN '0' AND '30 s'") }

run_task($node, request => 'SELECT 1');    # an executor is there

# It scans and looks when something is due, and otherwise sleeps.
subtest 'nothing to do' => sub {
	my $iterations = 'SELECT iterations FROM pg_stat_task_scheduler()';

	ok(poll_for(sub {
		my ($before, undef, $after) =
		  split /\n/, sql("$iterations; SELECT pg_sleep(1.5); $iterations");
		return $before == $after;
	}), 'the scheduler sleeps');
};

# Nothing tells the scheduler of another database that a prepared transaction has changed a role.
sql(q{CREATE ROLE barred LOGIN CONNECTION LIMIT 0; CREATE DATABASE other});
wait_for_table($node, db => 'other');
my $barred = insert_task($node, db => 'other', role => 'barred', request => 'SELECT 1');
run_task($node, db => 'other', request => 'SELECT 1');
sql(q{BEGIN; ALTER ROLE barred CONNECTION LIMIT 1; PREPARE TRANSACTION 'limit';
	COMMIT PREPARED 'limit'});

my $far;

# A future time: not before it, and not much later.  Also between others, and when an earlier one
# is deleted.
subtest 'planned times' => sub {
	$far = insert_task($node, dt => 'infinity', request => 'SELECT 1');
	my @ids = map {
		sql("INSERT INTO task (dt, request) VALUES (now() + interval '$_ ms', 'SELECT 1') "
			. "RETURNING id") } 600, 300, 450;
	sql(q{INSERT INTO task (dt, request) VALUES (now() + interval '100 ms', 'SELECT 2')});
	sql(q{DELETE FROM task WHERE request = 'SELECT 2'});
	wait_for_state($node, $_, 'DONE') for @ids;
	is(is_soon($_, 'dt'), 't', 'the task starts at its planned time') for @ids;
	is(task($node, $far, 'state'), 'PLAN', 'a task planned for infinity does not start');
};

# Commits that plan tasks for after the scheduler looks anyway leave it alone; what they have
# planned is not forgotten.
subtest 'a commit that plans for later' => sub {
	my ($scheduler) = backends($node, 'scheduler');
	my $switches = sub {
		slurp_file("/proc/$scheduler/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
		return $1;
	};
	my $before = $switches->();

	sql(q{INSERT INTO task (queue, dt, request)
		VALUES ('later', now() + interval '1 day', 'SELECT 1');} x 200);
	cmp_ok($switches->() - $before, '<', 100, 'the scheduler sleeps on');
	my $id = sql(q{UPDATE task SET dt = now() + interval '200 ms' WHERE id =
		(SELECT max(id) FROM task WHERE queue = 'later') RETURNING id});
	wait_for_state($node, $id, 'DONE');
	is(is_soon($id, 'dt'), 't', 'a task that is planned for earlier starts then');
	sql(q{DELETE FROM task WHERE queue = 'later'});
};

# A commit wakes the scheduler: an insert, a re-plan, of one of many waiting tasks; not before the
# commit.
subtest 'a commit wakes the scheduler' => sub {
	my $id = run_task($node, request => 'SELECT 1');
	is(is_soon($id, 'dt'), 't', 'an insert starts at once');
	sql("UPDATE task SET dt = now() WHERE id = $far");
	wait_for_state($node, $far, 'DONE');
	is(is_soon($far, 'dt'), 't', 'a task that is planned for now starts at once');
	sql("UPDATE task SET state = 'PLAN', dt = clock_timestamp() WHERE id = $id");
	wait_until($node, "SELECT attempt = 2 AND state = 'DONE' FROM task WHERE id = $id");
	is(is_soon($id, 'dt'), 't', 'a task that is planned again starts at once');
	sql(q{INSERT INTO task (queue, dt, request) SELECT 'many', now() + n * interval '1 hour',
		'SELECT 1'
		FROM generate_series(1, 3000) AS n});
	$id = sql(q{UPDATE task SET dt = now() WHERE id = (SELECT id FROM task WHERE queue = 'many'
		ORDER BY dt OFFSET 2000 LIMIT 1) RETURNING id});
	wait_for_state($node, $id =~ s/\n.*//sr, 'DONE');
	$id = sql(q{UPDATE task SET priority = -1, queue = 'other', dt = now()
		WHERE id = (SELECT id FROM task WHERE queue = 'many' AND state = 'PLAN'
		ORDER BY dt OFFSET 2000 LIMIT 1) RETURNING id});
	wait_for_state($node, $id =~ s/\n.*//sr, 'DONE');
	pass('one of many waiting tasks is planned again');
	sql(q{DELETE FROM task WHERE queue = 'many'});
	my $session = open_session($node, 'postgres');
	$session->query_safe(q{BEGIN; INSERT INTO task (queue, request) VALUES ('open', 'SELECT 1')});
	$session->query_safe(q{SAVEPOINT s; INSERT INTO task (queue, request)
		VALUES ('open', 'SELECT 2');
		ROLLBACK TO s});
	run_task($node, request => 'SELECT 1');
	is(count_of($node, "queue = 'open'"), 0, 'no row of an open transaction is visible');
	$session->query_safe('COMMIT');
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE queue = 'open' AND state = 'DONE'});
	$session->quit;
	is(sql(q{SELECT string_agg(request, ',') FROM task WHERE queue = 'open'}), 'SELECT 1',
		'only the committed rows run');
};

# A prepared transaction wakes it when it is committed, from any session.
subtest 'COMMIT PREPARED wakes the scheduler' => sub {
	sql(q{BEGIN; INSERT INTO task (queue, request) VALUES ('prepared', 'SELECT 1');
		PREPARE TRANSACTION 'p'});
	run_task($node, request => 'SELECT 1');
	is(count_of($node, "queue = 'prepared'"), 0, 'a task of a prepared transaction waits');
	sql(q{COMMIT PREPARED 'p'});
	wait_until($node, q{SELECT state = 'DONE' FROM task WHERE queue = 'prepared'});
};

# COPY, and a function of another user, wake it, too.
subtest 'COPY wakes the scheduler' => sub {
	sql(q{COPY task (queue, request) FROM PROGRAM 'echo "copied	SELECT 1"'});
	wait_until($node, q{SELECT state = 'DONE' FROM task WHERE queue = 'copied'});
	pass('the task starts');
};

# One statement inserts rows of several groups, one group after another or in turns.  The second of
# each is due, the first is not.  No hint but that of its own group finds a row.
subtest 'several groups in one statement' => sub {
	for my $order ('number, days DESC', 'days DESC, number')
	{
		sql(qq{INSERT INTO task (queue, max, priority, dt, request)
			SELECT queue, max, priority, now() + days * interval '1 day', 'SELECT 1'
			FROM (VALUES (1, 'several', NULL, 0), (2, 'several', NULL, 1), (3, 'several', 5, 0),
				(4, 'severa', NULL, 0)) AS groups (number, queue, max, priority),
				generate_series(0, 1) AS days ORDER BY $order});
		wait_until($node, q{SELECT count(*) = 4 FROM task
			WHERE queue LIKE 'severa%' AND state = 'DONE'});
		is(sql(q{SELECT bool_and(start - dt BETWEEN '0' AND '30 s') FROM task
			WHERE queue LIKE 'severa%' AND state = 'DONE'}),
			't', "those that are due start at once, ordered by $order");
		sql(q{DELETE FROM task WHERE queue LIKE 'severa%'});
	}
};

# Runs this while the scheduler takes nothing of what commits report.  It sleeps, so it holds no
# lock.
sub without_scheduler
{
	my ($commits) = @_;
	my ($scheduler) = backends($node, 'scheduler');

	poll_for(sub {
		kill 'STOP', $scheduler;
		return 1 if sql("SELECT wait_event_type FROM pg_stat_activity WHERE pid = $scheduler")
		  eq 'Extension';
		kill 'CONT', $scheduler;
		return 0;
	}) or die 'the scheduler does not sleep';
	$commits->();
	kill 'CONT', $scheduler;
}

# A statement that inserts a task into each of so many queues.
sub insert_queues
{
	my ($name, $count) = @_;

	return "INSERT INTO task (queue, request) SELECT '$name' || n, 'SELECT 1'
		FROM generate_series(1, $count) AS n";
}

# What is not named one by one: there is no room for it, in a commit or in shared memory.
subtest 'more groups than are named' => sub {
	sql(insert_queues('wide', 40));
	without_scheduler(sub { sql(insert_queues("wide$_ ", 32)) for 1 .. 3 });
	wait_until($node, q{SELECT count(*) = 136 FROM task WHERE queue LIKE 'wide%' AND state = 'DONE'});
	run_task($node, queue => 'wide' x 25, request => 'SELECT 1');
	pass('they start at once');
	sql(q{DELETE FROM task WHERE queue LIKE 'wide%'});
};

# The end of a task is not reported, or was, before the commit of a row that waits for it.
subtest 'rows that wait for other tasks' => sub {
	my $id = insert_task($node, dt => 'infinity', request => 'SELECT 1');
	my $session = open_session($node, 'postgres');
	my $waits = q{INSERT INTO task (queue, after, rule, request)
		SELECT 'after', ARRAY[%s], unnest('{done,ended,any}'::text[]), 'SELECT 1'};

	$session->query_safe('BEGIN; ' . sprintf($waits, $id));
	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_until($node, q{SELECT count(*) = 3 FROM task WHERE queue = 'after' AND state = 'DONE'});
	pass('for one that has ended before the commit');
	run_task($node, request => sprintf($waits, 'pg_task_id()'));
	wait_until($node, q{SELECT count(*) = 6 FROM task WHERE queue = 'after' AND state = 'DONE'});
	pass('for the one that has inserted them');
	sql(q{DELETE FROM task WHERE queue = 'after'});
};

# It is looked at after ten seconds, which have begun before the subtests above.
subtest 'a role that may have no executor' => sub {
	wait_for_state($node, $barred, 'DONE', db => 'other');
	is_row($node, $barred, { q{start < dt + interval '30 s'} => 'true' }, 'has one when it may',
		db => 'other');
};

# Whoever ends a task: it, one that is GONE because of it, and one that waits for that.
subtest 'each way to end' => sub {
	my $now = 'UPDATE task SET dt = now() WHERE id = %s';
	my @ways = (
		[ $now ],
		[ $now, request => 'SELECT 1/0' ],
		[ q{UPDATE task SET state = 'STOP' WHERE id = %s} ],
		[ 'DELETE FROM task WHERE id = %s' ],
		[ q{UPDATE task SET active = '1 ms', dt = now() - interval '1 hour' WHERE id = %s}, max => 0 ],
		[ $now, role => 'away' ],
		[ "DROP ROLE dropped; $now", role => 'dropped' ],
		[ $now, attempt => 99, request => 'SELECT pg_terminate_backend(pg_backend_pid())' ]);
	my $ends = '';

	sql('CREATE ROLE away LOGIN; CREATE ROLE dropped LOGIN;
		REVOKE CONNECT ON DATABASE postgres FROM PUBLIC');
	for my $way (@ways)
	{
		my ($end, %column) = @$way;
		my $id = insert_task($node, queue => 'ways', dt => 'infinity', request => 'SELECT 1',
			%column);

		sql(qq{WITH next AS (INSERT INTO task (queue, after, request)
				VALUES ('next', '{$id}', 'SELECT 1') RETURNING id)
			INSERT INTO task (queue, after, rule, request)
				SELECT 'last', ARRAY[i], 'ended', 'SELECT 1'
				FROM (SELECT id FROM next UNION ALL SELECT $id) AS i (i)});
		$ends .= sprintf("$end;", $id);
	}
	run_task($node, request => 'SELECT 1');
	sql($ends);
	wait_until($node, q{SELECT count(*) = 16 FROM task WHERE queue = 'last' AND state = 'DONE'});
	is(sql(q{SELECT string_agg(t.state || n.state, ' ' ORDER BY n.id)
		FROM task AS n LEFT JOIN task AS t ON t.id = n.after[1] WHERE n.queue = 'next'}),
		'DONEDONE FAILGONE STOPGONE GONEGONE FAILGONE FAILGONE FAILGONE',
		'what waits for it is judged');
	sql(q{DELETE FROM task WHERE queue IN ('ways', 'next', 'last');
		GRANT CONNECT ON DATABASE postgres TO PUBLIC});
};

# Tasks of a queue end in one commit or in several, each with some that wait for it.
subtest 'the ends of many tasks' => sub {
	my $end = q{UPDATE task SET state = 'STOP' WHERE queue = 'first' AND id %% 3 = %s};

	sql(q{INSERT INTO task (queue, dt, request)
			SELECT 'first', 'infinity', 'SELECT 1' FROM generate_series(1, 240);
		INSERT INTO task (queue, after, request) SELECT 'then', ARRAY[id], 'SELECT 1'
			FROM task WHERE queue = 'first'});
	run_task($node, request => 'SELECT 1');
	sql(sprintf($end, 0));
	wait_until($node, q{SELECT count(*) = 80 FROM task WHERE queue = 'then' AND state = 'GONE'});
	pass('more than one commit names');
	without_scheduler(sub { sql(sprintf("$end AND id %% 2 = $_", 1)) for 0, 1 });
	wait_until($node, q{SELECT count(*) = 160 FROM task WHERE queue = 'then' AND state = 'GONE'});
	pass('more than there is room for');
	sql(q{INSERT INTO task (queue, after, request)
		SELECT 'then', ARRAY[max(id)], 'SELECT 1' FROM task, generate_series(1, 3000) AS n
			WHERE queue = 'first' AND state = 'PLAN' GROUP BY n});
	sql(sprintf($end, 2));
	wait_until($node, q{SELECT count(*) = 3240 FROM task WHERE queue = 'then' AND state = 'GONE'});
	pass('more that wait than are judged at once');
	sql(q{DELETE FROM task WHERE queue IN ('first', 'then')});
};

# A trigger of the owner's that fires after ours gives the row another time.  What it writes counts,
# in the hint as in the checks.
subtest 'a row that a later trigger changes' => sub {
	sql(q{CREATE FUNCTION hasten() RETURNS trigger LANGUAGE plpgsql
		AS $$ BEGIN NEW.dt := now(); NEW.retry := NEW.max; RETURN NEW; END $$;
		CREATE TRIGGER zz BEFORE INSERT ON task FOR EACH ROW WHEN (NEW.queue = 'hastened')
		EXECUTE FUNCTION hasten()});
	my $id = insert_task($node, queue => 'hastened', dt => 'infinity', request => 'SELECT 1');
	wait_for_state($node, $id, 'DONE');
	is(is_soon($id, 'dt'), 't', 'the task starts when the trigger says');
	like(error_of('postgres', q{INSERT INTO task (queue, max, request)
		VALUES ('hastened', -1, 'x')}),
		qr/"retry" of a task must be zero or more/, 'and what it writes is checked');
	sql('DROP TRIGGER zz ON task; DROP FUNCTION hasten');
};

# What ON CONFLICT drops wakes nobody.
subtest 'rows that are dropped' => sub {
	my ($scheduler) = backends($node, 'scheduler');
	my $switches = sub {
		slurp_file("/proc/$scheduler/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
		return $1;
	};
	my $insert = "INSERT INTO task (queue, key, dt, request) VALUES ('once', 'k', %s, 'SELECT 1')";

	sql(sprintf($insert, "'infinity'"));
	my $before = $switches->();
	sql(sprintf("$insert ON CONFLICT DO NOTHING;", 'now()') x 200);
	cmp_ok($switches->() - $before, '<', 100, 'the scheduler sleeps on');
	sql(q{DELETE FROM task WHERE queue = 'once'});
};

# Repeats: from the planned time, and from the end of the run.  The run takes longer than the
# interval.
subtest 'repeats' => sub {
	sql(q{INSERT INTO task (queue, repeat, drift, missed, request) VALUES
		('true', '0.3 s', true, 'none', 'SELECT pg_sleep(0.4)'),
		('false', '0.3 s', false, 'none', 'SELECT pg_sleep(0.1)')});
	wait_until($node, qq{SELECT count(*) >= 4 FROM task WHERE queue = '$_' AND state = 'DONE'})
		for qw(true false);
	sql(q{DELETE FROM task WHERE state = 'PLAN' AND repeat IS NOT NULL});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state = 'WORK'});
	sql(q{DELETE FROM task WHERE state = 'PLAN' AND repeat IS NOT NULL});
	is(sql(q{SELECT bool_and(new.dt = old.dt + interval '0.3 s'
			* (1 + floor(extract(epoch FROM old.stop - old.dt) / 0.3))),
			bool_and(new.start - new.dt BETWEEN '0' AND '30 s')
		FROM task AS old JOIN task AS new ON new.parent = old.id WHERE old.queue = 'true'}),
		't|t', 'drift: missed runs are skipped');
	is(sql(q{SELECT bool_and(new.dt - old.stop = '0.3 s'), bool_and(new.start - new.dt BETWEEN '0'
		AND '30 s')
		FROM task AS old JOIN task AS new ON new.parent = old.id WHERE old.queue = 'false'}),
		't|t', 'no drift: one interval after the end');
	is(sql(q{SELECT count(*) FROM task AS old JOIN task AS new ON new.parent = old.id
		WHERE old.repeat IS NOT NULL GROUP BY old.id HAVING count(*) > 1}),
		'', 'each task has one next run');
};

# The timeout, with a resolution of milliseconds: of the row, else of the role's setting; the
# shorter one applies.
sub ended
{
	my ($name, $limit, $error, %column) = @_;
	my $run = run_task($node, %column);
	my $code = $error =~ /^task/ ? 'TK001' : '57014';

	is(task($node, $run, 'state, sqlstate, error'), "FAIL|$code|canceling $error", $name);
	# it counts from before the start, so a process that was kept waiting in between has less
	is(task($node, $run, "stop - start BETWEEN '0' AND interval '$limit' + interval '30 s'"),
		't', "$name: in time");
}

subtest 'timeouts' => sub {
	sql(q{CREATE ROLE strict LOGIN; ALTER ROLE strict SET statement_timeout = '0.2 s';
		CREATE ROLE patient LOGIN; ALTER ROLE patient SET statement_timeout = '4 s';
		CREATE ROLE limited LOGIN; ALTER ROLE limited SET pg_task.timeout = '0.2 s'});
	# some seconds are left for what is not to be cancelled, in case the machine is busy
	my %long = (
		'statement_timeout counts for each statement' => join('; ', ('SELECT pg_sleep(0.5)') x 9),
		map {; "$_ statement_timeout = 0 ends that of the role" =>
			  "$_ statement_timeout = 0; SELECT pg_sleep(4.5)" } 'SET', 'SET LOCAL');
	my %id = map { $_ => insert_task($node, role => 'patient', request => $long{$_}) } keys %long;
	ended('timeout', '0.2 s', 'task due to timeout', timeout => '0.2 s',
		request => 'SELECT pg_sleep(30)');
	ended('timeout of several statements', '0.3 s', 'task due to timeout', timeout => '0.3 s',
		request => join('; ', ('SELECT pg_sleep(0.1)') x 300));
	ended('timeout in a loop', '0.05 s', 'task due to timeout', timeout => '50 ms',
		request => 'DO $$ BEGIN LOOP NULL; END LOOP; END $$');
	ended('timeout in a handler for all', '0.1 s', 'task due to timeout', timeout => '100 ms',
		request => 'DO $$ BEGIN PERFORM pg_sleep(30); EXCEPTION WHEN OTHERS THEN NULL; END $$');
	ended('statement_timeout of the role', '0.2 s', 'statement due to statement timeout',
		role => 'strict',
		timeout => '20 s', request => 'SELECT pg_sleep(30)');
	ended('timeout before statement_timeout', '0.1 s', 'task due to timeout', role => 'patient',
		timeout => '0.1 s', request => 'SELECT pg_sleep(30)');
	ended('pg_task.timeout of the role', '0.2 s', 'task due to timeout', role => 'limited',
		request => 'SELECT pg_sleep(30)');
	my $id = run_task($node, role => 'limited', timeout => '20 s',
		request => 'SELECT pg_sleep(0.4)');
	is(task($node, $id, 'state'), 'DONE', 'the column wins over the setting');
	$id = run_task($node, timeout => '0.5 ms', request => 'SELECT pg_sleep(5)');
	is(task($node, $id, 'state'), 'FAIL', 'a timeout below a millisecond applies');
	is(task($node, run_task($node, request => 'SELECT pg_sleep(0.3)'), 'state'), 'DONE',
		'the next task has no timeout');
	for my $name (sort keys %id)
	{
		wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id{$name}");
		is(task($node, $id{$name}, 'state'), 'DONE', $name);
	}
};

# The periodic scan finds rows without a hint: inserted with the trigger disabled.
subtest 'the periodic scan' => sub {
	set_conf($node, "pg_task.period = '200 ms'");
	wait_until($node, 'SHOW pg_task.period', expected => '200ms');
	sql(q{BEGIN; ALTER TABLE task DISABLE TRIGGER zz_pg_task_bound; INSERT INTO task (queue,
		request)
		VALUES ('untold', 'SELECT 1');
		ALTER TABLE task ENABLE ALWAYS TRIGGER zz_pg_task_bound; COMMIT});
	wait_until($node, q{SELECT state = 'DONE' FROM task WHERE queue = 'untold'});
	sql(q{SET session_replication_role = replica; INSERT INTO task (queue, request)
		VALUES ('replica', 'SELECT 1')});
	wait_until($node, q{SELECT state = 'DONE' FROM task WHERE queue = 'replica'});
	pass('rows without a hint start');
};

done_testing();
