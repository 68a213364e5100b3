# A session makes the scheduler scan very many groups again and again: tasks of other sessions
# still start, and rows without a hint are found.  A TAP test because one session commits while
# others wait.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

# A trigger of the owner's is added later: without the setting, tasks of other roles would wait.
my $node = new_node('main', conf => "max_prepared_transactions = 2\npg_task.owner_code = on");

# Groups whose tasks are planned for later, and a procedure that commits more groups at a time than
# fit into hints, until it is asked to stop.
sql(q{INSERT INTO task (queue, dt, request)
	SELECT 'group ' || n, now() + interval '1 day', 'SELECT 1' FROM generate_series(1, 50000)
	AS n});
sql(q{
	CREATE TABLE stop (x int);
	CREATE PROCEDURE force() LANGUAGE plpgsql AS $$
	BEGIN
		WHILE NOT EXISTS (SELECT FROM stop) LOOP
			INSERT INTO task (queue, dt, request)
				SELECT 'forced ' || n, now() + interval '1 day', 'SELECT 1'
				FROM generate_series(1, 40) AS n;
			COMMIT;
			PERFORM pg_sleep(0.05);
		END LOOP;
	END $$});
my $session = open_session($node, 'postgres');
$session->query_until(qr//, "CALL force();\n");
wait_until($node, q{SELECT count(*) > 400 FROM task WHERE queue LIKE 'forced%'});

# How often the scheduler has woken up.
sub iterations
{
	return sql(q{SELECT iterations FROM pg_stat_task_scheduler() WHERE datname = 'postgres'});
}

# Tasks with a hint start meanwhile: each of these inserts the next one.  If they waited for scans,
# each would take the many iterations of one, or more.
subtest 'tasks with a hint start' => sub {
	my $tasks = 50;

	sql(q{CREATE FUNCTION step(n int) RETURNS void LANGUAGE sql
		AS $$ INSERT INTO task (queue, request)
			SELECT 'known', format('SELECT step(%s)', n - 1) WHERE n > 1 $$});
	my $rounds = 0;
	my $few = poll_for(sub {
		my $done = $tasks * ++$rounds;
		my $before = iterations();

		insert_task($node, queue => 'known', request => "SELECT step($tasks)");
		wait_until($node, qq{SELECT count(*) = $done FROM task
			WHERE queue = 'known' AND state = 'DONE'});
		my $iterations = iterations() - $before;
		note("$iterations iterations");
		return $iterations < 10 * $tasks;
	});
	ok($few, 'a task does not wait for scans of others');
};

# A session whose groups do not fit into the slot while the scheduler is busy loses only its own
# hints.  A trigger keeps the scheduler busy, and another one counts its iterations until it claims
# the task with the hint: a scan needs very many.
subtest 'hints that do not fit' => sub {
	my @iterations;

	make_gates($node);
	sql(q{CREATE ROLE tenant LOGIN; CREATE ROLE other LOGIN;
		GRANT SELECT, INSERT ON task TO tenant, other;
		CREATE TABLE claimed (id bigint, iterations bigint);
		CREATE FUNCTION claimed() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.queue = 'busy' THEN
				PERFORM public.hold(NEW.key);
			ELSE
				INSERT INTO public.claimed SELECT NEW.id, iterations FROM pg_stat_task_scheduler();
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER claimed BEFORE UPDATE ON task FOR EACH ROW
			WHEN (NEW.state = 'WORK' AND NEW.queue IN ('busy', 'other'))
			EXECUTE FUNCTION claimed()});
	run_task($node, role => 'other', request => 'SELECT 1');    # an executor of it is there
	for my $round (1 .. 5)
	{
		wait_until($node, 'SELECT busy = 0 FROM pg_stat_task_scheduler()');
		insert_task($node, queue => 'busy', key => $round, request => 'SELECT 1');
		wait_until($node, q{SELECT wait_event = 'PgSleep' FROM pg_stat_activity
			WHERE backend_type = 'pg_task scheduler'});
		my $fill = join ';', map { sprintf q{INSERT INTO task (queue, dt, request)
			SELECT 'full %d ' || n, now() + interval '1 day', 'SELECT 1'
			FROM generate_series(1, 32) AS n}, 10 * $round + $_ } 1 .. 5;
		# each statement is a transaction
		my ($before, $id) = split /\n/, sql(qq{SELECT iterations FROM pg_stat_task_scheduler();
			SET ROLE tenant; $fill; SET ROLE other;
			INSERT INTO task (queue, request) VALUES ('other', 'SELECT 1') RETURNING id;
			RESET ROLE; INSERT INTO gate VALUES ('$round')});
		wait_for_state($node, $id, 'DONE');
		push @iterations, sql("SELECT iterations - $before FROM claimed WHERE id = $id");
	}
	note("iterations: @iterations");
	cmp_ok((sort { $a <=> $b } @iterations)[0], '<', 10,
		'a role does not lose the hints of another');
	sql('DROP TRIGGER claimed ON task');
};

# Rows without a hint are found by one of these scans: in the middle of the groups, and at the
# front.
subtest 'rows without a hint' => sub {
	sql(q{BEGIN;
		INSERT INTO task (queue, request) VALUES ('group 25000 x', 'SELECT 1'), ('a', 'SELECT 1');
		PREPARE TRANSACTION 'p'});
	sql(q{COMMIT PREPARED 'p'});
	wait_until($node, q{SELECT count(*) = 2 FROM task
		WHERE queue IN ('group 25000 x', 'a') AND state = 'DONE'});
	pass('rows without a hint are found');

	sql('INSERT INTO stop VALUES (1)');
	$session->quit;
};

# Such a row may be planned between others, or after them, which one scan has found, while the next
# one finds that there are more than it lists.
subtest 'rows without a hint among others' => sub {
	for my $late (45, 5)
	{
		my $queue = "among $late";
		my $insert = qq{INSERT INTO task (queue, max, dt, request) SELECT '$queue', 1,
			now() - n * interval '1 s', 'SELECT 1' FROM generate_series};

		sql(qq{INSERT INTO task (queue, max, request) VALUES ('$queue', 1,
			\$\$SELECT hold('$queue')\$\$)});
		wait_until($node, "SELECT state FROM task WHERE queue = '$queue'", expected => 'WORK');
		sql("BEGIN; $insert(10, 80, 10) AS n; PREPARE TRANSACTION 'p'");
		sql(q{COMMIT PREPARED 'p'});
		wait_until($node, "SELECT oldest_due = (SELECT min(dt) FROM task WHERE queue = '$queue')
			FROM pg_stat_task_scheduler()");
		sql("BEGIN; $insert($late, $late) AS n;
			INSERT INTO task (queue, request) VALUES ('beside $late', 'SELECT 1');
			PREPARE TRANSACTION 'p'");
		sql(q{COMMIT PREPARED 'p'});
		wait_until($node, "SELECT state FROM task WHERE queue = 'beside $late'",
			expected => 'DONE');
		open_gate($node, $queue);
		wait_until($node, "SELECT count(*) = 10 FROM task WHERE queue = '$queue'
			AND state = 'DONE'");
		pass("$late s late");
	}
};

# The scheduler does not remember a group that a scan has not found.
subtest 'groups without rows' => sub {
	my ($scheduler) = backends($node, 'scheduler');
	my $memory = sub {
		my $position = log_position($node);
		my $used;

		# the server drops a request that comes before the last one is answered
		sql("SELECT pg_log_backend_memory_contexts($scheduler)");
		poll_for(sub {
			($used) = log_since($node, $position)
			  =~ /pg_task group members: [^\n]* (\d+) used.*\bGrand total: /s;
		}) or die 'the scheduler does not log its memory';
		return $used;
	};
	my $before = $memory->();

	sql('TRUNCATE task');
	ok(poll_for(sub { $memory->() < $before / 10 }), 'are forgotten');
};

done_testing();
