# The examples of docs/applications.md in Python, each as a program of its own: it succeeds, and prints
# what is expected of its heading.  Skipped where Python lacks what an example imports.  A TAP test
# because programs run tasks.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

# Debian's packages are for its own
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
my %expected = ('Waiting for an end' => '42', Mappers => 'PLAN',
	'Migrations and test databases' => '');

my $node = new_node('main', conf => 'pg_task.max_executors = 2');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $manual = manual_page('applications.md');
my $count = 0;

local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
local $ENV{PGDATABASE} = 'postgres';
for my $part (split /^(?=## )/m, $manual)
{
	my ($heading) = $part =~ /\A## (.*)/ or next;

	for my $program ($part =~ /^```python\n(.*?)^```/msg)
	{
		my $file = "$dir/" . ++$count . '.py';

		append_to_file($file, $program);
	  SKIP:
		{
			my ($imports) = join "\n", $program =~ /^((?:import|from) .*)/mg;

			skip("$heading: python3 cannot $imports", 1)
			  unless eval { run_log([ $python, '-c', $imports ]) };
			my ($out, $err) = run_command([ $python, $file ]);

			is($out, $expected{$heading}, "$heading, example $count") or diag($err);
		}
	}
}
cmp_ok($count, '>', 0, 'there are examples');

done_testing();
