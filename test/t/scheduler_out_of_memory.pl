# A scheduler that runs out of memory waits before it retries, for twice as long each time, however
# often it is woken, and reports that once.  It continues when there is memory again.  A TAP test
# because it counts what a scheduler does while others commit.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', conf => "pg_task.period = '100 ms'");

sql(q{
	CREATE SEQUENCE attempts MINVALUE 0 START 0;
	SELECT nextval('attempts');
	CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM nextval('public.attempts');
		RAISE EXCEPTION 'no memory' USING ERRCODE = 'out_of_memory';
	END $$;
	CREATE TRIGGER fail BEFORE UPDATE ON task FOR EACH ROW WHEN (NEW.state = 'WORK')
		EXECUTE FUNCTION fail()});
my $position = log_position($node);
my $begin = sql('SELECT clock_timestamp()');
my $id = insert_task($node, request => 'SELECT 1');
wait_until($node, q{SELECT last_value >= 2 FROM attempts});

# Many commits wake the scheduler; it retries a few times, after twice as long each time.
subtest 'the pauses' => sub {
	sql(q{INSERT INTO task (request) VALUES ('SELECT 1')}) for 1 .. 60;
	my $attempts = sql('SELECT last_value FROM attempts');
	# after 0, 1, 3, 7 s, then each 8 s, and one more; all lie between these looks at the clock
	my $most = sql("SELECT floor(2 + log(2, 1 + least(t, 7)) + greatest(t - 7, 0) / 8)
		FROM extract(epoch FROM clock_timestamp() - timestamptz '$begin') AS t");
	cmp_ok($attempts, '<=', $most, 'many commits cause few attempts');
	my $lines = () = log_since($node, $position) =~ /ERROR:  no memory/g;
	is($lines, 1, 'the error was logged once');
};

# It still exits when asked to, and continues when there is memory again.
subtest 'memory again' => sub {
	my ($scheduler) = backends($node, 'scheduler');
	sql('DROP TRIGGER fail ON task');
	wait_for_state($node, $id, 'DONE');
	is((backends($node, 'scheduler'))[0], $scheduler, 'the scheduler is the same');
	wait_until($node, q{SELECT count(*) = 0 FROM task WHERE state <> 'DONE'});
	pass('and all tasks ran');
};

done_testing();
