# The same work by drivers and mappers of five languages, connected directly and by way of
# pgbouncer, each as a user of the application who is no owner: enqueue and roll back, wait for the
# end, read every column, debounce, save what is stale, enqueue in bulk, take and finish a task.  Run
# by scripts/drivers.  A program that lacks its driver is skipped.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/../t";
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => "pg_task.max_executors = 4\nmax_worker_processes = 20");
my $dir = PostgreSQL::Test::Utils::tempdir();
my $here = $FindBin::RealBin;

$ENV{GOCACHE} = "$dir/go";
$ENV{GO111MODULE} = 'off';
$ENV{GOPATH} = '/usr/share/gocode';
$ENV{NODE_PATH} = ($ENV{PG_TASK_NODE_MODULES} // $dir) . '/node_modules';

# What finds out whether the driver is there, and what runs the program.
my %program = (
	'psycopg 3' => [ [ 'python3', '-c', 'import psycopg' ], [ 'python3', "$here/with_psycopg3.py" ] ],
	psycopg2 => [ [ 'python3', '-c', 'import psycopg2' ], [ 'python3', "$here/with_psycopg2.py" ] ],
	'node-postgres' => [ [ 'node', '-e', 'require("pg")' ], [ 'node', "$here/node.js" ] ],
	pgx => [ [ 'go', 'list', 'github.com/jackc/pgx/v4' ], ["$dir/pgx"] ],
	ActiveRecord => [ [ 'ruby', '-e', 'require "active_record"; require "pg"' ],
		[ 'ruby', "$here/activerecord.rb" ] ]);

sql(q{
	CREATE ROLE app LOGIN;
	GRANT SELECT, INSERT, UPDATE, DELETE ON task TO app;
	INSERT INTO task_queue (queue, taker) VALUES ('mail', 'app');
	INSERT INTO task (request, cron, timezone) VALUES ('SELECT 1', '@reboot', 'Europe/Berlin');
	INSERT INTO task (request, repeat, hold) VALUES ('SELECT 1', '1 month 2 days 03:04:05', 'no');
	INSERT INTO task (request, flow, step, needs, delay, keep) VALUES
		('SELECT 1/0', 'f', 'a', NULL, '1 min', '1 day'), ('SELECT 2', 'f', 'b', '{a}', NULL, NULL)});
wait_until($node, q{SELECT count(*) = 1 FROM task WHERE state = 'FAIL'});
my $columns = sql(q{SELECT count(*) FROM pg_attribute WHERE attrelid = 'task'::regclass
	AND attnum > 0 AND NOT attisdropped});
my $expected = join '', map { "$_\n" } 'rolled back 0', 'done 42', "columns $columns",
	'debounced True', 'stale 40001', 'bulk 100', 'taken send me', 'finished DONE';

sub has { my ($command) = @_; return eval { run_log($command) } }

run_log([ 'go', 'build', '-o', "$dir/pgx", "$here/pgx.go" ]) if has($program{pgx}[0]);

# Runs the programs, one after another: the rows of each are gone afterwards.
sub check_programs
{
	for my $name (sort keys %program)
	{
	  SKIP:
		{
			skip("$name is not installed", 1) unless has($program{$name}[0]);
			my ($out, $err) = run_command($program{$name}[1]);

			is("$out\n", $expected, $name) or diag($err);
			sql(q{DELETE FROM task WHERE role = 'app'});
		}
	}
	return;
}

@ENV{qw(PGHOST PGPORT PGDATABASE PGUSER)} = ($node->host, $node->port, 'postgres', 'app');
subtest 'connected directly' => \&check_programs;

for my $mode (qw(transaction session))
{
	subtest "pgbouncer, $mode pooling" => sub {
		plan(skip_all => 'pgbouncer is not installed') unless -x '/usr/sbin/pgbouncer';
		my $port = PostgreSQL::Test::Cluster::get_free_port();
		my $ini = "$dir/pgbouncer_$mode.ini";

		append_to_file($ini, "[databases]\npostgres = user=app host=" . $node->host . ' port='
			. $node->port . "\n[pgbouncer]\nlisten_port = $port\nunix_socket_dir = $dir\n"
			. "auth_type = any\npool_mode = $mode\ndefault_pool_size = 4\nlogfile = $ini.log\n"
			. "ignore_startup_parameters = extra_float_digits\n");
		my $pooler = IPC::Run::start([ '/usr/sbin/pgbouncer', '-q', $ini ]);
		local @ENV{qw(PGHOST PGPORT POOLED)} = ($dir, $port, 'yes');

		ok(poll_for(sub { return -S "$dir/.s.PGSQL.$port" }), 'the pooler is there');
		check_programs();
		$pooler->signal('INT');
		$pooler->finish;
	};
}

# The examples of docs/applications.md for tools that compare schemas.
subtest 'alembic' => sub {
	plan(skip_all => 'alembic is not installed')
	  unless has([ 'python3', '-c', 'import alembic, sqlalchemy, psycopg2' ]);
	my ($example) = slurp_file("$here/../../docs/applications.md") =~
	  /^```python\n(def include_object.*?)^```/ms;
	my $file = "$dir/compare.py";

	ok($example, 'the manual has an example');
	append_to_file($file, "$example\n" . q{
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, create_engine
with create_engine("postgresql+psycopg2://").connect() as conn:
    for options in {}, {"include_object": include_object}:
        context = MigrationContext.configure(conn, opts={**options, "target_metadata": MetaData()})
        print(len([d for d in compare_metadata(context, MetaData()) if d[0] == "remove_table"]))
});
	local $ENV{PGUSER} = 'postgres';
	my ($out, $err) = run_command([ 'python3', $file ]);
	like($out, qr/^[23]\n0$/, 'it would drop the tables, and with the filter it does not')
	  or diag($err);
};

done_testing();
