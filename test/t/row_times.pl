# The times that a user's change of the state writes into a row: a task that is stopped while it
# waits has ended then, and one that is planned again is planned for now.  A TAP test because of its
# roles, and because it waits for what the scheduler does with the rows.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => 'track_functions = all');

make_gates($node);
sql('CREATE ROLE app LOGIN; GRANT SELECT, INSERT ON task TO app;
	GRANT UPDATE (state) ON task TO app; ALTER TABLE task ADD COLUMN mine int;
	GRANT UPDATE (mine, stop) ON task TO app');

# Changes the state of a row, and returns an expression over it as RETURNING shows it.
sub set
{
	my ($id, $set, $expression, $user) = @_;

	return sql("UPDATE task SET $set WHERE id = $id RETURNING $expression",
		user => $user // 'postgres');
}

subtest 'stopped while it waited' => sub {
	my $ended = 'stop BETWEEN now() AND clock_timestamp(), start IS NULL';

	for my $dt ('infinity', '2200-01-01')
	{
		my $id = insert_task($node, request => 'SELECT 1', dt => $dt, role => 'app');

		is(set($id, q{state = 'STOP'}, $ended, 'app'), 't|t', "$dt: it has ended");
		is(set($id, q{state = 'PLAN'}, "stop IS NULL, dt = '$dt'", 'app'), 't|t',
			"$dt: and waits again for its time");
		is(set($id, q{state = 'STOP', stop = '2000-01-01'}, $ended, 'app'), 't|t',
			"$dt: no other time can be set");
		is(set($id, q{state = 'PLAN', stop = '2000-01-01'}, 'stop IS NULL', 'app'), 't',
			"$dt: nor while it waits");
		is(error_of('app', "UPDATE task SET stop = now() WHERE id = $id") =~ /may set "stop"/, 1,
			"$dt: nor at all");
	}
	my $id = insert_task($node, request => 'SELECT 1', dt => 'infinity', role => 'app');
	sql_as('app', "SELECT pg_task_cancel($id)");
	is(task($node, $id, 'stop IS NOT NULL'), 't', 'by pg_task_cancel, too');
	is(count_of($node, q{state = 'STOP' AND (stop < now()) IS NOT TRUE}), 0,
		'a DELETE of old rows finds all');
};

subtest 'stopped while it waited for a retry' => sub {
	my $id = insert_task($node, request => 'SELECT 1/0', retry => 1, delay => '1 hour');

	wait_until($node, "SELECT failed = 1 AND state = 'PLAN' FROM task WHERE id = $id");
	my $old = task($node, $id, 'dt, planned, start');
	is(set($id, q{state = 'STOP'}, 'stop >= now(), sqlstate'), 't|22012', 'it has ended now');
	is(set($id, q{state = 'PLAN'}, 'stop IS NOT NULL'), 't', 'it has run');
	is(task($node, $id, 'dt, planned, start'), $old, 'and waits for its retry, as before');
};

subtest 'stopped while it ran' => sub {
	my $id = insert_task($node, request => q{SELECT hold('stop')});

	wait_for_running($node, 1, id => $id);
	is(set($id, q{state = 'STOP'}, 'stop IS NULL'), 't', 'it has not ended yet');
	wait_until($node, "SELECT stop > start FROM task WHERE id = $id");
	pass('and then it has');
};

# Without a new time a row with "active" would expire at once.
subtest 'planned again' => sub {
	my $id = insert_task($node, request => 'SELECT 1', active => '1 hour', dt => '2024-01-01');

	wait_for_state($node, $id, 'GONE');
	is(set($id, q{state = 'PLAN'}, 'dt = now()'), 't', 'GONE: planned for now');
	wait_for_state($node, $id, 'DONE');
	sql("UPDATE task SET dt = '2024-01-01', planned = '2023-01-01' WHERE id = $id");
	is(set($id, q{state = 'PLAN'}, 'dt = now(), planned IS NULL'), 't|t', 'DONE: likewise');
	wait_until($node, "SELECT attempt = 2 AND state = 'DONE' FROM task WHERE id = $id");

	is(set($id, q{state = 'PLAN', dt = '2200-01-01'}, 'dt, planned IS NULL'),
		task($node, $id, 'dt') . '|t', 'a time that is set is kept');
	sql("UPDATE task SET state = 'STOP', dt = '2024-01-01', planned = '2023-01-01' WHERE id = $id");
	is(set($id, q{state = 'PLAN', dt = '2200-01-01'}, 'planned IS NULL'), 't',
		'"active" counts from it');
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	is(set($id, q{state = 'PLAN', planned = '2023-01-01'}, 'planned IS NOT NULL'), 't',
		'"planned" can be set');
	sql("DELETE FROM task WHERE id = $id");

	$id = insert_task($node, request => q{SELECT hold('again')}, dt => '2024-01-01');
	wait_for_running($node, 1, id => $id);
	is(set($id, q{state = 'PLAN'}, 'dt = now()'), 't', 'WORK: the next run is planned for now');
	open_gate($node, 'again');
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'attempt'), 2, 'and has run');
};

# The times of a chain are those of its anchor, or of its cron expression.
subtest 'a chain keeps its times' => sub {
	my %repeats = (repeat => '1 day', cron => '0 0 1 1 *');

	for my $column (sort keys %repeats)
	{
		my $id = insert_task($node, request => 'SELECT 1', state => 'STOP', dt => '2024-01-01',
			$column => $repeats{$column}, queue => $column);

		is(set($id, q{state = 'PLAN'}, q{dt = '2024-01-01'}), 't', "$column: it has its time");
		wait_until($node, "SELECT count(*) = 1 FROM task WHERE parent = $id");
		is(set($id, q{state = 'PLAN'}, 'dt = now()'), 't',
			"$column: a run that has a next one has none");
	}
};

# In replication the rows are copied as they are.
subtest 'a replicated row' => sub {
	my $id = insert_task($node, request => 'SELECT 1', dt => '2024-01-01', state => 'STOP');
	my $replica = q{SET session_replication_role = replica;};

	sql("$replica UPDATE task SET state = 'PLAN', priority = 1, max = 0 WHERE id = $id");
	is(task($node, $id, q{dt = '2024-01-01'}), 't', 'keeps its time');
	sql("$replica UPDATE task SET state = 'STOP' WHERE id = $id");
	is(task($node, $id, 'stop IS NULL'), 't', 'and has none');
};

# The server locks a row for a trigger BEFORE UPDATE, and writes that to the log.  Our own
# statements go without ours, but not without a user's.  One by one: a task that waits behind
# another may be taken back, which locks it, too.
sub lock_records
{
	my ($count) = @_;
	my $from = sql('SELECT pg_current_wal_insert_lsn()');

	sql("INSERT INTO task (queue, max, request) SELECT 'locks', 1, 'SELECT 1'
		FROM generate_series(1, $count)");
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE queue = 'locks' AND state <> 'DONE'});
	return sql(qq{SELECT coalesce(sum(count), 0)
		FROM pg_get_wal_stats('$from', pg_current_wal_flush_lsn(), true)
		WHERE "resource_manager/record_type" = 'Heap/LOCK'}) / $count;
}

subtest 'what it costs a task' => sub {
	sql(q{CREATE EXTENSION pg_walinspect});
	# an UPDATE that finds no room in the page of the row locks it, too
	sql(q{ALTER TABLE task SET (fillfactor = 20); TRUNCATE task});
	cmp_ok(lock_records(200), '<', 1.5, 'one lock for each task: the claim');
	sql(q{
		CREATE FUNCTION count_up() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN NEW.mine := coalesce(NEW.mine, 0) + 1; RETURN NEW; END $$;
		CREATE TRIGGER mine BEFORE UPDATE ON task FOR EACH ROW EXECUTE FUNCTION count_up()});
	my $id = run_task($node, request => 'SELECT 1');
	is(task($node, $id, 'mine'), 2, 'a trigger of the owner is called for both updates');
};

done_testing();
