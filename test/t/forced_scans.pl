# Somebody makes the scheduler scan very many groups again and again: tasks of others start all the
# same, and what no hint told of is found. A TAP test: a session commits while others wait.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => "max_prepared_transactions = 2");

sub sql { return $node->safe_psql('postgres', @_) }

# Groups whose tasks are planned for later, and a procedure that commits more of them at a time than
# hints can tell of, until it is told to stop.
sql(q{INSERT INTO task (queue, dt, request)
	SELECT 'group ' || n, now() + interval '1 day', 'SELECT 1' FROM generate_series(1, 50000) AS n});
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
my $session = $node->background_psql('postgres');
$session->query_until(qr//, "CALL force();\n");
wait_until($node, q{SELECT count(*) > 400 FROM task WHERE queue LIKE 'forced%'});

# Those that a hint tells of start meanwhile.
run_task($node, queue => 'known', request => 'SELECT 1') for 1 .. 15;
is(sql(q{SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY start - dt) < '0.2 s'
	FROM task WHERE queue = 'known'}), 't', 'a task does not wait for scans of others');
note('waited ' . sql(q{SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY start - dt), max(start - dt)
	FROM task WHERE queue = 'known'}));

# What no hint tells of is found by one of these scans: in the middle, and in front of the others.
sql(q{BEGIN;
	INSERT INTO task (queue, request) VALUES ('group 25000 x', 'SELECT 1'), ('a', 'SELECT 1');
	PREPARE TRANSACTION 'p'});
sql(q{COMMIT PREPARED 'p'});
wait_until($node, q{SELECT count(*) = 2 FROM task
	WHERE queue IN ('group 25000 x', 'a') AND state = 'DONE'});
pass('rows that no hint tells of are found');

sql('INSERT INTO stop VALUES (1)');
$session->quit;
$node->stop;
done_testing();
