-- The role as which an exporter connects. It sees the figures of all databases, which pg_task keeps
-- in shared memory, the numbers of pg_task_queues and pg_task_status, and names and times of the
-- tasks that repeat. It may read no table. In pg_stat_activity and pg_task_activity() it sees what runs,
-- and in pg_stat_task_scheduler() errors, which may quote rows.
-- Give it a password, or let pg_hba.conf identify it.
-- An exporter may take a connection or two per database.
CREATE ROLE task_monitor LOGIN CONNECTION LIMIT 20;
GRANT pg_read_all_stats TO task_monitor;
ALTER ROLE task_monitor SET default_transaction_read_only = on;
ALTER ROLE task_monitor SET statement_timeout = '10s';
