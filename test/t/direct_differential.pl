# The same rows, run once without a statement (direct.c) and once by statements: in a second
# database a constraint makes the table one that needs them.  Both tables have the same rows then,
# all indexes have an entry for each, and a logical replica would see the same changes.  A TAP test
# because it needs two databases, logical decoding, amcheck and pg_stat_statements.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => q{
	shared_preload_libraries = 'pg_task, pg_stat_statements'
	pg_stat_statements.track = all
	wal_level = logical
	autovacuum = off});
my @databases = qw(direct statement);
my $first_next = 1000000;    # ids from here on are those of next runs

# What each task sees of its claim.
my $seen = q{SELECT timeout, pg_task_time() AT TIME ZONE 'UTC' AS planned, pg_task_input() AS input,
	pg_task_flow() AS flow, current_setting('pg_task.meta') AS meta, current_user
	FROM pg_task_activity() WHERE pid = pg_backend_pid()};

# Each task has a value of each of these columns, chosen by its number: all values, in many
# mixtures.
my %values = (
	request => [ literal($seen), literal("$seen; SELECT 'two'"), q{repeat('-- long', 1000) || E'\n'
			|| } . literal($seen), q{'SELECT 1/0'}, q{'DO $$BEGIN RAISE NOTICE ''n''; END$$'},
		q{'SELECT repeat(''x'', 9000)'}, q{'UPDATE task SET keep = ''0'' WHERE id = pg_task_id()'},
		q{'SELECT pg_task_again(''infinity'', ''[1]'')'} ],
	dt => [ q{'2020-02-29 12:00+00'}, q{'2021-03-01+00'}, q{'-infinity'} ],
	planned => [ 'NULL', 'NULL', q{'2019-01-31 23:00+00'} ],
	max => [ 'NULL', 'NULL', '3', q{2147483647} ],
	priority => [ '0', '0', '7', '-1' ],
	queue => [ q{'a'}, q{'b'}, q{repeat('q', 200)} ],
	role => [ q{'postgres'}, q{'postgres'}, q{'app'} ],
	timeout => [ 'NULL', q{'1 h'}, q{'1 mon 2 d'}, q{'90 years'}, q{'1000 years'} ],
	active => [ 'NULL', q{'99 years'}, q{'1000 years'}, q{'1200 mon'}, q{'1 d'} ],
	keep => [ 'NULL', 'NULL', q{'1 year'}, q{'0'}, q{'1 mon -30 d'} ],
	retry => [ 'NULL', '0', '1' ],
	delay => [ 'NULL', q{'1 day'} ],
	format => [ 'NULL', q{'json'}, q{'csv'}, q{'text'} ],
	repeat => [ ('NULL') x 4, q{'100 years'}, q{'1201 mon 1 d'} ],
	anchor => [ 'NULL', 'NULL', q{'2018-01-31 23:00+00'} ],
	timezone => [ 'NULL', q{'Asia/Tokyo'} ],
	drift => [ 'true', 'false' ],
	missed => [ 'NULL', q{'one'}, q{'none'} ],
	hold => [ ('NULL') x 5, q{'later'} ],
	hold_after => [ 'NULL', '1', '0' ],
	streak => [ 'NULL', '3', '2147483647' ],
	repeat_until => [ 'NULL', q{'2100-01-01+00'}, q{'infinity'} ],
	runs_left => [ 'NULL', '1', '7' ],
	on_failure => [ 'NULL', q{''} ],
	failures => [ 'NULL', 'NULL', q{'[{"attempt": 1}]'} ],
	key => [ 'NULL', q{'key ' || n} ],
	flow => [ 'NULL', 'NULL', q{'flow ' || n % 7} ],
	input => [ 'NULL', q{'{"a": 1}'}, q{jsonb_build_object('long', repeat('y', 5000))} ],
	meta => [ 'NULL', 'NULL', q{'{"trace": 1}'}, q{jsonb_build_object('long', repeat('y', 900))} ],
	notify => [ ('NULL') x 5, q{'ends'} ],
	attempt => [ '0', '0', '2147483647' ],
	error => [ 'NULL', q{'of a run before'} ],
	sqlstate => [ 'NULL', q{'22012'} ],
	notice => [ 'NULL', q{'of a run before'} ]);
my @columns = sort keys %values;

# A number that has nothing to do with its neighbours.
sub chosen
{
	my ($column) = @_;
	my $list = $values{$column};

	return "(ARRAY[" . join(', ', map { "($_)::" . type_of($column) } @$list)
	  . "])[1 + (hashtext('$column ' || n)::bigint & 65535) % " . @$list . ']';
}

my %types;

sub type_of
{
	my ($column) = @_;

	%types = map { split /\|/ } split /\n/, sql_in('direct', q{
		SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = 'task'::regclass AND attnum > 0}) if !%types;
	return $types{$column};
}

# Runs what these statements insert in both databases.
sub run_both
{
	my (@inserts) = @_;

	for my $db (@databases)
	{
		sql_in($db, qq{TRUNCATE task RESTART IDENTITY; UPDATE task_queue SET paused = true;
			ALTER SEQUENCE task_id_seq RESTART $first_next});
		# before the rows, of which some expire while the queue is paused
		sql_in($db, q{SELECT pg_create_logical_replication_slot(current_database(),
			'test_decoding')});
		sql_in($db, $_) for @inserts;
	}
	sql_in('direct', 'SELECT pg_stat_statements_reset()');
	sql_in($_, 'UPDATE task_queue SET paused = false') for @databases;
	# also for retries, which wait for a moment
	wait_until($node, q{SELECT NOT EXISTS (SELECT FROM task WHERE state = 'WORK'
		OR state = 'PLAN' AND dt <= now() + interval '1 min'
		AND waits IS NULL AND hold IS NULL)}, db => $_) for @databases;
	return;
}

# The rows, without what depends on the clock and on the order of the ends.
sub rows_of
{
	my ($db) = @_;

	return sql_in($db, qq{
		SELECT CASE WHEN id < $first_next THEN id ELSE parent END, id < $first_next,
			next IS NULL, start IS NULL, stop IS NULL, start <= stop, pid IS NULL,
			CASE WHEN failed = 0 AND (drift OR id < $first_next) THEN dt END,
			jsonb_array_length(failures),
			to_jsonb(task) - '{id,next,start,stop,pid,dt,role_id,failures}'::text[]
		FROM task ORDER BY 1, 2});
}

# The changes of the task table that a logical replica sees, in the order of each row.  Claims that
# were undone do not count.  Statements set a row to DONE that they then delete, and to which they
# add the next run.
sub changes_of
{
	my ($db) = @_;
	my %changes;

	for (split /\n/, sql_in($db, q{SELECT replace(data, E'\n', ' ') FROM
		pg_logical_slot_get_changes(current_database(), NULL, NULL) WHERE data LIKE '%.task: %'}))
	{
		my ($kind, $id) = /task: (\w+): .*?\bid\[bigint\]:(\d+)/ or die "not a change: $_";

		next if $id >= $first_next;
		if (/ start\[[^\]]*\]:null .*:'PLAN'/)
		{
			pop @{ $changes{$id} };
			next;
		}
		s/(start|stop|dt)\[[^\]]*\]:'[^']*'/$1/g;
		s/ failures\[jsonb\]:'(?:[^']|'')*'//g;
		s/(next|pid|role_id)\[[^\]]*\]:-?\d+/$1/g;
		if (@{ $changes{$id} // [] } && $changes{$id}[-1] =~ /:'DONE'/)
		{
			my ($last, $this) = map { s/ next(\[bigint\]:null)?(?= )//r } $changes{$id}[-1], $_;

			pop @{ $changes{$id} } if $kind eq 'DELETE' || $this eq $last;
		}
		push @{ $changes{$id} }, $_;
	}
	return join "\n", map { @{ $changes{$_} } } sort { $a <=> $b } keys %changes;
}

# How many rows statements have claimed, set to DONE, and inserted as next runs.
sub by_statement
{
	my ($db) = @_;

	return sql_in($db, q{SELECT coalesce(sum(rows) FILTER (WHERE query LIKE '%pid = c.pid%'), 0),
			coalesce(sum(rows) FILTER (WHERE query LIKE 'UPDATE%RETURNING%t.keep%'), 0),
			coalesce(sum(rows) FILTER (WHERE query LIKE 'INSERT%(parent, dt, anchor%'), 0)
		FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database
			WHERE datname = current_database())});
}

# The first lines that only one of two texts has.
sub differences
{
	my @sets = map { +{ map { $_ => 1 } split /\n/, $_ } } @_;
	my @only = map { my ($mine, $other) = @sets[ $_, 1 - $_ ];
		my $db = $databases[$_];
		map { "$db: $_" } grep { !$other->{$_} } sort keys %$mine } 0, 1;

	return join "\n", @only[ 0 .. ($#only < 5 ? $#only : 5) ];
}

# Compares both databases.
sub compare
{
	my ($name) = @_;
	my @rows = map { rows_of($_) } @databases;
	my @changes = map { changes_of($_) } @databases;

	is(differences(@rows), '', "$name: the same rows");
	is(differences(@changes), '', "$name: the same changes");
	for my $db (@databases)
	{
		is(sql_in($db, q{SELECT count(bt_index_check(c.oid, true)) > 5
			FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid
			WHERE indrelid = 'task'::regclass AND relam = 403}), 't',
				"$name: all indexes have all rows ($db)");
		sql_in($db, 'SELECT pg_drop_replication_slot(current_database())');
	}
	note("$name: $_: by statement, claims, ends and next runs: " . by_statement($_)) for @databases;
	return;
}

sql('CREATE ROLE app LOGIN');
for my $db (@databases)
{
	sql("CREATE DATABASE $db");
	wait_for_table($node, db => $db);
	sql_in($db, q{CREATE EXTENSION amcheck; CREATE EXTENSION pg_stat_statements;
		GRANT SELECT, UPDATE ON task TO app;
		INSERT INTO task_queue (queue, paused) VALUES ('%', true)});
	run_task($node, db => $db, request => 'SELECT 1', dt => '2020-01-01')
	  if sql_in($db, 'UPDATE task_queue SET paused = false RETURNING true') eq 't';
}
sql_in('statement', 'ALTER TABLE task ADD CONSTRAINT statements_only CHECK (id > 0)');

subtest 'one column at a time' => sub {
	my @inserts;
	my $id = 0;

	for my $column (@columns)
	{
		for my $value (@{ $values{$column} })
		{
			$id++;
			(my $one = $value) =~ s/\bn\b/$id/g;
			my %row = (request => literal($seen), dt => q{'2020-02-29 12:00+00'}, $column => $one);
			push @inserts, "INSERT INTO task (id, " . join(', ', sort keys %row)
			  . ") VALUES ($id, " . join(', ', map { $row{$_} } sort keys %row) . ')';
		}
	}
	run_both(join '; ', @inserts);
	my ($claims, $ends, $next) = split /\|/, by_statement('direct');
	# where the table has just changed, and for one that notifies, there is a statement
	cmp_ok($claims, '<', $id / 4, 'without a statement: claims');
	cmp_ok($ends, '<', $id / 4, 'without a statement: ends');
	is($next, 0, 'without a statement: next runs');
	($claims, $ends, $next) = split /\|/, by_statement('statement');
	cmp_ok($claims, '>', $id - 10, 'by statement: claims');
	cmp_ok($ends, '>', $id - 20, 'by statement: ends');
	is($next, 2, 'by statement: next runs');
	compare('columns');
};

for my $batch (1, 16)
{
	subtest "mixtures, batches of $batch" => sub {
		my $n = 400;

		set_conf($node, "pg_task.batch = $batch");
		wait_until($node, "SELECT current_setting('pg_task.batch') = '$batch'");
		run_both('INSERT INTO task (id, ' . join(', ', @columns) . ') SELECT n, '
			. join(', ', map { chosen($_) } @columns) . " FROM generate_series(1, $n) AS n");
		is(sql_in('direct', "SELECT count(DISTINCT state) FROM task WHERE id <= $n"), 4,
			'there are all ends');
		compare("batches of $batch");
	};
}

done_testing();
