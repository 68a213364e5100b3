# What runs now, and how far it has come: pg_task_activity and pg_task_progress.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => q{
	pg_task.max_executors = 3
	pg_task.idle_timeout = '1 h'
});

# psql sends and prints UTF-8, whatever the encoding of the database.
$ENV{PGCLIENTENCODING} = 'UTF8';

# Columns of the row of a task in pg_task_activity, as a role.
sub activity
{
	my ($id, $columns, %opt) = @_;

	return sql("SELECT $columns FROM pg_task_activity() WHERE id = $id", %opt);
}

# Waits until the task that runs has reported this message.
sub wait_for_message
{
	my ($message) = @_;

	wait_until($node, 'SELECT EXISTS (SELECT FROM pg_task_activity() WHERE message = '
		. literal($message) . ')');
	return;
}

# Waits until no executor has anything to show.  A task is DONE a moment before that.
sub wait_for_rest
{
	wait_until($node, 'SELECT NOT EXISTS (SELECT FROM pg_task_activity())');
	return;
}

sub end_task
{
	my ($id, $gate) = @_;

	open_gate($node, $gate);
	wait_for_state($node, $id, 'DONE');
	wait_for_rest();
	return;
}

make_gates($node);
sql(q{
	CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE eve LOGIN IN ROLE pg_read_all_stats;
	GRANT ALL ON task TO ann, bob});

subtest 'the row of a run' => sub {
	my $id = insert_task($node, queue => 'q' x 70, timeout => '1 h', role => 'ann',
		request => q{SELECT to_json(a) FROM pg_task_activity() AS a; SELECT hold('row')});

	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	is(activity($id, 'database, relid::regclass, queue, role, attempt, timeout, done, total, message'),
		'postgres|task|' . 'q' x 70 . '|ann|1|01:00:00|||', 'what it is');
	is(activity($id, 'pid'), sql('SELECT pid ' . running(id => $id)),
		'pid joins it with pg_stat_activity');
	my $start = activity($id, 'extract(epoch FROM start)');
	end_task($id, 'row');
	is(task($node, $id, 'extract(epoch FROM start)'), $start, 'start is that of the row');
	like(task($node, $id, 'response'), qr/"id":$id,"role":"ann"/, 'a task sees itself');
	$id = insert_task($node, queue => 'ä' x 40, request => q{SELECT hold('cut')});
	wait_until($node, "SELECT EXISTS (SELECT FROM pg_task_activity() WHERE id = $id)");
	is(sql('SELECT application_name ' . running()), 'pg_task ' . '?' x 32 . " $id",
		'application_name has the id, whatever the name');
	is(activity($id, 'queue, timeout IS NULL'), 'ä' x 40 . '|t',
		'a long name is shown in full; no timeout is NULL');
	end_task($id, 'cut');
};

subtest 'rights' => sub {
	my $id = insert_task($node, role => 'ann',
		request => q{SELECT pg_task_progress(1, 2, 'secret'); SELECT hold('rights')});
	my $all = 'SELECT database, role, id, queue, message FROM pg_task_activity()';

	wait_for_message('secret');
	is(sql_as('bob', $all), 'postgres|ann|||', 'of other roles: database, role, pid');
	is(sql_as('bob', q{SELECT count(*) FROM pg_task_activity() WHERE coalesce(relid, attempt, done,
			total) IS NOT NULL OR start IS NOT NULL OR timeout IS NOT NULL}), 0,
				'and nothing else');
	is(sql_as('ann', $all), "postgres|ann|$id|default|secret", 'its role sees it');
	is(sql_as('eve', $all), "postgres|ann|$id|default|secret", 'and pg_read_all_stats');
	end_task($id, 'rights');
};

subtest 'progress' => sub {
	my $id = insert_task($node, request => q{
		SELECT pg_task_progress(1, 10, 'one');
		SELECT hold('one');
		SELECT pg_task_progress(2);
		SELECT pg_task_progress(NULL, NULL, 'two');
		SELECT hold('two');
		SELECT pg_task_progress(-3, 0, ''), pg_task_progress(3, 9, repeat('ä', 200) || 'end');
		SELECT hold('three')});

	wait_for_message('one');
	is(activity($id, 'done, total, message'), '1|10|one', 'seen before the task ends');
	open_gate($node, 'one');
	wait_for_message('two');
	is(activity($id, 'done, total, message'), '2|10|two', 'what is NULL stays as it was');
	open_gate($node, 'two');
	wait_for_message('ä' x 127);
	is(activity($id, 'done, total, octet_length(message)'), '3|9|254',
		'at most 255 bytes, whole characters');
	end_task($id, 'three');
	is(sql(q{SELECT pg_task_progress(1, 2, 'x') IS NULL}), 'f', 'outside of a task: void');
	is(sql('SELECT count(*) FROM pg_task_activity()'), 0, 'and nothing happens');
};

# One executor mostly runs all of these.  It shows a run that has failed until it is reset, and then
# another executor may run the task again.
subtest 'a run begins without progress' => sub {
	my $seen = q{SELECT coalesce(done, total) IS NULL AND message IS NULL AS clean
		FROM pg_task_activity() WHERE pid = pg_backend_pid()};

	sql('CREATE SEQUENCE tries');
	my $id = run_task($node, retry => 1, delay => '1 ms', request => qq{$seen;
		SELECT pg_task_progress(1, 2, 'x'), 1 / (nextval('tries') - 1)});
	is(task($node, $id, q{state, attempt, substring(response FROM '^[^\n]')}), 'DONE|2|t',
		'after a failure, and in the next task');
	wait_for_rest();
	sql('ALTER SEQUENCE tries RESTART');
	$id = run_task($node, request => qq{$seen; SELECT pg_task_progress(1, 2, 'x');
		DO \$\$ BEGIN IF nextval('tries') = 1 THEN
			RAISE EXCEPTION SQLSTATE '40001'; END IF; END \$\$});
	is(task($node, $id, q{state, attempt, substring(response FROM '^[^\n]')}), 'DONE|1|t',
		'after a conflict');
	wait_for_rest();
};

# The joins of docs/functions.md.
subtest 'joins by pid' => sub {
	my $id = insert_task($node, request => q{COPY (SELECT hold('copy')) TO '/dev/null'});

	wait_until($node, 'SELECT EXISTS (SELECT FROM pg_stat_progress_copy)');
	is(sql(q{SELECT a.id, s.query
		FROM pg_task_activity() AS a JOIN pg_stat_activity AS s USING (pid)}),
		"$id|COPY (SELECT hold('copy')) TO '/dev/null'", 'pg_stat_activity has the request');
	is(sql(q{SELECT a.id, p.command, p.bytes_processed, p.bytes_total
		FROM pg_task_activity() AS a JOIN pg_stat_progress_copy AS p USING (pid)}),
		"$id|COPY TO|0|0", 'pg_stat_progress_copy has the progress of a COPY');
	end_task($id, 'copy');
};

# A function that is wrongly marked as safe is called by a worker, which reports nothing.
subtest 'a parallel worker' => sub {
	my $setting = $node->pg_version >= 16 ? 'debug_parallel_query' : 'force_parallel_mode';

	sql(q{
		CREATE FUNCTION report(done bigint) RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE AS
		$$BEGIN PERFORM pg_task_progress(done); RETURN true; END$$;
		CREATE TABLE many AS SELECT n FROM generate_series(1, 1000) AS n});
	my $id = run_task($node, request => qq{SET $setting = on;
		SELECT count(*) FROM many WHERE report(n);
		SELECT done IS NULL FROM pg_task_activity()});

	is(task($node, $id, 'response'), "SET\n1000\nt", 'its report is dropped');
	wait_for_rest();
	$id = run_task($node, request => qq{SET $setting = on;
		EXPLAIN (COSTS off) SELECT pg_task_progress(n) FROM many});
	unlike(task($node, $id, 'response'), qr/Single Copy/, 'the function itself stays with the leader');
};

subtest 'another database, in another encoding' => sub {
	sql(q{CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0});
	sql(q{CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0});
	wait_for_table($node, db => $_) for qw(latin ascii);
	make_gates($node, db => 'latin');
	my $id = insert_task($node, db => 'latin', queue => 'größe', request =>
		q{SELECT pg_task_progress(5, message => 'für'); SELECT hold('latin')});

	wait_for_message('f?r');
	is(activity($id, 'database, queue, done, total, message'), 'latin|gr??e|5||f?r',
		'of a text in another encoding ASCII is shown');
	is(activity($id, 'queue, message', db => 'latin'), 'größe|für', 'all of it in its own database');
	is(activity($id, 'message', db => 'ascii'), 'f?r', 'not in a database without encoding');
	open_gate($node, 'latin', db => 'latin');
	wait_for_state($node, $id, 'DONE', db => 'latin');
	wait_for_rest();
	$id = insert_task($node, queue => 'щит', request =>
		q{SELECT pg_task_progress(1, 1, 'é щ!'); SELECT hold('utf8')});
	wait_for_message('é щ!');
	is(activity($id, 'database, queue, message', db => 'latin'), 'postgres|??????|?? ??!',
		'whether or not it has a place in the encoding of the reader');
	end_task($id, 'utf8');
};

# Each report is the same number three times.  A reader never sees two different ones.
subtest 'no torn reads' => sub {
	my $id = insert_task($node, request => q{
		DO $$ BEGIN
			FOR i IN 1 .. 100000000 LOOP
				PERFORM pg_task_progress(i, i, repeat(i::text, 20));
			END LOOP;
		END $$});

	wait_until($node, 'SELECT EXISTS (SELECT FROM pg_task_activity() WHERE done > 0)');
	is(sql(q{
		CREATE FUNCTION look() RETURNS int LANGUAGE plpgsql AS $$
		DECLARE
			a record;
			last bigint;
			looks int := 0;
			moments int := 0;
			torn int := 0;
		BEGIN
			WHILE moments < 2000 AND (looks < 20000 OR moments < 20) LOOP
				looks := looks + 1;
				SELECT INTO a * FROM pg_task_activity() WHERE done > 0;
				IF a.done <> a.total OR a.message <> repeat(a.done::text, 20) THEN
					torn := torn + 1;
				END IF;
				IF a.done IS DISTINCT FROM last THEN
					moments := moments + 1;
				END IF;
				last := a.done;
			END LOOP;
			RETURN torn;
		END $$;
		SELECT look()}),
		0, 'up to 2000 reports, read while the task reports all the time');
	sql("SELECT pg_task_cancel($id)");
	wait_for_rest();
};

subtest 'an executor that exits' => sub {
	my $id = insert_task($node, request => q{SELECT pg_task_progress(1, 2, 'x');
		SELECT hold('exit')});

	wait_for_message('x');
	my $pid = activity($id, 'pid');
	terminate($node, $pid);
	wait_until($node, "SELECT NOT EXISTS (SELECT FROM pg_task_activity() WHERE pid = $pid)");
	pass('leaves no row');
	end_task($id, 'exit');
};

# What pg_task_top shows of the tasks in queues that begin so.
sub top
{
	my ($columns, %opt) = @_;

	return sql("SELECT $columns FROM pg_task_top() WHERE queue LIKE 'top%'", %opt);
}

subtest 'pg_task_top' => sub {
	insert_rule('top.late', paused => 't');
	sql(q{INSERT INTO task (queue, dt, role, request) VALUES
		('top.late', now() - interval '1 h', 'ann', 'SELECT 1'),
		('top.late', now() - interval '2 h', 'ann', E'SELECT\n\n2'),
		('top.late', now() + interval '1 h', 'ann', 'SELECT 3'),
		('top.later', now() + interval '2 h', 'bob', 'SELECT 4'),
		('top.never', 'infinity', 'bob', 'SELECT 5')});
	my $failed = insert_task($node, queue => 'top.failed', role => 'ann', request => 'SELECT 1/0');
	my $again = insert_task($node, queue => 'top.again', role => 'ann', request => 'SELECT 1/0',
		retry => 1, delay => '1 h');
	my $runs = insert_task($node, queue => 'top.runs', role => 'ann',
		request => q{SELECT pg_task_progress(3, 7, 'top'); SELECT hold('top')});

	wait_for_state($node, $failed, 'FAIL');
	wait_until($node, "SELECT failed = 1 FROM task WHERE id = $again");
	wait_for_message('top');
	# what has failed is shown as running until its executor is reset
	wait_until($node, 'SELECT count(*) = 1 FROM pg_task_activity()');
	is(top('what, queue, role, tasks, text'), join("\n",
		q{runs|top.runs|ann||3 of 7: top: SELECT pg_task_progress(3, 7, 'top'); SELECT hold('top')},
		'late|top.late|ann|2|SELECT 2',
		'failed|top.failed|ann||22012 division by zero',
		'waits|top.again|ann|1|failed 1 times: division by zero',
		'waits|top.later|bob|1|SELECT 4', 'waits|top.never|bob|1|SELECT 5'),
		'what runs, is late, failed and waits');
	is(sql(q{SELECT bool_and(t.at IS NOT DISTINCT FROM CASE t.what WHEN 'runs' THEN a.start
			WHEN 'failed' THEN r.stop ELSE r.dt END), count(*)
		FROM pg_task_top() AS t JOIN task AS r USING (id) LEFT JOIN pg_task_activity() AS a USING (id)
		WHERE t.queue LIKE 'top%'}), 't|6', 'since when, and of which task');
	is(top('count(age), min(age) < interval \'0\', max(age) > interval \'1 h\''), '5|t|t',
		'how long ago: before 0 in the future, NULL for never');
	# from 19 on it is always on
	my $off =
	  sql('SHOW server_version_num') < 190000 ? 'SET standard_conforming_strings = off;' : '';
	is(sql(qq{$off
		SELECT text FROM pg_task_top() WHERE queue = 'top.failed'}), '22012 division by zero',
		'a setting does not change its texts');
	is(top('what, queue', user => 'bob'), "waits|top.later\nwaits|top.never",
		'row security holds');
	is(sql(q{SELECT what, count(*) FROM pg_task_top(1) WHERE what <> 'note' GROUP BY what
		ORDER BY what}), "failed|1\nlate|1\nruns|1\nwaits|1", 'fewer lines');
	sql(q{INSERT INTO task (queue, after, request)
		SELECT 'top.after', ARRAY[min(id)], 'SELECT 6' FROM task WHERE queue = 'top.later'});
	is(sql(q{SELECT tasks, text FROM pg_task_top() WHERE what = 'after'}), '1|wait for other tasks',
		'what waits for other tasks');
	is(top('count(*)'), 6, 'is in no other line');
	is(sqlstate_of('ann', 'SELECT pg_task_top(-1)'), '2201W', 'a negative number');
	like(error_of('eve', 'SELECT pg_task_top()'),
		qr/^\S*\s*ERROR:  permission denied for table task\s*$/,
		'without SELECT on the table');
	sql(q{INSERT INTO task (queue, dt, request)
		SELECT 'many' || n, now() + interval '1 day', 'SELECT 1'
			FROM generate_series(1, 200) AS n});
	is(sql(q{SELECT text FROM pg_task_top() WHERE what = 'note'}),
		'more than 200 groups wait: of others nothing is shown', 'it says what it leaves out');
	end_task($runs, 'top');
};

# The rows that it reads are counted: a history of any length adds none.
subtest 'pg_task_top beside a long history' => sub {
	sql(q{
		DELETE FROM task WHERE state = 'PLAN';
		BEGIN;
		ALTER TABLE task DISABLE TRIGGER ALL;
		INSERT INTO task (state, stop, request) SELECT 'FAIL', now(), 'SELECT 1'
			FROM generate_series(1, 30000);
		ALTER TABLE task ENABLE TRIGGER ALL;
		COMMIT});
	for my $analyzed (0, 1)
	{
		sql('ANALYZE task') if $analyzed;
		my ($lines, $scans, $rows) = split /[|\n]/, sql(q{
			BEGIN;
			SELECT count(*) FROM pg_task_top();
			SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'task';
			COMMIT});
		is("$lines $scans", '10 0', 'no sequential scan');
		cmp_ok($rows, '<', 10100, 'the last 10,000 ids are read, and little else');
	}
	sql(q{SELECT setval(pg_get_serial_sequence('task', 'id'), 9223372036854775807)});
	is(sql('SELECT count(*) >= 0 FROM pg_task_top()'), 't', 'after the last id that there can be');
};

done_testing();
