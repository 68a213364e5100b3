# No function of pg_task runs code of a task table's owner with rights that the owner has not: what
# a superuser, a monitoring system or another role with rights beyond the database calls, runs as
# the owner.  The functions are those of the catalog, so a new one is tested, too.  A TAP test
# because a session of the owner goes on meanwhile, and because it reads the log.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

# pg_task.owner_code is for tasks: it lets the owner's code run in no session of somebody else.
my $node = new_node('main', conf => q{log_line_prefix = '%m [%p] %q<%u@%d> '
	pg_task.owner_code = on});

sub in_tenant { return sql($_[0], db => 'tenant', user => $_[1] // 'postgres') }

# Calls, as psql does; errors are welcome.
sub call_all
{
	my ($user, @calls) = @_;

	$node->psql('tenant', join(";\n", @calls) . ';',
		extra_params => [ '-U', $user ], on_error_stop => 0, on_error_die => 0);
	return;
}

# Who has executed what since this place in the log: "<what> as <who>".
sub ran_since
{
	my %ran = map { $_ => 1 } log_since($node, $_[0]) =~ /LOG:  ran (\w+ as \w+)/g;

	return join ', ', sort keys %ran;
}

# The owner of a database, whoever reads his table, and what he puts into it.
sql(q{
	CREATE ROLE owner LOGIN;
	CREATE ROLE deputy LOGIN IN ROLE owner;
	CREATE ROLE app LOGIN;
	CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
	CREATE ROLE watcher LOGIN NOINHERIT IN ROLE monitor;
	CREATE ROLE reader LOGIN IN ROLE pg_read_all_data;
	CREATE ROLE creator LOGIN CREATEDB;
	CREATE ROLE bypass LOGIN BYPASSRLS});
sql('CREATE DATABASE tenant OWNER owner');
wait_for_table($node, table => $_, db => 'tenant') for qw(task task_queue);
# its scheduler has said what pg_task.owner_code is there
run_task($node, db => 'tenant', request => 'SELECT 1');
sql('TRUNCATE task RESTART IDENTITY', db => 'tenant');
sql('ALTER DATABASE tenant SET pg_task.enabled = off');
wait_until($node, q{SELECT count(*) = 0 FROM pg_stat_activity
	WHERE datname = 'tenant' AND backend_type = 'pg_task scheduler'});

in_tenant(q{
	GRANT ALL ON task TO app, monitor, watcher, reader, creator, bypass;
	GRANT SELECT ON task_queue TO app, monitor, watcher, reader, creator, bypass;
	INSERT INTO task_queue (queue, max) VALUES ('q', 1);
	INSERT INTO task (queue, flow, step, key, request) VALUES ('q', 'q', 'a', 'k', 'SELECT 1');
	INSERT INTO task (queue, flow, state, start, stop, sqlstate, error, request)
		SELECT 'q', 'q', s, now(), now(), 'XX000', 'error', 'SELECT 1'
		  FROM unnest('{DONE,FAIL,GONE,STOP}'::text[]) AS s;
	CREATE FUNCTION ran(what text) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		BEGIN
			RESET ROLE;
		EXCEPTION WHEN OTHERS THEN
		END;
		BEGIN
			SET SESSION AUTHORIZATION postgres;
		EXCEPTION WHEN OTHERS THEN
		END;
		RAISE LOG 'ran % as %', what, current_user;
		RETURN true;
	END $$;
	CREATE FUNCTION lie(what text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
	BEGIN
		RETURN public.ran(what);
	END $$;
	CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM public.ran(TG_ARGV[0]);
		RETURN NEW;
	END $$;
	CREATE DOMAIN strange AS int CHECK (public.ran('domain'))}, 'owner');
# rows that each of these may see
in_tenant("INSERT INTO task (queue, flow, role, request) VALUES ('q', 'q', '$_', 'SELECT 1')")
  for qw(app monitor reader creator bypass);
in_tenant(q{
	CREATE INDEX expression ON task ((lie('expression')));
	CREATE INDEX predicate ON task (id) WHERE lie('predicate');
	CREATE STATISTICS s ON (lie('statistics' || id)), (queue || 'x') FROM task;
	CREATE POLICY p ON task USING (ran('policy'));
	CREATE POLICY p ON task_queue USING (ran('queue_policy'));
	ALTER TABLE task ADD CONSTRAINT liar CHECK (lie('check'));
	ALTER TABLE task ADD strange strange DEFAULT ran('default')::int,
		ADD made boolean GENERATED ALWAYS AS (lie('generated' || id)) STORED;
	CREATE TRIGGER a BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION trap('before');
	CREATE TRIGGER z AFTER UPDATE ON task FOR EACH ROW EXECUTE FUNCTION trap('after');
	CREATE TRIGGER zz AFTER UPDATE ON task FOR EACH STATEMENT EXECUTE FUNCTION trap('statement')},
	'owner');

# A call of each function of the extension that is no trigger.
my %value = (
	'bigint' => 1, 'bigint[]' => q{'{1,2}'}, 'text' => q{'q'}, 'text[]' => q{'{q}'}, 'interval' => q{interval '1 ms'},
	'timestamp with time zone' => q{now() - interval '1 h'}, 'integer' => 5, 'boolean' => 'true',
	'name' => 'current_user', 'jsonb' => q{'{}'}, 'oid' => 10, 'double precision' => 1,
	xid => q{'3'});
my @calls;

for (split /\n/, sql(q{
	SELECT format('%s|%s|%s', p.oid::regproc, p.prokind, (
			SELECT string_agg(format_type(t, NULL), ',' ORDER BY n)
			FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, n)))
	FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid AND d.classid = 'pg_proc'::regclass
	WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_task')
	AND p.prorettype <> 'trigger'::regtype AND p.proname <> 'pg_stat_task_reset'
	ORDER BY p.oid::regproc::text}))
{
	my ($name, $kind, $types) = split /\|/, $_, -1;
	my @values = map { $value{$_} // die "no value of type $_ for $name" } split /,/, $types;

	push @calls, ($kind eq 'p' ? "CALL $name(" : "SELECT * FROM $name(") . join(', ',
		@values) . ')';
}
cmp_ok(scalar(@calls), '>', 20, 'the functions of the extension');
push @calls, q{SELECT pg_task_retry(1)}, q{SELECT pg_task_retry('XX000', '-infinity')},
  q{SELECT pg_task_cancel(id) FROM generate_series(1, 10) AS id},
  q{SELECT pg_task_why(id), pg_task_result(id) FROM generate_series(1, 10) AS id};
unshift @calls, 'SET constraint_exclusion = on';

# Code of the owner runs in no session of somebody else, but for an ordinary grantee: as himself.
subtest 'whose rights' => sub {
	for my $user (qw(postgres deputy monitor watcher reader creator bypass))
	{
		my $place = log_position($node);

		call_all($user, @calls);
		unlike(ran_since($place), qr/ as /, "$user: none of the owner's code");
		like(error_of($user, 'SELECT * FROM pg_task_queues()', db => 'tenant'),
			qr/code of the owner of the task table must not run/, "$user: the functions are refused");
	}
	my $start = log_position($node);

	call_all('owner', @calls);
	like(ran_since($start), qr/predicate as owner/, 'the owner himself: so the test can fail');
	unlike(ran_since($start), qr/ as (?!owner\b)/, '... with his rights');
	for my $role (qw(owner app))
	{
		my $place = log_position($node);

		call_all('postgres', "SET $_ $role", @calls) for 'ROLE', 'SESSION AUTHORIZATION';
		unlike(ran_since($place), qr/ as (?!owner\b|app\b)/, "a superuser who is $role now");
	}
	my $place = log_position($node);

	call_all('app', @calls);
	unlike(ran_since($place), qr/ as (?!app\b|owner\b)/, 'an ordinary grantee: as himself');
};

# Who sees what: the rows of other roles are hidden from them, as by the policy of pg_task.
subtest 'what is seen' => sub {
	in_tenant(q{DROP POLICY p ON task; UPDATE task SET state = 'PLAN';
		DROP INDEX expression, predicate; DROP STATISTICS s;
		ALTER TABLE task DROP CONSTRAINT liar, DROP strange, DROP made}, 'owner');
	my $all = in_tenant('SELECT sum(waits) FROM pg_task_queues()');

	is($all, in_tenant('SELECT count(*) FROM task'), 'a superuser sees all');
	for my $user (qw(deputy bypass))
	{
		is(in_tenant('SELECT sum(waits) FROM pg_task_queues()', $user), $all, "$user, too");
	}
	for my $user (qw(app reader creator))
	{
		is(in_tenant('SELECT sum(waits) FROM pg_task_queues()', $user),
			in_tenant('SELECT count(*) FROM task', $user), "$user sees what he may");
	}
	is(in_tenant('SELECT sum(waits) FROM pg_task_queues()', 'monitor'), $all,
		'the numbers are for pg_read_all_stats');
	for my $user (qw(monitor app reader creator))
	{
		is(in_tenant(q{SELECT count(*) FROM generate_series(1, 10) AS id
				WHERE pg_task_why(id) IS NOT NULL}, $user),
			in_tenant('SELECT count(*) FROM task', $user), "$user: his rows");
	}
	# in a transaction that has written, the last statement also reads who has written a row
	is(in_tenant(q{BEGIN; INSERT INTO task (queue, request) VALUES ('q', 'SELECT 1');
			SELECT count(state) FROM pg_task_wait(ARRAY(SELECT generate_series(1, 10)), '0');
			ROLLBACK}, 'monitor'), 1, 'and in a transaction');
	in_tenant('REVOKE SELECT ON task FROM monitor', 'owner');
	like(error_of('monitor', 'SELECT pg_task_why(1)', db => 'tenant'), qr/permission denied/,
		'no row without a grant');
	is(in_tenant('SELECT sum(waits) FROM pg_task_queues()', 'monitor'), $all, 'but the numbers');
	in_tenant(q{GRANT SELECT ON task TO monitor;
		CREATE POLICY r ON task AS RESTRICTIVE USING (false)}, 'owner');
	is(sqlstate_of('monitor', 'SELECT pg_task_why(7)', db => 'tenant'), '42501',
		'a restrictive policy: not at all');
	in_tenant('DROP POLICY r ON task', 'owner');
};

# What users choose is no part of the text of a report, and they write none.
subtest 'the language of reports' => sub {
	is(sqlstate_of('owner', q{CREATE FUNCTION f() RETURNS SETOF text LANGUAGE pg_task_report
		AS 'SELECT 1'}, db => 'tenant'), '42501', 'not for the owner of a database');
	is(sqlstate_of('postgres', 'SELECT pg_task_report()', db => 'tenant'), '42601',
		'its handler alone executes nothing');
	my $name = q{{rows}"'; {activity} {figures}};

	in_tenant('ALTER TABLE task RENAME TO ' . ($name =~ s/"/""/gr =~ s/.*/"$&"/r), 'owner');
	is(in_tenant('SELECT sum(waits) > 0 FROM pg_task_queues()'), 't', 'an odd name of the table');
	is(in_tenant(q{SELECT count(*) FROM pg_task_graph('q')}), 1, 'and with another function');
	in_tenant('ALTER TABLE ' . ($name =~ s/"/""/gr =~ s/.*/"$&"/r) . ' RENAME TO task', 'owner');

	make_gates($node);
	my $message = q{it's '' {rows} \ {figures}};
	my $id = insert_task($node, queue => 'top',
		request => 'SELECT pg_task_progress(1, 2, ' . literal($message) . q{), hold('told')});

	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	for my $set ('on', sql('SHOW server_version_num') < 190000 ? 'off' : ())
	{
		is(sql("SET standard_conforming_strings = $set; SELECT split_part(text, ': ', 2)
			FROM pg_task_top() WHERE what = 'runs'"), $message, "a message, strings $set");
	}
	open_gate($node, 'told');
	wait_for_state($node, $id, 'DONE');
};

# The lock of a function that reads or stops tasks does not keep the owner from adding code.
subtest 'code that is added while a function waits' => sub {
	in_tenant('DROP TRIGGER a ON task; DROP TRIGGER z ON task; DROP TRIGGER zz ON task', 'owner');
	my $id = in_tenant(q{INSERT INTO task (queue, dt, request)
		VALUES ('late', 'infinity', 'SELECT 1')
		RETURNING id});
	my @late = (
		[ "pg_task_cancel($id)", 'SELECT',
			q{CREATE TRIGGER late BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION trap('late')},
			'DROP TRIGGER late ON task' ],
		[ 'pg_task_queues()', 'REINDEX INDEX task_waits_idx',
			q{CREATE INDEX late ON task ((lie('late')))}, 'DROP INDEX late' ]);

	for my $try (@late)
	{
		my ($call, $lock, $add, $drop) = @$try;
		my $place = log_position($node);
		my $owner = open_session($node, 'tenant', extra_params => [ '-U', 'owner' ]);
		my $caller = open_session($node, 'tenant', on_error_stop => 0);

		$owner->query_safe("BEGIN; $lock");
		$owner->query_safe($add) if $call =~ /cancel/;
		$caller->query_until(qr/asked/, "\\echo asked\nSELECT $call;\n");
		wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = 'tenant'
			AND usename = 'postgres' AND wait_event_type = 'Lock'});
		$owner->query_safe($add) unless $call =~ /cancel/;
		my $mark = log_position($node);
		$owner->query_safe('COMMIT');
		$_->quit for $caller, $owner;
		unlike(ran_since($mark), qr/late as/, "$call: the code does not run");
		like(log_since($node, $place), qr/ERROR:  code of the owner of the task table must not run/,
			"$call is refused");
		in_tenant($drop, 'owner');
	}
};

# The name of a schema is not locked: a view takes the place of the table while functions are
# called.  But pg_task_create locks schemas, and may be in a deadlock with what changes their names,
# and pg_task_change_owner would give the table, which has no code any more, to the caller.
subtest 'schemas change their names' => sub {
	in_tenant(q{
		CREATE SCHEMA a; CREATE SCHEMA b;
		ALTER TABLE task SET SCHEMA a;
		CREATE VIEW b.task AS SELECT * FROM a.task WHERE public.ran('view');
		GRANT ALL ON b.task TO PUBLIC;
		CREATE TABLE stop ();
		CREATE PROCEDURE swap() LANGUAGE plpgsql AS $$
		BEGIN
			WHILE to_regclass('public.stop') IS NOT NULL LOOP
				ALTER SCHEMA a RENAME TO c;
				ALTER SCHEMA b RENAME TO a;
				ALTER SCHEMA c RENAME TO b;
				COMMIT;
			END LOOP;
		END $$}, 'owner');
	my $server = sql('SELECT pg_postmaster_start_time()');
	my $session = open_session($node, 'tenant', extra_params => [ '-U', 'owner' ]);
	my $place = log_position($node);

	$session->query_until(qr/begun/, "\\echo begun\nCALL swap();\n");
	for my $user (qw(postgres monitor app))
	{
		call_all($user, (grep { !/wait|create|change_owner|FROM generate_series/ } @calls) x 20);
	}
	in_tenant('DROP TABLE stop', 'owner');
	ok($session->quit, 'the schemas have changed their names');
	unlike(ran_since($place), qr/view as/, 'the view is never read');
	like(log_since($node, $place), qr/ERROR:  the task table has changed/,
		'it had the name of the table, and that was noticed');
	is(sql('SELECT pg_postmaster_start_time()'), $server, 'the server goes on');
	is(sql('SELECT count(*) FROM pg_stat_activity WHERE backend_start < pg_postmaster_start_time()'),
		0, 'no crash');
};

done_testing();
