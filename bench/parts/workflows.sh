# shellcheck shell=bash
# workflows: tasks that wait for others: chains, many to one, one to many, inserts with `after`,
# many that wait beside others; each in turns with the same without waiting.

# What is compared finds the same: as many rows, of which none is dead, right after a checkpoint.
settle_table() {
    sql "VACUUM ($1 ANALYZE) task"
    sql 'CHECKPOINT'
}

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

# As many tasks in one INSERT as the drain has: `wide` ones wait for the first of their queue,
# `plain` ones until the queue is not paused any more. Then all of them run.
drain_queue() {
    local queue=$1 count=$((tasks / 2)) after=NULL scheduler before begun
    scheduler=$(pid_of 'pg_task scheduler')
    warm_up 4
    sql "INSERT INTO task_queue (queue, paused) VALUES ('plain', true);
         INSERT INTO task (queue, dt, request) VALUES ('$queue', 'infinity', 'SELECT 1')"
    [ "$queue" = plain ] || after='ARRAY(SELECT max(id) FROM task)'
    begun=$EPOCHREALTIME
    sql "INSERT INTO task (queue, after, request)
         SELECT '$queue', $after, 'SELECT 1' FROM generate_series(1, $count)"
    record "workflows.insert.$queue" "($EPOCHREALTIME - $begun) * 1e6 / $count" us
    settle_table ''
    before=$(cpu "$scheduler")
    sql 'DELETE FROM task_queue'
    release "$queue" $((count + 1))
    record "workflows.drain.$queue.cpu" "($(cpu "$scheduler") - $before) / 1e3 / $count" us
    record "workflows.drain.$queue" "(SELECT count(*) / extract(epoch FROM max(stop) - min(start))
        FROM task WHERE queue = '$queue')" 'tasks/s'
}

# Milliseconds from one start to the next one in a chain of 1,000.
run_chain() {
    local scheduler before
    scheduler=$(pid_of 'pg_task scheduler')
    warm_up 4
    add_chain chain 1000
    before=$(cpu "$scheduler")
    release chain 1001
    record workflows.chain.cpu "($(cpu "$scheduler") - $before) / 1e6" us
    sql "INSERT INTO bench.result (name, value, unit)
         SELECT 'workflows.chain.' || label, p, 'ms'
         FROM (SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY step) AS ps
               FROM (SELECT extract(epoch FROM start - lag(start) OVER (ORDER BY id)) * 1000 AS step
                     FROM task WHERE queue = 'chain') AS s) AS l,
              unnest(ps, ARRAY['p50', 'p99']) AS u (p, label)"
}

run_many_to_one() {
    warm_up 4
    sql "WITH w AS (INSERT INTO task (queue, request)
                    SELECT 'many', 'SELECT 1' FROM generate_series(1, $tasks / 20) RETURNING id)
         SELECT count(*) FROM w;
         INSERT INTO task (queue, after, request)
         SELECT 'one', array_agg(id), 'SELECT 1' FROM task WHERE queue = 'many'" >/dev/null
    release one 1
    record workflows.many_to_one "(SELECT extract(epoch FROM
        (SELECT start FROM task WHERE queue = 'one')
        - (SELECT max(stop) FROM task WHERE queue = 'many')) * 1000)" ms
}

# Tasks beside as many others as the drain has: `waiting` for each other, or `ended`.
run_beside() {
    local count=$((tasks / 2)) scheduler before run
    warm_up 4
    if [ "$1" = waiting ]; then
        add_chain others "$count"
    else
        sql "INSERT INTO task (queue, after, request, state)
             SELECT 'others', ARRAY(SELECT max(id) FROM task), 'SELECT 1', 'DONE'
             FROM generate_series(0, $count)"
    fi
    settle_table FULL,
    run_tasks default 2000
    scheduler=$(pid_of 'pg_task scheduler')
    before=$(cpu "$scheduler")
    for run in 1 2 3 4; do
        run_tasks beside $((tasks / 10))
        record "workflows.beside.$1" "$rate" 'tasks/s'
    done
    record "workflows.beside.$1.cpu" "($(cpu "$scheduler") - $before) / 1e2 / 4 / $tasks" us
}

# Half of the rounds begin with one, half with the other.
workflows_round() {
    if (($1 % 2 == 0)); then
        drain_queue plain
        drain_queue wide
        run_beside ended
        run_beside waiting
    else
        drain_queue wide
        drain_queue plain
        run_beside waiting
        run_beside ended
    fi
    run_chain
    run_many_to_one
}

workflows() {
    local round
    title "workflows: tasks that wait for others, asynchronous commits, median of $rounds rounds"
    restart 'pg_task.max_executors = 4'
    set_commits asynchronous
    sql 'ALTER TABLE task SET (autovacuum_enabled = off)'
    for ((round = 0; round < rounds; round++)); do
        workflows_round "$round"
    done
    sql 'TRUNCATE task; ALTER TABLE task RESET (autovacuum_enabled)'
    set_commits durable
    judge 'a step of a chain of 1,000' "$(median workflows.chain.p50)" ms '' '' '' 1
    judge "from the last of $((tasks / 20)) to the one that waits for all" \
        "$(median workflows.many_to_one)" ms '' '' '' 50
    judge "$((tasks / 2)) that wait for one" "$(median workflows.drain.wide)" tasks/s \
        "$(median workflows.drain.plain)" 'as many that do not' 0.8 '' \
        "$(median_ratio workflows.drain.wide workflows.drain.plain)"
    judge "a row of an INSERT with after, and without" \
        "$(median workflows.insert.wide) - $(median workflows.insert.plain)" 'us more' '' '' '' 20
    judge "tasks beside $((tasks / 2)) that wait" "$(median workflows.beside.waiting)" tasks/s \
        "$(median workflows.beside.ended)" 'beside as many that have ended' 0.97 '' \
        "$(median_ratio workflows.beside.waiting workflows.beside.ended)"
    table "SELECT substr(name, length('workflows.') + 1) AS what, count(*) AS times, unit,
                  round((percentile_cont(0.5) WITHIN GROUP (ORDER BY value))::numeric, 2) AS median,
                  round(min(value)::numeric, 2) AS least, round(max(value)::numeric, 2) AS most
           FROM bench.result WHERE name LIKE 'workflows.%' GROUP BY 1, 3 ORDER BY 1"
}
