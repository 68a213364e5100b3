# shellcheck shell=bash
# queues: tasks in as many queues, beside planned and full ones; a turn with many more queues.

# Inserts tasks, each in a queue of its own, and waits for them. The last one is at the far end of
# the index, so that waiting is little work.
run_queues() {
    local name=$1 count=$2
    sql "INSERT INTO task (queue, request)
         SELECT '$name.' || lpad(n::text, 7, '0'), 'SELECT 1' FROM generate_series(1, $count) AS n"
    wait_for "SELECT NOT coalesce((SELECT true FROM task
                                   WHERE state = 'PLAN' AND waits IS NULL
                                       AND queue COLLATE \"C\" >= '$name.'
                                       AND queue COLLATE \"C\" < '$name/'
                                   ORDER BY queue COLLATE \"C\" DESC,
                                            (CASE WHEN hold IS NULL
                                                  THEN coalesce(max, 2147483647) ELSE 0 END) DESC,
                                            priority DESC, role DESC, role_id DESC,
                                            dt DESC, id DESC
                                   LIMIT 1),
                                  EXISTS (SELECT FROM task WHERE state = 'WORK'))"
    IFS='|' read -r done_tasks rate < <(sql "
        SELECT count(*) FILTER (WHERE state = 'DONE' AND attempt = 1 AND response = '1'),
               count(*) / extract(epoch FROM max(stop) - min(start))
        FROM task WHERE queue >= '$name.' AND queue < '$name/'")
    [ "$done_tasks" = "$count" ] || die "$done_tasks of $count tasks were done"
    record "queues.$name" "$rate" tasks/s
}

# Tasks that do not start, each in a queue of its own: planned for tomorrow, or behind one that has
# run, in a queue that starts one an hour. What autovacuum would do in the next minutes is done
# here, and after the checkpoint, so that its full-page images do not count either.
add_queues() {
    local name=$1 count=$2 rows
    case $name in
        later) rows="NULL, now() + interval '1 d' FROM generate_series(1, $count) AS n" ;;
        full) rows="-3600000, now() FROM generate_series(1, $count) AS n, generate_series(1, 2)" ;;
    esac
    sql "INSERT INTO task (request, queue, max, dt)
         SELECT 'SELECT 1', '$name.' || lpad(n::text, 7, '0'), $rows"
    [ "$name" = later ] || wait_for "SELECT count(*) = $count FROM task
        WHERE queue >= 'full.' AND queue < 'full/' AND state = 'DONE'"
    sql 'CHECKPOINT'
    sql 'VACUUM (ANALYZE) task'
    sleep 10
}

# Four rounds of no-op tasks in one queue, and the scheduler's processor time for each.
queues_rate() {
    local round scheduler before
    scheduler=$(pid_of 'pg_task scheduler')
    before=$(cpu "$scheduler")
    for ((round = 0; round < 4; round++)); do
        run_tasks default "$tasks"
        sql "INSERT INTO bench.sample VALUES ('$1', 'queues', 4, $round, $rate, $wall)"
    done
    record "queues.$1.cpu" "($(cpu "$scheduler") - $before) / 4000.0 / $tasks" us
}

# The median of all rounds.
queues_median() {
    record "queues.$1" "(SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY rate)
        FROM bench.sample WHERE commits = 'queues' AND contestant = '$1')" tasks/s
}

# A restart beside so many queues: how soon a task starts that is at the end of the scan.
queues_restart() {
    warm_up 4
    add_queues later "$1"
    sql "INSERT INTO task (queue, dt, request)
         VALUES ('zzz', clock_timestamp() + interval '1 s', 'SELECT 1')"
    restart
    wait_drained zzz
    record queues.restart "(SELECT extract(epoch FROM
            start - greatest(dt, pg_postmaster_start_time()))
        FROM task WHERE queue = 'zzz')" s '' 1
}

queues_ratio() {
    record "queues.$1.ratio" "$(recorded "queues.$1") / $(recorded "queues.$2")" "of $2" "$3"
}

# Single inserts beside so many queues that are planned for later: from the commit to the start, and
# the scheduler's processor time for each.
queues_turn() {
    local count=$1 scheduler before
    restart
    warm_up 4
    [ "$count" = 0 ] || add_queues later "$count"
    sql 'VACUUM ANALYZE task'
    sleep $((3 + count / 50000))
    scheduler=$(pid_of 'pg_task scheduler')
    sql "CALL bench.insert_singly(10, 0.02, 'turn')"
    before=$(cpu "$scheduler")
    sql "CALL bench.insert_singly(200, 0.02, 'turn.$count')"
    record "queues.turn.$count.cpu" "($(cpu "$scheduler") - $before) / 200 / 1000.0" us
    record "queues.turn.$count.p50" "(SELECT percentile_cont(0.5) WITHIN GROUP
        (ORDER BY microseconds) FROM bench.latency WHERE kind = 'turn.$count.commit_to_start')" us
    record "queues.turn.$count.memory" "$(private "$scheduler")" kB
}

queues() {
    local count many=$tasks tasks=$((tasks / 10))
    title 'queues: no-op tasks, each in a queue of its own, asynchronous commits'
    restart 'pg_task.max_executors = 4'
    set_commits asynchronous
    warm_up 4
    queues_rate one
    run_queues few $((many / 20))
    run_queues more $((many / 5))
    warm_up 4
    add_queues later $((many * 3 / 4))
    run_queues beside_planned $((many / 4))
    warm_up 4
    queues_rate one
    run_queues many "$many"
    warm_up 4
    queues_rate alone
    add_queues full $((many / 2))
    hold_snapshot
    queues_rate beside_full_snapshot
    release_snapshot
    warm_up 4
    queues_rate alone
    for count in one alone beside_full_snapshot; do
        queues_median $count
    done
    queues_ratio few one 0.7
    queues_ratio more one 0.7
    queues_ratio beside_planned one 0.7
    queues_ratio beside_full_snapshot alone 0.9
    queues_restart "$many"
    for count in 0 $((many / 200)) $((many / 2)) $((5 * many)); do
        queues_turn "$count"
    done
    sql 'TRUNCATE task'
    set_commits durable
    show_results queues
}
