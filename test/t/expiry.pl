# A task that was not started in time is set to GONE: at the time that its column "active" gives,
# or, by the setting pg_task.active, when it would be started.  A TAP test because it changes the
# period and settings of roles.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.period = '300 ms'\npg_task.max_executors = 4");

make_gates($node);
sql('CREATE TABLE effect (what text); CREATE SEQUENCE turn; GRANT ALL ON effect TO PUBLIC');
my $gone = q{state, attempt, sqlstate, error, start IS NULL, stop IS NOT NULL};
my $wanted = 'GONE|0|TK003|the task was not started in time|t|t';
my $effect = q{INSERT INTO effect VALUES (current_setting('pg_task.id'))};

# A task that starts in time runs, however long it takes; one that is late does not.
subtest 'a task that is started in time, or late' => sub {
	my $id = insert_task($node, active => '1 hour', request => "$effect; SELECT hold('began')");
	wait_for_running($node, 1, id => $id);
	sql("UPDATE task SET active = '1 ms' WHERE id = $id");
	# the next periods: what has expired is GONE then
	my $late = insert_task($node, queue => 'none', max => 0, active => '1 ms',
		request => 'SELECT 1');
	wait_for_state($node, $late, 'GONE');
	open_gate($node, 'began');
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'stop > dt + active'), 't', 'a task that began in time may take longer');
	for my $late ('1 ms', '1 s', '59 min 59 s')
	{
		$id = sql(qq{INSERT INTO task (dt, active, request) VALUES (now() - interval '1 hour',
			'$late',
			\$r\$$effect\$r\$) RETURNING id});
		wait_for_state($node, $id, 'GONE');
		is(task($node, $id, $gone), $wanted, "an hour late, active for $late");
	}
	$id = sql(qq{INSERT INTO task (dt, active, request) VALUES (now() - interval '1 hour',
		'1 hour 1 min', \$r\$$effect\$r\$) RETURNING id});
	wait_for_state($node, $id, 'DONE');
	is(sql('SELECT count(*) FROM effect'), 2, 'an hour late, active for longer: it runs');
};

# Days and months are added in UTC, whatever the time zone of the server, role and session.
subtest 'days and months' => sub {
	set_conf($node, "timezone = 'America/New_York'");
	wait_until($node, 'SHOW timezone', expected => 'America/New_York');
	sql(q{SET timezone = 'UTC'; INSERT INTO task (queue, dt, active, request) VALUES
		('alive', now() - interval '5 days' + interval '1 min', '5 days', 'SELECT 1'),
		('dead', now() - interval '5 days' - interval '1 s', '5 days', 'SELECT 1'),
		('alive', now() - interval '24 hours' * 200 + interval '1 min', '200 days', 'SELECT 1'),
		('dead', now() - interval '24 hours' * 200 - interval '1 s', '200 days', 'SELECT 1'),
		('alive', '-infinity', '178000000 years', 'SELECT 1') });
	wait_until($node,
		q{SELECT count(*) = 0 FROM task WHERE queue IN ('alive', 'dead') AND dt <> '-infinity'
		AND state IN ('PLAN', 'WORK')});
	is(sql(q{SELECT string_agg(DISTINCT queue || ' ' || state, ', ' ORDER BY queue || ' ' || state)
		FROM task WHERE queue IN ('alive', 'dead') AND dt <> '-infinity'}),
		'alive DONE, dead GONE', 'a day is 24 hours');
	sql(q{DELETE FROM task WHERE dt = '-infinity'});
};

# A task with an out-of-range expiry never expires, and affects no other.
subtest 'times out of range' => sub {
	sql(q{INSERT INTO task (queue, dt, active, request) VALUES ('long', now(), '178000000 years',
		'SELECT 1'), ('long', 'infinity', '1 s', 'SELECT 2')});
	wait_until($node,
		q{SELECT state = 'DONE' FROM task WHERE queue = 'long' AND request = 'SELECT 1'});
	is(sql(q{SELECT state FROM task WHERE queue = 'long' AND request = 'SELECT 2'}), 'PLAN',
		'a task planned for infinity does not expire');
};

my (@ids, $far);

# In a full queue, by the column: at its expiry, not only when it would be started.  One planned
# for later expires later.
subtest 'a full queue' => sub {
	my $hold = insert_task($node, queue => 'full', max => 1, request => q{SELECT hold('full')});
	wait_for_state($node, $hold, 'WORK');
	@ids = map { insert_task($node, queue => 'full', max => 1, active => $_,
		request => $effect) } '0.3 s', '0.6 s', '1 hour';
	my $never = insert_task($node, queue => 'none', max => 0, active => '0.3 s',
		request => $effect);
	$far = insert_task($node, dt => 'infinity', active => '0.1 s', request => $effect);
	for my $task (@ids[ 0, 1 ], $never)
	{
		wait_for_state($node, $task, 'GONE');
		is(task($node, $task, $gone), $wanted, 'in a full queue: GONE');
		is(task($node, $task, q{stop - dt - active BETWEEN '0' AND '30 s'}), 't',
			'in a full queue: in time');
	}
	is(task($node, $hold, 'state') . task($node, $ids[2], 'state') . task($node, $far, 'state'),
		'WORKPLANPLAN', 'in a full queue: the other tasks are unchanged');
};

# A user extends it, or plans it again: then it runs.
subtest 'a task is planned again' => sub {
	sql("UPDATE task SET dt = clock_timestamp(), state = 'PLAN', active = '1 hour' "
		. "WHERE id = $ids[0]");
	sql("UPDATE task SET active = '0.2 s', dt = now() WHERE id = $far; UPDATE task "
		. "SET active = '2 hours' WHERE id = $ids[2]");
	open_gate($node, 'full');
	wait_for_state($node, $_, 'DONE') for @ids[ 0, 2 ];
	is_row($node, $ids[0],
		{ attempt => 1, 'error IS NULL' => 'true', 'sqlstate IS NULL' => 'true' },
		'a task that was GONE and is planned again runs');
	wait_until($node, "SELECT state IN ('DONE', 'GONE') FROM task WHERE id = $far");
	is(sql(q{SELECT count(*) FROM effect}),
		sql(q{SELECT 2 + count(*) FROM task WHERE state = 'DONE' AND id >= } . $ids[0]),
		'GONE: no effect');
};

# A repeating task continues after GONE: its next run is at a planned time, later than now, and half
# an hour away.
subtest 'a repeating task' => sub {
	sql(qq{INSERT INTO task (queue, dt, active, repeat, request)
		VALUES ('repeat', now() - 30 * '1 min'::interval - 50000 * '1 hour'::interval, '10 min',
		'1 hour', \$r\$$effect\$r\$)});
	wait_until($node, q{SELECT state = 'GONE' FROM task WHERE queue = 'repeat' AND parent IS NULL});
	is(sql(q{SELECT new.state, new.attempt, new.active, new.planned IS NULL, new.dt > old.stop,
		new.dt < old.stop + interval '1 hour', extract(epoch FROM new.dt - old.dt) % 3600 = 0,
		new.error IS NULL
		FROM task AS new JOIN task AS old ON old.id = new.parent WHERE old.queue = 'repeat'}),
		'PLAN|0|00:10:00|t|t|t|t|t', 'after GONE the task repeats');
	sql(qq{INSERT INTO task (queue, dt, active, repeat, drift, request)
		VALUES ('no drift', '2019-07-01 12:34:56+00', '10 min', '1 hour', false,
		\$r\$$effect\$r\$)});
	wait_until($node,
		q{SELECT state = 'GONE' FROM task WHERE queue = 'no drift' AND parent IS NULL});
	is(sql(q{SELECT count(*), min(new.dt - old.stop) BETWEEN '59 min' AND '1 hour 1 s'
		FROM task
		AS new JOIN task AS old ON old.id = new.parent WHERE old.queue = 'no drift'}), '1|t',
		'without drift: the next run counts from the expiry');
};

# Retries: the expiry counts from the first planned time.  If the retry would be too late, the task
# is FAIL at once.
subtest 'a retry that would be too late' => sub {
	my $id = run_task($node, active => '5 min', retry => 5, delay => '10 min',
		request => 'SELECT 1/0');
	is_row($node, $id,
		{ state => 'FAIL', failed => 1, sqlstate => '22012' },
		'no retry is planned that would be too late');
	$id = insert_task($node, active => '15 min', retry => 5, delay => '10 min', backoff => 1,
		request => 'SELECT 1/0');
	wait_until($node, "SELECT state = 'PLAN' AND failed = 1 FROM task WHERE id = $id");
	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_until($node, "SELECT failed = 2 AND state <> 'WORK' FROM task WHERE id = $id");
	is(task($node, $id, q{state, dt - stop BETWEEN '10 min' AND '11 min'}), 'PLAN|t',
		'a retry that is in time is planned');
	sql("UPDATE task SET planned = now() - interval '10 min', dt = now() WHERE id = $id");
	wait_for_state($node, $id, 'FAIL');
	is(task($node, $id, 'failed'), 3, 'the expiry counts from the first planned time');
	$id = insert_task($node, active => '2.1 s', retry => 5, delay => '0.9 s', backoff => 1,
		queue => 'narrow', max => 1, request => 'SELECT 1/0');
	wait_until($node, "SELECT state IN ('FAIL', 'GONE') FROM task WHERE id = $id");
	# a retry is up to a tenth later than "delay" says; one that nobody has started in time is GONE
	is(task($node, $id, q{CASE state
		WHEN 'FAIL' THEN failed BETWEEN 1 AND 3 AND sqlstate = '22012'
			AND stop + delay * 1.2 > coalesce(planned, dt) + active
		ELSE sqlstate = 'TK003' AND stop >= coalesce(planned, dt) + active END}),
		't', 'the task is FAIL when no time is left for a retry');
};

my $id;

# A task whose retry finds its queue full: GONE, but the row still shows the failure.
subtest 'a retry in a full queue' => sub {
	$id = insert_task($node, active => '1 hour', retry => 5, delay => '10 min', backoff => 1,
		queue => 'shut', request => 'SELECT 1/0');
	wait_until($node, "SELECT failed = 1 AND state = 'PLAN' FROM task WHERE id = $id");
	sql(qq{UPDATE task SET max = 0, dt = now(), active = now() - planned + interval '0.5 s'
		WHERE id = $id});
	wait_for_state($node, $id, 'GONE');
	is_row($node, $id,
		{
			failed => 1, attempt => 1, sqlstate => 'TK003',
			error => 'the task was not started in time'
		},
		'a retry that is not started in time');
};

# The setting, for tasks without the column: when they would be started.
subtest 'pg_task.active' => sub {
	sql(q{CREATE ROLE hasty LOGIN; ALTER ROLE hasty SET pg_task.active = '10 min';
		ALTER DATABASE postgres SET pg_task.active = '20 min'});
	my %late = ('9 min' => [ 'DONE', 'DONE' ], '15 min' => [ 'GONE', 'DONE' ],
		'25 min' => [ 'GONE', 'GONE' ]);
	for my $late (sort keys %late)
	{
		for my $role (qw(hasty postgres))
		{
			$id = sql(qq{INSERT INTO task (role, dt, request)
				VALUES ('$role', now() - interval '$late',
				'SELECT 1') RETURNING id});
			wait_until($node, "SELECT state IN ('DONE', 'FAIL', 'GONE') FROM task WHERE id = $id");
			is(task($node, $id, 'state'), $late{$late}[ $role eq 'postgres' ], "$role, $late late");
		}
	}
	$id = sql(q{INSERT INTO task (role, dt, active, request)
		VALUES ('hasty', now() - interval '1 hour',
		'2 hours', 'SELECT 1') RETURNING id});
	wait_for_state($node, $id, 'DONE');
	pass('the column wins over the setting');
	$id = sql(q{INSERT INTO task (role, queue, dt, repeat, request)
		VALUES ('hasty', 'r', now() - interval '30 min', '1 hour', 'SELECT 1') RETURNING id});
	wait_for_state($node, $id, 'GONE');
	is(task($node, $id, $gone), $wanted, 'by the setting: the row has the same error');
	is(count_of($node, "parent = $id AND state = 'PLAN' AND dt > now()"), 1,
		'by the setting: the task repeats');
	sql(q{ALTER DATABASE postgres RESET pg_task.active});
};

# Many at once, with a crash in between: each is set to GONE once.
subtest 'many tasks, and a crash' => sub {
	sql(q{TRUNCATE task, effect});
	my $hold = insert_task($node, queue => 'many', max => 1, request => q{SELECT hold('many')});
	wait_for_state($node, $hold, 'WORK');
	# they expire before the server is up again, and even before the task that holds their queue is
	sql(qq{INSERT INTO task (queue, max, active, request) SELECT 'many', 1, CASE WHEN n % 2 = 0
		THEN interval '0.1 s' END, \$r\$$effect\$r\$ FROM generate_series(1, 2000) AS n});
	crash($node);
	wait_for_table($node);
	wait_until($node, q{SELECT count(*) = 1000 FROM task WHERE state = 'GONE'});
	is(count_of($node, q{state = 'GONE'
		AND stop - greatest(dt + active, pg_postmaster_start_time()) > '30 s'}), 0,
			'many: in time');
	open_gate($node, 'many');
	wait_until($node, q{SELECT count(*) = 1001 FROM task WHERE state = 'DONE'});
	is(sql(q{SELECT count(*) FROM effect}) . ' ' . count_of($node,
		q{state = 'GONE' AND (attempt > 0 OR start IS NOT NULL)}), '1000 0',
		'many: half of the tasks ran, the others did not');
};

# A row that somebody has locked when it expires keeps no other one waiting for the next period.
subtest 'a locked task' => sub {
	my $session = open_session($node, 'postgres');
	my ($locked, $state);

	apply_conf($node, "pg_task.period = '1 h'");
	$session->query_safe('BEGIN');
	do
	{
		$locked = insert_task($node, queue => 'none', max => 0, active => '2 s',
			request => 'SELECT 1');
		$state = $session->query_safe("SELECT state FROM task WHERE id = $locked FOR UPDATE");
	} until $state =~ /PLAN/;
	wait_until($node, "SELECT clock_timestamp() > dt + active FROM task WHERE id = $locked");
	my $other = insert_task($node, queue => 'none', max => 0, active => '0.5 s',
		request => 'SELECT 1');
	wait_for_state($node, $other, 'GONE');
	is(task($node, $locked, 'state'), 'PLAN', 'another one expires');
	$session->quit;
};

done_testing();
