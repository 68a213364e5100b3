# What a repeating task makes up for: the times at which it should have run while it was running, or
# while no server was; and the time that a task is told it runs for.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('missed', conf => "TimeZone = 'UTC'\npg_task.max_executors = 6");

sql('CREATE ROLE app LOGIN; GRANT INSERT, SELECT, UPDATE ON task TO app');

# An expression over the next run, t, and the run before it, p.
sub next_after
{
	my ($id, $expression) = @_;

	return sql("SELECT $expression FROM task AS t JOIN task AS p ON p.id = t.parent
		WHERE p.id = $id");
}

# Stops the chains of these rows.  A chain goes on if a run of it ends during the UPDATE: of short
# runs that are all late, one always does, unless nobody else writes.
sub stop_chains
{
	my ($condition) = @_;

	$condition .= q{ AND state IN ('PLAN', 'WORK')};
	poll_for(sub {
		sql("BEGIN; LOCK TABLE task IN SHARE ROW EXCLUSIVE MODE;
			UPDATE task SET state = 'STOP' WHERE $condition; COMMIT");
		return count_of($node, $condition) == 0;
	}) or die 'the chains do not end';
	return;
}

# A run of two and a half seconds that repeats each second misses the next two times.
my %rules = (cron => '* * * * * *', repeat => '1 second');
my %long;
for my $rule (sort keys %rules)
{
	$long{$rule}{$_} = insert_task($node, request => 'SELECT pg_sleep(2.5)', queue => $rule,
		missed => $_, $rule => $rules{$rule})
	  for qw(one none all);
}
for my $rule (sort keys %rules)
{
	subtest "missed while it ran, by $rule" => sub {
		my %id = %{ $long{$rule} };

		wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE id = $_ AND state <> 'DONE')")
		  for values %id;
		is(next_after($id{one}, q{t.dt > p.start AND t.dt <= p.start + interval '1 s'
			AND t.dt < p.stop}),
			't', 'one: the first time that it missed');
		is(next_after($id{none}, q{t.dt > p.stop AND t.dt <= p.stop + interval '1 s'}), 't',
			'none: the first time after its end');
		is(next_after($id{all}, q{t.dt - p.dt}), '00:00:01', 'all: the very next');
		stop_chains("queue = '$rule'");
	};
}

subtest 'missed while no server ran' => sub {
	my %late = (request => 'SELECT 1', repeat => '1 minute', dt => '2024-01-01');
	my $one = run_task($node, %late);
	my $begin = sql('SELECT clock_timestamp()');
	my $none = insert_task($node, %late, missed => 'none');
	my $all = run_task($node, %late, missed => 'all', queue => 'all', max => 1);

	is(next_after($one, q{t.dt > p.start AND t.dt <= p.start + interval '1 minute'}), 't',
		'one: one late run makes up for all');
	wait_for_state($node, $none, 'GONE');
	is_row($node, $none, { attempt => 0, sqlstate => 'TK004' }, 'none: it does not run');
	# it is counted from the look at the row, which is before "stop"; what did not run repeats a
	# second later at the earliest
	is(next_after($none, qq{t.dt > '$begin' AND t.dt <= p.stop + interval '61 s'}), 't',
		'none: the next run is at the next time');
	wait_until($node, q{SELECT count(*) >= 5 FROM task WHERE queue = 'all' AND state = 'DONE'});
	stop_chains(q{queue = 'all'});
	is(sql(q{SELECT string_agg(to_char(dt, 'HH24:MI'), ' ' ORDER BY id)
			FROM (SELECT * FROM task WHERE queue = 'all' ORDER BY id LIMIT 5) AS t}),
		'00:00 00:01 00:02 00:03 00:04', 'all: each, in order');
};

# The same over a stop of the server.  What does not repeat, or was begun before, is late, not
# missed.
# The queues are paused, so that nothing of them starts before the server stops.
subtest 'missed while the server was stopped' => sub {
	sql(q{INSERT INTO task_queue (queue, paused) VALUES ('down.%', true)});
	my %id = map { $_->[0] => sql("INSERT INTO task (queue, missed, request, $_->[1])
		VALUES ('down.$_->[0]', 'none', 'SELECT 1', $_->[2]) RETURNING id") }
	  (['repeat', 'repeat', q{'1 hour'}], ['cron', 'cron', q{'0 0 0 1 1 *'}], ['once', 'retry', 0]);
	my $begun = insert_task($node, request => 'SELECT pg_sleep(60)', missed => 'none',
		queue => 'begun', repeat => '1 hour');

	sql(qq{UPDATE task SET dt = now() WHERE id = $id{cron}});
	wait_for_running($node, 1, id => $begun, event => 'PgSleep');
	sql(qq{UPDATE task SET request = 'SELECT 1' WHERE id = $begun});
	$node->restart;
	sql('DELETE FROM task_queue');
	wait_for_state($node, $id{$_}, 'GONE') for qw(repeat cron);
	wait_for_state($node, $_, 'DONE') for $id{once}, $begun;
	is(task($node, $begun, 'attempt'), 2, 'the run that was interrupted runs again');
	is(next_after($id{$_}, 't.dt > p.stop'), 't', "$_: the next run was in the future")
	  for qw(repeat cron);
};

subtest 'what expired is over' => sub {
	my $id = insert_task($node, request => 'SELECT 1', repeat => '1 minute', dt => '2024-01-01',
		active => '1 hour', missed => 'all');

	wait_for_state($node, $id, 'GONE');
	is(next_after($id, q{t.dt > p.stop - interval '1 minute'}), 't', 'the next run is not missed');
};

subtest 'by the settings of a role' => sub {
	sql(q{ALTER ROLE app SET pg_task.missed = 'all'});
	my $id = run_task($node, request => 'SELECT 1', repeat => '1 minute', dt => '2024-01-01',
		role => 'app');

	is(next_after($id, 't.dt'), '2024-01-01 00:01:00+00', 'of the task');
	sql('ALTER ROLE app RESET pg_task.missed');
	stop_chains(q{role = 'app'});
	is(sqlstate_of('app', q{INSERT INTO task (request, missed) VALUES ('SELECT 1', 'some')}),
		'23514',
		'a word that is none is refused');
	is(sqlstate_of('app', q{SET pg_task.missed = 'some'}), '22023', 'in the setting, too');
};

subtest 'the time that a task runs for' => sub {
	my $request = 'SELECT pg_task_time()';
	my $late = run_task($node, request => $request, dt => '2024-01-01 12:34:56.789');
	my $failed = insert_task($node, request => "DO \$\$ BEGIN RAISE EXCEPTION '%',
		pg_task_time(); END \$\$",
		dt => '2024-01-01', retry => 1, delay => '1 ms');

	is(task($node, $late, 'response'), '2024-01-01 12:34:56.789+00', 'that it was planned for');
	wait_for_state($node, $failed, 'FAIL');
	is_row($node, $failed, { attempt => 2, error => '2024-01-01 00:00:00+00' },
		'also when it is tried again');
	is(sql('SELECT pg_task_time() IS NULL'), 't', 'NULL in a session');
};

done_testing();
