-- The role as which an exporter connects. It sees the figures of all databases, which pg_task keeps
-- in shared memory, and may read no table. Give it a password, or let pg_hba.conf identify it.
-- An exporter may take a connection or two per database.
CREATE ROLE task_monitor LOGIN CONNECTION LIMIT 20;
GRANT pg_read_all_stats TO task_monitor;
ALTER ROLE task_monitor SET default_transaction_read_only = on;
ALTER ROLE task_monitor SET statement_timeout = '10s';

-- For figures per queue (pg_task_queue) and of the table (pg_task_table), as the owner of the task
-- table, in each database whose queues are to be shown. It sees no request, no response, no error.
GRANT SELECT (id, queue, state, dt, max, waits, stop) ON task TO task_monitor;
CREATE POLICY task_monitor ON task FOR SELECT TO task_monitor USING (true);
