# The first tasks of README.md, and docs/getting-started.md: their blocks of SQL, in order, and what
# they say that psql prints.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $node = new_node('main');
my $readme = slurp_file("$top/README.md");
my ($first) = $readme =~ /^```sql\n(.*?)^```$/ms;
my ($section) = $readme =~ /^## A first task, in psql\n(.*?)^## /ms;

# What psql prints, as in a terminal, but for spaces at the ends of lines.
sub psql
{
	my ($text) = @_;
	my $out = '';

	IPC::Run::run([ 'psql', '-X', '-d', $node->connstr('postgres'), '-f', file_of($text) ],
		'>', \$out, '2>&1');
	return $out =~ s/ +$//mgr;
}

# Runs all blocks of a text in one session.
sub run_blocks
{
	my ($text, $count) = @_;
	my @blocks = $text =~ /^```sql\n(.*?)^```\n(?:```text\n(.*?)^```$)?/msg;
	my $end = '-- end of block --';
	my @printed = split /^\Q$end\E\n/m,
	  psql(join '', map { "$blocks[2 * $_]\\echo '$end'\n" } 0 .. $#blocks / 2);

	is(@printed, $count, 'all blocks');
	for my $number (1 .. @printed)
	{
		my $printed = $printed[$number - 1] =~ s/\s+\z/\n/r;
		my $expected = $blocks[2 * $number - 1];

		unlike($printed, qr/^psql:.* ERROR:/m, "block $number");
		is($printed, $expected, "what block $number prints") if defined $expected;
	}
	return;
}

subtest 'README.md' => sub {
	run_blocks($section, 3);
	wait_for_state($node, 2, 'DONE');
	is(sql(q{SELECT count(*), count(*) FILTER (WHERE key IS NOT NULL AND state = 'STOP')
		FROM task}), '4|1', 'what is left');
	is(psql($first) =~ s/^INSERT 0 1\n//mgr, '', 'what it begins with');
};

# On a server with the settings of a package.
subtest 'docs/getting-started.md' => sub {
	$node->append_conf('postgresql.conf', slurp_file("$top/packaging/pg_task.conf"));
	$node->restart;
	run_blocks(slurp_file("$top/docs/getting-started.md"), 8);
	is(sql(q{SELECT to_regclass('task') IS NULL}, db => 'template1'), 't',
		'no other database has a table');
};

done_testing();
