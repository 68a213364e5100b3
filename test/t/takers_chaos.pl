# Programs take tasks and end them in transactions with their effects, while a "monkey" kills them,
# terminates the scheduler and its processes, and stops the server and starts it again.  In the end
# each task has had its effect exactly once, or never, as its row says; limits, rates and the strict
# order have held; and nothing is left in shared memory.  A TAP test because it kills processes.
#
# PG_TASK_CHAOS_SECONDS is how long the monkey acts.  PG_TASK_CHAOS_SEED is the seed of the choices.
# Of PG_TASK_CHAOS_PROGRAMS programs the more are killed the more there are: of 25, one each 100 ms.
# For longer: scripts/chaos takers SECONDS SEED PROGRAMS.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Open2;
use PgTask;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seconds = $ENV{PG_TASK_CHAOS_SECONDS} // 6;
my $seed = $ENV{PG_TASK_CHAOS_SEED} // 1 + int(rand(1_000_000));
my $programs = $ENV{PG_TASK_CHAOS_PROGRAMS} // 6;
my $again = "repeat it with: scripts/chaos takers $seconds $seed $programs";
my $scale = 1 + int($seconds * $programs / 60);
my ($max_takers, $max_taken) = ($programs + 2, 250);
my $connections = 2 * $programs + 40;

note($again);
srand($seed);

END { diag($again) if $?; }

my $node = new_node('main', conf => qq{
	pg_task.max_executors = 4
	pg_task.max_takers = $max_takers
	pg_task.max_taken = $max_taken
	pg_task.max_lost = 1000
	max_connections = $connections
	log_statement = none
	log_line_prefix = '%m [%p] %b '});
my $errors = $node->basedir . '/programs';

# A try is a run that a program has ended itself: its effect, if it is DONE, and no more than when
# it was held, as far as the program knows.
sql(q{
	CREATE ROLE worker LOGIN;
	CREATE TABLE try (id bigint, attempt int, queue text, outcome text, claimed timestamptz,
		ended timestamptz, lease int);
	CREATE TABLE effect (id bigint, attempt int);
	GRANT INSERT ON effect TO worker;
	CREATE FUNCTION note(run bigint, claimed bigint, outcome text) RETURNS void LANGUAGE sql
	SECURITY DEFINER SET search_path = public AS $$
		INSERT INTO try SELECT id, attempt, queue, outcome, start, clock_timestamp(), lease
		FROM task WHERE id = run AND state = 'WORK'
		AND start = timestamptz '2000-01-01 00:00:00+00' + claimed * interval '1 us' $$;
	INSERT INTO task_queue (queue, taker) VALUES ('out-%', 'worker');
	INSERT INTO task_queue (queue, max) VALUES ('out-max', 5);
	INSERT INTO task_queue (queue, max, strict) VALUES ('out-strict', 1, true);
	INSERT INTO task_queue (queue, rate, per) VALUES ('out-rate', 20, '500 ms')});

# Dice ---------------------------------------------------------------------------------------------

sub among { return $_[ rand @_ ] }

sub chance { return rand() < $_[0] }

# A client -----------------------------------------------------------------------------------------

sub start_client
{
	my %client;

	$client{pid} = open2($client{out}, $client{in}, 'sh', '-c',
		'exec psql -XAtq -U worker -v VERBOSITY=sqlstate -d "$0" 2>&1',
		$node->connstr('postgres'));
	return \%client;
}

sub end_client
{
	my ($client) = @_;

	kill 'KILL', $client->{pid};
	close $client->{in};
	close $client->{out};
	waitpid($client->{pid}, 0);
	return;
}

# Returns the lines that a script prints, with errors; nothing if the client, or its server, goes.
sub ask
{
	my ($client, $script) = @_;
	my @lines;

	syswrite $client->{in}, "$script\n\\echo -- end\n" or return;
	while (defined(my $line = readline $client->{out}))
	{
		return \@lines if $line eq "-- end\n";
		chomp $line;
		push @lines, $line;
	}
	return;
}

# Programs -----------------------------------------------------------------------------------------

# What is done with a task that was taken, as statements of one transaction.
sub deed
{
	my ($task) = @_;
	my ($handle, $id, $attempt, $queue, $request, $lease) = @$task;
	my $key = "'$handle'";
	my ($claimed) = $handle =~ /(\d+)$/;
	my $try = sub { "SELECT note($id, $claimed, '$_[0]');" };

	# a division by zero if it is not held any more
	return $try->('fail') . "SELECT 1 / (pg_task_fail($key, 'x', final => true) IS NOT NULL)::int;"
	  if $request eq 'poison';
	return $try->('fail') . "SELECT 1 / (pg_task_fail($key, 'it fails') IS NOT NULL)::int;"
	  if chance(0.1);
	# in a strict queue what is given back goes behind the others
	return $try->('back') . "SELECT 1 / pg_task_give_back($key)::int;"
	  if $queue ne 'out-strict' && chance(0.05);
	return "INSERT INTO effect VALUES ($id, $attempt);" . $try->('done')
	  . "SELECT pg_task_finish($key, '{\"by\": $id}');";
}

# One transaction ends these tasks, or each has its own.
sub work_on
{
	my ($client, @tasks) = @_;
	my $hang = chance(0.08);

	while (my @some = splice @tasks, 0, chance(0.5) ? scalar @tasks : 1)
	{
		my @handles = map { $_->[0] } @some;
		my $alive = 'SELECT pg_task_alive(ARRAY[' . join(',', map { "'$_'" } @handles) . ']);';
		my $end = chance(0.9) ? 'COMMIT;' : 'ROLLBACK;';

		ask($client, $alive) or return if chance(0.3);
		sleep(rand(0.6)) if $hang;
		ask($client, 'BEGIN;' . join('', map { deed($_) } @some)) or return;
		sleep(rand(0.05)) if chance(0.2);
		ask($client, $end) or return;
		# once more: it is refused, or nothing has come of the first try
		ask($client, 'BEGIN;' . join('', map { deed($_) } @some) . 'COMMIT;') or return
		  if $end ne 'COMMIT;' || chance(0.05);
	}
	return 1;
}

# Take some tasks and end them; another client may do that.  Returns nothing if a client is gone.
sub take_turn
{
	my ($client, $other) = @_;
	my $queue = among('out-plain', 'out-max', 'out-rate', 'out-strict', 'out-%');
	my $lease = among(0, 300, 2000, 2000);
	my $take = "SELECT handle, id, attempt, queue, request, $lease FROM pg_task_take('{$queue}', "
	  . 'n => ' . among(1, 3, 10) . ', wait => ' . among(0, 50, 500) . ", lease => $lease);";
	my $inside = chance(0.2);

	$take = 'BEGIN;' . among('', 'SAVEPOINT s;') . $take if $inside;
	my $lines = ask($client, $take) // return;
	my @tasks = map { [ split /\|/ ] } grep { /^\d+\./ } @$lines;
	my $end = among('COMMIT;', 'COMMIT;', 'COMMIT;', 'ROLLBACK;');
	ask($client, $end) // return if $inside;
	# what was returned may be ended until the scheduler has written that, but does not count
	@tasks = grep { $_->[3] eq 'out-plain' } @tasks if $inside && $end eq 'ROLLBACK;';
	return 1 unless @tasks;
	return work_on(chance(0.3) ? $other : $client, @tasks);
}

# A child process that calls a function until it is asked to exit, or its parent is gone.
sub start_child
{
	my ($number, $turn) = @_;
	my $parent = $$;
	my $pid = fork // die "fork: $!";

	return $pid if $pid;

	# No die and no ordinary exit here: the server belongs to the parent.
	eval {
		my $stop = 0;

		$SIG{TERM} = $SIG{INT} = sub { $stop = 1 };
		$SIG{PIPE} = 'IGNORE';
		open(STDERR, '>>', "$errors.$number");
		srand($seed + 1 + $number);
		$turn->() while !$stop && getppid() == $parent;
		1;
	} or append_to_file("$errors.$number", "program: $@");
	POSIX::_exit(0);
}

# It takes tasks, with two clients.
sub start_program
{
	my ($number) = @_;
	my @clients;

	return start_child($number, sub {
		@clients = map { start_client() } 1, 2 unless @clients;
		return if take_turn(@clients) && chance(0.97);
		end_client($_) for splice @clients;
		sleep(rand(0.1));
	});
}

# The monkey ---------------------------------------------------------------------------------------

my (@programs, $killer);

END { kill 'TERM', @programs, $killer // (); }

sub kill_client
{
	my $program = among(@programs);
	my @clients = split ' ', eval { slurp_file("/proc/$program/task/$program/children") } // '';

	sleep(rand(3.6 / $programs));
	kill among('KILL', 'KILL', 'STOP'), among(@clients) if @clients;
	sleep(rand(0.5)) if chance(0.1);
	kill 'CONT', @clients;
	return;
}

# Runs a query that the monkey may have ended.
sub try_sql
{
	my ($query) = @_;

	return eval { sql($query) };
}

sub end_backends
{
	my ($which) = @_;

	return try_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $which"
		  . ' ORDER BY random() LIMIT 1');
}

my @tricks = (
	[ 2, sub { end_backends(q{usename = 'worker'}) } ],
	[ 1, sub { try_sql(q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity
		WHERE usename = 'worker'}) } ],
	[ 3, sub { end_backends(q{backend_type = 'pg_task scheduler'}) } ],
	[ 1, sub { end_backends(q{backend_type = 'pg_task executor'}) } ],
	[ 1, sub { $node->reload } ],
	[ 1, sub { try_sql(q{UPDATE task_queue SET comment = clock_timestamp()::text}) } ],
	[ 1, sub { try_sql(q{UPDATE task_queue SET taker = NULL WHERE taker = 'worker'});
		sleep(rand(0.3));
		sql(q{UPDATE task_queue SET taker = 'worker' WHERE queue = 'out-%'}) } ],
	[ 1, sub { try_sql(q{BEGIN; LOCK TABLE task IN SHARE MODE; SELECT pg_sleep(random() * 0.2);
		COMMIT}) } ],
	[ 1, sub { crash($node) } ],
	[ 1, sub { $node->restart } ]);

sub play_trick
{
	my $total = 0;

	$total += $_->[0] for @tricks;
	my $dice = rand $total;
	for my $trick (@tricks)
	{
		return $trick->[1]->() if ($dice -= $trick->[0]) < 0;
	}
	return;
}

# The tasks, in a random order; those of a role that is not the owner, too.
sub plan_tasks
{
	my %count = ('out-plain' => 150, 'out-max' => 80, 'out-rate' => 80, 'out-strict' => 30,
		'default' => 60);
	my @rows = map {
		"SELECT '$_' AS queue, n FROM generate_series(1, $count{$_} * $scale) AS n"
	} sort keys %count;

	sql(q{INSERT INTO task (queue, retry, delay, backoff, request)
		SELECT queue, 1000, interval '20 ms', 1, CASE
		WHEN queue = 'default' THEN $$INSERT INTO effect SELECT id, attempt FROM task
			WHERE id = current_setting('pg_task.id')::bigint$$
		WHEN n % 20 = 0 AND queue <> 'out-strict' THEN 'poison' ELSE 'work' END FROM (}
		  . join(' UNION ALL ', @rows)
		  . ') AS rows ORDER BY md5(queue || n)');
	return;
}

plan_tasks();
@programs = map { start_program($_) } 1 .. $programs;
$killer = start_child(0, \&kill_client);
my $end = time + $seconds;
my $played = 0;
while (time < $end)
{
	sleep rand 0.6;
	play_trick();
	$played++;
}

# The end ------------------------------------------------------------------------------------------

kill 'TERM', $killer;
waitpid($killer, 0);
undef $killer;
wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))});
kill 'TERM', @programs;
waitpid($_, 0) for splice @programs;
my $complaints = join '', map { -e "$errors.$_" ? slurp_file("$errors.$_") : '' } 0 .. $programs;
is(join("\n", $complaints =~ /^(program: .*)$/mg), '', 'no program has failed');
is(sql(q{SELECT count(DISTINCT queue) = 4 AND count(DISTINCT outcome) = 3 FROM try}), 't',
	'tasks of all queues were tried');
note("$played tricks, " . sql(q{SELECT string_agg(format('%s %s', outcome, n), ', ') FROM (
	SELECT outcome, count(*) AS n FROM try GROUP BY 1 ORDER BY 1) AS x})
	. ', lost ' . sql('SELECT sum(lost) FROM task'));

sub none
{
	my ($query, $name) = @_;

	is(sql("SELECT * FROM ($query) AS x LIMIT 5"), '', $name);
	return;
}

none(q{SELECT id, state, sqlstate, error FROM task
	WHERE state <> CASE request WHEN 'poison' THEN 'FAIL' ELSE 'DONE' END},
	'every task has ended as it must');
none('SELECT id, count(*) FROM effect GROUP BY 1 HAVING count(*) > 1',
	'no task has its effect twice');
none(q{SELECT id, attempt FROM task WHERE state = 'DONE' EXCEPT SELECT id, attempt FROM effect},
	'each that is DONE has its effect, of its last run');
none(q{SELECT id, attempt FROM effect EXCEPT SELECT id, attempt FROM task WHERE state = 'DONE'},
	'no other run has one');
none(q{SELECT id, claimed, count(*) FROM try GROUP BY 1, 2 HAVING count(*) > 1},
	'no run has ended twice');
none(q{SELECT id, response FROM task WHERE state = 'DONE' AND queue <> 'default'
	AND pg_task_result(id) -> 'by' <> to_jsonb(id)}, 'each result is in its own row');
# without those that were ended when their lease was over
none(q{SELECT at, running FROM (
	SELECT at, sum(step) OVER (ORDER BY at, step) AS running FROM (
		SELECT claimed AS at, 1 AS step FROM try WHERE queue = 'out-max'
		   AND (lease = 0 OR ended < claimed + lease * interval '1 ms')
		UNION ALL
		SELECT ended, -1 FROM try WHERE queue = 'out-max'
		   AND (lease = 0 OR ended < claimed + lease * interval '1 ms')) AS steps) AS moments
	WHERE running > 5}, 'never more at once than the limit of a queue');
# the scheduler reads two clocks for each claim, one after the other
none(q{SELECT id, span FROM (
	SELECT id, claimed - lag(claimed, 20) OVER (ORDER BY claimed) AS span
	FROM try WHERE queue = 'out-rate') AS claims WHERE span < interval '490 ms'},
	'no window has more claims than its rate');
none(q{SELECT id, before FROM (
	SELECT id, lag(id) OVER (ORDER BY claimed) AS before FROM try WHERE queue = 'out-strict') AS x
	WHERE id < before}, 'no task of a strict queue was overtaken');

# Shared memory is as it was in the beginning.
wait_until($node, 'SELECT count(*) = 0 FROM pg_task_takers()');
sql("INSERT INTO task (queue, request) SELECT 'out-plain', 'work'
	FROM generate_series(1, $max_taken + 1)");
my @handles;
for (1 .. 3)
{
	push @handles, split /\n/,
	  sql_as('worker', q{SELECT handle FROM pg_task_take('{out-plain}', n => 100, wait => 10000)});
}
is(scalar @handles, $max_taken, 'as many tasks as ever can be taken');
sql_as('worker', 'SELECT pg_task_finish_all(ARRAY[' . join(',', map { "'$_'" } @handles) . '])');
is(sql_as('worker', q{SELECT count(pg_task_finish(handle))
	FROM pg_task_take('{out-plain}', n => 100, wait => 10000)}), 1, 'and the last one then');
my @sessions = map { open_session($node, 'postgres', extra_params => [ '-U', 'worker' ]) }
  1 .. $max_takers;
$_->query_until(qr/began/, "\\echo began\nSELECT id FROM pg_task_take(wait => 10000);\n")
  for @sessions;
wait_until($node, "SELECT count(*) = $max_takers FROM pg_task_takers()");
pass('as many sessions as ever can wait');
$_->quit for @sessions;
unlike(slurp_file($node->logfile), qr/PANIC:|TRAP:|terminated by signal (?!9:)|stuck spinlock/,
	'the log has no crash, panic or internal error');

done_testing();
