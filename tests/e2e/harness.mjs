// Starts a real weftd in a temp directory for one test file, and ends it and everything it started.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
export const bin = process.env.WEFT_BIN_DIR ?? path.join(root, "build/test/bin");
export const sanitized = process.env.WEFT_SANITIZED === "1"; // everything is about ten times slower then
export const microK3 = path.join(root, "models/micro-k3");

// Polls until `probe` returns something truthy; the limit only bounds a hang.
export async function until(what, probe, limitMs = 120_000) {
  const end = Date.now() + limitMs;
  for (;;) {
    const value = await probe();
    if (value) return value;
    if (Date.now() > end) throw new Error(`gave up waiting for: ${what}`);
    await new Promise((r) => setTimeout(r, 25));
  }
}

// One HTTP exchange; resolves with {status, headers, text, json()}.
export function request({ port, socketPath, method = "GET", target, body, raw, headers = {}, signal, agent }) {
  return new Promise((resolve, reject) => {
    const payload = raw ?? (body === undefined ? undefined : Buffer.from(typeof body === "string" ? body : JSON.stringify(body)));
    const req = http.request({ host: "127.0.0.1", port, socketPath, method, path: target, agent, signal,
      headers: { ...(payload ? { "content-type": "application/json", "content-length": payload.length } : {}), ...headers } },
      (res) => {
        const parts = [];
        res.on("data", (d) => parts.push(d));
        res.on("error", reject);
        res.on("end", () => {
          const text = Buffer.concat(parts).toString("utf8");
          resolve({ status: res.statusCode, headers: res.headers, text, json: () => JSON.parse(text) });
        });
      });
    req.on("error", reject);
    req.end(payload);
  });
}

export class Weftd {
  static async start({ args = [], config, ready = true, env = {} } = {}) {
    const w = new Weftd();
    w.dir = mkdtempSync(path.join(tmpdir(), "weft-e2e-"));
    w.socketPath = path.join(w.dir, "s");
    w.log = "";
    const base = config
      ? ["--config", config(w)]
      : ["--model", microK3, "--listen", "127.0.0.1:0", "--socket", w.socketPath, "--trust-user-plugins"];
    w.child = spawn(path.join(bin, "weftd"), [...base, ...args], { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
    const keep = (d) => { w.log = (w.log + d).slice(-200_000); };
    w.child.stdout.on("data", keep);
    w.child.stderr.on("data", keep);
    w.exited = new Promise((r) => w.child.on("exit", (code, signal) => { w.exit = { code, signal }; r(w.exit); }));
    try {
      await until("the control socket", async () => {
        if (w.exit) throw new Error(`weftd ended early (${JSON.stringify(w.exit)}):\n${w.log}`);
        return existsSync(w.socketPath) && (await w.status().catch(() => null));
      });
      const status = await w.status();
      const address = status.listen.find((a) => !a.startsWith("unix:"));
      if (address) w.port = Number(address.split(":").pop());
      if (ready) await w.untilReady();
    } catch (e) {
      await w.kill();
      throw e;
    }
    return w;
  }

  admin(method, target, body) { return request({ socketPath: this.socketPath, method, target, body }); }
  async status() { return (await this.admin("GET", "/v1/status")).json(); }
  untilReady() {
    return until("the model to be ready", async () => {
      if (this.exit) throw new Error(`weftd ended (${JSON.stringify(this.exit)}):\n${this.log}`);
      const s = await this.status();
      if (s.deployments.some((d) => d.state === "failed")) throw new Error(`deployment failed: ${JSON.stringify(s)}\n${this.log}`);
      return s.deployments.length > 0 && s.deployments.every((d) => d.state === "ready") && s;
    });
  }
  post(target, body, extra = {}) { return request({ port: this.port, method: "POST", target, body, ...extra }); }
  get(target, extra = {}) { return request({ port: this.port, method: "GET", target, ...extra }); }
  get baseURL() { return `http://127.0.0.1:${this.port}/v1`; }

  // Ends weftd politely and checks that it ended well and left no worker behind.
  async stop() {
    if (this.exit) return this.exit;
    const workers = this.workers();
    this.child.kill("SIGTERM");
    let timer;
    const exit = await Promise.race([this.exited, new Promise((r) => { timer = setTimeout(r, 60_000, null); })]);
    clearTimeout(timer);
    if (!exit) { await this.kill(); throw new Error(`weftd did not stop after SIGTERM:\n${this.log}`); }
    rmSync(this.dir, { recursive: true, force: true });
    if (exit.code !== 0) throw new Error(`weftd ended with ${JSON.stringify(exit)}:\n${this.log}`);
    await until("the workers to be gone", () => workers.every((pid) => !existsSync(`/proc/${pid}`)), 10_000);
    return exit;
  }
  async kill() {
    if (!this.exit) { this.child.kill("SIGKILL"); await this.exited; }
    rmSync(this.dir, { recursive: true, force: true });
  }
  // Pids of the child processes.
  workers() {
    const out = [];
    for (const pid of readdirSync("/proc").filter((n) => /^\d+$/.test(n))) {
      try {
        const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
        const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
        if (Number(fields[1]) === this.child.pid && fields[0] !== "Z") out.push(Number(pid));
      } catch { /* gone meanwhile */ }
    }
    return out;
  }
}

// Reads an SSE response body incrementally: calls onData(object | "[DONE]") per event.
export function sse({ port, target, body, onData, onOpen, signal, key }) {
  return new Promise((resolve, reject) => {
    const payload = Buffer.from(JSON.stringify(body));
    const req = http.request({ host: "127.0.0.1", port, method: "POST", path: target, agent: false, signal,
      headers: { "content-type": "application/json", "content-length": payload.length, ...(key ? { "x-api-key": key } : {}) } }, (res) => {
      let text = "";
      onOpen?.(res, req);
      res.setEncoding("utf8");
      res.on("data", (d) => {
        text += d;
        let end;
        while ((end = text.indexOf("\n\n")) >= 0) {
          const event = text.slice(0, end);
          text = text.slice(end + 2);
          for (const line of event.split("\n")) {
            if (!line.startsWith("data: ")) continue;
            const data = line.slice(6);
            onData(data === "[DONE]" ? data : JSON.parse(data));
          }
        }
      });
      res.on("error", reject);
      res.on("end", () => resolve({ status: res.statusCode, rest: text }));
    });
    req.on("error", reject);
    req.end(payload);
  });
}
