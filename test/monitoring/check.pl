# What is in monitoring/, run with the real programs: both exporters give the same figures, and
# those of the database; each query of the dashboard finds something; the rules are well-formed and
# fire when they should.  scripts/monitoring-check starts this beside a server of its own, with the
# programs in the PATH.
use strict;
use warnings;
use HTTP::Tiny;
use IO::Socket::INET;
use JSON::PP ();
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

my $run = $ENV{MONITORING_RUN} or die "to be started by scripts/monitoring-check\n";
my $http = HTTP::Tiny->new(timeout => 20);
my @jobs = qw(postgres_exporter sql_exporter);
my %port;
my @pids;

# A name that must not be taken for anything else by what it passes through.
my $evil = qq{a"b\\c\nd{e="f"}'g};

# Programs -----------------------------------------------------------------------------------------

sub slurp
{
	my ($name) = @_;

	open my $in, '<:raw', $name or die "$name: $!\n";
	local $/ = undef;
	return scalar <$in>;
}

sub spew
{
	my ($name, $text) = @_;

	open my $out, '>:raw', $name or die "$name: $!\n";
	print $out $text;
	close $out or die "$name: $!\n";
}

sub sql
{
	my ($query) = @_;

	open my $psql, '-|', 'psql', '-XAtqc', $query or die "psql: $!\n";
	my $out = join '', <$psql>;
	close $psql or die "psql has failed: $query\n";
	chomp $out;
	return $out;
}

# A test that passes once its condition holds.  Each that fails makes the next ones wait less.
my $patience = 60;

sub wait_for
{
	my ($name, $condition) = @_;
	my $end = time + $patience;

	while (time < $end)
	{
		return pass($name) if $condition->();
		sleep 0.2;
	}
	$patience /= 3;
	return fail($name);
}

sub free_port
{
	my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1) or die "no port\n";

	return $socket->sockport;
}

# Starts a program that listens to a port, and waits until it answers.  Somebody else may have taken
# the port meanwhile: then it ends, and gets another one.
sub start_program
{
	my ($name, $path, $answer, $command) = @_;

	for (1 .. 5)
	{
		$port{$name} = free_port();
		my $pid = fork // die "fork: $!\n";

		if ($pid == 0)
		{
			open STDOUT, '>>', "$run/$name.log";
			open STDERR, '>&', \*STDOUT;
			exec $command->($port{$name}) or POSIX::_exit(1);
		}
		my $end = time + 60;

		while (time < $end && waitpid($pid, POSIX::WNOHANG()) == 0)
		{
			if (($http->get("http://127.0.0.1:$port{$name}$path")->{content} // '') =~ $answer)
			{
				push @pids, $pid;
				return pass("$name answers");
			}
			sleep 0.1;
		}
		kill 'KILL', $pid;
		waitpid $pid, 0;
	}
	diag(slurp("$run/$name.log"));
	BAIL_OUT("$name does not start");
}

# Only the process that has started them.
my $main = $$;
END
{
	if ($$ == $main)
	{
		local $?;
		kill 'TERM', @pids;
		waitpid $_, 0 for @pids;
	}
}

# A file of monitoring/ with other addresses, in the folder of the run.
sub adapt
{
	my ($name, %replaced) = @_;
	my $text = slurp("monitoring/$name");

	for my $old (sort keys %replaced)
	{
		$text =~ s/\Q$old\E/$replaced{$old}/g or die "$name has no $old\n";
	}
	spew("$run/$name", $text);
}

sub succeeds
{
	my (@command) = @_;
	my $out = qx(@command 2>&1);

	ok($? == 0, "@command") or diag($out);
}

# Prometheus ---------------------------------------------------------------------------------------

sub api
{
	my ($path, %form) = @_;
	my $url = "http://127.0.0.1:$port{prometheus}/api/v1/$path";
	my $reply = %form ? $http->post_form($url, \%form) : $http->get($url);

	return JSON::PP::decode_json($reply->{content});
}

# The rows of a query; an error is a failed test.
sub query
{
	my ($query) = @_;
	my $reply = api('query', query => $query);

	return @{ $reply->{data}{result} } if $reply->{status} eq 'success';
	fail("query $query: $reply->{error}");
	return ();
}

# The values of a query, one for each of the two jobs, in their order; NULL: there is none.
sub values_of
{
	my ($query) = @_;
	my %value = map { $_->{metric}{job} => $_->{value}[1] } query($query);

	return join ' ', map { $value{$_} // 'NULL' } @jobs;
}

# Which series a job has of a metric, by their labels.
sub series_of
{
	my ($metric, $job) = @_;

	return join "\n", sort map {
		my $labels = $_->{metric};
		join ',', map { $_ . '=' . ($labels->{$_} // '') } qw(datname queue key role le);
	} query(qq($metric\{job="$job"}));
}

# The metrics that the queries promise: [ name, ... ].
sub promised_metrics
{
	my $query;
	my @names;

	for my $line (split /\n/, slurp('monitoring/postgres_exporter.yaml'))
	{
		$query = $1 if $line =~ /^(pg_task\w*):$/;
		next unless $line =~ /^    - (\w+): \{usage: (\w+), /;
		push @names, "${query}_$1" if $2 eq 'GAUGE' || $2 eq 'COUNTER';
		push @names, map { "${query}_$1_$_" } qw(bucket sum count) if $2 eq 'HISTOGRAM';
	}
	return @names;
}

# The queries of the dashboard: [ title, query ], ..., as Grafana would send them.
sub dashboard_queries
{
	my $dashboard = JSON::PP::decode_json(slurp('monitoring/grafana.json'));
	my %value = ('$__rate_interval' => '20s', '$instance' => '.*', '$datname' => '.*');
	my @queries;

	for my $panel (@{ $dashboard->{panels} })
	{
		for my $target (@{ $panel->{targets} })
		{
			push @queries, [ $panel->{title}, $target->{expr} =~ s/(\$\w+)/$value{$1}/gr ];
		}
	}
	return @queries;
}

# Has each row of the result a number?
sub finds_numbers
{
	my @rows = query($_[0]);

	return @rows > 0 && !grep { $_->{value}[1] !~ /^-?[0-9.]+(e[-+]?[0-9]+)?$/ } @rows;
}

# The test -----------------------------------------------------------------------------------------

# Two databases, one of which is not named to the exporters; tasks of all kinds in the other.
sub make_tasks
{
	my $name = $evil =~ s/'/''/gr;

	sql('CREATE DATABASE app');
	wait_for('both databases have a scheduler', sub {
		sql(q{SELECT count(*) FROM pg_stat_task_scheduler() WHERE state = 'running'}) >= 2;
	});
	succeeds(qw(psql -XAtq -v ON_ERROR_STOP=1 -f monitoring/role.sql));
	sql(qq{
		INSERT INTO task_queue (queue, paused) VALUES ('paused', true);
		INSERT INTO task (queue, dt, request)
			SELECT 'paused', now() - interval '3 h', 'SELECT 1' FROM generate_series(1, 3);
		INSERT INTO task_queue (queue, rate, per) VALUES ('slow', 1, '1 day');
		INSERT INTO task (queue, dt, request)
			SELECT 'slow', now() - interval '2 h', 'SELECT 1' FROM generate_series(1, 2);
		CREATE ROLE mailer;
		INSERT INTO task_queue (queue, taker) VALUES ('mail', 'mailer');
		INSERT INTO task (queue, dt, request) VALUES ('mail', now() - interval '150 min', 'send');
		INSERT INTO task (queue, dt, max, request) VALUES ('never', '-infinity', 0, 'SELECT 1');
		INSERT INTO task (queue, request) SELECT 'broken', 'SELECT 1 / 0'
			FROM generate_series(1, 7);
		INSERT INTO task (queue, request) VALUES ('$name', 'SELECT 1');
		INSERT INTO task (queue, request) VALUES ('long', 'SELECT pg_sleep(600)');
		INSERT INTO task (queue, repeat, request) VALUES ('tick', '0.1 s', 'SELECT pg_sleep(0.01)');
		INSERT INTO task (queue, repeat, request) VALUES ('failing', '0.2 s', 'SELECT 1 / 0');
		CREATE ROLE tenant;
		CREATE ROLE stranger;
		REVOKE CONNECT ON DATABASE postgres FROM PUBLIC;
		INSERT INTO task (queue, key, repeat, dt, request, role)
			SELECT 'many', n, '1 day', '2100-01-01', 'SELECT 1', 'tenant'
			FROM generate_series(1, 200) AS n;
		INSERT INTO task (queue, key, repeat, dt, request) VALUES
			('named', '$name', '1 day', now(), 'SELECT 1'),
			('named', repeat('k', 200), '1 day', now(), 'SELECT 1 / 0'),
			('named', 'gone', '1 day', '2100-01-01', 'SELECT 1'),
			('paused', 'paused', '1 day', now() - interval '3 h', 'SELECT 1'),
			('plain', NULL, '1 day', now(), 'SELECT 1'),
			('plain', NULL, '1 day', now(), 'SELECT 1 / 0'),
			('plain', NULL, '1 day', '2100-01-01', 'SELECT 1');
		INSERT INTO task (queue, key, repeat, dt, request, role)
			VALUES ('named', 'late', '1 day', now() - interval '2 h', 'SELECT 1', 'stranger')});
	sql('GRANT CONNECT ON DATABASE postgres TO task_monitor, tenant');
}

sub start_programs
{
	my $source = "user=task_monitor host=$ENV{PGHOST} dbname=postgres sslmode=disable";

	start_program('postgres_exporter', '/metrics', qr/^pg_task_done_total/m, sub {
		$ENV{DATA_SOURCE_NAME} = $source;
		return ('prometheus-postgres-exporter', '--auto-discover-databases',
			'--exclude-databases=app',
			'--extend.query-path=monitoring/postgres_exporter.yaml',
			"--web.listen-address=127.0.0.1:$_[0]");
	});
	adapt('sql_exporter.yaml', '/run/postgresql' => $ENV{PGHOST},
		'interval: 15s' => 'interval: 1s');
	start_program('sql_exporter', '/metrics', qr/^sql_pg_task_table/m, sub {
		$ENV{LOGLEVEL} = 'WARN';
		return ('prometheus-sql-exporter', '-config.file', "$run/sql_exporter.yaml",
			'-web.listen-address', "127.0.0.1:$_[0]");
	});
	adapt('prometheus.yml', 'localhost:9187' => "127.0.0.1:$port{postgres_exporter}",
		'localhost:9237' => "127.0.0.1:$port{sql_exporter}", 'interval: 15s' => 'interval: 2s',
		'alerts.yml' => "$ENV{PWD}/monitoring/alerts.yml");
	start_program('prometheus', '/-/ready', qr/Ready/i, sub {
		return ('prometheus', "--config.file=$run/prometheus.yml",
			"--storage.tsdb.path=$run/prometheus", "--web.listen-address=127.0.0.1:$_[0]");
	});
}

$ENV{PWD} = POSIX::getcwd();
succeeds(qw(promtool check config monitoring/prometheus.yml));
succeeds(qw(promtool check rules monitoring/alerts.yml));
succeeds(qw(promtool test rules monitoring/alerts_test.yml));

make_tasks();
start_programs();

# Both exporters have all metrics, with the same labels.
my @metrics = promised_metrics();
my %promised = map { $_ => 1 } @metrics;

cmp_ok(scalar @metrics, '>', 30, 'the queries promise metrics');
for my $metric (@metrics)
{
	wait_for("$metric, the same series from both", sub {
		my ($one, $other) = map { series_of($metric, $_) } @jobs;

		return $one ne '' && $one eq $other;
	});
}

# The figures are those of the database.
my $escaped = JSON::PP->new->allow_nonref->encode($evil);
my %expected = (
	'pg_task_failed_total{queue="broken"}' => 7,
	"pg_task_done_total{queue=$escaped}" => 1,
	'pg_task_wait_seconds_count{queue="broken"}' => 7,
	'pg_task_wait_seconds_bucket{queue="broken",le="+Inf"}' => 7,
	'pg_task_run_seconds_bucket{queue="long",le="+Inf"}' => 0,
	'pg_task_queue_due{queue="paused"}' => 4,
	'pg_task_queue_due{queue="never"}' => 0,
	'pg_task_queue_waits{queue="never"}' => 1,
	'pg_task_queue_runs{queue="long"}' => 1,
	'pg_task_queue_paused{queue="paused"}' => 1,
	'pg_task_queue_paused{queue="long"}' => 0,
	'pg_task_queue_takers{queue="mail"}' => 0,
	'pg_task_queue_takers{queue="long"}' => -1,
	'pg_task_queue_behind_seconds{queue="mail"} > bool 8000' => 1,
	'pg_task_queue_behind_seconds{queue="paused"}' => 0,
	'pg_task_schedule_failed{queue="named",key=~"k{100}"}' => 1,
	"pg_task_schedule_failed{queue=\"named\",key=$escaped,role=\"postgres\"}" => 0,
	'pg_task_schedule_late_seconds{key="late",role="stranger"} > bool 7000' => 1,
	'pg_task_schedule_late_seconds{key="paused"}' => 0,
	'pg_task_schedule_paused{key="paused"}' => 1,
	'pg_task_schedule_paused{key="late"}' => 0,
	'pg_task_schedule_chains{queue="plain",key=""}' => 3,
	'pg_task_schedule_failed{queue="plain",key=""}' => 1,
	'count by (job) (pg_task_schedule_chains)' => 100,
	'count by (job) (pg_task_schedule_chains{role!="tenant"})' => sql(q{
		SELECT count(DISTINCT (queue, key)) FROM pg_task_repeating() WHERE role <> 'tenant'}),
	'count by (job) (pg_task_queue_due{datname="app"})' => 'NULL',
	'count by (job) (pg_task_scheduler_running == 1)' => sql(
		'SELECT count(*) FROM pg_stat_task_scheduler()'),
	'pg_task_server_max_executors' => 4,
	'pg_task_scheduler_behind_seconds{datname="postgres"} > bool 8000' => 1,
	'pg_task_scheduler_behind_seconds{datname="postgres"} > bool 10000' => 0,
	'pg_task_queue_behind_seconds{queue="slow"} > bool 7000' => 1,
	'pg_task_table_size_bytes{datname="postgres"} > bool 50000' => 1,
);

for my $query (sort keys %expected)
{
	wait_for("$query is $expected{$query}",
		sub { values_of($query) eq "$expected{$query} $expected{$query}" });
}

# Each bucket has as many as the histogram of the database has up to there.
my $buckets = sql(q{
	SELECT string_agg(below::text, ' ' ORDER BY n) FROM (
		SELECT n, sum(count) OVER (ORDER BY n) AS below
		  FROM pg_stat_task() CROSS JOIN LATERAL unnest(run_histogram) WITH ORDINALITY AS h (count, n)
		 WHERE queue = 'broken') AS s WHERE n >= 4});

for my $job (@jobs)
{
	my @rows = query(qq(pg_task_run_seconds_bucket{queue="broken",job="$job"}));

	is(join(' ', map { $_->{value}[1] } sort { $a->{metric}{le} <=> $b->{metric}{le} } @rows),
		$buckets, "$job: the histogram of the database");
}

# The dashboard.
for my $query (dashboard_queries())
{
	wait_for("dashboard, $query->[0]: $query->[1]", sub { finds_numbers($query->[1]) });
}

# No misspelt metric; each rule is evaluated; one fires, another is about to.
my $texts = slurp('monitoring/alerts.yml') . join "\n", map { $_->[1] } dashboard_queries();

is(join(' ', grep { !$promised{$_} } $texts =~ /\b(pg_task_(?!\w*max_schedulers)\w+)\b/g), '',
	'rules and dashboard name no other metric');

sub rules { return map { @{ $_->{rules} } } @{ api('rules')->{data}{groups} } }

wait_for('each rule is evaluated', sub { !grep { $_->{health} ne 'ok' } rules() });

# Its "for" may be over or not.
sub is_on { return scalar grep { $_->{name} eq $_[0] && $_->{state} ne 'inactive' } rules() }

for my $name (qw(PgTaskFailing PgTaskLate PgTaskNobodyTakes PgTaskPaused PgTaskScheduleFailed
	PgTaskScheduleLate))
{
	wait_for("$name is on", sub { is_on($name) });
}
wait_for("$_ is not", sub { !is_on($_) }) for qw(PgTaskUnknown PgTaskDisabled PgTaskHeldBack);
sql(q{DELETE FROM task WHERE key = 'gone'});
wait_for('a schedule is gone', sub {
	values_of('count by (job) (pg_task_schedule_chains{key="gone"})') eq 'NULL NULL';
});

sql('ALTER DATABASE app SET pg_task.enabled = off');
wait_for('a disabled database is seen',
	sub { values_of('pg_task_scheduler_disabled{datname="app"}') eq '1 1' });
sql('ALTER DATABASE app RESET pg_task.enabled');
wait_for('it runs again', sub { values_of('pg_task_scheduler_running{datname="app"}') eq '1 1' });
sql(q{ALTER SYSTEM SET pg_task.database = 'ap, postgres'});
sql('SELECT pg_reload_conf()');
wait_for('a database that is not named any more is seen',
	sub { values_of('pg_task_scheduler_running{datname="app"}') eq '0 0' });
wait_for('and calls for somebody', sub { is_on('PgTaskSchedulerDown') });

# The role sees no request, and may change nothing.
for my $statement ('SELECT request FROM task', 'SELECT response FROM task', 'DELETE FROM task',
	"INSERT INTO task (request) VALUES ('SELECT 1')", 'SELECT * FROM task_queue')
{
	like(qx(psql -XAtq -v VERBOSITY=sqlstate -U task_monitor -c "BEGIN READ WRITE; $statement" 2>&1),
		qr/42501/, "refused to the role: $statement");
}

# No exporter has failed to ask a query, at any time.
for my $figure (qw(pg_exporter_last_scrape_error pg_exporter_user_queries_load_error
	sql_exporter_last_scrape_failed))
{
	is(join(' ', map { $_->{value}[1] } query("max(max_over_time($figure\[1h]))")), 0, $figure);
}
done_testing();
