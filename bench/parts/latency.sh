# shellcheck shell=bash
# latency: from the commit of an insert to the start of its task, on an idle server; the same by
# hand.

# by_hand INSERTS: three sessions, each of which waits for the one before; see bench.baton_insert.
by_hand() {
    local pids=()
    sql 'TRUNCATE bench.loop, bench.baton'
    baton "insert($1, 0.02)"
    wait_for "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory'"
    baton "claim($1)"
    wait_for "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    baton "start($1)"
    wait "${pids[@]}" || die 'the sessions by hand failed'
}
baton() {
    PGOPTIONS=$loop_options psql -Xq -v ON_ERROR_STOP=1 -c "CALL bench.baton_$1" &
    pids+=($!)
}

latency() {
    local round name hand=latency.hand.commit_to_start
    title "latency: $rounds times 300 single inserts into an idle server, milliseconds"
    restart 'pg_task.max_executors = 4'
    warm_up 4
    sleep 1
    for ((round = 0; round < rounds; round++)); do
        sql "CALL bench.insert_singly(300, 0.02, 'quiet')"
        sql "CALL bench.insert_singly(300, 0, 'watched')"
        by_hand 300
    done
    table "SELECT what,
                  round(p[1]::numeric / 1000, 3) AS p50, round(p[2]::numeric / 1000, 3) AS p95,
                  round(p[3]::numeric / 1000, 3) AS p99, round(p[4]::numeric / 1000, 3) AS max
           FROM (SELECT kind, percentile_cont(ARRAY[0.5, 0.95, 0.99, 1])
               WITHIN GROUP (ORDER BY microseconds) AS p
                 FROM bench.latency GROUP BY kind) AS l
                JOIN (VALUES ('quiet.commit_to_start', 'the commit has returned, to start'),
                             ('quiet.commit_begun_to_start', 'before the commit, to start'),
                             ('watched.commit_to_seen', 'the commit has returned, to DONE seen'),
                             ('hand.commit_to_start', 'by hand: the commit has returned, to start'),
                             ('hand.commit_begun_to_start', 'by hand: before the commit, to start'))
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
                        'watched.commit_to_seen', 'hand.commit_to_start',
                        'hand.commit_begun_to_start')
         ORDER BY kind, p"
    name=latency.quiet.commit_to_start
    judge 'commit to start, idle, p50' "$(recorded $name.p50)" ms '' '' '' 0.25
    judge 'commit to start, idle, p99' "$(recorded $name.p99)" ms '' '' '' 1
    judge 'commit to start, idle, p50, beside two switches by hand' "$(recorded $name.p50)" ms \
        "$(recorded $hand.p50)" 'by hand' '' 1
    cat <<'END'
By hand: three sessions wait for each other's commits, by advisory locks. One inserts, one claims
with FOR UPDATE SKIP LOCKED, durably, and one begins.
To learn when a task is seen DONE, its row is read without a pause, which keeps one processor busy;
in the other lines the server is left alone, and read every 20 ms.
END
}
