# A made-up next version adds a column, an index and a function.  What it makes from nothing and
# what it makes of this version are the same; a primary and its standby go over to it one after the
# other while tasks come and run: none is lost, none runs twice; and this version, met with what the
# next one has made, touches nothing.  A TAP test because it builds a library and needs several
# servers.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = PostgreSQL::Test::Utils::tempdir();
my $top = "$FindBin::RealBin/../..";
my ($version) = slurp_file("$top/pg_task.control") =~ /^default_version = '(.*)'$/m;
# Not that of extension_updates.pl, which writes into the folder that is copied.
my $next = '9.8';

# Writes a file of the next version, from that of this one; what is replaced must be there.
sub rewrite
{
	my ($from, $to, %replace) = @_;
	my $text = slurp_file("$folder/next/$from");

	for my $old (sort keys %replace)
	{
		BAIL_OUT("$from has no $old") unless $text =~ s/\Q$old\E/$replace{$old}/;
	}
	unlink "$folder/next/$to";
	append_to_file("$folder/next/$to", $text);
	return $text;
}

# The next version, built once.
system_or_bail('mkdir', "$folder/next");
system_or_bail('cp', '-r', (map { "$top/$_" } qw(Makefile pg_task.control src sql)),
	"$folder/next");
my $function = q{CREATE FUNCTION pg_catalog.pg_task_color(id bigint) RETURNS text
	LANGUAGE sql STABLE STRICT BEGIN ATOMIC SELECT 'red'::text; END;
};
my $script = rewrite("sql/pg_task--$version.sql", "sql/pg_task--$next.sql",
	"    (1, 'queue', 'queue', 'text NOT NULL'," =>
		"    (55, 'task', 'color', 'text', 'Its color'),\n    (1, 'queue', 'queue', 'text NOT NULL',",
	'), wanted_trigger (' =>
		", (8, 'task', 'color', false, '(color) WHERE color IS NOT NULL')\n), wanted_trigger (",
	'CREATE FUNCTION pg_catalog.pg_task_flow()' =>
		"$function CREATE FUNCTION pg_catalog.pg_task_flow()");
my ($missing) = $script =~ /^CREATE (FUNCTION pg_catalog\.pg_task_missing\(.*?^END;\n)/ms;
append_to_file("$folder/next/sql/pg_task--$version--$next.sql",
	"CREATE OR REPLACE $missing\n$function");
rewrite('pg_task.control', 'pg_task.control', "'$version'" => "'$next'");
rewrite('src/settings.h', 'src/settings.h',
	qq{PG_TASK_VERSION "$version"} => qq{PG_TASK_VERSION "$next"});
rewrite('src/task/relation.h', 'src/task/relation.h',
	'X(LEASE, "lease", INT4OID, 0)' =>
		qq{X(LEASE, "lease", INT4OID, 0) \\\n\tX(COLOR, "color", TEXTOID, COLUMN_INHERITED)});

# Builds it, or installs it into the server in a folder, as a package does: the server goes on with
# what it has loaded until it is restarted.
sub make_next
{
	my ($bin, $target) = @_;

	run_log([ 'make', '-s', '-j2', '-C', "$folder/next", 'with_llvm=no', 'COPT=-O0',
		"PG_CONFIG=$bin/pg_config", $target ]) or BAIL_OUT("make $target");
	return;
}

# Two machines, with this version.
my ($a_bin) = copy_server("$folder/a");
my ($b_bin) = copy_server("$folder/b");

sub install_path { return $_[0] =~ s{/bin$}{}r; }

make_next($a_bin, 'all');

my $extversion = q{SELECT extversion FROM pg_extension WHERE extname = 'pg_task'};

$ENV{PATH} = "$a_bin:$ENV{PATH}";
my $a = new_node('a', install_path => install_path($a_bin), init => { allows_streaming => 1 },
	conf => "max_worker_processes = 20\nwal_retrieve_retry_interval = '100ms'\n"
	  . "wal_keep_size = '200MB'");
sql('CREATE TABLE effect (task bigint, version text)');
$a->backup('copy');
my $b = PostgreSQL::Test::Cluster->new('b', install_path => install_path($b_bin));
$b->init_from_backup($a, 'copy', has_streaming => 1);
$b->start;

# An application that inserts all the time, wherever there is a primary, and writes down what was
# committed.
my $hosts = 'dbname=postgres target_session_attrs=read-write connect_timeout=10 host='
  . join(',', map { $_->host } $a, $b) . ' port=' . join(',', map { $_->port } $a, $b);
append_to_file("$folder/burst.sql", join "\n", (
	q{INSERT INTO task (request) VALUES ($$INSERT INTO effect
		VALUES (current_setting('pg_task.id')::bigint, (SELECT extversion FROM pg_extension
			WHERE extname = 'pg_task'))$$) RETURNING id;}) x 10);
my $application = IPC::Run::start([ 'sh', '-c',
	"until [ -e '$folder/enough' ]; do psql -XAtq -f '$folder/burst.sql' '$hosts' "
	. "2>/dev/null >>'$folder/committed'; sleep 0.02; done" ]);

sub committed { return -e "$folder/committed" ? slurp_file("$folder/committed") =~ tr/\n// : 0; }

# Some more tasks are committed from here on, and run.
sub goes_on
{
	my ($node, $name) = @_;
	my $before = committed();

	ok(poll_for(sub { return committed() > $before + 50 }), "$name: tasks are committed");
	my $last = (split /\n/, slurp_file("$folder/committed"))[-1];
	wait_for_state($node, $last, 'DONE');
	return;
}

goes_on($a, 'this version on both');

subtest 'the standby first' => sub {
	$b->stop;
	make_next($b_bin, 'install');
	$b->start;
	goes_on($a, 'the next version on the standby');
	$a->wait_for_catchup($b, 'replay', $a->lsn('insert'));
	is(sql($extversion, node => $b), $version, 'a standby updates nothing');
};

subtest 'the standby becomes the primary' => sub {
	$a->stop('fast');
	$b->promote;
	wait_until($b, $extversion, expected => $next);
	goes_on($b, 'the next version on the primary');
	is(sql(q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'task'::regclass
		AND attname = 'color'}, node => $b), 1, 'the table has the new column');
	is(sql(q{SELECT pg_task_color(1)}, node => $b), 'red', 'the new function is there');
	is(task($b, run_task($b, request => 'SELECT 1', color => 'blue'), 'color'), 'blue',
		'an application uses it');
};

subtest 'this version as a standby of the next' => sub {
	$a->enable_streaming($b);
	$a->start;
	goes_on($b, 'this version on the standby');
	append_to_file("$folder/enough", '');
	$application->finish;
	wait_until($b, q{SELECT count(*) FROM task WHERE state IN ('PLAN', 'WORK')}, expected => 0);
	$b->wait_for_catchup($a, 'replay', $b->lsn('insert'));
	$b->stop('fast');
};

# What somebody does who promotes the machine that he has forgotten.
subtest 'this version with the table of the next' => sub {
	my $position = log_position($a);
	my $all = q{SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM task AS t};
	my $before = sql($all);

	$a->promote;
	wait_for_log_line($a,
		qr/the library of pg_task is of version $version, the extension of version $next/, $position);
	is(sql($extversion), $next, 'the extension is as it was');
	is(sql($all), $before, 'so are the tasks');
	my $id = insert_task($a, request => 'SELECT 2');
	$a->stop('fast');
	make_next($a_bin, 'install');
	$a->start;
	wait_for_state($a, $id, 'DONE');
	pass('with the files of the next version the task runs');
};

subtest 'nothing is lost, nothing runs twice' => sub {
	my @committed = split /\n/, slurp_file("$folder/committed");
	my $ids = join ',', @committed;

	cmp_ok(scalar @committed, '>', 200, 'many were committed');
	is(sql("SELECT count(*) FROM task WHERE state = 'DONE' AND id IN ($ids)"), scalar @committed,
		'each is done');
	is(sql("SELECT count(*) FROM effect WHERE task IN ($ids)"), scalar @committed,
		'each effect is there');
	is(sql('SELECT count(*) - count(DISTINCT task) FROM effect'), 0, 'once');
	is(sql('SELECT string_agg(DISTINCT version, $$ $$ ORDER BY version) FROM effect'),
		"$version $next", 'they ran under both versions');
};

# A database that has only known the next version, and one that was updated.
subtest 'fresh equals updated' => sub {
	my $members = q{SELECT string_agg(d, E'\n' ORDER BY d) FROM (
		SELECT pg_describe_object(classid, objid, objsubid) || CASE classid
			WHEN 'pg_proc'::regclass THEN (SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '')
				FROM pg_proc WHERE oid = objid AND prokind <> 'a') ELSE '' END AS d
		FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
			AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_task')) AS m};

	sql('CREATE DATABASE fresh');
	wait_for_table($a, db => 'fresh', table => 'task_queue');
	sql('DROP TABLE effect');
	is(sql_in('fresh', $extversion), $next, 'fresh');
	is(sql_in('fresh', $members), sql($members), 'the members of the extension');
	for my $db ('fresh', 'postgres')
	{
		my $out;

		IPC::Run::run([ 'pg_dump', '-s', '-d', $a->connstr($db) ], '>', \$out) or die 'pg_dump';
		append_to_file("$folder/$db.sql", $out =~ s/^\\(un)?restrict .*\n//mgr);
	}
	is(qx(diff '$folder/fresh.sql' '$folder/postgres.sql'), '', 'the tables');
};

done_testing();
