# Each task has its effect exactly once, whichever process is killed.  A TAP test because it kills
# processes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# Nothing here waits for the period.
my $node = new_node('main', conf => "pg_task.period = '1 h'\npg_task.max_executors = 6");

make_gates($node);
sql(q{
	CREATE TABLE log (task bigint, attempt int);
	CREATE FUNCTION work(duration float8) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO log SELECT id, attempt FROM task
		WHERE id = current_setting('pg_task.id')::bigint;
		PERFORM pg_sleep(random() * duration);
	END $$});

# A task whose process or server dies is planned again at once, as a new attempt.
subtest 'a process or the server ends while tasks run' => sub {
	my %end = (
		'an executor is terminated' => sub {
			my @pids = backends($node, 'executor');
			terminate($node, @pids);
			wait_for_exit($node, $_) for @pids;
		},
		'the server is stopped at once' => sub { crash($node) },
		'the server is stopped in good order' => sub { $node->restart },
		'a process is killed' => sub {
			my ($pid) = backends($node, 'executor');
			kill 'KILL', $pid;
			wait_for_exit($node, $pid);
		},
		'the scheduler is terminated' => sub {
			my ($pid) = backends($node, 'scheduler');
			terminate($node, $pid);
			wait_until($node,
				qq{SELECT count(*) = 1 AND bool_and(pid <> $pid) FROM pg_stat_activity
				WHERE backend_type = 'pg_task scheduler'});
		},
		'the supervisor is terminated' => sub {
			my ($pid) = backends($node, 'supervisor');
			terminate($node, $pid);
			wait_until($node,
				qq{SELECT count(*) = 1 AND bool_and(pid <> $pid) FROM pg_stat_activity
				WHERE backend_type = 'pg_task supervisor'});
			wait_for_schedulers($node, 'postgres');
		});
	for my $what (sort keys %end)
	{
		my $gate = "gate of $what";
		my $go_on = $what =~ /scheduler|supervisor/;
		sql(q{TRUNCATE task, log});
		sql(qq{INSERT INTO task (queue, max, request)
			SELECT 'two', 2, 'SELECT work(0); SELECT hold(''$gate'')' FROM generate_series(1, 4)});
		sql(qq{INSERT INTO task (queue, request)
			SELECT 'free', 'SELECT work(0); SELECT hold(''$gate'')'
			FROM generate_series(1, 2)});
		wait_for_running($node, 4, event => 'PgSleep');
		$end{$what}->();
		if ($go_on)
		{
			run_task($node, queue => 'witness',
				request => 'SELECT 1');    # the new scheduler is at work
			is(count_of($node, q{state = 'WORK' AND attempt = 1}), 4, "$what: running tasks go on");
			is(count_of($node, q{queue = 'two' AND state = 'PLAN'}), 2,
				"$what: they count in their queue");
		}
		else
		{
			wait_for_running($node, 4, event => 'PgSleep');
			is(sql(q{SELECT count(*), sum(attempt) - count(*) > 0 FROM task WHERE state = 'WORK'}),
				'4|t', "$what: the tasks run again at once");
			is(count_of($node, q{queue = 'free' AND attempt > 1}), 2,
				"$what: each run is a new attempt");
		}
		open_gate($node, $gate);
		wait_until($node,
			q{SELECT count(*) FILTER (WHERE queue <> 'witness') = 6 AND bool_and(state = 'DONE')
			FROM task});
		is(sql(q{SELECT count(*), count(DISTINCT task) FROM log}), '6|6',
			"$what: each has its effect once");
	}
};

# A run whose row was changed meanwhile commits nothing.
subtest 'the row is changed while the task runs' => sub {
	my %fence = (
		'deleted' => 'DELETE FROM task',
		'planned for later' => q{UPDATE task SET state = 'PLAN', dt = 'infinity'},
		'stopped' => q{UPDATE task SET state = 'STOP'},
		'done by hand' => q{UPDATE task SET state = 'DONE'},
		'planned for now' => q{UPDATE task SET state = 'PLAN'},
		'planned for now, and on' => q{UPDATE task SET state = 'PLAN'; UPDATE task
			SET attempt = 0},
		'truncated' => 'TRUNCATE task');
	for my $what (sort keys %fence)
	{
		my $gate = "fence $what";
		sql(q{TRUNCATE task, log});
		insert_task($node, request => "INSERT INTO log VALUES (1); SELECT hold('$gate')");
		wait_for_running($node, 1, event => 'PgSleep');
		my $start = sql('SELECT start FROM task');
		sql($fence{$what});
		wait_until($node, "SELECT start > '$start' AND state = 'WORK' FROM task")
			if $what =~ /for now/;
		open_gate($node, $gate);
		wait_until($node,
			q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'pg_task executor'
			AND state <> 'idle'});
		# the next run, which may not have begun
		wait_until($node, q{SELECT state = 'DONE' FROM task}) if $what =~ /for now/;
		run_task($node, queue => 'witness', request => 'SELECT 1');
		is(sql(q{SELECT count(*) FROM log}), $what =~ /for now/ ? 1 : 0,
			"$what while it runs: no effect of that run");
		is(count_of($node, q{queue <> 'witness' AND state = 'WORK'}), 0,
			"$what while it runs: no row stays WORK");
	}
};

# A thousand tasks, while processes are killed one after the other.
subtest 'many tasks, many crashes' => sub {
	sql(q{TRUNCATE task, log});
	sql(q{INSERT INTO task (queue, max, request, keep) SELECT 'q' || n % 5, CASE n % 5 WHEN 0
		THEN 1
		WHEN 1 THEN 2 END,
		'SELECT work(0.02)', CASE n % 10 WHEN 0 THEN interval '0' END
			FROM generate_series(1, 1000) AS n});
	my @blows = (sub { terminate($node, backends($node, 'executor')) }, sub { crash($node) },
		sub { terminate($node, backends($node, 'scheduler')) },
		sub { terminate($node, backends($node, 'executor')) },
		sub { crash($node) },
		sub { terminate($node, backends($node, 'executor'), backends($node, 'scheduler')) },
		sub { crash($node) }, sub { terminate($node, backends($node, 'executor')) });
	# one that runs at the first of them
	my $long = insert_task($node, request => q{SELECT work(0); SELECT hold('blow')},
		priority => -1);
	wait_for_running($node, 1, id => $long, event => 'PgSleep');
	for my $n (1 .. @blows)
	{
		wait_until($node, "SELECT count(*) >= $n * 100 FROM log");
		$blows[ $n - 1 ]->();
		open_gate($node, 'blow') if $n == 1;
	}
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
	is(sql(q{SELECT count(*), count(DISTINCT task) FROM log}), '1001|1001',
		'each of a thousand tasks has its effect');
	is(sql(q{SELECT state, count(*) FROM task GROUP BY state}), 'DONE|901',
		'all tasks are DONE, or deleted as requested');
	cmp_ok(task($node, $long, 'attempt'), '>', 1, 'what was interrupted was started once more');
	is(sql(q{SELECT count(*) FROM log JOIN task ON id = task WHERE log.attempt <> task.attempt}), 0,
		'each effect is of the last attempt');
};

done_testing();
