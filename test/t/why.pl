# pg_task_why: why does this task not run?  Each reason, and what a role is told of tasks that it
# does not see.  A TAP test because the reasons are those of processes, locks and roles.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => q{
	pg_task.max_executors = 2
	max_prepared_transactions = 2
	max_worker_processes = 16});

sql(q{CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; CREATE ROLE keeper LOGIN;
	GRANT SELECT, INSERT, UPDATE, DELETE ON task TO app, other});
make_gates($node);
wait_for_table($node, table => 'task_queue');

# What pg_task_why says; it may take a moment until it does.
sub like_why
{
	my ($id, $regexp, $name, %opt) = @_;
	my $user = $opt{user} // 'postgres';
	my $answer;

	poll_for(sub { ($answer = sql_as($user, "SELECT pg_task_why($id)", %opt)) =~ $regexp });
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return like($answer, $regexp, $name);
}

# Tasks that run until the gate of this name is opened.
sub hold_executors
{
	my ($gate, $count, %column) = @_;
	my @ids = map { insert_task($node, request => "SELECT hold('$gate')", %column) } 1 .. $count;

	wait_for_running($node, 1, id => $_, event => 'PgSleep') for @ids;
	return @ids;
}

sub let_go
{
	my ($gate) = @_;

	open_gate($node, $gate);
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state = 'WORK')});
	return;
}

# Is the moment that is named for a task about an hour after the first start in its queue?
sub next_start
{
	my ($queue, $id, $user, $name) = @_;
	my $start = sql("SELECT min(start) FROM task WHERE queue = '$queue'");

	return becomes_true(qq{SELECT substring(pg_task_why($id) FROM ' at (20.*)')::timestamptz
		BETWEEN timestamptz '$start' + '50 min' AND timestamptz '$start' + '70 min'}, $name,
		user => $user);
}

subtest 'the row says it' => sub {
	is(sql('SELECT pg_task_why(-1) IS NULL, pg_task_why(NULL) IS NULL'), 't|t', 'no such task');
	my $done = run_task($node, request => 'SELECT 1');
	like_why($done, qr/^it has ended: DONE at 20/, 'DONE');
	my $failed = run_task($node, request => 'SELECT 1/0');
	like_why($failed, qr/^it has ended: FAIL at 20.*, after: division by zero \(22012\)$/, 'FAIL');
	my $later = insert_task($node, request => 'SELECT 1', dt => '2100-01-01 00:00+00');
	is(sql("SET TimeZone = 'UTC'; SELECT pg_task_why($later)"),
		'planned for 2100-01-01 00:00:00+00',
		'planned');
	sql("UPDATE task SET state = 'STOP' WHERE id = $later");
	like_why($later, qr/^it has ended: STOP at 20/, 'stopped');
	like_why(insert_task($node, request => 'SELECT 1', dt => 'infinity'),
		qr/^planned for infinity/, 'infinity');
	like_why(insert_task($node, request => 'SELECT 1', cron => '@reboot'),
		qr/^it is on hold: until the server starts$/, '@reboot');
	like_why(insert_task($node, request => 'SELECT 1/0', retry => 1, delay => '1 h'),
		qr/^planned for 20.*, after: division by zero \(22012\)$/, 'a retry');
	my $before = insert_task($node, request => 'SELECT 1', max => 0);
	like_why($before, qr/^its max is 0$/, 'max 0');
	like_why(insert_task($node, request => 'SELECT 1', after => "{$before}"),
		qr/^it waits for task $before$/, 'after');
	my @round = map { insert_task($node, request => 'SELECT 1', max => 0) } 1 .. 3;
	my $outside = insert_task($node, request => 'SELECT 1', after => "{$round[2]}");
	sql("UPDATE task SET after = '{$round[$_ - 1]}' WHERE id = $round[$_]") for 0 .. 2;
	like_why($outside, qr/^it waits for task $round[2], and never ends: .*: $round[2], $round[1], $round[0]$/,
		'a cycle behind the task');
	like_why($round[1], qr/: $round[1], $round[0], $round[2]$/, 'and in it');
	sql('DELETE FROM task WHERE id = ANY (ARRAY[' . join(', ', @round, $outside) . '])');
	my ($running) = hold_executors('row', 1);
	like_why($running, qr/^it runs since 20.* in pid \d+$/, 'it runs');
	is(sql("SELECT pg_task_why($running) LIKE '% in pid ' || pid FROM task WHERE id = $running"),
		't', 'in the process that the row names');
	let_go('row');
};

subtest 'roles' => sub {
	sql('ALTER TABLE task OWNER TO keeper');
	my $id = insert_task($node, request => 'SELECT 1', role => 'other', repeat => '1 day');
	wait_until($node, "SELECT sqlstate = '42501' FROM task WHERE id = $id");
	sql("UPDATE task SET dt = now(), queue = 'q' WHERE id = $id AND pg_task_why(id) IS NULL");
	like_why($id, qr/^planned for 20.*may not run tasks as role "other" \(42501\)/,
		'the owner may not become the role: it is tried again');
	sql("UPDATE task SET max = 0, dt = now() - interval '1 s' WHERE id = $id");
	like_why($id, qr/may not run tasks as role "other": GRANT other TO keeper$/, 'what helps');
	like_why(insert_task($node, request => 'SELECT 1', role => 'other', dt => '2100-01-01'),
		qr/^planned for 2100.*, and the owner .* as role "other": GRANT other TO keeper$/,
		'before its time');
	sql("DELETE FROM task WHERE id = $id; ALTER TABLE task OWNER TO postgres");
	my $limited = do {
		sql('ALTER ROLE other CONNECTION LIMIT 1');
		my ($first) = hold_executors('role', 1, role => 'other');
		insert_task($node, request => 'SELECT 1', role => 'other');
	};
	like_why($limited, qr/^role "other" has 1 of 1 executors, all busy$/,
		'a connection limit');
	let_go('role');
	sql('ALTER ROLE other CONNECTION LIMIT -1; ALTER ROLE other SET pg_task.role_executors = 1');
	hold_executors('setting', 1, role => 'other');
	like_why(insert_task($node, request => 'SELECT 1', role => 'other'),
		qr/^role "other" has 1 of 1 executors/, 'pg_task.role_executors');
	let_go('setting');
	sql('ALTER ROLE other RESET pg_task.role_executors');
	sql(q{CREATE ROLE barred LOGIN; REVOKE CONNECT ON DATABASE postgres FROM PUBLIC});
	my $barred = insert_task($node, request => 'SELECT 1', role => 'barred', max => 0);
	like_why($barred, qr/^role "barred" may not connect to this database: GRANT CONNECT ON DATABASE/,
		'it may not connect');
	sql(q{GRANT CONNECT ON DATABASE postgres TO PUBLIC; ALTER ROLE barred NOLOGIN});
	like_why($barred, $node->pg_version < 17 ? qr/^role "barred" is not permitted to log in: ALTER/
		: qr/^its max is 0$/, 'it may not log in, which matters before PostgreSQL 17');
};

subtest 'executors' => sub {
	my @ids = hold_executors('all', 2);
	my $id = insert_task($node, request => 'SELECT 1');
	like_why($id, qr/^no executor is free: 2 of 2 busy$/, 'all are busy');
	let_go('all');
};

# So many that the order of tasks, and not an executor, is what keeps one.
subtest 'the place in the queue' => sub {
	my @first = hold_executors('place', 2, queue => 'place');
	my $busy = qr/^no executor is free: 2 of 2 busy/;
	my $place = sub {
		my ($tasks, $name, %column) = @_;
		my $id = insert_task($node, request => 'SELECT 1', queue => 'place', %column);

		like_why($id, $tasks ? qr/$busy; $tasks of its queue (is|are) before it$/ : qr/$busy$/, $name);
	};

	$place->('', 'the first one');
	$place->('1 task', 'the second one');
	sql(q{INSERT INTO task (queue, max, priority, role, dt, request)
		SELECT 'place', nullif(n % 3, 0) * 10, n % 5, CASE n % 2 WHEN 0 THEN 'app' ELSE 'other' END,
			CASE WHEN n > 300 THEN 'infinity'::timestamptz ELSE now() - n * interval '1 ms' END,
			'SELECT 1' FROM generate_series(1, 600) AS n;
		INSERT INTO task (queue, request) SELECT 'place', 'SELECT 1' FROM generate_series(1, 10);
		INSERT INTO task (queue, request, max) VALUES ('place', 'SELECT 1', 0)});
	# of each queue: larger max, lower priority, dt, id
	is(sql(q{SELECT count(*) FROM (
			SELECT id, coalesce(substring(pg_task_why(id) FROM '; ([\d,]+) task'), '0') AS said,
				row_number() OVER (ORDER BY coalesce(max, 2147483647) DESC, priority, dt, id) - 1 AS n
			FROM task WHERE queue = 'place' AND state = 'PLAN' AND dt <> 'infinity' AND max IS DISTINCT FROM 0)
			AS p WHERE replace(said, ',', '')::bigint <> n}), 0, 'of each, in groups');
	sql(q{INSERT INTO task (queue, dt, priority, request)
		SELECT 'place', now() - interval '1 h', -1, 'SELECT 1' FROM generate_series(1, 100001)});
	$place->('more than 100,000 tasks', 'the last of very many');
	sql(q{DELETE FROM task WHERE queue = 'place' AND state = 'PLAN'});
	let_go('place');
};

subtest 'queues' => sub {
	insert_rule('full.%', max => 1);
	hold_executors('full', 1, queue => 'full.1');
	my $id = insert_task($node, request => 'SELECT 1', queue => 'full.1');
	like_why($id, qr/^its queue is full: 1 of 1 run$/, 'the max of a pattern');
	my $own = insert_task($node, request => 'SELECT 1', queue => 'full.1', role => 'app');
	like_why($own, qr/^its queue is full: 1 of 1 run$/, 'a role is told so of its own task ...',
		user => 'app');
	is(sql_as('app', "SELECT pg_task_why($id) IS NULL"), 't', '... and nothing of others');
	is(sqlstate_of('keeper', "SELECT pg_task_why($id)"), '42501', 'a role without SELECT');
	my $name = 'x' x 100;
	hold_executors('long', 1, queue => "${name}1", max => 1);
	like_why(insert_task($node, request => 'SELECT 1', queue => "${name}2", max => 1),
		qr/^no executor is free/, 'names that are long differ by their ends');
	like_why(insert_task($node, request => 'SELECT 1', queue => "${name}1", max => 1),
		qr/^its queue is full: 1 of 1 run$/, 'and are known in full');
	open_gate($node, 'full');
	let_go('long');

	insert_rule('full.2', paused => 'true');
	insert_rule('full.3_', max => 0);
	insert_rule('until', until => '2100-01-01 00:00+00');
	insert_rule('none', rate => 0);
	sql(q{INSERT INTO task_queue (queue, max) VALUES ('%', 5)});
	like_why(insert_task($node, request => 'SELECT 1', queue => 'full.2'),
		qr/^its queue is paused$/, 'paused, by name rather than by pattern');
	like_why(insert_task($node, request => 'SELECT 1', queue => 'until'),
		qr/^its queue starts no task until 2100-01-01/, 'until');
	like_why(insert_task($node, request => 'SELECT 1', queue => 'full.2', dt => '2099-01-01'),
		qr/^planned for 2099-01-01.*, and its queue is paused$/, 'planned for later, and paused');
	like_why(insert_task($node, request => 'SELECT 1', queue => 'until', dt => '2099-01-01'),
		qr/^planned for 2099-01-01.*, and its queue starts no task until 2100-01-01/,
		'planned for later, but not late enough');
	like_why(insert_task($node, request => 'SELECT 1', queue => 'until', dt => '2100-01-02'),
		qr/^planned for 2100-01-02[^,]*$/, 'planned for later than that');
	like_why(insert_task($node, request => 'SELECT 1', queue => 'none'),
		qr/^the rate of its queue is 0$/, 'a rate of 0');
	sql(q{UPDATE task_queue SET max = 0 WHERE queue = '%'});
	like_why(insert_task($node, request => 'SELECT 1', queue => 'any'),
		qr/^the max of its queue is 0$/, 'a max of 0');
	sql(q{TRUNCATE task_queue; UPDATE task SET state = 'STOP' WHERE state = 'PLAN'});

	insert_rule('mail', rate => 1, per => '1 h');
	run_task($node, request => 'SELECT 1', queue => 'mail', role => 'other');
	my $mail = insert_task($node, request => 'SELECT 1', queue => 'mail', role => 'app');
	like_why($mail, qr/^the rate of its queue: at most 1 starts in 01:00:00; its queue may start /,
		'a rate');
	next_start('mail', $mail, 'app', 'and when a start leaves the window');
	sql('CREATE ROLE idle LOGIN; GRANT CONNECT ON DATABASE postgres TO idle');
	my $started = run_task($node, request => 'SELECT 1', queue => 'slow', max => -3600000);
	my $paused = insert_task($node, request => 'SELECT 1', queue => 'slow', max => -3600000,
		role => 'idle');
	like_why($paused, qr/^the pause of its queue: 01:00:00 between two starts; it may start at 20/,
		'a pause, of a role that has no executor');
	becomes_true(qq{SELECT pause > dt + interval '1 h' AND pause <= start + interval '1 h'
		FROM task, CAST(substring(pg_task_why($paused) FROM ' at (.*)') AS timestamptz) AS pause
		WHERE id = $started}, 'and when it is over');
	sql('ALTER TABLE task_rate OWNER TO other');
	unlike(sql("SELECT pg_task_why($mail)"), qr/next task at/,
		'nothing is read from the table of somebody else');
};

subtest 'strict queues' => sub {
	insert_rule('strict', max => 1, strict => 'true');
	my $first = insert_task($node, request => 'SELECT 1/0', queue => 'strict', retry => 1,
		delay => '25 h', role => 'app');
	wait_until($node, "SELECT failed = 1 FROM task WHERE id = $first");
	like_why($first, qr/^its queue is strict: it is tried again at \Q${\task($node, $first,
		q{to_char(stop + '25 h', 'YYYY-MM-DD HH24:MI:SS')})}\E/, 'when a retry is tried again');
	my $second = insert_task($node, request => 'SELECT 1', queue => 'strict');
	my $theirs = insert_task($node, request => 'SELECT 1', queue => 'strict', role => 'other');
	like_why($first, qr/^its queue is strict: it is tried again at 20.*, after: division by zero/,
		'a retry that keeps its place');
	like_why($second, qr/^its queue is strict: task $first is first; 1 task of its queue is before it$/, 'the one behind it');
	unlike(sql_as('other', "SELECT pg_task_why($theirs)"), qr/$first|$second|division/,
		'another role is not told of the first');
	sql(q{UPDATE task SET state = 'STOP' WHERE queue = 'strict'});
	insert_rule('outbox', max => 1, strict => 'true', retry => 1, delay => '25 h');
	my $open = insert_task($node, request => 'SELECT 1/0', queue => 'outbox', role => 'app');
	wait_until($node, "SELECT failed = 1 FROM task WHERE id = $open");
	like_why($open, qr/^its queue is strict: it is tried again at \Q${\task($node, $open,
		q{to_char(stop + '25 h', 'YYYY-MM-DD HH24:MI:SS')})}\E/, 'with the delay of its queue');
	sql(q{UPDATE task SET state = 'STOP' WHERE queue = 'outbox'});
};

# The queue is paused, so that the row stays.
subtest 'locks' => sub {
	insert_rule('held', paused => 'true');
	my $id = insert_task($node, request => 'SELECT 1', queue => 'held');
	my $session = open_session($node, 'postgres');
	my $other = open_session($node, 'postgres');
	my $pid = $session->query('SELECT pg_backend_pid()');

	$session->query_safe("BEGIN; SAVEPOINT a; SELECT FROM task WHERE id = $id FOR NO KEY UPDATE");
	like_why($id, qr/^the row is locked by pid $pid$/, 'a locked row, in a subtransaction');
	$session->query_safe('ROLLBACK');
	like_why($id, qr/^its queue is paused$/, 'it is locked no more');
	$other->query_safe("BEGIN; SELECT FROM task WHERE id = $id FOR KEY SHARE");
	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $id FOR SHARE");
	like_why($id, qr/^its queue is paused$/, 'a row that several have locked');
	$_->query_safe('ROLLBACK') for $session, $other;

	sql("BEGIN; UPDATE task SET priority = 1 WHERE id = $id; PREPARE TRANSACTION 'p'");
	like_why($id, qr/^the row is locked by a prepared transaction$/, 'a prepared transaction');
	sql("ROLLBACK PREPARED 'p'");

	$session->query_safe('BEGIN; LOCK TABLE task IN SHARE MODE');
	like_why($id, qr/^the table is locked by pid $pid$/, 'a locked table');
	$session->query_safe('ROLLBACK');
	sql('CREATE TABLE thing (id int); GRANT ALL ON thing TO app');
	$session->query_safe('BEGIN; LOCK thing');
	my ($waits, $queues) = map { insert_task($node, request => 'LOCK thing; SELECT hold(\'thing\')',
		role => 'app') } 1, 2;
	like_why($_, qr/^it runs since 20.* in pid \d+, and waits for a lock of pid $pid, role postgres$/,
		'a run that waits for a session') for $waits;
	$session->query_safe('ROLLBACK');
	wait_for_running($node, 1, event => 'PgSleep');
	my ($holds) = split /\n/, sql(q{SELECT t.id FROM task AS t JOIN pg_stat_activity USING (pid)
		WHERE t.state = 'WORK' AND wait_event = 'PgSleep'});
	like_why($holds == $waits ? $queues : $waits,
		qr/^it runs since .*, and waits for a lock of pid \d+, task $holds$/, 'for another task');
	unlike(sql_as('other', 'SELECT pg_task_why(id) FROM task'), qr/task/, 'others are told of none');
	let_go('thing');

	becomes_true(q{BEGIN; INSERT INTO task (request) VALUES ('SELECT 1');
		SELECT pg_task_why(max(id)) = 'this transaction has written it, and has not committed yet'
		FROM task}, 'not committed');
	$_->quit for $session, $other;
};

# The server refuses every UPDATE of the table: tasks cannot be claimed, nor outcomes written.
subtest 'errors of the scheduler' => sub {
	my $no_identity = 'cannot update table "task" because it does not have a replica identity and '
	  . 'publishes updates';
	my ($running) = hold_executors('error', 1);

	# its rights go beyond the database, so the query is executed as the owner
	sql('CREATE ROLE creator LOGIN CREATEDB; GRANT SELECT ON task TO creator; GRANT app TO creator');
	for my $case (
		[ q{CREATE PUBLICATION p FOR TABLE task WHERE (queue = 'a')}, 'cannot update table "task": '
			. 'Column used in the publication WHERE expression is not part of the replica identity.' ],
		[ 'CREATE PUBLICATION p FOR TABLE task (queue, request)', 'cannot update table "task": '
			. 'Column list used by the publication does not cover the replica identity.' ],
		[ 'CREATE PUBLICATION p FOR TABLE task; ALTER TABLE task REPLICA IDENTITY NOTHING',
			$no_identity ])
	{
		my ($publish, $error) = @$case;

		sql($publish);
		my $id = insert_task($node, request => 'SELECT 1', role => 'app');
		like_why($id, qr/^the scheduler reports an error: \Q$error\E$/, $publish);
		like_why($id, qr/^the scheduler reports an error: see the log$/,
			'others are not told which', user => $_) for qw(app creator);
		if ($error eq $no_identity)
		{
			open_gate($node, 'error');
			like_why($running, qr/^its run was interrupted; the scheduler reports an error: \Q$error\E$/,
				'a task that ran when the publication was made');
		}
		sql('DROP PUBLICATION p; ALTER TABLE task REPLICA IDENTITY DEFAULT');
		run_task($node, request => 'SELECT 1'); # the commit wakes the scheduler
		wait_for_state($node, $id, 'DONE');
	}
	wait_for_state($node, $running, 'FAIL');
	is_row($node, $running, { sqlstate => '55000', error => $no_identity }, 'its row says it then');

	sql(q{ALTER TABLE task ADD CHECK (request <> 'no' OR state = 'PLAN')});
	my $bad = insert_task($node, request => 'no', queue => 'refused');
	like_why($bad, qr/an error: new row for relation "task" violates check constraint "task_check"$/,
		'a refused row, which is not quoted');
	sql('ALTER TABLE task DROP CONSTRAINT task_check');
	run_task($node, request => 'SELECT 1');
	wait_for_state($node, $bad, 'FAIL');

	# two locks, so that nothing is known of who keeps the row
	insert_rule('locked', paused => 'true');
	my $locked = insert_task($node, request => 'SELECT 1', queue => 'locked');
	my @sessions = map { open_session($node, 'postgres') } 1, 2;
	$_->query_safe("BEGIN; SELECT FROM task WHERE id = $locked FOR SHARE") for @sessions;
	sql(q{UPDATE task_queue SET paused = false WHERE queue = 'locked'});
	like_why($locked, qr/^nothing keeps it: it is about to start$/, 'the errors are over');
	$_->quit for @sessions;
	wait_for_state($node, $locked, 'DONE');
};

# Suspects: no crash is needed, because the column says so.
subtest 'isolated' => sub {
	my ($first, $second) = map {
		insert_task($node, request => q{SELECT hold('alone')}, crashed => 1, queue => $_)
	} 'a', 'b';

	wait_for_running($node, 1, event => 'PgSleep');
	my $runs = sql(q{SELECT id FROM task WHERE state = 'WORK' AND crashed > 0});
	like_why($runs == $first ? $second : $first,
		qr/^it may have crashed the server, and runs isolated: another such task runs now$/,
		'two suspects');
	let_go('alone');
};

subtest 'no scheduler' => sub {
	insert_rule('off', paused => 'true');
	my $id = insert_task($node, request => 'SELECT 1', queue => 'off');

	sql('CREATE DATABASE other');
	wait_for_table($node, db => 'other');
	my $theirs = insert_task($node, request => 'SELECT 1', max => 0, db => 'other');
	set_conf($node, q{pg_task.database = '*, -other'});
	like_why($theirs, qr/^no scheduler serves this database: pg_task.database does not name it$/,
		'not named', db => 'other');
	sql('ALTER DATABASE postgres SET pg_task.enabled = off');
	like_why($id, qr/^pg_task.enabled is off$/, 'off in the database');
	sql('ALTER DATABASE postgres RESET pg_task.enabled');
	my $runs = insert_task($node, request => q{SELECT hold('off')});
	wait_for_running($node, 1, id => $runs, event => 'PgSleep');
	sql('ALTER DATABASE postgres SET pg_task.enabled = off');
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler' AND datname = 'postgres')});
	sql('SELECT pg_terminate_backend(pid) ' . running(id => $runs));
	like_why($runs, qr/^its run was interrupted; pg_task.enabled is off$/, 'of an interrupted run');
	sql('ALTER DATABASE postgres RESET pg_task.enabled');
	let_go('off');
	($runs) = hold_executors('off again', 1);
	like_why($id, qr/^its queue is paused$/, 'on again');
	set_conf($node, 'pg_task.enabled = off');
	like_why($id, qr/^pg_task.enabled is off$/, 'off on the server');
	sql('SELECT pg_terminate_backend(pid) ' . running(id => $runs));
	like_why($runs, qr/^its run was interrupted; pg_task.enabled is off$/, 'of an interrupted run');
};
done_testing();
