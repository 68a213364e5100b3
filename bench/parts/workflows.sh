# shellcheck shell=bash
# workflows: tasks that wait for others: chains, many to one, one to many, many that wait beside
# others; plain tasks in turns.

# A task that does not start, and COUNT tasks each of which waits for the one before it.
add_chain() {
    sql "DO \$\$
        DECLARE last bigint;
        BEGIN
            INSERT INTO task (queue, dt, request) VALUES ('$1', 'infinity', 'SELECT 1')
            RETURNING id INTO last;
            FOR i IN 1 .. $2 LOOP
                INSERT INTO task (queue, after, request) VALUES ('$1', ARRAY[last], 'SELECT 1')
                RETURNING id INTO last;
            END LOOP;
        END \$\$"
}

# The first task of a queue starts; until the others have ended, as many as are given. The row that
# was planned last is asked for, which is one step from the end of an index: to count the rows would
# take processors from those that are measured.
release() {
    sql "UPDATE task SET dt = now() WHERE queue = '$1' AND dt = 'infinity'"
    wait_for "SELECT state NOT IN ('PLAN', 'WORK') FROM task ORDER BY id DESC LIMIT 1"
    wait_for "SELECT NOT EXISTS (SELECT FROM task WHERE state = 'PLAN' AND waits IS NOT NULL)"
    wait_drained "$1"
    [ "$(sql "SELECT count(*) FROM task WHERE queue = '$1' AND state = 'DONE'")" = "$2" ] ||
        die "not all tasks of $1 were done"
}

workflows_round() {
    local round=$1 scheduler before
    scheduler=$(pid_of 'pg_task scheduler')
    warm_up 4
    before=$(cpu "$scheduler")
    run_tasks plain $((5 * tasks))
    record "workflows.$round.plain.cpu" "($(cpu "$scheduler") - $before) / 5e3 / $tasks" us
    record "workflows.$round.plain" "$rate" 'tasks/s'
    warm_up 4
    sql "INSERT INTO task (queue, dt, request) VALUES ('wide', 'infinity', 'SELECT 1')"
    sql "INSERT INTO task (queue, after, request)
         SELECT 'wide', ARRAY(SELECT max(id) FROM task), 'SELECT 1'
         FROM generate_series(1, 5 * $tasks)"
    sql 'CHECKPOINT'
    before=$(cpu "$scheduler")
    release wide $((5 * tasks + 1))
    record "workflows.$round.one_to_many.cpu" "($(cpu "$scheduler") - $before) / 5e3 / $tasks" us
    record "workflows.$round.one_to_many" "(SELECT
        count(*) / extract(epoch FROM max(stop) - min(stop))
        FROM task WHERE queue = 'wide')" 'tasks/s'
    warm_up 4
    add_chain chain 1000
    before=$(cpu "$scheduler")
    release chain 1001
    record "workflows.$round.chain.cpu" "($(cpu "$scheduler") - $before) / 1e6" us
    sql "INSERT INTO bench.result (name, value, unit)
         SELECT 'workflows.$round.chain.' || label, p, 'ms'
         FROM (SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY step) AS ps
               FROM (SELECT extract(epoch FROM start - lag(start) OVER (ORDER BY id)) * 1000 AS step
                     FROM task WHERE queue = 'chain') AS s) AS l,
              unnest(ps, ARRAY['p50', 'p99']) AS u (p, label)"
    warm_up 4
    sql "WITH w AS (INSERT INTO task (queue, request)
                    SELECT 'many', 'SELECT 1' FROM generate_series(1, $tasks / 2) RETURNING id)
         SELECT count(*) FROM w;
         INSERT INTO task (queue, after, request)
         SELECT 'one', array_agg(id), 'SELECT 1' FROM task WHERE queue = 'many'" >/dev/null
    release one 1
    record "workflows.$round.many_to_one" "(SELECT extract(epoch FROM
        (SELECT start FROM task WHERE queue = 'one')
        - (SELECT max(stop) FROM task WHERE queue = 'many')) * 1000)" ms
    warm_up 4
    before=$(cpu "$scheduler")
    run_tasks alone "$tasks"
    record "workflows.$round.alone.cpu" "($(cpu "$scheduler") - $before) / 1e3 / $tasks" us
    record "workflows.$round.alone" "$rate" 'tasks/s'
    warm_up 4
    add_chain waits 100000
    sql 'CHECKPOINT'
    sleep 10
    before=$(cpu "$scheduler")
    run_tasks beside "$tasks"
    record "workflows.$round.beside.cpu" "($(cpu "$scheduler") - $before) / 1e3 / $tasks" us
    record "workflows.$round.beside" "$rate" 'tasks/s'
}

# The median of the rounds.
workflows_median() {
    sql "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY value) FROM bench.result
         WHERE name ~ '^workflows[.][0-9]+[.]$1\$'"
}

workflows() {
    local round tasks=$((tasks / 10))
    title "workflows: tasks that wait for others, asynchronous commits, median of $rounds rounds"
    restart 'pg_task.max_executors = 4'
    set_commits asynchronous
    for ((round = 0; round < rounds; round++)); do
        workflows_round "$round"
    done
    set_commits durable
    record workflows.chain.p50 "$(workflows_median chain.p50)" ms '' 1
    record workflows.many_to_one "$(workflows_median many_to_one)" ms '' 50
    record workflows.one_to_many "$(workflows_median one_to_many) / $(workflows_median plain)" \
        'of plain' 0.8
    record workflows.beside "$(workflows_median beside) / $(workflows_median alone)" \
        'of alone' 0.97
    show_results workflows
}
