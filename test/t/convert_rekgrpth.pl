# The table of the other extension that is called pg_task, by RekGRpth: what the scheduler says of
# it, and what the installed pg_task_convert_rekgrpth.sql makes of its rows.  In the last part its
# own make.c makes the table, if PG_TASK_OTHER_SOURCES is a folder that has its sources:
#
#   PG_TASK_OTHER_SOURCES=/src/other make test TESTS=test/t/convert_rekgrpth.pl
#
# A TAP test because the library is preloaded when the table is there.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $sources = $ENV{PG_TASK_OTHER_SOURCES} // '';
my $effects = q{SELECT string_agg(id || ':' || count, ' ' ORDER BY id)
	FROM (SELECT id, count(*) FROM effect GROUP BY id) AS e};

# Runs the script: see run_installed.
sub convert
{
	my ($node, $db, %variable) = @_;

	return run_installed($node, $db, 'pg_task_convert_rekgrpth.sql', %variable);
}

# A server without the library, on which a table of the other one can be made.
sub new_other
{
	my ($name, $conf) = @_;
	my $node = new_node($name, start => 0,
		conf => "shared_preload_libraries = ''\nmax_worker_processes = 30\n"
			. "pg_task.keep = -1\npg_task.keep_failed = -1\n$conf");

	$node->start;
	return $node;
}

# The restart by which this library takes the place of the other one.
sub preload
{
	my ($node) = @_;

	end_sessions($node);
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_task'");
	$node->restart;
	return;
}

# A table with the columns of its version 2.1.29 and the defaults of their settings, or one with
# those of 1.0.46.
my $types = q{id bigserial PRIMARY KEY, parent bigint, plan timestamptz NOT NULL DEFAULT now(),
	start timestamptz, stop timestamptz, live interval NOT NULL DEFAULT '0',
	repeat interval NOT NULL DEFAULT '0', timeout interval NOT NULL DEFAULT '0',
	count int NOT NULL DEFAULT 0, pid int, state state NOT NULL DEFAULT 'PLAN',
	header boolean NOT NULL DEFAULT true, string boolean NOT NULL DEFAULT true,
	delimiter "char" NOT NULL DEFAULT E'\t', error text, "group" text NOT NULL DEFAULT 'group',
	input text NOT NULL, "null" text NOT NULL DEFAULT '\N', output text, remote text};
my $new_table = qq{
	CREATE TYPE state AS ENUM ('PLAN', 'GONE', 'TAKE', 'WORK', 'DONE', 'FAIL', 'STOP');
	CREATE TABLE task ($types, active interval NOT NULL DEFAULT '1 hour',
		max int NOT NULL DEFAULT 0, delete boolean NOT NULL DEFAULT true,
		drift boolean NOT NULL DEFAULT false, save boolean NOT NULL DEFAULT false,
		escape "char" NOT NULL DEFAULT '', quote "char" NOT NULL DEFAULT '', data text);
	CREATE INDEX ON task (plan)};
my $old_table = qq{
	CREATE TYPE state AS ENUM ('PLAN', 'TAKE', 'WORK', 'DONE', 'FAIL', 'STOP');
	CREATE TABLE task ($types, max int NOT NULL DEFAULT 2147483647,
		delete boolean NOT NULL DEFAULT false, drift boolean NOT NULL DEFAULT true,
		escape "char", quote "char")};

# Rows of all kinds; a request notes in a table that it has run.
my $rows = q{
	CREATE TABLE effect (id int);
	ALTER TABLE task ADD COLUMN "Customer" text;
	INSERT INTO task (id, plan, input, data) VALUES
		(1, now() - interval '10 min', 'INSERT INTO effect VALUES (1)', 'for "you"');
	INSERT INTO task (id, plan, input, "group", max, timeout) VALUES
		(2, now() + interval '1 hour', 'INSERT INTO effect VALUES (2)', 'mail', 1, '1500 ms');
	INSERT INTO task (id, plan, input, repeat) VALUES
		(3, now() - interval '150 min', 'INSERT INTO effect VALUES (3)', '1 hour');
	INSERT INTO task (id, plan, input, repeat, drift) VALUES
		(4, now() - interval '150 min', 'INSERT INTO effect VALUES (4)', '1 hour', true);
	INSERT INTO task (id, plan, start, input, state, pid) VALUES
		(5, now() - interval '1 min', now(), 'INSERT INTO effect VALUES (5)', 'WORK', 1),
		(6, now() - interval '1 min', NULL, 'INSERT INTO effect VALUES (6)', 'TAKE', NULL);
	INSERT INTO task (id, input, remote) VALUES
		(7, 'INSERT INTO effect VALUES (7)', 'host=elsewhere');
	INSERT INTO task (id, plan, start, stop, input, state, output, error) VALUES
		(8, '2026-01-01', '2026-01-01 00:01', '2026-01-01 00:02', 'SELECT 8', 'DONE', '8', NULL),
		(9, '2026-01-01', '2026-01-01 00:01', '2026-01-01 00:02', 'SELECT 9/0', 'DONE', NULL,
		E'ERROR:  division by zero\nSTATEMENT:  SELECT 9/0'),
		(10, '2026-01-01', NULL, '2026-01-01 00:02', 'SELECT 10', 'STOP', NULL, NULL);
	INSERT INTO task (id, plan, input) VALUES
		(11, now() - interval '2 hours', 'INSERT INTO effect VALUES (11)');
	INSERT INTO task (id, input, "group", max) VALUES
		(12, 'INSERT INTO effect VALUES (12)', 'slow', -50),
		(13, 'INSERT INTO effect VALUES (13)', 'slow', -50);
	INSERT INTO task (id, input, delimiter, quote, escape, "null") VALUES
		(14, 'SELECT 1 AS a, ''x,y'' AS b', ',', '"', '"', ''),
		(15, 'SELECT 15', ';', '', '', '');
	INSERT INTO task (id, plan, input) VALUES
		(16, now() + interval '1 hour', 'INSERT INTO task (input) VALUES (''SELECT 1'')');
	INSERT INTO task (id, input, repeat) VALUES
		(17, 'INSERT INTO effect VALUES (17)', '1 ms');
	INSERT INTO task (id, input, "group") VALUES
		(18, 'INSERT INTO effect VALUES (18)', repeat('x', 256));
	INSERT INTO task (id, plan, input, parent, save) VALUES
		(19, 'infinity', 'INSERT INTO effect VALUES (19)', 1, true);
	SELECT setval('task_id_seq', 30)};

# All that a table has.
sub fingerprint
{
	my ($node, $table) = @_;

	return sql(qq{SELECT (SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM $table AS t),
		(SELECT string_agg(concat_ws(' ', attname, atttypid, attnotnull), ',' ORDER BY attnum)
			FROM pg_attribute WHERE attrelid = '$table'::regclass AND attnum > 0),
		(SELECT string_agg(tgname, ',') FROM pg_trigger WHERE tgrelid = '$table'::regclass)},
		node => $node);
}

# The scheduler meets the table of the other one, and its rows become tasks.
sub check_conversion
{
	my ($node) = @_;
	my $before = fingerprint($node, 'task');
	my $position = log_position($node);

	preload($node);
	wait_for_log_line($node, qr/ERROR:\ \ public\.task\ is\ not\ a\ task\ table\n
		.*?DETAIL:\ \ It\ is\ a\ table\ of\ the\ other\ pg_task\ \(RekGRpth\)\.\n
		.*?HINT:\ \ Convert\ it\ with\ pg_task_convert_rekgrpth\.sql,/sx, $position);
	pass('the scheduler names the other extension, and the file');
	is(fingerprint($node, 'task'), $before, 'it leaves the table as it is');

	my ($rc, $out, $err) = convert($node, 'postgres', commit => 'off');
	is($rc, 0, 'the conversion can be tried') or diag($err);
	is(fingerprint($node, 'task'), $before, 'a trial leaves the table as it is');
	my $trial = $out;
	($rc, $out, $err) = convert($node, 'postgres');
	is($rc, 0, 'it is converted') or diag($err);
	is($out, $trial, 'with the result of the trial');
	is($out, join('', map { "$_\n" }
		'converted|11|{1,2,3,4,11}|',
		'on hold|2|{5,6}|TAKE or WORK, may have run: pg_task_resume(id) runs it, '
		  . 'pg_task_cancel(id) stops it',
		'not converted|1|{18}|group: it has more than 255 bytes',
		'not converted|1|{7}|remote: no task runs on another server',
		'not converted|1|{17}|repeat: it is shorter than 10 ms',
		'look at|1|{16}|input: it may use the table, whose columns have other names',
		'changed|1|{15}|header, delimiter, quote, escape, null: the result is formatted as text',
		'changed|13|{1,2,3,4,5}|delete: a row without a result stays, too: see "keep"',
		'changed|1|{19}|save: each task has a new session',
		'changed|2|{12,13}|max: the pause counts from one start to the next',
		'changed|1|{2}|timeout: it was rounded to seconds, now it is exact',
		'not copied|3|{8,9,10}|they have ended: see "history"',
		'not copied|||column of your own: "Customer"'), 'its result names all of them');

	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state = 'WORK'
		OR state = 'PLAN' AND dt <= now() AND hold IS NULL)});
	is(sql($effects, node => $node), '1:1 3:1 4:1 12:1 13:1',
		'what was due has run once, and nothing else');
	is_row($node, 1, { state => 'DONE', queue => 'group', max => '1', active => '01:00:00',
		role => 'postgres', input => '"for \"you\""', format => 'text', timeout => undef },
		'a task has the columns that mean the same');
	is_row($node, 2, { state => 'PLAN', queue => 'mail', max => '2', timeout => '00:00:01.5',
		"dt = (SELECT plan FROM task_rekgrpth AS o WHERE o.id = task.id)" => 'true' },
		'"max" there is one less');
	is_row($node, 11, { state => 'GONE', sqlstate => 'TK003' }, 'what has expired is GONE');
	is_row($node, 14, { state => 'DONE', format => 'csv', response => qq(a,b\n1,"x,y") },
		'a result as CSV');
	is_row($node, 19, { state => 'PLAN', dt => 'infinity', parent => '1' }, 'one for later');

	# the columns of the same name mean the opposite
	is(sql(q{SELECT n.state, n.dt - o.plan, n.drift FROM task AS n, task_rekgrpth AS o
		WHERE n.parent = 3 AND o.id = 3}, node => $node), 'PLAN|03:00:00|t',
		'a repeat is planned at the times of the other one');
	is(sql(q{SELECT n.state, n.dt - t.stop, n.drift FROM task AS n, task AS t
		WHERE n.parent = 4 AND t.id = 4}, node => $node), 'PLAN|01:00:00|f',
		'a repeat that drifts is planned after the end of the run');
	is_row($node, 13, { state => 'DONE', queue => 'slow', max => '-50' }, 'a pause between tasks');

	# a second time
	for my $table (qw(task task_rekgrpth))
	{
		my ($again, undef, $error) = convert($node, 'postgres', table => $table);

		isnt($again, 0, "$table: it is not converted again");
		like($error, $table eq 'task' ? qr/task is not a table of the other pg_task \(RekGRpth\)/
			: qr/table public\.task_rekgrpth has been converted already/, "$table: it says why");
	}
	is(sql(q{SELECT count(*) FROM task WHERE id > 30 AND parent NOT IN (3, 4)}, node => $node), 0,
		'there are no other rows');
	is(sql(q{SELECT string_agg(c.relname, ' ' ORDER BY c.relname) FROM pg_class AS c
		WHERE c.relname ~ '^task_(rekgrpth_)?(pkey|plan_idx|id_seq)$'}, node => $node),
		'task_id_seq task_pkey task_plan_idx task_rekgrpth_id_seq task_rekgrpth_pkey '
		  . 'task_rekgrpth_plan_idx', 'both tables have their names of indexes and sequences');

	# what is on hold runs when told
	$node->restart;
	my $next = run_task($node, request => 'INSERT INTO effect VALUES (100)');
	cmp_ok($next, '>', 30, 'new tasks have new ids');
	is(sql($effects, node => $node), '1:1 3:1 4:1 12:1 13:1 100:1', 'nothing has run twice');
	is_row($node, 5, { state => 'PLAN', hold => 'was WORK in the other pg_task, may have run',
		attempt => '0' }, 'what ran there is on hold');
	sql('SELECT pg_task_resume(5), pg_task_cancel(6)', node => $node);
	wait_for_state($node, 5, 'DONE');
	is_row($node, 6, { state => 'STOP' }, 'the other one is stopped');
	is(sql($effects, node => $node), '1:1 3:1 4:1 5:1 12:1 13:1 100:1', 'it has run');
	return;
}

my $node = new_other('main', '');

# They are made while the library is not there.
for my $db (qw(versions history named owned roles))
{
	sql("CREATE DATABASE $db");
	sql_in($db, $db eq 'versions' ? $old_table : "$new_table; $rows");
}
sql("$new_table; $rows");
sql_in('versions', q{INSERT INTO task (input, max, drift, plan) VALUES
	('SELECT 1', 2147483647, true, now() + interval '1 hour'),
	('SELECT 2', 3, false, now() - interval '2 hours'),
	('SELECT 3', 0, true, now() + interval '1 hour')});
sql_in('named', 'ALTER TABLE task RENAME TO "Be fore"');
sql('CREATE ROLE app LOGIN; ALTER DATABASE owned OWNER TO app');

# Version 3: in the column "user", which nobody changes, stands whom a row runs as.
sql('CREATE ROLE clerk LOGIN; CREATE ROLE boss LOGIN; CREATE ROLE gone LOGIN; GRANT clerk TO app;
	ALTER DATABASE roles OWNER TO app');
sql_in('roles', q{DELETE FROM task; ALTER TABLE task DROP "Customer",
		ADD "user" name NOT NULL DEFAULT current_user;
	INSERT INTO task (id, input, "user") SELECT n, 'SELECT session_user',
			('{app,clerk,boss,gone,postgres}'::name[])[n] FROM generate_series(1, 5) AS n;
	INSERT INTO task (id, input, "user", state, output) VALUES (6, 'SELECT 1', 'clerk', 'DONE', '1');
	CREATE POLICY task_user ON task USING ("user" = current_user); DROP ROLE gone;
	ALTER TABLE task ENABLE ROW LEVEL SECURITY, OWNER TO app; ALTER TYPE state OWNER TO app});

subtest 'a table with the columns of the other one' => sub { check_conversion($node) };

subtest 'a table of version 1' => sub {
	wait_for_log_line($node, qr/of\ the\ other\ pg_task\ \(RekGRpth\)\.\n
		[^\n]*HINT:[^\n]*\n[^\n]*CONTEXT:[^\n]*"versions"/x);
	my ($rc, $out, $err) = convert($node, 'versions');

	is($rc, 0, 'it is converted') or diag($err);
	is($out, "converted|3|{1,2,3}|\n", 'its result');
	is(sql_in('versions', q{SELECT string_agg(concat_ws(' ', id, coalesce(max::text, '-'), drift),
		', ' ORDER BY id) FROM task}), '1 - f, 2 3 t, 3 1 f', '"max" is the same there');
	wait_for_state($node, 2, 'DONE', db => 'versions');
};

subtest 'history' => sub {
	my ($rc, $out, $err) = convert($node, 'history', history => 'on');

	is($rc, 0, 'it is converted') or diag($err);
	like($out, qr/^history\|3\|\{8,9,10\}\|$/m, 'its result names the rows');
	unlike($out, qr/they have ended/, 'and none that are left out');
	is_row($node, 8, { state => 'DONE', response => '8', error => undef, attempt => '1',
		"stop - start" => '00:01:00' }, 'one that was done', db => 'history');
	is_row($node, 9, { state => 'FAIL', error => 'division by zero', failed => '1',
		response => "ERROR:  division by zero\nSTATEMENT:  SELECT 9/0" }, 'one that failed',
		db => 'history');
	is_row($node, 10, { state => 'STOP', sqlstate => 'TK002', attempt => '0' },
		'one that was stopped', db => 'history');
};

# The user has renamed it, and the scheduler has made its own table.
subtest 'a table of another name' => sub {
	wait_for_table($node, db => 'named');
	wait_until($node, q{SELECT to_regclass('task_queue') IS NOT NULL}, db => 'named');
	my ($rc, $out, $err) = convert($node, 'named');
	like($err, qr/task is not a table of the other pg_task \(RekGRpth\)/, 'the name is needed');
	($rc, $out, $err) = convert($node, 'named', table => 'nothing');
	like($err, qr/table nothing does not exist/, 'the name must be right');
	($rc, $out, $err) = convert($node, 'named', table => '"Be fore"');
	is($rc, 0, 'it is converted') or diag($err);
	is(sql_in('named', q{SELECT to_regclass('"Be fore"') IS NOT NULL}), 't', 'it keeps its name');
	wait_for_state($node, 1, 'DONE', db => 'named');
};

# The new table belongs to the owner of the database: he does it, when the old one is his.
subtest 'a table of another owner' => sub {
	my ($rc, $out, $err) = convert($node, 'owned');

	isnt($rc, 0, 'it is not converted');
	like($err, qr/schema public belongs to role "app": run this as that role/, 'it says why');
	# the scheduler tries to make it, too, and rolls back when it meets the table
	ok(poll_for(sub { eval { sql_in('owned', 'CREATE EXTENSION IF NOT EXISTS pg_task'); 1 } }),
		'the extension is made');
	sql_in('owned', 'ALTER TABLE task OWNER TO app; GRANT INSERT ON effect TO app');
	($rc, $out, $err) = convert($node, 'owned', user => 'app');
	like($err, qr/type public\.state belongs to role "postgres": run this as that role/,
		'nor is its type');
	sql_in('owned', 'ALTER TYPE state OWNER TO app');
	($rc, $out, $err) = convert($node, 'owned', user => 'app', role => 'postgres');
	like($err, qr/role "app", which owns public\.task, may not run tasks of role "postgres"/,
		'nor for a role that he may not become');
	($rc, $out, $err) = convert($node, 'owned', user => 'app');
	is($rc, 0, 'it is converted by its owner') or diag($err);
	wait_for_state($node, 1, 'DONE', db => 'owned');
	is_row($node, 1, { role => 'app' }, 'as whom its tasks run', db => 'owned');
};

subtest 'the role of each row' => sub {
	ok(poll_for(sub { eval { sql_in('roles', 'CREATE EXTENSION IF NOT EXISTS pg_task'); 1 } }),
		'the extension is made');
	my ($rc, $out, $err) = convert($node, 'roles', user => 'app', role => 'clerk', commit => 'off');
	like($out, qr/^converted\|5\|\{1,2,3,4,5\}\|$/m, 'one role for all, if it is named');
	($rc, $out, $err) = convert($node, 'roles', user => 'app', history => 'on');
	is($rc, 0, 'it is converted') or diag($err);
	is($out, join('', map { "$_\n" } 'converted|2|{1,2}|', 'history|1|{6}|',
		'not converted|1|{4}|user: role "gone" does not exist',
		map({ "not converted|1|{$$_[0]}|user: the owner of the task table may not run tasks of role"
			. qq( "$$_[1]") } [3, 'boss'], [5, 'postgres']),
		'changed|2|{1,2}|delete: a row without a result stays, too: see "keep"'),
		'what the owner of the task table may not run is left');
	wait_for_state($node, $_, 'DONE', db => 'roles') for 1, 2;
	is(sql_in('roles', q{SELECT string_agg(concat_ws(' ', id, role, response), ', ' ORDER BY id)
		FROM task}), '1 app app, 2 clerk clerk, 6 clerk 1', 'each runs as the role that inserted it');
};

# A tenant would have the superuser who converts his table run his code.
subtest 'a table of a tenant' => sub {
	sql(q{CREATE ROLE low LOGIN; CREATE DATABASE hostile; ALTER DATABASE hostile SET
		default_transaction_isolation = 'serializable'});
	wait_for_table($node, db => 'hostile', table => 'task_queue');
	sql_in('hostile', 'CREATE SCHEMA low AUTHORIZATION low;
		CREATE TABLE public.caught (who name); GRANT INSERT ON public.caught TO PUBLIC;
		GRANT CREATE ON SCHEMA public TO low');
	sql_in('hostile', qq{SET ROLE low; SET search_path = low; $new_table;
		INSERT INTO task (input) VALUES ('SELECT 1');
		CREATE FUNCTION caught() RETURNS boolean LANGUAGE plpgsql AS \$\$ BEGIN
			INSERT INTO public.caught VALUES (current_user); RETURN true; END \$\$;
		CREATE FUNCTION text_of(low.state) RETURNS text LANGUAGE plpgsql AS \$\$ BEGIN
			PERFORM low.caught(); RETURN 'PLAN'; END \$\$;
		CREATE CAST (low.state AS text) WITH FUNCTION low.text_of(low.state);
		CREATE FUNCTION public.starts_with(name, name) RETURNS boolean LANGUAGE plpgsql AS \$\$
			BEGIN PERFORM low.caught(); RETURN true; END \$\$});
	my ($rc, $out, $err) = convert($node, 'hostile', table => 'low.task');
	like($err, qr/table low\.task belongs to role "low": run this as that role/,
		'a superuser does not touch it');
	sql_in('hostile', 'ALTER TABLE low.task OWNER TO postgres');
	($rc, $out, $err) = convert($node, 'hostile', table => 'low.task');
	like($err, qr/type low\.state belongs to role "low"/, 'nor one with a type of his');
	sql_in('hostile', 'ALTER TYPE low.state OWNER TO postgres');
	($rc, $out, $err) = convert($node, 'hostile', table => 'low.task');
	like($err, qr/cast low\.text_of\(low\.state\) belongs to role "low"/, 'nor with a cast of his');
	sql_in('hostile', 'DROP CAST (low.state AS text)');
	($rc, $out, $err) = convert($node, 'hostile', table => 'low.task');
	like($err, qr/schema low belongs to role "low"/, 'nor in a schema of his');
	sql_in('hostile', 'ALTER SCHEMA low OWNER TO postgres; GRANT TRIGGER ON public.task TO low');
	sql_in('hostile', q{SET ROLE low;
		CREATE FUNCTION public.fired() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.caught VALUES (current_user); RETURN NULL; END $$;
		CREATE TRIGGER trap AFTER INSERT ON public.task EXECUTE FUNCTION public.fired()});
	($rc, $out, $err) = convert($node, 'hostile', table => 'low.task');
	like($err, qr/function public\.fired of trigger trap belongs to role "low"/,
		'nor with his trigger on the task table');
	sql_in('hostile', 'DROP TRIGGER trap ON public.task');
	($rc, $out, $err) = convert($node, 'hostile', table => 'low.task');
	is($rc, 0, 'one that has none of that is converted') or diag($err);
	is(sql_in('hostile', "SELECT count(*) FROM caught WHERE who = 'postgres'"), 0,
		'nothing of his has run as the superuser');
};

# The rows of two tables, or a table and what has come since, may have the same ids.
subtest 'ids' => sub {
	sql('CREATE DATABASE ids');
	wait_for_table($node, db => 'ids', table => 'task_queue');
	my $id = run_task($node, db => 'ids', request => 'SELECT 1');
	sql_in('ids', "CREATE SCHEMA other; SET search_path = other; $new_table; INSERT INTO task
		(id, input, plan) VALUES ($id, 'SELECT 1', 'infinity'),
			($id + 1, 'DELETE FROM other.jobs', 'infinity'),
			(9223372036854775807, 'SELECT 3', 'infinity');
		ALTER TABLE task RENAME TO jobs");
	my $last = 'SELECT last_value FROM task_id_seq';
	my $before = sql_in('ids', $last);
	my ($rc, $out, $err) = convert($node, 'ids', table => 'other.jobs', commit => 'off');
	is($rc, 0, 'a trial') or diag($err);
	is(sql_in('ids', $last), $before, 'changes no sequence');
	($rc, $out, $err) = convert($node, 'ids', table => 'other.jobs');
	is($rc, 0, 'it is converted') or diag($err);
	like($out, qr/^converted\|1\|\{@{[ $id + 1 ]}\}\|$/m, 'what has an id of its own');
	like($out, qr/^not converted\|1\|\{$id\}\|id: another row of the task table has it$/m,
		'not a second');
	like($out, qr/^not converted\|1\|\{9223372036854775807\}\|id: it is not 1 to 2\^62$/m,
		'nor one that would end the sequence');
	like($out, qr/^look at\|1\|\{@{[ $id + 1 ]}\}\|/m, 'the table is named as it is called');
	is(run_task($node, db => 'ids', request => 'SELECT 1'), $id + 2, 'the next id');
};

# What is skipped without the sources: the same table, made by them, where settings of the other one
# are in postgresql.conf and have become defaults.
subtest 'a table that the other one has made' => sub {
	plan skip_all => 'PG_TASK_OTHER_SOURCES names no sources of the other pg_task with a make.c'
	  unless -e "$sources/make.c";

	my $other = new_other('other', join "\n", "pg_task.active = '1 hour'", 'pg_task.count = 0',
		'pg_task.delete = on', "pg_task.delimiter = '\\t'", 'pg_task.drift = off',
		"pg_task.escape = ''", "pg_task.group = 'group'", 'pg_task.header = on',
		"pg_task.id = '0'", "pg_task.live = '0 sec'", 'pg_task.max = 0', "pg_task.null = '\\\\N'",
		"pg_task.quote = ''", "pg_task.repeat = '0 sec'", 'pg_task.save = off',
		'pg_task.string = on', "pg_task.timeout = '0 sec'",
		q(pg_task.json = '[{"data":"postgres"}]'));
	my $include = qx(pg_config --includedir);

	chomp $include;
	my $library = build_module('rekgrpth', "-I$sources", "-I$include");

	sql(qq{CREATE FUNCTION make_rekgrpth() RETURNS void LANGUAGE c AS '$library';
		CREATE FUNCTION lock_rekgrpth() RETURNS void LANGUAGE c AS '$library';
		SELECT make_rekgrpth()}, node => $other);
	sql($rows, node => $other);

	my $worker = open_session($other, 'postgres');
	$worker->query_safe('SELECT lock_rekgrpth()');
	my ($rc, $out, $err) = convert($other, 'postgres');
	like($err, qr/the other pg_task runs in this database/, 'not while its worker runs');
	$worker->quit;

	my $position = log_position($other);
	check_conversion($other);
	my $log = log_since($other, $position);
	like($log, qr/WARNING:  invalid configuration parameter name "pg_task\.delete"/,
		'settings that are not known here are a warning');
	like($log, qr/invalid value for parameter "pg_task\.active": "1 hour"/,
		'and so are those of other types');
	is(sql(q{SHOW pg_task.active}, node => $other), '0', 'which have their default');

	sql('DROP TABLE task_rekgrpth; DROP FUNCTION task_wake_up; DROP TYPE state', node => $other);
	my $id = run_task($other, request => 'SELECT 1');
	is_row($other, $id, { state => 'DONE' }, 'what the other one has left can be dropped');
};

done_testing();
