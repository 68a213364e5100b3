# The indexes of the task table are known by their names.  Nothing that a DBA does to an index or to
# the table but to rename an index, and no setting, makes the scheduler create a second one, and an
# index is never created again without end.  A TAP test because it needs databases with settings of
# their own.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 40\npg_task.period = '50 ms'");
my $indexes = q{SELECT count(*) FROM pg_index WHERE indrelid = 'task'::regclass};

# Run tasks: after that the scheduler has looked up the current table.
sub runs_in
{
	my ($db, $name, $count) = @_;

	run_task($node, db => $db, request => 'SELECT 1', queue => "q $_") for 1 .. 2;
	is(sql_in($db, "$indexes AND indisvalid"), $count // 8, "$db: $name");
}

sub new_database
{
	my ($db, $settings) = @_;

	sql_in('postgres', "CREATE DATABASE $db IS_TEMPLATE true");
	sql_in('postgres', "ALTER DATABASE $db $_") for @$settings;
	sql_in('postgres', "ALTER DATABASE $db IS_TEMPLATE false");
	wait_until($node, "SELECT to_regclass('task_key_idx') IS NOT NULL", db => $db);
}

# Settings that change how the server prints, or reads, index definitions.
subtest 'settings that change how definitions are printed' => sub {
	my @settings = map { ["SET $_"] } (
		"IntervalStyle = 'iso_8601'", "IntervalStyle = 'sql_standard'",
			"IntervalStyle = 'postgres_verbose'",
		"quote_all_identifiers = on", "DateStyle = 'SQL, DMY'",
		# from 19 on, it is always on
		(sql_in('postgres', 'SHOW server_version_num') < 190000
			? 'standard_conforming_strings = off'
			: ()),
		"TimeZone = 'Asia/Kathmandu'", "transform_null_equals = on");
	for my $number (0 .. $#settings)
	{
		new_database("set$number", $settings[$number]);
		sql_in("set$number", 'ANALYZE task');
		runs_in("set$number", "no index more with $settings[$number][0]");
	}
};

# Changes of the table, or of an index.
subtest 'changes of the table or of an index' => sub {
	new_database('changed', []);
	for my $change ('ALTER TABLE task ALTER COLUMN queue TYPE text COLLATE "C"',
		'ALTER INDEX task_plan_idx SET (fillfactor = 50)',
		'ALTER INDEX task_active_idx ALTER COLUMN 1 SET STATISTICS 100', 'REINDEX TABLE task',
			'REINDEX TABLE CONCURRENTLY task',
		'DROP INDEX task_active_idx',
			'BEGIN; DROP INDEX task_key_idx; CREATE UNIQUE INDEX task_key_idx '
			. 'ON task (queue, key) INCLUDE (id)
		WHERE key IS NOT NULL AND state IN (\'PLAN\', \'WORK\'); COMMIT')
	{
		# if it waits for the scheduler, and the scheduler for it, the scheduler gives up
		sql_in('changed', "SET deadlock_timeout = '1 min'; $change");
		runs_in('changed', "no index more after $change");
	}
	sql_in('changed', 'ALTER INDEX task_work_idx RENAME TO work; ANALYZE task');
	wait_until($node, "SELECT to_regclass('task_work_idx') IS NOT NULL", db => 'changed');
	runs_in('changed', 'one that is renamed is made again', 9);
	sql_in('changed', 'DROP INDEX work');
};

# Whoever asks what runs reads the index, however many rows wait or have ended, and in whichever
# order they lie in the table: the planner knows how few rows the index has.
subtest 'rows that wait, and rows that have ended' => sub {
	new_database('many', []);
	sql_in('many', q{INSERT INTO task (id, request, dt, state, start, stop)
		SELECT id, 'SELECT 1', 'infinity', CASE WHEN ended THEN 'DONE' ELSE 'PLAN' END,
			CASE WHEN ended THEN now() END, CASE WHEN ended THEN now() END
		FROM (SELECT n AS id, n % 2 = 0 AS ended FROM generate_series(1, 20000) AS n) AS ids
		ORDER BY hashint8(id); ANALYZE task});
	like(sql_in('many', q{SET enable_bitmapscan = off; EXPLAIN SELECT FROM task
		WHERE state = 'WORK'}), qr/Index Scan using task_work_idx/, 'what runs is found by its index');
};

# Indexes that are only similar are not used: those of pg_task are created in addition.
subtest 'similar indexes' => sub {
	for my $like (['CREATE INDEX ON task (queue, key)', 'no condition'],
		['CREATE INDEX ON task USING brin (id)', 'another method'],
		['CREATE INDEX ON task (key, queue) WHERE key IS NOT NULL', 'another order'])
	{
		sql_in('changed', "DROP INDEX task_key_idx; $like->[0]");
		wait_until($node, "SELECT to_regclass('task_key_idx') IS NOT NULL", db => 'changed');
	}
	is($node->psql('changed', q{INSERT INTO task (request, key, dt) SELECT 'SELECT 1', 'k',
		'infinity' FROM generate_series(1, 2)}),
		3, 'the index of keys is there beside others');
};

# An invalid index (CREATE INDEX CONCURRENTLY has failed) is not taken for the wanted one.
subtest 'an invalid index' => sub {
	new_database('invalid', []);
	sql_in('invalid', q{INSERT INTO task (request, dt) SELECT 'SELECT 1', 'infinity'
		FROM generate_series(1, 2)});
	sql_in('invalid', q{DROP INDEX task_work_idx});
	wait_until($node, "SELECT to_regclass('task_work_idx') IS NOT NULL", db => 'invalid');
	isnt($node->psql('invalid',
		'CREATE UNIQUE INDEX CONCURRENTLY failed ON task (queue, priority) WHERE dt IS NOT NULL'),
		0,
		'an index is invalid');
	runs_in('invalid', 'no further index beside an invalid one');
	is(sql_in('invalid', "$indexes AND NOT indisvalid"), 1, 'the invalid index is unchanged');
};

# An event trigger spoils every new index: three are created, the scheduler reports it and
# continues.
subtest 'an event trigger drops every new index' => sub {
	my $breaker = q{
		CREATE FUNCTION breaker() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN %s END $$;
		CREATE EVENT TRIGGER breaker ON ddl_command_end WHEN TAG IN ('CREATE INDEX')
		EXECUTE FUNCTION breaker()};
	my %broken = (
		made_invalid => q{UPDATE pg_index SET indisvalid = false WHERE indexrelid =
			to_regclass('public.task_plan_idx') OR indrelid = to_regclass('public.task')
			AND indexrelid::regclass::text LIKE '%%plan_idx%%';},
		dropped => q{DROP INDEX IF EXISTS public.task_plan_idx;});
	for my $db (sort keys %broken)
	{
		my $position = log_position($node);

		sql_in('postgres', "CREATE DATABASE $db IS_TEMPLATE true");
		sql_in($db, sprintf($breaker, $broken{$db} =~ s/%%/%/gr));
		sql_in('postgres', "ALTER DATABASE $db IS_TEMPLATE false");
		wait_for_log_line($node,
			qr/WARNING:  an index, trigger or policy of table "task" is not what it was made to be/,
			$position);
		# the line is written before the commit
		wait_for_table($node, db => $db);
		for my $time (1 .. 5)
		{
			sql_in($db, "ANALYZE task; COMMENT ON TABLE task IS '$time'");
			run_task($node, db => $db, request => 'SELECT 1', queue => "q $time");
		}
		cmp_ok(sql_in($db, $indexes), '<=', 10, "$db: it is not made for ever");
		is(scalar(() = log_since($node, $position) =~ /is not what it was made to be/g), 1,
			"$db: the error was logged once");
		sql_in('postgres', "DROP DATABASE $db");
	}
};

done_testing();
