# scripts/report: its page is well-formed, agrees with the database, and holds no text of the
# database as markup.  The parser is the server's own.  A TAP test because it runs a program.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use PgTask;
use PostgreSQL::Test::Utils qw(slurp_file);
use Test::More;

my $node = new_node('main', conf => 'pg_task.max_executors = 4');
my $report = "$FindBin::RealBin/../../scripts/report";

# What a page must not take as markup, wherever it comes from.
my $evil = q{</td></tr><script>alert("1")</script><img src=x onerror='x'/>&lt;&amp;]]>};

# Runs the script; returns its exit code, output and errors.
sub run_report
{
	my (@options) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ $^X, $report, @options ], '<', \undef, '>', \$out, '2>', \$err);
	return ($? >> 8, $out, $err);
}

sub connection { return ('-h', $node->host, '-p', $node->port, '-d', 'postgres', @_) }

sub report_page
{
	my (@options) = @_;
	my ($rc, $out, $err) = run_report(@options);

	is("$rc $err", '0 ', 'the report is written, without a message');
	return $out;
}

sub decode { return JSON::PP->new->utf8->decode($_[0]) }

# The texts that a path of XPath finds, as the server's parser reads them.
sub found
{
	my ($page, $path) = @_;
	my $list = sql('SELECT json_agg(x::text) FROM unnest(xpath(' . literal($path) . ', xmlparse('
		  . 'DOCUMENT ' . literal($page) . '))) AS x');
	my %entity = (lt => '<', gt => '>', amp => '&', quot => '"', '#39' => q{'});

	return map { s/&(#?\w+);/$entity{$1} \/\/ "&$1;"/ger } @{ decode($list || '[]') };
}

# The texts of a column of a table: those of its cells, which may have none.
sub column
{
	my ($page, $table, $label) = @_;

	return [ map { s/^<td[^>]*>//r =~ s/<\/td>$//r }
		  found($page, qq(//table[\@id="$table"]/tbody/tr/td[\@data-label="$label"])) ];
}

# The values of a query of one column.
sub values_of
{
	my ($query) = @_;

	return decode(sql("SELECT coalesce(json_agg(q.v), '[]') FROM ($query) AS q (v)"));
}

make_gates($node);
sql(q{
	CREATE ROLE "<b>&'role" LOGIN;
	CREATE ROLE other LOGIN;
	GRANT SELECT, INSERT ON task TO "<b>&'role", other});
sql('CREATE DATABASE "<i>&amp;"');

# Tasks of all kinds: done, failed, gone, stopped, running, late, for later, repeating, waiting.
insert_rule("paused $evil", paused => 't');
insert_rule('mail', taker => 'other');
insert_task($node, queue => 'mail', dt => '2100-01-01', request => 'send');
sql(q{INSERT INTO task (queue, request) SELECT 'plain', 'SELECT 1' FROM generate_series(1, 20)});
insert_task($node, queue => "q $evil", request => 'SELECT 1');
insert_task($node, queue => "q $evil",
	request => "DO \$\$ BEGIN RAISE EXCEPTION USING message = E'e\\x01\\t' || "
	  . literal($evil) . '; END $$') for 1 .. 3;
insert_task($node, queue => 'expired', dt => '2020-01-01', active => '1 s', request => 'SELECT 1');
sql_as(q{<b>&'role}, q{INSERT INTO task (queue, request) VALUES ('of a role', 'SELECT 1/0')});
# what is GONE without a code has not failed
insert_task($node, queue => 'undo', rule => 'failed', request => 'SELECT 1',
	after => '{' . sql(q{SELECT min(id) FROM task WHERE queue = 'plain'}) . '}');
my $stopped = insert_task($node, queue => 'stopped', dt => '2100-01-01', request => 'SELECT 1');
sql("UPDATE task SET state = 'STOP' WHERE id = $stopped");
my $running = insert_task($node, queue => "runs $evil", request => 'SELECT pg_task_progress(3, 7, '
	  . literal("m $evil") . "), hold('end')");
insert_task($node, queue => 'after', after => "{$running}", request => 'SELECT 1');
insert_task($node, queue => 'repeats', key => "k $evil", repeat => '1 day', dt => '2100-01-01',
	request => 'SELECT 1');
insert_task($node, queue => "paused $evil", dt => '2020-01-01', request => 'SELECT 1') for 1 .. 2;
wait_until($node, "SELECT count(*) = 27 FROM task WHERE state IN ('DONE', 'FAIL', 'GONE')");
wait_until($node, 'SELECT count(*) = 1 FROM pg_task_activity() WHERE done = 3');
wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_task_scheduler() WHERE datname = '<i>&amp;'});

# an executor counts what has happened when it is idle
wait_until($node, q{SELECT sum(done + failed + gone) = 27 FROM pg_stat_task()
	WHERE datname = 'postgres'});

my $page = report_page(connection());

subtest 'it is markup that a parser reads, and nothing in it is active' => sub {
	is(sql('SELECT xml_is_well_formed_document(' . literal($page) . ')'), 't', 'well-formed');
	my %names = map { (/^<(\w+)/)[0] => 1 } found($page, '//*');

	is_deeply([ sort keys %names ], [ sort qw(html head meta title style body h1 h2 p b br span dl
			  div dt dd section table thead tbody tr th td svg g line text rect circle i) ],
		'only elements of the report');
	is_deeply([ found($page, '//@*[starts-with(name(), "on") or name() = "src"'
			. ' or name() = "href"]') ], [], 'no attribute that loads or runs anything');
	unlike($page, qr/[\x00-\x08\x0b\x0c\x0e-\x1f]/, 'no control characters');
};

subtest 'its tables agree with the database' => sub {
	is_deeply(column($page, 'queues', 'Queue'), values_of('SELECT queue FROM pg_task_queues()'),
		'queues by name');
	for (qw(Waits Due Runs))
	{
		is_deeply(column($page, 'queues', $_),
			values_of("SELECT \L$_\E::text FROM pg_task_queues()"), "\L$_");
	}
	is_deeply([ grep { /^\d/ } @{ column($page, 'queues', 'Takers') } ], [0],
		'of one queue tasks are taken, and nobody waits for them');
	is_deeply(column($page, 'stats', 'Queue'),
		values_of('SELECT s.queue FROM pg_task_stats() AS s ORDER BY s.ended DESC, s.queue'),
		'queues in which tasks have ended');
	is_deeply(column($page, 'stats', 'Ended'),
		values_of('SELECT s.ended::text FROM pg_task_stats() AS s ORDER BY s.ended DESC, s.queue'),
		'how many');
	is_deeply(column($page, 'failures', 'Times'),
		values_of('SELECT count::text FROM pg_task_failures()'), 'failures');
	is_deeply([ grep { $_ eq 'undo' } @{ column($page, 'failures', 'Queue') } ], [],
		'a compensation that was not needed is none');
	is_deeply(column($page, 'failures', 'SQLSTATE'),
		values_of('SELECT sqlstate FROM pg_task_failures()'), 'their codes');
	is_deeply(column($page, 'failures', 'Last tasks'),
		values_of(q{SELECT array_to_string(ids, ' ') FROM pg_task_failures()}), 'their ids');
	is_deeply([ found($page, '//*[@id="throughput"]/preceding-sibling::p[1]/span/text()') ],
		values_of(q{SELECT name || ' ' || count(t) FROM (VALUES (1, 'done', 'DONE'),
			(2, 'failed', 'FAIL'), (3, 'gone', 'GONE'), (4, 'stopped', 'STOP'))
			AS s (n, name, state) LEFT JOIN task AS t USING (state) GROUP BY n, name ORDER BY n}),
		'the chart of what ended');
	is(scalar(() = found($page, '//*[@id="timeline"]/*[contains(@class, "run ")]')),
		sql(q{SELECT count(*) FROM task WHERE pid IS NOT NULL}), 'a bar for each run');
	is(scalar(() = found($page, '//*[@id="timeline"]/*[name() = "text" and @class = "lane"]')),
		sql('SELECT count(DISTINCT pid) FROM task'), 'a lane for each executor');
};

subtest 'what others have written is text' => sub {
	my ($error) = grep { /^e/ } @{ column($page, 'failures', 'Error') };

	is($error, "e\x{fffd}\t$evil", 'an error, without its control character');
	is_deeply(column($page, 'held', 'Queue'), ["paused $evil"], 'a queue that is held back');
	is_deeply(column($page, 'held', 'Why'), ['its queue is paused'], 'why it is');
	is_deeply(column($page, 'held', 'Tasks'), ['2'], 'how many tasks that are');
	is_deeply(column($page, 'activity', 'Progress'), ["3 of 7: m $evil"], 'progress');
	is_deeply(column($page, 'repeating', 'Key'), ["k $evil"], 'a key');
	ok((grep { $_ eq '<i>&amp;' } @{ column($page, 'schedulers', 'Database') }), 'a database');
};

subtest 'a role sees its own tasks' => sub {
	my $own = report_page(connection('-U', q{<b>&'role}));

	is_deeply(column($own, 'failures', 'Queue'), ['of a role'], 'its failure');
	is_deeply(column($own, 'queues', 'Queue'), ['of a role'], 'its queue');
	unlike($own, qr/alert/, 'nothing of the tasks of others');
	like($own, qr/role &lt;b&gt;&amp;(?:'|&#39;|&apos;)role\./, 'its name is text');
};

subtest 'a part of a long history is read, and the page says so' => sub {
	my $part = report_page('--rows', 6, '--hours=2', connection());

	is_deeply([ found($part, 'string(//*[@id="bound"])') ], [ 'Of the history: tasks that have '
		  . 'ended in the last 2 hours, among the rows with the last 6 ids; 6 rows were read, 1 of '
		  . 'them have ended in this time. There are more rows: what is older is not counted.' ],
		'the bound');
	like((found($page, 'string(//*[@id="bound"])'))[0],
		qr/last 50000 ids; 34 rows were read, 28 of them/,
		'everything is read of a short one');
};

subtest 'a report is whole, or there is none' => sub {
	my $file = PostgreSQL::Test::Utils::tempdir() . '/report.html';
	my ($rc, $out, $err) = run_report('--to', $file, connection('-d', 'no such database'));

	isnt($rc, 0, 'no database');
	like($err, qr/no such database.*report: psql has failed/s, 'says psql');
	ok(!-e $file && $out eq '', 'nothing is written');
	report_page('--to', $file, connection());
	like(slurp_file($file), qr/^<!DOCTYPE html>.*<\/html>\n\z/s, 'a whole page');
	($rc, $out, $err) = run_report('--hours', '1); DROP TABLE task; --', connection());
	is("$rc $err", "255 report: --hours must be a number from 1 to 720\n", 'a number is a number');
};

open_gate($node, 'end');
done_testing();
