# Tasks are witnesses: each writes when it was claimed, and by its own clock when it began and
# ended, while a "monkey" terminates executors and the scheduler, and stops the server and starts it
# again.  In the end no window of any queue with a rate has seen too many claims, no queue too many
# tasks at once, and no task of a strict queue was overtaken.  A TAP test because it kills
# processes.
#
# PG_TASK_CHAOS_SECONDS is how long the monkey runs.  PG_TASK_CHAOS_SEED is the seed of its choices.
# PG_TASK_CHAOS_QUEUES is the number of limited queues; with 500 of them, 50 have a rate.  For
# longer, or more: scripts/chaos witnesses SECONDS SEED QUEUES.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;
use Time::HiRes qw(sleep time);

my $seconds = $ENV{PG_TASK_CHAOS_SECONDS} // 5;
my $seed = $ENV{PG_TASK_CHAOS_SEED} // 1 + int(rand(1_000_000));
my $limited = $ENV{PG_TASK_CHAOS_QUEUES} // 50;
my $scale = 1 + int($seconds / 10);

note("scripts/chaos witnesses $seconds $seed $limited");
srand($seed);

END { diag("repeat it with: scripts/chaos witnesses $seconds $seed $limited") if $?; }

my $node = new_node('main', conf => q{
	pg_task.max_executors = 6
	pg_task.period = 200ms
	log_line_prefix = '%m [%p] %b '});

sql(q{
	CREATE TABLE witness (queue text, id bigint, claimed timestamptz, began timestamptz,
		ended timestamptz);
	CREATE FUNCTION watch(name text) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		mine bigint := current_setting('pg_task.id');
	BEGIN
		INSERT INTO witness SELECT name, id, start, clock_timestamp() FROM task WHERE id = mine;
		PERFORM pg_sleep(random() * 0.003);
		IF name LIKE 'strict.%' AND random() < 0.2 THEN RAISE 'it fails'; END IF;
		UPDATE witness SET ended = clock_timestamp() WHERE id = mine;
	END $$;
	CREATE INDEX ON witness (id);
	INSERT INTO task_queue (queue, rate, per) VALUES
		('rated.%', 20, '500 ms'), ('rated.slow.%', 3, '1 s'), ('rated.fast.%', 400, '1 s');
	INSERT INTO task_queue (queue, rate, per, max) VALUES ('both.%', 30, '1 s', 2);
	INSERT INTO task_queue (queue, max) VALUES ('limited.%', 2);
	INSERT INTO task_queue (queue, max, strict) VALUES ('strict.%', 1, true)});

my %queues = (
	'rated.%d' => [ 8 + int($limited / 25), 200 ],
	'rated.slow.%d' => [ 10, 40 ],
	'rated.fast.%d' => [ 2, 1500 ],
	'both.%d' => [ 5, 300 ],
	'limited.%d' => [ $limited, 20 ],
	'strict.%d' => [ 200, 5 ]);

# Plans the tasks of all queues, in a random order.
sub plan_tasks
{
	my @rows = map {
		my ($count, $tasks) = @{ $queues{$_} };
		"SELECT replace('$_', '%d', q::text) AS queue"
		  . " FROM generate_series(1, $count) AS q, generate_series(1, $tasks * $scale)"
	} sort keys %queues;

	sql('INSERT INTO task (queue, request, retry, delay)'
		  . q{ SELECT queue, format('SELECT watch(%L)', queue), 5, '20 ms' FROM (}
		  . join(' UNION ALL ', @rows)
		  . ') AS rows ORDER BY random()');
	return;
}

# Runs a query that the monkey may have ended.
sub try_sql
{
	my ($query) = @_;

	return eval { sql($query) };
}

my @tricks = (
	[ 6, sub {
		try_sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE backend_type = 'pg_task executor' ORDER BY random() LIMIT 1})
	} ],
	[ 3, sub {
		try_sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE backend_type = 'pg_task scheduler'})
	} ],
	[ 1, sub { $node->stop('immediate'); $node->start } ],
	[ 1, sub { $node->restart } ],
	# what a rule says changes nothing for the queues that another rule is for
	[ 1, sub { try_sql(q{UPDATE task_queue SET comment = clock_timestamp()::text}) } ]);

sub play_trick
{
	my $dice = int rand 12;

	for my $trick (@tricks)
	{
		return $trick->[1]->() if ($dice -= $trick->[0]) < 0;
	}
	return;
}

plan_tasks();
my $end = time + $seconds;
while (time < $end)
{
	sleep rand 0.4;
	play_trick();
}

# when the last trick is over, tasks start again
wait_until($node, 'SELECT true');
my $over = sql('SELECT clock_timestamp()');
wait_until($node, "SELECT EXISTS (SELECT FROM witness WHERE began > '$over')
	OR NOT EXISTS (SELECT FROM task WHERE state = 'PLAN')");

# the monkey, and a slow machine, may have left few of them until now
for (['.', 10], ['^strict', 2], ['^rated.slow', 1])
{
	my ($kind, $least) = ($_->[0], $_->[1] * $seconds);

	wait_until($node, "SELECT count(*) > $least FROM witness WHERE queue ~ '$kind'");
	pass("more than $least witnesses, of queues that match $kind");
}
note('their queues: ' . sql(q{SELECT string_agg(kind || ' ' || queues, ', ') FROM (
	SELECT rtrim(queue, '0123456789.') AS kind, count(DISTINCT queue) AS queues
	  FROM witness GROUP BY 1 ORDER BY 1) AS seen}));
is(sql('SELECT count(*) FROM (SELECT id FROM witness GROUP BY id HAVING count(*) > 1) AS twice'),
	0, 'each of them once');

# Any rate + 1 claims in a row take at least the time of the window.  The scheduler reads two clocks
# for each claim, one after the other.
is(sql(q{
	SELECT queue, claimed, span FROM (
		SELECT w.queue, claimed, r.per,
			claimed - lag(claimed, r.rate) OVER (PARTITION BY w.queue ORDER BY claimed) AS span
		FROM witness AS w, LATERAL (SELECT rate, per FROM task_queue AS r
			WHERE w.queue LIKE r.queue ORDER BY length(r.queue) DESC LIMIT 1) AS r
		WHERE w.queue ~ '^(rated|both)') AS starts
	WHERE span < per - interval '10 ms' LIMIT 10}),
	'', 'no window has more claims than its rate');

is(sql(q{
	SELECT count(*) FROM (
		SELECT sum(step) OVER (PARTITION BY queue ORDER BY at, step) AS running FROM (
			SELECT queue, began AS at, 1 AS step FROM witness WHERE queue ~ '^(limited|both)'
			UNION ALL
			SELECT queue, ended, -1 FROM witness
				WHERE queue ~ '^(limited|both)') AS steps) AS moments
	WHERE running > 2}),
	0, 'no queue had more tasks at once than its limit');

# A strict queue: in the order of the ids, whatever has failed or was terminated.
is(sql(q{
	SELECT queue, id, before FROM (
		SELECT queue, id, lag(id) OVER (PARTITION BY queue ORDER BY began) AS before
		FROM witness WHERE queue LIKE 'strict.%') AS starts
	WHERE id < before LIMIT 10}),
	'', 'no task of a strict queue was overtaken');

done_testing();
