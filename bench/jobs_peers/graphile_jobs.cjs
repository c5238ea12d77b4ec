// graphile-worker with its local queue and batched completion, the fastest that it can do.
const { makeWorkerUtils, run, Logger } = require("graphile-worker");

const CHUNK = 5000;
const now = () => Date.now() / 1000;
// Date.now() has whole milliseconds; performance gives what is between.
const wall = () => (performance.timeOrigin + performance.now()) / 1000;
const sleep = (s) => new Promise((resolve) => setTimeout(resolve, s * 1000));
const silent = new Logger(() => () => {});
const preset = (plan) => ({
  worker: {
    connectionString: plan.database_url,
    concurrentJobs: 24,
    maxPoolSize: 25,
    pollInterval: 2000,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    logger: silent,
  },
});

async function enqueue(plan, what) {
  const utils = await makeWorkerUtils({ connectionString: plan.database_url, logger: silent });
  const started = performance.now();
  if (what === "bulk") {
    for (let start = 0; start < plan.count; start += CHUNK) {
      const n = Math.min(CHUNK, plan.count - start);
      await utils.addJobs(Array.from({ length: n }, () => ({ identifier: "noop", payload: { sent: 0 } })));
    }
  } else if (what === "delay") {
    await utils.addJobs(
      plan.due_s.map((due) => ({ identifier: "noop", payload: { sent: due }, runAt: new Date(due * 1000) })),
    );
  } else {
    for (let n = 0; n < plan.count; n++) {
      await utils.addJob("noop", { sent: wall() });
      if (what === "send") await sleep(plan.gap_s);
    }
  }
  const seconds = (performance.now() - started) / 1000;
  await utils.release();
  return { seconds };
}

async function work(plan, what) {
  const lateMs = [];
  let first = 0;
  let last = 0;
  const runner = await run({
    preset: preset(plan),
    noHandleSignals: true,
    logger: silent,
    taskList: {
      noop: async ({ sent }) => {
        last = wall();
        first = first || last;
        lateMs.push((last - sent) * 1000);
      },
    },
  });
  if (what === "listen") {
    await sleep(1.5);
    console.log("ready");
  }
  while (lateMs.length < plan.count && now() < plan.give_up_s) await sleep(0.05);
  await Promise.race([runner.stop(), sleep(5)]);
  return { seconds: last - first, late_ms: what === "listen" ? lateMs : [] };
}

async function setup(plan) {
  const utils = await makeWorkerUtils({ connectionString: plan.database_url, logger: silent });
  await utils.migrate();
  await utils.release();
  return null;
}

async function main(what, plan) {
  if (what === "setup") return setup(plan);
  return ["drain", "listen"].includes(what) ? work(plan, what) : enqueue(plan, what);
}

main(process.argv[2], JSON.parse(require("fs").readFileSync(0, "utf8"))).then(
  (found) => {
    console.log(JSON.stringify(found));
    process.exit(0);
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
