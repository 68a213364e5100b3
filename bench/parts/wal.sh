# shellcheck shell=bash
# wal: bytes of WAL per task, beside hand-written loops.

# wal_round NAME KEEP: tasks that are inserted and run later, so that each is counted by itself.
wal_round() {
    local name=$1 keep=$2 lsn
    sql 'TRUNCATE task'
    lsn=$(lsn_now)
    sql "INSERT INTO task (dt, request, keep)
        SELECT clock_timestamp() + '3 s', 'SELECT 1', $keep FROM generate_series(1, 10000)"
    record "wal.insert" "$(wal_since "$lsn") / 10000.0" bytes
    lsn=$(lsn_now)
    wait_drained default
    record "wal.$name" "$(wal_since "$lsn") / 10000.0" bytes
}

wal() {
    local lsn contestant round
    title 'wal: bytes per no-op task, asynchronous commits'
    restart 'pg_task.max_executors = 4'
    set_commits asynchronous
    warm_up 4
    for ((round = 0; round < rounds; round++)); do
        wal_round claim_and_finish NULL::interval
        wal_round claim_and_delete "interval '0'"
    done
    lsn=$(lsn_now)
    sql "CALL bench.insert_singly(200, 0.005, 'wal')"
    record wal.all_of_a_single_task "$(wal_since "$lsn") / 200.0" bytes

    for contestant in known_ids claim_one claim_64; do
        run_loop $contestant asynchronous 4 20000
        record wal.loop_$contestant "$loop_wal / 20000.0" bytes
    done
    set_commits durable
    judge 'WAL of a task whose row is kept' "$(median wal.claim_and_finish)" bytes '' '' '' 600
    judge "WAL of a task with \"keep\" of 0" "$(median wal.claim_and_delete)" bytes '' '' '' 400
    show_results wal
}
