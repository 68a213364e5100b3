# Tasks and schedules on hold: what starts and what does not, what a resume makes up for, and
# schedules that fail so often that they are put on hold.  A TAP test because it waits for runs.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => 'pg_task.max_executors = 2');

make_gates($node);
sql(q{CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE eve LOGIN;
	GRANT SELECT, INSERT, UPDATE ON task TO ann, bob; GRANT SELECT ON task TO eve});

# What has been inserted before runs, or does not start.
sub settle
{
	run_task($node, request => 'SELECT 1') for 1 .. 3;
	return;
}

sub why { return sql("SELECT pg_task_why($_[0])") }

# The one row of a schedule that waits or runs.
sub current
{
	my ($key, $what) = @_;

	return sql("SELECT $what FROM task WHERE key = '$key' AND state IN ('PLAN', 'WORK')");
}

subtest 'a task that waits' => sub {
	my $id = insert_task($node, request => 'SELECT 1', hold => 'until Ann is back');
	settle();
	is_row($node, $id, { state => 'PLAN', attempt => 0 }, 'it does not start');
	is(why($id), 'it is on hold: until Ann is back', 'pg_task_why');
	is(sql("UPDATE task SET hold = NULL WHERE id = $id RETURNING state"), 'PLAN', 'resumed');
	wait_for_state($node, $id, 'DONE');

	$id = insert_task($node, request => 'SELECT 1', dt => sql(q{SELECT now() + '1 hour'}));
	is(sql("SELECT pg_task_hold($id)"), 1, 'one for later is put on hold');
	is(task($node, $id, 'hold'), 'on hold', 'without a reason');
	like(why($id), qr/^planned for .*, and it is on hold$/, 'pg_task_why');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	settle();
	is(task($node, $id, 'state'), 'PLAN', 'nor does it start when it is due');
	is(sql("SELECT pg_task_resume($id)"), 1, 'resumed by a function');
	wait_for_state($node, $id, 'DONE');
	is(sql("SELECT pg_task_hold($id), pg_task_resume($id)"), '0|0', 'one that has ended is neither');
	like(error_of('postgres', qq{UPDATE task SET hold = repeat('x', 1001) WHERE id = $id}),
		qr/"hold" of a task must be at most 1000 bytes long/, 'a reason has an end');
};

# The scheduler knows these rows already when they are put on hold.
subtest 'tasks that are next' => sub {
	my @gates = map { insert_task($node, request => "SELECT hold('next')") } 1 .. 2;
	wait_for_running($node, 2, event => 'PgSleep');
	my @ids = map { insert_task($node, request => 'SELECT 1') } 1 .. 20;
	sql("UPDATE task SET hold = '' WHERE id IN ($ids[0], $ids[7], $ids[19])");
	open_gate($node, 'next');
	wait_until($node, qq{SELECT count(*) = 17 FROM task
		WHERE id BETWEEN $ids[0] AND $ids[19] AND state = 'DONE'});
	settle();
	is(sql(qq{SELECT string_agg(id::text, ',' ORDER BY id) FROM task
		WHERE id BETWEEN $ids[0] AND $ids[19] AND state = 'PLAN'}), "$ids[0],$ids[7],$ids[19]",
		'those on hold do not start');
	is(sql(q{SELECT waits || ' ' || due FROM pg_task_queues() WHERE queue = 'default'}), '3 0',
		'they wait, and are not due');
	is(sql(q{SELECT count(*) FROM pg_task_top() WHERE what = 'late'}), 0, 'nor late');
	$node->restart;
	settle();
	is(count_of($node, q{state = 'PLAN'}), 3, 'nor after a restart');
	sql(q{UPDATE task SET hold = NULL WHERE hold IS NOT NULL});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state <> 'DONE'});
	pass('then they run');
};

subtest 'a schedule' => sub {
	sql(q{INSERT INTO task (key, request, repeat) VALUES ('s', 'SELECT hold(''s'')', '50 ms')});
	wait_until($node, q{SELECT state = 'WORK' FROM task WHERE key = 's'});
	is(sql(q{SELECT pg_task_hold('s', 'month end')}), 1, 'it is put on hold while it runs');
	is(current('s', 'state'), 'WORK', 'the run goes on');
	open_gate($node, 's');
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE key = 's' AND state = 'DONE'});
	settle();
	is(current('s', 'state, attempt, hold'), 'PLAN|0|month end', 'the next run is on hold');
	is(sql(q{SELECT paused, hold, late IS NULL, last_state FROM pg_task_repeating()}),
		't|month end|t|DONE', 'pg_task_repeating');
	is(sql(q{SELECT pg_task_resume('s')}), 1, 'resumed');
	wait_until($node, q{SELECT count(*) > 2 FROM task WHERE key = 's' AND state = 'DONE'});
	is(count_of($node, q{key = 's' AND state <> 'DONE' AND hold IS NOT NULL}), 0, 'it goes on');

	# a statement of ours ends this run, not a direct write
	poll_for(sub { sql(q{UPDATE task SET notify = 'x', request = 'SELECT hold(''t'')'
		WHERE key = 's' AND state = 'PLAN' RETURNING 1}) });
	wait_until($node, q{SELECT state = 'WORK' FROM task WHERE key = 's' AND request ~ '''t'''});
	sql(q{UPDATE task SET hold = '' WHERE key = 's' AND state = 'WORK'});
	open_gate($node, 't');
	wait_until($node, q{SELECT hold = '' FROM task WHERE key = 's' AND state = 'PLAN'});
	settle();
	is(current('s', 'attempt'), 0, 'nor does one that notifies');
	sql(q{DELETE FROM task});
};

# What ended on hold is on hold when it is planned again, but not a run of a schedule whose next one
# is on hold in its place.
subtest 'planned again' => sub {
	my $id = insert_task($node, request => 'SELECT 1', repeat => '1 day', hold => 'not active');
	my $run = insert_task($node, request => q{SELECT hold('planned'); SELECT 1/0}, repeat => '1 day');

	is(sql("SELECT pg_task_cancel($id), pg_task_retry($id)"), 't|t', 'one that was stopped');
	settle();
	is_row($node, $id, { state => 'PLAN', hold => 'not active' }, 'is on hold as it was');
	is(sql("SELECT pg_task_resume($id)"), 1, 'resumed');
	wait_for_state($node, $id, 'DONE');

	wait_for_state($node, $run, 'WORK');
	is(sql("SELECT pg_task_hold($run, 'mend it')"), 1, 'one that runs');
	open_gate($node, 'planned');
	wait_for_state($node, $run, 'FAIL');
	is(sql("SELECT pg_task_retry($run)"), 't', 'is retried');
	wait_until($node, "SELECT state = 'FAIL' AND attempt = 2 FROM task WHERE id = $run");
	is(sql(q{SELECT hold FROM task WHERE state = 'PLAN' AND request ~ 'planned'}), 'mend it',
		'the next one is on hold');
	sql('DELETE FROM task');
};

subtest 'what a resume makes up for' => sub {
	my %runs;

	for my $missed (qw(one none all))
	{
		sql(qq{INSERT INTO task (key, request, repeat, missed, dt, anchor, hold, drift)
			VALUES ('$missed', 'SELECT 1', '1 hour', '$missed', now() - interval '150 min',
			now() - interval '150 min', 'x', true)});
	}
	settle();
	is(count_of($node, q{key IS NOT NULL AND state <> 'PLAN'}), 0, 'nothing starts');
	is(sql(q{SELECT DISTINCT what, text FROM pg_task_top() WHERE what <> 'failed'}),
		'waits|on hold: SELECT 1', 'pg_task_top: nothing is late');
	my $held = sql(q{SELECT pg_task_resume('one') + pg_task_resume('none') + pg_task_resume('all')});
	is($held, 3, 'resumed');
	for my $missed (qw(one none all))
	{
		wait_until($node, qq{SELECT dt > now() FROM task WHERE key = '$missed' AND state = 'PLAN'});
		is(current($missed, q{dt - now() BETWEEN '25 min' AND '30 min'}), 't',
			"$missed: the next run has its time");
		$runs{$missed} = count_of($node, qq{key = '$missed' AND state = 'DONE'});
	}
	is("@runs{qw(one none all)}", '1 0 3', 'one, none and all runs are made up for');
	is(count_of($node, q{state = 'GONE'}), 0, 'none is GONE');
	sql(q{DELETE FROM task});
	# a program that knows milliseconds has saved the row
	is(sql(q{INSERT INTO task (key, request, repeat, missed, hold, dt)
		VALUES ('ms', 'SELECT 1', '1 hour', 'none', 'x', date_trunc('ms', now()) - '123 us'::interval);
		UPDATE task SET hold = NULL, dt = date_trunc('ms', dt) WHERE key = 'ms'
		RETURNING dt > now()}), 't', 'none: nor where dt was saved in milliseconds');
	sql(q{DELETE FROM task});

	# a single task starts, however late, and one that was for an hour has expired
	my $late = insert_task($node, request => 'SELECT 1', hold => '', dt => '2020-01-01',
		missed => 'none');
	my $expired = insert_task($node, request => 'SELECT 1', hold => '', dt => '2020-01-01',
		active => '1 hour');
	settle();
	is(count_of($node, q{state = 'PLAN'}), 2, 'what is on hold does not expire');
	sql('UPDATE task SET hold = NULL');
	wait_for_state($node, $late, 'DONE');
	wait_for_state($node, $expired, 'GONE');
	# that of the role
	sql(q{ALTER ROLE ann SET pg_task.active = '1 h'});
	my $role = insert_task($node, role => 'ann', request => 'SELECT 1', hold => '',
		dt => '2020-01-01');
	settle();
	is(task($node, $role, 'state'), 'PLAN', 'nor by the setting of its role');
	sql(q{ALTER ROLE ann RESET pg_task.active; DELETE FROM task});
};

subtest 'schedules that fail' => sub {
	my $failing = q{INSERT INTO task (key, role, request, repeat, hold_after)
		VALUES ('%s', '%s', 'SELECT 1/nullif(fails.n, 0) + 1/(1 - sign(fails.n))::int FROM fails',
		'50 ms', %s)};
	sql(q{CREATE TABLE fails (n int); INSERT INTO fails VALUES (1); GRANT ALL ON fails TO PUBLIC});

	sql(sprintf $failing, 'three', 'postgres', 3);
	wait_until($node, q{SELECT hold FROM task WHERE key = 'three' AND state = 'PLAN'},
		expected => 'failed 3 times in a row');
	settle();
	is(sql(q{SELECT string_agg(state || ' ' || coalesce(streak, 0), ', ' ORDER BY id) FROM task
		WHERE key = 'three'}), 'FAIL 1, FAIL 2, FAIL 3, PLAN 3', 'three runs');
	is(sql(q{SELECT level, problem FROM pg_task_health() WHERE problem ~ 'hold'}),
		'warning|schedule "three" is on hold: it has failed 3 times in a row', 'pg_task_health');
	is(sql(q{SELECT pg_task_resume('three')}), 1, 'resumed');
	wait_until($node, q{SELECT count(*) = 6 FROM task WHERE key = 'three' AND state = 'FAIL'});
	wait_until($node, q{SELECT hold FROM task WHERE key = 'three' AND state = 'PLAN'},
		expected => 'failed 3 times in a row');
	pass('it has three tries again');
	sql(q{UPDATE fails SET n = 0; SELECT pg_task_resume('three')});
	wait_until($node, q{SELECT count(*) > 1 FROM task WHERE key = 'three' AND state = 'DONE'});
	is(count_of($node, q{key = 'three' AND state IN ('DONE', 'PLAN') AND streak IS NOT NULL}), 0,
		'a success begins anew');
	sql(q{DELETE FROM task; UPDATE fails SET n = 1});

	sql(sprintf $failing, 'default', 'ann', 'NULL');
	wait_until($node, q{SELECT count(*) > 4 FROM task WHERE key = 'default' AND state = 'FAIL'});
	is(current('default', 'hold IS NULL'), 't', 'by default it goes on');
	sql(q{ALTER ROLE ann SET pg_task.hold_after = 2});
	wait_until($node, q{SELECT hold ~ 'in a row' FROM task WHERE key = 'default' AND state = 'PLAN'});
	sql(sprintf $failing, 'never', 'ann', 0);
	wait_until($node, q{SELECT count(*) > 3 FROM task WHERE key = 'never' AND state = 'FAIL'});
	is(current('never', 'hold IS NULL'), 't', 'the column wins');
	# of a task that is retried only the last failure counts
	sql(q{INSERT INTO task (key, role, request, repeat, hold_after, retry, delay)
		VALUES ('retry', 'ann', 'SELECT 1/0', '50 ms', 2, 2, '0')});
	wait_until($node, q{SELECT hold FROM task WHERE key = 'retry' AND state = 'PLAN'},
		expected => 'failed 2 times in a row');
	is(sql(q{SELECT count(*), sum(attempt) FROM task WHERE key = 'retry' AND state = 'FAIL'}), '2|6',
		'with all retries');
	sql(q{DELETE FROM task});

	# one more run is asked for while it runs: that run counts, too
	my $asked = q{SELECT hold('asked %1$s'); SELECT 1/n FROM fails};
	for my $n (0, 1)
	{
		sql("UPDATE fails SET n = $n");
		sql(sprintf(q{INSERT INTO task (key, request, repeat, streak)
			VALUES ('asked', %s, '1 hour', 2)}, literal(sprintf $asked, $n)));
		wait_until($node, q{SELECT state = 'WORK' FROM task WHERE key = 'asked'});
		sql(q{UPDATE task SET dt = '2100-01-01' WHERE key = 'asked'});
		open_gate($node, "asked $n");
		wait_until($node, q{SELECT state = 'PLAN' FROM task WHERE key = 'asked'});
		is(current('asked', 'streak'), $n ? '' : 3, $n ? 'it was DONE' : 'it has failed');
		sql(q{DELETE FROM task});
	}

	# put on hold by a user, for another reason
	sql(q{INSERT INTO task (key, request, repeat) VALUES ('user', 'SELECT 1/0', '1 hour')});
	wait_until($node, q{SELECT streak = 1 FROM task WHERE key = 'user' AND state = 'PLAN'});
	is(sql(q{SELECT pg_task_hold('user', NULL)}), 1, 'without a reason');
	is(current('user', 'hold'), 'on hold', 'a text says so');
	is(sql(q{SELECT count(*) FROM pg_task_health() WHERE problem ~ 'hold'}), 0,
		'pg_task_health does not tell of that');
	sql(q{DELETE FROM task});
};

# The row of a run may be left by a DONE while it is put on hold: then the next row is.
subtest 'a schedule that runs all the time' => sub {
	sql(q{INSERT INTO task (key, request, repeat) VALUES ('fast', 'SELECT 1', '10 ms');
		CREATE TABLE turned (what text)});
	sql(q{DO $$ BEGIN FOR i IN 1 .. 100 LOOP
		INSERT INTO turned SELECT 'hold' WHERE pg_task_hold('fast') = 0;
		COMMIT;
		PERFORM pg_sleep(random() * 0.01);
		COMMIT;
		INSERT INTO turned SELECT 'resume' WHERE pg_task_resume('fast') = 0;
		COMMIT;
		PERFORM pg_sleep(random() * 0.02);
		COMMIT;
	END LOOP; END $$});
	is(sql('SELECT count(*) FROM turned'), 0, 'is found each time');
	is(current('fast', 'hold IS NULL'), 't', 'it goes on');
	sql(q{UPDATE task SET state = 'STOP' WHERE state IN ('PLAN', 'WORK'); DELETE FROM task});
};

# One call ends each of them, also while its run commits, for which the trigger makes time.
subtest 'schedules that run all the time are ended by their keys' => sub {
	sql(q{CREATE TABLE ended (key text, n bigint);
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_sleep(0.01);
			RETURN NULL;
		END $$;
		CREATE TRIGGER slow AFTER UPDATE ON task FOR EACH ROW WHEN (NEW.state = 'DONE')
		EXECUTE FUNCTION slow()});
	for my $round (1 .. 3)
	{
		sql(q{INSERT INTO task (key, request, repeat) SELECT 'fast ' || i, 'SELECT 1',
			(20 + 1.5 * i) * interval '1 ms' FROM generate_series(1, 20) AS i});
		wait_until($node, q{SELECT count(DISTINCT key) = 20 FROM task WHERE state = 'DONE'
			AND key ~ '^fast '});
		sql(q{DO $$ BEGIN FOR i IN 1 .. 20 LOOP
			INSERT INTO ended SELECT 'fast ' || i, pg_task_cancel('fast ' || i);
			COMMIT;
		END LOOP; END $$});
		is(count_of($node, q{key ~ '^fast ' AND state IN ('PLAN', 'WORK')}), 0, 'none goes on');
		is(sql(q{SELECT count(*) FROM ended WHERE n <> 1}), 0, 'each call has stopped one task');
		sql('DELETE FROM task; DELETE FROM ended');
	}
	like(notices_of('postgres', q{SELECT pg_task_cancel('fast 1')}),
		qr/\ANOTICE:  pg_task_cancel has found no task for it\n/, 'what has ended is none');
	sql('DROP TRIGGER slow ON task');
};

# A run that fails and is tried again waits, too.
subtest 'a retry' => sub {
	my $id = insert_task($node, request => q{SELECT hold('retry'); SELECT 1/0}, retry => 1,
		delay => '0');
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	sql("SELECT pg_task_hold($id, 'look first')");
	open_gate($node, 'retry');
	wait_until($node, "SELECT failed = 1 AND state = 'PLAN' FROM task WHERE id = $id");
	settle();
	is_row($node, $id, { state => 'PLAN', attempt => 1, hold => 'look first' }, 'it is on hold');
	sql("UPDATE task SET request = 'SELECT 1', hold = NULL WHERE id = $id");
	wait_for_state($node, $id, 'DONE');

	# so does what fails for good, when it is planned again
	$id = insert_task($node, request => q{SELECT hold('again'); SELECT 1/0});
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	sql("SELECT pg_task_hold($id)");
	open_gate($node, 'again');
	wait_for_state($node, $id, 'FAIL');
	sql("UPDATE task SET request = 'SELECT 1' WHERE id = $id");
	like(notices_of('postgres', "SELECT pg_task_retry($id)"),
		qr/^NOTICE:  task $id is planned, but on hold as it was$/m, 'a notice says so');
	settle();
	is_row($node, $id, { state => 'PLAN', hold => 'on hold' }, 'it is on hold as it was');
	sql("SELECT pg_task_resume($id)");
	wait_for_state($node, $id, 'DONE');
};

subtest 'strict queues, flows and takers' => sub {
	insert_rule('strict', strict => 'true');
	my ($first, $second) = map { insert_task($node, queue => 'strict', max => 1, %$_,
		request => 'SELECT 1') } { hold => '' }, {};
	wait_for_state($node, $second, 'DONE');
	is(task($node, $first, 'state'), 'PLAN', 'others overtake one on hold in a strict queue');
	my ($a, $b) = map { insert_task($node, flow => 'f', step => $_, request => 'SELECT 1',
		$_ eq 'b' ? (needs => '{a}', hold => 'look at a') : ()) } qw(a b);
	wait_for_state($node, $a, 'DONE');
	wait_until($node, "SELECT waits IS NULL FROM task WHERE id = $b");
	settle();
	is(why($b), 'it is on hold: look at a', 'one that waits for another is on hold when it is ready');
	like(sql(q{SELECT pg_task_graph('f')}), qr/on hold/, 'pg_task_graph');
	insert_rule('mail', taker => 'postgres');
	my $mail = insert_task($node, queue => 'mail', request => 'send', hold => '');
	wait_until($node, q{SELECT taker = 'postgres' FROM task_queue WHERE queue = 'mail'});
	is(sql(q{SELECT count(*) FROM pg_task_take('{mail}', wait => 300)}), 0, 'nor is it taken');
	sql(q{CALL pg_task_drain()});
	pass('pg_task_drain does not wait for them');
	sql('UPDATE task SET hold = NULL');
	is(sql(q{SELECT id FROM pg_task_take('{mail}', wait => 10000)}), $mail, 'then it is');
	wait_for_state($node, $_, 'DONE') for $first, $b;
	sql('DELETE FROM task');
};

subtest 'rights' => sub {
	my $id = insert_task($node, role => 'ann', key => 'k', request => 'SELECT 1', dt => '2100-01-01');

	is(sql_as('ann', "SELECT pg_task_hold($id, 'mine')"), 1, 'the role of a task');
	is(sql_as('bob', "SELECT pg_task_resume($id), pg_task_resume('k'), pg_task_hold('k')"), '0|0|0',
		'not another one');
	my $own = insert_task($node, role => 'eve', request => 'SELECT 1', dt => '2100-01-01');
	is(sqlstate_of('eve', "SELECT pg_task_hold($own)"), '42501', 'nor one that may not UPDATE');
	sql('GRANT UPDATE (hold) ON task TO eve');
	is(sql_as('eve', "SELECT pg_task_hold($own)"), 1, 'but one that may UPDATE the column');
	is(sqlstate_of('eve', "SELECT pg_task_cancel($own)"), '42501', 'and nothing else');
	is(sql_as('ann', "SELECT pg_task_resume($id)"), 1, 'resumed');
	is(sql_as('ann', "SELECT pg_task_hold('k')"), 1, 'by its key');
	is(sql_as('ann', "SELECT pg_task_hold('k', queue => 'other')"), 0, 'which is one of a queue');
	is(sql_as('bob', q{SELECT pg_task_cancel('k')}), 0, 'another one stops none by its key');
	is(sqlstate_of('eve', q{SELECT pg_task_cancel('k')}), '42501', 'nor one that may not UPDATE');
	is(sql_as('ann', q{SELECT pg_task_cancel('k', 'other'), pg_task_cancel('k')}), '0|1',
		'its role does, in its queue');
	is(sql_as('ann', "SELECT pg_task_retry($id)"), 't', 'planned again');
	is(sql_as('ann', "SELECT pg_task_cancel($id)"), 't', 'a task on hold can be stopped');
	is(sql_as('ann', "SELECT pg_task_retry($id)"), 't', 'and planned again');
	is(task($node, $id, q{state, hold}), 'PLAN|on hold', 'it stays on hold');
};

is(count_of($node, q{state NOT IN ('PLAN', 'DONE')}), 0, 'nothing else has failed');
$node->stop;
done_testing();
