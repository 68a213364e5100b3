# A scheduler that crashes the server: its database is held back, and says so, and the server comes
# up; other databases, and crashes by other processes, have nothing held back.  A TAP test because
# it loads a library that crashes schedulers, and restarts the server.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $library = build_module('crash_scheduler');
my $node = new_node('main', conf => "shared_preload_libraries = 'pg_task, $library'");
my $crashed = qr/LOG:  background worker "pg_task scheduler" \(PID \d+\) was terminated by signal 11/;

sql('CREATE ROLE owner LOGIN');
for my $db (qw(bad bad2 good))
{
	sql("CREATE DATABASE $db OWNER owner");
	wait_for_table($node, db => $db);
}

# Sets which schedulers crash: those of databases whose name begins so.
sub crash_schedulers_of
{
	my ($prefix) = @_;

	set_conf($node, "crash_scheduler.database = '$prefix'");
}

# Waits until these databases, and no others, are held back, and the others have schedulers.
sub wait_for_held
{
	my (@databases) = @_;

	wait_until($node, q{SELECT coalesce(string_agg(datname, ' ' ORDER BY datname), '') || ' ' ||
		bool_and(state IN ('running', 'held back') AND (pid IS NULL) = (state = 'held back'))
		FROM pg_stat_task_scheduler() WHERE state = 'held back' OR datname = 'postgres'},
		expected => join ' ', sort(@databases, 'postgres'), 'true');
}

sub crashes_since { return scalar(() = log_since($node, $_[0]) =~ /$crashed/g) }

# A task runs in each of these databases.
sub tasks_run
{
	my ($name, @databases) = @_;

	for my $db (@databases)
	{
		my $role = sql_in($db, 'SELECT datdba::regrole FROM pg_database
			WHERE datname = current_database()');
		my $id = run_task($node, request => 'SELECT 1', role => $role, db => $db);

		is(task($node, $id, 'state', db => $db), 'DONE', "$name: tasks run in $db");
	}
}

subtest 'a database whose scheduler crashes the server' => sub {
	my $position = log_position($node);

	crash_schedulers_of('bad');
	wait_for_held('bad', 'bad2');
	is(sql(q{SELECT string_agg(DISTINCT error, '') FROM
			pg_stat_task_scheduler() WHERE state = 'held back'}),
		'the scheduler has crashed the server 2 times in a row: see pg_task_release',
		'the view says why');
	like(log_since($node, $position), qr/WARNING:.*pg_task\ holds\ back\ the\ tasks\ of\ database\ "bad"\n
		.*DETAIL:.*2\ times.*\n.*HINT:.*pg_task_release/x, 'the log, too');
	tasks_run('held back', 'postgres', 'good');
	cmp_ok(crashes_since($position), '<=', 4, 'each has crashed twice');
	my $id = insert_task($node, request => 'SELECT 1', db => 'bad');
	is(sql_in('bad', "SELECT pg_task_why($id)"), 'it is held back, because the scheduler of this'
		. ' database has crashed the server: see pg_task_release', 'pg_task_why says it');
	like(error_of('owner', 'SELECT pg_task_release()', db => 'bad'),
		qr/only a superuser may release/, 'its owner may not release it');
};

subtest 'release' => sub {
	my $position = log_position($node);

	# the crash that follows may come before the answer
	$node->psql('bad', 'SELECT pg_task_release()');
	wait_for_held('bad', 'bad2');
	is(crashes_since($position), 2, 'it was held back, and crashes again, twice');
	crash_schedulers_of('');
	wait_until($node, q{SHOW crash_scheduler.database}, expected => '');
	wait_for_held('bad', 'bad2');
	is(sql_in($_, 'SELECT pg_task_release()'), 't', "$_ is released") for 'bad', 'bad2';
	is(sql_in('bad', 'SELECT pg_task_release()'), 'f', 'once');
	tasks_run('released', 'bad', 'bad2', 'good');
};

subtest 'a postmaster that ends with each crash' => sub {
	my $position = log_position($node);

	$node->append_conf('postgresql.conf',
		"restart_after_crash = off\ncrash_scheduler.database = 'bad2'");
	$node->stop;
	for my $crashes (1 .. 2)
	{
		# not by $node->start: it may end before or after pg_ctl sees that it has started
		PostgreSQL::Test::Utils::system_log('pg_ctl', '-D', $node->data_dir, '-l', $node->logfile,
			'start');
		poll_for(sub { crashes_since($position) == $crashes }) or die 'no crash';
		poll_for(sub { !-e $node->data_dir . '/postmaster.pid' }) or die 'the postmaster goes on';
	}
	$node->start;
	wait_for_held('bad2');
	tasks_run('held back', 'bad', 'good', 'postgres');
	is(crashes_since($position), 2, 'no more crashes');
	$node->append_conf('postgresql.conf',
		"restart_after_crash = on\ncrash_scheduler.database = ''");
	$node->restart;
	tasks_run('after a restart', 'bad2');
};

# Others have crashed the server, or a scheduler did nothing when it was killed.
subtest 'crashes by others' => sub {
	for my $type (('walwriter', 'pg_task scheduler') x 3)
	{
		my $position = log_position($node);
		my $idle = $type eq 'walwriter' ? 'true'
		  : "datname = 'good' AND wait_event = 'PgTaskSchedulerMain' OR wait_event = 'Extension'";
		my $pid = poll_for(sub {
			return sql("SELECT pid FROM pg_stat_activity WHERE backend_type = '$type' AND ($idle)"
				. ' ORDER BY pid LIMIT 1');
		});

		kill 'KILL', $pid;
		wait_for_log_line($node, qr/reinitializing/, $position);
		wait_for_schedulers($node, qw(bad bad2 good postgres));
	}
	wait_for_held();
	tasks_run('nothing is held back', 'good', 'bad', 'bad2', 'postgres');
};

done_testing();
