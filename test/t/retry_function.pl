# pg_task_retry: tasks that have failed run again, one by its id or all with an error, with the
# rights of the caller.  A TAP test because of its roles, and because keys are taken by rows that
# the caller does not see.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main');

sql('CREATE ROLE app LOGIN; CREATE ROLE other LOGIN;
	GRANT SELECT, INSERT, UPDATE, DELETE ON task TO app, other');

# Inserts rows that have ended, by a SELECT list over i; returns nothing.
sub ended
{
	my ($count, %column) = @_;
	my %all = (request => q{'SELECT 1'}, state => q{'FAIL'}, sqlstate => q{'08006'},
		failed => 3, stop => q{now() - interval '1 hour'}, role => q{'app'}, %column);
	my @names = sort keys %all;

	sql('INSERT INTO task (' . join(', ', @names) . ') SELECT '
		  . join(', ', map { $all{$_} } @names) . " FROM generate_series(1, $count) AS i");
}

sub retry_all { return sql_as($_[0], "SELECT * FROM pg_task_retry('08006', $_[1])") }

sub states
{
	return sql(q{SELECT coalesce(string_agg(state || n, ' ' ORDER BY state), '')
		FROM (SELECT state, count(*) AS n FROM task GROUP BY 1) AS s});
}

subtest 'by id' => sub {
	my %state = (FAIL => 't', GONE => 't', STOP => 't', DONE => 'f');

	for my $state (sort keys %state)
	{
		my $id = insert_task($node, request => 'SELECT 1/0', retry => 1, delay => '0', failed => 2,
			state => $state, dt => '2024-01-01', planned => '2023-01-01', active => '1 min',
			role => 'app', crashed => 1, queue => $state);

		is(sql_as('other', "SELECT pg_task_retry($id)"), 'f', "$state: not that of another role");
		is(sql_as('app', "SELECT pg_task_retry($id)"), $state{$state}, "$state: one's own");
		next if $state eq 'DONE';
		wait_for_state($node, $id, 'FAIL');
		is(task($node, $id, 'attempt, failed, crashed, sqlstate'), '2|2|1|22012',
			"$state: it has all retries again");
		sql("UPDATE task SET dt = 'infinity' WHERE id = $id; SELECT pg_task_retry($id)");
		is(task($node, $id, 'state, crashed'), 'PLAN|0', "$state: the owner lets it run freely");
		is(sql_as('app', "SELECT pg_task_retry($id)"), 'f', "$state: not while it waits");
	}
	is(sql('SELECT pg_task_retry(-1), pg_task_retry(NULL)'), 'f|', 'no such task');
	sql('TRUNCATE task');
};

subtest 'all with an error' => sub {
	my $now = literal(sql('SELECT now()')) . '::timestamptz';

	ended(3000, sqlstate => q{CASE i % 3 WHEN 0 THEN '08006' WHEN 1 THEN '22012' END},
		stop => qq{$now - i * interval '1 min'}, max => 0,
		state => q{(ARRAY['FAIL', 'GONE', 'STOP', 'DONE'])[1 + i % 4]});
	ended(10, role => q{'other'});
	is(retry_all('app', qq{$now - interval '1000.5 min'}), '166|0', 'those since a time');
	is(sql(qq{SELECT count(*) FROM task WHERE state = 'PLAN' AND dt BETWEEN $now AND now()
		AND failed = 0 AND role = 'app' AND sqlstate = '08006'}), 166, 'they are planned for now');
	is(retry_all('app', q{'-infinity'}), '334|0', 'then the others');
	is(retry_all('app', q{'-infinity'}), '0|0', 'and no more');
	is(retry_all('postgres', q{'-infinity'}), '10|0', 'the owner those of all');
	# a run that goes on would write its end under the trigger of the next subtest
	wait_until($node, q{SELECT count(*) = 10 FROM task WHERE role = 'other' AND state = 'DONE'});
	for my $code ('', '0800', '080066', '0800a', '08 06')
	{
		is(sqlstate_of('app', "SELECT pg_task_retry('$code', now())"), '22023', "'$code': no code");
	}
	is(sqlstate_of('app', q{SELECT pg_task_retry('HV000')}), '22P02', 'a time is needed');
	sql('TRUNCATE task');
};

# What a batch has allocated is freed before the next one.
subtest 'memory' => sub {
	ended(5000, max => 0);
	sql(q{CREATE TABLE used (bytes bigint);
		CREATE FUNCTION measure() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.used SELECT sum(used_bytes) FROM pg_backend_memory_contexts
				WHERE name IN ('SPI Proc', 'pg_task retry');
			RETURN NULL; END $$;
		CREATE TRIGGER measure AFTER UPDATE ON task FOR EACH STATEMENT EXECUTE FUNCTION measure()});
	is(retry_all('postgres', q{'-infinity'}), '5000|0', 'all are planned again');
	is(sql('SELECT count(*) FROM used'), 5, 'in five batches');
	cmp_ok(sql('SELECT max(bytes) - min(bytes) FROM used'), '<', 40000,
		'the last of them needs no more memory than the first');
	sql('DROP TRIGGER measure ON task; TRUNCATE task');
};

# A chain with a key has many failed runs, all with the key of the waiting one.
subtest 'keys that are taken' => sub {
	ended(200, key => q{'k' || i % 20}, max => 0);
	sql(q{INSERT INTO task (key, role, request, max) VALUES ('k3', 'app', 'SELECT 1', 0)});
	is(retry_all('app', q{'-infinity'}), '19|181', 'of each key, one');
	is(sql(q{SELECT min(id) > (SELECT max(id) - 21 FROM task WHERE state = 'FAIL')
		FROM task WHERE state = 'PLAN' AND failed = 0}), 't', 'the last one');
	sql('TRUNCATE task');

	ended(2500, key => q{nullif('k' || i, 'k' || i / 2 * 2)}, max => 0);
	ended(5, key => q{'k' || 2 * i * 77 + 1}, state => q{'PLAN'}, role => q{'other'}, max => 0);
	is(retry_all('app', q{'-infinity'}), '2495|5', 'by rows that the caller does not see');
	is(states(), 'FAIL5 PLAN2500', 'all others are planned');

	my $id = sql(q{SELECT min(id) FROM task WHERE state = 'FAIL'});
	my $hint = 'HINT:  To run it now, use pg_task_run_now for a schedule, or UPDATE the "dt" of that task.';
	is(sql_as('app', "SELECT pg_task_retry($id)"), 'f', 'by id: it is not planned');
	like(notices_of('app', "SELECT pg_task_retry($id)"),
		qr/^NOTICE:  task $id is not run again: another task has its key\n$hint$/, 'and says why');
	sql('TRUNCATE task');

	$id = insert_task($node, key => 'k', repeat => '1 day', role => 'app', request => 'SELECT 1/0');
	wait_for_state($node, $id, 'FAIL');
	like(notices_of('app', "SELECT pg_task_retry($id)"), qr/another task has its key\n$hint$/,
		'a run of a schedule: the next one has the key');
	my $next = sql(q{SELECT id FROM task WHERE state = 'PLAN'});
	is(notices_of('app', "SELECT pg_task_retry($next)"),
		"NOTICE:  task $next is not run again: it is planned already, see pg_task_why",
		'no hint for what waits');
	my $run = sql_as('app', q{SELECT pg_task_run_now('k')});
	wait_for_state($node, $run, 'FAIL');
	isnt($run, $next, 'as the hint says: it runs once more');
	sql('TRUNCATE task');
};

# Those that are GONE because of a task, however far behind it.
subtest 'what has waited for it' => sub {
	my $chain = sub {
		my ($root, @ids) = insert_task($node, request => 'SELECT 1/0', role => 'app');

		push @ids, insert_task($node, request => 'SELECT 1', role => 'app',
			after => '{' . ($ids[-1] // $root) . '}') for 1 .. 3;
		push @ids, insert_task($node, request => 'SELECT 1', role => 'other', state => 'GONE',
			sqlstate => 'TK005', after => undef);
		wait_until($node, "SELECT count(*) = 4 FROM task WHERE id >= $root AND state = 'GONE'");
		sql("UPDATE task SET request = 'SELECT 1' WHERE id = $root");
		return ($root, @ids);
	};
	my ($root, @ids) = $chain->();

	is(notices_of('app', "SELECT pg_task_retry($root)"), "NOTICE:  3 tasks that waited for task $root "
		. "are GONE\nHINT:  SELECT pg_task_retry_dependents($root) runs them again.", 'they are told of');
	wait_for_state($node, $root, 'DONE');
	is(states(), 'DONE1 GONE4', 'and stay');
	is(sql_as('app', "SELECT pg_task_retry_dependents($root)"), 3, 'what the hint says runs them');
	wait_for_state($node, $ids[2], 'DONE');
	sql('TRUNCATE task');
	($root, @ids) = $chain->();
	my $first = open_session($node, 'postgres');
	my $second = open_session($node, 'postgres');
	$first->query_safe("SET client_min_messages = error; BEGIN; SELECT pg_task_retry($root)");
	$second->query_until(qr/asked/, "\\echo asked\nSELECT 'behind', pg_task_retry_dependents($root);\n");
	wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'
		AND query LIKE '%pg_task_retry_dependents%'});
	$first->query_safe('COMMIT');
	is($second->query_safe('SELECT 1'), "behind|3\n1", 'one that is run again at this moment');
	wait_for_state($node, $ids[2], 'DONE');
	$_->quit for $first, $second;
	sql('TRUNCATE task');
	($root, @ids) = $chain->();
	is(notices_of('app', q{SELECT * FROM pg_task_retry('22012', '-infinity')}),
		"NOTICE:  3 tasks that waited for these are GONE\nHINT:  SELECT * FROM"
		. " pg_task_retry('TK005', ...) runs them again, and pg_task_resume_flow those of a workflow.",
		'also of all with one code');
	is(sql_as('app', q{SELECT * FROM pg_task_retry('TK005', '-infinity')}), '3|0', 'it does');
	wait_for_state($node, $ids[2], 'DONE');
	is(states(), 'DONE4 GONE1', 'in their order');
	sql('TRUNCATE task');
	($root, @ids) = $chain->();
	is(sql_as('app', "SELECT pg_task_retry_dependents($root)"), 4, 'they are planned again');
	wait_for_state($node, $ids[2], 'DONE');
	is(states(), 'DONE4 GONE1', 'and run, and no other');
	is(sql_as('app', "SELECT pg_task_retry_dependents($root)"), 0, 'once');
	insert_task($node, id => 9223372036854775807, request => 'SELECT 1', state => 'FAIL');
	is(sql('SELECT pg_task_retry(9223372036854775807)'), 't', 'the last id');
	sql('TRUNCATE task');
};

# Those behind it are given up one after another, so some may be given up while it is run again.
subtest 'what is just being given up' => sub {
	my $chain = sub {
		my ($root, @ids) = insert_task($node, request => 'SELECT 1/0', role => 'app',
			dt => 'infinity');

		push @ids, insert_task($node, request => 'SELECT 1', role => 'app',
			after => '{' . ($ids[-1] // $root) . '}') for 1 .. 4;
		return ($root, @ids);
	};
	my ($root, @ids) = $chain->();
	my $scheduler = open_session($node, 'postgres');
	my $caller = open_session($node, 'postgres', extra_params => [ '-U', 'app' ]);

	# the scheduler does not judge what is locked: here a session does
	$scheduler->query_safe("BEGIN; SELECT FROM task WHERE id = $ids[1] FOR UPDATE");
	sql("UPDATE task SET dt = now() WHERE id = $root");
	wait_for_state($node, $ids[0], 'GONE');
	$scheduler->query_safe("SELECT FROM task WHERE id = $ids[0] FOR SHARE");
	sql("UPDATE task SET request = 'SELECT 1' WHERE id = $root");
	$caller->query_until(qr/asked/,
		"\\echo asked\nSELECT 'planned', pg_task_retry_dependents($root);\n");
	becomes_true(q{SELECT count(*) = 1 FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND query LIKE '%retry_dependents%'}, 'it waits for a verdict');
	$scheduler->query_safe("UPDATE task SET state = 'GONE', sqlstate = 'TK005', waits = NULL
		WHERE id = $ids[1]; COMMIT");
	wait_until($node, q{SELECT bool_and(state IN ('DONE', 'GONE')) FROM task});
	is(states(), 'DONE5', 'it runs again, with what waits behind it');
	$_->quit for $scheduler, $caller;
	for (1 .. 10)
	{
		($root, @ids) = $chain->();
		$node->safe_psql('postgres', "UPDATE task SET dt = now() WHERE id = $root;
			CALL pg_task_wait_for(ARRAY[$root]);
			UPDATE task SET request = 'SELECT 1' WHERE id = $root;
			SELECT pg_task_retry_dependents($root)");
		wait_until($node, q{SELECT bool_and(state IN ('DONE', 'GONE')) FROM task});
	}
	is(states(), 'DONE55', 'also at once');

	# what a trigger keeps as it is ends the search, too
	sql(q{TRUNCATE task;
		CREATE FUNCTION keep_state() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN NEW.state := OLD.state; RETURN NEW; END $$;
		CREATE TRIGGER keep BEFORE UPDATE ON task FOR EACH ROW
			WHEN (NEW.state = 'PLAN' AND OLD.state <> 'WORK') EXECUTE FUNCTION keep_state()});
	$root = insert_task($node, flow => 'kept', request => 'SELECT 1', state => 'STOP');
	is(sql("SELECT pg_task_retry_dependents($root), pg_task_resume_flow('kept')"), '0|0', 'kept');
	sql('DROP TRIGGER keep ON task');

	# what is stopped meanwhile stays so
	$scheduler = open_session($node, 'postgres');
	$caller = open_session($node, 'postgres');
	my $later = insert_task($node, flow => 'kept', request => 'SELECT 1', dt => 'infinity');
	$scheduler->query_safe("BEGIN; SELECT FROM task WHERE id = $root FOR NO KEY UPDATE");
	$caller->query_until(qr/asked/, "\\echo asked\nSELECT pg_task_resume_flow('kept');\n");
	wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND query LIKE '%resume_flow%'});
	sql("SELECT pg_task_cancel($later)");
	$scheduler->query_safe('COMMIT');
	wait_for_state($node, $root, 'DONE');
	is(task($node, $later, 'state'), 'STOP', 'what is stopped meanwhile stays so');
	$_->quit for $scheduler, $caller;

	# none is given up for a task that somebody may plan again, and others need not wait for that
	sql('TRUNCATE task');
	$root = insert_task($node, request => 'SELECT 1/0');
	my $other = insert_task($node, request => 'SELECT 1/0');
	wait_for_state($node, $_, 'FAIL') for $root, $other;
	$caller = open_session($node, 'postgres');
	$caller->query_safe("BEGIN; SELECT FROM task WHERE id = $root FOR NO KEY UPDATE");
	sql("INSERT INTO task (request, after, rule) SELECT 'SELECT 1', ARRAY[$root, $other], rule
		FROM generate_series(1, 2000), unnest(ARRAY['done', 'any']) AS rule;
		INSERT INTO task (request, after) SELECT 'SELECT 1', ARRAY[$root]
		FROM generate_series(1, 2000)");
	wait_for_state($node, insert_task($node, request => 'SELECT 1', after => "{$other}"), 'GONE');
	wait_until($node, "SELECT count(*) = 4000 FROM task WHERE state = 'PLAN' AND waits = $root
		AND (rule = 'any' OR cardinality(after) = 1)");
	is($caller->query_safe("UPDATE task SET request = 'SELECT 1' WHERE id = $root;
		SELECT pg_task_retry_dependents($root)"), 2001, 'only those for the other are GONE');
	$caller->query_safe('COMMIT');
	$caller->quit;
	wait_until($node, q{SELECT bool_and(state IN ('DONE', 'FAIL', 'GONE')) FROM task});
	is(states(), 'DONE4001 FAIL1 GONE2001', 'and are judged when it has ended again');
	sql('TRUNCATE task');
};

# Why a task is not run again.  Of a row that the caller does not see, it is not told that it is
# there.
subtest 'what is said when nothing is done' => sub {
	my %reason = (PLAN => 'it is planned already, see pg_task_why',
		DONE => 'it is DONE; an UPDATE to PLAN runs it once more', WORK => 'it runs');

	make_gates($node);
	for my $state (sort keys %reason)
	{
		my $id = insert_task($node, role => 'app',
			dt => $state eq 'WORK' ? '2019-07-01' : 'infinity',
			request => q{SELECT hold('runs')}, state => $state eq 'DONE' ? $state : 'PLAN');

		wait_for_state($node, $id, $state);
		like(notices_of('app', "SELECT pg_task_retry($id)"),
			qr/^NOTICE:  task $id is not run again: $reason{$state}$/, $state);
		is(notices_of('other', "SELECT pg_task_retry($id)"),
			"NOTICE:  task $id is not run again: you see no such task", "$state: not to others");
	}
	open_gate($node, 'runs');
	is(notices_of('other', 'SELECT pg_task_retry(-1)'),
		'NOTICE:  task -1 is not run again: you see no such task', 'nor is there one');

	my $id = insert_task($node, role => 'app', state => 'FAIL', request => 'SELECT 1');
	my $session = open_session($node, 'postgres');

	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $id FOR UPDATE");
	is(notices_of('app', "SET lock_timeout = '50 ms'; SELECT pg_task_retry($id)"),
		"NOTICE:  task $id is not run again: another transaction has locked its row, or uses its key",
		'a lock');
	$session->query_safe('COMMIT');
	$session->quit;
	sql(q{CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER keep BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION keep()});
	is(notices_of('app', "SELECT pg_task_retry($id)"), "NOTICE:  task $id is not run again: "
		. 'a policy or a trigger of the table keeps it as it is', 'a trigger');
	sql('DROP TRIGGER keep ON task');
	is(notices_of('app', "SELECT pg_task_retry($id)"), '', 'nothing when it is run again');

	my $many = notices_of('app', 'SELECT pg_task_retry(-n) FROM generate_series(1, 100) AS n');

	is(() = $many =~ /NOTICE/g, 16, 'many calls in a statement');
	like($many, qr/task -16 .*\nDETAIL:  This statement raises no further notices/, 'it says so');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state = 'WORK'});
	sql('TRUNCATE task');
};

# Whoever has locked a row, or written a key, keeps nobody from the other rows for long.
subtest 'locks' => sub {
	ended(40, key => q{'l' || i}, max => 0);
	my $session = open_session($node, 'postgres');
	my $locked = sql('SELECT min(id) FROM task');

	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $locked FOR UPDATE;
		INSERT INTO task (key, role, request, max) VALUES ('l7', 'other', 'SELECT 1', 0)");
	is(sql_as('app', q{SET lock_timeout = '50 ms'; SELECT * FROM pg_task_retry('08006',
		'-infinity')}), '38|2', 'those rows are skipped');
	is(sqlstate_of('app', q{SET statement_timeout = '50 ms';
		SELECT * FROM pg_task_retry('08006', '-infinity')}), '57014', 'else it waits');
	$session->query_safe('COMMIT');
	$session->quit;
	is(retry_all('app', q{'-infinity'}), '1|1', 'and takes the one that is free then');
	sql('TRUNCATE task');
};

# Another error is that of the caller, and nothing is planned.
subtest 'an error' => sub {
	ended(100, max => 0);
	sql(q{CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF NEW.id % 50 = 7 THEN RAISE 'refused'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION refuse()});
	is(sqlstate_of('app', q{SELECT pg_task_retry('08006', '-infinity')}), 'P0001', 'is raised');
	is(states(), 'FAIL100', 'and no row is written');
	sql('DROP TRIGGER refuse ON task; REVOKE UPDATE ON task FROM app');
	like(error_of('app', q{SELECT pg_task_retry('08006', '-infinity')}),
		qr/ERROR:  you may not retry tasks in table task\nHINT:  GRANT UPDATE ON public\.task TO app$/,
		'a right is missing');
	sql('GRANT UPDATE (state) ON task TO app');
	is(sqlstate_of('app', q{SELECT pg_task_retry(1)}), '42501', 'a right to one column');
	sql('GRANT UPDATE (state, failed) ON task TO app');
	is(retry_all('app', q{'-infinity'}), '100|0', 'the rights to two columns are enough');
	sql('TRUNCATE task');
};

subtest 'the failed runs of a chain' => sub {
	sql(q{INSERT INTO task (repeat, key, request, role)
		VALUES ('100 ms', 'chain', 'SELECT 1/0', 'app')});
	wait_until($node, q{SELECT count(*) > 4 FROM task WHERE state = 'FAIL'});
	# between two statements the next run may begin
	wait_until($node, q{WITH held AS (UPDATE task SET dt = 'infinity' WHERE state = 'PLAN'
		RETURNING id)
		SELECT count(*) = 1 FROM held});
	my $runs = sql('SELECT count(*) FROM task');
	sql(q{SELECT * FROM pg_task_retry('22012', '-infinity')});
	is(sql('SELECT count(*) FROM task'), $runs, 'the next run has the key');
	sql(q{UPDATE task SET key = NULL; SELECT * FROM pg_task_retry('22012', '-infinity')});
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE state IN ('PLAN', 'WORK')});
	is(sql(q{SELECT count(*), count(*) FILTER (WHERE attempt = 2) FROM task}),
		"$runs|" . ($runs - 1), 'without it each runs once, and there is no other chain');
};

subtest 'an error leaves the session as it was' => sub {
	ended(10);
	sql(q{CREATE FUNCTION refuse_update() RETURNS trigger LANGUAGE plpgsql
			AS 'BEGIN RAISE EXCEPTION ''refused''; END';
		CREATE TRIGGER refuse_update BEFORE UPDATE ON task FOR EACH ROW
			EXECUTE FUNCTION refuse_update()});
	for my $call (q{pg_task_retry('08006', '2000-01-01')},
		q{pg_task_retry((SELECT max(id) FROM task))})
	{
		my ($rc, $out, $err) = $node->psql('postgres', "SELECT $call; SELECT 'alive'",
			on_error_stop => 0);
		like($err, qr/ERROR:  refused/, "$call: the error");
		is($out, 'alive', 'and the next statement');
	}
	sql('DROP TRIGGER refuse_update ON task; TRUNCATE task');
};

done_testing();
