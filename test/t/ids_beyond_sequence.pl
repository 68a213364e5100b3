# A role that has only INSERT cannot use ids that the sequence has not given yet, neither in a
# transaction that it leaves open nor in a statement that does not end.  So no INSERT of another
# role, no next run of a repeating task and no start of a task waits for it.  Nor can it use ids
# that the sequence has given to others.  A TAP test because it needs sessions that stay open.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.max_executors = 3");

# The error of a statement of this role: its SQLSTATE, or an empty string.
sub error_as
{
	my ($role, $statement) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$statement",
		extra_params => [ '-U', $role ]);

	return $err =~ /ERROR:  (\w+)/ ? $1 : $err;
}

# The id that the sequence gives next.
sub next_id { return sql(q{SELECT last_value + 1 FROM task_id_seq}) }

sql(q{
	CREATE ROLE tenant LOGIN; CREATE ROLE other LOGIN; CREATE ROLE deputy LOGIN IN ROLE postgres;
	GRANT SELECT, INSERT, UPDATE ON task TO tenant, other;
	CREATE VIEW mine AS SELECT * FROM task; GRANT INSERT ON mine TO tenant});
my $first = run_task($node, request => 'SELECT 1');

my %ways;

# An id ahead of the sequence is rejected before it is in the index, for each way to write one.
subtest 'ids ahead of the sequence are refused' => sub {
	%ways = (
		'INSERT' => q{INSERT INTO task (id, dt, request) VALUES (%s, 'infinity', 'SELECT 1')},
		'a view' => q{INSERT INTO mine (id, dt, request) VALUES (%s, 'infinity', 'SELECT 1')},
		'ON CONFLICT' => q{INSERT INTO task (id, dt, request) VALUES (%s, 'infinity', 'SELECT 1')
			ON CONFLICT DO NOTHING},
		'an update by ON CONFLICT' => qq{INSERT INTO task (id, dt, request)
			VALUES ($first, 'infinity', 'SELECT 1') ON CONFLICT (id) DO UPDATE SET id = %s},
		'UPDATE' => q{UPDATE task SET id = %s},
	);
	for my $way (sort keys %ways)
	{
		is(error_as('tenant', sprintf($ways{$way}, next_id())), '42501',
			"$way: an id ahead is refused");
	}
	my ($rc, $out, $err) = $node->psql('postgres', sprintf($ways{INSERT}, next_id()),
		extra_params => [ '-U', 'tenant' ]);
	like($err, qr/HINT:  Leave out "id"/, 'the hint names what to do');
};

# The session is the tenant's again when the error is reported: hooks and callbacks run then.
subtest 'an error leaves no other role behind' => sub {
	my $library = build_module('error_user');
	my $tenant = sql(q{SELECT 'tenant'::regrole::oid});
	my $position = log_position($node);

	sql("ALTER ROLE tenant SET session_preload_libraries = '$library'");
	is(error_as('tenant', "INSERT INTO task (id, request) VALUES ($first, 'SELECT 1')"), '42501',
		'a session that has drawn no id may not choose one');
	wait_for_log_line($node, qr/error_user: $tenant of $tenant: you may not choose/, $position);
	unlike(log_since($node, $position), qr/error_user: 10 of/, 'no error of a superuser');
	sql('ALTER ROLE tenant RESET ALL');
};

my $default;

# Harmless ids are accepted: the default, the last id of the session, one behind the sequence from
# those who may draw from it, and any id from the owner.
subtest 'other ids are accepted' => sub {
	$default = q{INSERT INTO task (dt, request) VALUES ('infinity', 'SELECT 1')};
	is(error_as('tenant', $default), '', 'the default');
	is(error_as('tenant', sprintf($ways{$_}, -5)), '42501', "an id behind the sequence: $_")
		for 'INSERT', 'a view', 'ON CONFLICT';
	is(error_as('tenant', "$default;" . sprintf($ways{INSERT}, next_id() - 1)), '42501',
		'nor after the default');
	is(error_as('tenant', "$default;" . sprintf($ways{'ON CONFLICT'}, next_id())), '',
		'the id that it was given last');
	sql('GRANT USAGE ON SEQUENCE task_id_seq TO tenant');
	is(error_as('tenant', sprintf($ways{INSERT}, -5)), '', 'with a right to draw ids, one behind');
	is(error_as('tenant', sprintf($ways{INSERT}, next_id())), '42501', 'but not one ahead');
	is(error_as('deputy', sprintf($ways{INSERT}, next_id() + 1000)), '',
		'a member of the owner, an id ahead');
	sql('COPY task (id, dt, request) FROM STDIN;'
		  . sprintf("\n%s\tinfinity\tSELECT 1\n\\.\n", next_id() + 1001));
	sql('DELETE FROM task WHERE id >= ' . next_id());
};

# A sequence that the owner restarts, and one that counts down.
subtest 'a sequence that is restarted or descends' => sub {
	sql('ALTER SEQUENCE task_id_seq RESTART 500');
	is(error_as('tenant', sprintf($ways{INSERT}, 500)), '42501', 'RESTART: the next id is ahead');
	is(error_as('tenant', $default), '', 'RESTART: the default');
	sql('SELECT setval(\'task_id_seq\', 600)');
	is(error_as('tenant', sprintf($ways{INSERT}, 601)), '42501', 'setval: the next id is ahead');
	is(error_as('tenant', sprintf($ways{INSERT}, 599)), '', 'setval: one behind is not');
};

# An open transaction that tries it: other INSERTs, repeats and starts go on meanwhile.
subtest 'open transactions and statements' => sub {
	my @as_tenant = (on_error_stop => 0, extra_params => [ '-U', 'tenant' ]);
	my $many = q{INSERT INTO task (id, dt, request) SELECT n, 'infinity', 'SELECT 1'
		FROM generate_series(} . next_id() . ', 5000) AS n';
	my $hostile = open_session($node, 'postgres', @as_tenant);
	$hostile->query('BEGIN; SAVEPOINT s');
	$hostile->query($many);
	$hostile->query('ROLLBACK TO s');
	# the same in a statement that does not end, which keeps what it has inserted so far
	my $endless = open_session($node, 'postgres', @as_tenant);
	$endless->query_until(qr/sent/,
		"\\echo sent\n$many WHERE n < 5000 OR pg_sleep(600) IS NOT NULL;\n");
	wait_until($node, q{SELECT count(*) = 0 FROM pg_stat_activity
		WHERE usename = 'tenant' AND state = 'active' AND wait_event IS NULL});
	my $gone = sql(q{SET lock_timeout = '30 s'; INSERT INTO task (queue, repeat, active, max,
		request)
		VALUES ('gone', '1 s', '1 ms', 0, 'SELECT 1') RETURNING id});
	like($gone, qr/^\d+$/, 'an INSERT of another role does not wait');
	sql(q{SET lock_timeout = '30 s'; INSERT INTO task (queue, repeat, request)
		VALUES ('chain', '20 ms', 'SELECT 1')});
	wait_until($node, q{SELECT count(*) >= 3 FROM task WHERE queue = 'chain' AND state = 'DONE'});
	pass('a task repeats');
	wait_until($node, q{SELECT count(*) >= 2 FROM task WHERE queue = 'gone' AND state = 'GONE'});
	pass('one that never starts repeats');
	my $id = run_task($node, queue => 'witness', request => 'SELECT 1');
	is(task($node, $id, 'state'), 'DONE', 'other tasks start');
	$_->quit for $hostile;
	terminate($node, split /\n/, sql(q{SELECT pid FROM pg_stat_activity WHERE usename = 'tenant'}));

	wait_until($node, 'WITH d AS (DELETE FROM task RETURNING 1) SELECT count(*) = 0 FROM d');
};

# A table whose id has a sequence, but is not an identity column.
subtest 'a sequence without an identity column' => sub {
	sql(q{ALTER TABLE task ALTER id DROP IDENTITY; CREATE SEQUENCE own START 9000 OWNED BY task.id;
		ALTER TABLE task ALTER id SET DEFAULT nextval('own'); GRANT USAGE ON SEQUENCE own
		TO tenant});
	is(error_as('tenant', $default), '', 'its own sequence: the default');
	is(error_as('tenant', sprintf($ways{INSERT}, 9001)), '42501', 'its own sequence: an id ahead');
	is(error_as('tenant', sprintf($ways{INSERT}, 8999)), '', 'its own sequence: one behind');
	sql('ALTER SEQUENCE own INCREMENT -1');
	is(error_as('tenant', sprintf($ways{INSERT}, 9002)), '', 'backwards: a larger id is behind');
	is(error_as('tenant', sprintf($ways{INSERT}, 8998)), '42501',
		'backwards: a smaller one is ahead');
};

# The owner of a partitioned table gives it another sequence, while a session that inserts into a
# partition looks for the one that it has.  The session is stopped in between by locks of the
# catalog that it reads twice.
subtest 'the sequence is replaced while it is looked up' => sub {
	sql(q{CREATE TABLE flock (LIKE task INCLUDING DEFAULTS) PARTITION BY RANGE (id);
		CREATE TABLE sheep PARTITION OF flock DEFAULT; GRANT INSERT ON sheep TO tenant;
		CREATE SEQUENCE first OWNED BY flock.id;
		CREATE TRIGGER bound BEFORE INSERT ON flock FOR EACH ROW EXECUTE FUNCTION pg_task_bound()});
	my $insert = q{INSERT INTO sheep (id, request) VALUES (1, 'SELECT 1')};
	my @lockers = map { open_session($node, 'postgres') } 1 .. 2;
	my $session = open_session($node, 'postgres', extra_params => [ '-U', 'tenant' ]);
	# the scheduler may wait, too
	my $pids = join ', ', map { $_->query_safe('SELECT pg_backend_pid()') } @lockers, $session;
	my $waiting = qq{SELECT count(*) FROM pg_locks
		WHERE relation = 'pg_depend'::regclass AND NOT granted AND pid IN ($pids)};
	my $lock = 'BEGIN; LOCK TABLE pg_depend IN ACCESS EXCLUSIVE MODE;';

	$lockers[0]->query($lock);
	$session->query_until(qr/sent/, "\\echo sent\n$insert;\n\\echo inserted\n");
	wait_until($node, $waiting, expected => 1);
	$lockers[1]->query_until(qr/sent/, "\\echo sent\n$lock\n\\echo locked\n");
	wait_until($node, $waiting, expected => 2);
	$lockers[0]->query('COMMIT');
	$lockers[1]->query_until(qr/locked/, '');
	wait_until($node, $waiting, expected => 1);
	$lockers[1]->query(q{DROP SEQUENCE first; CREATE SEQUENCE second OWNED BY flock.id;
		ALTER TABLE ONLY flock ALTER request SET STATISTICS 10; COMMIT});
	$session->query_until(qr/inserted/, '');
	$session->query_until(qr/done/, "DO \$\$ BEGIN $insert;
		EXCEPTION WHEN insufficient_privilege THEN RAISE NOTICE 'refused'; END \$\$;\n\\echo done\n");
	like($session->{stderr}, qr/refused/, 'an id ahead of the new one is refused');
	$_->quit for @lockers, $session;
};

done_testing();
