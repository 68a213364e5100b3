# The scheduler's memory does not grow with the number of executors that it has started.  A TAP test
# because it measures the memory of a process.
use strict;
use warnings;
use FindBin;
use List::Util qw(min);
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $starts = 300;
my $each = 16;    # bytes that one start may add; a leaked allocation takes more

my $node = new_node('main', conf => 'pg_task.max_executors = 2');

# The memory that the scheduler uses for its whole life, in bytes.  In a transaction it is a little
# more.
sub memory { return min(map { memory_now() } 1 .. 5) }

sub memory_now
{
	my ($pid) = backends($node, 'scheduler');
	my $position = log_position($node);
	my $used;

	sql("SELECT pg_log_backend_memory_contexts($pid)");
	# the server drops a request that comes before the last one is answered
	poll_for(sub {
		($used) = log_since($node, $position)
		  =~ /TopMemoryContext: [^\n]* (\d+) used.*\bGrand total: /s;
	})
	  or die "the scheduler does not log its memory\n";
	return $used;
}

# A LOAD ends the executor after the task.
sub start_executors
{
	sql(qq{INSERT INTO task (request)
		SELECT 'LOAD ''plpgsql''' FROM generate_series(1, $starts)});
	for (my $left = $starts; $left > 0; $left -= 50)
	{
		wait_until($node, "SELECT count(*) < $left - 49 FROM task WHERE state IN ('PLAN', 'WORK')");
	}
	return;
}

start_executors();
my ($scheduler) = backends($node, 'scheduler');
my $before = memory();
start_executors();
my $after = memory();

is((backends($node, 'scheduler'))[0], $scheduler, 'the scheduler is the same');
# the system uses the numbers of processes again
cmp_ok(sql('SELECT count(DISTINCT pid) FROM task'), '>', 1.9 * $starts,
	'each task had a new executor');
cmp_ok($after - $before, '<=', $each * $starts, 'the scheduler has not grown')
  or diag "$before bytes, then $after";

done_testing();
