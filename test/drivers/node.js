// node-postgres; without names its statements are not kept.
const { Client } = require('pg');

(async () => {
  const client = new Client();
  await client.connect();
  const row = async (sql, ...values) => (await client.query(sql, values)).rows[0];

  await client.query('BEGIN');
  await row("INSERT INTO task (request) VALUES ('SELECT ''lost''')");
  await client.query('ROLLBACK');
  console.log('rolled back', (await row("SELECT count(*) FROM task WHERE request ~ 'lost'")).count);

  const { id } = await row('INSERT INTO task (request, input) VALUES ($1, $2) RETURNING id',
    "SELECT (pg_task_input() ->> 'a')::int * 7", { a: 6 });
  let state = 'PLAN';
  while (state === 'PLAN' || state === 'WORK')
    ({ state } = await row('SELECT state FROM pg_task_wait(ARRAY[$1::bigint])', id));
  console.log('done', (await row('SELECT response FROM task WHERE id = $1', id)).response);

  console.log('columns', Object.keys((await client.query('SELECT * FROM task')).rows[0]).length);

  const debounce = `INSERT INTO task (key, request, dt)
    VALUES ($1, 'SELECT 1', now() + interval '1 hour')
    ON CONFLICT (queue, key) WHERE key IS NOT NULL AND state IN ('PLAN', 'WORK')
    DO UPDATE SET dt = excluded.dt RETURNING id`;
  const first = await row(debounce, 'node');
  console.log('debounced', first.id === (await row(debounce, 'node')).id ? 'True' : 'False');

  await row("UPDATE task SET state = 'PLAN', attempt = 0 WHERE id = $1", id)
    .catch((error) => console.log('stale', error.code));

  await row("INSERT INTO task (queue, request) SELECT 'bulk', unnest($1::text[])",
    Array.from({ length: 100 }, (_, n) => `SELECT ${n}`));
  console.log('bulk', (await row("SELECT count(*) FROM task WHERE queue = 'bulk'")).count);

  await row("INSERT INTO task (queue, request, input) VALUES ('mail', 'send', $1)", { to: 'me' });
  await client.query('BEGIN');
  const taken = await row(
    "SELECT handle, id, request, input FROM pg_task_take(ARRAY['mail'], wait => 10000)");
  await row('SELECT pg_task_finish($1, $2)', taken.handle, { sent: true });
  await client.query('COMMIT');
  console.log('taken', taken.request, taken.input.to);
  console.log('finished', (await row('SELECT state FROM task WHERE id = $1', taken.id)).state);
  await client.end();
})().catch((error) => { console.error(error); process.exit(1); });
