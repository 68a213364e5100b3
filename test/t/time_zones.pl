# The zone of a row is known if it has a cron expression; what the zones of tenants cost in memory.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('zones', conf => "TimeZone = 'UTC'");

sql('CREATE ROLE app LOGIN; GRANT INSERT, SELECT, UPDATE ON task TO app');

my $insert = q{INSERT INTO task (cron, request, timezone, dt, state)
	VALUES ('0 0 1 1 *', 'SELECT 1'};

is(sqlstate_of('postgres', "$insert, 'nowhere', 'infinity', 'PLAN')"), '22023',
	'planned for never');
is(sqlstate_of('postgres', "$insert, 'nowhere', now(), 'STOP')"), '22023', 'stopped');
sql("$insert, 'UTC', 'infinity', 'PLAN')");
is(sqlstate_of('postgres', "UPDATE task SET timezone = 'nowhere', dt = '2200-01-01'"), '22023',
	'an UPDATE of the zone and the planned time');
is(sql(q{ALTER TABLE task DISABLE TRIGGER USER;
	UPDATE task SET timezone = 'nowhere';
	ALTER TABLE task ENABLE TRIGGER USER;
	UPDATE task SET state = 'STOP' RETURNING state}),
	'STOP', 'a zone that has gone keeps nobody from stopping the task');

SKIP:
{
	skip 'no /proc', 1 unless -r '/proc/self/status';
	my $names = q{SELECT format('A%s:%s', g, h) FROM generate_series(0, 99) g,
		generate_series(0, 39) h};

	sql_as('app', "INSERT INTO task (repeat, timezone, dt, active, request)
		SELECT '1 day', format, '2020-01-01', '1 ms', 'SELECT 1' FROM ($names) AS names");
	wait_until($node, "SELECT count(*) = 4000 FROM task WHERE state = 'GONE'");
	# one that has kept too many exits, and is started again
	my $kilobytes = poll_for(sub {
		my $pid = (backends($node, 'scheduler'))[0] // return;
		my $status = eval { slurp_file("/proc/$pid/status") } // '';

		return $status =~ /^RssAnon:\s+(\d+) kB/m ? $1 : undef;
	});
	cmp_ok($kilobytes, '<', 64 * 1024, 'a scheduler does not keep zones without end');
}

done_testing();
