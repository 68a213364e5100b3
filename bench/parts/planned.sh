# shellcheck shell=bash
# planned: from the planned time of a task to its start; 10,000 tasks for one moment.

# Executors are there and idle, as in latency. A session that sleeps until the moments in between
# shows how late the machine itself is.
planned() {
    title 'planned: 500 tasks, 20 ms apart, milliseconds from the planned time to the start'
    restart 'pg_task.max_executors = 4'
    warm_up 4
    sleep 1
    sql "INSERT INTO task (queue, request, dt)
         SELECT 'planned', 'SELECT 1', now() + interval '1 s' + i * interval '20 ms'
         FROM generate_series(1, 500) AS i"
    sql "CREATE TABLE bench.slept (late float8);
         DO \$\$
         DECLARE
             target timestamptz := clock_timestamp() + interval '1 s';
         BEGIN
             FOR i IN 1 .. 500 LOOP
                 target := target + interval '20 ms';
                 PERFORM pg_sleep(extract(epoch FROM target - clock_timestamp()));
                 INSERT INTO bench.slept
                     VALUES (extract(epoch FROM clock_timestamp() - target) * 1000);
             END LOOP;
         END \$\$"
    wait_drained planned
    sql "INSERT INTO bench.result (name, value, unit)
         SELECT 'planned.sleep.' || label, p, 'ms'
         FROM (SELECT percentile_cont(ARRAY[0.5, 0.95, 0.99, 1]) WITHIN GROUP (ORDER BY late) AS ps
               FROM bench.slept) AS l,
              unnest(ps, ARRAY['p50', 'p95', 'p99', 'max']) AS u (p, label)"
    sql "INSERT INTO bench.result (name, value, unit, most)
         SELECT 'planned.to_start.' || label, p, 'ms', CASE label WHEN 'p99' THEN 2 END
         FROM (SELECT percentile_cont(ARRAY[0.5, 0.95, 0.99, 1])
               WITHIN GROUP (ORDER BY extract(epoch FROM start - dt) * 1000) AS ps
               FROM task WHERE queue = 'planned') AS l,
              unnest(ps, ARRAY['p50', 'p95', 'p99', 'max']) AS u (p, label)"
    record planned.early "(SELECT count(*) FROM task WHERE queue = 'planned' AND start < dt)" \
        tasks '' 0
    run_tasks now 10000
    record planned.rate_now "$rate" 'tasks/s'
    sql "INSERT INTO task (queue, request, dt)
         SELECT 'moment', 'SELECT 1', date_trunc('second', now()) + interval '3 s'
         FROM generate_series(1, 10000)"
    sleep 10
    wait_drained moment
    sql "INSERT INTO bench.result (name, value, unit)
         SELECT 'planned.rate_moment', 10000 / extract(epoch FROM max(stop) - min(dt)), 'tasks/s'
         FROM task WHERE queue = 'moment' AND state = 'DONE' AND attempt = 1"
    record planned.moment "$(recorded planned.rate_moment) / $(recorded planned.rate_now)" \
        'of tasks for now' 0.9
    sql 'TRUNCATE task'
    show_results planned
}
