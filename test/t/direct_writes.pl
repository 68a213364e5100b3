# DONE is written into the row of a task without a statement if the table is as pg_task has made it,
# and by a statement if it has anything that a statement must see to.  In both cases all indexes
# have an entry for the row.  A TAP test because it counts statements in the process of a task, and
# needs sessions that conflict with it.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $library = build_module('update_count');
my $other_heap = build_module('other_heap');
my $node = new_node('main', period => '1 s', conf => qq{
	shared_preload_libraries = 'pg_task, $library, $other_heap'
	pg_task.max_executors = 1
	autovacuum = off});

sql(qq{
	CREATE EXTENSION amcheck;
	CREATE FUNCTION update_count() RETURNS int LANGUAGE c AS '$library';
	CREATE FUNCTION other_heap(internal) RETURNS table_am_handler LANGUAGE c AS '$other_heap';
	CREATE FUNCTION label(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN \$1; END';
	CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
	CREATE TABLE effect (what text)});

# Runs a task that counts, one with this request, and one that counts.  Returns the state of the
# second one, and how many UPDATE statements have written it and the first.
sub updates
{
	my ($request) = @_;
	my ($first, $id, $last) = split /\n/, sql(q{INSERT INTO task (request) VALUES
		('SELECT update_count()'), (} . literal($request // 'SELECT 1') . q{),
		('SELECT update_count()') RETURNING id});

	wait_for_state($node, $last, 'DONE');
	return task($node, $id, 'state') . ' '
	  . (task($node, $last, 'response') - task($node, $first, 'response'));
}

# How the row of a task is written, and that no B-tree index of the table lacks an entry.
sub written
{
	my ($expected, $name) = @_;

	is(updates(), $expected, $name);
	sql(q{SELECT bt_index_check(c.oid, true) FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid
		WHERE indrelid = 'task'::regclass AND relam = 403 AND indisvalid});
	return;
}

sub direct { written('DONE 0', "$_[0]: without a statement") }
sub indirect { written('DONE 2', "$_[0]: by a statement") }

subtest 'the table as it is made' => sub {
	direct('a new table');
	my $id = run_task($node, request => "DO 'BEGIN RAISE NOTICE ''noted''; END'; SELECT 'a'");
	is_row($node, $id,
		{
			state => 'DONE', attempt => 1, response => "DO\na", 'error IS NULL' => 'true',
			"notice LIKE '%noted%'" => 'true', 'start >= dt' => 'true', 'stop >= start' => 'true'
		},
		'all columns');
	$id = run_task($node, request => q{SELECT repeat('x', 100000)});
	is(task($node, $id, 'length(response)'), 100000, 'a long response');
	is(updates('SELECT 1/0'), 'FAIL 1', 'a failure is written by a statement');
	$id = insert_task($node, request => 'SELECT 1', notify => 'ends');
	wait_for_state($node, $id, 'DONE');
	is(task($node,
			run_task($node, request => q{UPDATE task SET priority = 7
				WHERE id = current_setting('pg_task.id')::bigint}),
			'state, priority'),
		'DONE|7', 'what a task has written into its own row stays');
};

# Each of these needs a statement; without it, none is needed again.
subtest 'what needs a statement' => sub {
	my @cases = (
		[ 'a trigger', 'CREATE TRIGGER mine AFTER UPDATE ON task EXECUTE FUNCTION nothing()',
			'DROP TRIGGER mine ON task' ],
		[ 'a constraint', 'ALTER TABLE task ADD CONSTRAINT mine CHECK (id > 0)',
			'ALTER TABLE task DROP CONSTRAINT mine' ],
		[ 'a generated column', 'ALTER TABLE task ADD mine text GENERATED ALWAYS AS (state) STORED',
			'ALTER TABLE task DROP mine' ],
		[ 'a foreign key', 'CREATE TABLE mine (id bigint REFERENCES task)', 'DROP TABLE mine' ],
		[ 'a rule', 'CREATE RULE mine AS ON UPDATE TO task WHERE false DO ALSO NOTHING',
			'DROP RULE mine ON task' ],
		[ 'a function in an index', 'CREATE INDEX mine ON task (label(state))', 'DROP INDEX mine' ],
		[ 'a condition with a function', q{CREATE INDEX mine ON task (id) WHERE label(state) = 'x'},
			'DROP INDEX mine' ],
		[ 'a domain in an index', q{CREATE DOMAIN word AS text CHECK (value <> 'x');
			CREATE INDEX mine ON task ((state::word))},
			'DROP INDEX mine; DROP DOMAIN word' ],
		[ 'a column of a range type of a user in an index', q{CREATE TYPE span AS RANGE (subtype = int);
			ALTER TABLE task ADD mine span; CREATE INDEX ON task (mine)},
			'ALTER TABLE task DROP mine; DROP TYPE span' ],
		[ 'an index of another kind', 'CREATE INDEX mine ON task USING hash (queue)',
			'DROP INDEX mine' ],
		[ 'a precision', 'ALTER TABLE task ALTER stop TYPE timestamptz(0)',
			'ALTER TABLE task ALTER stop TYPE timestamptz' ],
		[ 'another access method', 'CREATE ACCESS METHOD mine TYPE TABLE HANDLER other_heap;
			ALTER TABLE task SET ACCESS METHOD mine',
			'ALTER TABLE task SET ACCESS METHOD heap; DROP ACCESS METHOD mine' ],
		[ 'no unique index on the id', 'ALTER TABLE task DROP CONSTRAINT task_pkey;
			CREATE INDEX mine ON task (id)',
			'DROP INDEX mine; ALTER TABLE task ADD PRIMARY KEY (id)' ]);

	for my $case (@cases)
	{
		my ($name, $create, $drop) = @$case;

		sql($create);
		indirect($name);
		sql($drop);
		direct("$name is gone");
	}
};

# The next run of a task that repeats is inserted without a statement where nothing but the id is
# computed for it.
subtest 'the next run' => sub {
	my $repeat = sub {
		my ($expected, $name, %next) = @_;
		my ($first, $id, $last) = split /\n/, sql(q{INSERT INTO task (request, repeat) VALUES
			('SELECT update_count()', NULL), ('SELECT 2', '1 h'), ('SELECT update_count()', NULL)
			RETURNING id});

		wait_for_state($node, $last, 'DONE');
		is(task($node, $last, 'response') - task($node, $first, 'response'), $expected, $name);
		is(sql("SELECT count(*) FROM task AS t JOIN task AS n ON n.id = t.next AND n.parent = t.id
				WHERE t.id = $id AND n.state = 'PLAN' AND n.attempt = 0 AND n.pid IS NULL
				AND n.anchor = t.dt AND n.dt = t.dt + interval '1 h' AND n.request = t.request"),
			1, "$name: the row");
		is_row($node, task($node, $id, 'next'), \%next, $name) if %next;
	};
	my @cases = (
		[ 'a trigger', 'CREATE TRIGGER mine AFTER INSERT ON task EXECUTE FUNCTION nothing()',
			'DROP TRIGGER mine ON task' ],
		[ 'a default that is computed', 'ALTER TABLE task ALTER notice SET DEFAULT label(\'x\')',
			'ALTER TABLE task ALTER notice DROP DEFAULT', notice => 'x' ],
		[ 'an id without identity', q{CREATE SEQUENCE mine START 1000; ALTER TABLE task
			ALTER id DROP IDENTITY, ALTER id SET DEFAULT nextval('mine')},
			q{DO $$BEGIN EXECUTE format('ALTER TABLE task ALTER id DROP DEFAULT, ALTER id ADD GENERATED
				ALWAYS AS IDENTITY (START %s)', nextval('mine')); END$$; DROP SEQUENCE mine} ],
		[ 'another identity column',
			'ALTER TABLE task ADD mine bigint GENERATED ALWAYS AS IDENTITY',
				'ALTER TABLE task DROP mine' ],
		[ 'an anchor that is not NULL', q{UPDATE task SET anchor = now() WHERE anchor IS NULL;
			ALTER TABLE task ALTER anchor SET DEFAULT now(), ALTER anchor SET NOT NULL},
			'ALTER TABLE task ALTER anchor DROP NOT NULL, ALTER anchor DROP DEFAULT' ]
	);

	$repeat->(0, 'a new table');
	for my $case (@cases)
	{
		my ($name, $create, $drop, %next) = @$case;

		sql($create);
		$repeat->(2, "by a statement: $name", %next);
		sql($drop);
		$repeat->(0, "without a statement: $name is gone");
	}
	sql(q{ALTER TABLE task ADD mine text DEFAULT 'own', ALTER notice SET DEFAULT 'said';
		UPDATE task SET mine = 'copied'});
	$repeat->(0, 'defaults that are constants', notice => 'said', mine => 'own');
	my $id = insert_task($node, request => 'SELECT 1', repeat => '1 h', key => 'one',
		mine => 'other');
	wait_for_state($node, $id, 'DONE');
	is_row($node, task($node, $id, 'next'),
		{ key => 'one', mine => 'other', notice => 'said' }, 'a column of the owner, and a key');
	sql('ALTER TABLE task DROP mine, ALTER notice DROP DEFAULT,
		ALTER anchor TYPE timestamptz(0)');
	$id = insert_task($node, request => 'SELECT 1', repeat => '1 h', dt => '2001-01-01 00:00:00.1');
	wait_for_state($node, $id, 'DONE');
	is(task($node, task($node, $id, 'next'), 'anchor = date_trunc($$second$$, anchor)'), 't',
		'an anchor that is rounded');
	sql('ALTER TABLE task ALTER anchor TYPE timestamptz');
	direct('as it was');
};

# DONE is refused if it would leave a NULL where none may be, also in a column that is computed when
# it is read.
subtest 'a column that must not be NULL' => sub {
	my @cases = ([ q{ALTER TABLE task ALTER error SET DEFAULT '', ALTER error SET NOT NULL},
			'ALTER TABLE task ALTER error DROP DEFAULT, ALTER error DROP NOT NULL' ]);

	push @cases, [ q{ALTER TABLE task
			ADD mine text GENERATED ALWAYS AS (nullif(state, 'DONE')) VIRTUAL NOT NULL},
		'ALTER TABLE task DROP mine' ]
	  if $node->pg_version >= 18;
	for my $case (@cases)
	{
		my ($create, $drop) = @$case;

		sql("TRUNCATE task; $create");
		my $id = run_task($node, request => 'SELECT 1');
		is_row($node, $id, { state => 'FAIL', "error LIKE 'null value in column%'" => 'true' },
			$create);
		sql($drop);
		direct("$drop");
	}
};

# What a replica could not apply is refused; what it can, is written.
subtest 'replica identity and publications' => sub {
	my @refused = ([ 'NOTHING', 'CREATE PUBLICATION mine FOR TABLE task' ]);

	push @refused, [ 'DEFAULT', q{CREATE PUBLICATION mine FOR TABLE task WHERE (state = 'DONE')} ];
	for my $case (@refused)
	{
		my ($identity, $publish) = @$case;

		sql("ALTER TABLE task REPLICA IDENTITY $identity");
		direct("replica identity $identity");
		is(task($node, run_task($node, request => $publish), 'state, sqlstate'),
			($identity eq 'NOTHING' ? 'FAIL|55000' : 'FAIL|42P10'), "$identity: $publish");
	}
	for my $identity ('FULL', 'USING INDEX task_pkey', 'DEFAULT')
	{
		sql("ALTER TABLE task REPLICA IDENTITY $identity;
			CREATE PUBLICATION mine FOR TABLE task WHERE (id > 0)");
		direct("replica identity $identity, published");
		sql('DROP PUBLICATION mine');
	}
};

# None of this changes how a row is written.
subtest 'surroundings' => sub {
	my @cases = (
		[ 'ALTER ROLE CURRENT_USER SET default_transaction_isolation = serializable',
			'ALTER ROLE CURRENT_USER RESET default_transaction_isolation' ],
		[ 'ALTER ROLE CURRENT_USER SET session_replication_role = replica',
			'ALTER ROLE CURRENT_USER RESET session_replication_role' ],
		[ 'CREATE FUNCTION told() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN END$$;
			CREATE EVENT TRIGGER mine ON ddl_command_end EXECUTE FUNCTION told()',
			'DROP EVENT TRIGGER mine' ],
		[ q{CREATE CAST (text AS json) WITH INOUT AS IMPLICIT}, 'DROP CAST (text AS json)' ],
		[ 'ALTER TABLE task ALTER response SET STORAGE EXTERNAL',
			'ALTER TABLE task ALTER response SET STORAGE EXTENDED' ],
		[ 'ALTER TABLE task ALTER id SET GENERATED ALWAYS',
			'ALTER TABLE task ALTER id SET GENERATED BY DEFAULT' ]);

	for my $case (@cases)
	{
		sql($case->[0]);
		direct($case->[0]);
		sql($case->[1]);
	}
};

# The table is written anew, or changed, while tasks run: each has run once, and has its outcome.
subtest 'changes of the table during a drain' => sub {
	sql('TRUNCATE task');
	sql(q{INSERT INTO task (request, repeat) SELECT 'SELECT pg_sleep(0.005)',
		CASE WHEN n % 3 = 0 THEN interval '1 day' END FROM generate_series(1, 400) AS n});
	for my $change ('VACUUM FULL task', 'REINDEX TABLE CONCURRENTLY task',
		'CLUSTER task USING task_pkey', 'ALTER TABLE task ADD mine text',
		q{ALTER TABLE task ALTER mine SET DEFAULT 'x'},
			'ALTER TABLE task ALTER mine TYPE varchar(20)',
		'ALTER TABLE task DROP mine', 'VACUUM task')
	{
		sql($change);
	}
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state = 'WORK'
		OR state = 'PLAN' AND dt <= now())});
	is(sql(q{SELECT count(*), count(*) FILTER (WHERE next IS NOT NULL) FROM task
			WHERE state = 'DONE'}), '400|133', 'all are done, and those that repeat are linked');
	is(sql(q{SELECT count(*) FROM task AS t JOIN task AS n ON n.id = t.next AND n.parent = t.id
			WHERE n.state = 'PLAN'}), 133, 'each has one next run');
	is(sql(q{SELECT count(*) FROM task}), 533, 'there are no others');
	direct('afterwards');
};

# A lock of a subtransaction that lets the key be referred to keeps no row from being claimed or
# done, but one with keep of 0 from being removed.
subtest 'a lock in a subtransaction' => sub {
	my $session = open_session($node, 'postgres');

	sql(q{INSERT INTO task (id, request, dt, keep) SELECT 2000000 + n, 'SELECT 1', 'infinity',
		CASE WHEN n > 1 THEN interval '0' END FROM generate_series(1, 2) AS n});
	$session->query_safe('BEGIN; SAVEPOINT a');
	$session->query_safe('SELECT FROM task WHERE id > 2000000 FOR KEY SHARE');
	sql('UPDATE task SET dt = now() WHERE id > 2000000');
	wait_for_state($node, 2000000 + $_, 'DONE') for 1, 2;
	is(sql(q{SELECT count(*) FROM task WHERE id > 2000000 AND attempt = 1}), 2, 'both are there');
	$session->query_safe('COMMIT');
	$session->quit;
	sql('DELETE FROM task WHERE id > 2000000');
};

# The memory of an index expression that fails is freed, although compiled expressions are kept.
subtest 'an index expression that fails' => sub {
	sql(q{CREATE INDEX mine ON task ((CASE WHEN priority = 1 AND state = 'DONE'
		THEN 1 / (length(repeat(state, 10000000)) * 0) ELSE 1 END))});
	direct('an index whose expression may fail');
	my $id = run_task($node, priority => 1, request => 'SELECT 1');
	is(task($node, $id, 'state, error'), 'FAIL|division by zero', 'it has failed');
	is(task($node, run_task($node, request => q{SELECT sum(total_bytes) < 20000000
			FROM pg_backend_memory_contexts}), 'response'), 't', 'its memory is free');
	sql('DROP INDEX mine');
};

# Indexes that are created while the executor lives get entries, too.
subtest 'indexes' => sub {
	sql(q{CREATE INDEX done ON task (stop) WHERE state = 'DONE'});
	sql('CREATE INDEX CONCURRENTLY words ON task (state, lower(response))');
	direct('more indexes');
	sql('REINDEX TABLE CONCURRENTLY task');
	direct('indexes made anew');
	my $id = run_task($node, request => 'SELECT 42');
	is(sql("SET enable_seqscan = off; SET enable_bitmapscan = off;
			SELECT count(*) FROM task WHERE state = 'DONE' AND lower(response) = '42' AND id = $id"),
		1, 'it is found by an index');
	sql('DROP INDEX done; DROP INDEX CONCURRENTLY words');
	direct('fewer indexes');
	sql('TRUNCATE task');
	direct('an empty table');
	sql('ALTER TABLE task DROP notice');
	wait_until($node, q{SELECT EXISTS (SELECT FROM pg_attribute
		WHERE attrelid = 'task'::regclass AND attname = 'notice')});
	direct('a column that was dropped');
};

# What the server remembers of a GIN index refers to the index as it is open.  Here the indexes
# change, and the table does not.
subtest 'GIN indexes that change' => sub {
	sql(q{TRUNCATE task;
		CREATE INDEX gin_1 ON task USING gin (input);
		CREATE INDEX gin_2 ON task USING gin (to_tsvector('simple'::regconfig, request));
		CREATE INDEX gin_3 ON task USING gin ((ARRAY[priority]))});
	direct('GIN indexes');
	for my $fastupdate ('off', 'on', 'off')
	{
		sql(q{INSERT INTO task (request, input, priority)
			SELECT 'SELECT 1', jsonb_build_object('a', n), 5 FROM generate_series(1, 20) AS n});
		wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))});
		sql("ALTER INDEX $_ SET (fastupdate = $fastupdate)") for qw(gin_3 gin_1 gin_2);
		direct("indexes with fastupdate $fastupdate");
	}
	my $count = q{SELECT count(*) FILTER (WHERE input @> '{"a": 7}'),
		count(*) FILTER (WHERE ARRAY[priority] @> '{5}') FROM task};
	is(sql($count), '3|60', 'all rows are there');
	is(sql(q{SET enable_seqscan = off; SET enable_indexscan = off;
			SELECT (SELECT count(*) FROM task WHERE input @> '{"a": 7}'),
				(SELECT count(*) FROM task WHERE ARRAY[priority] @> '{5}')}),
		'3|60', 'and found by the indexes');
	sql('DROP INDEX gin_1, gin_2, gin_3');
};

# Somebody else has written the row, or locked it, when the task is done: its outcome waits, and
# what was written stays.
subtest 'conflicts' => sub {
	my $session = open_session($node, 'postgres');
	my $number = 0;

	for my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
	{
		for my $end ('COMMIT', 'ROLLBACK')
		{
			$number++;
			$session->query_safe("SELECT pg_advisory_lock($number)");
			my $id = insert_task($node, request => "SET TRANSACTION ISOLATION LEVEL $level;
				INSERT INTO effect VALUES ('$number'); SELECT pg_advisory_xact_lock($number)");

			wait_for_running($node, 1, id => $id, event => 'advisory');
			$session->query_safe("BEGIN; UPDATE task SET priority = $number WHERE id = $id;
				SELECT pg_advisory_unlock($number)");
			wait_for_running($node, 1, id => $id, event => 'transactionid');
			$session->query_safe($end);
			wait_for_state($node, $id, 'DONE');
			is(task($node, $id, 'priority, attempt'), ($end eq 'COMMIT' ? $number : 0) . '|1',
				"$level, $end: what was written stays");
			is(sql("SELECT count(*) FROM effect WHERE what = '$number'"), 1,
				"$level, $end: one effect");
		}
	}
	$session->quit;
};

done_testing();
