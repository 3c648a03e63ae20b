// Text completions: several prompts, echo, log-probabilities, models that know only token ids;
// tokenize and the small routes.
#include "gateway_fixture.h"

using namespace weft;        // NOLINT test file
using namespace weft::test;  // NOLINT test file

namespace {

std::string text_of(const FakeClient& client, size_t index) {
  std::string out, finish;
  for (const Json& event : client.events()) {
    if (!event.is_object() || event["choices"].empty() || event["choices"][0]["index"] != index)
      continue;
    CHECK(finish.empty());
    out += event["choices"][0]["text"];
    if (!event["choices"][0]["finish_reason"].is_null())
      finish = event["choices"][0]["finish_reason"];
  }
  CHECK(!finish.empty());
  return out;
}

void prompt_scores(GatewayBench& b, uint64_t id, size_t prompt, const Ids& tokens,
                   wire::Finish finish) {
  wire::SequenceTokens u;
  u.set_id(id);
  for (size_t i = 1; i < prompt; ++i) {
    u.add_prompt_logprobs(-static_cast<float>(i));
    u.add_prompt_alternatives()->add_ids(5);
    u.mutable_prompt_alternatives(u.prompt_alternatives_size() - 1)->add_logprobs(-0.125f);
  }
  for (int32_t token : tokens) {
    u.add_tokens(token);
    u.add_logprobs(-0.5f);
    u.add_alternatives();
  }
  u.set_finish(finish);
  b.backend.say(id, u);
}

}  // namespace

TEST_CASE("several prompts with n samples: indexes, texts, usage") {
  for (const bool stream : {false, true}) {
    GatewayBench b;
    FakeClient& client = b.complete({{"prompt", {"one", "two two"}},
                                     {"n", 2},
                                     {"max_tokens", 5},
                                     {"seed", 9},
                                     {"stream", stream}});
    b.wait_sequences(4);
    const Ids one = encode("one"), two = encode("two two");
    for (uint64_t id = 1; id <= 4; ++id) {
      const wire::Generate& g = b.backend.sequences[id].generate;
      CHECK(Ids(g.prompt().begin(), g.prompt().end()) == (id < 3 ? one : two));
      CHECK(g.sampling().seed() == 9 + (id - 1) % 2);
      CHECK(g.sampling().max_tokens() == 5);
      CHECK(g.sampling().logprobs() == -1);
    }
    for (uint64_t id = 4; id >= 1; --id) {
      b.backend.admit(id);
      b.backend.tokens(id, encode(" x" + std::to_string(id)));
      b.backend.finish(id, id == 2 ? wire::FINISH_LENGTH : wire::FINISH_STOP);
    }
    REQUIRE(client.done());
    for (size_t i = 0; i < 4; ++i) {
      const std::string text =
          stream ? text_of(client, i) : client.json()["choices"][i]["text"].get<std::string>();
      CHECK(text == " x" + std::to_string(i + 1));
    }
    if (!stream) {
      CHECK(client.json()["choices"][1]["finish_reason"] == "length");
      CHECK(client.json()["choices"][0]["finish_reason"] == "stop");
      CHECK(client.json()["usage"]["prompt_tokens"] == one.size() + two.size());
      CHECK(client.json()["usage"]["completion_tokens"] == 4 * encode(" x1").size());
    }
    b.check_idle();
    CHECK(b.finished("stop") == 3);
    CHECK(b.finished("length") == 1);
    CHECK(b.model_metric("vllm:prompt_tokens_total") ==
          static_cast<double>(one.size() + two.size()));
  }
}

TEST_CASE("echo puts the prompt first, with its log-probabilities") {
  const Ids prompt = encode("one two three");
  for (const bool stream : {false, true}) {
    GatewayBench b;
    FakeClient& client = b.complete(
        {{"prompt", "one two three"}, {"echo", true}, {"logprobs", 1}, {"stream", stream}});
    b.wait_sequences(1);
    CHECK(b.backend.sequences[1].generate.sampling().prompt_logprobs() == 1);
    CHECK(b.backend.sequences[1].generate.no_cache());  // every position has to be computed
    CHECK(b.backend.sequences[1].generate.sampling().logprobs() == 1);
    b.backend.admit(1);
    if (stream) CHECK(client.events().empty());  // the prompt waits for its scores
    prompt_scores(b, 1, prompt.size(), {}, wire::FINISH_NONE);
    b.backend.tokens(1, encode(" four"), wire::FINISH_LENGTH, true);
    REQUIRE(client.done());
    Json logprobs{{"tokens", Json::array()},
                  {"token_logprobs", Json::array()},
                  {"text_offset", Json::array()}};
    std::string text;
    for (const Json& event : stream ? client.events() : std::vector<Json>{client.json()}) {
      if (!event.is_object()) continue;
      const Json& choice = event["choices"][0];
      text += choice["text"];
      if (choice["logprobs"].is_null()) continue;
      for (auto& [key, list] : logprobs.items())
        for (const Json& item : choice["logprobs"][key]) list.push_back(item);
    }
    CHECK(text == "one two three four");
    const size_t total = prompt.size() + encode(" four").size();
    REQUIRE(logprobs["token_logprobs"].size() == total);
    CHECK(logprobs["token_logprobs"][0].is_null());
    for (size_t i = 1; i < prompt.size(); ++i)
      CHECK(logprobs["token_logprobs"][i] == -static_cast<double>(i));
    std::string again;
    for (size_t i = 0; i < total; ++i) {
      CHECK(logprobs["text_offset"][i] == again.size());
      again += logprobs["tokens"][i];
    }
    CHECK(again == text);
    b.check_idle();
  }
}

TEST_CASE("echo without output only looks at the prompt") {
  const Ids prompt = encode("one two");
  GatewayBench b;
  FakeClient& client =
      b.complete({{"prompt", "one two"}, {"echo", true}, {"max_tokens", 0}, {"logprobs", 0}});
  b.wait_sequences(1);
  // To the worker 0 would mean no limit.
  CHECK(b.backend.sequences[1].generate.sampling().max_tokens() == 1);
  prompt_scores(b, 1, prompt.size(), encode("x"), wire::FINISH_LENGTH);
  REQUIRE(client.done());
  const Json choice = client.json()["choices"][0];
  CHECK(choice["text"] == "one two");
  CHECK(choice["logprobs"]["tokens"].size() == prompt.size());
  CHECK(choice["finish_reason"] == "length");
  CHECK(client.json()["usage"]["completion_tokens"] == 0);
  CHECK(client.json()["usage"]["prompt_tokens"] == prompt.size());

  FakeClient& stream =
      b.complete({{"prompt", "one two"}, {"echo", true}, {"max_tokens", 0}, {"stream", true}});
  b.wait_sequences(2);
  b.backend.tokens(2, {1794}, wire::FINISH_STOP);  // whatever it was, it was not asked for
  CHECK(text_of(stream, 0) == "one two");
  CHECK(stream.body.find("\"finish_reason\":\"length\"") != std::string::npos);
  b.check_idle();
}

TEST_CASE("stop strings of a completion count the tokens up to the match") {
  const Ids ids = encode("alpha beta gamma delta");
  size_t needed = 0;
  for (std::string text; text.find("beta") == std::string::npos; ++needed)
    text += micro_model()->tokenizer->token_bytes(ids[needed]);
  REQUIRE(needed < ids.size());
  GatewayBench b;
  FakeClient& client = b.complete(
      {{"prompt", "x"}, {"stop", {"beta"}}, {"logprobs", 1}, {"return_token_ids", true}});
  b.wait_sequences(1);
  b.backend.tokens(1, ids, wire::FINISH_NONE, true);
  REQUIRE(client.done());
  CHECK(b.backend.sequences[1].forgotten == 1);
  const Json choice = client.json()["choices"][0];
  CHECK(choice["text"] == "alpha ");
  CHECK(choice["stop_reason"] == "beta");
  CHECK(choice["token_ids"].size() == needed);
  CHECK(client.json()["usage"]["completion_tokens"] == needed);
  b.check_idle();
}

TEST_CASE("a model without tokenizer takes and gives token ids") {
  GatewayBench b({}, false);
  for (const bool stream : {false, true}) {
    const uint64_t id = stream ? 2 : 1;
    FakeClient& client = b.complete({{"prompt", {1, 2, 3}}, {"stream", stream}, {"logprobs", 0}});
    b.wait_sequences(id);
    b.backend.tokens(id, {7, 8}, wire::FINISH_NONE, true);
    b.backend.tokens(id, {9}, wire::FINISH_LENGTH, true);
    REQUIRE(client.done());
    Json ids = Json::array(), scores = Json::array();
    for (const Json& event : stream ? client.events() : std::vector<Json>{client.json()}) {
      if (!event.is_object()) continue;
      for (const Json& item : event["choices"][0]["token_ids"]) ids.push_back(item);
      if (!event["choices"][0]["logprobs"].is_null())
        for (const Json& item : event["choices"][0]["logprobs"]["token_logprobs"])
          scores.push_back(item);
    }
    CHECK(ids == Json({7, 8, 9}));
    CHECK(scores.size() == 3);
  }
  const auto refused = [&](FakeClient& client, const char* needle) {
    b.until([&] { return client.done(); });
    CHECK(client.status == 400);
    CHECK_MESSAGE(client.body.find(needle) != std::string::npos, client.body);
  };
  refused(b.complete({{"prompt", "text"}}), "token ids only");
  refused(b.complete({{"prompt", {1}}, {"stop", "x"}}), "stop_token_ids");
  refused(b.chat(), "cannot chat");
  refused(b.post("/tokenize", {{"model", "micro"}, {"prompt", "x"}}), "no tokenizer");
  b.check_idle();
}

TEST_CASE("prompts that cannot run are refused") {
  GatewayBench b;
  const auto refused = [&](const Json& extra, const char* needle) {
    CAPTURE(extra.dump());
    FakeClient& client = b.complete(extra);
    b.until([&] { return client.done(); });
    CHECK(client.status == 400);
    CHECK_MESSAGE(client.body.find(needle) != std::string::npos, client.body);
  };
  refused({{"prompt", {2048}}}, "outside the vocabulary");
  refused({{"prompt", {{1}, {2, 4096}}}}, "prompt[1]");
  refused({{"prompt", "x"}, {"logit_bias", {{"5000", 1}}}}, "logit_bias");
  refused({{"prompt", std::vector<std::string>(40, "x")}, {"n", 128}}, "more than 256 choices");
  b.backend.mutable_info().ready.set_max_context(3);
  refused({{"prompt", {1, 2, 3}}}, "context_length_exceeded");
  FakeClient& fits = b.complete({{"prompt", {1, 2}}, {"max_tokens", 100}});
  b.wait_sequences(1);
  CHECK(b.backend.sequences[1].generate.sampling().max_tokens() == 1);
  b.backend.tokens(1, {3}, wire::FINISH_LENGTH);
  CHECK(fits.done());
  b.check_idle();
}

TEST_CASE("tokenize, detokenize, models, health, version") {
  GatewayBench b;
  FakeClient& tokens = b.post("/v1/tokenize", {{"model", "micro"}, {"prompt", "Hello there"}});
  b.until([&] { return tokens.done(); });
  CHECK(tokens.json()["tokens"] == Json(encode("Hello there")));
  FakeClient& text = b.post("/detokenize", {{"model", "micro"}, {"tokens", encode("Hello there")}});
  b.until([&] { return text.done(); });
  CHECK(text.json()["prompt"] == "Hello there");
  CHECK(b.send("GET", "/v1/models").json()["data"].size() == 2);
  CHECK(b.send("GET", "/v1/models/alias").json()["id"] == "alias");
  CHECK(b.send("GET", "/v1/models/none").status == 404);
  CHECK(b.send("GET", "/version").status == 200);
  CHECK(b.send("GET", "/live").status == 200);
  CHECK(b.send("GET", "/health").status == 200);
  b.backend.moving = false;
  CHECK(b.send("GET", "/health").status == 503);
  b.backend.moving = true;
  b.backend.mutable_info().state = gateway::ReplicaState::kFailed;
  b.backend.mutable_info().reason = "say \"why\"";
  FakeClient& unhealthy = b.send("GET", "/health");
  CHECK(unhealthy.status == 503);
  CHECK(unhealthy.json()["reason"] == "model micro is failed: say \"why\"");
  b.backend.mutable_info().state = gateway::ReplicaState::kReady;
  b.gateway->begin_drain();
  CHECK(b.send("GET", "/health").status == 200);
  CHECK(b.send("GET", "/ready").status == 503);
}
