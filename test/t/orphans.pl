# Very many rows in state WORK that no process runs, as after a restore or on a replica: the
# scheduler writes these orphans in batches, and other tasks are not delayed.  A TAP test because
# the server is stopped in between.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('main', period => '1 s',
	conf => "max_wal_size = '2GB'\ncheckpoint_timeout = '1 h'");

# Such rows, in a queue that starts no tasks.
sub restore
{
	my ($queue, $count) = @_;

	sql(qq{BEGIN;
		ALTER TABLE task DISABLE TRIGGER zz_pg_task_bound;
		INSERT INTO task (queue, max, request, state, attempt, start, pid)
		SELECT '$queue', 0, 'SELECT 1', 'WORK', 1 + n % 2, now(), 1 FROM generate_series(1, $count)
		AS n;
		ALTER TABLE task ENABLE ALWAYS TRIGGER zz_pg_task_bound;
		COMMIT});
}

my $usual = start_delay($node);
my $restored = 0;

# While these orphans are written, other tasks start.  If this test was too slow to see that, there
# are more of them.
subtest 'other tasks start meanwhile' => sub {
	my $session = open_session($node, 'postgres');
	my $between = sub {
		my $first = sql('SELECT max(id) FROM task');

		restore('many', 30000);
		$restored += 30000;
		$session->query_safe("DO \$\$ BEGIN
			WHILE NOT EXISTS (SELECT FROM task
				WHERE id > $first AND queue = 'many' AND state = 'PLAN') LOOP
				PERFORM pg_sleep(0.001);
			END LOOP; END \$\$");
		my $id = $session->query_safe(q{INSERT INTO task (request) VALUES ('SELECT 2')
			RETURNING id});
		wait_for_state($node, $id, 'DONE');
		wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE queue = 'many'
			AND state = 'WORK')");
		note('waited ' . task($node, $id, 'start - dt'));
		return task($node, $id, "start < (SELECT max(stop) FROM task WHERE queue = 'many')") eq 't';
	};
	ok(poll_for($between, 180), 'another task does not wait for that');
	$session->quit;
};

# A fast shutdown of the server is fast.
subtest 'a fast shutdown' => sub {
	restore('more', 30000);
	my $begun = time();
	$node->stop('fast');
	cmp_ok(time() - $begun, '<', 30, 'the server stops while orphans are written');
	$node->start;
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state = 'WORK'});
	is(count_of($node, q{state = 'PLAN' AND sqlstate = '57P01' AND attempt IN (1, 2)}),
		$restored + 30000, 'all orphans wait to run again, with the error and their attempts');
};

# Many orphans whose rows are locked delay no other task, and are written when they are unlocked.
subtest 'locked rows' => sub {
	sql('TRUNCATE task');
	my $session = open_session($node, 'postgres');
	restore('locked', 5000);
	$session->query_safe(q{BEGIN; UPDATE task SET priority = 1 WHERE queue = 'locked'
		AND id % 2 = 0});
	wait_until($node, q{SELECT count(*) = 0 FROM task
		WHERE queue = 'locked' AND state = 'WORK' AND id % 2 = 1});
	ok(poll_for(sub {
		return task($node, run_task($node, request => 'SELECT 3'),
			"start - dt < interval '1 s' + 5 * interval '$usual s'") eq 't';
	}), 'another task does not wait for those that are locked');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_until($node,
		q{SELECT count(*) = 5000 FROM task WHERE queue = 'locked' AND state = 'PLAN'});
	pass('those that were locked are rescued, too');

	$node->stop;
};

done_testing();
