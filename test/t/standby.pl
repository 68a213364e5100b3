# A standby runs no tasks.  After promotion it continues the work of the old primary.  A TAP test
# because it needs two servers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_node('primary', init => { allows_streaming => 1 },
	conf => "pg_task.period = '1 h'\nwal_log_hints = on\nwal_keep_size = '200MB'");
my $ours = q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'pg_task%'};

make_gates($primary);
$primary->safe_psql('postgres', 'CREATE TABLE log (task bigint)');
$primary->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'copy', has_streaming => 1);
$standby->start;

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
	$standby->restart;
	is($standby->safe_psql('postgres', $ours), 0, 'there is none after a restart either');

	$primary->stop('immediate');
	$standby->promote;
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
	$primary->enable_streaming($standby);
	$primary->set_standby_mode;
	$primary->start;
	$standby->wait_for_catchup($primary);
	is(task($primary, $long, 'state'), 'WORK', 'the old primary shows what runs on the new one');
	is($primary->safe_psql('postgres', $ours), 0, 'there is no process of pg_task');
	open_gate($standby, 'long');
	wait_for_state($standby, $long, 'DONE');
	is(task($standby, $long, 'attempt'), 1, 'the task on the new primary goes on');
};

done_testing();
