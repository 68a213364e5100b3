# What changes while sessions wait for tasks or hold some: rules, roles, tables, databases, and the
# server.  A TAP test because sessions come and go.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => "pg_task.max_taken = 20\nmax_prepared_transactions = 2");

sql(q{CREATE ROLE mailer LOGIN; CREATE ROLE other LOGIN;
	INSERT INTO task_queue (queue, taker) VALUES ('mail-%', 'mailer')});

# How many tasks of a queue a role gets.
sub takes
{
	my ($role, $queue, %options) = @_;

	return sql_as($role, "SELECT count(*) FROM pg_task_take('{$queue}', n => 100, wait => "
		. ($options{wait} // 10000) . ')', %options);
}

# Nothing is held after this.
sub clean_up
{
	sql('DELETE FROM task');
	$node->restart;
}

# A psql that waits for a task of a queue.
sub waiting
{
	my ($role, $queue) = @_;
	my $session = open_session($node, 'postgres', extra_params => [ '-U', $role ]);

	$session->query_until(qr/began/, "\\echo began\n"
		. "SELECT 'got ' || id FROM pg_task_take('{$queue}', wait => 10000);\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_task_takers() WHERE queues = '{$queue}'");
	return $session;
}

subtest 'the taker of a queue in which tasks wait' => sub {
	sql(q{INSERT INTO task_queue (queue, taker) VALUES ('moves', 'other')});
	insert_task($node, queue => 'moves', request => 'a');
	is(takes('other', 'moves'), 1, 'one takes');
	insert_task($node, queue => 'moves', request => 'b');
	sql(q{UPDATE task_queue SET taker = 'mailer' WHERE queue = 'moves'});
	is(takes('mailer', 'moves'), 1, 'then another');
	my $id = insert_task($node, queue => 'moves', request => 'SELECT 1');
	sql(q{DELETE FROM task_queue WHERE queue = 'moves'});
	wait_for_state($node, $id, 'DONE');
	pass('then executors run them');
	sql(q{INSERT INTO task_queue (queue, paused) VALUES ('moves', true)});
	insert_task($node, queue => 'moves', request => 'c');
	sql(q{UPDATE task_queue SET paused = false, taker = 'mailer' WHERE queue = 'moves'});
	is(takes('mailer', 'moves'), 1, 'and then not');
};

# The default period of these tests is longer than they wait.
subtest 'tasks that no session wanted, by their names' => sub {
	my $old = insert_task($node, queue => 'mail-n', request => 'SELECT 1');

	is(sql_as('mailer', q{SELECT count(*) FROM pg_task_take('{mail-n}', wait => 100, names => '{x}')}),
		0, 'nobody takes it');
	sql(q{UPDATE task_queue SET taker = NULL, max = 1 WHERE queue = 'mail-%'});
	my $new = insert_task($node, queue => 'mail-n', request => 'SELECT 1');
	wait_for_state($node, $new, 'DONE');
	is(task($node, $old, 'state'), 'DONE', 'without a taker it is the first to run');
	sql(q{UPDATE task_queue SET taker = 'mailer', max = NULL WHERE queue = 'mail-%'});
};

subtest 'a role that is created, renamed, dropped' => sub {
	sql(q{INSERT INTO task_queue (queue, taker) VALUES ('late', 'late')});
	insert_task($node, queue => 'late', request => "r$_") for 1 .. 3;
	sql('CREATE ROLE late LOGIN');
	is(sql_as('late', q{SELECT count(*) FROM pg_task_take('{late}', wait => 10000)}), 1,
		'the rule was there before the role');
	sql('DROP ROLE late; CREATE ROLE late LOGIN');
	is(sql_as('late', q{SELECT count(*) FROM pg_task_take('{late}', wait => 10000)}), 1,
		'another role has the name');
	sql('ALTER ROLE late RENAME TO gone; ALTER ROLE other RENAME TO late');
	is(sqlstate_of('gone', q{SELECT * FROM pg_task_take('{late}')}), '42501',
		'one has lost the name');
	is(sql_as('late', q{SELECT count(*) FROM pg_task_take('{late}', wait => 10000)}), 1,
		'the other one has it');
	sql('ALTER ROLE late RENAME TO other; ALTER ROLE gone RENAME TO late');
};

subtest 'a role that is dropped while it waits' => sub {
	my $session = waiting('late', 'late');

	sql('DROP ROLE late');
	is(sql(q{SELECT role IS NULL FROM pg_task_takers() WHERE queues = '{late}'}), 't',
		'it is shown without its name');
	$session->quit;
};

subtest 'a role that is dropped while it holds' => sub {
	clean_up();
	my $id = insert_task($node, queue => 'mail-a', request => 'a');
	my $handle = sql_as('mailer', q{SELECT handle FROM pg_task_take('{mail-a}', wait => 10000)});

	sql('DROP ROLE mailer; CREATE ROLE mailer LOGIN');
	is(sqlstate_of('mailer', "SELECT pg_task_finish('$handle')"), '42501',
		'one of the same name is another one');
	is(sql("SELECT pg_task_fail('$handle', 'x')"), 'FAIL', 'a superuser can end it');
	is(sql('SELECT count(*) FROM pg_task_takers()'), 0, 'nothing is held');
};

subtest 'a database that is dropped' => sub {
	sql('CREATE DATABASE second');
	wait_until($node, q{SELECT to_regclass('task_queue') IS NOT NULL}, db => 'second');
	sql_in('second', q{INSERT INTO task_queue (queue, taker) VALUES ('mail', 'mailer');
		INSERT INTO task (queue, request) SELECT 'mail', 'x' FROM generate_series(1, 15)});
	is(takes('mailer', 'mail', db => 'second'), 15, 'its tasks were taken');
	sql('DROP DATABASE second');
	sql(q{INSERT INTO task (queue, request) SELECT 'mail-a', 'x' FROM generate_series(1, 20)});
	is(takes('mailer', 'mail-a'), 20, 'they take no places any more');
	clean_up();
};

subtest 'a table that is dropped' => sub {
	my $id = insert_task($node, queue => 'mail-a', request => 'a');
	my $handle = sql_as('mailer',
		q{SELECT handle FROM pg_task_take('{mail-a}', wait => 10000, lease => 2000)});

	sql('DROP TABLE task; DROP TABLE task_queue');
	# no commit tells the scheduler
	$node->reload;
	wait_until($node, q{SELECT to_regclass('task_queue') IS NOT NULL});
	isnt(sqlstate_of('mailer', "SELECT pg_task_finish('$handle')"), '', 'its tasks cannot be ended');
	wait_until($node, 'SELECT count(*) = 0 FROM pg_task_takers()');
	sql(q{INSERT INTO task_queue (queue, taker) VALUES ('mail-%', 'mailer')});
	insert_task($node, queue => 'mail-a', request => 'b');
	is(takes('mailer', 'mail-a'), 1, 'those of the next table can be taken');
	sql('DELETE FROM task');
};

subtest 'columns and indexes' => sub {
	my @ids = map { insert_task($node, queue => 'mail-a', request => 'a') } 1 .. 3;
	my $session = open_session($node, 'postgres', extra_params => [ '-U', 'mailer' ]);
	my @handles = split /\n/, $session->query_safe(
		q{SELECT handle FROM pg_task_take('{mail-a}', n => 3, wait => 10000)});

	$session->query_safe("SELECT pg_task_finish('$handles[0]')");
	sql('ALTER TABLE task ADD COLUMN mine text; CREATE INDEX ON task (mine)');
	$session->query_safe("SELECT pg_task_finish('$handles[1]', '1')");
	sql('ALTER TABLE task DROP COLUMN mine');
	$session->query_safe("SELECT pg_task_finish('$handles[2]', '1')");
	is(count_of($node, q{queue = 'mail-a' AND state = 'DONE'}), 3, 'may change at any time');
	sql('ALTER TABLE task RENAME COLUMN notice TO other');
	isnt(sqlstate_of('mailer', "SELECT pg_task_finish('$handles[2]')"), '', 'but for ours');
	sql('ALTER TABLE task RENAME COLUMN other TO notice');
	$session->quit;
};

subtest 'the server dies' => sub {
	my $session = open_session($node, 'postgres', extra_params => [ '-U', 'mailer' ]);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_until(qr/began/,
		"\\echo began\nSELECT id FROM pg_task_take('{mail-a}', wait => 10000);\n");
	wait_until($node, 'SELECT count(*) = 1 FROM pg_task_takers()');
	$node->kill9;
	ok(poll_for(sub { !kill 0, $pid }, 5), 'a session that waits notices it');
	eval { $session->quit };    # psql has lost its server
	poll_for(sub { eval { $node->start; 1 } }) or die 'the server does not start';
};

subtest 'the task is ended at once after a restart' => sub {
	for my $call ('pg_task_finish(%s)', q{pg_task_fail(%s, 'x')}, 'pg_task_give_back(%s)',
		'pg_task_alive(ARRAY[%s])')
	{
		insert_task($node, queue => 'mail-a', request => 'a');
		my $handle = sql_as('mailer',
			q{SELECT handle FROM pg_task_take('{mail-a}', wait => 10000)});
		$node->restart;
		is(sqlstate_of('mailer', 'SELECT ' . sprintf($call, "'$handle'")), '', $call);
		sql('DELETE FROM task');
	}
};

done_testing();
