# A year of a hundred schedules, at random, against an oracle in another language
# (schedule_oracle.py), written from the manual: the times that are coming, those of the functions,
# and of what really runs, over holds, failures and a restart, the order and the links.  A TAP test
# because tasks must run, and for Python.  PG_TASK_SCHEDULE_SEED is the
# seed of its choices.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use JSON::PP ();
use PgTask;
use POSIX qw(strftime);
use Test::More;

# Debian's packages are for its own
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
my $json = JSON::PP->new->canonical;

plan skip_all => 'python3 has no time zones'
  unless eval {
	IPC::Run::run([ $python, '-c', q{import zoneinfo; zoneinfo.ZoneInfo('Europe/Berlin')} ],
		'2>', '/dev/null');
  };

my $seed = $ENV{PG_TASK_SCHEDULE_SEED} // 1 + int(rand(1_000_000));
note("PG_TASK_SCHEDULE_SEED=$seed");
END { diag("repeat it with: PG_TASK_SCHEDULE_SEED=$seed") if $? && $seed; }

# Asks the oracle.
sub oracle
{
	my ($input, @arguments) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ $python, "$FindBin::RealBin/schedule_oracle.py", @arguments ],
		'<', \$input, '>', \$out, '2>', \$err) or die "the oracle fails: $err";
	return $out;
}

# A moment of the oracle for the server, and back.
sub from_moment { return "('epoch'::timestamptz + '$_[0] us'::interval)" }
my $as_moment = q{(extract(epoch FROM %s) * 1000000)::bigint};

# A moment, or a list of them, for the reader.
sub readable
{
	my ($text) = @_;

	return ($text // 'nothing')
	  =~ s{(-?\d{12,})(\d{6})}{strftime('%Y-%m-%d %H:%M:%S', gmtime $1) . ".$2Z"}egr
	  =~ s{(-?\d{10})(\d{6})\b}{strftime('%Y-%m-%d %H:%M:%S', gmtime $1) . ".$2Z"}egr;
}

# Compares two hashes of lists, as texts; says of each that differs where it begins to.
sub same_lists
{
	my ($found, $expected, $name, $about) = @_;
	my @wrong = grep { ($found->{$_} // '') ne ($expected->{$_} // '') }
	  sort keys %{ { %$found, %$expected } };

	for my $key (@wrong)
	{
		my @found = split / /, $found->{$key} // '';
		my @expected = split / /, $expected->{$key} // '';
		my ($at) = grep { ($found[$_] // '') ne ($expected[$_] // '') } 0 .. @found + @expected;

		diag("$key: ", $about->($key), "\n  ", scalar @found, ' found, ', scalar @expected,
			" expected; number $at is ", readable($found[$at]), ', not ', readable($expected[$at]),
			', after ', readable($at ? $found[ $at - 1 ] : undef));
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(!@wrong, $name);
}

my $node = new_node('main', conf => "TimeZone = 'America/New_York'\npg_task.max_executors = 16");

# Changes of the clocks as the server knows them: of days that have one, each quarter of an hour.
my $zones = oracle('', 'zones') =~ s/\n$//r =~ s/\n/,/gr;
my $year = 1900 + (gmtime)[5];
my $changes = sql(sprintf q{
	WITH days AS (SELECT zone, day FROM unnest('{%s}'::text[]) AS zone,
			generate_series('%s-12-01 00:00+00'::timestamptz, '%s-02-01 00:00+00', '1 day') AS day
			WHERE day AT TIME ZONE zone + interval '1 day'
				<> (day + interval '24 hours') AT TIME ZONE zone),
	changes AS (SELECT zone, at, extract(epoch FROM (at AT TIME ZONE zone)
				- (at AT TIME ZONE 'UTC'))::bigint * 1000000 AS now,
			(at AT TIME ZONE zone) - (at - interval '15 min') AT TIME ZONE zone AS step
		FROM days, generate_series(day + interval '15 min', day + interval '24 hours',
			interval '15 min') AS at)
	SELECT coalesce(json_object_agg(zone, list), '{}') FROM (SELECT zone,
			json_agg(json_build_array(%s, now) ORDER BY at) AS list
		FROM changes WHERE step <> '15 min' GROUP BY zone) AS t},
	$zones, $year - 9, $year + 9, sprintf $as_moment, 'at');
my $asked = $json->decode(oracle($changes, 'generate', $seed));
our %schedule = map { $_->{key} => $_ } @{ $asked->{schedules} };

note("another tzdata knows other rules for $_") for @{ $asked->{different} };

# What a schedule is, for the reader.
sub describe
{
	my ($key) = @_;
	my %known = %{ $schedule{$key} };

	return readable($json->encode(\%known));
}

# An interval of the oracle: months, days, microseconds.
sub interval
{
	my ($months, $days, $rest) = @{ $_[0] };

	return "interval '$months mons $days days $rest us'";
}

# Inserts schedules into a queue.
sub insert_schedules
{
	my ($queue, @rows) = @_;
	my (@insert, @update);

	for my $row (@rows)
	{
		my %column = (
			key => literal($row->{key}),
			queue => literal($queue),
			request => "'SELECT 1'",
			timezone => literal($row->{zone} eq 'America/New_York' ? undef : $row->{zone}),
			dt => from_moment($row->{dt}),
			cron => literal($row->{cron}),
			repeat => $row->{parts} ? interval($row->{parts}) : 'NULL',
			drift => !$row->{parts} || $row->{drift} ? 'true' : 'false',
			missed => literal($row->{missed}),
			hold => literal($row->{hold}));

		$column{anchor} = from_moment($row->{anchor}) if $row->{anchor};
		my %end = (
			repeat_until => $row->{until} ? from_moment($row->{until}) : 'NULL',
			runs_left => $row->{runs_left} // 'NULL');
		# the time that it is inserted for may be later than its end
		%column = (%column, %end) if !$row->{moved};
		my @names = sort keys %column;

		push @insert, 'INSERT INTO task (' . join(', ', @names) . ') VALUES ('
		  . join(', ', @column{@names}) . ')';
		$end{dt} = from_moment($row->{moved} // 0);
		push @update, 'UPDATE task SET ' . join(', ', map { "$_ = $end{$_}" } sort keys %end)
		  . " WHERE queue = '$queue' AND key = '$row->{key}'"
		  if $row->{moved};
	}
	sql(join '; ', 'BEGIN', @insert, @update, 'COMMIT');
	return;
}

subtest 'all are planned' => sub {
	insert_schedules('year', @{ $asked->{schedules} });
	my $crons = $json->decode(sql(q{SELECT json_object_agg(key, cron) FROM task
		WHERE queue = 'year' AND cron IS NOT NULL}));
	my @wrong;

	for my $key (sort keys %$crons)
	{
		my $was = $schedule{$key}{cron};
		my $pattern = join '\d+(?:-\d+)?', map { quotemeta } split /\bH(?:\(\d+-\d+\))?/, $was, -1;

		push @wrong, "$was: $crons->{$key}" if $crons->{$key} !~ /^$pattern$/;
		$schedule{$key}{cron} = $crons->{$key};
	}
	is("@wrong", '', 'an H becomes a value or a range, and nothing else changes');
};

my $expected = $json->decode(oracle($json->encode($asked), 'expect'));

same_lists(
	$json->decode(sql('SELECT json_object_agg(key, ' . sprintf($as_moment, 'dt')
		. q{::text) FROM task WHERE queue = 'year'})),
	$expected->{first}, 'the first runs', \&describe);

# Chains that really run ------------------------------------------------------------------------

sql(q{CREATE TABLE ran (id bigint, planned timestamptz, at timestamptz);
	CREATE TABLE outcome (chain text, runs_left int, fails bool);
	CREATE FUNCTION run(seconds float8 = 0) RETURNS void LANGUAGE sql BEGIN ATOMIC
		INSERT INTO ran VALUES (pg_task_id(), pg_task_time(), clock_timestamp());
		SELECT pg_sleep(seconds);
	END;
	CREATE FUNCTION run_or_fail() RETURNS void LANGUAGE sql BEGIN ATOMIC
		SELECT run();
		SELECT 1 / (NOT fails)::int FROM outcome, task
			WHERE task.id = pg_task_id() AND chain = queue AND outcome.runs_left = task.runs_left;
	END;
	CREATE VIEW chain AS SELECT *, coalesce(planned, dt) AS at FROM task WHERE queue LIKE 'chain %';
	CREATE VIEW link AS SELECT p, n, (SELECT min(at) FROM chain AS r
			WHERE r.queue = p.queue) AS root
		FROM chain AS p JOIN chain AS n ON n.id = p.next});

sub start_chain
{
	my ($name, %column) = @_;

	return insert_task($node, queue => "chain $name", key => $name, retry => 0, repeat => '100 ms',
		request => 'SELECT run()', %column);
}

# Waits until so many rows of a chain have ended.
sub wait_for_ended
{
	my ($name, $count) = @_;

	wait_until($node, "SELECT count(*) >= $count FROM task WHERE queue = 'chain $name'
		AND state NOT IN ('PLAN', 'WORK')");
}

sub wait_for_end
{
	my ($name) = @_;

	wait_until($node, "SELECT count(*) = 0 FROM task WHERE queue = 'chain $name'
		AND state IN ('PLAN', 'WORK')");
}

my @missed = qw(one none all);
my $slow = 'SELECT run(random() * 0.25)';
my @restarted;

for my $missed (@missed)
{
	start_chain("slow $missed", missed => $missed, request => $slow, runs_left => 25);
	start_chain("fast $missed", missed => $missed, repeat => '70 ms', runs_left => 50);
	start_chain("until $missed", missed => $missed, request => $slow, repeat => '130 ms',
		repeat_until => sql(q{SELECT now() + interval '5 s'}));
	start_chain("retried $missed", missed => $missed, runs_left => 30, retry => 3, delay => '20 ms',
		request => 'SELECT run(random() * 0.1), 1 / (random() > 0.4)::int');
	start_chain("cron $missed", missed => $missed, repeat => undef, cron => '* * * * * *',
		request => 'SELECT run(random() * 2)', runs_left => 6);
	push @restarted, map { "$_ $missed" } qw(slow fast until retried cron);
}
# a few runs of each schedule in the last leap year: all are made up for
insert_schedules('past', @{ $asked->{past} });
start_chain('after', drift => 'false', runs_left => 30);
push @restarted, 'after';

for my $try (@{ $asked->{failures} })
{
	my ($name, $left) = ("failing $try->{hold_after}", scalar @{ $try->{failed} });

	sql("INSERT INTO outcome SELECT 'chain $name', $left + 1 - n, failed FROM unnest('{"
		  . join(',', map { $_ ? 't' : 'f' } @{ $try->{failed} })
		  . "}'::bool[]) WITH ORDINALITY AS t (failed, n)");
	start_chain($name, repeat => '20 ms', runs_left => $left, hold_after => $try->{hold_after},
		request => 'SELECT run_or_fail()');
}

# in the middle of most of them
wait_for_ended($_, 2) for @restarted;
$node->restart;
wait_for_table($node);
my $started = sql('SELECT pg_postmaster_start_time()');

subtest 'failures in a row' => sub {
	for my $try (@{ $asked->{failures} })
	{
		my $name = "failing $try->{hold_after}";
		my $here = "FROM task WHERE queue = 'chain $name'";
		my @held;

		while (1)
		{
			wait_until($node, "SELECT count(*) FILTER (WHERE hold IS NULL) = 0 $here
				AND state IN ('PLAN', 'WORK')");
			my ($id, $left, $hold, $attempt, $streak) = split /\|/, sql("SELECT id, runs_left, hold,
				attempt, streak $here AND state = 'PLAN'") or last;

			push @held, @{ $try->{failed} } + 1 - $left;
			is("$hold, $attempt, $streak", "failed $try->{hold_after} times in a row, 0, "
				. $try->{hold_after}, "$name: run $held[-1] waits");
			sql("SELECT pg_task_resume('$name', queue => 'chain $name')");
		}
		is("@held", join(' ', map { $_ + 1 } @{ $try->{held} }), "$name: these are on hold");
		is(sql("SELECT string_agg(state, ' ' ORDER BY id) $here"),
			join(' ', map { $_ ? 'FAIL' : 'DONE' } @{ $try->{failed} }), "$name: all have run");
	}
};

my %resumed;

subtest 'on hold' => sub {
	start_chain("hold $_", missed => $_) for @missed;
	for my $missed (@missed)
	{
		wait_for_ended("hold $missed", 3);
		sql("SELECT pg_task_hold('hold $missed', queue => 'chain hold $missed')");
	}
	for my $missed (@missed)
	{
		my $here = "FROM task WHERE queue = 'chain hold $missed'";

		wait_until($node, "SELECT count(*) = 0 $here AND state = 'WORK'");
		my $held = sql('SELECT clock_timestamp()');
		wait_until($node, "SELECT clock_timestamp() > dt + repeat * 5 $here AND state = 'PLAN'");
		is(sql("SELECT count(*) FROM ran JOIN task USING (id) WHERE queue = 'chain hold $missed'
			AND at > '$held'"), 0, "$missed: no run");
		sql("UPDATE task SET runs_left = 12 WHERE queue = 'chain hold $missed' AND state = 'PLAN'");
		$resumed{$missed} = sql('SELECT clock_timestamp()');
		sql("SELECT pg_task_resume('hold $missed', queue => 'chain hold $missed')");
		wait_for_end("hold $missed");
		# that "all" leaves none out is looked at below
		is(sql("SELECT count(*) $here AND dt < '$resumed{$missed}'
			AND start > '$resumed{$missed}'"),
			$missed eq 'one' ? 1 : 0, "$missed: what is made up for")
		  if $missed ne 'all';
	}
};

wait_for_end($_) for @restarted;

wait_until($node, q{SELECT count(*) = 0 FROM task WHERE queue = 'past'
	AND state IN ('PLAN', 'WORK')});
{
	local %schedule = map { $_->{key} => $_ } @{ $asked->{past} };

	same_lists($json->decode(sql(sprintf q{SELECT json_object_agg(key, list) FROM (SELECT key,
			string_agg(%s::text, ' ' ORDER BY id) AS list FROM task WHERE queue = 'past'
			GROUP BY key) AS t}, sprintf $as_moment, 'coalesce(planned, dt)')),
		$expected->{past}, 'the runs in the past', \&describe);
}

# The rows of a query that should find none.
sub none
{
	my ($query, $name) = @_;
	my $found = sql("$query LIMIT 3");

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($found, '', $name);
}

subtest 'the rows of a chain' => sub {
	my $link = 'SELECT (p).queue, (p).id, (p).at, (p).start, (p).stop, (n).at,
		(n).start FROM link WHERE';

	none(q{SELECT queue, count(*), count(next) FROM chain GROUP BY queue
		HAVING count(*) <> count(next) + 1 OR count(*) <> count(parent) + 1
		OR count(*) <> count(DISTINCT at)}, 'one has no parent, one no next, no time comes twice');
	none("$link (n).parent <> (p).id OR (n).queue <> (p).queue
		OR (n).id <= (p).id", 'next and parent are the same link');
	none(q{SELECT id FROM chain WHERE next IS NULL
		EXCEPT SELECT max(id) FROM chain GROUP BY queue}, 'none is left behind');
	none("$link (n).start < (p).stop", 'never two at once');
	none("SELECT queue, id FROM chain WHERE start < at", 'none is early');
	none("$link (n).runs_left <> (p).runs_left - 1", 'runs_left counts down');
	none(q{SELECT queue, min(runs_left) FROM chain WHERE runs_left IS NOT NULL GROUP BY queue
		HAVING min(runs_left) <> 1}, 'to the last');
	none(q{SELECT queue, max(at) FROM chain WHERE repeat_until IS NOT NULL GROUP BY queue
		HAVING max(at) > max(repeat_until)}, 'none is planned later than repeat_until');
	# behind a run that was GONE, the next one is at least a second later
	none(q{SELECT queue, id, at, start, stop, state, repeat_until FROM chain
		WHERE repeat_until IS NOT NULL AND next IS NULL
		AND CASE missed WHEN 'all' THEN at WHEN 'one' THEN start ELSE stop END + repeat
			<= repeat_until - CASE state WHEN 'GONE' THEN '1 s' ELSE '0 s' END::interval},
		'but the last one that can be');
	none(q{SELECT queue, id, state, sqlstate FROM chain WHERE NOT (state = 'DONE'
		OR state = 'FAIL' AND sqlstate = '22012' AND (queue LIKE '%failing%' OR failed = 4)
		OR state = 'GONE' AND sqlstate = 'TK004' AND missed = 'none' AND attempt = 0)},
		'they ended as they should');
	none(q{SELECT queue, c.id, c.at, r.at FROM chain AS c FULL JOIN ran AS r USING (id)
		WHERE (state = 'DONE') <> (r.id IS NOT NULL)}, 'what is DONE has run, and nothing else');
	none(q{SELECT queue, c.id, c.at, c.start, r.at, c.stop FROM chain AS c JOIN ran AS r USING (id)
		WHERE r.planned <> c.at OR r.at NOT BETWEEN start AND stop}, 'once, for its time');
	is(sql('SELECT count(*) = count(DISTINCT id) FROM ran'), 't', 'once alone');
};

subtest 'their times' => sub {
	my $us = q{(extract(epoch FROM %s) * 1000000)::bigint};
	my $off = sprintf "$us %% $us", '(n).at - root', '(n).repeat';
	my $link = 'SELECT (p).queue, (p).id, (p).at, (p).start, (p).stop, (n).at
		FROM link WHERE';
	# the first time of the schedule that is later
	my $first = sub {
		my ($after) = @_;

		return "CASE WHEN (p).cron IS NULL
			THEN root + (p).repeat * (floor(extract(epoch FROM $after - root)
				/ extract(epoch FROM (p).repeat)) + 1)
			ELSE date_trunc('second', $after) + interval '1 s' END";
	};

	none("$link (n).repeat IS NOT NULL AND (n).drift AND $off <> 0", 'anchor + n * repeat');
	none("$link (n).cron IS NOT NULL AND date_trunc('second', (n).at) <> (n).at",
		'full seconds');
	none("$link NOT (p).drift AND (n).at <> (p).stop + (p).repeat", 'from the end');
	none("$link (n).at <= (p).at", 'in order');
	none("$link (p).missed = 'all' AND (n).at <> " . $first->('(p).at'),
		'all: none is left out');
	none("$link coalesce((p).missed, 'one') = 'one' AND (p).drift AND (n).at <> "
		. $first->('(p).start'), 'one: the first time after the start');
	# what was on hold begins anew when it is resumed
	none("$link (p).missed = 'none' AND (p).state <> 'GONE' AND (n).at <> " . $first->('(p).stop')
		. " AND NOT ((p).queue = 'chain hold none' AND (p).stop < '$resumed{none}'
			AND (n).at > '$resumed{none}')", 'none: the first time after the end');
	none("$link (p).missed = 'none' AND (p).state = 'GONE' AND (p).queue NOT LIKE '%hold%'
		AND NOT ((p).at < '$started' AND (n).at >= '$started')", 'none: what a stop has left out');
	none("SELECT queue, id FROM chain WHERE missed = 'none' AND attempt = 1 AND at < '$started'
		AND start > '$started'", 'none: no other is late');
};

# What will run ---------------------------------------------------------------------------------

# The lists of pg_task_upcoming, by schedule.
sub upcoming
{
	my ($what, $since, $until, $lines) = @_;

	return $json->decode(sql(sprintf q{SELECT coalesce(json_object_agg(key, list), '{}')
		FROM (SELECT key, string_agg(%s, ' ' ORDER BY dt) AS list
			FROM pg_task_upcoming(%s, %s, %d) WHERE queue = 'year' GROUP BY key) AS t},
		$what, from_moment($since), from_moment($until), $lines));
}

subtest 'the year' => sub {
	my ($year, @windows) = @{ $asked->{windows} };
	my @expected = @{ $expected->{windows} };
	my $moment = sprintf $as_moment, 'dt';
	my $line = qq{concat_ws('/', $moment, to_char(local, 'YYYY-MM-DD"T"HH24:MI:SS.US'), zone,
		hold IS NOT NULL)};
	my $count = 0;

	$count += split / /, $_ for values %{ $expected[0] };
	note("$count runs");
	cmp_ok($count, '<', 100_000, 'not too many');
	for my $window ($year, @windows)
	{
		my ($since, $until) = @$window;
		my $found = upcoming($window == $year ? "($moment)::text" : $line, $since, $until, 200_000);
		my $expected = shift @expected;

		same_lists($found, $expected, 'the runs of ' . readable("$since to $until"), \&describe);
	}
	my $lines = sprintf 'pg_task_upcoming(%s, %s, %%d) AS t', map { from_moment($_) } @$year;

	is(sql(sprintf "SELECT count(*) FROM (SELECT dt FROM $lines EXCEPT ALL (SELECT dt FROM $lines
		ORDER BY dt LIMIT 1000)) AS more", 1000, 200_000), 0, 'the first thousand');
};

subtest 'functions' => sub {
	my (@query, %wanted, %about);
	my $list = sprintf "(SELECT coalesce(string_agg(${as_moment}::text, ' ' ORDER BY n), '')
		FROM %%s WITH ORDINALITY AS t (at, n))", 'at';

	while (my ($n, $call) = each @{ $asked->{calls} })
	{
		my $answer = $expected->{calls}[$n];
		my $count = @{ $answer->{schedule} };
		my $rule = $call->{parts} ? interval($call->{parts}) : literal($call->{cron});
		my ($after, $zone) = (from_moment($call->{after}), "'$call->{zone}'");
		my %sql = (
			schedule => "pg_task_schedule($rule, $after, $count, $zone)",
			next => "pg_task_next($rule, $after, $zone)");

		$sql{next} = sprintf 'pg_task_next(%s, %s, %s, %s, %s)', from_moment($call->{planned}),
		  $rule, $call->{drift} ? 'true' : 'false', from_moment($answer->{ended}), $zone
		  if $call->{parts};
		# what is behind the year is not looked at
		delete $sql{next} if !defined $answer->{next};
		for my $name (sort keys %sql)
		{
			my $wanted = $answer->{$name};

			$about{"$name $n"} = $sql{$name};
			$wanted{"$name $n"} = ref $wanted ? "@$wanted" : $wanted;
			push @query, "SELECT '$name $n' AS name, " . sprintf($list, $sql{$name}) . ' AS list';
		}
	}
	same_lists(
		$json->decode(sql('SELECT json_object_agg(name, list) FROM (' . join(' UNION ALL ', @query)
			. ') AS t')), \%wanted, 'they know the same times', sub { readable($about{ $_[0] }) });
};

# Schedules of which a part is known by hand.
subtest 'known' => sub {
	sql(q{DELETE FROM task WHERE queue = 'year'});
	insert_task($node, queue => 'gliding', request => 'SELECT 1', repeat => '1 day',
		drift => 'false', dt => '2100-01-01 00:00+00');
	is(sql(q{SELECT string_agg(to_char(dt AT TIME ZONE 'UTC', 'DD HH24:MI'), ' ' ORDER BY dt)
		FROM pg_task_upcoming('2100-01-01 12:00+00', '2100-01-03 12:00+00')
		WHERE queue = 'gliding'}), '02 00:00 03 00:00', 'runs behind the first, with drift false');
	insert_task($node, queue => 'anew', request => 'SELECT 1', repeat => '1 month',
		timezone => 'UTC', anchor => '2100-01-10 00:00+00', dt => '2100-01-31 00:00+00');
	is(sql(q{SELECT string_agg(to_char(dt AT TIME ZONE 'UTC', 'MM-DD'), ' ' ORDER BY dt)
		FROM pg_task_upcoming('2100-01-01 12:00+00', '2100-05-03 12:00+00', 1000)
		WHERE queue = 'anew'}), '01-31 02-28 03-31 04-30', 'months that are counted anew');
};

done_testing();
