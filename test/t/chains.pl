# The runs of a repeating task are one chain, with one end, whatever becomes of its rows: planned
# again, stopped, deleted.  A TAP test because it counts what a scheduler does, for several roles.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', period => '1 s');

sql('CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON task TO app');

# The states of a queue, in order, with the chain's links: "DONE>" has a next run.
sub chain_of
{
	return sql(qq{SELECT coalesce(string_agg(state || CASE WHEN next > 0 THEN '>' ELSE '' END, ' '
		ORDER BY id), '') FROM task WHERE queue = '$_[0]'}, @_[1 .. $#_]);
}

# Plans a row again, and waits for its end.
sub run_again
{
	my ($id, %opt) = @_;
	my $attempt = task($node, $id, 'attempt', %opt);

	sql("UPDATE task SET state = 'PLAN' WHERE id = $id", %opt);
	wait_until($node,
		"SELECT attempt > $attempt AND state IN ('DONE', 'FAIL') FROM task WHERE id = $id", %opt);
}

subtest 'a row that has a next run has no other' => sub {
	my %chain = (done => { request => 'SELECT 1' }, fail => { request => 'SELECT 1/0' },
		cron => { request => 'SELECT 1', cron => '0 0 1 1 *', dt => 'yesterday' },
		late => { request => 'SELECT 1', drift => 'false' });

	for my $queue (sort keys %chain)
	{
		my $column = $chain{$queue};
		my $state = $queue eq 'fail' ? 'FAIL' : 'DONE';
		my $repeat = $queue eq 'cron' ? 'cron' : 'repeat';
		my $id = insert_task($node, queue => $queue, repeat => '1 day', %$column,
			$queue eq 'cron' ? (repeat => undef) : ());

		sql("UPDATE task SET dt = now() WHERE id = $id") if $queue eq 'cron';
		wait_for_state($node, $id, $state);
		is(chain_of($queue), "$state> PLAN", "$queue: it has run");
		is(sql("SELECT t.next = n.id AND n.next IS NULL FROM task AS t JOIN task AS n
			ON n.parent = t.id WHERE t.id = $id"), 't', "$queue: the row has its id");
		run_again($id);
		is(chain_of($queue), "$state> PLAN", "$queue: it has run again, and the chain is one");
		sql("UPDATE task SET dt = now() WHERE queue = '$queue' AND state = 'PLAN'");
		wait_until($node, "SELECT count(*) = 3 FROM task WHERE queue = '$queue'");
		is(chain_of($queue), "$state> $state> PLAN", "$queue: the chain goes on at its end");
		run_again($id);
		is(chain_of($queue), "$state> $state> PLAN", "$queue: not at its beginning");
		sql("DELETE FROM task WHERE queue = '$queue' AND state = 'PLAN'");
		run_again($id);
		is(chain_of($queue), "$state> $state>", "$queue: nor when its end was deleted");
	}
};

subtest 'a chain that was stopped goes on' => sub {
	my $id = insert_task($node, queue => 'stop', repeat => '1 day', request => 'SELECT 1');

	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE queue = 'stop'});
	sql(q{UPDATE task SET state = 'STOP' WHERE queue = 'stop' AND state = 'PLAN'});
	is(chain_of('stop'), 'DONE> STOP', 'the next run is stopped');
	sql(q{UPDATE task SET state = 'PLAN' WHERE queue = 'stop' AND state = 'STOP'});
	is(sql(q{SELECT max(dt) = min(dt) + interval '1 day' FROM task WHERE queue = 'stop'}), 't',
		'planned again, it keeps its time');
	sql(q{UPDATE task SET dt = now() WHERE queue = 'stop' AND state = 'PLAN'});
	wait_until($node, q{SELECT count(*) = 3 FROM task WHERE queue = 'stop'});
	is(chain_of('stop'), 'DONE> DONE> PLAN', 'and its chain goes on');

	sql(q{UPDATE task SET state = 'FAIL' WHERE queue = 'stop' AND state = 'PLAN'});
	run_again(sql(q{UPDATE task SET dt = now() WHERE queue = 'stop' AND state = 'FAIL'
		RETURNING id}));
	is(chain_of('stop'), 'DONE> DONE> DONE> PLAN', 'so does one that ended without a next run');
};

# The witnesses are later tasks that run while it is due and does not.
# A key is unique in its queue.
subtest 'a schedule that moves to another queue' => sub {
	my $insert = sub { return sprintf q{INSERT INTO task (dt, queue, key, %s, request)
		VALUES ('infinity', '%s', 'moves', '1 day', 'SELECT 1')
		ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
		DO UPDATE SET request = excluded.request}, @_ };

	sql('CREATE ROLE writer LOGIN; GRANT INSERT, UPDATE ON task TO writer;
		CREATE ROLE other LOGIN; GRANT SELECT, INSERT, UPDATE ON task TO other');
	is(notices_of('app', $insert->('repeat', 'old')), '', 'the first one');
	is(notices_of('app', $insert->('repeat', 'old')), '', 'it is set up again');
	my $id = sql(q{SELECT id FROM task WHERE key = 'moves'});
	my $notice = qq{NOTICE:  another schedule has this key: task $id of queue "old"\n}
		. 'HINT:  A key is unique in its queue.  To move a schedule, UPDATE the queue of that task, '
		. 'or stop it.';
	is(notices_of('app', $insert->('repeat', 'new')), $notice, 'in another queue');
	is(() = notices_of('app', q{INSERT INTO task (queue, key, repeat, request)
		SELECT 'many' || n, CASE WHEN n > 9 THEN 'moves' ELSE n::text END, '1 day', 'SELECT 1'
		FROM generate_series(1, 12) AS n}) =~ /another schedule/g, 1, 'once in a statement');
	is(notices_of($_, $insert->('repeat', "q$_") =~ s/ON CONFLICT.*//sr), '',
		"$_: not of rows that he does not see")
		for qw(writer other);
	is(notices_of('app', $insert->('active', 'once')), '', 'a task that does not repeat');
	sql(q{DELETE FROM task});
};

subtest 'a task is paused by its queue' => sub {
	my $paused = q{queue = 'pulse' AND state IN ('PLAN', 'WORK')};
	my $insert = q{INSERT INTO task (queue, key, repeat, request) VALUES ('pulse', 'k', '20 ms',
		'SELECT 1') ON CONFLICT DO NOTHING};

	sql($insert);
	wait_until($node, q{SELECT count(*) >= 3 FROM task WHERE queue = 'pulse' AND state = 'DONE'});
	insert_rule('pulse', paused => 't');
	run_task($node, request => 'SELECT 1'); # its claim comes after the rule
	wait_until($node, "SELECT state = 'PLAN' AND dt < now() - interval '1 s' FROM task WHERE $paused");
	my $runs = count_of($node, q{queue = 'pulse' AND state = 'DONE'});
	run_task($node, request => 'SELECT 1') for 1 .. 3;
	is(count_of($node, q{queue = 'pulse' AND state = 'DONE'}), $runs, 'it does not run');
	sql($insert);
	is(count_of($node, $paused), 1, 'its key is taken');
	my $late = sql("SELECT id FROM task WHERE $paused");
	sql(q{DELETE FROM task_queue WHERE queue = 'pulse'});
	wait_until($node,
		"SELECT count(*) >= $runs + 3 FROM task WHERE queue = 'pulse' AND state = 'DONE'");
	is(sql("SELECT n.dt > t.start - interval '20 ms' FROM task AS t JOIN task AS n ON n.id = t.next
		WHERE t.id = $late"), 't', 'it goes on with the row that waited, and misses what was missed');
	is(count_of($node, q{queue = 'pulse' AND next IS NULL}), 1, 'in one chain');
	sql("UPDATE task SET state = 'STOP' WHERE $paused");
};

# The next run is planned before the row is deleted; a row that runs again has none.
subtest 'with "keep" of 0' => sub {
	my $id = insert_task($node, queue => 'keep', repeat => '1 day', keep => '0',
		request => 'SELECT 1');

	wait_until($node, "SELECT count(*) = 0 FROM task WHERE id = $id");
	is(chain_of('keep'), 'PLAN', 'the chain goes on');
	$id = insert_task($node, queue => 'keep', repeat => '1 day', keep => '0', next => 1,
		request => 'SELECT 1');
	wait_until($node, "SELECT count(*) = 0 FROM task WHERE id = $id");
	is(chain_of('keep'), 'PLAN', 'a row that has a next run leaves none');
};

# Others may not cut a chain, or begin a second one, but the owner may.
subtest 'who may write "next"' => sub {
	my $refused = qr/only the owner of the task table may set "next"/;
	my $id = sql_as('app', q{INSERT INTO task (queue, repeat, request)
		VALUES ('app', '1 day', 'SELECT 1') RETURNING id});

	wait_for_state($node, $id, 'DONE');
	like(error_of('app', "UPDATE task SET next = NULL WHERE id = $id"), $refused, 'not by UPDATE');
	like(error_of('app', q{INSERT INTO task (request, next) VALUES ('SELECT 1', 1)}), $refused,
		'not by INSERT');
	is(error_of('app', "UPDATE task SET next = next WHERE id = $id"), '', 'the same value may be');
	sql("UPDATE task SET next = NULL WHERE id = $id");
	run_again($id);
	is(chain_of('app'), 'DONE> PLAN PLAN', 'the owner may begin a second chain');
};

# Rows with the same id are different tasks.  A trigger of the owner may keep the next row.
subtest 'a partitioned table, a trigger' => sub {
	my %in = (db => 'parts');

	sql('CREATE DATABASE parts IS_TEMPLATE true');
	sql(q{CREATE TABLE task (id bigint GENERATED BY DEFAULT AS IDENTITY,
			dt timestamptz NOT NULL DEFAULT now(), request text NOT NULL,
			state text NOT NULL DEFAULT 'PLAN', attempt int NOT NULL DEFAULT 0,
			PRIMARY KEY (id, dt, state)) PARTITION BY LIST (state);
		CREATE TABLE waiting PARTITION OF task FOR VALUES IN ('PLAN', 'WORK');
		CREATE TABLE ended PARTITION OF task DEFAULT}, %in);
	sql('ALTER DATABASE parts IS_TEMPLATE false');
	wait_until($node, q{SELECT count(*) = 1 FROM pg_trigger WHERE tgrelid = 'task'::regclass
		AND tgname = 'pg_task_truncated'}, %in);
	sql(q{INSERT INTO task (id, dt, queue, repeat, request) SELECT 1000000, now() - i * interval
		'1 s', 'same', '1 day', 'SELECT 1' FROM generate_series(1, 3) AS i}, %in);
	wait_until($node, q{SELECT count(*) FILTER (WHERE state = 'DONE') = 3 FROM task}, %in);
	is(chain_of('same', %in), 'PLAN PLAN PLAN DONE> DONE> DONE>', 'each has one next run');

	sql(q{CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER keep BEFORE INSERT ON task FOR EACH ROW WHEN (NEW.parent IS NOT NULL)
		EXECUTE FUNCTION keep()});
	my $id = run_task($node, queue => 'kept', repeat => '1 day', request => 'SELECT 1');
	is(chain_of('kept'), 'DONE', 'a trigger keeps the next run');
	sql('DROP TRIGGER keep ON task');
	run_again($id);
	is(chain_of('kept'), 'DONE> PLAN', 'so the chain goes on when the row runs again');
};

done_testing();
