# The examples of docs/queues.md: each block of SQL is run, in order, and what it promises is
# checked.  A TAP test because tasks run, and because a table is partitioned while they do.
#
# Comments in the manual say where the following blocks run: <!-- database: name -->.  A block that
# only inserts, with ON CONFLICT, is run twice.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => 'pg_task.max_executors = 4');
my $db = 'postgres';

wait_for_table($node, table => 'task_queue');

# Waits until nothing of these rows waits or runs.
sub wait_for_end
{
	my ($condition) = @_;

	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task
		WHERE state IN ('PLAN', 'WORK') AND $condition)", db => $db);
}

# Waits until the scheduler has completed the table that a block has created.
sub wait_for_columns
{
	wait_until($node, q{SELECT count(*) = 1 FROM pg_trigger WHERE tgrelid = to_regclass('task')
		AND tgname = 'pg_task_planned'},
		db => $db);
}

sub is_sql
{
	my ($query, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql_in($db, $query), $expected, $name);
}

# How many tasks of a key there are, and in which state.
sub is_single
{
	my ($key, $expected) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_sql("SELECT string_agg(state, ',') FROM task WHERE key = '$key'", $expected,
		"$key: one task");
}

# What is checked after the last block under a heading.
my %check = (
	'Limits' => sub {
		wait_for_end(q{queue IN ('mail', 'slow service')});
		is_sql(q{SELECT max(start) - min(start) > '150 ms' FROM task WHERE queue = 'slow service'},
			't', 'a pause between two starts');
	},
	'Pause one task' => sub {
		wait_until($node, q{SELECT count(*) > 2 FROM task WHERE queue = 'pulse' AND state = 'DONE'});
		is_sql(q{SELECT count(*) FROM task WHERE queue = 'pulse' AND next IS NULL}, 1,
			'it goes on, in one chain');
		sql(q{UPDATE task SET state = 'STOP' WHERE queue = 'pulse' AND state IN ('PLAN', 'WORK')});
	},
	'Order per customer' => sub { wait_for_end(q{queue LIKE 'customer.%'}) },
	'Drop the duplicate' => sub { wait_for_end(q{key = 'refresh'}) },
	'Plan the waiting one anew' => sub {
		is_single('report', 'PLAN');
		is_sql(q{SELECT dt > now() + '90 min' FROM task WHERE key = 'report'}, 't',
			'it has the last time');
	},
	'Run again after a change' => sub {
		wait_for_end(q{queue = 'copy'});
		is_sql('SELECT body FROM copied WHERE id = 1', 'second', 'the change is copied');
	},
	'Debounce' => sub {
		is_single(2, 'PLAN');
		is_single(3, 'PLAN');
		is_sql(q{SELECT dt - event BETWEEN '5 s' AND '1 min' FROM task WHERE key = '3'}, 't',
			'it is planned after the last event, and not too late');
		sql(q{UPDATE task SET event = now() - interval '59 s' WHERE key = '3'});
		return 'again';
	},
	'Debounce again' => sub {
		is_sql(q{SELECT dt < now() + '2 s' FROM task WHERE key = '3'}, 't',
			'it is planned a minute after the first event at the latest');
	},
	'Throttle' => sub {
		is_sql(q{SELECT count(*) FROM task WHERE key = 'all' AND start IS NOT NULL}, 1,
			'one start');
		is_sql(q{SELECT dt = date_trunc('minute', dt) AND dt > now() - interval '10 s'
			FROM task WHERE key = 'by the minute' ORDER BY id LIMIT 1}, 't', 'at a full minute');
	},
	'Once in a while' => \&check_once,
	'Repeating tasks' => sub { is_single('nightly', 'PLAN') },
	'Bulk' => sub {
		wait_for_end(q{queue LIKE 'lot %'});
		is_sql(q{SELECT count(*) FROM task WHERE queue LIKE 'lot %' AND state = 'DONE'}, 5002,
			'all are DONE');
	},
	'By id' => \&check_partitions,
	'By time' => sub {
		is_sql(q{SELECT string_agg(relid::text, ', ' ORDER BY relid::text)
			FROM pg_partition_tree('task') WHERE isleaf}, 'task_later, task_now',
			'the old partition is gone');
		like(error_of('postgres', q{INSERT INTO task (dt, request) VALUES ('2019-07-01', 'x')},
				db => $db),
			qr/no partition of relation "task"/, 'as the manual says');
		wait_for_end(q{dt < 'infinity'});
		is_sql(q{SELECT string_agg(state || ' ' || tableoid::regclass, ', ' ORDER BY state)
			FROM task}, 'DONE task_now, DONE task_now, PLAN task_later', 'tasks run, or wait');
	},
	'Keys in a partitioned table' => sub {
		wait_for_end(q{key = 'report'});
		is_sql(q{SELECT plan_alone('other', 'SELECT pg_sleep(0.2)'),
			plan_alone('other', 'SELECT pg_sleep(0.2)')}, '|', 'twice in one transaction');
		wait_for_end(q{key = 'other'});
		is_single('other', 'DONE');
	});

# What is done after one block, by its database.
my %after = (
	by_id => sub {
		wait_for_columns();
		wait_for_end('true');
	},
	by_time => sub {
		wait_for_columns();
		sql_in($db, q{INSERT INTO task (dt, request) VALUES ('2019-07-01', 'SELECT 1'),
			('infinity', 'SELECT 2')});
		sql_in($db, q{UPDATE task SET dt = '2020-07-01' WHERE request = 'SELECT 1'});
		wait_for_end(q{dt < 'infinity'});
		sql_in($db, q{INSERT INTO task (dt, request) VALUES (now(), 'SELECT 3');
			UPDATE task SET state = 'PLAN', dt = now() WHERE request = 'SELECT 1'});
	},
	by_queue => sub {
		wait_for_columns();
		for (1 .. 2)
		{
			sql_in($db, q{INSERT INTO task (queue, key, dt, request) VALUES ('q', 'k', now() + '1 h',
				'SELECT 1') ON CONFLICT (queue, key)
				WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
				DO UPDATE SET dt = excluded.dt, request = 'SELECT 2'});
		}
		is_sql(q{SELECT request FROM task WHERE key = 'k'}, 'SELECT 2', 'a key in a queue of its own');
	});

# Many sessions plan the same once in a while, and it is planned once.
sub check_once
{
	my $script = PostgreSQL::Test::Utils::tempdir() . '/once.sql';

	wait_for_end(q{queue = 'once'});
	is_sql(q{SELECT plan_once('once', 'invoice 7', 'SELECT 8', '1 h') IS NULL}, 't',
		'not again after DONE');
	is_sql(q{SELECT plan_once('once', 'invoice 7', 'SELECT 8', '0 s') IS NULL}, 'f',
		'again when the pause is over');
	append_to_file($script, q{SELECT plan_once('once', 'race', 'SELECT 9', '1 h');});
	$node->command_ok([ 'pgbench', '-n', '-c', 8, '-t', 50, '-f', $script, 'postgres' ],
		'many sessions plan it');
	wait_for_end(q{queue = 'once'});
	is_single('race', 'DONE');
}

# Partitions are detached while tasks are inserted and run.
sub check_partitions
{
	my $script = PostgreSQL::Test::Utils::tempdir() . '/insert.sql';
	my $position = log_position($node);
	my @gone;

	sql_in($db, 'DROP TABLE task_2;
		CREATE TABLE part_0 PARTITION OF task FOR VALUES FROM (0) TO (200)');
	sql_in($db, "CREATE TABLE part_$_ PARTITION OF task
		FOR VALUES FROM ($_ * 200) TO ($_ * 200 + 200)") for 1 .. 20;
	append_to_file($script, q{INSERT INTO task (queue, max, request) SELECT 'moving', 3, 'SELECT 1'
		FROM generate_series(1, 5);});
	my $pgbench = IPC::Run::start([ 'pgbench', '-n', '-c', 2, '-t', 100, '-f', $script, '-h',
		$node->host, '-p', $node->port, $db ], '>', \my $out, '2>', \my $err);
	for my $part (0 .. 3)
	{
		my $how = $part % 2 ? 'CONCURRENTLY' : '';

		wait_until($node, "SELECT max(id) >= $part * 200 + 200 FROM task", db => $db);
		wait_for_end("id < $part * 200 + 200");
		sql_in($db, "ALTER TABLE task DETACH PARTITION part_$part $how");
		push @gone, "part_$part";
	}
	ok($pgbench->finish, 'no INSERT has failed');
	wait_for_end('true');
	is_sql('SELECT count(*), count(*) FILTER (WHERE state = \'DONE\' AND attempt = 1) FROM ('
		. join(' UNION ALL ', map { "SELECT * FROM $_ WHERE queue = 'moving'" } 'task', @gone)
		. ') AS t', '1000|1000', 'each task has run once');
	unlike(log_since($node, $position), qr/ERROR/, 'nothing has failed');
}

# The blocks of the manual: their heading, database and SQL.
sub blocks_of
{
	my ($file) = @_;
	my ($heading, $database, $sql, @blocks) = ('', 'postgres');

	for my $line (split /^/, slurp_file($file))
	{
		if (defined $sql)
		{
			$sql .= $line unless $line =~ /^```$/;
			next unless $line =~ /^```$/;
			push @blocks, { heading => $heading, database => $database, sql => $sql };
			undef $sql;
		}
		elsif ($line =~ /^#+ (.*)/) { $heading = $1; }
		elsif ($line =~ /^<!-- database: (\w+) -->/) { $database = $1; }
		elsif ($line =~ /^```sql$/) { $sql = ''; }
	}
	return @blocks;
}

sub run_block
{
	my ($block) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/block.sql';

	unlink $file;
	append_to_file($file, $block->{sql});
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->command_ok([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db),
		'-f', $file ], "$block->{heading}: " . $block->{sql} =~ s/\n.*//sr);
}

my @blocks = blocks_of("$FindBin::RealBin/../../docs/queues.md");
my %made = (postgres => 1);

for my $i (0 .. $#blocks)
{
	my ($block, $next) = @blocks[ $i, $i + 1 ];

	$db = $block->{database};
	sql("CREATE DATABASE $db") unless $made{$db};
	wait_for_table($node, db => $db);
	run_block($block);
	run_block($block) if $block->{sql} =~ /ON CONFLICT/ && $block->{sql} !~ /CREATE|ALTER/;
	$after{$db}->() unless $made{$db}++ || !$after{$db};
	next if $next && $next->{heading} eq $block->{heading};
	if (my $check = delete $check{ $block->{heading} })
	{
		my $again = $check->() // '';

		if ($again eq 'again')
		{
			run_block({ %$block, sql => $block->{sql} =~ s/^ALTER.*\n//r });
			delete($check{"$block->{heading} again"})->();
		}
	}
}
is_deeply([ keys %check ], [], 'each heading was there');

done_testing();
