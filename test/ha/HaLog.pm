# What the servers' logs say of runs and promotions: for test/ha/failover.pl.  All servers have the
# same clock.
package HaLog;

use strict;
use warnings;

# Reads the log of a node.  Returns
#   runs        [{ id, attempt, node, begin, end }]; end is undef if the log has none
#   promotions  [{ node, recovered, ready, first }]: when the log said that recovery was complete,
#               that connections are accepted, and that the first run began after that
#   rewinds     how often pg_rewind has succeeded
#   traps       assertions that failed
#   deaths      [time]: when the server has ended, as far as the log says so
sub read_log
{
	my ($node, @kills) = @_;
	my (%log, %running, $promotion);

	@log{qw(runs promotions traps deaths)} = ([], [], [], [@kills]);
	$log{rewinds} = 0;
	open my $file, '<', $node->{log} or die "$node->{log}: $!";
	while (my $line = <$file>)
	{
		$log{rewinds}++ if $line =~ /pg_rewind exit code=0/;
		push @{ $log{traps} }, $line if $line =~ /^TRAP|TRAP: /;
		my ($when, $pid, $text) = $line =~ /^(\d+\.\d+) \[(\d+)\] (.*)/ or next;
		if ($text =~ /^LOG:  ha begin (\d+) (\d+)/)
		{
			my $run = { id => $1, attempt => $2, node => $node->{name}, begin => $when };
			push @{ $log{runs} }, $running{$pid} = $run;
			$promotion->{first} //= $when if $promotion;
		}
		elsif ($text =~ /^(LOG:  ha end|ERROR|FATAL)/ && $running{$pid})
		{
			(delete $running{$pid})->{end} = $when;
		}
		elsif ($text =~ /archive recovery complete/)
		{
			push @{ $log{promotions} },
			  $promotion = { node => $node->{name}, recovered => $when };
		}
		elsif ($text =~ /ready to accept connections/ && $promotion)
		{
			$promotion->{ready} //= $when;
		}
		elsif ($text =~ /database system is shut down|LOG:  starting PostgreSQL/)
		{
			push @{ $log{deaths} }, $when;
			%running = ();
			$promotion = undef;
		}
	}
	return \%log;
}

# A run whose end is not in the log has ended with its server.
sub complete_runs
{
	my ($log) = @_;
	my @deaths = sort { $a <=> $b } @{ $log->{deaths} };

	for my $run (grep { !defined $_->{end} } @{ $log->{runs} })
	{
		($run->{end}) = grep { $_ >= $run->{begin} } @deaths;
	}
}

# The pairs of runs of the same task that overlap, as text.
sub overlaps
{
	my (@runs) = @_;
	my (%last, @found);

	for my $run (sort { $a->{begin} <=> $b->{begin} } @runs)
	{
		my $before = $last{ $run->{id} };

		push @found, join ' ', 'task', $run->{id}, map { @$_{qw(node attempt begin)} } $before, $run
		  if $before && (!defined $before->{end} || $before->{end} > $run->{begin});
		$last{ $run->{id} } = $run;
	}
	return @found;
}

1;
