# pg_task.require_standby: no task starts while fewer synchronous standbys are connected than a
# commit waits for.  A TAP test because it needs several servers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $primary = new_node('primary', init => { allows_streaming => 1 }, conf => q{
wal_sender_timeout = '1 s'
synchronous_commit = local
pg_task.require_standby = on
});
my @standbys = map {
	my $node = PostgreSQL::Test::Cluster->new("standby$_");
	$primary->backup("copy$_");
	$node->init_from_backup($primary, "copy$_", has_streaming => 1);
	$node->append_conf('postgresql.conf',
		"wal_retrieve_retry_interval = '100ms'\nwal_receiver_status_interval = '1 s'\n");
	$node;
} 1 .. 2;

# The state of the scheduler, as users see it.
sub wait_until_state_is
{
	my ($state) = @_;

	wait_until($primary, q{SELECT state FROM pg_stat_task_scheduler()}, expected => $state);
}

# No task starts: a scheduler has looked since this one was inserted, and says so.
sub waits_ok
{
	my ($name) = @_;

	wait_until_state_is('no standby');
	my $id = insert_task($primary, request => 'INSERT INTO log DEFAULT VALUES');
	my $seen = q{SELECT iterations FROM pg_stat_task_scheduler()};
	my $before = sql($seen);
	wait_until($primary, "SELECT iterations > $before + 1 FROM pg_stat_task_scheduler()");
	is_row($primary, $id, { state => 'PLAN', attempt => 0 }, $name);
	is(sql("SELECT pg_task_why($id)"),
		'too few synchronous standbys are connected: see pg_task.require_standby', "why: $name");
	return $id;
}

sql('CREATE TABLE log (at timestamptz DEFAULT now())');
sql(q{CREATE ROLE worker; INSERT INTO task_queue (queue, taker) VALUES ('outside', 'worker')});

my @ids = waits_ok('no synchronous standby is named');
insert_task($primary, request => 'work', queue => 'outside');
is(sql(q{SELECT count(*) FROM pg_task_take('{outside}')}), 0, 'nothing is handed out, either');
is(sql(q{SELECT level, problem FROM pg_task_health()}),
	'critical|no task starts: too few synchronous standbys are connected', 'pg_task_health');
wait_for_log_line($primary,
	qr/LOG:  pg_task starts no tasks: too few synchronous standbys are connected/, 0);

set_conf($primary, "synchronous_standby_names = 'standby1'");
push @ids, waits_ok('a standby is named, but none is connected');
$standbys[1]->start;
push @ids, waits_ok('another standby is connected');

# One task runs while the standby goes.
$standbys[0]->start;
wait_until_state_is('running');
wait_for_state($primary, $_, 'DONE') for @ids;
is(sql('SELECT count(*) FROM log'), @ids, 'with a standby all start, each once');
is(sql(q{SELECT count(*) FROM pg_task_take('{outside}')}), 1, 'and tasks are handed out');
wait_for_log_line($primary, qr/LOG:  pg_task starts tasks again/, 0);

# What runs goes on while the standby goes; what is due then starts when it is back.
make_gates($primary);
my $running = insert_task($primary, request => q{SELECT hold('gone'), 7});
wait_for_running($primary, 1, id => $running);
$standbys[0]->stop('immediate');
push @ids, waits_ok('the standby has crashed');
open_gate($primary, 'gone');
wait_for_state($primary, $running, 'DONE');
pass('a task that runs goes on');
$standbys[0]->start;
wait_for_state($primary, $ids[-1], 'DONE');

# A standby that is cut off is found by wal_sender_timeout: its connection stays.
my $receiver = sql(q{SELECT pid FROM pg_stat_wal_receiver}, node => $standbys[0]);
kill 'STOP', $receiver;
push @ids, waits_ok('the standby is cut off');
kill 'CONT', $receiver;
wait_for_state($primary, $ids[-1], 'DONE');

# As many as a commit waits for.
set_conf($primary, "synchronous_standby_names = 'ANY 2 (standby1, standby2, standby3)'");
wait_until_state_is('running');
$standbys[1]->stop;
push @ids, waits_ok('one of two is connected');
set_conf($primary, "synchronous_standby_names = 'ANY 1 (standby1, standby2, standby3)'");
wait_for_state($primary, $ids[-1], 'DONE');
set_conf($primary, "synchronous_standby_names = ''");
push @ids, waits_ok('none is named any more');
set_conf($primary, 'pg_task.require_standby = off');
wait_for_state($primary, $_, 'DONE') for @ids;
is(sql('SELECT count(*) FROM log'), @ids, 'all have run, each once');

done_testing();
