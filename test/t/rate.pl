# The rate of a queue as plain functions, with times of the test's own: windows, token buckets,
# rules that change, tasks that are seen late, a scheduler that ends.  A TAP test because it builds
# a library: test/modules/rate_check.c contains the checks, and src/task/rate.c with them.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $library = build_module('rate_check', "-I$FindBin::RealBin/../../src", '-DUSE_ASSERT_CHECKING');
my $node = new_node('main', conf => 'pg_task.enabled = off', start => 0);
$node->start;
$node->safe_psql('postgres', "CREATE FUNCTION rate_check(name text, seed int) RETURNS text
	LANGUAGE c STRICT AS '$library'");

# Runs a check; an empty result says that it holds.
sub check
{
	my ($check, $name, $seed) = @_;

	is(sql("SELECT rate_check('$check', " . ($seed // 0) . ')'), '', $name);
}

check('window', 'a window, tasks that have not begun, and running ones');
check('bucket', 'a token bucket');
check('rules', 'a rule that changes keeps what it knows of starts');
check('images', 'what was written is read by another scheduler; anything else is refused');
check('pauses', 'the last start of a queue with pauses is read by another scheduler');
check('foresight', 'a session foresees the next start by what was written');
check('memory', 'each allocation may fail');
check('reached', 'the rate is reached within 1 %');

# The same each time; another seed finds other ones.
for my $seed (20261121 .. 20261124)
{
	check('naive', "the next start is that of a list of all starts (seed $seed)", $seed);
	check('random', "no window of random rules has too many starts (seed $seed)", $seed);
}

done_testing();
