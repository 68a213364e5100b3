# What a task leaves in its process or its transaction does not reach the owner's code in the
# write-back: compiled functions, inlined functions, deferred triggers, temporary types, settings.
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
trigger("msg := NEW.state; $note", 'msg text;');

subtest 'trigger functions' => sub {
	is(caught("$path; $insert"), 'mallory', 'a trigger: in the same task');
	is(caught("$path; $insert", 'SELECT 1'), 'mallory',
		'a trigger: in a later task of the process');
	is(sql("SELECT count(*) FROM own.audit WHERE who = 'postgres' AND what = 'DONE'"),
		count_of($node, "state = 'DONE'"), 'the trigger has run for each task');
	my $pid = sql('SELECT pid FROM task WHERE id = (SELECT min(id) FROM task)');
	is(sql('SELECT count(DISTINCT pid) FROM task WHERE pid IS NOT NULL'), 1,
		'one process ran all tasks');
	is(caught("$path; $insert"), 'mallory',
		'a task finds what its own path says, after write-backs');
};

# A function that the trigger calls, compiled by a call, by its validator, or before a commit.
subtest 'functions that a trigger calls' => sub {
	sql(q{
		CREATE FUNCTION own.shout(t text) RETURNS bigint LANGUAGE plpgsql AS
			'DECLARE msg text; BEGIN msg := t; RETURN length(msg); END';
		CREATE FUNCTION own.count() RETURNS bigint LANGUAGE plpgsql AS
			'DECLARE msg text; BEGIN msg := 1; RETURN 1; END'});
	trigger('PERFORM own.shout(NEW.state), own.count();', '');
	is(caught("$path; SELECT own.shout('x'), own.count()"), 'mallory', 'a function: called');
	is(caught("$path; SELECT own.shout('x'); COMMIT; SELECT own.count()"),
		'mallory', 'a function: called, with a commit');
	is(caught(qq{$path; SELECT plpgsql_validator('own.count()'::regprocedure),
		plpgsql_validator('own.shout(pg_catalog.text)'::regprocedure)}), '',
		'a function: validated');
	my $catch = 'EXCEPTION WHEN division_by_zero THEN NULL; END';
	is(caught("$path; DO 'BEGIN PERFORM own.count(); RAISE division_by_zero; $catch'"),
		'mallory', 'a function: called in a subtransaction');
	sql(q{CREATE FUNCTION own.away() RETURNS bigint LANGUAGE plpgsql AS
		'DECLARE msg text; BEGIN msg := 1; PERFORM 1/0; RETURN 1; END'});
	trigger("PERFORM own.count(); BEGIN PERFORM own.away(); $catch; PERFORM own.count();", '');
	is(caught("$path; SELECT own.count()", "$path; SELECT own.count()"),
		'mallory', 'a function: when the trigger catches errors');
	trigger(q{PERFORM own.count(); IF NEW.state = 'DONE' THEN PERFORM 1/0; END IF;}, '');
	my $position = log_position($node);
	is(task($node, run_as_mallory("$path; SELECT own.count()"), 'state'), 'FAIL',
		'a trigger that refuses the outcome');
	trigger('PERFORM own.count();', '');
	is(caught("$path; SELECT own.count()"), 'mallory',
		'a function: after an error in the write-back');
	unlike(log_since($node, $position), qr/the trap runs as postgres/,
		'the trap did not run in that task either');
	sql('DROP TRIGGER audit ON task');
};

# What the server caches with an object, for any time: index expressions, domains, casts.
subtest 'index expressions, domains, casts' => sub {
	sql(q{
		CREATE FUNCTION own.norm(t text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT lower(t)';
		CREATE INDEX norm ON task (own.norm(state))},
		extra_params => []);
	sql(q{
		SET ROLE mallory;
		CREATE FUNCTION evil.lower(t pg_catalog.text) RETURNS pg_catalog.text
			IMMUTABLE LANGUAGE plpgsql AS
			'BEGIN PERFORM evil.trap(); RETURN pg_catalog.lower(t); END';
		CREATE FUNCTION evil.btrim(t pg_catalog.text) RETURNS pg_catalog.text
			IMMUTABLE LANGUAGE plpgsql AS
			'BEGIN PERFORM evil.trap(); RETURN pg_catalog.lower(t); END'});
	is(caught("$path; $insert"), 'mallory', 'an index on a function in SQL');
	is(caught("$path; SELECT count(*) FROM public.task WHERE own.norm(state) = 'x'", 'SELECT 1'),
		'mallory', 'planned with');
	sql('DROP INDEX norm');
	sql(q{
		CREATE FUNCTION own.tidy(t text) RETURNS boolean IMMUTABLE LANGUAGE sql AS
			'SELECT length(btrim(t)) >= 0';
		CREATE DOMAIN own.word AS text CHECK (own.tidy(VALUE))});
	trigger('msg := NEW.state;', 'msg own.word;');
	is(caught("$path; SELECT 'x'::own.word"), 'mallory', 'a domain with a function in SQL');
	sql(q{
		CREATE TYPE own.mood AS ENUM ('calm');
		CREATE FUNCTION own.to_mood(text) RETURNS own.mood LANGUAGE sql AS
			$$SELECT CASE WHEN length(btrim($1)) > 0 THEN 'calm'::own.mood END$$;
		CREATE CAST (text AS own.mood) WITH FUNCTION own.to_mood(text) AS ASSIGNMENT});
	trigger(q{EXECUTE 'SELECT $1' INTO mood USING NEW.state;}, 'mood own.mood;');
	sql(q{CREATE FUNCTION evil.feel() RETURNS void LANGUAGE plpgsql AS $$
		DECLARE
			mood own.mood;
		BEGIN
			EXECUTE 'SELECT pg_catalog.version()' INTO mood;
		END $$});
	is(caught("$path; SELECT evil.feel()"),
		'mallory', 'a cast with a function in SQL');
	sql('DROP TRIGGER audit ON task');
	# without the trigger, a row is written without a statement; here the trap must catch no error
	sql(q{
		SET ROLE mallory;
		CREATE FUNCTION evil.upper(t pg_catalog.text) RETURNS pg_catalog.text LANGUAGE plpgsql AS
			$$BEGIN RAISE LOG 'the trap runs as %', current_user; RETURN pg_catalog.upper(t); END$$;
		RESET ROLE;
		CREATE FUNCTION own.compare(a text, b text) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
			'BEGIN RETURN bttextcmp(upper(a), upper(b)); END';
		CREATE OPERATOR CLASS own.words FOR TYPE text USING btree AS OPERATOR 1 <, OPERATOR 2 <=,
			OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 own.compare(text, text);
		CREATE INDEX compared ON task (state own.words)});
	is(caught("$path; $insert", "$path; $insert"), 'mallory', 'an operator class');
	sql('DROP INDEX compared');
};

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

sub seen
{
	my $id = run_as_mallory(@_);

	is(task($node, $id, 'state'), 'DONE', "$_[0]: DONE");
	return sql("SELECT string_agg(settings, '|' ORDER BY n) FROM own.seen WHERE id = $id");
}

my $plain;

# Settings: the owner's trigger has its own values, whatever the task sets.
subtest 'settings of the task' => sub {
	sql(q{
		CREATE TABLE own.seen (id bigint, n int GENERATED ALWAYS AS IDENTITY, settings text);
		CREATE FUNCTION own.see() RETURNS trigger LANGUAGE plpgsql SET search_path = own AS $$
		DECLARE
			nothing int;
		BEGIN
			INSERT INTO seen (id, settings)
			SELECT NEW.id, string_agg(name || '=' || current_setting(name, true), E'\n'
			ORDER BY name)
			FROM
			unnest('{standard_conforming_strings,backslash_quote,transform_null_equals,array_nulls,
				xmloption,session_replication_role,exit_on_error,DateStyle,IntervalStyle,TimeZone,
				bytea_output,extra_float_digits,default_text_search_config,lc_monetary,lc_numeric,
				lc_time,quote_all_identifiers,check_function_bodies,default_toast_compression,
				search_path}'::text[]) AS name;
			INSERT INTO seen (id, settings) SELECT NEW.id, 'null' WHERE nothing = NULL;
			RETURN NULL;
		END $$;
		CREATE TRIGGER see AFTER UPDATE ON task FOR EACH ROW WHEN (NEW.state = 'DONE')
			EXECUTE FUNCTION own.see()});
	$plain = seen('SELECT 1');
	like($plain, qr/TimeZone=/, 'the trigger sees its settings');
	for my $set (
		map({ "SET $_" } 'transform_null_equals = on', 'backslash_quote = on', 'array_nulls = off',
			'xmloption = document', 'exit_on_error = on', "DateStyle = 'SQL, DMY'",
			'IntervalStyle = iso_8601', "TimeZone = 'Asia/Tokyo'", 'bytea_output = escape',
			'extra_float_digits = 0', "default_text_search_config = 'simple'", "lc_numeric = 'C'",
			'quote_all_identifiers = on', 'check_function_bodies = off'),
		"SELECT set_config('TimeZone', 'Asia/Tokyo', true), set_config('array_nulls', 'off', true)")
	{
		is(seen($set), $plain, $set);
	}
	if (sql('SHOW server_version_num') < 190000)
	{
		is(seen('SET standard_conforming_strings = off'), $plain, 'standard_conforming_strings');
	}
	is(seen('SELECT 1'), $plain, 'the trigger sees the same settings afterwards');
};

# Settings of the role, by itself or by others, change no statement of the owner.
subtest 'settings of the role' => sub {
	sql('ALTER ROLE mallory SET transform_null_equals = on; ALTER ROLE mallory '
		. 'SET exit_on_error = on');
	is(seen('SELECT 1'), $plain, 'settings of the role change nothing');
	sql('ALTER ROLE mallory RESET ALL');
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
