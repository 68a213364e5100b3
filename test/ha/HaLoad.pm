# The tasks of test/ha/failover.pl: their tables, the sessions that plan them, and what these were
# told.  Each task writes its effect into a table, in its own commit.  It knows nothing of Patroni.
#
# A session appends a line to its file for each statement: the time, whether its commit was
# acknowledged, and the tags of the rows in it.  A tag is a name that no other row has, but for the
# later rows of a chain.
package HaLoad;

use strict;
use warnings;
use IPC::Open3;
use POSIX ();
use Symbol 'gensym';
use Time::HiRes qw(sleep time);

my $schema = q{
	ALTER TABLE task ADD COLUMN tag text, ADD COLUMN kind text;
	CREATE INDEX ON task (tag);
	CREATE TABLE effect (tag text, kind text, id bigint, attempt int, port int, pid int,
		began timestamptz);
	CREATE INDEX ON effect (tag);
	CREATE INDEX ON effect (id);

	-- Begin and end of a run are in the server's log, so that a run which is rolled back, or lost
	-- with its server, has its place there.
	CREATE FUNCTION act(seconds float8 DEFAULT 0) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		me public.task;
		began timestamptz := clock_timestamp();
		place int := 0;
	BEGIN
		SELECT * INTO STRICT me FROM public.task
		 WHERE id = current_setting('pg_task.id')::bigint;
		RAISE LOG 'ha begin % %', me.id, me.attempt;
		WHILE me.max > 0 LOOP
			place := place + 1;
			EXIT WHEN pg_try_advisory_xact_lock(1, place);
			IF place > me.max THEN
				RAISE EXCEPTION 'more than % at once', me.max USING ERRCODE = 'UU999';
			END IF;
		END LOOP;
		IF EXISTS (SELECT FROM unnest(me.after) AS a(id)
			WHERE NOT EXISTS (SELECT FROM public.effect AS e WHERE e.id = a.id)) THEN
			RAISE EXCEPTION 'before a task that it waits for' USING ERRCODE = 'UU998';
		END IF;
		INSERT INTO public.effect VALUES (me.tag, me.kind, me.id, me.attempt,
			current_setting('port')::int, pg_backend_pid(), began);
		PERFORM pg_sleep(seconds);
		RAISE LOG 'ha end % %', me.id, me.attempt;
		IF me.kind = 'retry' AND me.failed = 0 THEN
			RAISE EXCEPTION 'as asked';
		END IF;
		RETURN me.tag;
	END $$;

	INSERT INTO task_queue (queue, rate, per) VALUES ('rated', 5, '1 s');
	CREATE ROLE worker;
	INSERT INTO task_queue (queue, taker) VALUES ('outside', 'worker');
	INSERT INTO task (tag, kind, repeat, request)
	SELECT 'chain ' || n, 'chain', '700 ms', 'SELECT act()' FROM generate_series(1, 3) AS n;
};

# Runs SQL by psql; returns its exit code, its output, and its errors.
sub query
{
	my ($conninfo, $sql, $seconds) = @_;
	my $err = gensym;
	my $pid = open3(my $in, my $out, $err,
		'timeout', $seconds // 60, 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-v',
		'VERBOSITY=verbose', '-d', $conninfo,
		'-c', $sql);

	close $in;
	my $output = do { local $/; <$out> } // '';
	my $errors = do { local $/; <$err> } // '';
	waitpid $pid, 0;
	chomp $output;
	return ($?, $output, $errors);
}

sub create
{
	my ($conninfo) = @_;
	my ($rc, undef, $errors) = query($conninfo, $schema);

	die $errors if $rc;
}

# What sessions plan: how often, and the rows for a tag, as VALUES of the columns below.
my $columns = 'tag, kind, queue, key, max, dt, flow, step, needs, retry, delay, request';

sub row
{
	my (%value) = @_;
	my %column = (queue => "'default'", dt => 'now()', request => "'SELECT act()'", %value);

	return '(' . join(', ', map { $column{$_} // 'NULL' } split /, /, $columns) . ')';
}

my @kinds = (
	sub { [ 'short', { } ] },
	sub { my $seconds = 2 + int(rand(4)); [ 'long', { request => "'SELECT act($seconds)'" } ] },
	sub { [ 'retry', { retry => 3, delay => "'100 ms'" } ] },
	sub { [ 'limited', { queue => "'limited'", max => 2, request => "'SELECT act(0.1)'" } ] },
	sub { map { [ 'rated', { queue => "'rated'" } ] } 1 .. 8 },
	sub { map { [ 'taken', { queue => "'outside'", request => "'work'" } ] } 1 .. 8 },
	sub { [ 'key', { queue => "'keys'", key => "'" . int(rand(8)) . "'" } ] },
	sub {
		my ($tag) = @_;
		my %needs = (a => undef, b => "'{a}'", c => "'{a}'", d => "'{b,c}'");

		map { [ 'flow', { flow => "'$tag'", step => "'$_'", needs => $needs{$_} } ] }
		  sort keys %needs;
	},
	sub {
		map { [ 'planned', { dt => "now() + '" . 400 * $_ . " ms'" } ] } 1 .. 10;
	});

# One statement; returns the SQL and the tags of its rows.
sub make_statement
{
	my ($name) = @_;
	my @some = $kinds[ rand @kinds ]->($name);
	my (@rows, @tags);

	push @some, map { [ 'planned', { dt => "now() + '" . 500 * $_ . " ms'" } ] } 1 .. 3;
	for my $one (@some)
	{
		my ($kind, $value) = @$one;
		my $tag = "$name." . @rows;

		push @tags, $tag;
		push @rows, row(tag => "'$tag'", kind => "'$kind'", %$value);
	}
	# a row that another one with its key keeps out is not among those returned
	return 'INSERT INTO task (' . $columns . ') SELECT v.tag, kind, queue, key, max::int,'
	  . ' dt::timestamptz, flow, step, needs::text[], retry::int, delay::interval, request'
	  . ' FROM (VALUES ' . join(', ',
	  	@rows) . ") AS v ($columns) ON CONFLICT DO NOTHING RETURNING tag";
}

# Starts a process that calls a function with a file, to which it appends, until it gets a SIGTERM.
# Returns its pid.
sub start_child
{
	my ($name, $turn) = @_;
	my $pid = fork // die "fork: $!";
	my $stop = 0;

	return $pid if $pid;
	local $SIG{TERM} = sub { $stop = 1 };
	open my $file, '>>', $name or POSIX::_exit(1);
	$file->autoflush(1);
	$turn->($file) until $stop;
	POSIX::_exit(0);
}

# Plans tasks.
sub start_session
{
	my ($conninfo, $number, $seed, $file) = @_;
	my $count = 0;

	return start_child($file, sub {
		my ($record) = @_;

		srand($seed * 100 + $number) if !$count;
		my $name = "$number-" . ++$count;
		my ($rc, $output, $errors) = query($conninfo, make_statement($name));
		my $fate = $rc == 0 ? 'yes' : $errors =~ /ERROR/ ? 'error' : 'no';

		# the server has ended, or does not lead any more
		$fate = 'no' if $errors =~ /might not have been replicated|in a read-only transaction/;

		printf $record "%.3f %s %s %s\n", time, $fate, $name, join(',', split /\n/, $output);
		print $record "# $errors" if $fate eq 'error';
		sleep(0.2 + rand(0.4));
	});
}

# What a program is told that cannot take or end a task now: its server has ended, is a standby, or
# was one a moment ago.
my $not_now = qr/connection|terminating|starting\ up|shutting\ down|recovery|read-only
	|must\ be\ called\ on\ the\ primary|no\ task\ is\ handed\ out|cannot\ be\ used/x;

# Ends a task that was taken in a transaction with its effect, and asks again when it was not told
# whether that has committed.  Returns done, known (it had committed), lost (another run has it) or
# open (nothing was told); and what was not to be expected.
sub finish
{
	my ($conninfo, $id, $attempt, $handle) = @_;
	my $odd = '';

	for (1 .. 5)
	{
		my ($rc, undef, $errors) = query($conninfo, "INSERT INTO effect SELECT tag, kind, id,
			$attempt, current_setting('port')::int, pg_backend_pid(), clock_timestamp()
			FROM task WHERE id = $id; SELECT pg_task_finish('$handle')");

		return ('done', $odd) if $rc == 0 && $errors !~ /might not have been replicated/;
		return ('known', $odd) if $errors =~ /TK007/;
		return ('lost', $odd) if $errors =~ /TK006/;
		$odd .= $errors if $rc && $errors !~ $not_now;
		sleep 0.5;
	}
	return ('open', $odd);
}

# Takes tasks and ends them.  Its file has a line for what has become of each; and errors.
sub start_program
{
	my ($conninfo, $file) = @_;

	return start_child($file, sub {
		my ($record) = @_;
		my ($rc, $output, $errors) = query($conninfo, q{SELECT id, attempt, handle
			FROM pg_task_take('{outside}', n => 3, wait => 1000, lease => 4000)});

		print $record $errors =~ s/^/# /gmr if $rc && $errors !~ $not_now;
		sleep 0.2 if $rc;
		for my $task (split /\n/, $rc ? '' : $output)
		{
			my ($fate, $odd) = finish($conninfo, split /\|/, $task);

			print $record $odd =~ s/^/# /gmr if $odd ne '';
			print $record "$fate\n";
		}
	});
}

# The tags that were acknowledged, with the time of that; how many statements were not; and the
# errors that were no loss of the connection.
sub read_records
{
	my (@files) = @_;
	my %result = (tags => {}, yes => 0, no => 0, error => 0, errors => []);

	for my $name (@files)
	{
		open my $file, '<', $name or die "$name: $!";
		while (my $line = <$file>)
		{
			chomp $line;
			push @{ $result{errors} }, $line if $line =~ /^# .*ERROR/;
			my ($when, $fate, undef, $tags) = split / /, $line;
			next unless $when =~ /^\d/;
			$result{$fate}++;
			next unless $fate eq 'yes';
			$result{tags}{$_} = $when for split /,/, $tags // '';
		}
	}
	return \%result;
}

1;
