# A task becomes due while the scheduler is in a long transaction that writes other rows: it starts
# right after that, and not with the next scan.  A TAP test because the period must be long.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task_period.postgres = 3600000");

run_task($node, request => 'SELECT 1');

# A task that never starts expires after a second; a trigger prolongs the write of its row until the
# other task is due.
sql(q{
	CREATE FUNCTION wait_for_other() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		WHILE clock_timestamp() < (SELECT dt + interval '0.1 s' FROM public.task
		WHERE queue = 'other') LOOP
			PERFORM pg_sleep(0.01);
		END LOOP;
		NEW.stop = clock_timestamp();
		RETURN NEW;
	END $$;
	CREATE TRIGGER slow BEFORE UPDATE ON task FOR EACH ROW
		WHEN (NEW.state = 'GONE') EXECUTE FUNCTION wait_for_other();
	INSERT INTO task (queue, max, dt, active, request) VALUES
		('expires', 0, now(), '1 s', 'SELECT 1'),
		('other', NULL, now() + '2 s', NULL, 'SELECT 1')});
wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
is(sql(q{SELECT stop > (SELECT dt FROM task WHERE queue = 'other') FROM task
	WHERE queue = 'expires' AND state = 'GONE'}), 't',
	'one row was written while the other task became due');
is(sql(q{SELECT state FROM task WHERE queue = 'other'}), 'DONE',
	'the other task started after that');
note('waited ' . sql(q{SELECT start - dt FROM task WHERE queue = 'other'}));

$node->stop;
done_testing();
