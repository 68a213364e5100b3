# shellcheck shell=bash
# A package is installed, used, upgraded, removed and purged.
# shellcheck source=test/deb/lib.sh
. /packages/lib.sh

file=$conf_d/pg_task.conf
checksums() { find /etc/postgresql -type f ! -path "$file" -exec md5sum {} + | sort; }

before=$(checksums)
check 'apt installs it' install "$deb"
check 'it adds one file to the cluster' grep -qx 'pg_task.create_table = off' "$file"
check 'and changes no other' [ "$before" = "$(checksums)" ]
check 'dpkg finds all files whole' dpkg --verify "$package"
check 'a server starts, and does not load it' cluster start
check 'nothing of it runs' becomes_true \
    "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'pg_task%'"

preload
check 'a server that preloads it starts' cluster restart
check 'pg_task runs' becomes_true \
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'pg_task supervisor'"
check 'no database has tables that nobody asked for' becomes_true \
    "SELECT to_regclass('task') IS NULL"
check 'CREATE EXTENSION' sql 'CREATE EXTENSION pg_task'
check 'pg_task_create' sql 'SELECT pg_task_create()'
check 'a task runs' task_runs

later=$(sql "INSERT INTO task (dt, request) VALUES ('infinity', 'SELECT 2') RETURNING id")
echo '# mine' >>"$file"
repack "$deb" /tmp/next.deb 's/^Version: .*/&+next1/'
check 'apt upgrades it' install /tmp/next.deb
check 'the new version is there' says '+next1' dpkg-query -W "$package"
check 'it leaves the file as it was edited' grep -qx '# mine' "$file"
check 'a task runs before the server is restarted' task_runs
check 'the server restarts' cluster restart
check 'a task runs after the upgrade' task_runs
sql "UPDATE task SET dt = now() WHERE id = $later"
check 'so does one that was planned before' becomes_true \
    "SELECT state = 'DONE' FROM task WHERE id = $later"

pg_createcluster -d /srv/second "$major" second >/dev/null
check 'a cluster that is made later makes no tables either' [ off = \
    "$(pg_conftool -s "$major" second show pg_task.create_table)" ]
echo "shared_preload_libraries = 'pg_task'" >>/srv/second/postgresql.auto.conf
check 'its removal says which file preloads it' says "${conf_d%/*}/postgresql.conf preloads pg_task" \
    apt-get -qy remove "$package"
check 'also one of ALTER SYSTEM, wherever the data are' \
    grep '^/srv/second/postgresql.auto.conf preloads pg_task' /tmp/said
pg_dropcluster "$major" second
check 'the server goes on until then' sql 'SELECT count(*) FROM task'
cluster stop
check 'it does not start with the line' fails_with 'could not access file "pg_task"' cluster start
pg_conftool "$major" main remove shared_preload_libraries
check 'it starts without the line' cluster start
check 'the tasks can be read' becomes_true "SELECT count(*) >= 4 FROM task"
install "$deb" >/dev/null 2>&1
preload
check 'installed once more, a server starts' cluster restart
check 'a task runs in the same table' task_runs
check 'the tables and the extension can be dropped' sql \
    'DROP TABLE task, task_queue; DROP TABLE IF EXISTS task_rate; DROP EXTENSION pg_task'
pg_conftool "$major" main remove shared_preload_libraries
check 'purge, of the installed package' apt-get -qy purge "$package"
check 'no file of it is left' [ -z "$(find /usr /etc /var/lib/dpkg -name '*pg_task*' -o \
    -name '*pgtask*')" ]
check 'the server restarts' cluster restart

install "$deb" >/dev/null 2>&1
check 'after a purge it is written again' [ -e "$file" ]
rm "$file"
install /tmp/next.deb >/dev/null 2>&1
check 'one that was removed is not' [ ! -e "$file" ]
apt-get -qy purge "$package" >/dev/null 2>&1

# What the user of the server may put there, whom root must not serve.
plant() {
    ln -s "$1" "$2"
    chown -h postgres: "$2"
}
mkdir /etc/planted
plant /etc/planted/by_file "$file"
check 'it is installed where the file is a link' install "$deb"
check 'which nobody follows' [ ! -e /etc/planted/by_file ]
rm "$file"
mkfifo "${conf_d%/*}/pipe"
check 'its removal reads no pipe' timeout 60 apt-get -qy purge "$package"
rm "${conf_d%/*}/pipe"
mv "$conf_d" /tmp/conf.d
plant /etc/planted "$conf_d"
check 'it is installed where the folder is a link' install "$deb"
check 'and writes as the user of the server there' [ ! -e /etc/planted/pg_task.conf ]
apt-get -qy purge "$package" >/dev/null 2>&1
rm "$conf_d"
mv /tmp/conf.d "$conf_d"

install "$deb" >/dev/null 2>&1
check 'the file is the user'\''s as its folder is' [ "$(stat -c %U "$conf_d")" = \
    "$(stat -c %U "$file")" ]
cluster stop
pg_dropcluster "$major" main
check 'purge, after the cluster was dropped' apt-get -qy purge "$package"
check 'nothing of the cluster is left' [ ! -e "${conf_d%/*}" ]
