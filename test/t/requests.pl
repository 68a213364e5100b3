# What a request does and returns, compared with psql -c for the same text.  Two equal servers
# execute the same requests in the same order, one by tasks and one by psql; in the end their
# contents are equal, too.  A TAP test because it needs two servers.
use strict;
use warnings;
use FindBin;
use IPC::Run;
use lib $FindBin::RealBin;
use PgTask;
use PostgreSQL::Test::Utils;
use Test::More;

# Each request is followed by known differences, and by how to compare:
#   header   a task adds a header with name::type of each column; psql -t has none
#   tag      psql adds the command tag to the rows of INSERT ... RETURNING; a task does not
#   commits  the request commits by itself, so it may run more than once, and its notice says so
#   untold   the sqlstate of an error that psql shows, but not in LAST_ERROR_SQLSTATE
#   differs  why the outcome of the task differs; then the task must return these:
#            sqlstate, response, notice
#   blur     a regular expression of text that is not compared
#   role     the role that runs it; default: the superuser
#   from     the first major version that supports it
# If a request fails, psql shows the results before the error; a task returns only the error.
my $tab = "\t";
my @requests = (
	# Rows.  With a single column there is no header.
	['SELECT 1'],
	['SELECT 1 AS a, 2 AS b', header => "a::int4${tab}b::int4"],
	['SELECT 1 WHERE false'],
	['SELECT 1, 2 WHERE false', header => "?column?::int4${tab}?column?::int4"],
	['SELECT 1 AS x, 2 AS x, 3 AS x', header => "x::int4${tab}x::int4${tab}x::int4"],
	['SELECT NULL'],
	["SELECT NULL::int AS a, '' AS b, 'x' AS c", header => "a::int4${tab}b::text${tab}c::text"],
	['SELECT generate_series(1, 100)'],
	["SELECT E'two\\nlines'"],
	["SELECT E'a\\tb', E'c\\\\d'", header => "?column?::text${tab}?column?::text"],
	["SELECT 'größer', '日本', '😀'",
	header => "?column?::text${tab}?column?::text${tab}?column?::text"],
	['SELECT 1 AS "größer als", 2 AS "日""本"', header => "größer als::int4${tab}日\"本::int4"],
	["SELECT ARRAY[1, NULL, 3], ARRAY['a b', 'c\"d', NULL, 'NULL']",
	header => "array::int4[]${tab}array::text[]"],
	['SELECT ARRAY[[1, 2], [3, 4]]'],
	["SELECT ROW(1, 'x', NULL)"],
	["SELECT int4range(1, 5), '[2024-01-01,2024-02-01)'::daterange, "
	. "'{[1,2),[4,5)}'::int4multirange",
		header => "int4range::int4range${tab}daterange::daterange${tab}"
			. 'int4multirange::int4multirange'],
	["SELECT '\\x00ff41'::bytea"],
	["SELECT 12.34::money, 1.50::numeric, 'NaN'::float8, 1e300::float8, 0.1::float4",
		header => "money::money${tab}numeric::numeric${tab}float8::float8${tab}float8::float8${tab}"
			. 'float4::float4'],
	["SELECT '2024-02-29 12:00+00'::timestamptz, '2024-02-29'::date, '1 mon 2 days "
	. "03:04:05'::interval",
		header => "timestamptz::timestamptz${tab}date::date${tab}interval::interval"],
	["SELECT true, 'x'::char(3), B'101', '{\"a\": 1}'::jsonb, '192.168.0.1/24'::inet, "
	. "'(1,2)'::point",
		header => "?column?::bool${tab}bpchar::bpchar${tab}?column?::bit${tab}jsonb::jsonb${tab}"
			. "inet::inet${tab}point::point"],
	["SELECT '<a>ä</a>'::xml"],
	["SELECT 'a fat cat'::tsvector, 'fat & cat'::tsquery, 'pg_class'::regclass",
		header => "tsvector::tsvector${tab}tsquery::tsquery${tab}regclass::regclass"],
	['SELECT'],
	['SELECT FROM generate_series(1, 3)',
	differs => 'psql shows rows of no columns not at all; a task a line each', response => "\n\n"],
	['SELECT ' . join(', ', 1 .. 1600), header => join($tab, ('?column?::int4') x 1600)],
	['SELECT ' . join(', ', 1 .. 1665)],
	["SELECT repeat('x', 100000)"],
	['VALUES (1, NULL), (2, $$b$$)', header => "column1::int4${tab}column2::text"],
	['WITH RECURSIVE t (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT sum(n) '
	. 'FROM t'],
	['SELECT current_user, session_user, current_database(), current_schema',
		header => "current_user::name${tab}session_user::name${tab}"
			. "current_database::name${tab}current_schema::name"],
	['SELECT current_user', role => 'plain'],

	# Objects.
	['CREATE TABLE made (a int PRIMARY KEY, b text UNIQUE, c int CHECK (c > 0), d int NOT NULL '
		. 'DEFAULT 1)'],
	['CREATE TABLE made (a int)'],
	['CREATE TABLE IF NOT EXISTS made (a int)'],
	['CREATE TABLE child (a int REFERENCES made DEFERRABLE INITIALLY IMMEDIATE, n serial)'],
	['CREATE TABLE later (a int REFERENCES made DEFERRABLE INITIALLY DEFERRED)'],
	['CREATE TABLE ranges (r int4range, EXCLUDE USING gist (r WITH &&))'],
	["CREATE TYPE mood AS ENUM ('sad', 'ok')"],
	['CREATE TYPE pair AS (x int, y text)'],
	['CREATE DOMAIN positive AS int CHECK (VALUE > 0)'],
	['CREATE SEQUENCE counter'],
	['CREATE SCHEMA aside'],
	['CREATE SCHEMA whole CREATE TABLE a (x int) CREATE VIEW b AS SELECT x FROM a'],
	['CREATE VIEW seen AS SELECT a, b FROM made'],
	['CREATE OR REPLACE VIEW seen AS SELECT a, b, c FROM made'],
	['CREATE MATERIALIZED VIEW kept AS SELECT n FROM generate_series(1, 3) AS n'],
	['CREATE INDEX ON made (c)'],
	['CREATE UNIQUE INDEX ON kept (n)'],
	['CREATE TABLE copied AS SELECT generate_series(1, 5) AS n'],
	['SELECT 7 AS n INTO copied2'],
	['CREATE TABLE measured (day date, n int) PARTITION BY RANGE (day)'],
	["CREATE TABLE early PARTITION OF measured FOR VALUES FROM (MINVALUE) TO ('2024-01-01')"],
	['ALTER TABLE made ADD COLUMN e mood, ADD COLUMN f pair'],
	['ALTER TABLE made RENAME COLUMN f TO g'],
	["ALTER TYPE mood ADD VALUE 'happy'"],
	["ALTER TYPE mood ADD VALUE IF NOT EXISTS 'happy'"],
	["ALTER TYPE mood ADD VALUE 'new'; SELECT 'new'::mood"],
	['COMMENT ON TABLE made IS $$by a request$$'],
	['GRANT SELECT, INSERT ON made TO plain'],
	['REVOKE INSERT ON made FROM plain'],
	['ALTER DEFAULT PRIVILEGES IN SCHEMA aside GRANT SELECT ON TABLES TO plain'],
	['CREATE RULE no_delete AS ON DELETE TO copied2 DO INSTEAD NOTHING'],
	['CREATE STATISTICS some ON a, c FROM made'],
	['CREATE EXTENSION hstore'],
	['CREATE EXTENSION missing'],
	['CREATE ROLE short'],
	['DROP ROLE IF EXISTS nobody_has_this_name'],
	["SECURITY LABEL ON TABLE made IS 'top'"],
	['DROP TABLE missing'],
	['DROP TABLE IF EXISTS missing'],
	['DROP TABLE made'],
	['DROP SCHEMA whole'],
	['DROP SCHEMA whole CASCADE'],
	['DROP TYPE pair'],
	["CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN "
	. "RAISE NOTICE '% %', TG_OP, NEW.a; RETURN NEW; END \$\$"],
	['CREATE TRIGGER shout BEFORE UPDATE ON made FOR EACH ROW EXECUTE FUNCTION shout()'],
	["CREATE FUNCTION broken() RETURNS int LANGUAGE plpgsql\nAS 'BEGIN RETRUN 1; END'"],
	["CREATE FUNCTION broken() RETURNS int LANGUAGE sql\nAS 'SELECT nothing'"],
	['CREATE TEMP TABLE brief (a int) ON COMMIT DROP; INSERT INTO brief VALUES (1); TABLE brief'],

	# Modified rows.
	["INSERT INTO made (a, b, c) SELECT n, 'row ' || n, n FROM generate_series(1, 5) AS n"],
	['INSERT INTO made (a) VALUES (6) RETURNING a, d', header => "a::int4${tab}d::int4",
	tag => 'INSERT 0 1'],
	['INSERT INTO made (a) VALUES (6) ON CONFLICT DO NOTHING'],
	['INSERT INTO made (a) VALUES (6) ON CONFLICT (a) DO UPDATE SET c = 60 RETURNING c',
	tag => 'INSERT 0 1'],
	['INSERT INTO child (a) VALUES (1), (2)'],
	["UPDATE made SET b = upper(b) WHERE a <= 2 RETURNING *", tag => 'UPDATE 2',
		header => "a::int4${tab}b::text${tab}c::int4${tab}d::int4${tab}e::mood${tab}g::pair"],
	['UPDATE made SET g = ROW(a, b)::pair WHERE a = 3'],
	['UPDATE made SET c = 1 WHERE false'],
	['UPDATE made SET c = 1 WHERE false RETURNING a', tag => 'UPDATE 0'],
	['DELETE FROM made WHERE a = 6 RETURNING a', tag => 'DELETE 1'],
	['DELETE FROM copied2'],
	['DELETE FROM copied WHERE n = 5'],
	['WITH gone AS (DELETE FROM copied WHERE n = 4 RETURNING n) SELECT n, n + 1 AS m FROM gone',
		header => "n::int4${tab}m::int4"],
	['WITH more AS (SELECT 9 AS n) INSERT INTO copied SELECT n FROM more'],
	['MERGE INTO copied USING (VALUES (1), (100)) AS v (n) ON copied.n = v.n
		WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (v.n)'],
	['MERGE INTO copied USING (VALUES (2), (200)) AS v (n) ON copied.n = v.n
		WHEN MATCHED THEN UPDATE SET n = 20 WHEN NOT MATCHED THEN INSERT VALUES (v.n) '
		. 'RETURNING merge_action(), copied.n',
		from => 17, header => "merge_action::text${tab}n::int4", tag => 'MERGE 2'],
	['TABLE copied'],
	['SELECT * FROM made',
	header => "a::int4${tab}b::text${tab}c::int4${tab}d::int4${tab}e::mood${tab}g::pair"],
	['SELECT g, (g).y FROM made WHERE a = 3', header => "g::pair${tab}y::text"],
	["SELECT nextval('counter'); SELECT currval('counter')"],
	['TRUNCATE later, child'],
	['TRUNCATE made'],
	["INSERT INTO measured VALUES ('2023-05-05', 1)"],
	['LOCK TABLE made IN EXCLUSIVE MODE'],
	['SELECT a FROM made ORDER BY a LIMIT 1 FOR UPDATE'],
	['SELECT lo_create(4711); SELECT lo_put(4711, 0, $$abc$$); SELECT lo_get(4711)'],
	["INSERT INTO copied SELECT 1/0"],

	# EXPLAIN.
	['EXPLAIN (COSTS OFF) SELECT * FROM copied WHERE n = 1'],
	['EXPLAIN (COSTS OFF, VERBOSE) SELECT n + 1 FROM copied'],
	['EXPLAIN (COSTS OFF, FORMAT json) SELECT * FROM copied'],
	['EXPLAIN (COSTS OFF, FORMAT xml) SELECT * FROM copied'],
	['EXPLAIN (COSTS OFF, FORMAT yaml) SELECT * FROM copied'],
	['EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF) SELECT count(*) '
	. 'FROM copied'],
	['EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF) INSERT INTO copied '
	. 'VALUES (77)'],
	['EXPLAIN (COSTS OFF) CREATE TABLE copied3 AS SELECT 1 AS n'],
	['EXPLAIN (COSTS OFF) SELECT nothing'],
	['PREPARE one (int) AS SELECT n FROM copied WHERE n = $1; EXPLAIN (COSTS OFF) EXECUTE one (1)'],

	# Settings.
	['SHOW search_path'],
	['SHOW server_encoding; SHOW DateStyle'],
	["SET work_mem = '1MB'; SHOW work_mem; RESET work_mem; SHOW work_mem"],
	["SET work_mem = '1MB'"],
	["SET work_mem = 'much'"],
	["SET no_such_setting = 1"],
	["SET my.setting = 'x'; SHOW my.setting"],
	["SELECT set_config('my.setting', 'y', true), current_setting('my.setting')",
	header => "set_config::text${tab}current_setting::text"],
	["SET LOCAL work_mem = '2MB'; SHOW work_mem"],
	["SET LOCAL work_mem = '2MB'"],
	["SET TimeZone = 'Asia/Tokyo'; SELECT '2024-01-01 00:00+00'::timestamptz"],
	["SET DateStyle = 'German'; SELECT '2024-01-02'::date"],
	["SET bytea_output = 'escape'; SELECT '\\x00ff41'::bytea"],
	["SET ROLE plain;\nCREATE TABLE refused (a int)"],
	['SET ROLE plain; SELECT current_user, session_user',
	header => "current_user::name${tab}session_user::name"],
	['SET SESSION AUTHORIZATION plain; SELECT current_user, session_user',
	header => "current_user::name${tab}session_user::name"],
	['SET ROLE postgres_has_no_such_role'],
	['SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SHOW transaction_isolation'],
	['SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SHOW transaction_isolation --'
	. ' long' x 1000],
	['SELECT 1; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE'],
	['SET TRANSACTION READ ONLY; CREATE TABLE refused (a int)'],
	['SET TRANSACTION READ ONLY; SELECT 1'],
	['SET CONSTRAINTS ALL DEFERRED'],
	['SET CONSTRAINTS ALL DEFERRED; INSERT INTO child (a) VALUES (99); DELETE FROM child; '
	. 'SELECT 1'],
	['SHOW application_name', differs => 'it names the task',
	response => qr/^pg_task requests \d+$/],
	['SHOW pg_task.id', differs => 'psql runs no task', response => qr/^\d+$/],
	['SET pg_task.id = 5'],
	['RESET ALL'],
	['DISCARD ALL', commits => 1],
	['DISCARD TEMP'],
	['DISCARD PLANS; SELECT 1'],
	['SELECT 1; DISCARD ALL'],

	["SELECT name, setting FROM pg_settings WHERE setting <> boot_val "
		. "AND name !~ '^(application_name|cluster_name|data_dir|port|unix_socket|"
			. "(config|hba|ident)_file|pg_task.id)'
		ORDER BY name", header => "name::text${tab}setting::text"],
	['SELECT current_query()'],
	['SELECT query, state FROM pg_stat_activity WHERE pid = pg_backend_pid()',
	header => "query::text${tab}state::text"],
	['SELECT now() = statement_timestamp(); COMMIT; SELECT now() = statement_timestamp()',
	commits => 1],
	['SELECT now() = (SELECT now()); SELECT inet_client_addr() IS NULL'],
	["SET client_encoding = latin1; SELECT 'größer'",
	differs => 'a response is in the encoding of the database',
		response => "SET\ngrößer"],
	["SET client_encoding = latin1; SELECT '日本'",
	differs => 'a response is in the encoding of the database', response => "SET\n日本"],
	["SET client_encoding = latin1; COPY (SELECT 'größer') TO STDOUT",
	differs => 'a response is in the encoding of the database',
		response => "SET\ngrößer"],
	["SET client_encoding = latin1; DO \$\$ BEGIN RAISE NOTICE 'größer' USING DETAIL = 'über'; "
	. "END \$\$",
		differs => 'a response is in the encoding of the database', response => "SET\nDO",
		notice => "NOTICE:  größer\nDETAIL:  über"],
	["SET client_encoding = latin1;\nSELECT 'größer日本'::int",
	differs => 'a response is in the encoding of the database', sqlstate => '22P02',
		response => "ERROR:  invalid input syntax for type integer: \"größer日本\"\nLINE 2: "
		. "SELECT 'größer日本'::int\n               ^"],
	["SET client_encoding = latin1; DO \$\$ BEGIN RAISE NOTICE '日本'; END \$\$"],
	["SET client_encoding = latin1; COPY (SELECT '日本') TO STDOUT", untold => '22P05'],
	['RESET SESSION AUTHORIZATION; RESET ROLE; SELECT current_user'],

	# Prepared statements and cursors.
	['PREPARE two (int, text) AS SELECT $1 + 1, $2; EXECUTE two (41, $$x$$)',
		header => "?column?::int4${tab}?column?::text"],
	['PREPARE three AS INSERT INTO copied VALUES (3); EXECUTE three; '
	. 'EXECUTE three; DEALLOCATE three'],
	['PREPARE four AS UPDATE copied SET n = n WHERE n = 3 RETURNING n; EXECUTE four',
	tag => 'UPDATE 3'],
	['EXECUTE five'],
	['DEALLOCATE ALL'],
	['DECLARE c CURSOR FOR SELECT generate_series(1, 9); FETCH 2 FROM c; FETCH NEXT FROM c; MOVE 3 '
	. 'FROM c; FETCH ALL FROM c; CLOSE c'],
	['DECLARE c CURSOR FOR SELECT 1'],
	['DECLARE c SCROLL CURSOR FOR SELECT 1 AS a, 2 AS b; FETCH LAST FROM c; FETCH PRIOR '
	. 'FROM c; MOVE FIRST FROM c; CLOSE ALL',
		header => ["a::int4${tab}b::int4", "a::int4${tab}b::int4"]],
	['DECLARE c CURSOR WITH HOLD FOR SELECT 5'],
	['BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 5; COMMIT; FETCH c; CLOSE c', commits => 1],
	['BEGIN; DECLARE c BINARY CURSOR FOR SELECT 5; FETCH c; COMMIT', commits => 1,
		differs => 'psql has no use for the binary form; a task asks for text',
		response => "BEGIN\nDECLARE CURSOR\n5\nCOMMIT"],
	['FETCH nowhere'],
	['DECLARE c CURSOR FOR SELECT 1/(3 - n) FROM generate_series(1, 5) AS n; FETCH 2 '
	. 'FROM c; FETCH 2 '
	. 'FROM c'],
	["CREATE FUNCTION cursor_of() RETURNS refcursor LANGUAGE plpgsql AS \$\$
		DECLARE c refcursor := 'named'; BEGIN OPEN c FOR SELECT generate_series(1, 3); RETURN c; "
		. "END \$\$"],
	['BEGIN; SELECT cursor_of(); FETCH ALL FROM named; COMMIT', commits => 1],
	['SELECT cursor_of(); FETCH ALL FROM named'],

	# COPY.
	["CREATE TABLE written (a int, b text); INSERT INTO written "
		. "VALUES (1, 'x'), (2, NULL), (3, E'tab\\tnew\\nline\\\\'), (4, ''), (5, 'q\"u,o')"],
	['COPY written TO STDOUT'],
	['COPY written TO STDOUT (FORMAT csv)'],
	['COPY written TO STDOUT (FORMAT csv, HEADER, FORCE_QUOTE *)'],
	["COPY written (b) TO STDOUT (NULL 'nothing', DELIMITER '|', HEADER)"],
	['COPY (SELECT n, n * n FROM generate_series(1, 3) AS n) TO STDOUT'],
	['COPY (SELECT 1 WHERE false) TO STDOUT'],
	['SELECT 1; COPY written (a) TO STDOUT; SELECT 2'],
	['COPY (INSERT INTO written VALUES (6, $$six$$) RETURNING a) TO STDOUT'],
	["COPY (SELECT 'ä') TO STDOUT (ENCODING 'UTF8')"],
	["COPY (SELECT 'größer') TO STDOUT (ENCODING 'latin1')",
	differs => 'a response is in the encoding of the database', response => 'größer'],
	['COPY written TO STDOUT (FORMAT binary)', differs => 'a response is text', sqlstate => '0A000',
	response => qr/^ERROR:  cannot COPY .*binary/],
	['COPY (SELECT 1/(n - 2) FROM generate_series(1, 3) AS n) TO STDOUT', untold => '22012'],
	["COPY written TO '/dev/null'"],
	["COPY written FROM '/dev/null'"],
	["COPY written FROM '/nowhere/file'"],
	["COPY written FROM PROGRAM 'printf ''7\\tseven\\n'''"],
	["COPY written FROM PROGRAM 'printf ''x\\tseven\\n'''"],
	['COPY written FROM STDIN', differs => 'there is no client that could send rows',
	sqlstate => '0A000',
		response => qr/^ERROR:  cannot COPY FROM STDIN in a task\nDETAIL:  /],
	['SELECT 1; COPY written FROM STDIN; SELECT 2',
	differs => 'there is no client that could send rows', sqlstate => '0A000',
		response => qr/^ERROR:  cannot COPY FROM STDIN in a task\nDETAIL:  /],
	['COPY nowhere TO STDOUT'],
	['COPY written TO STDOUT', role => 'plain'],

	# Procedures and blocks.
	["CREATE PROCEDURE quiet(a int) LANGUAGE plpgsql AS 'BEGIN INSERT INTO written VALUES (a); "
		. "END'"],
	["CREATE PROCEDURE gives(INOUT a int, OUT b text) LANGUAGE plpgsql AS \$\$ "
	. "BEGIN a := a + 1; b := 'b'; END \$\$"],
	["CREATE PROCEDURE commits(a int, b bool) LANGUAGE plpgsql AS \$\$ BEGIN INSERT INTO written "
	. "VALUES (a); COMMIT;
		INSERT INTO written VALUES (a + 1); IF b THEN ROLLBACK; END IF; INSERT INTO written "
		. "VALUES (a + 2); END \$\$"],
	["CREATE PROCEDURE fails(a int) LANGUAGE plpgsql AS \$\$ BEGIN INSERT INTO written "
	. "VALUES (a); COMMIT;
		INSERT INTO written VALUES (a + 1); PERFORM 1/0; END \$\$"],
	['CALL quiet(10)'],
	['CALL gives(1, NULL)', header => "a::int4${tab}b::text"],
	['CALL quiet(11); CALL gives(1, NULL); CALL quiet(12)', header => "a::int4${tab}b::text"],
	['CALL commits(20, false)', commits => 1],
	['CALL commits(30, true)', commits => 1],
	['CALL commits(40, true); SELECT 1'],
	['BEGIN; CALL commits(50, true); COMMIT'],
	['CALL fails(60)', commits => 1],
	['CALL missing(1)'],
	["CREATE PROCEDURE walks() LANGUAGE plpgsql AS \$\$ DECLARE r record; BEGIN FOR r IN SELECT n "
	. "FROM generate_series(80, 83) AS n LOOP
		INSERT INTO written VALUES (r.n); IF r.n % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF; END "
		. "LOOP; CALL quiet(84); END \$\$"],
	['CALL walks()', commits => 1],
	["DO 'BEGIN CALL walks(); END'", commits => 1],
	["CREATE PROCEDURE isolates() LANGUAGE plpgsql AS \$\$ BEGIN COMMIT; "
	. "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;
		RAISE NOTICE '%', current_setting('transaction_isolation'); COMMIT AND CHAIN; "
		. "RAISE NOTICE '%', current_setting('transaction_isolation'); END \$\$"],
	['CALL isolates()', commits => 1],
	["DO 'BEGIN BEGIN PERFORM 1/0; EXCEPTION WHEN OTHERS THEN NULL; END; COMMIT; END'",
	commits => 1],
	["DO 'BEGIN BEGIN COMMIT; PERFORM 1/0; EXCEPTION WHEN OTHERS THEN NULL; END; END'"],
	["DO 'BEGIN NULL; END'"],
	["DO 'BEGIN INSERT INTO written VALUES (70); COMMIT; INSERT INTO written "
	. "VALUES (71); ROLLBACK; "
	. "END'", commits => 1],
	["DO 'BEGIN FOR i IN 1..3 LOOP INSERT INTO written VALUES (71 + i); COMMIT; END LOOP; END'",
	commits => 1],
	["SELECT 1; DO 'BEGIN COMMIT; END'"],
	["DO 'BEGIN COMMIT; PERFORM 1/0; END'", commits => 1],
	['SELECT a FROM written ORDER BY a'],

	# Transactions.
	['BEGIN; INSERT INTO written VALUES (100); COMMIT', commits => 1],
	['BEGIN; INSERT INTO written VALUES (101); ROLLBACK', commits => 1],
	['BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SHOW transaction_isolation; COMMIT',
	commits => 1],
	['BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SHOW transaction_isolation; COMMIT --'
	. ' long' x 1000, commits => 1],
	['START TRANSACTION; SAVEPOINT s; INSERT INTO written VALUES (102); ROLLBACK TO s; '
	. 'INSERT INTO written VALUES (103); RELEASE s; COMMIT',
		commits => 1],
	['BEGIN; INSERT INTO written VALUES (104); COMMIT AND CHAIN; INSERT INTO written '
	. 'VALUES (105); COMMIT', commits => 1],
	['BEGIN; COMMIT AND CHAIN; SELECT 1', differs => 'a transaction is left open',
	sqlstate => '25001',
		response => qr/^ERROR:  the request left a transaction open\n/, commits => 1],
	['INSERT INTO written VALUES (106); COMMIT; INSERT INTO written VALUES (107); SELECT 1/0',
	commits => 1],
	['INSERT INTO written VALUES (108); ROLLBACK; INSERT INTO written VALUES (109)', commits => 1],
	['INSERT INTO written VALUES (110); BEGIN; INSERT INTO written VALUES (111); ROLLBACK',
	commits => 1],
	['INSERT INTO written VALUES (112); SELECT 1/0; INSERT INTO written VALUES (113)'],
	['BEGIN; INSERT INTO written VALUES (114); SELECT 1/0; COMMIT'],
	['BEGIN; INSERT INTO written VALUES (115)', differs => 'psql drops what is left open silently',
	sqlstate => '25001',
		response => qr/^ERROR:  the request left a transaction open\n/],
	['BEGIN', differs => 'psql drops what is left open silently', sqlstate => '25001',
		response => "ERROR:  the request left a transaction open\nDETAIL:  It was rolled "
		. "back.\nHINT:  Add COMMIT or ROLLBACK."],
	['BEGIN; BEGIN; COMMIT', commits => 1],
	['COMMIT', commits => 1],
	['ROLLBACK', commits => 1],
	['COMMIT; COMMIT', commits => 1],
	['SAVEPOINT s'],
	['SELECT 1; SAVEPOINT s'],
	['ROLLBACK TO nowhere'],
	['BEGIN; INSERT INTO written VALUES (116); PREPARE TRANSACTION $$two$$', commits => 1],
	['COMMIT PREPARED $$two$$', commits => 1],
	['ROLLBACK PREPARED $$two$$'],
	["BEGIN; INSERT INTO later VALUES (98); COMMIT"],
	['INSERT INTO later VALUES (99)'],
	['INSERT INTO later VALUES (99); DELETE FROM later; SELECT count(*) FROM later'],
	['INSERT INTO later VALUES (99); SET CONSTRAINTS ALL IMMEDIATE; SELECT 1'],
	['SELECT a FROM written WHERE a >= 100 ORDER BY a'],
	["CREATE FUNCTION checks() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN "
	. "RAISE NOTICE 'deferred %', NEW.a;
		IF NEW.a = 12 THEN RAISE 'refused'; END IF; INSERT INTO written "
		. "VALUES (NEW.a + 1000); RETURN NULL; END \$\$;
	  CREATE TABLE checked (a int);
	  CREATE CONSTRAINT TRIGGER checks AFTER INSERT ON checked DEFERRABLE INITIALLY DEFERRED "
	. "FOR EACH ROW EXECUTE FUNCTION checks()"],
	['INSERT INTO checked VALUES (1)'],
	["INSERT INTO checked VALUES (2), (3); DO \$\$ BEGIN RAISE NOTICE 'before'; END \$\$; "
	. "SELECT count(*) FROM written WHERE a > 1000"],
	['INSERT INTO checked VALUES (11), (12), (13)'],
	['INSERT INTO checked VALUES (4); COMMIT; INSERT INTO checked VALUES (12)', commits => 1],
	['BEGIN; INSERT INTO checked VALUES (5); SAVEPOINT s; INSERT INTO checked '
	. 'VALUES (12); ROLLBACK '
	. 'TO s; COMMIT', commits => 1],
	['SELECT a FROM written WHERE a > 1000 ORDER BY a'],
	['DECLARE held CURSOR WITH HOLD FOR SELECT 1/(n - 3) FROM generate_series(1, 5) AS n'],
	[join(' ', map { "SELECT $_;" } 1 .. 1000)],

	# Statements that must be at top level.
	['VACUUM', commits => 1],
	['VACUUM (ANALYZE) made', commits => 1],
	['VACUUM FULL copied', commits => 1],
	['VACUUM missing'],
	['SELECT 1; VACUUM'],
	['BEGIN; VACUUM; COMMIT'],
	["DO 'BEGIN VACUUM; END'"],
	['VACUUM made --' . ' long' x 1000, commits => 1],
	['ANALYZE', commits => 1],
	['ANALYZE made'],
	['ANALYZE made; SELECT 1'],
	['CREATE INDEX CONCURRENTLY concurrent ON made (d)', commits => 1],
	['CREATE INDEX CONCURRENTLY concurrent ON made (d)'],
	['CREATE UNIQUE INDEX CONCURRENTLY unique_d ON made (d)', commits => 1],
	['SELECT 1; CREATE INDEX CONCURRENTLY concurrent2 ON made (d)'],
	['REINDEX INDEX CONCURRENTLY concurrent', commits => 1],
	['REINDEX TABLE CONCURRENTLY made', commits => 1],
	['REINDEX TABLE copied'],
	['REINDEX SCHEMA aside', commits => 1],
	['DROP INDEX CONCURRENTLY concurrent', commits => 1],
	['REFRESH MATERIALIZED VIEW kept'],
	['REFRESH MATERIALIZED VIEW CONCURRENTLY kept'],
	['CLUSTER made USING made_pkey'],
	['CLUSTER', commits => 1],
	['ALTER TABLE measured DETACH PARTITION early CONCURRENTLY', commits => 1],
	['CREATE PUBLICATION published FOR TABLE copied'],
	["CREATE SUBSCRIPTION subscribed CONNECTION 'dbname=nowhere' PUBLICATION published "
	. "WITH (connect = false)"],
	['ALTER SUBSCRIPTION subscribed SET (slot_name = NONE); DROP SUBSCRIPTION subscribed'],
	['DROP PUBLICATION published'],
	["CREATE DATABASE another", commits => 1],
	['CREATE DATABASE another'],
	['SELECT 1; CREATE DATABASE third'],
	['ALTER DATABASE another RENAME TO other'],
	["ALTER DATABASE other SET work_mem = '3MB'"],
	['DROP DATABASE other', commits => 1],
	['DROP DATABASE missing'],
	['DROP DATABASE IF EXISTS missing', commits => 1],
	['CREATE DATABASE another TEMPLATE template0; DROP DATABASE another'],
	["SET allow_in_place_tablespaces = on; CREATE TABLESPACE place LOCATION ''"],
	["ALTER ROLE placer SET allow_in_place_tablespaces = on"],
	["CREATE TABLESPACE place LOCATION ''", role => 'placer', commits => 1],
	["CREATE TABLESPACE place LOCATION 'relative'"],
	['CREATE TABLE placed (a int) TABLESPACE place'],
	['DROP TABLESPACE place'],
	['DROP TABLE placed'],
	['DROP TABLESPACE place', commits => 1],
	["ALTER SYSTEM SET deadlock_timeout = '2s'", commits => 1],
	["SELECT 1; ALTER SYSTEM SET deadlock_timeout = '2s'"],
	["ALTER SYSTEM SET deadlock_timeout = 'late'"],
	["ALTER SYSTEM SET deadlock_timeout = '3s'", role => 'plain'],
	["SELECT setting FROM pg_file_settings WHERE name = 'deadlock_timeout'"],
	['ALTER SYSTEM RESET ALL', commits => 1],
	['SELECT pg_reload_conf()'],
	['CHECKPOINT'],
	["LOAD 'auto_explain'"],
	["LOAD 'missing'"],
	["LOAD 'auto_explain'", role => 'plain'],
	['REASSIGN OWNED BY short TO plain'],
	['DROP OWNED BY short'],
	['DROP ROLE short'],
	['NOTIFY channel'],
	["NOTIFY channel, 'payload'; SELECT 1"],
	["SELECT pg_notify('channel', 'x')"],
	['UNLISTEN *'],
	['LISTEN channel',
	differs => 'the server refuses it in background processes',
	sqlstate => '0A000',
		response => qr/^ERROR:  cannot execute LISTEN within a background process$/],

	# Functions.
	['SELECT pg_sleep(0)'],
	["CREATE FUNCTION nothing() RETURNS void LANGUAGE sql AS ''; SELECT nothing()"],
	["CREATE FUNCTION records() RETURNS SETOF record LANGUAGE sql AS 'SELECT 1, 2'; "
	. "SELECT records()"],
	['SELECT * FROM records() AS t (a int, b int)', header => "a::int4${tab}b::int4"],
	['SELECT * FROM records()'],
	["CREATE FUNCTION tells(OUT a int, OUT b text) LANGUAGE sql AS 'SELECT 1, NULL'; SELECT * "
	. "FROM tells()", header => "a::int4${tab}b::text"],
	['SELECT tells()'],
	["CREATE FUNCTION outer_one(n int) RETURNS int LANGUAGE plpgsql "
	. "AS 'BEGIN RETURN inner_one(n) + 1; END';
	  CREATE FUNCTION inner_one(n int) RETURNS int LANGUAGE plpgsql AS 'DECLARE r int; "
	. "BEGIN r := 1 / n; RETURN r; END'"],
	['SELECT outer_one(1)'],
	['SELECT outer_one(0)'],
	["CREATE FUNCTION in_sql(n int) RETURNS int LANGUAGE sql AS 'SELECT outer_one(n) + 1'"],
	['SELECT in_sql(0)'],

	# Errors, with their positions.
	['SELEC 1'],
	['SELECT 1 FORM t'],
	['SELECT'  . "\n" . '  nothing'],
	["SELECT 1,\n       2,\n       '日本語', größe\n  FROM copied"],
	["SELECT '日本', nothing, 'after'"],
	["SELECT 'ä' || 'ö', größe FROM copied"],
	["SELECT 1;\nSELECT 2;\nSELECT missing;\nSELECT 3"],
	["SELECT 1;\r\nSELECT missing;\r\nSELECT 2"],
	["SELECT 'not closed"],
	['SELECT "not closed'],
	['SELECT $$not closed'],
	['SELECT /* not closed'],
	['SELECT (1'],
	['SELECT 1 2 3'],
	["SELECT E'\\u00zz'"],
	["SELECT E'\\xff'"],
	['SELECT * FROM missing'],
	['SELECT * FROM aside.missing'],
	['SELECT * FROM nowhere.missing'],
	['SELECT missing(1)'],
	["SELECT upper(1, 'x')"],
	['SELECT 1 + $$x$$::date'],
	['SELECT mood FROM copied'],
	['SELECT m.a FROM made'],
	['SELECT nn FROM copied'],
	['SELECT a FROM made, child'],
	['SELECT 1/0'],
	["SELECT 'x'::int"],
	["SELECT 'x'::mood"],
	["SELECT '2024-02-30'::date"],
	['SELECT 2147483647 + 1'],
	['SELECT (-1)::positive'],
	["SELECT '{1,2'::int[]"],
	["SELECT '{\"a\": }'::json"],
	["SELECT convert_from('\\xff', 'UTF8')"],
	["SELECT convert_from('\\xe4', 'LATIN1')"],
	['SELECT chr(0)'],
	["SELECT repeat('x', 2000000000)"],
	['SELECT 1 UNION SELECT $$x$$::date'],
	['SELECT n, count(*) FROM copied'],
	['SELECT (SELECT n FROM generate_series(1, 2) AS n)'],
	['SELECT $1'],
	["SELECT 'x' ~ '('"],
	['\d', differs => 'what psql does by itself is not SQL', sqlstate => '42601',
		response => "ERROR:  syntax error at or near \"\\\"\nLINE 1: \\d\n        ^"],
	# of a long line, psql shows 60 columns
	['SELECT ' . 'column, ' x 20],
	(map { ['SELECT ' . '1, ' x $_ . 'missing' . ', 2' x (30 - $_)] } 0, 5, 10, 14, 15, 16, 20, 25,
	29, 30),
	(map { ["SELECT '" . '日本ä' x $_ . "', missing, '" . '日本ä' x (10 - $_) . "'"] } 0 .. 10),
	["SELECT\t" . "1,\t" x 30 . "missing" . ",\t2" x 30],
	["SELECT 1,\n" . '2, ' x 30 . "\n" . '3, ' x 30 . 'missing' . ', 4' x 30 . "\n, 5"],
	["DO \$\$ BEGIN EXECUTE 'SELECT ' || repeat('1, ', 30) || 'missing' || repeat(', 2', 30); "
	. "END \$\$"],
	['SELECT ' . 'x' x 100],
	["SELECT\t1,\tmissing"],
	["DO \$\$\nBEGIN\n\tPERFORM\t1,\tmissing;\nEND \$\$"],
	["INSERT INTO made (a, b) VALUES (2, 'x')"],
	["INSERT INTO made (a, b) VALUES (1000, 'ROW 1')"],
	['INSERT INTO made (a, c) VALUES (1001, -1)'],
	['INSERT INTO made (a, d) VALUES (1002, NULL)'],
	['INSERT INTO child (a) VALUES (999)'],
	["INSERT INTO ranges VALUES ('[1,5)'), ('[3,8)')"],
	["INSERT INTO measured VALUES ('2024-05-05', 1)"],
	['INSERT INTO made VALUES (1, 2, 3, 4, 5, 6, 7)'],
	["SELECT 'e\xcc\x81e\xcc\x81 \xe2\x80\x8b', missing"],
	["CREATE TABLE strict (v varchar(3), n numeric(3, 2), g int GENERATED ALWAYS AS (1) STORED);
	  ALTER TABLE strict ENABLE ROW LEVEL SECURITY; GRANT ALL ON strict TO plain; "
	. "CREATE VIEW checking AS SELECT v FROM strict WHERE v < 'm' WITH CHECK OPTION"],
	["INSERT INTO strict (v) VALUES ('long')"],
	['INSERT INTO strict (n) VALUES (12.345)'],
	['INSERT INTO strict (g) VALUES (2)'],
	["INSERT INTO checking VALUES ('z')"],
	["INSERT INTO strict (v) VALUES ('x')", role => 'plain'],
	['SELECT * FROM strict', role => 'plain', header => "v::varchar${tab}n::numeric${tab}g::int4"],
	['CREATE TABLE refused (a int)', role => 'plain'],
	['SELECT * FROM child', role => 'plain'],
	['SELECT pg_reload_conf()', role => 'plain'],
	['SELECT pg_cancel_backend(pg_backend_pid())'],
	["SET statement_timeout = '20ms'; SELECT pg_sleep(60)"],
	# the depth of the recursion depends on what was on the stack before
	['SELECT deep(1)', blur => qr/^(?:CONTEXT:  )?(?:SQL|PL).*\n?/m],
	["SELECT repeat('[', 1000000)::json", blur => qr/^CONTEXT:.*/ms],

	# Errors of PL/pgSQL.
	["DO \$\$ BEGIN RAISE 'all of it' USING DETAIL = 'the detail', HINT = 'the hint', ERRCODE = "
		. "'XX123', COLUMN = 'c', CONSTRAINT = 'k',
		DATATYPE = 't', TABLE = 'x', SCHEMA = 's'; END \$\$"],
	["DO \$\$ BEGIN RAISE EXCEPTION E'two\\nlines' USING DETAIL = E'and\\nmore', HINT = ''; "
	. "END \$\$"],
	["DO \$\$ BEGIN RAISE division_by_zero; END \$\$"],
	["DO \$\$ BEGIN RAISE SQLSTATE '22012' USING MESSAGE = 'größer als 日本'; END \$\$"],
	["DO \$\$ BEGIN RAISE; END \$\$"],
	["DO \$\$ BEGIN RAISE EXCEPTION ''; END \$\$"],
	["DO \$\$\nDECLARE\n  n int;\nBEGIN\n  SELECT missing INTO n;\nEND \$\$"],
	["DO \$\$\nBEGIN\n  EXECUTE 'SELECT ''日本'', ' || 'missing';\nEND \$\$"],
	["DO \$\$\nBEGIN\n  EXECUTE E'SELECT 1,\\n  2,\\n missing';\nEND \$\$"],
	["DO \$\$ BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN "
	. "RAISE NOTICE 'caught %', SQLERRM; END \$\$"],
	["DO \$\$ BEGIN PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN PERFORM 'x'::int; END \$\$"],
	["DO \$\$ BEGIN BEGIN PERFORM 1/0; EXCEPTION WHEN OTHERS THEN RAISE "
	. "EXCEPTION 'in the handler of %', SQLSTATE; END;
		EXCEPTION WHEN OTHERS THEN RAISE NOTICE '%', SQLERRM; RAISE; END \$\$"],
	["DO \$\$ DECLARE r record; BEGIN FOR r IN SELECT n FROM generate_series(1, 5) AS n LOOP
		RAISE NOTICE '%', r.n; PERFORM 1/(3 - r.n); END LOOP; END \$\$"],
	["DO \$\$ DECLARE c CURSOR FOR SELECT n FROM generate_series(1, 5) AS n; x int; BEGIN OPEN c;
		LOOP FETCH c INTO x; x := x / (2 - x); END LOOP; END \$\$"],
	["DO \$\$ DECLARE c CURSOR FOR SELECT 1/(3 - n) AS n FROM generate_series(1, 5) AS n; BEGIN "
	. "FOR r IN c LOOP NULL; END LOOP; END \$\$"],
	["DO \$\$ BEGIN FOR i IN 1..10 LOOP BEGIN PERFORM 1/(i - 5); EXCEPTION WHEN division_by_zero "
	. "THEN CONTINUE; END; END LOOP; END \$\$"],
	["DO \$\$ DECLARE n int; BEGIN SELECT 1 INTO STRICT n WHERE false; END \$\$"],
	["DO \$\$ BEGIN ASSERT 1 = 2, 'the outcomes differ'; END \$\$"],
	["DO \$\$ BEGIN SELECT 1; END \$\$"],
	["DO \$\$ BEGIN CREATE TABLE unlasting (a int); RAISE 'no'; END \$\$"],
	["DO \$\$ DECLARE n positive; BEGIN n := -1; END \$\$"],
	["DO 'BEGIN RETRUN; END'"],
	["DO LANGUAGE missing 'x'"],
	['UPDATE made SET a = a + 1'],

	# Notices.
	["DO \$\$ BEGIN RAISE NOTICE 'first'; RAISE WARNING 'second'; RAISE INFO 'third'; "
		. "RAISE LOG 'not seen'; RAISE DEBUG 'not seen';
		RAISE NOTICE 'größer'; RAISE NOTICE E'two\\nlines'; "
		. "RAISE NOTICE '' USING DETAIL = 'the detail', HINT = 'the hint'; END \$\$"],
	["DO \$\$ BEGIN RAISE NOTICE 'before'; RAISE EXCEPTION 'then'; END \$\$"],
	["SET client_min_messages = error; DO \$\$ BEGIN RAISE WARNING 'not seen'; END \$\$"],
	["DO \$\$ BEGIN RAISE NOTICE 'not seen'; RAISE WARNING 'seen'; RAISE INFO 'seen'; END \$\$",
	role => 'reserved'],
	["DO \$\$ BEGIN RAISE LOG 'seen'; RAISE NOTICE 'seen'; RAISE DEBUG 'not seen'; END \$\$",
	role => 'curious'],
	["DROP TABLE IF EXISTS x1, x2; SELECT 1; DROP TABLE IF EXISTS x3; SELECT 1/0"],
	['CREATE TABLE ' . 'long' x 20 . ' (a int)'],
	['DROP TABLE ' . 'long' x 20],
	['UPDATE made SET d = d + 1 WHERE a < 3 RETURNING a, d', header => "a::int4${tab}d::int4",
	tag => 'UPDATE 2'],
	['DROP TABLE child, later CASCADE; DROP EXTENSION hstore'],

	# Empty requests.
	[' '],
	["\n\n"],
	[';'],
	[' ; ; ;; '],
	['-- a comment'],
	['/* a comment /* in a comment */ */'],
	["SELECT 1; -- a comment ; with more\n;; SELECT /* ; */ ';'"],
	["SELECT ';' AS \"a;b\", \$x\$;\$\$;\$x\$", header => "a;b::text${tab}?column?::text"],
	['SELECT 1;;; SELECT 2'],
	["\xef\xbb\xbfSELECT 1"],

	# Rights.
	["SELECT * FROM pg_authid", role => 'plain'],
	["SET ROLE placer", role => 'plain'],
	["SET SESSION AUTHORIZATION placer", role => 'plain'],
	["COPY made TO '/tmp/refused'", role => 'plain'],
	["CREATE DATABASE refused", role => 'plain'],
	["ALTER ROLE plain SUPERUSER", role => 'plain'],
	["ALTER ROLE plain SET work_mem = '5MB'", role => 'plain'],
	["SHOW work_mem", role => 'plain'],
	["VACUUM made", role => 'plain', commits => 1],
	['DROP TABLE written', role => 'plain'],
);

# The initial contents of both servers.
my $setup = q{
	CREATE ROLE plain LOGIN;
	CREATE ROLE placer LOGIN SUPERUSER;
	CREATE ROLE reserved LOGIN;
	ALTER ROLE reserved SET client_min_messages = warning;
	CREATE ROLE curious LOGIN;
	ALTER ROLE curious SET client_min_messages = log;
	ALTER ROLE curious SET log_statement = 'none';
	CREATE FUNCTION deep(n int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN deep(n + 1); END'};

my $conf = "max_prepared_transactions = 2\npg_task.max_executors = 1";
my $by_task = new_node('by_task', conf => $conf);
my $by_psql = new_node('by_psql', conf => $conf);
my $superuser = $by_task->safe_psql('postgres', 'SELECT current_user');
my $major = substr($by_task->safe_psql('postgres', 'SHOW server_version_num'), 0, 2);
@requests = grep { my (undef, %known) = @$_; ($known{from} // 0) <= $major } @requests;
$_->safe_psql('postgres', $setup) for $by_task, $by_psql;

# As many tasks at once as belong to one role: the queue keeps their order.
sub run_as_tasks
{
	my $sql = '';

	for my $n (1 .. @requests)
	{
		my ($request, %known) = @{ $requests[$n - 1] };
		my (undef, %next) = @{ $requests[$n] // [] };

		$sql .= sprintf("INSERT INTO task (id, queue, max, role, request) "
			. "VALUES (%d, 'requests', 1, %s, %s);\n",
			$n, $known{role} ? "'$known{role}'" : 'current_user', PgTask::literal($request));
		next if $n < @requests && ($known{role} // '') eq ($next{role} // '');
		$by_task->safe_psql('postgres', "BEGIN; $sql COMMIT");
		# some at a time: waiting has a timeout
		wait_until($by_task,
			qq{SELECT count(*) <= $_ * 50 FROM task WHERE state IN ('PLAN', 'WORK')})
		  for reverse 0 .. @requests / 50;
		$sql = '';
	}
}

# The outcomes of all tasks.  NULL is an empty string; but sqlstate is 00000, as in psql, if there
# was no error.
sub outcomes_of_tasks
{
	my @columns = qw(state sqlstate response notice error);
	my $hex = join q( || ',' || ),
		map { "encode(convert_to(coalesce($_, ''), 'UTF8'), 'hex')" } @columns;
	my @outcomes;

	for my $line (split /\n/, $by_task->safe_psql('postgres', "SELECT $hex FROM task ORDER BY id"))
	{
		my %outcome;

		@outcome{@columns} = map { pack 'H*', $_ } split /,/, $line, -1;
		$outcome{sqlstate} ||= '00000';
		push @outcomes, \%outcome;
	}
	return @outcomes;
}

# What psql tells of each request, which has a session of its own.  One psql executes them all: to
# start it takes longer than most of them.
sub outcomes_of_psql
{
	my ($out, $err, $mark, @commands) = ('', '', 'end of request');
	my @outcomes;

	for (@requests)
	{
		my ($request, %known) = @$_;

		push @commands, '\set QUIET on', '\connect - ' . ($known{role} // $superuser),
		  '\set QUIET off', '\set LAST_ERROR_SQLSTATE 00000', $request,
		  "\\echo $mark :LAST_ERROR_SQLSTATE", "\\warn $mark";
	}
	IPC::Run::run([ 'psql', '-XAt', '-F', "\t", '-P', 'null=\N', '-v', 'ON_ERROR_STOP=0',
		'-d', $by_psql->connstr('postgres'), map { ('-c', $_) } @commands ],
		'<', \'', '>', \$out, '2>', \$err);
	my @err = split /\n?^$mark\n/m, $err, -1;
	while ($out =~ /\G(.*?)\n?$mark (\w*)\n/sg)
	{
		my %outcome = (response => $1, sqlstate => $2);

		($outcome{notice}, $outcome{error}) =
		  shift(@err) =~ /\A(.*?)(?:(?:\n|\A)((?:ERROR|FATAL):  .*))?\z/s;
		$outcome{state} = defined $outcome{error} ? 'FAIL' : 'DONE';
		$outcome{response} = $outcome{error} if defined $outcome{error};
		push @outcomes, \%outcome;
	}
	return @outcomes;
}

# What the task must return, if psql returned that.
sub expect
{
	my ($outcome, %known) = @_;

	if ($known{differs})
	{
		$outcome->{sqlstate} = $known{sqlstate} // '00000';
		$outcome->{state} = $known{sqlstate} ? 'FAIL' : 'DONE';
		$outcome->{response} = $known{response};
		$outcome->{notice} = $known{notice} if defined $known{notice};
	}
	elsif ($known{untold})
	{
		$outcome->{sqlstate} = $known{untold};
	}
	elsif ($known{tag})
	{
		$outcome->{response} =~ s/(\A|\n)\Q$known{tag}\E\z// or fail("psql gave no $known{tag}");
	}
	$outcome->{notice} .= ($outcome->{notice} eq '' ? '' : "\n")
	  . 'INFO:  the request has committed by itself: it is run at least once, not exactly once'
	if $known{commits};
}

# Removes the header lines from a response.
sub without_headers
{
	my ($response, @headers) = @_;
	my $start = 0;

	for my $header (@headers)
	{
		my $at = index("\n$response\n", "\n$header\n", $start);

		return "no line $header in $response" if $at < 0;
		substr($response, $at, length($header) + 1) = '';
		$start = $at;
	}
	return $response =~ s/\n\z//r;
}

sub compare
{
	my ($n, $task, $psql, $request, %known) = @_;
	my %got = %$task;
	my %expected = %$psql;
	my $name = length($request) > 100 ? substr($request, 0, 100) . '...' : $request;
	my @differences;

	expect(\%expected, %known);
	$got{response} = without_headers($got{response},
		ref $known{header} ? @{ $known{header} } : $known{header}) if $known{header};
	for my $part (qw(state sqlstate response notice))
	{
		my ($is, $should) = map { $_->{$part} } \%got, \%expected;

		if (defined $known{blur})
		{
			s/$known{blur}//g for $is, $should;
		}
		next if ref $should ? $is =~ $should : $is eq $should;
		push @differences, "$part is\n$is\nand not\n$should";
	}
	push @differences, "the response does not begin with the error: $got{error}"
	  if $got{state} eq 'FAIL' && $got{response} !~ /\A(?:ERROR|FATAL):  \Q$got{error}\E/;
	ok(!@differences, "$n. " . $name =~ s/\s+/ /gr)
		or diag(join "\n", map { substr $_, 0, 2000 } @differences);
}

# All contents of a server, except for the tasks.
sub contents
{
	my ($node) = @_;
	my $contents = '';

	for my $command ([ 'pg_dumpall', '--globals-only' ],
		[ 'pg_dump', '--inserts', '-T', 'task', 'postgres' ])
	{
		my ($out, $err) = ('', '');

		IPC::Run::run([ @$command, '-h', $node->host, '-p', $node->port ], '<', \'', '>', \$out,
			'2>', \$err)
		  or die "$command->[0]: $err";
		$contents .= $out;
	}
	return $contents =~ s/^\\(?:un)?restrict .*//mgr;
}

run_as_tasks();
my @by_task = outcomes_of_tasks();
my @by_psql = outcomes_of_psql();
is(scalar @by_task, scalar @requests, 'each request has been run');
is(scalar @by_psql, scalar @requests, 'each by psql, too');
compare($_, $by_task[$_ - 1], $by_psql[$_ - 1], @{ $requests[$_ - 1] }) for 1 .. @requests;
is(contents($by_task), contents($by_psql), 'the servers have the same contents');

done_testing();
