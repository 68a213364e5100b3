# The manual names every object that a user can meet: columns of the tables, settings, functions
# with their results, codes of errors, wait events; and its links lead somewhere.  A TAP test
# because the server says what there is.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main', conf => 'pg_task.max_executors = 1');
my $top = "$FindBin::RealBin/../..";
my $manual = join "\n", map { slurp_file($_) } glob "$top/docs/*.md";

wait_for_table($node, table => 'task_queue');

# Names that no code span of the manual has; a span may have arguments or a prefix besides.
sub undocumented
{
	return join ' ', grep { $manual !~ /`[^`\n]*(?<![a-z_])\Q$_\E(?![a-z_])[^`\n]*`/ } @_;
}

sub is_documented
{
	my ($query, $name) = @_;
	my @names = split /\n/, sql($query);

	cmp_ok(scalar @names, '>', 2, "there are $name");
	is(undocumented(@names), '', "the manual has all $name");
	return;
}

is_documented(q{SELECT attname FROM pg_attribute WHERE attrelid = 'task'::regclass AND attnum > 0},
	'columns of the task table');
is_documented(q{SELECT attname FROM pg_attribute WHERE attrelid = 'task_queue'::regclass
	AND attnum > 0}, 'columns of the queue table');
is_documented(q{SELECT name FROM pg_settings WHERE name LIKE 'pg_task.%'}, 'settings');
is_documented(q{SELECT DISTINCT proname FROM pg_proc JOIN pg_depend ON objid = pg_proc.oid
	AND classid = 'pg_proc'::regclass AND deptype = 'e'
	JOIN pg_extension ON refobjid = pg_extension.oid WHERE extname = 'pg_task'}, 'functions');
is_documented(q{SELECT DISTINCT a.name FROM pg_proc, unnest(proargnames, proargmodes::text[])
	AS a (name, mode) WHERE proname ~ '^pg_(stat_)?task_' 
	AND proname NOT IN ('pg_task_facts', 'pg_task_following', 'pg_task_missing')
	AND a.mode IN ('o', 't')},
	'columns of results');

my %codes = map { $_ => 1 } map { slurp_file($_) =~ /"(TK\d{3})"/g } glob "$top/src/*/*.[ch]";
my $source = join '', map { slurp_file($_) } glob "$top/src/*/*.[ch]";

$codes{ join '', $_ =~ /'(.)'/g } = 1 for $source =~ /MAKE_SQLSTATE\(('T', 'K', [^)]*)\)/g;
cmp_ok(scalar keys %codes, '>', 3, 'there are codes');
is(undocumented(sort keys %codes), '', 'the manual has all codes');

my %events = map { $_ => 1 } $source =~ /"(PgTask[A-Z]\w+)"/g;

cmp_ok(scalar keys %events, '>', 3, 'there are wait events');
is(undocumented(sort keys %events), '', 'the manual has all wait events');

# The names by which others may link to the headings of a page.
sub anchors
{
	my $text = slurp_file($_[0]) =~ s/^```.*?^```//gmsr;

	return map { lc =~ s/[^a-z0-9 _-]//gr =~ tr/ /-/r } $text =~ /^#+ (.*?)\s*$/mg;
}

my @dead;

for my $page (glob "$top/*.md $top/docs/*.md $top/src/README.md $top/src/*/README.md")
{
	my ($folder) = $page =~ m{(.*)/};

	for my $link (slurp_file($page) =~ /\]\(([^)\s]+)\)/g)
	{
		next if $link =~ m{://};
		my ($file, $anchor) = $link =~ /([^#]*)#?(.*)/;
		my $target = $file eq '' ? $page : "$folder/$file";

		push @dead, "$page: $link"
		  if !-e $target || $anchor ne '' && !grep { $_ eq $anchor } anchors($target);
	}
}
is(join("\n", @dead), '', 'links lead to headings');

done_testing();
