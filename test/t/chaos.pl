# Sessions plan tasks of all kinds while a "monkey" kills the server and its processes, promotes
# standbys, changes rows, and another process sets the clock.  In the end each task has had its
# effect exactly once, or never, as its row says; limits, rates and the order by aging have held;
# and rows were removed when their time was over, and not before.  A TAP test because it kills
# processes.
#
# PG_TASK_CHAOS_SECONDS is how long the monkey runs.  PG_TASK_CHAOS_SEED is the seed of its random
# choices and of those of the writers.  The same seed gives the same choices, but not the same
# timing of the processes.  PG_TASK_CHAOS_BATCH is pg_task.batch.
use strict;
use warnings;
use File::Path qw(rmtree);
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time clock_gettime CLOCK_MONOTONIC);

my $seconds = $ENV{PG_TASK_CHAOS_SECONDS} // 15;
my $seed = $ENV{PG_TASK_CHAOS_SEED} // 1 + int(rand(1_000_000));
my $again = "repeat it with: scripts/chaos $seconds $seed";
my $began = time;
my @databases = qw(other postgres);

note($again);
srand($seed);

END { diag($again) if $?; }

# Dice ---------------------------------------------------------------------------------------------

sub among { return $_[ rand @_ ] }

sub chance { return rand() < $_[0] }

# One of the keys of a hash, weighted by the first element of each value.
sub weighed
{
	my ($choices) = @_;
	my @names = sort keys %$choices;
	my $total = 0;

	$total += $choices->{$_}[0] for @names;
	$total = rand $total;
	for my $name (@names)
	{
		return $name if ($total -= $choices->{$name}[0]) < 0;
	}
}

# A random order of rows.
sub shuffled { return 'md5(id::text || ' . int(rand(1_000_000)) . ')' }

# The clock ----------------------------------------------------------------------------------------

# A child process sets the clock forward by minutes, or back for some seconds.  Timers of the server
# that end in these, as that for a deadlock, do so when as much time has passed: minutes at most.
my $furthest_back = 120;
my %clock = make_clock();
my $clock_log = "$PostgreSQL::Test::Utils::tmp_check/clock_log";    # of each step: when, how far ahead
my $clock_pid;

@ENV{ keys %clock } = values %clock;
step_clock($furthest_back);

# The clock that nobody sets: the same in SQL.
sub uptime { return clock_gettime(CLOCK_MONOTONIC) }

# The steps, as [uptime, how far ahead the clock was set].
sub clock_steps { return map { [split] } split /\n/, slurp_file($clock_log) }

# The latest time that the clock has shown.
sub latest_time
{
	my ($ahead) = sort { $b <=> $a } map { $_->[1] } clock_steps();

	return time + $ahead;
}

sub step_clock
{
	my ($ahead) = @_;

	append_to_file($clock_log, uptime() . " $ahead\n");
	set_clock($ahead);
}

sub start_clock
{
	my $parent = $$;
	my $pid = fork // die "fork: $!";

	return $pid if $pid;

	my ($stop, $ahead) = (0, $furthest_back);
	$SIG{TERM} = $SIG{INT} = sub { $stop = 1 };
	srand($seed);
	while (!$stop && getppid() == $parent)
	{
		sleep(rand(10));
		$ahead += rand(300) if chance(0.5);
		step_clock($ahead - rand($furthest_back));
		sleep(rand(3));
		step_clock($ahead);
	}
	POSIX::_exit(0);
}

# The server ---------------------------------------------------------------------------------------

my $period = among(qw(100ms 1s 3s));
my $idle = among(qw(0 100ms 60s));
my $aging = among(1, 10);    # seconds
my $batch = among(1, 64);
$batch = $ENV{PG_TASK_CHAOS_BATCH} // $batch;
my $nodes = 1;
my $module = build_module('monotonic');
my $node = new_node('chaos1', init => { allows_streaming => 1 }, conf => qq{
	shared_preload_libraries = 'pg_task, $module'
	pg_task.max_executors = 6
	pg_task.period = $period
	pg_task.idle_timeout = $idle
	pg_task.batch = $batch
	pg_task.aging = '$aging s'
	wal_sender_timeout = 0
	wal_receiver_timeout = 0
	max_connections = 60
	shared_buffers = 32MB
	wal_keep_size = 256MB
	max_wal_size = 256MB
	log_line_prefix = '%m [%p] %b %q%a '
	log_statement = none
	log_replication_commands = off});
my @all_nodes = ($node);
my $standby;
my $where = $node->basedir . '/where';    # the writers read the address of the primary there
my $writer_log = $node->basedir . '/writer';

sub query_in
{
	my ($db, $query) = @_;

	# the monkey locks the same rows as tasks, in another order: it may be the deadlock victim
	for (1 .. 20)
	{
		my $answer = eval { $node->safe_psql($db, $query) };
		return $answer unless $@;
		die $@ unless $@ =~ /deadlock detected/;
	}
	die "deadlocks without end: $query";
}

sub tell_writers
{
	unlink "$where.new";
	append_to_file("$where.new", $node->host . "\n" . $node->port . "\n");
	rename "$where.new", $where or die "$where: $!";
}

# act() is what a task does.  It records its effect.  In a limited queue it takes one of as many
# places as tasks may run there, and frees it when its transaction ends; if no place is free, too
# many tasks are running.  It fails until the attempt after "failures".  In a queue with a rate it
# writes into the log when it began: no crash and no conflict takes that back.
query_in('postgres', q{
	CREATE ROLE keeper LOGIN;
	CREATE ROLE chaos_a LOGIN;
	CREATE ROLE chaos_b LOGIN;
	CREATE ROLE chaos_c LOGIN;
	ALTER ROLE chaos_c SET pg_task.keep_failed = '20 s';
	GRANT chaos_b, chaos_c TO keeper;
	GRANT chaos_c TO chaos_a, chaos_b});
query_in('postgres', 'CREATE DATABASE other OWNER keeper');
wait_for_table($node, db => 'other');
wait_until($node, q{SELECT to_regclass('task_queue') IS NOT NULL}, db => $_) for @databases;
query_in($_, q{
	INSERT INTO task_queue (queue, max) VALUES ('aged', 1);
	INSERT INTO task_queue (queue, rate, per) VALUES ('rated', 8, '2 s');
	ALTER TABLE task ADD COLUMN number bigint, ADD COLUMN kind text;
	CREATE INDEX ON task (number);
	CREATE INDEX ON task (parent);
	GRANT SELECT, INSERT, UPDATE, DELETE ON task TO chaos_a, chaos_b, chaos_c;

	CREATE FUNCTION uptime() RETURNS float8 LANGUAGE c AS '} . $module . q{';
	CREATE FUNCTION nap(seconds float8) RETURNS void LANGUAGE c STRICT AS '} . $module . q{';

	-- what the tasks did
	CREATE TABLE effect (number bigint, id bigint, attempt int, kind text,
	transaction timestamptz DEFAULT now(), began float8 DEFAULT uptime());
	CREATE TABLE counter (name int PRIMARY KEY, n int);
	INSERT INTO counter SELECT n, 0 FROM generate_series(1, 4) AS n;
	GRANT INSERT ON effect TO PUBLIC;
	GRANT SELECT, UPDATE ON counter TO PUBLIC;

	-- what the monkey did: the rows it changed, as they were before, and those it deleted
	CREATE TABLE touched (id bigint, attempt int, state text, blind bool);
	CREATE TABLE deleted (number bigint);
	GRANT SELECT ON deleted TO PUBLIC;

	-- until when the monkey has seen that a row will be kept
	CREATE TABLE kept (id bigint PRIMARY KEY, number bigint, until timestamptz);

	CREATE FUNCTION act(number bigint, seconds float8 DEFAULT 0,
	failures int DEFAULT 0) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		me record;
		place int := 0;
	BEGIN
		SELECT t.id, t.attempt, t.queue, t.max, t.kind, t.dt, t.start INTO me FROM public.task AS t
		 WHERE t.id = current_setting('pg_task.id')::bigint;
		IF me.queue = 'rated' THEN
			RAISE LOG 'began % % % %', current_database(), me.id, me.attempt, public.uptime();
		END IF;
		IF me.start < me.dt THEN
			RAISE EXCEPTION 'started at %, before its time, %', me.start, me.dt
				USING ERRCODE = 'UU998';
		END IF;
		WHILE me.max IS NOT NULL LOOP
			place := place + 1;
			IF place > greatest(me.max, 1) THEN
				RAISE EXCEPTION 'more than % at once in queue "%"', me.max,
				me.queue USING ERRCODE = 'UU999';
			END IF;
			EXIT WHEN pg_try_advisory_xact_lock(hashtext(me.queue), place);
		END LOOP;
		INSERT INTO public.effect VALUES (number, me.id, me.attempt, me.kind);
		PERFORM public.nap(seconds);
		IF me.attempt <= failures THEN
			RAISE EXCEPTION 'attempt % of %', me.attempt, failures USING ERRCODE = 'UU001';
		END IF;
		RETURN number;
	END $$;

	-- a task of a flow, whose rows stay until all have ended
	CREATE FUNCTION inherit(which bigint) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		IF NOT EXISTS (SELECT FROM public.task WHERE number = -which
			UNION ALL SELECT FROM public.deleted WHERE number = -which) THEN
			RAISE EXCEPTION 'the first task of the flow was removed' USING ERRCODE = 'UU997';
		END IF;
		RETURN public.act(which);
	END $$;

	-- a cancel does not wake it
	CREATE FUNCTION doze(seconds float8) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		until float8 := public.uptime() + seconds;
	BEGIN
		WHILE public.uptime() < until LOOP
			BEGIN
				PERFORM public.nap(until - public.uptime());
			EXCEPTION WHEN query_canceled THEN
				NULL;
			END;
		END LOOP;
	END $$;

	-- one of those that run side by side cannot be serialised
	CREATE FUNCTION count_up(which int) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM sum(n) FROM public.counter;
		PERFORM public.nap(0.01);
		UPDATE public.counter SET n = n + 1 WHERE name = which;
	END $$}) for @databases;

# Writers ------------------------------------------------------------------------------------------

# How often a kind of task comes, and its columns, given its number. 'key' may meet another of the
# same key.
my %kinds = (
	quick => [ 10, sub { (request => "SELECT act($_[0])", queue => 'quick') } ],
	slow => [ 3, sub { (request => "SELECT act($_[0], " . 0.05 * 40**rand() . ')') } ],
	later => [ 3,
	sub { (request => "SELECT act($_[0])",
	dt => 'now() + ' . rand(2000) . " * interval '1 ms'") } ],
	limited => [ 12, sub { my $max = among(1, 2, 3);
		(request => "SELECT act($_[0], " . rand(0.1) . ')', queue => "at most $max",
			max => $max) } ],
	pause => [ 3,
	sub { (request => "SELECT act($_[0], " . rand(0.05) . ')', queue => 'pause', max => -30) } ],
	fail => [ 2,
	sub { (request => "SELECT act($_[0], 0, 1000000)", retry => among(undef, 0, 2),
	delay => '30 ms', queue => among('default', 'quick')) } ],
	flaky => [ 4,
	sub { (request => "SELECT act($_[0], 0.01, " . among(1, 2, 3) . ')', retry => 20,
	delay => '30 ms',
		backoff => among(1, 1.2)) } ],
	timeout => [ 2,
	sub { (request => "SELECT act($_[0], 600)", timeout => '100 ms', retry => among(undef, 1),
		delay => '10 ms') } ],
	active => [ 3, sub { (request => "SELECT act($_[0], 0.1)", queue => 'crowded', max => 1,
		active => among('200 ms', '5 s')) } ],
	serial => [ 4,
	sub { (request => "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SELECT act($_[0]);"
		. 'SELECT count_up(' . among(1 .. 4) . ')', queue => among('default', 'rated'),
		retry => 20, delay => '10 ms', backoff => 1) } ],
	repeat => [ 1,
	sub { (request => "SELECT act($_[0])", repeat => among('50 ms', '300 ms'),
	drift => among('t', 'f')) } ],
	gone => [ 5, sub { (request => "SELECT act($_[0])", keep => '0', queue => 'quick') } ],
	key => [ 3,
	sub { (request => "SELECT act($_[0], 0.1)", queue => 'keys', key => 'key ' . int(rand(5))) } ],
	large => [ 1,
	sub { (request => "SELECT act($_[0]), repeat('x', 100000)",
	format => among(qw(text csv json))) } ],
	long => [ 1, sub { (request => '/* ' . 'x' x (1000 + rand(9000)) . " */ SELECT act($_[0])") } ],
	kept => [ 3, sub { (request => "SELECT act($_[0])", queue => 'quick',
		keep => among('0', '1 s', '20 s', '2 min', '10 min', '1 hour')) } ],
	# keep_failed of its role; the row stays if it is DONE
	failing => [ 2, sub { (request => "SELECT act($_[0], 0, " . among(0, 1000000) . ')',
		role => 'chaos_c') } ],
	flow => [ 2, sub { (flow => "flow $_[0]", keep => '0',
		request => "SELECT act($_[0]); INSERT INTO task (number, kind, dt, request) VALUES "
		. "(-$_[0], 'heir', now() + random() * interval '3 s', 'SELECT inherit(-$_[0])')") } ],
	aged => [ 4, sub { (request => "SELECT act($_[0], " . rand(0.1) . ')', queue => 'aged',
		dt => 'now() - ' . rand(60) . " * interval '1 s'", priority => int(rand(9)) - 4) } ],
	rated => [ 3, sub { (request => "SELECT act($_[0])", queue => 'rated') } ],
	deaf => [ 2, sub { (request => "SELECT doze(" . rand(0.5) . "), act($_[0])") } ],
	parent => [ 2,
	sub { (queue => 'quick',
		request => "SELECT act($_[0]); INSERT INTO task (number, kind, priority, request) "
		. "VALUES (-$_[0], 'child', 1, 'SELECT act(-$_[0])')") } ]);

# What comes in bursts, for batches.
my %short = map { $_ => $kinds{$_} } qw(quick gone parent fail);

sub insertion
{
	my ($number, $kind) = @_;
	my %column = (priority => int(rand(3)), $kinds{$kind}[1]->($number), number => $number,
		kind => $kind);
	my @names = sort keys %column;

	return 'INSERT INTO task (' . join(', ', map { qq("$_") } @names) . ') VALUES ('
	  . join(', ', map { $_ eq 'dt' ? $column{$_} : PgTask::literal($column{$_}) } @names)
	  . ') ON CONFLICT DO NOTHING RETURNING number;';
}

# Runs a script in psql on the primary.  Returns its output, or nothing unless all of it succeeded.
sub write_script
{
	my ($role, $db, $file, @lines) = @_;
	my ($host, $port) = split /\n/, slurp_file($where);

	unlink $file;
	append_to_file($file, join("\n", @lines));
	open(my $psql, '-|', 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-h', $host, '-p', $port, '-U',
		$role, '-d', $db, '-f', $file)
	  or return;
	my @out = <$psql>;
	close($psql) or return;
	chomp @out;
	return @out;
}

# One transaction with some tasks.  The outcome of each is recorded as "number kind fate uptime",
# where fate is ok, rolled (back), dropped (because of its key), or unknown if the connection was
# lost.
sub write_batch
{
	my ($role, $db, $log, $first) = @_;
	my $rolled = chance(0.1);
	my $burst = $batch > 1 && chance(0.3);
	my %kind = map { $first + $_ => weighed($burst ? \%short : \%kinds) }
	  0 .. ($burst ? 60 : among(0, 1, 4, 12));
	my @numbers = sort { $a <=> $b } keys %kind;
	my @lines = ('BEGIN;', map { insertion($_, $kind{$_}) } @numbers);
	my %seen;

	push @lines,
		"UPDATE task SET state = 'STOP' WHERE kind = 'repeat' AND state IN ('PLAN', 'WORK')"
	  . ' AND number < ' . ($first - 20) . " AND role = '$role';" if chance(0.2);
	push @lines, $rolled ? 'ROLLBACK;' : 'COMMIT;',
		q{SELECT 'load', count(*) FROM task WHERE state = 'PLAN';};
	my @out = write_script($role, $db, "$log.sql", @lines);

	$seen{$_} = 1 for @out;
	for my $n (@numbers)
	{
		my $fate = $rolled ? 'rolled' : !@out ? 'unknown' : $seen{$n} ? 'ok' : 'dropped';

		append_to_file($log, "$n $kind{$n} $fate " . uptime() . "\n");
	}
	return ($first + @numbers, @out ? $out[-1] =~ s/load\|//r : 0);
}

# A child process that plans tasks until it is asked to exit, or its parent is gone.  It waits
# while many of its tasks are waiting.
sub start_writer
{
	my ($index, $role, $db) = @_;
	my $parent = $$;
	my $pid = fork // die "fork: $!";

	return $pid if $pid;

	# No die and no ordinary exit here: the servers belong to the parent.
	eval {
		my $stop = 0;
		my ($number, $load) = (($index + 1) * 10_000_000, 0);

		$SIG{TERM} = $SIG{INT} = sub { $stop = 1 };
		open(STDERR, '>>', "$writer_log.$index.err");
		srand($seed + 1 + $index);
		while (!$stop && getppid() == $parent)
		{
			($number, $load) = write_batch($role, $db, "$writer_log.$index", $number)
				if $load < 100;
			$load = (write_script($role, $db, "$writer_log.$index.sql",
				q{SELECT count(*) FROM task WHERE state = 'PLAN'}))[0] // 0
			  if $load >= 100;
			sleep(rand(0.2));
		}
		1;
	} or append_to_file("$writer_log.$index.err", "writer: $@");
	POSIX::_exit(0);
}

# The monkey ---------------------------------------------------------------------------------------

my @held;       # sessions that hold locks for a moment
my %count;      # actions by name
my $cancels = 0;
my @restarts;   # of schedulers: [uptime before, uptime after]
my @strange;    # what the monkey has seen and may not be

sub start_session
{
	my ($db, $query) = @_;
	my $pid = fork // die "fork: $!";

	if (!$pid)
	{
		open(STDOUT, '>>', "$writer_log.monkey.err");
		open(STDERR, '>&', \*STDOUT);
		exec('psql', '-X', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), '-c', $query)
			or POSIX::_exit(1);
	}
	push @held, $pid;
}

# Not with wait_until: it dies if psql has exited before it gets the query.
sub server_is_up
{
	poll_for(sub {
		return (run_command([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c',
			'SELECT true' ]))[0];
	}) or die "the server does not come back\n";
}

# Makes the server crash and restart.
sub crash_by
{
	my ($deed) = @_;
	my $position = log_position($node);

	return 0 unless $deed->();
	wait_for_log_line($node, qr/all server processes terminated; reinitializing/, $position);
	server_is_up();
	return 1;
}

# The postmaster and its children are killed, almost at once, or they exit when they notice.  While
# the postmaster is stopped it starts no process.
sub lose_power
{
	my $postmaster = $node->{_pid};
	my @children;

	kill 'STOP', $postmaster;
	poll_for(sub { PgTask::process_state($postmaster) eq 'T' })
		or die "the postmaster does not stop\n";
	for my $file (glob '/proc/[0-9]*/stat')
	{
		my $stat = eval { slurp_file($file) } // next;

		push @children, $1 if $stat =~ /^(\d+) \(.*\) [A-Z] $postmaster /s;
	}
	my $first = among(qw(postmaster children postmaster-alone));

	kill 'KILL', @children if $first eq 'children';
	$node->kill9;
	kill 'KILL', @children if $first eq 'postmaster';
	poll_for(sub { !kill 0, $postmaster, @children })
		or die "processes that were killed do not end\n";
}

# A task that was running in two crashes is set to FAIL, by design: no task may get that far.  So
# before a crash no task may run, in any database, that is a suspect, or whose process is gone,
# which may still become one.
sub nothing_is
{
	my ($blamed) = @_;

	for my $db (@databases)
	{
		return 0
			if query_in($db,
			"SELECT count(*) FROM task WHERE $blamed OR state = 'WORK' AND pid <> ALL (ARRAY("
			  . backend_of('executor') . '))');
	}
	return 1;
}

sub nobody_is_blamed { return nothing_is(q{state IN ('PLAN', 'WORK') AND crashed > 0}) }

# Kills a process from a session, which ends in the crash.  If the process has just exited, there is
# none, and the session goes on.
sub kill_one
{
	my ($db, $victim) = @_;

	return crash_by(sub {
			return $node->psql($db, qq{
			DO \$\$
			DECLARE
				victim int;
			BEGIN
				$victim;
				IF victim IS NOT NULL THEN
					EXECUTE format('COPY (SELECT) TO PROGRAM ''kill -9 %s || true''', victim);
					WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = victim) LOOP
						PERFORM public.nap(0.01), pg_stat_clear_snapshot();
					END LOOP;
				END IF;
			END \$\$}, stdout => \my $out, stderr => \my $err) != 0; });
}

# While the session holds the row lock, the process cannot have gone on to another task.  A suspect
# is alone in its executor.
sub kill_executor
{
	my ($db) = @_;
	my $order = shuffled();

	return kill_one($db, qq{
		SELECT pid INTO victim FROM task
		 WHERE state = 'WORK' AND crashed = 0
		   AND pid IN (SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_task executor')
		 ORDER BY $order LIMIT 1 FOR UPDATE SKIP LOCKED});
}

# A standby that has everything that was reported as committed.
sub make_standby
{
	my $name = 'chaos' . ++$nodes;

	$node->backup($name);
	$standby = PostgreSQL::Test::Cluster->new($name);
	$standby->init_from_backup($node, $name, has_streaming => 1);
	rmtree($node->backup_dir . "/$name");
	$standby->start;
	push @all_nodes, $standby;
	set_conf($node, q{synchronous_standby_names = '*'});
	return 1;
}

sub promote_standby
{
	return 0 unless nobody_is_blamed();
	wait_until($node,
		q{SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'
		AND state = 'streaming'});
	$node->wait_for_catchup($standby, 'flush');
	push @strange, 'a process on a standby: ' . $_
	  for split /\n/, $standby->safe_psql('postgres',
		q{SELECT pid, backend_type FROM pg_stat_activity WHERE backend_type LIKE 'pg_task%'});
	among(sub { $node->stop('fast') }, sub { $node->stop('immediate') }, \&lose_power)->();
	$standby->promote;
	rmtree($node->data_dir);
	($node, $standby) = ($standby, undef);
	wait_until($node, 'SELECT NOT pg_is_in_recovery()');
	set_conf($node, q{synchronous_standby_names = ''});
	tell_writers();
	server_is_up();
	return 1;
}

sub alter_triggers
{
	return join '', map { "ALTER TABLE task $_[0] TRIGGER $_; " } split /\n/,
	  query_in('postgres',
	q{SELECT tgname FROM pg_trigger WHERE tgrelid = 'task'::regclass AND NOT tgisinternal});
}

# Changes some rows, and records their old values in the same statement.  "old" in $action is the
# chosen row.  Sometimes with triggers disabled.
sub change_tasks
{
	my ($condition, $action) = @_;
	my ($order, $limit) = (shuffled(), among(1, 3, 10));
	my ($blind, $seeing) = chance(0.4) ? map { alter_triggers($_) } ('DISABLE', 'ENABLE ALWAYS')
		: ('', '');
	my $is_blind = $blind ? 'true' : 'false';

	return query_in(among(@databases), qq{BEGIN; $blind
		WITH old AS MATERIALIZED (
			SELECT id, attempt, state FROM task WHERE ($condition) AND sqlstate IS DISTINCT
			FROM 'UU999'
			 ORDER BY $order LIMIT $limit FOR UPDATE),
		kept AS (INSERT INTO touched SELECT id, attempt, state, $is_blind FROM old),
		changed AS ($action)
		SELECT count(*) FROM old;
		$seeing COMMIT});
}

# Notes until when rows that have ended are kept, and whether one of those noted was removed
# earlier.
sub look_at_kept
{
	my $db = among(@databases);
	my $missing = query_in($db, q{
		WITH seen AS (
			INSERT INTO kept SELECT id, number, stop + coalesce(keep, '20 s') FROM task
			 WHERE state IN ('DONE', 'FAIL', 'STOP', 'GONE') AND stop IS NOT NULL
			   AND (keep IS NOT NULL OR role = 'chaos_c' AND state IN ('FAIL', 'GONE'))
			ON CONFLICT (id) DO UPDATE SET until = excluded.until)
		SELECT id, until, extract(epoch FROM until) FROM kept
		 WHERE id NOT IN (SELECT id FROM task) AND number NOT IN (SELECT number FROM deleted)
		 ORDER BY until DESC LIMIT 1});

	push @strange, "row removed too early: $missing"
	  if $missing =~ /([\d.]+)$/ && $1 > latest_time();
	return 1;
}

sub backend_of { return "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_task $_[0]'" }

my $open = q{state IN ('PLAN', 'WORK')};
my $stays = q{kind NOT IN ('kept', 'flow', 'gone')};    # or else its effect says that it was there

# The actions of the monkey, and their weights.  Each returns whether it did something.
my %blows = (
	'an executor terminated' => [ 6, sub {
		return query_in('postgres',
			'SELECT count(pg_terminate_backend(pid)) FROM (' . backend_of('executor')
			  . ' ORDER BY md5(pid::text || ' . int(rand(1000)) . ') LIMIT ' . among(1, 1, 9)
			. ') AS x') } ],
	'scheduler terminated' => [ 2, sub {
		return query_in('postgres',
			'SELECT count(pg_terminate_backend(pid)) FROM (' . backend_of('scheduler')
			  . " AND datname = '" . among(@databases) . "') AS x") } ],
	'supervisor terminated' => [ 1, sub {
		return query_in('postgres',
			'SELECT count(pg_terminate_backend(pid)) FROM (' . backend_of('supervisor')
			. ') AS x') } ],
	'an executor killed' => [ 1,
	sub { return nothing_is('false') && kill_executor(among(@databases)) } ],
	'scheduler killed' => [ 0.5, sub {
		my $db = among(@databases);
		my $killed = kill_one('postgres', "SELECT pid INTO victim FROM pg_stat_activity
			WHERE backend_type = 'pg_task scheduler' AND datname = '$db'");

		# it is held back if that has happened twice in a row
		$node->psql($db, 'SELECT pg_task_release()', stdout => \my $out, stderr => \my $err);
		return $killed; } ],
	'a session killed' => [ 0.5, sub {
		return crash_by(sub {
				$node->psql('postgres', q{COPY (SELECT) TO PROGRAM 'kill -9 $PPID'},
					stdout => \my $out, stderr => \my $err);
				return 1; }) } ],
	'stopped at once' => [ 0.7, sub { crash($node); server_is_up(); return 1 } ],
	'restarted' => [ 0.7, sub { $node->restart; server_is_up(); return 1 } ],
	'power lost' => [ 0.7, sub {
		return 0 unless nobody_is_blamed();
		lose_power();
		$node->start;
		server_is_up();
		return 1; } ],
	'table locked' => [ 2, sub {
		start_session(among(@databases),
			q{SET lock_timeout = '5s'; BEGIN; LOCK TABLE task IN } . among('ACCESS EXCLUSIVE',
			'SHARE')
			  . ' MODE; SELECT nap(' . rand(0.5) . '); COMMIT');
		return 1; } ],
	'rows locked' => [ 3, sub {
		start_session(among(@databases),
			qq{BEGIN; SELECT id FROM task WHERE $open AND kind <> 'aged' ORDER BY } . shuffled()
			  . ' LIMIT ' . among(1, 10) . ' FOR ' . among('UPDATE', 'SHARE', 'KEY SHARE')
			  . '; SELECT nap(' . rand(1) . '); COMMIT');
		return 1; } ],
	'tasks stopped' => [ 4, sub {
		return change_tasks("$open AND $stays",
			q{UPDATE task SET state = 'STOP' FROM old WHERE task.id = old.id}) } ],
	'tasks cancelled' => [ 2, sub {
		my $db = among(@databases);
		my $user = $db eq 'other' ? among('keeper', 'chaos_b') : among('postgres', 'chaos_a');

		my $code = $node->psql($db,
			"SET ROLE $user; SELECT count(pg_task_cancel(id)) FROM (SELECT id FROM task WHERE $open"
			  . " AND $stays ORDER BY " . shuffled() . ' LIMIT 3) AS x', stdout => \my $hit,
			stderr => \my $error);

		# tasks of a batch write the same rows in another order
		die $error if $code && $error !~ /deadlock detected/;
		return $code ? 0 : $hit; } ],
	'running tasks planned again' => [ 3, sub {
		return change_tasks(q{state = 'WORK'},
			q{UPDATE task SET state = 'PLAN' FROM old WHERE task.id = old.id}) } ],
	'ended tasks planned again' => [ 3, sub {
		# the rows of the flow of an heir that has ended may be removed before it runs again
		return change_tasks(q{state IN ('DONE', 'FAIL', 'STOP', 'GONE') AND kind NOT IN ('repeat',
			'key', 'heir')},
			q{UPDATE task SET state = 'PLAN'} . among('', ', failed = 0')
			. ' FROM old WHERE task.id = old.id') } ],
	'tasks deleted' => [ 3, sub {
		return change_tasks(q{kind NOT IN ('repeat', 'child')},
			q{DELETE FROM task USING old WHERE task.id = old.id RETURNING number),
			remembered AS (INSERT INTO deleted SELECT number FROM changed}) } ],
	'tasks moved' => [ 3, sub {
		my $max = among(1, 2, 3);    # the same for all in a queue, or else the first one decides
		my $what = among(q{dt = now() + random() * interval '1 s'},
		'priority = ' . int(rand(5) - 2), q{queue = 'other ' || queue},
			"queue = CASE kind WHEN 'limited' THEN 'at most $max' ELSE queue END, max = CASE kind "
			. "WHEN 'limited' THEN $max ELSE max END");

		return query_in(among(@databases),
			"WITH m AS (UPDATE task SET $what WHERE state = 'PLAN' AND id IN (SELECT id FROM task "
			. "WHERE kind NOT IN ('key', 'aged', 'rated') AND"
			  . " state = 'PLAN' ORDER BY " . shuffled()
			. ' LIMIT 20) RETURNING id) SELECT count(*) FROM m'); } ],
	'a statement cancelled' => [ 3, sub {
		my $order = 'md5(pid::text || ' . int(rand(1000)) . ')';
		my $hit = query_in(among(@databases), qq{SELECT count(pg_cancel_backend(pid)) FROM (
			SELECT pid FROM pg_stat_activity AS p WHERE backend_type = 'pg_task executor'
			   AND state = 'active' AND datname = current_database() AND NOT EXISTS (
				SELECT FROM task WHERE pid = p.pid AND state = 'WORK' AND NOT $stays)
			 ORDER BY $order LIMIT 1) AS x});

		$cancels += $hit;
		return $hit; } ],
	'columns and indexes' => [ 2, sub {
		my $name = among('mine', 'yours');

		# on a busy machine others hold their locks for long
		return eval { query_in(among(@databases),
			q{SET lock_timeout = '10s'; }
			. among("ALTER TABLE task ADD COLUMN IF NOT EXISTS $name text",
			"ALTER TABLE task ADD COLUMN IF NOT EXISTS $name int DEFAULT 42",
			"ALTER TABLE task DROP COLUMN IF EXISTS $name",
			"CREATE INDEX IF NOT EXISTS task_$name ON task (dt, number)",
			"DROP INDEX IF EXISTS task_$name"));
			1; } || ($@ =~ /lock timeout/ ? 0 : die $@); } ],
	'a queue held' => [ 1, sub {
		return query_in(among(@databases), q{WITH held AS (UPDATE task_queue
			SET until = clock_timestamp() + random() * interval '8 s' WHERE queue = 'aged'
			RETURNING 1) SELECT count(*) FROM held}) } ],
	'kept rows looked at' => [ 5, \&look_at_kept ],
	'reloaded' => [ 2, sub { $node->reload; return 1 } ],
	'switched off' => [ 1, sub {
		query_in('postgres', 'ALTER SYSTEM SET pg_task.enabled = off; SELECT pg_reload_conf()');
		sleep(rand(0.5));
		query_in('postgres', 'ALTER SYSTEM RESET pg_task.enabled; SELECT pg_reload_conf()');
		return 1; } ]);

tell_writers();
my @who = ([qw(postgres postgres)], [qw(chaos_a postgres)], [qw(chaos_b postgres)],
	[qw(keeper other)], [qw(chaos_b other)]);
my @writers = map { start_writer($_, @{ $who[$_] }) } 0 .. $#who;

$clock_pid = start_clock();

END { kill 'TERM', grep { $_ } @writers, $clock_pid; }

# Standbys are created and promoted on a schedule of their own, because that takes long.
my @promotions;
for (my $at = 100 * rand(); $at < $seconds - 5; $at += 60 + rand(60))
{
	push @promotions, $at;
}
my $start = time;
while (time < $start + $seconds)
{
	my $name = weighed(\%blows);
	my $before = uptime();

	if (@promotions && time > $start + $promotions[0])
	{
		$name = 'standby promoted';
		if (!$standby) { make_standby() }
		elsif (promote_standby()) { shift @promotions }
		else { $name = undef }
		$count{$name}++ if $name && !$standby;
	}
	else
	{
		$count{$name}++ if $blows{$name}[1]->();
	}
	push @restarts, [ $before, uptime() ]
	  if ($name // '') =~ /scheduler|supervisor|killed|stopped at once|restarted|power|promoted|switched/;
	@held = grep { waitpid($_, POSIX::WNOHANG) == 0 } @held;
	sleep(rand() < 0.3 ? 0 : rand(0.4));
}

# The end ------------------------------------------------------------------------------------------

waitpid($_, 0) for @held;
kill 'TERM', @writers, $clock_pid;
waitpid($_, 0) for splice(@writers), $clock_pid;
$clock_pid = undef;

# The remaining work decreases until there is none.
my $calm = time;
for my $db (@databases)
{
	my $left = "SELECT count(*) FROM task WHERE $open AND kind <> 'repeat'";

	eval {
		while (my $n = query_in($db, $left))
		{
			wait_until($node, "SELECT ($left) < $n", db => $db);
		}
		wait_until($node,
			"WITH u AS (UPDATE task SET state = 'STOP' WHERE $open AND kind = 'repeat' RETURNING id)
			SELECT NOT EXISTS (SELECT FROM u) AND NOT EXISTS (SELECT FROM task WHERE $open)",
			db => $db);
		1;
	} or do
	{
		diag("left behind: $_") for split /\n/,
			query_in($db, "SELECT task::text FROM task WHERE $open LIMIT 20");
		die $@;
	};
}
wait_until($node,
	'SELECT count(*) = 0 FROM (' . backend_of('executor') . q{ AND state <> 'idle') AS x});
$calm = time - $calm;

# The records of the writers.
my %fates;
for my $index (0 .. $#who)
{
	my @lines = -e "$writer_log.$index" ? split /\n/, slurp_file("$writer_log.$index") : ();
	my $db = $who[$index][1];

	wait_for_removals($db);
	query_in($db,
		q{CREATE TABLE IF NOT EXISTS wrote (number bigint PRIMARY KEY, kind text, fate text,
			known float8)});
	$fates{ (split)[2] }++ for @lines;
	while (my @some = splice @lines, 0, 1000)
	{
		query_in($db,
			'INSERT INTO wrote VALUES ' . join(', ',
			map { sprintf "(%d, '%s', '%s', %s)", split } @some));
	}
	my $complaints = -e "$writer_log.$index.err" ? slurp_file("$writer_log.$index.err") : '';

	is(join("\n", $complaints =~ /^(writer: .*|.*ERROR:  (?!deadlock).*)$/mg), '',
		"writer $index has no unexpected error");
}

# The rows whose time was over at this moment go.
sub wait_for_removals
{
	my ($db) = @_;
	my $moment = query_in($db, 'SELECT now()');

	$node->reload;
	wait_until($node, qq{SELECT NOT EXISTS (SELECT FROM task WHERE stop + coalesce(keep, '20 s')
		< '$moment' AND (keep IS NOT NULL OR role = 'chaos_c' AND state IN ('FAIL', 'GONE'))
		AND NOT (flow IS NOT NULL AND EXISTS (SELECT FROM task AS o
			WHERE o.flow = task.flow AND o.state IN ('STOP', 'FAIL', 'GONE'))))},
		db => $db);
}

# The windows in which too many tasks of queue "rated" have begun; a little shorter than in the
# rule, because a task begins a moment after its claim.  A scheduler goes by the clock when it
# starts: a window is left out if one was started in it, and the clock was set.  A step forward by more
# than the time of a transaction may end a scheduler, and start another one.
sub windows_above_rate
{
	my (%first, %began, @windows);
	my @steps = clock_steps();

	for my $line (map { slurp_file($_->logfile) =~ /LOG:  began (\S+ \d+ \d+ \S+)$/mg } @all_nodes)
	{
		my ($db, $id, $attempt, $at) = split ' ', $line;

		$first{"$db $id $attempt"} //= $at;    # others are tries after a conflict
	}
	push @{ $began{ (split)[0] } }, $first{$_} for keys %first;
	for my $db (sort keys %began)
	{
		my @at = sort { $a <=> $b } @{ $began{$db} };

		for my $i (8 .. $#at)
		{
			my ($from, $to) = ($at[ $i - 8 ] - 0.5, $at[$i] + 0.5);

			next if $to - $from > 1 + 1.4;
			my @in = grep { $steps[$_][0] > $from && $steps[$_][0] < $to } 0 .. $#steps;
			next if @in && grep { $_->[1] + 3 > $from && $_->[0] < $to } @restarts;
			next if grep { $_ > 0 && $steps[$_][1] - $steps[ $_ - 1 ][1] > 5 } @in;
			push @windows, "$db: 9 from $at[$i - 8] to $at[$i]";
		}
	}
	note("tasks with a rate: $_ " . @{ $began{$_} }) for sort keys %began;
	return @windows;
}

# The query returns no row in any database.
sub none
{
	my ($query, $name) = @_;

	is(query_in($_, "SELECT * FROM ($query) AS x LIMIT 5"), '', "$_: $name") for @databases;
}

my $done = q{SELECT id, attempt FROM task WHERE state = 'DONE' UNION SELECT id, attempt FROM touched
	WHERE state = 'DONE'};
my $row = 'id, number, kind, state, attempt, failed, crashed, sqlstate, error';

none("SELECT id, state FROM task WHERE state NOT IN ('DONE', 'FAIL', 'STOP', 'GONE')",
	'every task has ended');
none('SELECT id, attempt, count(*) FROM effect GROUP BY 1, 2 HAVING count(*) > 1',
	'no run has its effect twice');
none("($done) EXCEPT SELECT id, attempt FROM effect", 'every run that is DONE has its effect');
none("SELECT id, attempt FROM effect WHERE kind NOT IN ('gone', 'kept', 'flow')
	OR kind <> 'gone' AND id IN (SELECT id FROM task) EXCEPT ($done)",
	'no other run has an effect');
none(q{SELECT id, attempt FROM effect INTERSECT SELECT id, attempt FROM touched
	WHERE state = 'WORK'},
	'no run whose row was changed meanwhile has an effect');
none(q{SELECT number FROM effect WHERE kind = 'gone' GROUP BY 1 HAVING count(*) > 1
	UNION ALL SELECT number FROM effect JOIN task USING (number) WHERE effect.kind = 'gone'
	UNION ALL SELECT number FROM effect JOIN deleted USING (number) WHERE kind = 'gone'},
	'nor one that is to be deleted, unless it is');
none(q{SELECT number, kind FROM wrote WHERE fate = 'ok' AND number NOT IN (SELECT number FROM task)
	AND number NOT IN (SELECT number FROM deleted)
	AND NOT (kind IN ('gone', 'kept', 'flow') AND number IN (SELECT number FROM effect))
	AND NOT (kind = 'failing' AND number NOT IN (SELECT number FROM effect))}, 'no task is lost');
none(q{SELECT number, fate FROM wrote JOIN task USING (number) WHERE fate IN ('rolled', 'dropped')
	UNION ALL SELECT number, fate FROM wrote JOIN effect USING (number) WHERE fate IN ('rolled',
	'dropped')},
	'no task of a transaction that was rolled back exists');
none("SELECT $row FROM task WHERE sqlstate = 'UU999'", 'no limit is exceeded');
none("SELECT $row FROM task WHERE stop IS NULL AND id NOT IN (SELECT id FROM touched
	WHERE blind AND state = 'PLAN')", 'each that was not stopped without triggers has its end');
none("SELECT $row FROM task WHERE sqlstate IN ('UU997', 'UU998')",
	'none has started too early, nor lost the rows of its flow');
none("SELECT $row FROM task WHERE state = 'FAIL' AND sqlstate = '57P02' OR crashed > 1",
	'none has failed for a crash');
none("SELECT $row FROM task WHERE CASE state
	WHEN 'DONE' THEN kind IN ('fail', 'timeout') OR sqlstate IS NOT NULL OR error IS NOT NULL
	WHEN 'GONE' THEN kind <> 'active' OR sqlstate IS DISTINCT FROM 'TK003'
	WHEN 'FAIL' THEN NOT (kind IN ('fail', 'failing') AND sqlstate = 'UU001' OR kind = 'timeout' "
	. "AND error = 'canceling task due to timeout'
		OR kind = 'serial' AND sqlstate = '40001' "
		. "OR error = 'canceling statement due to user request') END",
	'each task has ended as its kind requires');
none("SELECT $row FROM task WHERE state = 'FAIL' AND failed <> coalesce(retry, 0) + 1 "
	. "AND id NOT IN (SELECT id FROM touched)",
	'failed tasks were retried as often as required');
none("SELECT $row, response FROM task WHERE state = 'DONE' "
	. "AND response NOT LIKE '%' || number || '%'
	OR state = 'DONE' AND kind = 'large' AND length(response) < 100000",
	'each response is in its own row');
none(q{SELECT t.id, t.state, count(c.id) FROM task AS t LEFT JOIN task AS c ON c.parent = t.id
	AND c.kind = 'repeat'
	WHERE t.kind = 'repeat' GROUP BY t.id
	HAVING count(c.id) <> CASE t.state WHEN 'STOP' THEN 0 ELSE 1 END},
	'a repeating task has one next run, unless it was stopped');
none(q{SELECT * FROM (SELECT id, count(*) AS effects,
	(SELECT count(*) FROM task AS c WHERE c.parent = e.id AND c.kind = 'child') AS children
	FROM effect AS e WHERE kind = 'parent' GROUP BY 1) AS y WHERE effects <> children},
	'each run that plans a task has planned one');
none(q{SELECT sum(n), (SELECT count(*) FROM effect WHERE kind = 'serial') FROM counter
	HAVING sum(n) <> (SELECT count(*) FROM effect WHERE kind = 'serial')},
	'serializable transactions have counted right');

# One that is older by more than the aging of its priority starts first, if it was there for so long
# that the other one cannot have been claimed before.  A few overtake it while the claim of one
# whose process has gone is taken back.  A task of another role may start while that of this one has
# no executor, or only one that is busy.
none(qq{WITH aged AS (SELECT t.id, t.role, t.dt, t.dt + t.priority * interval '$aging s' AS due,
	e.began,
		w.known
		FROM task AS t JOIN effect AS e USING (id, attempt) JOIN wrote AS w ON w.number = t.number
		WHERE t.kind = 'aged' AND t.state = 'DONE' AND t.attempt = 1 AND w.fate = 'ok'
		AND t.id NOT IN (SELECT id FROM touched))
	SELECT a.id, count(*), max(a.began - b.began) FROM aged AS a JOIN aged AS b
	ON a.role = b.role AND a.began > b.began AND a.due < b.due AND a.dt <= b.dt
	AND a.known + 5 < b.began
	GROUP BY 1 HAVING count(*) > 3},
	'no task is overtaken by many that have waited less');
is(join("\n", @strange), '', 'nothing ran on a standby, no row was removed too early');
is(join("\n", windows_above_rate()), '', 'no rate is exceeded');
my $cancelled = 0;
$cancelled += count_of($node,
	q{state = 'FAIL' AND error = 'canceling statement due to user request'}, db => $_)
	for @databases;
cmp_ok($cancelled, '<=', $cancels, 'no task is cancelled without a cause');

# The server is healthy.
wait_for_backends($node, 'supervisor', 1);
wait_for_schedulers($node, @databases);
for my $db (@databases)
{
	my $id = run_task($node, db => $db, role => 'chaos_b', request => 'SELECT 42');

	is(task($node, $id, 'response', db => $db), '42', "$db: tasks run");
}
my (%words, @bad);
for my $each (@all_nodes)
{
	my $log = slurp_file($each->logfile);

	push @bad, $log =~ /^(.*(?:PANIC:|TRAP:|terminated by signal (?!9:)|stuck spinlock).*)$/mg;
	$words{"$1: $2"}++
	 
	while $log =~ /^\S+\ \S+\ \S+\ \[\d+\]\ (pg_task\ (?:supervisor|scheduler))\ +
		((?:WARNING|ERROR|FATAL):\ \ .*)$/mgx;
}
delete @words{ grep { /due to administrator command/ } keys %words };
is(join("\n", @bad), '', 'the log has no crash, panic or internal error');
my $complaints = 0;
$complaints += $_ for values %words;
cmp_ok($complaints, '<', 20 + $seconds, 'the log has few lines of the processes of pg_task');

# Summary ------------------------------------------------------------------------------------------

note('');
note(sprintf 'seed %d: %d s of chaos, %d s until all was done, %d s altogether; pg_task.period %s, '
	. 'pg_task.idle_timeout %s, pg_task.batch %s',
	$seed, $seconds, $calm, time - $began, $period, $idle, $batch);
note(sprintf '%s: %s', $_, query_in($_, q{SELECT format('%s effects in %s transactions', count(*),
	count(DISTINCT transaction)) FROM effect})) for @databases;
note(sprintf 'written: %s', join ', ', map { "$fates{$_} $_" } sort keys %fates);
note(sprintf '%-9s %-9s %7s %7s %7s %7s %7s %7s %7s %8s',
	qw(database kind DONE FAIL STOP GONE effects failed crashed attempts));
for my $db (@databases)
{
	note(sprintf '%-9s %-9s %7d %7d %7d %7d %7d %7d %7d %8d', $db, split /\|/) for split /\n/,
		query_in($db, q{
		SELECT kind, count(*) FILTER (WHERE state = 'DONE'), count(*) FILTER (WHERE state = 'FAIL'),
		       count(*) FILTER (WHERE state = 'STOP'), count(*) FILTER (WHERE state = 'GONE'),
		       (SELECT count(*) FROM effect WHERE effect.kind = x.kind), sum(failed), sum(crashed),
		max(attempt)
		  FROM (SELECT kind, state, attempt, failed, crashed FROM task WHERE kind IS NOT NULL
		        UNION ALL SELECT DISTINCT kind, '', 0, 0, 0 FROM effect) AS x GROUP BY 1
		ORDER BY 1});
}
note(sprintf '%5d %s', $count{$_}, $_) for sort keys %count;
note(sprintf '%5d times in the log: %s', $words{$_}, $_) for sort keys %words;

done_testing();
