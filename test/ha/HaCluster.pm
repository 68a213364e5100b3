# Three servers under Patroni, and one etcd, as processes of this one: for test/ha/failover.pl.
#
#   my $cluster = HaCluster->new(dir => $dir, bindir => $bindir, synchronous => 1,
#	  parameters => { 'pg_task.require_standby' => 'on' });
#   $cluster->start;
#   $cluster->switchover($cluster->leader, $other);
#   $cluster->kill_server($node);
#
# A node is a hash: name, number, port (of the server), rest (of Patroni), data, log, patroni (pid).
# The log of a node has the lines of Patroni and those of the server.  It knows nothing of tasks.
package HaCluster;

use strict;
use warnings;
use HTTP::Tiny;
use IO::Socket::INET;
use JSON::PP;
use POSIX qw(WNOHANG);
use Time::HiRes qw(sleep time);

# Seconds for what must happen at some time, on a busy machine.
my $patience = 600;

sub new
{
	my ($class, %self) = @_;

	return bless { %self, tried => 0, others => [] }, $class;
}

# A port below those that the system gives to clients.  Not by chance: another run may have the same
# seed.
sub free_port
{
	my ($self) = @_;

	for (1 .. 1000)
	{
		my $port = 10000 + (31 * $$ + $self->{tried}++) % 20000;
		my $socket =
		  IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 1)
		  or next;
		close $socket;
		return $port;
	}
	die "no free port\n";
}

# Starts a program whose output is appended to a file; returns its pid.
sub spawn
{
	my ($log, @command) = @_;
	my $pid = fork // die "fork: $!";

	return $pid if $pid;
	open STDIN, '<', '/dev/null' or die;
	open STDOUT, '>>', $log or die "$log: $!";
	open STDERR, '>&', \*STDOUT or die;
	exec @command or POSIX::_exit(127);
}

# Set by the handler of a signal: HTTP::Tiny catches what that handler dies of.
our $ended;

# Waits until the code returns something true, and returns that.
sub poll
{
	my ($what, $code, $seconds) = @_;
	my $end = time + ($seconds // $patience);

	while (time < $end)
	{
		my $value = $code->();
		die "ended by a signal\n" if $ended;
		return $value if $value;
		sleep 0.1;
	}
	die "waited in vain: $what\n";
}

sub http
{
	my ($method, $url, $body) = @_;
	my %options = $body ? (content => encode_json($body)) : ();

	return HTTP::Tiny->new(timeout => 60)->request($method, $url, \%options);
}

sub start_etcd
{
	my ($self) = @_;
	my ($client, $peer) = map { 'http://127.0.0.1:' . $self->free_port } 1 .. 2;

	mkdir "$self->{dir}/etcd", 0700;
	push @{ $self->{others} },
	  spawn("$self->{dir}/etcd.log", 'etcd', '--name', 'etcd', '--data-dir', "$self->{dir}/etcd",
		'--listen-client-urls', $client, '--advertise-client-urls', $client,
		'--listen-peer-urls', $peer, '--initial-advertise-peer-urls', $peer,
		'--initial-cluster', "etcd=$peer");
	$self->{etcd} = $client =~ s/^http:..//r;
	poll('etcd', sub { http('GET', "$client/health")->{success} });
}

# What docs/high-availability.md tells to set.
sub write_config
{
	my ($self, $node) = @_;
	my $mode = $self->{synchronous} ? 'true' : 'false';
	my %more = %{ $self->{parameters} // {} };
	my $more = join '', map { "        $_: '$more{$_}'\n" } sort keys %more;

	open my $file, '>', "$self->{dir}/$node->{name}.yml" or die $!;
	print $file <<"END";
scope: ha
name: $node->{name}
restapi:
  listen: 127.0.0.1:$node->{rest}
  connect_address: 127.0.0.1:$node->{rest}
etcd3:
  host: $self->{etcd}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 1
    retry_timeout: 3
    primary_start_timeout: 0
    synchronous_mode: $mode
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters:
        shared_preload_libraries: pg_task
        wal_log_hints: 'on'
        hot_standby: 'on'
        max_worker_processes: 24
        max_connections: 60
        shared_buffers: 32MB
        wal_keep_size: 256MB
        pg_task.max_executors: 6
        log_line_prefix: '%n [%p] '
        log_checkpoints: 'off'
$more  initdb:
    - encoding: UTF8
    - locale: C.UTF-8
    - no-sync
postgresql:
  listen: 127.0.0.1:$node->{port}
  connect_address: 127.0.0.1:$node->{port}
  data_dir: $node->{data}
  bin_dir: $self->{bindir}
  pgpass: $self->{dir}/$node->{name}.pgpass
  parameters:
    unix_socket_directories: $self->{dir}
  authentication:
    superuser: {username: postgres}
    replication: {username: replicator}
  pg_hba:
    - local all all trust
    - host all all 127.0.0.1/32 trust
    - host replication all 127.0.0.1/32 trust
END
	close $file;
}

sub start_patroni
{
	my ($self, $node) = @_;

	$node->{patroni} = spawn($node->{log}, 'patroni', "$self->{dir}/$node->{name}.yml");
}

sub start
{
	my ($self) = @_;

	$self->start_etcd;
	for my $number (1 .. 3)
	{
		my $name = "node$number";
		my $node = { name => $name, number => $number, port => $self->free_port,
			rest => $self->free_port, data => "$self->{dir}/$name",
			log => "$self->{dir}/$name.log" };

		push @{ $self->{nodes} }, $node;
		$self->write_config($node);
		$self->start_patroni($node);
		next if $number > 1;
		poll('the first leader', sub {
			die "Patroni does not run: $node->{log}\n" if waitpid($node->{patroni}, WNOHANG);
			return $self->leader; });
	}
	$self->wait_whole;
}

# How a client reaches the leader, wherever it is.
sub conninfo
{
	my ($self) = @_;
	my @nodes = @{ $self->{nodes} };

	return 'user=postgres dbname=postgres connect_timeout=5 target_session_attrs=read-write host='
	  . join(',', map { '127.0.0.1' } @nodes) . ' port=' . join(',', map { $_->{port} } @nodes);
}

# How a client reaches one node.
sub conninfo_of
{
	my ($node) = @_;

	return "host=127.0.0.1 port=$node->{port} user=postgres dbname=postgres connect_timeout=5";
}

# The members as Patroni sees them, by name; empty if none of them answers.
sub members
{
	my ($self) = @_;

	for my $node (grep { $_->{patroni} } @{ $self->{nodes} })
	{
		my $answer = http('GET', "http://127.0.0.1:$node->{rest}/cluster");
		next unless $answer->{success};
		return { map { $_->{name} => $_ } @{ decode_json($answer->{content})->{members} } };
	}
	return {};
}

# The node that leads and says so itself.
sub leader
{
	my ($self) = @_;

	for my $node (grep { $_->{patroni} } @{ $self->{nodes} })
	{
		return $node if http('GET', "http://127.0.0.1:$node->{rest}/primary")->{success};
	}
	return;
}

# Does each node run, follow the leader on its timeline and, if one has to be, is one synchronous?
sub is_whole
{
	my ($self) = @_;
	my $members = $self->members;
	my @all = values %$members;
	my ($leader) = grep { $_->{role} eq 'leader' } @all;

	return unless @all == 3 && $leader && $self->leader;
	for my $member (@all)
	{
		return unless $member->{state} =~ /^(running|streaming)$/;
		return unless ($member->{timeline} // 0) == ($leader->{timeline} // -1);
	}
	return !$self->{synchronous} || grep { $_->{role} =~ /^sync|quorum/ } @all;
}

sub wait_whole
{
	my ($self) = @_;

	poll('a leader and two standbys', sub { $self->is_whole });
}

# Patroni refuses while the candidate is not ready: then once more.
sub switchover
{
	my ($self) = @_;
	my $why = '';

	eval {
		poll('a switchover', sub {
			my $leader = $self->leader or return;
			my $members = $self->members;
			my @standbys = grep { $_->{role} ne 'leader' } values %$members;
			my @sync = grep { $_->{role} =~ /sync/ } @standbys;
			my ($to) = sort map { $_->{name} } $self->{synchronous} ? @sync : @standbys;
			my $answer = http('POST', "http://127.0.0.1:$leader->{rest}/switchover",
				{ leader => $leader->{name}, candidate => $to });
			$why = $answer->{content};
			return $answer->{success};
		});
	} or die "$@$why\n";
}

# The postmaster and its children.
sub tree_of
{
	my ($node) = @_;

	open my $file, '<', "$node->{data}/postmaster.pid" or return;
	chomp(my $postmaster = <$file>);
	my @tree = ($postmaster);
	for my $stat (glob '/proc/[0-9]*/stat')
	{
		open my $process, '<', $stat or next;
		my $line = <$process> // next;
		push @tree, $1 if $line =~ /^(\d+) \(.*\) \S $postmaster /s;
	}
	return @tree;
}

# SIGKILL for the server of a node, and for its Patroni, too; returns when.
sub kill_server
{
	my ($self, $node, $patroni) = @_;

	kill 'KILL', $node->{patroni} if $patroni;
	kill 'KILL', tree_of($node);
	my $when = time;
	if ($patroni)
	{
		waitpid($node->{patroni}, 0);
		$node->{patroni} = undef;
	}
	return $when;
}

# Ends all processes that it has started.
sub stop
{
	my ($self) = @_;
	my @patronis = map { delete $_->{patroni} // () } @{ $self->{nodes} };

	for my $pids (\@patronis, $self->{others})
	{
		kill 'TERM', @$pids;
		my $end = time + 20;
		while (@$pids && time < $end)
		{
			@$pids = grep { waitpid($_, WNOHANG) == 0 } @$pids;
			sleep 0.1;
		}
		kill 'KILL', @$pids;
		@$pids = ();
	}
}

1;
