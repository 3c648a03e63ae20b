// Chat requests from body to bytes: streams, whole answers, stops, tools, images, usage.
#include <fstream>
#include <iterator>

#include "gateway_fixture.h"

using namespace weft;        // NOLINT test file
using namespace weft::test;  // NOLINT test file

namespace {

// What a client makes of an answer, streamed or not.
struct Message {
  std::string reasoning, content, finish;
  Json stop;
  Json token_ids = Json::array(), logprobs = Json::array();
  std::map<int, std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Message&) const = default;
};

std::string show(const Message& m) {
  std::string out = m.reasoning + "|" + m.content + "|" + m.finish + "|" + m.stop.dump() + "|" +
                    m.token_ids.dump() + "|" + m.logprobs.dump();
  for (const auto& [i, call] : m.calls) out += "|" + call.first + call.second;
  return out;
}

void add_list(Json& to, const Json& from, const char* key) {
  if (!from.contains(key) || from[key].is_null()) return;
  for (const Json& item : from[key]) to.push_back(item);
}

void add_logprobs(Message& m, const Json& choice) {
  if (choice.contains("logprobs") && choice["logprobs"].is_object())
    add_list(m.logprobs, choice["logprobs"], "content");
}

std::vector<Message> whole(const Json& body) {
  std::vector<Message> out;
  for (const Json& choice : body["choices"]) {
    CHECK(choice["index"] == out.size());
    Message m;
    const Json& message = choice["message"];
    m.reasoning = message.value("reasoning_content", "");
    if (!message["content"].is_null()) m.content = message["content"];
    m.finish = choice["finish_reason"];
    m.stop = choice.value("stop_reason", Json());
    add_list(m.token_ids, choice, "token_ids");
    add_logprobs(m, choice);
    if (message.contains("tool_calls"))
      for (const Json& call : message["tool_calls"])
        m.calls[static_cast<int>(m.calls.size())] = {call["function"]["name"],
                                                     call["function"]["arguments"]};
    out.push_back(std::move(m));
  }
  return out;
}

// Also checks the order of the events: role first, nothing after the finish of a choice, usage
// last.
std::vector<Message> joined(const FakeClient& client, size_t n, Json* usage = nullptr) {
  const std::vector<Json> events = client.events();
  std::vector<Message> out(n);
  std::vector<int> chunks(n);
  REQUIRE(!events.empty());
  CHECK(events.back() == "[DONE]");
  for (size_t e = 0; e + 1 < events.size(); ++e) {
    const Json& event = events[e];
    REQUIRE(!event.contains("error"));
    CHECK(event["object"] == "chat.completion.chunk");
    CHECK(event["id"] == events[0]["id"]);
    if (event["choices"].empty()) {
      CHECK(e + 2 == events.size());
      if (usage != nullptr) *usage = event["usage"];
      continue;
    }
    const Json& choice = event["choices"][0];
    const size_t index = choice["index"];
    Message& m = out.at(index);
    CHECK(m.finish.empty());
    const Json& delta = choice["delta"];
    CHECK(delta.contains("role") == (chunks[index]++ == 0));
    m.reasoning += delta.value("reasoning_content", "");
    m.content += delta.value("content", "");
    add_list(m.token_ids, choice, "token_ids");
    add_logprobs(m, choice);
    if (delta.contains("tool_calls"))
      for (const Json& call : delta["tool_calls"]) {
        auto& [name, arguments] = m.calls[call["index"].get<int>()];
        name += call["function"].value("name", "");
        arguments += call["function"].value("arguments", "");
      }
    if (!choice["finish_reason"].is_null()) {
      m.finish = choice["finish_reason"];
      m.stop = choice.value("stop_reason", Json());
    }
  }
  for (const Message& m : out) CHECK(!m.finish.empty());
  return out;
}

const char* const kTools =
    R"([{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
  "properties":{"city":{"type":"string"}}}}}])";

Ids tool_turn() {
  return encode(
      "I need it." +
      spell("~think}{response}~response}{tools}{call tool=\"get_weather\" index=\"1\"}"
            "{argument key=\"city\" type=\"string\"}Paris~argument}~call}"
            "{call tool=\"get_weather\" index=\"2\"}{argument key=\"city\" type=\"string\"}") +
      "你好" + spell("~argument}~call}~tools}~message}") + "<|end_of_msg|>");
}

struct Case {
  const char* name;
  Ids ids;
  wire::Finish finish;
  Json extra;
};

std::vector<Case> cases() {
  const Ids plain = turn("Hello in Chinese: 你好.", "你好, how are you? Fine.");
  Ids cut = plain;
  cut.resize(cut.size() - 9);
  return {
      {"plain", plain, wire::FINISH_STOP, Json::object()},
      {"length", cut, wire::FINISH_LENGTH, Json::object()},
      {"cut in thought", encode("I think"), wire::FINISH_LENGTH, Json::object()},
      {"no tokens", {}, wire::FINISH_LENGTH, Json::object()},
      {"stop string", plain, wire::FINISH_STOP, {{"stop", "are y"}}},
      {"stop string kept",
       plain,
       wire::FINISH_STOP,
       {{"stop", {"zzz", "how"}}, {"include_stop_str_in_output", true}}},
      {"stop string never comes", plain, wire::FINISH_STOP, {{"stop", "Fine!"}}},
      {"stop string at the end", plain, wire::FINISH_STOP, {{"stop", "Fine."}}},
      {"stop token", plain, wire::FINISH_STOP, {{"stop_token_ids", {plain.back()}}}},
      {"no reasoning", plain, wire::FINISH_STOP, {{"include_reasoning", false}}},
      {"logprobs", plain, wire::FINISH_STOP, {{"logprobs", true}, {"top_logprobs", 1}}},
      {"logprobs and stop", plain, wire::FINISH_STOP, {{"logprobs", true}, {"stop", "how"}}},
      {"tools", tool_turn(), wire::FINISH_STOP, {{"tools", Json::parse(kTools)}}},
      {"tools, one call",
       tool_turn(),
       wire::FINISH_STOP,
       {{"tools", Json::parse(kTools)}, {"parallel_tool_calls", false}}},
      {"tools forbidden",
       tool_turn(),
       wire::FINISH_STOP,
       {{"tools", Json::parse(kTools)}, {"tool_choice", "none"}}},
  };
}

// Sends the tokens in pieces of the given sizes, the finish with the last piece or on its own.
void play(GatewayBench& b, uint64_t id, const Case& c, const std::vector<size_t>& pieces,
          bool finish_alone) {
  b.backend.admit(id);
  const bool logprobs = c.extra.contains("logprobs");
  size_t at = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Ids part(c.ids.begin() + static_cast<long>(at),
                   c.ids.begin() + static_cast<long>(at + pieces[i]));
    at += pieces[i];
    const bool last = i + 1 == pieces.size() && !finish_alone;
    b.backend.tokens(id, part, last ? c.finish : wire::FINISH_NONE, logprobs);
  }
  REQUIRE(at == c.ids.size());
  if (finish_alone || pieces.empty()) b.backend.finish(id, c.finish);
}

std::vector<size_t> random_cut(size_t n, size_t most, std::mt19937& rng) {
  std::vector<size_t> out;
  while (n > 0) {
    out.push_back(1 + rng() % std::min(n, most));
    n -= out.back();
  }
  return out;
}

}  // namespace

TEST_CASE("a chat stream: role, reasoning, content, finish, usage, done") {
  GatewayBench b;
  FakeClient& client =
      b.chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}, {"seed", 7}});
  b.wait_sequences(1);
  CHECK_FALSE(client.streaming);  // nothing is known yet: an error could still have a status
  const wire::Generate& g = b.backend.sequences[1].generate;
  CHECK(g.sampling().seed() == 7);
  CHECK(g.sampling().max_tokens() == 4096 - g.prompt_size());
  CHECK(std::count(g.sampling().stop_ids().begin(), g.sampling().stop_ids().end(), 1794) == 1);
  CHECK(b.gateway->list().at(0).state == std::string("queued"));
  b.backend.admit(1, 5);
  CHECK(client.streaming);
  CHECK(client.status == 200);
  CHECK(client.header("content-type").find("text/event-stream") == 0);
  CHECK(b.gateway->list().at(0).state == std::string("prefill"));
  const Ids ids = turn("A greeting.", "Hello!");
  for (int32_t id : ids)
    b.backend.tokens(1, {id}, id == 1794 ? wire::FINISH_STOP : wire::FINISH_NONE);
  REQUIRE(client.done());
  Json usage;
  const Message m = joined(client, 1, &usage).at(0);
  CHECK(m.reasoning == "A greeting.");
  CHECK(m.content == "Hello!");
  CHECK(m.finish == "stop");
  // The opener of the first channel is not the client's prompt; the thought is counted up to where
  // it is closed.
  CHECK(usage["prompt_tokens"] == g.prompt_size() - 3);
  CHECK(usage["completion_tokens"] == ids.size());
  CHECK(usage["cached_tokens"] == 5);
  CHECK(usage["completion_tokens_details"]["reasoning_tokens"] ==
        encode("A greeting." + spell("~think}")).size());
  b.check_idle();
  CHECK(b.finished("stop") == 1);
  CHECK(b.model_metric("vllm:prompt_tokens_total") == g.prompt_size());
  CHECK(b.model_metric("vllm:generation_tokens_total") == static_cast<double>(ids.size()));
  CHECK(b.model_metric("vllm:time_to_first_token_seconds_count") == 1);
  CHECK(b.model_metric("vllm:inter_token_latency_seconds_count") ==
        static_cast<double>(ids.size() - 1));
  CHECK(b.model_metric("vllm:e2e_request_latency_seconds_count") == 1);
  CHECK(b.model_metric("vllm:request_queue_time_seconds_count") == 1);
  CHECK(b.model_metric("vllm:request_generation_tokens_sum") == static_cast<double>(ids.size()));
  CHECK(b.model_metric("vllm:request_prompt_tokens_count") == 1);
}

TEST_CASE("the operator may count the opener too") {
  config::Config config;
  config.api.usage_excludes_opener = false;
  GatewayBench b(config);
  FakeClient& client = b.chat();
  b.wait_sequences(1);
  b.backend.tokens(1, turn("", "x"), wire::FINISH_STOP);
  CHECK(client.json()["usage"]["prompt_tokens"] == b.backend.sequences[1].generate.prompt_size());
}

TEST_CASE("streamed pieces add up to the whole answer, however the tokens were cut") {
  std::mt19937 rng(20261130);
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    Json extra = c.extra;
    extra["return_token_ids"] = true;
    GatewayBench b;
    FakeClient& reference = b.chat(extra);
    b.wait_sequences(1);
    play(b, 1, c, std::vector<size_t>(c.ids.size(), 1), false);
    REQUIRE(reference.done());
    CHECK(reference.status == 200);
    const Message expected = whole(reference.json()).at(0);
    const Json usage = reference.json()["usage"];
    for (uint64_t round = 0; round < 12; ++round) {
      const bool stream = round % 3 != 0;
      Json body = extra;
      body["stream"] = stream;
      if (stream) body["stream_options"] = {{"include_usage", true}};
      FakeClient& client = b.chat(body);
      b.wait_sequences(round + 2);
      const size_t most = round < 2 ? c.ids.size() + 1 : 1 + round;
      play(b, round + 2, c, random_cut(c.ids.size(), most, rng), round % 2 == 1);
      REQUIRE(client.done());
      Json counted;
      const Message got = stream ? joined(client, 1, &counted).at(0) : whole(client.json()).at(0);
      if (!stream) counted = client.json()["usage"];
      CHECK(show(got) == show(expected));
      CHECK(counted == usage);
    }
    b.settle();
    CHECK(b.gateway->in_flight() == 0);
    CHECK(b.model_metric("weft_stream_unterminated_total") == 0);
  }
}

TEST_CASE("a stop string frees the sequence at once and counts no further") {
  const Ids ids = turn("Why not.", "one two three four");
  // Tokens up to the one that completes the string.
  size_t needed = 0;
  for (std::string text; text.find("two") == std::string::npos; ++needed)
    text += micro_model()->tokenizer->token_bytes(ids[needed]);
  for (const bool at_once : {false, true}) {
    GatewayBench b;
    FakeClient& client = b.chat({{"stop", "two"}, {"return_token_ids", true}});
    b.wait_sequences(1);
    if (at_once) {
      b.backend.tokens(1, ids);
    } else {
      for (size_t i = 0; i < needed; ++i) {
        CHECK(b.backend.sequences[1].forgotten == 0);
        b.backend.tokens(1, {ids[i]});
      }
    }
    CHECK(b.backend.sequences[1].forgotten == 1);
    CHECK(b.backend.sequences[1].why == "stop string");
    REQUIRE(client.done());
    const Json choice = client.json()["choices"][0];
    CHECK(choice["message"]["content"] == "one ");
    CHECK(choice["finish_reason"] == "stop");
    CHECK(choice["stop_reason"] == "two");
    CHECK(choice["token_ids"].size() == needed);
    CHECK(client.json()["usage"]["completion_tokens"] == needed);
    CHECK(b.model_metric("vllm:request_generation_tokens_sum") == static_cast<double>(needed));
    b.check_idle();
  }
}

TEST_CASE("n choices run side by side; the prompt counts once") {
  GatewayBench b;
  for (const bool stream : {false, true}) {
    const uint64_t first = b.backend.sequences.size() + 1;
    FakeClient& client = b.chat({{"n", 3}, {"stream", stream}, {"seed", 100}, {"stop", "STOP"}});
    b.wait_sequences(first + 2);
    for (uint64_t i = 0; i < 3; ++i)
      CHECK(b.backend.sequences[first + i].generate.sampling().seed() == 100 + i);
    const std::vector<Ids> turns{turn("a", "first"), turn("b", "second STOP not this"),
                                 turn("c", "third")};
    for (uint64_t i = 0; i < 3; ++i) b.backend.admit(first + i, 2);
    b.backend.tokens(first + 2, turns[2], wire::FINISH_STOP);
    CHECK_FALSE(client.done());
    b.backend.tokens(first + 1, turns[1]);
    CHECK(b.backend.sequences[first + 1].forgotten == 1);
    CHECK_FALSE(client.done());
    for (size_t i = 0; i < turns[0].size(); ++i)
      b.backend.tokens(first, {turns[0][i]},
                       i + 1 == turns[0].size() ? wire::FINISH_STOP : wire::FINISH_NONE);
    REQUIRE(client.done());
    const auto messages = stream ? joined(client, 3) : whole(client.json());
    REQUIRE(messages.size() == 3);
    CHECK(messages[0].content == "first");
    CHECK(messages[1].content == "second ");
    CHECK(messages[1].stop == "STOP");
    CHECK(messages[2].content == "third");
    CHECK(messages[2].reasoning == "c");
    const int prompt = b.backend.sequences[first].generate.prompt_size();
    if (!stream) CHECK(client.json()["usage"]["prompt_tokens"] == prompt - 3);
    if (!stream) CHECK(client.json()["usage"]["cached_tokens"] == 2);
    CHECK(b.model_metric("vllm:prompt_tokens_total") == prompt * (stream ? 2 : 1));
  }
  b.check_idle();
}

TEST_CASE("when one of n choices fails, the others are freed") {
  GatewayBench b;
  FakeClient& client = b.chat({{"n", 3}});
  b.wait_sequences(3);
  b.backend.tokens(1, turn("", "done"), wire::FINISH_STOP);
  b.backend.error(2, "internal", "secret detail");
  REQUIRE(client.done());
  CHECK(client.status == 500);
  CHECK(client.body.find("secret") == std::string::npos);
  CHECK(b.backend.sequences[3].forgotten == 1);
  b.check_idle();

  b.backend.refuse_from = 5;  // the second of three is refused
  FakeClient& refused = b.chat({{"n", 3}});
  b.until([&] { return refused.done(); });
  CHECK(refused.status == 503);
  CHECK(b.backend.sequences[4].forgotten == 1);
  b.check_idle();
}

TEST_CASE("errors of the worker become the client's errors") {
  GatewayBench b;
  struct Expect {
    const char* code;
    int status;
    bool detail;
  };
  uint64_t id = 0;
  for (const Expect& e : {Expect{"invalid", 400, true},
                          {"unavailable", 503, true},
                          {"unsupported", 400, true},
                          {"deadline", 504, true},
                          {"internal", 500, false},
                          {"", 500, false}}) {
    CAPTURE(e.code);
    FakeClient& before = b.chat({{"stream", true}});
    b.wait_sequences(++id);
    b.backend.error(id, e.code, "the detail");
    CHECK(before.status == e.status);
    CHECK_FALSE(before.streaming);
    CHECK((before.body.find("the detail") != std::string::npos) == e.detail);
    CHECK(before.header("retry-after").empty() == (e.status != 503));
    CHECK(!before.header("x-request-id").empty());

    FakeClient& during = b.chat({{"stream", true}});
    b.wait_sequences(++id);
    b.backend.tokens(id, encode("Hm"));
    b.backend.error(id, e.code, "the detail");
    CHECK(during.status == 200);
    const auto events = during.events();
    REQUIRE(events.size() == 4);  // role, thought, error, done
    CHECK(events[2].contains("error"));
    CHECK(events[3] == "[DONE]");
    CHECK(during.body.find("\"finish_reason\":\"") == std::string::npos);
  }
  b.check_idle();
  CHECK(b.finished("error") == 12);
  CHECK(b.finished("stop") == 0);
}

TEST_CASE("an image becomes patches at its place in the prompt") {
  std::ifstream in(WEFT_SOURCE_DIR "/models/micro-k3/images/blue_circle_84x56.png",
                   std::ios::binary);
  const std::string png((std::istreambuf_iterator<char>(in)), {});
  REQUIRE(!png.empty());
  static const char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string base64;
  for (size_t i = 0; i < png.size(); i += 3) {
    uint32_t v = 0;
    for (size_t k = 0; k < 3; ++k)
      v = v << 8 | (i + k < png.size() ? static_cast<uint8_t>(png[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k)
      base64 += i + k > png.size() ? '=' : kDigits[v >> (18 - 6 * k) & 63];
  }
  const Json part{{"type", "image_url"},
                  {"image_url", {{"url", "data:image/png;base64," + base64}}}};
  const Json text{{"type", "text"}, {"text", "What is this?"}};
  Json message{{"role", "user"}};
  message["content"] = Json::array({part, text, part});
  GatewayBench b;
  Json extra = Json::object();
  extra["messages"] = Json::array({message});
  FakeClient& client = b.chat(extra);
  b.wait_sequences(1);
  const wire::Generate& g = b.backend.sequences[1].generate;
  REQUIRE(g.media_size() == 2);
  int last_end = 0;
  for (const wire::Media& m : g.media()) {
    CHECK(m.grid_t() == 1);
    CHECK(m.grid_h() == 4);
    CHECK(m.grid_w() == 6);
    CHECK(m.rows() == 6);
    CHECK(m.patches().size() == 24 * 3 * 14 * 14 * sizeof(float));
    const int begin = static_cast<int>(m.first_position()), end = begin + 6;
    REQUIRE(begin > last_end);
    REQUIRE(end < g.prompt_size());
    for (int i = begin - 1; i <= end; ++i) CHECK((g.prompt(i) == 1813) == (i >= begin && i < end));
    last_end = end;
  }
  CHECK(std::count(g.prompt().begin(), g.prompt().end(), 1813) == 12);
  b.backend.tokens(1, turn("", "a circle"), wire::FINISH_STOP);
  CHECK(client.json()["usage"]["prompt_tokens"] == g.prompt_size() - 3);

  b.backend.mutable_info().ready.set_accepts_images(false);
  FakeClient& refused = b.chat(extra);
  b.until([&] { return refused.done(); });
  CHECK(refused.status == 400);
  b.check_idle();
}

TEST_CASE("requests that cannot run are refused before the worker sees them") {
  GatewayBench b;
  const auto refused = [&](const Json& extra, int status, const std::string& needle) {
    CAPTURE(extra.dump());
    FakeClient& client = b.chat(extra);
    b.until([&] { return client.done(); });
    CHECK(client.status == status);
    CHECK_MESSAGE(client.body.find(needle) != std::string::npos, client.body);
  };
  refused({{"logit_bias", {{"2048", 1}}}}, 400, "outside the vocabulary of 2048");
  refused({{"stop_token_ids", {2048}}}, 400, "stop_token_ids");
  refused({{"model", "other"}}, 404, "model_not_found");
  refused({{"messages", Json::array()}}, 400, "messages");
  b.backend.mutable_info().ready.set_max_context(20);
  refused(Json::object(), 400, "context_length_exceeded");
  b.backend.mutable_info().state = gateway::ReplicaState::kLoading;
  refused(Json::object(), 503, "loading");
  CHECK(b.clients.back()->header("retry-after") == "5");
  FakeClient& broken = b.send("POST", "/v1/chat/completions", "{");
  b.until([&] { return broken.done(); });
  CHECK(broken.status == 400);
  CHECK(b.backend.sequences.empty());
  b.backend.mutable_info().state = gateway::ReplicaState::kReady;
  b.check_idle();
}

TEST_CASE("an alias is served under its own name; logit bias and sampling travel") {
  GatewayBench b;
  FakeClient& client = b.chat({{"model", "alias"},
                               {"logit_bias", {{"2047", -5}}},
                               {"temperature", 0.5},
                               {"max_tokens", 9},
                               {"min_tokens", 20},
                               {"ignore_eos", true},
                               {"stop_token_ids", {17}},
                               {"priority", 3}});
  b.wait_sequences(1);
  const wire::Sampling& s = b.backend.sequences[1].generate.sampling();
  CHECK(s.bias_ids(0) == 2047);
  CHECK(s.bias_values(0) == -5);
  CHECK(s.temperature() == 0.5f);
  CHECK(s.max_tokens() == 9);
  CHECK(s.min_tokens() == 9);
  CHECK(Ids(s.stop_ids().begin(), s.stop_ids().end()) == Ids{17});
  CHECK(b.backend.sequences[1].generate.priority() == 3);
  b.backend.tokens(1, {17}, wire::FINISH_STOP);
  CHECK(client.json()["model"] == "alias");
  CHECK(client.json()["choices"][0]["stop_reason"] == 17);
  b.check_idle();
}
