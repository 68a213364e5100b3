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

my $node = new_node('main', conf => "max_prepared_transactions = 2");

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
run_task($node, request => 'SELECT 1');
my $usual = start_delay($node);
my $session = open_session($node, 'postgres');
$session->query_until(qr//, "CALL force();\n");
wait_until($node, q{SELECT count(*) > 400 FROM task WHERE queue LIKE 'forced%'});

# Tasks with a hint start meanwhile.
subtest 'tasks with a hint start' => sub {
	run_task($node, queue => 'known', request => 'SELECT 1') for 1 .. 15;
	my $median = sql(q{SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY start - dt)
		FROM task WHERE queue = 'known'});

	is(sql("SELECT interval '$median' < '0.2 s'::interval + 5 * interval '$usual s'"), 't',
		'a task does not wait for scans of others');
	note("waited $median, without the scans $usual s");
};

# A session whose groups do not fit into the slot while the scheduler is busy loses only its own
# hints.
subtest 'hints that do not fit' => sub {
	sql(q{CREATE ROLE tenant LOGIN; CREATE ROLE other LOGIN; GRANT SELECT, INSERT ON task
		TO tenant, other});
	my $insert = q{INSERT INTO task (queue, dt, request)
		SELECT format('full %s %s', ROUND, n), now() + interval '1 day', 'SELECT 1'
		FROM generate_series(1, 32) AS n};
	my $scheduler = sql(q{SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler'});
	my @waits;
	for my $round (1 .. 5)
	{
		kill 'STOP', $scheduler;
		sql('SET ROLE tenant; ' . ($insert =~ s/ROUND/10 * $round + $_/er)) for 1 .. 5;
		my $id = sql(q{SET ROLE other;
			INSERT INTO task (queue, request) VALUES ('other', 'SELECT 1') RETURNING id});
		my $then = sql('SELECT clock_timestamp()');
		kill 'CONT', $scheduler;
		wait_for_state($node, $id, 'DONE');
		push @waits, task($node, $id, "extract(epoch FROM start - '$then')");
	}
	note("waited @waits");
	cmp_ok((sort { $a <=> $b } @waits)[1], '<', 0.3 + 5 * $usual,
		'a role does not lose the hints of another');
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
	$node->stop;
};

done_testing();
