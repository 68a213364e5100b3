# A task belongs to a role, not to its name: waiting tasks follow a role that is renamed, and fail
# when it is dropped.  Another role that gets the name neither sees nor runs them.  A TAP test
# because it needs several roles and the scheduler.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf =>
	  "pg_task.period = '100 ms'\npg_task.idle_timeout = '1 h'\npg_task.owner_code = on");
make_gates($node);

sub as_role { return insert_task($node, role => shift, @_) }

# Helpers: create a role with all rights on the table; the oid of a role; whether a task is bound
# to it.
sub make_role
{
	sql("CREATE ROLE $_ LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON task TO $_") for @_;
}
sub oid_of { return sql("SELECT oid FROM pg_roles WHERE rolname = '$_[0]'") }
sub bound_to { return task($node, $_[0], 'role_id & 4294967295') }

sub drop_role { sql("DROP OWNED BY $_[0]; DROP ROLE $_[0]") }

my %oid;

# However a row is inserted, it is bound to the role that has its name, and to no other.
subtest 'new rows' => sub {
	make_role(qw(ann bob));
	%oid = map { $_ => oid_of($_) } qw(ann bob);
	my $rows = $node->basedir . '/rows';
	my $key = as_role('ann', dt => 'infinity', request => 'SELECT 1', key => 'k');
	my @in = (
		sql_as('ann',
			q{INSERT INTO task (dt, request) VALUES ('infinity', 'SELECT 1') RETURNING id}),
		sql_as('ann', qq{INSERT INTO task (role_id, dt, request)
			SELECT role_id / abs(role_id) * $oid{bob}, 'infinity', 'SELECT 1' FROM task
			RETURNING id}),
		sql(q{INSERT INTO task (role_id, role, dt, request)
			SELECT NULL, 'ann', 'infinity', 'SELECT 1' RETURNING id}),
		sql(q{SET session_replication_role = replica; INSERT INTO task (role, role_id, dt, request)
			VALUES ('ann', 5, 'infinity', 'SELECT 1') RETURNING id}),
		sql(q{INSERT INTO task (role, dt, request, key) VALUES ('ann', 'infinity', 'SELECT 1', 'k')
			ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
			DO UPDATE SET priority = 1 RETURNING id}));
	is($in[-1], $key, 'ON CONFLICT has found its row');
	is(bound_to($_), $oid{ann}, 'a new row is bound to the role of its name')
	  for map { split /\n/ } @in;
	sql(qq{COPY (SELECT r, 7, 'infinity', 'SELECT 1', 'copied' FROM unnest('{ann,bob}'::name[])
		AS r)
		TO '$rows'; COPY task (role, role_id, dt, request, queue) FROM '$rows'});
	is(sql(q{SELECT string_agg(role || ' ' || (role_id & 4294967295), ',' ORDER BY role)
		FROM task WHERE queue = 'copied'}), "ann $oid{ann},bob $oid{bob}",
		'a row written by COPY is bound');
	like(error_of('ann', "UPDATE task SET role_id = 5 WHERE id = $in[0]"),
		qr/only the owner of the task table may set "role_id"/,
		'a role cannot bind its row to another');
	sql("UPDATE task SET role_id = 5 WHERE id = $in[0]");
	is(bound_to($in[0]), $oid{ann}, 'the owner cannot either');
	sql("UPDATE task SET role = 'bob' WHERE id = $in[0]");
	is(bound_to($in[0]), $oid{bob}, 'the owner can give the row to another role');
	sql(q{CREATE FUNCTION give_away() RETURNS trigger LANGUAGE plpgsql
		AS 'BEGIN NEW.role := ''bob''; RETURN NEW; END';
		CREATE TRIGGER zz BEFORE INSERT ON task FOR EACH ROW EXECUTE FUNCTION give_away()});
	is(bound_to(as_role('ann', dt => 'infinity', request => 'SELECT 1')), $oid{bob},
		'a trigger of the owner can do so');
	sql('DROP TRIGGER zz ON task; DELETE FROM task');
};

# A row that has bypassed our trigger, or comes from another cluster, is bound by name, due or not.
subtest 'rows that bypass the trigger' => sub {
	sql(q{ALTER TABLE task DISABLE TRIGGER ALL;
		INSERT INTO task (role, dt, request, queue, role_id)
		SELECT 'ann', dt, 'SELECT current_user', 'foreign', id
		  FROM unnest(ARRAY[now(), 'infinity']) AS dt, unnest(ARRAY[0, 5, 1234567890123456789])
		AS id;
		INSERT INTO task (role, dt, request, queue)
			VALUES ('nobody_there', 'infinity', 'SELECT 1', 'nobody');
		ALTER TABLE task ENABLE ALWAYS TRIGGER pg_task_planned,
		ENABLE ALWAYS TRIGGER zz_pg_task_bound});
	wait_until($node, qq{SELECT count(*) = 6 FROM task
		WHERE queue = 'foreign' AND role_id & 4294967295 = $oid{ann} AND role_id <> $oid{ann}});
	wait_until($node, q{SELECT count(*) = 3 FROM task
		WHERE queue = 'foreign' AND state = 'DONE' AND response = 'ann'});
	wait_until($node, q{SELECT state = 'FAIL' FROM task WHERE queue = 'nobody'});
	is(sql(q{SELECT sqlstate, error FROM task WHERE queue = 'nobody'}),
		'42704|role "nobody_there" does not exist', 'of no role: FAIL');
	sql('DELETE FROM task');
};

# A role is renamed, and another gets its name: waiting, running and repeating tasks stay with the
# role that planned them.
subtest 'a role is renamed' => sub {
	my $later = as_role('ann', dt => 'infinity', request => 'SELECT current_user, session_user');
	my $done = as_role('ann', request => q{SELECT 'mine'});
	my $retry = as_role('ann', retry => 1, delay => '1 hour',
		request => q{SELECT 1 / (SELECT count(*) FROM gate WHERE name = 'retry')});
	my $runs = as_role('ann', request => q{SELECT hold('rename')}, repeat => '1 day',
		queue => 'chain');
	wait_for_state($node, $done, 'DONE');
	wait_until($node, "SELECT failed = 1 AND state = 'PLAN' FROM task WHERE id = $retry");
	wait_for_running($node, 1, id => $runs, event => 'PgSleep');
	sql('ALTER ROLE ann RENAME TO anna');
	make_role('ann');
	is(sql_as('ann', 'SELECT count(*) FROM task'), 0, 'the new role of the name sees none of them');
	for my $change (q{UPDATE task SET state = 'PLAN'}, 'DELETE FROM task')
	{
		is(sql_as('ann', "$change WHERE id = $_ RETURNING id"), '', "it cannot $change")
		  for $later, $done, $runs;
	}
	is(sql_as('ann', "SELECT pg_task_cancel($later)"), 'f',
		'the new role cannot cancel one of them');
	sql('GRANT USAGE ON SEQUENCE task_id_seq TO ann');
	like(error_of('ann', qq{INSERT INTO task (id, request) VALUES ($done, 'SELECT 1')
		ON CONFLICT (id) DO UPDATE SET request = 'SELECT 2'}), qr/row-level security/,
		'the new role cannot overwrite one of them');
	is(sql_as('anna', 'SELECT count(*) FROM task'), 4, 'the renamed role sees all of its tasks');
	wait_until($node, "SELECT role = 'anna' FROM task WHERE id = $later");
	is(bound_to($later), $oid{ann}, 'a row that is not due has the new name');
	open_gate($node, $_) for qw(rename retry);
	is(sql_as('anna', "UPDATE task SET dt = now() WHERE id IN ($later, $retry) RETURNING 1"),
		"1\n1",
		'the renamed role may change them');
	wait_for_state($node, $_, 'DONE') for $later, $retry, $runs;
	is_row($node, $later, { q{split_part(response, E'\n', 2)} => "anna\tanna" },
		'the task runs as the renamed role');
	wait_until($node, "SELECT role = 'anna' FROM task WHERE parent = $runs");
	is(sql("SELECT role_id & 4294967295, state FROM task WHERE parent = $runs"), "$oid{ann}|PLAN",
		'the next run is bound to it');
	sql('DELETE FROM task');
	drop_role('ann');
};

# A role is dropped: its waiting tasks are FAIL, due or not, and do not repeat; another role that
# gets the name is not affected.
subtest 'a role is dropped' => sub {
	my $later = as_role('anna', dt => 'infinity', repeat => '1 day', request => 'SELECT 1');
	my $done = as_role('anna', request => q{SELECT 'mine'});
	my $runs = as_role('anna', request => q{SELECT hold('drop')}, repeat => '1 day',
		queue => 'chain');
	my $kept = as_role('bob', request => 'SELECT 1', dt => 'infinity');
	wait_for_state($node, $done, 'DONE');
	wait_for_running($node, 1, id => $runs, event => 'PgSleep');
	drop_role('anna');
	make_role('anna');
	my $dropped = 'role "anna" of the task was dropped';
	wait_for_state($node, $later, 'FAIL');
	is_row($node, $later,
		{
			sqlstate => '42704', error => $dropped, response => "ERROR:  $dropped",
			attempt => 0, 'stop IS NOT NULL' => 'true'
		},
		'the row has the error');
	open_gate($node, 'drop');
	wait_for_state($node, $runs, 'DONE');
	wait_until($node, qq{SELECT count(*) = 1 FROM task
		WHERE parent = $runs AND state = 'FAIL' AND sqlstate = '42704'});
	is(count_of($node, 'parent IS NOT NULL'), 1, 'the repeating task ends');
	is(sql_as('anna', 'SELECT count(*) FROM task'), 0, 'the new role of the name sees nothing');
	is(sql_as('anna', "UPDATE task SET state = 'PLAN' WHERE id = $later RETURNING id"), '',
		'the new role plans nothing again');
	sql("UPDATE task SET state = 'PLAN' WHERE id = $done");
	wait_for_state($node, $done, 'FAIL');
	is_row($node, $done, { sqlstate => '42704' }, 'a task that the owner plans again is FAIL');
	sql("UPDATE task SET state = 'PLAN', role_id = 0 WHERE id = $done");
	wait_for_state($node, $done, 'DONE');
	is(bound_to($done), oid_of('anna'), 'a task that the owner gives to the new role runs');
	is_row($node, $kept, { state => 'PLAN' }, 'tasks of other roles still wait');
};

# Very many such rows delay no other role; a locked one is changed when it is unlocked.  A trigger
# plans the task of the other role with the first of these rows, and counts them when it is claimed.
subtest 'many rows of a dropped role' => sub {
	run_task($node, role => 'bob', request => 'SELECT 1');    # an executor of it is there
	sql(q{
		CREATE TABLE crowd (failed int);
		CREATE FUNCTION count_crowd() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.state = 'WORK' THEN
				UPDATE public.crowd SET failed = (SELECT count(*) FROM public.task
					WHERE queue LIKE 'crowd %' AND state = 'FAIL');
			ELSIF NOT EXISTS (SELECT FROM public.crowd) THEN
				INSERT INTO public.crowd VALUES (NULL);
				INSERT INTO public.task (role, queue, request) VALUES ('bob', 'other', 'SELECT 1');
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER count_crowd BEFORE UPDATE ON task FOR EACH ROW
			WHEN (NEW.state = 'WORK' AND NEW.queue = 'other'
				OR NEW.state = 'FAIL' AND NEW.queue LIKE 'crowd %')
			EXECUTE FUNCTION count_crowd()});
	sql(q{INSERT INTO task (role, request, queue, dt)
		SELECT 'anna', 'SELECT 1', 'crowd ' || n % 100, 'infinity' FROM generate_series(1, 10000)
		AS n});
	my $crowd = q{FROM task WHERE queue LIKE 'crowd %'};
	my $locked = sql("SELECT max(id) $crowd");
	my $locker = open_session($node, 'postgres');
	$locker->query_safe("BEGIN; SELECT FROM task WHERE id = $locked FOR UPDATE");
	wait_until($node, 'SELECT busy = 0 FROM pg_stat_task_scheduler()');
	drop_role('anna');
	wait_until($node, "SELECT count(*) = 9999 $crowd AND state = 'FAIL'");
	wait_until($node, q{SELECT state = 'DONE' FROM task WHERE queue = 'other'});
	cmp_ok(sql('SELECT failed FROM crowd'), '<', 9999,
		'another role\'s task is claimed while the many rows are written');
	note(sql('SELECT failed FROM crowd') . ' rows were');
	$locker->query_safe('COMMIT');
	wait_for_state($node, $locked, 'FAIL');
	$locker->quit;
	sql('DROP TRIGGER count_crowd ON task; DELETE FROM task');
};

# In another database, a row belongs to the role that has its name now.
subtest 'a restored row' => sub {
	make_role(qw(gone stays));
	as_role($_, dt => 'infinity', request => 'SELECT current_user') for qw(gone stays);
	my $dump = $node->basedir . '/dump.sql';
	my @server = ('-p', $node->port, '-h', $node->host);
	$node->command_ok([ 'pg_dump', @server, '-f', $dump, 'postgres' ], 'a dump');
	drop_role('gone');
	sql(q{CREATE ROLE gone LOGIN; ALTER ROLE stays RENAME TO stayed; CREATE ROLE stays LOGIN});
	# a template has no scheduler
	sql('CREATE DATABASE restored IS_TEMPLATE true');
	$node->command_ok([ 'psql', '-X', '-q', @server, '-f', $dump, 'restored' ],
		'the row is restored');
	sql('SELECT pg_task_release()', db => 'restored');
	sql('ALTER DATABASE restored IS_TEMPLATE false');
	sql('UPDATE task SET dt = now()', db => 'restored');
	wait_until($node, q{SELECT string_agg(role || ' ' || response, ',' ORDER BY role) FROM task
		WHERE state = 'DONE'}, db => 'restored', expected => 'gone gone,stays stays');
	is(sql(q{SELECT string_agg((role_id & 4294967295)::text, ',' ORDER BY role) FROM task},
			db => 'restored'), join(',', oid_of('gone'), oid_of('stays')), 'bound to those');
};

# A partitioned table.
subtest 'a partitioned table' => sub {
	sql('CREATE DATABASE parts');
	wait_for_table($node, db => 'parts');
	sql_in('parts', q{BEGIN; LOCK TABLE task;
		CREATE TABLE shape (LIKE task INCLUDING DEFAULTS);
		DROP TABLE task;
		CREATE TABLE task (LIKE shape INCLUDING DEFAULTS) PARTITION BY LIST (queue);
		ALTER TABLE task ALTER id ADD GENERATED BY DEFAULT AS IDENTITY, ADD PRIMARY KEY (queue, id);
		CREATE TABLE first PARTITION OF task FOR VALUES IN ('first');
		CREATE TABLE rest PARTITION OF task DEFAULT; COMMIT});
	wait_until($node, q{SELECT count(*) FROM pg_trigger WHERE tgname = 'zz_pg_task_bound'},
		db => 'parts', expected => 3);
	my $moved = as_role('stays', db => 'parts', queue => 'first', dt => 'infinity',
		request => 'SELECT current_user');
	is(task($node, $moved, 'role_id & 4294967295', db => 'parts'), oid_of('stays'),
		'a row of a partition is bound');
	sql('ALTER ROLE stays RENAME TO moved');
	wait_until($node, "SELECT role = 'moved' FROM task WHERE id = $moved", db => 'parts');
	sql_in('parts', "UPDATE task SET queue = 'second', dt = now() WHERE id = $moved");
	wait_for_state($node, $moved, 'DONE', db => 'parts');
	is(task($node, $moved, 'response', db => 'parts'), 'moved',
		'a row of a partition follows its role');
};

done_testing();
