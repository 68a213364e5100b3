# What a task is given, and what others see of it: its input, its result, its workflow.  A TAP test
# because tasks run, and roles ask for them.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', period => '1 s', conf => "pg_task.max_executors = 4\n");

make_gates($node);
sql(q{
	CREATE ROLE ann LOGIN;
	CREATE ROLE bob LOGIN;
	CREATE ROLE eve LOGIN;
	GRANT SELECT, INSERT, UPDATE, DELETE ON task TO ann, bob;
	CREATE TABLE log (n serial, entry text);
	GRANT INSERT, SELECT ON log TO PUBLIC;
	GRANT USAGE ON SEQUENCE log_n_seq TO PUBLIC});

subtest 'input' => sub {
	my $echo = 'SELECT pg_task_input()';

	is(sql('SELECT pg_task_input() IS NULL'), 't', 'NULL outside of a task');
	is(task($node, run_task($node, request => $echo), 'response'), '\N', 'NULL without input');
	my $id = run_task($node, request => "SELECT pg_task_input() ->> 'a'", input => q({"a": "it's"}));
	is(task($node, $id, 'response'), "it's", 'it is what the row has');
	is(task($node, run_task($node, request => $echo), 'response'), '\N',
		'the next task of the process does not see it');

	# the ring holds some of these lengths together with the request, and others not
	for my $length (0, 900, 980, 990, 1000, 1010, 1020, 1030, 5000, 2_000_000)
	{
		$id = run_task($node, request => 'SELECT length(pg_task_input() #>> ARRAY[0::text])',
			input => '["' . 'x' x $length . '"]');
		is(task($node, $id, 'response'), $length, "a text of $length bytes");
	}
	$id = run_task($node, request => "SELECT /*" . 'x' x 2000 . "*/ pg_task_input()",
		input => 'null');
	is(task($node, $id, 'response'), 'null', 'a long request; the JSON null is not NULL');

	# a parallel plan
	$id = run_task($node, request => q{
		SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
			SET min_parallel_table_scan_size = 0;
		SELECT count(*) FROM pg_class WHERE pg_task_input() = '7'}, input => '7');
	cmp_ok((split /\n/, task($node, $id, 'response'))[-1], '>', 0, 'in a parallel plan');
};

# The run goes on with what it began with, also when it is tried again after a conflict.
subtest 'a change of the input during the run' => sub {
	sql(q{
		CREATE SEQUENCE try;
		CREATE FUNCTION fail_once() RETURNS void LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('try') % 2 = 1 THEN
				RAISE 'conflict' USING ERRCODE = '40001';
			END IF;
		END $$});
	for my $padding ('', '/*' . 'x' x 2000 . '*/')
	{
		my $id = insert_task($node, input => '1', request => "SELECT hold('changed');"
			. "SELECT fail_once() $padding; SELECT pg_task_input()");

		wait_for_running($node, 1, id => $id, event => 'PgSleep');
		sql("UPDATE task SET input = '2' WHERE id = $id");
		open_gate($node, 'changed');
		wait_for_state($node, $id, 'DONE');
		like(task($node, $id, 'response'), qr/1$/, 'it has no effect on the run');
		is(task($node, $id, 'input'), 2, 'and stays in the row');
		sql("DELETE FROM gate");
	}
	is(sql('SELECT last_value FROM try'), 4, 'both runs were tried twice');
};

subtest 'the input of a repeating task' => sub {
	my $id = run_task($node, request => 'SELECT 1', input => '{"b": [1, 2]}', repeat => '1 day');

	is(sql("SELECT input FROM task WHERE parent = $id"), '{"b": [1, 2]}', 'the next run has it');
};

subtest 'results' => sub {
	my $result = sub { return sql("SELECT pg_task_result($_[0])") };
	my $id = run_task($node, request => 'SELECT 1 AS a', format => 'json');

	is($result->($id), '[{"a": 1}]', 'a JSON document, as it is');
	is($result->(run_task($node, request => q{SELECT E'a"b\n'})), '"a\"b\n"',
		'another as a string');
	is($result->(run_task($node, request => 'SELECT 1', format => 'csv')), '"?column?\n1"', 'CSV');
	is($result->(run_task($node, request => 'SELECT 1/0', format => 'json')), '',
		'none after FAIL');
	is($result->(insert_task($node, request => 'SELECT 1', dt => 'infinity')), '', 'nor before');
	is($result->(-5), '', 'nor without a row');
	is($result->('NULL'), '', 'nor for NULL');

	$id = run_task($node, request => 'SELECT 2 AS b', role => 'ann');
	is($result->($id), '"2"', 'by the format of the role: text');
	sql('ALTER ROLE ann SET pg_task.format = json');
	$id = run_task($node, request => 'SELECT 2 AS b', role => 'ann');
	is($result->($id), '[{"b": 2}]', 'by the format of the role: json');
	is(sql_as('ann', "SELECT pg_task_result($id)"), '[{"b": 2}]', 'a role sees its own');
	is(sql_as('bob', "SELECT pg_task_result($id)"), '', 'and not that of another');
	is(sqlstate_of('eve', "SELECT pg_task_result($id)"), '42501', 'a privilege is needed');

	# nothing in the caller's search_path takes the place of what the function means
	is(sql_as('bob', qq{
		CREATE TEMP TABLE task AS SELECT $id AS id, 'DONE' AS state, '7' AS response,
			'json' AS format, 'bob'::name AS role, 0::bigint AS role_id;
		SET search_path = pg_temp, public;
		SELECT pg_task_result($id)}), '', 'it reads the task table');
	sql("UPDATE task SET response = 'no JSON' WHERE id = $id");
	is(sqlstate_of('postgres', "SELECT pg_task_result($id)"), '22P02',
		'a response that is no JSON');
	sql('ALTER ROLE ann RESET pg_task.format');
};

# What a task inserts is a part of its workflow, and nothing else is.
subtest 'flow' => sub {
	my $insert = "INSERT INTO task (request, dt) VALUES ('child', 'infinity')";
	my $child = sub { return sql("SELECT coalesce(flow, '-') FROM task WHERE parent = $_[0]") };
	my $id = run_task($node, flow => 'order 7', request => $insert);

	is($child->($id), 'order 7', 'a task that it inserts has its flow');
	$id = run_task($node, request => "SELECT pg_backend_pid(); $insert");
	is($child->($id), '-', 'the next task of the process has none');
	$id = run_task($node, flow => 'order 8', request => "SELECT fail_once(); $insert");
	is($child->($id), 'order 8', 'also when the run is tried again');
	$id = run_task($node, flow => 'a', request => "SET pg_task.flow = 'b'; $insert");
	is($child->($id), 'b', 'it may set another one');
	$id = run_task($node, flow => 'a', request => "RESET ALL; $insert");
	is($child->($id), '-', 'or none');
	$id = run_task($node, flow => 'a',
		request => "INSERT INTO task (request, dt, flow) VALUES ('child', 'infinity', NULL)");
	is($child->($id), 'a', 'NULL in the row is no other');
	is(sql(qq{SET pg_task.flow = 'mine'; $insert RETURNING flow}), 'mine',
		'a session may have one');
	is(sql('SELECT pg_task_id() IS NULL, pg_task_flow() IS NULL'), 't|t',
		'it is no task, and has none');
	sql('ALTER ROLE ann SET pg_task.flow = annual');
	$id = run_task($node, role => 'ann', request => $insert);
	is($child->($id), 'annual', 'a role may have one');
	$id = run_task($node, role => 'ann', flow => 'x', request => $insert);
	is($child->($id), 'x', 'that of the task wins');
	sql('ALTER ROLE ann RESET pg_task.flow');

	$id = run_task($node, flow => 'night', step => 'a', request => 'SELECT 1', repeat => '1 day');
	is(sql("SELECT flow, step IS NULL FROM task WHERE parent = $id"), 'night|t',
		'the next run of a repeating task has its flow, and not its step');
	$id = run_task($node, flow => 'a', request => q{
		SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
		SET min_parallel_table_scan_size = 0; SET parallel_leader_participation = off;
		SELECT DISTINCT pg_task_id(), pg_task_flow() FROM pg_class WHERE length(relname) > 0});
	like(task($node, $id, 'response'), qr/^$id\ta$/m, 'parallel workers see both');
	is(sql(qq{SET ROLE ann; $insert RETURNING parent IS NULL}), 't', 'any role may insert');
	is(task($node, run_task($node, flow => 'a', request => "INSERT INTO task (request, parent, flow)
		VALUES ('SELECT 1', NULL, NULL), ('SELECT 1', 42, 'other')
		RETURNING parent = pg_task_id(), flow", format => 'csv'), 'response'),
		"?column?,flow\nt,a\nf,other", 'a program that writes NULL has both');
	is(sqlstate_of('postgres', "SET pg_task.flow = '" . 'x' x 256 . "'"), '22023', 'too long');
	is(sqlstate_of('postgres', "INSERT INTO task (request, flow) VALUES ('', '" . 'x' x 256 . "')"),
		'23514', 'too long in a row');
	is(sqlstate_of('postgres', "INSERT INTO task (request, flow) VALUES ('SELECT 1', '')"), '23514',
		'an empty one');
};

# Labels travel as the flow does, and from a setting of whoever plans the first task.
subtest 'meta' => sub {
	my $insert = "INSERT INTO task (request, dt) VALUES ('child', 'infinity')";
	my $child = sub { return sql("SELECT coalesce(meta::text, '-') FROM task
		WHERE parent = $_[0]") };
	my $trace = '{"trace": "7a"}';
	my $id = sql("SET pg_task.meta = '{\"trace\":\"7a\"}';
		INSERT INTO task (request) VALUES (\$\$$insert\$\$) RETURNING id");

	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'meta'), $trace, 'a task has the labels of its session');
	is($child->($id), $trace, 'a task that it inserts has them');
	$id = run_task($node, request => "SELECT pg_backend_pid(); $insert");
	is($child->($id), '-', 'the next task of the process has none');
	$id = run_task($node, meta => $trace, request => "SELECT fail_once(); $insert");
	is($child->($id), $trace, 'also when the run is tried again');
	$id = run_task($node, meta => $trace,
		request => "SELECT fail_once(); $insert --" . 'x' x 2000);
	is($child->($id), $trace, '... and the request is in the table');
	$id = run_task($node, meta => $trace, request => "SET pg_task.meta = '[]'; $insert");
	is($child->($id), '[]', 'it may set others');
	$id = run_task($node, meta => $trace, request => "RESET ALL; $insert");
	is($child->($id), '-', 'or none');
	$id = run_task($node, meta => $trace, request => 'SELECT 1', repeat => '1 day');
	is($child->($id), $trace, 'the next run of a repeating task has them');
	$id = insert_task($node, meta => $trace, request => 'SELECT 1', repeat => '1 day', keep => '0');
	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE id = $id)");
	is($child->($id), $trace, '... also when the row goes');
	sql(q{ALTER ROLE ann SET pg_task.meta = '{"role": "ann"}'});
	$id = run_task($node, role => 'ann', request => $insert);
	is($child->($id), '{"role": "ann"}', 'a role may have some');
	$id = run_task($node, role => 'ann', meta => $trace, request => $insert);
	is($child->($id), $trace, 'those of the task win');
	sql('ALTER ROLE ann RESET pg_task.meta');

	is(sqlstate_of('postgres', "INSERT INTO task (request, meta) VALUES ('SELECT 1', '"
		. JSON::PP::encode_json(['x' x 997]) . "')"), '23514', 'too long in a row');
	is(sql("SET pg_task.meta = '[1]'; WITH t AS (DELETE FROM task WHERE id = $id RETURNING *)
		INSERT INTO task SELECT * FROM t RETURNING meta->>'trace'"), '7a', 'a row keeps its own');
	is(sql("SET pg_task.meta = '[1]'; UPDATE task SET meta = NULL WHERE id = $id RETURNING meta"),
		'', 'an UPDATE brings none');
	is(sql("SET pg_task.meta = '[1]'; WITH t AS (DELETE FROM task WHERE id = $id RETURNING *)
		INSERT INTO task SELECT * FROM t RETURNING meta IS NULL"), 't',
		'... nor does a restore of a row');

	# who bypasses the trigger is not shown
	sql(q{ALTER TABLE task DISABLE TRIGGER USER; INSERT INTO task (role_id, request, meta)
		SELECT role_id, 'SHOW pg_task.meta', to_jsonb(repeat('x', n)) FROM task,
			unnest(ARRAY[1001, 100000]) AS n WHERE id = (SELECT max(id) FROM task);
		INSERT INTO task (role_id, request, meta)
		SELECT role_id, 'SHOW pg_task.meta', '[1e1000, 1e10000]' FROM task LIMIT 1;
		ALTER TABLE task ENABLE TRIGGER USER});
	wait_until($node, q{SELECT count(*) = 3 AND bool_and(response = '' AND state = 'DONE') FROM task
		WHERE request = 'SHOW pg_task.meta'});
	pass('labels that are too long are not shown');
	# the postmaster has no encoding into which it could convert the escape
	for my $value ('{"server": 1', '"\\\\u00e4"')
	{
		my $position = log_position($node);

		set_conf($node, "pg_task.meta = '$value'");
		wait_for_log_line($node, qr/invalid value for parameter "pg_task.meta"/, $position);
		is(sql('SHOW pg_task.meta'), '', "$value in postgresql.conf is refused");
	}
	set_conf($node, q{pg_task.meta = ''});
};

subtest 'step' => sub {
	my $start = "INSERT INTO task (flow, step, request)
		VALUES ('f', 'a', 'SELECT 1'), ('f', 'b', 'SELECT 1'), ('g', 'a', 'SELECT 1')";

	sql($start);
	is(sqlstate_of('postgres', $start), '23505', 'unique within the flow');
	sql("$start ON CONFLICT DO NOTHING");
	is(count_of($node, "flow IN ('f', 'g')"), 3, 'starting a workflow twice is no error');
	is(sqlstate_of('postgres', "INSERT INTO task (request, step) VALUES ('SELECT 1', 'a')"),
		'23514',
		'a step needs a flow');
	sql("INSERT INTO task (request, flow) VALUES ('SELECT 1', 'f'), ('SELECT 1', 'f')");
	is(count_of($node, "flow = 'f'"), 4, 'not every task of a flow is a step');
};

# A graph is one statement.
subtest 'needs' => sub {
	my $start = sub { return qq{
		INSERT INTO task (flow, step, needs, format, request) VALUES
			('$_[0]', 'extract', NULL, 'json', 'SELECT 3 AS n'),
			('$_[0]', 'left', '{extract}', NULL, 'SELECT pg_task_results() #> ''{0,0,n}'''),
			('$_[0]', 'right', '{extract}', NULL, 'SELECT pg_task_results(true)'),
			('$_[0]', 'load', '{left,right}', NULL, 'SELECT pg_task_results()'),
			('$_[0]', 'idle', '{}', NULL, 'SELECT pg_task_results() || pg_task_results(true)')} };

	sql($start->('etl'));
	wait_until($node, "SELECT count(*) = 5 FROM task WHERE flow = 'etl' AND state = 'DONE'");
	is(sql("SELECT string_agg(response, ' ' ORDER BY id) FROM task
		WHERE flow = 'etl' AND step IN ('left', 'right', 'load')"),
		'3 {"extract": [{"n": 3}]} ["3", "{\"extract\": [{\"n\": 3}]}"]', 'results go along');
	is(sql("SELECT response FROM task WHERE flow = 'etl' AND step = 'idle'"), '[{}]',
		'none is needed');
	is(sql("SELECT count(*) FROM task AS t JOIN task AS e ON e.id = ANY (t.after)
		WHERE t.flow = 'etl' AND t.start < e.stop"), 0, 'each has started after those it needs');
	sql($start->('etl') . ' ON CONFLICT DO NOTHING');
	is(count_of($node, "flow = 'etl'"), 5, 'starting it again does nothing');
	is(sql('SELECT pg_task_results() IS NULL'), 't', 'no results outside of a task');

	my $refused = sub { return sqlstate_of('ann', "INSERT INTO task (flow, step, needs, request)
		VALUES ($_[0], 'SELECT 1')") };
	is($refused->("'etl', 'later', '{extract}'"), '23503', 'a step that the user does not see');
	is($refused->("'mine', 'a', '{a}'"), '23503', 'the step itself');
	is($refused->("NULL, NULL, '{a}'"), '23514', 'no flow');
	is($refused->("'mine', 'a', '{{a}}'"), '23514', 'two dimensions');
	is($refused->("'mine', 'a', '{NULL}'"), '23514', 'NULL');
	is(sqlstate_of('ann', "INSERT INTO task (flow, step, needs, request) VALUES
		('mine', 'a', '{b}', 'SELECT 1'), ('mine', 'b', '{a}', 'SELECT 1')"), '23503', 'a cycle');

	# what fails holds up what needs it, and goes on from there
	sql(q{INSERT INTO task (flow, step, needs, request) VALUES
		('fix', 'a', NULL, 'SELECT 1'),
		('fix', 'b', '{a}', 'SELECT 1 / (SELECT count(*) FROM gate WHERE name = ''fixed'')'),
		('fix', 'c', '{b}', 'SELECT 1')});
	wait_until($node, q{SELECT string_agg(state, ',' ORDER BY id) FROM task WHERE flow = 'fix'},
		expected => 'DONE,FAIL,GONE');
	open_gate($node, 'fixed');
	sql(q{UPDATE task SET state = 'PLAN', failed = 0
		WHERE flow = 'fix' AND state IN ('FAIL', 'GONE')});
	wait_until($node, q{SELECT string_agg(state, ',' ORDER BY id) FROM task WHERE flow = 'fix'},
		expected => 'DONE,DONE,DONE');
	is(sql("SELECT string_agg(attempt::text, ',' ORDER BY id) FROM task WHERE flow = 'fix'"),
		'1,2,1', 'it has gone on from where it failed');
};

# A task that asks to be run again waits, and then goes on as the same row.
subtest 'again' => sub {
	sql(q{
		CREATE FUNCTION step(goal int) RETURNS int LANGUAGE plpgsql AS $$
		DECLARE
			n int := coalesce((pg_task_input() ->> 'n')::int, 1);
		BEGIN
			INSERT INTO log (entry) VALUES (format('%s of %s', n, goal));
			IF n < goal THEN
				PERFORM pg_task_again(input => jsonb_build_object('n', n + 1));
			END IF;
			RETURN n;
		END $$;
		CREATE PROCEDURE committing() LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_task_again('2200-01-01', '1');
			COMMIT;
			PERFORM pg_task_again('2200-01-02', '2');
			ROLLBACK;
		END $$});
	my $id = run_task($node, request => 'SELECT step(5)');

	is_row($node, $id, { attempt => 5, failed => 0, response => 5, input => '{"n": 5}' },
		'a loop whose state is in the input');
	is(sql(q{SELECT string_agg(entry, ',' ORDER BY n) FROM log WHERE entry LIKE '%of 5'}),
		'1 of 5,2 of 5,3 of 5,4 of 5,5 of 5', 'each turn has its effect');

	my $sleeps = sub {
		my ($name, $time, $input, %column) = @_;
		my $id = insert_task($node, input => '7', %column);

		wait_until($node, "SELECT stop IS NOT NULL AND state = 'PLAN' FROM task WHERE id = $id");
		is_row($node, $id, { dt => "$time 00:00:00+00", input => $input, attempt => 1 }, $name);
		return $id;
	};
	sql("ALTER DATABASE postgres SET TimeZone = 'UTC'");
	$id = $sleeps->('it waits, and keeps its input', '2200-01-01', 7, key => 'sleeps',
		request => "SELECT 5; SELECT pg_task_again('2200-01-01') IS NULL");
	is(sqlstate_of('postgres', "INSERT INTO task (request, key) VALUES ('SELECT 1', 'sleeps')"),
		'23505', 'its key is taken meanwhile');
	$sleeps->('called twice, the last one counts', '2200-01-02', 3,
		request => "SELECT pg_task_again('2200-01-01', '2'), pg_task_again('2200-01-02', '3')");
	$sleeps->('what is rolled back has not been asked for', '2200-01-01', 2,
		request => q{SELECT pg_task_again('2200-01-01', '2');
		DO $$ BEGIN
			PERFORM pg_task_again('2200-01-02', '3');
			RAISE 'no';
		EXCEPTION WHEN raise_exception THEN
		END $$});
	$sleeps->('a subtransaction that is committed has asked', '2200-01-02', 3,
		request => q{SELECT pg_task_again('2200-01-01', '2');
		DO $$ BEGIN
			PERFORM pg_task_again('2200-01-02', '3');
		EXCEPTION WHEN raise_exception THEN
		END $$});
	$sleeps->('a procedure that commits', '2200-01-01', 1, request => 'CALL committing()');
	$sleeps->('also when the run is tried again', '2200-01-01', 7,
		request => "SELECT fail_once(), pg_task_again('2200-01-01')");
	$sleeps->('with a role that may only insert', '2200-01-01', 7, role => 'eve',
		request => "SELECT pg_task_again('2200-01-01')");

	$id = run_task($node, request => "SELECT pg_task_again('2200-01-01', '8'); SELECT 1/0",
		input => '7');
	is_row($node, $id, { state => 'FAIL', input => 7 }, 'a task that fails has not asked');
	$id = insert_task($node, retry => 1, delay => '1 ms', input => '1', request =>
		q{SELECT pg_task_again('2200-01-01', '2'); SELECT 1 / (pg_task_input() <> '1')::int});
	wait_for_state($node, $id, 'FAIL');
	is_row($node, $id, { failed => 2, attempt => 2, input => 1 }, 'nor for its retry');

	# the time of a repeating task does not wander
	$id = insert_task($node, request => 'SELECT step(3)', repeat => '1 day', keep => '0',
		dt => '2020-01-01 02:30', missed => 'one', active => '100 years');
	wait_until($node, "SELECT count(*) = 1 FROM task WHERE parent = $id");
	is(count_of($node, "id = $id"), 0, 'it is deleted after its last run');
	is(sql("SELECT to_char(dt, 'HH24:MI'), input FROM task WHERE parent = $id"), '02:30|{"n": 3}',
		'the next run of the chain keeps its time of day');

	# a user asks for another run as well: the earlier time counts
	for my $dt ('2150-01-01', '2250-01-01')
	{
		$id = insert_task($node,
			request => "SELECT hold('$dt'), pg_task_again('2200-01-01')");
		wait_for_running($node, 1, id => $id, event => 'PgSleep');
		sql("UPDATE task SET dt = '$dt' WHERE id = $id");
		open_gate($node, $dt);
		wait_for_state($node, $id, 'PLAN');
		is(task($node, $id, 'dt::date'), $dt lt '2200' ? $dt : '2200-01-01',
			'the earlier time counts');
	}

	# a stop is a stop
	$id = insert_task($node, request => q{SELECT hold('stop'), pg_task_again('2200-01-01')});
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	sql("SELECT pg_task_cancel($id)");
	wait_until($node, "SELECT stop IS NOT NULL FROM task WHERE id = $id");
	is(task($node, $id, 'state'), 'STOP', 'a task that is stopped');

	is(sqlstate_of('postgres', 'SELECT pg_task_again()'), '55000', 'not outside of a task');
	$id = run_task($node, request => 'SELECT pg_task_again(NULL)');
	is(task($node, $id, 'sqlstate'), '22004', 'not without a time');
	$id = run_task($node, request => q{SELECT pg_task_again('294200-01-01')});
	is(task($node, $id, 'sqlstate'), '22008', 'not out of range');
};

# The chart of a flow, with one line for each task and arrow.
subtest 'graph' => sub {
	my $graph = sub { return sql_as($_[1] // 'postgres', "SELECT pg_task_graph('$_[0]')") };
	my $start = q{INSERT INTO task (flow, step, needs, rule, queue, request, state) VALUES
		('dry', 'a', NULL, NULL, 'default', 'SELECT 1', 'STOP'),
		('dry', 'b-2', '{a}', NULL, 'mail', 'SELECT 2', 'STOP'),
		('dry', 'c', '{a,b-2}', 'failed', 'default', 'SELECT 3', 'STOP')};

	# before anything is committed
	my $dry = sql("BEGIN; $start; SELECT pg_task_graph('dry'); ROLLBACK");
	my ($a, $b, $c) = $dry =~ /^    t(\d+)\[/mg;

	is($dry, qq{flowchart TD
    t$a\["a, task $a<br/>SELECT 1<br/>STOP"]:::STOP
    t$b\["b-2, task $b<br/>mail: SELECT 2<br/>STOP"]:::STOP
    t$c\["c, task $c<br/>SELECT 3<br/>STOP"]:::STOP
    t$a --> t$b
    t$a -->|"failed"| t$c
    t$b -->|"failed"| t$c
    classDef PLAN fill:#ffffff,stroke:#888888,color:#000000
    classDef WORK fill:#cfe2ff,stroke:#0a58ca,color:#000000
    classDef DONE fill:#d1e7dd,stroke:#146c43,color:#000000
    classDef FAIL fill:#f8d7da,stroke:#b02a37,color:#000000
    classDef STOP fill:#ffe5d0,stroke:#ca6510,color:#000000
    classDef GONE fill:#e9ecef,stroke:#888888,color:#000000,stroke-dasharray:4}, 'a dry run');
	is($graph->('dry'), '', 'no such flow');
	is(sql('SELECT pg_task_graph(NULL) IS NULL'), 't', 'NULL');

	# while it runs, and afterwards; one that a task has inserted, and one of another flow
	my $other = insert_task($node, request => 'other', dt => 'infinity');
	my $id = insert_task($node, flow => 'live', request => q{SELECT hold('live');
		INSERT INTO task (dt, request) VALUES ('infinity', 'child'); SELECT 1 / 0}, retry => 0);
	my $next = insert_task($node, flow => 'live', after => "{$id,$other}", request => 'next');
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	like($graph->('live'), qr/<br\/>WORK since [-0-9 :+]+"\]:::WORK$/m, 'it runs');
	like($graph->('live'), qr/^    t$next.*<br\/>PLAN, waits"\]:::PLAN$/m, 'it waits');
	like($graph->('live'), qr/^    t$other\["task $other"\] --> t$next$/m, 'one of another flow');
	open_gate($node, 'live');
	wait_for_state($node, $id, 'FAIL');
	like($graph->('live'), qr/^    t$id.*<br\/>FAIL [-0-9 :+]+, (\d+ ms|[\d:]+)<br\/>division by zero"\]/m,
		'a failure');
	$id = insert_task($node, flow => 'parent', retry => 1, delay => '1 ms', request =>
		q{SELECT fail_once(); INSERT INTO task (dt, request) VALUES ('infinity', 'child');
		SELECT 1 / (SELECT attempt - 1 FROM task
			WHERE id = current_setting('pg_task.id')::bigint)});
	wait_for_state($node, $id, 'DONE');
	like($graph->('parent'), qr/^    t$id.*<br\/>DONE [^<]*, attempt 2"\]:::DONE$/m, 'a retry');
	like($graph->('parent'), qr/<br\/>child<br\/>PLAN for infinity"\]:::PLAN$/m, 'the child');
	like($graph->('parent'), qr/^    t$id -\.-> t\d+$/m, 'is linked to its parent');

	# nothing that is in a row means anything to the chart
	my $bad = q{end"] --> x;`<b>&#35;\\{|}%%'1. *ä€_};
	sql("INSERT INTO task (id, flow, step, request, dt) VALUES
		(-5, 'bad', E'a\\nb', " . literal("$bad\n\t$bad$bad") . ", 'infinity')");
	like($graph->('bad'), qr/^    tm5\["a b, task -5<br\/>end#34;#93; #45;#45;#62; x#59;#96;#60;b#62;/m,
		'what Mermaid would read is escaped');
	like($graph->('bad'), qr/#38;#35;35#59;#92;#123;#124;#125;#37;#37;#39;1#46; #42;ä€#95;  end/,
		'the rest, too');
	like($graph->('bad'), qr/#46;#46;#46;<br\/>PLAN for infinity"\]:::PLAN$/m, 'and cut');
	insert_task($node, flow => 'bad', step => 'fa:fa-ban fab:fa-x a:b', request => 'SELECT 1',
		dt => 'infinity');
	like($graph->('bad'), qr/"fa :fa-ban fab :fa-x a:b, task/, 'no icons');

	# a large flow
	sql(q{WITH part AS (INSERT INTO task (flow, request, dt)
			SELECT 'large', 'SELECT 1', 'infinity' FROM generate_series(1, 2000) RETURNING id)
		INSERT INTO task (id, flow, request, after) SELECT -6, 'large', 'last', array_agg(id)
			FROM part});
	my $large = $graph->('large');
	cmp_ok(length($large), '<', 50_000, 'it is bounded');
	is(scalar(() = $large =~ / --> /g), 500, 'so are its arrows');
	like($large, qr/^    more\["the first \d+ tasks: there is more than is shown"\]$/m, 'it says so');

	# rights
	sql_as('ann', "INSERT INTO task (flow, request, dt) VALUES ('anns', 'SELECT 1', 'infinity')");
	like($graph->('anns', 'ann'), qr/SELECT 1/, 'a role sees its own');
	is($graph->('anns', 'bob'), '', 'and not that of another');
	is(sqlstate_of('eve', "SELECT pg_task_graph('anns')"), '42501', 'a privilege is needed');
	sql("DELETE FROM task WHERE flow IN ('bad', 'large', 'anns')");
};

# What a session that listens gets of these statements, after the last task has ended.  Its own
# notification comes after all that were sent before.
sub notifications
{
	my ($statements) = @_;
	my $output = sql("LISTEN done; $statements; CALL wait_for_end(); NOTIFY done, 'last'");

	return join "\n", sort map { s/"id" : \d+, //r }
	  $output =~ /"done" with payload "(\{.*)" received/g;
}

subtest 'notify' => sub {
	sql(q{
		CREATE PROCEDURE wait_for_end() LANGUAGE plpgsql AS $$
		BEGIN
			WHILE EXISTS (SELECT FROM task WHERE notify = 'done' AND state IN ('PLAN', 'WORK')
				AND dt < now() + interval '1 h') LOOP
				COMMIT;
				PERFORM pg_sleep(0.01);
			END LOOP;
		END $$});
	my $insert = "INSERT INTO task (notify, request, queue, flow, step, dt, active, role, keep, "
	  . 'repeat) VALUES';
	my $payload = sub { return qq({"queue" : "$_[0]", "flow" : $_[1], "step" : $_[2], )
		  . qq("state" : "$_[3]"}) };

	is(notifications(qq{$insert ('done', 'SELECT 1', 'a"b', 'f', 'ä', now(), NULL, 'postgres',
		NULL, NULL)}), $payload->('a\"b', '"f"', '"ä"', 'DONE'), 'DONE');
	is(notifications(qq{$insert ('done', 'SELECT 1', 'q', NULL, NULL, now(), NULL, 'postgres',
		'0', NULL)}), $payload->('q', 'null', 'null', 'DONE'), 'DONE, of a row that is deleted');
	is(notifications(qq{$insert ('done', 'SELECT 1', 'q', NULL, NULL, now(), NULL, 'postgres',
		'0', '100 years')}), $payload->('q', 'null', 'null', 'DONE'),
		'DONE, of a row that is deleted and repeats');
	sql("UPDATE task SET notify = NULL WHERE repeat = '100 years'");
	is(notifications(qq{$insert ('done', 'SELECT 1/0', 'q', NULL, NULL, now(), NULL, 'postgres',
		'0', NULL)}), $payload->('q', 'null', 'null', 'FAIL'), 'FAIL');
	is(notifications(q{INSERT INTO task (notify, request, retry, delay)
		VALUES ('done', 'SELECT 1/0', 1, '1 ms')}), $payload->('default', 'null', 'null', 'FAIL'),
		'a retry is no end');
	is(notifications(qq{$insert ('done', 'SELECT 1', 'q', NULL, NULL, now() - interval '1 h',
		'1 s', 'postgres', NULL, NULL)}), $payload->('q', 'null', 'null', 'GONE'), 'GONE');
	sql('CREATE ROLE mute; REVOKE CONNECT ON DATABASE postgres FROM PUBLIC');
	sql('GRANT CONNECT ON DATABASE postgres TO ann, bob, eve');
	is(notifications(qq{$insert ('done', 'SELECT 1', 'q', NULL, NULL, now(), NULL, 'mute', NULL,
		NULL)}), $payload->('q', 'null', 'null', 'FAIL'), 'FAIL, for its role');
	is(notifications(q{INSERT INTO task (notify, request) VALUES
		('done', 'SELECT pg_task_again(input => ''1'') WHERE pg_task_input() IS NULL')}),
		$payload->('default', 'null', 'null', 'DONE'), 'a task that goes on ends once');
	is(notifications(q{INSERT INTO task (notify, request, dt) VALUES ('done', '1', 'infinity');
		UPDATE task SET state = 'STOP' WHERE notify = 'done' AND state = 'PLAN'}),
		$payload->('default', 'null', 'null', 'STOP'), 'STOP');
	my $id = insert_task($node, request => 'SELECT 1', dt => 'infinity');
	is(notifications(qq{INSERT INTO task (notify, request, after) VALUES ('done', '1', '{$id}');
		UPDATE task SET state = 'STOP' WHERE id = $id}),
		$payload->('default', 'null', 'null', 'GONE'), 'GONE, because of another task');
	$id = insert_task($node, notify => 'done', request => q{SELECT hold('never')});
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	is(notifications("SELECT pg_task_cancel($id)"), $payload->('default', 'null', 'null', 'STOP'),
		'STOP of a task that runs');
	wait_until($node, "SELECT stop IS NOT NULL FROM task WHERE id = $id");
	is(notifications('SELECT 1'), '', 'its end is not told again');

	# names of the greatest length, and of the worst characters
	my $long = "repeat(E'\\x01', 255)";
	like(notifications(qq{INSERT INTO task (notify, request, queue, flow, step)
		VALUES ('done', 'SELECT 1', $long, $long, $long)}), qr/DONE/, 'the longest payload');
	# a row that has bypassed the trigger ends nevertheless
	sql('ALTER TABLE task DISABLE TRIGGER zz_pg_task_bound');
	sql(q{INSERT INTO task (notify, request, flow) VALUES ('', 'SELECT 1', 'bypassed'),
		(repeat('x', 200), 'SELECT 1', 'bypassed'),
		('done', 'SELECT 1', 'bypassed' || repeat(E'\x01', 8000))});
	sql('ALTER TABLE task ENABLE ALWAYS TRIGGER zz_pg_task_bound');
	wait_until($node, "SELECT count(*) = 3 FROM task WHERE flow LIKE 'bypassed%' AND state = 'DONE'");
	pass('rows that have bypassed the trigger');
};

subtest 'a flow is stopped and resumed' => sub {
	my $states = sub { return sql(q{SELECT string_agg(step || ' ' || state, ', ' ORDER BY step)
		FROM task WHERE flow = 'halt' AND state <> 'DONE'}) };

	sql('TRUNCATE task; TRUNCATE gate; CREATE ROLE creator LOGIN CREATEDB;
		CREATE ROLE reader LOGIN; GRANT SELECT ON task TO reader;
		GRANT SELECT, INSERT, UPDATE (flow) ON task TO creator;
		GRANT CONNECT ON DATABASE postgres TO reader, creator');
	sql_as('ann', q{INSERT INTO task (flow, step, needs, request) VALUES
		('halt', 'a', NULL, 'SELECT 1'), ('halt', 'b', '{a}', 'SELECT hold(''halt'')'),
		('halt', 'c', '{b}', 'SELECT 1'), ('halt', 'd', '{c}', 'SELECT 1'),
		('other', 'a', NULL, 'SELECT hold(''halt'')')});
	sql_as('bob', q{INSERT INTO task (flow, dt, request) VALUES ('halt', 'infinity', 'SELECT 1')});
	wait_for_running($node, 2, event => 'PgSleep');
	for my $call (q{pg_task_stop_flow('halt')}, q{pg_task_resume_flow('halt')})
	{
		is(sqlstate_of($_, "SELECT $call"), '42501', "$call: not without the right")
			for qw(reader creator);
	}
	is(sql_as('ann', q{SELECT pg_task_stop_flow('halt'), pg_task_stop_flow('none')}), '3|0',
		'what waits and runs is stopped');
	wait_until($node, q{SELECT stop IS NOT NULL FROM task WHERE flow = 'halt' AND step = 'b'});
	is($states->(), 'b STOP, c STOP, d STOP', 'and no more');
	is(sql_as('ann', q{SELECT pg_task_stop_flow('halt')}), 0, 'once');
	is(count_of($node, q{state = 'WORK' AND flow = 'other' OR state = 'PLAN' AND role = 'bob'}), 2,
		'nor other flows, or tasks of others');

	is(sql_as('ann', q{SELECT pg_task_resume_flow('halt')}), 3, 'they are resumed');
	wait_for_running($node, 2, event => 'PgSleep');
	is($states->(), 'b WORK, c PLAN, d PLAN', 'and wait as before');
	sql_as('ann', q{UPDATE task SET state = 'STOP' WHERE flow = 'halt' AND step = 'b'});
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE flow = 'halt' AND state = 'GONE'});
	is(sql_as('ann', q{SELECT pg_task_resume_flow('halt')}), 3,
		'with those that are GONE because one was stopped');
	open_gate($node, 'halt');
	wait_until($node, q{SELECT count(*) = 4 FROM task WHERE flow = 'halt' AND state = 'DONE'});

	# what waits for a task that has failed is GONE again
	my $fails = insert_task($node, flow => 'failed', step => 'load', request => 'SELECT 1/0');
	insert_task($node, flow => 'failed', step => 'report', needs => '{load}', request => 'SELECT 1');
	my $gone = q{SELECT count(*) = 1 FROM task WHERE flow = 'failed' AND state = 'GONE'};
	wait_until($node, $gone);
	is(notices_of('postgres', q{SELECT pg_task_resume_flow('failed')}),
		qq{NOTICE:  task $fails (step "load") is FAIL: division by zero\n}
		. qq{HINT:  SELECT pg_task_retry_dependents($fails) runs it again, and what waited for it.},
		'a notice tells of what has failed');
	is(notices_of('bob', q{SELECT pg_task_resume_flow('failed')}),
		'NOTICE:  no task of workflow "failed" is stopped that you may resume', 'not of tasks of others');
	sql("UPDATE task SET request = 'SELECT 1' WHERE id = $fails;
		SELECT pg_task_resume_flow('failed');
		SELECT pg_task_retry_dependents($fails)");
	wait_until($node, q{SELECT count(*) = 2 FROM task WHERE flow = 'failed' AND state = 'DONE'});
	pass('and its hint runs it');

	# what is just being given up goes on, too
	sql(q{INSERT INTO task (flow, step, needs, request, dt) SELECT 'chain', 's' || i,
		CASE WHEN i > 1 THEN ARRAY['s' || i - 1] END, 'SELECT 1',
		CASE WHEN i > 1 THEN now() ELSE 'infinity' END FROM generate_series(1, 200) AS i});
	my $third = sql(q{SELECT id FROM task WHERE flow = 'chain' AND step = 's3'});
	$node->safe_psql('postgres', qq{UPDATE task SET state = 'STOP', dt = now()
		WHERE flow = 'chain' AND step = 's1';
		CALL pg_task_wait_for(ARRAY[$third]);
		SELECT pg_task_resume_flow('chain')});
	wait_until($node, q{SELECT bool_and(state IN ('DONE', 'GONE')) FROM task
		WHERE flow = 'chain'});
	is(sql(q{SELECT count(*) FROM task WHERE flow = 'chain' AND state = 'DONE'}), 200,
		'also at once');

	my $id = run_task($node, flow => 'halt', role => 'bob',
		request => q{SELECT pg_task_stop_flow('halt')});

	is(task($node, $id, 'state, response'), 'DONE|1', 'a task of the flow does not stop itself');
};

# A task may have any number of attempts, and is interrupted now and then.
subtest 'interrupted after many attempts' => sub {
	my $id = run_task($node, attempt => 99,
		request => 'SELECT pg_terminate_backend(pg_backend_pid())');

	is_row($node, $id, { state => 'FAIL', attempt => 101, sqlstate => '57P01' }, 'twice in a row');
	sql('CREATE SEQUENCE once');
	$id = run_task($node, attempt => 200, request => q{SELECT nextval('once');
		SELECT pg_terminate_backend(pg_backend_pid()) WHERE currval('once') = 1});
	is_row($node, $id, { state => 'DONE', attempt => 202 }, 'once');
};

done_testing();
