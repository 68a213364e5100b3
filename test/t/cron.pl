# Tasks that repeat by a cron expression: the first run, the next ones, changes of the expression,
# and the zone in which it is read.  test/pgtap/cron.sql tests the expressions themselves.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('cron', period => '1 s',
	conf => "TimeZone = 'Asia/Kathmandu'\npg_task.max_executors = 4");

# A condition that is true for one minute before a match is not worth a flaky test: all expressions
# but the ticking one match once a year, more than a day from now.
my $far = sql(q{SELECT to_char(now() + interval '40 days', '"0 12" FMDD FMMM "*"')});

# The first match of an expression after now, by the function, as text.
sub next_of
{
	my ($cron, $zone) = @_;

	return sql("SELECT pg_task_next('$cron', now(), '$zone')::text");
}

subtest 'a task ticks by the second' => sub {
	my $first = insert_task($node, request => 'SELECT 1', cron => '* * * * * *', queue => 'tick');

	wait_until($node, q{SELECT count(*) >= 4 FROM task WHERE queue = 'tick' AND state = 'DONE'});
	# one that runs now plans the next
	wait_until($node, q{WITH u AS (UPDATE task SET state = 'STOP' WHERE queue = 'tick'
			AND state = 'PLAN' RETURNING id)
		SELECT NOT EXISTS (SELECT FROM u) AND NOT EXISTS (SELECT FROM task WHERE queue = 'tick'
			AND state IN ('PLAN', 'WORK'))});
	is(count_of($node, q{queue = 'tick' AND date_trunc('second', dt) <> dt}), 0, 'at full seconds');
	is(sql(q{SELECT count(*) FROM (SELECT dt - lag(dt) OVER (ORDER BY dt) AS step FROM task
			WHERE queue = 'tick') AS t WHERE step < '1 s'}), 0, 'no second twice');
	is(count_of($node, q{queue = 'tick' AND state = 'DONE' AND start < dt}), 0, 'none early');
	is(sql(q{SELECT count(*) FROM task AS t JOIN task AS p ON p.id = t.parent
			WHERE t.queue = 'tick' AND t.dt <> pg_task_next(t.cron, greatest(p.start, p.dt))}),
		0, 'the next run is the first match after the start');
	is(count_of($node, "queue = 'tick' AND parent IS NULL AND id = $first"), 1, 'one chain');
};

subtest 'the first run' => sub {
	my $now = insert_task($node, request => 'SELECT 1', cron => $far);
	my $dt = insert_task($node, request => 'SELECT 1', cron => $far,
		dt => '2040-01-01 00:00 Asia/Kathmandu');
	my $at = insert_task($node, request => 'SELECT 1', cron => '30 5 1 1 *',
		dt => '2040-01-01 05:30 Asia/Kathmandu');
	my $never = insert_task($node, request => 'SELECT 1', cron => $far, dt => 'infinity');
	my $ended = insert_task($node, request => 'SELECT 1', cron => $far, state => 'DONE',
		dt => '2020-01-01 00:00Z');

	is(task($node, $now, 'dt'), next_of($far, 'Asia/Kathmandu'), 'the first match from now on');
	is(task($node, $dt, "dt = pg_task_next(cron, '2040-01-01 00:00 Asia/Kathmandu')"), 't',
		'the first match from dt on');
	is_row($node, $at, { "dt = '2040-01-01 05:30 Asia/Kathmandu'" => 'true' }, 'dt itself');
	is_row($node, $never, { dt => 'infinity' }, 'infinity stays');
	is_row($node, $ended, { "dt = '2020-01-01 00:00Z'" => 'true', state => 'DONE' },
		'a row that does not wait stays');
	is(sql(qq{COPY task (request, cron) FROM STDIN;\nSELECT 1\t$far\n\\.\n
			SELECT dt = pg_task_next(cron) FROM task ORDER BY id DESC LIMIT 1}), 't', 'by COPY');
};

subtest 'the zone' => sub {
	sql(q{CREATE ROLE berliner LOGIN; GRANT INSERT, SELECT, UPDATE ON task TO berliner;
		ALTER ROLE berliner SET TimeZone = 'Europe/Berlin'});
	my $role = insert_task($node, request => 'SELECT 1', cron => $far, role => 'berliner');
	my $column = insert_task($node, request => 'SELECT 1', cron => $far, role => 'berliner',
		timezone => 'America/Havana');
	my $session = sql(qq{SET TimeZone = 'Pacific/Apia'; INSERT INTO task (request, cron)
		VALUES ('SELECT 1', '$far') RETURNING id});

	is(task($node, $role, 'dt'), next_of($far, 'Europe/Berlin'), 'that of the role');
	is(task($node, $column, 'dt'), next_of($far, 'America/Havana'), 'that of the row');
	is(task($node, $session, 'dt'), next_of($far, 'Asia/Kathmandu'), 'not that of the session');
	sql(q{ALTER DATABASE postgres SET TimeZone = 'Australia/Sydney'});
	is(task($node, insert_task($node, request => 'SELECT 1', cron => $far), 'dt::timestamptz(0)'),
		next_of($far, 'Australia/Sydney'), 'that of the database');
	sql(q{ALTER DATABASE postgres RESET TimeZone});

	my $becomes = sub {
		my ($zone, $name) = @_;

		ok(poll_for(sub {
			my $id = insert_task($node, request => 'SELECT 1', cron => $far);

			sql("SELECT dt = pg_task_next(cron, now(), '$zone') FROM task WHERE id = $id") eq 't';
		}), $name);
	};
	set_conf($node, q{TimeZone = 'UTC'});
	$becomes->('UTC', 'that of the configuration after a reload');
	set_conf($node, q{pg_task.timezone = 'Pacific/Chatham'});
	$becomes->('Pacific/Chatham', 'pg_task.timezone before it');
	$role = insert_task($node, request => 'SELECT 1', cron => $far, role => 'berliner');
	is(task($node, $role, "dt = pg_task_next(cron, now(), 'Pacific/Chatham')"), 't',
		'and before that of the role');
	sql(q{ALTER ROLE berliner SET pg_task.timezone = 'America/Santiago'});
	$role = insert_task($node, request => 'SELECT 1', cron => $far, role => 'berliner');
	is(task($node, $role, "dt = pg_task_next(cron, now(), 'America/Santiago')"), 't',
		'that of the role');
	sql("UPDATE task SET dt = now() WHERE id = $role");
	wait_for_state($node, $role, 'DONE');
	is(sql("SELECT dt = pg_task_next(cron, now(), 'America/Santiago') FROM task
		WHERE parent = $role"), 't',
		'also for the next run');
	is(sqlstate_of('berliner', q{SET pg_task.timezone = 'Nowhere/Land'}), '22023',
		'one that does not exist');
	sql(q{ALTER ROLE berliner RESET pg_task.timezone});
	apply_conf($node, q{pg_task.timezone = ''});
	$becomes->('UTC', 'nothing');
};

subtest 'the next run' => sub {
	# a run that is due now, whatever its expression says
	my $run = sub {
		my (%column) = @_;
		my $id = insert_task($node, cron => $far, role => 'berliner', dt => 'infinity', %column);

		sql("UPDATE task SET dt = now() WHERE id = $id");
		return $id;
	};
	my $next = sub {
		my ($parent) = @_;

		return sql("SELECT state, dt::text, cron FROM task WHERE parent = $parent");
	};
	my $expected = join '|', 'PLAN', next_of($far, 'Europe/Berlin'), $far;

	my $done = $run->(request => 'SELECT 1');
	wait_for_state($node, $done, 'DONE');
	is($next->($done), $expected, 'after DONE');
	my $failed = $run->(request => 'SELECT 1/0');
	wait_for_state($node, $failed, 'FAIL');
	is($next->($failed), $expected, 'after FAIL');
	my $gone = insert_task($node, request => 'SELECT 1', cron => $far, role => 'berliner',
		dt => 'infinity', active => '1 hour');
	sql("UPDATE task SET dt = now() - interval '2 hours' WHERE id = $gone");
	wait_for_state($node, $gone, 'GONE');
	is($next->($gone), $expected, 'after GONE');
	my $deleted = $run->(request => 'SELECT 1', keep => '0');
	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE id = $deleted)");
	is($next->($deleted), $expected, 'after DONE of a row that is deleted');
	my $retried = $run->(request => 'SELECT 1/0', retry => 1, delay => '0');
	wait_for_state($node, $retried, 'FAIL');
	is($next->($retried), $expected, 'after the last retry');
	my $stopped = $run->(request => 'SELECT pg_sleep(600)');
	wait_for_running($node, 1, id => $stopped);
	sql("UPDATE task SET state = 'STOP' WHERE id = $stopped");
	wait_until($node, "SELECT stop IS NOT NULL FROM task WHERE id = $stopped");
	is($next->($stopped), '', 'none after STOP');
};

subtest 'a waiting row is changed' => sub {
	my $id = insert_task($node, request => 'SELECT 1', cron => '0 0 1 1 *', timezone => 'UTC');

	sql("UPDATE task SET cron = '$far' WHERE id = $id");
	is(task($node, $id, 'dt'), next_of($far, 'UTC'), 'its expression');
	sql("UPDATE task SET timezone = 'America/Havana' WHERE id = $id");
	is(task($node, $id, 'dt'), next_of($far, 'America/Havana'), 'its zone');
	sql("UPDATE task SET role = 'berliner', timezone = NULL WHERE id = $id");
	is(task($node, $id, 'dt'), next_of($far, 'Europe/Berlin'), 'its zone, with the role');
	is(task($node, $id, 'role_id <> 0'), 't', 'which is bound');
	sql("UPDATE task SET cron = '0 0 1 1 *', dt = '2040-06-07' WHERE id = $id");
	is_row($node, $id, { "dt = '2040-06-07'" => 'true' }, 'a time that is given stays');
	sql("UPDATE task SET cron = NULL, repeat = '1 day' WHERE id = $id");
	is_row($node, $id, { "dt = '2040-06-07'" => 'true' }, 'without an expression, too');
	is(sqlstate_of('berliner', "UPDATE task SET cron = '61 * * * *', repeat = NULL
		WHERE id = $id"), '22023',
		'to one that is malformed');
	is(sql("UPDATE task SET cron = '$far', repeat = NULL WHERE id = $id RETURNING 1",
		user => 'berliner'), 1,
		'by another user');
	is(task($node, $id, 'dt'), next_of($far, 'Europe/Berlin'), 'who plans it, too');
};

# The trigger keeps the plan of its statement: for all rows, and beyond changes of the table, its
# name and the role.
subtest 'many rows are changed in one session' => sub {
	sql(q{INSERT INTO task (queue, role, request, cron, timezone)
		SELECT 'many', 'berliner', 'SELECT 1', '0 0 1 1 *', 'UTC' FROM generate_series(1, 3)});
	my @dates = split /\n/, sql(q{
		CREATE FUNCTION dates() RETURNS text LANGUAGE sql
			RETURN (SELECT string_agg(to_char(dt, 'DD'), ' ') FROM task WHERE queue = 'many');
		SET TimeZone = 'UTC';
		UPDATE task SET cron = '0 0 2 1 *' WHERE queue = 'many'; SELECT dates();
		ALTER TABLE task ADD COLUMN more int;
		UPDATE task SET cron = '0 0 3 1 *' WHERE queue = 'many'; SELECT dates();
		SET ROLE berliner;
		UPDATE task SET cron = '0 0 4 1 *' WHERE queue = 'many'; SELECT dates();
		RESET ROLE; BEGIN; ALTER TABLE task RENAME TO other;
		UPDATE other SET cron = '0 0 5 1 *' WHERE queue = 'many'; SELECT dates();
		ROLLBACK; ALTER TABLE task DROP COLUMN more;
		UPDATE task SET cron = '0 0 6 1 *' WHERE queue = 'many'; SELECT dates();
		DROP FUNCTION dates});
	is("@dates", '02 02 02 03 03 03 04 04 04 05 05 05 06 06 06', 'each is planned anew');
};

subtest 'a task that is planned again with another expression' => sub {
	my $id = insert_task($node, request => 'SELECT 1', cron => '0 0 1 1 *', timezone => 'UTC');

	for my $state (qw(STOP DONE))
	{
		sql("UPDATE task SET state = '$state', dt = '2024-01-01', cron = '0 0 1 1 *'
			WHERE id = $id");
		sql("UPDATE task SET state = 'PLAN', cron = '$far' WHERE id = $id");
		is(task($node, $id, 'dt'), next_of($far, 'UTC'), "after $state");
	}
	sql("UPDATE task SET state = 'STOP', dt = '2040-01-01' WHERE id = $id");
	sql("UPDATE task SET state = 'PLAN' WHERE id = $id");
	is_row($node, $id, { "dt = '2040-01-01'" => 'true' }, 'with the same one, it keeps its time');
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	sql("UPDATE task SET state = 'PLAN', cron = '0 0 1 1 *', dt = '2040-06-07' WHERE id = $id");
	is_row($node, $id, { "dt = '2040-06-07'" => 'true' }, 'a time that is given stays');
};

subtest 'what is refused' => sub {
	my $code = sub {
		my ($cron, $columns, $values) = @_;

		return sqlstate_of('postgres', "INSERT INTO task (request, cron" . ($columns // '')
			  . ") VALUES ('SELECT 1', " . literal($cron) . ($values // '') . ')');
	};

	is($code->('61 * * * *'), '22023', 'a value out of range');
	is($code->('0 0 30 2 *'), '22023', 'what never matches');
	is($code->('* * * *'), '22023', 'too few fields');
	is($code->(''), '22023', 'nothing');
	is($code->('* ' x 600), '23514', 'what is too long');
	is($code->('* * * * *', ', repeat', ", '1 day'"), '23514', 'cron and repeat');
	is($code->('* * * * *', ', timezone', ", 'Nowhere/Land'"), '22023',
		'a zone that does not exist');
	is(sqlstate_of('postgres', q{SELECT pg_task_next(repeat('* ', 600))}), '22023',
		'by the function');
	like(error_of('postgres', q{SELECT pg_task_schedule('1 day', now(), 1)}),
		qr/HINT:  If it is an interval, cast it/, 'an interval without a type');
	unlike(error_of('postgres', q{SELECT pg_task_schedule('*/0 * * * *', now(), 1)}),
		qr/interval/, 'which an expression is not');
};

subtest 'a replicated row' => sub {
	my $id = sql(qq{SET session_replication_role = replica; INSERT INTO task (request, cron, dt)
		VALUES ('SELECT 1', '$far', '2040-06-07') RETURNING id});

	is_row($node, $id, { "dt = '2040-06-07'" => 'true' }, 'keeps its time');
	sql("SET session_replication_role = replica; UPDATE task SET cron = '0 0 1 1 *'
		WHERE id = $id");
	is_row($node, $id, { "dt = '2040-06-07'" => 'true' }, 'also when it changes');
};

# What does not come through the trigger is not checked, and must end all the same.
subtest 'rows that were not checked' => sub {
	my $position = log_position($node);

	sql(q{ALTER TABLE task DISABLE TRIGGER USER;
		INSERT INTO task (request, cron, queue) VALUES
			('SELECT 1', 'not an expression', 'unchecked'),
			('SELECT 1', repeat('1', 100000), 'unchecked'),
			('SELECT 1', '@reboot', 'unchecked');
		ALTER TABLE task ENABLE TRIGGER USER});
	wait_until($node, q{SELECT count(*) = 3 FROM task WHERE queue = 'unchecked'
		AND state = 'DONE'});
	is(count_of($node, q{queue = 'unchecked' AND state = 'PLAN'}), 1, 'they do not repeat');
	is(sql(q{SELECT hold, anchor = pg_postmaster_start_time() FROM task WHERE queue = 'unchecked'
		AND state = 'PLAN'}), 'until the server starts|t', 'but the one that waits for a start of the server');
	wait_for_log_line($node, qr/WARNING:  task \d+ does not repeat/, $position);
	pass('with a WARNING');
};

subtest 'a retry that waits is planned by the new expression' => sub {
	my $id = insert_task($node, request => 'SELECT 1/0', cron => '* * * * * *', retry => 1,
		delay => '1 hour', active => '2 hours');

	wait_until($node, "SELECT planned IS NOT NULL FROM task WHERE id = $id");
	sql("UPDATE task SET cron = '0 0 1 1 *' WHERE id = $id");
	is(sql("SELECT dt = date_trunc('year', now()) + interval '1 year', planned IS NULL
		FROM task WHERE id = $id"), 't|t', 'the time of the old expression does not count');
};

done_testing();
