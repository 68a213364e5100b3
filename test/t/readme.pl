# The first tasks of README.md: its blocks of SQL, in order, and what it says that psql prints.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main');
my $readme = slurp_file("$FindBin::RealBin/../../README.md");
my ($first) = $readme =~ /^```sql\n(.*?)^```$/ms;
my ($section) = $readme =~ /^## A first task\n(.*?)^## /ms;

# What psql prints, as in a terminal, but for spaces at the ends of lines.
sub psql
{
	my ($text) = @_;
	my $out = '';

	IPC::Run::run([ 'psql', '-X', '-d', $node->connstr('postgres'), '-f', file_of($text) ],
		'>', \$out, '2>&1');
	return $out =~ s/ +$//mgr =~ s/\s+\z/\n/r;
}

my $blocks = 0;

while ($section =~ /^```sql\n(.*?)^```\n(?:```text\n(.*?)^```$)?/msg)
{
	my ($sql, $expected) = ($1, $2);
	my $printed = psql($sql);

	$blocks++;
	unlike($printed, qr/ERROR/, "block $blocks");
	is($printed, $expected, "what block $blocks prints") if defined $expected;
}
is($blocks, 3, 'all blocks');
wait_for_state($node, 2, 'DONE');
is(sql(q{SELECT count(*), count(*) FILTER (WHERE key IS NOT NULL AND state = 'STOP') FROM task}),
	'4|1', 'what is left');
is(psql($first) =~ s/^INSERT 0 1\n//mgr, '', 'what it begins with');

done_testing();
