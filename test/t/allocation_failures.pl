# Allocations fail at random: the process raises an error and stays in a valid state.  No process
# crashes, no task is lost, none has its effect twice, and no limit is exceeded.  A TAP test
# because it preloads a library into the server.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $rate = $ENV{PG_TASK_TEST_RATE} // 1200;
my $rounds = $ENV{PG_TASK_TEST_ROUNDS} // 3;
my $switch = PostgreSQL::Test::Utils::tempdir() . '/short';
my $library = build_module('short_memory');
my $node = new_node('main', start => 0, conf => q{
	pg_task.max_executors = 3
	pg_task.period = '50 ms'
	pg_task.retry = 100
	pg_task.delay = '10 ms'
	pg_task.backoff = 1
});
{
	local $ENV{LD_PRELOAD} = $library;
	local $ENV{SHORT_MEMORY} = $switch;
	$node->start;
}
wait_for_table($node);

sub set_rate
{
	my ($value) = @_;

	unlink $switch;
	return if !$value;
	append_to_file("$switch.new", $value);
	rename "$switch.new", $switch or die "$!";
	return;
}

sql(q{
	CREATE TABLE effect (task bigint, at_once int);
	CREATE FUNCTION work(long bool) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		-- the runs that hold this lock are counted: after an error a row stays in state WORK for a
		-- moment, without a run
		IF (SELECT queue = 'two' FROM task WHERE id = current_setting('pg_task.id')::bigint) THEN
			PERFORM pg_advisory_xact_lock_shared(2);
		END IF;
		INSERT INTO effect SELECT current_setting('pg_task.id')::bigint, count(*)
			FROM pg_locks WHERE locktype = 'advisory' AND objid = 2 AND granted;
		IF long THEN PERFORM pg_sleep(0.005), repeat('x', 100000); END IF;
	END $$});
sql('CREATE ROLE nologin; CREATE ROLE "role 0" LOGIN; GRANT ALL ON task, effect TO "role 0"');
my $server = sql('SELECT pg_postmaster_start_time()');
my $position = log_position($node);

sub count_errors
{
	my $errors = () = log_since($node, $position) =~ /ERROR:  out of memory/g;

	return $errors;
}

# As many rounds as there are to be, and more until there were some errors.
my $round = 0;
while ($round < 200 && ($round < $rounds || count_errors() <= 2))
{
	$round++;
	set_rate($rate);
	sql(q{INSERT INTO task (queue, max, priority, request)
		SELECT CASE WHEN n % 2 = 0 THEN 'two' ELSE 'queue ' || n END,
			CASE WHEN n % 2 = 0 THEN 2 END, n % 3,
			CASE WHEN n % 50 = 0 THEN repeat(' ', 5000) ELSE ''
			END || 'SELECT work(' || (n % 7 = 0) || ')'
		FROM generate_series(1, 150) AS n});
	# rows that are not started: they expire, their role may not log in, or is renamed
	sql(qq{INSERT INTO task (queue, request, role, active) SELECT 'not started', 'SELECT 1',
		CASE WHEN n % 2 = 0 THEN 'nologin' ELSE current_user END,
		CASE WHEN n % 2 = 1 THEN interval '1 us' END FROM generate_series(1, 10) AS n});
	my $last = $round - 1;
	sql(qq{INSERT INTO task (queue, request, role) SELECT 'renamed', 'SELECT work(false)',
		'role $last' FROM generate_series(1, 10)});
	sql(qq{ALTER ROLE "role $last" RENAME TO "role $round"});
	sql("ALTER TABLE task ADD COLUMN c$round int");
	# the scheduler pauses for up to 8 s after an error, and there are the more in a row the more
	# rows wait
	wait_until($node, q{SELECT count(*) < 80 FROM task WHERE state IN ('PLAN', 'WORK')},
		seconds => 180);
	my ($pid) = backends($node, 'executor');
	# a new process allocates more
	terminate($node, $pid) if $pid && ($round % 3 == 0 || $round > $rounds);
}
set_rate(0);
wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
my $tasks = 160 * $round;
my $log = log_since($node, $position);

is(count_of($node, q{state = 'DONE' AND queue <> 'not started'}), $tasks, 'all tasks are done')
  or diag sql(q{SELECT state, error, count(*) FROM task GROUP BY 1, 2});
is(sql('SELECT count(*), count(DISTINCT task) FROM effect'),
	"$tasks|$tasks", 'each task has its effect once');
is(count_of($node, q{queue = 'not started' AND state NOT IN ('GONE', 'FAIL', 'DONE')}), 0,
	'those that are not started have ended');
cmp_ok(sql(q{SELECT max(at_once) FROM effect JOIN task ON id = task WHERE queue = 'two'}),
	'<=', 2, 'no limit is exceeded');
unlike($log, qr/was terminated by signal|PANIC|TRAP/, 'no process has crashed');
is(sql('SELECT pg_postmaster_start_time()'), $server, 'the server has not restarted');
cmp_ok(count_errors(), '>', 2, 'there were errors');
note("errors: " . count_errors() . " in $round rounds");

# The limit is unchanged: two at once, no fewer.
subtest 'the limit is unchanged' => sub {
	make_gates($node);
	sql(q{INSERT INTO task (queue, max, request)
		SELECT 'two', 2, 'SELECT hold(''end'')' FROM generate_series(1, 3)});
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE state = 'WORK'});
	open_gate($node, 'end');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
	pass('a queue has as many places as before');

	$node->stop;
};

done_testing();
