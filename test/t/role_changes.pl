# An idle executor does not keep outdated rights of its role: after ALTER ROLE, GRANT or REVOKE the
# next task has the current rights, whoever changed them and in whichever way.  A TAP test because
# it needs executors that stay.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main',
	# with one executor: what has ended may not have been reported yet when the next task comes, and
	# a second executor would run that
	conf => "pg_task.max_executors = 1\nmax_prepared_transactions = 2");

# The state and the outcome of a task of a role, and the process that ran it.
sub run_as
{
	my ($role, $request) = @_;
	my $id = run_task($node, role => $role, request => $request);

	return split /\|/, task($node, $id, q{state, coalesce(sqlstate, response), pid, attempt});
}

sql(q{CREATE ROLE chief SUPERUSER LOGIN; CREATE ROLE plain LOGIN; CREATE ROLE club;
	CREATE ROLE victim SUPERUSER;
	CREATE TABLE secret AS SELECT 'known' AS word; GRANT SELECT ON secret TO club});

my ($become, $super);

# A superuser loses superuser status, in each way that changes the catalog.
subtest 'a role loses SUPERUSER' => sub {
	$become = 'SET SESSION AUTHORIZATION victim; SELECT current_user';
	$super = q{SELECT current_setting('is_superuser')};
	for my $change (
		'ALTER ROLE chief NOSUPERUSER',
		q{UPDATE pg_authid SET rolsuper = false WHERE rolname = 'chief'},
		q{BEGIN; ALTER ROLE chief NOSUPERUSER; PREPARE TRANSACTION 'later'})
	{
		sql('ALTER ROLE chief SUPERUSER');
		my ($state, $found, $before) = run_as('chief', $super);
		is("$state $found", 'DONE on', 'a superuser');
		is(join(' ', (run_as('chief', $super))[ 0, 2 ]), "DONE $before", 'the executor stays');
		sql($change);
		sql(q{COMMIT PREPARED 'later'}) if $change =~ /PREPARE/;
		my @after = run_as('chief', $become);
		is("@after[0, 1]", 'FAIL 42501', "$change: it cannot become another role");
		is($after[3], 1, "$change: the attempt counts once");
		isnt($after[2], $before, "$change: another process");
		is((run_as('chief', $super))[1], 'off', "$change: it is no superuser");
	}
};

# The other way round: a role that becomes a superuser is one.
subtest 'a role gains SUPERUSER' => sub {
	my ($state, undef, $before) = run_as('plain', $super);
	sql('ALTER ROLE plain SUPERUSER');
	is(join(' ', (run_as('plain', $super))[ 0, 1 ]), 'DONE on', 'a new superuser');
	sql('ALTER ROLE plain NOSUPERUSER');
	is(join(' ', (run_as('plain', $super))[ 0, 1 ]), 'DONE off', 'the role is no superuser');
};

# Tasks that were assigned to the executor before the change: none of them begins after it.
subtest 'tasks that were claimed before the change' => sub {
	make_gates($node);
	sql('ALTER ROLE chief SUPERUSER');
	my $holds = insert_task($node, role => 'chief', request => q{SELECT hold('line')});
	wait_for_state($node, $holds, 'WORK');
	sql('ALTER ROLE chief NOSUPERUSER');
	my @line = map { insert_task($node, role => 'chief', request => $become) } 1 .. 3;
	open_gate($node, 'line');
	wait_for_state($node, $_, 'FAIL') for @line;
	is(count_of($node, "id IN (@{[join ',', @line]}) AND sqlstate = '42501' AND attempt = 1"), 3,
		'claimed tasks begin with the rights that the role has then');
};

# Membership is checked again in the same process.
subtest 'membership' => sub {
	my $peek = 'SELECT word FROM secret';
	my (undef, undef, $before) = run_as('plain', 'SELECT 1');
	is((run_as('plain', $peek))[1], '42501', 'without membership: no privilege');
	sql('GRANT club TO plain');
	is(join(' ', (run_as('plain', $peek))[ 1, 2 ]), "known $before", 'GRANT: a privilege, at once');
	is((run_as('plain', "SET ROLE club; $peek"))[0], 'DONE', 'GRANT: SET ROLE');
	sql('REVOKE club FROM plain');
	is(join(' ', (run_as('plain', $peek))[ 1, 2 ]), "42501 $before",
		'REVOKE: no privilege, at once');
	is(join(' ', (run_as('plain', 'SET ROLE club'))[ 1, 2 ]), "42501 $before",
		'REVOKE: no SET ROLE');
};

# And so are all other privileges.
subtest 'privileges' => sub {
	sql(q{CREATE TABLE guarded AS SELECT 'seen' AS word;
		ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
		GRANT SELECT ON guarded TO plain; ALTER ROLE plain BYPASSRLS});
	is((run_as('plain', 'SELECT count(*) FROM guarded'))[1], 1, 'BYPASSRLS');
	sql('ALTER ROLE plain NOBYPASSRLS');
	is((run_as('plain', 'SELECT count(*) FROM guarded'))[1], 0, 'NOBYPASSRLS');
};

# A changed password, which every role may change for itself, does not end the process; nor does a
# change of another role.
subtest 'changes that replace no process' => sub {
	my (undef, undef, $before) = run_as('plain', 'SELECT 1');
	sql(q{ALTER ROLE plain PASSWORD 'x' VALID UNTIL 'tomorrow'; ALTER ROLE victim NOSUPERUSER});
	is((run_as('plain', 'SELECT 1'))[2], $before, 'the process stays');
};

# The session shows the current name, too.
subtest 'the session shows the new name' => sub {
	sql('ALTER ROLE plain RENAME TO renamed');
	is((run_as('renamed', 'SHOW session_authorization'))[1], 'renamed',
		'the session shows the new name');
};

# Another role with the name of a dropped one has its own process.
subtest 'a dropped role' => sub {
	my (undef, undef, $before) = run_as('renamed', 'SELECT 1');
	sql('DROP OWNED BY renamed; DROP ROLE renamed; CREATE ROLE renamed LOGIN');
	my ($done, $oid, $pid) = run_as('renamed', 'SELECT current_user::regrole::oid');
	is("$done $oid", 'DONE ' . sql(q{SELECT 'renamed'::regrole::oid}), 'the new role is the user');
	isnt($pid, $before, 'the new role has a process of its own');
};

# A setting of the role may change the current user from the start: tasks still run.
subtest 'a setting of "role"' => sub {
	sql(q{CREATE ROLE boss LOGIN SUPERUSER; CREATE ROLE helper LOGIN; GRANT boss TO helper;
		ALTER ROLE boss SET role = 'renamed'; ALTER ROLE helper SET role = 'boss'});
	my $user = 'SELECT session_user, current_user';
	like((run_as('boss', $user))[1], qr/^boss\trenamed$/m, 'a superuser with a setting of "role"');
	like((run_as('helper', $user))[1], qr/^helper\tboss$/m, 'a role that is made a superuser');
};

done_testing();
