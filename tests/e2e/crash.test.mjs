// kill -9 of the worker in the middle of streams, again and again: weftd lives on, every client hears about it in a proper
// error event, and service comes back by itself.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Weftd, sanitized, sse, until } from "./harness.mjs";

const rounds = sanitized ? 5 : 20;
let weft;
before(async () => { weft = await Weftd.start(); });
after(() => weft?.stop());

// A stream that would run for a long time; resolves when it is over, `started` when tokens flow.
function longStream() {
  const seen = { error: null, done: false, finish: null };
  let onStart;
  const started = new Promise((r) => { onStart = r; });
  let events = 0;
  const ended = sse({ port: weft.port, target: "/v1/chat/completions",
    body: { model: "micro-k3", stream: true, ignore_eos: true, max_tokens: 1_000_000, messages: [{ role: "user", content: "Count to 20." }] },
    onData: (d) => {
      if (d === "[DONE]") seen.done = true;
      else if (d.error) seen.error = d.error;
      else if (++events === 3) onStart();
      if (d.choices?.[0]?.finish_reason) seen.finish = d.choices[0].finish_reason;
    } }).then((end) => ({ ...seen, ...end }));
  return { started, ended };
}

for (let round = 1; round <= rounds; ++round) {
  test(`kill -9, round ${round}`, async () => {
    const streams = Array.from({ length: 4 }, longStream);
    await Promise.all(streams.map((s) => s.started));
    const pid = (await weft.status()).deployments[0].workers[0].pid;
    process.kill(pid, "SIGKILL");
    for (const s of streams) {
      const end = await s.ended;
      assert.ok(end.error, "an error event ends the stream");
      assert.match(end.error.message, /worker/);
      assert.equal(end.finish, null, "a broken stream does not pretend to be finished");
      assert.equal(end.rest, "", "no half event");
    }
    assert.equal(weft.exit, undefined, "weftd lives");
    await weft.untilReady();
    const after = await weft.status();
    assert.equal(after.deployments[0].workers[0].restarts, round);
    const answer = await weft.post("/v1/chat/completions", { model: "micro-k3", temperature: 0,
      messages: [{ role: "user", content: "What is 38 + 47?" }] });
    assert.match(answer.json().choices[0].message.content, /85/);
  });
}

test("requests while the worker is away are refused with 503 and Retry-After, health says so", async () => {
  const pid = (await weft.status()).deployments[0].workers[0].pid;
  process.kill(pid, "SIGKILL");
  const refused = await until("a refusal", async () => {
    const r = await weft.post("/v1/completions", { model: "micro-k3", prompt: [1, 2, 3], max_tokens: 1 });
    return r.status !== 200 && r;
  });
  assert.equal(refused.status, 503);
  assert.ok(Number(refused.headers["retry-after"]) >= 1);
  assert.ok(refused.json().error.message.length > 0);
  await weft.untilReady();
  assert.equal((await weft.get("/health")).status, 200);
});

test("SIGTERM drains: running streams finish, new requests are refused", async () => {
  const own = await Weftd.start();
  try {
    let tokens = 0, finish = null, done = false, onStart;
    const started = new Promise((r) => { onStart = r; });
    const ended = sse({ port: own.port, target: "/v1/completions",
      body: { model: "micro-k3", prompt: [5, 6, 7], stream: true, ignore_eos: true, max_tokens: 300 },
      onData: (d) => {
        if (d === "[DONE]") { done = true; return; }
        finish = d.choices?.[0]?.finish_reason ?? finish;
        if (++tokens === 3) onStart();
      } });
    await started;
    own.child.kill("SIGTERM");
    await ended;
    assert.equal(finish, "length");
    assert.ok(done);
    assert.equal((await own.exited).code, 0);
  } finally { await own.kill(); }
});

test("a second SIGTERM hurries: the stream ends with an error event", async () => {
  const own = await Weftd.start();
  try {
    let error = null, onStart, events = 0;
    const started = new Promise((r) => { onStart = r; });
    const ended = sse({ port: own.port, target: "/v1/completions",
      body: { model: "micro-k3", prompt: [5, 6, 7], stream: true, ignore_eos: true, max_tokens: 1_000_000 },
      onData: (d) => { if (d.error) error = d.error; if (++events === 3) onStart(); } });
    await started;
    own.child.kill("SIGTERM");
    await until("draining", async () => (await own.status().catch(() => null))?.state === "draining");
    own.child.kill("SIGTERM");
    await ended;
    assert.ok(error, "an error event");
    assert.equal((await own.exited).code, 0);
  } finally { await own.kill(); }
});
