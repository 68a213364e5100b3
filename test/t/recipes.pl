# The recipes of docs/recipes.md: each block of SQL is run, in the page's order and as the role that
# it names, and what the recipe promises is checked, beside writers who commit late.  A TAP test
# because tasks run, and sessions wait for each other.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => 'log_statement = all');
my $db = 'shop';

sql('CREATE ROLE shopkeeper LOGIN');
sql('CREATE DATABASE shop OWNER shopkeeper');
wait_for_table($node, db => $db, table => 'task_queue');
make_gates($node, db => $db);

my @blocks = blocks_of('recipes.md');

sub first_block
{
	my ($heading) = @_;

	return (grep { $_->{heading} eq $heading } @blocks)[0]{sql};
}

# SQL of the owner of the database, or of another role.
sub owner { return sql_in($db, $_[0], user => 'shopkeeper') }
sub app { return sql_in($db, $_[0], user => 'app') }

sub is_sql
{
	my ($query, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql_in($db, $query), $expected, $name);
}

sub is_refused
{
	my ($user, $query, $sqlstate, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sqlstate_of($user, $query, db => $db), $sqlstate, $name);
}

sub comes
{
	my ($query) = @_;

	wait_until($node, $query, db => $db);
}

# Waits until nothing of these rows waits or runs.
sub wait_for_end
{
	my ($condition) = @_;

	comes("SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK') AND $condition)");
}

# Runs a schedule of the owner's once more, and waits for its end.
sub run_now
{
	my ($key) = @_;
	my $id = owner("SELECT pg_task_run_now('$key')");

	wait_for_end("id = $id");
	return $id;
}

# A session of a role, in a transaction whose now() is given.
sub begin
{
	my ($user) = @_;
	my $session = open_session($node, $db, extra_params => [ '-U', $user ]);

	$session->query_safe('BEGIN; SELECT now()');
	return $session;
}

# Starts pgbench as a role, with this script.
sub start_pgbench
{
	my ($user, $script, @options) = @_;

	return IPC::Run::start([ 'pgbench', '-n', @options, '-f', file_of($script), '-h', $node->host,
		'-p', $node->port, '-U', $user, $db ], '>', \my $out, '2>', \my $err);
}

sub check_retry
{
	wait_for_end(q{queue = 'import'});
	is_sql(q{SELECT state, attempt, failed, role, start - (failures -> 0 ->> 'stop')::timestamptz
		>= '1 s' FROM task WHERE queue = 'import'}, 'DONE|2|1|app|t',
		'tried again a second later');
	is_sql(q{SELECT a.attempt, a.sqlstate FROM task AS t, pg_task_attempts(t.id) AS a
		WHERE queue = 'import'}, '1|22012', 'and what the first said');
}

sub is_delivered
{
	my ($events, $name) = @_;

	wait_for_end(q{queue LIKE 'customer.%'});
	is_sql(q{SELECT string_agg(body, ', ' ORDER BY at) FROM delivered JOIN event
		ON event.id = event_id WHERE body NOT LIKE 'event %'}, $events, $name);
}

# One at a time, in order, in no window more than the rate; an event that is not committed has no
# task, and of two writers the one that commits first is first.
sub check_outbox
{
	wait_for_end(q{queue LIKE 'customer.%'});
	is_sql(q{SELECT count(*), count(DISTINCT customer), bool_and(event_id = first_value) FROM (
		SELECT customer, event_id, first_value(id) OVER (PARTITION BY d.customer, n)
		FROM (SELECT *, row_number() OVER (PARTITION BY customer ORDER BY at) AS n
			FROM delivered) AS d
		JOIN (SELECT id, customer, row_number() OVER (PARTITION BY customer ORDER BY id) AS n
			FROM event) AS e USING (customer, n)) AS f},
		'72|3|t', 'all are delivered, in order');
	is_sql(q{SELECT count(*) FILTER (WHERE failed = 1), count(*) FROM task
		WHERE queue LIKE 'customer.%' AND state = 'DONE' AND role = 'app'}, '18|72',
		'although some fail at first');
	is_sql(q{SELECT count(*) FROM task AS a JOIN task AS b USING (queue)
		WHERE queue LIKE 'customer.%' AND a.id < b.id AND a.stop > b.start}, 0, 'one at a time');
	is_sql(q{SELECT count(*) FROM (SELECT at - lag(at, 20) OVER (PARTITION BY customer ORDER BY at)
		AS span FROM delivered) AS s WHERE span < '1 s'}, 0, 'not more often than the rate allows');

	owner(q{INSERT INTO task_queue (queue, paused) VALUES ('customer.ann', true)});
	my $first = begin('app');
	app(q{INSERT INTO event (customer, body) VALUES ('ann', 'begun last')});
	$first->query_safe(q{INSERT INTO event (customer, body) VALUES ('ann', 'committed last');
		COMMIT});
	$first->query_safe(q{BEGIN; INSERT INTO event (customer, body) VALUES ('ann', 'never');
		ROLLBACK});
	$first->quit;
	owner(q{DELETE FROM task_queue WHERE queue = 'customer.ann'});
	is_delivered('begun last, committed last', 'in the order of commits, and nothing that is not');

	my $writer = begin('app');
	$writer->query_safe(q{INSERT INTO event (customer, body) VALUES ('bob', 'x')});
	is_refused('app', q{SET lock_timeout = '10 ms'; INSERT INTO event (customer) VALUES ('bob')},
		'55P03', 'a second writer for a customer waits');
	is_refused('app', q{SET lock_timeout = '10 ms'; BEGIN;
		INSERT INTO event (customer) VALUES ('eve'); ROLLBACK}, '', 'one for another does not');
	$writer->query_safe('ROLLBACK');
	$writer->quit;
}

sub check_rate
{
	app(q{INSERT INTO task (queue, request) SELECT 'provider', 'SELECT 1'
		FROM generate_series(1, 62)});
	comes(q{SELECT count(*) FILTER (WHERE state = 'DONE') = 60 AND count(*) FILTER (WHERE state
		= 'PLAN') = 2 FROM task WHERE queue = 'provider'});
	comes(q{SELECT pg_task_why(max(id)) LIKE 'the rate of its queue%' FROM task
		WHERE queue = 'provider'});
	pass('sixty start, and no more');
	is_sql(q{SELECT min(start) >= (SELECT until FROM task_queue WHERE queue = 'provider')
		FROM task WHERE queue = 'provider'}, 't', 'none before the provider allows it');
	owner(q{UPDATE task_queue SET rate = -1 WHERE queue = 'provider'});
	wait_for_end(q{queue = 'provider'});
}

my $nightly = q{queue = 'app' AND key = 'nightly'};

sub check_schedule
{
	wait_for_end(q{queue = 'app'});
	is_sql("SELECT count(*), min(state) FROM task WHERE $nightly", '1|STOP', 'it has ended');
	is_sql(q{SELECT state, response, cron FROM task WHERE queue = 'app' AND key IS NULL},
		'DONE|night|', 'after one more run');
	app(q{INSERT INTO task (queue, key, repeat, request)
		VALUES ('app', 'last', '1 s', 'SELECT hold(''last'')')});
	comes(q{SELECT state = 'WORK' FROM task WHERE key = 'last'});
	app(q{UPDATE task SET runs_left = 1 WHERE queue = 'app' AND key = 'last'
		AND state IN ('PLAN', 'WORK')});
	open_gate($node, 'last', db => $db);
	wait_for_end(q{key = 'last'});
	is_sql(q{SELECT string_agg(state || attempt, ', ') FROM task WHERE key = 'last'}, 'DONE1',
		'a run that goes on is the last');
	like(notices_of('app', q{BEGIN; INSERT INTO task (queue, key, repeat, request) VALUES
		('app', 'two', '1 d', 'SELECT 1'), ('other', 'two', '1 d', 'SELECT 1'); ROLLBACK},
		db => $db), qr/^NOTICE/, 'a NOTICE says that there are two');
}

sub check_be_told
{
	my $problem = q{FROM problem WHERE what ->> 'key' =};

	comes(q{SELECT count(*) = 0 FROM problem});
	app(q{INSERT INTO task (queue, key, request) VALUES ('app', 'fails', 'SELECT 1/0')});
	owner(q{INSERT INTO task_queue (queue, paused) VALUES ('app', true)
		ON CONFLICT (queue) DO UPDATE SET paused = true});
	app(q{UPDATE task SET dt = now() - interval '59 min 59 s' WHERE key = 'backup'});
	comes("SELECT count(*) = 1 $problem 'backup'");
	is_sql("SELECT what ->> 'state', what ->> 'sqlstate' $problem 'backup'", 'GONE|TK003',
		'what was not started in time');
	owner(q{UPDATE task_queue SET paused = false WHERE queue = 'app'});
	comes("SELECT count(*) = 1 $problem 'fails'");
	is_sql("SELECT what ->> 'state', what ->> 'role', what ->> 'error' $problem 'fails'",
		'FAIL|app|division by zero', 'what has failed');
	is_sql(q{SELECT DISTINCT role FROM task WHERE queue = 'on_failure'}, 'shopkeeper',
		'the owner writes it down');
	is_sql(q{SELECT count(*) > 0 FROM pg_task_health() WHERE problem LIKE '%backup%'}, 't',
		'its last run is a problem');
	app(q{ALTER ROLE app SET pg_task.on_failure = 'SELECT current_user'});
	app(q{INSERT INTO task (key, request) VALUES ('own', 'SELECT 1/0')});
	comes(q{SELECT count(*) = 1 FROM task WHERE queue = 'on_failure' AND response = 'app'});
	pass('a role says it for its own');
	app(q{ALTER ROLE app RESET pg_task.on_failure});
	app(q{UPDATE task SET state = 'STOP' WHERE key = 'backup' AND state = 'PLAN'});
}

sub check_view
{
	wait_for_end(q{queue = 'refresh' AND attempt > 0});
	app(q{INSERT INTO sale (item, amount) VALUES ('car', 5)});
	my $reader = begin('shopkeeper');
	$reader->query_safe('SELECT count(*) FROM sales');
	owner(q{SELECT pg_task_run_now('sales', queue => 'refresh') FROM generate_series(1, 3)});
	owner(q{UPDATE task SET dt = now() WHERE key = 'sales' AND state = 'PLAN'});
	wait_for_end(q{queue = 'refresh' AND dt <= now()});
	$reader->quit;
	is_sql(q{SELECT amount FROM sales WHERE item = 'car'}, 5, 'it is refreshed, beside readers');
	is_sql(q{SELECT count(*), count(DISTINCT state) FROM task WHERE queue = 'refresh'
		AND state <> 'PLAN'}, '5|1', 'each time');
	is_sql(q{SELECT count(*) FROM task AS a JOIN task AS b USING (queue) WHERE queue = 'refresh'
		AND a.id <> b.id AND a.start <= b.start AND a.stop > b.start}, 0, 'never two at once');
	is_refused('app', 'REFRESH MATERIALIZED VIEW CONCURRENTLY sales', '42501', 'by its owner only');
	is_refused('shopkeeper', q{CREATE MATERIALIZED VIEW plain AS SELECT 1;
		REFRESH MATERIALIZED VIEW CONCURRENTLY plain}, '55000', 'not without a unique index');
	sql_in($db, 'DROP MATERIALIZED VIEW IF EXISTS plain');
}

sub check_batches
{
	my $writer = begin('shopkeeper');

	wait_for_end(q{key = 'fill net'});
	is_sql(q{SELECT count(*) FILTER (WHERE net = round(amount / 1.19, 2)), count(*) FROM sale},
		'2501|2501', 'all rows are filled');
	# the block was run twice: the second time it may have planned one that finds nothing
	is_sql(q{SELECT state, attempt, input ->> 'done' = '2501' FROM task
		WHERE key = 'fill net' ORDER BY id LIMIT 1}, 'DONE|5|t', 'in turns, which count');

	# again, with a row that is committed behind the mark, and one that is locked
	owner('UPDATE sale SET net = NULL; DELETE FROM sale WHERE id IN (5, 6)');
	$writer->query_safe(q{INSERT INTO sale (id, item, amount) OVERRIDING SYSTEM VALUE
		VALUES (5, 'late', 1), (6, 'late', 1)});
	my $locker = begin('shopkeeper');
	$locker->query_safe('UPDATE sale SET amount = 238 WHERE id = 1500');
	app(q{INSERT INTO task (queue, key, input, request) VALUES
		('app', 'fill net', '{"last": 0, "done": 0}', 'CALL fill_net()')});
	comes(q{SELECT (input ->> 'last')::int = 1002 AND state = 'WORK' FROM task
		WHERE key = 'fill net' AND state <> 'DONE'});
	$writer->query_safe('COMMIT');
	$locker->query_safe('COMMIT');
	$_->quit for $writer, $locker;
	wait_for_end(q{key = 'fill net'});
	is_sql('SELECT count(*) FROM sale WHERE net IS NULL', 0, 'a late row is found');
	is_sql('SELECT net FROM sale WHERE id = 1500', '200.00', 'a change meanwhile counts');
}

sub check_vacuum
{
	run_now('vacuum');
	wait_for_end(q{queue = 'vacuum'});
	is_sql(q{SELECT count(*) FILTER (WHERE state = 'DONE' AND notice !~ 'WARNING' AND role = 'shopkeeper'),
		count(*) > 5, max(request) FILTER (WHERE key = 'sale') FROM task
		WHERE queue = 'vacuum' GROUP BY () HAVING count(*) = count(DISTINCT key)},
		sql_in($db, q{SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'm')
		AND oid >= 16384}) . '|t|VACUUM (ANALYZE) sale', 'each table');
	comes(q{SELECT last_vacuum IS NOT NULL AND last_analyze IS NOT NULL FROM pg_stat_user_tables
		WHERE relname = 'sale'});
	pass('has been vacuumed');
	app(q{INSERT INTO task (queue, request) VALUES ('app', 'VACUUM sale')});
	wait_for_end(q{request = 'VACUUM sale'});
	is_sql(q{SELECT state, notice ~ 'WARNING' FROM task WHERE request = 'VACUUM sale'},
		'DONE|t', 'who may not gets a WARNING');
}

sub partitions
{
	return sql_in($db, q{SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class
		WHERE relname LIKE 'measurement\_2%' AND relkind = 'r'});
}

sub check_partitions
{
	my $expected = sql_in($db, q{SET timezone = 'UTC'; SELECT string_agg(to_char(
		date_trunc('month', now()) + n * interval '1 month', '"measurement_"YYYY_MM'), ' '
		ORDER BY n) FROM generate_series(0, 2) AS n});
	my @old = map { sql_in($db, qq{SET timezone = 'UTC'; SELECT to_char(date_trunc('month', now())
		- interval '$_ months', '"measurement_"YYYY_MM')}) } 12, 13, 20;

	is(partitions(), $expected, 'this month, and two more');
	owner(q{INSERT INTO measurement VALUES (now(), 1), (now() + interval '1 month', 2)});
	for my $name (@old)
	{
		my ($year, $month) = $name =~ /(\d+)_(\d+)/;

		owner(qq{SET timezone = 'UTC'; CREATE TABLE $name PARTITION OF measurement FOR VALUES FROM
			('$year-$month-01') TO (date '$year-$month-01' + interval '1 month')});
	}
	owner(q{CREATE TABLE archive PARTITION OF measurement FOR VALUES FROM ('2000-01-01') TO
		('2001-01-01')});
	owner(q{DROP TABLE } . ($expected =~ /(\S+)$/)[0]);
	my $reader = begin('shopkeeper');
	$reader->query_safe('SELECT count(*) FROM measurement');
	my $drop = owner(q{SELECT pg_task_run_now('drop partitions')});
	comes("SELECT state = 'PLAN' AND sqlstate = '55P03' FROM task WHERE id = $drop");
	pass('a reader keeps the old ones');
	my $add = run_now('add partitions');
	is_sql("SELECT state, attempt FROM task WHERE id = $add", 'DONE|1', 'and no new one');
	$reader->query_safe('COMMIT');
	$reader->quit;
	wait_for_end("id = $drop");
	is(partitions(), "$old[0] $expected", 'what is older than twelve months is gone');
	is_sql(q{SELECT count(*) FROM pg_index WHERE indrelid IN (SELECT relid
		FROM pg_partition_tree('measurement') WHERE isleaf)}, 5,
		'each has its index, and one of another name is left');
}

# Writers who commit late, and a run beside another.
sub check_new
{
	my $total = q{SELECT (SELECT sum(amount) FROM turnover) = (SELECT sum(amount) FROM sale),
		(SELECT count(*) FROM new_sale)};
	my $mark = q{SELECT amount FROM turnover WHERE item = };

	run_now('turnover');
	is_sql($total, 't|0', 'what was there before is counted');
	my $writer = begin('app');
	$writer->query_safe(q{SAVEPOINT s; INSERT INTO sale (item, amount) VALUES ('open', 1);
		RELEASE s});
	app(q{INSERT INTO sale (item, amount) VALUES ('soon', 2)});
	run_now('turnover');
	is_sql("$mark 'soon'", 2, 'an open transaction holds up no other');
	is_sql(q{SELECT max(id) FROM sale WHERE item = 'soon'}, sql_in($db,
		q{SELECT last_value FROM sale_id_seq}), 'its id is the last');
	$writer->query_safe(q{COMMIT; BEGIN; INSERT INTO sale (item, amount) VALUES ('never', 4);
		ROLLBACK});
	$writer->quit;
	run_now('turnover');
	is_sql("$mark 'open'", 1, 'what is committed late, with a lower id, counts');
	is_sql($total, 't|0', 'and nothing that is rolled back');

	owner(q{UPDATE task SET repeat = '10 ms', dt = now() WHERE key = 'turnover' AND state = 'PLAN'});
	my @runs = (start_pgbench('app', q{BEGIN;
		INSERT INTO sale (item, amount) SELECT 'item ' || n, 1 FROM generate_series(1, 3) AS n;
		SELECT pg_sleep(0.01 * random());
		INSERT INTO sale (item, amount) VALUES ('bike', 1);
		COMMIT;}, qw(-c 4 -t 60)),
		start_pgbench('shopkeeper', q{SELECT pg_task_run_now('turnover'); SELECT pg_sleep(0.02);},
		qw(-c 1 -t 60)));
	ok($_->finish, 'pgbench') for @runs;
	owner(q{UPDATE task SET repeat = '1 h' WHERE key = 'turnover' AND state IN ('PLAN', 'WORK')});
	wait_for_end(q{request LIKE '%add_turnover%' AND dt <= now()});
	run_now('turnover');
	is_sql($total, 't|0', 'each is counted once, beside writers and other runs');
	is_sql(q{SELECT count(*) FROM task WHERE request LIKE '%add_turnover%' AND state = 'FAIL'}, 0,
		'no run has failed');
}

sub check_consumers
{
	wait_for_end(q{queue LIKE 'consumer.%'});
	is_sql(q{SELECT string_agg(concat_ws(' ', who, sale ->> 'item', sale ->> 'amount'), ', '
		ORDER BY who) FROM heard},
		'app bike 7, shopkeeper bike 7', 'each has it, as its role');
	sql_in($db, q{CREATE ROLE clerk LOGIN; GRANT INSERT ON sale TO clerk});
	owner(q{INSERT INTO consumer VALUES ('broken', 'app', 'SELECT 1/0')});
	sql_in($db, q{INSERT INTO sale (item, amount) VALUES ('boat', 8)}, user => 'clerk');
	comes(q{SELECT count(*) = 2 FROM heard WHERE sale ->> 'item' = 'boat'});
	comes(q{SELECT failed > 0 AND state = 'PLAN' FROM task WHERE queue = 'consumer.broken'});
	pass('one that fails keeps no other waiting; the writer needs no other right');
	is_refused($_, q{INSERT INTO consumer VALUES ('x', 'app', 'SELECT 1')}, '42501',
		"$_ adds no consumer") for qw(app clerk);
	owner(q{DELETE FROM consumer WHERE name = 'broken'; DELETE FROM task
		WHERE queue = 'consumer.broken'});
}

sub check_idempotency
{
	my $statement = first_block('Idempotency');

	wait_for_end(q{queue = 'charge'});
	like(app($statement =~ s/paid/twice/r), qr/^\d+\|DONE\|paid\|f$/, 'the answer again');
	is_sql(q{SELECT count(*), max(attempt) FROM task WHERE queue = 'charge'}, '1|1', 'it ran once');
	my $first = begin('app');
	my $again = $statement =~ s/8f14e45f/second/r;
	my $second = open_session($node, $db, extra_params => [ '-U', 'app' ]);
	my $new = $first->query_safe($again);
	$second->query_until(qr/sent/, "\\echo sent\n$again\\echo got\n");
	comes(q{SELECT count(*) = 1 FROM pg_locks WHERE NOT granted});
	$first->query_safe('COMMIT');
	my ($id) = $new =~ /^(\d+)\|PLAN\|\|t$/m;
	like($second->query_safe(q{SELECT 'end'}), qr/^$id\|(?:PLAN|WORK|DONE)\|(?:paid)?\|f$/m,
		'of two at the same time, one is new');
	$_->quit for $first, $second;
	sql_in($db, 'GRANT SELECT, INSERT, UPDATE ON task TO clerk');
	is_refused('clerk', $statement, '42501', 'the flow of another role');
}

sub check_secrets
{
	my ($text) = first_block('Secrets') =~ /^(CREATE FUNCTION call_provider.*?^END \$\$;)/ms;

	wait_for_end(q{queue = 'provider'});
	is_sql(q{SELECT state, response FROM task WHERE request LIKE '%call_provider%'}, 'DONE|13',
		'the function has it');
	owner($text =~ s/^CREATE/CREATE OR REPLACE/r =~ s/RETURN .*;/RETURN (token || 'x')::int;/r);
	app(q{INSERT INTO task (queue, input, request)
		VALUES ('provider', '{"to": "x"}', 'SELECT call_provider(pg_task_input())')});
	wait_for_end(q{queue = 'provider'});
	is_sql(q{SELECT sqlstate, error FROM task WHERE state = 'FAIL' AND queue = 'provider'},
		'22P02|the provider does not answer', 'an error does not quote it');
	is_sql(q{SELECT count(*) FROM task WHERE task::text ~ '[3]f9a'}, 0, 'no row has it');
	unlike(slurp_file($node->logfile), qr/3f9a-/, 'nor has the log');
	is_refused('app', 'TABLE secret', '42501', 'a role that calls it does not read it');
	is_refused('clerk', q{SELECT call_provider('{}')}, '42501', 'others do not call it');
}

sub check_settings
{
	wait_for_end(q{queue = 'tenants'});
	is_sql(q{SELECT state, role, response FROM task WHERE queue = 'tenants'}, "DONE|app|SET\nacme\n0",
		'its own schema');
	app(q{SET search_path = acme; SET TimeZone = 'Asia/Tokyo'; INSERT INTO public.task
		(queue, request) VALUES ('tenants', 'SHOW search_path'), ('tenants', 'SHOW TimeZone')});
	wait_for_end(q{queue = 'tenants'});
	is_sql(q{SELECT count(*) FROM task WHERE queue = 'tenants' AND response IN ('acme', 'Asia/Tokyo')},
		0, 'not those of the session');
	sql_in($db, q{ALTER ROLE app SET search_path = acme;
		ALTER ROLE app IN DATABASE shop SET work_mem = '63MB'});
	# an executor that had just connected runs its first task as it is
	ok(poll_for(sub {
		my $id = app(q{INSERT INTO public.task (queue, request) VALUES
			('tenants', 'SHOW search_path; SHOW work_mem') RETURNING id});

		wait_for_end("id = $id");
		return task($node, $id, 'response', db => $db) eq "acme\n63MB";
	}), 'those of the role');
	sql_in($db, 'ALTER ROLE app RESET ALL; ALTER ROLE app IN DATABASE shop RESET ALL');
}

sub reminded
{
	my $id = app(q{SELECT pg_task_run_now('remind', queue => 'app')});

	wait_for_end("id = $id");
	return task($node, $id, 'response', db => $db);
}

sub check_holidays
{
	is(reminded(), 'remind them', 'a working day');
	owner(q{INSERT INTO holiday SELECT (now() AT TIME ZONE 'Europe/Berlin')::date + n
		FROM generate_series(0, 1) AS n});
	is(reminded(), '', 'a holiday');
	# a day later a run of yesterday is made up for
	owner(q{DELETE FROM holiday; INSERT INTO holiday
		VALUES ((now() AT TIME ZONE 'Europe/Berlin')::date - 1)});
	my $id = app(q{UPDATE task SET dt = now() - interval '1 day' WHERE key = 'remind'
		AND state = 'PLAN' RETURNING id});
	wait_for_end("id = $id");
	is(task($node, $id, 'response', db => $db), '', 'it keeps its day');
}

sub check_closed
{
	wait_for_end(q{queue = 'windows' AND key IS NULL});
	is_sql(q{SELECT DISTINCT state FROM task WHERE queue = 'windows' AND key IS NULL}, 'DONE', 'it has run');
	is_sql(q{SELECT coalesce((SELECT until > now() AND until < now() + interval '17 h'
		FROM task_queue WHERE queue = 'large'), false) = ((now() AT TIME ZONE 'Europe/Berlin')::time
		BETWEEN '6:00' AND '22:00')}, 't', 'closed by day, open at night');
}

sub check_window
{
	app(q{INSERT INTO task (queue, key, request) SELECT unnest('{app, provider, on_failure}'::text[]),
		'later', 'SELECT 1'});
	comes(q{SELECT bool_and(pg_task_why(id) LIKE '%until%') FROM task WHERE key = 'later'});
	is_sql(q{SELECT DISTINCT state, attempt FROM task WHERE key = 'later'}, 'PLAN|0',
		'nothing starts, whatever the queue');
}

# What is checked after the last block under a heading, or after one before that, by its number.
my %check = (
	'Retry' => \&check_retry,
	'Outbox, in order for each customer 1' => sub {
		owner(q{CREATE OR REPLACE FUNCTION send(event) RETURNS void LANGUAGE plpgsql AS $$
			BEGIN
				IF $1.id % 4 = 0 AND (SELECT attempt FROM task WHERE id = pg_task_id()) = 1 THEN
					RAISE 'no answer from %', $1.customer;
				END IF;
			END $$});
	},
	'Outbox, in order for each customer' => \&check_outbox,
	'Rate limit' => \&check_rate,
	'A schedule 1' => sub {
		is_sql("SELECT state, dt > now(), extract(hour FROM dt AT TIME ZONE 'Europe/Berlin')
			FROM task WHERE $nightly", 'PLAN|t|2', 'it is planned');
	},
	'A schedule' => \&check_schedule,
	'Be told' => \&check_be_told,
	'A materialized view' => \&check_view,
	'A long update in batches' => \&check_batches,
	'For each table: VACUUM' => \&check_vacuum,
	'Partitions and retention' => \&check_partitions,
	'Only what is new' => \&check_new,
	'Several consumers' => \&check_consumers,
	'Idempotency' => \&check_idempotency,
	'Secrets' => \&check_secrets,
	'search_path and settings of a task' => \&check_settings,
	'Holidays and maintenance windows 2' => \&check_holidays,
	'Holidays and maintenance windows 3' => \&check_closed,
	'Holidays and maintenance windows 4' => \&check_window,
	'Holidays and maintenance windows' => sub {
		wait_for_end(q{key = 'later' AND queue <> 'provider'});
		is_sql(q{SELECT string_agg(queue || ' ' || state, ', ' ORDER BY queue) FROM task
			WHERE key = 'later'}, 'app DONE, on_failure DONE, provider PLAN', 'it goes on');
	});

my $number = 0;

for my $i (0 .. $#blocks)
{
	my ($heading, $text) = @{ $blocks[$i] }{qw(heading sql)};
	my ($role) = $text =~ /^-- as (\w+)\n/;
	my $name = "$heading " . ++$number;
	my $run = sub {
		$node->command_ok(psql_command($node, $db, $text, '-U', $role // 'shopkeeper'), $name);
	};

	$run->();
	# a deployment repeats it
	$run->() if $text =~ /ON CONFLICT/ && $text !~ /CREATE/;
	if ($i == $#blocks || $blocks[ $i + 1 ]{heading} ne $heading)
	{
		$name = $heading;
		$number = 0;
	}
	(delete $check{$name} // next)->();
}
is_deeply([ keys %check ], [], 'each heading was there');
is_sql(q{SELECT count(*), count(*) FILTER (WHERE grantee = 0) FROM (SELECT oid, min(grantee::oid)
	FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner)))
	WHERE prosecdef AND proowner = 'shopkeeper'::regrole GROUP BY oid) AS f (oid, grantee)},
	'3|0', 'not everybody may put a function with rights on a table of their own');

done_testing();
