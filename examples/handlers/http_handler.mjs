// An HTTP handler in Node.js (18 or later), with nothing but its standard library.
//
//     node http_handler.mjs 8080 &
//     windlass worker -q shop/invoices --concurrency 8 --http http://127.0.0.1:8080/tasks
//
// It charges an order exactly once, even if a machine dies in the middle, and
// then asks for a receipt to be sent by a task of its own. The "bank" is a file.

import { appendFile, readFile } from "node:fs/promises";
import { createServer } from "node:http";

const bank = process.env.BANK ?? "bank.txt";

/** The worker's local API, for one attempt at one task. */
function windlass(headers) {
  return async (method, path, body) => {
    const answer = await fetch(headers["windlass-api"] + path, {
      method,
      headers: { authorization: `Bearer ${headers["windlass-api-token"]}` },
      body: body && JSON.stringify(body),
    });
    const said = await answer.json();
    if (!answer.ok) throw new Error(`${path}: ${said.error}`);
    return said;
  };
}

/**
 * Runs an outside effect at most once for a key, and remembers its answer.
 *
 * An attempt that died after `begin` and before `commit` leaves a doubt: only
 * the other side knows whether the effect happened, so `find` asks there.
 */
async function once(call, key, effect, find) {
  const begun = await call("POST", "/v1/once/begin", { key });
  if (begun.state === "done") return begun.answer;
  let answer;
  if (begun.state === "in-doubt") {
    answer = await find();
    if (answer === undefined) {
      // It did not happen. Somebody else may have found that out first.
      const resolved = await call("POST", "/v1/once/resolve", { key });
      if (resolved.state !== "begin") return once(call, key, effect, find);
    }
  }
  answer ??= await effect();
  await call("POST", "/v1/once/commit", { key, answer });
  return answer;
}

async function charge(order) {
  await appendFile(bank, `charged ${order}\n`);
  return { charged: order };
}

async function findCharge(order) {
  const ledger = await readFile(bank, "utf8").catch(() => "");
  return ledger.includes(`charged ${order}\n`) ? { charged: order } : undefined;
}

async function handle(task, headers) {
  const { order } = task.payload;
  if (order === undefined) return [422, { error: "the payload names no order" }];
  const call = windlass(headers);
  await call("POST", "/v1/progress", { step: "charging", percent: 10 });
  const receipt = await once(call, `charge:${order}`, () => charge(order), () => findCharge(order));
  // Long work asks now and then whether it is still wanted.
  if ((await call("GET", "/v1/cancelled")).cancelled) return [503, { error: "cancelled" }];
  // A follow-up is a child of this task, with its tenant and its trace. With a
  // key of its own it is made once, however often this task is tried.
  const followUp = { type: "receipt", payload: receipt, idempotencyKey: `receipt:${order}` };
  const { id } = await call("POST", "/v1/tasks", followUp);
  return [200, { ...receipt, receipt: id }];
}

const server = createServer(async (request, response) => {
  let [status, body] = [500, {}];
  try {
    let text = "";
    for await (const chunk of request) text += chunk;
    [status, body] = await handle(JSON.parse(text), request.headers);
  } catch (error) {
    body = { error: String(error) }; // 500: worth another attempt
  }
  response.writeHead(status, { "content-type": "application/json" });
  response.end(JSON.stringify(body));
});

// The first process of a container does not end at SIGTERM unless it says so.
// Nothing is lost: the worker is told first, and its tasks are over by then.
process.on("SIGTERM", () => process.exit());

server.listen(Number(process.argv[2] ?? 8080), "127.0.0.1", () => {
  console.log(`listening on ${server.address().port}`);
});
