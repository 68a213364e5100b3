# A row that waits for one task alone is freed and claimed in one write, where an executor has room
# for it: how often rows are written, what the row says then, and that limits, locks, orders and
# errors count as for any other row.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => q{
	pg_task.max_executors = 3
	pg_task.period = '1 s'
	autovacuum = off});

sql(q{CREATE EXTENSION amcheck; CREATE TABLE effect (id bigint, at timestamptz DEFAULT clock_timestamp())});
make_gates($node);

# Inserts a task that waits for its gate, and, in one INSERT, this number that wait for it.
sub insert_fan
{
	my ($gate, $count, %column) = @_;
	my $request = delete $column{request} // 'INSERT INTO effect SELECT pg_task_id()';
	my $id = insert_task($node, queue => 'first', request => "SELECT hold('$gate')");
	my @names = sort keys %column;

	sql('INSERT INTO task (after, request' . join('', map { ", $_" } @names) . ") SELECT '{$id}', "
		. literal($request)
		. join('', map { ', ' . literal($column{$_}) } @names)
		. " FROM generate_series(1, $count)");
	return $id;
}

# All tasks have ended, each has had its effect once, and no B-tree index lacks a row.
sub check_effects
{
	my ($count, $name) = @_;

	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))");
	is(sql(q{SELECT count(*), count(DISTINCT e.id), count(*) FILTER (WHERE state = 'DONE'
		AND attempt = 1 AND waits IS NULL AND planned IS NULL AND start >= dt)
		FROM effect AS e JOIN task USING (id)}), "$count|$count|$count", "$name: each has run once");
	sql(q{SELECT bt_index_check(c.oid, true) FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid
		WHERE indrelid = 'task'::regclass AND relam = 403 AND indisvalid;
		TRUNCATE task, effect; DELETE FROM gate});
	return;
}

# A process reports what it has counted when it is idle.
subtest 'a chain' => sub {
	my $steps = 40;

	run_task($node, request => 'SELECT 1');
	sql(qq{TRUNCATE task;
		DO \$\$
		DECLARE last bigint;
		BEGIN
			INSERT INTO task (dt, request) VALUES ('infinity', 'SELECT 1') RETURNING id INTO last;
			FOR i IN 1 .. $steps LOOP
				INSERT INTO task (after, flow, request) VALUES (ARRAY[last], 'chain',
					'INSERT INTO effect VALUES (' || last || ')') RETURNING id INTO last;
			END LOOP;
		END \$\$;
		VACUUM ANALYZE task});
	# the table is described again when a task was claimed
	run_task($node, queue => 'other', request => 'SELECT 1');
	wait_until($node, q{SELECT n_tup_upd > 0 FROM pg_stat_user_tables WHERE relname = 'task'});
	sql(q{SELECT pg_stat_reset(); UPDATE task SET dt = now() WHERE dt = 'infinity'});
	wait_until($node, "SELECT count(*) = 0 FROM task WHERE state <> 'DONE'");
	is(sql('SELECT count(*) FROM task AS t JOIN task AS p ON p.id = ANY (t.after)
		WHERE t.start < p.stop OR t.dt < p.stop'), 0, 'each is planned for when the one before ended');
	is(sql('SELECT array_agg(id ORDER BY at) = array_agg(id ORDER BY id) FROM effect'), 't',
		'they have run in order');
	# 2 for each task, 1 to begin; 3 for each if all were freed before
	wait_until($node, "SELECT n_tup_upd >= 2 * ($steps + 1) + 1 FROM pg_stat_user_tables
		WHERE relname = 'task'");
	cmp_ok(sql(q{SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'task'}),
		'<', 2.9 * $steps, 'many are not freed before their claims');
	sql('TRUNCATE task, effect');
};

subtest 'one to many' => sub {
	insert_fan('many', 3000);
	open_gate($node, 'many');
	check_effects(3000, 'plain tasks');
	insert_fan('timeout', 500, timeout => '1 hour');
	open_gate($node, 'timeout');
	check_effects(500, 'tasks that are freed before');
	sql('CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE TRIGGER nothing AFTER UPDATE ON task FOR EACH ROW EXECUTE FUNCTION nothing()');
	insert_fan('trigger', 500);
	open_gate($node, 'trigger');
	check_effects(500, 'a table with a trigger');
	sql('DROP TRIGGER nothing ON task; ALTER TABLE task ALTER dt TYPE timestamptz(0)');
	insert_fan('rounded', 500);
	open_gate($node, 'rounded');
	wait_until($node, "SELECT count(*) = 500 FROM effect");
	sql('TRUNCATE effect, task; ALTER TABLE task ALTER dt TYPE timestamptz; DELETE FROM gate');
};

# The largest number of tasks of a queue that ran at the same time.
sub most_at_once
{
	my ($queue) = @_;

	return sql("SELECT max(n) FROM (SELECT count(*) AS n FROM task AS a JOIN task AS b
		ON b.start <= a.start AND b.stop > a.start
		WHERE a.queue = '$queue' AND b.queue = '$queue' GROUP BY a.id) AS s");
}

subtest 'limits' => sub {
	my $id = insert_fan('limits', 40, queue => 'two', max => 2);
	my $strict;

	insert_rule('rule', max => 1);
	insert_rule('paused', paused => 't');
	insert_rule('strict', strict => 't', max => 1);
	sql(qq{INSERT INTO task (after, queue, request) SELECT '{$id}', queue,
		'INSERT INTO effect SELECT pg_task_id(); SELECT pg_sleep(0.002)'
		FROM unnest('{rule, paused, strict}'::text[]) AS queue, generate_series(1, 20)});
	sql(qq{UPDATE task SET request = request || '; SELECT pg_sleep(0.002)' WHERE queue = 'two'});
	open_gate($node, 'limits');
	wait_until($node, "SELECT count(*) = 80 FROM effect");
	cmp_ok(most_at_once('two'), '<=', 2, 'the column "max"');
	is(most_at_once('rule'), 1, 'the rule of a queue');
	is(most_at_once('strict'), 1, 'a strict queue');
	is(sql(q{SELECT count(*) FROM task WHERE queue = 'paused' AND state = 'PLAN'}), 20,
		'a queue that is paused');
	sql('DELETE FROM task_queue');
	check_effects(100, 'limits');
};

# Priorities, and rows that wait for no task: those that are due start first.
subtest 'order' => sub {
	sql('ALTER SYSTEM SET pg_task.max_executors = 1');
	apply_conf($node);
	my $id = insert_fan('order', 20, priority => 0);

	wait_for_running($node, 1);
	insert_task($node, queue => 'plain', request => 'INSERT INTO effect SELECT pg_task_id()')
		for 1 .. 5;
	open_gate($node, 'order');
	wait_until($node, 'SELECT count(*) = 25 FROM effect');
	is(sql(q{SELECT bool_and(queue = 'plain') FROM (SELECT queue FROM effect JOIN task USING (id)
		ORDER BY at LIMIT 5) AS s}), 't', 'tasks that were due before go first');
	check_effects(25, 'order');
	sql('ALTER SYSTEM RESET pg_task.max_executors');
	apply_conf($node);
};

# The many rows of one task do not hold up those of another that ends after it.
subtest 'others beside many' => sub {
	my $done = run_task($node, request => 'SELECT 1');
	my $single = insert_task($node, queue => 'first', request => "SELECT hold('single')");
	my $several = insert_task($node, queue => 'few', after => "{$single, $done}",
		request => 'SELECT 1');
	my $session = open_session($node, 'postgres');

	insert_fan('wide', 40000, queue => 'wide', request => 'SELECT 1');
	open_gate($node, 'wide');
	wait_until($node, "SELECT EXISTS (SELECT FROM task WHERE queue = 'wide' AND state = 'DONE')");
	$session->query_safe("INSERT INTO gate VALUES ('single')");
	wait_for_state($node, $several, 'DONE');
	is($session->query_safe("SELECT EXISTS (SELECT FROM task WHERE queue = 'wide' AND state = 'PLAN'
		LIMIT 1)"), 't', 'one that waits for several tasks starts before the last of them');
	sql('TRUNCATE task; DELETE FROM gate');
	$session->quit;
};

# What happens between the end of a task and the claim of a row that waits for it.
subtest 'rows that are changed or locked' => sub {
	my $id = insert_fan('locked', 10);
	my $other = insert_task($node, queue => 'first', dt => 'infinity', request => 'SELECT 1');
	my @rows = split /\n/, sql("SELECT id FROM task WHERE after = '{$id}' ORDER BY id");
	my $session = open_session($node, 'postgres');

	$session->query_safe("BEGIN; SELECT FROM task WHERE id IN ($rows[0], $rows[1]) FOR UPDATE;
		UPDATE task SET after = '{$other}' WHERE id = $rows[2]; DELETE FROM task WHERE id = $rows[3]");
	open_gate($node, 'locked');
	wait_until($node, 'SELECT count(*) = 6 FROM effect');
	is(sql("SELECT string_agg(state, ' ' ORDER BY id) FROM task WHERE id IN
		($rows[0], $rows[1], $rows[2], $rows[3])"), 'PLAN PLAN PLAN PLAN', 'locked rows wait');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_until($node, 'SELECT count(*) = 8 FROM effect');
	is_row($node, $rows[2], { state => 'PLAN', waits => $other }, 'one waits for another task now');
	sql("UPDATE task SET dt = now() WHERE id = $other");
	check_effects(9, 'rows that are changed or locked');
};

# One of them plans the task again for which all wait: none is freed from then on.
subtest 'a task that runs again' => sub {
	my $id = insert_fan('again', 20000);

	sql(qq{UPDATE task SET request = 'UPDATE task SET state = ''PLAN'', dt = ''infinity'' WHERE id = $id;
		INSERT INTO effect SELECT pg_task_id()' WHERE id = $id + 1000});
	open_gate($node, 'again');
	wait_until($node, "SELECT dt = 'infinity' FROM task WHERE id = $id");
	my $since = sql('SELECT clock_timestamp()');
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state = 'WORK'
		OR (state = 'PLAN' AND waits IS NULL AND dt < 'infinity'))});
	is(sql("SELECT count(*) FROM task WHERE dt > '$since' AND waits IS NULL AND id <> $id"), 0,
		'none has started after that');
	cmp_ok(sql('SELECT count(*) FROM task WHERE waits IS NOT NULL'), '>', 0, 'the others wait');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	check_effects(20000, 'a task that runs again');
};

# An index whose expression fails for one of the rows.
subtest 'a row that cannot be written' => sub {
	my $id = insert_fan('refused', 30);
	my $bad = sql("SELECT min(id) + 7 FROM task WHERE after = '{$id}'");
	my $position = log_position($node);

	sql("CREATE INDEX refuses ON task ((1 / (attempt - 1))) WHERE id = $bad");
	open_gate($node, 'refused');
	wait_until($node, 'SELECT count(*) = 29 FROM effect');
	wait_for_log_line($node, qr/ERROR:  division by zero\n.*\n\tpg_task $bad in database/, $position);
	is(task($node, $bad, 'state'), 'PLAN', 'it waits, the others have run');
	sql('DROP INDEX refuses');
	check_effects(30, 'a row that cannot be written');
};

subtest 'a crash' => sub {
	insert_fan('crash', 1500);
	open_gate($node, 'crash');
	wait_until($node, 'SELECT count(*) > 200 FROM effect');
	crash($node);
	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))");
	is(sql(q{SELECT count(*), count(DISTINCT id) FROM effect}), '1500|1500', 'each effect once');
};

done_testing();
