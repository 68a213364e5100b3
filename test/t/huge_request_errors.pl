# An error in a request of 68 MB on one line is reported like any other: message, shortened line,
# caret under the position.  Text that it quotes is cut at the limit.  A TAP test because such
# requests do not fit into an expected file.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => q{
	pg_task.max_executors = 1
	pg_task.idle_timeout = '1 h'
	pg_task.response_limit = '1 MB'});
my $size = 68_000_000;    # 16 bytes for each would exceed MaxAllocSize
my $less = 2_000_000;

# Runs a request that is the value of an expression, and returns columns of its row.
sub run_made
{
	my ($expression, $columns) = @_;
	my $id = sql("INSERT INTO task (request) VALUES ($expression) RETURNING id");

	wait_until($node, "SELECT state IN ('DONE', 'FAIL') FROM task WHERE id = $id");
	return task($node, $id, $columns);
}

is(run_made("'SELECT ''' || repeat('x', $size) || ''' AS a, nosuch'", 'state, sqlstate, response'),
	"FAIL|42703|ERROR:  column \"nosuch\" does not exist\nLINE 1: ..." . 'x' x 46
	. "' AS a, nosuch\n"
	  . ' ' x 65 . '^', 'an error at the end of the line');
is(run_made("'SELECT nosuch, ''' || repeat('x', $less) || ''''", 'state, sqlstate, response'),
	"FAIL|42703|ERROR:  column \"nosuch\" does not exist\nLINE 1: SELECT nosuch, '"
	  . 'x' x 44 . "...\n" . ' ' x 15 . '^',
	'an error at the beginning of the line');
is(run_made(
		"'SELECT ''' || repeat('日', $less) || ''' || nosuch, ''' || repeat('日', 99) || ''''",
		'state, sqlstate, response'),
	"FAIL|42703|ERROR:  column \"nosuch\" does not exist\nLINE 1: ..."
	  . '日' x 23 . "' || nosuch, '...\n" . ' ' x 62 . '^',
	'an error among wide characters');
my $made = "SELECT ''' || repeat('x', $less) || ''', nosuch";
is(run_made("'DO \$\$ BEGIN EXECUTE \$q\$$made\$q\$; END \$\$'",
		q{state, sqlstate, error, length(response) < 1024 * 1024 + 100,
		substring(response FROM 'LINE 1: ...[^\n]*'), response ~ '\d+ bytes cut'}),
	'FAIL|42703|column "nosuch" does not exist|t|LINE 1: ...' . 'x' x 51 . "', nosuch|t",
	'a statement that it made: the quotes of it are cut');
is(sql(q{SELECT count(DISTINCT pid) FROM task}), 1,
	'one process ran all tasks');
done_testing();
