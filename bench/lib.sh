# shellcheck shell=bash
# What the parts of the benchmark share: questions to the server, waiting without much work, rounds
# of tasks and of hand-written loops.

note() { printf '%s\n' "$*" >&2; }
sql() { psql -XAtq -v ON_ERROR_STOP=1 -c "$1"; }
table() { psql -Xq -v ON_ERROR_STOP=1 -P footer=off -c "$1"; }
title() { printf '\n== %s\n\n' "$1"; }

die() {
    note "bench: $*"
    {
        sql "SELECT queue, state, count(*), min(id), max(id), min(dt), max(attempt) FROM task
            GROUP BY 1, 2 ORDER BY 1, 2"
        sql "SELECT pid, backend_type, state, wait_event_type, wait_event, left(query, 60)
            FROM pg_stat_activity"
        tail -n 20 "$BENCH_LOG"
    } >&2 || true
    exit 1
}

# record NAME VALUE UNIT [LEAST [MOST]]; empty: nothing is asked
record() {
    sql "INSERT INTO bench.result (name, value, unit, least, most)
         VALUES ('$1', $2, '$3', nullif('${4:-}', '')::float8, nullif('${5:-}', '')::float8)"
}
recorded() { sql "SELECT value FROM bench.result WHERE name = '$1' ORDER BY seq DESC LIMIT 1"; }

# judge WHAT VALUE UNIT COMPARED OF LEAST [MOST [RATIO]]: a row of the last table. LEAST and MOST
# are asked of RATIO, which is VALUE / COMPARED if it is not given, or of VALUE if there is nothing
# to compare it with.
judge() {
    local quote="'"
    sql "INSERT INTO bench.target (part, what, value, unit, compared, of, least, most, ratio)
         VALUES ('$part', '${1//$quote/$quote$quote}', $2, '$3', nullif('$4', '')::float8,
                 nullif('$5', ''), nullif('$6', '')::float8, nullif('${7:-}', '')::float8,
                 coalesce(nullif('${8:-}', '')::float8, $2 / nullif('$4', '')::float8))"
}

# The median of what has been recorded under a name.
median() {
    sql "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY value) FROM bench.result
         WHERE name = '$1'"
}

# The median of the ratios of rounds that have recorded something under each of two names: while the
# machine becomes slower, the medians of both may be those of other rounds.
median_ratio() {
    local numbered='SELECT value, row_number() OVER (ORDER BY seq) AS round FROM bench.result'
    sql "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a.value / b.value)
         FROM ($numbered WHERE name = '$1') AS a JOIN ($numbered WHERE name = '$2') AS b
             USING (round)"
}

# The median rate of each contestant of a part, as PART.CONTESTANT.
record_rates() {
    sql "INSERT INTO bench.result (name, value, unit)
         SELECT '$1.' || contestant, percentile_cont(0.5)
             WITHIN GROUP (ORDER BY rate), 'tasks/s'
         FROM bench.sample WHERE commits = '$1' GROUP BY contestant ORDER BY 1"
}

restart() {
    hang_up
    "$BENCH_RESTART" "$@"
    wait_for "SELECT count(*) > 0 FROM pg_stat_activity
              WHERE backend_type = 'pg_task scheduler' AND wait_event_type = 'Extension'"
}

# One connection that asks again and again is cheaper than many.
psql_pid=
hang_up() {
    [ -n "$psql_pid" ] || return 0
    echo '\q' >&"$to_psql"
    wait "$psql_pid" 2>/dev/null || true
    exec {to_psql}>&- {from_psql}<&-
    psql_pid=
}
wait_for() {
    local deadline=$((SECONDS + 120)) answer=
    if [ -z "$psql_pid" ]; then
        coproc psql -XAtq 2>&1
        psql_pid=$!
        exec {to_psql}>&"${COPROC[1]}" {from_psql}<&"${COPROC[0]}"
        echo 'SET enable_seqscan = off; SET jit = off;' >&"$to_psql"
    fi
    while echo "${1//$'\n'/ };" >&"$to_psql"; IFS= read -r answer <&"$from_psql"; do
        case $answer in
            t) return ;;
            f) [ $SECONDS -lt $deadline ] || break ;;
            *) break ;;
        esac
        sleep 0.1
    done
    die "waited in vain for: $1 ($answer)"
}

# Until no task of a queue waits or runs. The first half is one step in the index of waiting rows,
# from its far end, for as long as there is one: little work, and not where the others are at work.
wait_drained() {
    wait_for "SELECT NOT coalesce((SELECT true FROM task
                                   WHERE state = 'PLAN' AND waits IS NULL
                                       AND queue COLLATE \"C\" = '$1'
                                   ORDER BY queue COLLATE \"C\" DESC,
                                            (CASE WHEN hold IS NULL
                                                  THEN coalesce(max, 2147483647) ELSE 0 END) DESC,
                                            priority DESC, role DESC, role_id DESC,
                                            dt DESC, id DESC
                                   LIMIT 1),
                                  EXISTS (SELECT FROM task WHERE state = 'WORK' AND queue = '$1'))"
}

# An empty table, and executors that are there and have run this before, as many as are asked for.
warm_up() {
    sql 'TRUNCATE task'
    sql "INSERT INTO task (queue, request)
         SELECT 'warm', 'SELECT pg_sleep(0.02)' FROM generate_series(1, 10 * $1)"
    wait_for "SELECT count(*) >= $1 FROM pg_stat_activity WHERE backend_type = 'pg_task executor'"
    wait_drained warm
    run_tasks default 2000
    sql 'CHECKPOINT'
}

# Inserts no-op tasks in one transaction and waits for them. Their rows tell `rate`, tasks per
# second from the first start to the last stop, and `wall`, seconds from the commit to the last
# stop.
run_tasks() {
    local mark loose last
    mark=$(sql 'SELECT coalesce(max(id), 0) FROM task')
    IFS='|' read -r loose last < <(psql -XAtq -v ON_ERROR_STOP=1 \
        -c "INSERT INTO task (queue, request) SELECT '$1', 'SELECT 1' FROM generate_series(1, $2)" \
        -c 'SELECT clock_timestamp(), lastval()')
    # First look at the last one: where the entries of dead rows stay in the indexes, to see that no
    # row waits is much work, and fills the cache.
    wait_for "SELECT state NOT IN ('PLAN', 'WORK') FROM task WHERE id = $last"
    wait_drained "$1"
    IFS='|' read -r done_tasks rate wall < <(sql "
        SELECT count(*) FILTER (WHERE state = 'DONE' AND attempt = 1 AND response = '1'),
               count(*) / extract(epoch FROM max(stop) - min(start)),
               extract(epoch FROM max(stop) - '$loose')
        FROM task WHERE queue = '$1' AND id > $mark")
    [ "$done_tasks" = "$2" ] || die "$done_tasks of $2 tasks were done"
}

# The same, from an empty table, with executors that are there: pg_task|pg_task_batch N TASKS.
run_pg_task() {
    [ "$1" = pg_task ] || set_batch 64
    warm_up "$2"
    run_tasks default "$3"
    [ "$1" = pg_task ] || set_batch 1
}

# Nothing is known of a table so new as bench.loop, and the planner would rather sort it for each
# claim than read the index that is in the right order.
loop_options='-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off'
loop_options+=' -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off'

# The same, by N backends in a hand-written loop: CONTESTANT COMMITS N [TASKS].
run_loop() {
    local contestant=$1 commits=$2 n=$3 tasks=${4:-$tasks} options=$loop_options target=loop
    [ "$commits" = durable ] || options+=' -c synchronous_commit=off'
    [ "$contestant" != plain ] || target=plain
    sql "TRUNCATE bench.span, bench.$target RESTART IDENTITY"
    sql 'CHECKPOINT'
    if [ $target = plain ]; then
        sql "INSERT INTO bench.plain SELECT i, 'PLAN', 'SELECT 1'
            FROM generate_series(1, $tasks) AS i"
    else
        sql "INSERT INTO bench.loop (request) SELECT 'SELECT 1' FROM generate_series(1, $tasks)"
    fi
    echo "CALL bench.$contestant(:client_id, $n, $tasks)" >"$BENCH_DIR/loop.sql"
    loop_wal=$(lsn_now)
    PGOPTIONS=$options pgbench -n -c "$n" -t 1 -f "$BENCH_DIR/loop.sql" \
        >"$BENCH_DIR/loop.log" 2>&1 ||
        { cat "$BENCH_DIR/loop.log" >&2; die "the loop $contestant failed"; }
    loop_wal=$(wal_since "$loop_wal")
    IFS='|' read -r done_tasks rate wall < <(sql "
        SELECT (SELECT count(*) FROM bench.$target WHERE state = 'DONE' AND response = '1'),
               $tasks / s.wall, s.wall
        FROM (SELECT extract(epoch FROM max(ended) - min(began)) AS wall FROM bench.span) AS s")
    [ "$done_tasks" = "$tasks" ] || die "$done_tasks of $tasks tasks were done by $contestant"
}

lsn_now() { sql 'SELECT pg_current_wal_insert_lsn()'; }
wal_since() { sql "SELECT pg_current_wal_insert_lsn() - '$1'::pg_lsn"; }

set_batch() {
    sql "ALTER SYSTEM SET pg_task.batch = $1"
    sql 'SELECT pg_reload_conf()' >/dev/null
}

set_commits() {
    local value=database
    [ "$1" = durable ] || value=off
    sql "ALTER SYSTEM SET pg_task.synchronous_commit = '$value'"
    sql 'SELECT pg_reload_conf()' >/dev/null
    wait_for "SELECT current_setting('pg_task.synchronous_commit') = '$value'"
}

# A snapshot that keeps all rows from being removed.
hold_snapshot() {
    exec {hold}> >(exec psql -Xq >/dev/null)
    holder=$!
    echo "SET application_name = 'bench snapshot'; BEGIN ISOLATION LEVEL REPEATABLE READ;
          SELECT count(*) FROM task;" >&"$hold"
    wait_for "SELECT count(*) > 0 FROM pg_stat_activity
              WHERE application_name = 'bench snapshot' AND state = 'idle in transaction'"
}

release_snapshot() {
    exec {hold}>&-
    wait "$holder" || true
}

# Nanoseconds on a processor.
cpu() {
    local ticks
    if [ -r "/proc/$1/schedstat" ]; then
        cut -d' ' -f1 "/proc/$1/schedstat"
    else
        ticks=$(awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat")
        echo $((ticks * 1000000000 / $(getconf CLK_TCK)))
    fi
}
pid_of() { sql "SELECT pid FROM pg_stat_activity WHERE backend_type = '$1' ORDER BY pid LIMIT 1"; }
# kB of memory that no other process has, without pages of shared memory that only this one has
# seen.
private() {
    awk '/^[0-9a-f]+-/ { shared = $2 ~ /s$/ } /^Private_/ && !shared { sum += $2 }
        END { print sum }' "/proc/$1/smaps"
}

show_results() {
    table "SELECT substr(name, length('$1.') + 1) AS what, round(value::numeric, 2) AS value, unit,
                  coalesce('at least ' || least, 'at most ' || most) AS target
           FROM bench.result WHERE name LIKE '$1.%' ORDER BY seq"
}

check_log() {
    ! grep -E ' (ERROR|WARNING|FATAL|PANIC): ' "$BENCH_LOG" | grep -v "$expected_in_log" |
        sed -n 1,20p | grep . >&2 || die "the server's log has errors"
}
expected_in_log='terminating autovacuum process due to administrator command\|'\
'terminating background worker "pg_\(task\|cron\) .* due to administrator command\|'\
'canceling autovacuum task\|canceling statement due to lock timeout\|'\
'canceling statement due to user request\|relation "graphile_worker.migrations" does not exist'
