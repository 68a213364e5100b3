# shellcheck shell=bash
# fair: how long 1,000 customers wait beside one with very many tasks, in turns; rates reached.

# fair_round CONTESTANT ROUND: ten tasks of each of 1,000 customers; how long they wait on average.
fair_round() {
    sql "INSERT INTO task (queue, request) SELECT 'customer.' || n % 1000, 'SELECT 1'
         FROM generate_series(1, 10000) AS n"
    sql CHECKPOINT
    sql "UPDATE task_queue SET paused = false; UPDATE bench.fair SET at = clock_timestamp()"
    wait_for "SELECT count(*) = 10000 FROM task WHERE queue <> 'customer.big' AND state = 'DONE'"
    sql "INSERT INTO bench.sample
         SELECT '$1', 'fair', 4, $2, 1, avg(extract(epoch FROM start - at)) FROM task, bench.fair
         WHERE queue <> 'customer.big'; UPDATE task_queue SET paused = true"
    wait_for "SELECT count(*) = 0 FROM task WHERE state = 'WORK'"
    sql 'TRUNCATE task'
}

# rate_reached RATE: the starts per second of a queue with this rate, relative to it.
rate_reached() {
    sql "INSERT INTO task_queue (queue, rate, per) VALUES ('rate.$1', $1, '1 s');
         INSERT INTO task (queue, request)
         SELECT 'rate.$1', 'SELECT 1' FROM generate_series(0, 5 * $1)"
    wait_for "SELECT count(*) > 5 * $1 FROM task WHERE queue = 'rate.$1' AND state = 'DONE'"
    record "rate.$1" "(SELECT 5.0 / extract(epoch FROM max(start) - min(start)) FROM task
        WHERE queue = 'rate.$1')" 'of the rate' 0.99 1
    printf 'rate %5d per second: %.4f of it reached\n' "$1" "$(recorded "rate.$1")"
}

fair() {
    local round many=$((5 * tasks))
    title "fair: 1,000 customers with ten tasks each, beside one with $many; rates"
    restart 'pg_task.max_executors = 4'
    set_commits asynchronous
    sql "INSERT INTO task_queue (queue, fair, paused) VALUES ('customer.%', true, true);
         CREATE TABLE bench.fair AS SELECT now() AS at"
    for round in 1 2; do
        fair_round alone "$round"
        sql "INSERT INTO task (queue, request) SELECT 'customer.big', 'SELECT 1'
             FROM generate_series(1, $many)"
        fair_round beside "$round"
    done
    record fair.ratio "(SELECT avg(wall) FILTER (WHERE contestant = 'beside')
        / avg(wall) FILTER (WHERE contestant = 'alone') FROM bench.sample WHERE commits = 'fair')" \
        'of alone' 0 2
    table "SELECT contestant, string_agg(round(wall::numeric, 2)::text, ' ' ORDER BY round)
               AS \"average wait (s)\"
           FROM bench.sample WHERE commits = 'fair' GROUP BY 1 ORDER BY 1"
    printf 'ratio %.2f\n\n' "$(recorded fair.ratio)"
    for round in 10 100 1000; do rate_reached "$round"; done
    set_commits durable
    sql 'TRUNCATE task, task_queue'
}
