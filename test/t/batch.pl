# pg_task.batch: short tasks that wait together share a transaction and a commit, and each ends as
# if it had run alone.  A TAP test because it matters which process runs a task, and with which
# other ones.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# One executor for each role, so that what it has waits for one process.
my $node = new_node('main',
	conf => "pg_task.max_executors = 2\npg_task.role_executors = 1\npg_task.batch = 16\n"
		. 'track_commit_timestamp = on');

sql(q{
	CREATE ROLE single LOGIN SUPERUSER;
	ALTER ROLE single SET pg_task.batch = 1;
	CREATE TABLE effect (id bigint, what text);
	CREATE TABLE parent (a int PRIMARY KEY);
	INSERT INTO parent VALUES (1);
	CREATE TABLE child (a int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
	CREATE SEQUENCE tries;
	CREATE SEQUENCE other;
	CREATE SEQUENCE fronts;
	CREATE EXTENSION dblink;
	CREATE FUNCTION note(text) RETURNS text LANGUAGE sql AS
		$$ INSERT INTO effect VALUES (current_setting('pg_task.id')::bigint, $1) RETURNING what $$;
	CREATE FUNCTION do_sql(text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE $1; END $$;
	CREATE FUNCTION leave_cursor() RETURNS refcursor LANGUAGE plpgsql AS
		$$ DECLARE c refcursor := 'left'; BEGIN OPEN c FOR SELECT 1; RETURN c; END $$;
	CREATE FUNCTION conflict_once() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('tries') % 2 = 1 THEN RAISE serialization_failure; END IF;
		RETURN note('late'); END $$;
	CREATE FUNCTION swallow_cancel() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_sleep(0.2); RETURN note('slept');
		EXCEPTION WHEN query_canceled THEN RETURN note('woken'); END $$;
	CREATE PROCEDURE commits() LANGUAGE plpgsql AS
		$$ BEGIN PERFORM note('kept'); COMMIT; PERFORM note('lost'); ROLLBACK; END $$;
	CREATE FUNCTION tells() RETURNS int LANGUAGE plpgsql AS
		$$ BEGIN RAISE NOTICE 'a notice'; RAISE WARNING 'a warning'; RETURN 3; END $$});

# Inserts tasks by one statement, as a role if one is given, and waits until all have ended, or have
# been planned for infinity; returns their ids.
sub run_tasks
{
	my ($role, @tasks) = @_;
	my %columns = map { $_ => 1 } map { keys %$_ } @tasks;
	my @names = sort keys %columns;
	my @rows = map {
		my $task = $_;
		'(' . join(', ', map { exists $task->{$_} ? literal($task->{$_}) : 'DEFAULT' } @names) . ')'
	} @tasks;
	my @ids = split /\n/, sql_as($role,
		'INSERT INTO task (' . join(', ', map { qq("$_") } @names) . ') VALUES '
		. join(', ', @rows) . ' RETURNING id');
	my $list = join ',', @ids;

	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE id IN ($list) "
		. "AND state IN ('PLAN', 'WORK') AND dt < 'infinity')");
	return @ids;
}

my $marker = { request => 'SELECT pg_current_xact_id()' };

# How many transactions these tasks have had.
sub transactions
{
	return sql('SELECT count(DISTINCT response) FROM task WHERE id IN (' . join(',', @_) . ')');
}

# Tries again and again until this returns something true.  Before each try some tasks of the queue
# have shared a transaction: so it is known that they take a short time.
sub retry_batch
{
	my ($role, $queue, $try) = @_;

	for (1 .. 500)
	{
		next if transactions(run_tasks($role, ({ %$marker, queue => $queue }) x 16)) == 16;
		my $result = $try->();
		return $result if $result;
	}
	die 'tasks that wait together do not share a transaction';
}

# As run_tasks, until the tasks have begun in a batch: the two before them have shared a transaction,
# or have run twice, because the batch was rolled back.  On a busy machine that may need many tries.
sub run_batch
{
	my ($role, @tasks) = @_;
	my $queue = $tasks[0]{queue} // 'default';
	my $front = { queue => $queue,
		request => q{SELECT CASE WHEN nextval('fronts') > 0 THEN pg_current_xact_id() END} };
	my $ids = retry_batch($role, $queue, sub {
		sql(q{SELECT setval('fronts', 1, false)});
		my ($first, $second, @ids) = run_tasks($role, $front, $front, @tasks);
		return (transactions($first, $second) == 1 || sql('SELECT last_value > 2 FROM fronts') eq 't')
		  && \@ids;
	});

	return @$ids;
}

sub effects { return sql("SELECT count(*) FROM effect WHERE id = $_[0]") }

# The tasks that run alone have an executor of their own role.
sub is_single
{
	return transactions(run_tasks('single', ($marker) x 20));
}

subtest 'one transaction for several tasks' => sub {
	my @ids = run_batch('postgres', $marker, { request => q{SELECT note('x')} });
	pass('tasks that wait together share one');
	is(is_single(), 20, 'a role with pg_task.batch = 1 has one for each');
	is(effects($ids[1]), 1, 'it has its effect once');
	is_row($node, $ids[1], { state => 'DONE', attempt => 1, response => 'x', error => undef,
		'stop >= start' => 'true', 'pid > 0' => 'true', 'start >= dt' => 'true' }, 'its row');
};

# Each of these runs once in a batch and once alone, with the same outcome.
my $leaves = q{SELECT current_setting('work_mem'), (SELECT count(*) FROM pg_class
	WHERE relpersistence = 't'), (SELECT count(*) FROM pg_prepared_statements),
	(SELECT count(*) FROM pg_cursors), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
	AND pid = pg_backend_pid()), current_user = session_user,
	coalesce(current_setting('my.own', true), ''), current_setting('search_path'),
	current_setting('TimeZone'), current_setting('application_name') ~ current_setting('pg_task.id')};
my @requests = (
	'SELECT 1, NULL::text', 'SELECT 1/0', 'SELEC', 'SELECT 1; SELECT 2',
	q{SELECT note('a'); SELECT 1/0}, q{SELECT note('b'); SELECT note('c')},
	q{SELECT note('d'); COMMIT; SELECT 1/0}, 'BEGIN; SELECT 1; COMMIT', 'BEGIN', 'ROLLBACK',
	'SAVEPOINT a', 'CALL commits()', q{DO $$ BEGIN PERFORM note('e'); COMMIT; END $$},
	q{DO $$ BEGIN COMMIT; EXCEPTION WHEN OTHERS THEN PERFORM note('refused'); END $$},
	'VACUUM parent', 'CREATE TABLE made (a int); DROP TABLE made',
	q{SET work_mem = '1MB'; SHOW work_mem}, $leaves, q{SET LOCAL work_mem = '1MB'}, $leaves,
	q{SELECT set_config('work_mem', '2MB', false), set_config('my.own', 'x', false)}, $leaves,
	q{SET ROLE pg_monitor; SELECT current_user}, $leaves,
	q{SET SESSION AUTHORIZATION pg_monitor; SET search_path = nowhere}, $leaves,
	'RESET ALL', $leaves, q{SET TimeZone = 'Asia/Tokyo'; SELECT 1/0}, $leaves,
	'CREATE TEMP TABLE t (a int)', $leaves, q{SELECT do_sql('CREATE TEMP TABLE t (a int)')},
	$leaves, 'SELECT 1 AS a INTO TEMP t', $leaves, q{SELECT do_sql('PREPARE p AS SELECT 1')},
	$leaves, 'SELECT leave_cursor()', $leaves,
	q{SELECT do_sql('DECLARE c CURSOR WITH HOLD FOR SELECT 1/0')}, $leaves,
	'SELECT pg_advisory_lock(7)', $leaves, 'SELECT pg_advisory_lock(7); SELECT 1/0', $leaves,
	q{SELECT nextval('other') > 0}, 'SELECT lastval()',
		q{SELECT do_sql('SET CONSTRAINTS ALL DEFERRED')},
	'SELECT setseed(0.5)', q{SELECT lo_open(lo_create(0), 131072)}, 'SELECT loread(0, 1)',
	q{SELECT do_sql('LISTEN x')}, q{SELECT do_sql('LOAD ''auto_explain''')},
	'SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SHOW transaction_isolation',
	'SHOW transaction_isolation', 'SET TRANSACTION READ ONLY; SELECT note(1::text)',
	'SHOW transaction_read_only', q{SELECT do_sql('SET TRANSACTION READ ONLY')},
		q{SELECT note('f')},
	'SELECT pg_export_snapshot() <> $$$$', 'INSERT INTO child VALUES (2)',
	'INSERT INTO child VALUES (3); INSERT INTO parent VALUES (3); DELETE FROM child; '
		. 'DELETE FROM parent WHERE a = 3',
	'SET CONSTRAINTS ALL IMMEDIATE; INSERT INTO child VALUES (4)', 'SELECT tells()',
	'COPY (VALUES (1, NULL), (2, $$x$$)) TO STDOUT', 'COPY parent FROM STDIN',
		'SELECT conflict_once()',
	'SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(100)', 'SELECT swallow_cancel()',
	q{SET statement_timeout = 1; SELECT pg_sleep(100)}, 'SELECT pg_sleep(0.03), note($$g$$)',
	q{SELECT note('h'), state FROM task WHERE id::text = current_setting('pg_task.id')},
	q{UPDATE task SET priority = 7 WHERE id = current_setting('pg_task.id')::bigint},
		'TABLE nowhere',
	'EXPLAIN (COSTS OFF) SELECT 1', 'LOCK TABLE parent', 'DISCARD ALL', $leaves);

subtest 'the same outcome as alone' => sub {
	my $columns = q{state, attempt, failed, coalesce(response, '-'), coalesce(error, '-'),
		coalesce(sqlstate, '-'), coalesce(notice, '-'), (SELECT string_agg(what, ' ') FROM effect
		WHERE effect.id = task.id), stop >= start};
	my @tasks = map { { request => $_ } } @requests;

	push @tasks, map { { request => q{SELECT 1 AS a, 'x,y' AS b},
		format => $_ } } qw(csv json text);
	push @tasks, { request => q{SELECT note('i'); SELECT 1/0}, retry => 2, delay => '1 ms' },
	  { request => q{SELECT note('j'), pg_sleep(100)}, timeout => '100 ms' },
	  { request => q{SELECT pg_task_input()}, input => '{"a": 1}' },
	  { request => 'SELECT ' . literal('x' x 2000) };
	my %of;
	# pairs of neighbours share a batch, if the first one does not end it
	for my $role (qw(postgres single))
	{
		my @ids = $role eq 'single' ? run_tasks($role, @tasks) : ();
		for (my $i = 0; $role ne 'single' && $i < @tasks; $i += 12)
		{
			my $last = $i + 11 < $#tasks ? $i + 11 : $#tasks;
			push @ids, run_batch($role, @tasks[ $i .. $last ]);
		}
		my %row = map { split /\t/, $_, 2 } split /\n/, sql("SELECT id::text || chr(9) || "
			. "translate(row($columns)::text, E'\\n', ' ') FROM task WHERE id IN ("
			. join(',', @ids) . ')');
		$of{$role} = [ map { $row{$_} } @ids ];
	}
	for my $i (0 .. $#tasks)
	{
		my $request = $tasks[$i]{request} =~ s/\s+/ /gr;
		is($of{postgres}[$i], $of{single}[$i], "$i " . substr($request, 0, 60));
	}
};

# A member that fails is run again once, alone, and those before it are not.  On a busy machine a
# batch may be rolled back because it takes too long.
subtest 'how often a task runs' => sub {
	my @tasks = map { { queue => 'counted', request => $_ } }
	  (q{SELECT nextval('done')}, q{SELECT nextval('done')}, q{SELECT nextval('failed') / 0}) x 16;
	my ($done, $failed);

	sql('CREATE SEQUENCE done; CREATE SEQUENCE failed');
	for (1 .. 20)
	{
		sql(q{SELECT setval('done', 1, false), setval('failed', 1, false)});
		run_tasks('postgres', @tasks);
		($done, $failed) =
		  split /\|/, sql('SELECT d.last_value, f.last_value FROM done AS d, failed AS f');
		last if $done == 32 && $failed > 16 && $failed <= 32;
	}
	is($done, 32, 'those that are done: once');
	ok($failed > 16 && $failed <= 32, "16 that fail in a batch: twice at most, in all $failed");
};

subtest 'the batch of a queue' => sub {
	# Runs tasks of a role in a queue; returns with how many others one has shared its transaction.
	my $shares = sub {
		my ($role, $queue) = @_;
		my @ids = run_tasks($role, ({ %$marker, queue => $queue }) x 20);

		return sql('SELECT max(n) - 1 FROM (SELECT count(*) AS n FROM task WHERE id IN ('
			. join(',', @ids) . ') GROUP BY response) AS x');
	};
	insert_rule('together', batch => 16);
	insert_rule('pairs', batch => 2);
	insert_rule('apart', batch => 1);
	my ($together, $pairs, $most) = (0, 0, 0);
	for (1 .. 500)
	{
		$together ||= $shares->('single', 'together');
		$pairs = $shares->('postgres', 'pairs') if !$pairs;
		$most = $pairs if $pairs > $most;
		last if $together && $pairs;
	}
	ok($together, 'a queue may have one where the role has none');
	is($most, 1, '... and a smaller one');
	is($shares->('postgres', 'apart'), 0, '... and none');
};

subtest 'a timeout of the server' => sub {
	my $session = open_session($node, 'postgres');
	$session->query_safe('BEGIN; LOCK TABLE parent');
	my ($waits, $lasts);
	for my $request (q{SELECT note('x')}, 'SELECT 1')
	{
		(undef, $waits) = run_batch('postgres', { request => $request },
			{ request => q{SET lock_timeout = '3ms'; SELECT note('l') FROM parent} });
		is_row($node, $waits, { state => 'FAIL', sqlstate => '55P03', attempt => 1 },
			'lock_timeout');
	}
	$session->quit;
	(undef, $lasts) = run_batch('postgres', { request => 'SELECT 1' },
		{ request => q{SET statement_timeout = '3ms'; SELECT note('s'), pg_sleep(100)} });
	is_row($node, $lasts, { state => 'FAIL', sqlstate => '57014', attempt => 1,
		error => 'canceling statement due to statement timeout' }, 'statement_timeout');
};

# The task after such a one begins when that has committed.  One with a short timeout may not be
# DONE on a busy machine.
subtest 'what must not outlive the commit, or be without it' => sub {
	for my $first ('SELECT pg_advisory_lock(7)', 'SELECT pg_advisory_xact_lock(7)',
		'SET LOCAL synchronous_commit = off', 'SHOW pg_task.timeout')
	{
		my ($one, $two) = run_batch('postgres', { timeout => $first =~ /timeout/ ? '20 ms' : '1 h',
			request => "$first; SELECT 'own ' || pg_current_xact_id()" }, $marker);
		is(sql("SELECT count(*) FROM task AS a, task AS b WHERE a.id = $one AND b.id = $two AND "
			. "a.state = 'DONE' AND a.response LIKE '%own ' || b.response || '%'"), 0, $first);
	}
};

subtest 'what must not be of the tasks before it' => sub {
	my $xid = q{; SELECT 'own ' || pg_current_xact_id()};
	my $origin = q{SELECT pg_replication_origin_session_setup('far')};

	sql(q{SELECT pg_replication_origin_create('far')});
	for my $second (q{COPY (SELECT 1) TO PROGRAM 'cat >/dev/null'} . $xid, $origin . $xid,
		"$origin; SELECT 1/0")
	{
		my ($one, $two) = run_batch('postgres', $marker, { request => $second });
		is(sql("SELECT count(*) FROM task AS a, task AS b WHERE a.id = $one AND b.id = $two AND "
			. "b.response LIKE '%own ' || a.response || '%'"), 0, $second);
		is(sql("SELECT roident FROM task, pg_xact_commit_timestamp_origin(response::xid) "
			. "WHERE id = $one"), 0, '... has no effect on their commit');
	}
};

# Each of these ends its process when it has run, and cannot be DONE in a batch.
subtest 'tasks that cost the process' => sub {
	my @ids = run_batch('postgres', ({ request => q{SELECT dblink_is_busy('none')} }) x 10);
	is(sql('SELECT count(*) FROM task WHERE id IN (' . join(',', @ids) . ") AND state = 'FAIL' "
		. 'AND attempt = 1'), 10, 'each ends nevertheless');
};

subtest 'a limit of time for transactions' => sub {
	plan skip_all => 'transaction_timeout exists from 17 on' if $node->pg_version < 17;
	sql(q{CREATE ROLE limited LOGIN SUPERUSER; ALTER ROLE limited SET transaction_timeout = '1 d'});
	my @ids = run_tasks('limited', ($marker) x 20);
	is(transactions(@ids), 20, 'it is for each task');
};

subtest 'the time of the transaction' => sub {
	sql(q{DO $$ BEGIN FOR i IN 1 .. 300 LOOP
		INSERT INTO task (queue, request)
			VALUES ('now', format('SELECT now() > %L', clock_timestamp()));
		COMMIT; END LOOP; END $$});
	wait_until($node, q{SELECT count(*) = 300 FROM task WHERE queue = 'now' AND state = 'DONE'});
	is(sql(q{SELECT count(*) FROM task WHERE queue = 'now' AND response = 't'}), 300,
		'is after the insertion');
};

subtest 'triggers of the owner' => sub {
	sql(q{CREATE TABLE seen (id bigint, task text, flow text, meta text);
		CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.seen VALUES (new.id, current_setting('pg_task.id'),
				current_setting('pg_task.flow'), current_setting('pg_task.meta'));
			RETURN NULL; END $$;
		CREATE TRIGGER look AFTER UPDATE ON task FOR EACH ROW WHEN (new.state = 'DONE')
			EXECUTE FUNCTION look()});
	my @ids = run_batch('postgres', { request => 'SELECT 1', flow => 'a' },
		{ request => 'SELECT 1' },
		{ request => 'SELECT 1', flow => 'b', meta => '[7]' }, { request => 'SELECT 1', keep => '0' });
	is(sql('SELECT string_agg(concat(id = task::bigint, flow, meta), chr(32) ORDER BY id) FROM seen '
		. 'WHERE id IN (' . join(',', @ids[ 0 .. 2 ]) . ')'), 'ta t tb[7]',
			'see the task that has ended');
	sql('DROP TRIGGER look ON task; DROP TABLE seen');
};

subtest 'other ends than DONE' => sub {
	my ($again, $deleted, $repeats, $keyed) = run_batch('postgres',
		{ request => q{SELECT pg_task_again('infinity', '{"b": 2}'), note('x')} },
		{ request => q{SELECT note('y')}, keep => '0' },
		{ request => q{SELECT note('z')}, repeat => '1 h' }, { request => 'SELECT 1', key => 'k' });
	is_row($node, $again, { state => 'PLAN', dt => 'infinity', input => '{"b": 2}', attempt => 1 },
		'a task that asks to be run again');
	is(sql("SELECT count(*) FROM task WHERE id = $deleted"), 0,
		'one that is deleted when it is DONE');
	is(effects($deleted), 1, '... and has its effect');
	is(sql("SELECT count(*) FROM task WHERE parent = $repeats AND state = 'PLAN'"), 1, 'a repeat');
	sql("DELETE FROM task WHERE state = 'PLAN'");
};

subtest 'rows that change while the batch runs' => sub {
	my $far = "dblink_exec('host=" . $node->host . ' port=' . $node->port . " dbname=postgres', ";
	my $before = q{current_setting('pg_task.id')::bigint - 1};

	# Another session changes the row while the batch runs, unless that has ended for this being
	# slow.  The code says that the run was stopped; it may not have begun again.
	my ($stopped, $stops) = run_batch('postgres', { request => q{SELECT note('x')} },
		{ request => "SELECT ${far}format(\$\$UPDATE task SET state = 'STOP' WHERE id = %s "
			. "AND state = 'WORK'\$\$, $before))" });
	like(task($node, $stopped, "concat_ws(' ', state, attempt, sqlstate)") . ' ' . effects($stopped),
		qr/^(?:STOP 1(?: TK002)? 0|DONE 1 1)$/, 'stopped, it has no effect');
	is_row($node, $stops, { state => 'DONE', attempt => 1 }, '... the others have');
	my ($removed, $removes) = run_batch('postgres', { request => q{SELECT note('x')} },
		{ request => "SELECT ${far}format(\$\$DELETE FROM task WHERE id = %s AND state = 'WORK'\$\$, "
			. "$before))" });
	like(sql("SELECT count(*) FROM task WHERE id = $removed") . effects($removed), qr/^(?:00|11)$/,
		'deleted');
	is_row($node, $removes, { state => 'DONE', attempt => 1 }, '... the others have not changed');
	($removed, $removes) = run_batch('postgres', { request => q{SELECT note('x')} },
		{ request => "DELETE FROM task WHERE id = $before" });
	is(sql("SELECT count(*) FROM task WHERE id = $removed") . effects($removed), '01',
		'removed by a member: as if it had ended before');
	is_row($node, $removes, { state => 'DONE', attempt => 1 }, '... and that one is DONE');
};

subtest 'a long task' => sub {
	my ($long, $next);
	sql(q{CREATE TABLE gate (); CREATE FUNCTION waits() RETURNS void LANGUAGE plpgsql AS
		$$ BEGIN WHILE to_regclass('gate') IS NOT NULL LOOP PERFORM pg_sleep(0.01); END LOOP; END $$});
	retry_batch('postgres', 'default', sub {
		(my ($first, $second), $long, $next) = split /\n/, sql(q{INSERT INTO task (request)
			SELECT unnest(ARRAY['SELECT pg_current_xact_id()', 'SELECT pg_current_xact_id()',
			'SELECT waits()', 'SELECT pg_sleep(0)']) RETURNING id});
		wait_until($node, "SELECT count(*) = 2 FROM task WHERE id IN ($first, $second) "
			. "AND state = 'DONE'");
		wait_for_running($node, 1, id => $long, event => 'PgSleep');
		sql("SELECT pg_task_cancel($long)");
		wait_until($node, "SELECT state = 'DONE' FROM task WHERE id = $next");
		wait_until($node, "SELECT stop IS NOT NULL FROM task WHERE id = $long");
		return transactions($first, $second) == 1;
	});
	pass('those before it do not wait for it');
	is_row($node, $long, { state => 'STOP', sqlstate => 'TK002', attempt => 1 }, 'it is stopped');
};

subtest 'NOTIFY' => sub {
	my $session = open_session($node, 'postgres');
	sql(q{CREATE FUNCTION tell(text) RETURNS void LANGUAGE sql AS
		$$ SELECT pg_notify('news', concat($1, ' ', current_setting('pg_task.id'))) $$});
	$session->query_safe('LISTEN news; LISTEN ends');
	my @ids = run_batch('postgres', { request => q{SELECT tell('one')} },
		{ request => q{SELECT tell('two'); SELECT 1/0} }, { request => q{SELECT tell('three')},
			notify => 'ends' }, { request => 'SELECT 1', notify => 'ends' });
	my $heard = '';

	my @told = (qr/"one $ids[0]"/, qr/"three $ids[2]"/, map { qr/"\{"id" : $_,/ } @ids[ 2, 3 ]);

	poll_for(sub {
		$heard .= $session->query('SELECT 1');
		return !grep { $heard !~ $_ } @told;
	});
	$session->quit;
	unlike($heard, qr/two/, 'nothing of one that has failed');
	is(scalar(() = $heard =~ /"(?:one $ids[0]|three $ids[2])"/g), 2, 'what the others say, once');
	is(scalar(() = $heard =~ /"ends" with payload "\{"id" : (?:$ids[2]|$ids[3]),/g), 2,
		'the column "notify"');
};

subtest 'two roles' => sub {
	my @ids = split /\n/, sql(q{INSERT INTO task (role, request) SELECT (ARRAY['postgres', 'single'])[1 +
		i % 2], 'SELECT current_user, session_user, note(''r'')' FROM generate_series(1, 40) AS i
		RETURNING id});
	my $list = join ',', @ids;
	wait_until($node, "SELECT count(*) = 40 FROM task WHERE id IN ($list) AND state = 'DONE'");
	is(sql("SELECT count(*) FROM task WHERE id IN ($list) AND attempt = 1 AND "
		. "split_part(response, E'\\n', 2) = concat_ws(E'\\t', role, role, 'r')"), 40,
		'each task runs as its role');
	is(sql("SELECT count(*) FROM effect WHERE id IN ($list)"), 40, '... once');
};

subtest 'tasks that wait for others' => sub {
	my ($first, $fails) = run_batch('postgres', { request => 'SELECT 1' },
		{ request => 'SELECT 1/0' });
	my @ids = run_tasks('postgres', { request => 'SELECT 1', after => "{$first}" },
		{ request => 'SELECT 1', after => "{$fails}" });
	is(sql("SELECT string_agg(state, ' ' ORDER BY id) FROM task WHERE id IN (" . join(',',
		@ids) . ')'),
		'DONE GONE', 'they go by how each has ended');
};

subtest 'the figures' => sub {
	# those of a queue that no task has had before: others may be added late
	run_batch('postgres', { request => 'SELECT 1', queue => 'figures' },
		{ request => 'SELECT 1/0', queue => 'figures' });
	wait_until($node, q{SELECT sum(failed) >= 1 AND sum(started) = sum(done) + sum(failed)
		AND sum(started) = sum(planned) AND sum(started) = (SELECT count(*) FROM task
			WHERE queue = 'figures') FROM pg_stat_task() WHERE queue = 'figures'});
	pass('each run counts once');
};

# The first time that a task runs its process ends; the sequence remembers that.
for my $way ('terminated', 'killed')
{
	subtest "the executor is $way in the middle" => sub {
		my $request = q{SELECT CASE WHEN nextval('ends') = 1 THEN
			pg_terminate_backend(pg_backend_pid()) END, pg_sleep(0.001)};
		my @ids;

		sql('CREATE SEQUENCE ends');
		if ($way eq 'killed')
		{
			# PPID is the executor; a program that does not read would be an error of COPY
			my $file = $node->basedir . '/ended';
			$request = qq{SELECT nextval('ends'); SELECT do_sql(\$\$COPY (SELECT 1) TO PROGRAM
				'cat >/dev/null; test -e $file || { touch $file; kill -9 \$PPID; }'\$\$)};
		}
		run_tasks('postgres', ($marker) x 8);
		@ids = split /\n/, sql(q{INSERT INTO task (dt, request) VALUES }
			. join(', ', map { q{('infinity', } . literal($_) . ')' } (q{SELECT note('x')}) x 3,
				$request, (q{SELECT note('y')}) x 3) . ' RETURNING id');
		my $list = join ',', @ids;
		start_crash($node, @ids);
		wait_until($node, "SELECT count(*) = 7 FROM task WHERE id IN ($list) AND state = 'DONE'");
		is(sql("SELECT count(*) || ' ' || count(DISTINCT id) FROM effect WHERE id IN ($list)"),
			'6 6',
			'each task has its effect once');
		is(sql("SELECT count(*) FROM task WHERE id IN ($list) AND failed > 0"), 0,
			'none has failed');
		cmp_ok(sql("SELECT attempt FROM task WHERE id = $ids[3]"), '>', 1, 'that one ran again');
		is(sql("SELECT count(*) FROM task WHERE id IN ($list) AND id > $ids[3] AND attempt = 1"), 3,
			'those behind it had not begun') if $way eq 'terminated';
		sql('DROP SEQUENCE ends');
	};
}

done_testing();
