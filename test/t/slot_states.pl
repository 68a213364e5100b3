# The states of slots (src/shared/slots.c): every edge from every state.  What the table in the
# header of that file does not list is refused by an assertion, or changes nothing.  Then what
# remains of a scheduler when it has exited, and which databases are remembered.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $library = build_module('slots_check', "-I$FindBin::RealBin/../../src");
my $node = new_node('main', conf => 'pg_task.enabled = off', start => 0);
$node->start;
sql(qq{
	CREATE FUNCTION slot_edge(kind text, state text, attached bool, edge text) RETURNS text
		LANGUAGE c STRICT AS '$library';
	CREATE FUNCTION slot_needs(steps text) RETURNS text LANGUAGE c STRICT AS '$library';
	CREATE FUNCTION slot_databases(databases int, steps int, seed bigint) RETURNS int
		LANGUAGE c STRICT AS '$library'});

# Compares the results of all edges of a kind of slot with a table.  The first word of a line is the
# edge (_ for a space), the others are the results for the states in the first line, where + means
# that a process is attached: the new state, "=" if nothing changes, "-" if an assertion fails.
sub check_edges
{
	my ($kind, $heading, @lines) = @_;
	my (undef, @states) = split ' ', $heading;

	foreach my $line (@lines)
	{
		my ($edge, @expected) = split ' ', $line;
		my $calls = join ', ', map {
			my ($state, $attached) = /^(\w+)(\+?)$/;
			sprintf(q{slot_edge('%s', '%s', %s, '%s')},
				$kind, $state, $attached ? 'true' : 'false', $edge =~ tr/_/ /r);
		} @states;
		my @results = split ' ', sql("SELECT concat_ws(' ', $calls)");

		foreach my $i (0 .. $#states)
		{
			$results[$i] = '-' if $results[$i] eq 'refused';
			$results[$i] = '=' if $states[$i] =~ /^$results[$i]\+?$/;
		}
		is("@results", "@expected", "$kind: $edge from @states");
	}
}

check_edges('scheduler',
	'edge           FREE      STARTING  LEAVING  RUNNING+  LEAVING+',
	'reserve        STARTING  =         =        =         =',
	'reserve_held   =         =         =        =         =',
	'attach         =         RUNNING   FREE     =         =',
	'attach_late    =         =         =        =         =',
	'leave          =         LEAVING   =        LEAVING   =',
	'leave_unlocked =         -         =        -         =',
	'release        -         -         -        FREE      FREE',
	'withdraw       =         FREE      FREE     -         -',
	'withdraw_late  =         =         =        =         =');

check_edges('executor',
	'edge             FREE      STARTING  LEAVING  GONE      STARTING+  READY+   LEAVING+',
	'reserve          STARTING  =         =        STARTING  =          =        =',
	'reserve_unlocked -         =         =        -         =          =        =',
	'attach           =         =         =        =         =          =        =',
	'attach_late      =         =         =        =         =          =        =',
	'connected        -         -         -        -         READY      -        =',
	'leave            =         LEAVING   =        =         LEAVING    LEAVING  =',
	'leave_late       =         =         =        =         =          =        =',
	'leave_unlocked   =         -         =        =         -          -        =',
	'leave_all        =         LEAVING   =        =         LEAVING    LEAVING  =',
	'retire           -         -         -        -         -          LEAVING  =',
	'release          -         -         -        -         FREE       FREE     FREE',
	'forget           =         FREE      FREE     FREE      =          =        =',
	'forget_late      =         =         =        =         =          =        =',
	'forget_all       =         LEAVING   =        FREE      LEAVING    LEAVING  =');

check_edges('executor with tasks',
	'edge             GONE      READY+   LEAVING+',
	'leave            =         LEAVING  =',
	'retire           -         =        =',
	'release          -         GONE     GONE',
	'forget           FREE      =        =');

# What a scheduler leaves that has exited: its successor finds what it did not look at any more.
my @lives = (
	[ 'publish leave release', '' ],
	[ 'publish wake leave release', '' ],
	[ 'publish leave wake release', 'marked ' ],
	[ 'publish leave hint release', 'marked ' ],
	[ 'publish crash leave release', 'marked ' ],
	[ 'publish leave release wake', 'marked ' ],
	[ 'disable leave release', 'disabled ' ],
	[ 'disable leave release wake', 'disabled marked ' ],
	[ 'disable leave release settings', '' ],
	[ 'disable leave release settings start publish leave release', '' ],
	[ 'disable leave release settings start absent leave release', 'absent ' ],
	[ 'absent leave release settings', 'absent ' ]);
foreach my $life (@lives)
{
	my ($steps, $needs) = @$life;

	is(sql("SELECT slot_needs('start $steps')"), $needs,
		"scheduler: $steps: " . ($needs || 'nothing'));
}

# Shared memory remembers so many databases.
foreach my $databases (1, 40, 1500)
{
	my $seed = int(rand(2**31));

	is(sql("SELECT slot_databases($databases, 20000, $seed)"),
		$databases > 1024 ? 1024 : $databases,
		"of $databases databases at most 1024 are remembered (seed $seed)");
}

done_testing();
