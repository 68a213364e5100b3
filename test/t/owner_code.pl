# Code of a table's owner that a write could run: tasks of tenants wait for as long as there is any,
# and a tenant's DELETE does not run it.  What the owner's functions have been compiled to in a
# process of a tenant never runs as the owner.  And such code leaves nothing in the scheduler.
# A TAP test because it needs one process that runs several tasks of a role, and the log, which no
# rollback undoes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', period => '1 s',
	conf => "pg_task.max_executors = 2\npg_task.idle_timeout = 600000");

# A domain that hides the type text: its constraint is the trap.  own.touch is compiled by a tenant
# so that it uses the domain.
sql(q{
	CREATE ROLE mallory LOGIN;
	GRANT INSERT, SELECT, UPDATE, DELETE ON task TO mallory;
	CREATE SCHEMA evil AUTHORIZATION mallory;
	CREATE SCHEMA own; GRANT USAGE ON SCHEMA own TO PUBLIC;
	CREATE FUNCTION evil.trap() RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		RAISE LOG 'the trap runs as %', current_user;
		BEGIN
			EXECUTE 'ALTER ROLE mallory SUPERUSER';
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
		RETURN true;
	END $$;
	ALTER FUNCTION evil.trap OWNER TO mallory;
	CREATE FUNCTION own.touch() RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
		'DECLARE t text; BEGIN t := 1; RETURN true; END';
	CREATE FUNCTION own.touched(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS
		'BEGIN PERFORM own.touch(); RETURN $1; END';
	CREATE FUNCTION own.compare(bigint, bigint) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
		'BEGIN PERFORM own.touch(); RETURN btint8cmp($1, $2); END';
	CREATE FUNCTION own.see() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM own.touch(); RETURN coalesce(NEW, OLD); END';
	CREATE DOMAIN own.word AS text CHECK (own.touch());
	CREATE OPERATOR CLASS own.numbers FOR TYPE bigint USING btree AS OPERATOR 1 <, OPERATOR 2 <=,
		OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 own.compare(bigint, bigint);
	CREATE DOMAIN own.checked AS text CHECK (own.touched(length(VALUE)) IS NOT NULL);
	CREATE TYPE own.color AS ENUM ('red');
	CREATE FUNCTION own.color_json(own.color) RETURNS json IMMUTABLE LANGUAGE plpgsql AS
		$$BEGIN PERFORM own.touch(); RETURN '1'::json; END$$;
	CREATE CAST (own.color AS json) WITH FUNCTION own.color_json(own.color);
	CREATE FUNCTION own.differs(bigint, bigint) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
		'BEGIN PERFORM own.touch(); RETURN $1 <> $2; END';
	CREATE OPERATOR own.=== (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = int8eq,
		NEGATOR = OPERATOR(own.!==));
	CREATE OPERATOR own.!== (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = own.differs,
		NEGATOR = OPERATOR(own.===));
	CREATE TABLE own.log (id bigint);
	CREATE TRIGGER see BEFORE DELETE ON own.log FOR EACH ROW EXECUTE FUNCTION own.see()});
sql(q{SET ROLE mallory; CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.trap())});

my $compile = 'SET search_path = evil, pg_catalog; '
  . "SELECT own.touch(), own.touched(1), own.compare(1, 2), 'x'::own.word";
# CHECK constraints and defaults as people write them are none of it.
sql(q{ALTER TABLE task ADD ordered_by text DEFAULT current_setting('app.user', true),
	ADD created timestamptz DEFAULT now(), ADD uuid uuid DEFAULT gen_random_uuid(),
	ADD CHECK (length(request) < 100000 AND lower(queue) = queue AND created > '2000-01-01'),
	ADD CHECK (dt < created + interval '1 year' OR dt = 'infinity' OR state IN ('DONE', 'FAIL')),
	ADD CHECK (coalesce(input ->> 'kind', '') ~ '^[a-z]*$' AND priority BETWEEN -9 AND 9),
	ADD CHECK (ordered_by <> ALL ('{a,b}')
		AND (CASE WHEN priority > 0 THEN attempt ELSE 1 END) >= 0)});
sql(q{CREATE INDEX ON task (lower(queue), (input -> 'kind'), (dt AT TIME ZONE 'UTC'))});

# The kinds of objects whose code a write to a table runs: how to add and to remove one, and what
# names it.  %s is the table, and id one of its columns.
my @kinds = (
	['trigger', 'CREATE TRIGGER bait BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW'
		. ' EXECUTE FUNCTION own.see()', 'DROP TRIGGER bait ON %s', qr/trigger bait/],
	['check constraint', 'ALTER TABLE %s ADD CONSTRAINT bait CHECK (own.touch()) NOT VALID',
		'ALTER TABLE %s DROP CONSTRAINT bait', qr/constraint bait/],
	['default', 'ALTER TABLE %1$s ADD bait boolean;'
		. ' ALTER TABLE %1$s ALTER bait SET DEFAULT own.touch()',
		'ALTER TABLE %s DROP bait', qr/column bait/],
	['domain', 'ALTER TABLE %s ADD bait own.word', 'ALTER TABLE %s DROP bait', qr/column bait/],
	['array of a domain', 'ALTER TABLE %s ADD bait own.word[]', 'ALTER TABLE %s DROP bait',
		qr/column bait/],
	['generated column', 'ALTER TABLE %s ADD bait bigint'
		. ' GENERATED ALWAYS AS (own.touched(id)) STORED',
		'ALTER TABLE %s DROP bait', qr/column bait/],
	['index expression', 'CREATE INDEX bait ON %s (own.touched(id))', 'DROP INDEX public.bait',
		qr/index public.bait/],
	['index condition', 'CREATE INDEX bait ON %s (id) WHERE own.touch()', 'DROP INDEX public.bait',
		qr/index public.bait/],
	['operator class', 'CREATE INDEX bait ON %s (id own.numbers)', 'DROP INDEX public.bait',
		qr/index public.bait/],
	['statistics', 'CREATE STATISTICS public.bait ON (own.touched(id)), id FROM %s',
		'DROP STATISTICS public.bait', qr/statistics object public.bait/],
	['negator', 'ALTER TABLE %s ADD CONSTRAINT bait CHECK (NOT id OPERATOR(own.===) 5) NOT VALID',
		'ALTER TABLE %s DROP CONSTRAINT bait', qr/constraint bait/],
	['rule', 'CREATE RULE bait AS ON DELETE TO %s DO ALSO SELECT own.touch()',
		'DROP RULE bait ON %s', qr/rule bait/],
	['foreign-key action', 'ALTER TABLE own.log ADD CONSTRAINT bait FOREIGN KEY (id)'
		. ' REFERENCES %s (id) ON DELETE CASCADE', 'ALTER TABLE own.log DROP CONSTRAINT bait',
		qr/constraint bait/],
	['query in a default', 'ALTER TABLE %1$s ADD bait xml;'
		. q{ ALTER TABLE %1$s ALTER bait
			SET DEFAULT query_to_xml('SELECT own.touch()', true, true, '')},
		'ALTER TABLE %s DROP bait', qr/column bait/],
	map { ["a built-in function: $_",
		"ALTER TABLE %s ADD CONSTRAINT bait CHECK ($_ IS NOT NULL) NOT VALID",
		'ALTER TABLE %s DROP CONSTRAINT bait', qr/constraint bait/] }
		q{to_json('red'::own.color)}, q{domain_in('x'::cstring, 'own.checked'::regtype::oid, -1)},
		q{array_in('{x}'::cstring, 'own.checked'::regtype::oid, -1)},
		q{pg_relation_size('own.log'::regclass)}, q{format('%%s', 'red'::own.color)},
);

# The roles as which the trap has run since a position of the log, and whether it has succeeded.
sub trapped
{
	my ($position) = @_;
	my %who = map { $_ => 1 } log_since($node, $position) =~ /LOG:  the trap runs as (\w+)/g;

	$who{superuser} = 1 if sql(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'}) eq 't';
	sql('ALTER ROLE mallory NOSUPERUSER');
	return join ' ', sort keys %who;
}

# What pg_task_why says of a task that waits for the code of the owner; the scheduler may prepare the
# table before it says that.
sub why_it_waits
{
	my ($id) = @_;
	my $why;

	poll_for(sub {
		$why = sql("SELECT CASE state WHEN 'PLAN' THEN pg_task_why(id) ELSE state END FROM task
			WHERE id = $id");
		return $why =~ /^(?:code of the owner|DONE)/;
	});
	return $why;
}

# Compiles the functions in the executor of mallory, which stays.
sub compile_in_executor
{
	return run_task($node, request => $compile, role => 'mallory');
}

subtest 'a task of a tenant waits for the code of the owner' => sub {
	is(task($node, compile_in_executor(), 'state'), 'DONE',
		'the tenant has compiled the functions');
	for my $kind (@kinds)
	{
		my ($name, $add, $remove, $object) = @$kind;
		my $position = log_position($node);

		sql(sprintf $add, 'public.task');
		my $id = insert_task($node, request => $compile, role => 'mallory');
		like(why_it_waits($id), qr/^code of the owner[^;:]*: $object[^:]*; drop it, or set/,
			"$name: pg_task_why names it");
		is(task($node, run_task($node, request => 'SELECT 1'), 'state'), 'DONE',
			"$name: a task of the owner runs");
		is_row($node, $id, { state => 'PLAN', attempt => '0' },
			"$name: the task of the tenant waits");
		like(log_since($node, $position),
			qr/tasks of roles other than the owner of public.task wait.*\n.*$object/, "$name: the log");
		sql(sprintf $remove, 'public.task');
		wait_for_state($node, $id, 'DONE');
		is(trapped($position), 'mallory', "$name: the trap has run as the tenant alone");
	}
};

subtest 'a table beside the task table' => sub {
	for my $table (qw(task_queue task_rate))
	{
		sql("CREATE TABLE IF NOT EXISTS $table (id bigint PRIMARY KEY)") if $table ne 'task_queue';
		sql("CREATE TRIGGER bait BEFORE INSERT ON $table FOR EACH ROW EXECUTE FUNCTION own.see()");
		terminate($node, backends($node, 'scheduler'));
		my $id = insert_task($node, request => 'SELECT 1', role => 'mallory');
		like(why_it_waits($id), qr/trigger bait on table public.$table/, $table);
		sql("DROP TRIGGER bait ON $table");
		wait_for_state($node, $id, 'DONE');
		sql("DROP TABLE $table") if $table ne 'task_queue';
	}
};

subtest 'code that comes while a task runs' => sub {
	make_gates($node);
	sql('CREATE TABLE own.effects (id int); GRANT ALL ON own.effects TO mallory');
	for my $request ("$compile; INSERT INTO own.effects VALUES (1); SELECT public.hold('%s')",
		"$compile; SELECT public.hold('%s'); SELECT 1/0")
	{
		my $position = log_position($node);
		my $gate = "gate $position";
		my $id = insert_task($node, request => sprintf($request, $gate), role => 'mallory');

		wait_for_running($node, 1, id => $id);
		sql('CREATE TRIGGER bait BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION own.see()');
		open_gate($node, $gate);
		wait_for_state($node, $id, 'PLAN');
		wait_until($node, "SELECT pg_task_why($id) LIKE '%trigger bait%'");
		is_row($node, $id, { state => 'PLAN', failed => '0' }, 'the row waits');
		is(sql('SELECT count(*) FROM own.effects'), 0, 'the run was rolled back');
		sql('DROP TRIGGER bait ON task');
		wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id");
		sql('TRUNCATE own.effects');
		is(trapped($position), 'mallory', 'the trap has run as the tenant alone');
	}
};

# No lock of a write-back keeps others from adding statistics, whose expressions the planner
# simplifies: here, of the statement after the one that has waited for a row.
subtest 'statistics that come while a row is written' => sub {
	my $position = log_position($node);
	my $session = open_session($node);
	my $id = insert_task($node, request => "$compile; SELECT public.hold('statistics'); SELECT 1/0",
		role => 'mallory', repeat => '1 h');

	wait_for_running($node, 1, id => $id);
	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $id FOR UPDATE");
	open_gate($node, 'statistics');
	wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity
		WHERE backend_type = 'pg_task executor' AND wait_event_type = 'Lock'});
	sql('CREATE STATISTICS public.bait ON (own.touched(1)), id FROM task');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_until($node, "SELECT pg_task_why($id) LIKE '%public.bait%' OR state = 'FAIL'
		FROM task WHERE id = $id");
	is_row($node, $id, { state => 'PLAN', failed => '0' }, 'the row waits');
	sql('DROP STATISTICS public.bait');
	wait_for_state($node, $id, 'FAIL');
	is(trapped($position), 'mallory', 'the trap has run as the tenant alone');
	sql('UPDATE task SET repeat = NULL; DELETE FROM task WHERE state = $$PLAN$$');
};

# Rows that wait for a task are changed as the owner, in the session of whoever removes the task.
subtest 'a DELETE by a tenant' => sub {
	my $new = sub {
		my $id = insert_task($node, request => 'SELECT 1', role => 'mallory', dt => 'infinity');
		return ($id, insert_task($node, request => 'SELECT 1', after => "{$id}"));
	};
	for my $kind (grep { $_->[0] ne 'foreign-key action' } @kinds)
	{
		my ($name, $add, $remove, $object) = @$kind;
		my $position = log_position($node);
		my ($id, $after) = $new->();

		sql(sprintf $add, 'public.task');
		like(error_of('mallory', "$compile; DELETE FROM public.task WHERE id = $id"), $object,
			"$name: the DELETE of a tenant is refused");
		sql("DELETE FROM task WHERE id = $id");
		sql(sprintf $remove, 'public.task');
		wait_for_state($node, $after, 'GONE');
		is(trapped($position), 'mallory', "$name: the trap has run as the tenant alone");
	}
	my ($id, $after) = $new->();
	sql_as('mallory', "$compile; DELETE FROM public.task WHERE id = $id");
	wait_for_state($node, $after, 'GONE');
	sql('DELETE FROM task');
};

# A role with rights beyond its database uses the table as the owner.
subtest 'a function that reads the table as the owner' => sub {
	sql('GRANT pg_read_all_stats TO mallory; CREATE INDEX bait ON task (own.touched(id)) WHERE own.touch()');
	my $id = insert_task($node, request => 'SELECT 1', role => 'mallory', dt => 'infinity');
	for my $call ('SELECT * FROM pg_task_queues()', 'SELECT * FROM pg_task_status()',
		"SELECT pg_task_why($id)", "SELECT pg_task_cancel($id)")
	{
		my $position = log_position($node);

		like(error_of('mallory', "$compile; $call"), qr/index public.bait/, "$call is refused");
		is(trapped($position), 'mallory', 'the trap has run as the tenant alone');
	}
	sql('DROP INDEX bait; REVOKE pg_read_all_stats FROM mallory');
	sql("DELETE FROM task WHERE id = $id");
};

# It is read as its owner, for whoever sees a task.
subtest 'a function that asks for the rule of a queue' => sub {
	sql('CREATE INDEX bait ON task_queue (own.touched(1), queue) WHERE own.touch()');
	my $id = insert_task($node, request => 'SELECT 1', role => 'mallory', dt => 'infinity',
		cron => '@reboot');
	for my $call ('SELECT * FROM pg_task_queues()', 'SELECT * FROM pg_task_repeating()',
		"SELECT pg_task_why($id)")
	{
		my $position = log_position($node);

		like(error_of('mallory', "$compile; $call"), qr/own.touch/, "$call is refused");
		is(trapped($position), 'mallory', 'the trap has run as the tenant alone');
	}
	sql('DROP INDEX bait');
	sql("DELETE FROM task WHERE id = $id");
};

subtest 'the setting pg_task.owner_code' => sub {
	sql(q{
		CREATE TABLE own.seen (id bigint, who name);
		CREATE FUNCTION own.write() RETURNS trigger LANGUAGE plpgsql SET search_path = own AS
			'BEGIN INSERT INTO seen VALUES (NEW.id, current_user); RETURN NEW; END';
		CREATE TRIGGER bait BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION own.write()});
	like(error_of('mallory', 'SET pg_task.owner_code = on'), qr/cannot be set in a session/,
		'a session cannot set it');
	sql('ALTER ROLE mallory SET pg_task.owner_code = on');
	my $id = insert_task($node, request => 'SELECT 1', role => 'mallory');
	wait_until($node, "SELECT pg_task_why($id) LIKE '%trigger bait%'");
	is(task($node, run_task($node, request => 'SELECT 1'), 'state'), 'DONE', 'others run');
	is(task($node, $id, 'state'), 'PLAN', 'that of a role has no effect');
	sql('ALTER DATABASE postgres SET pg_task.owner_code = on');
	wait_for_state($node, $id, 'DONE');
	is(sql("SELECT DISTINCT who FROM own.seen WHERE id = $id"), 'postgres',
		'with that of the database the code runs, as the owner');
	is(sql("SELECT pg_task_why(id) LIKE 'code%' FROM task WHERE id = $id"), 'f',
		'and nothing waits');
	sql('ALTER DATABASE postgres RESET pg_task.owner_code; ALTER ROLE mallory RESET ALL');
	$id = insert_task($node, request => 'SELECT 1', role => 'mallory');
	wait_until($node, "SELECT pg_task_why($id) LIKE '%trigger bait%'");
	pass('without it, tasks wait again');
	sql('DROP TRIGGER bait ON task');
	wait_for_state($node, $id, 'DONE');
};

# Each place in which a process or a session of somebody else acts as another role must be one of
# these: a new one needs a subtest above.
subtest 'the places that act as somebody else' => sub {
	my $src = "$FindBin::RealBin/../../src";
	my %places;

	for my $file (glob "$src/*.c $src/*/*.c")
	{
		my $text = slurp_file($file);

		while ($text =~ /^(\w+)\([^;{]*\)\n\{(.*?)^\}/msg)
		{
			my ($function, $body) = ($1, $2);
			my ($name) = $file =~ m{src/(.*)};

			$places{"$name $function"} = 1
			  if $body =~ /\b(owner_restrict|owner_become|SetUserIdAndSecContext)\(/;
		}
	}
	# owner.c is the switch itself.  Executors: tasks of tenants wait.  Sessions of tenants: they
	# are refused.  trigger_row.c reads a sequence and runs no code of anybody.  create.c is of the
	# scheduler, which runs no code of tenants, and of whoever has the rights of the owner; its
	# statements run no code of anybody (created_tables.pl).
	is(join("\n", sort keys %places), join("\n", sort
		'executor/write_back.c begin_acting',
		'scheduler/work.c work_begin', 'session/trigger_row.c read_sequence',
		'session/after.c mark_waiting', 'session/table_access.c become_user',
		'task/create.c may_find', 'task/create.c create_tables',
		'task/owner.c owner_restrict_end',
		'task/owner.c restrict_user',
		'task/queue_table.c read_as_owner'), 'no place but these');
};

$node->stop;
done_testing();
