# shellcheck shell=bash
# pg_upgradecluster, which dumps a database while its server runs, and restores it into another one:
# what tasks send is sent once, and no task is lost.
# shellcheck source=test/deb/lib.sh
. /packages/lib.sh

sent=/tmp/sent
upgraded() { setpriv --reuid=postgres --regid=postgres --init-groups psql --cluster "$major/two" "$@"; }

# The cluster is older than the package, and no settings of pg_task are in postgresql.conf.
install "$deb" >/dev/null 2>&1
pg_conftool "$major" main set shared_preload_libraries 'pg_stat_statements, pg_task'
cluster start
sql 'CREATE DATABASE shop'
for what in 'CREATE EXTENSION pg_task' 'SELECT pg_task_create()' \
    'ALTER TABLE task ADD planned_by text DEFAULT session_user' \
    'ALTER DATABASE shop SET pg_task.enabled = on' \
    "INSERT INTO task (key, repeat, request) VALUES ('nightly', '1 h', 'SELECT 1')" \
    "INSERT INTO task (dt, request) SELECT now() + n * interval '0.1 s', format(
        'COPY (SELECT %s) TO PROGRAM ''cat >>$sent''', n) FROM generate_series(1, 300) AS n"; do
    sql "$what" shop >/dev/null
done
check 'tasks run' soon test -s $sent

check 'pg_upgradecluster' pg_upgradecluster -v "$major" --rename two "$major" main
before=$(wc -l <$sent)
check 'it had begun to send' [ "$before" -gt 0 ]
check 'and had not ended' [ "$before" -lt 300 ]
check 'the new server has the library again' [ "$(upgraded -XAtqc \
    'SHOW shared_preload_libraries')" = 'pg_stat_statements, pg_task' ]
check 'and the file of conf.d' grep -qx 'pg_task.create_table = off' \
    "/etc/postgresql/$major/two/conf.d/pg_task.conf"
check 'a database that has not asked for a table has none' [ "$(upgraded -XAtqc \
    "SELECT to_regclass('task') IS NULL")" = t ]
check 'all tasks are there' [ "$(upgraded -XAtqc 'SELECT count(*) FROM task' shop)" -ge 301 ]
check 'with the column of their own' upgraded -XAtqc 'SELECT planned_by FROM task' shop
check 'they wait until they are released' \
    soon upgraded -XAtqc "DO 'BEGIN ASSERT EXISTS (SELECT FROM pg_task_health() WHERE hint ~
        ''pg_task_release''); END'" shop
upgraded -XAtqc 'SELECT pg_task_release()' shop >/dev/null
check 'then they run' soon upgraded -XAtqc \
    "DO 'BEGIN ASSERT NOT EXISTS (SELECT FROM task WHERE state IN (''PLAN'', ''WORK'')
        AND repeat IS NULL); END'" shop
check 'each is sent' [ "$(sort -u $sent | wc -l)" = 300 ]
check 'once' [ "$(wc -l <$sent)" = 300 ]
check 'the schedule has run, and waits for its next run' upgraded -XAtqc \
    "DO 'BEGIN ASSERT count(*) = 1 FROM task WHERE key = ''nightly'' AND state = ''PLAN''; END'" shop
pg_dropcluster "$major" main
pg_ctlcluster "$major" two stop
