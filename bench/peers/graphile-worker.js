// graphile-worker.js MODE JOBS: does as many no-op jobs with graphile-worker, and prints the
// seconds from the moment at which it begins to take jobs to that at which the last is recorded as
// done. With no jobs, it makes its tables.
// MODE is `default`, or `fastest`: jobs are taken 500 at a time, and recorded as done together. The
// server is that of the environment.
'use strict';

const { Logger, run, runMigrations } = require('graphile-worker');
const { Pool } = require('pg');

const [mode, jobs] = [process.argv[2], Number(process.argv[3])];
const settings = {
  default: { concurrentJobs: 10, maxPoolSize: 11 },
  fastest: {
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};

async function main() {
  const pgPool = new Pool({ max: settings[mode].maxPoolSize });
  pgPool.on('error', fail);
  pgPool.on('connect', (client) => client.on('error', fail));
  if (jobs === 0) {    // only what has to be there first
    await runMigrations({ pgPool });
    return pgPool.end();
  }

  let done = 0;
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const noop = async () => { if (++done === jobs) finish(); };

  const begun = process.hrtime.bigint();
  const runner = await run({
    pgPool,
    noHandleSignals: true,
    taskList: { noop },
    preset: { worker: settings[mode] },
    logger: new Logger(() => (level, message) => { if (level === 'error') fail(message); }),
  });
  await finished;
  await runner.stop();    // what is not yet recorded is, first
  const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
  await pgPool.end();
  console.log(seconds);
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

main().catch(fail);
