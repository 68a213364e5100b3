# What users do to the table while the scheduler runs: lock rows or the whole table; alter,
# truncate, drop and rename it; add triggers and constraints that refuse the writes of pg_task.
# Tasks that are not affected run, in this database and in others; no process spins; the log
# reports the cause once; and tasks run again when the cause is gone.  A TAP test because it needs
# sessions, two databases and the log.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use POSIX;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = new_node('main',
	conf => "pg_task.period = '200 ms'\npg_task.max_executors = 6\nmax_worker_processes = 24");

sub shop { return sql_in('shop', @_) }
sub until_shop { return wait_until($node, $_[0], db => 'shop') }
sub insert { return insert_task($node, db => 'shop', @_) }
sub row { return task($node, @_, db => 'shop') }
sub wait_for { return wait_for_state($node, @_, db => 'shop') }

sql('CREATE DATABASE shop');
wait_for_table($node, db => 'shop');
make_gates($node, db => 'shop');
shop('CREATE TABLE effect (what text)');
my $locker = open_session($node, 'shop');
my $other = open_session($node, 'shop');
my $busy = q{FROM pg_stat_activity WHERE datname = 'shop' AND backend_type = 'pg_task executor'};

my $usual = start_delay($node, db => 'shop');

# A task that has an effect and then waits at a gate; returns when it is there.
sub start_task
{
	my ($gate, %column) = @_;
	my $id = insert(request => "INSERT INTO effect VALUES ('$gate'); SELECT hold('$gate')",
		%column);

	wait_for_running($node, 1, db => 'shop', id => $id, event => 'PgSleep');
	return $id;
}

# In the other database, and here if possible, tasks start as usual.  On a busy machine a single one
# may not.
sub flows
{
	my ($what, @databases) = @_;

	for my $db (@databases)
	{
		ok(poll_for(sub {
			my $id = run_task($node, db => $db, queue => 'witness', request => 'SELECT 1');

			return task($node, $id, "start - dt < interval '1.5 s' + 5 * interval '$usual s'",
				db => $db) eq 't';
		}), "$what: other tasks start in $db");
	}
}

# For a second and a half or more, the processes of pg_task use little CPU, and few transactions run
# in the shop's database.  What the processes report late may be of the second before, but only
# once.
sub calm
{
	my ($what) = @_;
	my $ticks = sub {
		my $sum = 0;
		for my $pid (backends($node, 'scheduler'), backends($node, 'executor'))
		{
			my $stat = eval { slurp_file("/proc/$pid/stat") } // next;
			my @stat = split / /, ($stat =~ s/.*\) //sr);
			$sum += ($stat[11] + $stat[12]) / POSIX::sysconf(&POSIX::_SC_CLK_TCK);
		}
		return $sum;
	};
	my $transactions = sub {
		return sql(q{SELECT xact_commit + xact_rollback FROM pg_stat_database
			WHERE datname = 'shop'});
	};
	my ($cpu, $count, $times);

	for (1 .. 3)
	{
		my ($begin, $cpu_before, $count_before) = (time, $ticks->(), $transactions->());

		sleep(1.5);
		$cpu = $ticks->() - $cpu_before;
		$count = $transactions->() - $count_before;
		$times = (time - $begin) / 1.5;    # the machine may be busy
		note(sprintf '%s: %d transactions, %.2f s of CPU time, in %.1f s', $what, $count, $cpu,
			1.5 * $times);
		last if $cpu < 0.3 * $times && $count < 150 * $times;
	}
	cmp_ok($cpu, '<', 0.3 * $times, "$what: little CPU time is used");
	cmp_ok($count, '<', 150 * $times, "$what: few transactions");    # some 40
}

# How many times the log has reported it since.
sub said
{
	my ($position, $message) = @_;
	return scalar(() = log_since($node, $position) =~ /ERROR:  $message/g);
}

sub effects { return shop(qq{SELECT count(*) FROM effect WHERE what = '$_[0]'}) }

# A waiting row that a session has locked stays, the others of its queue run; when it is unlocked,
# it runs.
subtest 'a waiting row is locked' => sub {
	my $first = start_task('queue', queue => 'one', max => 1);
	my @ids = map { insert(queue => 'one', max => 1, request => 'SELECT 1') } 1 .. 3;
	$locker->query_safe("BEGIN; SELECT FROM task WHERE id = $ids[0] FOR UPDATE");
	open_gate($node, 'queue', db => 'shop');
	wait_for($_, 'DONE') for @ids[ 1, 2 ];
	is(row($ids[0], 'state, attempt'), 'PLAN|0', 'a locked row is not started');
	flows('a locked row', qw(shop postgres));
	calm('a locked row');
	$locker->query_safe('COMMIT');
	wait_for($ids[0], 'DONE');
};

# A row that is locked while it runs: its outcome waits.  A change that is rolled back has no
# effect.
subtest 'a running row is locked' => sub {
	for my $lock ('SELECT FROM task WHERE id = %d FOR UPDATE',
		q{UPDATE task SET priority = 1 WHERE id = %d}, 'DELETE FROM task WHERE id = %d')
	{
		my $id = start_task("locked by $lock");
		$locker->query_safe('BEGIN; ' . sprintf($lock, $id));
		open_gate($node, "locked by $lock", db => 'shop');
		wait_until($node, "SELECT count(*) = 1 $busy AND wait_event_type = 'Lock'");
		flows("outcome under $lock", qw(shop postgres));
		calm("outcome under $lock");
		$locker->query_safe('ROLLBACK');
		wait_for($id, 'DONE');
		is(effects("locked by $lock"), 1, "$lock: one effect");
	}
};

# The whole table is locked while tasks run and others are planned.
subtest 'the table is locked' => sub {
	my $position = log_position($node);
	my @ids = map { start_task('table') } 1 .. 2;
	shop(q{INSERT INTO task (queue, dt, request) SELECT 'soon', now() + '0.5 s',
		'INSERT INTO effect VALUES (''soon'')' FROM generate_series(1, 20)});
	$locker->query_safe('BEGIN; LOCK TABLE task IN ACCESS EXCLUSIVE MODE');
	open_gate($node, 'table', db => 'shop');
	$other->query_until(qr/sent/,
		"\\echo sent\nINSERT INTO task (queue, request) VALUES ('behind', 'SELECT 1');\n");
	# some of the queue "soon" may run already
	wait_until($node, "SELECT count(*) = 2 $busy AND wait_event_type = 'Lock'
		AND substring(application_name FROM '\\d+\$')::bigint IN (@{[ join ', ', @ids ]})");
	wait_for_log_line($node, qr/ERROR:  canceling statement due to lock timeout/, $position);
	flows('a locked table', 'postgres');
	calm('a locked table');
	is(said($position, 'canceling statement due to lock timeout'), 1,
		'a locked table: the error is logged once');
	$locker->query_safe('COMMIT');
	$other->query_safe('SELECT 1');
	until_shop(q{SELECT count(*) = 21 FROM task WHERE queue IN ('soon', 'behind')
		AND state = 'DONE'});
	wait_for($_, 'DONE') for @ids;
	is(effects('table') . ' ' . effects('soon'), '2 20',
		'a locked table: each effect is there once');
	is(shop(q{SELECT max(attempt) FROM task}), 1, 'a locked table: no task was started twice');
};

# CREATE INDEX lets everybody read.
subtest 'a table that is locked against writes' => sub {
	my $position = log_position($node);
	my $id = insert(queue => 'shared', request => 'SELECT 1',
		dt => sql(q{SELECT now() + interval '3 s'}));
	$locker->query_safe('BEGIN; LOCK TABLE task IN SHARE MODE');
	ok(wait_for_log_line($node, qr/DETAIL:  Another session has locked table "task"\./, $position),
		'the log names it');
	$locker->query_safe('COMMIT');
	wait_for($id, 'DONE');
};

# ALTER TABLE waits for a reader, and everybody waits for ALTER TABLE.
subtest 'ALTER TABLE waits for a reader' => sub {
	my $position = log_position($node);
	$locker->query_safe('BEGIN; SELECT FROM task LIMIT 1');
	$other->query_until(qr/sent/,
		"\\echo sent\nALTER TABLE task ADD COLUMN mine text DEFAULT 'x';\n");
	wait_until($node,
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE '%ADD COLUMN mine%'
		AND wait_event_type = 'Lock'});
	wait_for_log_line($node, qr/DETAIL:  Another session has locked table "task"\./, $position);
	flows('ALTER TABLE that waits', 'postgres');
	calm('ALTER TABLE that waits');
	$locker->query_safe('COMMIT');
	$other->query_safe('SELECT 1');
	flows('after ALTER TABLE', qw(shop postgres));
};

# TRUNCATE and DROP TABLE remove running tasks: no effect, no trace.  RENAME to another name and
# back does not.
subtest 'TRUNCATE, DROP TABLE, RENAME TO' => sub {
	for my $end ('TRUNCATE task', 'DROP TABLE task')
	{
		start_task($end);
		my $queue = insert(queue => 'later', dt => 'infinity', request => 'SELECT 1');
		shop($end);
		open_gate($node, $end, db => 'shop');
		wait_until($node, "SELECT count(*) = 0 $busy AND state <> 'idle'");
		wait_for_table($node, db => 'shop');
		is(effects($end) . shop('SELECT count(*) FROM task'), '00',
			"$end: the running task has no effect and no row");
		flows("after $end", qw(shop postgres));
	}
	my $id = start_task('rename');
	shop('ALTER TABLE task RENAME TO aside');
	wait_for_table($node, db => 'shop');
	flows('under another name', qw(shop postgres));
	open_gate($node, 'rename', db => 'shop');
	wait_until($node, "SELECT count(*) = 0 $busy AND state <> 'idle'");
	is(shop("SELECT state, attempt FROM aside WHERE id = $id"), 'DONE|1',
		'RENAME: a running task ends in the renamed table');
	shop('BEGIN; DROP TABLE task; ALTER TABLE aside RENAME TO task; COMMIT');
	wait_for($id, 'DONE');
	is(effects('rename') . row($id, 'attempt'), '11', 'RENAME and back: one effect, of one run');
	flows('RENAME and back', qw(shop postgres));
};

# Columns: dropped ones of pg_task are created again, others are not.  Without an essential one the
# table is rejected until it is back.
subtest 'columns are dropped' => sub {
	shop('ALTER TABLE task ADD COLUMN mine text');
	my $id = start_task('columns', repeat => '1 day');
	shop('ALTER TABLE task DROP COLUMN mine, DROP COLUMN notice, DROP COLUMN timezone CASCADE');
	until_shop(q{SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = 'task'::regclass
		AND attname IN ('notice', 'timezone')});
	open_gate($node, 'columns', db => 'shop');
	wait_for($id, 'DONE');
	is(shop("SELECT state FROM task WHERE parent = $id"), 'PLAN',
		'dropped columns: the task repeats');
	flows('dropped columns', qw(shop postgres));
};

# A column has another type when the outcome is written: no statement of pg_task may use it as the
# old type.
subtest 'a column changes its type' => sub {
	my $id = start_task('type', repeat => '1 day');
	my $position = log_position($node);
	shop('ALTER TABLE task ALTER format TYPE bigint USING 5');
	open_gate($node, 'type', db => 'shop');
	wait_for_log_line($node, qr/DETAIL:  The type of its column "format" is another/, $position);
	wait_until($node, "SELECT count(*) = 0 $busy AND state <> 'idle'");
	is(effects('type') . row($id, 'state'), '0WORK', 'another type: no effect yet');
	shop('ALTER TABLE task ALTER format TYPE text USING NULL');
	wait_for($id, 'DONE');
	is(effects('type') . row($id, 'attempt'), '12', 'the type is back: the task runs again');
	unlike(log_since($node, $position), qr/terminated by signal/, 'no process has crashed');
	for my $column ([ 'attempt', 'int NOT NULL DEFAULT 0' ],
		[ 'dt', 'timestamptz NOT NULL DEFAULT now()' ])
	{
		my ($name, $type) = @$column;
		$position = log_position($node);
		shop("ALTER TABLE task DROP COLUMN $name CASCADE");
		wait_for_log_line($node,
			qr/ERROR:  public\.task is not a task table.*?It has no column "$name"/s, $position);
		flows("without $name", 'postgres');
		calm("without $name");
		is(said($position, 'public\.task is not a task table'), 1,
			"without $name: the error is logged once");
		shop("ALTER TABLE task ADD COLUMN $name $type");
		flows("$name is back", qw(shop postgres));
	}
	$locker->quit;
	$other->quit;
};

done_testing();
