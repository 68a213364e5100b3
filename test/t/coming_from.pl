# The pages for those who come from pgAgent, pgmq, RekGRpth's pg_task and a table of their own: each
# statement of their tables, and what moves jobs and messages, while the old programs run.  pgAgent
# and its tables are those of the package, if that is installed; pgmq's functions are its own, if
# PG_TASK_OTHER_SOURCES is a folder that has its sources:
#
#   PG_TASK_OTHER_SOURCES=/src/pgmq make test TESTS=test/t/coming_from.pl
#
# A TAP test because programs run meanwhile.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => "pg_task.lease = '10 min'");
my $pgmq_file = ($ENV{PG_TASK_OTHER_SOURCES} // '') . '/pgmq-extension/sql/pgmq.sql';
my $pgagent_control = qx(pg_config --sharedir) =~ s/\s*\z//r . '/extension/pgagent.control';

sql('CREATE ROLE app LOGIN; CREATE ROLE mailer LOGIN; CREATE ROLE runner LOGIN; GRANT mailer TO app');

# A database with a task table.
sub make_database
{
	my ($db) = @_;

	sql("CREATE DATABASE $db OWNER app");
	sql("ALTER DATABASE $db SET TimeZone = 'Europe/Berlin'");
	wait_for_table($node, db => $db, table => 'task_queue');
	sql_in($db, q{CREATE PROCEDURE nightly() LANGUAGE sql AS 'SELECT 1';
		CREATE FUNCTION archive_order(int) RETURNS int LANGUAGE sql AS 'SELECT $1';
		INSERT INTO task_queue (queue, taker) VALUES ('handles', 'mailer')});
	return;
}

# Runs the statements in the table of verbs of a page, as the owner of the table.  A handle in one
# is that of a new run.
sub run_verbs
{
	my ($file, $db, $least) = @_;
	my @statements = verbs_of($file);

	make_database($db);
	cmp_ok(scalar @statements, '>=', $least, 'there are statements');
	for my $statement (@statements)
	{
		my $text = $statement;

		if ($text =~ /\$1/)
		{
			insert_task($node, db => $db, queue => 'handles', request => 'send');
			my $handle = sql_in($db, q{SELECT handle FROM pg_task_take('{handles}', wait => 9000)});
			$text =~ s/\$1/'$handle'/;
		}
		insert_task($node, db => $db, queue => $1 =~ s/%/7/r, request => 'send')
		  if $text =~ /FROM pg_task_take\('\{(.*?)\}/;
		my ($rc, $out, $err) = run_psql($node, $db, $text, '-U', 'app');
		unlike($err, qr/ERROR|WARNING/, $statement);
		isnt($out, '', 'it returns a row') if $text =~ /FROM pg_task_take/;
	}
	return;
}

# Runs SQL by psql in one transaction, as a role, and returns what it prints.  Options: variable, a
# hash for psql; error: it fails, and the error is returned.
sub run_text
{
	my ($text, $db, $role, %opt) = @_;
	my $variable = $opt{variable} // {};
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'psql', '-XAtq1', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), '-U', $role,
		(map { ('-v', "$_=$variable->{$_}") } sort keys %$variable), '-f', file_of($text) ],
		'>', \$out, '2>', \$err);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($err, '', "as $role in $db") unless $opt{error};
	chomp($out);
	return $opt{error} ? $err : $out;
}

# Starts pgbench: so many clients call something so many times.
sub start_clients
{
	my ($db, $clients, $times, $text) = @_;
	my $script = file_of("$text;\n");

	return IPC::Run::start([ 'pgbench', '-n', '-c', $clients, '-t', $times, '-f', $script, '-h',
		$node->host, '-p', $node->port, $db ], '>', \my $out, '2>', \my $err);
}

# Takes what waits in the queue "mail", as the new programs do, until nothing does.
sub take_all
{
	my ($db) = @_;

	wait_until($node, q{WITH taken AS (SELECT handle, input FROM pg_task_take('{mail}', 100)),
		done AS (INSERT INTO effect SELECT (input ->> 'n')::int, 'new' FROM taken)
		SELECT count(pg_task_finish(handle)) = 0 AND NOT EXISTS (SELECT FROM task
			WHERE queue = 'mail' AND state IN ('PLAN', 'WORK') AND dt <= now()) FROM taken}, db => $db);
	return;
}

# Each number up to this has one effect, and each kind of program has had some.
sub is_once
{
	my ($db, $last) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql_in($db, q{SELECT count(DISTINCT n), count(*), max(n), count(DISTINCT by) FROM effect}),
		"$last|$last|$last|2", 'each has its effect once, by old programs or new ones');
	return;
}

subtest 'the statements for pgAgent' => sub {
	run_verbs('coming-from-pgagent.md', 'from_pgagent', 15);
	is(sql_in('from_pgagent', q{SELECT string_agg(concat_ws(' ', key, state, cron, dt), ', ' ORDER BY
		id) FROM task WHERE key IN ('advent', 'nightly', 'payroll', 'backup')}) =~
		s/ 20[234]\d-[^,]*(?=, |$)//gr, 'nightly PLAN 30 2 * * *, payroll STOP 0 12 L * *, '
		  . 'advent PLAN 0 8 * * *, backup PLAN 0 1 * * *', 'the schedules');
	is(sql_in('from_pgagent', q{SELECT dt, repeat_until FROM task WHERE key = 'advent'}),
		'2040-12-01 08:00:00+01|2040-12-24 23:59:00+01', 'a start and an end');
	is(sql_in('from_pgagent', q{SELECT DISTINCT extract(isodow FROM d), extract(day FROM d) < 8
		FROM pg_task_schedule('0 3 * * 1#1', now(), 20) AS d}), '1|t', 'the first Mondays');
	sql_in('from_pgagent', q{UPDATE task SET dt = now() WHERE key = 'daily'});
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE parent = (SELECT min(id) FROM task
		WHERE key = 'daily') AND request = 'CALL nightly()' AND state = 'DONE'},
		db => 'from_pgagent');
	sql_in('from_pgagent', q{UPDATE task SET dt = '2020-12-25 10:00', request =
		replace(request, '2026', '2020') WHERE key = 'daily' AND state = 'PLAN'});
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE key = 'daily' AND state = 'DONE'
		AND response = 'INSERT 0 0'}, db => 'from_pgagent');
	pass('an exception');
};

# A job of pgAgent: its schedules, each with arrays of the numbers that are selected, and its steps.
# Returns its number.
sub make_job
{
	my ($name, $schedules, @steps) = @_;
	my $job = sql('INSERT INTO pgagent.pga_job (jobjclid, jobname) VALUES (1, ' . literal($name)
		. ') RETURNING jobid');

	for my $step (@steps)
	{
		my %column = (jstjobid => $job, jstkind => 's', jstonerror => 'f', jstdbname => 'shop', %$step);
		my @names = sort keys %column;

		sql('INSERT INTO pgagent.pga_jobstep (' . join(', ', @names) . ') VALUES ('
			. join(', ', map { literal($column{$_}) } @names) . ')');
	}
	for my $schedule (@$schedules)
	{
		my %column = (jscjobid => $job, jscname => 's', %$schedule);
		my @names = sort keys %column;

		sql('INSERT INTO pgagent.pga_schedule (' . join(', ', @names) . ') VALUES ('
			. join(', ', map { $column{$_} =~ /^selected/ ? $column{$_} : literal($column{$_}) } @names)
			. ')');
	}
	return $job;
}

sub step
{
	my ($name, $code, %column) = @_;

	return { jstname => $name, jstcode => $code, %column };
}

subtest 'jobs of pgAgent' => sub {
	plan skip_all => 'pgagent is not installed' unless -e $pgagent_control;

	my %block = named_blocks('coming-from-pgagent.md');

	make_database('shop');
	sql(q{CREATE EXTENSION pgagent; CREATE FUNCTION selected(size int, VARIADIC numbers int[])
		RETURNS bool[] LANGUAGE sql AS $$ SELECT array_agg(i = ANY ($2) ORDER BY i)
		FROM generate_series(1, $1) AS i $$});
	sql_in('shop', 'CREATE TABLE effect (what text, xid xid8 DEFAULT pg_current_xact_id());
		ALTER TABLE effect OWNER TO app');
	my $note = sub { "INSERT INTO effect VALUES ('$_[0]')" };
	my $odd = q{it's "odd" \\ $$ :'x' %s};
	my $single = make_job('single', [ {} ], step('a', $note->('single')));
	my $many = make_job($odd, [ { jscstart => '2039-12-31 23:00+0',
		jscminutes => 'selected(60, 1, 60)' } ],
		step('b', $note->('b') . '; SELECT 1/0', jstonerror => 'i'), step('a', $note->('a')),
		step('a', $note->('a2')), step('c', 'VACUUM effect', jstonerror => 's'),
		step('d', "$odd; fails", jstenabled => 'false'), step('e', $note->('e')),
		step('f', $note->('f') . '; SELECT 1/0'), step('g', $note->('g'), jstonerror => 'i'),
		step('h', $note->('h')));
	my $twice = make_job('twice', [ { jscstart => '2039-12-31 23:00+0', jschours => 'selected(24, 13, 24)',
		jscmonthdays => 'selected(32, 1, 32)', jscmonths => 'selected(12, 1, 12)',
		jscend => '2049-12-31 23:00+0' }, { jscstart => '2039-12-31 23:00+0',
		jscweekdays => 'selected(7, 1, 7)', jscmonthdays => 'selected(32, VARIADIC ARRAY(SELECT generate_series(1, 31)))' },
		{ jscend => '2020-01-01' }, { jscenabled => 'false' } ], step('a', $note->('twice')));
	make_job('elsewhere', [ {} ], step('a', 'SELECT 1', jstdbname => 'postgres'));
	my @not = (make_job('script', [ {} ], step('a', 'SELECT 1'), step('b', 'ls', jstkind => 'b',
		jstdbname => '')), make_job('both', [ {} ], step('a', 'SELECT 1'), step('b', 'SELECT 1',
		jstdbname => 'postgres')), make_job('remote', [ {} ], step('a', 'SELECT 1'),
		step('b', 'SELECT 1', jstdbname => '', jstconnstr => 'host=x')),
		make_job("by\nhand", [], step('a', 'SELECT 1')),
		make_job('days', [ { jscmonthdays => 'selected(32, 1)', jscweekdays => 'selected(7, 1)' } ],
			step('a', 'SELECT 1')), make_job('but', [ {} ], step('a', 'SELECT 1')));
	sql("INSERT INTO pgagent.pga_exception (jexscid, jexdate) SELECT jscid, '2026-12-25'
		FROM pgagent.pga_schedule WHERE jscjobid = $not[5]");

	# what pgAgent does
	sql("UPDATE pgagent.pga_job SET jobenabled = jobid IN ($single, $many), jobnextrun = now()");
	my $agent = IPC::Run::start([ 'timeout', '300', 'pgagent', '-f', '-t', '1',
		$node->connstr('postgres') . ' user=postgres' ], '>', \my $agent_out, '2>&1');
	wait_until($node, "SELECT count(DISTINCT jlgjobid) = 2 FROM pgagent.pga_joblog
		WHERE jlgstatus <> 'r' AND jlgjobid IN ($single, $many)");
	$agent->kill_kill;
	my $effects = q{SELECT string_agg(DISTINCT what, ' ' ORDER BY what), count(DISTINCT xid) > 3
		FROM effect};
	is(sql_in('shop', $effects), 'a a2 e single|t', 'what pgAgent has done, step by step');
	sql_in('shop', 'TRUNCATE effect');

	my $tasks = run_text($block{jobs}, 'postgres', 'postgres', variable => { db => 'shop' });
	is(join("\n", grep { /^--/ } split /\n/, $tasks), join("\n",
		"-- not converted: job $not[0]: a step is a script",
		"-- not converted: job $not[1]: a step is for another database or server",
		"-- not converted: job $not[2]: a step is for another database or server",
		"-- not converted: job $not[3]: it has no schedule",
		"-- not converted: job $not[4]: days of the month and of the week",
		"-- not converted: job $not[5]: exceptions"), 'what is not converted');
	run_text($tasks, 'shop', 'app');
	like(run_text($tasks, 'shop', 'app', error => 1), qr/23505|duplicate key/, 'not a second time');
	my @first = split /\n/, sql(qq{SELECT jscid FROM pgagent.pga_schedule WHERE jscjobid = $twice
		ORDER BY 1});
	is(sql_in('shop', q{SELECT string_agg(concat_ws('|', key, role, cron, hold,
		CASE WHEN dt > '2030-01-01' THEN dt END, repeat_until), E'\n' ORDER BY key COLLATE "C")
		FROM task WHERE state IN ('PLAN', 'WORK')}), join("\n",
		"$odd|app|0,59 * * * *|2040-01-01 00:00:00+01", "single|app|* * * * *",
		"twice $first[0]|app|* 12,23 1,L 1,12 *|was not enabled|2040-01-01 12:00:00+01"
		  . "|2050-01-01 00:00:00+01",
		"twice $first[1]|app|* * * * 0,6|was not enabled|2040-01-01 00:00:00+01"), 'the tasks');

	my $run = sql_in('shop', 'SELECT pg_task_run_now(' . literal($odd) . ')');
	sql_in('shop', "UPDATE task SET dt = now() WHERE key = 'single' AND state = 'PLAN'");
	wait_until($node, qq{SELECT count(*) = 11 AND bool_and(state NOT IN ('PLAN', 'WORK')) FROM task
		WHERE queue = 'pgagent.$many'}, db => 'shop');
	wait_until($node, q{SELECT count(*) > 0 FROM effect WHERE what = 'single'}, db => 'shop');
	is(sql_in('shop', $effects), 'a a2 e single|t', 'they do the same, step by step');
	is(sql_in('shop', qq{SELECT string_agg(left(step, 1) || ' ' || state, ', ' ORDER BY id) FROM task
		WHERE queue = 'pgagent.$many' AND step NOT LIKE '% ended'}), 'a DONE, a DONE, b FAIL, c DONE, '
		. 'e DONE, f FAIL, g GONE, h GONE', 'the steps');

	# two schedules for the same minute, and a run that is not over
	sql_in('shop', qq{UPDATE task SET hold = NULL, dt = '2026-01-01 12:00' WHERE key LIKE 'twice%'});
	wait_until($node, q{SELECT count(*) = 1 FROM effect WHERE what = 'twice'}, db => 'shop');
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE key LIKE 'twice%' AND state = 'DONE'},
		db => 'shop');
	is(sql_in('shop', qq{SELECT count(*) FROM task WHERE queue = 'pgagent.$twice'}), 1,
		'two schedules, one run');
	sql_in('shop', q{UPDATE task SET hold = 'still' WHERE key LIKE 'twice%' AND state = 'PLAN'});
	my $other = insert_task($node, db => 'shop', queue => "pgagent.$twice", request => 'SELECT 1',
		dt => 'infinity', role => 'app');
	for my $rows (0, 1)
	{
		$run = sql_as('app', "SELECT pg_task_run_now('twice $first[0]')", db => 'shop');
		wait_for_state($node, $run, 'DONE', db => 'shop');
		is(task($node, $run, 'response', db => 'shop'), "INSERT 0 $rows",
			$rows ? 'then it begins' : 'not while a run is not over');
		sql_in('shop', "DELETE FROM task WHERE id = $other");
	}

	# what pgAgent works out, from some times on
	my ($field) = $block{jobs} =~ /^(CREATE FUNCTION.*?^\$\$;)/ms;
	is(run_text("SET TimeZone = 'Europe/Berlin'; $field " . q{
		WITH s AS (SELECT m, st, pg_temp.field(m, 0) || ' ' || pg_temp.field(h, 0) || ' '
				|| pg_temp.field(d, 1) || ' ' || pg_temp.field(mo, 1) || ' ' || pg_temp.field(w, 0)
				AS cron, pgagent.pga_next_schedule(0, st, NULL, m, h, w, d, mo) AS theirs
			FROM (VALUES (selected(60, 1, 16, 60)), (selected(60, 32))) AS m (m),
				(VALUES (selected(24, 0)), (selected(24, 3)), (selected(24, 9, 19))) AS h (h),
				(VALUES (selected(32, 0)), (selected(32, 1, 15)), (selected(32, 32))) AS d (d),
				(VALUES (selected(12, 0)), (selected(12, 2, 6)), (selected(12, 12))) AS mo (mo),
				(VALUES (selected(7, 0)), (selected(7, 2, 6)), (selected(7, 1))) AS w (w),
				(VALUES ('2030-01-01 00:00'::timestamptz), ('2030-02-27 23:59'),
					('2031-12-31 10:30')) AS st (st)
			WHERE d = selected(32, 0) OR w = selected(7, 0))
		SELECT count(*) > 200, count(*) FILTER (WHERE theirs IS DISTINCT FROM
				pg_task_next(cron, theirs - interval '1 us')) AS not_a_time,
			count(*) FILTER (WHERE cardinality(array_positions(m, true)) = 1 AND theirs IS DISTINCT FROM
				pg_task_next(cron, st - interval '1 us')) AS left_out,
			count(*) FILTER (WHERE theirs > pg_task_next(cron, st - interval '1 us')) > 0 FROM s},
		'postgres', 'postgres'), "t|0|0|t", 'the same times, but for minutes that pgAgent leaves out');
	like(error_of('postgres', q{SELECT pgagent.pga_next_schedule(0, '2030-02-01', NULL,
		selected(60, 1), selected(24, 1), selected(7, 0), selected(32, 31), selected(12, 0))}),
		qr/out of range: "2030-2-31/, 'a day that a month lacks is an error in pgAgent');
	is(sql(q{SET TimeZone = 'GMT'; SELECT pgagent.pga_next_schedule(0, '2030-01-20', NULL,
		selected(60, 1), selected(24, 1), selected(7, 0), selected(32, 15, 32), selected(12, 0))}),
		'2030-02-15 00:00:00+00', 'and the last day is left out beside other days');
};

# A stand-in for pgmq: its table, and what of its functions the test calls.
my $stand_in = q{CREATE SCHEMA pgmq;
	CREATE TABLE pgmq.q_mail (msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
		read_ct int NOT NULL DEFAULT 0, enqueued_at timestamptz NOT NULL DEFAULT now(),
		vt timestamptz NOT NULL, message jsonb, headers jsonb);
	CREATE FUNCTION pgmq.send(text, jsonb, jsonb, int) RETURNS bigint LANGUAGE sql AS $$
		INSERT INTO pgmq.q_mail (message, headers, vt)
		VALUES ($2, $3, clock_timestamp() + make_interval(secs => $4)) RETURNING msg_id $$;
	CREATE FUNCTION pgmq.read(text, int, int) RETURNS SETOF pgmq.q_mail LANGUAGE sql AS $$
		UPDATE pgmq.q_mail SET read_ct = read_ct + 1,
			vt = clock_timestamp() + make_interval(secs => $2)
		WHERE msg_id IN (SELECT msg_id FROM pgmq.q_mail WHERE vt <= clock_timestamp()
			ORDER BY msg_id LIMIT $3 FOR UPDATE SKIP LOCKED) RETURNING * $$;
	CREATE FUNCTION pgmq.delete(text, bigint) RETURNS boolean LANGUAGE sql AS $$
		WITH d AS (DELETE FROM pgmq.q_mail WHERE msg_id = $2 RETURNING 1) SELECT count(*) = 1 FROM d $$};

# Moves a queue of pgmq, which this SQL makes, while old programs send and read.
sub check_pgmq
{
	my ($db, $make) = @_;
	my ($move) = values %{ { named_blocks('coming-from-pgmq.md') } };

	sql_in($db, $make);
	sql_in($db, q{INSERT INTO task_queue (queue, taker) VALUES ('mail', 'mailer');
		CREATE TABLE effect (n int, by text); CREATE SEQUENCE message;
		CREATE PROCEDURE old_reader() LANGUAGE plpgsql AS $$
		DECLARE
			got record;
		BEGIN
			SELECT * INTO got FROM pgmq.read('mail', 600, 1);
			COMMIT;
			IF got.msg_id IS NOT NULL THEN
				PERFORM pg_sleep(0.005);
				INSERT INTO effect VALUES ((got.message ->> 'n')::int, 'old');
				PERFORM pgmq.delete('mail', got.msg_id);
			END IF;
		END $$});
	my $send = q{SELECT pgmq.send('mail', jsonb_build_object('n', nextval('message')), NULL, 0)};
	sql_in($db, "$send FROM generate_series(1, 300)");
	my @clients = (start_clients($db, 3, 60, 'CALL old_reader()'), start_clients($db, 2, 50, $send));
	wait_until($node, q{SELECT count(*) > 20 FROM effect}, db => $db);
	for my $time (1 .. 5)
	{
		run_text($move, $db, 'postgres');
		take_all($db);
	}
	$_->finish for @clients;
	run_text($move, $db, 'postgres');
	is(sql_in($db, 'SELECT count(*) FROM pgmq.q_mail'), 0, 'nothing is left');
	take_all($db);
	is_once($db, 400);

	# what a reader has, what is for later, and what is too long
	sql_in($db, q{SELECT pgmq.send('mail', '{"n": 1}', '{"a": 1}', 0),
		pgmq.send('mail', '{"n": 2}', NULL, 3600), pgmq.send('mail', '{"n": 3}', NULL, 0)});
	sql_in($db, q{SELECT pgmq.read('mail', 600, 1)});
	my ($read, $later, $due) = split /\n/, sql_in($db, 'SELECT msg_id FROM pgmq.q_mail ORDER BY 1');
	my $vt = sql_in($db, "SELECT vt FROM pgmq.q_mail WHERE msg_id = $later");
	run_text($move, $db, 'postgres');
	is(sql_in($db, 'SELECT msg_id FROM pgmq.q_mail'), $read, 'what a reader has stays');
	is(sql_in($db, qq{SELECT string_agg((input ->> 'n') || (dt = '$vt'), ' ' ORDER BY id) FROM task
		WHERE queue = 'mail' AND state = 'PLAN'}), '2true 3false', 'what is for later has its time');
	sql_in($db, "UPDATE pgmq.q_mail SET vt = now()");
	sql_in($db, q{SELECT pgmq.send('mail', '{"n": 4}', jsonb_build_object('a', repeat('x', 1001)), 0)});
	like(run_text($move, $db, 'postgres', error => 1), qr/task_meta|meta/, 'headers that are too long');
	is(sql_in($db, 'SELECT count(*) FROM pgmq.q_mail'), 2, 'nothing is moved');
	sql_in($db, q{DELETE FROM pgmq.q_mail WHERE message ->> 'n' = '4'});
	run_text($move, $db, 'postgres');
	is(sql_in($db, q{SELECT meta FROM task WHERE queue = 'mail' AND input ->> 'n' = '1'
		AND state = 'PLAN'}), '{"a": 1}', 'what a reader has lost is moved, with its headers');
	return;
}

subtest 'from pgmq' => sub {
	run_verbs('coming-from-pgmq.md', 'from_pgmq', 18);
	is(count_of($node, q{queue = 'mail' AND state IN ('PLAN', 'WORK')}, db => 'from_pgmq'), 0,
		'the last statements remove all');
	check_pgmq('from_pgmq', $stand_in);
};

subtest 'from pgmq, with its own functions' => sub {
	plan skip_all => 'PG_TASK_OTHER_SOURCES names no sources of pgmq' unless -e $pgmq_file;

	make_database('pgmq');
	check_pgmq('pgmq', slurp_file($pgmq_file) . q{; SELECT pgmq.create('mail')});
};

subtest 'from a table with SKIP LOCKED' => sub {
	my %block = named_blocks('coming-from-skip-locked.md');
	my $db = 'from_skip_locked';

	run_verbs('coming-from-skip-locked.md', $db, 14);
	wait_until($node, q{SELECT response = '7' FROM task WHERE request LIKE 'SELECT archive_order%'},
		db => $db);
	sql_in($db, q{DELETE FROM task; DELETE FROM task_queue WHERE queue = 'mail';
		INSERT INTO task_queue (queue, taker) VALUES ('mail', 'mailer');
		CREATE TABLE effect (n int, by text); CREATE SEQUENCE number});
	run_text($block{table}, $db, 'postgres');

	# one of them sets the status, some of whose jobs are tried again; the other keeps the lock
	sql_in($db, q{CREATE PROCEDURE old_program(hold_lock boolean) LANGUAGE plpgsql AS $$
		DECLARE
			got job;
		BEGIN
			SELECT * INTO got FROM job WHERE status = 'queued' AND run_at <= now()
			 ORDER BY run_at LIMIT 1 FOR UPDATE SKIP LOCKED;
			IF got.id IS NULL THEN
				RETURN;
			END IF;
			IF NOT hold_lock THEN
				UPDATE job SET status = 'running', attempts = attempts + 1, locked_at = now()
				 WHERE id = got.id;
				COMMIT;
				IF got.attempts = 0 AND got.id % 7 = 0 THEN
					UPDATE job SET status = 'queued' WHERE id = got.id;
					RETURN;
				END IF;
			END IF;
			INSERT INTO effect VALUES ((got.payload ->> 'n')::int, 'old');
			PERFORM pg_sleep(0.005);
			UPDATE job SET status = 'done' WHERE id = got.id;
		END $$});
	my $insert = q{INSERT INTO job (payload) SELECT jsonb_build_object('n', nextval('number'))};
	sql_in($db, "$insert FROM generate_series(1, 300)");
	my @clients = (start_clients($db, 2, 60, 'CALL old_program(true)'),
		start_clients($db, 2, 60, 'CALL old_program(false)'), start_clients($db, 2, 50, $insert));
	wait_until($node, q{SELECT count(*) > 20 FROM effect}, db => $db);
	run_text($block{move}, $db, 'postgres');
	run_text($block{trigger}, $db, 'postgres');
	for my $time (1 .. 5)
	{
		run_text($block{move}, $db, 'postgres');
		take_all($db);
	}
	$_->finish for @clients;
	run_text($block{move}, $db, 'postgres');
	is(sql_in($db, q{SELECT count(*) FROM job WHERE status NOT IN ('moved', 'done')}), 0,
		'nothing is left');
	take_all($db);
	is_once($db, 400);

	# a lock does not keep it waiting, and what old programs have left
	sql_in($db, 'ALTER TABLE job DISABLE TRIGGER job_to_task');
	sql_in($db, "$insert FROM generate_series(1, 3)");
	sql_in($db, q{UPDATE job SET status = 'running' WHERE payload ->> 'n' = '403'});
	sql_in($db, 'ALTER TABLE job ENABLE TRIGGER job_to_task');
	my $holds = open_session($node, $db);
	$holds->query_safe(q{BEGIN; SELECT FROM job WHERE payload ->> 'n' = '401' FOR UPDATE});
	run_text($block{move}, $db, 'postgres');
	my $left = q{SELECT string_agg(payload ->> 'n', ' ' ORDER BY id) FROM job
		WHERE status NOT IN ('moved', 'done')};
	is(sql_in($db, $left), '401 403', 'what is locked stays until the next time');
	$holds->query_safe('COMMIT');
	$holds->quit;
	run_text($block{move}, $db, 'postgres');
	is(sql_in($db, $left), '403', 'then it moves');
	run_text($block{move} =~ s/'queued'/'running'/r, $db, 'postgres');
	sql_in($db, $insert . '; UPDATE job SET status = $$queued$$ WHERE payload ->> $$n$$ = $$403$$');
	take_all($db);
	is(sql_in($db, q{SELECT string_agg(n::text, ' ' ORDER BY n) FROM effect WHERE n > 400}),
		'401 402 403 403 404', 'and what was running, and what becomes queued');

	sql_in($db, q{CREATE UNIQUE INDEX ON job ((payload ->> 'n')) WHERE payload ->> 'n' > '9'});
	sql_in($db, q{INSERT INTO job (payload) VALUES ('{"n": 901}') ON CONFLICT DO NOTHING})
	  for 1, 2;
	is(sql_in($db, q{SELECT count(*) FROM task WHERE input ->> 'n' = '901'}), 1,
		'what ON CONFLICT leaves out is no task');
};

subtest "from RekGRpth's pg_task" => sub {
	run_verbs('coming-from-rekgrpth.md', 'from_rekgrpth', 4);
	wait_until($node, q{SELECT count(*) = 3 FROM task WHERE request = 'SELECT now()'
		AND state = 'DONE'}, db => 'from_rekgrpth');
	is(sql_in('from_rekgrpth', q{SELECT count(*) FROM task WHERE state = 'PLAN' AND dt BETWEEN
		now() + interval '1 min' AND now() + interval '5 min'}), 2, 'one later, and one again');
};

done_testing();
