# An executor is replaced if settings of its role or its database have changed, and only then: not
# after a command that fails, is rolled back, or concerns another role or database.  A TAP test
# because it watches processes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.max_executors = 1\nmax_prepared_transactions = 4");

# The process that runs a task of the role tenant now.
sub process
{
	return task($node, run_task($node, role => 'tenant', request => 'SELECT 1'), 'pid');
}

# Runs commands as a role; their errors are expected.
sub attempt
{
	my ($role, $commands) = @_;

	$node->psql('postgres', $commands, extra_params => [ '-U', $role ], on_error_stop => 0);
	return;
}

my $kept;

sub stays
{
	my ($role, $commands, $name) = @_;

	attempt($role, $commands);
	is(process(), $kept, $name);
	return;
}

sub is_replaced
{
	my ($role, $commands, $name) = @_;
	my $before = $kept;

	attempt($role, $commands);
	$kept = process();
	isnt($kept, $before, $name);
	return;
}

sql('CREATE ROLE tenant LOGIN');
$kept = process();
is(process(), $kept, 'an executor stays for the next task');

# A role and a database of its own.  With a chance of 1 in 4,095 an object shares its change counter
# with another: then the executor is replaced for nothing, and others are taken.
for my $try (1 .. 3)
{
	sql('DROP DATABASE IF EXISTS elsewhere; DROP ROLE IF EXISTS other; CREATE ROLE other LOGIN');
	sql('CREATE DATABASE elsewhere OWNER other');
	wait_for_schedulers($node, qw(elsewhere postgres));
	attempt('other', 'ALTER ROLE other SET work_mem = 64; ALTER DATABASE elsewhere SET work_mem = 64');
	my $before = $kept;
	$kept = process();
	last if $kept eq $before;
	note "other or elsewhere shares a counter with tenant or postgres: once more ($try)";
}

# Without any right.
subtest 'without the privilege' => sub {
	stays('other', $_, "$_ by a role without the privilege")
	  for 'ALTER ROLE ALL SET work_mem = 64', 'ALTER ROLE tenant SET work_mem = 64',
	  'ALTER DATABASE postgres SET work_mem = 64', 'ALTER ROLE nobody SET work_mem = 64';
	stays('other',
		q{DO $$ BEGIN ALTER ROLE ALL SET work_mem = 64; EXCEPTION WHEN OTHERS THEN END $$},
		'one whose error is caught');
	stays('other', 'ALTER ROLE other SET work_mem = 64', 'one that changes its own settings');
	stays('other', 'ALTER DATABASE elsewhere SET work_mem = 64', 'or those of its database');
	stays('other', "ALTER ROLE $_ IN DATABASE elsewhere SET work_mem = 64", "of $_ in it")
		for qw(ALL other);
	stays('other', join('; ', map { "ALTER ROLE other SET work_mem = $_" } 64 .. 84), 'often');
};

# A change that is rolled back has no effect.
subtest 'rolled back' => sub {
	stays('tenant', 'BEGIN; ALTER ROLE tenant SET work_mem = 64; ROLLBACK',
		'a change that is rolled back');
};

# A committed change has an effect.
subtest 'committed' => sub {
	is_replaced('tenant', 'ALTER ROLE tenant SET work_mem = 64',
		'a role that changes its own settings');
	is_replaced('tenant',
		'BEGIN; SAVEPOINT a; ALTER ROLE tenant SET work_mem = 65; RELEASE a; COMMIT',
		'with a savepoint');
	is_replaced('tenant', 'ALTER ROLE tenant IN DATABASE postgres SET work_mem = 66',
		'in a database');
	is_replaced('postgres', 'ALTER ROLE ALL IN DATABASE postgres SET work_mem = 66',
		'all roles in a database');
	is_replaced('postgres', 'ALTER DATABASE postgres SET work_mem = 67', 'a database');
	is_replaced('postgres', 'ALTER ROLE ALL SET work_mem = 68', 'all roles');
	is_replaced('postgres', "BEGIN; @{[ map { qq{ALTER ROLE other SET work_mem = $_;} } 64 .. 84 ]}"
		  . 'ALTER ROLE tenant SET work_mem = 69; COMMIT', 'the last of many');
};

# Of what a prepared transaction has changed nobody is told, but a reload is enough.
subtest 'prepared' => sub {
	stays('postgres', q{BEGIN; ALTER ROLE tenant SET geqo_effort = 7; PREPARE TRANSACTION 'p'},
		'a change in a prepared transaction');
	attempt('postgres', "COMMIT PREPARED 'p'");
	$kept = process();
	attempt('postgres', 'SELECT pg_reload_conf()');
	# the signal comes some time after the answer
	ok(poll_for(sub { return process() ne $kept }), 'the reload after its commit');
	is(task($node, run_task($node, role => 'tenant', request => 'SHOW geqo_effort'), 'response'),
		'7', 'the setting has effect');
};

# An executor was started for a task that was locked, and then deleted: its first task comes later.
# It has been connected for longer than FIRST_TASK_MS when its settings change: a task that comes
# earlier would run under the old ones.
subtest 'an executor that has run no task yet' => sub {
	my $session = open_session($node, 'postgres');
	my $pid = q{FROM pg_stat_activity WHERE usename = 'late' AND backend_type = 'pg_task executor'};

	sql('CREATE ROLE late LOGIN; ALTER DATABASE postgres SET pg_task.enabled = off');
	wait_until($node, q{SELECT state FROM pg_stat_task_scheduler() WHERE datname = 'postgres'},
		expected => 'disabled');
	my $id = insert_task($node, role => 'late', request => 'SELECT 1');
	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $id FOR UPDATE");
	sql('ALTER DATABASE postgres RESET pg_task.enabled');
	wait_until($node, "SELECT count(*) = 1 $pid AND wait_event_type = 'Extension'");
	sql('SELECT pg_sleep(0.5)');
	$session->query_safe("DELETE FROM task WHERE id = $id; COMMIT");
	$session->quit;
	my $before = sql("SELECT pid $pid");
	sql(q{ALTER ROLE late SET pg_task.timeout = '50 ms'});
	$id = run_task($node, role => 'late', request => 'SELECT pg_sleep(5)');
	is_row($node, $id, { state => 'FAIL', "pid <> $before" => 'true' }, 'it is replaced as well');
};

# A setting of the database that is set for a role has no effect.
subtest 'a setting of the database, set for a role' => sub {
	my $warning = q{WARNING:  "pg_task.enabled" has no effect as a setting of roles}
	  . "\nHINT:  Use ALTER DATABASE ... SET.";

	for my $whom ('ROLE tenant', 'ROLE tenant IN DATABASE postgres', 'ROLE ALL')
	{
		is(notices_of('postgres', "ALTER $whom SET PG_TASK.enabled = off"), $warning, $whom);
		run_task($node, role => 'tenant', request => 'SELECT 1');
		is(notices_of('postgres', "ALTER $whom RESET pg_task.enabled"), '', "$whom: not its end");
	}
	is(notices_of('postgres', "ALTER $_"), '', $_)
	  for q{ROLE tenant SET pg_task.timeout = '1 h'}, q{DATABASE postgres SET pg_task.period = '1 h'},
	  q{ROLE ALL IN DATABASE postgres SET pg_task.period = '1 h'};
};

done_testing();
