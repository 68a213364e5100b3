# A repeating task counts from the planned time of the first run of its chain: neither the end of a
# month nor a local time that does not occur shifts the runs behind it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('anchor', conf => "TimeZone = 'UTC'");

# Runs a row, and returns an expression over its next one, in Berlin.
sub next_of
{
	my ($expression, %column) = @_;
	my $id = run_task($node, request => 'SELECT 1', timezone => 'Europe/Berlin', %column);

	return sql("SET TimeZone = 'Europe/Berlin'; SELECT $expression FROM task WHERE parent = $id");
}

subtest 'month ends' => sub {
	my $day = q{extract(day FROM dt) = least(31, extract(day FROM date_trunc('month',
		dt) + interval '1 month - 1 day'))};

	is(next_of($day, repeat => '1 month', dt => '2024-02-29 12:00 Europe/Berlin',
		anchor => '2024-01-31 12:00 Europe/Berlin'), 't', 'the last day, from a 31st on');
	is(next_of('extract(day FROM dt)', repeat => '1 month', dt => '2024-03-28 12:00 Europe/Berlin'),
		28, 'the 28th, from a 28th on');
	is(next_of("anchor = '2024-01-31 12:00 Europe/Berlin'", repeat => '1 month',
		dt => '2024-02-29 12:00 Europe/Berlin', anchor => '2024-01-31 12:00 Europe/Berlin'),
		't', 'the anchor is passed on');
};

# The local time of the anchor, on the day of the next run; on one that does not have it, the time
# that the server takes instead.
my $local_time = q{(dt::date + time '02:30') AT TIME ZONE 'Europe/Berlin'};

subtest 'local times' => sub {
	is(next_of("dt = $local_time", repeat => '1 day', dt => '2024-03-31 03:30+02',
		anchor => '2024-03-30 02:30+01'), 't', 'back to it after a gap');
	is(next_of(q{extract(epoch FROM dt - '2024-03-30 02:30+01') % 86400}, repeat => '24 hours',
		dt => '2024-03-31 02:30+01', anchor => '2024-03-30 02:30+01'), '0.000000',
		'hours are counted as they elapse');
};

subtest 'a row that was planned anew begins another count' => sub {
	is(next_of('extract(day FROM dt), anchor', repeat => '1 month', dt => '2024-03-10 12:00+01',
		anchor => '2024-01-31 12:00+01'), '10|2024-03-10 12:00:00+01', 'by dt');
	is(next_of('anchor', repeat => '7 days', dt => '2024-02-29 12:00+01',
		anchor => '2024-01-31 12:00+01'), '2024-02-29 12:00:00+01', 'by the interval');
	is(next_of('anchor', repeat => '1 day', dt => '2024-04-01 02:30+02', timezone => 'UTC',
		anchor => '2024-03-30 02:30+01'), '2024-04-01 02:30:00+02', 'by the zone');
	is(next_of('anchor', repeat => '1 month', dt => '2024-01-10 12:00+01',
		anchor => '2024-01-31 12:00+01'), '2024-01-10 12:00:00+01', 'before the anchor');
};

subtest 'no anchor' => sub {
	is(next_of('anchor IS NULL', repeat => '1 hour', drift => 'false'), 't',
		'if counted from the end');
	is(next_of('anchor IS NULL', cron => '0 0 1 1 *', dt => '2024-01-01 00:00 Europe/Berlin'), 't',
		'with cron');
	is(next_of('anchor', repeat => '1 day', dt => '2024-01-01 00:00+01', anchor => 'infinity'),
		'2024-01-01 00:00:00+01', 'one that is infinite does not count');
};

subtest 'a chain' => sub {
	my $first = insert_task($node, request => 'SELECT 1', repeat => '0.3 s', queue => 'chain');

	wait_until($node, q{SELECT count(*) >= 4 FROM task WHERE queue = 'chain' AND state = 'DONE'});
	sql(q{DELETE FROM task WHERE queue = 'chain' AND state = 'PLAN'});
	is(sql(qq{SELECT count(*) FROM task WHERE queue = 'chain' AND id <> $first
			AND anchor <> (SELECT dt FROM task WHERE id = $first)}), 0, 'has one anchor');
	is(sql(q{SELECT count(*) FROM task WHERE queue = 'chain' AND anchor IS NOT NULL
			AND extract(epoch FROM dt - anchor) * 10 % 3 <> 0}), 0, 'and stays on its times');
};

subtest 'a retry keeps the anchor' => sub {
	my $id = run_task($node, request => 'SELECT 1/0', retry => 1, delay => '0', repeat => '1 day',
		timezone => 'Europe/Berlin', dt => '2024-03-31 03:30+02', anchor => '2024-03-30 02:30+01');

	wait_for_state($node, $id, 'FAIL');
	is(sql("SET TimeZone = 'Europe/Berlin'; SELECT dt = $local_time, anchor FROM task
		WHERE parent = $id"), 't|2024-03-30 02:30:00+01', 'as the run did');
};

done_testing();
