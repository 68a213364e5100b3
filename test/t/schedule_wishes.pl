# What users of other schedulers have asked for, as they would do it here: each subtest has the name
# of the system, and the number of the request where it has one.  Details are tested elsewhere.  A
# TAP test because it waits for runs.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main');

make_gates($node);
sql(q{CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE ON task TO app;
	CREATE TABLE alert (what jsonb); GRANT ALL ON alert TO app});

# What waits or runs of a schedule.
sub current
{
	my ($key, $what) = @_;

	return sql("SELECT $what FROM task WHERE key = '$key' AND state IN ('PLAN', 'WORK')");
}

sub wait_for_runs
{
	my ($key, $count) = @_;

	return wait_until($node, "SELECT count(*) >= $count FROM task WHERE key = '$key'
		AND state IN ('DONE', 'FAIL')");
}

sub schedule
{
	my ($key, %column) = @_;

	return insert_task($node, key => $key, role => 'app', request => 'SELECT 1',
		cron => '* * * * * *', %column);
}

subtest 'pg_cron #79, #201, #300: a run that takes too long' => sub {
	schedule('long', request => "SELECT hold('long')");
	wait_until($node, "SELECT state = 'WORK' AND start < clock_timestamp() - interval '3 s'
		FROM task WHERE key = 'long'");
	is(count_of($node, q{key = 'long'}), 1, 'no other run starts or is queued');
	open_gate($node, 'long');
	wait_for_runs('long', 2);
	is(sql(q{SELECT count(*) FROM task AS a JOIN task AS b ON a.next = b.id WHERE a.key = 'long'
		AND (b.start < a.stop OR date_trunc('second', b.dt) <= a.dt)}), 0, 'then one at a time');
	sql(q{UPDATE task SET state = 'STOP' WHERE key = 'long' AND state IN ('PLAN', 'WORK')});
};

subtest 'pg_cron #43, #258, pg_timetable #794: switch a schedule off and on, and change it' => sub {
	my $id = schedule('switch', cron => '0 0 1 1 *');

	is(sql_as('app', q{SELECT pg_task_hold('switch', 'maintenance')}), 1, 'its own role may');
	is(current('switch', 'hold, id'), "maintenance|$id", 'off');
	sql_as('app', q{UPDATE task SET request = 'SELECT 2', cron = '* * * * * *' WHERE key = 'switch'});
	is(current('switch', 'state, hold'), 'PLAN|maintenance', 'what it does is changed meanwhile');
	is(sql_as('app', q{SELECT pg_task_resume('switch')}), 1, 'on');
	wait_for_runs('switch', 1);
	is(task($node, $id, q{response LIKE '%2%'}), 't', 'it runs as it was changed');
	sql_as('app', q{UPDATE task SET state = 'STOP' WHERE key = 'switch'
		AND state IN ('PLAN', 'WORK')});
};

subtest 'pg_cron #183: retry' => sub {
	my $id = schedule('retry', cron => '0 0 1 1 *', retry => 2, delay => '10 ms',
		request => 'SELECT 1 / (attempt - 1) FROM task WHERE id = pg_task_id()');

	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, q{attempt, failures -> 0 ->> 'sqlstate'}), '2|22012',
		'after a division by zero');
	is(current('retry', 'dt > now()'), 't', 'and the schedule goes on');
};

subtest 'pg_cron #247: stop a run, not the schedule' => sub {
	my $id = schedule('stop', cron => '0 0 1 1 *', request => "SELECT hold('never')");

	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	is(sql_as('app', "SELECT pg_task_interrupt($id)"), 't', 'the run is interrupted');
	wait_for_state($node, $id, 'FAIL');
	is(current('stop', 'state'), 'PLAN', 'the schedule goes on');
};

subtest 'pg_cron #7, Temporal: run it once more, now' => sub {
	my $id = schedule('now', cron => '0 0 1 1 *', request => 'SELECT pg_task_input()');
	my $dt = task($node, $id, 'dt');
	my $run = sql_as('app', q{SELECT pg_task_run_now('now', '{"by": "hand"}')});

	wait_for_state($node, $run, 'DONE');
	is(task($node, $run, 'response'), '{"by": "hand"}', 'with another input');
	is(current('now', 'id, dt'), "$id|$dt", 'the schedule is where it was');
};

subtest 'pg_timetable #82: tell me when it fails' => sub {
	my $id = schedule('tell', cron => '0 0 1 1 *', request => 'SELECT 1/0',
		on_failure => 'INSERT INTO alert VALUES (pg_task_input())');

	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_until($node, q{SELECT count(*) = 1 FROM alert});
	is(sql(q{SELECT what ->> 'id', what ->> 'key', what ->> 'sqlstate', what ->> 'error'
		FROM alert}), "$id|tell|22012|division by zero", 'it is told what has failed, and why');
};

subtest 'TimescaleDB #3035, Temporal: pause a schedule that always fails' => sub {
	schedule('broken', request => 'SELECT 1/0', hold_after => 2);
	wait_until($node, q{SELECT hold IS NOT NULL FROM task WHERE key = 'broken' AND state = 'PLAN'});
	is(current('broken', 'hold'), 'failed 2 times in a row', 'it says why');
	is(sql(q{SELECT count(*) FROM pg_task_health() WHERE problem LIKE '%broken%hold%'
		OR problem LIKE '%hold%broken%'}), 1, 'the administrator is told');
	sql_as('app', q{UPDATE task SET request = 'SELECT 1', hold = NULL WHERE key = 'broken'
		AND state = 'PLAN'});
	wait_until($node, q{SELECT count(*) > 0 FROM task WHERE key = 'broken' AND state = 'DONE'});
	is(current('broken', 'hold'), '', 'mended, it goes on');
	sql(q{UPDATE task SET state = 'STOP' WHERE key = 'broken' AND state IN ('PLAN', 'WORK')});
};

subtest 'Temporal: from, until, and how often' => sub {
	my $begin = sql(q{SELECT date_trunc('second', now()) + interval '2 s'});

	schedule('bounds', dt => $begin, runs_left => 2);
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE key = 'bounds' AND state = 'DONE'});
	is(sql(qq{SELECT bool_and(dt >= '$begin'), bool_and(start >= '$begin') FROM task
		WHERE key = 'bounds'}), 't|t', 'not before its first time');
	is(current('bounds', 'id'), '', 'the last run has no next one');
	my $until = sql(q{SELECT now() + interval '1 s'});
	schedule('until', repeat_until => $until);
	wait_until($node, q{SELECT count(*) > 0 AND bool_and(state = 'DONE') FROM task
		WHERE key = 'until'});
	is(sql(qq{SELECT bool_and(dt <= '$until') FROM task WHERE key = 'until'}), 't', 'nor after its last');
};

subtest 'Temporal: jitter' => sub {
	schedule("spread $_", cron => 'H H * * *', timezone => 'UTC') for 1 .. 20;
	cmp_ok(sql(q{SELECT count(DISTINCT cron) FROM task WHERE key LIKE 'spread %'}), '>', 10,
		'each has a time of its own');
	is(sql(q{SELECT count(*) FROM task WHERE key LIKE 'spread %' AND cron LIKE '%H%'}), 0,
		'which can be seen, and stays');
};

subtest 'Temporal: what is coming' => sub {
	schedule('coming', cron => '0 12 * * *', timezone => 'Europe/Berlin');
	is(sql_as('app', q{SELECT count(*), min(local::time) FROM pg_task_upcoming(now(),
		now() + interval '72 hours', 1000) WHERE key = 'coming'}), '3|12:00:00',
		'its next runs, in its own time zone');
};

$node->stop;
done_testing();
