# Triggers and constraints of users refuse the writes of pg_task to one row: its claim, its
# outcome, its next run, its return to PLAN.  Only that row is affected: other tasks run, no
# process spins, the log stays short, and the row is written when the cause is gone.  A TAP test
# because it ends processes and counts log lines.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main',
	conf => "pg_task.period = '200 ms'\npg_task.max_executors = 4\npg_task.idle_timeout = '300 "
	. "ms'\nmax_worker_processes = 24");

sub shop { return sql_in('shop', @_) }
sub row { return task($node, @_, db => 'shop') }

sql('CREATE DATABASE shop');
wait_for_table($node, db => 'shop');
make_gates($node, db => 'shop');
shop(q{CREATE TABLE effect (what text);
	CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE '%', TG_ARGV[0]; END $$;
	CREATE FUNCTION drop_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$});

# When earlier work is counted: within three seconds or more, there are few transactions in the
# shop.  A process that spins makes a thousand each second.  A busy machine may count earlier work
# late, but only once.
sub nothing_spins
{
	my ($what) = @_;
	my $begin = sql('SELECT clock_timestamp()');
	my $transactions = q{SELECT xact_commit + xact_rollback, extract(epoch FROM clock_timestamp())
		FROM pg_stat_database WHERE datname = 'shop'};

	wait_until($node,
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'shop'
		AND backend_type = 'pg_task executor' AND state = 'idle'});
	wait_until($node, "SELECT clock_timestamp() > timestamptz '$begin' + '1.5 s'");
	my ($rate, $count, $from, $more, $to);
	for (1 .. 3)
	{
		($count, $from) = split /\|/, sql($transactions);
		wait_until($node, "SELECT clock_timestamp() > to_timestamp($from) + '3 s'");
		($more, $to) = split /\|/, sql($transactions);
		$rate = ($more - $count) / ($to - $from);
		last if $rate < 200;
	}
	cmp_ok($rate, '<', 200, "$what: few transactions");
}

# Many other tasks run in both databases, while few attempts are made for the refused one; and the
# log has few lines.
sub others_flow
{
	my ($what, $position) = @_;
	my ($scheduler) = sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_task scheduler'
		AND datname = 'shop'});

	for my $db (qw(shop postgres))
	{
		my $id = run_task($node, db => $db, queue => 'witness', request => 'SELECT 1');
		is(task($node, $id, q{state, start - dt < '30 s'}, db => $db), 'DONE|t',
			"$what: other tasks run in $db");
	}
	shop(q{INSERT INTO task (queue, max, request) SELECT 'witness', 1 + n % 2, 'SELECT 1'
		FROM generate_series(1, 200) AS n});
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE queue = 'witness' AND state <> 'DONE'},
		db => 'shop');
	shop(q{DELETE FROM task WHERE queue = 'witness'});
	nothing_spins($what);
	like(log_since($node, $position), qr/^\tpg_task (?:\d+ of queue|\d+ in database "shop"$)/m,
		"$what: the log says which task");
	my $lines = () = log_since($node, $position) =~ /ERROR:  [^\n]*\Q$what\E/g;
	cmp_ok($lines, '<=', 10, "$what: the log has few lines");
	cmp_ok($lines, '>', 0, "$what: the log has the error");
	is(sql(qq{SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_task scheduler'
		AND datname = 'shop'}),
		$scheduler, "$what: the scheduler is the same");
}

# Creates a row trigger that refuses writes that meet a condition over OLD and NEW, for rows whose
# queue is the name of the case.
sub refuse
{
	my ($what, $operation, $when, $function) = @_;

	$function //= "no('$what')";
	shop(qq{CREATE TRIGGER "$what" BEFORE $operation ON task FOR EACH ROW WHEN (NEW.queue = '$what'
		AND $when) EXECUTE FUNCTION $function});
	return log_position($node);
}
sub allow { return shop(qq{DROP TRIGGER "$_[0]" ON task}) }

# Planned together with many that are not refused, so that they would share a claim.
sub insert_bad
{
	my ($what, $request) = @_;

	return shop(qq{BEGIN; INSERT INTO task (queue, request) SELECT 'witness', 'SELECT 1'
		FROM generate_series(1, 30);
		INSERT INTO task (queue, request) VALUES ('$what', \$r\$INSERT INTO effect VALUES ('$what');
		$request\$r\$) RETURNING id;
		INSERT INTO task (queue, request) SELECT 'witness', 'SELECT 1' FROM generate_series(1, 30);
		COMMIT});
}
sub effects { return shop(qq{SELECT count(*) FROM effect WHERE what = '$_[0]'}) }

# What refuses a claim is removed while that claim runs: the row is not skipped for a minute.
subtest 'the cause goes during a refused claim' => sub {
	shop(q{CREATE FUNCTION refuse_last() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			WHILE NOT EXISTS (SELECT FROM pg_locks WHERE relation = TG_RELID AND NOT granted) LOOP
				PERFORM pg_sleep(0.01);
			END LOOP;
			RAISE 'the last time';
		END $$});
	refuse('late', 'UPDATE', q{NEW.state = 'WORK'}, 'refuse_last()');
	my $id = insert_task($node, db => 'shop', queue => 'late', request => 'SELECT 1');
	wait_until($node, q{SELECT wait_event = 'PgSleep' FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler' AND datname = 'shop'});
	# it waits for the claim, which ends then
	allow('late');
	my $allowed = sql('SELECT clock_timestamp()');
	wait_for_state($node, $id, 'DONE', db => 'shop');
	is(row($id, "start < timestamptz '$allowed' + '40 s'"), 't', 'the task runs');
};

my %bad;

# The claim, refused by a trigger, a constraint, and a deferred trigger.  It stays refused until
# the end of this test.
subtest 'the claim is refused' => sub {
	for my $way ('a trigger', 'a constraint', 'a deferred trigger')
	{
		my $what = "claim refused by $way";
		my $position = log_position($node);

		if ($way eq 'a trigger') { refuse($what, 'UPDATE', q{NEW.state = 'WORK'}) }
		elsif ($way eq 'a constraint') {
			shop(qq{ALTER TABLE task ADD CONSTRAINT "$what" CHECK (queue <> '$what'
				OR state <> 'WORK')}) }
		else { shop(qq{CREATE CONSTRAINT TRIGGER "$what" AFTER UPDATE
			ON task DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
			WHEN (NEW.queue = '$what' AND NEW.state = 'WORK') EXECUTE FUNCTION no('$what')}) }
		$bad{$what} = insert_bad($what, 'SELECT 1');
		wait_for_log_line($node, qr/ERROR:  [^\n]*\Q$what\E/, $position);
		others_flow($what, $position);
		is(row($bad{$what}, 'state, attempt, start IS NULL'), 'PLAN|0|t', "$what: it waits");
	}
};

my %given_up;

# The change to GONE or FAIL: of several tasks that never start, or whose role does not exist, the
# others are changed.
subtest 'GONE and FAIL are refused' => sub {
	%given_up = (
		'expiry is refused' => [ 'GONE', q{queue, max, active}, q{0, interval '0.1 s'} ],
		'role is refused' => [ 'FAIL', q{queue, role}, q{'nobody of that name'} ]);
	for my $what (sort keys %given_up)
	{
		my ($state, $columns, $values) = @{ $given_up{$what} };
		my $position = refuse($what, 'UPDATE', "NEW.state = '$state'");

		shop(qq{INSERT INTO task ($columns, request) SELECT CASE n WHEN 2 THEN '$what'
			ELSE 'not $what'
			END, $values, 'SELECT 1' FROM generate_series(1, 3) AS n});
		wait_for_log_line($node, qr/ERROR:  $what/, $position);
		wait_until($node,
			"SELECT count(*) = 2 FROM task WHERE queue = 'not $what' AND state = '$state'",
			db => 'shop');
		others_flow($what, $position);
		is(shop("SELECT state FROM task WHERE queue = '$what'"), 'PLAN', "$what: it waits");
	}
};

# The outcome: DONE is refused, so the run has failed, and that may be written.
subtest 'DONE is refused' => sub {
	my $position = refuse('DONE is refused', 'UPDATE', q{NEW.state = 'DONE'});
	my $id = insert_bad('DONE is refused', 'SELECT 1');
	wait_for_state($node, $id, 'FAIL', db => 'shop');
	is(row($id, 'sqlstate, error'), 'P0001|DONE is refused',
		'DONE is refused: it failed, and says why');
	others_flow('DONE is refused', $position);
	is(effects('DONE is refused'), 0, 'DONE is refused: no effect');
};

my @outcomes;

# Every outcome is refused, for several tasks.
subtest 'every outcome is refused' => sub {
	my $position = refuse('outcome is refused', 'UPDATE',
		q{NEW.state <> 'WORK' AND OLD.state = 'WORK'});
	@outcomes = map { insert_bad('outcome is refused', $_) } 'SELECT 1', 'SELECT 1', 'SELECT 1/0';
	wait_for_log_line($node, qr/ERROR:  [^\n]*outcome is refused/, $position);
	others_flow('outcome is refused', $position);
	is(effects('outcome is refused'), 0, 'outcome is refused: no effect');
	is(row($_, 'state'), 'WORK', 'outcome is refused: the row is unchanged') for @outcomes;
	is(sql(q{SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_task outcome%'}), 0,
		'outcome is refused: the task does not run');
};

my $repeats;

# The next run of a repeating task is refused: then its outcome cannot be written either.
subtest 'the next run is refused' => sub {
	my $position = refuse('repeat is refused', 'INSERT', 'NEW.parent IS NOT NULL');
	$repeats = shop(q{INSERT INTO task (queue, repeat, request) VALUES ('repeat is refused',
		'1 day',
		'INSERT INTO effect VALUES (''repeat'')') RETURNING id});
	wait_for_log_line($node, qr/ERROR:  [^\n]*repeat is refused/, $position);
	others_flow('repeat is refused', $position);
	is(effects('repeat'), 0, 'repeat is refused: no effect');
};

my @returns;

# The return to PLAN is refused, for a task whose process was ended; others that were ended with it
# are planned again.
subtest 'the return to PLAN is refused' => sub {
	@returns = map { insert_task($node, db => 'shop', queue => $_,
		request => "INSERT INTO effect VALUES ('return of $_'); "
		. "SELECT hold('return')") } 'return is refused', qw(good fine);
	wait_for_running($node, 3, db => 'shop', event => 'PgSleep');
	# not before: the claim is undone of a task that is given to an executor that exits
	my $position = refuse('return is refused', 'UPDATE',
		q{NEW.state = 'PLAN' AND OLD.state = 'WORK'});
	terminate($node, split /\n/, sql('SELECT pid ' . running(db => 'shop')));
	wait_for_log_line($node, qr/ERROR:  [^\n]*return is refused/, $position);
	# one of the three may still be about to end
	wait_until($node, "SELECT bool_and(attempt = 2) FROM task WHERE id IN ($returns[1], $returns[2])",
		db => 'shop');
	wait_for_running($node, 2, db => 'shop', event => 'PgSleep');
	is(row($_, 'state, attempt'), 'WORK|2', 'return is refused: the others run again')
		for @returns[ 1, 2 ];
	is(row($returns[0], 'state, attempt'), 'WORK|1', 'return is refused: the task does not run');
	others_flow('return is refused', $position);
	open_gate($node, 'return', db => 'shop');
	wait_for_state($node, $_, 'DONE', db => 'shop') for @returns[ 1, 2 ];
};

# A trigger that silently skips the writes (returns NULL): no process spins or stops.
subtest 'writes are skipped silently' => sub {
	refuse('dropped', 'UPDATE', q{NEW.state = 'WORK'}, 'drop_it()');
	my $id = insert_bad('dropped', 'SELECT 1');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE queue = 'witness' AND state <> 'DONE'},
		db => 'shop');
	nothing_spins('a claim is dropped');
	is(row($id, 'state, attempt'), 'PLAN|0', 'a claim is skipped silently: the row waits');
	allow('dropped');
	wait_for_state($node, $id, 'DONE', db => 'shop');
	is(effects('dropped'), 1, 'a claim is skipped silently: the task runs when allowed');
};

# When nothing is refused any more, all these rows are written: a change of the table ends the
# pause.
subtest 'nothing is refused any more' => sub {
	allow($_) for sort keys %given_up;
	allow($_) for 'claim refused by a trigger', 'claim refused by a deferred trigger',
		'outcome is refused', 'repeat is refused', 'return is refused';
	shop('ALTER TABLE task DROP CONSTRAINT "claim refused by a constraint"');
	my $all = join ', ', values %bad, @outcomes, $repeats, $returns[0];
	{
		local $PostgreSQL::Test::Utils::timeout_default = 30;
		wait_until($node, "SELECT bool_and(state IN ('DONE', 'FAIL')) FROM task WHERE id IN ($all)",
			db => 'shop');
	}
	wait_until($node, qq{SELECT state = '$given_up{$_}[0]' FROM task WHERE queue = '$_'},
		db => 'shop')
		for sort keys %given_up;
	is(row($bad{$_}, 'state') . effects($_), 'DONE1', "$_: it runs when it may") for sort keys %bad;
	is(effects('outcome is refused'),
		shop(q{SELECT count(*) FROM task WHERE state = 'DONE' AND id IN (} . join(', ', @outcomes)
		. ')'),
		'outcome is refused: only tasks that are DONE have effects');
	is(row($outcomes[2], 'state'), 'FAIL', 'outcome is refused: failed tasks are FAIL');
	is(shop("SELECT count(*) FROM task WHERE parent = $repeats AND state = 'PLAN'"), 1,
		'repeat is refused: the task repeats when allowed');
	is(effects("return of $_"), 1, "return is refused: one effect of $_") for 'return is refused',
		qw(good fine);
	is(row($returns[0], 'state'), 'DONE', 'return is refused: the task ends when allowed');
};

done_testing();
