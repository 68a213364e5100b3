# isolation.pl DIR BINDIR [on|off]: three servers under Patroni, whose leader is cut off from the
# others and goes on as a primary, with pg_task.require_standby.  What its tasks do outside of the
# database happens once.  With "off" the old leader runs them, too, and the test fails.  TAP to
# stdout.  Run by scripts/ha.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use HaCluster;
use HaLoad;
use Test::More;
use Time::HiRes qw(sleep time);

my ($dir, $bindir, $require) = @ARGV;
my $began = time;
my $count = 60;
my $outside = "$dir/outside";
my $cluster = HaCluster->new(dir => $dir, bindir => $bindir, synchronous => 1,
	parameters => { 'pg_task.require_standby' => $require // 'on' });
my $old;
my $main = $$;

$| = 1;
$SIG{TERM} = $SIG{INT} = sub { $HaCluster::ended = 1; die "ended by a signal\n" };

END
{
	if ($$ == $main)
	{
		my $rc = $?;
		kill 'TERM', HaCluster::tree_of($old) if $old && !$old->{patroni};
		$cluster->stop;
		$? = $rc;
	}
}

sub say_it { printf "# %6.1f s  %s\n", time - $began, join ' ', @_ }

# Asks a node; undefined if it does not answer.
sub ask
{
	my ($node, $sql) = @_;
	my ($rc, $out) = HaLoad::query(HaCluster::conninfo_of($node), $sql);

	return $rc ? undef : $out;
}

# Waits until a node gives this answer.
sub wait_for_answer
{
	my ($node, $sql, $expected) = @_;

	HaCluster::poll("$node->{name}: $sql", sub { (ask($node, $sql) // '') eq $expected });
}

# The port of the server that has run a task, for each line that a run has written.
sub lines_outside
{
	open my $file, '<', $outside or return;
	return map { [ split ' ' ] } <$file>;
}

$cluster->start;
$old = $cluster->leader;
wait_for_answer($old, q{SELECT state FROM pg_stat_task_scheduler()}, 'running');
is(ask($old, q{INSERT INTO task (request) VALUES ('SELECT 1') RETURNING 1}), 1,
	'the leader plans tasks');
wait_for_answer($old, q{SELECT state FROM task}, 'DONE');
say_it("$old->{name} leads, and runs tasks");

# They are due when the leader is cut off already.
ask($old, qq{INSERT INTO task (queue, dt, request)
	SELECT 'outside', now() + interval '10 s', format(
		\$\$COPY (SELECT %s, current_setting('port')) TO PROGRAM 'cat >> $outside'\$\$, n)
	  FROM generate_series(1, $count) AS n});

# Its Patroni is gone, so nothing tells it that another one leads; and others cannot connect to it.
kill 'KILL', $old->{patroni};
waitpid $old->{patroni}, 0;
$old->{patroni} = undef;
open my $hba, '>', "$old->{data}/pg_hba.conf" or die $!;
print $hba "local all all trust\nhost all all 127.0.0.1/32 trust\n";
close $hba;
ask($old, 'SELECT pg_reload_conf()');
ask($old, q{SELECT pg_terminate_backend(pid) FROM pg_stat_replication});
wait_for_answer($old, 'SELECT count(*) FROM pg_stat_replication', 0);
say_it("$old->{name} is cut off");

my $new = HaCluster::poll('another leader', sub { $cluster->leader });
say_it("$new->{name} leads, too");
wait_for_answer($new, q{SELECT count(*) FROM task WHERE state <> 'DONE'}, 0);
say_it("$new->{name} has run all tasks");

is(ask($old, 'SELECT pg_is_in_recovery()'), 'f', 'the old leader is a primary all the time');
is(ask($old, q{SELECT count(*) FROM task WHERE queue = 'outside' AND state = 'PLAN' AND attempt = 0
	AND dt < now()}), $count, 'the tasks are due there, and none has started');
is(ask($old, q{SELECT state FROM pg_stat_task_scheduler()}), 'no standby', 'its scheduler says why');
is(ask($old, q{SELECT pg_task_why(max(id)) FROM task}),
	'too few synchronous standbys are connected: see pg_task.require_standby', 'so does a task');

$cluster->start_patroni($old);
$cluster->wait_whole;
say_it("$old->{name} has joined again");
wait_for_answer($old, q{SELECT pg_is_in_recovery()}, 't');
is(ask($new, qq{INSERT INTO task (request) VALUES ('SELECT 1') RETURNING 1}), 1,
	'the new leader plans tasks');
wait_for_answer($new, q{SELECT count(*) FROM task WHERE state <> 'DONE'}, 0);

my @lines = lines_outside();
my %times;
$times{ $_->[0] }++ for @lines;
is(join(' ', grep { $times{$_} != 1 } sort keys %times), '', 'none has had its effect twice');
is(scalar keys %times, $count, 'each has had its effect outside');
is(scalar(grep { $_->[1] == $old->{port} } @lines), 0, 'none of them on the old leader');
done_testing();
