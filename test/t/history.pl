# How long finished rows stay: by the column keep, and by the settings of roles and databases.  The
# scheduler removes them in small batches, beside the tasks, and leaves what is locked, refused,
# waiting or running.  A TAP test because it restarts schedulers and reads the log.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# after a walk the scheduler rests for 60 periods: a quarter of a second
my $node = new_node('history', conf => "pg_task.period = '4 ms'\npg_task.idle_timeout = '300 ms'
	autovacuum = off");

sql(q{CREATE ROLE app LOGIN; CREATE ROLE other LOGIN;
	GRANT INSERT, SELECT, UPDATE ON task TO app, other});
make_gates($node);

# Here a claim needs the statement.
sql('CREATE DATABASE checked');

# A row that ended an hour ago.
sub old_row
{
	my (%column) = @_;

	return insert_task($node, request => 'SELECT 1', state => 'DONE', dt => '-infinity',
		stop => sql(q{SELECT now() - interval '1 hour'}), %column);
}

sub wait_until_gone
{
	my (@ids) = @_;

	# after a slice that the machine has held up the walk pauses for ten seconds
	wait_until($node, 'SELECT count(*) FROM task WHERE id IN (' . join(', ', @ids) . ')',
		expected => 0, seconds => 180);
	return;
}

# Waits until a whole walk has passed: a row behind all others is gone.
sub wait_for_walk
{
	wait_until_gone(old_row(keep => '0'));
	wait_until_gone(old_row(keep => '0'));
}

sub is_there
{
	my ($what, @ids) = @_;

	is(count_of($node, 'id IN (' . join(', ', @ids) . ')'), scalar @ids, $what);
}

sub pause { sql("SELECT pg_sleep($_[0])") }

# A batch that takes a second is cancelled, and the walk pauses for twenty: what comes of it is seen
# at the end.  A reload would begin another walk.
sub begin_slow_walk
{
	sql('CREATE DATABASE slow');
	wait_for_table($node, db => 'slow');
	sql_in('slow', q{CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF OLD.queue = 'slow' THEN PERFORM pg_sleep(3); END IF;
			RETURN OLD;
		END $$;
		CREATE TRIGGER sleep BEFORE DELETE ON task FOR EACH ROW EXECUTE FUNCTION sleep();
		INSERT INTO task (queue, request, state, dt, stop, keep)
			SELECT queue, 'SELECT 1', 'DONE', '2024-01-01', '2024-01-01', '0'
			FROM unnest('{before,slow}'::text[]) AS queue});
}

subtest 'not in use' => sub {
	my $id = old_row();
	my $reads = q{SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables
		WHERE relname = 'task'};

	run_task($node, request => 'SELECT 1');
	wait_for_backends($node, 'executor', 0);
	sql('CHECKPOINT');
	# statistics are written each second, or later if the machine is busy
	my $stays = sub {
		my ($query) = @_;

		return poll_for(sub {
			my $before = sql($query);

			pause(1.2);
			return sql($query) eq $before;
		});
	};
	ok($stays->('SELECT pg_current_wal_insert_lsn()'), 'nothing is written');
	ok($stays->($reads), 'no row is read');
	is_there('the row stays', $id);
	sql('TRUNCATE task');
};

# The walk rests for ever, unless the claim tells of the column.
subtest 'tasks that are claimed' => sub {
	wait_until_gone(insert_task($node, request => 'SELECT 1', keep => '1 ms'));
	ok(1, 'go when they have been kept');

	wait_for_table($node, db => 'checked');
	sql_in('checked', 'ALTER TABLE task ADD CHECK (attempt >= 0)');
	make_gates($node, db => 'checked');
	my $id = insert_task($node, db => 'checked', request => q{SELECT hold('flow')}, keep => '0',
		flow => 'whole');
	wait_for_running($node, 1, db => 'checked', id => $id);
	# a walk finds nothing to remove
	pause(1);
	open_gate($node, 'flow', db => 'checked');
	wait_until($node, 'SELECT NOT EXISTS (SELECT FROM task)', db => 'checked', seconds => 180);
	ok(1, '... and when their flow has ended');
};

subtest 'by the column' => sub {
	my %old = map { $_ => old_row(keep => '1 minute', state => $_) } qw(DONE STOP FAIL GONE);
	my %young = map { $_ => old_row(keep => '1 day', state => $_) } qw(DONE STOP FAIL GONE);
	my $done = insert_task($node, request => 'SELECT 1', keep => '0');
	my $failed = insert_task($node, request => 'SELECT 1/0', keep => '0');
	my $waits = insert_task($node, request => 'SELECT 1', keep => '0', dt => 'infinity');
	my $runs = insert_task($node, request => q{SELECT hold('column')}, keep => '0');
	my $again = insert_task($node, request => 'SELECT 1/0', keep => '0', retry => 9,
		delay => '1 hour');
	my $stopped = insert_task($node, request => 'SELECT 1', dt => '2024-01-01', keep => '0',
		state => 'STOP');
	my $later = insert_task($node, request => 'SELECT 1', dt => '2124-01-01', keep => '0',
		state => 'STOP');
	# it ends when it is stopped
	my $replanned = old_row(keep => '30 minutes', state => 'PLAN', dt => '2124-01-01');
	sql("UPDATE task SET state = 'STOP' WHERE id = $replanned");

	wait_until_gone(values %old, $done, $stopped);
	wait_for_walk();
	is_there('0 says nothing of a failure', $failed);
	is_there('what is younger stays', values %young);
	is_there('what waits stays', $waits, $again);
	is_there('what runs stays', $runs);
	is_there('what was stopped before its time stays until then', $later, $replanned);
	open_gate($node, 'column');
	wait_until_gone($runs);
	is(sqlstate_of('app', q{INSERT INTO task (request, keep) VALUES ('SELECT 1', '-1 s')}),
		'23514', 'a negative time is refused');
	wait_until_gone(old_row(keep => '0', id => -5), old_row(keep => '0', id => 0));
	ok(1, 'negative ids, too');
	my $endless = old_row(keep => '178000000 years');
	wait_for_walk();
	is_there('a time beyond all times is for ever', $endless);
	sql("UPDATE task SET keep = '0' WHERE id = $endless");
	wait_until_gone($endless);
	sql('DELETE FROM task');
};

# A row that ends makes the walk come back, so the rows of the flow are looked at again.
subtest 'until the whole flow has ended' => sub {
	my $open = insert_task($node, request => 'SELECT 1', flow => 'open', dt => 'infinity');
	my @old = map { old_row(keep => '0', flow => 'open') } 1 .. 3;
	my @ended = map { old_row(keep => '1 min', flow => 'ended', state => $_) }
	  qw(DONE STOP FAIL GONE);
	my $done = run_task($node, request => 'SELECT 1', keep => '0', flow => 'open');
	my @chain = map { old_row(keep => '0', flow => 'chain', cron => '* * * * *') } 1 .. 2;
	my $next = insert_task($node, request => 'SELECT 1', flow => 'chain', cron => '* * * * *',
		dt => 'infinity');

	wait_until_gone(@ended, @chain);
	wait_for_walk();
	is_there('a task waits: the others stay', @old, $done);
	sql("UPDATE task SET state = 'STOP' WHERE id = $open");
	wait_for_walk();
	is_there('it may be resumed: they stay', @old, $done, $open, $next);
	sql("DELETE FROM task WHERE id = $open");
	wait_until_gone(@old, $done);
	is_there('of a schedule there is always one', $next);
	sql('DELETE FROM task');
};

# Their own time is over, that of failures is not.
subtest 'while the flow can be mended' => sub {
	my %of = map {
		my ($flow, @states) = split;
		($flow => [ map { old_row(flow => $flow, state => $_, $_ eq 'GONE' ? (sqlstate => 'TK005') : ()) }
			@states ])
	} 'well DONE DONE', 'stopped DONE STOP STOP', 'failed DONE FAIL GONE', 'other DONE';
	my $unneeded = old_row(flow => 'well', state => 'GONE', rule => 'failed');
	my $older = old_row(flow => 'failed', stop => '2024-01-01');
	my @repeats = map { old_row(flow => 'repeats', repeat => '1 day', state => $_) } qw(DONE FAIL);

	sql(q{ALTER DATABASE postgres SET pg_task.keep = '10 min';
		ALTER DATABASE postgres SET pg_task.keep_failed = '2 h'});
	wait_until_gone(@{ $of{well} }, @{ $of{other} }, $repeats[0]);
	wait_for_walk();
	is_there('those of workflows that can go on', @{ $of{stopped} }, @{ $of{failed} }, $older,
		$repeats[1]);
	is(sql("SELECT pg_task_resume_flow('stopped')"), 2, 'as one does');
	wait_until_gone(@{ $of{stopped} }[0]);
	ok(1, 'and then it goes');
	sql("ALTER DATABASE postgres SET pg_task.keep_failed = '30 min'");
	wait_until_gone(@{ $of{failed} }, $older);
	ok(1, 'the others when the time of failures is over');
	sql('ALTER DATABASE postgres RESET ALL; DELETE FROM task');
};

# What others wait for as well is asked how it ended, when they are judged.
subtest 'while a task waits for it and for others' => sub {
	my $failed = old_row(state => 'FAIL');
	my $later = insert_task($node, request => 'SELECT 1', hold => 'later');
	my %waits = map { $_ => insert_task($node, request => 'SELECT 1', after => "{$failed,$later}",
		rule => $_) } qw(any failed ended);

	sql("UPDATE task SET keep = '1 s' WHERE id = $failed");
	wait_for_walk();
	is_there('the failure', $failed);
	is(count_of($node, "state = 'PLAN' AND id IN (" . join(', ', values %waits) . ')'), 3,
		'nothing has started for its removal');
	sql("SELECT pg_task_resume($later)");
	wait_for_state($node, $waits{$_}, 'DONE') for sort keys %waits;
	wait_until_gone($failed);
};

subtest 'by settings' => sub {
	sql(q{ALTER ROLE app SET pg_task.keep = '1 min'; ALTER DATABASE postgres SET
		pg_task.keep_failed = '10 min'; ALTER ROLE other SET pg_task.keep_failed = -1});
	my @go = (old_row(role => 'app'), old_row(role => 'app', state => 'STOP'),
		old_row(role => 'app', state => 'FAIL'), old_row(state => 'GONE'));
	my @stay = (old_row(), old_row(role => 'other', state => 'FAIL'), old_row(role => 'other'),
		old_row(role => 'app', keep => '1 day'));

	wait_until_gone(@go);
	wait_for_walk();
	is_there('of each role as its settings say', @stay);
	my $oldest = old_row(stop => '2024-01-01');
	sql(q{BEGIN; ALTER ROLE app RESET ALL; ALTER ROLE other RESET ALL;
		ALTER DATABASE postgres SET pg_task.keep = '2 h';
		ALTER DATABASE postgres RESET pg_task.keep_failed; COMMIT});
	wait_until_gone($oldest);
	is_there('others stay', @stay);
	sql(q{CREATE ROLE auditor; ALTER ROLE auditor SET pg_task.keep = -1});
	my $dropped = old_row(role => 'auditor', stop => '2024-01-01');
	wait_for_walk();
	is_there('also longer than the database says', $dropped);
	sql('DROP ROLE auditor');
	wait_until_gone($dropped);
	ok(1, 'the settings of a dropped role do not count');
	sql(q{ALTER DATABASE postgres RESET ALL; DELETE FROM task});
	my $by_file = old_row();
	set_conf($node, 'pg_task.keep = 1800');
	wait_until_gone($by_file);
	ok(1, 'by the configuration file');
	apply_conf($node, 'pg_task.keep = -1');
	begin_slow_walk();
};

subtest 'a tenant decides for its own rows only' => sub {
	my ($own, $others) = (old_row(role => 'app'), old_row(role => 'other'));

	sql('ALTER ROLE app SET pg_task.keep = 0');
	wait_until_gone($own);
	wait_for_walk();
	is_there(q{another role's row stays}, $others);
	sql('ALTER ROLE app RESET ALL; DELETE FROM task');
};

subtest 'a row that is locked' => sub {
	my ($locked, $free) = (old_row(role => 'app'), old_row(role => 'app'));
	my $session = open_session($node, 'postgres');

	$session->query_safe("BEGIN; SELECT FROM task WHERE id = $locked FOR KEY SHARE");
	sql('ALTER ROLE app SET pg_task.keep = 0');
	wait_until_gone($free);
	wait_for_walk();
	is_there('stays', $locked);
	$session->query_safe("UPDATE task SET state = 'PLAN', dt = 'infinity' WHERE id = $locked;
		COMMIT");
	wait_for_walk();
	is_there('planned again, it stays', $locked);
	sql("UPDATE task SET state = 'STOP', dt = '2024-01-01' WHERE id = $locked");
	wait_until_gone($locked);
	$session->quit;
	sql('ALTER ROLE app RESET ALL; DELETE FROM task');
};

subtest 'an owner who refuses' => sub {
	my $position = log_position($node);

	sql(q{CREATE TABLE letter (task bigint REFERENCES task (id));
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF OLD.queue = 'kept' THEN RAISE 'this task is kept'; END IF;
			IF OLD.queue = 'left' THEN RETURN NULL; END IF;
			RETURN OLD;
		END $$;
		CREATE TRIGGER refuse BEFORE DELETE ON task FOR EACH ROW EXECUTE FUNCTION refuse()});
	my @refused = map { old_row(queue => $_) } qw(kept left);
	my $referenced = old_row();
	sql("INSERT INTO letter VALUES ($referenced)");
	sql(q{INSERT INTO task (request, state, dt, stop) SELECT 'SELECT 1', 'DONE',
		'2024-01-01', '2024-01-01' FROM generate_series(1, 300)});
	push @refused, $referenced, old_row(queue => 'kept');
	my $last = old_row();
	sql(q{UPDATE task SET keep = '0'});
	wait_until($node, 'SELECT count(*) = ' . @refused . ' FROM task', expected => 't');
	ok(1, 'holds up no other row');
	is_there('has these rows', @refused);
	run_task($node, request => 'SELECT 1');
	pause(1.5);
	my $log = log_since($node, $position);
	is(() = $log =~ /ERROR: .*this task is kept/g, 1, 'a refusal is logged once');
	is(() = $log =~ /ERROR: .*violates foreign key/g, 1, 'a reference, too');
	sql('DROP TRIGGER refuse ON task; DROP TABLE letter');
	wait_until_gone(@refused);
	ok(1, 'when it is over, they go');
	sql('DELETE FROM task');
};

subtest 'a single row is refused' => sub {
	sql(q{CREATE FUNCTION refuse_all() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO refusal VALUES (OLD.id); RETURN OLD; END $$;
		CREATE TRIGGER refuse BEFORE DELETE ON task FOR EACH ROW EXECUTE FUNCTION refuse_all()});
	my $id = old_row(keep => '0');

	pause(1);
	is_there('it stays', $id);
	# nothing changes the task table
	sql('CREATE TABLE public.refusal (task bigint);
		ALTER FUNCTION refuse_all() SET search_path = public');
	wait_until_gone($id);
	ok(1, 'the next walk tries it again');
	sql('DROP TRIGGER refuse ON task; DROP FUNCTION refuse_all; DROP TABLE refusal');
};

subtest 'tasks that never run' => sub {
	sql('CREATE ROLE dropped LOGIN; CREATE ROLE locked NOLOGIN;
		GRANT INSERT, SELECT ON task TO dropped');
	wait_for_walk();
	pause(1);
	my @unstarted = (
		insert_task($node, request => 'SELECT 1', dt => '2024-01-01', active => '1 minute',
			keep => '1 ms'),
		insert_task($node, request => 'SELECT 1', dt => 'now', active => '1 ms', keep => '1 ms',
			queue => 'none', max => 0));
	wait_until_gone(@unstarted);
	ok(1, 'expired');
	pause(1);
	wait_until_gone(insert_task($node, request => 'SELECT 1', role => 'locked', keep => '1 ms'));
	ok(1, 'refused');
	pause(1);
	my $id = insert_task($node, request => 'SELECT 1', role => 'dropped', keep => '1 ms',
		dt => 'infinity');
	sql('DROP OWNED BY dropped; DROP ROLE dropped; DROP ROLE locked');
	wait_until_gone($id);
	ok(1, 'its role was dropped');
};

subtest 'a row is changed while its table is locked' => sub {
	my $id = old_row();
	my $session = open_session($node, 'postgres');

	pause(1);
	$session->query_safe("BEGIN; LOCK TABLE task; SELECT pg_sleep(1);
		UPDATE task SET keep = '0' WHERE id = $id; COMMIT");
	$session->quit;
	wait_until_gone($id);
	ok(1, 'it goes');
};

# Nothing interrupts the server while it waits for a program to end.
subtest 'a stopped task that still runs' => sub {
	my $file = $node->basedir . '/program';
	my $id = insert_task($node, keep => '0', request => qq{COPY (SELECT 1) TO PROGRAM 'trap "" INT;
		touch $file.begun; for i in \$(seq 3000); do test -e $file.ends && break; sleep 0.1; done'});

	poll_for(sub { -e "$file.begun" });
	sql("UPDATE task SET state = 'STOP' WHERE id = $id");
	wait_for_walk();
	is_there('stays', $id);
	append_to_file("$file.ends", 'now');
	wait_until_gone($id);
	ok(1, 'and goes when the run has ended');
};

subtest 'roles with very many zones' => sub {
	sql(q{DO $$ BEGIN FOR i IN 1..2000 LOOP
		EXECUTE format('CREATE ROLE zone%s', i);
		EXECUTE format('ALTER ROLE zone%s SET TimeZone = %L', i,
			format('%s%s:%s', chr(65 + i % 26), i / 26 % 12, i / 312));
		END LOOP; END $$});
	my $id = old_row(keep => '0');
	wait_until_gone($id);
	my ($scheduler) = backends($node, 'scheduler');
	sql('ALTER ROLE app SET pg_task.keep = 0');
	wait_until_gone(old_row(role => 'app'));
	is((backends($node, 'scheduler'))[0], $scheduler, 'the scheduler does not load them');
	sql(q{ALTER ROLE app RESET ALL;
		DO $$ BEGIN FOR i IN 1..2000 LOOP EXECUTE format('DROP ROLE zone%s', i); END LOOP; END $$});
};

subtest 'ids far apart' => sub {
	sql(q{INSERT INTO task (id, request, state, dt, stop, keep)
		SELECT i * 2::bigint ^ 50, 'SELECT 1', 'DONE', '2024-01-01', '2024-01-01', '0'
		FROM generate_series(1, 1000) AS i});
	becomes_true(q{SELECT count(*) = 0 FROM task WHERE state = 'DONE' AND keep = '0'},
		'a walk passes over the gaps', seconds => 180);
};

subtest 'repeats keep their chain' => sub {
	my $id = insert_task($node, request => 'SELECT 1', repeat => '200 ms', keep => '0',
		queue => 'chain');

	wait_until_gone($id);
	my $seen = sql(q{SELECT max(id) FROM task WHERE queue = 'chain'});
	wait_until($node, "SELECT max(id) > $seen + 3 FROM task WHERE queue = 'chain'");
	is(count_of($node, q{queue = 'chain' AND state IN ('PLAN', 'WORK')}), 1, 'one run is planned');
	is(sql(q{SELECT DISTINCT keep FROM task WHERE queue = 'chain'}), '00:00:00',
		'each inherits the time');
	# a run that ends meanwhile plans another
	wait_until($node, q{WITH gone AS (DELETE FROM task RETURNING id)
		SELECT NOT EXISTS (SELECT FROM gone)});
};

subtest 'many rows, and a scheduler that is restarted' => sub {
	my ($begin, $tasks) = (time, 0);

	sql(q{INSERT INTO task (request, state, dt, stop, keep) SELECT 'SELECT 1', 'DONE',
		'2024-01-01', '2024-01-01', '1 day' FROM generate_series(1, 30000)});
	for (1 .. 3)
	{
		my ($left, $id) = (count_of($node, q{state = 'DONE' AND keep IS NOT NULL}),
			run_task($node, request => 'SELECT 1'));

		$tasks++;
		cmp_ok(task($node, $id, 'extract(epoch FROM start - dt)'), '<', 60, 'a task starts');
		terminate($node, backends($node, 'scheduler'));
		last if $left == 0;
		wait_until($node, "SELECT count(*) < $left FROM task WHERE keep IS NOT NULL");
	}
	while (my $left = count_of($node, 'keep IS NOT NULL'))
	{
		wait_until($node, "SELECT count(*) < $left FROM task WHERE keep IS NOT NULL");
	}
	note(sprintf 'gone after %.1f s', time - $begin);
	is(count_of($node, q{state = 'DONE'}), $tasks, 'the others stay');
	sql('DELETE FROM task');
};

subtest 'the table is locked against writes' => sub {
	my $id = old_row(keep => '1 hour');
	my $session = open_session($node, 'postgres');
	my $position = log_position($node);

	$session->query_safe('BEGIN; LOCK TABLE task IN SHARE MODE');
	sql('ALTER DATABASE postgres SET pg_task.keep_failed = 0');
	pause(1);
	unlike(log_since($node, $position), qr/lock timeout/, 'the scheduler does not wait for the lock');
	$session->query_safe('COMMIT');
	$session->quit;
	sql("UPDATE task SET keep = '0' WHERE id = $id");
	wait_until_gone($id);
	ok(1, 'and goes on later');
	sql('ALTER DATABASE postgres RESET ALL');
};

# The statements of the manual, one by one: VACUUM takes no transaction block.
subtest 'the history is emptied by hand' => sub {
	my ($block) = grep { $_->{heading} eq 'When the history fills the disk' } blocks_of('repeating.md');
	my $old = sql(q{SELECT now() - interval '2 days'});
	my %row = (request => 'SELECT 1', state => 'DONE', dt => 'infinity', stop => $old);
	my @go = (insert_task($node, %row), insert_task($node, %row, state => 'FAIL'),
		insert_task($node, %row, flow => 'ended', step => 'a'));
	my @stay = (insert_task($node, %row, flow => 'goes on', step => 'a'),
		insert_task($node, request => 'SELECT 1', flow => 'goes on', step => 'b', dt => 'infinity'),
		insert_task($node, request => 'SELECT 1', key => 'nightly', cron => '0 3 1 1 *'),
		run_task($node, request => 'SELECT 1'));

	is_there('there are rows', @go, @stay);
	sql($_) for split /;\n/, $block->{sql};
	is(count_of($node, 'id IN (' . join(', ', @go) . ')'), 0, 'what ended is gone');
	is_there('the others are there', @stay);
	sql('DELETE FROM task');
};

subtest 'a partitioned table is left alone' => sub {
	sql('CREATE DATABASE parts');
	wait_for_table($node, db => 'parts');
	sql_in('parts', q{BEGIN;
		ALTER TABLE task RENAME TO plain;
		CREATE TABLE task (LIKE plain INCLUDING DEFAULTS INCLUDING IDENTITY,
			PRIMARY KEY (id, dt)) PARTITION BY RANGE (dt);
		CREATE TABLE task_all PARTITION OF task DEFAULT;
		COMMIT});
	my $id = run_task($node, db => 'parts', request => 'SELECT 1', keep => '1 ms');
	pause(1);
	is(task($node, $id, 'state', db => 'parts'), 'DONE', 'its rows stay');
};

subtest 'a trigger that is too slow' => sub {
	wait_until($node, q{SELECT string_agg(queue, ' ') = 'slow' FROM task}, db => 'slow');
	ok(1, 'is cancelled, and the other row of its batch goes');
};

done_testing();
