# After a conflict the run is retried, and the log shows each try with the text of the request.  A
# TAP test because it needs the log.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main');
my $conflict = q{DO 'BEGIN RAISE serialization_failure; END'};

# One that is in shared memory, and one that is longer than the copy there: each is read once.
for my $length (0, 2000)
{
	my $position = log_position($node);
	my $request = $conflict . ' ' x $length . '/* its end */';
	my $id = insert_task($node, request => $request);

	wait_for_state($node, $id, 'FAIL');
	my $log = log_since($node, $position);
	my $tries = () = $log =~ /ERROR:  serialization_failure/g;
	my $shown = () = $log =~ /STATEMENT:  \Q$request\E\n/g;
	is(task($node, $id, 'sqlstate, attempt, failed'), '40001|1|1', 'the last try fails, too');
	cmp_ok($tries, '>', 1, 'the first was retried');
	is($shown, $tries, 'the log shows the request with each');
}

$node->stop;
done_testing();
