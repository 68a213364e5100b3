# What a task leaves in its transaction does not reach the owner's code in the write-back, where
# pg_task.owner_code lets it run: deferred triggers, temporary types, cursors.
# A TAP test because it needs one process that runs several tasks of a role, and the log, which no
# rollback undoes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf =>
	  "pg_task.max_executors = 1\npg_task.idle_timeout = 600000\npg_task.owner_code = on");

# Runs requests of mallory one after the other, in the same process; returns the last task.
sub run_as_mallory
{
	my $id;

	for my $request (@_)
	{
		$id = insert_task($node, request => $request, role => 'mallory');
		wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id");
	}
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))});
	return $id;
}

# Runs requests, and returns the role that the trap was run as: if that is mallory, it is harmless.
sub caught
{
	my $position = log_position($node);
	my $id = run_as_mallory(@_);
	my %who = map { $_ => 1 } log_since($node, $position) =~ /LOG:  the trap runs as (\w+)/g;

	is(task($node, $id, q{concat(state, error)}), 'DONE', 'the last request is DONE');
	sql('ALTER ROLE mallory NOSUPERUSER');
	return join ' ', sort keys %who;
}

# The owner's code, with names that are usually not qualified.
sql(q{
	CREATE ROLE mallory LOGIN;
	GRANT INSERT, SELECT, UPDATE, DELETE ON task TO mallory;
	CREATE SCHEMA evil AUTHORIZATION mallory;
	CREATE SCHEMA own; GRANT USAGE ON SCHEMA own TO PUBLIC;
	CREATE TABLE own.audit (n int GENERATED ALWAYS AS IDENTITY, id bigint, what text, who name);
	GRANT ALL ON own.audit TO PUBLIC;
	CREATE FUNCTION evil.trap() RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		RAISE LOG 'the trap runs as %', current_user;
		BEGIN
			EXECUTE 'ALTER ROLE mallory SUPERUSER';
		EXCEPTION WHEN insufficient_privilege THEN NULL;
		END;
		RETURN true;
	END $$;
	ALTER FUNCTION evil.trap OWNER TO mallory;
	GRANT CREATE ON DATABASE postgres TO mallory});
sql(q{SET ROLE mallory; CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.trap())});

my $path = 'SET search_path = evil, pg_catalog';
my $insert = q{INSERT INTO public.task (request) VALUES ('SELECT 1')};

# A trigger function is compiled by an INSERT of the task, and called by the write-back.
sub trigger
{
	my ($body, $declare, $clause) = (@_, '');

	sql(qq{
		CREATE OR REPLACE FUNCTION own.audit() RETURNS trigger LANGUAGE plpgsql $clause AS \$\$
		DECLARE $declare
		BEGIN
			$body
			RETURN NEW;
		END \$\$;
		CREATE OR REPLACE TRIGGER audit BEFORE INSERT OR UPDATE ON task FOR EACH ROW
			EXECUTE FUNCTION own.audit()});
}
my $note = 'INSERT INTO own.audit (id, what, who) VALUES (NEW.id, msg, current_user);';

# A temporary type that hides another, in a transaction that has not used the name pg_temp.
subtest 'temporary types' => sub {
	trigger("msg := NEW.state; $note", 'msg text;', 'SET search_path = own');
	my $temporary = q{DO $d$BEGIN
		EXECUTE format('CREATE DOMAIN %I.text AS pg_catalog.text CHECK (evil.trap())',
			pg_my_temp_schema()::regnamespace);
		EXECUTE format('GRANT ALL ON DOMAIN %I.text TO PUBLIC', pg_my_temp_schema()::regnamespace);
		EXECUTE format('GRANT USAGE ON SCHEMA %I TO PUBLIC', pg_my_temp_schema()::regnamespace);
	EXCEPTION WHEN insufficient_privilege THEN NULL; END$d$};
	is(caught('CREATE TEMP TABLE t (a int)'), '', 'a temporary schema');
	trigger("msg := NEW.state; $note", 'msg text;', 'SET search_path = own');
	is(caught($temporary), '', 'a temporary type by the name of its schema');
	trigger("msg := NEW.state; $note", 'msg text;', 'SET search_path = own');
	is(caught('CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (evil.trap())'),
		'', 'a temporary type');
};

# Deferred triggers that queue others; the last one creates a table that hides the owner's.
subtest 'deferred triggers' => sub {
	(my $unqualified = $note) =~ s/own\.//;
	sql(q{
		SET ROLE mallory;
		SET search_path = evil, pg_catalog;
		CREATE TABLE first (a int); CREATE TABLE second (a int); CREATE TABLE third (a int);
		CREATE FUNCTION spring() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM evil.trap();
			RETURN NULL;
		END $$;
		CREATE FUNCTION shadow() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			CREATE TEMP TABLE audit (n int, id bigint, what pg_catalog.text, who name);
			GRANT ALL ON pg_temp.audit TO PUBLIC;
			CREATE TRIGGER spring AFTER INSERT ON pg_temp.audit FOR EACH ROW
				EXECUTE FUNCTION evil.spring();
			RETURN NULL;
		END $$;
		CREATE FUNCTION chain() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			SET CONSTRAINTS ALL DEFERRED;
			EXECUTE format('INSERT INTO evil.%I VALUES (1)', TG_ARGV[0]);
			RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER chain AFTER INSERT ON first DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION chain('second');
		CREATE CONSTRAINT TRIGGER chain AFTER INSERT ON second DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION chain('third');
		CREATE CONSTRAINT TRIGGER shadow AFTER INSERT ON third DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION shadow();
		CREATE FUNCTION evil.start(t pg_catalog.text) RETURNS int LANGUAGE plpgsql AS $$
		BEGIN
			EXECUTE format('INSERT INTO evil.%I VALUES (1)', t);
			RETURN 1;
		END $$});
	my $before = sql('SELECT max(n) FROM own.audit');
	for my $way (map { ("INSERT INTO evil.$_ VALUES (1)",
		"DECLARE c CURSOR WITH HOLD FOR SELECT evil.start('$_')") } qw(first second third))
	{
		# create it again, because a saved plan may refer to the table
		trigger($unqualified, q{msg own.audit.what%TYPE := 'owner';}, 'SET search_path = own');
		is(caught($way), '', $way);
	}
	cmp_ok(sql(qq{SELECT count(*) FROM own.audit
		WHERE who = 'postgres' AND what = 'owner' AND n > $before}),
		'>=', 6, 'the trigger of the owner finds its table');
};

# Deferred work at commit is part of the run: the timeout covers it, and it can be cancelled.
subtest 'deferred work at commit' => sub {
	sql(q{INSERT INTO task (request, role, timeout) VALUES
		('DECLARE c CURSOR WITH HOLD FOR SELECT pg_sleep(20)', 'mallory', '200 ms')});
	wait_until($node, q{SELECT state IN ('DONE', 'FAIL') FROM task WHERE timeout IS NOT NULL});
	is(sql('SELECT state, sqlstate FROM task WHERE timeout IS NOT NULL'), 'FAIL|TK001',
		'a cursor that takes too long');
};

# Tasks that plan tasks and procedures that commit still work.
subtest 'procedures that commit' => sub {
	sql(q{
		CREATE PROCEDURE own.step(n int) LANGUAGE plpgsql AS $$
		DECLARE
			t text;
		BEGIN
			FOR i IN 1 .. n LOOP
				INSERT INTO public.task (request) VALUES ('SELECT own.count()')
				RETURNING state INTO t;
				COMMIT;
			END LOOP;
		END $$;
		CREATE FUNCTION own.count() RETURNS bigint LANGUAGE sql AS 'SELECT 1';
		GRANT ALL ON SCHEMA own TO PUBLIC});
	my $count = count_of($node, 'true');
	is(task($node, run_as_mallory('CALL own.step(3)'), 'state'), 'DONE',
		'a procedure that commits');
	is(count_of($node, 'true'), $count + 4, 'the procedure has its effects');
	is(count_of($node, "state = 'DONE' AND request = 'SELECT own.count()'"), 3,
		'the tasks that it planned have their effects');

	$node->stop;
};

done_testing();
