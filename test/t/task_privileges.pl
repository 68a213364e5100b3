# A task has the rights of its submitter and no more; the table's owner gains none by it; and the
# statements of pg_task call no object that another user has planted.  A TAP test because it needs
# databases of several owners, and connections as these owners.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf =>
	  "max_worker_processes = 40\npg_task.idle_timeout = '1 h'\npg_task.owner_code = on");
my $sixteen = sql('SHOW server_version_num') >= 160000;
my $seventeen = sql('SHOW server_version_num') >= 170000;

# Runs SQL as a role, in a database.
sub sql_as_in { return sql_as($_[0], $_[2], db => $_[1]) }

sql(q{
	CREATE ROLE app LOGIN; CREATE ROLE friend LOGIN; CREATE ROLE team NOLOGIN;
	CREATE ROLE owner LOGIN; CREATE ROLE stranger LOGIN;
	CREATE ROLE unwanted LOGIN; CREATE ROLE root LOGIN SUPERUSER;
	GRANT friend, team TO app;
	GRANT INSERT, SELECT ON task TO app;
	CREATE DATABASE shop OWNER owner;
	REVOKE CONNECT ON DATABASE shop FROM PUBLIC;
	GRANT CONNECT ON DATABASE shop TO app, friend, team, stranger;
	GRANT app, friend, team, unwanted TO owner});
sql('GRANT stranger TO owner WITH SET FALSE') if $sixteen;
wait_for_table($node, db => 'shop');

# The session user is the role, so RESET ROLE and the like lead back to it.
sub as_app
{
	my ($request, $wanted, $name) = @_;
	my $id = sql_as('app', "INSERT INTO task (request) VALUES (\$r\$$request\$r\$) RETURNING id");

	wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id");
	like(task($node, $id, 'response'), qr/^$wanted/s, $name // $request);
}

subtest 'the session user is the role' => sub {
	my $who =
		'SELECT session_user, current_user, current_setting(\'role\'), '
			. 'current_setting(\'is_superuser\')';
	my $is_app = "[^\n]*\napp\tapp\tnone\toff";
	as_app($who, $is_app);
	as_app("RESET ROLE; $who", "RESET\n$is_app");
	as_app("RESET SESSION AUTHORIZATION; $who", "RESET\n$is_app");
	as_app("SET SESSION AUTHORIZATION DEFAULT; $who", "SET\n$is_app");
	as_app("RESET ALL; $who", "RESET\n$is_app");
	as_app("SET ROLE friend; SELECT session_user, current_user; RESET ROLE; $who",
		"SET\n[^\n]*\napp\tfriend\nRESET\n$is_app");
	as_app('SET ROLE postgres', 'ERROR:  permission denied');
	as_app('SET ROLE stranger', 'ERROR:  permission denied');
	as_app('SET SESSION AUTHORIZATION postgres', 'ERROR:  permission denied');
	as_app('SET SESSION AUTHORIZATION friend', 'ERROR:  permission denied');
	as_app('SELECT set_config(\'session_authorization\', \'postgres\', true)',
		'ERROR:  permission denied');
	as_app('SELECT set_config(\'is_superuser\', \'on\', false)', 'ERROR: ');
	as_app('SET pg_task.response_limit = 64', 'ERROR:  permission denied');
	as_app('SET session_replication_role = replica', 'ERROR:  permission denied');
	as_app('SELECT pg_read_file(\'PG_VERSION\')', 'ERROR:  permission denied');
	as_app('TABLE pg_authid', 'ERROR:  permission denied');
	as_app('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = \'postgres\'',
		'ERROR: ');
	as_app('UPDATE task SET request = \'SELECT 1\'', 'ERROR:  permission denied');
	as_app('COPY (SELECT 1) TO PROGRAM \'true\'', 'ERROR:  (permission denied|must be superuser)');
};

# The owner of a table can have tasks run as roles that they may become; other tasks are FAIL, with
# the reason.
sub refused
{
	my ($role, $hint) = @_;

	return "FAIL 42501 the owner of the task table may not run tasks as role \"$role\" "
	  . "ERROR:  the owner of the task table may not run tasks as role \"$role\""
	  . ($hint ? "\nHINT:  $hint" : '');
}

sub in_shop
{
	my ($role, $wanted) = @_;
	my $id = sql_as_in('owner', 'shop',
		"INSERT INTO task (role, request) VALUES ('$role', 'SELECT session_user') RETURNING id");

	wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id", db => 'shop');
	is(task($node, $id, q{concat_ws(' ', state, sqlstate, error, response)}, db => 'shop'), $wanted,
		"owner's task as $role");
}

subtest 'an owner plans for others' => sub {
	in_shop($_, "DONE $_") for qw(owner app friend);
	in_shop($_,
		refused($_,
			'Plan it for a role that is no superuser, such as owner, by the column "role"'))
	  for qw(postgres root);
	in_shop('stranger', refused('stranger', 'GRANT stranger TO owner'));
	in_shop('unwanted',
		'FAIL 42501 role "unwanted" may not connect to this database ERROR:  role "unwanted" may '
		. "not connect to this database\nHINT:  GRANT CONNECT ON DATABASE shop TO unwanted");
	in_shop('nobody',
		'FAIL 42704 role "nobody" does not exist ERROR:  role "nobody" does not exist');
	if ($seventeen)
	{
		in_shop('team', 'DONE team');
	}
	else
	{
		my $id = sql_as_in('owner', 'shop',
			"INSERT INTO task (role, request) VALUES ('team', 'SELECT 1') RETURNING id");
		wait_for_state($node, $id, 'FAIL', db => 'shop');
		like(task($node, $id, 'sqlstate || response', db => 'shop'),
			qr/^28000ERROR:  role "team" is not permitted to log in/, 'a role that may not log in');
	}
	sql('REVOKE app FROM owner');
	in_shop('app', refused('app', 'GRANT app TO owner'));
};

# What psql prints besides errors when a role runs SQL in the database "shop".
sub warnings_of
{
	my ($role, $query) = @_;
	my (undef, undef, $warnings) =
	  $node->psql('shop', $query, extra_params => [ '-U', $role ], on_error_stop => 1);

	return $warnings;
}

# Whoever plans a task that cannot start is told, once for a statement, and only then.
subtest 'a warning for who plans a task that cannot start' => sub {
	my $insert = "INSERT INTO task (role, request) SELECT 'app', 'SELECT 1'
		FROM generate_series(1, 3)";
	my $warnings = warnings_of('owner', $insert);

	is(scalar(() = $warnings =~ /WARNING:/g), 1, 'one warning for three rows');
	like($warnings, qr/task will not start: .* as role "app"\s+HINT:  GRANT app TO owner\.$/,
		'the warning names the reason and the way out');
	like(warnings_of('owner', "$insert; $insert"), qr/WARNING.*WARNING/s, 'one for each statement');
	is(warnings_of('owner', q{UPDATE task SET retry = 1 WHERE role = 'app'}), '',
		'none for an UPDATE of something else');
	sql(join ';', map { "CREATE ROLE many$_ LOGIN" } 1 .. 20);
	for ([ 2, 2, 'one for each role, when the rows of two alternate' ], [ 20, 16, 'at most 16' ])
	{
		my ($roles, $count, $name) = @$_;

		$warnings = warnings_of('postgres', "INSERT INTO task (role, request)
			SELECT 'many' || 1 + n % $roles, 'SELECT 1' FROM generate_series(1, 200) AS n");
		is(scalar(() = $warnings =~ /WARNING:/g), $count, $name);
	}
	$insert = "INSERT INTO task (role, request) VALUES ('app', 'SELECT 1')";
	my $session = open_session($node, 'shop', extra_params => [ '-U', 'owner' ]);
	$session->query($insert);
	sql('GRANT app TO owner');
	$session->{stderr} = '';
	$session->query_safe($insert);
	is($session->{stderr}, '', 'none after the GRANT, in a session that was warned before');
	sql('REVOKE app FROM owner');
	$session->query($insert);
	like($session->{stderr}, qr/WARNING/, 'one after the REVOKE');
	$session->quit;
};

# A role with INSERT on the table cannot use another role's rights by naming it.
subtest 'a role names another role' => sub {
	my $id = sql_as('app',
		"INSERT INTO task (role, request) VALUES ('app', 'SELECT 1') RETURNING id");
	wait_for_state($node, $id, 'DONE');
	like(error_of('app', "INSERT INTO task (role, request) VALUES ('postgres', 'SELECT 1')"),
		qr/you may not plan tasks of role/, 'INSERT as another role is refused');
};

# Deferred triggers of a task's role run as that role, not as the owner of the table, who writes
# the outcome.
subtest 'deferred triggers of the role' => sub {
	sql(q{CREATE TABLE seen (place text, who text, session text, superuser text); GRANT ALL ON seen
		TO PUBLIC;
		GRANT CREATE ON SCHEMA public TO app});
	as_app(q{CREATE TABLE mine (a int);
		CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO public.seen VALUES (TG_NAME, current_user, session_user,
			current_setting('is_superuser'));
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER late AFTER INSERT ON mine DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW
		EXECUTE FUNCTION record();
		INSERT INTO mine VALUES (1); SET CONSTRAINTS ALL DEFERRED; INSERT INTO mine VALUES (2)},
		'CREATE TABLE', 'deferred triggers of a task');
	is(sql(q{SELECT DISTINCT who, session, superuser, count(*) FROM seen WHERE place = 'late'
		GROUP BY 1, 2, 3}),
		'app|app|off|2', 'the deferred triggers run as the role of the task');
};

# Triggers and defaults on the task table run as its owner, in the scheduler, in the executor, and
# when they are deferred; they gain no other rights.
subtest 'triggers and defaults of the owner' => sub {
	# the tasks of the subtests before would be noted, too
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))},
		db => 'shop');
	sql_as_in('owner', 'shop', q{
		CREATE TABLE seen (place text, who text, superuser text, escape text);
		CREATE FUNCTION note(place text) RETURNS text LANGUAGE plpgsql AS $$
		DECLARE
			escape text := '';
			way text;
		BEGIN
			FOREACH way IN ARRAY ARRAY['SET ROLE postgres', 'RESET ROLE',
			'SET SESSION AUTHORIZATION postgres', 'RESET SESSION AUTHORIZATION',
				'ALTER ROLE owner SUPERUSER', 'COPY (SELECT 1) TO PROGRAM ''true''']
			LOOP
				BEGIN
					EXECUTE way;
					escape := escape || way || '? ' || current_user || ' ';
				EXCEPTION WHEN OTHERS THEN NULL;
				END;
			END LOOP;
			INSERT INTO public.seen VALUES (place, current_user, (SELECT rolsuper FROM pg_roles
			WHERE rolname = current_user), escape);
			RETURN place;
		END $$;
		CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM public.note(TG_NAME || ' ' || TG_OP || ' ' || NEW.state);
			RETURN NEW;
		END $$;
		CREATE TRIGGER before BEFORE INSERT OR UPDATE ON task FOR EACH ROW EXECUTE FUNCTION watch();
		CREATE TRIGGER after AFTER INSERT OR UPDATE ON task FOR EACH ROW EXECUTE FUNCTION watch();
		CREATE CONSTRAINT TRIGGER deferred AFTER INSERT OR UPDATE
		ON task DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION watch();
		ALTER TABLE task ADD COLUMN noted text DEFAULT note('default')});
	sql_as_in('owner', 'shop',
		q{TRUNCATE seen; INSERT INTO task (role, request, repeat) VALUES ('friend', 'SELECT 1',
		'1 day')});
	wait_until($node,
		q{SELECT count(*) = 1 FROM task WHERE role = 'friend' AND state = 'PLAN'
		AND parent IS NOT NULL}, db => 'shop');
	is(sql_in('shop',
		q{SELECT string_agg(DISTINCT place, ', ' ORDER BY place) FROM seen}),
		'after INSERT PLAN, after UPDATE DONE, after UPDATE WORK, before INSERT PLAN, before '
		. 'UPDATE DONE, before UPDATE WORK, '
		. 'default, deferred INSERT PLAN, deferred UPDATE DONE, deferred UPDATE WORK',
		'the triggers and the default were called');
	is(sql_in('shop', q{SELECT DISTINCT who, superuser FROM seen}), 'owner|false',
		'the triggers run as the owner');
	is(sql_in('shop',
		q{SELECT DISTINCT place, escape FROM seen WHERE escape <> ''
		AND place !~ 'INSERT|default'}),
		'', 'the triggers cannot become another role');
};

# Functions and operators with well-known names, first in everybody's search_path, are not called.
subtest 'objects with well-known names' => sub {
	sql('CREATE DATABASE trap');
	wait_for_table($node, db => 'trap');
	sql_in('trap', q{
		CREATE SCHEMA evil;
		CREATE TABLE evil.calls (what text, who text);
		GRANT ALL ON SCHEMA evil TO PUBLIC; GRANT ALL ON evil.calls TO PUBLIC;
		GRANT INSERT ON task TO friend;
		SET check_function_bodies = off;
		CREATE FUNCTION evil.call(what text) RETURNS void LANGUAGE sql
		AS 'INSERT INTO evil.calls VALUES ($1, current_user)';
		DO $do$
		DECLARE
			f record;
		BEGIN
			FOR f IN SELECT p.proname, pg_get_function_identity_arguments(p.oid)
			AS args, pg_get_function_result(p.oid) AS result
				FROM pg_proc AS p WHERE p.pronamespace = 'pg_catalog'::regnamespace
				AND NOT p.proretset
				AND p.prokind = 'f'
				AND p.provariadic = 0 AND p.proname IN ('now', 'clock_timestamp', 'pg_backend_pid',
					'octet_length', 'date_part', 'extract', 'int4pl', 'strpos', 'substr',
					'pg_get_indexdef', 'int8', 'current_setting', 'pg_task_next', 'set_config',
					'nullif', 'int8eq', 'texteq', 'nameeq', 'timestamptz_le')
				AND pg_get_function_identity_arguments(p.oid) !~ 'cstring|internal|VARIADIC'
				AND pg_get_function_result(p.oid) !~ 'internal|trigger'
			LOOP
				EXECUTE
				format('CREATE FUNCTION evil.%I (%s) RETURNS %s LANGUAGE plpgsql AS $$ BEGIN PERFORM
				evil.call(%L); RETURN NULL; END $$',
					f.proname, f.args, f.result, f.proname);
			END LOOP;
			FOR f IN SELECT DISTINCT oprname, oprleft::regtype AS l, oprright::regtype AS r
			FROM pg_operator
				WHERE oprresult = 'boolean'::regtype AND oprname IN ('=', '<=', '>', '<>')
				AND oprleft <> 0
				AND oprleft IN ('text'::regtype, 'int8'::regtype, 'int4'::regtype, 'name'::regtype,
				'timestamptz'::regtype, 'oid'::regtype)
				AND oprright IN ('text'::regtype, 'int8'::regtype, 'int4'::regtype, 'name'::regtype,
				'timestamptz'::regtype, 'oid'::regtype)
			LOOP
				EXECUTE
				format('CREATE FUNCTION evil.%I (l %s, r %s) RETURNS boolean LANGUAGE plpgsql AS $$
				BEGIN PERFORM evil.call(%L); RETURN false; END $$',
					'op' || f.oprname, f.l, f.r, f.oprname);
				EXECUTE
				format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.%I)',
				f.oprname, f.l, f.r, 'op' || f.oprname);
			END LOOP;
		END $do$;
		CREATE FUNCTION evil.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql
		AS 'BEGIN PERFORM evil.call(''unnest''); END';
		CREATE FUNCTION evil.unnest(text[]) RETURNS SETOF text LANGUAGE plpgsql
		AS 'BEGIN PERFORM evil.call(''unnest''); END';
		ALTER DATABASE trap SET pg_task.schema_name = 'public';
		ALTER DATABASE trap SET search_path = evil, pg_catalog, public});
	sql(q{ALTER ROLE friend SET search_path = evil, pg_catalog, public});
	cmp_ok(sql_in('trap', q{SELECT pg_catalog.count(*) FROM pg_catalog.pg_operator
		WHERE oprnamespace OPERATOR(pg_catalog.=) 'evil'::regnamespace}), '>', 20, 'a trap');
	sql_in('trap', q{SELECT 1 WHERE 1::bigint = 2::bigint});
	is(sql_in('trap', q{SELECT what FROM evil.calls}), '=', 'the trap works');
	sql_in('trap', q{TRUNCATE evil.calls});
	$node->restart;
	wait_until($node,
		q{SELECT pg_catalog.count(*) OPERATOR(pg_catalog.=) 1 FROM pg_catalog.pg_stat_activity
		WHERE backend_type OPERATOR(pg_catalog.=) 'pg_task scheduler'
		AND datname OPERATOR(pg_catalog.=) 'trap'}, db => 'trap');
	sql_in('trap',
		q{INSERT INTO public.task (queue, max, key, role, request, repeat, timeout, keep) VALUES
		('a', NULL, NULL, 'friend', 'SELECT 1', NULL, NULL, NULL),
		('b', 2, 'k', 'friend', 'SELECT 1', '1 day', '1 hour', NULL),
		('c', -1, NULL, 'friend', 'SELECT 1', '1 day', NULL, '0'),
		('d', 1, NULL, 'nobody', 'SELECT 1', '1 day', NULL, NULL),
		('e', NULL, NULL, 'postgres', 'SELECT 1/0', NULL, NULL, NULL),
		('f', NULL, NULL, 'friend', 'SELECT 1 -- ' || pg_catalog.repeat('x', 2000), NULL, NULL,
		NULL)});
	wait_until($node,
		q{SELECT pg_catalog.string_agg(queue || state, ' ' ORDER BY queue, id) FROM public.task},
		db => 'trap',
		expected => 'aDONE bDONE bPLAN cPLAN dFAIL eFAIL fDONE');
	is(sql_in('trap', q{SELECT what, who FROM evil.calls}), '',
		'the statements of pg_task call none of the planted objects');

	# a function that fits better is called, wherever it is in the search_path
	sql_in('trap', q{
		DO $do$
		DECLARE
			f record;
		BEGIN
			FOR f IN SELECT DISTINCT p.proname, pg_catalog.replace(pg_catalog.oidvectortypes(
				p.proargtypes), 'text', 'name') AS args FROM pg_catalog.pg_proc AS p
				WHERE p.pronamespace OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace
				AND p.prokind OPERATOR(pg_catalog.=) 'f'
				AND p.proargtypes::pg_catalog.text OPERATOR(pg_catalog.~) '^25( 25)*$'
			LOOP
				EXECUTE pg_catalog.format('CREATE FUNCTION evil.%I (%s) RETURNS text LANGUAGE plpgsql
					AS $$ BEGIN PERFORM evil.call(%L); RETURN NULL; END $$',
					f.proname, f.args, f.proname);
			END LOOP;
		END $do$});
	sql_in('trap', q{SELECT quote_ident('a'::name)});
	is(sql_in('trap', q{SELECT what FROM evil.calls}), 'quote_ident', 'the trap works');
	sql_in('trap', q{TRUNCATE evil.calls;
		INSERT INTO public.task (queue, role, key, repeat, flow, step, dt, hold, request) VALUES
		('g', 'gone', NULL, NULL, 'f', 's', 'infinity',
			'copied from another database: see pg_task_release', 'SELECT 1'),
		('h', 'friend', 'key', '1 day', NULL, NULL, 'infinity', NULL, 'SELECT 1')});
	my ($id, $waits) = map { sql_in('trap', "SELECT pg_catalog.min(id) FROM public.task
		WHERE queue OPERATOR(pg_catalog.=) '$_'") } qw(e h);
	for my $call ('release()', "why($waits)", 'health()', 'status()', 'queues()', 'stats()',
		'failures()', 'recent(9)', 'repeating()', 'upcoming()', "graph('f')", 'results()', 'top()',
		'takers()', 'activity()', "attempts($id)", "result($id)", "rule('h')", "queue_own('h')",
		"hold($waits)", "hold('key', 'why', 'h')", "resume($waits)", "resume('key', 'h')",
		"run_now($waits)", "run_now('key', queue => 'h')", "retry($id)", "retry_dependents($id)",
		"retry('22012', '-infinity')", "stop_flow('f')", "resume_flow('f')", "interrupt($waits)",
		"remaining('h', '-infinity')", "wait(ARRAY[$waits], '1 ms')", "take('{h}')",
		"finish('0.1.1.1')", "alive('{0.1.1.1}')", "cancel($waits)", "cancel('key', 'h')",
		'create()')
	{
		my $error = error_of('postgres', "SELECT * FROM pg_catalog.pg_task_$call", db => 'trap');

		unlike($error, qr/syntax|function .* does not exist/, "pg_task_$call") or next;
		is(sql_in('trap', q{SELECT what, who FROM evil.calls}), '', 'it calls none')
		  or sql_in('trap', q{TRUNCATE evil.calls});
	}
};

done_testing();
