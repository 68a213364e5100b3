# shellcheck shell=bash
# inserts: what our triggers add to an INSERT or a COPY: the same table without them, in turns.

# Processor time of the server so far, in ms: its processes that have ended, and the scheduler.
server_cpu() {
    local postmaster
    postmaster=$(head -n 1 "$PGDATA/postmaster.pid")
    awk '{ sub(/.*\) /, ""); sum += FNR == NR ? $14 + $15 : $12 + $13 } END { print sum * 10 }' \
        "/proc/$postmaster/stat" "/proc/$(pid_of 'pg_task scheduler')/stat"
}

# One round: so many clients insert into a table, each in so many transactions. Nothing is due, so
# no task runs meanwhile, and no commit wakes the scheduler: it looks once a second, whichever table
# is written.
insert_rows() {
    local table=$1 shape=$2 clients=$3 transactions=$4 cpu rate
    sql 'TRUNCATE task, bench.loop'
    sql 'CHECKPOINT'
    # the scheduler looks at the table after the TRUNCATE, and not during the round
    sql "INSERT INTO task (queue, request) VALUES ('warm', 'SELECT 1')"
    wait_drained warm
    sed "s/TABLE/$table/" "$BENCH_DIR/$shape.sql" >"$BENCH_DIR/insert.sql"
    cpu=$(server_cpu)
    rate=$(pgbench -n -c "$clients" -j 2 -t "$transactions" -f "$BENCH_DIR/insert.sql" \
        2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*without.*/\1/p')
    wait_for "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'"
    sql "INSERT INTO bench.insert_sample
         VALUES ('$table', '$shape', $clients, 1 / $rate::float8, $(server_cpu) - $cpu)"
}

inserts() {
    local round clients shape transactions table one=$((tasks / 120)) many=$((tasks / 200))
    local rows=$((tasks / 40)) tables=(task bench.loop)
    [ $rows -ge 1000 ] || one=400 many=100 rows=1000
    title 'inserts: into the task table, and into the same table without our triggers, in turns'
    sql "COPY (SELECT 'infinity', 'SELECT 1' FROM generate_series(1, $rows))
         TO '$BENCH_DIR/rows'"
    echo "INSERT INTO TABLE (dt, request) VALUES ('infinity', 'SELECT 1');" \
        >"$BENCH_DIR/single.sql"
    echo "INSERT INTO TABLE (dt, request)" \
        "SELECT 'infinity', 'SELECT 1' FROM generate_series(1, $rows);" >"$BENCH_DIR/select.sql"
    echo "COPY TABLE (dt, request) FROM '$BENCH_DIR/rows';" >"$BENCH_DIR/copy.sql"
    # autovacuum would work on the rows of one round during another
    for table in "${tables[@]}"; do
        sql "ALTER TABLE $table SET (autovacuum_enabled = off)"
    done
    # short rounds, and many: each table is the first one as often as the other
    for ((round = 0; round < 4 * rounds; round++)); do
        for clients in 1 16; do
            for shape in single select copy; do
                transactions=$((clients == 1 ? 10 : 1))
                [ $shape != single ] || transactions=$((clients == 1 ? one : many))
                insert_rows "${tables[round % 2]}" $shape $clients $transactions
                insert_rows "${tables[1 - round % 2]}" $shape $clients $transactions
            done
        done
    done
    for table in "${tables[@]}"; do
        sql "ALTER TABLE $table RESET (autovacuum_enabled)"
    done
    sql "INSERT INTO bench.result (name, value, unit)
         SELECT format('inserts.%s.%s.%s%s', shape, at_once,
                       CASE source WHEN 'task' THEN 'task' ELSE 'bare' END, suffix),
                percentile_cont(0.5) WITHIN GROUP (ORDER BY cost), unit
         FROM bench.insert_sample,
             LATERAL (VALUES ('', 1 / seconds, 'transactions/s'),
                             ('.processor', cpu, 'ms')) AS v (suffix, cost, unit)
         GROUP BY source, shape, at_once, suffix, unit ORDER BY shape, at_once, suffix, source"
    for shape in single select copy; do
        for clients in 1 16; do
            judge "insert ($shape), $clients at once" "$(recorded inserts.$shape.$clients.task)" \
                transactions/s "$(recorded inserts.$shape.$clients.bare)" 'without triggers' 0.97
        done
    done
    sql 'TRUNCATE task'
    show_results inserts
}
