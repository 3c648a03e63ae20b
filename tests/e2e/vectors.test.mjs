// The raw HTTP cases of the shared validation vectors, against a daemon with an API key and a small body limit.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { Weftd, microK3, request, root } from "./harness.mjs";

const limit = 1 << 20;
const key = "sk-e2e-key-0001";
const cases = JSON.parse(readFileSync(path.join(root, "tests/data/vectors/api_validation.json"), "utf8")).http;
let weft;
before(async () => {
  weft = await Weftd.start({ config: (w) => {
    const file = path.join(w.dir, "weft.toml");
    writeFileSync(path.join(w.dir, "keys"), `# test\n${key}\n`);
    writeFileSync(file, `[daemon]\nlisten = ["127.0.0.1:0"]\nsocket = "${w.socketPath}"\n[http]\nbody_max = ${limit}\n` +
      `[api]\nkey_file = "${path.join(w.dir, "keys")}"\n[[deployment]]\nname = "kimi-k3"\nmodel = "${microK3}"\n`);
    return file;
  } });
});
after(() => weft?.stop());

for (const c of cases) {
  test(c.name, async () => {
    const auth = "auth" in c ? c.auth : `Bearer ${key}`;
    let body = c.raw_body;
    if (c.raw_body_hex) body = Buffer.from(c.raw_body_hex, "hex");
    if (c.body_bytes === "limit+1") body = "x".repeat(limit + 1);
    if (c.body_nesting) body = "[".repeat(c.body_nesting) + "]".repeat(c.body_nesting);
    const headers = auth === null ? {} : { authorization: auth };
    const payload = body === undefined ? undefined : Buffer.from(body);
    const r = await request({ port: weft.port, method: c.method, target: c.path, raw: payload, headers });
    assert.equal(r.status, c.status, r.text);
    if (c.status >= 400) assert.ok(r.json().error.message.length > 0);
  });
}
