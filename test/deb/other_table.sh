# shellcheck shell=bash
# A database has the table of the other project's extension: it is left alone, and converted by the
# file of the package.
# shellcheck source=test/deb/lib.sh
. /packages/lib.sh

check 'a server starts' cluster start
sql "CREATE TYPE state AS ENUM ('PLAN', 'GONE', 'TAKE', 'WORK', 'DONE', 'FAIL', 'STOP');
CREATE TABLE task (id bigserial PRIMARY KEY, parent bigint, plan timestamptz NOT NULL DEFAULT now(),
    start timestamptz, stop timestamptz, live interval NOT NULL DEFAULT '0',
    repeat interval NOT NULL DEFAULT '0', timeout interval NOT NULL DEFAULT '0',
    count int NOT NULL DEFAULT 0, pid int, state state NOT NULL DEFAULT 'PLAN',
    header boolean NOT NULL DEFAULT true, string boolean NOT NULL DEFAULT true,
    delimiter \"char\" NOT NULL DEFAULT E'\t', error text, \"group\" text NOT NULL DEFAULT 'group',
    input text NOT NULL, \"null\" text NOT NULL DEFAULT '\N', output text, remote text,
    active interval NOT NULL DEFAULT '1 hour', max int NOT NULL DEFAULT 0,
    delete boolean NOT NULL DEFAULT true, drift boolean NOT NULL DEFAULT false,
    save boolean NOT NULL DEFAULT false, escape \"char\" NOT NULL DEFAULT '',
    quote \"char\" NOT NULL DEFAULT '', data text);
INSERT INTO task (input) VALUES ('SELECT 42')"
before=$(sql 'SELECT * FROM task')

check 'the package is installed' install "$deb"
preload
check 'the server runs with it' cluster restart
check 'the log names the other one' log_says 'It is a table of the other pg_task (RekGRpth).'
check 'its table is left alone' [ "$before" = "$(sql 'SELECT * FROM task')" ]
check 'nothing makes another one over it' fails_with 'not a task table' sql \
    'CREATE EXTENSION IF NOT EXISTS pg_task; SELECT pg_task_create()'
check 'the file converts it' says 'converted' sql '' \
    -f "/usr/share/postgresql/$major/extension/pg_task_convert_rekgrpth.sql"
check 'its row runs' becomes_true \
    "SELECT state = 'DONE' AND response LIKE '%42%' FROM task WHERE request = 'SELECT 42'"
check 'and so does a new one' task_runs
check 'what it was is still there' [ "$before" = "$(sql 'SELECT * FROM task_rekgrpth')" ]
