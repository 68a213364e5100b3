# How the processes of pg_task appear in pg_stat_activity, and that they do nothing when there is
# nothing to do.  A TAP test because no other session may use the server.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main',
	conf => "pg_task.period = '50 ms'\nautovacuum = off\nwal_level = minimal\nmax_wal_senders = 0");

make_gates($node);
sql('CREATE ROLE "wörker" LOGIN');

subtest 'pg_stat_activity' => sub {
	is(sql(q{SELECT backend_type, datname FROM pg_stat_activity WHERE backend_type LIKE 'pg_task%'
		ORDER BY 1 DESC}),
		"pg_task supervisor|\npg_task scheduler|postgres",
		'a supervisor, and a scheduler of the database');
	my $id = insert_task($node, queue => 'mail', role => 'wörker', request => "SELECT hold('run')");
	wait_for_state($node, $id, 'WORK');
	wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'});
	is(sql(qq{SELECT datname, usename, application_name, state, query,
		xact_start <= clock_timestamp(),
		pid = (SELECT pid FROM task WHERE id = $id)
		FROM pg_stat_activity WHERE backend_type = 'pg_task executor'}),
		"postgres|wörker|pg_task mail $id|active|SELECT hold('run')|t|t",
		'an executor shows its task');
	open_gate($node, 'run');
	wait_for_state($node, $id, 'DONE');
	wait_until($node,
		q{SELECT state = 'idle' FROM pg_stat_activity WHERE backend_type = 'pg_task executor'});
	is(sql(q{SELECT usename, application_name, xact_start FROM pg_stat_activity
		WHERE backend_type = 'pg_task executor'}),
		'wörker||', 'an idle executor shows no task');
	is(task($node, $id,
		'pid = (SELECT pid FROM pg_stat_activity WHERE backend_type = \'pg_task executor\')'), 't',
		'the row has the pid of the executor');
	for my $queue ('', "\n", 'a long name ' x 20, 'größer')
	{
		$id = insert_task($node, queue => $queue,
			request => q{SELECT current_setting('application_name')});
		wait_for_state($node, $id, 'DONE');
		like(task($node, $id, 'response'), qr/^pg_task .*\b$id$/s, 'a strange queue');
	}
	# each has something to do now and then
	wait_until($node, q{SELECT string_agg(DISTINCT coalesce(wait_event_type, 'none'), ' ')
		FROM pg_stat_activity WHERE backend_type LIKE 'pg_task%'}, expected => 'Extension');
	pass('the processes wait with wait_event_type Extension');
};

subtest 'wait events' => sub {
	plan skip_all => 'they have no names before 17'
		if sql('SHOW server_version_num') < 170000;
	sql('CREATE DATABASE awaited');
	wait_for_table($node, db => 'awaited');
	sql('DROP DATABASE awaited');
	is(sql(q{SELECT string_agg(name, ' ' ORDER BY name COLLATE "C") FROM pg_wait_events
		WHERE type = 'Extension' AND name LIKE 'PgTask%'}),
		'PgTaskDatabaseRelease PgTaskExecutorMain PgTaskSchedulerMain PgTaskSupervisorMain',
		'those of the manual');
};

# pg_stat_database counts the transactions of the executor and the scheduler.
subtest 'pg_stat_database' => sub {
	cmp_ok(sql(q{SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'}), '>', 0,
		'statistics are reported');
};

sub wait_for_scans
{
	my ($n) = @_;

	for (1 .. $n)
	{
		my $last = sql(q{SELECT max(state_change) FROM pg_stat_activity
			WHERE backend_type = 'pg_task scheduler'});
		wait_until($node,
			qq{SELECT max(state_change) > '$last' FROM pg_stat_activity
			WHERE backend_type = 'pg_task scheduler'});
	}
}

# When nothing happens, scans write nothing, however many there are.
subtest 'an idle server' => sub {
	sql(q{INSERT INTO task (request, dt) SELECT 'SELECT 1', 'infinity'
		FROM generate_series(1, 100)});
	sql(q{VACUUM task; VACUUM pg_class; VACUUM pg_attribute; SELECT count(*) FROM task});
	wait_for_scans(3);
	sql('CHECKPOINT');
	wait_for_scans(3);
	my $lsn = sql('SELECT pg_current_wal_insert_lsn()');
	my $xid = sql('SELECT pg_snapshot_xmax(pg_current_snapshot())');
	wait_for_scans(20);
	is(sql('SELECT pg_current_wal_insert_lsn()'), $lsn, 'no WAL is written');
	is(sql('SELECT pg_snapshot_xmax(pg_current_snapshot())'), $xid,
		'no transaction id is assigned');
	# a scan that is under way has one
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity
		WHERE backend_type LIKE 'pg_task%' AND backend_xmin IS NOT NULL)});
	pass('no snapshot is held');
};

done_testing();
