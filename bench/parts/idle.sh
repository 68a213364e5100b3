# shellcheck shell=bash
# idle: WAL, transactions and processor time of a server with nothing to do, with one database and
# with 100.

# What is asked for here is asked in another database, so as not to be counted, and in one session:
# the processor time of one that ends would be taken for that of a process of pg_task that has gone.
elsewhere_begin() {
    coproc psql -XAtq -d template1
    elsewhere_pid=$!
    exec {to_elsewhere}>&"${COPROC[1]}" {from_elsewhere}<&"${COPROC[0]}"
}
elsewhere() {
    local answer
    echo "${1//$'\n'/ };" >&"$to_elsewhere"
    IFS= read -r answer <&"$from_elsewhere"
    echo "$answer"
}
elsewhere_end() {
    echo '\q' >&"$to_elsewhere"
    wait "$elsewhere_pid" 2>/dev/null || true
    exec {to_elsewhere}>&- {from_elsewhere}<&-
}

# Nanoseconds that pg_task's processes have had: those that are there, and those that have come and
# gone. Of the latter only the postmaster knows, with others that it has started; there are none
# while autovacuum is off.
idle_cpu() {
    local sum=0 pid ticks pids
    pids=$(elsewhere "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity
        WHERE backend_type LIKE 'pg\_task %'")
    for pid in $pids; do
        sum=$((sum + $(cpu "$pid" 2>/dev/null || echo 0)))
    done
    ticks=$(awk '{ sub(/.*\) /, ""); print $14 + $15 }' \
        "/proc/$(head -n 1 "$PGDATA/postmaster.pid")/stat")
    echo $((sum + ticks * 1000000000 / $(getconf CLK_TCK)))
}

# idle_round NAME DATABASES: some seconds in which nothing happens.
idle_round() {
    local name=$1 databases=$2 lsn bytes xacts spent
    local xacts_sql="SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database
        WHERE datname <> 'template1'"
    sql 'CHECKPOINT'
    hang_up
    elsewhere_begin
    # whoever reads dead rows of the catalogs would prune them later
    idle_cpu >/dev/null
    elsewhere "$xacts_sql" >/dev/null
    elsewhere "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn" >/dev/null
    sleep 20    # the server itself writes WAL up to 15 s after others have
    lsn=$(elsewhere 'SELECT pg_current_wal_insert_lsn()')
    xacts=$(elsewhere "$xacts_sql")
    spent=$(idle_cpu)
    sleep "$seconds"
    spent=$(($(idle_cpu) - spent))
    xacts=$(($(elsewhere "$xacts_sql") - xacts))
    bytes=$(elsewhere "SELECT pg_current_wal_insert_lsn() - '$lsn'::pg_lsn")
    elsewhere_end
    [ "$bytes" = 0 ] || pg_waldump -p "$PGDATA/pg_wal" -s "$lsn" 2>/dev/null | head -n 20 || true
    record "idle.$name.wal" "$bytes" bytes
    record "idle.$name.transactions" "$xacts / $seconds.0" 1/s
    record "idle.$name.cpu" "$spent / 1e7 / $seconds / $databases" '% of a core per database'
}

# Each has a task that has run, and one for tomorrow.
idle_databases() {
    local i
    for ((i = 2; i <= $1; i++)); do
        printf 'CREATE DATABASE idle_%s STRATEGY file_copy;\n' $i
    done | psql -Xq -v ON_ERROR_STOP=1
    for ((i = 2; i <= $1; i++)); do
        idle_until $i "to_regclass('task') IS NOT NULL"
        psql -XAtq -v ON_ERROR_STOP=1 -d idle_$i -c "INSERT INTO task (request, dt)
            VALUES ('SELECT 1', now()), ('SELECT 1', now() + '1 d')"
    done
    for ((i = 2; i <= $1; i++)); do
        idle_until $i "EXISTS (SELECT FROM task WHERE state = 'DONE')"
    done
}

idle_until() {
    until [ "$(psql -XAtq -d "idle_$1" -c "SELECT $2")" = t ]; do sleep 0.1; done
}

idle() {
    local seconds=15 many=100 name i
    [ "$tasks" -ge 20000 ] || many=5
    title "idle: $seconds seconds with nothing to do but a task for tomorrow, 1 and $many databases"
    # so many databases are made sooner without fsync, and what is measured does not write
    restart 'pg_task.max_executors = 4' 'autovacuum = off' 'pg_task.idle_timeout = 1s' 'fsync = off'
    sql 'TRUNCATE task'
    sql "INSERT INTO task (dt, request) VALUES (now() + '1 d', 'SELECT 1')"
    sql 'VACUUM ANALYZE'
    sql 'VACUUM'    # the catalogs have dead rows now, which whoever reads them would prune
    idle_round 1 1
    idle_databases $many
    idle_round $many $many
    for ((i = 2; i <= many; i++)); do printf 'DROP DATABASE idle_%s;\n' $i; done | psql -Xq
    restart 'autovacuum = on' 'pg_task.idle_timeout = 60s' 'fsync = on'
    sql 'TRUNCATE task'
    for name in 1 $many; do
        judge "idle, databases: $name: WAL" "$(recorded idle."$name".wal)" bytes '' '' '' 0
        judge "idle, databases: $name: processor" "$(recorded idle."$name".cpu)" '% per database' \
            '' '' '' 0.05
    done
    show_results idle
}
