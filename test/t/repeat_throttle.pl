# A repeating task that never runs repeats slowly, however short its "repeat" is: not at all while
# its role may not run it, once a second if it expires.  A task that runs repeats as it says, down
# to a minimum.  A TAP test because it counts what a scheduler does within some seconds.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.period = '100 ms'");

# The minimum of "repeat".
subtest 'the minimum of "repeat"' => sub {
	my %refused =
	  ('9.999 ms' => 1, '10 ms' => 0, '-1 s' => 1, '1 mon -29 days -23:59:59.999' => 1);
	for my $repeat (sort keys %refused)
	{
		my $refused = $refused{$repeat};
		my ($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n"
			. "INSERT INTO task (dt, repeat, request) VALUES ('infinity', '$repeat', 'SELECT 1')");

		like($err,
			$refused ? qr/23514: "repeat" of a task must be (at least 10 ms|greater than)/ : qr/^$/,
			"repeat $repeat: " . ($refused ? 'refused' : 'allowed'));
	}
};

my $next;

# Rows that never run, for each reason, with the shortest "repeat" and, bypassing the trigger, a
# shorter one.
subtest 'rows that never run' => sub {
	my $inserted = sql('SELECT now()');

	sql(q{
		REVOKE CONNECT ON DATABASE postgres FROM PUBLIC;
		CREATE ROLE strange LOGIN;
		ALTER TABLE task DISABLE TRIGGER zz_pg_task_bound;
		INSERT INTO task (queue, repeat, role, drift, request)
			SELECT 'refused ' || d || i, i, 'strange', d, 'SELECT 1'
			  FROM unnest('{t,f}'::bool[]) AS d, unnest('{1 us,10 ms}'::interval[]) AS i;
		INSERT INTO task (queue, repeat, active, drift, max, request)
			SELECT 'gone ' || d || i, i, '1 us', d, 0, 'SELECT 1'
			  FROM unnest('{t,f}'::bool[]) AS d, unnest('{1 us,10 ms}'::interval[]) AS i;
		ALTER TABLE task ENABLE ALWAYS TRIGGER zz_pg_task_bound});
	# expired by a setting of the role: the claim finds that it is too late
	sql(q{
		CREATE ROLE late LOGIN; GRANT CONNECT ON DATABASE postgres TO late;
		ALTER ROLE late SET pg_task.active = '1 ms';
		INSERT INTO task (queue, role, repeat, dt, request)
			VALUES ('late', 'late', '10 ms', now() - interval '1 h', 'SELECT 1')});
	wait_until($node, q{SELECT min(count) >= 3 AND count(*) = 4 FROM (SELECT count(*) FROM task
		WHERE queue LIKE 'gone %' AND state = 'GONE' GROUP BY queue) AS g});
	# later ones may start in time
	wait_until($node, q{SELECT count(*) >= 1 FROM task WHERE queue = 'late' AND state = 'GONE'});
	wait_until($node, q{SELECT count(*) = 4 FROM task WHERE queue LIKE 'refused %'
		AND state = 'PLAN' AND sqlstate = '42501'});
	$next = 'FROM task AS new JOIN task AS old ON old.id = new.parent WHERE';
	for my $queue (split /\n/, sql(q{SELECT DISTINCT queue FROM task WHERE queue LIKE 'gone %'}))
	{
		is(sql(qq{SELECT bool_and(new.dt >= old.dt + interval '1 s') $next new.queue = '$queue'}),
			't',
			 "$queue: the next is a second later");
	}
	is(sql(qq{SELECT count(*), bool_and(dt >= timestamptz '$inserted' + interval '1 min') FROM task
		WHERE queue LIKE 'refused %' AND state = 'PLAN' AND sqlstate = '42501'}), '4|t',
		'refused: the row itself waits for a minute');
	is(count_of($node, q{queue LIKE 'refused %'}), 4, 'refused: there is no other row');
	is(sql(qq{SELECT bool_and(new.dt >= old.dt + interval '1 s') $next
		old.queue = 'late' AND old.state = 'GONE'}), 't', 'late: the next is a second later');
	is(sql(qq{SELECT bool_and(date_part('microseconds', new.dt)::int % 10000 =
			date_part('microseconds', old.dt)::int % 10000)
		$next old.queue = 'gone true00:00:00.01'}), 't', 'with drift the task stays on its times');
};

# A task that runs keeps its interval.
subtest 'a task that runs' => sub {
	sql(q{INSERT INTO task (queue, repeat, request) VALUES ('runs', '10 ms', 'SELECT 1')});
	wait_until($node, q{SELECT count(*) >= 30 FROM task WHERE queue = 'runs' AND state = 'DONE'});
	is(sql(qq{SELECT bool_and(new.dt > old.dt AND new.dt <= old.stop + old.repeat)
		$next old.queue = 'runs' AND old.state = 'DONE'}), 't',
		'the next run is not planned for later than one interval after its end');
};

done_testing();
