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

my $rate = $ENV{PG_TASK_TEST_RATE} // 700;
my $rounds = $ENV{PG_TASK_TEST_ROUNDS} // 3;
my $switch = PostgreSQL::Test::Utils::tempdir() . '/short';
my $library = build_module('short_memory');
my $node = new_node('main', start => 0, conf => q{
	pg_task.max_executors = 3
	pg_task.period = '50 ms'
	pg_task.retry = 100
	pg_task.delay = '10 ms'
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
		INSERT INTO effect SELECT current_setting('pg_task.id')::bigint, count(*)
			FROM task WHERE state = 'WORK' AND queue = 'two'
				AND pid IN (SELECT pid FROM pg_stat_activity); -- not of a process that is gone
		IF long THEN PERFORM pg_sleep(0.005), repeat('x', 100000); END IF;
	END $$});
my $server = sql('SELECT pg_postmaster_start_time()');
my $position = log_position($node);

for my $round (1 .. $rounds)
{
	set_rate($rate);
	sql(q{INSERT INTO task (queue, max, priority, request)
		SELECT CASE WHEN n % 2 = 0 THEN 'two' ELSE 'queue ' || n END,
			CASE WHEN n % 2 = 0 THEN 2 END, n % 3,
			CASE WHEN n % 50 = 0 THEN repeat(' ', 5000) ELSE ''
			END || 'SELECT work(' || (n % 7 = 0) || ')'
		FROM generate_series(1, 150) AS n});
	sql("ALTER TABLE task ADD COLUMN c$round int");
	wait_until($node, q{SELECT count(*) > 75 FROM task WHERE state = 'DONE'}) if $round == 1;
	my ($pid) = backends($node, 'executor');
	terminate($node, $pid) if $pid && $round % 3 == 0;
}
set_rate(0);
wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
my $tasks = 150 * $rounds;
my $log = log_since($node, $position);

is(count_of($node, q{state = 'DONE'}), $tasks, 'all tasks are done')
  or diag sql(q{SELECT state, error, count(*) FROM task GROUP BY 1, 2});
is(sql('SELECT count(*), count(DISTINCT task) FROM effect'),
	"$tasks|$tasks", 'each task has its effect once');
cmp_ok(sql(q{SELECT max(at_once) FROM effect JOIN task ON id = task WHERE queue = 'two'}),
	'<=', 2, 'no limit is exceeded');
unlike($log, qr/was terminated by signal|PANIC|TRAP/, 'no process has crashed');
is(sql('SELECT pg_postmaster_start_time()'), $server, 'the server has not restarted');
my $errors = () = $log =~ /ERROR:  out of memory/g;
cmp_ok($errors, '>', 2, "there were errors: $errors");

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
