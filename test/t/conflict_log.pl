# After a conflict the run is retried.  An error before the request has been read again is logged
# without a statement: the text of the first try is gone.  A TAP test because it needs the log.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main');
make_gates($node);
my $session = $node->background_psql('postgres');
sql(q{CREATE ROLE hasty LOGIN; ALTER ROLE hasty SET lock_timeout = '20 ms'});

# Longer than the copy in shared memory, so each try reads it from the table, and waits for a lock.
my $request = q{SELECT hold('conflict'); DO 'BEGIN RAISE serialization_failure; END'};
my $id = insert_task($node, role => 'hasty', request => $request . ' ' x 2000);
wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity
	WHERE usename = 'hasty' AND query ~ 'hold'});
$session->query_safe('BEGIN; LOCK TABLE task');
my $position = log_position($node);
open_gate($node, 'conflict');
wait_for_log_line($node, qr/canceling statement due to lock timeout/, $position);
$session->query_safe('COMMIT');
wait_for_state($node, $id, 'FAIL');
my $log = log_since($node, $position);
like($log, qr/could not serialize|serialization_failure/, 'the first try fails with a conflict');
like($log, qr/ERROR:  canceling statement due to lock timeout\n(?!.*STATEMENT)/,
	'the error of the second try is logged without a statement');
is(task($node, $id, 'sqlstate'), '55P03', 'the task fails with the error of the second try');

$session->quit;
$node->stop;
done_testing();
