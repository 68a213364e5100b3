# A system without the timers of POSIX, as macOS: the library is built as if this were one, and tasks
# time out by a timer of the server's.  A TAP test because it builds a library.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = PostgreSQL::Test::Utils::tempdir();
my $top = "$FindBin::RealBin/../..";
my ($bin) = copy_server("$folder/server");

# Where the library was built, all files but the one with timers need not be compiled again.
system_or_bail('mkdir', "$folder/build");
system_or_bail('cp', '-rp',
	(map { ($ENV{PG_TASK_BUILD} // $top) . "/$_" } qw(Makefile pg_task.control src sql)),
	"$folder/build");
utime(undef, undef, "$folder/build/src/executor/run.c") or BAIL_OUT("utime: $!");
run_log([ 'make', '-s', '-j2', '-C', "$folder/build", 'with_llvm=no', 'WERROR=1',
	'COPT=-DPG_TASK_NO_TIMERS', "PG_CONFIG=$bin/pg_config", 'all', 'install' ])
  or BAIL_OUT('make');
isnt(system("nm -D '$bin/../lib/pg_task.so' | grep -q timer_create"), 0, 'it uses no timer of POSIX');
$ENV{PATH} = "$bin:$ENV{PATH}";

my $node = new_node('main', install_path => $bin =~ s{/bin$}{}r, conf => 'pg_task.max_executors = 1');
my %timeout = (state => 'FAIL', sqlstate => 'TK001', error => 'canceling task due to timeout');

is_row($node, run_task($node, request => 'SELECT pg_sleep(600)', timeout => '200 ms'), \%timeout,
	'a task times out');
is_row($node, run_task($node, timeout => '200 ms', request => q{DO $$ BEGIN
		BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN NULL; END;
		PERFORM pg_sleep(600); END $$}), \%timeout, 'also one that goes on');
is_row($node, run_task($node, request => 'SELECT 1', timeout => '200 ms'), { state => 'DONE' },
	'one that is fast enough does not');
is_row($node, run_task($node, request => 'SELECT pg_sleep(0.5)'), { state => 'DONE' },
	'nor does the next one, without a timeout');
is_row($node, run_task($node, request => 'SELECT 1', timeout => '100000 years'), { state => 'DONE' },
	'a long one');
is(sql('SELECT count(DISTINCT pid) FROM task'), 1, 'all in one process');

done_testing();
