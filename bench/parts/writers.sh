# shellcheck shell=bash
# writers: sessions that insert single tasks while 8 executors run them: at 2,000 and 5,000 per
# second, from the insert to DONE; as fast as they can, what is done meanwhile. The same by hand.

# write NAME WRITERS [OPTION...]: so many sessions insert for some seconds, a task for each commit.
write() {
    local name=$1 writers=$2
    shift 2
    warm_up 8
    pgbench -n -M prepared -c "$writers" -j 2 -T "$seconds" -f "$BENCH_DIR/writer.sql" "$@" \
        >"$BENCH_DIR/writer.log" 2>&1 || { cat "$BENCH_DIR/writer.log" >&2; die 'pgbench failed'; }
    wait_drained written
    sql "CREATE TEMP TABLE w AS
             SELECT extract(epoch FROM stop - dt) * 1000 AS ms, dt, stop FROM task
             WHERE queue = 'written' AND state = 'DONE' AND attempt = 1;
         INSERT INTO bench.result (name, value, unit)
         SELECT 'writers.$name.' || label, v, unit
         FROM (SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY ms) AS p,
                      extract(epoch FROM max(dt) - min(dt)) AS time, count(*) AS inserted,
                      count(*) FILTER (WHERE stop <= (SELECT max(dt) FROM w)) AS done FROM w) AS s,
             LATERAL (VALUES ('p50', p[1], 'ms'), ('p99', p[2], 'ms'),
                             ('inserted', inserted / time, 'inserts/s'),
                             ('done', done / time, 'tasks/s')) AS l (label, v, unit)"
    [ "$(sql "SELECT count(*) FROM task WHERE queue = 'written'
              AND (state <> 'DONE' OR attempt <> 1)")" = 0 ] || die 'not all tasks were done'
}

# write_by_hand RATE: the same on bench.loop, with workers that are woken by NOTIFY. Each claims a
# task, commits that, runs it and commits its outcome; see bench/peers/worker.c.
write_by_hand() {
    local workers work
    sql 'TRUNCATE bench.loop'
    sql 'CHECKPOINT'
    exec {work}> >(PGOPTIONS=$loop_options exec "$BENCH_DIR/worker" 8)
    workers=$!
    wait_for "SELECT count(*) = 8 FROM pg_stat_activity
              WHERE application_name = 'bench worker' AND query LIKE 'UPDATE%' AND state = 'idle'"
    pgbench -n -M prepared -c 8 -j 2 -T "$seconds" -f "$BENCH_DIR/hand_writer.sql" -R "$1" \
        >"$BENCH_DIR/writer.log" 2>&1 || { cat "$BENCH_DIR/writer.log" >&2; die 'pgbench failed'; }
    wait_for "SELECT NOT EXISTS (SELECT FROM bench.loop WHERE state IN ('PLAN', 'WORK'))"
    exec {work}>&-
    wait "$workers" || die 'the workers by hand failed'
    sql "INSERT INTO bench.result (name, value, unit)
         SELECT 'writers.hand_$1.' || label, v, unit
         FROM (SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (
                          ORDER BY extract(epoch FROM stop - dt) * 1000) AS p,
                      count(*) / extract(epoch FROM max(dt) - min(dt)) AS inserted,
                      count(*) / extract(epoch FROM max(stop) - min(dt)) AS done
               FROM bench.loop) AS s,
             LATERAL (VALUES ('p50', p[1], 'ms'), ('p99', p[2], 'ms'),
                             ('inserted', inserted, 'inserts/s'), ('done', done, 'tasks/s'))
                 AS l (label, v, unit)"
}

# The medians of the rounds.
writers_medians() {
    local name label
    for name; do
        for label in p50 p99 inserted "done"; do
            sql "INSERT INTO bench.result (name, value, unit)
                 SELECT 'writers.$name.median.' || '$label', $(median "writers.$name.$label"), unit
                 FROM bench.result WHERE name = 'writers.$name.$label' LIMIT 1"
        done
    done
}

writers_judge() {
    local name label
    name=writers.rate_2000.median
    judge '8 writers, 2,000 inserts/s: insert to DONE, p50' "$(recorded $name.p50)" ms '' '' '' 0.35
    judge '8 writers, 2,000 inserts/s: insert to DONE, p99' "$(recorded $name.p99)" ms '' '' '' 1.5
    name=writers.rate_5000.median
    judge '8 writers, 5,000 inserts/s: insert to DONE, p99' "$(recorded $name.p99)" ms '' '' '' 3
    for label in p50 p99; do
        judge "8 writers, 2,000 inserts/s: $label, beside workers by hand" \
            "$(recorded writers.rate_2000.median.$label)" ms \
            "$(recorded writers.hand_2000.median.$label)" 'by hand' '' 1
    done
    name=writers.full_batch.median
    judge '16 writers at full speed, batch of 64: done' "$(recorded $name.done)" tasks/s \
        "$(recorded $name.inserted)" inserts/s 0.8
}

writers() {
    local round seconds=$((tasks / 25000))
    [ $seconds -ge 2 ] || seconds=2
    title "writers: single inserts while 8 executors run the tasks, durable, $seconds s each"
    restart 'pg_task.max_executors = 8'
    echo "INSERT INTO task (queue, request) VALUES ('written', 'SELECT 1');" \
        >"$BENCH_DIR/writer.sql"
    echo "WITH i AS (INSERT INTO bench.loop (queue, request) VALUES ('written', 'SELECT 1')
          RETURNING id) SELECT pg_notify('bench_worker', '') FROM i;" >"$BENCH_DIR/hand_writer.sql"
    gcc -O2 -I "$("$BENCH_BINDIR/pg_config" --includedir)" -o "$BENCH_DIR/worker" \
        "$here/peers/worker.c" -lpq
    for ((round = 0; round < rounds; round++)); do
        write rate_2000 8 -R 2000
        write_by_hand 2000
        write rate_5000 8 -R 5000
        write full 16
        set_batch 64
        write full_batch 16
        set_batch 1
    done
    writers_medians rate_2000 hand_2000 rate_5000 full full_batch
    writers_judge
    table "SELECT split_part(name, '.', 2) AS writers,
                  round(max(value) FILTER (WHERE name LIKE '%.inserted')) AS \"inserts/s\",
                  round(max(value) FILTER (WHERE name LIKE '%.done')) AS \"done/s meanwhile\",
                  bench.short(max(value) FILTER (WHERE name LIKE '%.p50')) AS \"p50 ms\",
                  bench.short(max(value) FILTER (WHERE name LIKE '%.p99')) AS \"p99 ms\"
           FROM bench.result WHERE name LIKE 'writers.%.median.%' GROUP BY 1 ORDER BY min(seq)"
    cat <<'END'
rate_2000, rate_5000: 8 writers, at that rate together. full: 16 writers, as fast as they can;
full_batch: with pg_task.batch = 64. ms: from now() of the insert to DONE. Medians of the rounds.
hand_2000: inserts with NOTIFY, and 8 workers in C that wait for it.
END
}
