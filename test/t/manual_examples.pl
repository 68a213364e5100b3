# The examples of docs/queues.md, workflows.md, testing.md and admin-pages.md: each block of SQL is run, in order, and what
# it promises is checked.  A TAP test because tasks run, and because a table is partitioned while
# they do.
#
# Comments in a manual say where the following blocks run: <!-- database: name -->; without one they
# run in a database of the manual's.  A block that only inserts, with ON CONFLICT, is
# run twice.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', period => '1 s', conf => 'pg_task.max_executors = 4');
my $db = 'postgres';

wait_for_table($node, table => 'task_queue');

# Waits until nothing of these rows waits or runs.
sub wait_for_end
{
	my ($condition) = @_;

	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task
		WHERE state IN ('PLAN', 'WORK') AND $condition)", db => $db);
}

# Waits until the scheduler has completed the table that a block has created.
sub wait_for_columns
{
	wait_until($node, q{SELECT count(*) = 1 FROM pg_trigger WHERE tgrelid = to_regclass('task')
		AND tgname = 'pg_task_planned'},
		db => $db);
}

sub is_sql
{
	my ($query, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql_in($db, $query), $expected, $name);
}

# How many tasks of a key there are, and in which state.
sub is_single
{
	my ($key, $expected) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_sql("SELECT string_agg(state, ',') FROM task WHERE key = '$key'", $expected,
		"$key: one task");
}

# What is checked after the last block under a heading.
my %check_queues = (
	'Limits' => sub {
		wait_for_end(q{queue IN ('mail', 'slow service')});
		# it is counted from the claim of the first one, which comes before its start
		is_sql(q{SELECT max(start) - min(dt) >= '200 ms' FROM task WHERE queue = 'slow service'},
			't', 'a pause between two starts');
	},
	'Run a schedule now' => sub {
		wait_until($node, q{SELECT count(*) = 2 FROM task WHERE queue = 'pulse' AND key IS NULL
			AND state = 'DONE'});
		is_sql(q{SELECT string_agg(concat_ws('|', request, repeat, input ->> 'day'), ', '
			ORDER BY id) FROM task WHERE queue = 'pulse' AND key IS NULL},
			'SELECT 1, SELECT 1|2026-11-01', 'it has run twice, once with its own input');
		sql(q{UPDATE task SET state = 'STOP' WHERE queue = 'pulse' AND state IN ('PLAN', 'WORK')});
	},
	'Pause one task' => sub {
		wait_until($node, q{SELECT count(*) > 2 FROM task WHERE queue = 'pulse'
			AND state = 'DONE'});
		is_sql(q{SELECT count(*) FROM task WHERE queue = 'pulse' AND next IS NULL}, 1,
			'it goes on, in one chain');
	},
	'Strict order' => sub {
		wait_for_end(q{queue LIKE 'account.%'});
		sql_in($db, q{INSERT INTO task (queue, request) VALUES ('account.9',
			'SELECT 1 / (attempt - 1) FROM task WHERE id = pg_task_id()'),
			('account.9', 'SELECT 2'), ('account.10', 'SELECT 3')});
		wait_for_end(q{queue LIKE 'account.%'});
		is_sql(q{SELECT string_agg(concat_ws(' ', state, attempt), ', ' ORDER BY start)
			FROM task WHERE queue = 'account.9'}, 'DONE 2, DONE 1', 'none overtakes one that failed');
	},
	'Fair shares' => sub {
		wait_for_end(q{queue LIKE 'tenant.%'});
		sql_in($db, q{INSERT INTO task (queue, dt, request)
			SELECT 'tenant.large', now() - interval '1 h', 'SELECT 1' FROM generate_series(1, 1000)
			 UNION ALL SELECT 'tenant.small', now(), 'SELECT 1' FROM generate_series(1, 5)});
		wait_for_end(q{queue LIKE 'tenant.%'});
		is_sql(q{SELECT max(start) FILTER (WHERE queue = 'tenant.small')
			< max(start) FILTER (WHERE queue = 'tenant.large') FROM task
			WHERE queue LIKE 'tenant.%'}, 't', 'those who have little are not last');
	},
	'Drop the duplicate' => sub { wait_for_end(q{key = 'refresh'}) },
	'Plan the waiting one anew' => sub {
		is_single('report', 'PLAN');
		is_sql(q{SELECT dt > now() + '90 min' FROM task WHERE key = 'report'}, 't',
			'it has the last time');
	},
	'Run again after a change' => sub {
		wait_for_end(q{queue = 'copy'});
		is_sql('SELECT body FROM copied WHERE id = 1', 'second', 'the change is copied');
		# for the next heading: what is planned in five seconds must not start meanwhile
		sql_in($db, q{INSERT INTO task_queue (queue, paused) VALUES ('index', true)});
	},
	'Debounce' => sub {
		is_single(2, 'PLAN');
		is_single(3, 'PLAN');
		is_sql(q{SELECT dt - event BETWEEN '5 s' AND '1 min' FROM task WHERE key = '3'}, 't',
			'it is planned after the last event, and not too late');
		sql(q{UPDATE task SET event = now() - interval '59 s' WHERE key = '3'});
		return 'again';
	},
	'Debounce again' => sub {
		is_sql(q{SELECT dt < now() + '2 s' FROM task WHERE key = '3'}, 't',
			'it is planned a minute after the first event at the latest');
		sql_in($db, q{DELETE FROM task_queue WHERE queue = 'index'});
	},
	'Throttle' => sub {
		wait_until($node, q{SELECT count(*) > 0 FROM task WHERE key = 'all' AND start IS NOT NULL});
		is_sql(q{SELECT count(*) FROM task WHERE key = 'all' AND start IS NOT NULL}, 1,
			'one start');
		is_sql(q{SELECT dt = date_trunc('minute', dt) AND dt > event AND dt <= event + '1 min'
			FROM task WHERE key = 'by the minute' ORDER BY id LIMIT 1}, 't', 'at a full minute');
	},
	'Once in a while' => \&check_once,
	'Labels' => sub {
		wait_until($node, q{SELECT count(*) = 2 AND bool_and(state = 'DONE') FROM task
			WHERE queue = 'labels'});
		is_sql(q{SELECT response::jsonb ->> 'trace' FROM task WHERE queue = 'labels'
			AND request LIKE 'SHOW%'}, '4bf92f35', 'a task within a task has them');
	},
	'Tenants' => sub {
		wait_for_end(q{queue = 'tenants'});
		is_sql(q{SELECT string_agg(concat_ws(' ', role, response), ', ' ORDER BY id) FROM task
			WHERE queue = 'tenants'}, 'clerk 7', 'those of one tenant');
	},
	'Rebuild indexes' => sub {
		wait_for_end(q{queue = 'reindex'});
		is_sql(q{SELECT string_agg(DISTINCT request || ' ' || state, ', ' ORDER BY request || ' '
			|| state) FROM task WHERE queue = 'reindex'}, 'REINDEX TABLE CONCURRENTLY public.copied'
			  . ' DONE, REINDEX TABLE CONCURRENTLY public.document DONE', 'both tables');
		sql_in($db, 'CREATE INDEX ON document (body)');
	},
	'Single indexes' => sub {
		wait_for_end(q{queue = 'reindex'});
		is_sql(q{SELECT string_agg(concat_ws(' ', step, needs, state), ', ' ORDER BY step)
			FROM task WHERE queue = 'reindex' AND step IS NOT NULL}, 'public.copied_pkey DONE,'
			. ' public.document_body_idx DONE, public.document_pkey {public.document_body_idx} DONE',
			'one index of each table at a time');
	},
	'Bulk' => sub {
		wait_for_end(q{queue LIKE 'lot %'});
		is_sql(q{SELECT count(*) FROM task WHERE queue LIKE 'lot %' AND state = 'DONE'}, 5004,
			'all are DONE');
		sql('CREATE ROLE many LOGIN; GRANT SELECT, INSERT ON task TO many');
		is(sqlstate_of('many', "COPY task (request) FROM STDIN;\nSELECT 1\n\\.\n"), '0A000',
			'COPY is refused under row security');
		is(sql_as('many', q{INSERT INTO task (queue, request)
			SELECT 'lot 3', r.request FROM unnest('{SELECT 1,SELECT 2}'::text[]) AS r (request)
			RETURNING role}), "many\nmany", 'arrays are not');
	},
	'By id' => \&check_partitions,
	'By time' => sub {
		is_sql(q{SELECT string_agg(relid::text, ', ' ORDER BY relid::text)
			FROM pg_partition_tree('task') WHERE isleaf}, 'task_later, task_now',
			'the old partition is gone');
		like(error_of('postgres', q{INSERT INTO task (dt, request) VALUES ('2019-07-01', 'x')},
				db => $db),
			qr/no partition of relation "task"/, 'as the manual says');
		wait_for_end(q{dt < 'infinity'});
		is_sql(q{SELECT string_agg(state || ' ' || tableoid::regclass, ', ' ORDER BY state)
			FROM task}, 'DONE task_now, DONE task_now, PLAN task_later', 'tasks run, or wait');
	},
	'Keys in a partitioned table' => sub {
		wait_for_end(q{key = 'report'});
		is_sql(q{SELECT plan_alone('other', 'SELECT pg_sleep(0.2)'),
			plan_alone('other', 'SELECT pg_sleep(0.2)')}, '|', 'twice in one transaction');
		wait_for_end(q{key = 'other'});
		is_single('other', 'DONE');
	});

# What is done after one block, by its database.
my %after = (
	by_id => sub {
		wait_for_columns();
		wait_for_end('true');
	},
	by_time => sub {
		wait_for_columns();
		sql_in($db, q{INSERT INTO task (dt, request) VALUES ('2019-07-01', 'SELECT 1'),
			('infinity', 'SELECT 2')});
		sql_in($db, q{UPDATE task SET dt = '2020-07-01' WHERE request = 'SELECT 1'});
		wait_for_end(q{dt < 'infinity'});
		sql_in($db, q{INSERT INTO task (dt, request) VALUES (now(), 'SELECT 3');
			UPDATE task SET state = 'PLAN', dt = now() WHERE request = 'SELECT 1'});
	},
	by_queue => sub {
		wait_for_columns();
		for (1 .. 2)
		{
			sql_in($db, q{INSERT INTO task (queue, key, dt, request)
				VALUES ('q', 'k', now() + '1 h',
				'SELECT 1') ON CONFLICT (queue, key)
				WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
				DO UPDATE SET dt = excluded.dt, request = 'SELECT 2'});
		}
		is_sql(q{SELECT request FROM task WHERE key = 'k'}, 'SELECT 2',
			'a key in a queue of its own');
	});

# Many sessions plan the same once in a while, and it is planned once.
sub check_once
{
	my $script = PostgreSQL::Test::Utils::tempdir() . '/once.sql';

	wait_for_end(q{queue = 'once'});
	is_sql(q{SELECT plan_once('once', 'invoice 7', 'SELECT 8', '1 h') IS NULL}, 't',
		'not again after DONE');
	is_sql(q{SELECT plan_once('once', 'invoice 7', 'SELECT 8', '0 s') IS NULL}, 'f',
		'again when the pause is over');
	append_to_file($script, q{SELECT plan_once('once', 'race', 'SELECT 9', '1 h');});
	$node->command_ok([ 'pgbench', '-n', '-c', 8, '-t', 50, '-f', $script, 'postgres' ],
		'many sessions plan it');
	wait_for_end(q{queue = 'once'});
	is_single('race', 'DONE');
}

# Partitions are detached while tasks are inserted and run.
sub check_partitions
{
	my $script = PostgreSQL::Test::Utils::tempdir() . '/insert.sql';
	my $position = log_position($node);
	my @gone;

	sql_in($db, 'DROP TABLE task_2;
		CREATE TABLE part_0 PARTITION OF task FOR VALUES FROM (0) TO (200)');
	sql_in($db, "CREATE TABLE part_$_ PARTITION OF task
		FOR VALUES FROM ($_ * 200) TO ($_ * 200 + 200)") for 1 .. 20;
	append_to_file($script, q{INSERT INTO task (queue, max, request) SELECT 'moving', 3, 'SELECT 1'
		FROM generate_series(1, 5);});
	my $pgbench = IPC::Run::start([ 'pgbench', '-n', '-c', 2, '-t', 100, '-f', $script, '-h',
		$node->host, '-p', $node->port, $db ], '>', \my $out, '2>', \my $err);
	for my $part (0 .. 3)
	{
		my $how = $part % 2 ? 'CONCURRENTLY' : '';

		wait_until($node, "SELECT max(id) >= $part * 200 + 200 FROM task", db => $db);
		# a lower id may be in a transaction that has not committed yet
		sql_in($db, 'BEGIN; LOCK TABLE ONLY task IN SHARE MODE; COMMIT');
		wait_for_end("id < $part * 200 + 200");
		sql_in($db, "ALTER TABLE task DETACH PARTITION part_$part $how");
		push @gone, "part_$part";
	}
	ok($pgbench->finish, 'no INSERT has failed');
	wait_for_end('true');
	is_sql('SELECT count(*), count(*) FILTER (WHERE state = \'DONE\' AND attempt = 1) FROM ('
		. join(' UNION ALL ', map { "SELECT * FROM $_ WHERE queue = 'moving'" } 'task', @gone)
		. ') AS t', '1000|1000', 'each task has run once');
	# the scheduler waits for a table for a second, and then tries again
	unlike(log_since($node, $position),
		qr/ERROR(?!:  canceling (?:statement due to lock timeout|autovacuum task))/,
		'nothing has failed');
}

# Tasks of the workflows in docs/workflows.md, by their flow: the states in the order of the ids.
sub is_flow
{
	my ($flow, $states) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_for_end("flow = '$flow'");
	is_sql("SELECT string_agg(coalesce(step, '') || ' ' || state, ', ' ORDER BY id) FROM task
		WHERE flow = '$flow'", $states, $flow);
}

# Everything that waits for others has started after these have ended.
sub is_in_order
{
	is_sql(q{SELECT count(*) FROM task AS t JOIN task AS p ON p.id = ANY (t.after)
		WHERE t.start <= p.stop AND coalesce(t.rule, 'done') = 'done'}, 0, 'in order');
}

sub check_embeddings
{
	wait_for_end(q{queue = 'embed'});
	is_sql(q{SELECT count(*) FROM letter WHERE embedding = ARRAY[length(body), 108]::real[]}, 95,
		'each letter has its embedding');
	is_sql(q{SELECT count(*), sum(attempt), sum(failed), bool_and(state = 'DONE') FROM task
		WHERE queue = 'embed'}, '10|12|1|t', 'one was tried again, one went on later');
	# or when its first run had ended, if that was later
	is_sql(q{SELECT dt >= until AND start >= dt FROM task JOIN task_queue USING (queue)
		WHERE queue = 'embed' AND attempt = 2 AND failed = 0}, 't',
		'it went on when the provider had said');
}

sub check_nights
{
	my $backfill = q{queue = 'backfill'};

	wait_for_end($backfill);
	is_sql(q{SELECT count(*), bool_and(checked), sum(amount) FROM daily
		WHERE day BETWEEN '2026-08-01' AND '2026-10-29'}, '90|t|499500', 'each day is there');
	is_single('nightly', 'PLAN');
	is_sql(q{UPDATE task SET dt = now() WHERE key = 'nightly' RETURNING cron}, '30 2 * * *',
		'it is planned for now');
	wait_until($node, q{SELECT count(*) > 0 FROM task WHERE key = 'nightly' AND state = 'DONE'},
		db => $db);
	wait_for_end(q{flow LIKE 'night of %'});
	is_sql(q{SELECT count(*) FROM task AS t JOIN task AS p ON p.key = 'nightly' AND p.state = 'DONE'
		WHERE t.flow = 'night of ' || (p.dt AT TIME ZONE 'Europe/Berlin')::date - 1
			AND t.state = 'DONE'}, 2, 'the night has run');
	is_sql(q{SELECT count(*) FROM (SELECT start_night(day) FROM daily) AS s}, sql_in($db,
		'SELECT count(*) FROM daily'), 'started again');
	is_sql(q{SELECT count(*) = 2 * (SELECT count(*) FROM daily), max(attempt) FROM task
		WHERE flow LIKE 'night of %'}, 't|1', 'nothing runs twice');
}

my %check_workflows = (
	'Until all is done' => sub {
		is_sql(q{SELECT count(*) >= 3, bool_and(state = 'DONE') FROM task
			WHERE request IN ('SELECT 1', 'SELECT 2', 'SELECT 3')}, 't|t',
				'all are, when it returns');
	},
	'One after the other' => sub {
		wait_for_end('true');
		is_sql(q{SELECT string_agg(state, ',') FROM task}, 'DONE,DONE', 'both are DONE');
	},
	'Side by side, and together again' => sub {
		wait_for_end('true');
		is_sql(q{SELECT cardinality(after), state FROM task WHERE response = 'all parts'},
			'10|DONE', 'it has waited for all');
	},
	'What is found on the way' => sub {
		wait_for_end('true');
		is_sql(q{SELECT cardinality(after), state FROM task WHERE response = 'joined'}, '3|DONE',
			'it has waited for all');
	},
	'A workflow within another' => sub {
		wait_for_end('true');
		is_sql(q{SELECT state, response FROM task WHERE flow = 'outer 1' AND step = 'end'},
			'DONE|["CALL", "1", "2", "3"]', 'the last step has waited for all');
		is_in_order();
	},
	'When something fails' => sub {
		wait_for_end('true');
		is_sql(q{SELECT string_agg(rule || ' ' || state, ', ' ORDER BY rule) FROM task},
			'done GONE, ended DONE, failed DONE', 'by their rules');
	},
	'Going on from where it failed' => sub {
		wait_for_end('true');
		is_sql(q{SELECT string_agg(state || ' ' || attempt, ', ' ORDER BY id) FROM task
			WHERE state <> 'DONE'}, 'FAIL 2, GONE 0', 'what has failed has run again');
	},
	'By names' => sub {
		is_flow('orders of 2026-11-21', 'extract DONE, clean DONE, check DONE, load DONE');
		is_sql(q{SELECT response FROM task WHERE step = 'load'}, '{"check": "3", "clean": "2"}',
			'what the steps have returned');
		is_sql(q{SELECT count(*) FROM regexp_matches(pg_task_graph('orders of 2026-11-21'),
			' --> ', 'g')}, 4, 'the arrows of its picture');
	},
	'The first one counts' => sub {
		is_flow('race 1', 'fast DONE, slow STOP, end DONE');
	},
	'Waiting for somebody' => sub {
		is_flow('holiday 5', 'approval DONE, book DONE');
		is_sql(q{SELECT response FROM task WHERE step = 'book'}, '["ann"]', 'what was said');
	},
	'A task that goes on later' => sub {
		wait_for_end('true');
		is_sql(q{SELECT attempt, input FROM task WHERE request = 'CALL work_through()'},
			'3|{"next": 3}', 'in three turns');
	},
	'A load whose parts are found on the way' => sub {
		is_flow('load of 2026-11-21', join(', ', 'list DONE', (' DONE') x 6));
		is_sql(q{SELECT * FROM total}, '2026-11-21|5|75750', 'the sum is that of all files');
		is_in_order();
	},
	'An order, and what undoes it' => sub {
		is_flow('purchase 1', 'reserve DONE, pay DONE, ship DONE, refund GONE, release GONE');
		is_flow('purchase 2', 'reserve DONE, pay DONE, ship FAIL, refund DONE, release DONE');
		is_flow('purchase 3', 'reserve FAIL, pay GONE, ship GONE, refund DONE, release DONE');
		is_sql(q{SELECT string_agg(concat_ws(' ', reserved, paid, shipped), ', ' ORDER BY id)
			FROM purchase}, 't t t, f f f, f f f', 'what was done is undone');
		is_sql(q{SELECT string_agg(item || ' ' || free, ', ' ORDER BY item) FROM stock},
			'bike 1, boat 0', 'and the stock is right');
		is_in_order();
	},
	'Embeddings by batches, at the pace of a provider' => \&check_embeddings,
	'Nightly runs, and ninety days made up for beside them' => \&check_nights,
	'A long procedure as a state machine' => sub {
		wait_for_end(q{key = 'move the log'});
		is_sql(q{SELECT state, input ->> 'state' FROM task WHERE key = 'move the log'},
			'DONE|clean',
			'it has come to its end');
		is_sql(q{SELECT attempt FROM task WHERE key = 'move the log'}, 6, 'in six turns');
		is_sql('SELECT count(*), max(id), (SELECT count(*) FROM old_log) FROM new_log', '250|250|0',
			'all is moved');
	});

sub run_block
{
	my ($block) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->command_ok(psql_command($node, $db, $block->{sql}),
		"$block->{heading}: " . $block->{sql} =~ s/\n.*//sr);
}

my %made = (postgres => 1);

# Runs the blocks of a manual in this database, and the checks of its headings.
sub run_manual
{
	my ($file, $database, %check) = @_;
	my @blocks = blocks_of($file);

	for my $i (0 .. $#blocks)
	{
		my ($block, $next) = @blocks[ $i, $i + 1 ];

		$db = $block->{database} // $database;
		sql("CREATE DATABASE $db") unless $made{$db};
		wait_for_table($node, db => $db, table => 'task_queue');
		run_block($block);
		run_block($block) if $block->{sql} =~ /ON CONFLICT/ && $block->{sql} !~ /CREATE|ALTER/;
		$after{$db}->() unless $made{$db}++ || !$after{$db};
		next if $next && $next->{heading} eq $block->{heading};
		if (my $check = delete $check{ $block->{heading} })
		{
			my $again = $check->() // '';

			if ($again eq 'again')
			{
				run_block({ %$block, sql => $block->{sql} =~ s/^ALTER.*\n//r });
				delete($check{"$block->{heading} again"})->();
			}
		}
	}
	is_deeply([ keys %check ], [], "$file: each heading was there");
}

my %check_testing = (
	'A server for tests' => sub {
		is_sql('SHOW pg_task.delay', '0', 'it is set');
	},
	'Until all is done' => sub {
		is_sql(q{SELECT * FROM pg_task_remaining('shop', now())}, '{}|1|1|0', 'as the manual says');
	},
	'Time' => sub {
		is_sql(q{SELECT string_agg(state || (dt > now()), ', ' ORDER BY id) FROM task
			WHERE key = 'nightly'}, 'DONEfalse, PLANtrue', 'it has run, and is planned');
	},
	'Tests that roll back' => sub {
		is(error_of('postgres', 'SELECT run_tasks()', db => $db) =~ /session of the application/, 1,
			'no superuser runs tasks so');
		is_sql(q{SET SESSION AUTHORIZATION shop; BEGIN;
			SET pg_task.meta = '{"a": 1}'; INSERT INTO task (request, dt) VALUES
			('INSERT INTO task (request) VALUES (''CREATE TEMP TABLE seen AS
				SELECT current_setting(''''pg_task.meta'''')'')', now()), ('SELECT 1/0', 'infinity');
			SET LOCAL pg_task.meta = ''; SELECT run_tasks();
			SELECT count(*) FROM task; TABLE seen}, qq(2\n1\n{"a": 1}), 'what is due has run, with its labels');
	},
	'Between two tests' => sub { is_sql('SELECT count(*) FROM task', 0, 'nothing is left') });

# The indexes in which a query of a role looks for what its conditions say.
sub plan_of
{
	my ($role, $query) = @_;
	my $plan = sql_in($db, "SET enable_seqscan = off; SET ROLE $role; EXPLAIN (COSTS off) $query");

	return join ' ', $plan =~ /(task_\w+)(?: on task)?\n +Index Cond/g;
}

# Who may use which index: each query of the manual, by the roles and by one under row security.
sub check_pages
{
	my @queries = map { split /\n\n/, $_->{sql} }
	  grep { $_->{heading} eq 'Pages' } blocks_of('admin-pages.md');
	my @expected = (('task_pkey') x 2, ('task_queue_id_idx') x 2, ('task_stop_id_idx') x 2,
		'task_meta_idx', '', 'task_to_tsvector_idx', '', 'task_left_idx', '');

	sql_in($db, q{CREATE ROLE keeper; GRANT keeper TO shopkeeper;
		GRANT SELECT, INSERT ON task TO keeper;
		INSERT INTO task (role, queue, meta, request) SELECT 'keeper',
			CASE WHEN n % 100 = 0 THEN 'mail' ELSE 'other' END,
			CASE WHEN n % 100 = 0 THEN '{"tenant": "acme"}' ELSE '{"tenant": "x"}' END::jsonb,
			CASE WHEN n % 100 = 0 THEN 'SELECT 1 / 0 AS send_mail'
				ELSE 'SELECT ' || repeat('x', n) END FROM generate_series(1, 1000) AS n});
	wait_for_end('true');
	sql_in($db, 'VACUUM ANALYZE task');
	for my $i (0 .. $#queries)
	{
		is(plan_of($_, $queries[$i]), $expected[ 2 * $i ], "$_: query $i") for qw(support viewer);
		is(plan_of('keeper', $queries[$i]), $expected[ 2 * $i + 1 ], "under row security: query $i");
	}
	is(scalar @queries, 6, 'all queries');
	# what the runs have written into the indexes
	is_sql(q{SET enable_seqscan = off; SET ROLE viewer; SELECT
		(SELECT count(*) FROM task WHERE meta @> '{"tenant": "acme"}' AND state = 'FAIL'),
		(SELECT count(*) FROM task WHERE to_tsvector('simple', request)
			@@ plainto_tsquery('simple', 'send_mail') AND state = 'FAIL')}, '10|10',
		'each is found by its labels and its words');
	return;
}

my %check_pages = ('Pages' => \&check_pages);

run_manual('workflows.md', 'workflows', %check_workflows);
sql('CREATE ROLE shopkeeper');
sql('CREATE DATABASE pages OWNER shopkeeper');
$made{pages} = 1;
run_manual('admin-pages.md', 'pages', %check_pages);
run_manual('testing.md', 'testing', %check_testing);
run_manual('queues.md', 'postgres', %check_queues);

done_testing();
