# More databases than worker slots: schedulers leave slots for executors and for the server, and
# alternate, so that the tasks of each database run.  A TAP test because it counts processes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => 'max_worker_processes = 8');

# The default of the server, and seven databases.
my @databases = map { "db$_" } 1 .. 6;
my $position = log_position($node);
sql("CREATE DATABASE $_") for @databases;
wait_for_table($node, db => $_) for @databases;

subtest 'the tasks of each database run' => sub {
	my $waited;

	# with nothing to do, a scheduler makes way after 50 ms; a busy machine adds to it
	for (1 .. 5)
	{
		$waited = 0;
		for my $db ('postgres', @databases)
		{
			my $id = run_task($node, db => $db, request => 'SELECT current_database()');

			is(task($node, $id, 'response', db => $db), $db, "a task of $db runs");
			$waited += task($node, $id, 'extract(epoch FROM start - dt)', db => $db);
		}
		last if $waited < 20;
	}
	cmp_ok($waited, '<', 20, 'no scheduler keeps its place for long');
};

# A scheduler that always has something to do makes way, too.
subtest 'three databases are busy' => sub {
	my @busy = @databases[0 .. 2];

	sql_in($_, q{INSERT INTO task (request, repeat) VALUES ('SELECT 1', '100 ms')}) for @busy;
	wait_until($node, 'SELECT count(*) > 2 FROM task', db => $_) for @busy;
	my $id = run_task($node, db => $databases[3], request => 'SELECT 1');
	is(task($node, $id, q{start - dt < '20 s'}, db => $databases[3]), 't',
		'a task of another one starts soon');
	# a run that ends meanwhile plans another
	wait_until($node, q{WITH gone AS (DELETE FROM task RETURNING id)
		SELECT NOT EXISTS (SELECT FROM gone)}, db => $_) for @busy;
};

# The server has a slot for a parallel query, while all databases are busy.
subtest 'a slot for a parallel query' => sub {
	make_gates($node);
	insert_task($node, request => "SELECT hold('all')") for 1 .. 4;
	wait_until($node, q{SELECT count(*) > 1 FROM task WHERE state = 'WORK'});
	insert_task($node, db => $_, request => 'SELECT pg_sleep(0.1)') for @databases;
	sql(q{CREATE TABLE large AS SELECT n FROM generate_series(1, 100000) AS n; ANALYZE large});
	# the slot of a process that has just exited is free a moment later
	ok(poll_for(sub {
		return sql(q{SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
			SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 1;
			EXPLAIN (ANALYZE, COSTS off, TIMING off) SELECT count(*) FROM large})
		  =~ /Workers Launched: [1-9]/;
	}), 'a parallel query has a worker');
	open_gate($node, 'all');
	for my $db ('postgres', @databases)
	{
		wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state <> 'DONE'}, db => $db);
	}
	pass('all tasks are done');
};

# A database whose scheduler has exited still starts tasks at their planned times, and its running
# tasks may be stopped.
subtest 'a planned time in a database without a scheduler' => sub {
	my $none = q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'db1'
		AND backend_type = 'pg_task scheduler')};

	# one of them is the next when the scheduler has exited, whenever that is
	sql_in('db1', q{INSERT INTO task (request, dt)
		SELECT 'SELECT 1', now() + n * interval '5 s' FROM generate_series(1, 40) AS n});
	# it exits because others need its place, and comes back when its next task is due
	my @others = @databases[1 .. 5];
	poll_for(sub {
		run_task($node, db => $others[0], request => 'SELECT 1');
		push @others, shift @others;
		return sql($none) eq 't';
	}) or die 'the scheduler does not exit';
	my $id = sql_in('db1',
		q{SELECT id FROM task WHERE state = 'PLAN' AND dt > clock_timestamp() ORDER BY dt LIMIT 1});
	is(sql_in('db1', 'SELECT pg_task_cancel(0)'), 'f',
		'without one tasks can be cancelled');
	wait_for_state($node, $id, 'DONE', db => 'db1');
	is(task($node, $id, q{start - dt < '30 s'}, db => 'db1'), 't', 'a task starts at its time');
	sql_in('db1', 'DELETE FROM task');
	is(scalar(() = log_since($node, $position) =~ /no background worker slot is free/g), 0,
		'no worker slot was missing');
};

# A row that is locked when it is due starts soon after.
subtest 'a locked row in a database without a scheduler' => sub {
	my $session = open_session($node, 'db1');
	my $id = $session->query_safe(q{INSERT INTO task (request, dt)
		VALUES ('SELECT 1', clock_timestamp() + interval '1 s') RETURNING id});
	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $id FOR UPDATE");
	sql_in($_,
		q{INSERT INTO task (request, dt) VALUES ('SELECT 1', now() + interval '2 s')})
	  for qw(db2 db4 db5 db6);
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state <> 'DONE'}, db => $_)
		for qw(db2 db4 db5 db6);
	my $moment = sql('SELECT clock_timestamp()');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_state($node, $id, 'DONE', db => 'db1');
	is(task($node, $id, qq{start - '$moment' < '30 s'}, db => 'db1'), 't',
		'a row that was locked starts soon after');
};

# A longer list of databases is served at once when there are slots.
subtest 'pg_task.database' => sub {
	$node->append_conf('postgresql.conf', 'max_worker_processes = 24');
	$node->restart;
	wait_for_schedulers($node, 'postgres', @databases);
	set_conf($node, 'pg_task.max_schedulers = 2');
	my $id = run_task($node, db => 'db6', request => 'SELECT 1');
	wait_until($node, q{SELECT count(*) <= 2 FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler'});
	run_task($node, db => $_, request => 'SELECT 1') for @databases;
	pass('pg_task.max_schedulers is kept, and schedulers rotate');
};

# One place, and one executor, which is busy: since when another database waits for one is known
# while schedulers take turns.
subtest 'a database that waits for an executor' => sub {
	my $fewer = qr/LOG:  pg_task can start at most 1 of 4 executors.*HINT:  .*to at least 8,/s;

	unlike(log_since($node, 0), qr/pg_task can start at most/, 'all executors had slots');
	is(sql(q{SELECT count(*) FROM pg_task_health() WHERE hint = 'max_worker_processes'}), 0,
		'nor does pg_task_health say so');
	$position = log_position($node);
	$node->append_conf('postgresql.conf', 'max_worker_processes = 4');
	$node->restart;
	wait_for_log_line($node, $fewer, $position);
	is(sql(q{SELECT level, problem FROM pg_task_health() WHERE hint = 'max_worker_processes'}),
		'info|at most 1 tasks run at once, not pg_task.max_executors, 4: too few worker slots',
		'pg_task_health says so');
	insert_task($node, request => "SELECT hold('place')") for 1 .. 2;
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE state = 'WORK'});
	insert_task($node, db => 'db1', request => 'SELECT 1');
	my $figures = q{FROM pg_stat_task_scheduler() WHERE datname = 'db1' AND wants_since IS NOT NULL};
	wait_until($node, "SELECT count(*) = 1 $figures AND begun IS NOT NULL");
	my ($begun, $since) = split /\|/, sql("SELECT max(begun), max(wants_since) $figures");
	wait_until($node, "SELECT count(*) = 1 $figures AND state = 'waiting'");
	wait_until($node, "SELECT count(*) = 1 $figures AND begun > '$begun'");
	is(sql("SELECT wants_since - '$since' < '0.5 s' $figures"), 't', 'its next scheduler goes on');
	open_gate($node, 'place');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state <> 'DONE'}, db => $_)
	  for qw(db1 postgres);
	wait_until($node, "SELECT count(*) = 0 $figures");
	pass('it has got one');
};

# Too few for one executor: the log says so.
subtest 'too few slots for an executor' => sub {
	$position = log_position($node);
	$node->append_conf('postgresql.conf', 'max_worker_processes = 3');
	$node->restart;
	ok(wait_for_log_line($node, qr/too few worker slots for pg_task/, $position),
		'too few worker slots are reported');
	my $id = insert_task($node, request => 'SELECT 1');
	wait_until($node, "SELECT pg_task_why($id)", expected =>
		  'too few worker slots for pg_task to run tasks: increase max_worker_processes');
	like(sql('SELECT level, problem FROM pg_task_health()'),
		qr/^critical\|no executor can start: too few worker slots for pg_task$/m, 'and by pg_task_health');
};

# The supervisor and the launcher of logical replication have both.
subtest 'no slot for a scheduler' => sub {
	$node->append_conf('postgresql.conf', 'max_worker_processes = 2');
	$node->restart;
	my $id = insert_task($node, request => 'SELECT 1');
	is(sql("SELECT pg_task_why($id)"),
		'too few worker slots for pg_task to run tasks: increase max_worker_processes',
		'pg_task_why says so, and nothing of turns');
	is(sql(q{SELECT problem, hint FROM pg_task_health() WHERE datname = 'postgres'}),
		'its scheduler waits for a worker slot|max_worker_processes, and pg_task.max_schedulers',
		'pg_task_health names both settings, and nothing else');
};

# The launcher of logical replication has the only one.
subtest 'no slot for the supervisor' => sub {
	$node->append_conf('postgresql.conf', 'max_worker_processes = 1');
	$node->restart;
	is(sql('SELECT problem, hint FROM pg_task_health()'), 'pg_task serves no database of this server|'
		. 'shared_preload_libraries, max_worker_processes, pg_task.database, and pg_task.enabled of the'
		. ' server',
		'pg_task_health names the setting');
};

done_testing();
