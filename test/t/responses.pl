# The response of a task: its format, its limit, and the memory that it takes.  A TAP test because
# it measures and ends processes.  PG_TASK_TEST_ROWS is the number of rows of the largest result,
# with 100 bytes each.
use strict;
use warnings;
use Encode;
use FindBin;
use JSON::PP;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = $ENV{PG_TASK_TEST_ROWS} // 2_000_000;

$ENV{PGCLIENTENCODING} = 'UTF8';
my $node = new_node('main',
	# the JIT compiler takes 60 MB
	conf => "pg_task.max_executors = 1\nshared_buffers = 8MB");
my $major = substr(sql('SHOW server_version_num'), 0, 2);

# Runs tasks, each given by its columns, and returns the outcome of each: its columns, as bytes
# that are valid UTF-8.
sub outcomes
{
	my ($tasks, %opt) = @_;
	my @columns = qw(state sqlstate response error notice pid attempt);
	my $hex = join q( || ',' || ),
		map { "encode(textsend(coalesce($_\::text, '')), 'hex')" } @columns;
	my $db = $opt{db} // 'postgres';
	my @outcomes;
	my $sql = '';

	for my $task (@$tasks)
	{
		my @names = sort keys %$task;

		$sql .= 'INSERT INTO task (' . join(', ', @names) . ') VALUES (' . join(', ',
			map { PgTask::literal($task->{$_}) } @names) . ") RETURNING id;\n";
	}
	my @ids = split /\n/, sql_in($db, $sql);
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state IN ('PLAN', 'WORK'))},
		db => $db);
	for my $line (split /\n/,
		sql_in($db,
		"SELECT $hex FROM task WHERE id BETWEEN $ids[0] AND $ids[-1] ORDER BY id"))
	{
		my %outcome;

		@outcome{@columns} = map { pack 'H*', $_ } split /,/, $line, -1;
		eval { decode('UTF-8', $outcome{$_}, Encode::FB_CROAK | Encode::LEAVE_SRC); 1 }
			or fail("$_ is valid: $outcome{$_}")
		  for qw(response error notice);
		push @outcomes, \%outcome;
	}
	return @outcomes;
}

sub outcome { return (outcomes([ {@_} ]))[0] }

# The peak memory of a process, in kB.  shared_buffers is small, so this is mostly private memory.
sub peak
{
	my ($pid) = @_;

	return slurp_file("/proc/$pid/status") =~ /^VmHWM:\s+(\d+) kB/m ? $1 : die "no VmHWM of $pid";
}

# Formats ------------------------------------------------------------------------------------------

sql(q{
	CREATE EXTENSION hstore;
	CREATE TYPE mood AS ENUM ('sad', 'so "so"');
	CREATE TYPE pair AS (x int, y text);
	CREATE DOMAIN positive AS int CHECK (VALUE > 0);
	CREATE DOMAIN flag AS bool;
	CREATE DOMAIN numbers AS int[];
	CREATE DOMAIN document AS jsonb;
	CREATE DOMAIN moment AS timestamptz;
	CREATE TABLE made (a int, b text, p pair);
	INSERT INTO made VALUES (1, 'x', (1, 'y')), (2, NULL, NULL)});

my @queries = (
	q{SELECT 1 AS a, 'x' AS b, NULL AS c, '' AS d, true AS e},
	q{SELECT 1},
	q{SELECT NULL::int AS a},
	q{SELECT '' AS a},
	q{SELECT 1 AS a, 2 AS b WHERE false},
	q{SELECT 1 AS a WHERE false},
	q{SELECT},
	q{SELECT FROM generate_series(1, 3)},
	q{SELECT 1 AS x, 'y' AS x, NULL AS x},
	q{SELECT 'a,b' AS a, 'say "hi"' AS b, E'two\nlines' AS c, E'two\r\nlines' AS d, '""' AS e, }
	. q{',' AS f, E'\t' AS g, ' ' AS h, '\\' AS i},
	q{SELECT '\.' AS a},
	q{SELECT '\.' AS a, '\.' AS b},
	q{SELECT E'x\n\\\\.\ny' AS a},
	q{SELECT 1 AS "a,b", 2 AS "say ""hi""", 3 AS "größer als", 4 AS "a b", 5 AS "\.", 6 AS "日本"},
	q{SELECT 1 AS "\."},
	q{SELECT 'größer' AS a, '日本' AS b, '😀' AS c, U&'\0301' AS d},
	q{SELECT E'\x01\x02\x08\x0b\x0c\x1f\x7f' AS a, '/' AS b, E'\u2028' AS c, '<&>' AS d},
	q{SELECT 1::int2 AS a, 2::int8 AS b, -3 AS c, 9223372036854775807 AS d, 0 AS e},
	q{SELECT 1.50 AS a, -0.0 AS b, 1e100::numeric AS c, 'NaN'::numeric AS d, }
	. q{'Infinity'::numeric AS e, '-Infinity'::numeric AS f, .5 AS g, 1e-20 AS h},
	q{SELECT 0.1::float4 AS a, 1e300::float8 AS b, 'NaN'::float8 AS c, '-Infinity'::float8 AS d, }
	. q{-0.0::float8 AS e, 1e-7::float8 AS f, 100000000000000000000::float8 AS g},
	q{SELECT true AS a, false AS b, NULL::bool AS c, true::flag AS d},
	q{SELECT '{"a": [1, 2.0, {"b": null}]}'::json AS a, '{"z": 1, "a": [true]}'::jsonb AS b, }
	. q{'null'::json AS c, '"x"'::jsonb AS d},
	q{SELECT E'{"a":\n  1}'::json AS a, '{"a": 1}'::document AS b},
	q{SELECT ARRAY[1, NULL, 3] AS a, ARRAY['a', 'b,c', 'd"e', NULL, ''] AS b, ARRAY[[1, 2], [3, }
	. q{4]] AS c, '{}'::int[] AS d, ARRAY[true] AS e},
	q{SELECT most_common_vals AS a FROM pg_stats WHERE tablename = 'pg_proc' AND attname = 'prokind'},
	q{SELECT ARRAY['{"a": 1}'::jsonb] AS a, ARRAY[(1, 'x')::pair] AS b, '[5:6]={1,2}'::int[] AS c, }
	. q{ARRAY['a=>1'::hstore] AS d, '{1,2}'::numbers AS e},
	q{SELECT (1, 'x')::pair AS a, ROW(1, NULL, 'z') AS b, NULL::pair AS c, ROW(ARRAY[1], }
	. q{ROW(2)) AS d},
	q{SELECT p, made FROM made},
	q{SELECT 5::positive AS a, 'sad'::mood AS b, 'so "so"'::mood AS c},
	q{SELECT 'a=>1, b=>NULL, "c d"=>"e\"f"'::hstore AS a},
	q{SELECT '2024-02-29'::date AS a, '2024-02-29 12:34:56.789'::timestamp AS b, }
	. q{'2024-02-29 12:34:56+00'::timestamptz AS c, '12:34:56'::time AS d,
		'12:34:56+02'::timetz AS e, '1 mon 2 days 03:04:05'::interval AS f, }
		. q{'2024-02-29 12:00+00'::moment AS g},
	q{SELECT 'infinity'::date AS a, '-infinity'::timestamp AS b, 'infinity'::timestamptz AS c, }
	. q{'0044-03-15 BC'::date AS d, '294276-12-31 23:59:59+00'::timestamptz AS e},
	q{SELECT '\x00ff'::bytea AS a, 12.34::money AS b, int4range(1, 5) AS c, }
	. q{'{[1,2),[4,5)}'::int4multirange AS d, 'x'::char(3) AS e, 'y'::name AS f, 1::oid AS g},
	q{SELECT '192.168.0.1/24'::inet AS a, B'101' AS b, '(1,2)'::point AS c, }
	. q{'<a>&amp;</a>'::xml AS d, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid AS e,
		'pg_class'::regclass AS f, 'a & b'::tsquery AS g, '"x"'::"char" AS h},
	q{SELECT n, 'row ' || n AS t, n % 2 = 0 AS even FROM generate_series(1, 100) AS n},
	q{SELECT * FROM made},
	q{VALUES (1, 'a'), (NULL, 'b')},
	q{SELECT } . join(', ', map { "$_ AS c$_" } 1 .. 1600));

# COPY and row_to_json write the same on the same server.
subtest 'CSV and JSON' => sub {
	my @as_csv = outcomes([ map { { request => $_, format => 'csv' } } @queries ]);
	my @as_json = outcomes([ map { { request => $_, format => 'json' } } @queries ]);
	for my $i (0 .. $#queries)
	{
		my $query = $queries[$i];
		my $name = length $query > 100 ? substr($query, 0, 100) . '...' : $query;
		my $csv = sql("COPY ($query) TO STDOUT (FORMAT csv, HEADER)");
		my $json =
			sql("SELECT coalesce('[' || string_agg(row_to_json(one_row)::text, E',\\n ') || ']', "
			. "'[]') "
			. "FROM ($query) AS one_row");

		is($as_csv[$i]{response}, $csv, "csv: $name");
		is($as_json[$i]{response}, $json, "json: $name");
		ok(eval { JSON::PP->new->utf8->allow_nonref->decode($as_json[$i]{response}); 1 },
			"json can be read: $name");
	}
};

# The response in JSON, as a parser reads it.
sub read_json
{
	my ($request) = @_;
	my $outcome = outcome(request => $request, format => 'json');

	return JSON::PP->new->utf8->decode($outcome->{response});
}

subtest 'what a JSON parser reads' => sub {
	my $rows = read_json(q{SELECT n AS a, 'größer' || n AS b, NULL AS c, ARRAY[n, NULL] AS d,
		(n, 'x')::pair AS e FROM generate_series(1, 2) AS n});
	my @expected = map { {
		a => $_, b => decode('UTF-8', "größer$_"), c => undef, d => [ $_, undef ],
		e => { x => $_, y => 'x' }
	} } 1, 2;

	is_deeply($rows, \@expected, 'rows are JSON objects');
	is_deeply(read_json('SELECT true AS t, false AS f'),
		[ { t => JSON::PP::true, f => JSON::PP::false } ], 'booleans');
	like((outcome(request => q{SELECT 1 AS a, 1.5 AS b, '1' AS c}, format => 'json'))->{response},
		qr/^\[\{"a":1,"b":1\.5,"c":"1"\}\]$/, 'numbers are numbers, and texts are texts');
};

# Several statements, and statements that return no rows.
subtest 'several statements' => sub {
	my $several =
		"SELECT 1 AS a; CREATE TEMP TABLE t (a int, b text); INSERT INTO t VALUES (1, 'x,y') "
			. "RETURNING *; SELECT 2 WHERE false;
		COPY t TO STDOUT; SHOW DateStyle";
	is(outcome(request => $several, format => 'csv')->{response},
		qq{a\n1\na,b\n1,"x,y"\n?column?\n1\tx,y\nDateStyle\n"ISO, MDY"}, 'several, csv');
	is(outcome(request => $several, format => 'json')->{response},
		qq([[{"a":1}],\n{"command":"CREATE TABLE"},\n[{"a":1,"b":"x,y"}],\n[],\n)
		. qq({"command":"COPY","data":"1\\tx,y","rows":1},\n[{"DateStyle":"ISO, MDY"}]]),
		'several, json');
	sql(q{CREATE PROCEDURE gives(INOUT a int, OUT b text) LANGUAGE plpgsql AS $$ BEGIN a := a + 1; }
		. q{b := 'b'; END $$});
	$several =
		'PREPARE p AS SELECT 1 AS a; EXECUTE p; CALL gives(1, NULL); DECLARE c CURSOR FOR '
			. 'VALUES (1, NULL), (2, $$x$$); MOVE c; FETCH c;
		UPDATE made SET a = a WHERE a = 1 RETURNING a; EXPLAIN (COSTS OFF) EXECUTE p; '
		. 'SELECT 3 AS a INTO TEMP x';
	is(outcome(request => $several, format => 'csv')->{response},
		qq{a\n1\na,b\n2,b\ncolumn1,column2\n2,x\na\n1\nQUERY PLAN\nResult},
		'statements that run other statements, csv');
	is(outcome(request => $several, format => 'json')->{response},
		qq([{"command":"PREPARE"},\n[{"a":1}],\n[{"a":2,"b":"b"}],\n)
		. qq({"command":"DECLARE CURSOR"},\n{"command":"MOVE","rows":1},\n)
		. qq([{"column1":2,"column2":"x"}],\n[{"a":1}],\n[{"QUERY PLAN":"Result"}],\n)
		. qq({"command":"SELECT","rows":1}]), 'statements that run other statements, json');
	is(outcome(request => 'CREATE TABLE t (a int); DROP TABLE t', format => 'csv')->{response}, '',
		'no rows, csv');
	is(outcome(request => 'EXPLAIN (COSTS OFF, FORMAT json) SELECT 1',
		format => 'json')->{response},
		'[{"QUERY PLAN":' . sql('EXPLAIN (COSTS OFF, FORMAT json) SELECT 1') . '}]',
		'a plan is JSON in JSON');
	is(outcome(request => 'SELECT 1/0', format => 'csv')->{response}, 'ERROR:  division by zero',
		'an error is text, with csv');
};

# Each of these is one document.
subtest 'JSON of one statement, of none, and of many' => sub {
	sql(q{CREATE TABLE ruled (a int);
		CREATE RULE r AS ON INSERT TO ruled DO ALSO SELECT NEW.a AS also});
	my %document = (
		'INSERT INTO made VALUES (3), (4)' => { command => 'INSERT', rows => 2 },
		'UPDATE made SET a = a WHERE a > 100' => { command => 'UPDATE', rows => 0 },
		'CREATE TABLE t (a int)' => { command => 'CREATE TABLE' },
		'DROP TABLE t' => { command => 'DROP TABLE' },
		'VACUUM made' => { command => 'VACUUM' },
		q{DO 'BEGIN COMMIT; END'} => { command => 'DO' },
		'SELECT 1 AS a WHERE false' => [],
		'SELECT' => [ {} ],
		'-- nothing' => [],
		';;' => [],
		q{COPY (VALUES (1, E'"\\\n\x01'), (2, NULL)) TO STDOUT} =>
			{ command => 'COPY', rows => 2, data => qq(1\t"\\\\n\x01\n2\t\\N) },
		q{COPY (SELECT 1 WHERE false) TO STDOUT} => { command => 'COPY', rows => 0, data => '' },
		q{COPY (VALUES ('a,"b'), ('')) TO STDOUT (FORMAT csv, HEADER)} =>
			{ command => 'COPY', rows => 2, data => qq(column1\n"a,""b"\n"") },
		q{COPY (VALUES (1)) TO STDOUT; COPY (VALUES (2)) TO STDOUT} =>
			[ map { { command => 'COPY', rows => 1, data => "$_" } } 1, 2 ],
		'BEGIN; SELECT 1 AS a; COMMIT' =>
			[ { command => 'BEGIN' }, [ { a => 1 } ], { command => 'COMMIT' } ],
		'INSERT INTO ruled VALUES (7)' => [ { also => 7 } ]);

	for my $request (sort keys %document)
	{
		my $found = eval { read_json($request) };

		is_deeply($found, $document{$request}, $request) or diag explain $found;
	}
};

# A failure is an object with these keys, whoever writes it.
subtest 'failures in JSON' => sub {
	my %none = map { $_ => undef } qw(detail hint query context position);
	my %failure = (
		'SELECT 1/0' => { error => 'division by zero', sqlstate => '22012' },
		'SELECT 1; SELEC 2' =>
			{ error => 'syntax error at or near "SELEC"', sqlstate => '42601', position => 11 },
		q{DO $$ BEGIN RAISE E'"x"\n' USING DETAIL = 'd', HINT = E'\x02',
			ERRCODE = 'UU001'; END $$} =>
			{ error => qq("x"\n), detail => 'd', hint => "\x02", sqlstate => 'UU001',
			context => 'PL/pgSQL function inline_code_block line 1 at RAISE' },
		q{DO 'BEGIN PERFORM nix; END'} => { error => 'column "nix" does not exist',
			sqlstate => '42703',
			query => 'SELECT nix', position => 8,
			context => 'PL/pgSQL function inline_code_block line 1 at PERFORM' },
		'SET exit_on_error = on; SELECT 1/0' => { error => 'division by zero',
			sqlstate => '22012' });

	for my $request (sort keys %failure)
	{
		is_deeply(read_json($request), { %none, %{ $failure{$request} } }, $request);
	}
	is_deeply(JSON::PP->new->decode(outcome(request => 'SELECT pg_sleep(60)', format => 'json',
		timeout => '100 ms')->{response}),
		{ %none, error => 'canceling task due to timeout', sqlstate => 'TK001' }, 'a timeout');

	my $gone = insert_task($node, request => 'SELECT 1', format => 'json', dt => '2024-01-01',
		active => '1 s');
	wait_for_state($node, $gone, 'GONE');
	is_deeply(JSON::PP->new->decode(task($node, $gone, 'response')),
		{ %none, error => 'the task was not started in time', sqlstate => 'TK003' }, 'GONE');

	my $stopped = insert_task($node, request => 'SELECT pg_sleep(60)', format => 'json');
	wait_for_running($node, 1, id => $stopped);
	sql("UPDATE task SET state = 'STOP' WHERE id = $stopped");
	wait_until($node, "SELECT stop IS NOT NULL FROM task WHERE id = $stopped");
	is_deeply(JSON::PP->new->decode(task($node, $stopped, 'response')),
		{ %none, error => 'canceling task due to user request', sqlstate => 'TK002' }, 'STOP');

	my $killed = insert_task($node, request => 'SELECT pg_sleep(60)', format => 'json');
	wait_for_running($node, 1, id => $killed);
	sql("UPDATE task SET dt = 'infinity' WHERE id = $killed");
	terminate($node, task($node, $killed, 'pid'));
	wait_for_state($node, $killed, 'PLAN');
	is_deeply(JSON::PP->new->decode(task($node, $killed, 'response')),
		{ %none, error => 'the process of the task was terminated', sqlstate => '57P01' },
		'terminated');
	sql("DELETE FROM task WHERE id = $killed");

	sql(q{CREATE ROLE jason NOLOGIN; ALTER ROLE jason SET pg_task.format = json;
		CREATE ROLE keeper; ALTER TABLE task OWNER TO keeper});
	my $refused = insert_task($node, request => 'SELECT 1', role => 'jason');
	wait_for_state($node, $refused, 'FAIL');
	is_deeply(JSON::PP->new->decode(task($node, $refused, 'response')),
		{ %none, sqlstate => '42501', hint => 'GRANT jason TO keeper',
		error => 'the owner of the task table may not run tasks as role "jason"' },
		'a role without rights, which has the format by a setting');
	sql(q{ALTER TABLE task OWNER TO postgres; DROP ROLE keeper});
};

# Precedence: the column, then the settings of the role, the database, the server.
sub formats { return join ' ', map { outcome(request => 'SELECT 1 AS a', %$_)->{response} } @_ }

subtest 'pg_task.format' => sub {
	sql(q{
		CREATE ROLE reader LOGIN;
		CREATE ROLE lister LOGIN;
		ALTER ROLE lister SET pg_task.format = json});

	my @by = ({}, { format => 'csv' }, { role => 'reader' }, { role => 'lister' },
		{ role => 'lister', format => 'text' });
	is(formats(@by), qq(1 a\n1 1 [{"a":1}] 1), 'text, unless the role or the column wants another');
	sql('ALTER DATABASE postgres SET pg_task.format = csv');
	is(formats(@by), qq(a\n1 a\n1 a\n1 [{"a":1}] 1), 'a format of the database');
	sql('ALTER DATABASE postgres RESET pg_task.format');
	apply_conf($node, 'pg_task.format = json');
	is(formats(@by), qq([{"a":1}] a\n1 [{"a":1}] [{"a":1}] 1), 'a format of the server');
	apply_conf($node, 'pg_task.format = text');
	like(($node->psql('postgres',
		"INSERT INTO task (request, format) VALUES ('SELECT 1', 'xml')"))[2],
		qr/ERROR:  /, 'another format is refused');
	like(($node->psql('postgres', 'ALTER ROLE lister SET pg_task.format = xml'))[2],
		qr/ERROR:  invalid value/, 'another format is refused for a role');

};

# The limit ----------------------------------------------------------------------------------------

# Up to three bytes, then characters of the same width, so that the limit falls on each of their
# bytes, and after them.
my $small = 64;
sql("CREATE ROLE cut LOGIN; ALTER ROLE cut SET pg_task.response_limit = $small");
my %wide = (1 => 'y', 2 => 'é', 3 => '日', 4 => '😀');
my @texts;
for my $width (sort keys %wide)
{
	for my $before (0 .. 3)
	{
		for my $count (int(($small - $before) / $width) - 1 .. int(($small - $before) / $width) + 3)
		{
			push @texts,
				{ width => $width, before => $before, count => $count,
				text => 'x' x $before . $wide{$width} x $count };
		}
	}
}

# The rest of a text.  Only what follows the x may be cut.
sub cut
{
	my ($text, $before, $width) = @_;
	my $kept = $before + int(($small - $before) / $width) * $width;

	return length $text <= $small ? $text : substr($text, 0, $kept) . "\n("
		. (length($text) - $kept) . ' bytes cut)';
}

# The context follows the message, and is cut off with the rest.
sub cut_error
{
	my ($text, $before, $width) = @_;
	my $all = "$text\nCONTEXT:  PL/pgSQL function inline_code_block line 1 at RAISE";
	my $kept = length $text <= $small ? $small
		: $before + int(($small - $before) / $width) * $width;

	return substr($all, 0, $kept) . "\n(" . (length($all) - $kept) . ' bytes cut)';
}

subtest 'response, notice and error are cut' => sub {
	my @as_text = outcomes([ map { { role => 'cut', request => "SELECT '$_->{text}'" } } @texts ]);
	my @noticed = outcomes([ map { { role => 'cut',
		request => "DO \$\$ BEGIN RAISE INFO '$_->{text}'; END \$\$" } } @texts ]);
	my @failed = outcomes([ map { { role => 'cut',
		request => "DO \$\$ BEGIN RAISE '$_->{text}'; END \$\$" } } @texts ]);
	for my $i (0 .. $#texts)
	{
		my ($width, $before, $text) = @{ $texts[$i] }{qw(width before text)};
		my $name = length($text) . " bytes, $before of them before characters of $width";

		is("$as_text[$i]{state} $as_text[$i]{response}", 'DONE ' . cut($text, $before, $width),
			"response: $name");
		is("$noticed[$i]{state} $noticed[$i]{notice}",
			'DONE ' . cut("INFO:  $text", 7 + $before, $width), "notice: $name");
		is("$failed[$i]{state} $failed[$i]{error}", 'FAIL ' . cut($text, $before, $width),
			"error: $name");
		is($failed[$i]{response}, cut_error("ERROR:  $text", 8 + $before, $width),
			"response to an error: $name");
	}

};

# Wherever the limit falls: in a header, between rows, in quotes, in the second statement, in COPY.
subtest 'each format is cut' => sub {
	for my $format (qw(text csv))
	{
		my $request = q{SELECT '日本"' AS größer, n AS "a,b" FROM generate_series(1, 3) AS n; }
			. q{COPY (VALUES ('日本')) TO STDOUT; SELECT '日本'};
		my $whole = outcome(request => $request, format => $format)->{response};
		my $i = 0;

		# the requests differ in the length of the name of the first column
		for my $o (outcomes([ map { { role => 'cut', format => $format,
			request => $request =~ s/größer/'größer' . 'x' x $_/er } } 0 .. 20 ]))
		{
			my $filled = $whole =~ s/größer/'größer' . 'x' x $i/egr;
			my ($kept, $count) = $o->{response} =~ /\A(.*)\n\((\d+) bytes cut\)\z/s;

			is(substr($filled, 0, length $kept), $kept,
				"$format, $i more: the beginning is the same");
			cmp_ok(length($kept), '<=', $small, "$format, $i more: at most the limit");
			cmp_ok(length($kept), '>', $small - 4,
				"$format, $i more: not much shorter than the limit");
			is($count + length $kept, length $filled,
				"$format, $i more: the last line has the number of bytes");
			$i++;
		}
	}
};

# At the limit the last rows are left out, and the document says so.
subtest 'JSON is cut' => sub {
	my $request = q{SELECT n FROM generate_series(1, 9) AS n; COPY (VALUES ('aa'), ('bb'), ('cc'),
		('dd'), ('ee')) TO STDOUT; SELECT 1 AS last};
	my $whole = outcome(request => $request, format => 'json')->{response};
	my %kinds;

	for my $limit ((map { 64 + 9 * $_ } 0 .. 9), length($whole) - 5 .. length($whole))
	{
		sql("ALTER ROLE cut SET pg_task.response_limit = $limit");
		my $found = outcome(role => 'cut', request => $request, format => 'json');
		my $read = eval { JSON::PP->new->decode($found->{response}) };
		my $cut = ref $read eq 'HASH';

		is(ref $read, $limit < length($whole) - 3 ? 'HASH' : 'ARRAY', "$limit: a document")
		  or diag($found->{response});
		next unless $cut;
		my $rest = $read->{response};

		cmp_ok($read->{cut}, '>', 0, "$limit: something was cut");
		$kinds{ @$rest . '/' . @{ $rest->[0] } } = 1;
		is_deeply($rest->[0], [ map { { n => $_ } } 1 .. @{ $rest->[0] } ], "$limit: whole rows");
	}
	cmp_ok(scalar(keys %kinds), '>', 3, 'at many places');
	my $notes = "DO \$\$ BEGIN RAISE '%', repeat(E'\"\\x01é', 50)
		USING DETAIL = repeat('d', 99); END \$\$";
	for my $limit (64 .. 67, 300)
	{
		sql("ALTER ROLE cut SET pg_task.response_limit = $limit");
		my $text = outcome(role => 'cut', request => $notes, format => 'json')->{response};
		my $read = eval { JSON::PP->new->utf8->decode($text) };

		is($read && $read->{sqlstate}, 'P0001', "$limit: an error") or diag($text);
		like($read->{error}, qr/\(\d+ bytes cut\)$/, "$limit: is cut");
		cmp_ok(length $text, '<', $limit + 300, "$limit: at about the limit");
	}
	sql("ALTER ROLE cut SET pg_task.response_limit = $small");
};

# All notices share one limit; a request may be larger than its response.
subtest 'notices are cut' => sub {
	is(outcome(role => 'cut',
		request => q{DO $$ BEGIN FOR i IN 1..1000 LOOP RAISE NOTICE '%', i; END LOOP; }
		. q{END $$})->{notice},
		"NOTICE:  1\nNOTICE:  2\nNOTICE:  3\nNOTICE:  4\nNOTICE:  5\nNOTICE:  \n(12828 bytes cut)",
		'many notices');
};

# The default limit.
subtest 'the default limit' => sub {
	for my $more (-1, 0, 1)
	{
		my $bytes = 16 * 1024 * 1024 + $more;
		my $id = run_task($node, request => "SELECT repeat('x', $bytes)");

		is(task($node, $id, q{state || octet_length(response) || right(response, 14)}),
			'DONE' . ($more > 0 ? 16 * 1024 * 1024 + 14 . "\n(1 bytes cut)" : $bytes . 'x' x 14),
			"a response of $bytes bytes");
	}
};

# Memory -------------------------------------------------------------------------------------------

# A result that is much larger than the limit needs no memory.  Each in a new process, because the
# peak is measured since the start of the process.
subtest 'memory of a large result' => sub {
	my %large = (
		'rows, text' => { request => "SELECT repeat('x', 99) FROM generate_series(1, $rows)",
			bytes => 100 * $rows - 1 },
		'rows, csv' => { request => "SELECT repeat('x', 99) AS a FROM generate_series(1, $rows)",
		format => 'csv', bytes => 100 * $rows + 1 },
		'rows of COPY' => {
		request => "COPY (SELECT repeat('x', 99) FROM generate_series(1, $rows)) TO STDOUT",
			bytes => 100 * $rows - 1 },
		'rows, of two statements' => {
		request => "SELECT repeat('x', 99) FROM generate_series(1, $rows / 2); "
			. "SELECT repeat('x', 99) "
			. "FROM generate_series(1, $rows / 2)",
			bytes => 100 * $rows - 1 },
		'statements' => { request => join(';', ("SELECT repeat('x', 99)") x 10_000),
		bytes => 1_000_000 - 1 },
		'values of 1 MB' => {
		request => "SELECT repeat('x', 999999) FROM generate_series(1, $rows / 10000)",
			bytes => 100 * $rows - 1 },
		'notices' => {
		request => "DO \$\$ BEGIN FOR i IN 1..$rows / 100 LOOP "
			. "RAISE NOTICE '%', repeat('x', 1000); "
			. "END LOOP; END \$\$", bytes => 2 });
	for my $name (sort keys %large)
	{
		my %column = %{ $large{$name} };
		my $bytes = delete $column{bytes};
		my $kept = $bytes < 16 * 1024 * 1024 ? $bytes : 16 * 1024 * 1024;

		terminate($node, backends($node, 'executor'));
		my $id = run_task($node, %column);
		is(task($node, $id,
			q{state || octet_length(response) || coalesce(substring(response }
			. q{FROM '\n.[0-9]+ bytes cut.$'), '')}),
			'DONE'
			. ($bytes > $kept ? $kept + length("\n(" . ($bytes - $kept) . ' bytes cut)') . "\n("
			. ($bytes - $kept) . ' bytes cut)' : $kept),
			"$name: as much as allowed");
		my $peak = peak(task($node, $id, 'pid'));
		cmp_ok($peak, '<', 100 * 1024, "$name: memory");
		note("$name: $peak kB");
	}
	terminate($node, backends($node, 'executor'));
	my $id = run_task($node, format => 'json',
		request => "SELECT repeat('x', 89) AS a FROM generate_series(1, $rows)");
	is(task($node, $id, q{(response::json ->> 'cut')::int + octet_length(response)
		- length('{"cut":183222783,"response":}')}), 100 * $rows - 1,
			'rows, json: all are counted');
	is(task($node, $id, 'octet_length(response) / 1024 / 1024'), 16, 'rows, json: up to the limit');
	cmp_ok(peak(task($node, $id, 'pid')), '<', 100 * 1024, 'rows, json: memory');
};

my $before;

# Out of memory: the request fails, the process continues.
subtest 'out of memory' => sub {
	$before = outcome(request => 'SELECT 1');
	PostgreSQL::Test::Utils::system_or_bail('prlimit', '--as=' . 400 * 1024 * 1024, '--pid',
		$before->{pid});
	my $poor = outcome(request => q{SELECT length(repeat('x', 1000000000))});
	my $after = outcome(request => 'SELECT 2');
	is("$poor->{state} $poor->{sqlstate} $poor->{error}", 'FAIL 53200 out of memory',
		'out of memory');
	like($poor->{response},
		qr/^ERROR:\ \ out\ of\ memory\nDETAIL:\ \ Failed\ on\ request\ of\ size\ 1000000004
			\ in\ memory\ context\ "\w+"\.$/x,
		'with the size of the request');
	is("$after->{response} $after->{pid}", "2 $before->{pid}",
		'the next task runs in the same process');
};

# The end of a process -----------------------------------------------------------------------------

my $started = sql('SELECT pg_postmaster_start_time()');

# An error that ends the session, as every error does with exit_on_error, is a failure of the task.
sub ends
{
	my ($name, $request, $sqlstate, $message, %column) = @_;
	my ($first, $fatal,
		$next) = outcomes([ { request => 'SELECT 1' }, { %column, request => $request },
		{ request => 'SELECT 2' } ]);

	is("$fatal->{state} $fatal->{sqlstate} $fatal->{error} $fatal->{attempt}",
		"FAIL $sqlstate $message 1", "$name: the task has failed");
	is($fatal->{response}, "FATAL:  $message", "$name: the response has the error");
	is("$next->{state} $next->{response} $next->{attempt}", 'DONE 2 1', "$name: the next one runs");
	isnt($next->{pid}, $fatal->{pid}, "$name: in a new process");
}

subtest 'a FATAL ends the process' => sub {
	ends('FATAL', 'SET exit_on_error = on; SELECT 1/0', '22012', 'division by zero');
	ends('FATAL, with notices',
		q{SET exit_on_error = on; DO $$ BEGIN RAISE NOTICE 'before'; }
		. q{RAISE 'größer' USING DETAIL = 'x', ERRCODE = 'XX123'; END $$}, 'XX123', 'größer');
	ends('FATAL after COMMIT',
		'CREATE TABLE kept (a int); COMMIT; SET exit_on_error = on; SELECT 1/0',
		'22012', 'division by zero');
	is(sql('SELECT count(*) FROM kept'), 0, 'FATAL after COMMIT: what was committed is there');
	ends('FATAL in a handler',
		q{SET exit_on_error = on; DO $$ BEGIN PERFORM 1/0; EXCEPTION WHEN OTHERS THEN NULL; END $$},
		'22012', 'division by zero');
	SKIP:
	{
		skip 'there is no transaction_timeout before 17', 4 if $major < 17;
		ends('timeout', q{SET transaction_timeout = '20ms'; SELECT pg_sleep(60)}, '25P04',
			'terminating connection due to transaction timeout');
	}
};

# A message that is too long for shared memory is cut between characters.
subtest 'a long message of a FATAL' => sub {
	for my $before (0 .. 2)
	{
		my $fatal = outcome(request => q{SET exit_on_error = on; DO $$ BEGIN RAISE '%', }
			. "repeat('x', $before) || repeat('日', 1000); END \$\$");

		like("$fatal->{state} $fatal->{error}", qr/^FAIL x{$before}(?:日)+(?:\n\(\d+ bytes cut\))?$/,
			"FATAL: a long message, $before bytes before wide characters");
	}
};

# Somebody terminates its process: the task runs again.
subtest 'the process is terminated' => sub {
	make_gates($node);
	my $id = insert_task($node, request => q{SELECT hold('ended'), pg_backend_pid() AS pid});
	wait_for_state($node, $id, 'WORK');
	wait_until($node,
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'pg_task executor' }
		. q{AND query ~ 'ended'});
	my ($victim) = backends($node, 'executor');
	terminate($node, $victim);
	wait_until($node, "SELECT pid <> $victim FROM task WHERE id = $id AND state = 'WORK'");
	open_gate($node, 'ended');
	wait_for_state($node, $id, 'DONE');
	is(task($node, $id, 'attempt'), 2, 'a task whose process is terminated runs again');
	is(sql('SELECT pg_postmaster_start_time()'), $started, 'the server has not restarted');
};

# Encodings ----------------------------------------------------------------------------------------

# Requests, responses and errors are in the encoding of the database; this test reads them as
# UTF-8.
subtest 'encodings of databases' => sub {
	my %texts = (EUC_JP => '日本語', LATIN1 => 'größer', WIN1251 => 'больше', EUC_KR => '더 큰',
		UTF8 => '日本 größer');
	for my $encoding (sort keys %texts)
	{
		my $db = lc $encoding;
		my $text = $texts{$encoding};

		sql("CREATE DATABASE $db TEMPLATE template0 ENCODING '$encoding' LOCALE 'C'");
		wait_for_table($node, db => $db);
		my ($row, $json, $error, $notice, $copy) = outcomes([
			{ request => "SELECT '$text', length('$text')" },
			{ request => "SELECT '$text' AS \"$text\"", format => 'json' },
			{ request => "SELECT '$text', missing" },
			{
			request => "SET client_encoding = UTF8; DO \$\$ BEGIN RAISE NOTICE '$text'; "
				. "RAISE '$text'; "
				. "END \$\$" },
			{ request => "SET client_encoding = UTF8; COPY (SELECT '$text') TO STDOUT" } ],
			db => $db);
		my ($cut) = outcomes([ { request => "SELECT repeat('$text', 100)", role => 'cut' } ],
			db => $db);
		my $characters = length decode('UTF-8', $text);
		my $columns =
			$characters + ($text =~ tr/\xe0-\xef//);    # those of East Asia take two columns

		is($row->{response}, "?column?::text\tlength::int4\n$text\t$characters",
			"$encoding: a row");
		is($json->{response}, qq([{"$text":"$text"}]), "$encoding: JSON");
		is($error->{response},
			qq(ERROR:  column "missing" does not exist\nLINE 1: SELECT '$text', missing\n)
			. ' ' x (19 + $columns) . '^',
			"$encoding: the position of an error");
		is("$notice->{notice} $notice->{error}", "NOTICE:  $text $text",
			"$encoding: a notice and an error");
		is($copy->{response}, "SET\n$text", "$encoding: COPY");
		like($cut->{response}, qr/^(?:$text)+.*\n\(\d+ bytes cut\)$/, "$encoding: cut");
		sql("DROP DATABASE $db");
	}
};

# In SQL_ASCII any bytes are valid text.
subtest 'SQL_ASCII' => sub {
	$ENV{PGCLIENTENCODING} = 'SQL_ASCII';
	sql(q{CREATE DATABASE bytes TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'});
	wait_for_table($node, db => 'bytes');
	my $id = run_task($node, db => 'bytes',
		request => "SELECT '\xe4\xff'::bytea, '\xe4\xff' || missing");
	is(task($node, $id, 'response', db => 'bytes') =~ /LINE 1: SELECT '\xe4\xff'::bytea/ ? 1 : 0, 1,
		'SQL_ASCII: an error');
	$id = run_task($node, db => 'bytes', request => "SELECT '\xe4\xff'");
	is(task($node, $id, 'response', db => 'bytes'), "\xe4\xff", 'SQL_ASCII: a row');
};

done_testing();
