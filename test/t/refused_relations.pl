# Relations that the scheduler must not serve, because their rows are not only on this server or
# not visible to all sessions, are rejected by name.  On a Citus node the table stays
# local.  A TAP test because each relation needs a database of its own.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main',
	conf => "max_worker_processes = 40\npg_task.period = '100 ms'\n"
	  . "citus.enable_ddl_propagation = on\ncitus.use_citus_managed_tables = on\n"
	  . 'allow_system_table_mods = on');
my $columns = 'id bigint NOT NULL, dt timestamptz NOT NULL, request text NOT NULL, '
  . 'state text NOT NULL, attempt int NOT NULL';

sub new_database
{
	my ($db, $make) = @_;

	sql_in('postgres', "CREATE DATABASE $db IS_TEMPLATE true");
	sql_in($db, $make);
	sql_in('postgres', "ALTER DATABASE $db IS_TEMPLATE false");
}

# [what is there, what takes it away, why it is refused]
my $foreign = 'CREATE FOREIGN DATA WRAPPER nothing;
	CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;';
my %refused = (
	material => ["CREATE MATERIALIZED VIEW task AS SELECT 1 AS id", 'DROP MATERIALIZED VIEW task',
		'It is not a table, but a materialized view\.'],
	looks => ["CREATE VIEW task AS SELECT 1 AS id", 'DROP VIEW task',
		'It is not a table, but a view\.'],
	abroad => ["$foreign CREATE FOREIGN TABLE task ($columns) SERVER nowhere",
		'DROP FOREIGN TABLE task',
		'It is not a table, but a foreign table\.'],
	partly => ["$foreign CREATE TABLE task ($columns) PARTITION BY LIST (state);
		CREATE TABLE here PARTITION OF task DEFAULT;
		CREATE FOREIGN TABLE there PARTITION OF task FOR
			VALUES IN ('DONE') SERVER nowhere", 'DROP FOREIGN TABLE there',
		'Its partition "there" is a foreign table\.'],
	part => ["CREATE TABLE root ($columns) PARTITION BY LIST (state);
		CREATE TABLE task PARTITION OF root DEFAULT", 'ALTER TABLE root DETACH PARTITION task',
		'It is a partition of another table\.'],
	managed => ["CREATE TABLE task ($columns);
		CREATE TABLE pg_catalog.pg_dist_partition (partmethod char, logicalrelid regclass);
		INSERT INTO pg_dist_partition VALUES ('n', 'pg_class'), ('h', 'task')",
		"DELETE FROM pg_dist_partition WHERE logicalrelid = 'task'::regclass",
			'Citus manages "task": it is in pg_dist_partition\.'],
	managed_part => ["CREATE TABLE task ($columns) PARTITION BY LIST (state);
		CREATE TABLE piece PARTITION OF task DEFAULT;
		CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod char);
		INSERT INTO pg_dist_partition VALUES ('piece', 'h')",
		"DELETE FROM pg_dist_partition", 'Citus manages "piece": it is in pg_dist_partition\.'],
	not_managed => ["CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass);
		CREATE TABLE public.pg_dist_partition (logicalrelid regclass); CREATE TABLE task ($columns);
		INSERT INTO public.pg_dist_partition VALUES ('task')"],
	# a catalog of that name with other columns is ignored
	no_catalog => ["CREATE TABLE task ($columns);
		CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid text);
		INSERT INTO pg_dist_partition VALUES ('task')"]);

subtest 'relations that are refused' => sub {
	for my $db (sort keys %refused)
	{
		my ($make, $remove, $why) = @{ $refused{$db} };
		my $position = log_position($node);

		new_database($db, $make);
		if ($remove)
		{
			wait_for_log_line($node,
				qr/public\.task is not a task table.*?DETAIL:  $why.*?scheduler of database "$db"/s,
				$position);
			pass("$db: refused");
			sql_in($db, $remove);
		}
		wait_until($node,
			q{SELECT count(*) = 6 FROM pg_trigger WHERE tgrelid = to_regclass('task')},
			db => $db);
		my $id = insert_task($node, db => $db, id => 7, request => 'SELECT 42', attempt => 0,
			state => 'PLAN', dt => 'now');
		wait_for_state($node, 7, 'DONE', db => $db);
		pass("$db: served" . ($remove ? ' when the cause is removed' : ''));
	}
};

# A table that another engine takes over while the scheduler serves it.
subtest 'another engine takes the table over' => sub {
	sql_in('not_managed', "BEGIN; INSERT INTO pg_catalog.pg_dist_partition VALUES ('task');
		COMMENT ON TABLE task IS 'now';
		ALTER TABLE task SET (fillfactor = 90); COMMIT");
	wait_for_log_line($node, qr/Citus manages "task".*?scheduler of database "not_managed"/s);
	pass('the table is refused');
};

# A temporary table of a session does no harm, and the table is not created in its schema.
subtest 'a temporary table' => sub {
	my $session = open_session($node, 'postgres', on_error_stop => 1);
	$session->query_safe("CREATE TEMP TABLE task ($columns)");
	my $schema = sql_in('postgres', "SELECT nspname FROM pg_namespace WHERE oid =
		(SELECT relnamespace FROM pg_class WHERE relname = 'task' AND relpersistence = 't')");
	is(task($node, run_task($node, request => 'SELECT 1'), 'response'), '1',
		'a temporary table of a session has no effect');
	sql_in('postgres',
		"ALTER DATABASE postgres SET pg_task.schema_name = '$schema'; SELECT pg_reload_conf()");
	wait_for_log_line($node,
		qr/ERROR:  the task table cannot be in the temporary schema "$schema".*?HINT/s);
	sql_in('postgres', "ALTER DATABASE postgres RESET pg_task.schema_name; SELECT pg_reload_conf()");
	$session->quit;
	run_task($node, request => 'SELECT 1');
};

# The owner of the database has pg_temp first in search_path: no table is created there.
subtest 'pg_temp in search_path' => sub {
	sql_in('postgres', 'CREATE ROLE hasty LOGIN; ALTER ROLE hasty SET search_path = pg_temp;
		CREATE DATABASE hasty OWNER hasty');
	wait_for_log_line($node,
		qr/ERROR:  no schema has been selected.*?scheduler of database "hasty"/s);
	pass('no table is created in a temporary schema');
};

# With Citus: statements of the scheduler are not sent to other nodes, and the table is not managed
# by Citus.
subtest 'Citus' => sub {
	new_database('citus', q{
		CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
			IF 'on' IN (current_setting('citus.enable_ddl_propagation'),
				current_setting('citus.use_citus_managed_tables'))
			THEN RAISE 'operation is not allowed on this node: %', TG_TAG; END IF; END $$;
		CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse()});
	wait_for_table($node, db => 'citus');
	is(task($node,
		run_task($node, db => 'citus', request => 'SHOW citus.enable_ddl_propagation'),
		'response', db => 'citus'),
		'on', 'on a node of Citus: the table is made; a task has the setting as it is');
};

# An unlogged table works; after a crash it is empty, and works again.
subtest 'an unlogged table' => sub {
	new_database('light',
		"CREATE UNLOGGED TABLE task (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
		dt timestamptz NOT NULL DEFAULT now(), request text NOT NULL,
		state text NOT NULL DEFAULT 'PLAN', attempt int NOT NULL DEFAULT 0)");
	wait_until($node, q{SELECT count(*) = 6 FROM pg_trigger WHERE tgrelid = 'task'::regclass},
		db => 'light');
	run_task($node, db => 'light', request => 'SELECT 1');
	insert_task($node, db => 'light', request => 'SELECT pg_sleep(600)');
	crash($node);
	is(sql_in('light', 'SELECT count(*) FROM task'), 0,
		'an unlogged table is empty after a crash');
	is(task($node, run_task($node, db => 'light', request => 'SELECT 2'), 'response',
		db => 'light'),
		'2', 'the unlogged table is served');
};

done_testing();
