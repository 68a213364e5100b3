# A copy of the disk that is started elsewhere cannot be told from a restart: what waits in it runs.
# docs/operations.md says how to start it without that.  A TAP test because it starts copies of a
# server.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main');
my ($stop) = manual_page('operations.md') =~
	/^### A snapshot of the disk\n.*?^```sql\n(.*?)^```$/ms;

# What runs and what waits when the copy is made.
make_gates($node);
sql(q{CREATE TABLE ran (what text); INSERT INTO task_queue (queue, paused) VALUES ('waits', true);
	INSERT INTO task (queue, cron, repeat, request)
	SELECT 'waits', cron, repeat, format('INSERT INTO ran VALUES (%L)', what)
	FROM (VALUES ('bill', NULL, NULL), ('cron', '* * * * * *', NULL), ('start', '@reboot', NULL),
	('repeat', NULL, interval '10 ms')) AS v (what, cron, repeat)});
my $running = insert_task($node, request => q{INSERT INTO ran SELECT 'run' FROM hold('end')});
wait_for_running($node, 1, id => $running, event => 'PgSleep');
$node->stop('immediate');
mkdir $node->backup_dir;
PostgreSQL::Test::RecursiveCopy::copypath($node->data_dir, $node->backup_dir . '/snapshot');

sub copy
{
	my ($name, @conf) = @_;
	my $copy = PostgreSQL::Test::Cluster->new($name);

	$copy->init_from_backup($node, 'snapshot');
	unlink $copy->data_dir . '/postmaster.pid';
	$copy->append_conf('postgresql.conf', $_) for @conf;
	return $copy;
}

# Lets everything run in a copy that would.
sub unpause
{
	sql(q{INSERT INTO gate VALUES ('end'); UPDATE task_queue SET paused = false}, node => $_[0]);
}

sub ran
{
	return sql(q{SELECT string_agg(DISTINCT what, ' ' ORDER BY what) FROM ran}, node => $_[0]);
}

# Nothing runs in a copy, until this is called, which lets tasks run; and then nothing of before.
sub is_quiet
{
	my ($copy, $switch_on) = @_;

	wait_for_backends($copy, 'supervisor', 1);
	is(sql('SHOW pg_task.enabled', node => $copy), 'off', 'as the manual says');
	unpause($copy);
	my $id = insert_task($copy, request => q{INSERT INTO ran VALUES ('new')}, dt => '2020-01-01');
	is(sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'pg_task (sch|exe)'},
		node => $copy), 0, 'no process that runs anything');
	is(ran($copy), '', 'nothing has run');
	is(task($copy, $running, 'state'), 'WORK', 'the row of the run is as it was');
	sql("$stop; UPDATE task SET state = 'PLAN' WHERE id = $id", node => $copy);
	$switch_on->();
	wait_for_state($copy, $id, 'DONE');
	run_task($copy, request => q{INSERT INTO ran VALUES ('newer')});
	is(ran($copy), 'new newer', 'what is planned now runs, and nothing else');
	is(sql(q{SELECT count(*) FROM task WHERE state IN ('PLAN', 'WORK') OR stop IS NULL},
		node => $copy), 0, 'the rest has ended');
	return;
}

subtest 'a copy that is started as it is' => sub {
	my $copy = copy('plain');

	$copy->start;
	unpause($copy);
	wait_until($copy, q{SELECT string_agg(DISTINCT what, ' ' ORDER BY what) FROM ran},
		expected => 'bill cron repeat run start');
	pass('everything runs that waited or ran in the original');
	$copy->stop('immediate');
};

subtest 'with pg_task.enabled = off in postgresql.conf' => sub {
	my $copy = copy('conf', 'pg_task.enabled = off');

	$copy->start;
	is_quiet($copy, sub { set_conf($copy, 'pg_task.enabled = on') });
	$copy->stop;
};

subtest 'with -c pg_task.enabled=off' => sub {
	my $copy = copy('option');
	my @start = ('pg_ctl', '-s', '-w', '-D', $copy->data_dir, '-l', $copy->logfile);

	system_or_bail(@start, '-o', '-c pg_task.enabled=off', 'start');
	is_quiet($copy, sub {
		system_or_bail(@start, 'stop');
		$copy->start;
	});
	$copy->stop;
};

done_testing();
