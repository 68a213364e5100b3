# Whatever ends a task, its row says when: DONE, FAIL, STOP and GONE imply a "stop".  A run that a
# user has stopped says that, too, and is counted and logged, also if the run fails at that moment,
# or its process or the server ends.  A TAP test because it ends processes and servers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

# With a period of an hour, no periodic look finds what was not reported.
my $node = new_node('main',
	conf => "pg_task.period = '1 h'\npg_task.max_executors = 4\npg_task.log = 'ends'");

make_gates($node);
sql(q{
	CREATE PROCEDURE commit_and_hold(gate text) LANGUAGE plpgsql AS $$
	BEGIN COMMIT; PERFORM hold(gate); END $$;
	CREATE FUNCTION deaf(gate text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		LOOP
			BEGIN PERFORM hold(gate); RETURN;
			EXCEPTION WHEN query_canceled THEN NULL; END;
		END LOOP;
	END $$});

my $session = open_session($node, 'postgres');
my $gates = 0;

# A task that runs, its gate and its process.
sub start_task
{
	my ($request, %column) = @_;
	my $gate = 'gate' . ++$gates;
	my $id = insert_task($node, request => sprintf($request, $gate), %column);

	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	return ($id, $gate, sql('SELECT pid ' . running(id => $id)));
}

# No row is in a final state without a time.  Those that an executor or the scheduler is about to
# write come to have it.
sub all_have_ended
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	becomes_true(q{SELECT count(*) = 0 FROM task
		WHERE state IN ('DONE', 'FAIL', 'STOP', 'GONE') AND stop IS NULL},
			"$name: every end has a time");
	return;
}

# The row of a run that was stopped.
sub is_stopped
{
	my ($id, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	becomes_true(qq{SELECT state = 'STOP' AND stop >= start AND sqlstate = 'TK002'
		AND error = 'canceling task due to user request'
		AND response = 'ERROR:  canceling task due to user request' AND failed = 0
		FROM task WHERE id = $id}, "$name: the row says that the run was stopped")
	  or diag(task($node, $id, '*'));
	return;
}

my $stop = q{UPDATE task SET state = 'STOP' WHERE id = };

# What happens to a run whose STOP commits just then.
my %meanwhile = (
	'the run fails' => [ q{SELECT hold('%s'); SELECT 1/0}, sub { } ],
	'the run succeeds' => [ q{SELECT hold('%s')}, sub { } ],
	'its process is terminated' => [ q{SELECT hold('%s')}, sub { terminate($node, $_[0]) } ],
	'a failed run is terminated' => [ q{SELECT hold('%s'); SELECT 1/0},
		sub { terminate($node, $_[0]) } ],
	'the run is cancelled' => [ q{SELECT hold('%s')},
		sub { sql("SELECT pg_cancel_backend($_[0])") } ],
	'the run has committed' => [ q{CALL commit_and_hold('%s')}, sub { } ],
	'a run that has committed is terminated' => [ q{CALL commit_and_hold('%s')},
		sub { terminate($node, $_[0]) } ]);

for my $name (sort keys %meanwhile)
{
	my ($request, $end) = @{ $meanwhile{$name} };
	my $position = log_position($node);
	my ($id, $gate, $pid) = start_task($request, queue => $name);

	$session->query_safe("BEGIN; $stop$id");
	open_gate($node, $gate);
	wait_for_running($node, 1, id => $id, event => 'transactionid');
	$end->($pid);
	wait_for_exit($node, $pid) if $name =~ /terminated/;
	$session->query_safe('COMMIT');
	is_stopped($id, $name);
	becomes_true("SELECT sum(stopped) = 1 FROM pg_stat_task() WHERE queue = '$name'",
		"$name: it is counted once");
	ok(poll_for(sub {
		() = log_since($node, $position) =~ /LOG:  pg_task $id of queue .*: stopped, /g;
	}), "$name: it is logged");
}
all_have_ended('a STOP at the end of the run');

# The STOP is committed while the run goes on, and then the process ends.
my %after = (
	'a run that ignores the cancel is terminated' => sub { terminate($node, $_[0]) },
	'a run that ignores the cancel is killed' => sub { kill 'KILL', $_[0] },
	'the server is stopped' => sub { $node->stop('fast'); $node->start },
	'the server crashes' => sub { crash($node) });

for my $name (sort keys %after)
{
	my ($id, $gate, $pid) = start_task(q{SELECT deaf('%s')}, queue => $name);

	sql("$stop$id");
	$after{$name}->($pid);
	poll_for(sub { eval { sql('SELECT 1') } }) or die 'the server is not back';
	is_stopped($id, $name);
	all_have_ended($name);
}
$session = open_session($node, 'postgres');

subtest 'no run' => sub {
	for my $state (qw(STOP DONE FAIL GONE))
	{
		my $id = insert_task($node, dt => 'infinity', request => 'SELECT 1');
		sql("UPDATE task SET state = '$state' WHERE id = $id");
		is(task($node, $id, q{stop > now() - interval '1 min', start IS NULL, error IS NULL}),
			't|t|t',
			"a waiting row that becomes $state has a time at once");

		$id = insert_task($node, retry => 1, delay => '1 h', request => 'SELECT 1/0');
		wait_until($node, "SELECT failed = 1 FROM task WHERE id = $id");
		my $ended = task($node, $id, 'stop');
		sql("UPDATE task SET state = '$state' WHERE id = $id");
		is(task($node, $id, "stop > '$ended', sqlstate"), 't|22012',
			"a row that waits for a retry and becomes $state has a new time");

		my $gate;
		($id, $gate) = start_task(q{SELECT hold('%s')});
		sql("UPDATE task SET state = '$state' WHERE id = $id");
		is(task($node, $id, 'stop >= start'), 't', "a run that becomes $state by hand has a time")
		  if $state ne 'STOP';
		open_gate($node, $gate);
		wait_for_running($node, 0, id => $id);
	}
	my $id = insert_task($node, dt => 'infinity', request => 'SELECT 1');
	sql("UPDATE task SET state = 'DONE', stop = '2020-01-01' WHERE id = $id");
	is(task($node, $id, 'stop::date'), '2020-01-01', 'the owner may say another time');
	all_have_ended('by hand');
};

# Nobody is told of a change that no trigger sees; the scheduler finds it within a period.
subtest 'triggers are disabled' => sub {
	apply_conf($node, "pg_task.period = '100 ms'");
	my ($run) = start_task(q{SELECT hold('%s')});
	my ($dies, undef, $pid) = start_task(q{SELECT deaf('%s')});
	my $waits = insert_task($node, dt => 'infinity', request => 'SELECT 1');
	sql(qq{BEGIN; ALTER TABLE task DISABLE TRIGGER ALL; $stop$waits; $stop$run; $stop$dies;
		INSERT INTO task (queue, state, request) VALUES ('inserted', 'STOP', 'SELECT 1');
		ALTER TABLE task ENABLE TRIGGER ALL; COMMIT});
	terminate($node, $pid);
	is_stopped($run, 'a run');
	is_stopped($dies, 'a run whose process is terminated');
	is(sql(q{SELECT count(*), count(start), count(stop), count(error) FROM task
		WHERE state = 'STOP' AND (queue = 'inserted' OR id = } . "$waits)"), '2|0|0|0',
		'rows without a run stay as they were written');
	sql(qq{DELETE FROM task WHERE queue = 'inserted' OR id = $waits});
	all_have_ended('no trigger');
};

# The other ends: expired, given up, a role that is gone, a failure, an exit, a crash.
subtest 'other ends' => sub {
	sql('CREATE ROLE leaver LOGIN');
	my $fails = insert_task($node, request => 'SELECT 1/0');
	my %id = (
		DONE => [ insert_task($node, request => 'SELECT 1') ],
		FAIL => [ $fails, insert_task($node,
			request => 'SELECT pg_terminate_backend(pg_backend_pid())'),
			insert_task($node, role => 'leaver', dt => 'infinity', request => 'SELECT 1') ],
		GONE => [ insert_task($node, dt => '2020-01-01', active => '1 s', request => 'SELECT 1'),
			insert_task($node, after => "{$fails}", request => 'SELECT 1') ]);
	sql('DROP OWNED BY leaver; DROP ROLE leaver');
	sql(q{UPDATE task SET dt = now() WHERE role = 'leaver'});
	for my $state (sort keys %id)
	{
		for my $id (@{ $id{$state} })
		{
			next if $state eq 'FAIL' && $id == $id{FAIL}[1];    # it was interrupted, and runs again
			wait_for_state($node, $id, $state);
		}
	}
	sql("$stop$id{FAIL}[1]");
	all_have_ended('other ends');
};

$session->quit;
done_testing();
