# pg_task_health(): no row while all is well, and one for each thing that is wrong.  A TAP test
# because databases are made and roles dropped.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', period => '1 s');

# The rows as this role sees them, but those of errors, which stay for ten minutes: one line each,
# without times and hints.
sub health
{
	my ($user) = @_;

	return sql(q{SELECT string_agg(concat_ws(', ', level, datname, queue,
			regexp_replace(problem, '\d{4}-.*', '<time>')), chr(10) ORDER BY n)
		FROM pg_task_health() WITH ORDINALITY AS h (level, datname, queue, problem, hint, n)
		WHERE problem NOT LIKE 'its scheduler had an error%'},
		user => $user // 'postgres');
}

sub is_ill
{
	my ($expected, $name, %opt) = @_;
	my $seen;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	poll_for(sub { ($seen = health($opt{user})) eq $expected });
	is($seen, $expected, $name);
}

sql(q{CREATE ROLE app LOGIN; CREATE ROLE barred LOGIN CONNECTION LIMIT 0; CREATE ROLE gone LOGIN;
	CREATE ROLE monitor LOGIN IN ROLE pg_read_all_stats; GRANT ALL ON task TO app});

subtest 'all is well' => sub {
	insert_task($node, queue => $_, request => 'SELECT 1') for qw(a b c);
	insert_task($node, queue => 'a', request => 'SELECT 1', repeat => '1 day', key => 'fine');
	insert_task($node, queue => 'a', request => 'SELECT 1', dt => 'infinity');
	insert_task($node, queue => 'a', request => 'SELECT 1/0') for 1 .. 4;
	insert_rule('closed', paused => 'true');
	insert_task($node, queue => 'closed', request => 'SELECT 1');
	wait_until($node, q{SELECT count(*) = 8 FROM task WHERE state IN ('DONE', 'FAIL')});
	is(health($_), '', "as $_") for qw(postgres monitor app);
};

# A compensation whose step succeeds is GONE without a code.
subtest 'compensations that were not needed' => sub {
	my $step = insert_task($node, queue => 'flow', request => 'SELECT 1');
	my @undo = map { insert_task($node, queue => 'flow', request => 'SELECT 1', after => "{$step}",
			rule => 'failed', repeat => '1 day') } 1 .. 6;

	wait_until($node, q{SELECT count(*) = 6 FROM task WHERE queue = 'flow' AND state = 'GONE'
		AND sqlstate IS NULL});
	is(health($_), '', "all is well, as $_") for qw(postgres monitor app);
	is(sql(q{SELECT count(*) FROM pg_task_failures() WHERE queue = 'flow'}), 0, 'no failures');
	is(sql(q{SELECT failed FROM pg_task_queues() WHERE queue = 'flow'}), '', 'nor of the queue');
	is(sql(q{SELECT gone, failed FROM pg_task_stats() WHERE queue = 'flow'}), '6|0',
		'they are GONE in the figures');
	sql("DELETE FROM task WHERE queue = 'flow'");
};

subtest 'tasks and schedules of this database' => sub {
	insert_task($node, queue => 'a', request => 'SELECT 1/0');
	insert_task($node, queue => 'closed', request => 'SELECT 1', dt => '2020-01-01');
	insert_task($node, queue => 'late', request => 'SELECT 1', dt => '2020-01-01', role => 'barred')
	  for 1 .. 2;
	insert_task($node, queue => 'b', request => 'SELECT 1/0', repeat => '1 day', key => 'fails',
		role => 'app');
	insert_task($node, queue => 'b', request => 'SELECT 1', repeat => '1 day', key => 'late',
		role => 'barred', dt => '2020-01-01');
	my $ends = insert_task($node, queue => 'b', request => 'SELECT 1', repeat => '1 day',
		key => 'ends', role => 'gone', dt => '2100-01-01');
	sql('DROP ROLE gone');
	wait_for_state($node, $ends, 'FAIL');
	my $failed = q{SELECT max(last_id) FROM pg_task_repeating() WHERE last_state = 'FAIL'};
	wait_until($node, "SELECT ($failed) IS NOT NULL");
	$failed = sql($failed);

	my $all = join "\n",
	  'warning, postgres, a, failed within an hour: 5 of the 7 tasks in the table',
	  'warning, postgres, b, due tasks: 1, the first since <time>',
	  qq{warning, postgres, b, schedule "ends" does not repeat any more: task $ends is FAIL},
	  qq{warning, postgres, b, schedule "fails" is FAIL at its last run, task $failed},
	  'warning, postgres, b, schedule "late" should have started at <time>',
	  'warning, postgres, late, due tasks: 2, the first since <time>',
	  'info, postgres, closed, due tasks: 1, the first since <time>';
	is_ill($all, 'all of them');
	is_ill($all, 'for a role that may read no table', user => 'monitor');
	is_ill(qq{warning, postgres, b, schedule "fails" is FAIL at its last run, task $failed},
		'a role sees its own', user => 'app');
	for my $hint (split /\n/, sql(q{SELECT hint FROM pg_task_health() WHERE hint LIKE 'SELECT%'}))
	{
		like(sql($hint), qr/./, $hint);
	}
	sql(q{SET client_min_messages = error; DELETE FROM task});
	is_ill('', 'they are gone');
};

# However long ago it was.
subtest 'a schedule that ended many tasks ago' => sub {
	sql('CREATE ROLE lost LOGIN');
	my $id = insert_task($node, queue => 'b', key => 'old', request => 'SELECT 1', cron => '0 0 1 1 *',
		role => 'lost');
	sql('DROP ROLE lost');
	wait_for_state($node, $id, 'FAIL');
	sql(q{INSERT INTO task (queue, dt, state, request)
		SELECT 'c', '2020-01-01', 'DONE', 'SELECT 1' FROM generate_series(1, 20000);
		SELECT setval('task_id_seq', currval('task_id_seq') + 1000000);
		INSERT INTO task (queue, dt, state, request) VALUES ('c', '2020-01-01', 'DONE', 'SELECT 1')});
	is_ill(qq{warning, postgres, b, schedule "old" does not repeat any more: task $id is FAIL},
		'it is told');
	sql('VACUUM ANALYZE task');
	like(sql(q{EXPLAIN SELECT FROM task AS e
		WHERE (e.repeat IS NOT NULL OR e.cron IS NOT NULL) AND e.next IS NULL
			AND e.state IN ('FAIL', 'GONE')}), qr/Index Scan.* using task_work_idx/,
		'and found by an index');
	sql('DELETE FROM task');
};

subtest 'schedules' => sub {
	my %row = (queue => 'b', request => 'SELECT 1', repeat => '1 day', dt => '2100-01-01');

	# one without a key, and one that somebody has set up again
	sql('CREATE ROLE lost LOGIN');
	my ($bare) = map { insert_task($node, %row, role => 'lost', %$_) } {}, { key => 'again' };
	sql('DROP ROLE lost');
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE state = 'FAIL'});
	insert_task($node, %row, key => 'again');
	# those whose last run was to be the last one
	my %last = (queue => 'b', request => 'SELECT 1/0', repeat => '1 day');
	my @last = map { insert_task($node, %last, %$_) } { runs_left => 1 },
		{ repeat_until => sql(q{SELECT now() + interval '1 hour'}) };
	wait_for_state($node, $_, 'FAIL') for @last;
	# counted from January 31, the next one would be on March 31
	sql(q{INSERT INTO task (queue, request, repeat, dt, anchor, repeat_until, state, start, stop, keep)
		VALUES ('b', 'SELECT 1/0', '1 month', '2024-02-29', '2024-01-31', '2024-03-30', 'FAIL',
			'2024-02-29', '2024-02-29', '100 years')});
	is_ill("warning, postgres, b, a task does not repeat any more: task $bare is FAIL",
		'one that nobody has set up again');
	sql('DELETE FROM task');
	insert_task($node, %row, key => qq{x"\ncritical}, role => 'barred', dt => '2020-01-01');
	like(sql(q{SELECT problem FROM pg_task_health() WHERE problem LIKE 'sched%'}),
		qr/^schedule "x\\"\\ncritical" should have started at 2020/,
		'the time for which it was planned, in one line');
	like(sql(sql(q{SELECT hint FROM pg_task_health() WHERE problem LIKE 'sched%'})),
		qr/^role "barred" has 0 of 0 executors/, 'its hint tells why');
	sql('DELETE FROM task');
};

# The last one stays until another one has succeeded.
subtest 'nobody is told' => sub {
	insert_task($node, queue => 'a', request => 'SELECT 1/0', on_failure => 'SELECT 1/0');
	my $told = q{FROM task WHERE queue = 'on_failure' AND state = };
	wait_until($node, "SELECT count(*) = 1 $told 'FAIL'");
	my $id = sql("SELECT id $told 'FAIL'");
	is_ill("warning, postgres, on_failure, nobody was told of a failure: task $id is FAIL", $_,
		user => $_) for qw(postgres monitor);
	like(sql(sql(q{SELECT hint FROM pg_task_health()})), qr/^22012\|division by zero\|SELECT 1.0$/,
		'its hint tells why');
	sql("UPDATE task SET stop = stop - interval '2 h' WHERE id = $id");
	is_ill("warning, postgres, on_failure, nobody was told of a failure: task $id is FAIL",
		'two hours ago');
	insert_task($node, queue => 'a', request => 'SELECT 1/0', on_failure => 'SELECT 1');
	wait_until($node, "SELECT count(*) = 1 $told 'DONE'");
	is_ill('', 'another one has succeeded');
	sql('DELETE FROM task');
};

subtest 'nobody takes' => sub {
	my $problem = q{SELECT problem FROM pg_task_health() WHERE queue = 'mail'};
	insert_rule('mail', taker => 'app');
	my $id = insert_task($node, queue => 'mail', request => 'send', dt => '2020-01-01');
	wait_until($node, "SELECT count(*) = 1 FROM ($problem) AS h");
	like(sql($problem), qr/^due tasks: 1, .*; no session waits for them$/, 'no session takes');
	my $session = open_session($node, 'postgres', extra_params => ['-U', 'app']);
	$session->query_until(qr/began/, "\\echo began\n"
		. "SELECT id FROM pg_task_take('{mail}', wait => 10000, names => '{other}');\n");
	wait_until($node, "$problem AND problem NOT LIKE '%;%'",
		expected => sql("SELECT 'due tasks: 1, the first since ' || dt FROM task WHERE id = $id"));
	pass('a session waits, for other names');
	$session->quit;
	sql('DELETE FROM task');
};

subtest 'many' => sub {
	sql(q{INSERT INTO task (queue, request) SELECT 'f' || n % 30, 'SELECT 1/0'
		FROM generate_series(1, 150) AS n});
	wait_until($node, q{SELECT count(*) = 150 FROM task WHERE state = 'FAIL'});
	sql('ALTER TABLE task_queue ALTER max TYPE bigint');
	# while the scheduler prepares the table, which it does again and again now, less is shown
	my $parts = q{count(*) FILTER (WHERE problem LIKE 'failed within an hour%'), string_agg(problem,
		' ') FILTER (WHERE n <= 2) ~ 'the queue table cannot be used\. .*"max"'
		FROM pg_task_health() WITH ORDINALITY AS h (level, datname, queue, problem, hint, n)};
	wait_until($node, "SELECT $parts", expected => '20|t');
	ok(1, 'a part of them is shown, and what concerns all comes first');
	sql('ALTER TABLE task_queue ALTER max TYPE int; TRUNCATE task');
	is_ill('', 'they are gone');
};

subtest 'tables' => sub {
	sql('ALTER TABLE task_queue OWNER TO app');
	is_ill('warning, postgres, the queue table cannot be used. '
			. 'It has another owner than the task table.',
		'the owner of the queue table');
	sql('ALTER TABLE task_queue OWNER TO postgres');
	is_ill('', 'that is mended');
};

subtest 'another name, and another table of the usual name' => sub {
	sql('CREATE DATABASE named');
	sql(q{ALTER DATABASE named SET pg_task.schema_name = 'jobs'});
	wait_for_table($node, db => 'named', table => 'jobs.task');
	sql_in('named', q{CREATE TABLE IF NOT EXISTS public.task (id int, queue text, state text, dt timestamptz);
		INSERT INTO jobs.task (queue, request, role, dt)
			VALUES ('late', 'SELECT 1', 'barred', '2020-01-01')});
	# health tells of a table from when its scheduler has begun to serve it
	my $hint = q{SELECT hint FROM pg_task_health() WHERE problem LIKE 'due tasks%'};
	wait_until($node, "SELECT count(*) = 1 FROM ($hint) AS h", db => 'named');
	like(sql_in('named', sql_in('named', $hint)), qr/role "barred"/, 'the hint names the task table');
	sql('ALTER DATABASE named SET pg_task.enabled = off');
	is_ill('info, named, no task starts: pg_task.enabled is off', 'its scheduler leaves');
	# another scheduler may look at the setting once more
	wait_until($node, q{SELECT string_agg(level || ' ' || left(problem, 12), ', ')
		FROM pg_task_health() WHERE problem NOT LIKE 'its scheduler had an error%'}, db => 'named',
		expected => 'warning due tasks: 1, info no task star');
	pass('what is due meanwhile is no mere info');
	sql('DROP DATABASE named WITH (FORCE)');
	is_ill('', 'and its database is gone');
};

subtest 'databases' => sub {
	sql("CREATE DATABASE $_") for qw(one two);
	wait_for_table($node, db => $_) for qw(one two);
	insert_task($node, db => 'two', request => 'SELECT 1', role => 'barred', dt => '2020-01-01');
	sql('ALTER DATABASE one SET pg_task.enabled = off');
	is_ill("warning, two, a task should have started at <time>\n"
			. 'info, one, no task starts: pg_task.enabled is off', 'of the server');
	like(sql_in('two', 'SELECT problem FROM pg_task_health() WHERE datname = current_database()'),
		qr/^due tasks: 1, the first since 2020-01-01/, 'from inside');
	sql("ALTER DATABASE two SET pg_task.enabled = off");
	wait_until($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'two'});
	sql("CREATE DATABASE copy TEMPLATE two");
	sql("DROP DATABASE $_") for qw(one two);
	is_ill('critical, copy, no task starts: the database is held back', 'a copy');
	sql_in('copy', q{SELECT pg_task_release(); DELETE FROM task});
	is_ill('', 'it is released');
};

subtest 'errors' => sub {
	sql(q{ALTER TABLE task REPLICA IDENTITY NOTHING; CREATE PUBLICATION p FOR TABLE task});
	insert_task($node, request => 'SELECT 1');
	wait_until($node, q{SELECT count(*) > 0 FROM pg_task_health()
		WHERE level = 'warning' AND problem LIKE 'its scheduler had an error at %replica identity%'});
	pass('an error of the scheduler');
	sql('DROP PUBLICATION p; TRUNCATE task');

	my $session = open_session($node, 'postgres');
	$session->query_safe('BEGIN; LOCK TABLE task_queue');
	# the scheduler may still begin anew after its error, and have no table
	wait_until($node, q{SET statement_timeout = '30 s'; SELECT problem FROM pg_task_health()
		WHERE problem LIKE 'table %'},
		expected => 'table public.task_queue is locked, so nothing is known of its tasks');
	pass('it does not wait for a lock');
	$session->query_safe('COMMIT');

	for my $mode ('SHARE', 'SHARE ROW EXCLUSIVE', 'EXCLUSIVE')
	{
		$session->query_safe("BEGIN; LOCK TABLE task IN $mode MODE");
		is(sql(q{SELECT problem, hint FROM pg_task_health() WHERE problem LIKE 'table %'}),
			'table public.task is locked, so no task starts|pid '
			. $session->query_safe('SELECT pg_backend_pid()'), "no task starts: $mode");
		$session->query_safe('COMMIT');
	}

	# the scheduler prepares the task table again after its error, and cannot
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_safe('BEGIN; LOCK TABLE task');
	wait_until($node, q{SELECT count(*) FROM pg_stat_task_scheduler() WHERE state = 'starting'
		AND datname = 'postgres' AND error LIKE '%lock timeout%'}, expected => 1);
	is(sql(q{SET statement_timeout = '30 s'; SELECT problem, hint FROM pg_task_health()
		WHERE problem LIKE 'table %'}),
		"table public.task is locked, so nothing is known of its tasks|pid $pid",
		'it goes on naming who has locked the task table');
	like(sql(q{SELECT error FROM pg_stat_task_scheduler() WHERE datname = 'postgres'}),
		qr/lock timeout: Another session has locked table "task"\.$/, 'the error names the table');
	$session->query_safe('COMMIT');
	$session->quit;
};

subtest 'settings' => sub {
	my $db = 'SELECT level, datname, problem FROM pg_task_health()';

	set_conf($node, q{pg_task.database = 'template1'});
	wait_until($node, "$db WHERE datname = 'postgres'", expected => 'critical|postgres|no task starts:'
		. ' no scheduler serves the database: "pg_task.database" does not name it');
	pass('this database is not served');
	set_conf($node, q{pg_task.database = 'none'});
	wait_until($node, $db, expected => 'info||no task starts: pg_task.database is none');
	pass('none is');
	set_conf($node, 'pg_task.enabled = off');
	wait_until($node, $db, expected => 'info||no task starts: pg_task.enabled is off');
	pass('the setting that comes first is named');
};

done_testing();
