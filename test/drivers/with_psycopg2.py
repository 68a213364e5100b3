# psycopg2: statements in the simple protocol, with the values in the text.
import psycopg2
from psycopg2.extras import Json

conn = psycopg2.connect("")
cursor = conn.cursor()

def row(sql, *values):
    cursor.execute(sql, values)
    return cursor.fetchone() if cursor.description else None

row("INSERT INTO task (request) VALUES ('SELECT ''lost''')")
conn.rollback()
conn.autocommit = True
print("rolled back", *row("SELECT count(*) FROM task WHERE request ~ 'lost'"))

task, = row("INSERT INTO task (request, input) VALUES (%s, %s) RETURNING id",
            "SELECT (pg_task_input() ->> 'a')::int * 7", Json({"a": 6}))
state = "PLAN"
while state in ("PLAN", "WORK"):
    state, = row("SELECT state FROM pg_task_wait(ARRAY[%s::bigint])", task)
print("done", *row("SELECT response FROM task WHERE id = %s", task))

cursor.execute("SELECT * FROM task")
print("columns", len(cursor.fetchall()[0]))

debounce = """INSERT INTO task (key, request, dt) VALUES (%s, 'SELECT 1', now() + interval '1 hour')
    ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
    DO UPDATE SET dt = excluded.dt RETURNING id"""
print("debounced", row(debounce, "psycopg2") == row(debounce, "psycopg2"))

try:
    row("UPDATE task SET state = 'PLAN', attempt = 0 WHERE id = %s", task)
except psycopg2.Error as error:
    print("stale", error.pgcode)

row("INSERT INTO task (queue, request) SELECT 'bulk', unnest(%s::text[])",
    ["SELECT %d" % n for n in range(100)])
print("bulk", *row("SELECT count(*) FROM task WHERE queue = 'bulk'"))

row("INSERT INTO task (queue, request, input) VALUES ('mail', 'send', %s)", Json({"to": "me"}))
conn.autocommit = False
handle, task, request, to = row(
    "SELECT handle, id, request, input ->> 'to' FROM pg_task_take(ARRAY['mail'], wait => 10000)")
row("SELECT pg_task_finish(%s, %s)", handle, Json({"sent": True}))
conn.commit()
print("taken", request, to)
print("finished", *row("SELECT state FROM task WHERE id = %s", task))
