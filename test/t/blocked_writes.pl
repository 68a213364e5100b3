# Setting a row to GONE, or inserting the next row of a repeating task, may have to wait
# for an open transaction (here because of the owner's foreign key).  Meanwhile other tasks start
# at once and others expire in time; when the transaction ends, the row is written.  A TAP test
# because it needs open transactions.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# The foreign key is code of the owner's: without the setting, tasks of other roles wait.
my $node = new_node('main', period => '1 s',
	conf => "pg_task.max_executors = 3\npg_task.owner_code = on");

sql(q{
	CREATE TABLE customer (id int PRIMARY KEY);
	INSERT INTO customer VALUES (1), (2);
	ALTER TABLE task ADD COLUMN customer int REFERENCES customer;
	CREATE ROLE late LOGIN; ALTER ROLE late SET pg_task.active = '1 s';
	REVOKE CONNECT ON DATABASE postgres FROM PUBLIC; GRANT CONNECT ON DATABASE postgres TO late});
run_task($node, request => 'SELECT 1');

# Some tasks for each reason not to be started, planned while the customer is locked.
sql(q{
	INSERT INTO task (queue, customer, repeat, active, max, dt, request)
		SELECT 'expired', 1, '1 h', '1 s', 0, 'infinity', 'SELECT 1' FROM generate_series(1, 10);
	INSERT INTO task (queue, customer, repeat, role, dt, request)
		SELECT 'late', 1, '1 h', 'late', 'infinity', 'SELECT 1' FROM generate_series(1, 10);
	INSERT INTO task (queue, customer, repeat, active, max, dt, request)
		SELECT 'harmless', 2, '1 h', '1 s', 0, 'infinity', 'SELECT 1' FROM generate_series(1, 10)});
my $session = open_session($node, 'postgres');
$session->query_safe('BEGIN; SELECT FROM customer WHERE id = 1 FOR UPDATE');
my $position = log_position($node);
sql(q{UPDATE task SET dt = now() - interval '1 h' WHERE dt = 'infinity'});

my %end;

# Other tasks, one after another, while all of these are being retried.
subtest 'other tasks start meanwhile' => sub {
	run_task($node, queue => 'witness', request => 'SELECT 1') for 1 .. 10;
	is(count_of($node, q{queue = 'witness' AND state = 'DONE'}), 10, 'other tasks run');
	my $waited = q{SELECT max(start - dt) FROM task WHERE queue = 'witness'};
	is(sql("SELECT ($waited) < '30 s'"), 't', 'other tasks start soon');
	note('they waited ' . sql($waited) . ' at most');
	wait_until($node,
		q{SELECT count(*) = 10 FROM task WHERE queue = 'harmless' AND state = 'GONE'});
	pass('rows that wait for no transaction are written');
	%end = (expired => 'GONE', late => 'GONE');
	is(count_of($node, "queue = '$_' AND state <> 'PLAN'"), 0, "$_: they wait") for sort keys %end;
	my $lines = () = log_since($node, $position) =~ /ERROR:  /g;
	# each of the rows is tried again every minute, and when autovacuum has changed the table
	cmp_ok($lines, '<', 10, 'the log has few lines');
};

# When the customer is unlocked, these tasks end: within a minute, or when the table changes.
subtest 'the rows are written after the lock' => sub {
	$session->query_safe('COMMIT');
	sql('ALTER TABLE task ADD COLUMN other int');
	for my $queue (sort keys %end)
	{
		wait_until($node,
			"SELECT count(*) = 10 FROM task WHERE queue = '$queue' AND state = '$end{$queue}'");
		is(sql("SELECT count(*) FROM task AS new JOIN task AS old ON old.id = new.parent
			WHERE old.queue = '$queue'"), 10, "$queue: each repeats once");
	}
};

# A key: while a task repeats no other task can take its key, so its next run never waits for
# another transaction.
subtest 'a repeating task keeps its key' => sub {
	make_gates($node);
	my $id = insert_task($node, key => 'k', queue => 'keys', repeat => '1 h',
		request => q{SELECT hold('key')});
	my $same_key = q{INSERT INTO task (queue, key, request) VALUES ('keys', 'k', 'SELECT 1')};
	wait_for_state($node, $id, 'WORK');
	my ($rc, $out, $err) = $node->psql('postgres', $same_key);
	like($err, qr/duplicate key/, 'the key of a running task is a duplicate');
	open_gate($node, 'key');
	wait_for_state($node, $id, 'DONE');
	is(count_of($node, "key = 'k' AND state = 'PLAN' AND parent = $id"), 1,
		'the next run has the key');
	($rc, $out, $err) = $node->psql('postgres', $same_key);
	like($err, qr/duplicate key/, 'and is taken');
	$session->quit;
};

done_testing();
