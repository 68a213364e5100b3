# What the server's log says of tasks: pg_task.log and pg_task.log_min_duration.  A TAP test because
# it reads the log.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', period => '1 s', conf => q{
	log_statement = none
	log_min_error_statement = panic
	pg_task.max_executors = 2});

sql(q{CREATE ROLE app LOGIN; CREATE ROLE quiet LOGIN;
	ALTER ROLE quiet SET pg_task.log = none});
make_gates($node);

# The lines of the log about a task since a position, without their prefixes.
sub lines_of
{
	my ($id, $position) = @_;

	return map { /LOG:  (pg_task $id of .*)/ ? $1 : () } split /\n/, log_since($node, $position);
}

# Waits until a task has ended, and the log says so; returns the lines.
sub logged
{
	my ($id, $position, $last) = @_;

	wait_for_log_line($node, qr/LOG:  pg_task $id of .*: $last/, $position);
	return lines_of($id, $position);
}

my $begin = log_position($node);

subtest 'failures are logged without any setting' => sub {
	my $done = run_task($node, request => 'SELECT 1');
	my $failed = run_task($node, request => 'SELECT 1/0');

	is(scalar logged($failed, $begin, 'failed, SQLSTATE 22012'), 1, 'one that has failed');
	is(join('', lines_of($done, $begin)), '', 'none that was done');
	my $undo = insert_task($node, request => 'SELECT 1', after => "{$done}", rule => 'failed');

	wait_for_state($node, $undo, 'GONE');
	$failed = run_task($node, request => 'SELECT 1/0');
	logged($failed, $begin, 'failed');
	is(join('', lines_of($undo, $begin)), '', 'nor a compensation that was not needed');
};

apply_conf($node, 'pg_task.log = all');
my $ms = qr/\d+\.\d{3} ms/;

subtest 'a task that is done' => sub {
	my $id = run_task($node, request => "SELECT 'hidden'", queue => 'mail', role => 'app');
	my @lines = logged($id, $begin, 'done');
	my $head = qq{pg_task $id of queue "mail" in database "postgres" as role "app", attempt 1:};

	is(@lines, 2, 'two lines');
	like($lines[0], qr/^\Q$head\E started, waited: $ms$/, 'the start');
	like($lines[1], qr/^\Q$head\E done, duration: $ms$/, 'the end');
};

subtest 'a task that fails' => sub {
	my $id = run_task($node, request => "SELECT 1/0 AS hidden", retry => 1, delay => '0');
	my @lines = logged($id, $begin, 'failed, SQLSTATE');

	# of two processes, perhaps: the second run may start before the first one has logged its end
	wait_for_log_line($node, qr/LOG:  pg_task $id of .*: failed, is tried again/, $begin);
	@lines = lines_of($id, $begin);
	is(@lines, 4, 'two lines for each run');
	my @ends = sort grep { /failed/ } @lines;
	like($ends[0], qr/attempt 1: failed, is tried again, SQLSTATE 22012, duration: $ms$/, 'a retry');
	like($ends[1], qr/attempt 2: failed, SQLSTATE 22012, duration: $ms$/, 'the failure');
	like(log_since($node, $begin), qr/attempt 2: failed.*\n.*DETAIL:  division by zero\n/,
		'the error is the detail');
};

subtest 'tasks that are stopped or given up' => sub {
	my $id = insert_task($node, request => q{SELECT hold('a')});
	wait_for_running($node, 1, id => $id, event => 'PgSleep');
	sql("SELECT pg_task_cancel($id)");
	like((logged($id, $begin, 'stopped'))[1], qr/attempt 1: stopped, duration: $ms$/, 'stopped');
	$id = insert_task($node, request => 'SELECT 1', dt => '2020-01-01', active => '1 s');
	like((logged($id, $begin, 'given up'))[0], qr/attempt 0: given up, SQLSTATE TK003$/, 'expired');
	my $failed = run_task($node, request => 'SELECT 1/0');
	$id = insert_task($node, request => 'SELECT 1', after => "{$failed}");
	like((logged($id, $begin, 'given up'))[0], qr/given up, SQLSTATE TK005$/, 'a predecessor failed');
	sql('CREATE ROLE gone');
	$id = insert_task($node, request => 'SELECT 1', role => 'gone', dt => '2100-01-01');
	sql('DROP ROLE gone');
	like((logged($id, $begin, 'failed'))[0], qr/as role "gone", attempt 0: failed, SQLSTATE 42704$/,
		'the role was dropped');
};

subtest 'a long error is cut' => sub {
	my $position = log_position($node);
	my $id = run_task($node, request => q{DO $$BEGIN RAISE 'x%', repeat('y', 10000); END$$});

	wait_for_log_line($node, qr/pg_task $id of .*failed.*\n.*DETAIL:  xy{1023}$/, $position);
	pass('at 1024 bytes');
};

subtest 'names cannot forge a line' => sub {
	my $id = run_task($node, request => 'SELECT 1',
		queue => qq{a" as role "app", attempt 1: done\nLOG:  forged \e[2J});

	like((logged($id, $begin, 'done'))[0], qr/queue "a\\" as role \\"app\\", attempt 1: done\\n/,
		'quotes and newlines are escaped');
	unlike(log_since($node, $begin), qr/^\t?LOG:  forged/m, 'no line begins with it');
	unlike(log_since($node, $begin), qr/\e/, 'no control character');
};

unlike(log_since($node, $begin), qr/hidden/, 'no request is logged unless log_statement asks for it');

subtest 'which events' => sub {
	my $position = log_position($node);
	my $quiet = run_task($node, request => 'SELECT 1/0', role => 'quiet');
	my $id = run_task($node, request => 'SELECT 1', role => 'app');

	logged($id, $position, 'done');
	is(join('', lines_of($quiet, $position)), '', 'a superuser sets it for a role');
	apply_conf($node, 'pg_task.log = ends');
	$id = run_task($node, request => 'SELECT 1', role => 'app', queue => 'ends');
	is(join(' ', map { /1: (\w+)/ } logged($id, $position, 'done')), 'done', 'ends');
	apply_conf($node, 'pg_task.log = failures');
	my $done = run_task($node, request => 'SELECT 1', role => 'app');
	$id = run_task($node, request => 'SELECT 1/0', role => 'app');
	is(join(' ', map { /1: (\w+)/ } logged($id, $position, 'failed')), 'failed', 'failures');
	is(join('', lines_of($done, $position)), '', 'and nothing else');
	is(sqlstate_of('app', 'SET pg_task.log = none'), '42501', 'no other role may set it ...');
	$id = run_task($node, request => 'SET pg_task.log_min_duration = -1', role => 'app');
	is_row($node, $id, { sqlstate => '42501' }, '... nor a task');
};

subtest 'by duration' => sub {
	my $position = log_position($node);

	apply_conf($node, "pg_task.log = none\npg_task.log_min_duration = '1d'");
	my $short = run_task($node, request => 'SELECT 1', role => 'app');
	apply_conf($node, 'pg_task.log_min_duration = 20');
	my $long = run_task($node, request => 'SELECT pg_sleep(0.03)', role => 'app');
	is(join(' ', map { /1: (\w+)/ } logged($long, $position, 'done')), 'done',
		'one that took long');
	is(join('', lines_of($short, $position)), '', 'not one that did not');
};

done_testing();
