# The owner of a database, who is no superuser, changes the task table and the tables beside it at
# random, and writes rows past the triggers, while tasks run and while he, a tenant, a monitor and a
# superuser call all functions of the extension.  No process crashes; nobody else executes his code;
# nobody gains rights; and the tasks of another database run.  A TAP test because it is about
# crashes.
#
# PG_TASK_FUZZ_SECONDS is how long that goes on, PG_TASK_FUZZ_SEED the seed of the random choices.
# The same seed gives the same choices, but not the same timing of the processes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seconds = $ENV{PG_TASK_FUZZ_SECONDS} // 8;
my $seed = $ENV{PG_TASK_FUZZ_SEED} // 42;
my $again = "repeat it with: scripts/fuzz owner $seconds $seed";
my $parent = $$;

note($again);
END { diag($again) if $? && $$ == $parent; }

# Dice ---------------------------------------------------------------------------------------------

sub among { return $_[ rand @_ ] }

sub chance { return rand() < $_[0] }

# The server ---------------------------------------------------------------------------------------

my $node = new_node('main', conf => q{
	pg_task.period = 100ms
	pg_task.idle_timeout = 1s
	max_connections = 60
	log_line_prefix = '%m [%p] %b %q%u@%d '
	log_statement = all
	deadlock_timeout = 100ms});
my $position = log_position($node);

sql(q{CREATE ROLE keeper LOGIN; CREATE ROLE tenant LOGIN;
	CREATE ROLE monitor LOGIN IN ROLE pg_monitor; CREATE DATABASE prey OWNER keeper});
wait_for_table($node, db => 'prey', table => $_) for qw(task task_queue);

# Any role may call it, and what it says is in the log also if the transaction is rolled back.
sql_as('keeper', q{
	CREATE SCHEMA nest; GRANT USAGE, CREATE ON SCHEMA nest TO PUBLIC;
	CREATE FUNCTION nest.canary(what anyelement) RETURNS anyelement IMMUTABLE LANGUAGE plpgsql AS $$
	BEGIN
		IF current_user NOT IN ('keeper', 'tenant') OR current_setting('is_superuser') = 'on'
			AND session_user <> 'postgres' THEN
			RAISE LOG 'canary: code of the owner runs as %, session of %, superuser %',
				current_user,
				session_user, current_setting('is_superuser');
		END IF;
		BEGIN
			ALTER ROLE keeper SUPERUSER;
			RAISE LOG 'canary: the owner becomes superuser as %', current_user;
		EXCEPTION WHEN OTHERS THEN
		END;
		BEGIN
			SET LOCAL ROLE postgres;
			RAISE LOG 'canary: the owner takes the role of a superuser as %', current_user;
		EXCEPTION WHEN OTHERS THEN
		END;
		RETURN what;
	END $$;
	-- any trigger may call it
	CREATE FUNCTION nest.mangle() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM nest.canary(1);
		EXECUTE TG_ARGV[0];
		IF TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' AND TG_ARGV[1] <> '' THEN
			NEW := jsonb_populate_record(NEW, TG_ARGV[1]::jsonb);
		END IF;
		IF TG_ARGV[1] = 'null' THEN RETURN NULL; END IF;
		RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
	END $$;
	CREATE DOMAIN nest.word AS text CHECK (nest.canary(1) = 1);
	CREATE DOMAIN nest.number AS bigint;
	CREATE TYPE nest.pair AS (a int, b text);
	CREATE TYPE nest.state AS ENUM ('PLAN', 'WORK', 'DONE', 'FAIL', 'STOP', 'GONE');
	CREATE FUNCTION nest.to_text(nest.pair) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
		'BEGIN RETURN nest.canary(''PLAN''::text); END';
	CREATE CAST (nest.pair AS text) WITH FUNCTION nest.to_text(nest.pair) AS IMPLICIT;
	CREATE COLLATION nest.folded (provider = icu, locale = 'und', deterministic = false)},
	db => 'prey');

my @functions = map { [ split /\|/ ] } split /\n/, sql(q{
	SELECT p.oid::regproc, p.prokind, array_to_string(ARRAY(SELECT format_type(t, NULL)
		FROM unnest(p.proargtypes) AS t), ',')
	FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
	JOIN pg_extension AS e ON d.refobjid = e.oid AND e.extname = 'pg_task'
	WHERE d.deptype = 'e' AND p.prorettype <> 'trigger'::regtype ORDER BY 1, 3}, db => 'prey');
my %columns = map { $_ => [ split /\n/, sql(qq{SELECT quote_ident(attname) FROM pg_attribute
	WHERE attrelid = '$_'::regclass AND attnum > 0 ORDER BY 1}, db => 'prey') ] }
	qw(task task_queue);
$columns{task_rate} = [ qw(queue until image) ];

cmp_ok(scalar @functions, '>', 20, 'the functions are found');

# Values -------------------------------------------------------------------------------------------

my @types = (qw(text int bigint smallint name bytea jsonb xml timestamptz timestamp date interval),
	qw(numeric float8 bool uuid box oid int[] bigint[] text[] varchar(3) nest.word nest.number),
	qw(nest.pair nest.state nest.word[] tid regclass money), '"char"', 'timestamptz(0)',
	'text COLLATE nest.folded');

my %values = (
	bigint => [ 1 .. 30, -1, 0, '9223372036854775807', '-9223372036854775808' ],
	integer => [ 0 .. 5, -1, 2147483647, -2147483648 ],
	text => [ qw('PLAN' 'WORK' 'DONE' 'bogus' '' 'default' 'slow' 'any' 'ended' 'failed' 'none'),
		"repeat('x', 100000)", "'*/5 * * * * *'", "E'\\u00e9%'" ],
	name => [ qw('keeper' 'tenant' 'postgres' 'nobody' '') ],
	boolean => [qw(true false)],
	jsonb => [ q('{"a": 1}'), q('[1, null]'), q('7'), q('null') ],
	real => [ qw(0 1.5 -1 'Infinity' 'NaN' 1e30) ],
	interval => [ map { "'$_'" } '0', '1 s', '-1 s', '10 ms', '178000000 years', '-178000000 years',
		'1 month -1 day' ],
	'timestamp with time zone' => [ 'now()', map { "'$_'" } 'infinity', '-infinity',
		'294276-12-31', '4713-01-01 BC', '2020-01-01' ],
	'bigint[]' => [ map { "'$_'" } '{}', '{1}', '{NULL}', '{1,2,3,NULL}', '{{1,2},{3,4}}',
		'[5:6]={1,2}', '[-3:-3]={7}', '{{{9}}}' ],
	'text[]' => [ map { "'$_'" } '{}', '{a}', '{NULL}', '{{a,b},{c,d}}', '[0:1]={a,b}' ]);
push @{ $values{'bigint[]'} }, 'array_fill(1::bigint, ARRAY[20000])';

sub value
{
	my ($type) = @_;

	return chance(0.1) || !$values{$type} ? 'NULL' : among(@{ $values{$type} });
}

sub call
{
	my ($name, $kind, $types) = @{ among(@functions) };
	my $call = "$name(" . join(', ', map { value($_) . "::$_" } split /,/, $types) . ')';

	return $kind eq 'p' ? "CALL $call;" : "SELECT * FROM $call;";
}

my %task_types = map { split /\|/ } split /\n/, sql(q{SELECT quote_ident(attname),
	format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = 'task'::regclass AND attnum > 0},
	db => 'prey');

# A row with some columns of any value.
sub odd_row
{
	my %column = map { $_ => value($task_types{$_}) } map { among(keys_of(\%task_types)) } 0 .. 3;

	$column{request} //= among(q('SELECT 1'), q('SELECT pg_sleep(0.1)'), q('SELECT 1/0'),
		q('SELECT pg_task_input()'), q('SELECT pg_task_results()'));
	return 'INSERT INTO task (' . join(', ', keys_of(\%column)) . ') VALUES ('
	  . join(', ', map { $column{$_} } keys_of(\%column)) . ');';
}

# In an order that the seed decides.
sub keys_of { return sort keys %{ $_[0] } }

# Changes ------------------------------------------------------------------------------------------

# What a trigger of the owner's executes.
sub deed
{
	my ($table, $column) = table_column();

	return among('SELECT', 'SELECT pg_advisory_lock_shared(7)', 'LISTEN x', 'SET work_mem = 64',
		'CREATE TEMP TABLE x ()', 'SELECT 1/0', 'DELETE FROM task', 'SET search_path = nest',
		'PREPARE x AS SELECT 1', "SELECT pg_notify('x', 'y')",
		"ALTER TABLE $table ALTER $column TYPE " . among(@types) . ' USING NULL',
		"ALTER TABLE $table ALTER $column DROP NOT NULL", "DROP TABLE IF EXISTS task_rate CASCADE",
		"UPDATE task_queue SET paused = NOT paused");
}

sub table_column
{
	my $table = among(qw(task task task_queue task_queue task_rate));

	return ($table, among(@{ $columns{$table} }));
}

my @changes = (
	sub { "ALTER TABLE $_[0] ALTER $_[1] DROP NOT NULL;" },
	sub { "ALTER TABLE $_[0] ALTER $_[1] DROP NOT NULL; UPDATE $_[0] SET $_[1] = NULL;" },
	sub { "ALTER TABLE $_[0] ALTER $_[1] DROP NOT NULL;
		ALTER TABLE $_[0] ADD CONSTRAINT unsure NOT NULL $_[1] NOT VALID;" },
	sub { my $type = among(@types); "ALTER TABLE $_[0] ALTER $_[1] DROP DEFAULT, ALTER $_[1] TYPE $type"
		. ' USING ' . among('NULL', "$_[1]::text::" . $type =~ s/ COLLATE.*//r) . ';' },
	sub { my $type = among(@types); "ALTER TABLE $_[0] DROP COLUMN $_[1] CASCADE, ADD COLUMN $_[1] $type;" },
	sub { "ALTER TABLE $_[0] DROP COLUMN $_[1] CASCADE;" },
	sub { "ALTER TABLE $_[0] DROP COLUMN $_[1] CASCADE, ADD COLUMN $_[1] text GENERATED ALWAYS AS ('x')"
		. among(' STORED', ' VIRTUAL', '') . ';' },
	sub { "ALTER TABLE $_[0] RENAME COLUMN $_[1] TO other;" },
	sub { "ALTER TABLE $_[0] ALTER $_[1] SET DEFAULT nest.canary(NULL);" },
	sub { "ALTER TABLE $_[0] ALTER $_[1] SET STORAGE " . among(qw(PLAIN EXTERNAL MAIN)) . ';' },
	sub { "ALTER TABLE $_[0] ALTER $_[1] DROP IDENTITY IF EXISTS;" },
	sub { "ALTER TABLE $_[0] ADD CHECK (nest.canary($_[1]) IS NOT NULL) NOT VALID;" },
	sub { "ALTER TABLE $_[0] DROP CONSTRAINT $_[0]_pkey CASCADE;" },
	sub { "CREATE INDEX ON $_[0] (nest.canary($_[1]));" },
	sub { "CREATE INDEX ON $_[0] ($_[1]) WHERE nest.canary($_[1]) IS NOT NULL;" },
	sub { "CREATE STATISTICS ON nest.canary($_[1]), (1) FROM $_[0]; ANALYZE $_[0];" },
	sub { "CREATE POLICY p" . int(rand(100)) . " ON $_[0] USING (nest.canary($_[1]) IS NOT NULL);
		ALTER TABLE $_[0] " . among('FORCE', 'ENABLE', 'NO FORCE') . ' ROW LEVEL SECURITY;' },
	sub { 'CREATE RULE ' . among(qw(r s)) . ' AS ON ' . among(qw(INSERT UPDATE DELETE))
		. " TO $_[0] DO " . among('ALSO', 'INSTEAD') . ' ' . among('NOTHING',
			'SELECT nest.canary(1)',
			'NOTIFY x', 'UPDATE task_queue SET max = 1') . ';' },
	sub { 'CREATE TRIGGER t' . int(rand(100)) . ' ' . among(qw(BEFORE AFTER)) . ' '
		. among('INSERT', 'UPDATE', 'UPDATE OF state', 'DELETE') . " ON $_[0] FOR EACH "
		. among(qw(ROW ROW STATEMENT)) . ' EXECUTE FUNCTION nest.mangle(' . PgTask::literal(deed())
		. ', ' . PgTask::literal(among('', '', 'null', '{"role": null}', '{"request": null}',
			'{"id": 7}', '{"attempt": null, "start": null}', '{"state": "bogus"}',
			'{"role": "postgres"}', '{"queue": null}',
				'{"image": "x", "until": "infinity"}')) . ');' },
	sub { 'CREATE CONSTRAINT TRIGGER c' . int(rand(100)) . " AFTER INSERT OR UPDATE ON $_[0]
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION nest.mangle("
		. PgTask::literal(deed()) . ", '');" },
	sub { 'CREATE TRIGGER o' . int(rand(100)) . ' ' . among(qw(BEFORE AFTER))
		. " INSERT OR UPDATE OR DELETE ON $_[0] FOR EACH " . among(qw(ROW STATEMENT))
		. ' EXECUTE FUNCTION ' . among(qw(pg_task_bound pg_task_planned pg_task_removed pg_task_timed
			pg_task_numbered pg_task_queue_changed)) . '();' },
	sub { "ALTER TABLE $_[0] " . among(qw(DISABLE ENABLE)) . ' TRIGGER ' . among(qw(ALL USER)) . ';' },
	sub { "DROP TRIGGER " . among(qw(pg_task_bound pg_task_planned pg_task_timed pg_task_waits)) .
		' ON task;' },
	sub { "ALTER TABLE $_[0] RENAME TO kept; CREATE VIEW $_[0] AS SELECT * FROM kept
		WHERE nest.canary(1) = 1;" },
	sub { "ALTER TABLE $_[0] RENAME TO kept; CREATE TABLE $_[0] (LIKE kept INCLUDING ALL);" },
	sub { "ALTER TABLE $_[0] RENAME TO kept; CREATE TABLE $_[0] (LIKE kept INCLUDING DEFAULTS)
		PARTITION BY LIST ($_[1]); ALTER TABLE $_[0] ATTACH PARTITION kept DEFAULT;" },
	sub { "ALTER TABLE $_[0] RENAME TO kept; CREATE TABLE $_[0] () INHERITS (kept);" },
	sub { "ALTER TABLE $_[0] RENAME TO kept; CREATE UNLOGGED TABLE $_[0] AS TABLE kept;" },
	sub { "ALTER TABLE $_[0] RENAME TO kept; ALTER TABLE task RENAME TO $_[0];" },
	sub { "ALTER TABLE $_[0] SET SCHEMA nest;" },
	sub { 'ALTER SCHEMA public RENAME TO before; CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO PUBLIC;
		CREATE VIEW public.task AS SELECT * FROM before.task WHERE nest.canary(1) = 1;' },
	sub { "ALTER TABLE $_[0] SET " . among('UNLOGGED', 'LOGGED', '(fillfactor = 10)',
		'(user_catalog_table = true)') . ';' },
	sub { "ALTER TABLE $_[0] REPLICA IDENTITY " . among(qw(FULL NOTHING)) . ';' },
	sub { "CREATE TABLE child" . int(rand(100)) . " (x bigint REFERENCES task (id) ON DELETE CASCADE);" },
	sub { "DROP INDEX IF EXISTS task_plan_idx, task_waits_idx, task_after_idx CASCADE;" },
	sub { "DROP TABLE $_[0] CASCADE;" },
	sub { "TRUNCATE $_[0] CASCADE;" },
	sub { 'DROP EXTENSION pg_task CASCADE;' },
	sub { 'ALTER DATABASE prey ' . among('SET pg_task.enabled = off', 'RESET pg_task.enabled',
		"SET pg_task.table_name = 'kept'", 'RESET pg_task.table_name') . ';' },
	sub { "INSERT INTO task_queue (queue, rate, per, max) VALUES (" . value('text') . ', '
		. join(', ', map { value($_) } qw(integer interval integer)) . ') ON CONFLICT DO NOTHING;' },
	sub { "INSERT INTO task_rate VALUES (" . value('text') . ', '
		. value('timestamp with time zone') . q{, '\xdeadbeef') ON CONFLICT DO NOTHING;} },
	sub { 'ALTER TABLE task DISABLE TRIGGER USER;' . join('', map { odd_row() } 0 .. 5)
		. among('ALTER TABLE task ENABLE TRIGGER USER;', '') });

sub change { return among(@changes)->(table_column()) }

# Back to what the scheduler makes.
my $whole = q{
	ALTER DATABASE prey RESET ALL;
	DROP SCHEMA IF EXISTS before CASCADE;
	DO $$ DECLARE name text; BEGIN
		FOR name IN SELECT format('%s %s', CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END,
				oid::regclass)
			FROM pg_class WHERE relkind IN ('r', 'p', 'v') AND oid > 16000
				AND relnamespace::regnamespace::text IN ('public', 'nest') LOOP
			BEGIN
				EXECUTE format('DROP %s CASCADE', name);
			EXCEPTION WHEN OTHERS THEN
			END;
		END LOOP;
	END $$;};

# The workers --------------------------------------------------------------------------------------

my $grants = 'GRANT ALL ON task TO tenant; GRANT SELECT ON task TO monitor;
	GRANT ALL ON task_queue TO tenant;';

# The next script of each role.
my %scripts = (
	keeper => sub {
		my @script = map { change() } 0 .. int(rand(4));

		return ('BEGIN;', @script, call(), call(), 'SELECT pg_task_why(1);',
			among('ROLLBACK;', 'COMMIT;')) if chance(0.3);
		push @script, map { chance(0.5) ? call() : odd_row() } 0 .. 5;
		push @script, 'SELECT pg_sleep(' . rand(0.4) . ');';
		push @script, $whole, "SELECT pg_sleep(0.3);", $grants if chance(0.5);
		return @script;
	},
	tenant => sub { return map { chance(0.4) ? call() : odd_row() } 0 .. 10 },
	monitor => sub { return map { call() } 0 .. 10 },
	postgres => sub { return map { call() } 0 .. 10 });

# A child process that executes scripts of a role until the end.
sub start_worker
{
	my ($role, $index, $end) = @_;
	my $pid = fork // die "fork: $!";

	return $pid if $pid;

	# No die and no ordinary exit here: the server belongs to the parent.
	eval {
		my $file = $node->basedir . "/$role.$index";

		open(STDOUT, '>', "$file.out");
		open(STDERR, '>&', \*STDOUT);
		srand($seed * 100 + $index);
		while (time < $end && getppid() == $parent)
		{
			unlink "$file.sql";
			append_to_file("$file.sql", join("\n",
				"SET statement_timeout = '3s'; SET lock_timeout = '1s';", $scripts{$role}->()));
			system('psql', '-XAtq', '-d', $node->connstr('prey'), '-U', $role, '-f',
				"$file.sql") == 0
				or sleep(0.2);
		}
	};
	POSIX::_exit(0);
}

my $end = time + $seconds;
my $index = 0;
sql_as('keeper', $grants, db => 'prey');
my @workers = map { start_worker($_, $index++, $end) } qw(keeper keeper tenant monitor postgres);
my $ran = 0;

# Meanwhile another database runs tasks.
while (time < $end)
{
	run_task($node, request => 'SELECT 42');
	$ran++;
}
waitpid($_, 0) for @workers;

# What has come of it ------------------------------------------------------------------------------

my %seen;
open(my $log, '<', $node->logfile);
seek $log, $position, 0;
while (<$log>)
{
	next unless /TRAP:|PANIC:|terminated by signal (?!9\b)|LOG:  canary: |invalid memory alloc/;
	s/^\S+ \S+ \S+ \[\d+\] //;
	s/\(PID \d+\)//;
	$seen{$_}++;
}
close $log;
is(join('', map { "$seen{$_} times: $_" } sort keys %seen), '',
	'nothing has crashed or gained rights');
is(sql(q{SELECT string_agg(rolname, ',') FROM pg_roles WHERE rolsuper AND oid > 16000}), '',
	'nobody has become superuser');
cmp_ok($ran, '>', 0, "$ran tasks of another database have run meanwhile");

# The owner drops it all, which a lock may prevent, and then the scheduler has the time it needs.
my $why = '';
sub mend
{
	my ($rc, $out, $err) = $node->psql('prey', "SET lock_timeout = '5s'; $whole");

	$why = $err;
	return $rc == 0 && poll_for(sub {
		return sql(q{SELECT to_regclass('public.task') IS NOT NULL}, db => 'prey') eq 't';
	}, 10);
}
sql(q{DROP OWNED BY tenant}, db => 'prey');
ok(poll_for(\&mend), 'the tables are as they were') or diag($why);
wait_for_table($node, db => 'prey', table => $_) for qw(public.task public.task_queue);
run_task($node, db => 'prey', role => 'keeper', request => 'SELECT 42');
run_task($node, request => 'SELECT 42');
pass('tasks run in both databases');
note("$ran tasks of another database, " . (() = log_since($node, $position) =~ /statement:/g)
	. ' statements');
done_testing();
