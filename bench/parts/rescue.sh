# shellcheck shell=bash
# rescue: how soon a task runs again whose executor or server ended; how soon one is cancelled.

rescue() {
    local mode times=$((tasks / 2000)) rows=$((5 * tasks))
    [ $times -ge 10 ] || times=10
    title "rescue: milliseconds, $times times each; a restart with $rows rows in the table"
    restart 'pg_task.max_executors = 4'
    warm_up 4
    sql 'TRUNCATE task'
    sql "CALL bench.end_singly($times)"
    sql "INSERT INTO bench.result (name, value, unit, most)
         SELECT 'rescue.' || kind || '.' || label, p / 1000, 'ms', CASE label WHEN 'p99'
             THEN 100 END
         FROM (SELECT kind, percentile_cont(ARRAY[0.5, 0.99])
             WITHIN GROUP (ORDER BY microseconds) AS ps
               FROM bench.latency WHERE kind LIKE '%\_to\_%' AND kind NOT LIKE '%commit%'
                   GROUP BY kind) AS l,
              unnest(ps, ARRAY['p50', 'p99']) AS u (p, label)
         ORDER BY kind, p"
    sql "INSERT INTO task (state, dt, request)
         SELECT CASE WHEN n % 2 = 0 THEN 'DONE'
             ELSE 'PLAN' END, now() + interval '1 year', 'SELECT 1'
         FROM generate_series(1, $rows) AS n"
    sql 'VACUUM ANALYZE task'
    sql 'CHECKPOINT'
    sql "INSERT INTO task (queue, request) SELECT 'long', 'SELECT pg_sleep(1000)'
        FROM generate_series(1, 4)"
    for mode in fast immediate; do
        wait_for "SELECT count(*) = 4 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        hang_up
        "$BENCH_BINDIR/pg_ctl" -s -D "$PGDATA" -m "$mode" stop
        "$BENCH_RESTART"
        wait_for "SELECT count(*) = 4 FROM task WHERE queue = 'long' AND state = 'WORK'
                  AND start > pg_postmaster_start_time()"
        record "rescue.$mode.start_to_first_task" "(SELECT extract(epoch
            FROM min(start) - pg_postmaster_start_time()) * 1000
            FROM task WHERE queue = 'long')" ms
        record "rescue.$mode.ready_to_first_task" "(SELECT extract(epoch FROM min(start) - '$(
            sed -n 's/^\(.*\) \[[0-9]*\] LOG:  database system is ready to accept .*$/\1/p' \
                "$BENCH_LOG" | tail -n 1
        )'::timestamptz) * 1000 FROM task WHERE queue = 'long')" ms
    done
    sql 'TRUNCATE task'
    show_results rescue
}
