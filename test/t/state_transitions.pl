# Every transition between two states: who may set it, which ones are rejected, and the outcome of a
# run whose row was changed meanwhile.  Also who may stop whose tasks, and where no task can be
# stopped.  A TAP test because of its roles, its gates, and a server without the library.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Cluster;
use Test::More;

my $node = new_node('main',
	conf => "pg_task.period = '1 h'\npg_task.max_executors = 8\nmax_worker_processes = 24");

make_gates($node);
sql(q{CREATE ROLE keeper LOGIN; CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN;
	CREATE ROLE reader LOGIN; GRANT ann, bob, reader TO keeper;
	ALTER TABLE task OWNER TO keeper; GRANT SELECT, INSERT, UPDATE, DELETE ON task TO ann, bob;
	GRANT SELECT, INSERT ON task TO reader;
	CREATE TABLE effect (what text); GRANT ALL ON effect TO PUBLIC});

my @states = qw(PLAN WORK DONE FAIL STOP GONE);

# A row of ann's in a given state.  If it runs, it ignores cancels, and ends when a gate is opened.
my $rows = 0;
sub row_in
{
	my ($state, %column) = @_;
	my $gate = 'gate' . ++$rows;
	my $id = insert_task($node, role => 'ann', dt => $state eq 'WORK' ? '2019-07-01' : 'infinity',
		%column,
		request => ($column{request} // '') . qq{INSERT INTO effect VALUES ('$gate');
			DO \$\$ BEGIN LOOP BEGIN PERFORM hold('$gate'); EXIT; EXCEPTION WHEN query_canceled
			THEN NULL; END; END LOOP; END \$\$; SELECT 1} . ($column{request} ? '/0' : ''));

	if ($state eq 'WORK') { wait_for_running($node, 1, id => $id, event => 'PgSleep') }
	elsif ($state ne 'PLAN') { sql("UPDATE task SET state = '$state' WHERE id = $id") }
	return ($id, $gate);
}
sub end_run
{
	my ($id, $gate) = @_;
	open_gate($node, $gate);
	wait_for_running($node, 0, id => $id);
	return;
}

# Rejected changes.  Nobody may set WORK; users other than the owner may set only PLAN and STOP.
# An unchanged value is not checked.
subtest 'rejected changes of state' => sub {
	for my $old (@states)
	{
		my ($id, $gate) = row_in($old);

		for my $new (@states)
		{
			my $update = "BEGIN; UPDATE task SET state = '$new' WHERE id = $id; ROLLBACK";
			my $by_owner = $new eq 'WORK' && $old ne 'WORK' ? '23514' : '';
			my $by_others = $new eq $old || $new =~ /PLAN|STOP/ ? '' : '42501';

			is(sqlstate_of($_, $update), $by_owner, "$old to $new by $_") for qw(postgres keeper);
			is(sqlstate_of('ann', $update), $by_others, "$old to $new by ann");
			is(sqlstate_of('bob', $update) . task($node, $id, 'state'), $old,
				"$old to $new by bob: nothing");
		}
		is(sqlstate_of($_, "BEGIN; UPDATE task SET state = 'HUH' WHERE id = $id; ROLLBACK"),
			'23514', "$old to another by $_") for qw(keeper ann);
		is(sqlstate_of('ann', "BEGIN; UPDATE task SET crashed = 7 WHERE id = $id; ROLLBACK"),
			'42501',
			"$old: ann sets crashed");
		is(task($node, $id, 'state, attempt, failed'), $old . ($old eq 'WORK' ? '|1|0' : '|0|0'),
			"$old: the row is unchanged");
		end_run($id, $gate) if $old eq 'WORK';
		is(task($node, $id, 'state'), 'DONE', 'WORK: what was rolled back did not stop it')
			if $old eq 'WORK';
	}
	is(sqlstate_of('ann', "INSERT INTO task (request, crashed) VALUES ('SELECT 1', 7)"), '42501',
		'a new row: ann sets crashed');
	sql('DELETE FROM task');
};

# Only tasks in state PLAN are ever started: not others by a wakeup, a scan, or a crash.
subtest 'only PLAN starts' => sub {
	for my $state (grep { !/PLAN|WORK/ } @states)
	{
		my ($id) = row_in($state, queue => "set $state");
		sql("UPDATE task SET dt = now() - interval '1 day', priority = -1, max = 7 WHERE id = $id");
		sql("INSERT INTO task (queue, state, dt, request) "
			. "VALUES ('set $state', '$state', now() - interval '1 day', 'INSERT INTO effect "
			. "VALUES (''no'')')");
	}
	sql('DELETE FROM effect');
	run_task($node, queue => 'witness', request => 'SELECT 1');
	crash($node);
	wait_for_table($node);
	run_task($node, queue => 'witness', request => 'SELECT 1');
	is(count_of($node,
		q{queue LIKE 'set %' AND attempt = 0 AND start IS NULL AND queue = 'set ' || state}), 8,
		'DONE, FAIL, STOP and GONE are not started');
	is(sql('SELECT count(*) FROM effect'), 0, 'tasks that are not started have no effect');
	sql('DELETE FROM task');
};

# A run that ends, well or not, never overwrites a row that was set meanwhile; it is not retried,
# and does not repeat.
subtest 'a run does not overwrite a changed row' => sub {
	for my $good (1, 0)
	{
		for my $new (grep { $_ ne 'WORK' } @states)
		{
			my ($id, $gate) = row_in('WORK', retry => 3, delay => '10 ms', repeat => '1 hour',
				$good ? () : (request => 'SELECT 1; '));
			my $before =
				sql("UPDATE task SET state = '$new', dt = 'infinity' WHERE id = $id; SELECT * "
				. "FROM task WHERE id = $id");
			my $name = ($good ? 'a good' : 'a bad') . " run, set to $new";

			end_run($id, $gate);
			if ($new eq 'STOP') { is(task($node, $id,
				'state, attempt, failed, dt, planned IS NULL'),
				'STOP|1|0|infinity|t', "$name: it stays") }
			else { is(task($node, $id, '*'), $before, "$name: the row is as it was set") }
			is(sql("SELECT count(*) FROM effect WHERE what = '$gate'") . count_of($node,
				"parent = $id"), '00', "$name: no effect, no next run");
		}
	}
};

# With another attempt, or another time of the claim, it is another run.
subtest 'another attempt or claim is another run' => sub {
	for my $set ('attempt = attempt + 1', q{start = start + interval '1 microsecond'})
	{
		my ($id, $gate) = row_in('WORK');
		sql("UPDATE task SET state = 'STOP' WHERE id = $id; UPDATE task "
			. "SET $set WHERE id = $id; UPDATE task SET state = 'PLAN', dt = 'infinity' "
			. "WHERE id = $id");
		end_run($id, $gate);
		is(task($node, $id, 'state') . sql("SELECT count(*) FROM effect WHERE what = '$gate'"),
			'PLAN0',
			"$set: no effect");
	}
	sql('DELETE FROM task');
};

# Who may stop whose tasks: one's own, by UPDATE and by pg_task_cancel; those of others are
# invisible.
subtest 'who may stop whose tasks' => sub {
	for my $by ('UPDATE', 'pg_task_cancel')
	{
		my %id;
		for my $role (qw(ann bob))
		{
			$id{$role} = sql_as($role,
				qq{INSERT INTO task (request)
				VALUES ('INSERT INTO effect VALUES (current_user); SELECT pg_sleep(600)')
				RETURNING id});
			wait_for_running($node, 1, id => $id{$role}, event => 'PgSleep');
		}
		if ($by eq 'UPDATE')
		{
			is(sql_as('bob', qq{UPDATE task SET state = 'STOP' WHERE id = $id{ann} RETURNING id}),
				'',
				'UPDATE: not another\'s');
			sql_as('ann', qq{UPDATE task SET state = 'STOP'});
		}
		else
		{
			is(sql_as('bob', "SELECT pg_task_cancel($id{ann})"), 'f',
				'pg_task_cancel: not another\'s');
			is(sqlstate_of('reader', "SELECT pg_task_cancel($id{ann})"), '42501',
				'pg_task_cancel: not without the right to UPDATE');
			is(sql_as('ann', "SELECT pg_task_cancel($id{ann})"), 't', 'pg_task_cancel: one\'s own');
		}
		wait_for_running($node, 0, id => $id{ann});
		is(sql("SELECT string_agg(role || ' ' || state, ', ' ORDER BY id) FROM task"),
			'ann STOP, bob WORK', "$by: only that task is stopped");
		is(sql_as('keeper', "SELECT pg_task_cancel($id{bob})"), 't',
			"$by: the owner stops anybody's");
		wait_for_running($node, 0, id => $id{bob});
		is(task($node, $id{bob}, 'state, sqlstate'), 'STOP|TK002',
			"$by: the owner stops anybody's, and it ends");
		sql('DELETE FROM task');
	}
	is(sql('SELECT count(*) FROM effect WHERE what IN (\'ann\', \'bob\')'), 0,
		'stopped tasks have no effect');
};

# A STOP ends the schedule of a task that repeats, which its user may not have meant.
subtest 'the end of a schedule' => sub {
	my $text = 'does not repeat any more';
	my $hint = qr/HINT:  To pause a schedule instead, use pg_task_hold\. /;
	my $stop = q{UPDATE task SET state = 'STOP' WHERE key IS NOT NULL};
	my $insert = sub {
		sql('DELETE FROM task WHERE key IS NOT NULL');
		return sql_as('ann', "INSERT INTO task (key, dt, repeat, cron, request) SELECT 'k' || n,
			'infinity', $_[1], 'SELECT 1' FROM generate_series(1, $_[0]) AS n RETURNING id"
		);
	};
	my $id = $insert->(1, q{interval '1 h', NULL});

	like(notices_of('ann', $stop), qr/^NOTICE:  task $id $text\n${hint}SELECT pg_task_retry\($id\) /,
		'repeat');
	is(notices_of('ann', $stop), '', 'not once more');
	is(notices_of('ann', "SELECT pg_task_retry($id)"), '', 'not for a plan');
	like(notices_of('ann', "SELECT pg_task_cancel($id)"), qr/^NOTICE:  task $id $text\n$hint/,
		'by pg_task_cancel');
	$id = $insert->(1, q{NULL, '@hourly'});
	is(notices_of('postgres', "BEGIN; SET LOCAL session_replication_role = replica; $stop; ROLLBACK"),
		'', 'not for a replicated row');
	like(notices_of('ann', "DELETE FROM task WHERE id = 0; $stop"), qr/^NOTICE:  task $id $text\n/,
		'cron');
	$id = $insert->(1, 'NULL, NULL');
	is(notices_of('ann', $stop), '', 'not for a task that does not repeat');

	# a DELETE ends it, too
	my $delete = 'DELETE FROM task WHERE key IS NOT NULL';

	is(notices_of('ann', $delete), '', 'nor for one that is removed');
	$id = $insert->(1, q{interval '1 h', NULL});
	is(notices_of('postgres',
			"BEGIN; SET LOCAL session_replication_role = replica; $delete; ROLLBACK"),
		'', 'not for a replicated DELETE');
	like(notices_of('ann', $delete),
		qr/^NOTICE:  task $id $text\nHINT:  To pause a schedule instead, use pg_task_hold\.$/,
		'of a row that is removed');

	# the row that runs, and one whose chain has gone on
	my ($run, $gate) = row_in('WORK', repeat => '1 h');

	like(notices_of('ann', "UPDATE task SET state = 'STOP' WHERE id = $run"),
		qr/^NOTICE:  task $run $text\n/, 'of a running task');
	end_run($run, $gate);
	$id = $insert->(1, q{interval '1 h', NULL});
	sql("UPDATE task SET next = 1 WHERE id = $id");
	is(notices_of('ann', "BEGIN; $delete; ROLLBACK"), '', 'not for a removed row that has a next');
	is(notices_of('ann', $stop), '', 'not for a row that has a next');

	# many rows, in one statement or several of a client: some notices
	for my $way ($stop, $delete, q{SELECT pg_task_cancel(id) FROM task WHERE key IS NOT NULL})
	{
		$insert->(100, q{interval '1 h', NULL});
		my $many = notices_of('ann', $way);
		is(() = $many =~ /NOTICE:  task \d+ $text\n/g, 16, "of many rows, some: $way");
		is(() = $many =~ /DETAIL:  This statement raises no further notices/g, 1, 'it says so');
	}

	# who may not read the ids is told of none
	sql(q{CREATE ROLE blind LOGIN; GRANT UPDATE (state) ON task TO blind;
		INSERT INTO task (role, key, dt, repeat, request)
			VALUES ('blind', 'blind', 'infinity', '1 h', 'SELECT 1')});
	is(notices_of('blind', q{UPDATE task SET state = 'STOP'}), '', 'nothing without SELECT');
	is(sql(q{SELECT state FROM task WHERE key = 'blind'}), 'STOP', 'but it is stopped');
	sql(q{UPDATE task SET state = 'PLAN' WHERE key = 'blind'; GRANT SELECT (id) ON task TO blind});
	like(notices_of('blind', q{UPDATE task SET state = 'STOP'}), qr/$text/, 'with SELECT of the ids');
	sql('DELETE FROM task WHERE key IS NOT NULL');
};

my $id;

# pg_task_cancel returns whether there was a task to stop; objects with the same names in other
# schemas do not affect it.
subtest 'the result of pg_task_cancel' => sub {
	my %there = map { $_ => (row_in($_))[0] } grep { $_ ne 'WORK' } @states;
	is(sql("SELECT pg_task_cancel($there{$_})"), $_ eq 'PLAN' ? 't' : 'f', "pg_task_cancel of $_")
		for sort keys %there;
	is(task($node, $there{$_}, 'state'), $_ eq 'PLAN' ? 'STOP' : $_,
		"pg_task_cancel of $_: the state")
		for sort keys %there;
	is(sql("SELECT pg_task_cancel($_)"), 'f', "pg_task_cancel($_)")
		for qw(-1 0 9223372036854775807);
	is(sql('SELECT pg_task_cancel(NULL) IS NULL'), 't', 'pg_task_cancel(NULL)');
	for my $state (grep { $_ ne 'PLAN' } sort keys %there)
	{
		my $reason = $state eq 'STOP' ? 'it was stopped before' : "it has ended, $state";

		is(notices_of('ann', "SELECT pg_task_cancel($there{$state})"),
			"NOTICE:  task $there{$state} is not stopped: $reason", "$state: it says why");
		is(notices_of('bob', "SELECT pg_task_cancel($there{$state})"),
			"NOTICE:  task $there{$state} is not stopped: you see no such task",
			"$state: not to others");
	}
	is(notices_of('bob', 'SELECT pg_task_cancel(-1)'),
		'NOTICE:  task -1 is not stopped: you see no such task', 'no task');

	# a run of a schedule that goes on, or has gone on for long
	my ($first) = row_in('DONE');
	my ($last) = row_in('STOP');
	my $next = insert_task($node, role => 'ann', dt => 'infinity', repeat => '1 h',
		request => 'SELECT 1');
	my $told = "NOTICE:  task $first is not stopped: it has ended, DONE";

	sql("UPDATE task SET next = $last WHERE id = $first; UPDATE task SET next = $next"
		. " WHERE id = $last");
	is(notices_of('ann', "SELECT pg_task_cancel($first)"),
		"$told\nHINT:  Its schedule goes on: the next run is task $next.", 'its next run');
	sql("UPDATE task SET role = 'bob' WHERE id = $next");
	is(notices_of('ann', "SELECT pg_task_cancel($first)"), $told, 'not one that is hidden');
	sql("UPDATE task SET next = $first WHERE id = $last");
	like(notices_of('ann', "SELECT pg_task_cancel($first)"),
		qr/^\Q$told\E\nHINT:  If its schedule goes on, pg_task_repeating\(\) has/, 'a long chain');
	sql('REVOKE SELECT ON task FROM ann; GRANT SELECT (id, state) ON task TO ann');
	is(notices_of('ann', "SELECT pg_task_cancel($first)"), $told, 'without SELECT of the next');
	sql('REVOKE SELECT (id, state) ON task FROM ann; GRANT SELECT ON task TO ann');
	sql("DELETE FROM task WHERE id IN ($first, $last, $next)");

	($id) = row_in('PLAN');
	sql(qq{CREATE SCHEMA evil; CREATE TABLE evil.task (id bigint, state text, role name);
		INSERT INTO evil.task VALUES ($id, 'PLAN', 'ann');
		SET search_path = evil, public; SELECT pg_task_cancel($id)});
	is(task($node, $id, 'state') . sql('SELECT state FROM evil.task'), 'STOPPLAN',
		'pg_task_cancel uses the table of the scheduler');
};

# The scheduler cannot complete the table, because its owner may not create the index that is
# missing.  The table is known meanwhile.
subtest 'while the scheduler prepares the table' => sub {
	sql(q{GRANT SELECT ON task_queue TO ann; INSERT INTO task_queue (queue) VALUES ('known')});
	($id) = row_in('PLAN', queue => 'known');
	sql('DROP INDEX task_plan_idx');
	insert_task($node, role => 'ann', request => 'SELECT 1');    # it looks
	wait_until($node, q{SELECT state = 'starting' FROM pg_stat_task_scheduler()});
	is(sql_as('ann', 'SELECT queue FROM task_queue'), 'known', 'a role sees the row of its queue');
	is(sql("SELECT pg_task_cancel($id)"), 't', 'a task is stopped');
	# its triggers are those of somebody else then
	sql('CREATE ROLE thief; ALTER TABLE task OWNER TO thief');
	is(sqlstate_of('postgres', "SELECT pg_task_cancel($id)"), '55000', 'not with another owner');
	sql('ALTER TABLE task OWNER TO keeper; DROP ROLE thief');
	sql('GRANT CREATE ON SCHEMA public TO keeper');
	run_task($node, role => 'ann', request => 'SELECT 1');
	sql('DELETE FROM task_queue');
};

# Tasks are stopped where nothing starts: that is when one cleans up.  Not without the library.
subtest 'pg_task_cancel without a scheduler' => sub {
	my $dump = $node->basedir . '/dump.sql';
	my $trap = 'CREATE TABLE trap.task (LIKE public.task INCLUDING ALL); CREATE TRIGGER '
	  . 'pg_task_planned AFTER UPDATE ON trap.task FOR EACH ROW EXECUTE FUNCTION '
	  . "pg_task_planned(); INSERT INTO trap.task (id, request) VALUES (-7, 'SELECT 1')";

	$node->command_ok([ 'pg_dumpall', '-h', $node->host, '-p', $node->port, '-f', $dump ],
		'a dump');
	set_conf($node, 'pg_task.enabled = off');
	wait_for_schedulers($node);
	($id) = row_in('PLAN');
	# the supervisor forgets the database a moment later
	poll_for(sub { error_of('postgres', 'SELECT pg_task_cancel(-1)') ne '' });
	like(error_of('postgres', "SELECT pg_task_cancel($id)", sqlstate => 1),
		qr/ERROR:  55000: .*HINT:  .*UPDATE/s, 'never in a table of another owner');
	sql('ALTER TABLE task OWNER TO postgres');
	is(sql("SELECT pg_task_cancel($id)"), 't', 'pg_task.enabled is off');
	set_conf($node, "pg_task.enabled = on\npg_task.database = 'template1'");
	wait_for_schedulers($node, 'template1');
	($id) = row_in('PLAN');
	sql("CREATE SCHEMA trap AUTHORIZATION ann");
	sql_as('ann', $trap);
	is(sql("SELECT pg_task_cancel($id)"), 't', 'the database has no scheduler');
	is(sql("SELECT pg_task_cancel(-7)"), 'f', 'never in a table of just anybody');
	is(task($node, $id, 'state'), 'STOP', 'the task is stopped');
	$node->restart;
	($id) = row_in('PLAN');
	is(sql("SELECT pg_task_cancel($id)"), 't', 'no scheduler since the start of the server');
	sql('ALTER TABLE trap.task OWNER TO postgres');
	like(error_of('postgres', "SELECT pg_task_cancel($id)", sqlstate => 1),
		qr/ERROR:  55000: .*HINT:  /s, 'two tables may be meant');

	my $bare = PostgreSQL::Test::Cluster->new('bare');
	$bare->init(extra => [ '--encoding=UTF8', '--locale=C.UTF-8' ]);
	$bare->start;
	$bare->psql('postgres', "\\i $dump", on_error_stop => 0);
	is($bare->safe_psql('postgres', 'SELECT count(*) > 5 FROM task'), 't',
		'a server without the library has the table');
	like(error_of('postgres', "SELECT pg_task_cancel($id)", node => $bare, sqlstate => 1),
		qr/WARNING:  55000: pg_task is not running.*HINT:.*ERROR:  55000: .*HINT:  /ms,
		'without the library');
	my ($rc, $out, $err) = $bare->psql('postgres',
		q{INSERT INTO task (request) VALUES ('SELECT 1')});
	like($err, qr/WARNING:  pg_task is not running on this server: tasks wait\nHINT:  Add pg_task/m,
		'without the library: whoever plans a task is warned');
	($rc, $out, $err) = $bare->psql('postgres', q{LOAD 'pg_task'});
	like($err, qr/WARNING:  pg_task is not running/m, 'without the library: LOAD warns');
	($rc, $out, $err) = $bare->psql('template1', q{CREATE EXTENSION pg_task});
	like($err, qr/WARNING:  pg_task is not running/m,
		'without the library: CREATE EXTENSION warns');
	$bare->safe_psql('postgres', "UPDATE task SET state = 'STOP'");
	is(sqlstate_of('postgres', "UPDATE task SET state = 'WORK'", node => $bare), '23514',
		'without the library: WORK is refused');
};

done_testing();
