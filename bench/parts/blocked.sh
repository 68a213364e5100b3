# shellcheck shell=bash
# blocked: a queue's rate while 300,000 tasks wait in another, which is full.

# In both cases a long task is running in the full queue, so that as many executors are left.
# Commits are asynchronous, here and under the snapshot: waiting for the disk would hide what costs
# time.
blocked_rounds() {
    local contestant=$1 rounds=$2 round
    for ((round = 0; round < rounds; round++)); do
        run_tasks fast 8000
        sql "INSERT INTO bench.sample VALUES ('$contestant', 'blocked', 4, $round, $rate, $wall)"
    done
}

long_task() {
    warm_up 4
    sql "INSERT INTO task (queue, max, request) VALUES ('slow', 1, 'SELECT pg_sleep(3600)')"
    wait_for "SELECT EXISTS (SELECT FROM task WHERE queue = 'slow' AND state = 'WORK')"
    run_tasks fast 2000
}

end_long_task() {
    sql 'TRUNCATE task'
    sql "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE backend_type = 'pg_task executor' AND query = 'SELECT pg_sleep(3600)'" >/dev/null
}

blocked() {
    title 'blocked: 8,000 no-op tasks, while 300,000 wait in another queue of max 1, '\
'asynchronous commits'
    restart 'pg_task.max_executors = 4'
    set_commits asynchronous
    long_task
    blocked_rounds alone 2
    end_long_task

    long_task
    sql "INSERT INTO task (queue, max, request) SELECT 'slow', 1, 'SELECT pg_sleep(3600)'
         FROM generate_series(1, 300000)"
    sleep 1
    sql CHECKPOINT
    blocked_rounds beside 4
    end_long_task

    long_task
    blocked_rounds alone 2
    end_long_task
    set_commits durable
    record_rates blocked
    record blocked.ratio "$(recorded blocked.beside) / $(recorded blocked.alone)" 'of alone' 0.85
    table "SELECT contestant AS \"fast\", string_agg(round(rate)::text, ' '
        ORDER BY round) AS rounds,
                  round(percentile_cont(0.5) WITHIN GROUP (ORDER BY rate)) AS \"tasks/s\"
           FROM bench.sample WHERE commits = 'blocked' GROUP BY 1 ORDER BY 1"
    printf 'ratio %.2f; in both cases one of four executors has the long task\n' \
        "$(recorded blocked.ratio)"
}
