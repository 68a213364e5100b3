# shellcheck shell=bash
# full_queues: the rate of one queue beside 100,000 that are full, and without them; the scheduler's
# memory for each.

# full_queues_memory AT_FIRST GROUPS: the memory of the scheduler for each group, without what it
# has at first.
full_queues_memory() {
    record full_queues.bytes_per_group \
        "($(private "$(pid_of 'pg_task scheduler')") - $1) * 1024.0 / $2" bytes
}

full_queues() {
    local count=$((tasks / 2)) at_first contestant batch=$((tasks / 10))
    [ $batch -ge 1000 ] || batch=1000
    title "full_queues: $batch tasks in one queue, beside $count queues that are full, asynchronous"
    restart 'pg_task.max_executors = 4'
    set_commits asynchronous
    warm_up 4
    full_queues_rounds alone "$batch"
    at_first=$(private "$(pid_of 'pg_task scheduler')")
    add_queues full "$count"
    full_queues_rounds beside "$batch"
    full_queues_memory "$at_first" "$count"
    warm_up 4
    full_queues_rounds alone "$batch"
    sql 'TRUNCATE task'
    set_commits durable
    judge "one queue beside $count full ones" "$(median full_queues.beside)" tasks/s \
        "$(median full_queues.alone)" alone 0.95
    judge "the scheduler's memory for each known group" "$(recorded full_queues.bytes_per_group)" \
        bytes '' '' '' 200
    show_results full_queues
}

full_queues_rounds() {
    local round
    for ((round = 0; round < rounds; round++)); do
        run_tasks default "$2"
        record "full_queues.$1" "$rate" tasks/s
    done
}
