# Names of the table, its schema and its columns that look like a part of a statement: they are
# names and nothing else.  A TAP test because the table has its name from the configuration.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $schema = '{table} $id, %1$s';
my $table = '{rows} $state "t"';
my $column = '{inherited} $dt';
my $node = new_node('main', start => 0,
	conf => "pg_task.schema = '$schema'\npg_task.table = '$table'\npg_task.period = '100 ms'");

my $name = qq("$schema"."{rows} \$state ""t""");

$node->start;
is(sql(q{SELECT string_agg(source, ' ' ORDER BY name) FROM pg_settings
	WHERE name IN ('pg_task.period', 'pg_task.schema', 'pg_task.table')}),
	join(' ', ('configuration file') x 3), 'what postgresql.conf says holds from the start on');
wait_until($node, "SELECT EXISTS (SELECT FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = tgrelid
	WHERE relname = '$table' AND tgname = 'pg_task_truncated')");
sql("CREATE VIEW task AS SELECT * FROM $name");

sub insert
{
	my ($columns, $values) = @_;

	return sql("INSERT INTO $name ($columns) VALUES ($values) RETURNING id");
}

my $done = insert('request', q('SELECT 1'));
wait_for_state($node, $done, 'DONE');
is(task($node, $done, 'response'), 1, 'a task runs');

my $failed = insert('request, retry, delay', q('SELECT 1/0', 1, '0'));
wait_for_state($node, $failed, 'FAIL');
is(task($node, $failed, "attempt || ' ' || sqlstate"), '2 22012', 'a task is retried, and fails');

my $gone = insert('request, dt, active', q('SELECT 1', now() - interval '1 min', '1 s'));
wait_for_state($node, $gone, 'GONE');

sql(qq(ALTER TABLE $name ADD COLUMN "$column" int));
my $repeats = insert(qq(request, repeat, "$column"), q('SELECT 2', '1 day', 42));
wait_for_state($node, $repeats, 'DONE');
is(sql(qq(SELECT state, request, "$column" FROM $name WHERE parent = $repeats)),
	'PLAN|SELECT 2|42', 'the next run inherits the column');

done_testing();
