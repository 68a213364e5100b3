# shellcheck shell=bash
# latency: from the commit of an insert to the start of its task, on an idle server.

latency() {
    local round name
    title "latency: $rounds times 300 single inserts into an idle server, milliseconds"
    restart 'pg_task.max_executors = 4'
    warm_up 4
    sleep 1
    for ((round = 0; round < rounds; round++)); do
        sql "CALL bench.insert_singly(300, 0.02, 'quiet')"
        sql "CALL bench.insert_singly(300, 0, 'watched')"
    done
    table "SELECT what,
                  round(p[1]::numeric / 1000, 3) AS p50, round(p[2]::numeric / 1000, 3) AS p95,
                  round(p[3]::numeric / 1000, 3) AS p99, round(p[4]::numeric / 1000, 3) AS max
           FROM (SELECT kind, percentile_cont(ARRAY[0.5, 0.95, 0.99, 1])
               WITHIN GROUP (ORDER BY microseconds) AS p
                 FROM bench.latency GROUP BY kind) AS l
                JOIN (VALUES ('quiet.commit_to_start', 'the commit has returned, to start'),
                             ('quiet.commit_begun_to_start', 'before the commit, to start'),
                             ('watched.commit_to_seen', 'the commit has returned, to DONE seen'))
                           AS v (kind, what)
                USING (kind)
           ORDER BY kind"
    sql "INSERT INTO bench.result (name, value, unit)
         SELECT 'latency.' || kind || '.' || label, p / 1000, 'ms'
         FROM (SELECT kind, percentile_cont(ARRAY[0.5, 0.95, 0.99, 1])
             WITHIN GROUP (ORDER BY microseconds) AS ps
               FROM bench.latency GROUP BY kind) AS l,
              unnest(ps, ARRAY['p50', 'p95', 'p99', 'max']) AS u (p, label)
         WHERE kind IN ('quiet.commit_to_start', 'quiet.commit_begun_to_start',
                        'watched.commit_to_seen')
         ORDER BY kind, p"
    name=latency.quiet.commit_to_start
    judge 'commit to start, idle, p50' "$(recorded $name.p50)" ms '' '' '' 0.25
    judge 'commit to start, idle, p99' "$(recorded $name.p99)" ms '' '' '' 1
    cat <<'END'
To learn when a task is seen DONE, its row is read without a pause, which keeps one processor busy;
in the other lines the server is left alone, and read every 20 ms.
END
}
