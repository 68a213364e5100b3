# shellcheck shell=bash
# snapshot: 1,000,000 tasks under an old snapshot, beside tasks without one; pgbench beside that
# snapshot, with and without those tasks, and with their rows but without pg_task.

# snapshot_batches CONTESTANT BATCHES
snapshot_batches() {
    local batch
    for ((batch = 0; batch < $2; batch++)); do
        run_tasks default "$size"
        sql "INSERT INTO bench.sample VALUES ('$1', 'snapshot', 4, $batch, $rate, $wall)"
        record "snapshot.$1" "$rate" tasks/s
    done
}

# Another program beside the snapshot: transactions per second of pgbench on new tables.
# Asynchronous, as the tasks are: to wait for the disk would hide what costs time.
bystander() {
    local round rate
    for ((round = 0; round < rounds; round++)); do
        pgbench -i -I dtgp -s 5 -q >/dev/null 2>&1
        sql 'CHECKPOINT'
        rate=$(PGOPTIONS='-c synchronous_commit=off' \
            pgbench -n -N -M prepared -c 4 -j 2 -T "$seconds" 2>/dev/null |
            sed -n 's/^tps = \([0-9.]*\).*without.*/\1/p')
        record "snapshot.pgbench_$1" "$rate" tps
    done
}

# Starts or stops the scheduler: set_schedulers '*'|none.
set_schedulers() {
    sql "ALTER SYSTEM SET pg_task.database = '$1'"
    sql 'SELECT pg_reload_conf()' >/dev/null
    wait_for "SELECT (count(*) > 0) = ('$1' <> 'none') FROM pg_stat_activity
              WHERE backend_type = 'pg_task scheduler'"
}

# The last batches under the snapshot count: as many rows as there are to be are dead by then.
snapshot() {
    local size=$((tasks / 2)) seconds=$((tasks / 50000)) batch
    [ $seconds -ge 1 ] || seconds=1
    title "snapshot: $((10 * size)) no-op tasks under an old snapshot, asynchronous commits"
    restart 'pg_task.max_executors = 4'
    set_commits asynchronous
    warm_up 4
    snapshot_batches alone "$rounds"
    warm_up 4
    hold_snapshot
    bystander without
    snapshot_batches under 10
    bystander beside
    set_schedulers none
    bystander rows
    set_schedulers '*'
    release_snapshot
    warm_up 4
    snapshot_batches alone "$rounds"
    hold_snapshot
    bystander without
    release_snapshot
    set_commits durable
    record snapshot.last "(SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY rate)
        FROM bench.sample WHERE commits = 'snapshot' AND contestant = 'under' AND round >= 7)" \
        tasks/s
    judge "the last of $((10 * size)) tasks under an old snapshot" "$(recorded snapshot.last)" \
        tasks/s "$(median snapshot.alone)" 'without one' 0.9
    judge "pgbench beside a snapshot and $((10 * size)) tasks" "$(median snapshot.pgbench_beside)" \
        tps "$(median snapshot.pgbench_without)" 'without the tasks' 0.95
    table "SELECT contestant AS tasks,
               string_agg(round(rate)::text, ' ' ORDER BY round) AS \"tasks/s\"
           FROM bench.sample WHERE commits = 'snapshot' GROUP BY 1 ORDER BY 1"
    table "SELECT name, string_agg(round(value)::text, ' ' ORDER BY seq) AS tps
           FROM bench.result WHERE name LIKE 'snapshot.pgbench%' GROUP BY 1 ORDER BY 1"
}
