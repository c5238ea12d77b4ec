// BullMQ: its worker blocks on Valkey until the next job is due. Jobs go in by one bulk call, as its documentation says.
const { Queue, Worker } = require('bullmq');

const CONCURRENCY = 100;

async function main(plan) {
  const url = new URL(plan.redis_url);
  const connection = { host: url.hostname, port: Number(url.port), password: url.password };
  const late = plan.due_s.map(() => null);
  let left = late.length;
  const worker = new Worker('peer', async (job) => {
    late[job.data.n] = Date.now() - plan.due_s[job.data.n] * 1000;
    left -= 1;
  }, { connection: { ...connection, maxRetriesPerRequest: null }, concurrency: CONCURRENCY,
       removeOnComplete: { count: 0 } });
  worker.on('error', (error) => console.error(error));
  await worker.waitUntilReady();
  const queue = new Queue('peer', { connection });
  const now = Date.now();
  await queue.addBulk(plan.due_s.map((due, n) => ({
    name: 'handle', data: { n }, opts: { delay: Math.max(0, Math.ceil(due * 1000 - now)), timestamp: now },
  })));
  while (left > 0 && Date.now() < plan.give_up_s * 1000) await new Promise((go) => setTimeout(go, 200));
  process.stdout.write(JSON.stringify(late) + '\n', () => process.exit(0));
}

let input = '';
process.stdin.on('data', (chunk) => { input += chunk; });
process.stdin.on('end', () => main(JSON.parse(input)).catch((error) => { console.error(error); process.exit(1); }));
