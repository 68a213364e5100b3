# How many records of WAL a no-op task needs, and how large they are: a new index, a wider row or a
# write more for each task shows here.  No time is measured.  Only upper bounds that hold wherever
# the rows find space are checked; what the server does from time to time (pruning, splits) is left
# out.  One task is claimed at a time: of several, some may be reclaimed and claimed again, if the
# machine is slow.  A TAP test because it reads the WAL of a server of its own.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $tasks = 200;
my $slack = 5;    # records that other things have caused
my $node = new_node('main', conf => q{
	pg_task.max_executors = 1
	full_page_writes = off
	autovacuum = off
	checkpoint_timeout = 1h});

sql('CREATE EXTENSION pg_walinspect');
sql(q{INSERT INTO task_queue (queue, paused, max) VALUES ('paused', true, 1)});
# the scheduler reads the rule before the rows
run_task($node, request => 'SELECT 1');

sub position { return sql('SELECT pg_current_wal_insert_lsn()') }

# The records of these kinds since a position: count and bytes, by kind.
sub records_since
{
	my ($from) = @_;
	my $to = position();
	my %found;

	# what is not flushed cannot be read
	sql('CREATE TABLE flushed (); DROP TABLE flushed');
	wait_until($node, "SELECT pg_current_wal_flush_lsn() >= '$to'");
	for my $line (split /\n/, sql(qq{SELECT "resource_manager/record_type", count, record_size
		FROM pg_get_wal_stats('$from', '$to', true) WHERE count > 0}))
	{
		my ($kind, $count, $bytes) = split /\|/, $line;

		$found{$kind} = { count => $count, bytes => $bytes };
		note(sprintf '%-24s %7d %9d bytes', $kind, $count, $bytes);
	}
	# a new version on another page, of which the record names both; or on the same one
	for my $line (split /\n/, sql(qq{SELECT CASE WHEN block_ref LIKE '%blkref #1%' THEN 'moved'
			ELSE 'near' END, count(*), sum(record_length)
		FROM pg_get_wal_records_info('$from', '$to')
		WHERE resource_manager = 'Heap' AND record_type LIKE 'UPDATE%' GROUP BY 1}))
	{
		my ($kind, $count, $bytes) = split /\|/, $line;

		$found{$kind} = { count => $count, bytes => $bytes };
		note("$kind $count $bytes bytes");
	}
	return \%found;
}

# A kind of record: at most so many for each task, of at most so many bytes on average.
sub at_most
{
	my ($found, $kind, $each, $bytes) = @_;
	my $record = $found->{$kind} // { count => 0, bytes => 0 };

	cmp_ok($record->{count}, '<=', $each * $tasks + $slack, "$kind: $each for each task");
	cmp_ok($record->{bytes}, '<=', $bytes * $record->{count}, "$kind: $bytes bytes each");
	return;
}

# What holds for all new versions of rows.  The pages have space for some of them; on another one
# they are written as a whole, and the old one is locked.  No other row is: the claim locks none.
sub check_versions
{
	my ($run) = @_;

	cmp_ok($run->{'Heap/LOCK'}{count} // 0, '<=', ($run->{moved}{count} // 0) + $slack,
		'the only locks are those of rows that move');
	cmp_ok($run->{near}{count} // 0, '>=', $tasks / 5, 'some have space on the page');
	cmp_ok($run->{near}{bytes}, '<=', 125 * $run->{near}{count}, 'these are short');
	return;
}

# Inserts no-op tasks and then lets them run.  Returns the records of both.
sub run_tasks
{
	my ($keep) = @_;
	my $begin = position();

	sql(qq{INSERT INTO task (queue, request, keep)
		SELECT 'paused', 'SELECT 1', $keep FROM generate_series(1, $tasks)});
	my $inserted = records_since($begin);
	my $ready = position();
	sql(q{UPDATE task_queue SET paused = false});
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))});
	my $run = records_since($ready);
	sql(q{UPDATE task_queue SET paused = true; TRUNCATE task});
	run_task($node, request => 'SELECT 1');
	return ($inserted, $run);
}

subtest 'a row that stays' => sub {
	my ($inserted, $run) = run_tasks('NULL::interval');

	at_most($inserted, 'Btree/INSERT_LEAF', 2, 120);
	at_most($run, 'Heap/UPDATE', 2, 206);
	check_versions($run);
	at_most($run, 'Btree/INSERT_LEAF', 3, 65);
};

subtest 'a row that is deleted' => sub {
	my (undef, $run) = run_tasks(q{'0'});

	at_most($run, 'Heap/UPDATE', 1, 206);
	check_versions($run);
	at_most($run, 'Heap/DELETE', 1, 60);
	at_most($run, 'Btree/INSERT_LEAF', 2, 65);
};

done_testing();
