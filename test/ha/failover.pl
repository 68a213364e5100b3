# failover.pl DIR BINDIR MODE SWITCHOVERS KILLS SEED: three servers under Patroni, whose leader is
# replaced so many times while tasks flow.  MODE is synchronous or asynchronous.  At the end, what
# was acknowledged has happened exactly once.  TAP and figures to stdout.  Run by scripts/ha.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use HaCluster;
use HaLoad;
use HaLog;
use List::Util qw(shuffle max min);
use Test::More;
use Time::HiRes qw(sleep time);

my ($dir, $bindir, $mode, $switchovers, $kills, $seed) = @ARGV;
my $synchronous = $mode eq 'synchronous';
my $began = time;
my $cluster = HaCluster->new(dir => $dir, bindir => $bindir, synchronous => $synchronous);
my (@sessions, @programs, @killed, $watcher);
my $standby_file = "$dir/standby";

$| = 1;
srand($seed);
$SIG{TERM} = $SIG{INT} = sub { $HaCluster::ended = 1; die "ended by a signal\n" };

my $main = $$;

END
{
	if ($$ == $main)
	{
		my $rc = $?;
		kill 'TERM', @sessions, @programs, $watcher // ();
		$cluster->stop;
		$? = $rc;
	}
}

sub say_it { printf "# %6.1f s  %s\n", time - $began, join ' ', @_ }

sub query
{
	my ($sql) = @_;
	my ($rc, $out, $err) = HaLoad::query($cluster->conninfo, $sql);

	die "$sql: $err" if $rc;
	return $out;
}

# The same, until there is a leader that answers.
sub query_patiently
{
	my ($sql) = @_;
	my $answer;

	HaCluster::poll($sql, sub { defined($answer = eval { query($sql) }) });
	return $answer;
}

# Looks for processes of pg_task on servers that are in recovery.  That is asked after they were
# counted, so that a promotion in between is no fault.
sub watch_standbys
{
	return HaLoad::start_child($standby_file, sub {
		my ($file) = @_;

		for my $node (@{ $cluster->{nodes} })
		{
			my (undef, $answer) = HaLoad::query(HaCluster::conninfo_of($node),
				q{WITH c AS MATERIALIZED (SELECT count(*) AS n FROM pg_stat_activity
					WHERE backend_type LIKE 'pg_task%')
				SELECT CASE WHEN pg_is_in_recovery() THEN 'standby ' || n END FROM c}, 10);
			print $file "$node->{name} $answer\n" if $answer =~ /standby/;
		}
		sleep 1;
	});
}

# Faults -------------------------------------------------------------------------------------------

sub switch_over
{
	my $from = $cluster->leader;

	$cluster->switchover;
	my $to = HaCluster::poll('a new leader', sub { $cluster->leader });
	return "switchover from $from->{name} to $to->{name}";
}

# The old leader comes back as a standby.  Where Patroni was killed with it, it is started again
# when another node leads.
sub kill_leader
{
	my ($patroni) = @_;
	my $from = HaCluster::poll('a leader', sub { $cluster->leader });
	my $when = $cluster->kill_server($from, $patroni);
	my $to = HaCluster::poll('another leader',
		sub { my $leader = $cluster->leader; $leader && $leader != $from ? $leader : undef });

	push @killed, { node => $from, when => $when };
	$cluster->start_patroni($from) if $patroni;
	return sprintf 'server%s of %s killed, %s leads after %.1f s', $patroni ? ' and Patroni' : '',
	  $from->{name}, $to->{name}, time - $when;
}

my @faults = shuffle((map { \&switch_over } 1 .. $switchovers),
	map { my $patroni = $_ % 3 == 0; sub { kill_leader($patroni) } } 1 .. $kills);

# The run ------------------------------------------------------------------------------------------

$cluster->start;
query_patiently("SELECT 1 / count(*) FROM pg_class WHERE relname = 'task_queue'");
HaLoad::create($cluster->conninfo);
say_it("three nodes, $mode replication,", query('SHOW server_version'),
	`patroni --version` =~ s/\s+/ /gr, "seed $seed");
@sessions = map { HaLoad::start_session($cluster->conninfo, $_, $seed, "$dir/session.$_") } 1 .. 2;
@programs = map { HaLoad::start_program($cluster->conninfo, "$dir/program.$_") } 1 .. 2;
$watcher = watch_standbys();

for my $fault (@faults)
{
	sleep 2 + rand 2;
	my $what = $fault->();
	my $done = time;

	$cluster->wait_whole;
	say_it($what . sprintf(', all three nodes run after %.1f s', time - $done));
}

sleep 2;
kill 'TERM', @sessions;
waitpid $_, 0 for splice @sessions;
query_patiently(q{UPDATE task SET state = 'STOP' WHERE kind = 'chain' AND state IN ('PLAN', 'WORK')
	RETURNING 1});
my $open = q{SELECT count(*) FROM task WHERE state IN ('PLAN', 'WORK')};
my $ended = eval {
	HaCluster::poll('the end of all tasks', sub {
		query_patiently(q{UPDATE task SET state = 'STOP' WHERE kind = 'chain' AND state = 'PLAN'
			RETURNING 1});
		return query_patiently($open) eq '0'; });
};
kill 'TERM', $watcher, @programs;
waitpid $_, 0 for $watcher, splice @programs;
$watcher = undef;
$cluster->wait_whole;
say_it('all tasks have ended');

# What was acknowledged ----------------------------------------------------------------------------

my $records = HaLoad::read_records(map { "$dir/session.$_" } 1 .. 2);
my %rows = map { my ($tag, @row) = split /\t/; $tag => \@row } split /\n/, query(
	q{SELECT concat_ws(E'\t', tag, kind, state, attempt, (SELECT count(*) FROM effect AS e
		WHERE e.tag = t.tag)) FROM task AS t WHERE kind <> 'chain'});
my @lost = sort grep { !$rows{$_} } keys %{ $records->{tags} };
my @unacknowledged = grep { !$records->{tags}{$_} } keys %rows;

sub none
{
	my ($sql, $name) = @_;

	is(query("SELECT * FROM ($sql) AS x LIMIT 5"), '', $name);
}

my $seen = scalar keys %{ $records->{tags} };

my @taken = map { local @ARGV = "$dir/program.$_"; <> } 1 .. 2;
my %fate;

chomp @taken;
$fate{$_}++ for grep { !/^#/ } @taken;
cmp_ok($seen, '>', 0, 'sessions have planned tasks');
is(join("\n", grep { /^#/ } @taken), '', 'a program gets no error but for these');
cmp_ok($fate{done} // 0, '>', 0, 'programs have taken tasks and finished them');
is(join("\n", @{ $records->{errors} }), '', 'a session gets no error but for the connection');
if ($synchronous)
{
	is("@lost", '', 'each acknowledged row is there');
}
else
{
	# only what was acknowledged shortly before a kill
	my @early = grep { my $at = $records->{tags}{$_};
		!grep { $at < $_->{when} + 1 && $at > $_->{when} - 15 } @killed } @lost;

	is("@early", '', 'acknowledged rows were only lost at kills');
	say_it(scalar @lost, 'acknowledged rows were lost:', "@lost") if @lost;
}
ok($ended, 'each task has ended');
none(q{SELECT id, tag, state, attempt, sqlstate, error FROM task WHERE state <> 'DONE'
	AND kind <> 'chain'},
	'each task is DONE');
is(join(' ', grep { $rows{$_}[3] != 1 } sort keys %rows), '', 'each has its effect once');
none(q{SELECT id, attempt FROM effect EXCEPT SELECT id, attempt FROM task WHERE state = 'DONE'},
	'each effect is of the run that made its row DONE');
none(q{SELECT id, attempt FROM task WHERE state = 'DONE' EXCEPT SELECT id, attempt FROM effect},
	'each row that is DONE has its effect');
none('SELECT id FROM effect GROUP BY id HAVING count(*) > 1', 'no task has two effects');
none(q{SELECT id FROM task AS t WHERE kind = 'chain' AND state = 'DONE' AND
	(SELECT count(*) FROM task AS n WHERE n.parent = t.id) <> 1},
	'each run of a chain has one that follows it');

# What the logs say --------------------------------------------------------------------------------

my (@runs, @promotions, @traps);
my $rewinds = 0;

for my $node (@{ $cluster->{nodes} })
{
	my $log = HaLog::read_log($node, map { $_->{when} } grep { $_->{node} == $node } @killed);

	HaLog::complete_runs($log);
	push @runs, @{ $log->{runs} };
	push @promotions, @{ $log->{promotions} };
	push @traps, @{ $log->{traps} };
	$rewinds += $log->{rewinds};
}
is(join("\n", HaLog::overlaps(@runs)), '', 'no task runs twice at once');
is(scalar(grep { defined $_->{end} } @runs), scalar @runs, 'each run has an end in the logs');
is(join('', @traps), '', 'no assertion has failed');

my @watched = split /\n/, do { local (@ARGV, $/) = $standby_file; <> } // '';
is(scalar(grep { !/standby 0$/ } @watched), 0, 'no process of pg_task on a standby');
cmp_ok(scalar @watched, '>', 0, 'standbys were looked at');

@promotions = sort { $a->{recovered} <=> $b->{recovered} } @promotions;
cmp_ok(scalar @promotions, '>=', $switchovers + $kills, 'as many promotions as faults');
is(scalar(grep { !defined $_->{first} } @promotions), 0, 'tasks run after each promotion');
cmp_ok($rewinds, '>', 0, 'pg_rewind was used') if $kills > 2;

my @served = grep { $_->{first} } @promotions;
my @first = sort { $a <=> $b } map { $_->{first} - $_->{recovered} } @served;
my @ready = sort { $a <=> $b } map { $_->{first} - $_->{ready} } @served;
cmp_ok(max(@first), '<', 1, 'the first task runs within a second of each promotion');

# Figures ------------------------------------------------------------------------------------------

sub ms { return join ' ', map { sprintf '%.0f', 1000 * $_ } @_ }

sub spread
{
	return sprintf 'p50 %s ms, max %s ms', ms($_[ $#_ / 2 ]), ms($_[-1]);
}

# The most starts of the queue with a rate within a second of the wall clock.
my %kind = map { split /\t/ } split /\n/, query(q{SELECT id || E'\t' || kind FROM task});
my @rated = sort { $a <=> $b } map { $_->{begin} }
  grep { ($kind{ $_->{id} } // '') eq 'rated' } @runs;
my $most = 0;
for my $from (0 .. $#rated)
{
	my $to = $from;
	$to++ while $to < $#rated && $rated[ $to + 1 ] < $rated[$from] + 1;
	$most = max($most, $to - $from + 1);
}

say_it(scalar @promotions, 'promotions,', scalar @killed, "kills, pg_rewind $rewinds times");
say_it('from "archive recovery complete" to the first run:', spread(@first), '; all:', ms(@first));
say_it('from "ready to accept connections":', spread(@ready));
say_it("statements: $records->{yes} acknowledged, $records->{no} not;",
	"rows: $seen acknowledged, ", scalar @lost, 'of these lost,', scalar @unacknowledged,
	'there without');
say_it('tasks:', query(q{SELECT string_agg(kind || ' ' || n, ', ' ORDER BY kind) FROM
	(SELECT kind, count(*) AS n FROM task WHERE state = 'DONE' GROUP BY 1) AS x}));
say_it('of tasks that were taken:', join ', ', map { "$_ $fate{$_}" } sort keys %fate);
say_it(scalar @runs, 'runs began,', query('SELECT count(*) FROM effect'), 'have an effect,',
	query('SELECT count(*) FROM task WHERE attempt > 1'), 'tasks took more than one,',
	query('SELECT count(*) FROM task WHERE crashed > 0'), 'were suspects');
say_it("most starts in a second of the queue that may start 5: $most");
done_testing();
