# A task fails, and its executor cannot write that into the row: the scheduler writes it, and the
# row shows why the task failed, not why it could not be written; the log shows the latter.  A TAP
# test because it reads the log.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main');

# Outcomes are refused in executors, not in the scheduler.
sql(q{
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF current_setting('pg_task.id') <> '' THEN
			RAISE '% is refused', NEW.state USING ERRCODE = 'check_violation';
		END IF;
		RETURN NEW;
	END $$;
	CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW
		WHEN (OLD.state = 'WORK' AND NEW.queue = 'refused') EXECUTE FUNCTION refuse()});

sub outcome
{
	my ($request, %column) = @_;
	my $id = run_task($node, queue => 'refused', request => $request, %column);

	return ($id, task($node, $id, 'state, sqlstate, attempt, failed'));
}

subtest 'why the task failed' => sub {
	my $position = log_position($node);
	my ($id, $outcome) = outcome('SELECT 1/0');
	is($outcome, 'FAIL|22012|1|1', 'the row has the failure of the request');
	is(task($node, $id, 'error'), 'division by zero', 'the row has its message');
	is(task($node, $id, 'response'),
		"ERROR:  division by zero\nDETAIL:  The process of the task could not write this.",
		'the row has its response');
	is(task($node, $id, 'start <= stop'), 't', 'the row has the times of the run');
	like(log_since($node, $position), qr/ERROR:  FAIL is refused/,
		'the log has the error of the write');

	(undef,
		$outcome) = outcome(q{DO $$ BEGIN RAISE 'no space left' USING ERRCODE = '53100'; END $$});
	is($outcome, 'FAIL|53100|1|1', 'an SQLSTATE that the request has set');

	($id, $outcome) = outcome('SELECT 1');
	is($outcome, 'FAIL|23514|1|1', 'DONE was refused');
	is(task($node, $id, 'error'), 'DONE is refused', 'the error is that of the write');

	($id) = outcome(q{DO $$ BEGIN RAISE '%', repeat('ä', 300); END $$});
	is(task($node, $id, q{error = repeat('ä', 127)}), 't',
		'a long message is cut between characters');
};

subtest 'retries and repeats' => sub {
	my ($id, $outcome) = outcome('SELECT 1/0', retry => 2, delay => '1 ms');
	wait_for_state($node, $id, 'FAIL');
	is_row($node, $id,
		{ state => 'FAIL', sqlstate => '22012', attempt => 3, failed => 3 },
		'the task is retried');

	($id) = outcome('SELECT 1/0', repeat => '1 day');
	is(task($node, $id, q{state, (SELECT state FROM task AS t WHERE t.parent = task.id)}),
		'FAIL|PLAN',
		'the task repeats');

	is(task($node, run_task($node, request => 'SELECT 1'), 'state'), 'DONE',
		'other tasks are DONE');
};

done_testing();
