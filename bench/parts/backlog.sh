# shellcheck shell=bash
# backlog: the rate of tasks at the head of 5,000,000 that wait, beside as many alone; the first
# task after a restart with them.

# in_db DATABASE COMMAND...
in_db() { PGDATABASE=$1 "${@:2}"; }

# A database whose tasks of the queue `default` start when they are told to.
backlog_database() {
    sql "CREATE DATABASE $1"
    until [ "$(in_db "$1" sql "SELECT to_regclass('task_queue') IS NOT NULL")" = t ]; do
        sleep 0.1
    done
    in_db "$1" sql "INSERT INTO task_queue (queue, paused) VALUES ('default', true)"
}

# Two sessions insert the rows, half of them each, with one planned time: they are in order of id.
backlog_fill() {
    local half
    for half in 1 2; do
        in_db bench_many sql "INSERT INTO task (dt, request)
            SELECT '2020-01-01', 'SELECT 1' FROM generate_series(1, $1 / 2)" &
        fillers+=($!)
    done
    wait "${fillers[@]}"
    in_db bench_many sql 'VACUUM ANALYZE task'
    [ "$(in_db bench_many sql 'SELECT count(*) FROM task')" = "$1" ] || die 'rows are missing'
    sql 'CHECKPOINT'
}

# Executors that are connected to this database, as in warm_up.
backlog_warm() {
    in_db "$1" psql -XAtq -v ON_ERROR_STOP=1 <<'SQL'
WITH w AS (INSERT INTO task (queue, request)
           SELECT 'warm', 'SELECT pg_sleep(0.02)' FROM generate_series(1, 80) RETURNING id)
SELECT format('CALL pg_task_wait_for(ARRAY[%s])', string_agg(id::text, ',')) FROM w \gexec
SQL
}

first_waiting() {
    in_db "$1" sql "SELECT min(id) FROM task WHERE queue = 'default' AND state = 'PLAN'"
}
backlog_pause() { in_db "$1" sql "UPDATE task_queue SET paused = $2"; }

# The next tasks of a database, and the queue stops again: the rate of these.
backlog_turn() {
    local database=$1 count=$2 first last
    backlog_warm "$database"
    first=$(first_waiting "$database")
    last=$((first + count - 1))
    in_db "$database" psql -XAtq -v ON_ERROR_STOP=1 -v last="$last" <<'SQL'
UPDATE task_queue SET paused = false;
SELECT format('CALL pg_task_wait_for(ARRAY[%s])', string_agg(n::text, ','))
FROM generate_series(:last - 200, :last) AS n \gexec
UPDATE task_queue SET paused = true;
SQL
    until [ "$(in_db "$database" sql "SELECT NOT EXISTS (SELECT FROM task WHERE state = 'WORK')")" \
        = t ]; do
        sleep 0.1
    done
    record "backlog.$database" "$(in_db "$database" sql "
        SELECT count(*) / extract(epoch FROM max(stop) - min(start)) FROM task
        WHERE id BETWEEN $first AND $last AND state = 'DONE'")" tasks/s
}

# Seconds from the start of the server to the first task, with all these rows waiting.
backlog_restart() {
    local first
    first=$(first_waiting bench_many)
    backlog_pause bench_many false
    restart
    until [ "$(in_db bench_many sql "SELECT EXISTS (SELECT FROM task WHERE id >= $first
            AND start > pg_postmaster_start_time())")" = t ]; do
        sleep 0.1
    done
    backlog_pause bench_many true
    record backlog.restart "$(in_db bench_many sql "
        SELECT extract(epoch FROM min(start) - pg_postmaster_start_time()) FROM task
        WHERE id >= $first AND start > pg_postmaster_start_time()")" s
}

backlog() {
    local round many=$((25 * tasks)) few=$((tasks / 20)) fillers=()
    [ $few -ge 1000 ] || few=1000
    title "backlog: $few tasks, alone and at the head of $many that wait, asynchronous commits"
    restart 'pg_task.max_executors = 8'
    set_commits asynchronous
    backlog_database bench_few
    backlog_database bench_many
    backlog_fill $many
    for ((round = 0; round < 3 * rounds; round++)); do
        in_db bench_few sql "INSERT INTO task (dt, request)
            SELECT '2020-01-01', 'SELECT 1' FROM generate_series(1, $few)"
        backlog_turn bench_few $few
        backlog_turn bench_many $few
    done
    for ((round = 0; round < rounds; round++)); do backlog_restart; done
    set_commits durable
    judge "$few tasks at the head of $many" "$(median backlog.bench_many)" tasks/s \
        "$(median backlog.bench_few)" alone 0.95
    judge "restart to the first task, $many waiting" "$(median backlog.restart)" s '' '' '' 1
    table "SELECT split_part(name, '_', 2) AS waiting, count(*) AS rounds,
               round(percentile_cont(0.5) WITHIN GROUP (ORDER BY value)) AS \"tasks/s\",
               round(min(value)) || ' - ' || round(max(value)) AS \"in rounds\"
           FROM bench.result WHERE name LIKE 'backlog.bench%' GROUP BY 1 ORDER BY 1"
    printf 'restart to the first task: %s s\n' "$(median backlog.restart)"
    sql 'DROP DATABASE bench_few'
    sql 'DROP DATABASE bench_many'
}
