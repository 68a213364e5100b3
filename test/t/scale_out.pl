# The recipes of docs/scale-out.md, run from the page: work is planned on one server and done by the
# task tables of two others, to which it goes by logical replication, or by foreign tables.  Servers
# crash meanwhile; each piece of work has its effect once.  A TAP test because it needs several
# servers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = q{
	max_worker_processes = 24
	wal_retrieve_retry_interval = '50 ms'
	max_replication_slots = 20
	max_wal_senders = 20};
my ($hub, $east, $west) =
  map { new_node($_, init => { allows_streaming => 'logical' }, conf => $conf) } qw(hub east west);
my %server = (hub => $hub, east => $east, west => $west);
my %block = named_blocks('scale-out.md');
my %unused = map { $_ => 1 } grep { $_ ne 'mailbox' } keys %block;    # that is for citus.pl

# A block of the page, with the addresses of these servers.  "in_west": it says of west what it says
# of east.
sub text_of
{
	my ($name, $in_west) = @_;
	my $text = $block{$name} // die "the page has no block $name";

	delete $unused{$name};
	$text =~ s/east/west/g if $in_west;
	$text =~ s{host=(\w+)\ dbname=app}
		{'host=' . $server{$1}->host . ' port=' . $server{$1}->port . ' dbname=postgres'}gex;
	$text =~ s{host\ '(\w+)',\ dbname\ 'app'}
		{"host '" . $server{$1}->host . "', port '" . $server{$1}->port . "', dbname 'postgres'"}gex;
	return $text;
}

# Runs a block on a server; what it says of the node east is said of west there.
sub run_block
{
	my ($name, $node, $db) = @_;
	my $text = text_of($name, $node == $west && $block{$name} !~ /west/);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->command_ok(psql_command($node, $db // 'postgres', $text), "$name on " . $node->name);
	return;
}

sub on
{
	my ($node, $query, %opt) = @_;

	return sql($query, %opt, node => $node);
}

# Plans work of a queue at the hub, one piece for each of these numbers.
sub plan_many
{
	my ($queue, $first, $last) = @_;

	on($hub, "SELECT count(plan_work('$queue', jsonb_build_object('n', n)))
		FROM generate_series($first, $last) AS n");
	return;
}

# How many of these numbers have an effect on either node, and how many have more than one.
sub effects
{
	my ($first, $last) = @_;
	my %count;

	for my $node ($east, $west)
	{
		$count{$_}++ for split /\n/, on($node, "SELECT input ->> 'n' FROM effect
			WHERE (input ->> 'n')::int BETWEEN $first AND $last");
	}
	return keys(%count) . ' effects, ' . grep({ $_ > 1 } values %count) . ' twice';
}

# No more tasks of a queue ran at once than this, and so many did; all of them on one node.
sub is_limited
{
	my ($queue, $max) = @_;
	my @most = map { on($_, "SELECT max(n) FROM (SELECT count(*) AS n FROM task AS a JOIN task AS b
		ON b.queue = a.queue AND b.start <= a.start AND b.stop > a.start
		WHERE a.queue = '$queue' AND a.start < a.stop GROUP BY a.id) AS t") } $east, $west;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply([ sort @most ], [ '', $max ], "the limit of the queue $queue holds");
	return;
}

for my $node ($east, $west)
{
	run_block('node', $node);
	make_gates($node);
	on($node, q{CREATE TABLE effect (input jsonb);
		GRANT SELECT ON gate TO worker;
		GRANT INSERT ON effect TO worker;
		INSERT INTO task_queue (queue, max) VALUES ('mail', 2), ('press', 2);
		ALTER FUNCTION perform RENAME TO perform_now;
		CREATE FUNCTION perform(queue text, input jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
		BEGIN
			IF queue LIKE 'gate%' THEN
				PERFORM hold(queue);
			ELSIF queue <> 'cost' THEN
				PERFORM pg_sleep(0.01);
			END IF;
			INSERT INTO effect VALUES (input);
			RETURN perform_now(queue, input);
		END $$});
}
run_block($_, $hub) for qw(homes hub);
run_block('subscribe', $_) for $east, $west;
run_block('back', $hub);
my ($plan_work) = text_of('hub') =~ /^(CREATE FUNCTION plan_work.*?^\$\$;)/ms;

subtest 'from the hub to a node and back' => sub {
	wait_until($hub, q{SELECT result FROM outcome}, expected => 42);
	is(on($east, 'SELECT state, role, queue FROM task'), 'DONE|worker|mail', 'the task');
	is(on($east, q{SELECT prosecdef, proacl FROM pg_proc WHERE proname = 'work_arrives'}),
		't|{worker=X/worker}', 'nobody else puts its trigger on another table');
	my $bad = on($hub, q{SELECT plan_work('bad', '{"n": "x"}')});
	wait_until($hub, "SELECT error FROM outcome WHERE id = '$bad'",
		expected => 'invalid input syntax for type integer: "x"');
	pass('an error comes back');
	my ($node) = grep { count_of($_, "flow = '$bad'") } $east, $west;
	on($node, qq{DELETE FROM outcome WHERE id = '$bad';
		UPDATE task SET input = jsonb_set(input, '{input,n}', '1') WHERE flow = '$bad'
			AND step IS NOT NULL});
	wait_until($hub, "SELECT count(*) FROM outcome WHERE id = '$bad'", expected => 0);
	on($node, "SELECT pg_task_retry(id) FROM task WHERE flow = '$bad' AND step IS NOT NULL");
	wait_until($hub, "SELECT error IS NULL AND result = '2' FROM outcome WHERE id = '$bad'");
	pass('run again, it succeeds');
};

# The tasks that run when a server crashes wait for their gates, so there are such.
subtest 'crashes' => sub {
	on($hub, q{INSERT INTO home VALUES ('gate 1', 'east'), ('gate 2', 'west')});
	plan_many('gate 1', 101, 101);
	plan_many('gate 2', 102, 102);
	wait_until($_, q{SELECT count(*) FROM task WHERE queue LIKE 'gate%' AND state = 'WORK'},
		expected => 1) for $east, $west;
	plan_many('mail', 103, 151);
	plan_many("queue $_", 1000 * $_, 1000 * $_ + 144) for 1 .. 10;
	kill_server($east);
	plan_many('mail', 152, 200);
	$west->stop('immediate');
	plan_many("queue $_", 1000 * $_ + 145, 1000 * $_ + 289) for 1 .. 5;
	$west->start;
	$east->start;
	wait_until($hub, q{SELECT count(*) > 1000 FROM outcome});
	plan_many("queue $_", 1000 * $_ + 145, 1000 * $_ + 289) for 6 .. 10;
	$hub->stop('immediate');
	for my $node ($east, $west)
	{
		open_gate($node, $_) for 'gate 1', 'gate 2';
		wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
	}
	pass('without the hub, nodes do what they have');
	$hub->start;
	wait_until($hub, q{SELECT count(*) FROM outcome}, expected => 3002);
	is(effects(101, 99999), '3000 effects, 0 twice', 'each has its effect once');
	is(on($hub, q{SELECT count(*) FROM work JOIN outcome USING (id, node)
		WHERE queue = 'bad' OR result = to_jsonb((input ->> 'n')::int * 2)}), 3002,
		'each has its result');
	is(on($_, q{SELECT state, attempt FROM task WHERE queue LIKE 'gate%'}), 'DONE|2',
		$_->name . ' has crashed in the middle of one') for $east, $west;
	is_limited('mail', 2);
};

# A subscription that is made anew copies all rows: what must be done when a slot is lost.
subtest 'rows that arrive again' => sub {
	on($hub, q{INSERT INTO home VALUES ('later', 'east')});
	on($east, q{INSERT INTO task_queue (queue, paused) VALUES ('later', true)});
	plan_many('later', 501, 502);
	wait_until($east, q{SELECT count(*) FROM task WHERE queue = 'later'}, expected => 2);
	# one that has not run comes again; of one that has, the outcome is enough
	on($east, q{DELETE FROM task WHERE id = (SELECT min(id) FROM task WHERE queue = 'later')
		OR id = (SELECT min(id) FROM task WHERE state = 'DONE')});
	for my $node ($east, $west)
	{
		my $name = $node->name;
		my ($again) = text_of('subscribe', $node == $west) =~ /^(CREATE SUBSCRIPTION .*?;)/ms;
		my $count = on($node, 'SELECT count(*) FROM task');

		on($node, "DROP SUBSCRIPTION work_for_$name");
		on($node, $again);
		wait_until($node, q{SELECT string_agg(srsubstate::text, '') FROM pg_subscription_rel},
			expected => 'r');
		is(on($node, 'SELECT count(*) FROM task'), $count + ($node == $east),
			"$name plans what it has not got, and nothing else");
	}
	my ($back) = text_of('back') =~ /^(CREATE SUBSCRIPTION .*?;)/ms;
	my $count = on($hub, 'SELECT count(*) FROM outcome');

	on($hub, 'DROP SUBSCRIPTION outcome_of_east');
	on($hub, q{DELETE FROM outcome WHERE node = 'east'});
	on($hub, $back);
	wait_until($hub, 'SELECT count(*) FROM outcome', expected => $count);
	pass('the hub gets the outcomes again');
	on($east, q{UPDATE task_queue SET paused = false WHERE queue = 'later'});
	wait_until($hub, q{SELECT count(*) FROM outcome JOIN work USING (id) WHERE queue = 'later'},
		expected => 2);
	is(effects(101, 99999), '3002 effects, 0 twice', 'each has its effect once');
	on($east, q{INSERT INTO task (queue, input, request) SELECT 'stamp', input, request FROM task
		WHERE queue = 'later' AND input -> 'input' ->> 'n' = '501'});
	wait_until($east, q{SELECT state, sqlstate FROM task WHERE queue = 'stamp'},
		expected => 'FAIL|23505');
	is(effects(501, 501), '1 effects, 0 twice', 'also beside a second task');
};

# Those who plan while the home of the queue changes have the old one or the new one.
subtest 'a queue moves' => sub {
	is(on($hub, q{SELECT node FROM home WHERE queue = 'mail'}), 'east', 'its home');
	on($west, q{INSERT INTO task_queue (queue, paused) VALUES ('mail', true)
		ON CONFLICT (queue) DO UPDATE SET paused = true});
	my $planner = open_session($hub, 'postgres');
	$planner->query_safe(q{BEGIN; SELECT plan_work('mail', '{"n": 601}')});
	my $move = IPC::Run::start(psql_command($hub, 'postgres', text_of('move')), '>', \my $left);
	wait_until($hub, q{SELECT count(*) FROM pg_locks WHERE NOT granted}, expected => 1);
	my $late = IPC::Run::start(
		psql_command($hub, 'postgres', q{SELECT plan_work('mail', '{"n": 602}')}), '>', \my $id);
	wait_until($hub, q{SELECT count(*) FROM pg_locks WHERE NOT granted}, expected => 2);
	$planner->query_safe('COMMIT');
	$planner->quit;
	ok($_->finish, 'it succeeds') for $move, $late;
	is(on($hub, q{SELECT string_agg(node, ' ' ORDER BY input ->> 'n') FROM work
		WHERE input ->> 'n' IN ('601', '602')}), 'east west', 'one before, one after');
	wait_until($hub, (split /COMMIT;/, text_of('move'))[1], expected => 0);
	is(effects(601, 602), '1 effects, 0 twice', 'the new home waits for the old one');
	on($west, q{UPDATE task_queue SET paused = false WHERE queue = 'mail'});
	wait_until($hub, q{SELECT count(*) FROM work LEFT JOIN outcome USING (id)
		WHERE outcome.id IS NULL}, expected => 0);
	is(effects(601, 602), '2 effects, 0 twice', 'then it begins');
	on($west, 'DELETE FROM outcome');
	wait_until($hub, q{SELECT count(*) FROM outcome WHERE node = 'west'}, expected => 0);
	pass('what is deleted on a node is deleted at the hub');
};

subtest 'the role and the trigger in an apply worker' => sub {
	on($hub, q{INSERT INTO home VALUES ('own', 'east')});
	on($east, q{ALTER FUNCTION work_arrives() SECURITY INVOKER;
		ALTER TABLE work OWNER TO worker;
		CREATE FUNCTION probe() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
		BEGIN
			INSERT INTO task (queue, cron, request) VALUES ('cron', '0 0 1 1 *', 'SELECT 1');
			INSERT INTO task (queue, flow, step, dt, request)
			VALUES ('flow', 'f', 'one', now() + '1 h', 'SELECT 1');
			INSERT INTO task (queue, flow, step, needs, request)
			VALUES ('flow', 'f', 'two', '{one}', 'SELECT 2');
			RETURN NEW;
		END $$;
		CREATE TRIGGER a_probe BEFORE INSERT ON work FOR EACH ROW EXECUTE FUNCTION probe();
		ALTER TABLE work ENABLE ALWAYS TRIGGER a_probe});
	plan_many('own', 701, 701);
	wait_until($east, q{SELECT count(*) FROM task WHERE queue = 'own'}, expected => 1);
	is(on($east, q{SELECT role FROM task WHERE queue = 'own'}), on($east, q{SELECT
		CASE WHEN current_setting('server_version_num')::int < 160000 THEN subowner::regrole
			ELSE 'worker'::regrole END FROM pg_subscription}),
		'the owner of the subscription before 16, then that of the table');
	# as for a row that has come from elsewhere, nothing is worked out
	wait_until($east, q{SELECT string_agg(state, ' ' ORDER BY id) FROM task
		WHERE queue = 'cron' AND dt < now() OR step = 'two'}, expected => 'DONE DONE');
	is(on($east, q{SELECT state FROM task WHERE step = 'one'}), 'PLAN',
		'a schedule runs once at once, and needs is not heeded');
	on($east, q{DROP TRIGGER a_probe ON work;
		ALTER FUNCTION work_arrives() SECURITY DEFINER; ALTER TABLE work OWNER TO CURRENT_USER});
};

# The ids of work that goes through the router, by its number.
my %id;

# Plans it, also again; returns the SQLSTATE if that fails.
sub route
{
	my ($n) = @_;
	my $queue = $n % 2 ? 'press' : 'other';

	$id{$n} //= on($hub, 'SELECT gen_random_uuid()');
	return sqlstate_of('postgres', "SELECT plan_work('$queue', '{\"n\": $n}', '$id{$n}')",
		node => $hub, db => 'router');
}

subtest 'foreign partitions' => sub {
	$hub->safe_psql('postgres', 'CREATE DATABASE router');
	run_block($_, $hub, 'router') for qw(homes router);
	my ($partition) = text_of('router', 1) =~ /^(CREATE SERVER.*)/ms;
	on($hub, $partition, db => 'router');
	on($hub, $plan_work, db => 'router');
	run_block('planner', $_) for $east, $west;
	on($hub, q{INSERT INTO home VALUES ('press', 'east'), ('other', 'west')}, db => 'router');
	is(join('', map { route($_) } 801 .. 830), '', 'while both nodes are there');
	kill_server($east);
	is(join(' ', map { route($_) || 'fine' } 831 .. 834), '08001 fine 08001 fine',
		'one node is down');
	$east->start;
	on($east, q{UPDATE task_queue SET paused = true WHERE queue = 'press'});
	is(join('', map { route($_) } 801 .. 860), '', 'all of it again, with the same ids');
	on($east, q{UPDATE task_queue SET paused = false WHERE queue = 'press'});
	my $ids = join ', ', map { "'$_'" } values %id;
	wait_until($hub, "SELECT count(*) FROM outcome WHERE id IN ($ids)", db => 'router',
		expected => 60);
	is(effects(801, 860), '60 effects, 0 twice', 'each has its effect once');
	is_limited('press', 2);
};

# A transaction that fails while it commits: by then its remote part has committed.
subtest 'a COMMIT that fails' => sub {
	on($hub, q{CREATE TABLE pair AS SELECT n FROM generate_series(1, 2) AS n}, db => 'router');
	my ($one, $two) = map { open_session($hub, 'router', on_error_stop => 0) } 1, 2;
	$_->query_safe('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(n) FROM pair') for $one, $two;
	$one->query_safe('UPDATE pair SET n = 3 WHERE n = 1');
	$two->query_safe(q{UPDATE pair SET n = 4 WHERE n = 2;
		SELECT plan_work('press', '{"n": 901}', '0c7b1b3e-0000-4000-8000-000000000901')});
	$one->query_safe('COMMIT');
	$two->query('COMMIT');
	like($two->{stderr}, qr/could not serialize access/, 'it fails');
	$_->quit for $one, $two;
	wait_until($east, q{SELECT count(*) FROM effect WHERE input ->> 'n' = '901'}, expected => 1);
	pass('the work is done all the same');
	on($hub, q{SELECT plan_work('press', '{"n": 901}', '0c7b1b3e-0000-4000-8000-000000000901')},
		db => 'router');
	wait_until($east, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')
		AND queue = 'press'});
	is(effects(901, 901), '1 effects, 0 twice', 'again with the same id: once');
};

subtest 'a foreign table on the task table' => sub {
	my $insert = q{INSERT INTO task_at_east VALUES ('order 17', 'ship', 'default', 'SELECT 17')
		ON CONFLICT DO NOTHING};

	on($east, 'GRANT SELECT, INSERT ON task TO planner');
	on($hub, q{CREATE FOREIGN TABLE task_at_east (flow text, step text, queue text, request text)
		SERVER east OPTIONS (table_name 'task')}, db => 'router');
	on($hub, $insert, db => 'router');
	wait_until($east, q{SELECT string_agg(concat_ws(' ', role, state, response), ',') FROM task
		WHERE flow = 'order 17'}, expected => 'planner DONE 17');
	on($hub, $insert, db => 'router');
	is(count_of($east, q{flow = 'order 17'}), 1, 'inserted twice, there is one');
	is(sqlstate_of('postgres', q{INSERT INTO task_at_east (request) VALUES ('SELECT 18')},
		node => $hub, db => 'router'), '23502', 'what is left out is NULL');
};

# What docs/scale-out.md says of costs comes from more rows and rounds: then they are printed.
my ($rows, $rounds) = (200, 1);

# How work is planned: on which server, in which database, by which statement.
my $input = q{jsonb_build_object('n', 1, 't', clock_timestamp())};
my %way = (
	'local' => [ $east, 'postgres',
		"INSERT INTO work SELECT gen_random_uuid(), 'east', 'cost', $input" ],
	'foreign' => [ $hub, 'router', "SELECT plan_work('cost', $input)" ],
	'hub' => [ $hub, 'postgres', "SELECT plan_work('cost', $input)" ]);

# Runs the statement of a way many times, and returns what pgbench says.
sub pgbench
{
	my ($way, @options) = @_;
	my ($node, $db, $statement) = @{ $way{$way} };
	my $script = PostgreSQL::Test::Utils::tempdir() . "/$way.sql";

	append_to_file($script, "$statement;\n");
	my ($out) = run_command([ 'pgbench', '-n', '-f', $script, '-h', $node->host, '-p',
		$node->port, @options, $db ]);
	return $out;
}

my $outcomes = q{SELECT count(*) FROM outcome WHERE node = 'east'};

# Those of the node; the hub has none, or subscribes to their removal.
sub remove_outcomes
{
	on($east, 'TRUNCATE task; DELETE FROM outcome');
	wait_until($hub, $outcomes, expected => 0);
	return;
}

sub measure
{
	my ($way) = @_;

	remove_outcomes();
	my $sender = on($hub, q{SELECT pid FROM pg_stat_replication
		WHERE application_name = 'work_for_west'});
	my @before = (server_time($hub), server_time($east), time_of($sender, 2));
	my ($latency) = pgbench($way, '-c', 2, '-t', $rows / 2) =~ /latency average = ([\d.]+) ms/;

	wait_until($way eq 'hub' ? $hub : $east, $outcomes, expected => $rows);
	my @after = (server_time($hub), server_time($east), time_of($sender, 2));
	my @cost = map { ($after[$_] - $before[$_]) * 1000 / $rows } 0 .. 2;

	remove_outcomes();
	pgbench($way, '-c', 1, '-R', 50, '-t', 30);
	wait_until($east, $outcomes, expected => 30);
	my $delay = on($east, q{SELECT extract(epoch FROM percentile_cont(0.5) WITHIN GROUP
		(ORDER BY outcome.at - (input -> 'input' ->> 't')::timestamptz)) * 1000
		FROM outcome JOIN task ON flow = outcome.id::text});
	my $text = sprintf '%s, in ms: processor of hub %.3f, of node %.3f, of the walsender of the'
	  . ' other node %.3f; to plan %.2f, to the start %.2f', $way, @cost, $latency, $delay;

	$rounds > 1 ? diag($text) : note($text);
	return;
}

subtest 'costs' => sub {
	my ($again) = text_of('subscribe') =~ /^(CREATE SUBSCRIPTION .*?);/ms;
	my ($back) = text_of('back') =~ /^(CREATE SUBSCRIPTION .*?);/ms;

	set_conf($_, 'fsync = on') for $hub, $east, $west;
	wait_until($_, 'SHOW fsync', expected => 'on') for $hub, $east, $west;
	on($hub, q{INSERT INTO home VALUES ('cost', 'east')}, db => $_) for qw(postgres router);
	for my $round (1 .. $rounds)
	{
		on($east, 'DROP SUBSCRIPTION work_for_east');
		on($hub, 'DROP SUBSCRIPTION outcome_of_east');
		on($hub, q{DELETE FROM outcome WHERE node = 'east'});
		measure($_) for 'local', 'foreign';
		on($east, "$again WITH (copy_data = false)");
		on($hub, "$back WITH (copy_data = false)");
		measure('hub');
	}
	pass('each way has done all');
};

is(join(' ', sort keys %unused), '', 'every block of the page was run');
done_testing();
