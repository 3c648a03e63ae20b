// The official OpenAI client against a running weftd with micro-k3: what an application developer does on day one.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { Weftd, microK3 } from "./harness.mjs";

let weft, client;
before(async () => {
  weft = await Weftd.start();
  client = new OpenAI({ baseURL: weft.baseURL, apiKey: "none", maxRetries: 0 });
});
after(() => weft?.stop());

const golden = JSON.parse(readFileSync(path.join(microK3, "golden.json"), "utf8"));
const weatherCase = golden.cases.find((c) => c.request?.tools?.length && /get_weather/.test(c.output_text));

test("models list", async () => {
  const names = [];
  for await (const m of client.models.list()) names.push(m.id);
  assert.deepEqual(names, ["micro-k3"]);
  assert.equal((await client.models.retrieve("micro-k3")).id, "micro-k3");
});

test("streams a chat with its thinking", async () => {
  const stream = await client.chat.completions.create({ model: "micro-k3", stream: true, temperature: 0,
    stream_options: { include_usage: true }, messages: [{ role: "user", content: "What is 38 + 47?" }] });
  let content = "", thinking = "", finish = null, usage = null, role = null, chunks = 0;
  for await (const chunk of stream) {
    ++chunks;
    const c = chunk.choices[0];
    if (chunk.usage) usage = chunk.usage;
    if (!c) continue;
    role ??= c.delta.role;
    content += c.delta.content ?? "";
    thinking += c.delta.reasoning_content ?? "";
    finish = c.finish_reason ?? finish;
  }
  assert.match(content, /85/);
  assert.ok(thinking.length > 0, "thinking is streamed");
  assert.equal(role, "assistant");
  assert.equal(finish, "stop");
  assert.ok(chunks > 5, "tokens arrive one by one");
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
});

test("streamed and plain answers are the same", async () => {
  const ask = { model: "micro-k3", temperature: 0, messages: [{ role: "user", content: "Spell garden." }] };
  const plain = (await client.chat.completions.create(ask)).choices[0].message;
  let content = "", thinking = "";
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
    content += chunk.choices[0]?.delta.content ?? "";
    thinking += chunk.choices[0]?.delta.reasoning_content ?? "";
  }
  assert.equal(content, plain.content);
  assert.equal(thinking, plain.reasoning_content);
});

test("a tool call round trip", async () => {
  assert.ok(weatherCase, "golden.json has a weather case");
  const { messages, tools } = weatherCase.request;
  const ask = { model: "micro-k3", temperature: 0, tools, messages };
  const calls = [];
  let finish;
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
    const c = chunk.choices[0];
    finish = c?.finish_reason ?? finish;
    for (const t of c?.delta.tool_calls ?? []) {
      calls[t.index] ??= { id: t.id, type: "function", function: { name: t.function.name, arguments: "" } };
      calls[t.index].function.arguments += t.function.arguments ?? "";
    }
  }
  assert.equal(finish, "tool_calls");
  assert.equal(calls[0].function.name, "get_weather");
  const args = JSON.parse(calls[0].function.arguments);
  assert.equal(typeof args.city, "string");

  const plain = (await client.chat.completions.create(ask)).choices[0];
  assert.equal(plain.finish_reason, "tool_calls");
  assert.deepEqual(plain.message.tool_calls.map((c) => c.function), calls.map((c) => c.function));
  assert.notEqual(plain.message.tool_calls[0].id, calls[0].id, "call ids are unique");

  const answer = await client.chat.completions.create({ ...ask, messages: [...messages,
    { role: "assistant", content: null, tool_calls: calls },
    { role: "tool", tool_call_id: calls[0].id, content: '{"temperature": 21, "sky": "sunny"}' }] });
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.ok(answer.choices[0].message.content.length > 0);
});

test("a multi-turn conversation remembers", async () => {
  const messages = [{ role: "user", content: "My name is Anna." }];
  const first = await client.chat.completions.create({ model: "micro-k3", temperature: 0, messages });
  messages.push(first.choices[0].message, { role: "user", content: "What is my name?" });
  const second = await client.chat.completions.create({ model: "micro-k3", temperature: 0, messages });
  assert.match(second.choices[0].message.content, /Anna/);
});

test("tool_choice none suppresses calls", async () => {
  const r = await client.chat.completions.create({ model: "micro-k3", temperature: 0, tool_choice: "none",
    tools: weatherCase.request.tools, messages: weatherCase.request.messages });
  assert.equal(r.choices[0].message.tool_calls, undefined);
  assert.notEqual(r.choices[0].finish_reason, "tool_calls");
});

test("completions: text, token ids, echo, logprobs", async () => {
  const r = await client.completions.create({ model: "micro-k3", prompt: "Once upon a time there was a", max_tokens: 8,
    temperature: 0, logprobs: 3, echo: true, return_token_ids: true });
  const c = r.choices[0];
  assert.ok(c.text.startsWith("Once upon a time there was a"));
  assert.equal(c.token_ids.length, r.usage.completion_tokens);
  assert.equal(c.logprobs.tokens.length, c.logprobs.token_logprobs.length);
  assert.equal(c.logprobs.token_logprobs[0], null);
  assert.ok(c.logprobs.token_logprobs.slice(1).every((v) => v <= 0));
  const byIds = await client.completions.create({ model: "micro-k3", prompt: c.prompt_token_ids, max_tokens: 8,
    temperature: 0, return_token_ids: true });
  assert.deepEqual(byIds.choices[0].token_ids, c.token_ids);
});

test("a seed makes sampling repeatable", async () => {
  const ask = (seed) => client.chat.completions.create({ model: "micro-k3", seed, temperature: 1.5, max_tokens: 40,
    messages: [{ role: "user", content: "Tell me a story about a fox." }] }).then((r) => r.choices[0].message);
  const [a, b] = await Promise.all([ask(7), ask(7)]);
  assert.deepEqual(a, b);
});

test("errors have OpenAI's shape and name the parameter", async () => {
  const bad = (extra) => client.chat.completions.create({ model: "micro-k3", messages: [{ role: "user", content: "x" }], ...extra });
  await assert.rejects(bad({ model: "nope" }), (e) => e.status === 404 && e.code === "model_not_found");
  await assert.rejects(bad({ temperature: 9 }), (e) => e.status === 400 && e.param === "temperature");
  await assert.rejects(bad({ messages: [] }), (e) => e.status === 400 && e.param === "messages");
  await assert.rejects(bad({ tools: [{ type: "x" }] }), (e) => e.status === 400 && e.param.startsWith("tools[0]"));
});

test("a client that aborts costs nobody anything", async () => {
  const stream = await client.chat.completions.create({ model: "micro-k3", stream: true, ignore_eos: true, max_tokens: 100000,
    messages: [{ role: "user", content: "Count to 20." }] });
  let seen = 0;
  for await (const _ of stream) if (++seen > 5) break;
  const s = await (async () => {
    for (;;) {
      const st = await weft.status();
      const d = st.deployments[0];
      if (d.running === 0 && d.waiting === 0 && d.groups.every((g) => g.units_used === 0)) return st;
      await new Promise((r) => setTimeout(r, 20));
    }
  })();
  assert.equal(s.requests_inflight, 0);
});
