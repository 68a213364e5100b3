# Tasks that run when the server starts (cron '@reboot'): once per start, and not when only a
# process starts again, or pg_task is switched off and on.  A TAP test because it restarts the
# server.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('reboot', conf => "pg_task.period = '20 ms'");

sql('CREATE ROLE app LOGIN; GRANT INSERT, SELECT, UPDATE ON task TO app');

# What became of the tasks of a queue, over all their runs.
sub runs
{
	my ($queue) = @_;

	return sql("SELECT string_agg(state, ' ' ORDER BY id) FROM task WHERE queue = '$queue'");
}

# Whatever is to run has begun: a search for such tasks that began before is over.
sub settle
{
	run_task($node, request => 'SELECT 1', queue => 'settle') for 1 .. 3;
	return;
}

# Waits until what is due has ended, apart from the tasks of a queue.
sub wait_for_ends
{
	my ($queue) = @_;

	settle();
	wait_until($node, "SELECT count(*) = 0 FROM task WHERE queue NOT IN ('back', '" . ($queue // '')
		. "') AND (state = 'WORK' OR state = 'PLAN' AND hold IS NULL AND dt <= now())");
	return;
}

sub plan_reboot
{
	my ($queue, %column) = @_;

	return insert_task($node, request => 'SELECT pg_task_time()', cron => '@reboot',
		queue => $queue, %column);
}

sub new_scheduler
{
	my $old = poll_for(sub { return (backends($node, 'scheduler'))[0] });

	terminate($node, $old);
	wait_until($node, qq{SELECT count(*) = 1 FROM pg_stat_activity WHERE
		backend_type = 'pg_task scheduler' AND pid <> $old});
	settle();
	return;
}

my $deleted;
my $waits = { hold => 'until the server starts', 'dt = pg_postmaster_start_time()' => 'true',
	'anchor = pg_postmaster_start_time()' => 'true', state => 'PLAN' };

subtest 'it waits for the next start' => sub {
	is_row($node, plan_reboot('plain'), $waits, 'from an INSERT on');
	is_row($node, plan_reboot('later', dt => '2040-01-01', cron => " \@Reboot\t"), $waits,
		'whatever its dt');
	is_row($node, plan_reboot('never', dt => 'infinity'), $waits, 'infinity, too');
	my $changed = insert_task($node, request => 'SELECT 1', cron => '0 0 1 1 *', queue => 'changed',
		role => 'app');
	is(sql(qq{UPDATE task SET cron = '\@reboot' WHERE id = $changed RETURNING 1}, user => 'app'), 1,
		'another user changes a task to it');
	is_row($node, $changed, $waits, 'which waits');
	my $back = plan_reboot('back');
	sql(qq{UPDATE task SET cron = '0 0 1 1 *', timezone = 'UTC' WHERE id = $back});
	is(task($node, $back, q{dt = pg_task_next(cron, now(), 'UTC'), hold}), 't|', 'and from it');
	my $now = plan_reboot('now');
	sql("SELECT pg_task_resume($now)");
	wait_for_state($node, $now, 'DONE');
	$now = sql("SELECT id FROM task WHERE parent = $now");
	is_row($node, $now, $waits, 'one that was resumed has run, and waits for the next start');
	sql("UPDATE task SET dt = '2020-02-20' WHERE id = $now");
	wait_for_state($node, $now, 'DONE');
	sql(q{UPDATE task SET cron = NULL WHERE queue = 'now' AND state = 'PLAN'});
	wait_until($node, q{SELECT count(*) = 3 FROM task WHERE queue = 'now' AND state = 'DONE'});
	pass('and so have one with another time, and one that does not repeat any more');
	my $paused = plan_reboot('paused', hold => 'until the audit');
	is(task($node, $paused, 'hold'), 'until the audit', 'one is on hold for another reason');
	sql("SELECT pg_task_resume($paused)");
	is_row($node, $paused, $waits, 'and waits when it is resumed before the start');
	my $upsert = q{INSERT INTO task (queue, key, cron, request) VALUES ('upsert', 'k', '@reboot',
		'SELECT 1') ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
		DO UPDATE SET cron = excluded.cron, dt = excluded.dt RETURNING id};
	my $again = sql($upsert);
	is(sql($upsert), $again, 'it is set up again');
	is_row($node, $again, $waits, 'and waits');
	sql("UPDATE task SET dt = 'infinity' WHERE id = $again");
	is(task($node, $again, 'hold'), 'until the server starts', 'also with infinity');
	my $other = plan_reboot('other');
	sql("UPDATE task SET $_ WHERE id = $other")
	  for "state = 'STOP'", "cron = '0 0 1 1 *'", "state = 'PLAN'";
	is(task($node, $other, 'hold'), '', 'one that got another cron while it was stopped does not');
	sql("DELETE FROM task WHERE queue = 'other'");
	insert_task($node, request => 'SELECT 1', cron => '@reboot', queue => 'over',
		repeat_until => sql(q{SELECT now() + '10 ms'}));
	sql("SELECT pg_task_hold($paused, 'until the audit')");
	insert_task($node, request => 'SELECT 1', queue => 'parked', dt => 'infinity');
	plan_reboot('stopped');
	sql(q{UPDATE task SET state = 'STOP' WHERE queue = 'stopped'});
	plan_reboot('retried', request => 'SELECT 1/0', retry => 1, delay => '1 ms');
	$deleted = plan_reboot('deleted', keep => '0');
	settle();
	is(runs('plain'), 'PLAN', 'it does not run before');
};

subtest 'the server is restarted' => sub {
	$node->restart;
	wait_until($node, qq{SELECT count(*) = 2 FROM task WHERE queue = '$_'})
	  for qw(plain later changed retried);
	wait_until($node, "SELECT bool_and(id > $deleted) FROM task WHERE queue = 'deleted'");
	settle();
	is(runs($_), 'DONE PLAN', "$_: it has run, and waits again") for qw(plain later changed);
	is(runs('retried'), 'FAIL PLAN', 'one that fails, too');
	is(sql(q{SELECT attempt FROM task WHERE queue = 'retried' AND state = 'FAIL'}), 2,
		'after its retries');
	is(runs('deleted'), 'PLAN', 'one that is removed, too');
	is(runs($_), 'PLAN', "$_: others stay") for qw(back parked paused over);
	sql(q{UPDATE task SET state = 'STOP' WHERE queue = 'over'});
	sql(q{UPDATE task SET hold = NULL WHERE queue = 'paused'});
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE queue = 'paused'});
	is(runs('paused'), 'DONE PLAN', 'one that was on hold at the start runs when it is resumed');
	is(runs('stopped'), 'STOP', 'one that was stopped stays');
	is_row($node, sql(q{SELECT max(id) FROM task WHERE queue = 'plain'}), $waits, 'the next run');
	is(sql(q{SELECT response::timestamptz = dt AND dt > pg_postmaster_start_time()
		FROM task WHERE queue = 'plain' AND state = 'DONE'}), 't', 'its time is that of the start');
};

subtest 'only a process starts again' => sub {
	plan_reboot('new');
	sql(q{UPDATE task SET state = 'PLAN' WHERE queue = 'stopped'});
	new_scheduler();
	is(runs('plain'), 'DONE PLAN', 'a scheduler');
	apply_conf($node, 'pg_task.idle_timeout = 1000');
	new_scheduler();
	is(runs('plain'), 'DONE PLAN', 'after a reload');
	for my $switch (['ALTER SYSTEM SET pg_task.enabled = off; SELECT pg_reload_conf()',
			'ALTER SYSTEM RESET pg_task.enabled; SELECT pg_reload_conf()'],
		['ALTER DATABASE postgres SET pg_task.enabled = off',
			'ALTER DATABASE postgres RESET pg_task.enabled'])
	{
		my ($off, $on) = @$switch;

		sql($_) for split /; /, $off;
		wait_for_backends($node, 'scheduler', 0);
		plan_reboot('off');
		sql($_) for split /; /, $on;
		wait_for_backends($node, 'scheduler', 1);
		settle();
		is(runs('plain'), 'DONE PLAN', "on again after $off");
	}
	is(runs('off'), 'PLAN PLAN', 'nor does what was planned while it was off run');
	my $position = log_position($node);
	my $killed = insert_task($node, request => 'SELECT pg_sleep(600)', queue => 'killed');
	wait_for_running($node, 1, id => $killed);
	kill 'KILL', task($node, $killed, 'pid');
	wait_for_log_line($node, qr/all server processes terminated; reinitializing/, $position);
	wait_until($node, 'SELECT true');
	sql("UPDATE task SET state = 'STOP' WHERE id = $killed");
	settle();
	is(runs('plain'), 'DONE PLAN', 'all of them, after a crash');
	is(runs('new'), 'PLAN', 'a new task waits likewise');
	is(runs('stopped'), 'PLAN', 'one that was stopped when the server was started, too');
};

subtest 'the server stops at once, while they run' => sub {
	make_gates($node);
	plan_reboot('held', request => q{SELECT hold('held')});
	crash($node);
	wait_until($node, q{SELECT state = 'WORK' FROM task WHERE queue = 'held'});
	wait_for_ends('held');
	is(runs('new'), 'DONE PLAN', 'others have run');
	crash($node);
	wait_until($node, q{SELECT attempt = 2 AND state = 'WORK' FROM task WHERE queue = 'held'});
	open_gate($node, 'held');
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE queue = 'held'});
	wait_for_ends();
	is(runs('held'), 'DONE PLAN', 'the run that was interrupted counts for this start');
	is(runs('plain'), 'DONE DONE DONE PLAN', 'once for each start');
	is(runs('new'), 'DONE DONE PLAN', 'from the next start on');
	is(runs('stopped'), 'DONE DONE PLAN', 'also when it was stopped meanwhile');
	is(count_of($node, q{queue = 'off' AND state = 'DONE'}), 4,
		'and when it was planned while pg_task was off');
};

subtest 'many tasks, and a scheduler that is terminated' => sub {
	sql(q{INSERT INTO task (request, cron, queue, priority)
		SELECT 'SELECT 1', '@reboot', 'many', i % 100 FROM generate_series(1, 1000) AS i;
		INSERT INTO task (request, dt, queue, priority)
		SELECT 'SELECT 1', 'infinity', 'many', i % 7 FROM generate_series(1, 3000) AS i});
	$node->restart;
	for (1 .. 4)
	{
		terminate($node, backends($node, 'scheduler'));
		wait_until($node, qq{SELECT count(*) > 60 * $_ FROM task WHERE queue = 'many'
			AND state = 'DONE'});
	}
	wait_until($node, q{SELECT count(*) = 1000 FROM task WHERE queue = 'many' AND state = 'DONE'});
	settle();
	is(sql(q{SELECT state, count(*), count(DISTINCT parent) FROM task WHERE queue = 'many'
		AND cron IS NOT NULL GROUP BY state ORDER BY state}), "DONE|1000|0\nPLAN|1000|1000",
		'each runs once');
	sql(q{DELETE FROM task WHERE queue = 'many'});
};

subtest 'rows that cannot be written' => sub {
	my $locked = plan_reboot('locked');
	sql(q{CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF OLD.hold IS NOT NULL AND OLD.queue = 'refused' THEN RAISE 'refused'; END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION refuse()});
	my $refused = plan_reboot('refused');
	plan_reboot('unaffected');
	$node->append_conf('postgresql.conf', 'pg_task.enabled = off');
	$node->restart;
	my $session = open_session($node, 'postgres');
	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $locked FOR UPDATE");
	set_conf($node, 'pg_task.enabled = on');
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE queue = 'unaffected'});
	is(runs('unaffected'), 'DONE PLAN', 'others run, when pg_task is enabled');
	is(runs($_), 'PLAN', "it is $_") for qw(locked refused);
	$session->query_safe('COMMIT');
	$session->quit;
	sql('DROP TRIGGER refuse ON task');
	wait_until($node, qq{SELECT count(*) = 2 FROM task WHERE queue = '$_'}) for qw(locked refused);
	settle();
	is(runs($_), 'DONE PLAN', 'it runs later') for qw(locked refused);
	is(runs('unaffected'), 'DONE PLAN', 'and no other runs twice');
};

done_testing();
