# The scheduler's groups as plain functions, with times of the test's own: the order of tasks, the
# limits of queues, hints and scans, two clocks, memory that runs out.  A TAP test because it builds
# a library: test/modules/groups_check.c contains the checks, and groups.c and its like.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $library =
  build_module('groups_check', "-I$FindBin::RealBin/../../src", '-DUSE_ASSERT_CHECKING');
my $node = new_node('main', conf => 'pg_task.enabled = off', start => 0);
$node->start;
sql("CREATE FUNCTION groups_check(name text, seed int) RETURNS text
	LANGUAGE c STRICT AS '$library'");

# Runs a check; an empty result says that it holds.
sub check
{
	my ($check, $name, $seed) = @_;

	end_sessions($node);
	is(sql("SELECT groups_check('$check', " . ($seed // 0) . ')'), '', $name);
}

check('order', 'the order is max, priority, dt, id; NULL is the largest max');
check('keys', 'a group is known by all of its columns');
check('limits', 'the limit of a queue counts all of its running tasks, in whatever order they end');
check('startable', 'how many tasks of a group could start');
check('pause', 'a negative max is a pause between two starts, one task at a time');
check('turned back', 'the clock is set ahead and back: no queue waits for its last turn');
check('hints', 'hints before and behind the read position');
check('scan', 'a scan forgets empty groups, and no row that appears meanwhile');
check('drop and skip', 'dropped rows, skipped groups');
check('locked rows', 'locked rows are passed over, and tried again after a while');
check('clocks', 'rows become due by the wall clock, also when it steps back or forward');
check('rules', 'which rule is for a queue, and whether rules have changed');
check('patterns', 'of random rows, each column counts that of the first one that has it');
check('inherited rules', 'a row for a queue leaves what it does not say to the patterns');
check('shared limits', 'limits that queues have together, while rules and roles change');
check('ruled queues', 'paused, max and until of a queue, also when the clock is set');
check('averages', 'average duration of a queue, also of a new one');
check('forgotten queues', 'queues are forgotten, except with running tasks or in a pause');
check('blocked roles', 'a role with 1,000 groups is skipped');
check('role line', 'roles without an executor are called by their needs');
check('closed queues', 'what brings the groups of a full queue back');
check('two pauses', 'the pause of a later group does not count for an earlier one');
check('listed rows', 'small groups that a scan has listed are not read again');
check('forgotten groups', 'too many groups: which are forgotten');
check('out of memory', 'each allocation of an insertion may fail');
check('restored pauses', 'the pauses that an earlier scheduler has begun');

check('many groups', "the end of a task in a full queue with $_ roles", $_) for 1, 1000;

# The same rounds each time; another seed finds other ones.
for my $seed (20261121 .. 20261123)
{
	check('random order', "300 random rounds choose what a model chooses (seed $seed)", $seed);
	check('turns', "queues that take turns start the task that a model starts (seed $seed)", $seed);
	check('aged turns', "the same with aging (seed $seed)", $seed);
	check('random scans', "each row is started once, with hints and scans (seed $seed)", $seed);
	check('random forgetting', "15 groups of 40 are remembered, and all rows started (seed $seed)", $seed);
}

done_testing();
