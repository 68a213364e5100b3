# Known ways of privilege escalation: a role with some rights tries each of them and gains nothing.
# A TAP test because it needs databases of several owners, connections as these owners, and
# stopped processes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', period => '1 s', conf =>
	  "max_worker_processes = 40\npg_task.max_executors = 8\npg_task.owner_code = on");
make_gates($node);

# Runs SQL as a role, in a database.
sub sql_as_in { return sql_as($_[0], $_[2], db => $_[1]) }

sub refused
{
	my ($user, $db, $sql, $why, $name) = @_;

	like(error_of($user, $sql, db => $db), qr/ERROR:  $why/, $name // "$user: $sql");
}

# As which role was the trap run?
sub caught
{
	my ($role, $position) = @_;
	my %who = map { $_ => 1 } log_since($node,
		$position) =~ /LOG:  the trap of $role runs as (\w+)/g;

	return join ' ', sort keys %who;
}

sub is_superuser { return sql("SELECT rolsuper FROM pg_roles WHERE rolname = '$_[0]'") }

sub wait_for_end
{
	my ($id, %opt) = @_;

	wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id", %opt);
}

# A trigger function that tries to use the rights it gets, and writes to the log, which no rollback
# undoes.
sub make_trap
{
	my ($schema, $role) = @_;

	return qq{
		CREATE FUNCTION $schema.trap() RETURNS trigger LANGUAGE plpgsql AS \$\$
		BEGIN
			RAISE LOG 'the trap of $role runs as %', current_user;
			BEGIN
				ALTER ROLE $role SUPERUSER;
			EXCEPTION WHEN insufficient_privilege THEN NULL;
			END;
			RETURN NEW;
		END \$\$;};
}

my $columns = sql(q{SELECT string_agg(format('%I %s %s', attname, format_type(atttypid, atttypmod),
	CASE WHEN attnotnull THEN 'NOT NULL' END), ', ' ORDER BY attnum)
	FROM pg_attribute WHERE attrelid = 'task'::regclass AND attnum > 0});
my $defaults = join ' ', map { "ALTER TABLE public.task ALTER COLUMN $_;" } 'dt SET DEFAULT now()',
	q(queue SET DEFAULT 'default'),
  'priority SET DEFAULT 0', 'role SET DEFAULT current_user', q(state SET DEFAULT 'PLAN'),
	'attempt SET DEFAULT 0',
  'role_id SET DEFAULT 0', 'drift SET DEFAULT true',
  'failed SET DEFAULT 0', 'crashed SET DEFAULT 0';

# The owner of the database owns the schema of the task table, but not the table, and replaces the
# table.
sub swap_schema
{
	my ($row) = @_;

	return qq{ALTER SCHEMA public RENAME TO old; CREATE SCHEMA public;
		CREATE TABLE public.task ($columns, PRIMARY KEY (id)); $defaults } . make_trap('public',
		'landlord') . qq{
		CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON public.task FOR EACH ROW
		EXECUTE FUNCTION public.trap();
		$row};
}
my ($position, $id);

subtest 'the owner of the schema replaces the table' => sub {
	sql('CREATE ROLE landlord LOGIN');
	for my $db (qw(let sublet))
	{
		sql("CREATE DATABASE $db");
		wait_for_table($node, db => $db);
		sql_in($db, 'GRANT INSERT, SELECT ON task TO landlord');
		sql("ALTER DATABASE $db OWNER TO landlord");
		# the scheduler and an executor know the table by now; they work for the owner of the
		# database
		my $id = sql_as_in('landlord', $db,
			q{INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id});
		wait_for_state($node, $id, 'DONE', db => $db);
	}
	is(sql_in('let', q{SELECT tableowner FROM pg_tables WHERE tablename = 'task'}),
		'postgres', 'the table belongs to another role');
	$position = log_position($node);
	# in one transaction, or the scheduler creates the table that is missing meanwhile
	sql_as_in('landlord', 'let', 'BEGIN; '
		. swap_schema(q{INSERT INTO public.task (id, request) VALUES (100, 'SELECT 1')})
		. '; COMMIT');
	wait_until($node, 'SELECT state <> $$PLAN$$ FROM public.task WHERE id = 100', db => 'let');
	is(caught('landlord', $position), 'landlord',
		'a new table of the same name: its triggers do not run as the owner of the first');
	is(is_superuser('landlord'), 'f', 'the owner of the database has gained no rights');
	sql('ALTER ROLE landlord NOSUPERUSER');
	$position = log_position($node);
	$id = sql_as_in('landlord', 'sublet', 'INSERT INTO task (request) VALUES ($r$' . swap_schema(
		q{INSERT INTO public.task (id, request, state, attempt, pid)
			VALUES (current_setting('pg_task.id')::bigint, 'SELECT 1', 'WORK', 1,
			pg_backend_pid())})
		. '$r$) RETURNING id');
	wait_for_log_line($node, qr/LOG:  the trap of landlord runs as/, $position);
	wait_until($node, q{SELECT count(*) FILTER (WHERE state <> 'idle') = 0 AND count(*) > 0
		FROM pg_stat_activity WHERE backend_type = 'pg_task executor' AND datname = 'sublet'});
	is(caught('landlord', $position), 'landlord',
		'they do not run as that owner when the outcome is written');
	is(is_superuser('landlord'), 'f', 'the owner of the database has still gained no rights');
	sql('ALTER ROLE landlord NOSUPERUSER');
};

# A trigger of the owner that looks for a table of its own does not find one created by the task.
subtest 'objects that the task creates' => sub {
	sql(q{
		CREATE ROLE app LOGIN; CREATE SCHEMA app AUTHORIZATION app; GRANT USAGE ON SCHEMA app
		TO PUBLIC;
		GRANT INSERT, SELECT, UPDATE, DELETE ON task TO app;
		CREATE TABLE audit (id bigint);
		CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
		BEGIN
			INSERT INTO audit VALUES (NEW.id);
			RETURN NULL;
		END $$;
		CREATE TRIGGER audit AFTER UPDATE ON task FOR EACH ROW WHEN (NEW.state IN ('DONE', 'FAIL'))
		EXECUTE FUNCTION audit()});
	$position = log_position($node);
	my $trap = make_trap('app', 'app');
	for my $end ('', '; COMMIT', '; SELECT 1/0', '; COMMIT; SELECT 1/0',
		'; DECLARE c CURSOR WITH HOLD FOR SELECT * FROM audit')
	{
		$id = sql_as('app', qq{INSERT INTO task (request) VALUES (\$r\$$trap
			CREATE TEMP TABLE audit (id bigint); GRANT ALL ON audit TO PUBLIC;
			CREATE TRIGGER trap BEFORE INSERT ON audit FOR EACH ROW
			EXECUTE FUNCTION app.trap()$end\$r\$) RETURNING id});
		wait_for_end($id);
		is(sql("SELECT count(*) FROM audit WHERE id = $id"), 1,
			"the owner's trigger finds the owner's table: $end");
		is(is_superuser('app'), 'f', "and calls no trigger of the task's: $end");
		# the executor drops its table, with the trigger, after the commit
		wait_until($node, q{SELECT count(*) = 0 FROM pg_class WHERE relpersistence = 't'});
		sql('DROP FUNCTION IF EXISTS app.trap CASCADE; ALTER ROLE app NOSUPERUSER');
	}
	is(caught('app', $position), '', 'the trap has never run as superuser');
	sql('DROP TRIGGER audit ON task');
};

# A run whose row was deleted does not take another row for its own.
subtest 'a run whose row was deleted' => sub {
	sql(q{
		CREATE ROLE amy LOGIN; CREATE ROLE ben LOGIN;
		GRANT INSERT, SELECT, UPDATE, DELETE ON task TO amy, ben;
		CREATE TABLE ran (what text, who text); GRANT INSERT ON ran TO PUBLIC;
		ALTER ROLE ben SET pg_task.role_executors = 1});
	for my $column ('', ', keep', ', repeat')
	{
		my $gate = "squat$column";
		my $value = { '' => '', ', keep' => q(, '0'), ', repeat' => q(, '1 day') }->{$column};
		my $next = sql_as('amy',
			"INSERT INTO task (request$column) VALUES ('SELECT hold(\$\$$gate\$\$)'$value) "
			. "RETURNING id");
		wait_for_running($node, 1, id => $next, user => 'amy', event => 'PgSleep');
		sql_as('amy', "DELETE FROM task WHERE id = $next");
		sql("SELECT setval('task_id_seq', $next, false)");
		is(sql_as('ben',
			"INSERT INTO task (request) VALUES ('INSERT INTO ran "
			. "VALUES (\$\$$gate\$\$, current_user); "
			. "SELECT hold(\$\$$gate ben\$\$)') RETURNING id"),
			$next, "$gate: the next task has the id of a run without a row");
		wait_for_running($node, 1, id => $next, user => 'ben', event => 'PgSleep');
		open_gate($node, $gate);
		wait_until($node,
			q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity
			WHERE backend_type = 'pg_task executor'
			AND usename = 'amy' AND state <> 'idle')});
		is(task($node, $next, 'state'), 'WORK', "$gate: the end of that run is not its end");
		open_gate($node, "$gate ben");
		wait_until($node,
			q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity
			WHERE backend_type = 'pg_task executor'
			AND usename = 'ben' AND state <> 'idle')});
		is(sql("SELECT who FROM ran WHERE what = '$gate'"), 'ben', "$gate: it has its effects");
		is(task($node, $next, 'state'), 'DONE', "$gate: and its outcome");
		is(count_of($node, "role = 'ben' AND parent = $next"), 0, "$gate: and nothing else");
	}
};

my $pid;

# An executor that begins late does not run what another role put in place of its task.
subtest 'a row is replaced before the run begins' => sub {
	$id = sql_as('ben', q{INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id});
	wait_for_state($node, $id, 'DONE');
	$pid = task($node, $id, 'pid');
	is(sql("SELECT usename FROM pg_stat_activity WHERE pid = $pid"), 'ben',
		'the executor is connected as ben');
	# it waits for a task: it has reported the last one, and holds no lock
	wait_until($node, "SELECT state = 'idle' AND wait_event_type = 'Extension'
		FROM pg_stat_activity WHERE pid = $pid");
	kill 'STOP', $pid;
	$id = sql_as('ben',
		q{INSERT INTO task (request) VALUES ('SELECT 1 -- ' || repeat('x', 2000)) RETURNING id});
	wait_for_state($node, $id, 'WORK');
	sql_as('ben', "DELETE FROM task WHERE id = $id");
	sql('GRANT USAGE ON SEQUENCE task_id_seq TO amy');
	sql_as('amy', qq{INSERT INTO task (id, request)
		VALUES ($id, 'INSERT INTO ran VALUES (''slow'', current_user); SELECT hold(''slow'') -- ' ||
		repeat('x', 2000))});
	wait_for_state($node, $id, 'WORK');
	my $before = sql("SELECT state_change FROM pg_stat_activity WHERE pid = $pid");
	kill 'CONT', $pid;
	wait_until($node, "SELECT state_change > '$before' FROM pg_stat_activity WHERE pid = $pid");
	my $after = sql_as('ben', q{INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id});
	open_gate($node, 'slow');
	wait_for_state($node, $after, 'DONE');
	wait_for_end($id);
	is(sql(q{SELECT string_agg(who, ',') FROM ran WHERE what = 'slow'}), 'amy',
		'the request ran as its own role, once');
};

my $seen;

# The owner of a partition can insert rows without our checks: such a table is rejected until the
# owner is the same.
subtest 'the owner of a partition' => sub {
	sql('CREATE ROLE carl LOGIN; CREATE ROLE dora LOGIN; CREATE ROLE team; GRANT team TO dora; '
		. 'CREATE DATABASE parts IS_TEMPLATE true');
	$seen = log_position($node);
	sql_in('parts', q{
		CREATE TABLE task (id bigint GENERATED BY DEFAULT
		AS IDENTITY, dt timestamptz NOT NULL DEFAULT now(), request text NOT NULL,
			state text NOT NULL DEFAULT 'PLAN', attempt int NOT NULL DEFAULT 0,
			queue text NOT NULL DEFAULT 'default',
			PRIMARY KEY (id, state)) PARTITION BY LIST (state);
		CREATE TABLE active PARTITION OF task FOR VALUES IN ('PLAN', 'WORK');
		CREATE TABLE finished PARTITION OF task DEFAULT;
		ALTER TABLE active OWNER TO carl});
	sql('ALTER DATABASE parts IS_TEMPLATE false');
	wait_for_log_line($node,
		qr/public\.task is not a task table.*Its partition "active" has another owner/s, $seen);
	is(sql_in('parts',
		q{SELECT count(*) FROM pg_trigger WHERE tgrelid = 'task'::regclass}),
		0, 'the rows of a partition of another owner are unchanged');
	sql_in('parts', 'ALTER TABLE active OWNER TO postgres');
	wait_until($node, q{SELECT count(*) = 1 FROM pg_policy WHERE polrelid = 'task'::regclass},
		db => 'parts');
	sql_in('parts',
		'GRANT INSERT, SELECT, UPDATE, DELETE ON task, active, finished TO carl, dora');
	refused('carl', 'parts', "INSERT INTO task (request, role) VALUES ('SELECT 1', 'postgres')",
		'you may not plan tasks of role', 'an UPDATE through the table');
	refused('carl', 'parts',
		"INSERT INTO active (id, request, role) "
		. "VALUES (-1000, 'ALTER ROLE carl SUPERUSER', 'postgres')",
		'you may not plan tasks of role', 'an UPDATE of the partition');
	$id = sql_as_in('dora', 'parts',
		q{INSERT INTO task (request, state) VALUES ('SELECT 1', 'STOP') RETURNING id});
	refused('dora', 'parts', "UPDATE task SET state = 'PLAN', role = 'postgres' WHERE id = $id",
		'you may not plan tasks of role', 'a row that moves to another partition gets no other role');
	my ($first, $last) = split /\n/, sql_in('parts', q{
		INSERT INTO task (request, dt) VALUES ('SELECT 1', 'infinity') RETURNING id;
		INSERT INTO task (request, after) VALUES ('SELECT 1', ARRAY[lastval() - 1]) RETURNING id;});
	sql_in('parts', make_trap('public', 'carl') . 'ALTER TABLE active OWNER TO carl');
	$seen = log_position($node);
	sql_as_in('carl', 'parts',
		'CREATE TRIGGER trap BEFORE UPDATE ON active FOR EACH ROW EXECUTE FUNCTION trap()');
	refused('carl', 'parts', "DELETE FROM active WHERE id = $first",
		'nobody may remove tasks at present', 'a DELETE changes no row of such a partition');
	is(caught('carl', $seen), '', 'the trap was not run');
	sql_in('parts', 'DROP TRIGGER trap ON active; ALTER TABLE active OWNER TO postgres;'
		. "DELETE FROM task WHERE id IN ($first, $last)");
	is(is_superuser('carl'), 'f', 'nobody has gained rights');
};

# pg_task.id is the task that the executor runs, whatever is set.
subtest 'pg_task.id' => sub {
	my $forge =
		'parameter "pg_task.id" cannot be (changed|set)|permission denied|must be '
		. '(superuser|owner)';
	refused($_->[0], 'postgres', $_->[1], $forge)
	  for map { my $way = $_; map { [ $_, $way ] } qw(app postgres) }
	  q{SET pg_task.id = '1'}, q{SET LOCAL pg_task.id TO DEFAULT},
		q{SELECT set_config('pg_task.id', '1', false)}, q{ALTER ROLE app SET pg_task.id = '1'},
	  q{ALTER DATABASE postgres SET pg_task.id = '1'}, q{ALTER SYSTEM SET pg_task.id = '1'},
	  q{CREATE FUNCTION pg_temp.f() RETURNS text LANGUAGE sql SET pg_task.id = '1' AS 'SELECT 1'},
		q{UPDATE pg_settings SET setting = '1' WHERE name = 'pg_task.id'};
	$id = sql_as('app',
		q{INSERT INTO task (request)
		VALUES
		('RESET ALL; RESET pg_task.format; DISCARD PLANS; INSERT INTO task (request) VALUES
		($$SELECT
		1$$)') RETURNING id});
	wait_for_state($node, $id, 'DONE');
	is(count_of($node, "parent = $id"), 1, 'pg_task.id cannot be reset');
};

# Processes: who may not see or signal a role's sessions may not see or signal its tasks.  The
# processes of pg_task itself belong to a superuser.
subtest 'processes' => sub {
	sql('CREATE ROLE watchman LOGIN IN ROLE pg_signal_backend');
	$id = sql_as('app',
		q{INSERT INTO task (request) VALUES ('SELECT hold($$seen$$) AS secret') RETURNING id});
	wait_until($node,
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE '%hold($$seen$$)%'
		AND backend_type = 'pg_task executor'});
	$pid =
		sql("SELECT pid FROM pg_stat_activity WHERE query LIKE '%AS secret' "
			. "AND backend_type = 'pg_task executor'");
	is(sql_as('amy', "SELECT query FROM pg_stat_activity WHERE pid = $pid"),
		'<insufficient privilege>',
		'other roles do not see the request');
	is(sql_as('amy',
		"SELECT count(*) FROM pg_stat_activity AS a WHERE a::text LIKE '%secr' || 'et%' "
		. "AND pid <> pg_backend_pid()"), 0, 'no column of pg_stat_activity shows it');
	for my $signal (qw(pg_cancel_backend pg_terminate_backend))
	{
		refused('amy', 'postgres', "SELECT $signal($pid)", '.*(must be a member|permission denied)',
			"$signal by a stranger");
		for my $kind (qw(supervisor scheduler))
		{
			my ($process) = backends($node, $kind);
			refused($_, 'postgres', "SELECT $signal($process)", '.*(must be a|permission denied)',
				"$signal of a $kind by $_") for qw(amy watchman);
		}
	}
	is(task($node, $id, 'state'), 'WORK', 'the task still runs');
	open_gate($node, 'seen');
	wait_for_state($node, $id, 'DONE');
};

# The C functions check their arguments.
subtest 'arguments of the C functions' => sub {
	my @odd = (
		[ 'SELECT pg_task_planned()',
			'pg_task_planned must be called AFTER|trigger functions can only' ],
		[ q{SELECT pg_task_next(now(), '1 day', true, now(), repeat('x', 100000))}, 'time zone' ],
		[ q{SELECT pg_task_next(now(), '1 day', true, now(), '../../../etc/passwd')}, 'time zone' ],
		[ q{SELECT pg_task_next(now(), '1 day', true, now(), '')}, 'time zone' ],
		map { [ $_, 'pg_task_planned must be called AFTER UPDATE, FOR EACH ROW' ] } (
			'CREATE TRIGGER t BEFORE INSERT ON odd FOR EACH ROW '
				. 'EXECUTE FUNCTION pg_task_planned(); '
				. 'INSERT INTO odd VALUES (1)',
			'CREATE TRIGGER t AFTER INSERT ON odd EXECUTE FUNCTION pg_task_planned(); '
			. 'INSERT INTO odd '
			. 'VALUES (1)',
			'CREATE TRIGGER t AFTER TRUNCATE ON odd '
			. 'EXECUTE FUNCTION pg_task_planned(); TRUNCATE odd',
			'INSERT INTO odd VALUES (1); CREATE TRIGGER t AFTER DELETE ON odd FOR EACH ROW '
			. 'EXECUTE FUNCTION pg_task_planned(); DELETE FROM odd',
			'CREATE VIEW app.v AS SELECT * FROM odd; CREATE TRIGGER t INSTEAD OF INSERT ON app.v '
			. 'FOR EACH ROW EXECUTE FUNCTION pg_task_planned(); INSERT INTO app.v VALUES (1)'));
	push @odd,
		[ q{CREATE TRIGGER t AFTER INSERT ON odd FOR EACH ROW EXECUTE FUNCTION pg_task_bound();
			INSERT INTO odd VALUES (1)},
		'pg_task_bound must be called BEFORE INSERT' ],
		[ q{CREATE TRIGGER t BEFORE INSERT ON odd FOR EACH ROW EXECUTE FUNCTION pg_task_bound();
			INSERT INTO odd VALUES (1)},
		'the table of this trigger is not a task table' ];
	refused('app', 'postgres',
		"BEGIN; CREATE TABLE app.odd (a int); SET search_path = app, public; $_->[0]", $_->[1],
		$_->[0])
		for @odd;
	for my $change ('RENAME COLUMN role TO who', 'DROP COLUMN role', 'DROP COLUMN id CASCADE',
		'ALTER COLUMN queue TYPE varchar', 'ALTER COLUMN max TYPE bigint',
		'ALTER COLUMN role TYPE text', 'DROP COLUMN request, ADD COLUMN request int')
	{
		refused('app', 'postgres',
			qq{BEGIN; CREATE TABLE app.odd AS SELECT * FROM task WITH NO DATA; ALTER TABLE app.odd
			ALTER COLUMN state SET DEFAULT 'PLAN', ALTER COLUMN queue SET DEFAULT 'q',
				ALTER COLUMN priority SET DEFAULT 0, ALTER COLUMN dt SET DEFAULT now(),
				ALTER COLUMN role SET DEFAULT current_user;
			CREATE TRIGGER t BEFORE INSERT ON app.odd FOR EACH ROW
			EXECUTE FUNCTION pg_task_bound();
			INSERT INTO app.odd DEFAULT VALUES; ALTER TABLE app.odd $change;
			INSERT INTO app.odd DEFAULT
			VALUES},
			'the table of this trigger is not a task table', "a table after $change");
	}
	is(sql_as('app',
		q{SELECT count(*) FROM unnest(ARRAY['', 'nobody', 'postgres', 'public', 'none', '"app"',
		'app ',
		repeat('x', 63), repeat('日', 21)]::name[]) AS r WHERE pg_task_own(r)}), 0,
		'pg_task_own is false for roles that one may not become');
	is(sql_as('app',
		q{SELECT pg_task_own('app'), pg_task_own(NULL) IS NULL, pg_task_watched(NULL) IS NULL,
		pg_task_watched(''), pg_task_watched(repeat('x', 1000000))}),
		't|t|t|t|t', 'NULL and very long arguments');
	# 'infinity' is a valid interval from version 17 on, an error before
	my $infinite = sql('SHOW server_version_num') >= 170000 ? q{, 'infinity', '-infinity'} : '';
	is(sql_as('app',
		qq{SELECT count(*) FROM unnest(ARRAY['-infinity', 'infinity', '4714-11-24 00:00:00+00 BC',
		'294276-12-31 23:59:59+00', now(), NULL]::timestamptz[]) AS p,
		unnest(ARRAY['0', '1 us', '-1 us', '1 mon -30 days', '-1 mon 31 days', '178000000 years',
		'-178000000 years', '2147483647 days', '2147483647 hours', '1 mon -2629800 s',
			NULL$infinite]::interval[]) AS r, unnest(ARRAY['-infinity', 'infinity',
			'4714-11-24 00:00:00+00 BC', '294276-12-31 23:59:59+00', now(), NULL]::timestamptz[])
			AS e,
		unnest(ARRAY[true, false]) AS d, unnest(ARRAY['UTC', 'Europe/Berlin', '<X>-167:59']) AS z
		WHERE pg_task_next(p, r, d, e, z) IN ('infinity', '-infinity') OR d
		AND pg_task_next(p, r, d, e,
		z) <= greatest(p, e)}), 0, 'pg_task_next returns no impossible time');
};

# The extension belongs to a superuser.
subtest 'the owner of the extension' => sub {
	refused('app', 'postgres', $_, 'must be owner of|permission denied')
		for 'ALTER EXTENSION pg_task UPDATE', 'ALTER EXTENSION pg_task SET SCHEMA public',
	  'ALTER EXTENSION pg_task DROP FUNCTION pg_task_planned()',
		'ALTER EXTENSION pg_task ADD FUNCTION now()', 'DROP EXTENSION pg_task',
	  'CREATE OR REPLACE FUNCTION pg_catalog.pg_task_own(role name) RETURNS boolean LANGUAGE sql '
		. 'AS $$SELECT true$$';
};

# Settings that a trigger of the owner changes in the scheduler are restored with its transaction.
subtest 'settings that a trigger changes' => sub {
	sql('CREATE ROLE owner LOGIN; CREATE DATABASE shop OWNER owner');
	wait_for_table($node, db => 'shop');
	sql_as_in('owner', 'shop', q{
		CREATE TABLE seen (n int GENERATED ALWAYS AS IDENTITY, pid int, settings text);
		CREATE FUNCTION fiddle() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO public.seen (pid, settings) VALUES (pg_backend_pid(), concat_ws(' ',
			current_setting('search_path'), current_setting('lock_timeout'),
				current_setting('statement_timeout'), current_setting('enable_indexscan'),
				current_setting('row_security'), current_setting('default_transaction_isolation')));
			RESET ALL;
			SET search_path = public; SET lock_timeout = '1min'; SET statement_timeout = '1min';
			SET enable_indexscan = off; SET row_security = off;
			SET default_transaction_isolation = 'serializable';
			RETURN NULL;
		END $$;
		CREATE TRIGGER fiddle AFTER UPDATE ON task FOR EACH ROW EXECUTE FUNCTION fiddle()});
	# more than once, because the first execution of a statement is special
	for (1 .. 4)
	{
		$id = sql_as_in('owner', 'shop',
			q{INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id});
		wait_for_state($node, $id, 'DONE', db => 'shop');
	}
	is(sql_in('shop',
		'SELECT max(count) FROM (SELECT count(DISTINCT settings) FROM seen GROUP BY pid) AS x'), 1,
		'settings that a trigger has changed are restored');
};

# A trigger of the owner that never ends does not keep the scheduler from exiting.
subtest 'a trigger that never ends' => sub {
	($pid) = split /\n/,
		sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_task scheduler'
			AND datname = 'shop'});
	sql_as_in('owner', 'shop',
		q{CREATE OR REPLACE FUNCTION fiddle() RETURNS trigger LANGUAGE plpgsql
		AS 'BEGIN PERFORM pg_sleep(100000); RETURN NULL; END';
		INSERT INTO task (request) VALUES ('SELECT 1')});
	wait_until($node, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $pid");
	ok($node->stop('fast', fail_ok => 1), 'the server stops');
};

done_testing();
