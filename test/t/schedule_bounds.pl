# The end of a schedule: its last time, and the number of its runs; "H" in a cron expression; and
# what is coming.  A TAP test because tasks must run.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main');

sql(q{CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN; GRANT ALL ON task TO ann, bob});

# Waits until no task of this queue is left to be run; returns what has become of them, in order.
sub chain
{
	my ($queue, $what) = @_;

	wait_until($node,
		"SELECT count(*) = 0 FROM task WHERE queue = '$queue' AND state IN ('PLAN', 'WORK')");
	return sql("SELECT string_agg(($what)::text, ' ' ORDER BY id) FROM task WHERE queue = '$queue'");
}

subtest 'a number of runs' => sub {
	insert_task($node, queue => 'three', request => 'SELECT 1', repeat => '20 ms', runs_left => 3);
	is(chain('three', q{state || runs_left}), 'DONE3 DONE2 DONE1', 'so many');
	# rows that are not written directly: a trigger of the owner's
	sql(q{CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
		CREATE TRIGGER nothing BEFORE INSERT OR UPDATE ON task FOR EACH ROW EXECUTE FUNCTION nothing()});
	insert_task($node, queue => 'again', request => 'SELECT 1', repeat => '20 ms', runs_left => 3);
	is(chain('again', q{state || runs_left}), 'DONE3 DONE2 DONE1', 'also by statements');
	sql('DROP FUNCTION nothing CASCADE');
	insert_task($node, queue => 'fail', request => 'SELECT 1/0', repeat => '20 ms', runs_left => 2);
	is(chain('fail', q{state || runs_left}), 'FAIL2 FAIL1', 'failures count');
	insert_task($node, queue => 'gone', request => 'SELECT 1', dt => '2020-01-01', active => '1 s',
		repeat => '1 day', runs_left => 1);
	is(chain('gone', q{state || runs_left}), 'GONE1', 'and what was given up');
	is(sqlstate_of('postgres', "INSERT INTO task (request, runs_left) VALUES ('SELECT 1', 0)"),
		'23514', 'none is no number');
};

subtest 'a last time' => sub {
	my $start = sql(q{SELECT now() - interval '1 hour'});

	insert_task($node, queue => 'until', request => 'SELECT 1', dt => $start, repeat => '20 min',
		missed => 'all', repeat_until => sql("SELECT timestamptz '$start' + interval '40 min'"));
	is(chain('until', 'state'), 'DONE DONE DONE', 'the last run may be at that time');
	insert_task($node, queue => 'one', request => 'SELECT 1', dt => $start, repeat => '20 min',
		repeat_until => sql("SELECT timestamptz '$start' + interval '50 min'"));
	is(chain('one', 'state'), 'DONE', 'none is planned for a later one');
	my $error = 'a schedule that never runs';
	is(sqlstate_of('postgres', q{INSERT INTO task (request, cron, repeat_until)
		VALUES ('SELECT 1', '0 0 1 1 *', now())}), '23514', $error);
	is(sqlstate_of('postgres', q{INSERT INTO task (request, repeat, dt, repeat_until)
		VALUES ('SELECT 1', '1 day', '2100-01-02', '2100-01-01')}), '23514', $error);
	my $id = insert_task($node, request => 'SELECT 1', dt => '2100-01-01', repeat => '1 day');
	is(sqlstate_of('postgres', "UPDATE task SET repeat_until = now() WHERE id = $id"), '23514',
		'a run that waits does not vanish');
	is(sqlstate_of('postgres',
			"UPDATE task SET repeat_until = '2101-01-01', runs_left = 7 WHERE id = $id"), '',
		'both may be set later');
	is(sqlstate_of('postgres', "UPDATE task SET repeat_until = NULL WHERE id = $id"), '',
		'and taken away');
	sql("DELETE FROM task WHERE id = $id");
	$id = insert_task($node, request => 'SELECT 1', repeat => '1 hour', missed => 'none', hold => 'x',
		dt => sql(q{SELECT now() - interval '30 min'}),
		repeat_until => sql(q{SELECT now() - interval '10 min'}));
	is(sql("SELECT pg_task_resume($id)"), 1, 'one that has ended while it was on hold is resumed');
	# it was missed, and planned for before this server was started
	wait_for_state($node, $id, 'GONE');
	is(sqlstate_of('postgres', "UPDATE task SET state = 'PLAN', dt = now() WHERE id = $id"), '',
		'the last run runs again');
	wait_for_state($node, $id, 'DONE');
	is(sqlstate_of('postgres', "INSERT INTO task (request, role_id, repeat, repeat_until, state)
		SELECT request, role_id, repeat, '2000-01-01', 'PLAN' FROM task WHERE id = $id"), '',
		'a row from a dump has what it has');
	is(sqlstate_of('postgres', q{INSERT INTO task (request, cron, repeat_until)
		VALUES ('SELECT 1', '@reboot', '2000-01-01')}), '23514', 'also the next start');
	is(sqlstate_of('postgres',
			q{INSERT INTO task (request, repeat_until) VALUES ('SELECT 1', '2000-01-01')}), '',
		'a task that does not repeat has no use for it');
};

subtest 'H' => sub {
	my $cron = sub {
		my ($cron, %column) = @_;

		return task($node, insert_task($node, request => 'SELECT 1', dt => '2100-01-01', cron => $cron,
			%column), 'cron');
	};

	my $first = $cron->('H 3 * * *', key => 'a');
	like($first, qr/^([0-9]|[1-5][0-9]) 3 \* \* \*$/, 'a value in its place');
	is($cron->('H 3 * * *', key => 'a', queue => 'other') eq $first, '', 'that of the queue');
	sql(q{INSERT INTO task (request, dt, cron, key) VALUES ('SELECT 2', '2100-01-01', 'H 3 * * *', 'a')
		ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
		DO UPDATE SET cron = excluded.cron, request = excluded.request});
	is(sql(q{SELECT cron FROM task WHERE key = 'a' AND queue = 'default'}), $first,
		'the same for who sets the schedule up again');
	sql(q{UPDATE task SET cron = 'H H * * *' WHERE key = 'a' AND queue = 'default'});
	like(sql(q{SELECT cron FROM task WHERE key = 'a' AND queue = 'default'}), qr/^\d+ \d+ \* \* \*$/,
		'by an UPDATE');
	like($cron->('H(10-19) H(0-5) H H * '),
		qr/^1\d [0-5] ([1-9]|1\d|2[0-8]) ([1-9]|1[0-2]) \* $/, 'in a range');
	like($cron->('H/15 * * * mon,H(2-4)'), qr{^(\d|1[0-4])-59/15 \* \* \* mon,[2-4]$}, 'with a step');
	like($cron->('h H(0-29)/10 * * * *'), qr{^\d+ \d-29/10 \* \* \* \*$}, 'with seconds');
	for my $wrong ('H( * * * *', 'H(5-1) * * * *', 'H(0-99) * * * *', 'H/0 * * * *', 'H/99 * * * *',
		'Hx * * * *', '3H * * * *', 'H-5 * * * *')
	{
		is(sqlstate_of('postgres', "INSERT INTO task (request, cron) VALUES ('SELECT 1', '$wrong')"),
			'22023', $wrong);
	}
	is(sqlstate_of('postgres', q{SELECT pg_task_next('H 3 * * *', now())}), '22023',
		'in the row of a task alone');
	is($cron->('0 0 * mar thu'), '0 0 * mar thu', 'names stay');
	is(sql(q{WITH made AS (INSERT INTO task (request, key, dt, cron) SELECT 'SELECT 1', 'k' || n,
			'2100-01-01', 'H * * * *' FROM generate_series(1, 600) AS n RETURNING cron),
		minutes AS (SELECT count(*) AS n FROM made GROUP BY cron)
		SELECT count(*) = 60, max(n) < 30 FROM minutes}), 't|t', 'they are spread');
	sql(q{DELETE FROM task WHERE dt > now()});
};

subtest 'what is coming' => sub {
	my $coming = sub {
		my ($what, $from, $to, $lines) = @_;

		return sql("SELECT string_agg($what, ' ' ORDER BY dt, id) FROM pg_task_upcoming('$from',
			'$to', " . ($lines // 100) . ")");
	};

	insert_task($node, key => 'berlin', request => 'SELECT 1', cron => '30 2 * * *',
		timezone => 'Europe/Berlin');
	is($coming->(q{to_char(local, 'DD HH24:MI')}, '2100-03-26 12:00+01', '2100-03-30 12:00+02'),
		'27 02:30 28 03:00 29 02:30 30 02:30', 'where the clock is set forward');
	is($coming->('zone', '2100-03-26 12:00+01', '2100-03-27 12:00+02'), 'Europe/Berlin', 'its zone');
	insert_task($node, key => 'runs', request => 'SELECT 1', dt => '2100-01-01 00:00+00',
		repeat => '1 hour', runs_left => 5);
	is($coming->(q{key || extract(hour FROM dt AT TIME ZONE 'UTC')}, '2099-12-31 23:00+00',
		'2100-01-01 12:00+00'), 'runs0 runs1 berlin1 runs2 runs3 runs4', 'no more than there will be');
	sql(q{SELECT pg_task_hold('runs', 'not yet')});
	is($coming->(q{key || coalesce(hold, '')}, '2100-01-01 00:00+00', '2100-01-01 02:30+00'),
		'runsnot yet berlin', 'on hold only the one that waits');
	sql(q{SELECT pg_task_resume('runs')});
	sql(q{UPDATE task SET runs_left = NULL, repeat_until = '2100-01-01 02:00+00' WHERE key = 'runs'});
	is($coming->(q{key}, '2100-01-01 01:10+00', '2100-01-01 12:00+00'), 'berlin runs', 'until then');
	# newer systems have no such zone
	if (sql(q{SELECT count(*) FROM pg_timezone_names WHERE name = 'CET'}))
	{
		insert_task($node, key => 'fixed', request => 'SELECT 1', cron => '0 12 1 7 *',
			timezone => 'CET');
		is($coming->('local::text', '2100-07-01 06:00+00', '2100-07-02'), '2100-07-01 12:00:00',
			'a zone whose name is an abbreviation, too');
		sql(q{DELETE FROM task WHERE key = 'fixed'});
	}
	is(sql(q{SELECT count(*) FROM pg_task_upcoming('-infinity', '4714-11-24 00:00:00+00 BC')}), 0,
		'long ago');
	insert_task($node, key => 'often', request => 'SELECT 1', dt => '2100-01-01', repeat => '10 ms');
	is($coming->(q{key}, '2199-01-01', '2299-01-01', 3), 'often often often', 'at once');
	is(sql_as('ann', q{SELECT count(*) FROM pg_task_upcoming(since => '2100-01-01',
		until => '2100-01-02')}), 0, 'not the schedules of others');
	sql_as('ann',
		q{INSERT INTO task (request, dt, repeat) VALUES ('SELECT 1', '2100-01-01', '1 day')});
	is(sql_as('ann', q{SELECT count(DISTINCT id) FROM pg_task_upcoming(since => '2100-01-01',
		until => '2100-01-02')}), 1, 'but her own');
	is(sqlstate_of('ann',
			q{SELECT pg_task_following(NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'ann', 0)}), '55000',
		'what computes it is for reports');
};

done_testing();
