# A repeating task whose role may not run it waits until the role may, and makes no rows meanwhile.
# A TAP test because it changes rights and counts what a scheduler does.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.period = '100 ms'\nTimeZone = 'UTC'");

sql('CREATE ROLE app LOGIN; REVOKE CONNECT ON DATABASE postgres FROM PUBLIC');

# A task of the role, planned for an expression; waits until it is refused.  With cron the time of
# an INSERT would be the next match.
sub refused
{
	my ($dt, %column) = @_;
	my $id = insert_task($node, request => 'SELECT 1', role => 'app', dt => 'infinity', %column);

	sql("UPDATE task SET dt = $dt WHERE id = $id");
	wait_until($node, "SELECT sqlstate = '42501' FROM task WHERE id = $id");
	return $id;
}

# In how many minutes a row is tried again, rounded.
my $minutes = 'round(extract(epoch FROM dt - clock_timestamp()) / 60)';

subtest 'it waits' => sub {
	my %chain = (drift => [ repeat => '1 day' ], cron => [ cron => '0 0 1 1 *' ],
		end => [ repeat => '1 day', drift => 'false' ]);

	for my $queue (sort keys %chain)
	{
		my $id = refused(q{now() - interval '10 s'}, queue => $queue, @{ $chain{$queue} });

		is_row($node, $id, { state => 'PLAN', attempt => 0, failed => 0, start => undef,
			stop => undef, next => undef, $minutes => '1',
			error => 'role "app" may not connect to this database',
			q{planned < now() - interval '9 s'} => 'true',
			q{response LIKE E'%\nHINT:  GRANT CONNECT ON DATABASE postgres TO app'} => 'true' },
			"$queue: for a minute, and has the reason");
	}
	run_task($node, request => 'SELECT 1');
	is(count_of($node, q{role = 'app'}), 3, 'there are no other rows');
};

subtest 'for how long' => sub {
	for my $waited (['50 s', 1], ['4 min', 4], ['1 day', 10], ['1000 years', 10])
	{
		my $id = refused("now() - interval '$waited->[0]'", repeat => '1 hour');

		is(task($node, $id, $minutes), $waited->[1], "after $waited->[0]: $waited->[1] min");
	}
	my $id = refused(q{'-infinity'}, repeat => '1 hour', drift => 'false');
	is(task($node, $id, "$minutes, planned"), '10|-infinity', 'after -infinity: 10 min');
};

# It must not start later than "active" allows, and no row says so each time.
subtest 'with "active"' => sub {
	my %next = (repeat => '1 min', cron => '* * * * *');

	for my $column (sort keys %next)
	{
		my $before = sql('SELECT clock_timestamp()');
		my $id = refused('now()', $column => $next{$column}, active => '30 s',
			queue => "active $column");

		is_row($node, $id, { state => 'PLAN', planned => undef,
			qq{dt > timestamptz '$before' + interval '50 s'} => 'true',
			q{dt < clock_timestamp() + interval '130 s'} => 'true' },
			"$column: it waits for its next time");
		is(count_of($node, "queue = 'active $column'"), 1, "$column: there are no other rows");
	}
};

subtest 'one that does not repeat' => sub {
	my $id = refused('now()');

	is_row($node, $id, { state => 'FAIL', next => undef }, 'has failed');
	$id = refused('now()', repeat => '1 day', next => 1);
	is_row($node, $id, { state => 'FAIL' }, 'so has one that has a next run');
};

# Nothing has to be planned again; whoever is in a hurry sets dt.
subtest 'the role may run it' => sub {
	my %ids = map { $_ => sql("SELECT id FROM task WHERE queue = '$_'") } qw(drift end cron);

	sql('GRANT CONNECT ON DATABASE postgres TO app');
	for my $queue (sort keys %ids)
	{
		my $id = $ids{$queue};
		my $planned = task($node, $id, 'planned');

		# it may be due by itself
		sql("UPDATE task SET dt = now() WHERE id = $id AND state = 'PLAN'");
		wait_for_state($node, $id, 'DONE');
		is_row($node, $id, { attempt => 1, error => undef, sqlstate => undef, planned => $planned },
			"$queue: it runs, for the time that it was planned for");
		is(sql("SELECT count(*) FROM task WHERE queue = '$queue'"), 2, "$queue: and repeats");
	}
	is(sql(q{SELECT n.dt - t.planned FROM task AS t JOIN task AS n ON n.id = t.next
		WHERE t.queue = 'drift'}), '1 day', 'on its times');
};

# However many rows of a role are refused, and however old they are.
subtest 'the tasks of other roles' => sub {
	sql('TRUNCATE task; REVOKE CONNECT ON DATABASE postgres FROM app; CREATE ROLE other LOGIN;
		GRANT CONNECT ON DATABASE postgres TO other');
	apply_conf($node, "pg_task.period = '1 h'");
	run_task($node, request => 'SELECT 1');
	# its process is there when the others come, and idle
	run_task($node, request => 'SELECT 1', role => 'other', queue => 'first');
	wait_until($node, 'SELECT busy FROM pg_stat_task_scheduler()', expected => 0);
	sql(q{SET client_min_messages = error;
		INSERT INTO task (role, dt, request, repeat)
		SELECT CASE n WHEN 20001 THEN 'other' ELSE 'app' END, now() - interval '1 hour',
			'SELECT 1', CASE WHEN n <= 20000 THEN interval '1 day' END
		  FROM generate_series(1, 20001) AS n});
	wait_until($node, q{SELECT count(*) = 20000 FROM task WHERE role = 'app'
		AND sqlstate IS NOT NULL});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE role = 'other' AND state <> 'DONE'});
	# those that are refused have a dt ten minutes after that
	is(sql(q{SELECT count(*) > 10000 FROM task WHERE role = 'app' AND dt - interval '10 min' >
		(SELECT start FROM task WHERE role = 'other' AND queue = 'default')}), 't',
		'they do not wait until all are refused');
};

done_testing();
