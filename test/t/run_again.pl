# An UPDATE that changes the planned time of a running task: it runs once more afterwards, never twice
# at once, whatever becomes of the run.  One that saves a row as it was read asks for nothing.  A TAP test because it needs running tasks and ends them.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing here waits for the period.
my $node = new_node('main', conf => "pg_task.period = '1 h'\npg_task.max_executors = 6\n"
	. 'max_prepared_transactions = 2');

make_gates($node);
sql(q{
	CREATE TABLE run (task bigint, gate text);
	CREATE FUNCTION run(gate text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO run VALUES (current_setting('pg_task.id')::bigint, gate);
		PERFORM hold(gate);
	END $$;
	CREATE ROLE app LOGIN;
	GRANT SELECT, INSERT, UPDATE ON task TO app;
	GRANT INSERT ON run, gate TO app});

# Starts a task that runs until its gate is opened.
sub start_task
{
	my ($gate, %column) = @_;
	my $id = insert_task($node, request => "SELECT run('$gate')", %column);

	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	return $id;
}

sub runs_of { return sql("SELECT count(*) FROM run WHERE gate = '$_[0]'"); }

subtest 'the time that is asked for' => sub {
	my %ask = (
		'now' => 'now()',
		'a millisecond later' => q{dt + interval '1 ms'},
		'long ago' => "'-infinity'",
		'the time of the claim' => 'start');
	for my $when (sort keys %ask)
	{
		my $id = start_task($when, dt => '2024-01-01');

		sql("UPDATE task SET dt = $ask{$when} WHERE id = $id");
		is(task($node, $id, 'state, attempt, dt > start'), 'WORK|1|t', "$when: it runs on");
		open_gate($node, $when);
		wait_for_state($node, $id, 'DONE');
		is(task($node, $id, 'attempt, failed, planned IS NULL, dt <= start'), '2|0|t|t',
			"$when: it has run once more");
		is(runs_of($when), 2, "$when: each run has its effect");
	}
	my $id = start_task('later', keep => '0', repeat => '1 day');

	sql("UPDATE task SET dt = '2200-01-01' WHERE id = $id");
	sql("UPDATE task SET priority = 3 WHERE id = $id");
	open_gate($node, 'later');
	wait_for_state($node, $id, 'PLAN');
	is(task($node, $id, q{dt = '2200-01-01', start < stop, response}), 't|t|',
		'in the future: it waits, with the result of its run');
	is(count_of($node, "parent = $id"), 0, 'it does not repeat before its last run');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_until($node, "SELECT count(*) = 1 FROM task WHERE parent = $id");
	is(count_of($node, "id = $id"), 0, 'after its last run it is deleted');
};

# Other columns are written, and do not ask for a run.
subtest 'another column' => sub {
	my $id = start_task('other');

	sql("UPDATE task SET request = 'SELECT 7', priority = 7, key = 'k' WHERE id = $id");
	open_gate($node, 'other');
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'attempt, priority'), '1|7', 'it is not run again');
};

# Saves a row with all its columns but the key, as object-relational mappers do, as it was when it was
# read; with times to a microsecond or a millisecond.
my $columns = sql(q{SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
	WHERE attrelid = 'task'::regclass AND attnum > 0 AND attname <> 'id'});
my $short = $columns =~ s/\b(dt|start|stop|planned|anchor)\b/date_trunc('milliseconds', $1)/gr;

sub read_row { sql("DROP TABLE IF EXISTS seen; CREATE TABLE seen AS TABLE task; GRANT SELECT ON
	seen TO PUBLIC") }

sub save_row
{
	my ($id, $as) = @_;

	return "UPDATE task SET ($columns) = (SELECT $as FROM seen WHERE id = $id) WHERE id = $id";
}

subtest 'a row that is saved as it was read' => sub {
	for my $as ($columns, $short)
	{
		my $what = $as eq $short ? 'milliseconds' : 'microseconds';
		my $repeat = $as eq $short ? { repeat => '1 day' } : {};
		my $id = start_task($what, dt => '2024-01-01 00:00:00.123456', role => 'app', %$repeat);
		my $row = task($node, $id, '*');

		read_row();
		sql_as('app', save_row($id, $as));
		is(task($node, $id, '*'), $row, "$what: nothing of the row has changed");
		# it asks for nothing, and takes back nothing that others have asked for
		sql("UPDATE task SET dt = '2200-01-01 00:00:00.123456' WHERE id = $id") if %$repeat;
		read_row();
		sql(save_row($id, $as));
		open_gate($node, $what);
		wait_for_state($node, $id, %$repeat ? 'PLAN' : 'DONE');
		is(task($node, $id, "attempt, dt > '2100-01-01'"), %$repeat ? '1|t' : '1|f',
			"$what: " . (%$repeat ? 'it waits for the time that was set' : 'it has run once'));
		next if %$repeat;
		$row = task($node, $id, '*');
		read_row();
		sql_as('app', save_row($id, $short));
		is(task($node, $id, 'start, stop, state'),
			sql("SELECT start, stop, state FROM seen WHERE id = $id"), 'it has ended: it stays so');
	}
	my $id = start_task('clock');

	# the first moment after the claim: clock_timestamp() can be no earlier
	sql("UPDATE task SET dt = start + interval '1 microsecond' WHERE id = $id");
	open_gate($node, 'clock');
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'attempt'), 2, 'a time after the claim asks for a run');
	$id = insert_task($node, request => 'SELECT 1', dt => '2200-01-01');
	sql("UPDATE task SET dt = dt + interval '1 microsecond' WHERE id = $id");
	is(task($node, $id, q{dt - '2200-01-01'}), '00:00:00.000001', 'a row that waits: any time');
};

# "attempt" is the version of a row: who has read it before the last claim does not plan it again.
subtest 'a row that was claimed since it was read' => sub {
	my $id = insert_task($node, request => q{SELECT run('stale')}, dt => '2200-01-01', role => 'app');
	my $stale = sub {
		my ($what) = @_;

		for my $as ($columns, $short)
		{
			is(sqlstate_of($_, save_row($id, $as)), '40001', "$what: not by $_")
			  for qw(postgres app);
		}
	};

	read_row();
	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	$stale->('it runs');
	like(error_of('postgres', save_row($id, $columns)), qr/task $id has been started since it was/,
		'the message names it');
	is(sqlstate_of('postgres', "UPDATE task SET $_ WHERE id = $id"), '40001', $_)
	  for 'attempt = 0, dt = dt', q{attempt = 2, state = 'STOP'}, 'state = state, attempt = 0';
	is(sqlstate_of('postgres', qq{INSERT INTO task (id, request) VALUES ($id, 'SELECT 1')
		ON CONFLICT (id) DO UPDATE SET dt = excluded.dt, attempt = excluded.attempt}), '40001',
		'nor by an upsert of all columns');
	open_gate($node, 'stale');
	wait_for_state($node, $id, 'DONE');
	$stale->('it is DONE');
	is(task($node, $id, 'attempt') . runs_of('stale'), '11', 'it has run once');
	sql("UPDATE task SET attempt = 0 WHERE id = $id");
	is(task($node, $id, 'state, attempt'), 'DONE|0', 'the owner may set it alone');
	sql("UPDATE task SET attempt = attempt, state = 'PLAN' WHERE id = $id");
	wait_until($node, "SELECT state = 'DONE' AND attempt = 1 FROM task WHERE id = $id");
	is(runs_of('stale'), 2, 'who writes the attempt of the row plans it');
};

# The request that is in the row when the next run starts is the one that runs.
subtest 'another request' => sub {
	my $id = start_task('request', keep => '0');

	sql("UPDATE task SET dt = now(), request = 'SELECT run(''changed'')', keep = NULL
		WHERE id = $id");
	open_gate($node, 'request');
	open_gate($node, 'changed');
	wait_for_state($node, $id, 'DONE');
	is(runs_of('changed'), 1, 'the new request has run');
};

subtest 'what becomes of the run' => sub {
	my $failing = q{SELECT run('%s'); SELECT 1 / (SELECT count(*) FROM gate WHERE name = 'good')};
	my $id = start_task('fails', request => sprintf($failing, 'fails'));

	sql("UPDATE task SET dt = '2200-01-01' WHERE id = $id");
	open_gate($node, 'fails');
	wait_for_state($node, $id, 'PLAN');
	is_row($node, $id, { sqlstate => '22012', failed => 0, planned => undef, attempt => 1 },
		'a failure for good: it waits for its next run');
	open_gate($node, 'good');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	sql("DELETE FROM gate WHERE name = 'good'");

	$id = start_task('retried', retry => 5, request => sprintf($failing, 'retried'));
	sql("UPDATE task SET dt = '2200-01-01' WHERE id = $id");
	open_gate($node, 'retried');
	wait_for_state($node, $id, 'PLAN');
	is_row($node, $id, { failed => 1, planned => undef, q{dt = '2200-01-01'} => 'true' },
		'a failure that is retried: it waits for the time that was asked for');

	# on a busy machine, one that has not timed out when the UPDATE comes
	for (my $limit = 300; ; $limit *= 2)
	{
		$id = insert_task($node, request => 'SELECT pg_sleep(3600)', timeout => "$limit ms");
		wait_until($node, "SELECT state <> 'PLAN' FROM task WHERE id = $id");
		last if sql("UPDATE task SET dt = '2200-01-01' WHERE id = $id AND state = 'WORK'
			RETURNING id");
	}
	wait_for_state($node, $id, 'PLAN');
	is(task($node, $id, 'sqlstate, failed'), 'TK001|0', 'a timeout is a failure');

	$id = start_task('stopped');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	wait_until($node, "SELECT state = 'STOP' AND sqlstate = 'TK002' FROM task WHERE id = $id");
	pass('a task that is stopped stays so');

	$id = start_task('terminated');
	sql("UPDATE task SET dt = '2200-01-01' WHERE id = $id");
	terminate($node, task($node, $id, 'pid'));
	wait_for_state($node, $id, 'PLAN');
	is(task($node, $id, q{dt = '2200-01-01', failed}), 't|0', 'an interrupted run: likewise');

	$id = start_task('crash');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	crash($node);
	open_gate($node, 'crash');
	wait_for_state($node, $id, 'DONE');
	is(runs_of('crash'), 1, 'a crash: one run for both');

	$id = start_task('own', request => q{UPDATE task SET dt = now() + interval '1 year'
		WHERE id = current_setting('pg_task.id')::bigint; SELECT run('own')});
	open_gate($node, 'own');
	wait_for_state($node, $id, 'PLAN');
	is(task($node, $id, q{attempt, dt > now() + interval '1 month'}), '1|t',
		'a task may plan itself');
};

# The lock of the row decides who is first: the update, or the end of the run.
subtest 'an update that is not committed when the run ends' => sub {
	for my $end ('COMMIT', 'ROLLBACK', "COMMIT PREPARED 'x'", "ROLLBACK PREPARED 'x'")
	{
		my $gate = lc($end) =~ s{\W}{}gr;
		my $id = start_task($gate);
		my $session = open_session($node, 'postgres');

		$session->query_safe("BEGIN; UPDATE task SET dt = now() WHERE id = $id");
		$session->query_safe("PREPARE TRANSACTION 'x'") if $end =~ /PREPARED/;
		open_gate($node, $gate);
		wait_until($node,
			q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'});
		$session->query_safe($end);
		$session->quit;
		wait_for_state($node, $id, 'DONE');
		is(task($node, $id, 'attempt'), $end =~ /COMMIT/ ? 2 : 1, "$end: runs again or not");
	}
};

# Who may update the row may ask for another run.
subtest 'another role' => sub {
	my $id = start_task('role', role => 'app');

	sql_as('app', "UPDATE task SET dt = now() WHERE id = $id");
	open_gate($node, 'role');
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'attempt, role'), '2|app', 'its own task');
};

# Writers change documents, and each plans the task that copies its document, in one transaction and
# by key.  In the end the last run of each has seen the last change, and no two ran at once.
subtest 'writers of documents' => sub {
	my $writer = PostgreSQL::Test::Utils::tempdir() . '/writer.sql';
	my $changes = 0;

	sql(q{
		CREATE TABLE document (id int PRIMARY KEY, version int NOT NULL DEFAULT 0);
		INSERT INTO document SELECT generate_series(1, 3);
		CREATE TABLE copied (document int, version int, began timestamptz, ended timestamptz);
		CREATE FUNCTION copy_document(document int) RETURNS void LANGUAGE plpgsql AS $$
		DECLARE
			began timestamptz := clock_timestamp();
			found int := (SELECT version FROM document AS d WHERE d.id = $1);
		BEGIN
			PERFORM pg_sleep(random() * 0.02), hold('copy');
			INSERT INTO copied VALUES ($1, found, began, clock_timestamp());
		END $$;
		CREATE FUNCTION change_document(document int) RETURNS void LANGUAGE sql AS $$
			UPDATE document SET version = version + 1 WHERE id = $1;
			INSERT INTO task (queue, key, request)
			VALUES ('copy', $1, format('SELECT copy_document(%s)', $1))
			ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
			DO UPDATE SET dt = clock_timestamp();
		$$});
	append_to_file($writer, q{
		\set document random(1, 3)
		\set before random(0, 10)
		\set after random(0, 10)
		BEGIN;
		SELECT pg_sleep(:before / 1000.0);
		SELECT change_document(:document);
		SELECT pg_sleep(:after / 1000.0);
		COMMIT;});

	# the first run holds until it has been overtaken
	sql('SELECT change_document(1)');
	wait_for_running($node, 1, event => 'PgSleep');
	my $pgbench = IPC::Run::start([ 'pgbench', '-n', '-c', 8, '-t', 60, '-f', $writer, '-h',
		$node->host, '-p', $node->port, 'postgres' ], '>', \my $out, '2>', \my $err);

	wait_until($node, q{SELECT dt > start FROM task WHERE queue = 'copy' AND key = '1'});
	open_gate($node, 'copy');
	for (1 .. 5)
	{
		wait_until($node, "SELECT sum(version) > $changes FROM document");
		sql('SELECT pg_terminate_backend(pid) ' . running(event => 'PgSleep'));
		$changes += 60;
	}
	ok($pgbench->finish, 'the writers have committed all');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE queue = 'copy'
		AND state IN ('PLAN', 'WORK')});
	is(sql('SELECT sum(version) FROM document'), 481, 'each change is there');
	is(sql(q{SELECT count(*) FROM document AS d WHERE version IS DISTINCT FROM
		(SELECT version FROM copied WHERE document = d.id ORDER BY ended DESC LIMIT 1)}), 0,
		'the last run of each document has seen its last change');
	is(sql(q{SELECT count(*) FROM (SELECT began < max(ended) OVER (PARTITION BY document
		ORDER BY began ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS clash
		FROM copied) AS c WHERE clash}), 0, 'no two runs of a document at once');
	cmp_ok(sql(q{SELECT count(*) FROM task WHERE queue = 'copy' AND attempt > 1}), '>', 0,
		'changes came during runs');
};

done_testing();
