# What the scheduler does with a table that already exists, or that is changed while it runs.  A
# TAP test because each case needs its own database.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 40\npg_task.period = '100 ms'");

# A database in which something is created before the scheduler starts.
sub new_database
{
	my ($db, $sql) = @_;

	sql("CREATE DATABASE $db IS_TEMPLATE true");
	sql_in($db, $sql);
	sql("ALTER DATABASE $db IS_TEMPLATE false");
}

sub runs_in
{
	my ($db, $name, %column) = @_;
	my $id = run_task($node, db => $db, request => 'SELECT 40 + 2', %column);

	is(task($node, $id, 'response', db => $db), '42', $name);
}

# A relation that is no task table is rejected and left unchanged; other databases are served; when
# it is renamed, this one is, too.
subtest 'a relation that is no task table' => sub {
	my $required = 'id bigint PRIMARY KEY, dt timestamptz NOT NULL, request text NOT NULL, '
	  . 'state text NOT NULL, attempt int NOT NULL';
	my %wrong = (
		view => ['CREATE VIEW task AS SELECT 1 AS id', 'ALTER VIEW task RENAME TO mine',
			'It is not a table'],
		sequence => ['CREATE SEQUENCE task', 'ALTER SEQUENCE task RENAME TO mine',
		'It is not a table'],
		index => ['CREATE TABLE t (a int); CREATE INDEX task ON t (a)',
		'ALTER INDEX task RENAME TO mine', 'It is not a table'],
		stranger => ['CREATE TABLE task (id int, name text); INSERT INTO task VALUES (1)',
			'ALTER TABLE task RENAME TO mine', 'column "\w+"'],
		typed => ['CREATE TABLE task (id int PRIMARY KEY, dt timestamptz, request text, state '
		. 'text, attempt int)',
			'ALTER TABLE task RENAME TO mine', 'type of its column "id"'],
		later => ["CREATE TABLE task ($required, max text)",
			'ALTER TABLE task RENAME TO mine', 'type of its column "max"'],
		rounded => ["CREATE TABLE task ($required, start timestamptz(0))",
			'ALTER TABLE task RENAME TO mine', 'type of its column "start"'],
		nullable => ['CREATE TABLE task (id bigint PRIMARY KEY, dt timestamptz NOT NULL, request '
		. 'text NOT NULL, state text, attempt int NOT NULL)',
			'ALTER TABLE task RENAME TO mine', 'column "state" may be NULL'],
		generated => ["CREATE TABLE task ($required, max int GENERATED ALWAYS AS (1) STORED)",
			'ALTER TABLE task RENAME TO mine', 'column "max" is generated'],
		folded => [q{CREATE COLLATION folded (provider = icu, locale = 'und',
			deterministic = false);} . "CREATE TABLE task ($required, key text COLLATE folded)",
			'ALTER TABLE task RENAME TO mine',
			'collation of its column "key" is not deterministic']);
	for my $db (sort keys %wrong)
	{
		my ($make, $rename, $why) = @{ $wrong{$db} };
		my $columns = q(SELECT string_agg(attname || atttypid::regtype, ',' ORDER BY attnum)
			FROM pg_attribute WHERE attrelid = '%s'::regclass AND attnum > 0);
		my $position = log_position($node);
		my $before;

		new_database("${db}_db", $make);
		$before = sql_in("${db}_db", sprintf($columns, 'task'));
		wait_for_log_line($node,
			qr/ERROR:  public\.task is not a task table.*?DETAIL:  .*?$why.*?HINT:/s, $position);
		runs_in('postgres', "$db: another database goes on");
		sql_in("${db}_db", $rename);
		wait_for_table($node, db => "${db}_db");
		is(sql_in("${db}_db", sprintf($columns, 'mine')), $before,
			"$db: the relation is unchanged");
		runs_in("${db}_db", "$db: runs when the name is free");
		is(scalar(() = log_since($node, $position) =~ /ERROR:  public\.task is not a task table/g),
			1,
			"$db: the error was logged once");
	}
};

# A table that lacks columns is completed, and what the user added is kept.  Its waiting tasks run.
subtest 'an incomplete table is completed' => sub {
	new_database('old', q{
		CREATE TABLE task (customer text DEFAULT 'nobody', id bigint GENERATED ALWAYS
		AS IDENTITY PRIMARY KEY,
			dt timestamptz NOT NULL DEFAULT now(), request text NOT NULL,
			state text NOT NULL DEFAULT 'PLAN',
			attempt int NOT NULL DEFAULT 0);
		COMMENT ON COLUMN task.id IS 'mine'; COMMENT ON COLUMN task.dt IS 'my time';
		CREATE INDEX by_customer ON task (customer);
		CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql
		AS 'BEGIN NEW.customer := upper(NEW.customer); RETURN NEW; END';
		CREATE TRIGGER shout BEFORE INSERT ON task FOR EACH ROW EXECUTE FUNCTION shout();
		INSERT INTO task (request, customer) VALUES ('SELECT 40 + 2', 'acme')});
	wait_until($node,
		"SELECT state = 'DONE' AND response = '42' AND role = 'postgres' AND customer = 'ACME' "
		. "FROM task", db => 'old');
	is(sql_in('old',
		q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'task'::regclass AND attnum > 0}), 55,
		'the missing columns are added');
	is(sql_in('old', q{SELECT count(*) FILTER (WHERE attname ~ '^(max|format)$'),
		string_agg(description, ',') FILTER (WHERE attname !~ '^(max|format)$')
		FROM pg_attribute JOIN pg_description ON objoid = attrelid AND objsubid = attnum
		WHERE attrelid = 'task'::regclass AND attname IN ('id', 'dt', 'max', 'format', 'request')}),
		'2|mine,my time',
		'those that were added have a comment, and that of the user stays');
	is(sql_in('old', q{SELECT count(*) FROM pg_index WHERE indrelid = 'task'::regclass}),
		9,
		'the indexes are created');
	is(sql_in('old',
		q{SELECT string_agg(tgname, ',' ORDER BY tgname) FROM pg_trigger
		WHERE tgrelid = 'task'::regclass}),
		'pg_task_planned,pg_task_removed,pg_task_renumbered,pg_task_timed,'
			. 'pg_task_truncated,shout,zz_pg_task_bound',
		'the triggers are created');
	my $id = run_task($node, db => 'old', request => 'SELECT 1', repeat => '1 day',
		customer => 'b');
	is(sql_in('old', "SELECT customer, state FROM task WHERE parent = $id"), 'B|PLAN',
		'the next run has the value of the column of the user');
};

# Dropped parts of the table are created again while the scheduler runs; its rows stay.
subtest 'dropped parts are created again' => sub {
	my $relfilenode = sql_in('old', "SELECT 'task'::regclass::oid");
	for my $change ('DROP INDEX task_plan_idx', 'DROP TRIGGER pg_task_planned ON task',
		'ALTER TABLE task DROP COLUMN notice',
		'DROP EXTENSION pg_task CASCADE', 'ALTER TABLE task ADD COLUMN more int',
		'ALTER TABLE task DROP COLUMN more',
		'TRUNCATE task', 'CLUSTER task USING task_pkey',
		'ALTER TABLE task ALTER COLUMN customer TYPE varchar(20)',
		'ALTER TABLE task DISABLE TRIGGER ALL, ENABLE TRIGGER ALL')
	{
		sql_in('old', $change);
		end_sessions($node);
		# until the scheduler has added the column, the trigger refuses rows
		wait_until($node, q{SELECT EXISTS (SELECT FROM pg_attribute
			WHERE attrelid = 'task'::regclass AND attname = 'notice')}, db => 'old');
		runs_in('old', "runs after $change");
		is(sql_in('old',
			q{SELECT (SELECT count(*) FROM pg_index WHERE indrelid = 'task'::regclass),
			(SELECT count(*) FROM pg_trigger WHERE tgrelid = 'task'::regclass AND tgenabled = 'A'),
			(SELECT count(*) FROM pg_attribute WHERE attrelid = 'task'::regclass
			AND attname = 'notice')}),
			'9|6|1', "all parts are there after $change");
	}
	is(sql_in('old', "SELECT 'task'::regclass::oid"), $relfilenode,
		'it is the same table');
};

# A dropped table is created again; a renamed one is left to its user.
subtest 'a dropped table, a renamed table' => sub {
	sql_in('old', 'DROP TABLE task');
	wait_for_table($node, db => 'old');
	runs_in('old', 'a new table for one that was dropped');
	sql_in('old', 'ALTER TABLE task RENAME TO done');
	wait_for_table($node, db => 'old');
	runs_in('old', 'a new table for one that was renamed');
	sql_in('old', 'CREATE SCHEMA other; ALTER TABLE task SET SCHEMA other');
	wait_for_table($node, db => 'old');
	runs_in('old', 'a new table for one that was moved to another schema');

	# when the scheduler has waited for the lock in vain, it looks for the table, and waits again
	my $session = open_session($node, 'old');
	$session->query_safe('BEGIN; ALTER TABLE task RENAME TO moved');
	wait_until($node, q{SELECT EXISTS (SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE NOT granted AND query = 'preparing the task table')}, db => 'old');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_table($node, db => 'old');
	runs_in('old', 'a new table for one that was renamed while the scheduler waited for it');
};

# A change of owner changes which roles the tasks may run as.
subtest 'a change of owner' => sub {
	sql_in('old', 'CREATE ROLE owner LOGIN; CREATE ROLE tenant LOGIN; ALTER TABLE task OWNER TO owner');
	my $id = run_task($node, db => 'old', request => 'SELECT current_user', role => 'owner');
	is(task($node, $id, 'response', db => 'old'), 'owner', 'a task runs as the new owner');
	$id = run_task($node, db => 'old', request => 'SELECT current_user', role => 'postgres');
	is(task($node, $id, 'state || sqlstate', db => 'old'), 'FAIL42501',
		'a task as superuser is FAIL');
};

# Partitioned tables, by time and by state; the latter makes rows move.
subtest 'partitioned tables' => sub {
	my $columns = q{id bigint GENERATED BY DEFAULT
		AS IDENTITY, dt timestamptz NOT NULL DEFAULT now(),
		request text NOT NULL,
		state text NOT NULL DEFAULT 'PLAN', attempt int NOT NULL DEFAULT 0};
	new_database('by_time', qq{
		CREATE TABLE task ($columns, PRIMARY KEY (id, dt)) PARTITION BY RANGE (dt);
		CREATE TABLE past PARTITION OF task FOR VALUES FROM (MINVALUE) TO ('2020-01-01');
		CREATE TABLE present PARTITION OF task FOR VALUES FROM ('2020-01-01') TO ('2100-01-01');
		CREATE TABLE future PARTITION OF task DEFAULT});
	new_database('by_state', qq{
		CREATE TABLE task ($columns, PRIMARY KEY (id, state)) PARTITION BY LIST (state);
		CREATE TABLE active PARTITION OF task FOR VALUES IN ('PLAN', 'WORK');
		CREATE TABLE finished PARTITION OF task DEFAULT});
	for my $db (qw(by_time by_state))
	{
		wait_until($node, q{SELECT count(*) = 6 FROM pg_trigger WHERE tgrelid = 'task'::regclass},
			db => $db);
		runs_in($db, "$db: runs");
		runs_in($db, "$db: planned long ago", dt => '2019-07-01');
		sql_in($db, q{
			-- its next run is half an hour away
			INSERT INTO task (request, queue, max, key, repeat, dt) VALUES ('SELECT 1', 'q', 1, 'k',
			'1 hour', '2019-07-01'::timestamptz + (now() - date_trunc('hour', now()))
			- interval '30 min');
			INSERT INTO task (request, queue, max, dt) SELECT 'SELECT 2', 'q', 1, '2019-07-01'
			FROM generate_series(1, 20);
			INSERT INTO task (request, queue, max) VALUES ('SELECT 1/0', 'q', 1);
			INSERT INTO task (request, queue, keep) VALUES ('SELECT 3', 'q', '0')});
		wait_until($node,
			q{SELECT NOT EXISTS (SELECT FROM task WHERE state = 'WORK' OR state = 'PLAN'
			AND dt < now())}, db => $db);
		is(sql_in($db, q{SELECT string_agg(state || count, ',' ORDER BY state)
			FROM (SELECT state, count(*) FROM task WHERE queue = 'q' GROUP BY 1) AS x}),
			'DONE21,FAIL1,PLAN1', "$db: runs many");
	}
	# a user who has rights on the table, and not on its partitions, plans a running task again, and
	# gives a waiting one another time, for which it moves
	for my $db (qw(by_time by_state))
	{
		my @tenant = (extra_params => [ '-U', 'tenant' ]);
		my $id = sql_in($db, 'GRANT INSERT, SELECT, UPDATE ON task TO tenant;
			SET ROLE tenant;' . q{
			INSERT INTO task (queue, dt, cron, request)
				VALUES ('cron', pg_task_next('0 0 1 1 *'), '0 0 1 1 *', 'SELECT 1');
			INSERT INTO task (queue, request) VALUES ('again', 'SELECT pg_sleep(600)')
			RETURNING id});
		wait_for_running($node, 1, db => $db, id => $id, event => 'PgSleep');
		sql_in($db, "UPDATE task SET dt = dt - interval '1 s' WHERE id = $id",
			@tenant);
		is(sql_in($db, "SELECT dt - start FROM task WHERE id = $id"), '00:00:00.000001',
			"$db: a user plans a running task again");
		sql_in($db, "UPDATE task SET cron = '\@reboot' WHERE queue = 'cron'", @tenant);
		is(sql_in($db, q{SELECT hold || ' ' || tableoid::regclass FROM task
			WHERE queue = 'cron'}), 'until the server starts ' . ($db eq 'by_time' ? 'present' : 'active'),
			"$db: a user gives a task another expression");
		sql_in($db, "UPDATE task SET state = 'STOP' WHERE queue = 'cron' OR id = $id");
	}
	is(sql_in('by_time', q{SELECT count(*) FROM past}), 22,
		'by_time: the rows are in their partitions');
	is(sql_in('by_state', q{SELECT count(*) FROM active}), 1,
		'by_state: the rows have moved');
	sql_in('by_time',
		q{INSERT INTO past (id, request, dt) VALUES (1000, 'SELECT 42', '2019-01-01')});
	wait_for_state($node, 1000, 'DONE', db => 'by_time');

	# an UPDATE that moves a row is an INSERT: only the owner may write what the server writes
	my $again = sql_in('by_time', q{SELECT id FROM task WHERE queue = 'again'});
	my ($ret, $out, $err) = $node->psql('by_time',
		"UPDATE task SET state = 'PLAN', dt = 'infinity' WHERE id = $again",
		extra_params => [ '-U', 'tenant' ]);
	like($err, qr/only the owner of the task table may set/, 'a user moves no row that has run');
	is(sql_in('by_time', "UPDATE task SET state = 'PLAN', dt = 'infinity'
		WHERE id = $again RETURNING tableoid::regclass"), 'future', 'the owner does');

	# what the restore of its data does with a partition
	sql_in('by_time', 'ALTER TABLE task DISABLE TRIGGER pg_task_removed;
		ALTER TABLE past DISABLE TRIGGER ALL; ALTER TABLE past ENABLE TRIGGER ALL');
	wait_until($node, q{SELECT string_agg(format('%s %s %s', tgname, tgrelid::regclass, tgenabled),
			', ' ORDER BY tgenabled) = 'pg_task_removed task D, pg_task_removed past O'
		FROM pg_trigger WHERE tgrelid IN ('task'::regclass, 'past'::regclass)
			AND tgname ~ 'pg_task' AND tgenabled <> 'A'}, db => 'by_time');
};

# The scheduler has just completed the table, and prepares it again, when it changes once more.
subtest 'changes while the table is prepared' => sub {
	my $late = 0;

	for (1 .. 25)
	{
		sql('ALTER TABLE task DISABLE TRIGGER ALL; ALTER TABLE task ENABLE TRIGGER ALL');
		$late++ if !poll_for(sub {
			sql(q{SELECT count(*) FROM pg_trigger WHERE tgrelid = 'task'::regclass
				AND tgname ~ 'pg_task' AND tgenabled <> 'A'}) eq '0' }, 20);
	}
	is($late, 0, 'each is seen');
};

# Two tables swap names: each task runs in the table that has the name when it is inserted.
subtest 'two tables swap names' => sub {
	sql('CREATE DATABASE swapped');
	wait_for_table($node, db => 'swapped');
	sql_in('swapped', 'ALTER TABLE task RENAME TO spare');
	wait_for_table($node, db => 'swapped');
	for (1 .. 4)
	{
		runs_in('swapped', 'before the change');
		sql_in('swapped',
			'BEGIN; ALTER TABLE task RENAME TO x; ALTER TABLE spare RENAME TO task;
			ALTER TABLE x RENAME TO spare; COMMIT');
		runs_in('swapped', 'after it');
	}
};

done_testing();
