// Drives BullMQ for the comparison that `make bench` prints.
//
//   node bench.mjs throughput --port P --tasks N [--batch B] [--payload-bytes 100] [--concurrency C] [--producers C]
//   node bench.mjs latency    --port P --rate R --seconds T [--payload-bytes 100] [--concurrency C]
//   node bench.mjs delayed    --port P --tasks N --delay-ms D --spread-ms S [--concurrency C]
//   node bench.mjs drain      --port P --tasks N [--payload-bytes 100] [--concurrency C]
//   node bench.mjs pickup     --port P --tasks N --pause-ms D [--payload-bytes 100] [--concurrency C]
//   node bench.mjs fill       --port P --tasks N [--batch B] [--payload-bytes 100]
//
// Talks to the Redis at 127.0.0.1:P and prints one line of JSON. The asynq
// driver next door has the same command line and output.
//
// Settings are BullMQ's defaults: finished jobs are kept, as Windlass keeps
// results. (asynq by default deletes finished tasks.) ioredis is not asked to
// pipeline by itself (enableAutoPipelining), as that was slower when tried.
//
// The producer has a thread of its own, as it would have a process of its own in
// real use; in one thread, producer and worker would share one core.
import { isMainThread, parentPort, Worker as Thread, workerData } from 'node:worker_threads';
import { once } from 'node:events';
import { parseArgs } from 'node:util';
import { Queue, Worker } from 'bullmq';

const MODES = {
  throughput: { needed: ['port', 'tasks'], defaults: { batch: 1, 'payload-bytes': 100, concurrency: 16, producers: undefined } },
  latency: { needed: ['port', 'rate', 'seconds'], defaults: { 'payload-bytes': 100, concurrency: 16 } },
  delayed: { needed: ['port', 'tasks', 'delay-ms', 'spread-ms'], defaults: { concurrency: 16 } },
  drain: { needed: ['port', 'tasks'], defaults: { 'payload-bytes': 100, concurrency: 16 } },
  pickup: { needed: ['port', 'tasks', 'pause-ms'], defaults: { 'payload-bytes': 100, concurrency: 16 } },
  fill: { needed: ['port', 'tasks'], defaults: { batch: 1, 'payload-bytes': 100 } },
};
const WARM_UP = 500; // tasks run before the clock starts, so that Node has compiled the code
const FILL_IN_FLIGHT = 16; // adds under way at once in mode fill
const FILL_BATCH = 100; // tasks a call while the queue is filled in mode drain
const MAX_IN_FLIGHT = 1000; // bound of the open loop in mode latency
const PATIENCE_MS = 30_000; // give up when nothing was handled for so long

function fail(code, sentence) {
  console.error(`bullmq bench: ${sentence}`);
  process.exit(code);
}

function readArguments(argv) {
  const mode = argv[0];
  if (!Object.hasOwn(MODES, mode ?? '')) {
    fail(2, `The first argument must be one of ${Object.keys(MODES).join(', ')}.`);
  }
  const { needed, defaults } = MODES[mode];
  const names = [...needed, ...Object.keys(defaults)];
  let values;
  try {
    const options = Object.fromEntries(names.map((name) => [name, { type: 'string' }]));
    values = parseArgs({ args: argv.slice(1), options }).values;
  } catch (error) {
    fail(2, error.message);
  }
  const options = { mode, ...defaults };
  for (const name of names) {
    if (values[name] === undefined) {
      if (needed.includes(name)) fail(2, `Mode ${mode} needs --${name}.`);
    } else if (!/^[1-9][0-9]{0,8}$/.test(values[name])) {
      fail(2, `--${name} must be a whole number from 1, not '${values[name]}'.`);
    } else {
      options[name] = Number(values[name]);
    }
  }
  if (options.port > 65535) fail(2, `--port must be at most 65535, not ${options.port}.`);
  return options;
}

// Milliseconds, with microseconds behind the point. Both read the same in every
// thread. The first only ever goes forward; the second is the clock by which
// BullMQ decides what is due.
const monotonicMs = () => Number(process.hrtime.bigint()) / 1e6;
const wallMs = () => performance.timeOrigin + performance.now();

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const connection = (options) => ({
  host: '127.0.0.1',
  port: options.port,
  maxRetriesPerRequest: null, // BullMQ wants this of a worker's connection
});

// In a benchmark any lost connection spoils the result, so it ends the run.
const lostRedis = (error) => fail(1, `Redis at 127.0.0.1 failed: ${error.message || error.code}`);

async function openQueue(options) {
  const queue = new Queue(options.queue, { connection: connection(options) });
  queue.on('error', lostRedis);
  await queue.waitUntilReady();
  return queue;
}

// ---- producer ----

// Payloads are about as large, as JSON, as --payload-bytes asks.
function payloads(options) {
  const largest = JSON.stringify({ id: 1_000_000, at: 1_000_000_000.123, pad: '' }).length;
  const pad = 'x'.repeat(Math.max(0, (options['payload-bytes'] ?? 0) - largest));
  return (id, at = 0) => ({ id, at, pad });
}

// Adds tasks 0..tasks-1, with up to `inFlight` adds (or bulks) under way at once.
async function addAll(queue, options, inFlight) {
  const { tasks, batch } = options;
  const payload = payloads(options);
  let next = 0;
  const lane = async () => {
    while (next < tasks) {
      if (batch === 1) {
        await queue.add('noop', payload(next++));
      } else {
        const jobs = [];
        while (jobs.length < batch && next < tasks) jobs.push({ name: 'noop', data: payload(next++) });
        await queue.addBulk(jobs);
      }
    }
  };
  await Promise.all(Array.from({ length: inFlight }, lane));
}

// Adds `rate` tasks a second whether or not earlier ones were handled. Node's
// timers tick in milliseconds, so what falls due within one goes out together.
async function addAtRate(queue, options) {
  const { rate, seconds } = options;
  const payload = payloads(options);
  const start = monotonicMs();
  let inFlight = 0;
  for (let id = 0; id < rate * seconds; id++) {
    const sendAt = start + (id * 1000) / rate;
    while (monotonicMs() < sendAt || inFlight >= MAX_IN_FLIGHT) await sleep(1);
    inFlight++;
    queue.add('noop', payload(id, monotonicMs())).then(() => inFlight--, lostRedis);
  }
}

// Adds tasks with delays spread evenly over D..D+S. The task carries the moment it
// is due exactly as BullMQ reckons it: in whole milliseconds of the wall clock.
async function addDelayed(queue, options) {
  const { tasks, concurrency } = options;
  const payload = payloads(options);
  let next = 0;
  const lane = async () => {
    while (next < tasks) {
      const id = next++;
      const delay = Math.round(options['delay-ms'] + (options['spread-ms'] * id) / tasks);
      const timestamp = Math.floor(wallMs());
      await queue.add('noop', payload(id, timestamp + delay), { delay, timestamp });
    }
  };
  await Promise.all(Array.from({ length: concurrency }, lane));
}

// Adds a task when the worker has had nothing to do for a while: the pause, or up
// to twice as long. The main thread says when each was handled.
async function addWhenIdle(queue, options) {
  const payload = payloads(options);
  for (let id = 0; id < options.tasks; id++) {
    await sleep(options['pause-ms'] * (1 + Math.random()));
    const handled = once(parentPort, 'message');
    await queue.add('noop', payload(id, monotonicMs()));
    await handled;
  }
}

async function producerThread(options) {
  const queue = await openQueue(options);
  const warmUp = payloads(options);
  await queue.addBulk(Array.from({ length: WARM_UP }, () => ({ name: 'noop', data: warmUp(-1) })));
  await once(parentPort, 'message'); // the main thread says when
  if (options.mode === 'throughput') await addAll(queue, options, options.producers ?? options.concurrency);
  if (options.mode === 'latency') await addAtRate(queue, options);
  if (options.mode === 'delayed') await addDelayed(queue, options);
  if (options.mode === 'pickup') await addWhenIdle(queue, options);
}

// ---- worker ----

// Starts a worker. `onTask` gets each task's payload when the handler starts.
// `warmed` resolves when the tasks of the warm-up are done, `finished` when every
// task was handled, or when nothing happened for too long.
async function startWorker(options, tasks, onTask) {
  const timesHandled = new Uint32Array(tasks);
  const counts = { handled: 0, duplicates: 0 };
  let warm = 0;
  let lastProgress = monotonicMs();
  let allWarm, allHandled;
  const warmed = new Promise((resolve) => (allWarm = resolve));
  const finished = new Promise((resolve) => (allHandled = resolve));

  const worker = new Worker(
    options.queue,
    async (job) => {
      const task = job.data;
      lastProgress = monotonicMs();
      if (task.id < 0) {
        if (++warm === WARM_UP) allWarm();
        return;
      }
      onTask(task);
      if (timesHandled[task.id]++ > 0) counts.duplicates++;
      else if (++counts.handled === tasks) allHandled();
    },
    { connection: connection(options), concurrency: options.concurrency },
  );
  worker.on('error', lostRedis);
  await worker.waitUntilReady();
  const watch = setInterval(() => {
    if (monotonicMs() - lastProgress > PATIENCE_MS + (options['delay-ms'] ?? 0)) allHandled();
  }, 1000);
  const close = async () => {
    clearInterval(watch);
    await worker.close(); // lets running handlers end, so that late duplicates count
    return counts;
  };
  return { warmed, finished, close };
}

// Runs the producer and one worker until every task was handled. What `onTask`
// returns, if anything, is sent to the producer.
async function produceAndWork(options, tasks, onTask) {
  let producer;
  const worker = await startWorker(options, tasks, (task) => {
    const message = onTask(task);
    if (message !== undefined) producer.postMessage(message);
  });
  producer = new Thread(new URL(import.meta.url), { workerData: options });
  producer.on('error', (error) => fail(1, `The producer failed: ${error.message}`));
  producer.on('exit', (code) => code === 0 || fail(1, 'The producer failed.')); // exit() there ends only the thread
  await worker.warmed;

  const start = monotonicMs();
  producer.postMessage('start');
  await worker.finished;
  const seconds = (monotonicMs() - start) / 1000;
  return { seconds, ...(await worker.close()) };
}

// ---- modes ----

const round = (number) => Math.round(number * 1000) / 1000;

// The value that the share `q` of all values does not exceed.
function percentile(sorted, q) {
  return sorted.length === 0 ? null : round(sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)]);
}

async function throughput(options) {
  const { tasks, batch } = options;
  const { seconds, handled, duplicates } = await produceAndWork(options, tasks, () => {});
  return [{ tasks, batch, seconds: round(seconds), handled, duplicates }, handled === tasks && duplicates === 0];
}

async function latency(options) {
  const tasks = options.rate * options.seconds;
  const waits = [];
  const { handled } = await produceAndWork(options, tasks, (task) => void waits.push(monotonicMs() - task.at));
  return [summary(waits), handled === tasks];
}

function summary(waits) {
  waits.sort((a, b) => a - b);
  return {
    tasks: waits.length,
    p50_ms: percentile(waits, 0.5),
    p99_ms: percentile(waits, 0.99),
    max_ms: percentile(waits, 1),
  };
}

// The queue is full before the worker starts. The clock runs from the first
// handler to the last.
async function drain(options) {
  const { tasks } = options;
  const queue = await openQueue(options);
  const payload = payloads(options);
  await queue.addBulk(Array.from({ length: WARM_UP }, () => ({ name: 'noop', data: payload(-1) })));
  await addAll(queue, { ...options, batch: FILL_BATCH }, 1);
  let first, last;
  const worker = await startWorker(options, tasks, () => {
    last = monotonicMs();
    first ??= last;
  });
  await worker.finished;
  const { handled, duplicates } = await worker.close();
  return [{ tasks, seconds: round((last - first) / 1000), handled, duplicates }, handled === tasks && duplicates === 0];
}

// How long an idle worker takes to start a task.
async function pickup(options) {
  const { tasks } = options;
  const waits = [];
  const { handled } = await produceAndWork(options, tasks, (task) => {
    waits.push(monotonicMs() - task.at);
    return 'handled';
  });
  return [summary(waits), handled === tasks];
}

async function delayed(options) {
  const { tasks } = options;
  const lateness = [];
  const { handled } = await produceAndWork(options, tasks, (task) => void lateness.push(wallMs() - task.at));
  lateness.sort((a, b) => a - b);
  const result = {
    tasks: lateness.length,
    early: lateness.filter((ms) => ms < 0).length,
    p50_ms: percentile(lateness, 0.5),
    p99_ms: percentile(lateness, 0.99),
  };
  return [result, handled === tasks];
}

async function fill(options) {
  const queue = await openQueue(options);
  const start = monotonicMs();
  await addAll(queue, options, FILL_IN_FLIGHT);
  const seconds = (monotonicMs() - start) / 1000;
  return [{ tasks: options.tasks, seconds: round(seconds) }, true];
}

if (isMainThread) {
  const options = readArguments(process.argv.slice(2));
  // A queue of its own for each run: what an earlier run left is not counted.
  options.queue = `bench-${options.mode}-${Date.now()}`;
  const [result, complete] = await { throughput, latency, delayed, drain, pickup, fill }[options.mode](options);
  console.log(JSON.stringify({ peer: 'bullmq', mode: options.mode, ...result }));
  if (!complete) fail(1, 'Not every task was handled exactly once.');
  process.exit(0); // do not wait for idle connections
} else {
  await producerThread(workerData);
}
