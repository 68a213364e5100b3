# The zone of a row is known if it has a cron expression.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('zones', conf => "TimeZone = 'UTC'");

my $insert = q{INSERT INTO task (cron, request, timezone, dt, state) VALUES ('0 0 1 1 *', 'SELECT 1'};

is(sqlstate_of('postgres', "$insert, 'nowhere', 'infinity', 'PLAN')"), '22023', 'planned for never');
is(sqlstate_of('postgres', "$insert, 'nowhere', now(), 'STOP')"), '22023', 'stopped');
sql("$insert, 'UTC', 'infinity', 'PLAN')");
is(sqlstate_of('postgres', "UPDATE task SET timezone = 'nowhere', dt = '2200-01-01'"), '22023',
	'an UPDATE of the zone and the planned time');
is(sql(q{ALTER TABLE task DISABLE TRIGGER pg_task_planned;
	UPDATE task SET timezone = 'nowhere';
	ALTER TABLE task ENABLE ALWAYS TRIGGER pg_task_planned;
	UPDATE task SET state = 'STOP' RETURNING state}),
	'STOP', 'a zone that has gone keeps nobody from stopping the task');

done_testing();
