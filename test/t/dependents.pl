# Tasks that wait until others have ended: each rule with each way to end, the moments in between,
# and what else decides when a task starts.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('dependents', conf => "pg_task.period = '200 ms'");

sql('CREATE ROLE app LOGIN; CREATE ROLE other LOGIN;
	GRANT INSERT, SELECT, UPDATE, DELETE ON task TO app, other');
make_gates($node);

# A task that waits for others.
sub insert_after
{
	my ($after, %column) = @_;

	return insert_task($node, after => '{' . join(',', ref $after ? @$after : $after) . '}',
		request => 'SELECT 1', %column);
}

# A task that ends in this state when the gate of that name is opened.  In one statement with the
# gate, the planner would compute the division before anything runs.
my %request = (DONE => "SELECT hold('%s')", FAIL => "SELECT hold('%s'); SELECT 1 / 0");

# One task for each rule, which waits for these.
my @rules = qw(done ended failed any);

# The states and codes of one task for each rule.
sub outcomes
{
	my (@ids) = @_;
	my $ids = join ', ', @ids;

	wait_until($node, "SELECT count(*) = 0 FROM task WHERE id IN ($ids) AND state IN ('PLAN', 'WORK')");
	return sql("SELECT string_agg(concat_ws(' ', rule, state, sqlstate), ', ' ORDER BY id)
		FROM task WHERE id IN ($ids)");
}

subtest 'each rule, each way to end' => sub {
	my %expected = (
		DONE => 'done DONE, ended DONE, failed GONE, any DONE',
		FAIL => 'done GONE TK005, ended DONE, failed DONE, any GONE TK005',
		STOP => 'done GONE TK005, ended DONE, failed DONE, any GONE TK005',
		GONE => 'done GONE TK005, ended DONE, failed DONE, any GONE TK005',
		deleted => 'done DONE, ended DONE, failed GONE, any DONE');
	for my $end (sort keys %expected)
	{
		for my $before (0, 1)
		{
			my $way = $end . ($before ? ', before the dependent is inserted' : '');
			my $id = insert_task($node, dt => 'infinity', request => $end eq 'FAIL'
				? 'SELECT 1/0' : 'SELECT 1', keep => $end eq 'deleted' ? '0' : undef);
			my $session = open_session($node, 'postgres');
			my @ids;

			$session->query_safe('BEGIN');
			for my $rule (@rules)
			{
				my $new = $session->query_safe("INSERT INTO task (after, rule, request)
					VALUES ('{$id}', '$rule', 'SELECT 1') RETURNING id");
				push @ids, $new;
			}
			$session->query_safe('COMMIT') unless $before;
			sql("UPDATE task SET dt = now() WHERE id = $id") if $end =~ /DONE|FAIL|deleted/;
			sql("UPDATE task SET state = 'STOP' WHERE id = $id") if $end eq 'STOP';
			sql("UPDATE task SET active = '1 ms', dt = now() - interval '1 hour', max = 0
				WHERE id = $id") if $end eq 'GONE';
			wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE id = $id
				AND state IN ('PLAN', 'WORK'))");
			$session->query_safe('COMMIT') if $before;
			$session->quit;
			is(outcomes(@ids), $expected{$end}, $way);
			next if $end !~ /FAIL|STOP|GONE/;
			is(task($node, $ids[0], 'error'), "task $id, for which this one waited, is $end",
				"$way: it names the culprit");
			is(task($node, $ids[0],
				"stop IS NOT NULL AND waits IS NULL AND attempt = 0 AND response"
				. " = 'ERROR:  ' || error"), 't', "$way: it has never run");
		}
	}
};

# The ids of new tasks that wait for their gates, by name.
sub gated
{
	my (%end) = @_;
	my %id;

	$id{$_} = insert_task($node, request => sprintf($request{ $end{$_} }, $_)) for sort keys %end;
	return %id;
}

subtest 'several tasks' => sub {
	my %id = gated(a => 'DONE', b => 'FAIL', c => 'DONE');
	my %after;

	for my $rule (@rules)
	{
		$after{$rule} = insert_after([ @id{qw(a b c)} ], rule => $rule);
		$after{"$rule done"} = insert_after([ @id{qw(c a)} ], rule => $rule);
	}
	is(count_of($node, 'after IS NOT NULL AND waits = ANY (after) AND state = \'PLAN\''), 8,
		'all wait');
	open_gate($node, 'a');
	wait_for_state($node, $after{$_}, 'DONE') for 'any', 'any done';
	open_gate($node, 'b');
	wait_for_state($node, $id{b}, 'FAIL');
	is(count_of($node, "after IS NOT NULL AND state = 'PLAN' AND rule IN ('ended', 'failed')"), 4,
		'the others wait until all have ended');
	open_gate($node, 'c');
	is(outcomes(@after{ map { ($_, "$_ done") } @rules }),
		'done GONE TK005, done DONE, ended DONE, ended DONE, failed DONE, failed GONE, any DONE, '
			. 'any DONE', 'each by its rule');
	is(sql(q{SELECT count(*) FROM task AS t WHERE after IS NOT NULL AND attempt > 0 AND t.start <=
		(SELECT least(max(p.stop), CASE t.rule WHEN 'any' THEN min(p.stop) END) FROM task AS p
		WHERE p.id = ANY (t.after))}), 0, 'none has started before');
	sql('DELETE FROM gate; TRUNCATE task');
};

# Each is GONE because of the one before.
subtest 'what follows from a failure' => sub {
	my @ids = insert_task($node, request => q{SELECT hold('f'); SELECT 1 / 0},
		retry => 1, delay => '1 ms');

	push @ids, insert_after($ids[-1], rule => $_) for qw(done done ended done);
	push @ids, insert_after($ids[1], rule => 'failed');
	open_gate($node, 'f');
	wait_for_state($node, $ids[4], 'DONE');
	wait_for_state($node, $ids[5], 'DONE');
	is(sql('SELECT string_agg(state, \' \' ORDER BY id) FROM task'),
		'FAIL GONE GONE DONE DONE DONE',
		'states');
	is(sql('SELECT string_agg(error, \', \' ORDER BY id) FROM task WHERE state = \'GONE\''),
		"task $ids[0], for which this one waited, is FAIL, "
			. "task $ids[1], for which this one waited, is GONE", 'each names its culprit');
	is(task($node, $ids[0], 'failed'), 2, 'the first one was retried before');

	sql("UPDATE task SET request = 'SELECT 1' WHERE id = $ids[0]");
	sql(q{UPDATE task SET state = 'PLAN', failed = 0 WHERE state IN ('FAIL', 'GONE')});
	wait_until($node, q{SELECT bool_and(state = 'DONE') FROM task});
	is(sql('SELECT count(*) FROM task AS t JOIN task AS p ON p.id = t.after[1]
		WHERE t.start <= p.stop AND t.id IN (' . join(', ', @ids[1, 2]) . ')'), 0,
		'they go on in order from where they failed');

	my $runs = insert_after($ids[0], request => q{SELECT hold('r')});
	wait_for_running($node, 1, id => $runs);
	sql("UPDATE task SET state = 'PLAN' WHERE id = $runs");
	wait_until($node, "SELECT attempt = 2 FROM task WHERE id = $runs");
	open_gate($node, 'r');
	wait_for_state($node, $runs, 'DONE');
	is(task($node, $runs, 'attempt'), 2, 'one that runs is cancelled, and waits anew');
	sql('DELETE FROM gate; TRUNCATE task');
};

# It has not ended while a retry is left.
subtest 'a task that is retried' => sub {
	my $id = insert_task($node, request => q{SELECT hold('retry'); SELECT 1 / 0}, retry => 1,
		delay => '1 hour');
	my @after = map { insert_after($id, rule => $_) } @rules;

	open_gate($node, 'retry');
	wait_until($node, "SELECT state = 'PLAN' AND failed = 1 FROM task WHERE id = $id");
	# the scheduler judges what has ended before it starts others
	run_task($node, request => 'SELECT 1') for 1 .. 2;
	is(count_of($node, "after = '{$id}' AND state = 'PLAN' AND waits = $id"), 4,
		'the others wait');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	is(outcomes(@after), 'done GONE TK005, ended DONE, failed DONE, any GONE TK005',
		'until the last run has failed');
	sql('DELETE FROM gate; TRUNCATE task');
};

# A task that is removed before it was DONE, in each state, while the dependents watch another one.
subtest 'removed tasks' => sub {
	sql('SET session_replication_role = replica; UPDATE task SET state = \'STOP\'; TRUNCATE task');
	for my $state (qw(PLAN WORK STOP FAIL GONE DONE))
	{
		my $id = insert_task($node, request => q{SELECT hold('never')}, dt => 'infinity');
		my %other = gated("o$state" => 'DONE');
		my ($other) = values %other;
		my @ids = map { my $rule = $_;
			map { insert_after($_, rule => $rule) } [ $id, $other ], [$id] } @rules;

		sql("UPDATE task SET dt = now() WHERE id = $id") if $state eq 'WORK';
		wait_for_running($node, 1, id => $id) if $state eq 'WORK';
		is(count_of($node, "waits = $other"), 4, "$state: half of them watch the other task")
			if $state ne 'DONE';
		# ended and removed in one commit, by the owner of the table
		sql('BEGIN;' . ($state =~ /PLAN|WORK/ ? '' : "UPDATE task SET state = '$state'
			WHERE id = $id;") . "SET LOCAL session_replication_role = replica;
			DELETE FROM task WHERE id = $id; COMMIT");
		wait_until($node, "SELECT count(*) = 0 FROM task WHERE waits = $id") if $state ne 'DONE';
		open_gate($node, "o$state");
		is(outcomes(@ids), $state eq 'DONE'
			? 'done DONE, done DONE, ended DONE, ended DONE, failed GONE, failed GONE, any DONE, any DONE'
			: 'done GONE TK005, done GONE TK005, ended DONE, ended DONE, failed DONE, failed DONE, '
				. 'any DONE, any GONE TK005', "$state: each by its rule");
		is(sql("SELECT DISTINCT error FROM task WHERE state = 'GONE' AND error IS NOT NULL"),
			$state eq 'DONE' ? '' : "task $id, for which this one waited, was removed",
			"$state: they name it");
		sql('DELETE FROM task WHERE state IN (\'DONE\', \'GONE\')');
	}

	# all of many for which one waits, and a part that is rolled back
	my @few = map { insert_task($node, request => 'SELECT 1', dt => 'infinity') } 0 .. 2;
	my @rest = map { insert_after([@few], rule => $_) } @rules;
	sql("BEGIN; SAVEPOINT s; DELETE FROM task WHERE id = $few[0]; ROLLBACK TO s; COMMIT");
	is(sql("SELECT DISTINCT after FROM task WHERE after IS NOT NULL"),
		'{' . join(',', @few) . '}', 'what is rolled back was not removed');
	sql("DELETE FROM task WHERE id = $few[2]");
	wait_for_state($node, $rest[0], 'GONE');
	is(sql("SELECT string_agg(concat_ws(' ', rule, state, after), ', ' ORDER BY id) FROM task
		WHERE after IS NOT NULL"), join(', ', map { "$_->[0] $_->[1] {$few[0],$few[1],NULL}" }
			[qw(done GONE)], map { [ $_, 'PLAN' ] } @rules[1 .. 3]), 'a NULL says that it was');
	sql("UPDATE task SET state = 'PLAN' WHERE id = $rest[0]");
	wait_for_state($node, $rest[0], 'GONE');
	is(task($node, $rest[0], 'error'), 'a task for which this one waited was removed',
		'so it is GONE again when it is planned again');
	sql("UPDATE task SET after = array_remove(after, NULL), state = 'PLAN' WHERE id = $rest[0]");
	is_row($node, $rest[0], { state => 'PLAN', waits => $few[1] },
		'... unless the NULL is taken out');
	sql("DELETE FROM task WHERE id IN ($few[0], $few[1])");
	is(outcomes(@rest), 'done GONE TK005, ended DONE, failed DONE, any GONE TK005',
		'each by its rule, when all were removed');
	sql('DELETE FROM gate; TRUNCATE task');
};

# Another role inserts a task with the id of one that is gone, while others wait for that one: it
# would be waited for, and its end would count.
subtest 'the id of a task that is gone' => sub {
	my @as_app = map { sql_as('app', "INSERT INTO task (request, dt, keep)
		VALUES ('SELECT 1', 'infinity', '0') RETURNING id") } 0 .. 2;
	my ($done, $removed, $last) = @as_app;
	my @waiting = map { sql_as('app', "INSERT INTO task (after, request)
		VALUES ('{$_, $last}', 'SELECT 1') RETURNING id") } $done, $removed;

	sql_as('app', "UPDATE task SET dt = now() WHERE id = $done");
	wait_until($node, "SELECT count(*) = 0 FROM task WHERE id = $done");
	sql_as('app', "DELETE FROM task WHERE id = $removed");
	is(sqlstate_of('other', "INSERT INTO task (id, request, dt)
		VALUES ($_, 'SELECT 1', 'infinity')"), '42501', 'it is not given to a task of another role')
		for $done, $removed;
	sql_as('app', "UPDATE task SET dt = now() WHERE id = $last");
	wait_until($node, "SELECT count(*) = 0 FROM task WHERE waits IS NOT NULL");
	wait_for_state($node, $waiting[0], 'DONE');
	is(task($node, $waiting[1], 'state, sqlstate'), 'GONE|TK005', 'a removed task stays removed');
	sql('TRUNCATE task');
};

# The dependent is inserted while the task is being removed, and the other way round.
subtest 'removed meanwhile' => sub {
	my ($one, $two) = map { open_session($node, 'postgres', on_error_stop => 0) } 1 .. 2;
	my $new = sub { return insert_task($node, request => 'SELECT 1', dt => 'infinity', @_) };
	my $insert = "INSERT INTO task (after, request) VALUES ('{%s}', 'SELECT 1') RETURNING id";
	my $pid = $two->query_safe('SELECT pg_backend_pid()');

	my $id = $new->();
	$one->query_safe('BEGIN');
	my $after = $one->query_safe(sprintf $insert, $id);
	$two->query_until(qr/begun/, "\\echo begun\nDELETE FROM task WHERE id = $id;\n");
	wait_until($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
	sql("UPDATE task SET dt = now() WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	$one->query_safe('COMMIT');
	$two->query('SELECT 1');
	wait_for_state($node, $after, 'DONE');
	is(task($node, $id, 'state'), '',
		'a DELETE waits for a transaction with a row that waits, and the task runs meanwhile');

	for my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
	{
		$id = $new->();
		$two->query_safe("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM task");
		$after = sql(sprintf $insert, $id);
		$two->query_safe("DELETE FROM task WHERE id = $id; COMMIT");
		wait_for_state($node, $after, 'GONE');
		is(task($node, $after, 'error'), "task $id, for which this one waited, was removed",
			"a DELETE sees what was committed before: $level");
	}

	for my $end ('COMMIT', 'ROLLBACK')
	{
		$id = $new->();
		# another version of the row, in the same transaction
		$one->query_safe("BEGIN; UPDATE task SET priority = 1 WHERE id = $id;
			DELETE FROM task WHERE id = $id");
		$two->query_until(qr/begun/, "\\echo begun\n" . sprintf("$insert;\n", $id));
		wait_until($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
		$one->query_safe($end);
		$two->query('SELECT 1');
		wait_until($node, "SELECT wait_event_type = 'Client' FROM pg_stat_activity WHERE pid = $pid");
		is(count_of($node, "after = '{$id}'"), $end eq 'COMMIT' ? 0 : 1,
			"it waits for the transaction that is removing the task: $end");
	}

	# an update of the task keeps nobody waiting
	$id = $new->();
	$one->query_safe("BEGIN; UPDATE task SET priority = 1 WHERE id = $id");
	is(sql(sprintf $insert, $id) > 0, 1, 'nor does it wait for one that changes the task');
	$one->query_safe('ROLLBACK');

	$id = $new->();
	$one->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM task');
	sql("DELETE FROM task WHERE id = $id");
	$one->query(sprintf $insert, $id);
	$one->query('COMMIT');
	is(count_of($node, "after = '{$id}'"), 0, 'an old snapshot does not show what is there');

	# who removes the task does not see the row that waits for it
	$id = sql_as('app', q{INSERT INTO task (request, dt) VALUES ('SELECT 1', 'infinity')
		RETURNING id});
	my %other = gated(w => 'DONE');
	$after = insert_after([ $id, $other{w} ]);
	sql_as('app', "SET search_path = public; DELETE FROM task WHERE id = $id");
	crash($node);
	open_gate($node, 'w');
	wait_for_state($node, $after, 'GONE');
	is(task($node, $after, 'error'), "task $id, for which this one waited, was removed",
		'also after a crash');
	$_->quit for $one, $two;
	sql('DELETE FROM gate; TRUNCATE task');
};

subtest 'who may wait for which task' => sub {
	my $mine = insert_task($node, request => 'SELECT 1', dt => 'infinity');
	my $insert = 'INSERT INTO task (id, after, request) VALUES (%s, %s, \'SELECT 1\')';
	my %error = (
		'DEFAULT, \'{0}\'' => '23503', "DEFAULT, '{$mine, 0}'" => '23503',
		"$mine + 1, ARRAY[$mine + 1]" => '23514', "DEFAULT, '{$mine, NULL}'" => '23514',
		"DEFAULT, '{{$mine}}'" => '', "DEFAULT, '{{$mine, $mine}, {1, 1}}'" => '23514',
		"DEFAULT, array_fill($mine, ARRAY[16385])" => '23514');

	for (sort keys %error)
	{
		my $values = $_;
		$error{$_} = '23514' if $values =~ /\{\{\d+\}\}/;
		is(sqlstate_of('postgres', "BEGIN; INSERT INTO task (id, after, request)
			VALUES ($values, 'SELECT 1'); ROLLBACK"), $error{$_}, $values);
	}
	is(sqlstate_of('postgres', "INSERT INTO task (after, rule, request)
		VALUES ('{$mine}', 'some', 'SELECT 1')"), '23514', 'an unknown rule');
	is(sqlstate_of('app', "INSERT INTO task (after, request) VALUES ('{$mine}', 'SELECT 1')"),
		'23503', 'a role does not wait for a row that it does not see');
	is(sqlstate_of('app', "INSERT INTO task (after, request) VALUES ('{}', 'SELECT 1')"), '',
		'nobody is waited for');
	my $own = sql_as('app', q{INSERT INTO task (request, dt) VALUES ('SELECT 1', 'infinity')
		RETURNING id});
	my $id = sql_as('app', "INSERT INTO task (after, waits, request)
		VALUES ('{$own}', 5, 'SELECT 1') RETURNING id");
	is(task($node, $id, 'waits'), $own, 'the server chooses what a row watches');
	is(sqlstate_of('app', "UPDATE task SET after = '{$mine}' WHERE id = $id"), '23503',
		'nor by an UPDATE');
	sql_as('app', "UPDATE task SET waits = NULL WHERE id = $id");
	is(task($node, $id, 'waits'), $own, 'nobody else writes it');
	is(sql_as('app', q{INSERT INTO task (waits, request) VALUES (5, 'SELECT 1')
		RETURNING waits IS NULL}), 't', 'a row that names none waits for none');
	sql_as('app', "UPDATE task SET after = NULL WHERE id = $id");
	wait_for_state($node, $id, 'DONE');
	sql('TRUNCATE task');
};

# The rows that a user waits for are read under his policies, which may insert other such rows.
subtest 'a policy that inserts' => sub {
	is(sql_as('app', q{
		CREATE TEMP TABLE one (LIKE task INCLUDING ALL);
		CREATE TEMP TABLE two (LIKE task INCLUDING ALL);
		CREATE TRIGGER bound BEFORE INSERT ON one FOR EACH ROW EXECUTE FUNCTION pg_task_bound();
		CREATE TRIGGER bound BEFORE INSERT ON two FOR EACH ROW EXECUTE FUNCTION pg_task_bound();
		INSERT INTO two (flow, step, request) VALUES ('f', 's', 'SELECT 1');
		INSERT INTO one (flow, step, request) VALUES ('f', 's', 'SELECT 1');
		CREATE FUNCTION pg_temp.plan(bigint) RETURNS bool LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO two (after, request) VALUES ('{1}', 'SELECT 1');
			INSERT INTO two (flow, needs, request) VALUES ('f', '{s}', 'SELECT 1');
			RETURN true;
		END $$;
		ALTER TABLE one ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
		CREATE POLICY plan ON one USING (pg_temp.plan(id)) WITH CHECK (true);
		INSERT INTO one (after, request) VALUES ('{1}', 'SELECT 1'), ('{1}', 'SELECT 1');
		INSERT INTO one (flow, needs, request) VALUES ('f', '{s}', 'SELECT 1');
		SELECT count(*) > 1, bool_and(after = '{1}') FROM two WHERE waits = 1}), 't|t',
		'both are read');
};

# Our trigger marks rows of a table of the user's; meanwhile, a trigger of his writes the task
# table.
subtest 'a table of a user that marks rows' => sub {
	my $hidden = insert_task($node, request => 'SELECT 1', dt => 'infinity');
	my $own = sql_as('app', q{INSERT INTO task (request, dt) VALUES ('SELECT 1', 'infinity')
		RETURNING id});
	my $table = q{
		CREATE TEMP TABLE one (LIKE task INCLUDING ALL);
		CREATE TRIGGER removed AFTER DELETE ON one FOR EACH ROW EXECUTE FUNCTION pg_task_removed();
		INSERT INTO one (id, request) VALUES (1, 'SELECT 1');
		INSERT INTO one (id, request, after, waits) VALUES (2, 'SELECT 1', '{1}', 1);};
	my %error = ("'{$hidden}', waits = $hidden" => '23503', "'{{$own}, {1}}'" => '23514');

	for (sort keys %error)
	{
		is(sqlstate_of('app', "$table
			CREATE FUNCTION pg_temp.act() RETURNS trigger LANGUAGE plpgsql AS \$\$
			BEGIN
				UPDATE public.task SET after = $_ WHERE id = $own;
				RETURN NULL;
			END \$\$;
			CREATE TRIGGER act AFTER UPDATE ON one FOR EACH ROW EXECUTE FUNCTION pg_temp.act();
			DELETE FROM one WHERE id = 1"), $error{$_}, "after = $_");
	}
	is(sql_as('app', "$table
		CREATE TRIGGER timed BEFORE UPDATE ON one FOR EACH ROW EXECUTE FUNCTION pg_task_timed();
		DELETE FROM one WHERE id = 1; SELECT after FROM one"), '{NULL}',
		'such a table is marked');
	sql('TRUNCATE task');
};

# Rows of a foreign table are read, and not locked.
subtest 'a foreign table' => sub {
	my ($host, $port) = ($node->host, $node->port);

	sql("CREATE EXTENSION postgres_fdw;
		CREATE SERVER here FOREIGN DATA WRAPPER postgres_fdw
			OPTIONS (host '$host', port '$port', dbname 'postgres');
		CREATE USER MAPPING FOR postgres SERVER here OPTIONS (user 'postgres');
		CREATE TABLE one (LIKE task INCLUDING ALL);
		CREATE SCHEMA far; IMPORT FOREIGN SCHEMA public LIMIT TO (one) FROM SERVER here INTO far;
		CREATE TRIGGER bound BEFORE INSERT ON far.one FOR EACH ROW
			EXECUTE FUNCTION pg_task_bound()");
	my $row = q{INSERT INTO far.one SELECT (jsonb_populate_record(NULL::one, to_jsonb(t) || '%s')).*
		FROM task AS t};
	insert_task($node, request => 'SELECT 1', dt => 'infinity');
	sql(sprintf($row, '{"id": 1}'));
	sql(sprintf($row, '{"id": 2, "after": [1]}'));
	is(sql('SELECT waits FROM one WHERE id = 2'), 1, 'a task there is watched');
	sql('DROP SERVER here CASCADE; DROP SCHEMA far; DROP TABLE one; TRUNCATE task');
};

# The error comes when the statement on the hidden table is prepared, the one on the other is kept.
subtest 'a table whose schema is closed' => sub {
	sql('CREATE SCHEMA closed AUTHORIZATION app');
	is(sql_as('app', q{
		CREATE TEMP TABLE one (LIKE task INCLUDING ALL);
		CREATE TABLE closed.two (LIKE task INCLUDING ALL);
		CREATE TRIGGER bound BEFORE INSERT ON one FOR EACH ROW EXECUTE FUNCTION pg_task_bound();
		CREATE TRIGGER bound BEFORE INSERT ON closed.two FOR EACH ROW
			EXECUTE FUNCTION pg_task_bound();
		CREATE TEMP VIEW hidden AS SELECT * FROM closed.two;
		INSERT INTO one (request) VALUES ('SELECT 1');
		INSERT INTO one (after, request) VALUES ('{1}', 'SELECT 1');
		REVOKE USAGE ON SCHEMA closed FROM app;
		DO $$ BEGIN INSERT INTO hidden (after, request) VALUES ('{7}', 'SELECT 1');
			EXCEPTION WHEN insufficient_privilege THEN END $$;
		INSERT INTO one (after, request) VALUES ('{1}', 'SELECT 1');
		-- the end of the session would drop it at the same time as DROP SCHEMA, in another order
		DROP VIEW hidden;
		SELECT count(*) FROM one WHERE waits = 1}), 2, 'the other is read as before');
	sql('DROP SCHEMA closed CASCADE');
};

# The table is empty when the statements are planned that read what the rows wait for.
subtest 'many rows in a new table' => sub {
	my $scans = q{pg_stat_xact_user_tables WHERE relid = 'task'::regclass};

	is(sql(qq{BEGIN; TRUNCATE task; CREATE TEMP TABLE before AS SELECT seq_scan FROM $scans;
		INSERT INTO task (id, dt, flow, step, request) VALUES (0, 'infinity', 'f', '0', 'SELECT 1');
		INSERT INTO task (flow, step, needs, request)
			SELECT 'f', i, ARRAY[(i - 1)::text], 'SELECT 1' FROM generate_series(1, 20) AS i;
		INSERT INTO task (after, request) SELECT '{0}', 'SELECT 1' FROM generate_series(1, 20);
		SELECT seq_scan - (SELECT seq_scan FROM before) FROM $scans;
		ROLLBACK}), 0, 'none reads the whole table');
	my @insert = map { qq{SET LOCAL ROLE $_; WITH first AS (INSERT INTO task (dt, request)
			VALUES ('infinity', 'SELECT 1') RETURNING id)
		INSERT INTO task (after, request) SELECT ARRAY[id], 'SELECT 1'
			FROM first, generate_series(1, 20); RESET ROLE} } qw(app other);
	is(sql(qq{TRUNCATE task; ANALYZE task; BEGIN; $insert[0];
		CREATE TEMP TABLE before AS SELECT seq_scan FROM $scans; $insert[1];
		SELECT seq_scan - (SELECT seq_scan FROM before) FROM $scans;
		ROLLBACK}), 0, '... nor for another user');
};

# A waiting row that was planned for long ago, or for later, or that expires.
subtest 'what else decides when a task starts' => sub {
	my %id = gated(t => 'DONE');
	my $old = insert_after($id{t}, dt => '2001-01-01', active => '1 hour');
	my $later = insert_after($id{t}, dt => '2200-01-01');
	my $key = insert_after($id{t}, key => 'k', queue => 'q');
	my $chain = insert_after($id{t}, repeat => '1 day', dt => '2001-01-01 12:34');
	my $stopped = insert_after($id{t});
	my $after = insert_after([ $stopped, $id{t} ], rule => 'failed');

	is(sqlstate_of('postgres', q{INSERT INTO task (queue, key, request)
		VALUES ('q', 'k', 'SELECT 1')}), '23505', 'it holds its key while it waits');
	sql("UPDATE task SET state = 'STOP' WHERE id = $stopped");
	is(task($node, $old, 'state'), 'PLAN', 'it does not expire while it waits');
	open_gate($node, 't');
	wait_for_state($node, $_, 'DONE') for $old, $key, $after, $chain;
	is(sql("SELECT count(*) FROM task AS t JOIN task AS p ON p.id = $id{t}
		WHERE t.id IN ($old, $key) AND t.dt >= p.stop AND t.start >= t.dt"), 2,
		'it is planned for the moment when it was free');
	is_row($node, $later, { state => 'PLAN', waits => undef, "dt = '2200-01-01'" => 'true' },
		'a time to come stays');
	is(sql("SELECT n.after, n.waits, n.dt = t.dt + interval '1 day' FROM task AS n
		JOIN task AS t ON n.parent = t.id WHERE t.id = $chain"), '||t',
		'the next run waits for nobody, and is counted from then');
	is(task($node, $stopped, 'state'), 'STOP', 'a task that waits can be stopped');
	sql('DELETE FROM gate; TRUNCATE task');
};

# More than commits name one by one; one row that refuses to be written, and one that is locked.
subtest 'many tasks' => sub {
	my $session = open_session($node, 'postgres');

	sql(q{CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE 'refused'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW WHEN (NEW.queue = 'refused'
			AND NEW.waits IS NULL) EXECUTE FUNCTION refuse();
		BEGIN;
		INSERT INTO task (id, request, dt) VALUES (0, 'SELECT 1', 'infinity');
		INSERT INTO task (id, request, after) SELECT i, 'SELECT 1', ARRAY[i - 1]
			FROM generate_series(1, 300) AS i;
		INSERT INTO task (id, request, after) SELECT 1000 + i, 'SELECT 1', '{0}'
			FROM generate_series(1, 2000) AS i;
		INSERT INTO task (id, request, after) VALUES (4000, 'SELECT 1',
			(SELECT array_agg(id) FROM task));
		INSERT INTO task (id, queue, request, after) VALUES (4001, 'refused', 'SELECT 1', '{0}'),
			(4002, 'locked', 'SELECT 1', '{0}');
		COMMIT});
	$session->query_safe('BEGIN; SELECT FROM task WHERE id = 4002 FOR UPDATE');
	sql('UPDATE task SET dt = now() WHERE id = 0');
	wait_for_state($node, 4000, 'DONE');
	is(sql('SELECT count(*) FROM task AS t JOIN task AS p ON p.id = ANY (t.after)
		WHERE t.start <= p.stop'), 0, 'each has started after those before it');
	is(count_of($node, q{state <> 'DONE' OR attempt <> 1}), 2, 'all have run');
	is(sql(q{SELECT string_agg(concat_ws(' ', queue, state, waits), ', ' ORDER BY id)
		FROM task WHERE id > 4000}), 'refused PLAN 0, locked PLAN 0',
		'a locked row waits, and so does one that cannot be written');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_for_state($node, 4002, 'DONE');
	sql('DROP TRIGGER refuse ON task');
	wait_for_state($node, 4001, 'DONE');
	sql('TRUNCATE task; ALTER SEQUENCE task_id_seq RESTART 10000');
};

# The scheduler is not there, or the server crashes, when tasks end.
subtest 'rows that wait for very many tasks' => sub {
	my ($before, $probe);
	# the scheduler reports what it has read when it exits
	my $reads = sub {
		my ($pid) = backends($node, 'scheduler');

		terminate($node, $pid);
		wait_for_exit($node, $pid);
		return sql(q{SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE relname = 'task'});
	};

	sql("INSERT INTO task (queue, dt, request)
		SELECT 'many', 'infinity', 'SELECT 1' FROM generate_series(1, 10000)");
	for my $ids ('(SELECT array_agg(id) || 0 FROM task)', 'array_fill(1, ARRAY[10001])')
	{
		like(error_of('postgres', "INSERT INTO task (after, request) VALUES ($ids, 'SELECT 1')"),
			qr/"after" of a task must name at most 10000 tasks/, 'there is a limit');
	}
	like(error_of('postgres', "INSERT INTO task (flow, needs, request)
			VALUES ('wide', array_fill('s'::text, ARRAY[10001]), 'SELECT 1')"),
		qr/"needs" of a task must name at most 10000 steps/, '... also for steps');
	sql("INSERT INTO task (queue, after, rule, request)
		SELECT 'one', (SELECT array_agg(id ORDER BY id) FROM task WHERE queue = 'many'), 'ended',
			'SELECT 1' FROM generate_series(1, 20)");
	$before = $reads->();
	sql("UPDATE task SET state = 'STOP' WHERE queue = 'many' AND id % 2 = (SELECT max(id) % 2
		FROM task WHERE queue = 'many')");
	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task AS t WHERE waits IS NOT NULL
		AND (SELECT state FROM task AS p WHERE p.id = t.waits) = 'STOP')");
	cmp_ok($reads->() - $before, '<', 50000,
		'while others have not ended, few of 20 times 10,000 are read');
	$probe = sql("WITH u AS (UPDATE task SET state = 'STOP' WHERE queue = 'many' AND state = 'PLAN')
		INSERT INTO task (request) VALUES ('SELECT 1') RETURNING id");
	wait_until($node, "SELECT bool_and(state = 'DONE') FROM task WHERE queue = 'one'");
	is(sql("SELECT count(*) > 0 FROM task WHERE queue = 'one'
			AND dt > (SELECT stop FROM task WHERE id = $probe)"), 't',
		'another task is done while they are judged');
	sql('TRUNCATE task');
};

subtest 'a crash, and no scheduler' => sub {
	my %id = gated(x => 'DONE', y => 'DONE');
	my @after = map { insert_after([ @id{qw(x y)} ], rule => $_) } @rules;

	wait_for_running($node, 2);
	open_gate($node, 'x');
	wait_for_state($node, $id{x}, 'DONE');
	wait_for_state($node, $after[3], 'DONE');
	crash($node);
	wait_for_running($node, 1);
	is(count_of($node, q{state = 'PLAN' AND waits IS NOT NULL}), 3, 'the others wait');
	sql('ALTER DATABASE postgres SET pg_task.enabled = off');
	wait_for_backends($node, 'scheduler', 0);
	open_gate($node, 'y');
	wait_for_state($node, $id{y}, 'DONE');
	sql('ALTER DATABASE postgres RESET pg_task.enabled');
	is(outcomes(@after), 'done DONE, ended DONE, failed GONE, any DONE', 'a start finds them');
	sql('DELETE FROM gate; TRUNCATE task');
};

# Rows that come with what they watch: replicated, or from a dump.
subtest 'rows from elsewhere' => sub {
	my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
	my %id = gated(d => 'DONE');
	my $done = insert_task($node, request => 'SELECT 1');
	my $free = insert_after($done, dt => 'infinity');
	my @after = map { insert_after([ $done, $id{d} ], rule => $_) } 'done', 'failed';

	wait_for_running($node, 1, id => $id{d});
	wait_for_state($node, $done, 'DONE');
	wait_until($node, "SELECT waits IS NULL FROM task WHERE id = $free");
	sql("DELETE FROM task WHERE id = $done");
	PostgreSQL::Test::Utils::command_ok([ 'pg_dump', '-h', $node->host, '-p', $node->port, '-f',
		$dump, 'postgres' ], 'dump');
	sql('CREATE DATABASE copy IS_TEMPLATE true');
	PostgreSQL::Test::Utils::command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-h',
		$node->host, '-p', $node->port, '-f', $dump, 'copy' ], 'restore');
	sql_in('postgres', 'ALTER DATABASE copy IS_TEMPLATE false');
	sql_in('copy', q{SELECT pg_task_release(); INSERT INTO gate VALUES ('d')});
	wait_for_state($node, $after[0], 'DONE', db => 'copy');
	wait_for_state($node, $after[1], 'GONE', db => 'copy');
	is(sql_in('copy', 'SELECT count(*) FROM task AS t JOIN task AS p ON p.id = ANY (t.after)
		WHERE t.start <= p.stop'), 0, 'restored rows wait');
	is(task($node, $after[0], 'state'), 'PLAN', 'those from which they come, too');

	sql_in('copy', "SET session_replication_role = replica;
		INSERT INTO task (id, after, waits, rule, request) VALUES
			(50001, '{50000}', 50000, 'done', 'SELECT 1'),
				(50002, '{50000}', NULL, NULL, 'SELECT 1');
		INSERT INTO task (id, dt, request) VALUES (50000, 'infinity', 'SELECT 1')")
		for 1;
	wait_for_state($node, 50002, 'DONE', db => 'copy');
	open_gate($node, 'd');
	wait_for_state($node, $after[0], 'DONE');
	sql('DROP DATABASE copy WITH (FORCE)');
	sql('DELETE FROM gate; TRUNCATE task');
};

# In an apply worker all rows look replicated.  Those of its triggers are not.
subtest 'rows that a trigger inserts where rows are replicated' => sub {
	my $told = qr/\AWARNING:  "after", "needs" and "cron" of this task are not heeded[^\n]*
DETAIL:[^\n]*\nHINT:[^\n]*\z/;

	sql(q{CREATE TABLE arrives (columns text);
		CREATE FUNCTION arrives() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			EXECUTE 'INSERT INTO task (request, ' || NEW.columns; RETURN NULL; END $$;
		CREATE TRIGGER arrives BEFORE INSERT ON arrives FOR EACH ROW EXECUTE FUNCTION arrives();
		ALTER TABLE arrives ENABLE ALWAYS TRIGGER arrives});
	my $id = insert_task($node, request => 'SELECT 1', dt => 'infinity', flow => 'f', step => 's');
	for my $columns ("after) VALUES ('SELECT 1', '{$id}')",
		"flow, needs) VALUES ('SELECT 1', 'f', '{s}')", "cron) VALUES ('SELECT 1', '0 3 * * *')",
		"dt) VALUES ('SELECT 1', now())")
	{
		my $is_heeded = $columns =~ /^dt/;
		my $insert = "INSERT INTO arrives SELECT \$q\$$columns\$q\$ FROM generate_series(1, 2)";
		my $notices = notices_of('postgres', "SET session_replication_role = replica; $insert");

		is(notices_of('postgres', $insert) =~ /WARNING/, '', "$columns: as in any session");
		$is_heeded ? is($notices, '', 'none') : like($notices, $told, 'a replica: one warning');
	}
	is(notices_of('postgres', "SET session_replication_role = replica;
		INSERT INTO task (request, after) VALUES ('SELECT 1', '{$id}')"), '', 'a replicated row');
	sql('DROP TABLE arrives; DROP FUNCTION arrives');
	sql("SET client_min_messages = error; DELETE FROM task");
};

# Rows of a dump come in the order in which they lie in the table, and without those that are gone.
# The index on what rows watch has rows in any state: these have not been told that they wait for
# nothing any more.
subtest 'ended rows that watch a task' => sub {
	my ($first, $gone) = map { insert_task($node, request => 'SELECT 1', dt => 'infinity') } 1 .. 2;
	my $ended = join ', ', map { insert_after($first, rule => $_) } @rules;
	my @after;

	sql("SET session_replication_role = replica; UPDATE task SET state = 'STOP' WHERE id IN ($ended)");
	is(count_of($node, "id IN ($ended) AND waits = $first"), 4, 'they watch it');
	@after = map { insert_after($first, rule => $_) } 'done', 'any';
	sql("DELETE FROM task WHERE id = $gone");
	sql("UPDATE task SET dt = now() WHERE id = $first");
	wait_for_state($node, $_, 'DONE') for @after;
	is(count_of($node, "id IN ($ended) AND state = 'STOP' AND attempt = 0"), 4,
		'they stay as they are, and count for no one');
	sql('TRUNCATE task');
};

subtest 'rows of a dump into a table that is there' => sub {
	my $rows = PostgreSQL::Test::Utils::tempdir() . '/rows';
	my $first = insert_task($node, request => 'SELECT 1', dt => 'infinity');
	my $gone = insert_task($node, request => 'SELECT 1', keep => '0', dt => 'infinity');
	my @after = map { insert_after([ $gone, $first ], rule => $_) } 'done', 'any', 'failed';
	my $none = 'SELECT NOT EXISTS (SELECT FROM task WHERE';

	sql("UPDATE task SET dt = now() WHERE id = $gone");
	wait_until($node, "$none id = $gone OR id = $after[1] AND state <> 'DONE')");
	sql("COPY (SELECT * FROM task ORDER BY id DESC) TO '$rows'; TRUNCATE task");
	is(sqlstate_of('app',
			q{INSERT INTO task (role_id, after, request) VALUES (1, '{0}', 'SELECT 1')}), '23503',
		'nobody else brings them');
	sql("COPY task FROM '$rows'");
	is(sql("SELECT string_agg(concat_ws(' ', state, waits), ', ' ORDER BY id) FROM task"),
		"PLAN, PLAN $first, DONE, PLAN $first", 'they come as they were');
	sql("UPDATE task SET dt = now() WHERE id = $first");
	wait_until($node, "$none state = 'PLAN')");
	is(outcomes(@after), 'done DONE, any DONE, failed GONE', 'and wait');
	is(sql("SELECT p.stop < t.start FROM task AS p, task AS t
			WHERE p.id = $first AND t.id = $after[0]"), 't',
		'... for what was there');
	sql('TRUNCATE task');
};

subtest 'a partitioned table' => sub {
	sql('CREATE DATABASE parts IS_TEMPLATE true');
	sql_in('parts', q{CREATE TABLE task (id bigint GENERATED BY DEFAULT AS IDENTITY,
			dt timestamptz NOT NULL DEFAULT now(), request text NOT NULL,
			state text NOT NULL DEFAULT 'PLAN', attempt int NOT NULL DEFAULT 0,
			PRIMARY KEY (id, dt)) PARTITION BY RANGE (dt);
		CREATE TABLE past PARTITION OF task FOR VALUES FROM (MINVALUE) TO ('2020-01-01');
		CREATE TABLE future PARTITION OF task DEFAULT});
	sql('ALTER DATABASE parts IS_TEMPLATE false');
	wait_until($node, q{SELECT count(*) = 6 FROM pg_trigger WHERE tgrelid = 'task'::regclass},
		db => 'parts');
	sql_in('parts', q{BEGIN; INSERT INTO task (id, request, dt) VALUES (0, 'SELECT 1', 'infinity');
		INSERT INTO task (id, request, dt, after, rule) SELECT i, 'SELECT 1', '2019-01-01',
			ARRAY[0, i - 1], CASE WHEN i % 2 = 0 THEN 'any' END FROM generate_series(1, 50) AS i;
		COMMIT; UPDATE task SET dt = now() WHERE id = 0});
	wait_until($node, q{SELECT bool_and(state = 'DONE') FROM task}, db => 'parts');
	is(sql_in('parts', 'SELECT count(*) FROM task AS t JOIN task AS p ON p.id = ANY (t.after)
		WHERE t.start <= p.stop AND t.rule IS NULL'), 0, 'in order');
};

sql('DROP TABLE IF EXISTS effect;
	CREATE TABLE effect (id bigint, at timestamptz DEFAULT clock_timestamp()); TRUNCATE task');

# Inserts a task that waits for its gate, and, in one INSERT, this number that wait for it.
sub insert_fan
{
	my ($gate, $count, %column) = @_;
	my $request = delete $column{request} // 'INSERT INTO effect SELECT pg_task_id()';
	my $id = insert_task($node, queue => 'first', request => "SELECT hold('$gate')");
	my @names = sort keys %column;

	sql('INSERT INTO task (after, request' . join('', map { ", $_" } @names) . ") SELECT '{$id}', "
		. literal($request)
		. join('', map { ', ' . literal($column{$_}) } @names)
		. " FROM generate_series(1, $count)");
	return $id;
}

# All tasks have ended, and each has had its effect once.
sub check_effects
{
	my ($count, $name) = @_;

	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))");
	is(sql(q{SELECT count(*), count(DISTINCT e.id), count(*) FILTER (WHERE state = 'DONE'
		AND attempt = 1 AND waits IS NULL AND planned IS NULL AND start >= dt)
		FROM effect AS e JOIN task USING (id)}), "$count|$count|$count",
			"$name: each has run once");
	sql('TRUNCATE task, effect; DELETE FROM gate');
	return;
}

# The largest number of tasks of a queue that ran at the same time.
sub most_at_once
{
	my ($queue) = @_;

	return sql("SELECT max(n) FROM (SELECT count(*) AS n FROM task AS a JOIN task AS b
		ON b.start <= a.start AND b.stop > a.start
		WHERE a.queue = '$queue' AND b.queue = '$queue' GROUP BY a.id) AS s");
}

subtest 'limits' => sub {
	my $id = insert_fan('limits', 40, queue => 'two', max => 2);
	my $strict;

	insert_rule('rule', max => 1);
	insert_rule('paused', paused => 't');
	insert_rule('strict', strict => 't', max => 1);
	sql(qq{INSERT INTO task (after, queue, request) SELECT '{$id}', queue,
		'INSERT INTO effect SELECT pg_task_id(); SELECT pg_sleep(0.002)'
		FROM unnest('{rule, paused, strict}'::text[]) AS queue, generate_series(1, 20)});
	sql(qq{UPDATE task SET request = request || '; SELECT pg_sleep(0.002)' WHERE queue = 'two'});
	open_gate($node, 'limits');
	wait_until($node, "SELECT count(*) = 80 FROM effect");
	cmp_ok(most_at_once('two'), '<=', 2, 'the column "max"');
	is(most_at_once('rule'), 1, 'the rule of a queue');
	is(most_at_once('strict'), 1, 'a strict queue');
	is(sql(q{SELECT count(*) FROM task WHERE queue = 'paused' AND state = 'PLAN'}), 20,
		'a queue that is paused');
	sql('DELETE FROM task_queue');
	check_effects(100, 'limits');
};

# Rows that wait for no task and are due start before those that are freed.
subtest 'order' => sub {
	sql('ALTER SYSTEM SET pg_task.role_executors = 1');
	apply_conf($node);
	my $id = insert_fan('order', 20, priority => 0);

	wait_for_running($node, 1);
	insert_task($node, queue => 'plain', request => 'INSERT INTO effect SELECT pg_task_id()')
		for 1 .. 5;
	open_gate($node, 'order');
	wait_until($node, 'SELECT count(*) = 25 FROM effect');
	is(sql(q{SELECT bool_and(queue = 'plain') FROM (SELECT queue FROM effect JOIN task USING (id)
		ORDER BY at LIMIT 5) AS s}), 't', 'tasks that were due before go first');
	check_effects(25, 'order');
	sql('ALTER SYSTEM RESET pg_task.role_executors');
	apply_conf($node);
};

# What happens between the end of a task and the start of one that waits for it.
subtest 'rows that are changed or locked' => sub {
	my $id = insert_fan('locked', 10);
	my $other = insert_task($node, queue => 'first', dt => 'infinity', request => 'SELECT 1');
	my @rows = split /\n/, sql("SELECT id FROM task WHERE after = '{$id}' ORDER BY id");
	my $session = open_session($node, 'postgres');

	$session->query_safe("BEGIN; SELECT FROM task WHERE id IN ($rows[0], $rows[1]) FOR UPDATE;
		UPDATE task SET after = '{$other}' WHERE id = $rows[2]; DELETE FROM task WHERE id = $rows[3]");
	open_gate($node, 'locked');
	wait_until($node, 'SELECT count(*) = 6 FROM effect');
	is(sql("SELECT string_agg(state, ' ' ORDER BY id) FROM task WHERE id IN
		($rows[0], $rows[1], $rows[2], $rows[3])"), 'PLAN PLAN PLAN PLAN', 'locked rows wait');
	$session->query_safe('COMMIT');
	$session->quit;
	wait_until($node, 'SELECT count(*) = 8 FROM effect');
	is_row($node, $rows[2], { state => 'PLAN', waits => $other }, 'one waits for another task now');
	sql("UPDATE task SET dt = now() WHERE id = $other");
	check_effects(9, 'rows that are changed or locked');
};

# One of them plans the task again for which all wait: none is freed from then on.
subtest 'a task that runs again' => sub {
	my $id = insert_fan('again', 20000);

	sql(qq{UPDATE task SET request = 'UPDATE task SET state = ''PLAN'', dt = ''infinity'' WHERE id = $id;
		INSERT INTO effect SELECT pg_task_id()' WHERE id = $id + 1000});
	open_gate($node, 'again');
	wait_until($node, "SELECT dt = 'infinity' FROM task WHERE id = $id");
	my $since = sql('SELECT clock_timestamp()');
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state = 'WORK'
		OR (state = 'PLAN' AND waits IS NULL AND dt < 'infinity'))});
	is(sql("SELECT count(*) FROM task WHERE dt > '$since' AND waits IS NULL AND id <> $id"), 0,
		'none has started after that');
	cmp_ok(sql('SELECT count(*) FROM task WHERE waits IS NOT NULL'), '>', 0, 'the others wait');
	sql("UPDATE task SET dt = now() WHERE id = $id");
	check_effects(20000, 'a task that runs again');
};

subtest 'a crash amid many' => sub {
	insert_fan('crash', 1500);
	open_gate($node, 'crash');
	wait_until($node, 'SELECT count(*) > 200 FROM effect');
	crash($node);
	wait_until($node, "SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))");
	is(sql(q{SELECT count(*), count(DISTINCT id) FROM effect}), '1500|1500', 'each effect once');
};

done_testing();
