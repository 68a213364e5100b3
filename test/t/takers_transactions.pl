# How transactions go with tasks that are taken: what a run that was taken becomes when its handle is
# used twice in one transaction, in subtransactions, in each isolation level, in a prepared
# transaction, with deferred constraints, or when a statement is cancelled.  A TAP test because the
# sessions are several.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "max_prepared_transactions = 2\npg_task.max_taken = 10");

sql(q{CREATE ROLE mailer LOGIN;
	CREATE TABLE parent (id int PRIMARY KEY);
	CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
	GRANT ALL ON parent, child TO mailer;
	INSERT INTO task_queue (queue, taker) VALUES ('mail', 'mailer')});

my $session = open_session($node, 'postgres', extra_params => [ '-U', 'mailer' ]);

# A task, and its handle.
sub taken
{
	my ($more) = @_;
	my $id = insert_task($node, queue => 'mail', request => 'a');

	return ($id, sql_as('mailer',
		"SELECT handle FROM pg_task_take('{mail}', wait => 10000" . ($more // '') . ')'));
}

# In a transaction that goes on after an error.
sub fails
{
	my ($query, $sqlstate, $name) = @_;

	$session->query_safe("DO \$\$ BEGIN PERFORM $query; RAISE 'no error'; EXCEPTION
		WHEN SQLSTATE '$sqlstate' THEN NULL; END \$\$");
	pass($name);
}

sub is_held
{
	my ($handle, $name) = @_;

	is(sql_as('mailer', "SELECT cardinality(pg_task_alive(ARRAY['$handle']))"), 1, $name);
}

subtest 'a handle that is used twice in a transaction' => sub {
	my ($id, $handle) = taken();

	$session->query_safe('BEGIN');
	is($session->query_safe("SELECT pg_task_fail('$handle', 'x')"), 'FAIL', 'it has failed');
	is($session->query_safe("SELECT pg_task_fail('$handle', 'x') IS NULL"), 't', 'only once');
	fails("pg_task_finish('$handle')", 'TK006', 'and is not DONE as well');
	is($session->query_safe("SELECT pg_task_give_back('$handle')"), 'f', 'nor given back');
	$session->query_safe('ROLLBACK');
	is_held($handle, 'after a rollback it is held on');
	$session->query_safe("BEGIN; SELECT pg_task_finish('$handle')");
	fails("pg_task_finish('$handle')", 'TK007', 'a second end');
	$session->query_safe('ROLLBACK');
	is_held($handle, 'does no harm');
	$session->query_safe("BEGIN; SELECT pg_task_finish('$handle')");
	fails("pg_task_finish('$handle')", 'TK007', 'a second end');
	$session->query_safe('COMMIT');
	is(task($node, $id, 'state'), 'DONE', 'and leaves the first');
	wait_until($node, 'SELECT count(*) = 0 FROM pg_task_takers()');
};

subtest 'the transaction that takes' => sub {
	my $id = insert_task($node, queue => 'mail', request => 'a');

	$session->query_safe('BEGIN');
	my $handle = $session->query_safe(
		q{SELECT handle FROM pg_task_take('{mail}', wait => 10000, lease => 100)});
	is($session->query_safe("SELECT pg_task_alive(ARRAY['$handle']) = ARRAY['$handle']"), 't',
		'its tasks are held, although it has not ended');
	# longer than the lease, which begins at its end
	is($session->query_safe("SELECT pg_sleep(0.3) IS NULL OR true"), 't', 'it is open');
	$session->query_safe("SELECT pg_task_finish('$handle'); COMMIT");
	is(task($node, $id, 'state'), 'DONE', 'it can end them');
	is(sql('SELECT count(*) FROM pg_task_takers()'), 0, 'nothing is left');
	$id = insert_task($node, queue => 'mail', request => 'a', timeout => '100 ms');
	$session->query_safe('BEGIN');
	$handle = $session->query_safe(q{SELECT handle FROM pg_task_take('{mail}', wait => 10000)});
	wait_for_state($node, $id, 'FAIL');
	fails("pg_task_finish('$handle')", 'TK006', 'the timeout of a task counts in it');
	$session->query_safe('COMMIT');
	is(sql('SELECT count(*) FROM pg_task_takers()'), 0, 'nothing is left');
};

subtest 'isolation levels' => sub {
	for my $level ('REPEATABLE READ', 'SERIALIZABLE')
	{
		my ($id, $handle) = taken();

		$session->query_safe("BEGIN ISOLATION LEVEL $level; INSERT INTO parent VALUES ($id);
			SELECT pg_task_finish('$handle'); COMMIT");
		is(task($node, $id, 'state'), 'DONE', "$level: it is finished");
		$session->query_safe("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM parent");
		($id, $handle) = taken();
		fails("pg_task_finish('$handle')", '40001', 'not by a snapshot from before');
		is($session->query_safe("SELECT pg_task_fail('$handle', 'x') IS NULL"), 't', 'nor failed');
		$session->query_safe('COMMIT');
		is_held($handle, 'it is held on');
		$session->query_safe("BEGIN ISOLATION LEVEL $level; SELECT pg_task_finish('$handle');
			COMMIT");
		is(task($node, $id, 'state'), 'DONE', 'it is finished by a later one');
		is(sqlstate_of('mailer', "BEGIN ISOLATION LEVEL $level; SELECT pg_task_finish('$handle')"),
			'TK007', 'once');
	}
};

subtest 'a prepared transaction' => sub {
	my ($id, $handle) = taken(', lease => 2000');
	my $after = insert_task($node, request => 'SELECT 1', after => "{$id}");

	$session->query_safe("BEGIN; SELECT pg_task_finish('$handle'); PREPARE TRANSACTION 'p'");
	wait_until($node, 'SELECT count(*) = 0 FROM pg_task_takers()');
	is(task($node, $id, 'state'), 'WORK', 'an end that is prepared is none yet');
	$session->query_safe("COMMIT PREPARED 'p'");
	is(task($node, $id, 'state'), 'DONE', 'although the lease has expired, it comes');
	wait_for_state($node, $after, 'DONE');
	is(sqlstate_of('mailer', q{BEGIN; SELECT count(*) FROM pg_task_take();
		PREPARE TRANSACTION 'q'}), '', 'a take of nothing can be prepared');
	sql_as('mailer', q{ROLLBACK PREPARED 'q'});
	insert_task($node, queue => 'mail', request => 'a');
	is(sqlstate_of('mailer', q{BEGIN; SELECT count(*) FROM pg_task_take('{mail}', wait => 10000);
		PREPARE TRANSACTION 'q'}), '0A000', 'a task is not taken by one');
	sql("DELETE FROM task WHERE state <> 'DONE'");
};

subtest 'an open end beyond the lease' => sub {
	sql('UPDATE task_queue SET max = 1');
	my ($id, $handle) = taken(', lease => 2000');
	my $after = insert_task($node, request => 'SELECT 1', after => "{$id}");
	my $next = insert_task($node, queue => 'mail', request => 'a');
	sql(q{INSERT INTO task_queue (queue, taker) VALUES ('other', 'mailer')});
	my $other = insert_task($node, queue => 'other', request => 'a', retry => 1);

	$session->query_safe("BEGIN; SAVEPOINT s; SELECT pg_task_finish('$handle'); ROLLBACK TO s");
	$session->query_safe("SELECT pg_task_finish('$handle')");
	# its lease ends later than that one would
	sql_as('mailer', q{SELECT id FROM pg_task_take('{other}', wait => 10000, lease => 2000)});
	wait_until($node, "SELECT lost = 1 FROM task WHERE id = $other");
	is(sql_as('mailer', q{SELECT count(*) FROM pg_task_take('{mail}')}), 0,
		'keeps its place in the queue');
	$session->query_safe('COMMIT');
	is(task($node, $id, q{state || ' ' || coalesce(lost, 0)}), 'DONE 0', 'and is no loss');
	wait_for_state($node, $after, 'DONE');
	is(sql_as('mailer', q{SELECT pg_task_give_back(handle)
		FROM pg_task_take('{mail}', wait => 10000, lease => 200)}), 't', 'then the next one comes');
	# after a rollback the lease begins anew
	$handle = sql_as('mailer', q{SELECT handle FROM pg_task_take('{mail}', wait => 10000,
		lease => 2000)});
	sql_as('mailer', "BEGIN; SELECT pg_task_finish('$handle'); ROLLBACK");
	wait_until($node, "SELECT lost = 1 FROM task WHERE id = $next");
	pass('one that is rolled back is lost later');
	sql(q{DELETE FROM task WHERE state <> 'DONE'; UPDATE task_queue SET max = NULL});
};

subtest 'deferred constraints' => sub {
	my ($id, $handle) = taken();

	is(sqlstate_of('mailer', "BEGIN; INSERT INTO child VALUES (-1);
		SELECT pg_task_finish('$handle'); COMMIT"), '23503', 'fail at the commit');
	is_held($handle, 'and with them the end');
	sql_as('mailer', "BEGIN; INSERT INTO child VALUES ($id); SELECT pg_task_finish('$handle');
		INSERT INTO parent VALUES ($id) ON CONFLICT DO NOTHING; COMMIT");
	is(task($node, $id, 'state'), 'DONE', 'or hold');
};

subtest 'subtransactions' => sub {
	my @ids = map { insert_task($node, queue => 'mail', request => 'a') } 1 .. 3;

	sql_as('mailer', q{DO $$
		DECLARE
			h text;
			n int;
		BEGIN
			BEGIN
				SELECT handle INTO h FROM pg_task_take('{mail}', wait => 10000);
				RAISE 'rolled back';
			EXCEPTION WHEN raise_exception THEN NULL;
			END;
			SELECT handle INTO h FROM pg_task_take('{mail}', wait => 10000);
			BEGIN
				PERFORM pg_task_finish(h);
				RAISE 'rolled back';
			EXCEPTION WHEN raise_exception THEN NULL;
			END;
			BEGIN
				PERFORM * FROM pg_task_take('{mail}', n => 0);
			EXCEPTION WHEN invalid_parameter_value THEN NULL;
			END;
			PERFORM pg_task_finish(h, '"once"');
		END $$});
	is(sql(q{SELECT count(*) FROM task WHERE queue = 'mail' AND response = '"once"'}), 1,
		'count with what is committed');
	wait_until($node, 'SELECT count(*) = 0 FROM pg_task_takers()');
	is(sql_as('mailer', q{SELECT count(pg_task_finish(handle))
		FROM pg_task_take('{mail}', n => 1, wait => 10000)}), 1, 'what was rolled back comes again')
	  for 1 .. 2;
};

subtest 'a statement that is cancelled' => sub {
	my ($id, $handle) = taken();
	my $other = open_session($node, 'postgres');

	is(sqlstate_of('mailer', q{SET statement_timeout = 50;
		SELECT * FROM pg_task_take('{mail}', wait => 10000)}), '57014', 'while it waits');
	wait_until($node, 'SELECT count(*) = 1 FROM pg_task_takers()');
	$other->query_safe("BEGIN; SELECT FROM task WHERE id = $id FOR UPDATE");
	for my $call ("pg_task_finish('$handle')", "pg_task_fail('$handle', 'x')",
		"pg_task_give_back('$handle')")
	{
		is(sqlstate_of('mailer', "SET statement_timeout = 50; SELECT $call"), '57014', $call);
		is(sqlstate_of('mailer', "SET lock_timeout = 50; SELECT $call"), '55P03', $call);
	}
	$other->query_safe('COMMIT');
	is_held($handle, 'it is held on');
	sql_as('mailer', "SELECT pg_task_finish('$handle')");
	$other->quit;
};

$session->quit;
done_testing();
