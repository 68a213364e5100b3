# shellcheck shell=bash
# peers: no-op tasks per second, 8 at once, beside other programs at their best settings: PgQ,
# graphile-worker, pg-boss, pg_cron. What cannot be had is left out.

peers_sql=$here/peers/peers.sql

# A contestant joins in when it has been made ready.
peers_ready() {
    local name
    contestants=(pg_task pg_task_batch)
    for name in pgq graphile_fastest graphile_default pg_boss pg_cron; do
        if "ready_$name" >"$BENCH_DIR/ready.log" 2>&1; then
            contestants+=("$name")
        else
            printf '%s cannot be had here:\n' "$name"
            tail -n 3 "$BENCH_DIR/ready.log"
        fi
    done
}

extension_there() { [ -e "$(pg_config --sharedir)/extension/$1.control" ]; }

ready_pgq() {
    extension_there pgq || { echo 'no extension pgq'; return 1; }
    sql "CREATE EXTENSION pgq;
         SELECT pgq.create_queue('bench'), pgq.register_consumer('bench', 'bench')" >/dev/null
    psql -XAtq -v ON_ERROR_STOP=1 -f "$peers_sql"
}

node_program() { NODE_PATH=$BENCH_MODULES/node_modules node "$here/peers/$1.js" "${@:2}"; }
node_ready() { [ -n "$BENCH_MODULES" ] || { echo 'no node, or no modules'; return 1; }; }
ready_graphile_default() { node_ready && node_program graphile-worker default 0; }
ready_graphile_fastest() { ready_graphile_default; }
ready_pg_boss() { node_ready && node_program pg-boss 0 8; }

ready_pg_cron() {
    extension_there pg_cron || { echo 'no extension pg_cron'; return 1; }
    restart "shared_preload_libraries = 'pg_task,pg_cron'" 'cron.use_background_workers = on' \
        'cron.max_running_jobs = 8' 'max_worker_processes = 32' && sql 'CREATE EXTENSION pg_cron'
}

# Each sets `rate`, and `done_tasks`.
do_pg_task() { run_pg_task pg_task 8 $((tasks / 2)); }
do_pg_task_batch() { run_pg_task pg_task_batch 8 $((tasks / 2)); }

# All events are one batch of one consumer, and one commit: no event has an outcome of its own.
do_pgq() {
    done_tasks=$((tasks / 2))
    sql "SELECT pgq.ticker('bench')" >/dev/null
    sql "SELECT count(pgq.insert_event('bench', 'sql', 'SELECT 1'))
         FROM generate_series(1, $done_tasks)" >/dev/null
    sql "SELECT pgq.force_tick('bench')" >/dev/null
    sql "SELECT pgq.ticker('bench')" >/dev/null
    sql CHECKPOINT
    sql 'TRUNCATE bench.span'
    sql "CALL bench.pgq_consume($done_tasks)"
    rate=$(sql "SELECT $done_tasks / extract(epoch FROM ended - began) FROM bench.span")
}

# MODE JOBS
do_graphile() {
    done_tasks=$2
    sql 'TRUNCATE graphile_worker._private_jobs'
    sql "SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
            SELECT json_populate_record(NULL::graphile_worker.job_spec,
                                        '{\"identifier\": \"noop\"}')
            FROM generate_series(1, $done_tasks)))" >/dev/null
    sql 'VACUUM ANALYZE graphile_worker._private_jobs'
    sql CHECKPOINT
    rate=$(sql "SELECT $done_tasks / $(node_program graphile-worker "$1" "$done_tasks")::float8")
    [ "$(sql 'SELECT count(*) FROM graphile_worker._private_jobs')" = 0 ] ||
        die 'graphile-worker has left jobs'
}
do_graphile_fastest() { do_graphile fastest $((tasks / 2)); }
do_graphile_default() { do_graphile default $((tasks / 40)); }

do_pg_boss() {
    done_tasks=$((tasks / 4))
    sql 'TRUNCATE pgboss.job'
    sql "INSERT INTO pgboss.job (name) SELECT 'noop' FROM generate_series(1, $done_tasks)"
    sql 'VACUUM ANALYZE pgboss.job'
    sql CHECKPOINT
    rate=$(sql "SELECT $done_tasks / $(node_program pg-boss "$done_tasks" 8)::float8")
}

# Jobs for each minute: the next one is waited for, and what it does until the one after.
do_pg_cron() {
    local jobs=$((tasks / 1000)) until=$((SECONDS + 115))
    [ $jobs -ge 20 ] || jobs=20
    sql "TRUNCATE cron.job_run_details;
         SELECT cron.schedule('bench' || n, '* * * * *', 'SELECT 1')
         FROM generate_series(1, $jobs) AS n" \
        >/dev/null
    until [ "$(sql "SELECT count(*) >= $jobs FROM cron.job_run_details
            WHERE end_time IS NOT NULL")" = t ] || [ $SECONDS -ge $until ]; do
        sleep 0.5
    done
    sql "SELECT cron.unschedule(jobname) FROM cron.job" >/dev/null
    IFS='|' read -r done_tasks rate < <(sql "
        SELECT count(*), count(*) / extract(epoch FROM max(end_time) - min(start_time))
        FROM cron.job_run_details WHERE status = 'succeeded'")
}

peers() {
    local round i contestant contestants=()
    title "peers: no-op tasks per second, 8 at once, durable commits, median of $rounds rounds"
    restart 'pg_task.max_executors = 8'
    peers_ready
    for ((round = 0; round < rounds; round++)); do
        for ((i = 0; i < ${#contestants[@]}; i++)); do
            contestant=${contestants[(i + round) % ${#contestants[@]}]}
            "do_$contestant"
            record "peers.$contestant" "${rate:-0}" tasks/s
            record "peers.$contestant.tasks" "$done_tasks" tasks
        done
    done
    peers_leave
    table "SELECT split_part(name, '.', 2) AS program,
               round((percentile_cont(0.5) WITHIN GROUP (ORDER BY value))) AS \"tasks/s\",
               round(min(value)) || ' - ' || round(max(value)) AS \"in rounds\"
           FROM bench.result WHERE name LIKE 'peers.%' AND name NOT LIKE '%.tasks'
           GROUP BY 1 ORDER BY 2 DESC"
    peers_judge
    peers_explain
}

peers_judge() {
    [[ " ${contestants[*]} " == *' graphile_fastest '* ]] || return 0
    judge 'batch of 64, durable commits' "$(median peers.pg_task_batch)" tasks/s \
        "$(median peers.graphile_fastest)" 'graphile-worker, fastest' 1.5
}

peers_leave() {
    [[ " ${contestants[*]} " != *' pg_cron '* ]] ||
        { sql 'DROP EXTENSION pg_cron'; restart "shared_preload_libraries = 'pg_task'"; }
    sql 'SET client_min_messages = warning; DROP EXTENSION IF EXISTS pgq CASCADE;
         DROP SCHEMA IF EXISTS graphile_worker, pgboss CASCADE'
}

peers_explain() {
    cat <<'END'
pgq: one consumer, one batch, one commit for all events, which have no outcome of their own; its
loop executes their text. graphile_fastest: one process, 24 jobs at once, taken 500 at a time, done
together; a crash costs these up to four hours. graphile_default: 10 at once. pg_boss: 8 loops, each
takes 500 and reports them done together. The jobs of both run no SQL. pg_cron: jobs for one minute,
8 at once in background workers. Each does only as many as take some seconds.
END
}
