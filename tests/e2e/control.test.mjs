// weftctl against a running weftd.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { Weftd, bin, root, sse, until } from "./harness.mjs";

let weft;
before(async () => { weft = await Weftd.start(); });
after(() => weft?.stop());

function ctl(...args) {
  return new Promise((resolve) => execFile(path.join(bin, "weftctl"), ["--socket", weft.socketPath, ...args], { timeout: 60_000 },
    (error, stdout, stderr) => resolve({ code: error ? (error.code ?? error.signal) : 0, stdout, stderr })));
}

test("status, plugins, models", async () => {
  const text = await ctl("status");
  assert.equal(text.code, 0, text.stderr);
  assert.match(text.stdout, /micro-k3/);
  assert.match(text.stdout, /ready/);
  const json = JSON.parse((await ctl("--json", "status")).stdout);
  assert.equal(json.deployments[0].state, "ready");
  const plugins = JSON.parse((await ctl("--json", "plugins")).stdout).plugins;
  assert.deepEqual(plugins.filter((p) => p.state === "open").map((p) => p.name).sort(), ["example_null", "kernels_cpu", "model_kimi", "scheduler_continuous", "storage_file"]);
  assert.match((await ctl("plugins")).stdout, /model_kimi/);
  const waited = await ctl("wait", "--timeout", "5");
  assert.equal(waited.code, 0);
  assert.equal(waited.stdout, "ready\n");
  assert.match((await ctl("models")).stdout, /micro-k3 +micro-k3 +ready/);
});

test("one-shot chat shows the thinking, the answer and the speed", async () => {
  const r = await ctl("chat", "-m", "What is 38 + 47?");
  assert.equal(r.code, 0, r.stderr);
  assert.match(r.stdout, /85/);
  assert.match(r.stdout + r.stderr, /TTFT/);
  assert.match(r.stdout + r.stderr, /tok\/s/);
});

test("requests are listed and can be cancelled", async () => {
  let error = null, onStart, n = 0;
  const started = new Promise((r) => { onStart = r; });
  const ended = sse({ port: weft.port, target: "/v1/completions",
    body: { model: "micro-k3", prompt: [1, 2, 3], stream: true, ignore_eos: true, max_tokens: 1_000_000 },
    onData: (d) => { if (d.error) error = d.error; if (++n === 3) onStart(); } });
  await started;
  const list = JSON.parse((await ctl("--json", "requests")).stdout).requests;
  assert.equal(list.length, 1);
  assert.equal(list[0].state, "decode");
  assert.match((await ctl("requests")).stdout, new RegExp(list[0].id));
  assert.equal((await ctl("requests", "cancel", list[0].id)).code, 0);
  await ended;
  assert.equal(error.code, "cancelled");
  const gone = await ctl("requests", "cancel", list[0].id);
  assert.equal(gone.code, 4, "not found");
  await until("its blocks to be free", async () => (await weft.status()).deployments[0].groups.every((g) => g.units_used === 0));
});

test("config check names line, column and the nearest key", async () => {
  const dir = mkdtempSync(path.join(tmpdir(), "weft-ctl-"));
  try {
    const good = await ctl("config", "check", path.join(root, "etc/weft.toml"));
    assert.equal(good.code, 0, good.stdout + good.stderr);
    const file = path.join(dir, "bad.toml");
    writeFileSync(file, "[daemon]\nlisen = []\n");
    const bad = await ctl("config", "check", file);
    assert.equal(bad.code, 1);
    assert.match(bad.stdout + bad.stderr, /2:1.*lisen.*listen/s);
  } finally { rmSync(dir, { recursive: true, force: true }); }
});

test("exit codes: usage 2, daemon not reachable 3", async () => {
  assert.equal((await ctl("frobnicate")).code, 2);
  const r = await new Promise((resolve) => execFile(path.join(bin, "weftctl"), ["--socket", "/tmp/no-such-dir/x.sock", "status"],
    (e, stdout, stderr) => resolve({ code: e?.code ?? 0, stdout, stderr })));
  assert.equal(r.code, 3);
  assert.match(r.stderr, /no-such-dir/);
});

test("drain refuses new requests; stop ends the daemon", async () => {
  const own = await Weftd.start();
  const run = (...args) => new Promise((resolve) => execFile(path.join(bin, "weftctl"), ["--socket", own.socketPath, ...args],
    (e, stdout, stderr) => resolve({ code: e?.code ?? 0, stdout, stderr })));
  try {
    assert.equal((await run("drain")).code, 0);
    assert.equal((await own.post("/v1/completions", { model: "micro-k3", prompt: [1], max_tokens: 1 })).status, 503);
    assert.equal((await own.status()).state, "draining");
    assert.equal((await run("wait", "--timeout", "5")).code, 4, "waiting for a daemon that drains is in vain");
    assert.equal((await run("stop")).code, 0);
    assert.equal((await own.exited).code, 0);
  } finally { await own.kill(); }
});
