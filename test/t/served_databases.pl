# Which databases get a task table, for which user and under which name, and what a reload changes.
# A TAP test because it reloads the server and reads the log.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PgTask;
use Test::More;

my $node = new_node('main', period => '1 s', conf => 'max_worker_processes = 40');

sub answer
{
	my ($db, $request) = @_;
	return task($node, run_task($node, db => $db, request => $request), 'response', db => $db);
}

# A database created later gets a table; templates do not.
subtest 'databases come, change and go' => sub {
	wait_for_schedulers($node, 'postgres');
	sql('CREATE DATABASE one');
	wait_for_table($node, db => 'one');
	is(answer('one', 'SELECT current_database()'), 'one', 'tasks run in a new database');
	sql('CREATE DATABASE model IS_TEMPLATE true');
	sql('CREATE DATABASE closed ALLOW_CONNECTIONS false');
	sql('CREATE DATABASE two');
	wait_for_schedulers($node, qw(one postgres two));
	pass('templates and databases that allow no connections have no scheduler');
	sql('ALTER DATABASE two IS_TEMPLATE true');
	wait_for_schedulers($node, qw(one postgres));
	sql('ALTER DATABASE two IS_TEMPLATE false');
	sql('ALTER DATABASE closed ALLOW_CONNECTIONS true');
	wait_for_schedulers($node, qw(closed one postgres two));
	pass('a database that changes gets a scheduler, or loses it');
	sql("DROP DATABASE $_") for qw(closed two);
	wait_for_schedulers($node, qw(one postgres));
	pass('schedulers leave databases that are dropped');
};

# Any database name works.
subtest 'names of databases' => sub {
	my @names = ('Capital', 'with space', 'do.t', 'qu"ote', "apo'strophe", "\xc3\xbcml\xc3\xa4ut",
		'back\\slash', 'x' x 63);
	for my $name (@names)
	{
		my $quoted = $name =~ s/"/""/gr;
		sql(qq(CREATE DATABASE "$quoted"));
		wait_for_table($node, db => $name);
		is(answer($name, 'SELECT current_database()'), $name, "database $name");
	}
	# each reload starts a scheduler in each database
	sql(qq(DROP DATABASE "$_")) for grep { !/Capital|space|"/ } @names;
};

# pg_task.enabled off: no new task starts, running tasks end.
subtest 'pg_task.enabled' => sub {
	make_gates($node);
	my $running = insert_task($node, request => "SELECT hold('enabled')");
	wait_for_running($node, 1, id => $running, event => 'PgSleep');
	set_conf($node, 'pg_task.enabled = off');
	wait_for_schedulers($node);
	my $waiting = insert_task($node, request => 'SELECT 1');
	open_gate($node, 'enabled');
	wait_for_state($node, $running, 'DONE');
	is(task($node, $waiting, 'state'), 'PLAN', 'no task starts while pg_task.enabled is off');
	set_conf($node, 'pg_task.enabled = on');
	wait_for_state($node, $waiting, 'DONE');
};

# Of one database: without a reload.  A scheduler that runs leaves, and none comes back by itself.
subtest 'pg_task.enabled of a database' => sub {
	make_gates($node, db => 'one');
	my $running = insert_task($node, db => 'one', request => "SELECT hold('enabled')");
	wait_for_running($node, 1, db => 'one', id => $running, event => 'PgSleep');
	my $position = log_position($node);
	sql('ALTER DATABASE one SET pg_task.enabled = off');
	wait_until($node, q{SELECT count(*) = 0 FROM pg_stat_activity
		WHERE backend_type = 'pg_task scheduler' AND datname = 'one'});
	my $waiting = insert_task($node, db => 'one', request => 'SELECT 1');
	open_gate($node, 'enabled', db => 'one');
	wait_for_state($node, $running, 'DONE', db => 'one');
	is(sql_in('one', "SELECT pg_task_cancel($waiting)"), 't', 'its tasks can be stopped');
	$waiting = insert_task($node, db => 'one', request => 'SELECT 1');
	$node->reload;
	is(answer('postgres', 'SELECT 1'), '1', 'tasks run in other databases');
	is(task($node, $waiting, 'state', db => 'one'), 'PLAN', 'no task starts there');
	my $older = open_session($node, 'one');
	my $why = "SELECT pg_task_why($waiting)";
	is($older->query_safe($why), 'pg_task.enabled is off', 'pg_task_why says so');
	wait_for_log_line($node, qr/LOG:  pg_task is disabled in database "one"/, $position);
	is(() = log_since($node, $position) =~ /LOG:  pg_task is disabled in database "one"/g, 1,
		'the log says so once');
	sql('ALTER DATABASE one RESET pg_task.enabled');
	wait_for_state($node, $waiting, 'DONE', db => 'one');
	my $later = insert_task($node, db => 'one', request => 'SELECT 1', dt => '2100-01-01');
	like($older->query_safe("SHOW pg_task.enabled; SELECT pg_task_why($later)"),
		qr/^off\nplanned for 2100/, 'a session that has begun while it was off is told the truth');

	set_conf($node, 'pg_task.enabled = off');
	wait_for_schedulers($node);
	is($older->query_safe("SELECT pg_task_why($later)"), 'pg_task.enabled is off',
		'also where it is off for the server');
	$older->quit;
	sql_in('one', "DELETE FROM task WHERE id = $later");
	sql('ALTER DATABASE one SET pg_task.enabled = on');
	$waiting = insert_task($node, db => 'one', request => 'SELECT 1');
	$node->restart;
	my $newer = open_session($node, 'one');
	is($newer->query_safe("SHOW pg_task.enabled; SELECT pg_task_why($waiting)"),
		"on\npg_task.enabled is off", 'nor where the session has it on');
	$newer->quit;
	is(task($node, $waiting, 'state', db => 'one'), 'PLAN',
		'it cannot be switched on where it is off for the server');
	set_conf($node, 'pg_task.enabled = on');
	wait_for_state($node, $waiting, 'DONE', db => 'one');
};

my $position;

subtest 'all databases but some, and none' => sub {
	my @all = split /\n/,
		sql('SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate');
	$position = log_position($node);
	set_conf($node, q(pg_task.database = '*, -postgres, - "Capital", -absent'));
	wait_for_schedulers($node, grep { $_ ne 'postgres' && $_ ne 'Capital' } @all);
	pass('all but some');
	wait_for_log_line($node, qr/database "absent" in "pg_task.database" does not exist\n.*It will be/,
		$position);
	sql('CREATE DATABASE absent');
	sql('CREATE DATABASE present');
	wait_for_schedulers($node, 'present', grep { $_ ne 'postgres' && $_ ne 'Capital' } @all);
	pass('also of those that are made later');
	sql('DROP DATABASE absent');
	sql('DROP DATABASE present');
	set_conf($node, q(pg_task.database = 'none'));
	wait_for_schedulers($node);
	pass('none');
	sql('CREATE DATABASE "none"');
	set_conf($node, q(pg_task.database = '"none", -postgres'));
	wait_for_schedulers($node, 'none');
	pass('a database of that name, and another one is left out of the list');
	sql('DROP DATABASE "none"');
};

# A database that was served and is not named any more, perhaps by mistake: everything says so.
subtest 'a database that is not named any more' => sub {
	my $state = q{SELECT string_agg(datname || ': ' || state || coalesce(': ' || error, ''), ', '
		ORDER BY datname) FROM pg_stat_task_scheduler() WHERE datname IN ('app', 'bare', 'idle')};
	my $unnamed = 'app: not served: "pg_task.database" does not name it';
	my $why = 'no scheduler serves this database: pg_task.database does not name it';

	sql('CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN; CREATE DATABASE app; CREATE DATABASE bare;
		ALTER DATABASE bare SET pg_task.create_table = off;
		CREATE DATABASE idle; ALTER DATABASE idle SET pg_task.enabled = off');
	set_conf($node, q(pg_task.database = 'app, bare, idle, postgres'));
	wait_for_table($node, db => 'app');
	wait_until($node, $state, expected => 'app: running, bare: no table, idle: disabled');
	sql_in('app', 'GRANT SELECT, INSERT ON task TO ann');
	$position = log_position($node);
	set_conf($node, q(pg_task.database = 'ap, postgres'));
	wait_until($node, $state, expected => $unnamed);
	my $log = log_since($node, $position);
	is(() = $log =~ /WARNING:  database "ap" in "pg_task.database" does not exist/g, 1,
		'a name that matches no database is logged');
	is(() = $log =~ /pg_task runs no tasks of database "app" .*\n.*"pg_task.database" does not name/g, 1,
		'and the database that is not named');
	for my $restarts (0, 1)
	{
		my $when = $restarts ? 'after a restart' : 'after a reload';

		is(notices_of('postgres', q{INSERT INTO task (role, request)
			SELECT unnest('{ann,bob,postgres}'::name[]), 'SELECT 1' FROM generate_series(1, 2)},
			db => 'app'), "WARNING:  this task will not start: \"pg_task.database\" does not name this"
			. " database\nHINT:  Name it in postgresql.conf, and reload.", "$when: an INSERT warns once");
		is(sql_in('app', 'SELECT DISTINCT pg_task_why(id) FROM task'), $why, "$when: pg_task_why");
		is(sql_in('app', q{SELECT text FROM pg_task_top() WHERE what = 'note'}), $why,
			"$when: pg_task_top");
		is(sql_in('app', 'SELECT state, databases FROM pg_task_status()'),
			$restarts ? "$why|1" : 'not served|1', "$when: pg_task_status");
		$node->restart;
	}
	set_conf($node, q(pg_task.database = 'app, postgres'));
	is(notices_of('ann', q{INSERT INTO task (request) VALUES ('SELECT 1')}, db => 'app'), '',
		'named again: no warning');
	wait_until($node, q{SELECT count(*) FROM task WHERE state = 'DONE'}, db => 'app',
		expected => 13);
	set_conf($node, q(pg_task.database = 'postgres'));
	wait_until($node, $state, expected => $unnamed);
	set_conf($node, q(pg_task.database = '*, -app'));
	wait_for_schedulers($node, grep { $_ !~ /^(?:app|bare|idle)$/ } split /\n/,
		sql('SELECT datname FROM pg_database WHERE datallowconn AND NOT datistemplate'));
	unlike(sql($state), qr/app/, 'one that is left out by its name is no mistake');
	set_conf($node, q(pg_task.database = 'app, postgres'));
	wait_until($node, $state, expected => 'app: running');
	set_conf($node, q(pg_task.database = 'postgres'));
	wait_until($node, $state, expected => $unnamed);
	sql('DROP DATABASE app; DROP DATABASE bare; DROP DATABASE idle');
	wait_until($node, $state, expected => '');
	pass('one that is dropped is forgotten');
};

# The role that is to own the table does not exist: a table that is there is served as its owner.
subtest 'a role that does not exist' => sub {
	my $state = q{SELECT state || coalesce(': ' || error, '') FROM pg_stat_task_scheduler()
		WHERE datname = 'owned'};

	sql('CREATE ROLE owner LOGIN; CREATE DATABASE owned; CREATE DATABASE bare;
		GRANT CREATE ON DATABASE owned TO owner');
	sql_in('owned', 'CREATE SCHEMA owner AUTHORIZATION owner');
	sql_in('bare', 'GRANT CREATE ON SCHEMA public TO owner');
	set_conf($node, q(pg_task.database = 'owned:owner, postgres'));
	wait_for_table($node, db => 'owned', table => 'owner.task');
	$position = log_position($node);
	set_conf($node, q(pg_task.database = 'owned:ownr, bare:ownr, postgres'));
	wait_for_log_line($node,
		qr/role "ownr" in "pg_task.database" does not exist\n.*A task table that is there is served as/,
		$position);
	wait_for_log_line($node,
		qr/creates no task table in database "bare"\n.*DETAIL:  The role that "pg_task.database" names/,
		$position);
	sql_in('owned', q{INSERT INTO owner.task (role, request) VALUES ('owner', 'SELECT 1')});
	wait_until($node, 'SELECT state FROM owner.task', db => 'owned', expected => 'DONE');
	is(sql($state), 'running', 'a table that is there is served');
	is(sql_in('owned', q{SELECT relname FROM pg_class WHERE relname = 'task' AND relnamespace
		<> 'owner'::regnamespace}), '', 'no other is made');
	is(sql(q{SELECT state, error FROM pg_stat_task_scheduler() WHERE datname = 'bare'}),
		'not served|the role that "pg_task.database" names does not exist', 'nor one where none is');
	$node->restart;
	wait_until($node, $state,
		expected => 'not served: the role that "pg_task.database" names does not exist');
	sql(q{ALTER DATABASE owned SET pg_task.schema_name = 'owner'});
	wait_until($node, $state, expected => 'running: the role that "pg_task.database" names does not exist');
	pass('a table in the schema of the role is found if the setting says so');
	sql('ALTER ROLE owner RENAME TO ownr');
	wait_for_table($node, db => 'bare');
	is(sql_in('bare', q{SELECT relowner::regrole FROM pg_class WHERE oid = 'task'::regclass}), 'ownr',
		'a table is made when the role exists');
	set_conf($node, q(pg_task.database = ''));
	sql('DROP DATABASE owned; DROP DATABASE bare');
};

# A list of databases with users.  A missing database is reported once, and served when it appears.
subtest 'pg_task.database' => sub {
	sql(q(CREATE ROLE "Us er"; CREATE ROLE "col:on" LOGIN; CREATE ROLE plain));
	$position = log_position($node);
	set_conf($node, q(pg_task.database = 'ONE : "Us er" , )
		. q("qu""ote":"col:on", missing,late:later,"with space"'));
	wait_for_schedulers($node, 'one', 'qu"ote', 'with space');
	pass('the databases of the list have a scheduler, and no others');
	wait_for_log_line($node,
		qr/WARNING: .* database "missing" in "pg_task.database" does not exist/,
		$position);
	wait_for_log_line($node, qr/WARNING: .* database "late" in "pg_task.database" does not exist/,
		$position);
	sql('CREATE DATABASE late');
	wait_for_log_line($node, qr/WARNING: .* role "later" in "pg_task.database" does not exist/,
		$position);
	sql('CREATE ROLE later; GRANT CREATE ON DATABASE late TO later');
	wait_for_log_line($node,
		qr{may\ not\ create\ the\ task\ table\ in\ schema\ "public"
			.*GRANT\ CREATE\ ON\ SCHEMA\ public\ TO\ \w+
			.*pg_task\ scheduler\ of\ database\ "late"}sx, $position);
	is(answer('one', 'SELECT 1'), '1', 'other databases go on');
	sql_in('late', 'GRANT CREATE ON SCHEMA public TO later');
	wait_for_table($node, db => 'late');
	is(sql_in('late',
		"SELECT relowner::regrole FROM pg_class WHERE oid = 'task'::regclass"),
		'later', 'the table belongs to the role of the list');
	sql('ALTER ROLE plain CREATEDB');
	$node->reload;
	sql('CREATE DATABASE again');
	sql('DROP DATABASE again');
	my $log = log_since($node, $position);
	is(scalar(() = $log =~ /database "missing" in "pg_task.database"/g), 1,
		'a missing database is logged once');
	is(scalar(() = $log =~ /role "later" in "pg_task.database"/g), 1,
		'a missing role is logged once');
	is(scalar(() = $log =~ /may not create the task table in schema "public"/g), 1,
		'an error of a scheduler is logged once');
};

# An invalid list is rejected, and the old one stays in force.
subtest 'invalid lists' => sub {
	my $list = sql('SHOW pg_task.database');
	for my $bad ('one,,two', 'one:', ':user', '"open', 'one two', '"x"y', ',', 'one:a:b', 'x' x 64,
		'""', '*, *', '*:', '-one', '-one, -two', '*, -one:plain', 'none, one', '-')
	{
		$position = log_position($node);
		set_conf($node, "pg_task.database = '$bad'");
		wait_for_log_line($node, qr/invalid value for parameter "pg_task.database"/, $position);
		is(sql('SHOW pg_task.database'), $list, "a list like <$bad> is refused");
	}
	for my $twice ('one,two,one', 'one, one:plain', 'One,"one"', '"qu""ote":a,"qu""ote":b')
	{
		$position = log_position($node);
		set_conf($node, "pg_task.database = '$twice'");
		my $name = $twice =~ /qu/ ? 'qu"ote' : 'one';
		wait_for_log_line($node,
			qr/invalid\ value\ for\ parameter\ "pg_task.database"
				.*DETAIL:\ \ Database\ "$name"\ is\ named\ twice/sx,
			$position);
		is(sql('SHOW pg_task.database'), $list,
			"a list that names a database twice is refused: $twice");
	}
	wait_for_schedulers($node, 'late', 'one', 'qu"ote', 'with space');
};

# The location of the table, set for a database: a missing schema is created.
subtest 'the name of the table' => sub {
	set_conf($node, "pg_task.database = ''", "pg_task_schema.one = 'Some Schema'",
		"pg_task_table.one = 'a \"table\"'",
		'pg_task_period.one = 100ms');
	wait_for_table($node, db => 'one', table => '"Some Schema"."a ""table"""');
	sql_in('one',
		q(INSERT INTO "Some Schema"."a ""table""" (request) VALUES ('SELECT 1')));
	wait_until($node, q(SELECT state FROM "Some Schema"."a ""table"""), db => 'one',
		expected => 'DONE');
	my $left = insert_task($node, db => 'one', request => 'SELECT 1');
	sql_in('one',
		q(INSERT INTO "Some Schema"."a ""table""" (request) VALUES ('SELECT 1')));
	wait_until($node, q(SELECT count(*) FROM "Some Schema"."a ""table""" WHERE state = 'DONE'),
		db => 'one', expected => 2);
	is(task($node, $left, 'state', db => 'one'), 'PLAN', 'the table of the old name is not served');
};

# The same by ordinary settings, for names that cannot be written there; the other settings win.
subtest 'settings of a database' => sub {
	sql(q(ALTER DATABASE "with space" SET pg_task.table_name = jobs;
		  ALTER DATABASE "with space" SET pg_task.schema_name = 'Größe';
		  ALTER DATABASE one SET pg_task.table_name = loser)
	);
	wait_for_table($node, db => 'with space', table => '"Größe".jobs');
	sql_in('one',
		q(INSERT INTO "Some Schema"."a ""table""" (request) VALUES ('SELECT 1')));
	wait_until($node, q(SELECT count(*) FROM "Some Schema"."a ""table""" WHERE state = 'DONE'),
		db => 'one', expected => 3);
	is(sql_in('one', q(SELECT to_regclass('loser'), to_regclass('"Some Schema".loser'))),
		'|',
		'the setting for the database wins');
};

# The same settings by their older names: as if there were one.
subtest 'older names of settings' => sub {
	my $shown = q(SELECT current_setting('pg_task.table_name'), current_setting('pg_task.table'));
	my $serves = sub {
		my ($table, $name) = @_;

		wait_for_table($node, db => 'with space', table => qq("Größe".$table));
		my $id = sql_in('with space',
			qq(INSERT INTO "Größe".$table (request) VALUES ('SELECT 1') RETURNING id));
		wait_until($node, qq(SELECT state FROM "Größe".$table WHERE id = $id), db => 'with space',
			expected => 'DONE');
		is(sql_in('with space', $shown), "$table|$table", $name);
	};
	sql(q(ALTER DATABASE "with space" SET pg_task."table" = older));
	$serves->('jobs', 'both are set for a database: the newer name wins');
	sql(q(ALTER DATABASE "with space" RESET pg_task.table_name;
		ALTER DATABASE "with space" SET pg_task."schema" = 'Größe';
		ALTER DATABASE "with space" RESET pg_task.schema_name));
	$serves->('older', 'the older names alone');
	set_conf($node, "pg_task.table_name = 'general'");
	wait_for_table($node, table => 'general');
	$serves->('older', 'what a database sets wins, whatever its name');
	sql(q(ALTER DATABASE "with space" RESET pg_task."table"));
	$serves->('general', 'what the server sets');
	set_conf($node, "pg_task.table_name = 'task'");
	wait_for_table($node);
	sql(q(ALTER DATABASE "with space" SET pg_task.table_name = jobs));
	$serves->('jobs', 'the newer name again');
};

# An invalid period is reported, and the default is used; nothing stops.
subtest 'an invalid period' => sub {
	$position = log_position($node);
	set_conf($node, "pg_task_period.one = 'soon'", "pg_task_table.one = ''",
		"pg_task_schema.one = 'public'");
	wait_for_log_line($node, qr/invalid value for parameter "pg_task_period.one": "soon"/,
		$position);
	wait_for_log_line($node, qr/invalid value for parameter "pg_task_table.one": ""/, $position);
	wait_for_table($node, db => 'one', table => 'loser');
	sql_in('one', q(INSERT INTO loser (request) VALUES ('SELECT 1')));
	wait_until($node, q(SELECT state FROM loser), db => 'one', expected => 'DONE');
	pass('the errors are logged, and tasks run with the defaults');
};

# A restart changes nothing.
subtest 'a restart' => sub {
	my $count = q(SELECT count(*),
		(SELECT count(*) FROM pg_trigger WHERE tgrelid = 'task'::regclass)
		FROM pg_index WHERE indrelid = 'task'::regclass);
	$node->restart;
	$node->stop;
	$position = log_position($node);
	$node->start;
	is(answer('postgres', 'SELECT 1'), '1', 'a task runs after a restart');
	$node->reload;
	wait_for_log_line($node,
		qr/LOG:  pg_task has found the task table public\.task of role "postgres"/, $position);
	terminate($node, backends($node, 'scheduler'));
	is(answer('postgres', 'SELECT 2'), '2', 'a task runs with another scheduler');
	is(() = log_since($node, $position) =~ /has \w+ the task table .* in database "postgres"/g, 1,
		'the log tells once which table it is');
	is(sql($count), '8|6', 'no index or trigger was created twice');
};

# An owner who may not log in still gets a table.
subtest 'an owner without LOGIN' => sub {
	sql('CREATE ROLE landlord NOLOGIN; CREATE DATABASE let OWNER landlord; '
		. 'CREATE ROLE tenant LOGIN; '
		. 'GRANT tenant TO landlord');
	wait_for_table($node, db => 'let');
	wait_for_log_line($node,
		qr/pg_task has created the task table public\.task of role "landlord" in database "let"\n/,
		$position);
	is(sql_in('let',
		"SELECT relowner::regrole FROM pg_class WHERE oid = 'task'::regclass"),
		'landlord', 'the table belongs to the owner of the database');
	my $id = run_task($node, db => 'let', request => 'SELECT session_user', role => 'tenant');
	is(task($node, $id, 'response', db => 'let'), 'tenant', 'a task runs as a member');
	sql('ALTER DATABASE let OWNER TO tenant');
	wait_until($node, "SELECT relowner::regrole FROM pg_class WHERE oid = 'task'::regclass",
		db => 'let', expected => 'landlord');
	is(answer('postgres', 'SELECT 1'), '1',
		'tasks run after the owner of the database has changed');
};

done_testing();
