# Code of a table's owner leaves nothing in the session of the scheduler: neither locks nor anything
# else that outlives a transaction.
# A TAP test because it needs tasks that run, and a server whose lock table is small.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main',
	conf => "pg_task.max_executors = 2\nmax_locks_per_transaction = 10");

# Locks of the session, which no transaction ends: the lock table has room for some hundred.
subtest 'what the code of the owner leaves in the session' => sub {
	my $library = build_module('ignore_signals');
	sql(q{
		CREATE ROLE keeper LOGIN;
		CREATE DATABASE kept OWNER keeper});
	wait_for_table($node, table => 'task', db => 'kept');
	sql_in('kept', "CREATE FUNCTION ignore_signals() RETURNS void LANGUAGE c AS '$library'");
	sql(q{
		SET ROLE keeper;
		CREATE SEQUENCE locks;
		CREATE TABLE tried (what text PRIMARY KEY);
		CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$
		DECLARE
			command text;
		BEGIN
			PERFORM public.ignore_signals();
			PERFORM pg_advisory_lock(nextval('public.locks')) FROM generate_series(1, 100);
			PERFORM set_config('work_mem', '66kB', false);
			FOREACH command IN ARRAY ARRAY['CREATE TEMP TABLE t (a int)', 'LISTEN c',
				'PREPARE p AS SELECT 1', 'DECLARE h CURSOR WITH HOLD FOR SELECT 1'] LOOP
				BEGIN
					EXECUTE command;
					INSERT INTO public.tried VALUES (command) ON CONFLICT DO NOTHING;
				EXCEPTION WHEN OTHERS THEN NULL;
				END;
			END LOOP;
			IF NEW.queue = 'refused' AND NEW.state = 'WORK' THEN
				RAISE 'refused';
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER leave BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION leave()},
		db => 'kept');
	my @states = map { task($node, run_task($node, request => 'SELECT 1', role => 'keeper',
		db => 'kept'), 'state', db => 'kept') } 1 .. 25;
	is_deeply([ grep { $_ ne 'DONE' } @states ], [], 'the tasks are DONE');
	cmp_ok(sql_in('kept', 'SELECT last_value FROM locks'), '>', 4000,
		'thousands of locks were taken');
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory')});
	pass('no lock stays');
	my $position = log_position($node);
	sql_in('kept', q{SET ROLE keeper; INSERT INTO task (request, queue)
		VALUES ('SELECT 1', 'refused')});
	wait_for_log_line($node, qr/ERROR:  refused/, $position);
	run_task($node, request => 'SELECT 1', role => 'keeper', db => 'kept');
	pass('others start beside a refused row');
	sql_in('kept', q{DELETE FROM task WHERE queue = 'refused'});
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory')});
	pass('nor after an error');
	is(sql_in('kept', 'SELECT count(*) FROM tried'), 0, 'nothing else can stay in the session');
	is(sql('SELECT 1'), 1, 'sessions connect');
	sql('CREATE DATABASE other'); # all processes must answer a signal before it can be dropped
	sql('ALTER DATABASE other SET pg_task.enabled = off');
	sql('DROP DATABASE other WITH (FORCE)');
	pass('the scheduler answers signals');
	my $pid = sql(q{SELECT pid FROM pg_stat_activity WHERE datname = 'kept'
		AND backend_type = 'pg_task scheduler'});
	terminate($node, $pid);
	wait_for_exit($node, $pid);
	pass('and can be terminated');
	sql('ALTER DATABASE kept SET pg_task.enabled = off');
};

$node->stop;
done_testing();
