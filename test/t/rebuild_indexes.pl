# REINDEX CONCURRENTLY by tasks: two indexes of one table are a deadlock, which docs/queues.md avoids.
# A TAP test because a session keeps the commands waiting at the place where they would meet.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => q{
	pg_task.max_executors = 4
	deadlock_timeout = '20 ms'
	log_lock_waits = on});
my ($tables, $indexes) = map { s/relname IN \('document', 'copied'\)/relname IN ('one', 'two')/r }
  manual_page('queues.md') =~
  /^## Rebuild indexes\n.*?^```sql\n(.*?)^```\n.*?^### Single indexes\n.*?^```sql\n(.*?)^```\n/ms;

for (qw(one two))
{
	sql(qq{CREATE TABLE $_ (id int, what text);
		INSERT INTO $_ SELECT n, n FROM generate_series(1, 1000) AS n;
		CREATE INDEX ${_}_a ON $_ (id);
		CREATE INDEX ${_}_b ON $_ (lower(what)) WHERE what > '1'});
}

# Runs statements that plan tasks while a transaction has written to both tables, until so many of
# the tasks wait for it, or for each other, and have looked for a deadlock; then lets them go on, and
# waits for their ends.
sub plan_beside_writer
{
	my ($count, @statements) = @_;
	my $position = log_position($node);
	my $writer = open_session($node, 'postgres');

	$writer->query_safe("BEGIN; INSERT INTO one VALUES (1, 'x'); INSERT INTO two VALUES (1, 'x')");
	for my $statement (@statements)
	{
		sql($statement);
		wait_for_log_line($node, qr/still waiting for ShareLock on virtual/, $position);
	}
	wait_for_log_line($node, qr/(still waiting for Share.*){$count}/s, $position);
	is(sql(q{SELECT count(*) FROM task WHERE state = 'WORK'}), $count, "$count run");
	$writer->query_safe('COMMIT');
	$writer->quit;
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
	return;
}

sub ends
{
	return sql(q{SELECT string_agg(concat_ws(' ', state, attempt, sqlstate), ', ' ORDER BY state)
		FROM task}) . sql('SELECT string_agg(indexrelid::regclass::text, \' \') FROM pg_index
		WHERE NOT indisvalid') =~ s/^(?=.)/; /r;
}

subtest 'two tables' => sub {
	plan_beside_writer(2, $tables);
	is(ends(), 'DONE 1, DONE 1', 'both are done');
	sql('DELETE FROM task');
};

subtest 'the indexes of two tables, as the manual does it' => sub {
	plan_beside_writer(2, $indexes);
	is(ends(), 'DONE 1, DONE 1, DONE 1, DONE 1', 'all are done');
	sql('DELETE FROM task');
};

subtest 'two indexes of one table at once' => sub {
	plan_beside_writer(2, map { "INSERT INTO task (queue, max, request)
		VALUES ('reindex', 2, 'REINDEX INDEX CONCURRENTLY one_$_')" } qw(a b));
	like(ends(), qr/^DONE 1, FAIL 1 40P01; one_._ccnew$/, 'one has failed, and left an index');
};

done_testing();
