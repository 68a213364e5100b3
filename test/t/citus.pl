# The mailbox of docs/scale-out.md on a Citus cluster of three nodes that crash, run from the page,
# and what docs/running.md says of tasks that write on other nodes.  Skipped unless the server has
# Citus, or PG_TASK_OTHER_SOURCES names a folder into which Citus was installed (DESTDIR):
#
#   PG_TASK_OTHER_SOURCES=/tmp/citus make test-citus
#
# A TAP test because it needs several servers.
use strict;
use warnings;
use File::Basename;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

# Is Citus among the files of the server?
sub has_citus
{
	chomp(my $share = qx(pg_config --sharedir));
	return -e "$share/extension/citus.control";
}

# Puts what is installed in a folder into a copy of the server.
sub add_citus
{
	my ($from) = @_;
	my %file = map { basename($_) => dirname($_) } split /\n/, qx(find '$from' -name 'citus.*');

	return unless $file{'citus.so'} && $file{'citus.control'};
	my ($bin, $lib, $share) = copy_server(PostgreSQL::Test::Utils::tempdir());
	system_or_bail('sh', '-c', "cp -a '$file{'citus.so'}'/. '$lib/' &&
		cp -a '$file{'citus.control'}'/. '$share/extension/'");
	$ENV{PATH} = "$bin:$ENV{PATH}";
	return;
}

add_citus($ENV{PG_TASK_OTHER_SOURCES}) if !has_citus() && $ENV{PG_TASK_OTHER_SOURCES};
plan skip_all => 'Citus is neither installed nor in PG_TASK_OTHER_SOURCES' unless has_citus();

my $conf = q{
	shared_preload_libraries = 'citus, pg_task'
	max_worker_processes = 24
	max_prepared_transactions = 100
	max_wal_senders = 20
	wal_level = logical
	pg_task.max_executors = 4
	citus.recover_2pc_interval = '1 s'
	citus.node_conninfo = 'sslmode=prefer'};
my ($head, $east, $west) = my @nodes = map { new_node($_, conf => $conf) } qw(head east west);

sub on
{
	my ($node, $query, %opt) = @_;

	return sql($query, %opt, node => $node);
}

# What a node answers, when it can be asked; otherwise ''.  A server that has crashed may be
# starting.
sub asked
{
	my ($node, $query) = @_;
	my ($rc, $out) = $node->psql('postgres', $query);

	return $rc == 0 ? $out : '';
}

# Waits until nothing waits or runs on any node, and no transaction is prepared.
sub wait_for_all
{
	wait_until($_, q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))
		AND NOT EXISTS (SELECT FROM pg_prepared_xacts)}) for @nodes;
	return;
}

# Lets nodes crash in turn, one by each of these methods, each time that so many more effects are
# there.
sub crash_in_turn
{
	my ($step, $rounds, @order) = @_;

	for my $round (1 .. $rounds)
	{
		my $node = $order[ $round % @order ];

		poll_for(sub { (asked($head, 'SELECT count(*) FROM effect') || 0) >= $step * $round })
		  or die "there are too few effects in round $round";
		if ($round % 2) { $node->stop('immediate') }
		else { kill_server($node) }
		$node->start;
	}
	return;
}

set_conf($_, "citus.local_hostname = '" . $_->host . "'") for @nodes;
on($_, 'CREATE EXTENSION citus') for @nodes;
on($head, sprintf q{SELECT citus_set_coordinator_host('%s', %d)}, $head->host, $head->port);
on($head, sprintf q{SELECT citus_add_node('%s', %d)}, $_->host, $_->port) for $east, $west;
on($head, q{
	CREATE ROLE app LOGIN;
	CREATE TABLE account (tenant bigint, number int, PRIMARY KEY (tenant, number));
	SELECT create_distributed_table('account', 'tenant', shard_count => 8)});
my %block = named_blocks('scale-out.md');
$head->command_ok(psql_command($head, 'postgres', $block{mailbox}), 'the block of the page');
on($head, q{
	CREATE TABLE effect (tenant bigint, n int);
	SELECT create_distributed_table('effect', 'tenant', colocate_with => 'account');
	GRANT SELECT, INSERT ON effect TO app;
	CREATE OR REPLACE FUNCTION perform(piece work) RETURNS jsonb LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_sleep(0.02);
		INSERT INTO effect VALUES ((piece).tenant, ((piece).input ->> 'n')::int);
		RETURN to_jsonb(((piece).input ->> 'n')::int * 2);
	END $$});

# Work is there once or not at all, so an application that got no answer plans it again.
sub insert_work
{
	my ($first, $last) = @_;

	return qq{INSERT INTO work (tenant, id, queue, input) SELECT n % 50,
		md5(n::text)::uuid, 'mail', jsonb_build_object('n', n)
		FROM generate_series($first, $last) AS n ON CONFLICT DO NOTHING};
}

subtest 'a mailbox' => sub {
	my $count = 'SELECT sum(result::int)
		FROM run_command_on_workers($$SELECT count(*) FROM task$$)';

	$head->safe_psql('postgres', insert_work(1, 20), extra_params => [ '-U', 'app' ]);
	wait_until($head, 'SELECT count(*) FROM outcome', expected => 20);
	is(on($head, q{SELECT count(*) FROM outcome JOIN work USING (tenant, id)
		WHERE result = to_jsonb((input ->> 'n')::int * 2)}), 20, 'each has its result');
	is(on($head, 'SELECT count(*) FROM task'), 0, 'none is done by the coordinator');
	is(on($_, q{SELECT DISTINCT role, state FROM task}), 'app|DONE', 'by ' . $_->name)
	  for $east, $west;
	is(on($head, $count), 20, 'each is one task');
	$head->safe_psql('postgres', insert_work(1, 20), extra_params => [ '-U', 'app' ]);
	is(on($head, $count), 20, 'planned again, it is still one');
	$head->safe_psql('postgres',
		q{INSERT INTO work (tenant, queue, input) VALUES (7, 'mail', '{"n": "x"}')},
		extra_params => [ '-U', 'app' ]);
	wait_until($head, q{SELECT error FROM outcome WHERE error IS NOT NULL},
		expected => 'invalid input syntax for type integer: "x"');
	pass('an error is an outcome');
	on($head, 'TRUNCATE work, outcome, effect');
};

subtest '3,000 pieces of work while nodes crash' => sub {
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my $connection = $head->connstr('postgres') . ' user=app';

	# An application that goes on to the next hundred when these are committed.
	append_to_file("$folder/plan.sh", 'for n in $(seq 1 100 2901); do until psql -XAtq -d '
		. qq{"$connection" -c "} . (insert_work('$n', '$((n + 99))') =~ s/\$/\$/gr)
		. qq{" 2>/dev/null; do :; done; done\n});
	my $application = IPC::Run::start([ 'sh', "$folder/plan.sh" ]);

	crash_in_turn(400, 6, $east, $west, $head);
	ok($application->finish, 'all is planned');
	wait_until($head, 'SELECT count(*) FROM outcome', expected => 3000);
	wait_for_all();
	is(on($head, 'SELECT count(*), count(DISTINCT n) FROM effect'), '3000|3000',
		'each has its effect once');
	cmp_ok(on($_, 'SELECT sum(attempt) - count(*) FROM task'), '>', 0,
		'runs on ' . $_->name . ' were interrupted') for $east, $west;
};

# The waiting work of a tenant whose shard has moved is done where it was planned.
subtest 'a shard moves' => sub {
	my %port = map { $_->port => $_ } $east, $west;

	for my $mode ('block_writes', 'force_logical')
	{
		my $n = $mode eq 'block_writes' ? 4001 : 4002;
		my $place = q{SELECT nodeport, nodename, shardid FROM citus_shards
			WHERE shardid = get_shard_id_for_distribution_column('work', 1)};
		my ($port, $host, $shard) = split /\|/, on($head, $place);
		my ($from, $to) = $port == $east->port ? ($east, $west) : ($west, $east);

		on($from, q{INSERT INTO task_queue (queue, paused) VALUES ('mail', true)
			ON CONFLICT (queue) DO UPDATE SET paused = true});
		on($head, insert_work($n, $n) =~ s/n % 50/1/r);
		my $tasks = on($to, 'SELECT count(*) FROM task');
		on($head, sprintf q{SELECT citus_move_shard_placement(%d, '%s', %d, '%s', %d, '%s')},
			$shard, $host, $port, $to->host, $to->port, $mode);
		is((split /\|/, on($head, $place))[0], $to->port, "$mode: it has moved");
		is(on($to, 'SELECT count(*) FROM task'), $tasks, 'no task comes with it');
		on($from, q{UPDATE task_queue SET paused = false});
		wait_until($head, "SELECT count(*) FROM outcome WHERE id = md5('$n')::uuid", expected => 1);
		is(on($head, "SELECT count(*) FROM effect WHERE n = $n"), 1, 'its work is done once');
		on($head, insert_work($n + 10, $n + 10) =~ s/n % 50/1/r);
		wait_until($to, "SELECT state FROM task
			WHERE input -> 'input' ->> 'n' = '" . ($n + 10) . "'", expected => 'DONE');
		pass('new work is done where the shard is now');
	}
};

# Tasks of the coordinator that write on one other node, and into a table by which there are two.
subtest '3,000 tasks with a stamp while nodes crash' => sub {
	on($head, q{TRUNCATE effect;
		CREATE TABLE stamp (at timestamptz);
		SELECT citus_add_local_table_to_metadata('stamp');
		ALTER DATABASE postgres SET pg_task.keep_failed = -1});
	on($head, q{INSERT INTO task (queue, retry, delay, request) SELECT 'stamp', 1000, '100 ms',
			format('INSERT INTO stamp VALUES (now()); INSERT INTO effect VALUES (%s, %s)', n % 50, n)
		FROM generate_series(1, 3000) AS n});
	crash_in_turn(400, 6, $east, $west, $head);
	wait_until($head, q{SELECT count(*) FROM task WHERE queue = 'stamp' AND state = 'DONE'},
		expected => 3000);
	wait_for_all();
	is(on($head, 'SELECT count(*), count(DISTINCT n) FROM effect'), '3000|3000',
		'each has its effect once');
	cmp_ok(on($head, q{SELECT count(*) FROM task WHERE queue = 'stamp' AND attempt > 1}), '>', 0,
		'some have run again');
};

# What docs/scale-out.md says of costs comes from more rows and rounds: then they are printed.
my ($rows, $rounds) = (200, 1);

# Runs a statement so many times on a node, each time in a transaction of its own.
sub run_many
{
	my ($node, $statement) = @_;
	my $script = file_of("\\set n random(1, 1000000)\n$statement;\n");

	run_log([ 'pgbench', '-n', '-c', 2, '-t', $rows / 2, '-f', $script, '-h', $node->host, '-p',
		$node->port, 'postgres' ], '>', \my $out) or die 'pgbench has failed';
	return;
}

# Tells the processor time of all nodes, for each task that this statement plans.
sub measure
{
	my ($name, $node, $statement) = @_;

	on($_, 'TRUNCATE task') for @nodes;
	on($head, 'TRUNCATE effect, work, outcome');
	my @before = map { server_time($_) } @nodes;
	run_many($node, $statement);
	wait_for_all();
	my @after = map { server_time($_) } @nodes;
	my $text = sprintf '%s: %.3f, %.3f, %.3f ms of processor time of the nodes for a task', $name,
	  map { ($after[$_] - $before[$_]) * 1000 / $rows } 0 .. 2;
	$rounds > 1 ? diag($text) : note($text);
	return;
}

subtest 'costs' => sub {
	my $local = on($head, q{SELECT string_agg(n::text, ',') FROM (SELECT n
		FROM generate_series(1, 1000) AS n JOIN citus_shards ON
			shardid = get_shard_id_for_distribution_column('effect', n)
		WHERE nodeport = } . $east->port . q{ LIMIT 4) AS t});

	on($east, 'CREATE TABLE plain (tenant bigint, n int)');
	on($head, q{CREATE OR REPLACE FUNCTION perform(piece work) RETURNS jsonb LANGUAGE plpgsql AS
		$$BEGIN RETURN 1; END$$});
	set_conf($_, 'fsync = on') for @nodes;
	wait_until($_, 'SHOW fsync', expected => 'on') for @nodes;
	for my $round (1 .. $rounds)
	{
		measure('a local table', $east, "INSERT INTO task (request)
			VALUES ('INSERT INTO plain VALUES (:n, :n)')");
		measure('the node of its shard', $east, "INSERT INTO task (request)
			VALUES (format('INSERT INTO effect VALUES (%s, 1)', (ARRAY[$local])[1 + :n % 4]))");
		measure('any node', $east, "INSERT INTO task (request)
			VALUES ('INSERT INTO effect VALUES (:n, :n)')");
		measure('the coordinator', $head, "INSERT INTO task (request)
			VALUES ('INSERT INTO effect VALUES (:n, :n)')");
		measure('the mailbox', $head, "INSERT INTO work (tenant, queue, input)
			VALUES (:n, 'cost', '1')");
		measure('the mailbox, planned on the node', $east, "INSERT INTO work (tenant, queue, input)
			VALUES ((ARRAY[$local])[1 + :n % 4], 'cost', '1')");
	}
	pass('each way has done all');
};

done_testing();
