# A command that needs a database for itself makes the processes of pg_task leave it, but only if
# the command can succeed, and only until it ends.  A command that fails disturbs no process and no
# other session's hold.  A TAP test because it watches processes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => 'max_worker_processes = 24');

# The scheduler of a database.
sub scheduler
{
	my ($db) = @_;

	return sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_task scheduler'
		AND datname = '$db'");
}

sub command
{
	my ($commands) = @_;

	end_sessions($node);
	my ($ret, $out, $err) = $node->psql('postgres', $commands, on_error_stop => 0,
		timeout => $PostgreSQL::Test::Utils::timeout_default);

	return $err;
}

# Runs a command many times in subtransactions, all of which fail.
sub fail_often
{
	my ($command) = @_;

	return qq{DO \$\$ BEGIN FOR i IN 1 .. 40 LOOP
		BEGIN $command; EXCEPTION WHEN OTHERS THEN END; END LOOP; END \$\$};
}

sql("CREATE DATABASE $_") for qw(one two);
wait_for_table($node, db => $_) for qw(one two);

# A command that cannot run in a transaction block disturbs no process when it is in one.
subtest 'a command in a transaction block' => sub {
	my $pid = scheduler('one');
	for my $command ('DROP DATABASE one', 'CREATE DATABASE x TEMPLATE one',
		'ALTER DATABASE one SET TABLESPACE pg_default')
	{
		like(command("BEGIN; $command; COMMIT"), qr/cannot run inside a transaction block/,
			"$command in a transaction block");
		command(fail_often($command));
		is(scheduler('one'), $pid, "$command, where it cannot run: the scheduler stays");
	}
};

# While the transaction of a session with many failed commands is open, others get the holds they
# need.
subtest 'many failed commands in subtransactions' => sub {
	my $session = open_session($node, 'postgres', on_error_stop => 0);
	$session->query("BEGIN; @{[ fail_often('DROP DATABASE one') ]}");
	$session->query(fail_often('ALTER DATABASE one RENAME TO two'));
	is(command('DROP DATABASE two'), '', 'another database can be dropped');
	wait_for_schedulers($node, qw(one postgres));
	pass('and the scheduler of the first is back before that transaction ends');
	$session->query('COMMIT');
	$session->quit;
};

# One session renames many databases in one transaction; another drops one.
subtest 'many databases in one transaction' => sub {
	sql("CREATE DATABASE lots$_") for 1 .. 3;
	my $session = open_session($node, 'postgres');
	$session->query('BEGIN');
	$session->query("ALTER DATABASE lots$_ RENAME TO many$_") for 1 .. 3;
	is(command('DROP DATABASE one'), '', 'while that is open, still');
	$session->query('COMMIT');
	$session->quit;
	wait_for_schedulers($node, qw(postgres many1 many2 many3));
	pass('the schedulers are back');
};

# A rename in a subtransaction that is rolled back holds the database until its transaction ends.
subtest 'a savepoint is rolled back' => sub {
	my $session = open_session($node, 'postgres');
	$session->query('BEGIN; SAVEPOINT a; ALTER DATABASE many1 RENAME TO other; ROLLBACK TO a');
	$session->query('COMMIT');
	$session->quit;
	wait_for_schedulers($node, qw(postgres many1 many2 many3));
	pass('what was rolled back to a savepoint holds nothing for longer than its transaction');
};

# A wait that is cancelled leaves no hold.
subtest 'a cancelled wait' => sub {
	# each time that its scheduler has come back, it may have had to leave before it made the table
	wait_for_table($node, db => 'many1');
	make_gates($node, db => 'many1');
	sql_in('many1', 'CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM public.hold(\'claim\'); RETURN NEW; END $$');
	sql_in('many1', q{CREATE TRIGGER wait BEFORE UPDATE ON task FOR EACH ROW
		WHEN (NEW.state = 'WORK') EXECUTE FUNCTION wait()});
	my $id = insert_task($node, db => 'many1', request => 'SELECT 1');
	wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler' AND datname = 'many1' AND wait_event = 'PgSleep'});
	like(command(q{SET statement_timeout = '300 ms'; DROP DATABASE many1}), qr/statement timeout/,
		'a command that waits for a scheduler is cancelled');
	open_gate($node, 'claim', db => 'many1');
	# if the claim has waited for ten seconds, the row is tried again when the table has changed
	sql_in('many1', 'DROP TRIGGER wait ON task');
	wait_for_state($node, $id, 'DONE', db => 'many1');
	pass('and the database goes on');
};

done_testing();
