# What commands of maintenance print, and what becomes of tasks: a row of a table for each, which is
# printed at the end.  Run by make matrix, not by make test: it starts a dozen servers.
use strict;
use warnings;
use Cwd;
use FindBin;
use lib "$FindBin::RealBin/../t";
use PgTask;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('main', period => '1 s',
	conf => "max_worker_processes = 40\nwal_level = logical\nmax_prepared_transactions = 5",
	init => { has_archiving => 1, allows_streaming => 1 });
my $version = int(sql("SHOW server_version_num") / 10000);
my @rows;

# A row of the table: the command, what is there before, what it has printed, and what is so
# afterwards.
sub row
{
	my ($command, $before, $printed, $after) = @_;

	$printed =~ s/\s+$//;
	$printed =~ s/psql:<stdin>:\d+: //g;
	$printed =~ s/\n/ \/ /g;
	push @rows, "| `$command` | $before | " . ($printed eq '' ? 'nothing' : $printed)
	  . " | $after |";
	return;
}

# Runs a client program on a server; returns what it says of errors.
sub client
{
	my ($server, @command) = @_;
	my ($out, $err) = ('', '');

	end_sessions($server);
	local $ENV{PGHOST} = $server->host;
	local $ENV{PGPORT} = $server->port;
	IPC::Run::run(\@command, '>', \$out, '2>', \$err);
	return $err;
}

# Runs a command; returns what psql prints of errors.
sub command
{
	my ($sql, %opt) = @_;
	my $server = $opt{node} // $node;

	# which would be in the way of a command on their database
	end_sessions($server);
	my ($rc, $out, $err) = $server->psql($opt{db} // 'postgres', $sql);

	return $err;
}

# A database with executors of two roles, and a task that waits for a later time.
sub busy
{
	my ($db) = @_;

	sql("CREATE DATABASE $db OWNER chief")
	  unless sql("SELECT count(*) FROM pg_database WHERE datname = '$db'");
	wait_for_table($node, db => $db);
	sql_in($db, 'GRANT ALL ON SCHEMA public TO PUBLIC; GRANT ALL ON task TO tenant');
	run_task($node, db => $db, request => 'SELECT 0', role => $_) for qw(chief tenant);
	insert_task($node, db => $db, request => 'SELECT 1', role => 'tenant', dt => 'infinity');
}

# Does the task that waits run when it is planned for now?
sub runs
{
	my ($db, %opt) = @_;

	sql(q{UPDATE task SET dt = now() WHERE request = 'SELECT 1' AND state = 'PLAN'},
		db => $db, %opt);
	wait_until($opt{node} // $node,
		q{SELECT bool_and(state = 'DONE') FROM task WHERE request = 'SELECT 1'}, db => $db);
	return 'tasks run';
}

# The same for one that is held back, until it is released.
sub runs_when_released
{
	my ($db, %opt) = @_;

	sql(q{UPDATE task SET dt = now() WHERE request = 'SELECT 1' AND state = 'PLAN'},
		db => $db, %opt);
	# all tasks of the database, or rows that were copied into a table that is at home
	wait_until($opt{node} // $node, "SELECT EXISTS (SELECT FROM pg_stat_task_scheduler()
			WHERE datname = '$db' AND state = 'held back')
		OR EXISTS (SELECT FROM task WHERE hold LIKE 'copied from another database%')", db => $db);
	is(sql(q{SELECT count(*) FROM task WHERE request = 'SELECT 1' AND state = 'PLAN'},
		db => $db, %opt), 1, "$db: nothing has run");
	is(sql('SELECT pg_task_release()', db => $db, %opt), 't', "$db: released");
	runs($db, %opt);
	return 'held back; runs when released';
}

# The kinds of errors of a restore.
sub errors_of
{
	my ($printed) = @_;
	my %kinds;

	for my $error ($printed =~ /ERROR:\s+(.*)/g)
	{
		$error =~ s/"[^"]*"/.../g;
		$kinds{$error} = 1;
	}
	return join '; ', sort keys %kinds;
}

# A command that must succeed, within the 5 seconds for which it waits for our processes.
sub succeeds
{
	my ($sql, $after, %opt) = @_;
	my $begun = time;
	my $err = command($sql, %opt);

	is($err, '', $sql);
	note(sprintf '%s: %.2f s', $sql, time - $begun);
	row($sql, $opt{before} // 'idle executors, a task that waits', $err, $after->());
	return;
}

sql('CREATE ROLE chief LOGIN; CREATE ROLE tenant LOGIN; CREATE ROLE heir LOGIN;
	GRANT tenant TO chief; GRANT tenant TO heir');

subtest 'commands on databases' => sub {
	my $folder = $node->basedir . '/elsewhere';
	mkdir $folder;
	sql("CREATE TABLESPACE elsewhere LOCATION '$folder'");
	busy('one');
	succeeds('CREATE DATABASE copy TEMPLATE one', sub { runs_when_released('copy') });
	busy('copy');
	succeeds('ALTER DATABASE copy RENAME TO two', sub { runs('two') });
	busy('two');
	succeeds('ALTER DATABASE two SET TABLESPACE elsewhere', sub { runs('two') });
	busy('two');
	succeeds('DROP DATABASE two', sub { 'its processes have left' });
	sql('DROP TABLESPACE elsewhere');
	make_gates($node, db => 'one');
	my $id = insert_task($node, db => 'one', role => 'chief',
		request => "SELECT hold('x')");
	wait_for_state($node, $id, 'WORK', db => 'one');
	for my $command ('DROP DATABASE one', 'ALTER DATABASE one RENAME TO x')
	{
		my $err = command($command);
		like($err, qr/is being accessed by other users/, "$command beside a running task");
		row($command, 'a task runs', $err, 'the task goes on, all is as before');
	}
	is(task($node, $id, 'state', db => 'one'), 'WORK', 'the task goes on');
	succeeds('DROP DATABASE one WITH (FORCE)', sub { 'the task is interrupted' },
		before => 'a task runs');
};

subtest 'commands on roles' => sub {
	busy('one');
	succeeds('REASSIGN OWNED BY chief TO heir', sub { runs('one') }, db => 'one');
	busy('one');
	my $waits = insert_task($node, db => 'one', request => 'SELECT 2', role => 'tenant',
		dt => 'infinity');
	succeeds('DROP OWNED BY tenant', sub { 'its grants are gone; its rows wait' }, db => 'one',
		before => 'the role has grants, and a task that waits');
	is(task($node, $waits, 'state', db => 'one'), 'PLAN', 'the rows wait');
	succeeds('DROP ROLE tenant', sub {
		wait_for_state($node, $waits, 'FAIL', db => 'one');
		'its waiting tasks are FAIL, ' . task($node, $waits, 'sqlstate', db => 'one') },
		before => 'the role has idle executors, and a task that waits');
	my $err = command('DROP ROLE heir', db => 'one');
	like($err, qr/cannot be dropped because some objects depend on it/, 'the owner of the table');
	row('DROP ROLE heir', 'the role owns the database and the table', $err, 'all is as before');
	my $relid = sql_in('one', q{SELECT 'task'::regclass::oid});
	sql_in('one', 'ALTER DATABASE one OWNER TO postgres');
	succeeds('DROP OWNED BY heir', sub {
		wait_until($node, "SELECT to_regclass('task') IS NOT NULL
			AND to_regclass('task')::oid <> $relid", db => 'one');
		run_task($node, db => 'one', request => 'SELECT 0');
		'the table is gone; the owner of the database gets a new one' }, db => 'one',
		before => 'the role owns the table, another one the database');
	sql('DROP DATABASE one; CREATE ROLE tenant LOGIN; GRANT tenant TO chief');
};

subtest 'dump and restore' => sub {
	my $dump = $node->basedir . '/dump';
	busy('one');
	make_gates($node, db => 'one');
	my $id = insert_task($node, db => 'one', role => 'chief',
		request => "SELECT hold('dump')");
	wait_for_state($node, $id, 'WORK', db => 'one');
	for my $format ([ 'pg_dump', '-Fc', '-f', $dump ], [ 'pg_dump', '-Fd', '-j2', '-f', "$dump.d" ],
		[ 'pg_dump', '-f', "$dump.sql" ])
	{
		is(client($node, @$format, 'one'), '', "@$format[0 .. 1]");
	}
	is(task($node, $id, 'state', db => 'one'), 'WORK', 'the task runs on');
	row($_, 'a task runs', '', 'the task goes on')
	  for 'pg_dump -Fc', 'pg_dump -Fd -j2', 'pg_dump';
	open_gate($node, 'dump', db => 'one');
	wait_for_state($node, $id, 'DONE', db => 'one');
	my @ways = (
		[ 'no table', 'pg_restore -j2', $dump ],
		[ 'the table of the scheduler', 'pg_restore -j2', $dump ],
		[ 'the table of the scheduler', 'pg_restore --clean --if-exists -j2', "$dump.d" ],
		[ 'the table of the scheduler', 'pg_restore --clean --if-exists -1', $dump ],
		[ 'the table of the scheduler', 'psql -Xq', "$dump.sql" ]);
	for my $way (@ways)
	{
		my ($before, $command, $file) = @$way;
		sql('CREATE DATABASE two OWNER chief IS_TEMPLATE true');
		if ($before ne 'no table')
		{
			sql('ALTER DATABASE two IS_TEMPLATE false');
			wait_for_table($node, db => 'two');
		}
		my $err = client($node, split(/ /, $command), '-d', 'two',
			$command =~ /psql/ ? ('-f', $file) : $file);
		my $errors = errors_of($err);
		is($errors, '', "$command: no errors") if $before eq 'no table' || $command =~ /-1/;
		sql('ALTER DATABASE two IS_TEMPLATE false');
		row($command, "a new database, with $before", $errors, runs_when_released('two'));
		sql('DROP DATABASE two WITH (FORCE)');
	}
	my $err = client($node, 'pg_restore', '-1', '--clean', '--if-exists', '-d', 'one', $dump);
	is($err, '', 'over the original');
	# it ran when the dump was made
	wait_for_state($node, $id, 'WORK', db => 'one');
	open_gate($node, 'dump', db => 'one');
	wait_for_state($node, $id, 'DONE', db => 'one');
	row('pg_restore --clean --if-exists -1', 'the database that was dumped', $err,
		runs('one') . ', also those that have run since the dump');
};

# The servers that are started from a backup.
subtest 'copies of the data directory' => sub {
	busy('one');
	my $id = insert_task($node, db => 'one', role => 'chief',
		request => "SELECT hold('backup')");
	wait_for_state($node, $id, 'WORK', db => 'one');
	$node->backup('copy');
	is(task($node, $id, 'state', db => 'one'), 'WORK', 'pg_basebackup: the task runs on');
	row('pg_basebackup', 'a task runs', '', 'the task goes on');
	open_gate($node, 'backup', db => 'one');
	wait_for_state($node, $id, 'DONE', db => 'one');
	sql("SELECT pg_create_restore_point('here')");
	my $wal = sql('SELECT pg_walfile_name(pg_switch_wal())');
	wait_until($node, "SELECT last_archived_wal >= '$wal' FROM pg_stat_archiver");
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($node, 'copy', has_streaming => 1);
	$standby->append_conf('postgresql.conf', 'archive_mode = off');
	$standby->start;
	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	my $err = command(q{INSERT INTO task (request) VALUES ('SELECT 1')}, db => 'one',
		node => $standby);
	like($err, qr/read-only transaction/, 'a standby');
	is(sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'pg_task (sch|exe)'},
		node => $standby), 0, 'no scheduler on a standby');
	row('INSERT', 'a standby', $err, 'no scheduler runs');
	$standby->promote;
	row('pg_promote()', 'a standby', '', runs('one', node => $standby));
	$standby->stop;
	for my $name (qw(restored recovered))
	{
		my $copy = PostgreSQL::Test::Cluster->new($name);
		my @what = ('pg_ctl start', 'a base backup');
		if ($name eq 'recovered')
		{
			@what = ('pg_ctl start', 'a base backup, recovery to a point in time');
			$copy->init_from_backup($node, 'copy', has_restoring => 1, standby => 0);
			$copy->append_conf('postgresql.conf', "recovery_target_name = 'here'
				recovery_target_action = 'promote'
				recovery_target_timeline = 'current'");
		}
		else
		{
			$copy->init_from_backup($node, 'copy');
		}
		$copy->append_conf('postgresql.conf', 'archive_mode = off');
		$copy->start;
		wait_until($copy, 'SELECT NOT pg_is_in_recovery()');
		row(@what, '', runs_when_released('one', node => $copy));
		$copy->restart;
		insert_task($copy, db => 'one', request => 'SELECT 1', role => 'chief');
		runs('one', node => $copy);
		$copy->stop;
	}
};

subtest 'logical replication of the task table' => sub {
	my $subscriber = new_node('subscriber', period => '1 s', conf => 'pg_task.enabled = off',
		start => 0);
	$subscriber->start;
	$subscriber->append_conf('postgresql.conf', 'pg_task.enabled = on');
	$subscriber->reload;
	wait_for_table($subscriber);
	sql('CREATE PUBLICATION tasks FOR TABLE task');
	sql('CREATE SUBSCRIPTION tasks CONNECTION ' . literal($node->connstr('postgres'))
		. ' PUBLICATION tasks', node => $subscriber);
	my $later = insert_task($node, request => 'SELECT 1', dt => '2100-01-01');
	wait_until($subscriber, "SELECT count(*) = 1 FROM task WHERE id = $later");
	is(task($subscriber, $later, 'state'), 'PLAN', 'the row waits on the subscriber');
	row('CREATE SUBSCRIPTION', 'the publisher has a task that waits', '',
		'the task waits on the subscriber, too');
	sql('DROP SUBSCRIPTION tasks', node => $subscriber);
	sql('DROP PUBLICATION tasks');
	$subscriber->stop;
};

subtest 'a read-only server, single-user mode' => sub {
	set_conf($node, 'default_transaction_read_only = on');
	wait_until($node, q{SELECT current_setting('default_transaction_read_only') = 'on'});
	my $err = command(q{INSERT INTO task (request) VALUES ('SELECT 1')}, db => 'one');
	like($err, qr/read-only transaction/, 'INSERT');
	my $id = sql_in('one', q{SET default_transaction_read_only = off;
		INSERT INTO task (request, role) VALUES ('CREATE TABLE x ()', 'chief') RETURNING id});
	wait_for_state($node, $id, 'FAIL', db => 'one');
	row('INSERT', '`default_transaction_read_only = on`', $err,
		'tasks that wait start, may not write either, and end: '
		  . task($node, $id, 'sqlstate', db => 'one'));
	set_conf($node, 'default_transaction_read_only = off');
	wait_until($node, q{SELECT current_setting('default_transaction_read_only') = 'off'});
	$node->stop;
	my $input = "INSERT INTO task (request, role) VALUES ('SELECT 1', 'chief');\n";
	my $single;
	IPC::Run::run([ $node->installed_command('postgres'), '--single', '-D', $node->data_dir,
		'one' ], '<', \$input, '>&', \$single);
	unlike($single, qr/ERROR|FATAL|PANIC/, 'single-user mode');
	$node->start;
	row('INSERT', 'single-user mode (`postgres --single`)', '', 'after a start, ' . runs('one'));
};

# Runs pg_upgrade; returns a server of the new version.
sub upgraded
{
	my ($name, $bindir, $conf) = @_;
	my $new = $node->basedir . "/$name";
	my $old = qx(pg_config --bindir);
	my $newer = qx($bindir/pg_config --version) =~ /PostgreSQL (\d+)/ ? $1 : 0;
	my @sums = $newer >= 18 && $version < 18 ? '--no-data-checksums' : ();

	chomp $old;
	system_or_bail("$bindir/initdb", '--no-sync', '-A', 'trust', '--encoding=UTF8',
		'--locale=C.UTF-8', @sums, '-D', $new);
	append_to_file("$new/postgresql.conf", slurp_file("$FindBin::RealBin/../pg_task.conf")
		. "\nunix_socket_directories = '" . $node->host . "'\nlisten_addresses = ''\n"
		. 'port = ' . $node->port . "\nmax_worker_processes = 40\n$conf\n");
	my $out = '';
	my $folder = getcwd;
	chdir $node->basedir or die;    # it writes its logs there
	my $ok = IPC::Run::run([ "$bindir/pg_upgrade", '--no-sync', '-b', $old, '-B', $bindir, '-d',
		$node->data_dir, '-D', $new, '-s', $node->host ], '>&', \$out);
	chdir $folder or die;
	ok($ok, "pg_upgrade to $newer: $name") or diag $out;
	return ($newer, $new);
}

subtest 'pg_upgrade' => sub {
	my $here = qx(pg_config --bindir);
	my @newer = split / /, $ENV{PG_TASK_NEWER} // '';
	chomp $here;
	insert_task($node, db => 'one', request => 'SELECT 9', role => 'tenant', dt => 'infinity');
	end_sessions($node);
	sql('CREATE DATABASE held TEMPLATE one');
	wait_until($node, q{SELECT state = 'held back' FROM pg_stat_task_scheduler()
		WHERE datname = 'held'});
	busy('one');
	sql(q{ALTER DATABASE one SET pg_task.keep_failed = '7 d';
		ALTER ROLE tenant SET pg_task.retry = 3});
	sql_in('one', q{INSERT INTO task_queue (queue, max) VALUES ('once%', 1)});
	my $schedule = insert_task($node, db => 'one', request => 'SELECT 2', role => 'tenant',
		key => 'yearly', cron => '0 4 1 1 *', timezone => 'Europe/Berlin');
	my $interrupted = insert_task($node, db => 'one', role => 'chief',
		request => "SELECT hold('upgrade')");
	wait_for_state($node, $interrupted, 'WORK', db => 'one');
	wait_until($node, q{SELECT obj_description('pg_task_release()'::regprocedure)
		LIKE '%[pg_task away %'}, db => 'held');
	$node->stop;
	for my $way ([ 'with', $here, '' ], [ 'without', $here, q{shared_preload_libraries = ''} ],
		map { [ "newer$_", $newer[$_], '' ] } 0 .. $#newer)
	{
		my ($name, $bindir, $conf) = @$way;
		my ($newer, $data) = upgraded($name, $bindir, $conf);
		append_to_file("$data/postgresql.conf", "shared_preload_libraries = 'pg_task'\n");
		system_or_bail("$bindir/pg_ctl", '-s', '-w', '-D', $data, '-l', "$data.log", 'start');
		wait_until($node, q{SELECT state = 'held back' FROM pg_stat_task_scheduler()
			WHERE datname = 'held'});
		pass("$name: what was held back, is");
		my $after = $name eq 'without' ? runs_when_released('one') : runs('one');
		open_gate($node, 'upgrade', db => 'one');
		wait_for_state($node, $interrupted, 'DONE', db => 'one');
		is(task($node, $interrupted, 'attempt', db => 'one'), 2, "$name: what ran, runs again");
		is(sql_in('one', q{SELECT cron, timezone, key, role, dt > now(), state FROM task}
				. " WHERE id = $schedule"), '0 4 1 1 *|Europe/Berlin|yearly|tenant|t|PLAN',
			"$name: a schedule");
		is(sql_in('one', 'SELECT queue, max FROM task_queue'), 'once%|1', "$name: a rule");
		is(sql(q{SELECT string_agg(setconfig::text, ' ' ORDER BY setrole)
				FROM pg_db_role_setting}), '{"pg_task.keep_failed=7 d"} {pg_task.retry=3}',
			"$name: settings");
		row('pg_upgrade', "from $version to $newer"
			. ($name eq 'without' ? ', which does not preload pg_task yet' : ''), '', $after);
		system_or_bail("$bindir/pg_ctl", '-s', '-w', '-D', $data, '-m', 'fast', 'stop');
	}
};

append_to_file($ENV{PG_TASK_MATRIX}, join("\n", '| command | before | prints | afterwards |',
		'|---|---|---|---|', @rows) . "\n") if $ENV{PG_TASK_MATRIX};
note($_) for @rows;
done_testing();
