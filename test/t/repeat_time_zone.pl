# Days of a "repeat" are those of the time zone of the role's sessions, whichever process plans the
# next run: the executor of a run that succeeded or failed, or the scheduler, for a task that never
# ran or whose process has exited.  A TAP test because it needs several roles and the scheduler.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# Both have permanently changed their offset from UTC since 2020, in opposite directions.
my ($amman, $juba) = qw(Asia/Amman Africa/Juba);
my $node = new_node('main', conf => "timezone = 'UTC'");
# at this time of the day it is now in none of the zones
my $first = sql(q{SELECT to_char(now() + interval '6 hours', '"2020-01-01 "HH24:MI"+00"')});

# The time zones in which the next run after a task is planned correctly.
sub zones_after
{
	my ($id) = @_;

	wait_until($node, "SELECT count(*) = 1 FROM task WHERE parent = $id");
	return sql(qq{SELECT string_agg(zone, ' ') FROM task AS t JOIN task AS n ON n.parent = t.id,
		unnest(ARRAY['$amman', '$juba', 'UTC']) AS zone
		WHERE t.id = $id AND n.dt = pg_task_next('$first', t.repeat, t.drift, t.stop, zone)});
}
sub plan_zoned { return insert_task($node, role => 'zoned', repeat => '1 day', dt => $first, @_) }
my @gone = (request => 'SELECT 1', active => '1 day');

sql(q{CREATE ROLE keeper; CREATE ROLE zoned LOGIN; CREATE ROLE refused LOGIN; GRANT zoned TO keeper;
	ALTER TABLE task OWNER TO keeper});

# The more specific setting takes precedence.
subtest 'the more specific setting applies' => sub {
	is(zones_after(plan_zoned(@gone)), 'UTC', 'the configuration file applies');
	for my $set (
		[ 'ALL', $juba ],
		[ 'DATABASE postgres', $amman ],
		[ 'zoned', $juba ],
		[ 'zoned IN DATABASE postgres', $amman ])
	{
		my ($where, $zone) = @$set;

		sql('ALTER ' . ($where =~ /^DATABASE/ ? '' : 'ROLE ') . "$where SET TimeZone = '$zone'");
		is(zones_after(plan_zoned(@gone)), $zone, "$where: GONE");
	}
};

# However a task ends, and whatever it sets.
subtest 'however the task ends' => sub {
	my %request = (
		DONE => 'SELECT 1',
		'DONE, with a zone of its own' => 'SET TIME ZONE \'UTC\'',
		'DONE, with a default of its own' =>
		  q{SELECT set_config('TimeZone', 'UTC', false); SET LOCAL TimeZone = 'Asia/Tokyo'},
		FAIL => q{SET TIME ZONE 'UTC'; COMMIT; SELECT 1/0},
		'FAIL, its process has ended' => q{SET TIME ZONE 'UTC'; SET exit_on_error = on; SELECT 1/0},
	);
	for my $name (sort keys %request)
	{
		my $id = plan_zoned(request => $request{$name});

		is(zones_after($id), $amman, $name);
		like($name, qr/^\Q@{[task($node, $id, 'state')]}/, "$name: it was that");
	}
};

# A role that the owner of the table may not become: the row waits for its next time.
subtest 'a role that the owner may not become' => sub {
	sql("ALTER ROLE refused SET TimeZone = '$juba'");
	my $id = plan_zoned(request => 'SELECT 1', role => 'refused', active => '50 years');

	wait_until($node, "SELECT dt > now() FROM task WHERE id = $id");
	is(sql(qq{SELECT string_agg(zone, ' ') FROM task AS t,
			unnest(ARRAY['$amman', '$juba', 'UTC']) AS zone
		WHERE t.id = $id AND t.dt = pg_task_next('$first', t.repeat, t.drift, now(), zone)}),
		$juba, 'refused');
	is(task($node, $id, 'state, attempt, sqlstate'), 'PLAN|0|42501', 'the task has never run');
};

# The column takes precedence.  Any time zone that a session accepts is used.
subtest 'the column' => sub {
	is(zones_after(plan_zoned(@gone, timezone => 'UTC')), 'UTC', 'the column "timezone"');
	sql(q{ALTER ROLE zoned IN DATABASE postgres SET TIME ZONE INTERVAL '+00:00' HOUR TO MINUTE});
	is(zones_after(plan_zoned(@gone)), 'UTC', 'an offset instead of a name');
};

done_testing();
