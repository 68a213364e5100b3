# What pg_task tells about itself: the schedulers, the queues, the tasks that have ended, with the
# rights of the caller.  A TAP test because it waits for schedulers and roles.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => q{
	pg_task.max_executors = 2
	pg_task.period = '100 ms'});

sql(q{CREATE ROLE app LOGIN; CREATE ROLE other LOGIN;
	GRANT SELECT, INSERT, UPDATE, DELETE ON task TO app, other});
make_gates($node);
wait_for_table($node, table => 'task_queue');

# Waits until an expression over the scheduler of this database is true.
sub scheduler_is
{
	my ($condition, $name) = @_;

	wait_until($node, qq{SELECT $condition FROM pg_stat_task_scheduler()
		WHERE datname = 'postgres'});
	return pass($name);
}

subtest 'a scheduler at work' => sub {
	scheduler_is(q{state = 'running' AND relid = 'task'::regclass AND begun < clock_timestamp()
		AND pid IN (SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_task scheduler')},
		'it runs');
	scheduler_is('iterations > 1 AND error IS NULL', 'it looks at the table');
	my $claimed = sql('SELECT sum(claimed) FROM pg_stat_task_scheduler()');
	run_task($node, request => 'SELECT 1') for 1 .. 3;
	scheduler_is("claimed >= $claimed + 3", 'tasks are counted');
	insert_rule('shut', paused => 'true');
	insert_rule('wait%', until => '2100-01-01');
	insert_rule('waited', until => '2019-01-01', rate => 1, per => '1 day');
	insert_rule('none', max => 0);
	insert_rule('null', rate => 0);
	insert_task($node, request => 'SELECT 1', queue => 'never', max => 0, dt => '2019-01-01');
	insert_task($node, request => 'SELECT 1', queue => $_, dt => '2019-01-01')
	  for qw(shut waiting none null);
	insert_task($node, request => 'SELECT 1', queue => 'later', dt => '2100-01-01');
	run_task($node, request => 'SELECT 1', queue => 'waited');
	scheduler_is('oldest_due IS NULL', 'what does not start on purpose is not due');
	insert_task($node, request => 'SELECT 1', queue => 'waited', dt => '2020-01-01 00:00+00');
	scheduler_is(q{oldest_due = '2020-01-01 00:00+00'}, 'the oldest due task');
	sql(q{DELETE FROM task WHERE queue = 'waited'; UPDATE task_queue SET paused = false
		WHERE queue = 'shut'; UPDATE task SET max = 0 WHERE queue = 'shut' AND state = 'PLAN'});
	scheduler_is('oldest_due IS NULL', 'nothing is due');
};

subtest 'executors' => sub {
	my @ids = map { insert_task($node, request => q{SELECT hold('a')}) } 1 .. 3;

	scheduler_is('executors = 2 AND busy = 2 AND wants_since IS NOT NULL AND wanted = 1',
		'a task waits for one');
	open_gate($node, 'a');
	wait_for_state($node, $_, 'DONE') for @ids;
	scheduler_is('executors >= 1 AND busy = 0 AND wants_since IS NULL AND wanted = 0',
		'they are free');
};

subtest 'what is held back' => sub {
	sql(q{CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this'; END $$;
		CREATE TRIGGER no BEFORE UPDATE ON task FOR EACH ROW
		WHEN (OLD.queue = 'no' AND NEW.state = 'WORK') EXECUTE FUNCTION no()});
	insert_task($node, request => 'SELECT 1', queue => 'no');
	scheduler_is(q{held = 1 AND errors >= 1 AND error = 'not this' AND error_at > begun},
		'a refused row, and the error');
	is(sql_as('app', q{SELECT pid IS NULL, error, error_at
		FROM pg_stat_task_scheduler() WHERE datname = 'postgres'}), 'f||',
		'others do not see the error');
	sql('GRANT pg_read_all_stats TO app');
	is(sql_as('app', q{SELECT error FROM pg_stat_task_scheduler() WHERE datname = 'postgres'}),
		'not this', 'unless they may read all statistics');
	sql('REVOKE pg_read_all_stats FROM app; DROP TRIGGER no ON task');
	scheduler_is('held = 0', 'the row is written when the trigger is gone');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE queue = 'no' AND state <> 'DONE'});
};

# Rows that have ended, with these columns as SQL expressions over i.
sub ended
{
	my ($count, %column) = @_;
	my %all = (request => q{'SELECT 1'}, state => q{'DONE'}, start => q{now() - interval '10 min'},
		%column);
	my @names = sort keys %all;

	sql('INSERT INTO task (' . join(', ', @names) . ') SELECT '
		  . join(', ', map { $all{$_} } @names) . " FROM generate_series(1, $count) AS i");
	return;
}

subtest 'queues' => sub {
	sql('TRUNCATE task');
	insert_rule('stop%', paused => 'true');
	insert_rule('stops%', paused => 'false', rate => 1, per => '1 day');
	insert_rule('sto_', paused => 'false');
	insert_task($node, request => 'SELECT 1', queue => 'stopped', dt => '2020-01-01 00:00+00');
	insert_task($node, request => 'SELECT 1', queue => 'stopped', dt => '2021-01-01 00:00+00',
		role => 'app');
	insert_task($node, request => 'SELECT 1', queue => 'stopped', dt => '2100-01-01');
	run_task($node, request => 'SELECT 1', queue => 'stops');
	insert_task($node, request => 'SELECT 1', queue => 'stops', dt => '2022-01-01 00:00+00');
	my $never = insert_task($node, request => 'SELECT 1', queue => 'never', max => 0);
	insert_task($node, request => 'SELECT 1', queue => 'after', after => "{$never}");
	run_task($node, request => 'SELECT 1/0', queue => 'bad') for 1, 2;
	my $id = insert_task($node, request => q{SELECT hold('b')}, queue => 'busy');
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	my $queues = q{SET TimeZone = 'UTC'; SELECT string_agg(concat_ws(' ', queue, waits, due, runs,
		failed, oldest_due, paused), ', ' ORDER BY queue) FROM pg_task_queues()};
	is(sql($queues), 'after 1 0 0 0 f, bad 0 0 0 2 f, busy 0 0 1 0 f, never 1 0 0 0 f,'
		. ' stopped 3 2 0 0 t, stops 1 1 0 0 2022-01-01 00:00:00+00 f', 'all queues');
	is(sql(q{SELECT string_agg(queue, ' ') FROM (SELECT queue FROM pg_task_queues() LIMIT 2) AS q}),
		'stops stopped', 'the one behind most is first, then what is paused');
	is(sql_as('app', $queues), 'stopped 1 1 0 0 t', 'a role sees its own');
	is(sql_as('other', $queues), '', 'another one none');
	open_gate($node, 'b');
	wait_for_state($node, $id, 'DONE');
	sql(q{UPDATE task SET role = 'app' WHERE queue = 'bad'});
	my $failed = q{SELECT sum(failed) FROM pg_task_queues() WHERE queue = 'bad'};
	is(sql_as('app', $failed), 2, 'a role sees its own failures ...');
	sql(q{SELECT setval(pg_get_serial_sequence('task', 'id'), 1000000)});
	is(sql_as('app', $failed), '', '... of the last ids: it need not pass over the rows of others');
};

subtest 'statistics' => sub {
	sql('TRUNCATE task');
	ended(100, queue => q{'mail'}, dt => q{now() - interval '10 min' - i * interval '1 s'},
		stop => q{now() - interval '10 min' + i * interval '2 s'}, role => q{'app'},
		state => q{CASE WHEN i <= 3 THEN 'FAIL' ELSE 'DONE' END});
	ended(2, queue => q{'mail'}, state => q{'GONE'}, start => 'NULL', stop => 'now()');
	ended(5, queue => q{'old'}, stop => q{now() - interval '2 h'});
	my $stats = q{SELECT queue, ended, failed, gone, wait_p50, wait_p95, run_p50, run_p95,
		per_minute
		FROM pg_task_stats};
	is(sql("$stats()"), 'mail|102|3|2|00:00:50.5|00:01:35.05|00:01:41|00:03:10.1|1.7',
		'the last hour');
	is(sql(q{SELECT queue, ended FROM pg_task_stats('1 day')}), "mail|102\nold|5", 'a day');
	is(sql_as('app', q{SELECT ended, gone FROM pg_task_stats('1 day')}), '100|0', 'of a role');
	is(sqlstate_of('app', "SELECT * FROM pg_task_stats('$_')"), '22023', "$_: no time")
	  for '0', '1 month -30 days';
	sql_as('app', q{UPDATE task SET dt = 'infinity' WHERE state = 'DONE'});
	is(sql('SELECT ended, wait_p50 IS NOT NULL, run_p50 FROM pg_task_stats()'),
		'102|t|00:01:41', 'a time that is infinite takes it from nobody');
};

subtest 'failures' => sub {
	sql('TRUNCATE task');
	ended(7, id => '100 + i', queue => q{'q'}, state => q{'FAIL'}, sqlstate => q{'22012'},
		error => q{'division by zero'}, stop => q{now() - i * interval '1 min'}, role => q{'app'});
	ended(1, id => '200', queue => q{'q'}, state => q{'GONE'}, sqlstate => q{'TK003'},
		error => q{'the task was not started in time'}, stop => q{now() - interval '1 min'});
	ended(1, state => q{'FAIL'}, sqlstate => q{'22012'}, error => q{'old'},
		stop => q{now() - interval '2 days'});
	my $failures = q{SELECT queue, sqlstate, error, count, last - first, ids FROM pg_task_failures};
	my $mine = 'q|22012|division by zero|7|00:06:00|{101,102,103,104,105}';
	is(sql("$failures()"), "$mine\nq|TK003|the task was not started in time|1|00:00:00|{200}",
		'of a day, grouped');
	is(sql_as('app', "$failures()"), $mine, 'of a role');
	is(sql(q{SELECT count(*) FROM pg_task_failures('3 days')}), 3, 'of more days');
	ended(3, queue => q{'q'}, state => q{'FAIL'}, sqlstate => q{'P0001'}, stop => 'now()',
		error => q{'letter ' || i || ' to "a' || i || '" not found'});
	is(sql(q{SELECT error, count FROM pg_task_failures(similar => true) WHERE sqlstate = 'P0001'}),
		'letter N to "..." not found|3', 'without numbers and names');
	is(sql(q{SELECT count(*) FROM pg_task_failures() WHERE sqlstate = 'P0001'}), 3, 'or with them');
	is(sqlstate_of('app', q{SELECT pg_task_failures('0', true)}), '22023', 'of no time');

	# what is GONE for other tasks hides no cause, however many there are
	ended(20, queue => q{'q'}, state => q{'GONE'}, sqlstate => q{'TK005'}, stop => 'now()',
		error => q{format('task %s, for which this one waited, is FAIL', i)});
	is(sql(q{SELECT sqlstate, error, count FROM pg_task_failures() OFFSET 5}),
		'TK005|task N, for which this one waited, is FAIL|20', 'consequences are last, and one');
};

subtest 'repeating tasks' => sub {
	sql('TRUNCATE task');
	my $first = insert_task($node, request => 'SELECT 1/0', repeat => '1 day', key => 'daily',
		role => 'app');
	wait_for_state($node, $first, 'FAIL');
	insert_task($node, request => 'SELECT 2', cron => '0 4 29 2 *', queue => 'night');
	insert_task($node, request => 'SELECT 3', dt => '2100-01-01');
	is(sql('SELECT queue, key, role, rule, state, last_state, last_error, last_run >= \'0\', request
		FROM pg_task_repeating() ORDER BY queue'), join("\n",
		'default|daily|app|1 day|PLAN|FAIL|division by zero|t|SELECT 1/0',
		'night||postgres|0 4 29 2 *|PLAN||||SELECT 2'), 'each chain, with its last run');
	is(sql_as('app', 'SELECT last_id, dt > now() FROM pg_task_repeating()'), "$first|t",
		'of a role');
};

subtest 'repeating tasks that do not start' => sub {
	sql(q{TRUNCATE task; CREATE ROLE stranger; REVOKE CONNECT ON DATABASE postgres FROM PUBLIC;
		GRANT CONNECT ON DATABASE postgres TO app, other});
	insert_rule('slow', rate => 1, per => '1 day');
	my %column = (request => 'SELECT 1', repeat => '1 h', missed => 'all');
	my $waits = insert_task($node, %column, queue => 'z', dt => '2100-01-01');

	run_task($node, request => 'SELECT 1', queue => 'slow');
	insert_task($node, %column, queue => 'slow', dt => '2020-01-01');
	insert_task($node, %column, queue => 'stopped', dt => '2020-01-01');
	insert_task($node, %column, queue => 'x', dt => '2020-01-01', max => 0);
	insert_task($node, %column, queue => 'y', dt => '2020-01-01', after => "{$waits}");
	my $id = insert_task($node, %column, queue => 'kept out', dt => '2020-01-01',
		role => 'stranger');
	wait_until($node, "SELECT dt > now() AND sqlstate = '42501' FROM task WHERE id = $id");
	is(sql(q{SELECT string_agg(concat_ws(' ', queue, paused, late > '1 year'), ', ' ORDER BY queue)
			FROM pg_task_repeating()}),
		'kept out f t, slow f t, stopped t, x t, y f, z f', 'late and paused');
	sql('GRANT CONNECT ON DATABASE postgres TO PUBLIC');
};

# The figures of all repeating tasks are for monitoring, their texts are not.
subtest 'repeating tasks of others' => sub {
	my $texts = q{SELECT string_agg(concat_ws(' ', queue, key, role, last_state, last_error,
		request), ', ' ORDER BY queue) FROM pg_task_repeating()};
	my %column = (repeat => '1 day', key => 'k');

	sql('TRUNCATE task; CREATE ROLE monitor LOGIN IN ROLE pg_read_all_stats');
	run_task($node, %column, queue => 'a', request => 'SELECT 1/0', role => 'app');
	run_task($node, %column, queue => 'b', request => 'SELECT 2/0', role => 'other');
	is(sql_as('monitor', $texts), 'a k app FAIL, b k other FAIL', 'without a grant: no text');
	sql('GRANT SELECT ON task TO monitor');
	is(sql_as('monitor', $texts), 'a k app FAIL, b k other FAIL', 'nor with one');
	sql('GRANT app TO monitor');
	my $own = 'a k app FAIL division by zero SELECT 1/0';
	is(sql_as('monitor', $texts), "$own, b k other FAIL", 'but of a role that it is a member of');
	sql('CREATE POLICY none ON task AS RESTRICTIVE USING (false)');
	is(sql_as('monitor', $texts), 'a k app FAIL, b k other FAIL', 'not beside another policy');
	sql('DROP POLICY none ON task; ALTER TABLE task DISABLE ROW LEVEL SECURITY');
	is(sql_as('monitor', $texts), "$own, b k other FAIL division by zero SELECT 2/0",
		'all without row security');
	sql('ALTER TABLE task ENABLE ROW LEVEL SECURITY');
	is(sql_as('app', $texts), $own, 'others see their own');
	is(sqlstate_of('monitor', q{SELECT pg_task_queue_facts('{a}')}), '55000', 'no question besides');
};

subtest 'status' => sub {
	sql('TRUNCATE task');
	ended(10, stop => q{timestamptz '2020-01-01 00:00+00' + i * interval '1 day'});
	sql('ANALYZE task');
	# after each change of the table the scheduler prepares it, and is "starting"
	wait_until($node, q{SELECT version = extversion, task_table, databases, schedulers,
		max_executors, busy, state, rows, size > 8192, oldest_end = '2020-01-02 00:00+00'
		FROM pg_task_status(), pg_extension WHERE extname = 'pg_task'},
		expected => 't|public.task|1|1|2|0|running|10|t|t');
	pass('one row');
	is(sql_as('other', 'SELECT count(*), min(oldest_end) FROM pg_task_status()'), '1|',
		'a role sees no time of others');
};

# Each block of SQL in docs/monitoring.md returns a row, while there is something of each kind.
subtest 'docs/monitoring.md' => sub {
	my @blocks = manual_page('monitoring.md') =~ /^```sql\n(.*?)^```$/msg;

	sql('TRUNCATE task');
	run_task($node, request => 'SELECT 1/0', repeat => '1 day');
	insert_task($node, request => 'SELECT 1', id => 42, queue => 'stopped', dt => '2020-01-01');
	my $ended = insert_task($node, request => 'SELECT 1', cron => '@daily', key => 'ended');
	sql("UPDATE task SET state = 'STOP' WHERE id = $ended");
	insert_task($node, request => 'SELECT 1', cron => '@hourly');
	my $id = insert_task($node, request => q{SELECT hold('c')});
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	my ($query) = grep { /next IS NULL/ } @blocks;
	is(sql($query) =~ s/\|\d{4}-.*//sr, "$ended|default|ended|\@daily|STOP",
		'a schedule that has ended, and no other');
	cmp_ok(scalar @blocks, '>=', 8, 'there are queries');
	for my $block (@blocks)
	{
		like(sql($block), qr/\w/, $block =~ s/\n.*//sr);
	}
	# while the scheduler prepares the table again, that is the reason
	wait_until($node, 'SELECT pg_task_why(42)', expected => 'its queue is paused');
	pass('as the manual asks');
	open_gate($node, 'c');
	wait_for_state($node, $id, 'DONE');
};

# The functions return columns as they are, so a value of another type would be misread.
subtest 'types that the owner of the table has changed' => sub {
	sql('TRUNCATE task');
	my $id = insert_task($node, request => 'SELECT 1', dt => '2100-01-01');
	my $change = 'BEGIN; ALTER TABLE task ALTER sqlstate TYPE bigint USING 4702111234474983681;';

	ended(1, state => q{'FAIL'}, stop => 'now()', sqlstate => q{'22012'}, error => q{'no'});
	is(sqlstate_of('postgres', "$change SELECT * FROM $_"), '55000', $_)
		for 'pg_task_failures()', 'pg_task_top()', 'pg_task_queues()', 'pg_task_status()',
			"pg_task_why($id)", "pg_task_cancel($id)";
	wait_until($node, "SELECT pg_task_why($id) LIKE 'planned%'");
	pass('as it was, it can be used');
};

# The library may be newer than the declarations of its functions, until the extension is updated.
subtest 'functions that are declared with other columns' => sub {
	my $columns = join ', ', map { "c$_ int" } 1 .. 50;
	my %call = (pg_task_activity => ['', ''], pg_stat_task => ['', ''],
		pg_stat_task_scheduler => ['', ''], pg_task_wait => ['bigint[], interval', q{'{}', '1 s'}],
		pg_task_retry_all => ['text, timestamptz', q{'22012', '-infinity'}]);

	for my $name (sort keys %call)
	{
		my ($types, $arguments) = @{ $call{$name} };

		sql("CREATE FUNCTION older_$name($types) RETURNS TABLE ($columns) LANGUAGE c
			SET search_path = pg_catalog, pg_temp AS '\$libdir/pg_task', '$name'");
		like(error_of('postgres', "SELECT * FROM older_$name($arguments)"),
			qr/another version of pg_task.*ALTER EXTENSION pg_task UPDATE/s, $name);
	}
};

subtest 'several databases' => sub {
	sql('CREATE DATABASE other');
	wait_for_table($node, db => 'other');
	wait_until($node, q{SELECT string_agg(datname || ' ' || state, ',' ORDER BY datname)
		FROM pg_stat_task_scheduler()}, expected => 'other running,postgres running');
	sql('ALTER DATABASE other SET pg_task.enabled = off');
	wait_until($node, q{SELECT state = 'disabled' AND pid IS NULL AND claimed IS NULL
		FROM pg_stat_task_scheduler() WHERE datname = 'other'});
	pass('one is disabled');
};

done_testing();
