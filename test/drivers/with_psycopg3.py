# psycopg 3.  Behind a pooler prepared statements are off.
import os, psycopg
from psycopg.types.json import Jsonb

conn = psycopg.connect(autocommit=True, prepare_threshold=None if os.environ.get("POOLED") else 1)
try:
    with conn.transaction():
        conn.execute("INSERT INTO task (request) VALUES ('SELECT ''lost''')")
        raise KeyError
except KeyError:
    pass
print("rolled back", *conn.execute("SELECT count(*) FROM task WHERE request ~ 'lost'").fetchone())

task, = conn.execute("INSERT INTO task (request, input) VALUES (%s, %s) RETURNING id",
                     ["SELECT (pg_task_input() ->> 'a')::int * 7", Jsonb({"a": 6})]).fetchone()
state = "PLAN"
while state in ("PLAN", "WORK"):
    state, = conn.execute("SELECT state FROM pg_task_wait(ARRAY[%s::bigint])", [task]).fetchone()
print("done", *conn.execute("SELECT response FROM task WHERE id = %s", [task]).fetchone())

rows = conn.execute("SELECT * FROM task").fetchall()
print("columns", len(rows[0]))

debounce = """INSERT INTO task (key, request, dt) VALUES (%s, 'SELECT 1', now() + interval '1 hour')
    ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
    DO UPDATE SET dt = excluded.dt RETURNING id"""
first, second = (conn.execute(debounce, ["psycopg3"]).fetchone() for _ in range(2))
print("debounced", first == second)

try:
    conn.execute("UPDATE task SET state = 'PLAN', attempt = 0 WHERE id = %s", [task])
except psycopg.Error as error:
    print("stale", error.sqlstate)

conn.execute("INSERT INTO task (queue, request) SELECT 'bulk', unnest(%s::text[])",
             [["SELECT %d" % n for n in range(100)]])
print("bulk", *conn.execute("SELECT count(*) FROM task WHERE queue = 'bulk'").fetchone())

conn.execute("INSERT INTO task (queue, request, input) VALUES ('mail', 'send', %s)",
             [Jsonb({"to": "me"})])
with conn.transaction():
    handle, task, request, to = conn.execute(
        "SELECT handle, id, request, input ->> 'to' FROM pg_task_take(ARRAY['mail'], wait => 10000)"
    ).fetchone()
    conn.execute("SELECT pg_task_finish(%s, %s)", [handle, Jsonb({"sent": True})])
print("taken", request, to)
print("finished", *conn.execute("SELECT state FROM task WHERE id = %s", [task]).fetchone())
