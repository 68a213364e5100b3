# The names in a row (queue, key, time zone) are bounded, and so is the memory of the scheduler:
# the trigger rejects long names, and rows that bypass the trigger fail and are not kept in memory.
# A TAP test because it reads the memory use of a process.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', period => '1 s');

# The peak memory of processes of this kind, in MB.
sub peak_memory
{
	my ($kind) = @_;
	my ($pid) = backends($node, $kind);
	my ($kb) = slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+)/m;

	return $kb / 1024;
}

sql('CREATE ROLE tenant LOGIN; GRANT SELECT, INSERT, UPDATE ON task TO tenant');

subtest 'the trigger refuses long names' => sub {
	my %most = (queue => 255, key => 1000, timezone => 255, cron => 1000);
	for my $column (sort keys %most)
	{
		my $most = $most{$column};

		for my $length ($most, $most + 1)
		{
			my $value = 'x' x $length;
			$value = sprintf('%-*s', $length, '0 0 1 1 *') if $column eq 'cron';
			$value = '<' . 'x' x ($length - 3) . '>0' if $column eq 'timezone';
			my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n"
				. qq{INSERT INTO task ("$column", dt, request)
					VALUES ('$value', 'infinity', 'SELECT 1')},
				extra_params => [ '-U', 'tenant' ]);
			like($err, $length > $most
				? qr/23514: "$column" of a task must be at most $most bytes long/
				: qr/^$/,
				"$column of $length bytes: " . ($length > $most ? 'refused' : 'allowed'));
		}
	}
	my ($rc, $out, $err) = $node->psql('postgres', q{UPDATE task SET queue = repeat('x', 1000)},
		extra_params => [ '-U', 'tenant' ]);
	like($err, qr/at most 255 bytes/, 'an UPDATE is refused, too');
	sql('DELETE FROM task');
};

# Many such rows, bypassing the trigger, in all states that the scheduler reads.
subtest 'rows that bypass the trigger' => sub {
	run_task($node, request => 'SELECT 1');
	my $before = peak_memory('scheduler');
	my $position = log_position($node);
	sql(q{
		ALTER TABLE task ALTER queue SET COMPRESSION pglz;
		ALTER TABLE task DISABLE TRIGGER zz_pg_task_bound;
		INSERT INTO task (queue, timezone, dt, repeat, request)
			SELECT n || repeat('x', 100000), repeat('z', 1000000), '2020-01-01', '1 h', 'SELECT 1'
			  FROM generate_series(1, 200) AS n;
		INSERT INTO task (queue, state, attempt, request)
			SELECT n || repeat('w', 100000), 'WORK', 1, 'SELECT 1'
			  FROM generate_series(1, 100) AS n;
		INSERT INTO task (queue, timezone, active, dt, repeat, request)
			SELECT 'gone', repeat('z', 50000000), '1 s', '2020-01-01', '1 h', 'SELECT 1'
			  FROM generate_series(1, 3) AS n;
		ALTER TABLE task ENABLE ALWAYS TRIGGER zz_pg_task_bound});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
	is(sql(q{SELECT DISTINCT state, sqlstate, error FROM task WHERE length(queue) > 255}),
		'FAIL|22001|the name of the queue is longer than 255 bytes',
		'a row with a long queue is FAIL, with the error');
	is(count_of($node, 'length(queue) > 255'), 300, 'the task does not repeat');
	is(count_of($node, q{queue = 'gone' AND state = 'GONE'}), 3, 'a long zone: the row is GONE');
	cmp_ok(length(log_since($node, $position)), '<', 10_000_000,
		'the log stays short');
	my $grown = peak_memory('scheduler') - $before;
	cmp_ok($grown, '<', 40, 'the scheduler has not grown');
	note("by $grown MB");
	my $id = run_task($node, request => 'SELECT 1');
	is(task($node, $id, 'state'), 'DONE', 'other tasks run');
};

done_testing();
