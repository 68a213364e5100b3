# What the rules of queues do: pause, limits, times, defaults of tasks; names and patterns; changes
# while tasks wait and run.  A TAP test because tasks run, roles have settings and locks are held.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# After an ANALYZE the scheduler prepares its tables again.  While the queue table is locked, that
# fails, and nothing starts.
my $node = new_node('main', conf => "pg_task.period = '20 ms'\npg_task.max_executors = 8
	max_prepared_transactions = 2
	autovacuum = off");

wait_until($node, "SELECT to_regclass('task_queue') IS NOT NULL");
make_gates($node);

# How often a failing task of this queue runs: its rule says.
sub runs
{
	my ($queue, %column) = @_;

	return task($node, run_task($node, queue => $queue, request => 'SELECT 1/0', %column),
		'attempt');
}

# Waits until this many tasks of the queue run, and rounds have passed over the others.
sub settles_at
{
	my ($queue, $count, $name) = @_;

	wait_until($node, "SELECT count(*) FROM task WHERE queue = '$queue' AND state = 'WORK'",
		expected => $count);
	run_task($node, request => 'SELECT 1', queue => 'probe', priority => 1000) for 1 .. 2;
	is(count_of($node, "queue = '$queue' AND state = 'WORK'"), $count, $name);
}

sub clear { sql('DELETE FROM task_queue; DELETE FROM task') }

subtest 'paused' => sub {
	insert_rule('p', paused => 't');
	my $id = insert_task($node, queue => 'p', request => q{SELECT hold('p')});
	settles_at('p', 0, 'does not start');
	sql(q{UPDATE task_queue SET paused = false});
	settles_at('p', 1, 'starts when it is not paused any more');
	sql(q{UPDATE task_queue SET paused = true});
	my $other = insert_task($node, queue => 'p', request => 'SELECT 1');
	open_gate($node, 'p');
	wait_for_state($node, $id, 'DONE');
	pass('what runs ends');
	settles_at('p', 0, 'what waits, waits');
	sql(q{DELETE FROM task_queue});
	wait_for_state($node, $other, 'DONE');
	pass('starts when the rule is gone');
	clear();
};

# Nothing waits in between: the task is inserted right after the commit that pauses its queue.
subtest 'no task starts that was inserted after the commit that pauses' => sub {
	sql(q{INSERT INTO task_queue (queue) VALUES ('race.%')});
	sql(q{DO $$ BEGIN
		FOR i IN 1..300 LOOP
			UPDATE task_queue SET paused = false; COMMIT;
			INSERT INTO task (queue, request) VALUES ('race.1', 'SELECT 1'); COMMIT;
			UPDATE task_queue SET paused = true; COMMIT;
			INSERT INTO task (queue, request) VALUES ('race.1', 'SELECT 7'); COMMIT;
			IF i % 10 = 0 THEN PERFORM pg_sleep(0.01); END IF;
			UPDATE task SET state = 'STOP' WHERE request = 'SELECT 7' AND state = 'PLAN'; COMMIT;
		END LOOP; END $$});
	is(count_of($node, q{request = 'SELECT 7' AND attempt > 0}), 0, '300 times');
	clear();
};

subtest 'max' => sub {
	insert_rule('m.%', max => 2);
	insert_task($node, queue => 'm.1', request => q{SELECT hold('m1')}) for 1 .. 4;
	insert_task($node, queue => 'm.2', request => q{SELECT hold('m2')}) for 1 .. 3;
	settles_at('m.1', 2, 'a queue');
	settles_at('m.2', 2, 'and another one, each on its own');
	sql('UPDATE task_queue SET max = 3');
	settles_at('m.1', 3, 'more');
	sql('UPDATE task_queue SET max = 1');
	open_gate($node, 'm2');
	wait_until($node, q{SELECT count(*) = 3 FROM task WHERE queue = 'm.2' AND state = 'DONE'});
	settles_at('m.1', 3, 'fewer: what runs is allowed to end');
	sql('UPDATE task_queue SET max = 0');
	open_gate($node, 'm1');
	wait_until($node, q{SELECT count(*) = 3 FROM task WHERE queue = 'm.1' AND state = 'DONE'});
	settles_at('m.1', 0, 'none');
	insert_rule('m.1', comment => 'says nothing');
	settles_at('m.1', 0, 'a row for the name, which says nothing');
	sql(q{UPDATE task_queue SET max = -1 WHERE queue = 'm.1'});
	wait_until($node, q{SELECT count(*) = 4 FROM task WHERE queue = 'm.1' AND state = 'DONE'});
	pass('a row for the name, which says that there is no limit');
	clear();
	insert_rule('low', max => 5);
	insert_task($node, queue => 'low', max => 1, request => q{SELECT hold('low')}) for 1 .. 2;
	settles_at('low', 1, 'the lower limit counts');
	open_gate($node, 'low');
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE queue = 'low' AND state = 'DONE'});
	clear();
};

# A row for one queue does not replace the row of the pattern.
subtest 'pausing one customer leaves him his limits' => sub {
	insert_rule('customer.%', max => 1, strict => 't', retry => 1, delay => '0');
	insert_rule('customer.20', paused => 't');
	my $failed = insert_task($node, queue => 'customer.20', request => 'SELECT 1/0');
	insert_task($node, queue => 'customer.20', request => q{SELECT hold('customer')}) for 1 .. 4;
	settles_at('customer.20', 0, 'paused');
	sql(q{UPDATE task_queue SET paused = NULL WHERE queue = 'customer.20'});
	wait_for_state($node, $failed, 'FAIL');
	is(task($node, $failed, 'attempt'), 2, 'a retry');
	settles_at('customer.20', 1, 'one at a time');
	is(sql(q{SELECT string_agg(concat_ws(' ', name, value, source), ', ') FROM
		pg_task_rule('customer.20')}), 'max 1 customer.%, strict true customer.%,'
		. ' retry 1 customer.%, delay 00:00:00 customer.%', 'where each value comes from');
	open_gate($node, 'customer');
	wait_until($node, q{SELECT count(*) = 4 FROM task WHERE state = 'DONE' AND queue = 'customer.20'});
	clear();
};

subtest 'a limit over several queues' => sub {
	insert_rule('t.%', total => 3, max => 2);
	insert_rule('t.free.%', total => -1);
	sql('CREATE ROLE other LOGIN; GRANT INSERT, SELECT ON task TO other');
	for my $queue ('t.1', 't.2', 't.3')
	{
		insert_task($node, queue => $queue, request => q{SELECT hold('total')}) for 1 .. 2;
	}
	sql_as('other', q{INSERT INTO task (queue, request) VALUES ('t.3', 'SELECT 1')});
	my $late = insert_task($node, queue => 't.4', request => 'SELECT 1');
	wait_until($node, q{SELECT count(*) = 3 FROM task WHERE queue LIKE 't.%' AND state = 'WORK'});
	is_row($node, run_task($node, queue => 't.free.1', request => 'SELECT 1'),
		{ state => 'DONE' }, 'a pattern of its own has no such limit');
	is(count_of($node, q{queue LIKE 't.%' AND state = 'WORK'}), 3, 'three of all queues');
	is(sql("SELECT pg_task_why($late)"), 'the queues of pattern "t.%" are full: 3 of 3 run', 'why');
	is(sql(q{SELECT string_agg(DISTINCT queue, ' ') FROM task WHERE state = 'WORK'}), 't.1 t.2',
		'in their order, and two of each');
	sql(q{UPDATE task_queue SET total = 4 WHERE queue = 't.%'});
	wait_until($node, q{SELECT count(*) = 4 FROM task WHERE queue LIKE 't.%' AND state = 'WORK'});
	my ($scheduler) = backends($node, 'scheduler');
	terminate($node, $scheduler);
	wait_for_exit($node, $scheduler);
	is_row($node, run_task($node, request => 'SELECT 1'), { state => 'DONE' }, 'a new scheduler');
	is(count_of($node, q{queue LIKE 't.%' AND state = 'WORK'}), 4, 'knows what runs');
	open_gate($node, 'total');
	wait_until($node, q{SELECT count(*) = 8 FROM task WHERE queue LIKE 't._' AND state = 'DONE'});
	pass('all start as places are free');
	sql('REVOKE ALL ON task FROM other; DROP ROLE other');
	clear();
};

# What waits already is before what comes after the rule, however many queues it is for.
subtest 'a new limit over several queues keeps the order' => sub {
	insert_rule('o.%', max => 0);
	my @old = map { insert_task($node, queue => "o.$_", request => q{SELECT hold('o')}) } 1 .. 2;
	sql(q{INSERT INTO task (queue, dt, request)
		SELECT 'o.later.' || i, 'infinity', 'SELECT 1' FROM generate_series(1, 10000) i});
	settles_at('o.1', 0, 'none starts');
	sql("UPDATE task_queue SET $_")
		for 'total = 0', 'total = NULL', 'total = 0', 'total = 1, max = NULL';
	my $new = insert_task($node, queue => 'o.3', request => 'SELECT 1');
	wait_for_state($node, $old[0], 'WORK');
	is_row($node, $new, { state => 'PLAN' }, 'the oldest starts first');
	sql(q{UPDATE task_queue SET total = 2});
	wait_for_state($node, $old[1], 'WORK');
	is_row($node, $new, { state => 'PLAN' }, 'then the next');
	open_gate($node, 'o');
	wait_for_state($node, $new, 'DONE');
	clear();
};

subtest 'what has no effect' => sub {
	like(notices_of('postgres', "INSERT INTO task_queue (queue) VALUES ('c.*')"),
		qr/NOTICE:  "c\.\*" is the name of one queue, and no pattern\nHINT:  In a pattern, "%" stands/,
		'an asterisk');
	like(notices_of('postgres', "UPDATE task_queue SET fair = true, total = 1, per = '1 min'"),
		qr/"per" has no.*\n.*\n.*"total" has no.*\n.*\n.*"fair" has no effect in the row of one/,
		'columns of patterns, and per');
	is(notices_of('postgres', "UPDATE task_queue SET queue = 'c.%', rate = -1"), '', 'a pattern');
	clear();
};

subtest 'who sees which rule' => sub {
	insert_rule('mine', max => 3);
	sql('CREATE ROLE tenant LOGIN; GRANT INSERT, SELECT ON task TO tenant; CREATE ROLE nobody LOGIN;
		CREATE ROLE stats LOGIN; GRANT pg_read_all_stats TO stats');
	is(sqlstate_of('nobody', "SELECT * FROM pg_task_rule('mine')"), '42501', 'no right on the table');
	is(sqlstate_of('tenant', "SELECT * FROM pg_task_rule('mine')"), '42501', 'no task in the queue');
	sql_as('tenant', q{INSERT INTO task (queue, dt, request) VALUES ('mine', 'infinity', 'SELECT 1')});
	is(sql_as($_, "SELECT * FROM pg_task_rule('mine')"), 'max|3|mine', "$_ sees it")
		for 'tenant', 'stats';
	is(sqlstate_of('tenant', "SELECT * FROM pg_task_rule('%')"), '42501', 'a pattern is no queue');
	clear();
	sql('DROP OWNED BY tenant; DROP ROLE tenant, nobody, stats');
};

subtest 'until' => sub {
	insert_rule('u', until => 'infinity');
	my $id = insert_task($node, queue => 'u', request => 'SELECT 1');
	settles_at('u', 0, 'does not start');
	my $until = sql(q{UPDATE task_queue SET until = clock_timestamp() + '0.3 s' RETURNING until});
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, "start >= '$until'"), 't', 'not before');
	is(task($node, $id, "start < '$until'::timestamptz + '30 s'"), 't', 'but then');
	insert_rule('e', until => '-infinity');
	is_row($node, run_task($node, queue => 'e', request => 'SELECT 1'), { state => 'DONE' },
		'a time that has passed');
	clear();
};

subtest 'active' => sub {
	insert_rule('a', active => '1 h');
	my $id = insert_task($node, queue => 'a', dt => '2020-01-01', request => 'SELECT 1');
	wait_for_state($node, $id, 'GONE');
	is_row($node, run_task($node, queue => 'a', dt => '2020-01-01', active => '1000 years',
		request => 'SELECT 1'), { state => 'DONE' }, 'the column wins');
	is_row($node, run_task($node, queue => 'b', dt => '2020-01-01', request => 'SELECT 1'),
		{ state => 'DONE' }, 'another queue');
	sql(q{ALTER ROLE postgres SET pg_task.active = '1 h';
		UPDATE task_queue SET active = '100 years'});
	is_row($node, run_task($node, queue => 'a', dt => '2020-01-01', request => 'SELECT 1'),
		{ state => 'DONE' }, 'the queue wins over the role, for ever');
	sql('ALTER ROLE postgres RESET ALL');
	clear();
};

# While the table cannot be read, the rules stay as they were; after a restart nothing starts.
subtest 'a lock' => sub {
	insert_rule('l', retry => 1, delay => '0');
	is(runs('l'), 2, 'before');
	my $session = open_session($node, 'postgres');
	$session->query_safe('BEGIN; UPDATE task_queue SET retry = 3; LOCK task_queue');
	is(runs('l'), 2, 'while it is locked');
	my ($scheduler) = backends($node, 'scheduler');
	terminate($node, $scheduler);
	wait_for_exit($node, $scheduler);
	my $id = insert_task($node, queue => 'l', request => 'SELECT 1/0');
	wait_for_log_line($node, qr/could not read the queue table, because it is locked/);
	is(task($node, $id, 'state'), 'PLAN', 'nothing starts before it was read');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_until($node, "SELECT attempt = 4 FROM task WHERE id = $id");
	pass('then it does');
	clear();
};

subtest 'COMMIT PREPARED' => sub {
	insert_rule('c', retry => 1, delay => '0');
	sql(q{BEGIN; UPDATE task_queue SET retry = 2; PREPARE TRANSACTION 'p'});
	is(runs('c'), 2, 'not before');
	sql(q{COMMIT PREPARED 'p'});
	is(runs('c'), 3, 'in force');
	clear();
};

subtest 'defaults for tasks: the row, then the queue, then the role' => sub {
	is(runs('plain'), 1, 'no rule: no retry');
	insert_rule('plain', retry => 2, delay => '0', comment => 'not retried for long');
	is(runs('plain'), 3, 'retry of the queue');
	is(runs('plain', retry => 1), 2, 'the column wins');
	is(runs('other'), 1, 'another queue');
	sql('ALTER ROLE postgres SET pg_task.retry = 1; ALTER ROLE postgres SET pg_task.delay = 0');
	is(runs('plain'), 3, 'the queue wins over the role');
	is(runs('other'), 2, 'the role decides where the queue says nothing');
	sql('ALTER ROLE postgres RESET ALL');
	sql(q{UPDATE task_queue SET timeout = '30 ms', retry = 0});
	is_row($node, run_task($node, queue => 'plain', request => 'SELECT pg_sleep(60)'),
		{ state => 'FAIL', sqlstate => 'TK001', attempt => 1 }, 'timeout of the queue');
	sql('BEGIN; UPDATE task_queue SET retry = 5; ROLLBACK');
	is(runs('plain'), 1, 'a rollback changes nothing');
	sql('TRUNCATE task_queue');
	is(runs('plain', retry => 0), 1, 'TRUNCATE');
	is_row($node, run_task($node, queue => 'plain', request => 'SELECT pg_sleep(0.05)'),
		{ state => 'DONE' }, 'TRUNCATE takes the timeout away');
};

subtest 'patterns: the name wins, then the longest' => sub {
	sql(q{INSERT INTO task_queue (queue, retry, delay) VALUES ('a%', 1, '0'), ('a.%.z', 2, '0'),
		('a.%', 3, '0'), ('a.b', 0, '0'), ('under_score', 1, '0'), ('%\\_x', 4, '0'),
		('p_%', 2, '0'), ('pq%', 1, '0'), ('w\\%', 3, '0')});
	my %runs = ('a' => 2, 'a.q' => 4, 'a.q.z' => 3, 'a.b' => 1, 'b' => 1, 'under_score' => 2,
		'underXscore' => 1, 'u_x' => 5, 'u-x' => 1, 'pqr' => 3, 'w%' => 4, 'w\\x' => 1);
	is(runs($_), $runs{$_}, "queue $_") for sort keys %runs;
	sql(q{DELETE FROM task_queue WHERE queue = 'a.b'});
	is(runs('a.b'), 4, 'DELETE of a name: the pattern holds');
	sql(q{UPDATE task_queue SET queue = 'c%' WHERE queue = 'a.%'});
	is(runs('a.b') . runs('cc'), '24', 'UPDATE of a pattern');
	sql('DELETE FROM task_queue');
};

subtest 'keep of a queue' => sub {
	insert_rule('kept%', keep => '0');
	my $id = run_task($node, queue => 'stays', request => 'SELECT 1');

	insert_task($node, queue => 'kept.1', request => 'SELECT 1');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE queue = 'kept.1'});
	is(task($node, $id, 'state'), 'DONE', 'other rows stay');
	sql('DELETE FROM task_queue; DELETE FROM task');
};

subtest 'a disabled trigger' => sub {
	insert_rule('two', retry => 1, delay => '0');
	is(runs('two'), 2, 'before');
	sql('ALTER TABLE task_queue DISABLE TRIGGER ALL; UPDATE task_queue SET retry = 2');
	wait_until($node, q{WITH n AS (INSERT INTO task (queue, request) VALUES ('two', 'SELECT 1/0'))
		SELECT coalesce(max(attempt), 0) = 3 FROM task WHERE queue = 'two'});
	sql('ALTER TABLE task_queue ENABLE ALWAYS TRIGGER pg_task_queue_changed;
		ALTER TABLE task_queue ENABLE ALWAYS TRIGGER pg_task_queue_truncated; DELETE FROM task_queue');
	pass('is found by itself');
};

done_testing();
