# shellcheck shell=bash
# memory: private memory of the scheduler and of an executor, while a million tasks are run.

# memory_judge PROCESS: the largest, and what has come since the second reading, for each million of
# tasks.
memory_judge() {
    judge "private memory of the $1" "$(sql "
        SELECT max(value) FROM bench.result WHERE name LIKE 'memory.$1.%'")" kB '' '' '' 12288
    judge "growth of the $1 for a million tasks" "$(sql "
        SELECT regr_slope(value, split_part(name, '.', 3)::float8) * 1e6 FROM bench.result
        WHERE name LIKE 'memory.$1.%' AND split_part(name, '.', 3)::int >= $lifetime / 5")" kB \
        '' '' '' 100
}

memory() {
    local so_far=0 step process
    : "${lifetime:=$((5 * tasks))}"
    step=$((lifetime / 10))
    title "memory: private kB of the scheduler and of one executor, $lifetime tasks, batches of 64"
    restart 'pg_task.max_executors = 1'
    set_commits asynchronous
    set_batch 64
    sql 'TRUNCATE task'
    while [ $so_far -lt "$lifetime" ]; do
        run_tasks default $step
        so_far=$((so_far + step))
        for process in scheduler executor; do
            record memory.$process.$so_far "$(private "$(pid_of "pg_task $process")")" kB
        done
        [ $((so_far % 1000000)) != 0 ] || sql 'TRUNCATE task'
    done
    set_batch 1
    set_commits durable
    memory_judge scheduler
    memory_judge executor
    table "SELECT split_part(name, '.', 3)::int AS tasks,
               max(value) FILTER (WHERE name LIKE '%.scheduler.%') AS scheduler,
               max(value) FILTER (WHERE name LIKE '%.executor.%') AS executor
           FROM bench.result WHERE name LIKE 'memory.%' GROUP BY 1 ORDER BY 1"
}
