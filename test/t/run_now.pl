# pg_task_run_now: a schedule runs once more, beside its own times; and whose schedules one may run.
# A TAP test because it waits for runs.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main');

make_gates($node);
sql(q{CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE eve LOGIN;
	CREATE ROLE mighty LOGIN CREATEROLE BYPASSRLS;
	GRANT SELECT, INSERT, UPDATE ON task TO ann, bob, mighty; GRANT SELECT, UPDATE ON task TO eve;
	ALTER TABLE task ADD customer text, ADD doubled text GENERATED ALWAYS AS (customer || customer)
		STORED});

# Waits for the end of a run; returns these columns of it.
sub run
{
	my ($id, $what) = @_;

	wait_for_state($node, $id, 'DONE');
	return task($node, $id, $what);
}

subtest 'one more run' => sub {
	my $id = insert_task($node, cron => '0 3 1 1 *', timezone => 'UTC', key => 'k', queue => 'q',
		priority => -3, retry => 2, keep => '1 day', input => '{"day": 1}', customer => 'c',
		runs_left => 5, hold_after => 3, repeat_until => '2100-01-01',
		request => 'SELECT pg_task_input()');
	my $row = "SELECT to_jsonb(t) FROM task AS t WHERE id = $id";
	my $before = sql($row);
	my $same = 'queue, priority, retry, keep, customer, doubled';
	my $run = sql("SELECT pg_task_run_now($id)");

	is(run($run, "$same, response"), 'q|-3|2|1 day|c|cc|{"day": 1}', 'it is as the schedule');
	is(task($node, $run, q{num_nonnulls(key, cron, repeat, timezone, repeat_until, runs_left,
		hold_after, next)}), 0, 'and no schedule');
	is(task($node, $run, 'parent'), $id, 'its parent is the row that it copies');
	is(sql(q{SELECT last_id IS NULL FROM pg_task_repeating()}), 't', 'which has not run');
	is(run(sql(qq{SELECT pg_task_run_now($id, '{"day": 2}')}), 'response'), '{"day": 2}',
		'with another input');
	is(run(sql(q{SELECT pg_task_run_now('k', queue => 'q')}), 'response'), '{"day": 1}',
		'by its key');
	is(run(sql(q{SELECT pg_task_run_now('k', '[]', 'q')}), 'response'), '[]', 'and with an input');
	is(sql($row), $before, 'the schedule is not moved');
	is(sql(qq{SELECT count(*) FROM task AS r JOIN task AS s ON s.id = r.parent
		AND s.request = r.request WHERE s.key = 'k' AND r.key IS NULL}), 4, 'all runs are found');
	is(sql(q{SELECT pg_task_run_now('k')}), '', 'a key is one of a queue');
	# an id without a type, as some drivers send it, is taken for a key
	for my $function (qw(pg_task_run_now pg_task_hold pg_task_resume pg_task_cancel))
	{
		like(notices_of('postgres', "SELECT $function('$id')"),
			qr/\ANOTICE:  $function has found no task for it\nHINT:  .* an id must be of type bigint\.\z/,
			"$function says that it finds none");
	}
	# nor does a key in another queue
	for my $call (q{run_now('k'}, q{run_now('k', '1'}, q{hold('k'}, q{resume('k'}, q{cancel('k'})
	{
		like(notices_of('postgres', "SELECT pg_task_$call)"),
			qr/\nHINT:  It looked for the key in queue "default" only: /, "the queue: $call");
		like(notices_of('postgres', "SELECT pg_task_$call, queue => 'r')"),
			qr/\nHINT:  It looked for the key in queue "r" only: /, "the queue: $call in r");
	}
	is(notices_of('postgres', 'SELECT pg_task_hold(-1)'), "NOTICE:  pg_task_hold has found no task for it",
		'so it does for an id');
	is(sql("SELECT pg_task_run_now($run), pg_task_run_now(NULL::bigint)"), '|', 'what has ended is none');
	my $single = insert_task($node, dt => '2100-01-01', request => 'SELECT 1');
	is(sql("SELECT pg_task_run_now($single)"), '', 'nor is what does not repeat');
	sql("SELECT pg_task_hold($id)");
	is(run(sql("SELECT pg_task_run_now($id)"), 'response'), '{"day": 1}', 'one that is on hold runs');
	like(error_of('postgres', qq{SELECT pg_task_run_now($id, jsonb_build_object('a',
		(SELECT string_agg(repeat('x', 1000000), '') FROM generate_series(1, 300))))}),
		qr/ERROR/, 'an input has an end');
};

subtest 'beside its own run' => sub {
	my $own = insert_task($node, repeat => '1 day', request => "SELECT hold('gate')", key => 'gate');

	wait_for_running($node, 1, id => $own);
	my $run = sql(q{SELECT pg_task_run_now('gate')});
	wait_for_running($node, 2, event => 'PgSleep');
	open_gate($node, 'gate');
	run($_, 'state') for $own, $run;
	is(count_of($node, q{key = 'gate' AND state = 'PLAN'}), 1, 'there is one next run');
	is(task($node, $run, 'next'), '', 'which is not that of the other');
};

# Also if another task asks for it.
subtest 'by a task' => sub {
	my $id = insert_task($node, cron => '@yearly', key => 'asked', request => 'SELECT 1');
	my $run = run(run_task($node, request => q{SELECT pg_task_run_now('asked')}), 'response');

	is(run($run, 'parent'), $id, 'its parent is the row that it copies');
};

subtest 'rights' => sub {
	my $id = insert_task($node, role => 'ann', cron => '@yearly', key => 'ann',
		request => 'SELECT current_user');
	my $run = sql_as('ann', "SELECT pg_task_run_now($id)");

	is(run($run, 'role, response'), 'ann|ann', 'the role of the schedule');
	is(run(sql("SELECT pg_task_run_now($id)"), 'role, response'), 'ann|ann', 'a superuser: as that role');
	is(sql_as('bob', "SELECT pg_task_run_now($id), pg_task_run_now('ann')"), '|', 'not another one');
	my $owned = insert_task($node, cron => '@yearly', request => 'SELECT current_user');
	is(sql_as('mighty', "SELECT pg_task_run_now($id), pg_task_run_now($owned)"), '|',
		'nor one that sees all rows');
	my $of_eve = insert_task($node, role => 'eve', cron => '@yearly', request => 'SELECT 1');
	is(sqlstate_of('eve', "SELECT pg_task_run_now($of_eve)"), '42501', 'nor one that may not INSERT');
	sql('GRANT INSERT (request, role, dt) ON task TO eve');
	is(sqlstate_of('eve', "SELECT pg_task_run_now($of_eve)"), '42501', 'nor only some columns');
	is(count_of($node, q{role = 'eve'}), 1, 'nothing was inserted');
	sql(q{GRANT bob TO mighty});
	my $of_bob = insert_task($node, role => 'bob', cron => '@yearly', request => 'SELECT current_user');
	is(run(sql_as('mighty', "SELECT pg_task_run_now($of_bob)"), 'role, response'), 'bob|bob',
		'but a member of it');
};

# The row is bound to a role, not to its name.
subtest 'a role that has got the name of another one' => sub {
	sql(q{CREATE ROLE old LOGIN});
	my $id = insert_task($node, role => 'old', cron => '@yearly', request => 'SELECT current_user');
	is(sql(qq{BEGIN; ALTER ROLE old RENAME TO older; CREATE ROLE old LOGIN;
		SELECT pg_task_run_now($id)}), '', 'it does not run as that one');
	sql('ROLLBACK');

	# also if the snapshot does not show it, and the statement runs as the owner
	sql('CREATE ROLE monitor LOGIN IN ROLE pg_monitor, old; GRANT SELECT, INSERT ON task TO monitor');
	my $session = open_session($node, 'postgres', extra_params => [ '-U', 'monitor' ]);
	$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	sql('ALTER ROLE old RENAME TO older; CREATE ROLE old LOGIN');
	is($session->query_safe("SET client_min_messages = warning; SELECT pg_task_run_now($id)"), '',
		'nor by an older snapshot');
	$session->quit;
	is(count_of($node, q{role = 'old' AND id > } . $id), 0, 'nothing was inserted');
};

is(count_of($node, q{state NOT IN ('PLAN', 'DONE')}), 0, 'nothing has failed');
$node->stop;
done_testing();
