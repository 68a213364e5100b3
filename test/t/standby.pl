# A standby runs no tasks, nor does one that follows it.  After promotion it continues the work of
# the old primary.  A TAP test because it needs several servers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_node('primary', init => { allows_streaming => 1 },
	conf => "pg_task.period = '1 h'\nwal_log_hints = on\nwal_keep_size = '200MB'\n"
	. "wal_retrieve_retry_interval = '100ms'\nmax_prepared_transactions = 2");
my $ours = q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'pg_task%'};

make_gates($primary);
$primary->safe_psql('postgres', 'CREATE TABLE log (task bigint)');
$primary->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'copy', has_streaming => 1);
$standby->start;
my $cascade = PostgreSQL::Test::Cluster->new('cascade');
$cascade->init_from_backup($primary, 'copy', has_streaming => 1);
$cascade->enable_streaming($standby);
$cascade->start;

# A standby that has all that its primary has done.
sub is_quiet
{
	my ($from, $node, $name) = @_;

	$from->wait_for_catchup($node, 'replay', $from->safe_psql('postgres',
		'SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() '
		. 'ELSE pg_current_wal_lsn() END'));
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(sql($ours, node => $node), 0, "$name has no process of pg_task");
}

# A server that was stopped or killed starts as a standby of another.
sub follow
{
	my ($node, $from) = @_;

	$node->enable_streaming($from);
	$node->start;
}

# All processes of a server start again, because one has crashed.
sub crash_processes
{
	my ($node) = @_;
	my $position = log_position($node);
	my $id = insert_task($node, request => 'SELECT pg_sleep(600)', queue => 'crash_processes');

	wait_for_running($node, 1, id => $id);
	kill 'KILL', task($node, $id, 'pid');
	wait_for_log_line($node, qr/all server processes terminated; reinitializing/, $position);
	sql("UPDATE task SET state = 'STOP' WHERE id = $id", node => $node);
	return;
}

sub unpause
{
	my ($node, $queue) = @_;

	sql("UPDATE task_queue SET paused = false WHERE queue = '$queue'", node => $node);
	return;
}

subtest 'promotion' => sub {
	my $done = run_task($primary, request => 'SELECT 1');
	my @running = map { insert_task($primary,
		request => q{INSERT INTO log VALUES (current_setting('pg_task.id')::bigint);
		SELECT hold('end')}) } 1 .. 2;
	wait_for_state($primary, $_, 'WORK') for @running;
	my $later = insert_task($primary, dt => 'infinity', request => 'SELECT 2');
	my $reboot = insert_task($primary, request => 'SELECT 3', cron => '@reboot');
	$primary->wait_for_catchup($standby);
	is(task($standby, $_, 'state'), 'WORK', 'the standby shows the task as WORK') for @running;
	is($standby->safe_psql('postgres', $ours), 0, 'there is no process of pg_task');
	is($standby->safe_psql('postgres', 'SHOW pg_task.enabled'), 'on', 'pg_task.enabled is on');
	is_quiet($standby, $cascade, 'a standby of the standby');
	is($standby->safe_psql('postgres', 'SELECT (SELECT count(*) FROM pg_stat_task()),
		(SELECT count(*) FROM pg_task_activity()), (SELECT count(*) FROM pg_stat_task_scheduler())'),
		'0|0|0', 'it counts nothing of what its primary does');
	is($standby->safe_psql('postgres', 'SELECT * FROM pg_task_health()'), '', 'nothing is wrong');
	is($standby->safe_psql('postgres', q{SELECT (SELECT concat_ws(' ', waits, due, runs)
			FROM pg_task_queues()), (SELECT sum(ended) FROM pg_task_stats()),
			(SELECT concat_ws(' ', schedulers, executors) FROM pg_task_status())}),
		'2 0 2|1|0 0', 'but it reads the table');
	is($standby->safe_psql('postgres', "SELECT pg_task_why($later)"),
		'the server is a standby: tasks run on the primary', 'why a task waits');
	like($standby->safe_psql('postgres', "SELECT pg_task_why($running[0])"),
		qr/^it runs since 20.* on the primary$/, 'where one runs');
	$standby->restart;
	is($standby->safe_psql('postgres', $ours), 0, 'there is none after a restart either');
	# due after the start of the standby, and before its promotion, which is known to the second
	sql(q{INSERT INTO task_queue (queue, paused) VALUES ('missed', true), ('crash', true)});
	my ($missed, $crash) = map { insert_task($primary, request => 'SELECT 4', queue => $_,
		repeat => '1 hour', missed => 'none') } qw(missed crash);
	wait_until($primary, "SELECT clock_timestamp() > dt + interval '2 s' FROM task
		WHERE id = $crash");
	$primary->wait_for_catchup($standby);
	$primary->stop('immediate');
	$standby->promote;
	my $new = insert_task($standby, request => 'SELECT 5', repeat => '1 hour', missed => 'none');
	wait_until($standby,
		"SELECT count(*) = 2 FROM task WHERE id IN ($running[0], $running[1]) AND state = 'WORK' "
		. "AND attempt = 2");
	pass('tasks that ran on the old primary start again at once');
	open_gate($standby, 'end');
	wait_for_state($standby, $_, 'DONE') for @running;
	is($standby->safe_psql('postgres', 'SELECT count(*), count(DISTINCT task) FROM log'), '2|2',
		'its effect is there once');
	is(task($standby, $done, 'attempt, state'), '1|DONE', 'a task that was DONE stays DONE');
	is(task($standby, $later, 'state'), 'PLAN', 'a waiting task still waits');
	wait_until($standby, "SELECT count(*) = 1 FROM task WHERE parent = $reboot");
	is(task($standby, $reboot, 'state'), 'DONE', 'a promotion counts as a start of the server');
	terminate($standby, backends($standby, 'scheduler'));
	is(task($standby, run_task($standby, request => 'SELECT 42'), 'response'), '42',
		'new tasks run');
	is(count_of($standby, "parent = $reboot AND state = 'PLAN'"), 1, 'but once');
	wait_for_state($standby, $new, 'DONE');
	unpause($standby, 'missed');
	wait_for_state($standby, $missed, 'GONE');
	is(task($standby, $missed, 'sqlstate'), 'TK004', 'a run that was due before is missed');
	crash_processes($standby);
	unpause($standby, 'crash');
	wait_for_state($standby, $crash, 'GONE');
	is(task($standby, $crash, 'sqlstate'), 'TK004', 'also after all processes have started again');
	is_quiet($standby, $cascade, 'a standby that follows the promoted one');
};

# The old primary becomes a standby of the new one: it runs nothing, not even the tasks it was
# running.
subtest 'the old primary follows the new one' => sub {
	my $long = insert_task($standby, request => q{SELECT hold('long')});
	wait_for_state($standby, $long, 'WORK');
	$standby->safe_psql('postgres', 'CHECKPOINT');    # else pg_rewind reads the old timeline
	my $conf = slurp_file($primary->data_dir . '/postgresql.conf');
	command_ok([ 'pg_rewind', '--source-server', $standby->connstr('postgres'), '--target-pgdata',
		$primary->data_dir ],
		'the old primary is rewound');
	open my $file, '>', $primary->data_dir . '/postgresql.conf' or die;
	print $file $conf;
	close $file;
	follow($primary, $standby);
	is_quiet($standby, $primary, 'the old primary');
	is(task($primary, $long, 'state'), 'WORK', 'it shows what runs on the new one');
	open_gate($standby, 'long');
	wait_for_state($standby, $long, 'DONE');
	is(task($standby, $long, 'attempt'), 1, 'the task on the new primary goes on');
};

# A primary that was killed starts as a standby.  Promoted at once, it knows that any of its tasks
# may have ended it.
subtest 'killed, and promoted where it was' => sub {
	my $long = insert_task($standby, request => q{SELECT hold('killed')});
	wait_for_state($standby, $long, 'WORK');
	kill_server($standby);
	$standby->set_standby_mode;
	$standby->start;
	is($standby->safe_psql('postgres', 'SELECT pg_promote()'), 't', 'pg_promote() succeeds');
	wait_until($standby, "SELECT state = 'WORK' AND attempt = 2 FROM task WHERE id = $long");
	is(task($standby, $long, 'crashed'), 1, 'the task is a suspect');
	open_gate($standby, 'killed');
	wait_for_state($standby, $long, 'DONE');
	is_quiet($standby, $cascade, 'its standby');
};

# Promoted later, it does not blame tasks that have started elsewhere since it follows.  Of those
# that started while it was down it cannot tell: they run one at a time.
subtest 'killed, and promoted later' => sub {
	kill_server($standby);
	$cascade->stop;
	# all that the killed one has written, so that it can follow without pg_rewind
	for my $file (glob $standby->data_dir . '/pg_wal/0*')
	{
		PostgreSQL::Test::Utils::system_or_bail('cp', $file, $cascade->data_dir . '/pg_wal/');
	}
	$cascade->start;
	is($cascade->safe_psql('postgres', 'SELECT pg_promote()'), 't',
		'pg_promote() succeeds on the standby of a standby');
	wait_for_table($cascade);
	my @long = insert_task($cascade, request => q{SELECT hold('later')});
	wait_for_state($cascade, $long[0], 'WORK');
	follow($standby, $cascade);
	is_quiet($cascade, $standby, 'the one that was killed');
	push @long, insert_task($cascade, request => q{SELECT hold('later')});
	wait_for_state($cascade, $long[1], 'WORK');
	$cascade->wait_for_catchup($standby);
	$cascade->stop('immediate');
	$standby->promote;
	wait_until($standby, "SELECT state = 'WORK' AND attempt = 2 FROM task WHERE id = $_")
	  for @long;
	is(task($standby, $long[0], 'crashed'), 1, 'the task from before is a suspect');
	is(task($standby, $long[1], 'crashed'), 0, 'the later task is none');
	open_gate($standby, 'later');
	wait_for_state($standby, $_, 'DONE') for @long;
};

done_testing();
