# The jobs of a real pg_cron, and what the installed pg_task_convert_pg_cron.sql makes of them; and
# the statements and functions of docs/coming-from-pg-cron.md.
#
# A TAP test because both libraries are preloaded, and each runs what is due.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $extensions = qx(pg_config --sharedir) =~ s/\s*\z//r . '/extension';

plan skip_all => 'pg_cron is not installed' unless -e "$extensions/pg_cron.control";

my $page = manual_page('coming-from-pg-cron.md');

# Before 1.5 pg_cron knows no zone.  In this one the clock is not set, for then they differ.
my $node = new_node('main', conf => join "\n", "shared_preload_libraries = 'pg_task, pg_cron'",
	'cron.use_background_workers = on', "cron.timezone = 'Asia/Kolkata'",
	'max_worker_processes = 30');
my $zone = sql(q{SELECT coalesce(max(setting), 'GMT') FROM pg_settings
	WHERE name = 'cron.timezone'});

sql(q{CREATE EXTENSION pg_cron; CREATE ROLE app LOGIN; CREATE ROLE other LOGIN;
	GRANT USAGE ON SCHEMA cron TO app;
	CREATE TABLE effect (id int, who name DEFAULT current_user, by text,
		at timestamptz DEFAULT clock_timestamp());
	GRANT INSERT ON effect TO app});
sql('CREATE DATABASE shop OWNER app');

# Runs the script: see run_installed.
sub convert
{
	my ($db, %variable) = @_;

	return run_installed($node, $db, 'pg_task_convert_pg_cron.sql', %variable);
}

# A job, as its owner has it made.  Options: name, user, off, and columns of the table.  Before 1.5
# pg_cron takes neither seconds nor "$", but its table does, and that of any version takes what
# pg_cron would refuse.
sub schedule
{
	my ($schedule, $command, %opt) = @_;
	my ($name, $user, $off) = delete @opt{qw(name user off)};
	my $values = join ', ', map { literal($_) } grep { defined } $name, $schedule, $command;
	my ($rc, $id) = %opt ? 1
	  : run_psql($node, 'postgres', "SELECT cron.schedule($values)", '-U', $user // 'postgres');

	if ($rc != 0)
	{
		%opt = (jobname => $name, schedule => $schedule, command => $command,
			nodename => 'localhost', nodeport => $node->port, %opt);
		my @columns = sort keys %opt;

		$id = sql('INSERT INTO cron.job (' . join(', ', @columns) . ') VALUES ('
			. join(', ', map { literal($opt{$_}) } @columns) . ') RETURNING jobid');
	}
	sql("SELECT cron.alter_job($id, active => false)") if $off;
	return $id;
}

# A request that notes who runs it, and which kind of process.
sub noting
{
	return "INSERT INTO effect (id, by) SELECT $_[0], backend_type FROM pg_stat_activity"
	  . " WHERE pid = pg_backend_pid()";
}

# Notes that this has run, by such a process: a condition.
sub noted
{
	my ($id, $by) = @_;

	return "SELECT count(*) > 0 FROM effect WHERE id = $id AND by ~ '$by'";
}

my $odd = q{it's "odd" \\ $$ :'x' %s};
my $odd_command = q{SELECT $$it's$$, ':x', E'\\\\', '\\' AS "%s"; SELECT 2};

# Name, schedule, command, when it is due: a condition for a minute on the clock of the zone.
my @jobs = (
	[ 'busy', '* * * * *', noting(1), 'true', user => 'app' ],
	[ 'nightly', '30 2 * * *', 'SELECT 1', q{t::time = '02:30'} ],
	[ undef, '*/15 8-18 * * mon-FRI', 'VACUUM', q{extract(minute FROM t)::int % 15 = 0
		AND extract(hour FROM t) BETWEEN 8 AND 18 AND extract(isodow FROM t) < 6} ],
	[ $odd, "5 4\t1,15  * 5", $odd_command, q{t::time = '04:05' AND
		(extract(day FROM t) IN (1, 15) OR extract(isodow FROM t) = 5)} ],
	[ 'off', '0 0 * * 7', 'SELECT 1', q{t::time = '00:00' AND extract(isodow FROM t) = 7},
		off => 1 ],
	[ 'seconds', '30 seconds', 'SELECT 1', undef ],
	[ 'last', '0 12 $ * *', 'SELECT 1',
		q{t::time = '12:00' AND extract(day FROM t + interval '1 day') = 1} ],
	[ 'every', '@hourly', 'SELECT 1', 'extract(minute FROM t) = 0' ],
	[ 'steps', '7-40/11 */5 2-30/7 1,3-12 *', 'SELECT 1', q{extract(minute FROM t) IN
		(7, 18, 29, 40) AND extract(hour FROM t)::int % 5 = 0
		AND extract(day FROM t) IN (2, 9, 16, 23, 30) AND extract(month FROM t) <> 2} ],
	[ 'nightly', '30 3 * * *', 'SET ROLE postgres; SELECT 1', q{t::time = '03:30'},
		user => 'app' ],
	[ undef, "0 5 * * * 1\n", 'SELECT 1', q{t::time = '05:00'}, username => 'postgres' ]);
my @ids;

for my $job (@jobs)
{
	my ($name, $schedule, $command, $due, %opt) = @$job;

	push @ids, schedule($schedule, $command, name => $name, %opt);
}
my ($unnamed, $six) = @ids[ 2, 10 ];

# in another database
my $in_shop = q{SELECT cron.schedule_in_database(%s, '0 4 * * *', %s, 'shop', '%s', %s)};
my %shop;

$shop{$_} = sql(sprintf $in_shop, literal("$odd 2"), literal($odd_command), $_,
	$_ eq 'app' ? 'false' : 'true')
  for qw(app other postgres);

my $tasks = q{SELECT string_agg(concat_ws('|', queue, key, role, coalesce(cron, repeat::text),
	timezone, hold), E'\n' ORDER BY queue, key COLLATE "C") FROM task
	WHERE state IN ('PLAN', 'WORK')};
# As the manual says, in a database of its own.
subtest 'the statements of the manual' => sub {
	my @statements = verbs_of('coming-from-pg-cron.md');

	cmp_ok(scalar @statements, '>', 20, 'there are statements');
	sql('CREATE DATABASE manual');
	wait_for_table($node, db => 'manual', table => 'task_queue');
	sql_in('manual', q{CREATE PROCEDURE nightly() LANGUAGE sql AS 'SELECT 1'});
	for my $statement (@statements)
	{
		is(error_of('postgres', $statement, db => 'manual'), '', $statement);
	}
	is(sql_in('manual', q{SELECT string_agg(concat_ws('|', coalesce(key, request), role, state,
		coalesce(cron, repeat::text), timezone, hold), ', ' ORDER BY coalesce(key, request)
		COLLATE "C") FROM task WHERE coalesce(cron, repeat::text) IS NOT NULL AND next IS NULL}),
		join(', ', 'VACUUM|postgres|PLAN|0 3 * * *|GMT',
			'later|postgres|PLAN|0 3 * * *|GMT|not active',
			'nightly|postgres|PLAN|0 4 * * *|GMT', 'often|postgres|PLAN|00:00:30',
			'payroll|postgres|STOP|0 12 L * *|GMT', 'report|app|PLAN|0 5 * * *'),
		'what they have made');
	wait_until($node, q{SELECT count(*) = 1 FROM task WHERE request = 'CALL nightly()'
		AND state = 'DONE' AND key IS NULL}, db => 'manual');
	is(sql_in('manual', q{SELECT total, paused FROM task_queue WHERE queue = 'cron.%'}), '32|t',
		'the row for all jobs');
	is(sql_in('shop', 'SHOW pg_task.timezone'), 'GMT', 'the zone of a database');
};

subtest 'the functions of the manual' => sub {
	my @blocks = $page =~ /^```sql\n(.*?)^```$/msg;
	my $mine = q{SELECT string_agg(concat_ws('|', id, queue, key, role, state, cron, repeat,
		timezone, request, hold), ', ' ORDER BY id) FROM task WHERE key = 'mine'};
	# what a caller may put in the way of the names
	my $call = q{CREATE TEMP TABLE IF NOT EXISTS task (LIKE public.task);
		SET search_path = pg_temp, my_cron; SELECT my_cron.};

	sql_in('manual', $_) for @blocks;
	is(scalar @blocks, 1, 'they are one block');
	sql_in('manual', 'GRANT SELECT, INSERT, UPDATE ON task TO app;
		DELETE FROM task_queue');
	my $id = sql_as('app', "$call schedule('mine', '0 12 \$ * *', 'SELECT 1')", db => 'manual');
	is(sql_in('manual', $mine), "$id|cron.app|mine|app|PLAN|0 12 L * *|GMT|SELECT 1", 'a schedule');
	is(sql_as('app', "$call schedule('mine', '50 seconds', 'SELECT 2')", db => 'manual'), $id,
		'the same name changes it');
	is(sql_in('manual', $mine), "$id|cron.app|mine|app|PLAN|00:00:50|GMT|SELECT 2", 'as it says');
	is(sql_in('manual', "SELECT dt < now() + interval '1 min' FROM task WHERE id = $id"), 't',
		'it does not wait for the time of the rule before');
	my $other = sql_in('manual', q{SELECT my_cron.schedule('mine', '0 4 * * *', 'SELECT 3')});
	is(sql_as('app', "$call set_active('mine', false)", db => 'manual'), 't', 'off');
	is(sql_in('manual', "SELECT hold FROM task WHERE id = $id"), 'not active', 'it is on hold');
	is(sql_as('app', "$call set_active('mine', true)", db => 'manual'), 't', 'on');
	is(sql_as('app', "$call unschedule('mine')", db => 'manual'), 't', 'removed');
	is(sql_as('app', "$call unschedule('mine')", db => 'manual'), 'f', 'once');
	is(sql_in('manual', $mine), "$id|cron.app|mine|app|STOP|00:00:50|GMT|SELECT 2, "
		  . "$other|cron.postgres|mine|postgres|PLAN|0 4 * * *|GMT|SELECT 3",
		'that of another role is another one');
	my $in = "$call schedule_in_database('mine', '0 5 * * *', 'SELECT 4', 'manual'";
	my $moved = sql_as('app', "$in, active => false)", db => 'manual');
	like(sql_in('manual', $mine),
		qr/, $moved\|cron.app\|mine\|app\|PLAN\|0 5 \* \* \*\|GMT\|SELECT 4\|/, 'in this database');
	is(sql_in('manual', "SELECT hold FROM task WHERE id = $moved"), 'not active', 'and off');
	is(sql_as('app', "$in, 'app')", db => 'manual'), $moved, 'the same name changes it');
	is(sql_in('manual', "SELECT hold FROM task WHERE id = $moved"), '', 'and it is on');
	like(error_of('app', "$in, 'other')", db => 'manual'),
		qr/ERROR:  call this in database manual, as role other/, 'not as another role');
	like(error_of('app', $in =~ s/'manual'/'shop'/r . ')', db => 'manual'),
		qr/ERROR:  call this in database shop, as role app/, 'not in another database');
	like(error_of('app', q{SELECT my_cron.schedule('mine', 'now', 'SELECT 1')}, db => 'manual'),
		qr/ERROR:  invalid cron expression/, 'a wrong schedule');
};

# Before they are converted pg_cron runs them.
wait_until($node, noted(1, 'pg_cron'));

# What cannot be converted.  The scheduler of pg_cron may end where a role does not exist.
my %fault = (
	step => schedule('5/10 * * * *', 'SELECT 1', username => 'postgres'),
	reversed => schedule('0 22-4 * * *', 'SELECT 1', username => 'postgres'),
	weekend => schedule('0 4 * * fri-sun', 'SELECT 1', username => 'postgres'),
	never => schedule('0 0 30 2 *', 'SELECT 1', username => 'postgres'),
	letter => schedule('0 5 H * *', 'SELECT 1', username => 'postgres'),
	sixty => schedule('60 seconds', 'SELECT 1', username => 'postgres'),
	host => schedule('0 5 * * *', 'SELECT 1', nodename => 'elsewhere'),
	port => schedule('0 5 * * *', 'SELECT 1', nodeport => 1),
	nobody => schedule('0 5 * * *', 'SELECT 1', username => 'nobody'));

my $not_converted = join '', map { "not converted|$_\n" } (
	"1|{$fault{never}}|22023: invalid cron expression: \"0 0 30 2 *\"",
	"1|{$fault{reversed}}|22023: invalid cron expression: \"0 22-4 * * *\"",
	"2|{$fault{host},$fault{port}}|nodename, nodeport: it is for another server",
	"1|{$fault{weekend}}|schedule: '0 4 * * fri-sun' is not understood",
	"1|{$fault{letter}}|schedule: '0 5 H * *' is not understood",
	"1|{$fault{step}}|schedule: '5/10 * * * *' is not understood: pg_cron takes no steps from a"
	  . ' single number',
	"1|{$fault{sixty}}|schedule: '60 seconds' is not understood",
	"1|{$fault{nobody}}|username: role \"nobody\" does not exist");

subtest 'jobs become tasks' => sub {
	my ($rc, $out, $err) = convert('postgres', commit => 'off');
	my $all = join ',', @ids;
	my $both = join ',', grep { $_ != $ids[4] } @ids;
	my $switch = 'UPDATE cron.job SET active = false WHERE jobid IN (' . $both =~ s/,/, /gr . ')';
	my $rest = "on hold|1|{$ids[4]}|it was not active: pg_task_resume(key, queue) lets it run\n"
	  . "look at|1|{$six}|schedule: pg_cron leaves out what follows the fifth field\n"
	  . $not_converted;
	my $other = 'other database|3|{' . join(',', sort { $a <=> $b } values %shop)
	  . "}|-v export=shop here, then -v jobs=<file> there\n";

	is($rc, 0, 'a trial') or diag($err);
	is($out, "converted|11|{$all}|\n${rest}runs in both|10|{$both}|switch them off by -v "
		. "deactivate=on, or: $switch\n$other", 'its result');
	is(sql($tasks), '', 'makes nothing');
	my $trial = $out;
	($rc, $out, $err) = convert('postgres');
	is($rc, 0, 'they are converted') or diag($err);
	is($out, $trial, 'with the result of the trial');
	is(sql($tasks), join("\n", map { my ($key, $role, $rule, @more) = @$_;
		join '|', "cron.$role", $key, $role, $rule, ($rule =~ /^00:/ ? () : $zone), @more }
		[ 'busy', 'app', '* * * * *' ], [ 'nightly', 'app', '30 3 * * *' ],
		(sort { $a->[0] cmp $b->[0] } [ "cron job $unnamed", 'postgres', '*/15 8-18 * * mon-FRI' ],
			[ "cron job $six", 'postgres', '0 5 * * *' ], [ 'every', 'postgres', '@hourly' ],
			[ $odd, 'postgres', '5 4 1,15 * 5' ], [ 'last', 'postgres', '0 12 L * *' ],
			[ 'nightly', 'postgres', '30 2 * * *' ],
			[ 'off', 'postgres', '0 0 * * 7', 'was not active in pg_cron' ],
			[ 'seconds', 'postgres', '00:00:30' ],
			[ 'steps', 'postgres', '7-40/11 */5 2-30/7 1,3-12 *' ])), 'the tasks');
	is(sql('SELECT request FROM task WHERE key = ' . literal($odd)), $odd_command,
		'a command is as it was');
	is(sql('SELECT count(*) FROM cron.job WHERE NOT active AND database = current_database()'), 1,
		'pg_cron still has them');

	# again, and with what pg_cron has to give up
	my $before = sql($tasks);
	($rc, $out, $err) = convert('postgres', deactivate => 'on');
	is($rc, 0, 'a second time') or diag($err);
	is($out, "there already|11|{$all}|the task is left as it is\n$not_converted$other",
		'nothing is converted');
	is(sql($tasks), $before, 'there are no doubles');
	is(sql('SELECT string_agg(jobid::text, \',\' ORDER BY jobid) FROM cron.job WHERE NOT active
		AND database = current_database()'), $all, 'they are off in pg_cron');
};

sql("DELETE FROM cron.job WHERE username = 'nobody'");

# pg_cron has looked at the same minute when it has run a job that is due in every one, too.
subtest 'who runs them' => sub {
	my $since = sql('SELECT clock_timestamp()');
	my $control = schedule('* * * * *', noting(2), name => 'control');

	wait_until($node, noted(1, 'pg_task executor'));
	wait_until($node, noted(2, 'pg_cron'));
	is(sql("SELECT count(*) FROM cron.job_run_details WHERE jobid = $ids[0]
		AND start_time > '$since'"), 0, 'pg_cron does not any more');
	is(sql('SELECT string_agg(DISTINCT who, \',\') FROM effect WHERE id = 1'), 'app',
		'it is run as the same role');
	sql("SELECT cron.unschedule($control)");

	# a command that would like to be somebody else
	my $id = sql(q{UPDATE task SET dt = now() WHERE queue = 'cron.app' AND key = 'nightly'
		RETURNING id});
	wait_for_state($node, $id, 'FAIL');
	is_row($node, $id, { sqlstate => '42501', role => 'app' }, 'as nobody else');
};

subtest 'the same times' => sub {
	is(sql(q{SELECT pg_task_resume('off', 'cron.postgres')}), 1, 'what was off is resumed');
	sql(q{UPDATE task SET state = 'STOP' WHERE key = 'seconds' AND state IN ('PLAN', 'WORK')});
	sql(q{CREATE TABLE coming AS SELECT u.queue, u.key, u.dt FROM pg_task_upcoming(
		date_trunc('minute', now()) + interval '2 min', now() + interval '62 days', 1000000) AS u});
	for my $i (grep { defined $jobs[$_][3] } 0 .. $#jobs)
	{
		my ($name, $schedule, undef, $due, %opt) = @{ $jobs[$i] };
		my $key = literal($name // "cron job $ids[$i]");
		my $queue = literal('cron.' . ($opt{user} // 'postgres'));

		# what both have, and what one has
		like(sql(qq{SELECT count(c.dt), count(*) FILTER (WHERE c.dt IS NULL OR m.at IS NULL)
			FROM (SELECT dt FROM coming WHERE queue = $queue AND key = $key) AS c
			FULL JOIN (SELECT at FROM (SELECT min(dt) AS first, max(dt) AS last FROM coming) AS b,
				generate_series(date_trunc('minute', first), last, '1 min') AS m (at),
				LATERAL (SELECT at AT TIME ZONE '$zone' AS t) AS local WHERE $due) AS m
			ON c.dt = m.at}), qr/^[1-9]\d*\|0$/, ($name // 'unnamed') . ": $schedule");
	}
};

subtest 'jobs of another database' => sub {
	my $of_shop = join ',', sort { $a <=> $b } values %shop;
	my ($rc, $out, $err) = convert('postgres', export => 'shop');

	is($rc, 0, 'they are printed') or diag($err);
	my $file = file_of($out);
	is(scalar(() = $out =~ /^INSERT/mg), 3, 'and no others');
	wait_for_table($node, db => 'shop', table => 'task_queue');
	my $before = sql('SELECT count(*) FROM cron.job WHERE active');
	($rc, $out, $err) = convert('shop', jobs => $file);
	isnt($rc, 0, 'a superuser does not write to a table of another role');
	like($err, qr/table public\.task belongs to role "app": run this as that role/, 'as it says');
	($rc, $out, $err) = convert('shop', jobs => $file, user => 'app', deactivate => 'on');
	is($rc, 0, 'its owner does') or diag($err);
	is($out, "converted|1|{$shop{app}}|\n"
		. "on hold|1|{$shop{app}}|it was not active: pg_task_resume(key, queue) lets it run\n"
		. "not converted|1|{$shop{postgres}}|username: \"postgres\" is a superuser, and the owner of"
		. " the task table is not\n"
		. "not converted|1|{$shop{other}}|username: the owner of the task table may not run its"
		. " tasks: GRANT other TO app\n", 'its result');
	sql('GRANT other TO app');
	($rc, $out, $err) = convert('shop', jobs => $file, user => 'app', missed => 'none');
	like($out, qr/^converted\|1\|\{$shop{other}\}\|\nthere already\|1\|\{$shop{app}\}\|/,
		'after a GRANT');
	like($out, qr/^runs\ in\ both\|1\|\{$shop{other}\}\|switch\ them\ off\ where\ cron\.job\ is:
		\ UPDATE\ cron\.job\ SET\ active\ =\ false\ WHERE\ jobid\ IN\ \($shop{other}\)$/mx,
		'pg_cron still runs it');
	is(sql('SELECT count(*) FROM cron.job WHERE active'), $before, 'nothing is changed there');
	is(sql_in('shop', q{SELECT string_agg(concat_ws('|', queue, key, role, missed, request), ', '
		ORDER BY queue) FROM task}), "cron.app|$odd 2|app|$odd_command, "
		  . "cron.other|$odd 2|other|none|$odd_command", 'the tasks');
};

# Whoever has a part of it would have the superuser run something, or say what runs as whom.
subtest 'traps' => sub {
	my ($rc, $out, $err) = convert('shop');

	like($err, qr/database "shop" has no table cron\.job of pg_cron/, 'where there is no pg_cron');
	sql_in('shop', q{CREATE SCHEMA cron; CREATE TABLE cron.job (jobid bigint, schedule text,
		command text, nodename text, nodeport int, database text, username text, active boolean);
		INSERT INTO cron.job VALUES (1, '* * * * *', 'SELECT 1', '', 1, 'shop', 'postgres', true)},
		user => 'app');
	($rc, $out, $err) = convert('shop');
	like($err, qr/database "shop" has no table cron\.job of pg_cron/, 'or a table that says so');
	($rc, $out, $err) = convert('postgres', user => 'app');
	like($err, qr/only a superuser sees all jobs and settings of pg_cron/, 'for a superuser');

	sql(q{GRANT TRIGGER ON cron.job TO app; CREATE SCHEMA trap AUTHORIZATION app});
	sql_as('app', q{CREATE FUNCTION trap.caught() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO effect (id) VALUES (3); RETURN NULL; END $$;
		CREATE TRIGGER trap AFTER UPDATE ON cron.job EXECUTE FUNCTION trap.caught()});
	($rc, $out, $err) = convert('postgres', deactivate => 'on');
	like($err, qr/trigger "trap" on cron\.job is not one of pg_cron/, 'a trigger on its table');
	sql('DROP TRIGGER trap ON cron.job; ALTER TABLE cron.job OWNER TO app');
	($rc, $out, $err) = convert('postgres');
	like($err, qr/cron\.job belongs to role "app", which is no superuser/, 'its owner');
	is(sql('SELECT count(*) FROM effect WHERE id = 3'), 0, 'nothing of his has run');
	sql('ALTER TABLE cron.job OWNER TO postgres');

	# a trigger of somebody else on the task table
	sql('GRANT TRIGGER ON task TO app');
	sql_as('app', q{CREATE TRIGGER trap AFTER INSERT ON task EXECUTE FUNCTION trap.caught()});
	($rc, $out, $err) = convert('postgres');
	like($err, qr/function trap\.caught of trigger trap belongs to role "app"/,
		'a trigger on the task table');
	is(sql('SELECT count(*) FROM effect WHERE id = 3'), 0, 'nothing of his has run, either');
	sql('DROP TRIGGER trap ON task');

	# a name that is made up for another job
	my $name = schedule('0 0 1 1 *', q{SELECT 'first'}, name => 'cron job ' . ($six + 500));
	sql(sprintf q{UPDATE cron.job SET jobid = %s WHERE jobid = %s}, $six + 500,
		schedule('0 1 1 1 *', q{SELECT 'second'}, username => 'postgres'));
	($rc, $out, $err) = convert('postgres', deactivate => 'on');
	like($out, qr/^not converted\|1\|\{@{[ $six + 500 ]}\}\|key: a task with another request/m,
		'a key that another job has got');
	is(sql("SELECT active FROM cron.job WHERE jobid = $six + 500"), 't', 'it stays on in pg_cron');
	sql("DELETE FROM cron.job WHERE jobid IN ($name, $six + 500)");
	isnt((convert('postgres', deactivate => 'maybe'))[0], 0, 'a switch that is no boolean');

	# a task of another role in the queue of the job
	sql(q{GRANT SELECT, INSERT ON task TO app; UPDATE task SET state = 'STOP'
		WHERE key = 'every' AND state IN ('PLAN', 'WORK')});
	sql_as('app', q{INSERT INTO task (queue, key, request, dt)
		VALUES ('cron.postgres', 'every', 'SELECT 1', 'infinity')});
	($rc, $out, $err) = convert('postgres');
	like($out, qr/^not\ converted\|1\|\{$ids[7]\}\|
		key:\ a\ task\ of\ role\ "app"\ has\ it\ in\ queue\ "cron\.postgres"$/mx,
		'a key that is taken');
};

done_testing();
