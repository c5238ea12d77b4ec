// pg-boss with LISTEN/NOTIFY and full batches at once, the fastest that it can do.
const CHUNK = 5000;
const now = () => Date.now() / 1000;
const wall = () => (performance.timeOrigin + performance.now()) / 1000;
const sleep = (s) => new Promise((resolve) => setTimeout(resolve, s * 1000));

async function open(plan) {
  const { PgBoss } = await import("pg-boss");
  const boss = new PgBoss({ connectionString: plan.database_url, useListenNotify: true });
  boss.on("error", () => {});
  await boss.start();
  return boss;
}

async function enqueue(boss, plan, what) {
  const started = performance.now();
  if (what === "bulk") {
    for (let start = 0; start < plan.count; start += CHUNK) {
      const n = Math.min(CHUNK, plan.count - start);
      await boss.insert("noop", Array.from({ length: n }, () => ({ data: { sent: 0 } })));
    }
  } else if (what === "delay") {
    await boss.insert(
      "noop",
      plan.due_s.map((due) => ({ data: { sent: due }, startAfter: new Date(due * 1000) })),
    );
  } else {
    for (let n = 0; n < plan.count; n++) {
      await boss.send("noop", { sent: wall() });
      if (what === "send") await sleep(plan.gap_s);
    }
  }
  return { seconds: (performance.now() - started) / 1000 };
}

async function work(boss, plan, what) {
  const lateMs = [];
  let first = 0;
  let last = 0;
  const options = { batchSize: 500, pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
  await boss.work("noop", options, async (jobs) => {
    for (const job of jobs) {
      last = wall();
      first = first || last;
      lateMs.push((last - job.data.sent) * 1000);
    }
  });
  if (what === "listen") {
    await sleep(1.5);
    console.log("ready");
  }
  while (lateMs.length < plan.count && now() < plan.give_up_s) await sleep(0.05);
  return { seconds: last - first, late_ms: what === "listen" ? lateMs : [] };
}

async function main(what, plan) {
  const boss = await open(plan);
  if (what === "setup") return boss.createQueue("noop", { notify: true });
  return ["drain", "listen"].includes(what) ? work(boss, plan, what) : enqueue(boss, plan, what);
}

main(process.argv[2], JSON.parse(require("fs").readFileSync(0, "utf8"))).then(
  (found) => {
    console.log(JSON.stringify(found ?? null));
    process.exit(0);
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
