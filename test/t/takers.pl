# Tasks that programs take: what pg_task_take hands out, how a run ends by its handle, and what
# becomes of it when whoever has taken it goes.  A TAP test because sessions come and go.
use strict;
use warnings;
use FindBin;
use IPC::Run;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.max_executors = 2\npg_task.max_takers = 20\n"
	. "listen_addresses = '127.0.0.1'");

sql(q{CREATE ROLE mailer LOGIN; CREATE ROLE other LOGIN; CREATE ROLE clerk LOGIN;
	GRANT SELECT, INSERT, UPDATE, DELETE ON task TO clerk;
	CREATE TABLE sent (id bigint PRIMARY KEY); GRANT ALL ON sent TO mailer;
	INSERT INTO task_queue (queue, taker) VALUES ('mail-%', 'mailer'), ('print', 'other')});

# As a role: what a call returns.
sub take
{
	my ($arguments, $columns, %options) = @_;
	return sql_as($options{as} // 'mailer',
		"SELECT $columns FROM pg_task_take($arguments)");
}

# The handle of the next task, which there must be.
sub handle
{
	my ($queue, %options) = @_;
	my $more = $options{more} // '';
	my $handle = take("'{$queue}', wait => 10000$more", 'handle', %options);

	isnt($handle, '', "a task of $queue is handed out");
	return $handle;
}

sub mail
{
	my (%columns) = @_;
	return insert_task($node, queue => 'mail-a', request => 'send', %columns);
}

subtest 'a task is taken and finished' => sub {
	my $id = mail(input => '{"to": "a@example.com"}', retry => 3, key => 'k', meta => '{"t": 1}');
	my $row = take(q{'{mail-a}', wait => 10000},
		q{id || '|' || attempt || '|' || failed || '|' || retries || '|' || queue || '|' || key
		|| '|' || request || '|' || input || '|' || meta || '|' || (deadline > now() + interval '59 min')
		|| '|' || (timeout > 3590000) || '|' || handle});
	my ($head, $handle) = $row =~ /^(.*)\|([^|]+)$/s;
	is($head, qq[$id|1|0|3|mail-a|k|send|{"to": "a\@example.com"}|{"t": 1}|true|true], 'what it gets');
	is(task($node, $id, q{state || ' ' || attempt || ' ' || lease}), 'WORK 1 60000',
		'the row says that it was taken');
	is(take(q{'{mail-a}'}, 'count(*)'), 0, 'nobody else gets it');
	sql_as('mailer', qq{BEGIN; INSERT INTO sent VALUES ($id);
		SELECT pg_task_finish('$handle', '{"ok": true}'); COMMIT});
	is(task($node, $id, q{state || ' ' || response}), 'DONE {"ok": true}', 'it is DONE');
	is(sql("SELECT pg_task_result($id) -> 'ok'"), 'true', 'its result is a document');
	is(sql('SELECT count(*) FROM sent'), 1, 'with its effects');
	is(sqlstate_of('mailer', "SELECT pg_task_finish('$handle')"), 'TK007', 'it says so again');
	is(sql_as('mailer', "SELECT pg_task_fail('$handle', 'no') IS NULL"), 't',
		'to fail it does nothing');
	is(task($node, $id, 'state'), 'DONE', 'it stays DONE');
};

subtest 'rights' => sub {
	my $id = mail();
	is(sqlstate_of('other', q{SELECT * FROM pg_task_take('{mail-a}')}), '42501',
		'another role is told that it may not');
	is(sqlstate_of('mailer', q{SELECT * FROM pg_task_take('{default}')}), '55000',
		'a queue without a taker');
	is(sql_as('other', q{SELECT count(*) FROM pg_task_take('{%}')}), 0, 'nor by a pattern');
	is(sqlstate_of('clerk', 'SELECT * FROM pg_task_take()'), '42501', 'a taker of no queue');
	my $handle = handle('mail-%');
	for my $call ("pg_task_finish('$handle')", "pg_task_fail('$handle', 'x')",
		"pg_task_give_back('$handle')", "pg_task_alive(ARRAY['$handle'])")
	{
		is(sqlstate_of('other', "SELECT $call"), '42501', "$call by another role");
	}
	is(sqlstate_of('mailer', q{SELECT pg_task_finish('x')}), '22023', 'no handle');
	is(sqlstate_of('mailer', q{SELECT pg_task_finish('0.999999.1.5')}), 'TK006', 'no such task');
	(my $forged = $handle) =~ s/\d$/$& eq '0' ? 1 : 0/e;
	is(sqlstate_of('mailer', "SELECT pg_task_finish('$forged')"), 'TK006', 'another time');
	is(sqlstate_of('mailer', 'BEGIN READ ONLY; SELECT * FROM pg_task_take()'), '25006',
		'READ ONLY');
	is(sqlstate_of('mailer', 'BEGIN ISOLATION LEVEL REPEATABLE READ;
		SELECT * FROM pg_task_take()'), '0A000', 'REPEATABLE READ');
	is(sqlstate_of('mailer', q{SELECT * FROM pg_task_take(n => 0)}), '22023', 'n of 0');
	sql_as('mailer', "SELECT pg_task_finish('$handle')");
	is(task($node, $id, 'state'), 'DONE', 'the right one can');
};

# Nothing runs as the role of the row.
subtest 'a role that cannot log in' => sub {
	sql('CREATE ROLE nologin');
	my $insert = q{INSERT INTO task (queue, request, role) VALUES ('%s', 'send', 'nologin')};
	is(notices_of('postgres', sprintf $insert, 'mail-a'), '', 'no warning');
	my $handle = handle('mail-a');
	sql_as('mailer', "SELECT pg_task_finish('$handle')");
	is(sql(q{SELECT state || ' ' || role FROM task WHERE role = 'nologin'}), 'DONE nologin',
		'it is taken and finished');
};

subtest 'what the owner of a row may set' => sub {
	my $insert = "INSERT INTO task (queue, request, %s) VALUES ('mail-a', 'send', %s) RETURNING id";

	is(sqlstate_of('clerk', sprintf($insert, 'lease', 0)), '42501', 'not the lease');
	is(sqlstate_of('clerk', sprintf($insert, 'lost', -1)), '23514', 'no count below zero');
	my $id = sql_as('clerk', sprintf($insert, 'lost', 2147483647));
	is(sqlstate_of('clerk', "UPDATE task SET lease = 5 WHERE id = $id"), '42501',
		'nor that of a run');
	handle('mail-a', more => ', lease => 50');
	wait_for_state($node, $id, 'FAIL');
	is(task($node, $id, q{lost || ' ' || sqlstate}), '2147483647 TK008', 'a count that is full');
	sql("SELECT pg_task_retry($id)");
	is(task($node, $id, 'lost IS NULL'), 't', 'a retry by the owner of the table begins anew');
	sql("DELETE FROM task WHERE id = $id");
};

subtest 'failures' => sub {
	my $id = mail(retry => 1, delay => '0');
	my $handle = handle('mail-a');
	is(sql_as('mailer', "SELECT pg_task_fail('$handle', 'refused', 'by the server', '58000')"),
		'PLAN', 'it is tried again');
	is(task($node, $id, q{state || ' ' || failed || ' ' || sqlstate || ' ' || error}),
		'PLAN 1 58000 refused', 'the row says why');
	$handle = handle('mail-a');
	is(sql_as('mailer', "SELECT pg_task_fail('$handle', 'refused again')"), 'FAIL',
		'then it has failed');
	like(task($node, $id, 'response'), qr/^ERROR:  refused again$/, 'as any task');
	$id = mail(retry => 5);
	$handle = handle('mail-a');
	is(sql_as('mailer', "SELECT pg_task_fail('$handle', 'gone', final => true)"), 'FAIL',
		'for good');
	$id = mail(retry => 5);
	$handle = handle('mail-a');
	is(sql_as('mailer', "SELECT pg_task_fail('$handle', 'busy', again => 3600000)"), 'PLAN',
		'in an hour');
	is(task($node, $id, q{dt > now() + interval '59 min'}), 't', 'at that time');
	sql("DELETE FROM task WHERE id = $id");
	is(sqlstate_of('mailer', "SELECT pg_task_fail('$handle', 'x', sqlstate => 'nope')"), '22023',
		'a code that is none');
};

subtest 'give back' => sub {
	my $id = mail();
	my $handle = handle('mail-a');
	is(sql_as('mailer', qq{SELECT pg_task_give_back('$handle', input => '{"n": 1}')}), 't',
		'it is given back');
	is(task($node, $id, q{failed || ' ' || coalesce(lost, 0) || ' ' || input}), '0 0 {"n": 1}',
		'no failure');
	is(sqlstate_of('mailer', "SELECT pg_task_finish('$handle')"), 'TK006', 'the handle is void');
	$handle = handle('mail-a');
	is(sql_as('mailer', "SELECT pg_task_give_back('$handle', now() + interval '1 hour')"), 't',
		'for later');
	is(take(q{'{mail-a}'}, 'count(*)'), 0, 'it waits until then');
	sql("DELETE FROM task WHERE id = $id");
};

subtest 'a transaction that does not commit' => sub {
	my $id = mail();
	my $session = open_session($node, 'postgres', extra_params => ['-U', 'mailer']);
	$session->query_safe('BEGIN');
	my $handle = $session->query_safe(
		q{SELECT handle FROM pg_task_take('{mail-a}', wait => 10000)});
	$session->query_safe('ROLLBACK');
	wait_for_state($node, $id, 'PLAN');
	is(task($node, $id, 'attempt'), 0, 'a take that is rolled back is none');
	$session->query_safe('BEGIN; SAVEPOINT s');
	$session->query_safe(q{SELECT handle FROM pg_task_take('{mail-a}', wait => 10000)});
	$session->query_safe('ROLLBACK TO s; COMMIT');
	wait_for_state($node, $id, 'PLAN');
	is(task($node, $id, 'attempt'), 0, 'nor is one of a savepoint');
	$handle = handle('mail-a');
	sql_as('mailer', "BEGIN; SELECT pg_task_finish('$handle'); ROLLBACK");
	is(task($node, $id, 'state'), 'WORK', 'a finish that is rolled back is none');
	sql_as('mailer', "BEGIN; SAVEPOINT s; SELECT pg_task_finish('$handle'); ROLLBACK TO s; COMMIT");
	is(sql_as('mailer', "SELECT cardinality(pg_task_alive(ARRAY['$handle']))"), 1,
		'it is still held');
	sql_as('mailer', "SELECT pg_task_finish('$handle')");
	is(task($node, $id, 'state'), 'DONE', 'until it is finished');
	is(sqlstate_of('mailer', q{BEGIN; SELECT * FROM pg_task_take(); PREPARE TRANSACTION 'p'}),
		'55000', 'no prepared transactions are configured');
	$session->quit;
};

subtest 'leases' => sub {
	my $id = mail();
	my $handle = handle('mail-a', more => ', lease => 100');
	# it is handed out again when the lease has expired
	my $next = handle('mail-a');
	isnt($next, $handle, 'after 100 ms somebody else has it');
	is(task($node, $id, q{attempt || ' ' || lost || ' ' || sqlstate}), '2 1 TK008',
		'the row says that it was lost');
	is(sqlstate_of('mailer', "BEGIN; INSERT INTO sent VALUES (-1);
		SELECT pg_task_finish('$handle'); COMMIT"), 'TK006', 'the first cannot finish it');
	is(sql('SELECT count(*) FROM sent WHERE id = -1'), 0, 'and its effects are gone');
	is(sql_as('mailer', "SELECT pg_task_alive(ARRAY['$handle', '$next']) = ARRAY['$next']"), 't',
		'it is told to stop');
	sql_as('mailer', "SELECT pg_task_finish('$next')");
	# lost too often
	apply_conf($node, 'pg_task.max_lost = 2');
	$id = mail();
	handle('mail-a', more => ', lease => 50') for 1 .. 2;
	wait_for_state($node, $id, 'FAIL');
	is(task($node, $id, q{sqlstate || ' ' || error}),
		'TK008 who had taken the task is gone (2 times)', 'then it has failed');
	# one that was lost is handed out alone
	my $first = mail();
	handle('mail-a', more => ', lease => 50');
	wait_until($node, "SELECT lost = 1 FROM task WHERE id = $first");
	my $second = mail();
	is(take(q{'{mail-a}', n => 10, wait => 10000}, 'string_agg(id::text, $$ $$)'), $first,
		'one that was lost comes alone');
	is(take(q{'{mail-a}', n => 10, wait => 10000}, 'string_agg(id::text, $$ $$)'), $second,
		'then the others');
	sql("DELETE FROM task WHERE state = 'WORK'");
};

subtest 'a session' => sub {
	my $id = mail();
	my $session = open_session($node, 'postgres', extra_params => ['-U', 'mailer']);
	my $handle = $session->query_safe(
		q{SELECT handle FROM pg_task_take('{mail-a}', wait => 10000, lease => 0)});
	is(task($node, $id, 'lease'), 0, 'it holds the task by its life');
	is(sql_as('mailer', "SELECT cardinality(pg_task_alive(ARRAY['$handle']))"), 1, 'it lives');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	sql("SELECT pg_terminate_backend($pid)");
	my $next = handle('mail-a');
	is(task($node, $id, q{attempt || ' ' || lost}), '2 1', 'when it goes, another gets the task');
	sql_as('mailer', "SELECT pg_task_finish('$next')");
	$id = mail();
	$session = open_session($node, 'postgres', extra_params => ['-U', 'mailer']);
	$session->query_safe(q{SELECT id FROM pg_task_take('{mail-a}', wait => 10000, lease => 0)});
	$session->query_safe('DISCARD ALL');
	$next = handle('mail-a');
	sql_as('mailer', "SELECT pg_task_finish('$next')");
	is(task($node, $id, 'state'), 'DONE', 'DISCARD ALL gives it back');
	$session->quit;
};

subtest 'a session over TCP' => sub {
	my $warning = 'WARNING:  a client that is cut off keeps its tasks for hours';
	my $warned = sub {
		my ($host, @sql) = @_;
		my ($out, $err) = ('', '');
		my @command = ('psql', '-XAtq', '-h', $host, '-p', $node->port, '-U', 'mailer', 'postgres');

		IPC::Run::run([ @command, map { ('-c', $_) } @sql ], '>', \$out, '2>', \$err) or die $err;
		my @found = $err =~ /^\Q$warning\E$/mg;
		return scalar @found;
	};
	my $take = q{SELECT id FROM pg_task_take('{mail-a}', lease => %s)};
	my $by_session = sprintf $take, 0;

	is($warned->('127.0.0.1', ($by_session) x 2), 1, 'a session is warned, once');
	is($warned->('127.0.0.1', 'SET tcp_keepalives_idle = 60', $by_session), 0, 'not with keepalives');
	is($warned->('127.0.0.1', 'SET tcp_user_timeout = 60000', $by_session), 0, 'nor with a timeout');
	is($warned->('127.0.0.1', sprintf $take, 1000), 0, 'nor by a lease');
	is($warned->($node->host, $by_session), 0, 'nor on a socket of the machine');
};

subtest 'limits and order' => sub {
	sql(q{INSERT INTO task_queue (queue, max) VALUES ('mail-max', 2)});
	my @ids = map { insert_task($node, queue => 'mail-max', request => "r$_") } 1 .. 4;
	my @handles = split /\n/, take(q{'{mail-max}', n => 10, wait => 10000}, 'handle');
	is(scalar @handles, 2, 'no more than the queue allows');
	is(take(q{'{mail-max}', n => 10}, 'count(*)'), 0, 'and none beside them');
	sql_as('mailer', "SELECT pg_task_finish('$handles[0]')");
	is(take(q{'{mail-max}', n => 10, wait => 10000}, 'id'), $ids[2], 'then the next one');
	sql("DELETE FROM task WHERE queue = 'mail-max'");
	# the scheduler tells its worker that what was removed is to stop
	wait_until($node, "SELECT pg_task_alive(ARRAY['$handles[1]']) = '{}'", user => 'mailer');
	is(sqlstate_of('mailer', "SELECT pg_task_finish('$handles[1]')"), 'TK006', 'or was lost');
};

subtest 'a row that cannot be claimed' => sub {
	my @ids = map { mail() } 1 .. 3;
	my $session = open_session($node, 'postgres');

	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $ids[0] FOR UPDATE");
	is(take(q{'{mail-a}', wait => 10000}, 'id'), $ids[1], 'the next one is handed out');
	is(take(q{'{mail-a}'}, 'id'), $ids[2], 'also to one that does not wait');
	$session->query_safe('COMMIT');
	is(take(q{'{mail-a}', wait => 10000}, 'id'), $ids[0], 'and this one later');
	$session->quit;
	sql("DELETE FROM task WHERE queue = 'mail-a'");
};

subtest 'stopped' => sub {
	my $id = mail();
	my $handle = handle('mail-a');
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	wait_until($node, qq{SET ROLE mailer; SELECT pg_task_alive(ARRAY['$handle']) = '{}'});
	is(sql_as('mailer', "SELECT pg_task_fail('$handle', 'stopped') IS NULL"), 't',
		'it is not held any more');
	wait_until($node, "SELECT stop IS NOT NULL FROM task WHERE id = $id");
	is(task($node, $id, 'state'), 'STOP', 'it stays stopped');
};

subtest 'names' => sub {
	my @ids = map { mail(request => $_) } qw(old new old);
	is(take(q{'{mail-a}', n => 10, wait => 10000, names => '{new}'}, 'id'), $ids[1],
		'those that the program knows');
	is(take(q{'{mail-a}', n => 10, wait => 10000, names => '{old}'}, 'count(*)'), 2, 'the others');
	sql("DELETE FROM task WHERE state = 'WORK'");
};

subtest 'a timeout' => sub {
	my $id = mail(timeout => '100 ms');
	my $handle = handle('mail-a');
	wait_for_state($node, $id, 'FAIL');
	is(task($node, $id, 'sqlstate'), 'TK001', 'it takes too long');
	is(sqlstate_of('mailer', "SELECT pg_task_finish('$handle')"), 'TK006', 'and is not held');
};

subtest 'a chain, and what waits' => sub {
	my $id = mail(repeat => '1 hour');
	my $after = insert_task($node, request => 'SELECT 1', after => "{$id}");
	my $handle = handle('mail-a');
	sql_as('mailer', "SELECT pg_task_finish('$handle', '1')");
	wait_for_state($node, $after, 'DONE');
	is(sql("SELECT count(*) FROM task WHERE parent = $id AND state = 'PLAN'"), 1,
		'the next run is planned, and executors run what waited');
	sql("DELETE FROM task WHERE parent = $id");
};

subtest 'code of the owner' => sub {
	sql(q{CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
		CREATE TRIGGER see BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION see()});
	my $session = open_session($node, 'postgres', extra_params => [ '-U', 'mailer' ]);
	$session->query_until(qr/began/,
		"\\echo began\nSELECT id FROM pg_task_take('{mail-a}', wait => 10000);\n");
	wait_until($node, 'SELECT count(*) = 1 FROM pg_task_takers() WHERE role IS NOT NULL');
	my $id = mail();
	becomes_true("SELECT pg_task_why($id) LIKE 'code of the owner%' FROM task WHERE id = $id",
		'who waits gets none while it could run');
	$session->quit;
	sql("DROP TRIGGER see ON task; DROP FUNCTION see(); DELETE FROM task WHERE id = $id");
};

# A rule that is set while the run goes on.
subtest 'the run of an executor' => sub {
	make_gates($node);
	my $id = insert_task($node, queue => 'own', request => q{SELECT hold('own')});
	wait_for_running($node, 1);
	my $handle = sql("SELECT '0.' || id || '.' || attempt || '.' || (extract(epoch FROM start
		- '2000-01-01 00:00:00+00'::timestamptz) * 1000000)::bigint FROM task WHERE id = $id");
	insert_rule('own', taker => 'mailer');
	is(sqlstate_of('mailer', "SELECT pg_task_finish('$handle')"), 'TK006', 'is not to be finished');
	is(sql_as('mailer', "SELECT pg_task_fail('$handle', 'x') IS NULL"), 't', 'nor to fail');
	is(sql_as('mailer', "SELECT pg_task_give_back('$handle')"), 'f', 'nor to be given back');
	open_gate($node, 'own');
	wait_for_state($node, $id, 'DONE');
	sql(q{DELETE FROM task_queue WHERE queue = 'own'});
	pass('by a handle that was made up');
};

subtest 'progress' => sub {
	my $seen = q{SELECT concat_ws(' ', done, total, message) FROM pg_task_activity() WHERE id = };
	my $id = mail(retry => 1, delay => '0');
	my $handle = handle('mail-a');
	my $tell = sub { sql_as('mailer', "SELECT pg_task_alive(ARRAY['$handle'], $_[0])") };

	is(sql($seen . $id), '', 'nothing is told yet');
	is($tell->(q{done => 3, total => 7, message => 'sent'}), "{$handle}", 'it goes on');
	is(sql_as('mailer', $seen . $id), '3 7 sent', 'who takes sees it');
	is(sql_as('other', $seen . $id), '', 'others do not');
	$tell->('done => 4');
	is(sql($seen . $id), '4 7 sent', 'what is not told stays');
	sql_as('mailer', "BEGIN; SELECT pg_task_alive(ARRAY['$handle'], done => 5, message => ''); ROLLBACK");
	is(sql($seen . $id), '5 7', 'an empty message removes it, and a rollback nothing');
	$tell->(q{message => repeat('ä', 200)});
	is(sql("SELECT octet_length(message) FROM pg_task_activity() WHERE id = $id"), 254,
		'between two characters it is cut');
	is(sqlstate_of('other', "SELECT pg_task_alive(ARRAY['$handle'], done => 9)"), '42501',
		'nobody else can tell');
	sql_as('mailer', "SELECT pg_task_fail('$handle', 'no')");
	is($tell->('done => 9'), '{}', 'of a run that has ended nothing is told');
	my $next = handle('mail-a');
	is(sql($seen . $id), '', 'the next run begins anew');
	sql_as('mailer', "SELECT pg_task_finish('$next')");
};

subtest 'several at once' => sub {
	my @ids = map { mail() } 1 .. 5;
	my $handles = take(q{'{mail-a}', n => 5, wait => 10000}, 'array_agg(handle)');
	is(sqlstate_of('mailer', "SELECT pg_task_finish_all('$handles', '[1]')"), '22023',
		'a result for each');
	sql_as('mailer', "SELECT pg_task_finish_all('$handles', '[1, null, \"x\", {}, 5]')");
	is(sql("SELECT string_agg(state || coalesce(response, '-'), ' ' ORDER BY id) FROM task
		WHERE id >= $ids[0] AND id <= $ids[4]"), 'DONE1 DONE- DONE"x" DONE{} DONE5', 'in order');
};

subtest 'restarts' => sub {
	my $id = mail();
	my $handle = handle('mail-a');
	crash($node);
	is(sql_as('mailer', "SELECT cardinality(pg_task_alive(ARRAY['$handle']))"), 1,
		'the lease starts anew after a crash');
	sql_as('mailer', "SELECT pg_task_finish('$handle')");
	is(task($node, $id, 'state'), 'DONE', 'it is finished after it');
	$id = mail();
	$handle = handle('mail-a', more => ', lease => 1000');
	$node->restart;
	my $next = handle('mail-a');
	is(task($node, $id, 'attempt'), 2, 'without a sign of life another gets it');
	sql_as('mailer', "SELECT pg_task_finish('$next')");
	# a reload ends the scheduler, and not the run
	$id = mail();
	$handle = handle('mail-a');
	apply_conf($node, 'pg_task.max_lost = 3');
	is(take(q{'{mail-a}'}, 'count(*)'), 0, 'it is held on');
	sql_as('mailer', "SELECT pg_task_finish('$handle')");
	is(task($node, $id, 'state'), 'DONE', 'and finished');
};

subtest 'who takes' => sub {
	my $session = open_session($node, 'postgres', extra_params => ['-U', 'mailer']);
	$session->query_until(qr/began/, "\\echo began\n"
		. "SELECT id FROM pg_task_take('{mail-a,mail-b}', wait => 10000);\n");
	wait_until($node, q{SELECT count(*) = 1 FROM pg_task_takers()
		WHERE role = 'mailer' AND queues = '{mail-a,mail-b}'});
	my $id = mail();
	wait_for_state($node, $id, 'WORK');
	like(sql("SELECT pg_task_why($id)"), qr/^it was taken at .* by the session with pid \d+$/,
		'why it does not run');
	wait_until($node, "SELECT count(*) = 1 FROM pg_task_takers() WHERE id = $id");
	is(sql_as('other', 'SELECT count(*) FROM pg_task_takers()'), 0, 'others see none of it');
	$session->query_until(qr/began/, "\\echo began\n"
		. "SELECT id FROM pg_task_take('{mail-%,pri%}', wait => 10000, names => '{x}');\n");
	mail();
	insert_task($node, queue => $_, request => 'SELECT 1', dt => $_ eq 'print' ? 'now' : '2100-01-01')
	  for qw(print own);
	my $send = sql(q{SELECT max(id) FROM task WHERE queue = 'mail-a'});
	my $takers = q{SELECT string_agg(queue || ' ' || coalesce(takers::text, 'none'), ', '
		ORDER BY queue) FROM pg_task_queues() WHERE queue IN ('mail-a', 'print', 'own') AND waits > 0};
	wait_until($node, $takers, expected => 'mail-a 1, own none, print 0');
	like(sql("SELECT pg_task_why($send)"), qr/^no session waits that may take it/, 'by other names');
	$session->quit;
	wait_until($node, $takers, expected => 'mail-a 0, own none, print 0');
	sql("DELETE FROM task WHERE state = 'PLAN'");
	$id = mail();
	my ($none, $last) = split /\|/, sql("SELECT pg_task_why($id),
		'; the last one of its queue was started at ' || last_start
		FROM pg_stat_task() WHERE queue = 'mail-a'");
	is($none, 'no session waits that may take it: members of role "mailer" may, by pg_task_take'
		. $last, 'why it waits');
	is(sql("SELECT last_start BETWEEN start AND start + interval '5 s' FROM pg_stat_task() AS s,
		task AS t WHERE s.queue = 'mail-a' AND t.queue = s.queue ORDER BY start DESC NULLS LAST
		LIMIT 1"), 't', 'when one was last taken');
	sql('SELECT pg_stat_task_reset()');
	is(sql("SELECT pg_task_why($id)"), 'no session waits that may take it: members of role "mailer"'
		. ' may, by pg_task_take', 'it is not known any more');
	insert_rule('nobody', taker => 'dropped');
	sql(q{INSERT INTO task (queue, request) VALUES ('nobody', 'send')});
	becomes_true(q{SELECT pg_task_why(id) LIKE 'nobody may take it: %' FROM task
		WHERE queue = 'nobody'}, 'a taker that does not exist');
	sql("DELETE FROM task WHERE state IN ('PLAN', 'WORK')");
};

done_testing();
