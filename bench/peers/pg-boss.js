// pg-boss.js JOBS WORKERS: does as many no-op jobs with pg-boss, and prints the seconds from the
// moment at which the first are taken to that at which the last is recorded as done; with no
// jobs, makes its tables. Each worker
// takes jobs 500 at a time and records them as done together, by the functions that are there for a
// loop of one's own: work() sleeps half a second at least between two times. The server is that of
// the environment.
'use strict';

const PgBoss = require('pg-boss');

const [jobs, workers] = process.argv.slice(2).map(Number);

async function main() {
  const boss = new PgBoss({
    connectionString: `postgres:///postgres?host=${process.env.PGHOST}`,
    max: workers,
    supervise: false,
    schedule: false,
  });
  boss.on('error', fail);
  await boss.start();
  await boss.createQueue('noop');

  if (jobs === 0) return boss.stop({ graceful: false });    // only what has to be there first

  let done = 0;
  const worker = async () => {
    for (;;) {
      const taken = await boss.fetch('noop', { batchSize: 500 });
      if (!taken.length) return;
      await boss.complete('noop', taken.map((job) => job.id));
      done += taken.length;
    }
  };

  const begun = process.hrtime.bigint();
  await Promise.all(Array.from({ length: workers }, worker));
  const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
  if (done !== jobs) throw new Error(`${done} of ${jobs} jobs were done`);
  await boss.stop({ graceful: false });
  console.log(seconds);
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

main().catch(fail);
