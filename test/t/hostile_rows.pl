# Hostile rows and columns: ids that are not unique, NULL, other types, times at the ends of the
# range, settings that change all the time.  A TAP test because some of these might crash the
# server.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', period => '1 s', conf => 'pg_task.max_executors = 4');

# The error of a statement of the role mallory, who has only grants; empty if there is none.
sub mallory
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', $sql, extra_params => [ '-U', 'mallory' ],
		on_error_stop => 1);

	return $rc == 0 ? '' : $err =~ /ERROR:  ([^\n]*)/ ? $1 : $err;
}

sql(q{CREATE ROLE mallory LOGIN; GRANT INSERT, SELECT, UPDATE, DELETE ON task TO mallory});
my $position = log_position($node);

# Times to which nothing can be added, and numbers at the ends of their range.
subtest 'times and numbers at the ends of their range' => sub {
	for my $row ([ 'dt', q{'294276-12-31'}, '"dt" of a task must be before the year 294000' ],
		[ 'planned', q{'294276-12-31'}, '"planned" of a task must be before the year 294000' ],
		[ 'active', q{'1 month -1 day'}, '"active" of a task must be without a negative part' ],
		[ 'failed', -1, '"failed" of a task must be zero or more' ],
		[ 'crashed', 1, 'only the owner of the task table may set "crashed"' ],
		[ 'retry', -1, '"retry" of a task must be zero or more' ])
	{
		my ($column, $value, $error) = @$row;
		is(mallory("INSERT INTO task ($column, request) VALUES ($value, 'SELECT 1')"), $error,
			"$column: $value");
		mallory(q{INSERT INTO task (request, dt) VALUES ('SELECT 1', 'infinity')});
		is(mallory("UPDATE task SET $column = $value"), $error, "$column: $value, later");
	}
	is(mallory(q{INSERT INTO task (request, failed, retry) VALUES ('SELECT 1/0', 2147483647,
		2147483647)}), '', 'the largest number of failures');
	is(mallory(q{INSERT INTO task (request, retry, delay, backoff) VALUES ('SELECT 1/0', 5,
		'290000 years', 'Infinity')}), '', 'the longest delay');
	is(mallory(q{INSERT INTO task (request, active, timeout) VALUES ('SELECT 1', '170000000 years',
		'170000000 years')}), '', 'the longest intervals');
	is(mallory(q{INSERT INTO task (request, repeat, active, dt, max)
		VALUES ('SELECT 1', '292000 years',
		'99 years', now() - '99 years 1 s'::interval, 0)}), '', 'the longest pause');
	wait_until($node,
		q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK') AND dt <= now()});
	is(sql(q{SELECT string_agg(state || ' ' || failed, ', ' ORDER BY id) FROM task
		WHERE dt <> 'infinity'}),
		'FAIL 2147483647, PLAN 1, DONE 0, GONE 0, PLAN 0', 'each task ends');
	is(sql(q{SELECT dt - stop > '1 h' FROM task WHERE failed = 1}), 't',
		'the longest delay is kept');
};

# The owner alters a column while the scheduler runs, and writes rows past the triggers: one has
# expired, so it would be written although it never starts.  The table is refused until it is
# mended, and nobody reads a NULL, or a value of another type.
subtest 'columns that have lost NOT NULL' => sub {
	my $columns = q{SELECT attname FROM pg_attribute WHERE attrelid = 'task'::regclass
		AND attnotnull
		AND attnum > 0 AND attname <> 'id' ORDER BY 1};

	sql('CREATE DATABASE other');
	wait_for_table($node, db => 'other');
	for my $column (split /\n/, sql($columns))
	{
		my $quoted = qq("$column");
		my $active = $column eq 'request' ? '1 day' : '1 s';

		sql("BEGIN; ALTER TABLE task ALTER $quoted DROP NOT NULL, DISABLE TRIGGER USER;
			INSERT INTO task (request, dt, active, queue)
				VALUES ('SELECT 1', now() - '1 h'::interval,
				'$active', 'null');
			UPDATE task SET $quoted = NULL WHERE queue = 'null'; COMMIT");
		wait_until($node, qq{SELECT error LIKE 'public.task is not a task table%'
			FROM pg_stat_task_scheduler() WHERE datname = 'postgres'}, db => 'other');
		wait_for_log_line($node, qr/Its column $quoted may be NULL\./, $position);
		run_task($node, db => 'other', request => 'SELECT 1');
		sql("BEGIN; DELETE FROM task WHERE $quoted IS NULL OR queue = 'null';
			ALTER TABLE task ALTER $quoted SET NOT NULL, ENABLE TRIGGER USER; COMMIT");
		is(task($node, run_task($node, request => 'SELECT 42'), 'response'), 42,
			"$column: the table is served again");
	}
	sql('DROP DATABASE other');
	unlike(log_since($node, $position), qr/terminated by signal|PANIC|TRAP/, 'no process has crashed');
};

# What RETURNING gives comes after the triggers of the owner.
subtest 'a trigger that sets NULL' => sub {
	sql(q{CREATE FUNCTION erase() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN NEW.role := NULL; NEW.request := NULL; RETURN NEW; END';
		CREATE TRIGGER erase BEFORE UPDATE ON task FOR EACH ROW WHEN (NEW.queue = 'erased')
			EXECUTE FUNCTION erase()});
	my $expired = insert_task($node, queue => 'erased', request => 'SELECT 1', active => '1 s',
		dt => '2020-01-01');
	my $erased = insert_task($node, queue => 'erased', request => 'SELECT 1');
	wait_until($node, q{SELECT held = 2 FROM pg_stat_task_scheduler()
		WHERE datname = 'postgres'});
	wait_for_log_line($node, qr/null value in column "role"/, $position);
	is(task($node, run_task($node, request => 'SELECT 42'), 'response'), 42, 'other tasks run');
	sql(q{DROP TRIGGER erase ON task});
	wait_for_state($node, $erased, 'DONE');
	wait_for_state($node, $expired, 'GONE');
	unlike(log_since($node, $position), qr/terminated by signal|PANIC|TRAP/, 'no process has crashed');
};

# The owner writes past the triggers what they refuse: it costs that row only.
subtest 'values that the triggers refuse' => sub {
	my @rows = map { [ split /=/ ] } (q(delay='-178000000 years'), q(timeout='-178000000 years'),
		q(keep='-178000000 years'), q(active='-178000000 years'), q(repeat='-178000000 years'),
		q(rule='bogus'), q(missed='bogus'), q(format='bogus'), q(state='bogus'), q(failed=-7),
		q(failed=2147483647), q(crashed=-2147483648), q(attempt=-2147483648),
		q(attempt=2147483647), q(retry=-2147483648), q(backoff='NaN'), q(backoff='-Infinity'),
		q(max=-2147483648), q(cron='bogus'), q(timezone='bogus'), q(waits=-7),
		q(after='{{1,2},{3,NULL}}'), q(after='[5:6]={1,2}'), q(needs='[0:1]={a,NULL}'),
		q(anchor='infinity'), q(planned='-infinity'), q(id=-9223372036854775808));

	my $from = log_position($node);
	my @inserts;
	for (@rows)
	{
		my ($column, $value) = @$_;

		for (["odd $column", 'SELECT 1'], ["odd $column", 'SELECT 1/0'],
			[ 'odd strict', 'SELECT 1/0' ])
		{
			push @inserts, "INSERT INTO task ($column, queue, request)
				VALUES ($value, '$_->[0]', '$_->[1]')";
			last if $column eq 'id';
		}
	}
	sql(q{ALTER TABLE task ALTER retry SET DEFAULT 1, DISABLE TRIGGER USER;
		INSERT INTO task_queue (queue, strict) VALUES ('odd strict', true)});
	# an index refuses some
	$node->psql('postgres', join("\n", map { "$_;" } @inserts), on_error_stop => 0);
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')
		AND queue IN ('odd delay', 'odd timeout', 'odd rule', 'odd format', 'odd missed')});
	for (1 .. 3)
	{
		is(task($node, run_task($node, request => 'SELECT 42'), 'response'), 42, 'others run');
		is(task($node, run_task($node, request => 'SELECT 1/0', retry => 1, delay => '0'), 'state'),
			'FAIL', 'others are retried');
	}
	unlike(log_since($node, $from), qr/scheduler.*out of range/, 'no value is out of range');
	sql(q{ALTER TABLE task ALTER retry DROP DEFAULT, ENABLE TRIGGER USER; DELETE FROM task;
		DELETE FROM task_queue});
};

# A row that came past the triggers is its user's: what he does not change keeps him from nothing.
subtest 'an UPDATE of a row with values that the triggers refuse' => sub {
	for ([ 'notify', "repeat('x', 64)", "repeat('y', 64)" ], [ 'cron', "'bogus'", "'odd'" ],
		[ 'rule', "'bogus'", "'odd'" ], [ 'retry', -1, -2 ], [ 'backoff', "'NaN'", -1 ],
		[ 'active', "'1 month -1 day'", "'1 day -1 s'" ], [ 'key', "repeat('x', 1001)",
			"repeat('y', 1001)" ], [ 'repeat', "'1 us'", "'2 us'" ])
	{
		my ($column, $value, $other) = @$_;

		# the scheduler must not enable them in between
		sql(qq{BEGIN;
			ALTER TABLE task DISABLE TRIGGER USER;
			INSERT INTO task (id, role, dt, request, $column)
				VALUES (7, 'mallory', 'infinity', 'SELECT 1', $value);
			COMMIT});
		sql('ALTER TABLE task ENABLE TRIGGER USER');
		is(mallory('UPDATE task SET priority = 1'), '', "$column: another column");
		is(mallory("UPDATE task SET hold = ''; UPDATE task SET hold = NULL"), '',
			"$column: it is put on hold, and resumed");
		isnt(mallory("UPDATE task SET $column = $other"), '', "$column: no other such value");
		is(mallory('SELECT pg_task_cancel(7)'), '', "$column: pg_task_cancel");
		is(task($node, 7, 'state'), 'STOP', "$column: it is stopped");
		sql('DELETE FROM task');
	}
};

# The session that alters a table beside the task table asks for the reason of a task: what is read
# has the type that was checked.
subtest 'companion tables of other types' => sub {
	sql(q{INSERT INTO task_queue (queue, rate, per) VALUES ('slow', 1, '1 h')});
	run_task($node, queue => 'slow', request => 'SELECT 1');
	my $id = insert_task($node, queue => 'slow', request => 'SELECT 1');

	wait_until($node, "SELECT pg_task_why($id) LIKE 'the rate of its queue: at most 1 starts%'");
	for my $type (qw(text bigint))
	{
		for my $column (split /\n/, sql(q{SELECT format('%s ALTER %I', attrelid::regclass, attname)
			FROM pg_attribute WHERE attrelid IN ('task_queue'::regclass, 'task_rate'::regclass)
			AND attnum > 0 ORDER BY 1}))
		{
			my ($rc, $out, $err) = $node->psql('postgres', qq{BEGIN;
				ALTER TABLE $column TYPE $type USING 7::$type; SELECT pg_task_why($id); ROLLBACK});

			unlike($err, qr/server closed|terminat/, "$column TYPE $type");
		}
	}
	# the scheduler may be about to prepare them again
	wait_until($node, "SELECT pg_task_why($id) LIKE 'the rate of its queue: at most 1 starts%'");
	unlike(log_since($node, $position), qr/terminated by signal|PANIC|TRAP/, 'no process has crashed');
	sql("DELETE FROM task; DELETE FROM task_queue");
};

# No trigger has checked these.  So many, because the process could read what lies behind them.
subtest 'NULL among the tasks for which a row waits' => sub {
	sql(q{SET session_replication_role = replica; INSERT INTO task (id, after, waits, rule, request)
		SELECT n, array_fill(NULL::bigint, ARRAY[3000000]) || 0::bigint, 0, rule, 'SELECT 1'
		FROM unnest(ARRAY['done', 'any', 'failed']) WITH ORDINALITY AS r (rule, n)});
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))});
	is(sql(q{SELECT string_agg(concat_ws(' ', rule, state), ', ' ORDER BY id) FROM task}),
		'done GONE, any DONE, failed DONE', 'they stand for tasks that were removed');
	unlike(log_since($node, $position), qr/terminated by signal|PANIC/, 'no process has crashed');
	sql('DELETE FROM task');
};

# The same id twice, in a table whose primary key has more columns: neither row runs or ends as the
# other's role.
subtest 'the same id twice' => sub {
	sql(q{CREATE SCHEMA parts;
		CREATE TABLE parts.task (LIKE public.task INCLUDING DEFAULTS, PRIMARY KEY (id,
		queue)) PARTITION BY LIST (queue);
		CREATE TABLE parts.a PARTITION OF parts.task FOR VALUES IN ('a');
		CREATE TABLE parts.b PARTITION OF parts.task FOR VALUES IN ('b');
		CREATE TABLE parts.rest PARTITION OF parts.task DEFAULT;
		CREATE SEQUENCE parts.ids START 1000;
		ALTER TABLE parts.task ALTER id SET DEFAULT nextval('parts.ids');
		ALTER DATABASE postgres SET pg_task.schema_name = 'parts'});
	$node->reload;
	wait_until($node,
		q{SELECT count(*) = 6 FROM pg_trigger WHERE tgrelid = 'parts.task'::regclass});
	wait_for_schedulers($node, 'postgres');
	sql(q{GRANT USAGE ON SCHEMA parts TO mallory; GRANT INSERT, SELECT, UPDATE, DELETE ON parts.task
		TO mallory;
		CREATE TABLE seen (id int, who name, what text); GRANT INSERT ON seen TO PUBLIC});
	my $steal = q{INSERT INTO public.seen VALUES (%s, current_user, 'mallory')};
	for my $id (1 .. 20)
	{
		my $when = $id % 2 ? q{now()} : q{now() + interval '0.3 s'};
		my $hers = q{INSERT INTO parts.task (id, queue, request, dt, repeat) SELECT } . $id
			. q{, q, format($r$} . $steal
			. qq{\$r\$, $id), $when, '1 day' FROM unnest(ARRAY['b', 'c']) AS q};
		my $his = qq{INSERT INTO parts.task (id, queue, request, dt, repeat)
			VALUES ($id, 'a', 'INSERT INTO public.seen VALUES ($id, current_user, ''his'')',
			now() + interval '0.3 s', '1 day')};
		is(mallory($hers), '', 'hers') if $id <= 10;
		sql($his);
		is(mallory($hers), '', 'mallory\'s row, later') if $id > 10;
	}
	wait_until($node, q{SELECT count(*) = 60 FROM parts.task WHERE state = 'DONE'});
	is(sql(q{SELECT who, what, count(*) FROM seen GROUP BY 1, 2 ORDER BY 1}),
		"mallory|mallory|40\npostgres|his|20", 'each ran once, as its role');
	is(sql(q{SELECT role, count(*) FROM parts.task WHERE state = 'PLAN' GROUP BY 1 ORDER BY 1}),
		"mallory|40\npostgres|20", 'each task repeats once');
	is(sql(q{SELECT count(*) FROM parts.task WHERE state = 'DONE' AND (attempt <> 1
		OR response <> 'INSERT 0 1')}), 0, 'each run has written its own row');
	sql(q{ALTER DATABASE postgres RESET pg_task.schema_name});
	$node->reload;
	wait_until($node, q{SELECT state = 'DONE' FROM task ORDER BY id DESC LIMIT 1})
		if insert_task($node, request => 'SELECT 1');
};

# Anybody may put our triggers on a table of his own.
subtest 'a partition whose DETACH CONCURRENTLY has not ended' => sub {
	sql(q{CREATE SCHEMA AUTHORIZATION mallory});
	is(mallory(q{CREATE TABLE mallory.task (LIKE public.task INCLUDING DEFAULTS)
			PARTITION BY RANGE (dt);
		CREATE TABLE mallory.part PARTITION OF mallory.task FOR VALUES FROM ('2000-01-01')
			TO ('2300-01-01');
		CREATE TRIGGER b BEFORE INSERT ON mallory.part FOR EACH ROW
			EXECUTE FUNCTION pg_task_bound();
		CREATE TRIGGER p AFTER UPDATE ON mallory.part FOR EACH ROW
			EXECUTE FUNCTION pg_task_planned();
		CREATE TRIGGER r AFTER DELETE ON mallory.part FOR EACH ROW
			EXECUTE FUNCTION pg_task_removed()}), '', 'a partitioned table with our triggers');
	my $reader = open_session($node, 'postgres');
	$reader->query_safe('BEGIN; SELECT FROM mallory.task');
	like(mallory(q{SET lock_timeout = 100;
		ALTER TABLE mallory.task DETACH PARTITION mallory.part CONCURRENTLY}),
		qr/lock timeout/, 'a reader of the table lets the detach wait');
	is(sql(q{SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = 'mallory.part'::regclass}),
		't', 'it has begun');
	is(mallory(q{INSERT INTO mallory.part (id, request) VALUES (1, 'SELECT 1');
		UPDATE mallory.part SET queue = 'q'; DELETE FROM mallory.part}), '', 'rows can be written');
	$reader->quit;
	is(mallory('DROP TABLE mallory.part, mallory.task'), '', 'and the tables dropped');
};

# A role changes its settings all the time: no other role is delayed, and nor is this one.
subtest 'settings that change all the time' => sub {
	my $bench = $node->basedir . '/settings.sql';
	append_to_file($bench, "ALTER ROLE mallory SET work_mem = '4MB';\n");
	my $changes = IPC::Run::start([ 'pgbench', '-n', '-f', $bench, '-T', 180, '-c', 1, '-U',
		'mallory',
		'-h', $node->host, '-p', $node->port, 'postgres' ],
		'>', \my $out, '2>', \my $err);
	wait_until($node,
		q{SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'ALTER ROLE mallory SET%'});
	is(task($node, run_task($node, request => 'SELECT 42'), 'response'), 42, 'other tasks run')
		for 1 .. 5;
	is(mallory(q{INSERT INTO task (queue, request) SELECT 'hers', 'SELECT 1'
		FROM generate_series(1, 5)}), '', 'mallory has tasks, too');
	wait_until($node, q{SELECT count(*) = 5 FROM task WHERE queue = 'hers' AND state = 'DONE'});
	$changes->kill_kill;
	is($node->psql('postgres', 'SELECT 1'), 0, 'the server accepts connections');
};

done_testing();
