# The extension's files lie in a folder of their own, as in an image that CloudNativePG mounts, and
# the server, which has none of them in its own folders, finds them by two settings.  A test of its
# own, because it needs a server without the extension.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $folder = PostgreSQL::Test::Utils::tempdir();
my $volume = "$folder/volume";

if (qx(pg_config --version) =~ /^PostgreSQL (\d+)/ && $1 < 18)
{
	plan skip_all => 'before 18, extensions are found in the folder of the server alone';
}

# The extension moves from the server's folders to the layout of the image.
my ($own_bin, $own_lib, $own_share) = copy_server("$folder/server");

system_or_bail('mkdir', '-p', "$volume/lib", "$volume/share/extension");
system_or_bail('sh', '-c', "mv '$own_lib'/pg_task.so '$volume/lib/'");
system_or_bail('sh', '-c', "mv '$own_share'/extension/pg_task* '$volume/share/extension/'");
$ENV{PATH} = "$own_bin:$ENV{PATH}";

my $node = new_node('main', conf => qq{
	extension_control_path = '\$system:$volume/share'
	dynamic_library_path = '\$libdir:$volume/lib'});

is(sql('SELECT count(*) FROM pg_available_extensions WHERE name = $$pg_task$$'), '1',
	'the server finds the extension');
is(sql(q{SELECT count(*) FROM
	pg_ls_dir((SELECT setting FROM pg_config() WHERE name = 'PKGLIBDIR')) AS name
	WHERE name = 'pg_task.so'}), '0', 'not in its own folder');
is_row($node, run_task($node, request => 'SELECT 6 * 7'), { state => 'DONE', response => '42' },
	'a task runs');
sql('CREATE DATABASE other');
wait_for_table($node, db => 'other');
$node->restart;
is_row($node, run_task($node, request => 'SELECT 6 * 7', db => 'other'),
	{ state => 'DONE', response => '42' }, 'so does one in another database, after a restart',
	db => 'other');

done_testing();
