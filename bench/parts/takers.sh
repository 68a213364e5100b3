# shellcheck shell=bash
# takers: programs that take tasks, ten at a time, beside a hand-written loop of two statements on a
# copy of the task table, and pgmq; from a commit to a row in the client's hands; from the SIGKILL of
# a client that holds a task to that task in the hands of another, beside an advisory lock. The
# argument pgmq=FILE names the file pgmq-extension/sql/pgmq.sql of its sources.

takers_pgbench() {
    pgbench -n -M prepared -c 8 -j 2 -t "$(($2 / 80))" -f "$BENCH_DIR/taker.sql" \
        >"$BENCH_DIR/taker.log" 2>&1 || { cat "$BENCH_DIR/taker.log" >&2; die "$1 failed"; }
    record "takers.$1" "$(awk '/^tps/ { print $3 * 10 }' "$BENCH_DIR/taker.log")" tasks/s
}

# takers_round CONTESTANT TASKS: eight clients take ten tasks and finish them, again and again.
takers_round() {
    case $1 in
    pg_task)
        sql "TRUNCATE task; INSERT INTO task (queue, request)
             SELECT 'taken', 'work' FROM generate_series(1, $2)"
        cat >"$BENCH_DIR/taker.sql" <<'SQL'
SELECT array_agg(handle) AS handles FROM pg_task_take('{taken}', 10, 10000) \gset
SELECT pg_task_finish_all(:handles);
SQL
        ;;
    by_hand)
        sql "TRUNCATE bench.loop; INSERT INTO bench.loop (queue, request)
             SELECT 'taken', 'work' FROM generate_series(1, $2)"
        cat >"$BENCH_DIR/taker.sql" <<'SQL'
WITH c AS (UPDATE bench.loop SET state = 'WORK', attempt = attempt + 1, start = clock_timestamp(),
                  pid = pg_backend_pid()
            WHERE id = ANY (ARRAY(SELECT id FROM bench.loop
                                   WHERE state = 'PLAN' AND waits IS NULL
                                     AND queue COLLATE "C" = 'taken'
                                   ORDER BY (CASE WHEN hold IS NULL
                                                  THEN coalesce(max, 2147483647) ELSE 0 END),
                                            priority, role, role_id, dt, id
                                   LIMIT 10 FOR UPDATE SKIP LOCKED))
           RETURNING id, queue, request, input, dt)
SELECT array_agg(id) AS handles FROM c \gset
UPDATE bench.loop SET state = 'DONE', stop = clock_timestamp() WHERE id = ANY (:handles);
SQL
        ;;
    pgmq)
        sql "SELECT pgmq.purge_queue('taken');
             SELECT count(*) FROM pgmq.send_batch('taken', ARRAY(
                 SELECT '{}'::jsonb FROM generate_series(1, $2)))" >/dev/null
        cat >"$BENCH_DIR/taker.sql" <<'SQL'
SELECT array_agg(msg_id) AS handles FROM pgmq.read('taken', 30, 10) \gset
SELECT count(*) FROM pgmq.archive('taken', :handles);
SQL
        ;;
    esac
    sed -i 's/:handles/:handles::text[]/' "$BENCH_DIR/taker.sql"
    [ "$1" = pg_task ] || sed -i 's/::text\[\]/::bigint[]/' "$BENCH_DIR/taker.sql"
    sql 'VACUUM ANALYZE'
    sql CHECKPOINT
    PGOPTIONS=$loop_options takers_pgbench "$1" "$2"
}

# takers_delay INSERTS: single inserts, and one session that takes each.
takers_delay() {
    sql 'TRUNCATE task, bench.baton'
    psql -Xq -v ON_ERROR_STOP=1 -c "CALL bench.take_singly($1)" &
    wait_for 'SELECT count(*) = 1 FROM pg_task_takers()'
    sql "CALL bench.insert_taken($1, 0.02)"
    wait $! || die 'the session that takes failed'
}

# takers_client IN OUT: a psql that reads one of the descriptors and writes the other. The shell is
# not to tell of its end.
takers_client() {
    rm -f "$BENCH_DIR"/client.{in,out}
    mkfifo "$BENCH_DIR"/client.{in,out}
    psql -XAtq <"$BENCH_DIR/client.in" >"$BENCH_DIR/client.out" &
    disown
    eval "exec $1>'$BENCH_DIR/client.in' $2<'$BENCH_DIR/client.out'"
}

# takers_kill KIND TIMES: a client holds a task, or a lock, and another one waits for it, which has
# had one before. So long after the SIGKILL of the first one the second one has it.
takers_kill() {
    local i line victim other begun ended
    local get="SELECT id FROM pg_task_take('{taken}', 1, 10000, 0);"
    local end="SELECT count(pg_task_finish(handle)) FROM pg_task_take('{taken}', 1, 10000, 0);"
    local waits='SELECT count(*) = 1 FROM pg_task_takers() WHERE id IS NULL'
    if [ "$1" = lock ]; then
        get='SELECT 1 FROM pg_advisory_lock(1);'
        end='SELECT 1 FROM pg_advisory_lock(2);'
        waits="SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    fi
    sql 'TRUNCATE task'
    for ((i = 0; i < $2; i++)); do
        sql "INSERT INTO task (queue, request) SELECT 'taken', 'work' FROM generate_series(1, 2)"
        takers_client 6 7
        victim=$!
        takers_client 8 9
        other=$!
        echo "$end" >&8
        read -r line <&9
        echo "$get" >&6
        read -r line <&7
        echo "$get" >&8
        wait_for "$waits"
        begun=$EPOCHREALTIME
        kill -KILL "$victim"
        read -r line <&9
        ended=$EPOCHREALTIME
        record "takers.killed.$1" "$((10#${ended/./} - 10#${begun/./}))e-3" ms
        kill -KILL "$other"
        exec 6>&- 7<&- 8>&- 9<&-
        sql 'DELETE FROM task'
    done
}

takers() {
    local round name size=$((tasks / 5)) contestants=(pg_task by_hand)
    title "takers: $size tasks, 8 clients take and finish 10 at a time, durable"
    restart 'pg_task.max_executors = 4' 'pg_task.max_taken = 2000'
    sql "INSERT INTO task_queue (queue, taker) VALUES ('taken', current_user)"
    if [ -n "$pgmq" ]; then
        sql 'CREATE SCHEMA pgmq'
        psql -Xq -f "$pgmq" >/dev/null 2>&1
        sql "SELECT pgmq.create('taken')"
        contestants+=(pgmq)
    else
        echo 'without pgmq: pgmq=FILE is not given'
    fi
    for ((round = 0; round < rounds; round++)); do
        for name in "${contestants[@]}"; do takers_round "$name" "$size"; done
        takers_delay 300
        by_hand 300
        takers_kill task 20
        takers_kill lock 20
    done
    table "SELECT name, round(percentile_cont(0.5) WITHIN GROUP (ORDER BY value)::numeric) AS
               \"tasks/s\" FROM bench.result WHERE name LIKE 'takers.%' AND unit = 'tasks/s'
           GROUP BY 1 ORDER BY 1"
    judge 'takers, 10 at a time' "$(median takers.pg_task)" tasks/s "$(median takers.by_hand)" \
        'by hand' 1 '' "$(median_ratio takers.pg_task takers.by_hand)"
    if [ -n "$pgmq" ]; then
        judge 'takers, 10 at a time' "$(median takers.pg_task)" tasks/s "$(median takers.pgmq)" \
            pgmq 3 '' "$(median_ratio takers.pg_task takers.pgmq)"
    fi
    sql "INSERT INTO bench.result (name, value, unit)
         SELECT 'takers.' || kind || '.p50', p / 1000, 'ms'
         FROM (SELECT kind, percentile_cont(0.5) WITHIN GROUP (ORDER BY microseconds) AS p
               FROM bench.latency WHERE kind IN ('taken.commit_to_hand', 'hand.commit_to_claimed')
               GROUP BY kind) AS l"
    judge 'commit to the row in the hands of a client, p50' \
        "$(recorded takers.taken.commit_to_hand.p50)" ms \
        "$(recorded takers.hand.commit_to_claimed.p50)" 'one switch by hand' '' 1.5
    printf 'from the commit to the hands of a client, p50: %.3f ms, by hand %.3f ms\n' \
        "$(recorded takers.taken.commit_to_hand.p50)" \
        "$(recorded takers.hand.commit_to_claimed.p50)"
    judge 'SIGKILL of a client to its task in the hands of another, p50' \
        "$(median takers.killed.task)" ms '' '' '' 10
    judge 'the same, beside an advisory lock' \
        "$(median takers.killed.task)" ms "$(median takers.killed.lock)" 'the lock' '' 2
    sql 'TRUNCATE task, task_queue'
}
