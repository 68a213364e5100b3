# shellcheck shell=bash
# history: a queue's rate while very many expired rows are removed, and how fast they go.

# The rows are there in both cases, and rounds with and without the removal take turns, because the
# machine may have other work. The settings of the rows' role, which runs nothing, say whether they
# are removed: those of the database would replace the executors. In a round without, the walk goes
# on and only reads.
history_rounds() {
    local round deleted
    for ((round = 0; round < 10; round++)); do
        history_round alone $round
        deleted=$(sql "$rows_deleted")
        sql "ALTER ROLE bench_old SET pg_task.keep = '1 d'"
        wait_for "SELECT ($rows_deleted) > $deleted"
        history_round beside $round
        sql 'ALTER ROLE bench_old RESET pg_task.keep'
    done
}

rows_deleted="SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'task'"

history_round() {
    run_tasks fast $((tasks * 3 / 20))
    sql "INSERT INTO bench.sample VALUES ('$1', 'history', 4, $2, $rate, $wall)"
}

old_rows_left() { sql "SELECT count(*) FROM task WHERE queue = 'old' AND id >= $1"; }

history() {
    local first left begun rows=$((5 * tasks))
    [ $rows -ge 50000 ] || rows=50000    # some must be left in each round
    title "history: rounds of $((tasks * 3 / 20)) no-op tasks (asynchronous) while $rows expired rows go"
    restart 'pg_task.max_executors = 4' "pg_task.period = '100 ms'"
    set_commits asynchronous
    warm_up 4
    first=$(sql 'SELECT max(id) + 1 FROM task')
    sql 'CREATE ROLE bench_old'
    sql "INSERT INTO task (queue, role, request, state, dt, stop)
         SELECT 'old', 'bench_old', 'SELECT 1', 'DONE', '2024-01-01', '2024-01-01'
         FROM generate_series(1, $rows)"
    sql 'VACUUM ANALYZE task'
    sql CHECKPOINT
    history_rounds
    left=$(old_rows_left "$first")
    begun=$EPOCHREALTIME
    sql "ALTER ROLE bench_old SET pg_task.keep = '1 d'"
    while [ "$(old_rows_left "$first")" -gt $((rows / 10)) ]; do sleep 5; done
    left=$((left - $(old_rows_left "$first")))
    record history.removed "$left / ($EPOCHREALTIME - $begun)" 'rows/s' 2000
    sql 'DROP ROLE bench_old'
    set_commits durable
    record_rates history
    record history.ratio "$(recorded history.beside) / $(recorded history.alone)" 'of alone' 0.95
    sql 'TRUNCATE task'
    show_results history
}
