# What a grant on the task table allows: each cell of the table in docs/security.md, for an
# unrelated role, a member, a role with BYPASSRLS, the owner and a superuser.  A TAP test because
# it connects as all of them.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main');
make_gates($node);

sub refused { return like(error_of($_[0], $_[1]), qr/ERROR:  $_[2]/, "$_[0]: $_[1]") }
sub allowed { return is(error_of($_[0], $_[1]), '', "$_[0]: $_[1]") }

sql(q{CREATE ROLE keeper LOGIN; CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN;
	CREATE ROLE boss LOGIN; CREATE ROLE clerk LOGIN NOINHERIT;
	CREATE ROLE blind LOGIN BYPASSRLS; GRANT ann TO boss; GRANT ann TO clerk;
	GRANT ann, bob, boss, clerk, blind TO keeper;
	ALTER TABLE task OWNER TO keeper; GRANT SELECT, INSERT, UPDATE, DELETE ON task
	TO ann, bob, boss, clerk, blind});
# a member that may not SET ROLE: exists from version 16 on
my $has_set = $node->pg_version >= 16;
sql(q{CREATE ROLE heir LOGIN; GRANT ann TO heir WITH SET FALSE; GRANT ALL ON task TO heir})
	if $has_set;

# Everybody's own tasks, waiting and finished.
my %waits = map { $_ => sql_as($_,
	q{INSERT INTO task (request, dt) VALUES ('SELECT 1', 'infinity') RETURNING id}) } qw(ann bob);
my %done = map { $_ => sql_as($_,
	q{INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id}) } qw(ann bob);
wait_for_state($node, $_, 'DONE') for values %done;

my $seen;

# Who sees what.
subtest 'who sees what' => sub {
	$seen = q{SELECT string_agg(DISTINCT role::text, ' ' ORDER BY role::text) FROM task};
	is(sql_as('ann', $seen), 'ann', 'a role sees its own tasks');
	is(sql_as($_, $seen), 'ann', "$_ sees those of the role that it may become") for qw(boss clerk);
	is(sql_as($_, $seen), 'ann bob', "$_ sees all") for qw(keeper postgres blind);
	is(sql_as('heir', $seen), '', 'a member that may not become it sees none') if $has_set;
};

# Nobody changes or deletes rows that they do not see.
subtest 'rows that a role does not see' => sub {
	is(sql_as('bob',
		"UPDATE task SET request = 'SELECT 2', state = 'STOP' WHERE id = $waits{ann} RETURNING id"),
		'',
		'an UPDATE finds no row of another role');
	is(sql_as('bob', "DELETE FROM task WHERE role = 'ann' RETURNING id"), '',
		'a DELETE finds no row of another role');
	sql('GRANT USAGE ON SEQUENCE task_id_seq TO ann, bob');
	refused('bob',
		"INSERT INTO task (id, request) VALUES ($waits{ann}, 'SELECT 2') ON CONFLICT (id) DO "
		. "UPDATE SET request = 'SELECT 2'", '.*row-level security');
	is(task($node, $waits{ann}, 'request, state'), 'SELECT 1|PLAN', 'the row is unchanged');
};

# Who may plan for whom, in every way.
subtest 'who may plan for whom' => sub {
	allowed('boss', "INSERT INTO task (request, role, dt) VALUES ('SELECT 1', 'ann', 'infinity')");
	allowed('keeper',
		"INSERT INTO task (request, role, dt) VALUES ('SELECT 1', 'bob', 'infinity')");
	refused('ann', "INSERT INTO task (request, role) VALUES ('SELECT 1', '$_')",
		'you may not plan tasks of role')
		for qw(bob keeper postgres nobody_there);
	refused('blind', "INSERT INTO task (request, role) VALUES ('SELECT 1', 'postgres')",
		'you may not plan tasks of role');
	refused('heir', "INSERT INTO task (request, role) VALUES ('SELECT 1', 'ann')",
		'you may not plan tasks of role') if $has_set;
	refused('ann', "COPY task (request, role) FROM STDIN;\nSELECT 1\tpostgres\n\\.\n",
		'(you may not plan tasks of role|.*COPY FROM not supported)');
	sql(q{SET ROLE keeper; SET search_path = public});
	sql(q{CREATE VIEW all_tasks AS SELECT * FROM task; ALTER VIEW all_tasks OWNER TO keeper;
		GRANT ALL ON all_tasks TO ann;
		CREATE TABLE wish (sql text, who name); GRANT INSERT ON wish TO ann; ALTER TABLE wish OWNER
		TO keeper;
		CREATE RULE grant_it AS ON INSERT TO wish DO ALSO INSERT INTO task (request, role)
		VALUES (NEW.sql, NEW.who)});
	refused('ann',
		"INSERT INTO all_tasks (id, dt, queue, priority, role, request, state, attempt, drift)
		VALUES (-9001, now(), 'q', 0, 'bob', 'SELECT 1', 'PLAN', 0, true)",
		'you may not plan tasks of role');
	refused('ann', "UPDATE all_tasks SET role = 'ann' WHERE role = 'bob'",
		'only the owner of the task table');
	refused('ann', "INSERT INTO wish VALUES ('SELECT 1', 'bob')", 'you may not plan tasks of role');
};

# Columns that the server writes.
subtest 'columns that the server writes' => sub {
	for my $set (q{pid = 1}, q{attempt = 7}, q{start = now()}, q{stop = now()})
	{
		my ($column, $value) = split / = /, $set;

		refused('ann', "INSERT INTO task (request, $column) VALUES ('SELECT 1', $value)",
			qq{only the owner of the task table may set "$column"});
		refused('ann', "UPDATE task SET $set WHERE id = $waits{ann}",
			qq{only the owner of the task table may set "$column"});
	}
	refused('ann', "UPDATE task SET id = 9002 WHERE id = $waits{ann}",
		'only the owner of the task table may set "id"');
	refused('boss', "UPDATE task SET role = 'boss' WHERE id = $waits{ann}",
		'only the owner of the task table may set "role"');
	for my $state (qw(WORK DONE FAIL GONE))
	{
		refused('ann', "INSERT INTO task (request, state) VALUES ('SELECT 1', '$state')",
			'only the owner of the task table may set "state"');
		refused('ann', "UPDATE task SET state = '$state' WHERE id = $waits{ann}",
			'only the owner of the task table may set "state"');
	}
	my $restored = sql(q{INSERT INTO task (request, role, state) VALUES ('SELECT 1', 'ann', 'DONE')
		RETURNING id});
	allowed('ann', "UPDATE task SET state = state, priority = 1 WHERE id = $restored");
};

# What a role may do to its own tasks: waiting, finished, running.
subtest 'what a role may do to its own tasks' => sub {
	allowed('ann',
		"UPDATE task SET request = 'SELECT 3', priority = 1, queue = 'other', max = 5, timeout = "
		. "'1 min', state = '$_' WHERE id = $waits{ann}")
	  for qw(STOP PLAN);
	allowed('ann', "UPDATE task SET dt = now() WHERE id = $waits{ann}");
	wait_for_state($node, $waits{ann}, 'DONE');
	is(task($node, $waits{ann}, 'response'), '3', 'the changed task runs');
	allowed('ann', "UPDATE task SET state = 'PLAN' WHERE id = $done{ann}");
	wait_until($node, "SELECT attempt = 2 AND state = 'DONE' FROM task WHERE id = $done{ann}");
	sql('CREATE TABLE effect (who name); GRANT INSERT ON effect TO ann');
	my $runs = sql_as('ann',
		q{INSERT INTO task (request)
		VALUES ('INSERT INTO effect VALUES (current_user); SELECT hold(''run'')') RETURNING id});
	wait_for_running($node, 1, id => $runs, event => 'PgSleep');
	allowed('ann', "UPDATE task SET priority = 2 WHERE id = $runs");
	allowed('ann', "UPDATE task SET state = 'STOP' WHERE id = $runs");
	open_gate($node, 'run');
	wait_until($node,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name LIKE '% $runs'");
	is(task($node, $runs, 'state'), 'STOP', 'a running task that is stopped stays STOP');
	is(sql('SELECT count(*) FROM effect'), 0, 'the stopped task has no effect');
	allowed('ann', "DELETE FROM task WHERE id = $runs");
};

# The statements of the manual, for a role that has had more.
subtest 'grants by column' => sub {
	my %sql;

	push @{ $sql{ $_->{heading} } }, $_->{sql} for blocks_of('security.md');
	sql(q{CREATE ROLE tenant_a LOGIN; CREATE ROLE app LOGIN; GRANT tenant_a, app TO keeper;
		GRANT SELECT, INSERT, UPDATE, DELETE ON task TO tenant_a, app});
	allowed('tenant_a', 'BEGIN; LOCK TABLE task IN SHARE MODE');
	sql($_) for @{ $sql{'Grants by column'} };
	refused('tenant_a', "BEGIN; LOCK TABLE task IN $_ MODE", 'permission denied')
	  for 'SHARE', 'ACCESS EXCLUSIVE';
	refused('tenant_a', 'DELETE FROM task', 'permission denied');
	allowed('tenant_a', $_)
	  for q{INSERT INTO task (key, cron, request) VALUES ('mine', '0 3 * * *', 'SELECT 1')},
	  q{SELECT pg_task_hold('mine')}, q{SELECT pg_task_resume('mine')},
	  q{SELECT pg_task_run_now('mine')}, 'SELECT id FROM task FOR UPDATE';
	is(sql_as('tenant_a', q{SELECT pg_task_cancel('mine')}), '1', 'it stops its task');

	sql($_) for @{ $sql{'Audit: who planned what'} };
	allowed('app', q{INSERT INTO task (key, dt, request) VALUES ('own', 'infinity', 'SELECT 1')});
	is(sql(q{SELECT planned_by FROM task WHERE key = 'own'}), 'app', 'who has planned it');
	refused('app', "INSERT INTO task (request, planned_by) VALUES ('SELECT 1', 'ann')",
		'permission denied');
	refused('app', "UPDATE task SET planned_by = 'ann'", 'permission denied');
	refused('app', q{SELECT pg_task_run_now('own')}, 'you may not plan');
	is(sql_as('app', q{SELECT pg_task_cancel('own')}), '1', 'it stops its task');
	sql(q{DELETE FROM task WHERE role IN ('app', 'tenant_a')});
};

# The owner may disable row security, and it stays disabled.
subtest 'row security is disabled' => sub {
	sql('ALTER TABLE task DISABLE ROW LEVEL SECURITY');
	$node->restart;
	wait_for_table($node);
	wait_for_schedulers($node, 'postgres');
	my $last = run_task($node, request => 'SELECT 1');
	is(sql(q{SELECT relrowsecurity FROM pg_class WHERE oid = 'task'::regclass}), 'f',
		'row security stays off');
	is(sql_as('bob', $seen), 'ann bob postgres', 'every role sees all rows');
	refused('bob', "UPDATE task SET state = 'DONE' WHERE id = $last",
		'(only the owner|you may not plan)');
};

done_testing();
