# The scheduler's memory does not grow with the number of executors that it has started.  A TAP test
# because it measures the memory of a process.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $starts = 300;
my $each = 16;    # bytes that one start may add; a leaked allocation takes more

my $node = new_node('main', conf => 'pg_task.max_executors = 2');

# The memory that the scheduler uses for its whole life, in bytes.
sub memory
{
	my ($pid) = backends($node, 'scheduler');
	my $position = log_position($node);
	my $used;

	sql("SELECT pg_log_backend_memory_contexts($pid)");
	poll_for(sub { ($used) = log_since($node, $position) =~ /TopMemoryContext: .* (\d+) used/ });
	return $used;
}

# A LOAD ends the executor after the task.
sub start_executors
{
	sql(qq{INSERT INTO task (request)
		SELECT 'LOAD ''plpgsql''' FROM generate_series(1, $starts)});
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))});
	return;
}

start_executors();
my ($scheduler) = backends($node, 'scheduler');
my $before = memory();
start_executors();
my $after = memory();

is((backends($node, 'scheduler'))[0], $scheduler, 'the scheduler is the same');
is(sql('SELECT count(DISTINCT pid) FROM task'), 2 * $starts, 'each task had a new executor');
cmp_ok($after - $before, '<=', $each * $starts, 'the scheduler has not grown')
  or diag "$before bytes, then $after";

done_testing();
