# A random graph of tasks that wait for others: what each has seen of those for which it waited, and
# how all ended.  Failures, retries, stops, removals, terminated processes and crashes come
# meanwhile.  PG_TASK_GRAPH='seed tasks' is another graph.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use List::Util qw(min);
use Test::More;

my $node = new_node('graphs');
my @rules = qw(done ended failed any);

# Rows whose state contradicts their rule and the states of the tasks for which they have waited;
# these are final, and stopped tasks are what their users made them.
my $contradictions = q{SELECT t.id, t.rule, t.state, t.error,
		array(SELECT coalesce(p.state, 'no ' || d.state) FROM unnest(t.after) AS a (id)
			LEFT JOIN task AS p USING (id) LEFT JOIN deleted AS d USING (id)) AS ends
	FROM task AS t CROSS JOIN LATERAL (SELECT count(*) AS n,
			count(*) FILTER (WHERE coalesce(p.state, d.state) = 'DONE') AS done
		FROM unnest(t.after) AS a (id) LEFT JOIN task AS p USING (id)
		LEFT JOIN deleted AS d USING (id)) AS p
	WHERE t.state NOT IN ('STOP') AND CASE coalesce(t.rule, 'done') WHEN 'done' THEN n = done
		WHEN 'any' THEN n = 0 OR done > 0 WHEN 'failed' THEN n = 0 OR done < n ELSE true END
		IS DISTINCT FROM (t.state IN ('DONE', 'FAIL'))};

my ($seed, $count) = split / /, $ENV{PG_TASK_GRAPH} // '20261122 400';
my $pick = 0;

note("PG_TASK_GRAPH='$seed $count'");
srand($seed);
sql(q{CREATE TABLE broken (id bigint); CREATE TABLE deleted (id bigint, state text);
	CREATE TABLE ran (id bigint, seen text[]);
	CREATE FUNCTION run() RETURNS void LANGUAGE plpgsql AS $$
	DECLARE me bigint := current_setting('pg_task.id');
	BEGIN
		INSERT INTO ran SELECT me, array_agg(p.state) FROM task AS t
			LEFT JOIN task AS p ON p.id = ANY (t.after) WHERE t.id = me;
		IF me % 5 = 0 THEN PERFORM pg_sleep(0.002); END IF;
		IF EXISTS (SELECT FROM broken WHERE id = me) THEN RAISE 'broken'; END IF;
	END $$;
	TRUNCATE task; ALTER SEQUENCE task_id_seq RESTART});
my %deleted;
my $row = sub {
	my ($id) = @_;
	my %after = map { int(rand($id)) => 1 } 1 .. int(rand(4));
	delete @after{ 0, keys %deleted };
	my $rule = (map { "'$_'" } @rules, 'done', 'done')[ rand 6 ];
	return "($id, " . (%after ? "'{" . join(',', sort keys %after) . "}'" : 'NULL')
	  . ", $rule, " . int(rand(2)) . ", '1 ms', 'SELECT run()')";
};
sql('INSERT INTO broken SELECT i FROM generate_series(1, ' . $count . ') AS i WHERE '
	. "hashint8extended(i, $seed) % 7 = 0");
for (my $first = 1; $first <= $count; $first += 50)
{
	sql('INSERT INTO task (id, after, rule, retry, delay, request) VALUES '
		. join(', ', map { $row->($_) } $first .. min($first + 49, $count)));
	sql("UPDATE task SET state = 'STOP' WHERE state IN ('PLAN', 'WORK') AND id = "
		. (1 + int(rand($count)))) for 1 .. 2;
	for my $id (map { 1 + int(rand($first + 49)) } 1 .. 2)
	{
		$deleted{$id} = 1;
		sql("WITH d AS (DELETE FROM task WHERE id = $id RETURNING id, state)
			INSERT INTO deleted SELECT * FROM d");
	}
	terminate($node, backends($node, 'executor')) if ++$pick % 3 == 1;
	terminate($node, backends($node, 'scheduler')) if $pick % 4 == 2;
	crash($node) if $pick % 7 == 4;
}
wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
is(sql($contradictions), '', 'each has ended as its rule says');
is(sql(q{SELECT t.id, r.seen FROM ran AS r JOIN task AS t USING (id)
	WHERE CASE coalesce(t.rule, 'done') WHEN 'any' THEN coalesce(NOT 'DONE' = ANY (r.seen), true)
			AND NOT EXISTS (SELECT FROM deleted AS d WHERE d.id = ANY (t.after)
				AND d.state = 'DONE')
		ELSE r.seen && '{PLAN,WORK}' END AND t.after IS NOT NULL}), '',
	'none has started before its rule allowed');
is(sql(q{SELECT id, state, count(r) FROM task AS t LEFT JOIN ran AS r USING (id)
	GROUP BY id, state HAVING count(r) <> (t.state = 'DONE')::int}), '',
		'each effect is there once');
is(sql(q{SELECT id FROM ran JOIN deleted AS d USING (id) WHERE d.state <> 'DONE'}), '',
	'and none of a task that was removed before');
is(count_of($node, q{state = 'GONE' AND (coalesce(sqlstate, '') = 'TK005') <>
	(coalesce(rule, 'done') <> 'failed') OR waits IS NOT NULL}), 0, 'what is GONE says why');

sql(q{DELETE FROM broken; UPDATE task SET state = 'PLAN', failed = 0,
		after = array(SELECT a FROM unnest(after) AS a WHERE a NOT IN (SELECT id FROM deleted))
	WHERE state IN ('FAIL', 'GONE', 'STOP')});
wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state IN ('PLAN', 'WORK')});
is(sql("$contradictions AND t.rule IS DISTINCT FROM 'failed'"), '',
	'when the causes are gone, what has not run does');
is(sql(q{SELECT id FROM ran GROUP BY id HAVING count(*) > 1}), '', 'and nothing twice');

done_testing();
