// 64 clients, 1,000 requests, prompts of 1 to 2,000 tokens, a third of the clients going away in the middle. Nothing may fail
// that the client did not cause, every stream ends with a terminal event, and at idle nothing is left behind.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Weftd, sanitized, sse, until } from "./harness.mjs";

const clients = 64;
const total = Number(process.env.WEFT_LOAD_REQUESTS ?? (sanitized ? 200 : 1000));

// Reproducible choices: a failure can be run again.
function generator(seed) {
  let s = BigInt(seed);
  return () => {
    s = (s * 6364136223846793005n + 1442695040888963407n) & ((1n << 64n) - 1n);
    return Number(s >> 40n) / 2 ** 24;
  };
}

let weft;
before(async () => { weft = await Weftd.start(); });
after(() => weft?.stop());

async function oneRequest(n) {
  const random = generator(n + 1);
  const length = random() < 0.1 ? 1 : 1 + Math.floor(random() * random() * 2000);
  const prompt = Array.from({ length }, () => Math.floor(random() * 1792));
  const leave = random() < 0.33 ? 1 + Math.floor(random() * 12) : Infinity; // disconnect after this many events
  const leaveEarly = random() < 0.05;                                       // or before the first byte
  const abort = new AbortController();
  const seen = { events: 0, finish: null, done: false, error: null, tokens: 0 };
  const max_tokens = 1 + Math.floor(random() * 24);
  const stream = sse({ port: weft.port, target: "/v1/completions", signal: abort.signal,
    body: { model: "micro-k3", prompt, max_tokens, stream: true, ignore_eos: true, seed: n, return_token_ids: true },
    onData: (d) => {
      if (d === "[DONE]") { seen.done = true; return; }
      if (d.error) seen.error = d.error;
      seen.finish = d.choices?.[0]?.finish_reason ?? seen.finish;
      seen.tokens += d.choices?.[0]?.token_ids?.length ?? 0;
      if (++seen.events >= leave) abort.abort();
    } });
  if (leaveEarly) setTimeout(() => abort.abort(), Math.floor(random() * 20));
  try {
    const end = await stream;
    if (abort.signal.aborted) return "left";
    assert.equal(end.status, 200, `request ${n}`);
    assert.equal(seen.error, null, `request ${n}: ${JSON.stringify(seen.error)}`);
    assert.ok(seen.done, `request ${n}: [DONE] is there`);
    assert.equal(seen.finish, "length", `request ${n}`);
    assert.equal(seen.tokens, max_tokens, `request ${n}: every token arrived`);
    return "served";
  } catch (e) {
    if (abort.signal.aborted) return "left";
    throw e;
  }
}

test(`${total} requests from ${clients} clients with random disconnects`, async () => {
  let next = 0;
  const outcome = { served: 0, left: 0 };
  await Promise.all(Array.from({ length: clients }, async () => {
    while (next < total) ++outcome[await oneRequest(next++)];
  }));
  assert.equal(outcome.served + outcome.left, total);
  assert.ok(outcome.served > total / 2 && outcome.left > total / 10, JSON.stringify(outcome));
});

test("at idle all blocks and states are free and all gauges are zero", async () => {
  const idle = await until("idle", async () => {
    const s = await weft.status();
    const d = s.deployments[0];
    return d.running === 0 && d.waiting === 0 && s.requests_inflight === 0 && d.groups.every((g) => g.units_used === 0) && s;
  });
  assert.ok(idle.deployments[0].groups.length >= 2, "row pages and states are both reported");
  assert.equal(idle.deployments[0].workers[0].restarts, 0);
  const metrics = (await weft.get("/metrics")).text;
  const value = (name) => metrics.split("\n").filter((l) => l.startsWith(name + "{") || l.startsWith(name + " ")).map((l) => Number(l.split(" ").pop()));
  for (const gauge of ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "weft_requests_inflight"])
    assert.deepEqual(value(gauge), [0], gauge);
  assert.ok(value("weft_kv_blocks").length > 0);
  assert.ok(metrics.split("\n").filter((l) => l.startsWith("weft_kv_blocks") && l.includes('state="active"')).every((l) => l.endsWith(" 0")));
  assert.deepEqual(value("weft_stream_unterminated_total"), [0]);
  assert.equal((await weft.get("/health")).status, 200);
});
