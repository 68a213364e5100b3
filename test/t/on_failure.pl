# What is planned when a task has failed for good: the column and the setting on_failure, whose text
# runs as whom, what it is given, and that it never keeps a failure from being written.  And the
# failed attempts that the row keeps.  A TAP test because tasks must run.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.delay = '1 ms'");

sql(q{CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN; GRANT ALL ON task TO ann, bob;
	CREATE TABLE told (n int GENERATED ALWAYS AS IDENTITY, who name DEFAULT current_user, what jsonb);
	GRANT INSERT, SELECT ON told TO PUBLIC});

my $tell = 'INSERT INTO told (what) VALUES (pg_task_input())';

# Waits for what follows the failure of this task, and returns a part of it.
sub told
{
	my ($id, $what) = @_;

	wait_until($node, "SELECT count(*) > 0 FROM told WHERE what->>'id' = '$id'");
	return sql("SELECT $what FROM told WHERE what->>'id' = '$id'");
}

# Has nothing followed the failure of this task?
sub none_follows
{
	my ($id) = @_;

	return sql("SELECT count(*) FROM task WHERE parent = $id AND queue = 'on_failure'") == 0;
}

subtest 'what it is given' => sub {
	my $id = run_task($node, request => 'SELECT 1/0', queue => 'q', key => 'k', retry => 2,
		meta => '{"trace": 7}', flow => 'f', step => 's', on_failure => $tell);
	is(told($id, q{what->>'queue', what->>'key', what->>'role', what->>'flow', what->>'step',
		what->>'attempt', what->>'state', what->>'sqlstate', what->>'error', what->>'request',
		what->>'next', what->>'hold', count(*) OVER ()}),
		'q|k|postgres|f|s|3|FAIL|22012|division by zero|SELECT 1/0|||1',
		'once, when the last attempt has failed');
	is(sql(qq{SELECT a.queue, a.role, a.on_failure, a.meta, a.flow IS NULL, a.request = f.on_failure,
		(a.input->>'dt')::timestamptz = coalesce(f.planned, f.dt)
		FROM task AS a JOIN task AS f ON f.id = a.parent WHERE a.parent = $id}),
		'on_failure|postgres||{"trace": 7}|t|t|t', 'it is a task of the queue on_failure');
	$id = run_task($node, request => "SELECT '" . 'x' x 9000 . "'::int", on_failure => $tell);
	is(told($id, q{length(what->>'request'), length(what->>'error') <= 8000}), '8000|t',
		'long texts are cut');
};

subtest 'in one commit' => sub {
	my $session = open_session($node, 'postgres');

	sql(q{CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$;
		CREATE TRIGGER hold_up BEFORE INSERT ON task FOR EACH ROW WHEN (NEW.queue = 'on_failure')
		EXECUTE FUNCTION hold_up()});
	$session->query_safe('SELECT pg_advisory_lock(7)');
	my $id = insert_task($node, request => 'SELECT 1/0', on_failure => $tell);
	wait_until($node,
		q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted});
	is(task($node, $id, 'state'), 'WORK', 'the failure is not seen before what follows');
	$session->query_safe('SELECT pg_advisory_unlock(7)');
	told($id, 1);
	is(task($node, $id, 'state'), 'FAIL', 'then it is');
	sql('DROP FUNCTION hold_up CASCADE');
	$session->quit;
};

subtest 'when nothing follows' => sub {
	ok(none_follows(run_task($node, request => 'SELECT 1', on_failure => $tell)), 'DONE');
	my $id = insert_task($node, request => 'SELECT 1', dt => 'infinity', on_failure => $tell);
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	ok(none_follows($id), 'STOP');
	ok(none_follows(run_task($node, request => 'SELECT 1/0')), 'nobody has said what');
	ok(none_follows(run_task($node, request => 'SELECT 1/0', on_failure => '')), 'an empty text');
	$id = run_task($node, request => 'SELECT 1/0', on_failure => 'SELECT 2/0');
	my $alert = sql("SELECT id FROM task WHERE parent = $id");
	wait_for_state($node, $alert, 'FAIL');
	ok(none_follows($alert), 'what follows has failed');
	is(sqlstate_of('postgres', "INSERT INTO task (request, on_failure) VALUES ('SELECT 1', '"
		. 'x' x 1001 . "')"), '23514', 'a text may have 1000 bytes');
	is(sqlstate_of('postgres', "SET pg_task.on_failure = '" . 'x' x 1001 . "'"), '22023',
		'that of the setting, too');
};

subtest 'other ends' => sub {
	my $id = insert_task($node, request => 'SELECT 1', dt => '2020-01-01', active => '1 hour',
		on_failure => $tell);
	is(told($id, q{what->>'state', what->>'sqlstate'}), 'GONE|TK003', 'not started in time');
	$id = insert_task($node, request => 'SELECT pg_sleep(60)', timeout => '50 ms',
		on_failure => $tell);
	is(told($id, q{what->>'sqlstate'}), 'TK001', 'a timeout');
	my $first = run_task($node, request => 'SELECT 1/0');
	$id = insert_task($node, request => 'SELECT 1', after => "{$first}", on_failure => $tell);
	wait_for_state($node, $id, 'GONE');
	ok(none_follows($id), 'for what was given up because of another one, that one tells');
	sql(qq{CREATE ROLE gone LOGIN; ALTER DATABASE postgres SET pg_task.on_failure = '$tell'});
	$id = sql(q{BEGIN; INSERT INTO task (request, role) VALUES ('SELECT 1', 'gone') RETURNING id;
		DROP ROLE gone; COMMIT});
	is(told($id, q{who, what->>'sqlstate'}), 'postgres|42704', 'its role was dropped');
	sql(q{ALTER DATABASE postgres RESET pg_task.on_failure});
	sql(q{INSERT INTO task_queue (queue, taker) VALUES ('taken', 'postgres')});
	$id = insert_task($node, queue => 'taken', request => 'mail', on_failure => $tell);
	sql(q{SELECT pg_task_fail(handle, 'no such address') FROM pg_task_take('{taken}', wait => 10000)});
	is(told($id, q{what->>'error'}), 'no such address', 'who had taken it says that it has failed');
};

# The text of a role runs as the role, that of the database as the owner of the table.
subtest 'whose text' => sub {
	my $fails = sub {
		my ($role, %column) = @_;

		return told(run_task($node, role => $role, request => 'SELECT 1/0', %column),
			q{who, what->>'role', count(*) OVER ()});
	};

	is($fails->('ann', on_failure => $tell), 'ann|ann|1', 'that of the row, as its role');
	sql(qq{ALTER DATABASE postgres SET pg_task.on_failure = '$tell'});
	is($fails->('ann'), 'postgres|ann|1', 'that of the database, as the owner');
	ok(none_follows(run_task($node, role => 'ann', request => 'SELECT 1/0', on_failure => '')),
		'a row may say that nothing follows');
	sql_as('ann', qq{ALTER ROLE ann SET pg_task.on_failure = '$tell'});
	is($fails->('ann'), 'ann|ann|1', 'that of the role, as the role');
	is($fails->('bob'), 'postgres|bob|1', 'another role has that of the database');
	sql_as('ann', q{ALTER ROLE ann SET pg_task.on_failure = ''});
	ok(none_follows(run_task($node, role => 'ann', request => 'SELECT 1/0')),
		'a role may say that nothing follows');
	sql_as('ann', q{ALTER ROLE ann RESET pg_task.on_failure});
	is($fails->('ann', request => qq{SET pg_task.on_failure = 'SELECT 1'; SELECT 1/0}),
		'postgres|ann|1', 'what a task sets has no effect');
	sql(q{ALTER DATABASE postgres RESET pg_task.on_failure});
	sql(qq{ALTER ROLE ALL SET pg_task.on_failure = '$tell'});
	is($fails->('ann'), 'postgres|ann|1', 'that of all roles');
	sql(q{ALTER ROLE ALL RESET pg_task.on_failure});
	$node->append_conf('postgresql.conf', "pg_task.on_failure = '$tell'");
	$node->reload;
	# processes read the configuration some time later
	ok(poll_for(sub {
		return !none_follows(run_task($node, role => 'bob', request => 'SELECT 1/0')) }),
		'that of the configuration');
	is($fails->('bob'), 'postgres|bob|1', 'as the owner');
	# a session that ends a task for a role cannot say what follows
	sql(q{GRANT postgres TO ann});
	my $id = insert_task($node, queue => 'taken', role => 'bob', request => 'mail');
	sql(q{SET pg_task.on_failure = 'SELECT 1';
		SELECT pg_task_fail(handle, 'no') FROM pg_task_take('{taken}', wait => 10000)});
	is(told($id, 'who, count(*) OVER ()'), 'postgres|1', 'nor does what a session sets');
	sql(q{REVOKE postgres FROM ann});
	$node->append_conf('postgresql.conf', "pg_task.on_failure = ''");
	$node->reload;
	ok(poll_for(sub {
		return none_follows(run_task($node, role => 'bob', request => 'SELECT 1/0')) }),
		'and no more');
};

# Who owns the database, and not the table, cannot have his text run as the owner of the table.  Nor
# is that of the configuration: he decides what its names mean.
subtest 'an owner of the database who is not that of the table' => sub {
	sql(q{ALTER SYSTEM SET pg_task.database = 'postgres, hers:postgres'; SELECT pg_reload_conf()});
	wait_until($node, q{SELECT current_setting('pg_task.database') ~ 'hers'});
	sql(q{CREATE DATABASE hers OWNER ann});
	wait_for_table($node, db => 'hers');
	is(sql_in('hers', q{SELECT relowner::regrole FROM pg_class WHERE oid = 'task'::regclass}),
		'postgres', 'the table is not hers');
	sql_as('ann', q{ALTER DATABASE hers SET pg_task.on_failure = 'ALTER ROLE ann SUPERUSER'});
	my $id = run_task($node, db => 'hers', request => 'SELECT 1/0');
	is(sql_in('hers', "SELECT count(*) FROM task WHERE parent = $id"), 0, 'her text does not count');
	sql(q{ALTER ROLE ALL SET pg_task.on_failure = 'SELECT ops.alert()'});
	$id = run_task($node, db => 'hers', request => 'SELECT 1/0');
	is(sql_in('hers', "SELECT count(*) FROM task WHERE parent = $id"), 0, 'nor one for all');
	sql_as('ann', q{ALTER DATABASE hers SET pg_task.on_failure = ''});
	sql(q{GRANT postgres TO ann});
	$id = run_task($node, db => 'hers', request => 'SELECT 1/0');
	is(sql_in('hers', "SELECT count(*) FROM task WHERE parent = $id"), 0,
		'an owner who may act as that of the table may say that nothing follows');
	sql_as('ann', q{ALTER DATABASE hers SET pg_task.on_failure = 'SELECT 1'});
	$id = run_task($node, db => 'hers', request => 'SELECT 1/0');
	is(sql_in('hers', "SELECT role FROM task WHERE parent = $id"), 'postgres',
		'unless she may act as the owner');
	sql(q{REVOKE postgres FROM ann; ALTER ROLE ALL RESET pg_task.on_failure});
	sql(q{ALTER SYSTEM RESET pg_task.database; SELECT pg_reload_conf()});
};

subtest 'a schedule' => sub {
	my $id = run_task($node, request => 'SELECT 1/0', repeat => '1 day', hold_after => 2,
		on_failure => $tell);
	my $next = task($node, $id, 'next');
	is(told($id, q{what->>'next', what->>'hold'}), "$next|", 'the next run is known');
	is(task($node, $next, 'on_failure'), $tell, 'and inherits it');
	sql("UPDATE task SET dt = now() WHERE id = $next");
	is(told($next, q{what->>'hold'}), 'failed 2 times in a row', 'it tells that the next is on hold');
};

# What the owner has made of the table never keeps a failure from being written.
subtest 'a new row that is refused' => sub {
	my $position = log_position($node);

	sql(q{ALTER TABLE task ADD tenant text; UPDATE task SET tenant = '';
		ALTER TABLE task ALTER tenant SET NOT NULL});
	my $id = run_task($node, request => 'SELECT 1/0', tenant => 'acme', on_failure => $tell);
	told($id, 1);
	is(sql("SELECT tenant FROM task WHERE parent = $id"), 'acme', 'columns of the owner are copied');
	sql(q{ALTER TABLE task ADD CHECK (queue <> 'on_failure') NOT VALID});
	$id = run_task($node, request => 'SELECT 1/0', tenant => 'acme', on_failure => $tell);
	is(task($node, $id, 'state, sqlstate'), 'FAIL|22012', 'the failure is written');
	wait_for_log_line($node, qr/WARNING:  nobody is told that task $id has failed/, $position);
	sql(q{ALTER TABLE task DROP CONSTRAINT task_queue_check, DROP tenant;
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF NEW.request = 'none' THEN RETURN NULL; END IF;
		RAISE 'no' USING ERRCODE = NEW.request; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON task FOR EACH ROW WHEN (NEW.queue = 'on_failure')
		EXECUTE FUNCTION refuse()});
	for my $code (qw(42501 45000 0A000 54000 none))
	{
		$id = run_task($node, request => 'SELECT 1/0', on_failure => $code);
		is(task($node, $id, 'state, sqlstate'), 'FAIL|22012', "also after $code");
		wait_for_log_line($node, qr/WARNING:  nobody is told that task $id has failed/, $position);
	}
	sql('DROP FUNCTION refuse CASCADE');
};

# What tells of a failure does not tell of itself, nor of what does that in its place.
subtest 'no end' => sub {
	sql(q{ALTER DATABASE postgres SET pg_task.on_failure =
		$$INSERT INTO task (queue, request, input) VALUES ('mail', 'SELECT 1/0', pg_task_input())$$});
	my $id = run_task($node, request => 'SELECT 1/0');
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE queue = 'mail' AND state = 'FAIL'});
	is(sql(q{SELECT on_failure = '' FROM task WHERE queue = 'mail'}), 't', 'nothing follows it');
	is(sql(q{SELECT count(*) FROM task WHERE parent IN (SELECT id FROM task WHERE queue = 'mail')}),
		0, 'nothing has');
	sql(q{ALTER DATABASE postgres RESET pg_task.on_failure});
};

# Texts stand in catalogs that all databases share, whatever their encodings.
subtest 'a text of another encoding' => sub {
	my $position = log_position($node);

	sql(q{CREATE DATABASE raw TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'});
	$node->psql('raw', q{SET client_encoding = 'SQL_ASCII';
		ALTER ROLE ann SET pg_task.on_failure = E'SELECT 1 -- \\xe9\\xff'});
	my $id = run_task($node, role => 'ann', request => 'SELECT 1/0');
	is(sql("SELECT count(*) FROM task WHERE parent = $id"), 0, 'is not planned');
	wait_for_log_line($node, qr/"pg_task.on_failure" is no text of the encoding/, $position);
	sql('ALTER ROLE ann RESET pg_task.on_failure');
};

subtest 'failed attempts' => sub {
	my $id = run_task($node, retry => 5,
		request => q{SELECT 1 / (attempt - 1) FROM task WHERE id = pg_task_id()});
	is(task($node, $id, 'state, attempt, jsonb_array_length(failures)'), 'DONE|2|1', 'one has failed');
	is(sql("SELECT attempt, sqlstate, error, pid > 0, start <= stop FROM pg_task_attempts($id)"),
		'1|22012|division by zero|t|t', 'which one, and why');
	$id = run_task($node, request => 'SELECT 1/0', retry => 11);
	is(sql("SELECT min(attempt), max(attempt), count(*) FROM pg_task_attempts($id)"), '3|12|10',
		'the last ten');
	sql_as('ann', "INSERT INTO task (request) VALUES ('SELECT 1/0')");
	$id = sql('SELECT max(id) FROM task');
	wait_for_state($node, $id, 'FAIL');
	is(sql_as('ann', "SELECT count(*) FROM pg_task_attempts($id)"), 1, 'of a task of hers');
	is(sql_as('bob', "SELECT count(*) FROM pg_task_attempts($id)"), 0, 'which others do not see');
	is(sqlstate_of('ann', "UPDATE task SET failures = '[]' WHERE id = $id"), '42501',
		'nobody but the owner writes them');
	$id = run_task($node, request => 'SELECT 1');
	is(task($node, $id, 'failures IS NULL'), 't', 'none has failed');
	sql("UPDATE task SET failures = '7' WHERE id = $id");
	sql("UPDATE task SET state = 'PLAN', request = 'SELECT 1/0' WHERE id = $id");
	wait_for_state($node, $id, 'FAIL');
	is(task($node, $id, 'jsonb_array_length(failures)'), 1, 'whatever the owner has written');
};

subtest 'a setting without effect' => sub {
	my $nobody = q{SELECT coalesce(string_agg(level || ': ' || hint, ', '), 'fine') FROM pg_task_health()
		WHERE problem = 'pg_task.on_failure of the database has no effect'};

	sql('CREATE DATABASE half');
	wait_for_table($node, db => 'half');
	sql(q{ALTER DATABASE half SET pg_task.on_failure = 'SELECT 1'});
	is(sql_in('half', $nobody), 'fine', 'it has');
	sql('ALTER DATABASE half OWNER TO ann');
	wait_until($node, $nobody, db => 'half', expected => 'warning: the owner of the database has not'
		. " the rights of the owner of the task table: SELECT pg_task_change_owner('ann')");
	is(sql($nobody), 'fine', 'no other database');
	sql_in('half', "SELECT pg_task_change_owner('ann')");
	wait_until($node, qq{SELECT tableowner = 'ann' AND to_regprocedure('pg_task_health()') IS NOT NULL
		FROM pg_tables WHERE tablename = 'task'}, db => 'half');
	wait_until($node, $nobody, db => 'half', expected => 'fine');
	sql('ALTER ROLE ann NOLOGIN');
	is(sql_in('half', $nobody),
		sql("SELECT current_setting('server_version_num')::int < 170000") eq 't'
		? 'warning: ALTER ROLE ann LOGIN' : 'fine', 'before 17 the owner needs LOGIN');
	sql(q{ALTER ROLE ALL SET pg_task.on_failure = 'SELECT 2';
		ALTER DATABASE half SET pg_task.on_failure = ''});
	is(sql_in('half', $nobody), 'fine', 'the database asks for none');
	sql('ALTER ROLE ALL RESET pg_task.on_failure; ALTER ROLE ann LOGIN');
	sql('DROP DATABASE half WITH (FORCE)');
};

done_testing();
