// Direct use without a configuration file, a deployment in TOML, and what weftd says when something is wrong.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { Weftd, bin, microK3, until } from "./harness.mjs";

function run(program, args) {
  return new Promise((resolve) => execFile(path.join(bin, program), args, { timeout: 60_000 },
    (error, stdout, stderr) => resolve({ code: error ? (error.code ?? error.signal) : 0, stdout, stderr })));
}
function temp(t) {
  const dir = mkdtempSync(path.join(tmpdir(), "weft-direct-"));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

test("a checkpoint without tokenizer files serves token ids and says so", async (t) => {
  const dir = path.join(temp(t), "bare");
  cpSync(microK3, dir, { recursive: true });
  for (const f of ["tiktoken.model", "tokenizer_config.json"]) rmSync(path.join(dir, f));
  const w = await Weftd.start({ args: [], config: (w) => {
    const file = path.join(w.dir, "weft.toml");
    writeFileSync(file, `[daemon]\nlisten = ["127.0.0.1:0"]\nsocket = "${w.socketPath}"\ntrust_user_plugins = true\n` +
      `[[deployment]]\nname = "bare"\nmodel = "${dir}"\nserved_names = ["bare", "alias"]\n`);
    return file;
  } });
  t.after(() => w.stop());
  assert.match(w.log, /token ids only/);
  const golden = JSON.parse(readFileSync(path.join(microK3, "golden.json"), "utf8")).cases.find((c) => c.output_ids && !c.images);
  const r = (await w.post("/v1/completions", { model: "alias", prompt: golden.prompt_ids, temperature: 0, return_token_ids: true,
    max_tokens: golden.output_ids.length, stop_token_ids: [1794] })).json();
  assert.deepEqual(r.choices[0].token_ids, golden.output_ids);
  for (const [target, body] of [["/v1/completions", { prompt: "hi" }], ["/tokenize", { prompt: "hi" }],
    ["/v1/chat/completions", { messages: [{ role: "user", content: "hi" }] }]]) {
    const e = await w.post(target, { model: "bare", ...body });
    assert.equal(e.status, 400, target);
    assert.match(e.json().error.message, /tokenizer|token ids/, target);
  }
});

test("a wrong model directory ends with a sentence and exit code 78", async (t) => {
  const dir = temp(t);
  const r = await run("weftd", ["--model", path.join(dir, "nothing"), "--listen", "127.0.0.1:0", "--socket", path.join(dir, "s")]);
  assert.equal(r.code, 78, r.stderr);
  assert.match(r.stderr, /config\.json/);
});

test("a damaged checkpoint is a failed deployment with the reason, not a crash loop", async (t) => {
  const dir = path.join(temp(t), "broken");
  cpSync(microK3, dir, { recursive: true });
  truncateSync(path.join(dir, "model-00004-of-00012.safetensors"), 100_000);
  const w = await Weftd.start({ ready: false, args: [], config: (w) => {
    const file = path.join(w.dir, "weft.toml");
    writeFileSync(file, `[daemon]\nlisten = ["127.0.0.1:0"]\nsocket = "${w.socketPath}"\ntrust_user_plugins = true\n[[deployment]]\nname = "broken"\nmodel = "${dir}"\n`);
    return file;
  } });
  t.after(() => w.stop());
  const d = await until("the failure", async () => {
    const d = (await w.status()).deployments[0];
    return d.state === "failed" && d;
  });
  assert.match(d.reason, /model-00004-of-00012\.safetensors/);
  assert.equal(d.workers[0].restarts, 0);
  assert.equal((await w.get("/health")).status, 503);
  const r = await w.post("/v1/completions", { model: "broken", prompt: [1], max_tokens: 1 });
  assert.equal(r.status, 503);
});

test("bad configuration files are refused with line, column and the nearest key", async (t) => {
  const dir = temp(t);
  const file = path.join(dir, "weft.toml");
  writeFileSync(file, "[daemon]\nlisten = [\"127.0.0.1:0\"]\n[http]\nbody_mx = 1\n");
  for (const args of [["--config", file], ["--config", file, "--check"]]) {
    const r = await run("weftd", args);
    assert.equal(r.code, 78);
    assert.ok(r.stderr.includes(`${file}:4:1: [http] unknown key "body_mx" (did you mean "body_max"?)`), r.stderr);
  }
  assert.equal((await run("weftd", ["--config", path.join(dir, "absent.toml")])).code, 78);
  assert.equal((await run("weftd", [])).code, 2);
  assert.equal((await run("weftd", ["--bogus"])).code, 2);
  assert.equal((await run("weftd", ["--version"])).code, 0);
});

test("an address in use is one clear sentence", async (t) => {
  const w = await Weftd.start();
  t.after(() => w.stop());
  const dir = temp(t);
  const r = await run("weftd", ["--model", microK3, "--listen", `127.0.0.1:${w.port}`, "--socket", path.join(dir, "s")]);
  assert.notEqual(r.code, 0);
  assert.match(r.stderr, /in use/);
  const same = await run("weftd", ["--model", microK3, "--listen", "127.0.0.1:0", "--socket", w.socketPath]);
  assert.notEqual(same.code, 0);
  assert.match(same.stderr, /in use|running/);
});

test("plugins that others could change are not loaded", async (t) => {
  const dir = temp(t);
  const plugins = path.join(dir, "plugins");
  mkdirSync(plugins, { mode: 0o777 });
  cpSync(path.join(bin, "../lib/weft/plugins"), plugins, { recursive: true });
  const { chmodSync } = await import("node:fs");
  chmodSync(plugins, 0o777);
  const w = await Weftd.start({ ready: false, config: (w) => {
    const file = path.join(w.dir, "weft.toml");
    writeFileSync(file, `[daemon]\nlisten = ["127.0.0.1:0"]\nsocket = "${w.socketPath}"\nplugin_dir = "${plugins}"\n` +
      `[[deployment]]\nname = "m"\nmodel = "${microK3}"\n`);
    return file;
  } });
  t.after(() => w.stop());
  const d = await until("the failure", async () => {
    const d = (await w.status()).deployments[0];
    return d.state === "failed" && d;
  });
  assert.match(d.reason, /writable|owned/);
  const list = (await w.admin("GET", "/v1/plugins")).json();
  assert.ok(list.plugins.length >= 3 && list.plugins.every((p) => p.state === "refused" && p.reason.length > 0), JSON.stringify(list));
});
