// The prefix cache as clients and operators see it: later turns are served from it and say so, answers stay what they are
// without it, tenants and salts never share, the counters add up, and an audit finds every unit.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { writeFileSync } from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { Weftd, bin, microK3, request, sanitized, sse, until } from "./harness.mjs";

const keys = { a: "sk-of-tenant-a-1", a2: "sk-of-tenant-a-2", b: "sk-of-tenant-b-1" };

// Answers are compared bit for bit, so both servers are deterministic: how a prompt was cut, or whether it was computed at
// all, must not show.
function config(cache, extra = "") {
  return (w) => {
    writeFileSync(path.join(w.dir, "keys"), `${keys.a} team-a 2\n${keys.a2} team-a\n${keys.b} team-b\n`);
    const file = path.join(w.dir, "weft.toml");
    writeFileSync(file, `[daemon]\nlisten = ["127.0.0.1:0"]\nsocket = "${w.socketPath}"\ntrust_user_plugins = true\n` +
      `[api]\nkey_file = "${path.join(w.dir, "keys")}"\n` +
      `[[deployment]]\nname = "micro-k3"\nmodel = "${microK3}"\ndeterministic = true\n${extra}` +
      `[deployment.cache]\nprefix_cache = ${cache}\n`);
    return file;
  };
}

let weft, fresh;
before(async () => {
  weft = await Weftd.start({ config: config(true) });
  fresh = await Weftd.start({ config: config(false) });
});
after(async () => { await weft?.stop(); await fresh?.stop(); });

async function ask(w, target, body, key = keys.a) {
  const r = await request({ port: w.port, method: "POST", target, headers: { authorization: `Bearer ${key}` },
    body: { model: "micro-k3", temperature: 0, ...body } });
  assert.equal(r.status, 200, r.text);
  return r.json();
}
const chat = (w, messages, extra = {}, key = keys.a) => ask(w, "/v1/chat/completions", { messages, max_tokens: 48, ...extra }, key);
const complete = (w, prompt, extra = {}, key = keys.a) =>
  ask(w, "/v1/completions", { prompt, max_tokens: 8, ignore_eos: true, return_token_ids: true, ...extra }, key);
const cached = (answer) => answer.usage.prompt_tokens_details.cached_tokens;

function ctl(...args) {
  return new Promise((resolve) => execFile(path.join(bin, "weftctl"), ["--socket", weft.socketPath, ...args], { timeout: 60_000 },
    (error, stdout, stderr) => resolve({ code: error ? (error.code ?? error.signal) : 0, stdout, stderr })));
}
const idle = () => until("idle", async () => {
  const s = await weft.status();
  const d = s.deployments[0];
  return d.running === 0 && d.waiting === 0 && s.requests_inflight === 0 && d.groups.every((g) => g.units_used === 0);
});

// Prompts that no other test uses: the first token tells them apart.
let used = 0;
const freshPrompt = (length) => {
  const n = ++used;
  return Array.from({ length }, (_, i) => (i === 0 ? n : (i * 37 + n * 11) % 1700));
};

async function metrics() {
  const lines = (await request({ port: weft.port, target: "/metrics" })).text.split("\n").filter((l) => l && !l.startsWith("#"));
  const sum = (name, label = "") => lines.filter((l) => (l.startsWith(`${name}{`) || l.startsWith(`${name} `)) && l.includes(label))
    .reduce((total, l) => total + Number(l.split(" ").pop()), 0);
  const source = (s) => sum("vllm:prompt_tokens_by_source_total", `source="${s}"`);
  return { sum, all: sum("vllm:prompt_tokens_total"), local: source("local_cache_hit"), host: source("external_kv_transfer"),
    computed: source("local_compute") };
}

test("the second turn of a chat comes from the cache, and says the same as a server without one", async () => {
  const system = { role: "system", content: "You answer in one short sentence. " + "Rules matter here. ".repeat(30) };
  const messages = [system, { role: "user", content: "What is 38 + 47?" }];
  for (let turn = 0; turn < 3; ++turn) {
    const warm = await chat(weft, messages);
    const cold = await chat(fresh, messages);
    assert.deepEqual(warm.choices[0].message.content, cold.choices[0].message.content, `turn ${turn}`);
    assert.deepEqual(warm.choices[0].message.reasoning_content, cold.choices[0].message.reasoning_content, `turn ${turn}`);
    assert.equal(warm.usage.prompt_tokens, cold.usage.prompt_tokens);
    assert.equal(cached(cold), 0, "prefix_cache = false");
    if (turn === 0) assert.equal(cached(warm), 0);
    else assert.ok(cached(warm) >= 128 && cached(warm) <= warm.usage.prompt_tokens, `turn ${turn}: ${JSON.stringify(warm.usage)}`);
    const { content, reasoning_content } = warm.choices[0].message;
    messages.push({ role: "assistant", content, reasoning_content }, { role: "user", content: `And ${turn} + 12?` });
  }
  // Another conversation of the same application: the head alone is shared.
  const other = await chat(weft, [system, { role: "user", content: "Spell garden." }]);
  assert.ok(cached(other) >= 128, JSON.stringify(other.usage));
  assert.equal(other.choices[0].message.content, (await chat(fresh, [system, { role: "user", content: "Spell garden." }])).choices[0].message.content);
});

test("a prompt that goes on where another ended uses all of it", async () => {
  const prompt = freshPrompt(480);
  const one = await complete(weft, prompt);
  assert.equal(cached(one), 0);
  const longer = [...prompt, ...freshPrompt(100)];
  const two = await complete(weft, longer);
  assert.equal(cached(two), 480);
  assert.deepEqual(two.choices[0].token_ids, (await complete(fresh, longer)).choices[0].token_ids);
  const edited = [...longer];
  edited[300] = (edited[300] + 1) % 1700;
  const three = await complete(weft, edited);
  assert.ok(cached(three) <= 300, "nothing behind an edited token is used");
  assert.deepEqual(three.choices[0].token_ids, (await complete(fresh, edited)).choices[0].token_ids);
});

test("tenants never share, the keys of one tenant do, and a salt separates inside a tenant", async () => {
  const prompt = freshPrompt(300);
  const longer = [...prompt, 5, 6, 7];
  await complete(weft, prompt, {}, keys.a);
  assert.equal(cached(await complete(weft, longer, {}, keys.b)), 0, "tenant b has not asked before");
  assert.equal(cached(await complete(weft, longer, {}, keys.a2)), 300, "the other key of tenant a");
  assert.ok(cached(await complete(weft, [...longer, 8], {}, keys.b)) > 0, "tenant b has now");
  assert.equal(cached(await complete(weft, longer, { cache_salt: "private" }, keys.a)), 0);
  assert.ok(cached(await complete(weft, [...longer, 9], { cache_salt: "private" }, keys.a)) > 0);
  assert.equal(cached(await complete(weft, longer, { cache_salt: "other" }, keys.a)), 0);
});

test("usage and metrics count the same tokens, once", async () => {
  await idle();
  const start = await metrics();
  const prompt = freshPrompt(200);
  let prompts = 0, hits = 0;
  for (let i = 0; i < 4; ++i) {
    const answer = await complete(weft, [...prompt, ...Array(i * 40).fill(i + 1)], { n: i === 3 ? 2 : 1 });
    prompts += answer.usage.prompt_tokens;
    hits += cached(answer);
    assert.ok(cached(answer) <= answer.usage.prompt_tokens);
  }
  const end = await metrics();
  assert.equal(end.all - start.all, prompts);
  assert.equal(end.local + end.host - start.local - start.host, hits);
  assert.ok(hits > 0);
  for (const m of [start, end]) {
    assert.equal(m.local + m.host + m.computed, m.all);
    assert.equal(m.sum("vllm:prefix_cache_queries_total"), m.all);
    assert.equal(m.sum("vllm:prefix_cache_hits_total"), m.local);
    assert.equal(m.sum("vllm:prompt_tokens_cached_total"), m.local + m.host);
  }
});

test("under load with cancels the books balance, and without the cache every unit is free", async () => {
  const shared = freshPrompt(260);
  const total = sanitized ? 40 : 160;
  let next = 0;
  await Promise.all(Array.from({ length: 16 }, async () => {
    while (next < total) {
      const n = next++;
      const abort = new AbortController();
      let events = 0;
      const prompt = [...shared.slice(0, 1 + (n * 53) % 260), ...Array.from({ length: n % 90 }, (_, i) => (i * n) % 1700)];
      await sse({ port: weft.port, target: "/v1/completions", signal: abort.signal, key: keys.a,
        body: { model: "micro-k3", prompt, max_tokens: 1 + n % 20, stream: true, ignore_eos: true },
        onData: () => { if (n % 3 === 0 && ++events > n % 7) abort.abort(); } }).catch((e) => { if (!abort.signal.aborted) throw e; });
      if (n % 20 === 0) {
        const busy = await ctl("audit");
        assert.equal(busy.code, 0, busy.stdout + busy.stderr);
      }
    }
  }));
  await idle();
  const text = await ctl("audit", "micro-k3");
  assert.equal(text.code, 0, text.stdout + text.stderr);
  assert.match(text.stdout, /GROUP +TOTAL +FREE +ACTIVE +CACHED/);
  const kept = JSON.parse((await ctl("--json", "audit")).stdout);
  assert.ok(kept.ok && kept.deployments[0].idle, JSON.stringify(kept));
  for (const g of kept.deployments[0].groups) assert.equal(g.free + g.cached, g.total, JSON.stringify(g));
  assert.ok(kept.deployments[0].groups.some((g) => g.cached > 0), "something was kept");
  const dropped = await ctl("--json", "audit", "--drop-cache");
  assert.equal(dropped.code, 0, dropped.stdout + dropped.stderr);
  for (const g of JSON.parse(dropped.stdout).deployments[0].groups) assert.equal(g.free, g.total, JSON.stringify(g));
  assert.equal(cached(await complete(weft, [...shared, 1, 2, 3])), 0, "the cache was dropped");
  const m = await metrics();
  assert.equal(m.local + m.host + m.computed, m.all);
  assert.equal(m.sum("weft_sched_refused_plans_total"), 0);
  assert.equal((await weft.status()).deployments[0].workers[0].restarts, 0);
});

test("a request that waits past its deadline is refused with 504, others are not", async (t) => {
  const w = await Weftd.start({ config: config(true, "max_sequences = 1\n") });
  t.after(() => w.stop());
  const abort = new AbortController();
  let started;
  const running = new Promise((r) => { started = r; });
  const long = sse({ port: w.port, target: "/v1/completions", key: keys.a, signal: abort.signal,
    body: { model: "micro-k3", prompt: [1, 2, 3], stream: true, ignore_eos: true, max_tokens: 1_000_000 }, onData: started }).catch(() => {});
  await running;
  const late = await request({ port: w.port, method: "POST", target: "/v1/completions", headers: { "x-api-key": keys.b },
    signal: AbortSignal.timeout(60_000), body: { model: "micro-k3", prompt: [4, 5], max_tokens: 1, deadline_ms: 100 } });
  assert.equal(late.status, 504, late.text);
  assert.equal(late.json().error.code, "deadline_exceeded");
  abort.abort();
  await long;
  const free = await complete(w, [4, 5], { deadline_ms: 60_000, max_tokens: 1 }, keys.b);
  assert.equal(free.usage.completion_tokens, 1);
});
