# shellcheck shell=bash
# long: how long short tasks wait behind a long one while an executor is free.

# A long task among 1,000 short ones, all inserted at once; of two executors, one is busy with it.
# The other has a task until all are done, unless what waits cannot be had: the longest time between
# the ends of two short tasks, one after the other.
long_round() {
    sql "INSERT INTO task (queue, request)
         SELECT 'mixed', CASE n WHEN 500 THEN 'SELECT pg_sleep(0.5)' ELSE 'SELECT 1' END
         FROM generate_series(1, 1000) AS n"
    wait_drained mixed
    record long.wait "(SELECT max(gap) FROM (
            SELECT extract(epoch FROM stop - lag(stop) OVER (ORDER BY stop)) * 1000 AS gap
            FROM task WHERE queue = 'mixed' AND request = 'SELECT 1') AS g)" ms
    sql "DELETE FROM task WHERE queue = 'mixed'"
}

long() {
    local round
    title 'long: a task of 0.5 s among 1,000 short ones, two executors, asynchronous commits'
    restart 'pg_task.max_executors = 2'
    set_commits asynchronous
    warm_up 2
    for ((round = 0; round < 5 * rounds; round++)); do long_round; done
    set_commits durable
    judge 'a long task among short ones: the longest wait, median' "$(median long.wait)" ms '' '' \
        '' 20
    judge 'a long task among short ones: the longest wait, most' \
        "$(sql "SELECT max(value) FROM bench.result WHERE name = 'long.wait'")" ms '' '' '' 20
    table "SELECT count(*) AS rounds, bench.short(min(value)) AS least,
               bench.short(percentile_cont(0.5) WITHIN GROUP (ORDER BY value)) AS median,
               bench.short(max(value)) AS most
           FROM bench.result WHERE name = 'long.wait'"
    cat <<'END'
ms: the longest time in which one executor had the long task, the other was free, and short ones
waited: between the ends of one short task and the next.
END
}
