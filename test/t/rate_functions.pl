# The rate of a queue as plain functions, with times of the test's own: windows, rules that change,
# claims that are undone, a scheduler that ends.  A TAP test because it builds a library:
# test/modules/rate_check.c contains the checks, and src/scheduler/rates.c with them.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $library = build_module('rate_check', "-I$FindBin::RealBin/../../src", '-DUSE_ASSERT_CHECKING');
my $node = new_node('main', conf => 'pg_task.enabled = off', start => 0);
$node->start;
sql("CREATE FUNCTION rate_check(name text, seed int) RETURNS text
	LANGUAGE c STRICT AS '$library'");

# Runs a check; an empty result says that it holds.
sub check
{
	my ($check, $name, $seed) = @_;

	is(sql("SELECT rate_check('$check', " . ($seed // 0) . ')'), '', $name);
}

check('window', 'a window, claims that are undone, a rate of 0');
check('rules', 'a rule that changes keeps what it knows of claims');
check('restored', 'the claims of an earlier scheduler');
check('memory', 'each allocation may fail');

# The same each time; another seed finds other ones.
check('random', "no window of a random rule has too many claims (seed $_)", $_)
  for 20261121 .. 20261160;

done_testing();
