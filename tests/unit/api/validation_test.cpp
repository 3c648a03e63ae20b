// Every body of api_validation.json under every sampling policy that the row names.
#include <algorithm>

#include "api/errors.h"
#include "api/options.h"
#include "api/parse_chat.h"
#include "unit/api/wire_fixture.h"

using namespace weft;
using namespace weft::api;
using namespace weft::test;

namespace {

ApiPolicy served() {
  ApiPolicy policy;
  policy.models = {"kimi-k3"};
  policy.vocab_size = 163840;
  return policy;
}

ChatRequest accepted(const char* body) {
  auto parsed = parse_chat_request(*parse_json(body), served());
  REQUIRE_MESSAGE(parsed.ok(), (parsed.ok() ? "" : parsed.error().message));
  return parsed.value();
}
ApiError refused(const std::string& body, const ApiPolicy& policy = served()) {
  auto parsed = parse_chat_request(*parse_json(body), policy);
  REQUIRE(!parsed.ok());
  return parsed.error();
}
std::string with(const char* fields) {
  return std::string(R"({"model":"kimi-k3","messages":[{"role":"user","content":"hi"}],)") +
         fields + "}";
}

}  // namespace

TEST_CASE("chat validation vectors") {
  const JsonValue vectors = load_vectors("api_validation.json");
  const std::pair<const char*, SamplingPolicy> kPolicies[] = {{"honour", SamplingPolicy::kHonour},
                                                              {"ignore", SamplingPolicy::kIgnore},
                                                              {"reject", SamplingPolicy::kReject}};
  size_t checked = 0;
  for (const JsonValue& row : vectors.find("cases")->items()) {
    for (const auto& [name, sampling_policy] : kPolicies) {
      const std::string only = text_of(row, "policy");
      if (!only.empty() && only != name) continue;
      CAPTURE(text_of(row, "name"));
      CAPTURE(name);
      ApiPolicy policy = served();
      policy.sampling_policy = sampling_policy;
      const auto parsed = parse_chat_request(*row.find("body"), policy);
      const int64_t status = *row.find("status")->as_int();
      CHECK_MESSAGE((parsed.ok() ? 200 : parsed.error().status) == status,
                    (parsed.ok() ? "" : parsed.error().message));
      if (!parsed.ok() && status != 200) {
        CHECK(parsed.error().param == text_of(row, "param"));
        CHECK(!parsed.error().message.empty());
        if (row.find("code")) CHECK(parsed.error().code == text_of(row, "code"));
      }
      ++checked;
    }
  }
  CHECK(vectors.find("cases")->items().size() == 144);
  CHECK(checked > 250);
}

TEST_CASE("raw bodies of the http vectors that need no socket") {
  const JsonValue vectors = load_vectors("api_validation.json");
  size_t checked = 0;
  for (const JsonValue& row : vectors.find("http")->items()) {
    std::string body = text_of(row, "raw_body");
    if (const JsonValue* nesting = row.find("body_nesting"))
      body = std::string(static_cast<size_t>(*nesting->as_int()), '[');
    const std::string hex = text_of(row, "raw_body_hex");
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
      body += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    if (body.empty() || *row.find("status")->as_int() != 400) continue;
    CAPTURE(text_of(row, "name"));
    const auto parsed = parse_body(body);
    REQUIRE(!parsed.ok());
    CHECK(parsed.error().status == 400);
    ++checked;
  }
  CHECK(checked == 4);
}

TEST_CASE("thinking and effort vectors") {
  const JsonValue vectors = load_vectors("k3_options.json");
  for (const JsonValue& row : vectors.find("cases")->items()) {
    CAPTURE(text_of(row, "name"));
    const auto resolved = resolve_thinking(*row.find("request"));
    const JsonValue& expect = *row.find("expect");
    if (expect.find("status")) {
      REQUIRE(std::holds_alternative<ApiError>(resolved));
      CHECK(std::get<ApiError>(resolved).status == *expect.find("status")->as_int());
      CHECK(std::get<ApiError>(resolved).param == text_of(expect, "param"));
      continue;
    }
    REQUIRE(std::holds_alternative<ThinkingChoice>(resolved));
    const auto& choice = std::get<ThinkingChoice>(resolved);
    CHECK(choice.thinking == expect.find("thinking")->as_bool());
    if (choice.thinking) CHECK(to_string(choice.effort) == text_of(expect, "effort"));
  }
  const JsonValue medium = JsonValue::object({{"reasoning_effort", JsonValue::string("medium")}});
  CHECK(std::holds_alternative<ThinkingChoice>(resolve_thinking(medium, false)));
  CHECK(std::holds_alternative<ApiError>(resolve_thinking(medium, true)));
}

TEST_CASE("a full request arrives in every field") {
  const ChatRequest r = accepted(R"({"model":"kimi-k3","stream":true,
    "stream_options":{"include_usage":true,"continuous_usage_stats":true},
    "messages":[
      {"role":"system","content":"S","name":"boss"},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"reasoning":"why","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":{"x":1}}}]},
      {"role":"tool","tool_call_id":"c1","content":"ok","name":"f"}],
    "tools":[{"type":"function","extra":1,"function":{"name":"f","description":"d","strict":true,
      "parameters":{"type":"object"}}}],
    "tool_choice":"none","parallel_tool_calls":false,"temperature":0.5,"top_p":0.5,"top_k":7,"min_p":0.1,
    "presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.5,"seed":-3,"logit_bias":{"5":-100},
    "stop_token_ids":[1,2],"ignore_eos":true,"min_tokens":4,"max_tokens":9,"max_completion_tokens":8,
    "logprobs":true,"top_logprobs":3,"stop":"X","include_stop_str_in_output":true,"reasoning_effort":"low",
    "include_reasoning":false,"priority":-2,"cache_salt":"s","request_id":"r-1","return_token_ids":true,
    "return_tokens_as_token_ids":true,"response_format":{"type":"json_object"}})");
  CHECK(r.model == "kimi-k3");
  REQUIRE(r.messages.size() == 4);
  CHECK(r.messages[0].name == "boss");
  CHECK(r.messages[1].content.size() == 2);
  CHECK(r.messages[1].content_is_array);
  CHECK(r.messages[2].content_is_null);
  CHECK(r.messages[2].reasoning == "why");
  CHECK(r.messages[2].tool_calls[0].arguments.is_object());
  CHECK(r.messages[3].tool_call_id == "c1");
  CHECK(r.messages[3].name == "f");
  CHECK(r.tools[0].strict);
  CHECK(r.tools[0].description == "d");
  CHECK(r.tools_json.items()[0].find("extra") != nullptr);
  CHECK(r.tool_choice == ToolChoice::kNone);
  CHECK(!r.parallel_tool_calls);
  const SamplingParams& s = r.sampling;
  CHECK(s.temperature == 0.5);
  CHECK(s.top_k == 7);
  CHECK(s.min_p == 0.1);
  CHECK(s.repetition_penalty == 1.5);
  CHECK(s.seed == -3);
  CHECK(s.logit_bias.at(5) == -100.0f);
  CHECK(s.stop_token_ids == std::vector<int32_t>{1, 2});
  CHECK(s.ignore_eos);
  CHECK(s.min_tokens == 4);
  CHECK(s.max_tokens == 8);  // max_completion_tokens wins
  CHECK(s.logprobs == 3);
  CHECK(r.stop == std::vector<std::string>{"X"});
  CHECK(r.include_stop_in_output);
  CHECK(r.stream.stream);
  CHECK(r.stream.continuous_usage);
  CHECK(r.thinking);
  CHECK(r.effort == Effort::kLow);
  CHECK(!r.include_reasoning);
  CHECK(r.priority == -2);
  CHECK(r.cache_salt == "s");
  CHECK(r.request_id == "r-1");
  CHECK(r.return_token_ids);
  CHECK(r.response_format == ResponseFormat::kJsonObject);
}

TEST_CASE("defaults, clamping and nvext") {
  const ChatRequest plain = accepted(with("\"user\":\"u\"").c_str());
  CHECK(plain.sampling.temperature == 1.0);
  CHECK(plain.sampling.top_p == 0.95);
  CHECK(!plain.sampling.max_tokens);
  CHECK(plain.sampling.logprobs == -1);
  CHECK(plain.effort == Effort::kMax);
  CHECK(accepted(with("\"max_tokens\":99999999").c_str()).sampling.max_tokens == 1048576);
  const ChatRequest hinted = accepted(
      with(R"("nvext":{"cache_salt":"z","agent_hints":{"priority":3},"annotations":[]})").c_str());
  CHECK(hinted.cache_salt == "z");
  CHECK(hinted.priority == 3);
  ApiPolicy ignore = served();
  ignore.sampling_policy = SamplingPolicy::kIgnore;
  const auto fixed =
      parse_chat_request(*parse_json(with("\"temperature\":0.1,\"top_p\":0.2")), ignore);
  REQUIRE(fixed.ok());
  CHECK(fixed->sampling.temperature == 1.0);
  CHECK(fixed->sampling.top_p == 0.95);
}

TEST_CASE("limits and foreign fields name their parameter") {
  CHECK(refused(with("\"functions\":[]")).param == "functions");
  CHECK(refused(with("\"modalities\":[\"text\",\"audio\"]")).param == "modalities");
  CHECK(accepted(with("\"modalities\":[\"text\"]").c_str()).messages.size() == 1);
  CHECK(refused(with("\"cache_salt\":\"\"")).param == "cache_salt");
  CHECK(refused(with("\"request_id\":\"a b\"")).param == "request_id");
  CHECK(refused(with("\"logit_bias\":{\"163840\":1}")).param == "logit_bias");
  CHECK(refused(with("\"stop_token_ids\":[163840]")).param == "stop_token_ids");
  CHECK(refused(with("\"seed\":99999999999999999999")).param == "seed");
  CHECK(refused(with("\"temperature\":1e999")).param == "temperature");
  CHECK(refused(with("\"repetition_penalty\":1e-9")).param == "repetition_penalty");
  // A top_p that a float cannot hold must stay the narrowest choice, not become "not set".
  const auto tiny = accepted(with("\"top_p\":1e-50").c_str()).sampling.top_p;
  CHECK(static_cast<float>(tiny) > 0.0f);
  CHECK(tiny <= 1e-6);
  std::string stops = "\"stop\":[";
  for (int i = 0; i < 17; ++i) stops += i == 0 ? "\"s\"" : ",\"s\"";
  CHECK(refused(with((stops + "]").c_str())).param == "stop");
  const std::string partial =
      R"({"model":"kimi-k3","messages":[{"role":"assistant","content":"a","partial":true}]})";
  CHECK(refused(partial).param == "messages[0].partial");
  ApiPolicy continuing = served();
  continuing.partial_messages = true;
  CHECK(parse_chat_request(*parse_json(partial), continuing).ok());
}

TEST_CASE("a body of very many values is refused before it is parsed; long text is not") {
  const auto list = [](const char* item, size_t count, const char* last) {
    std::string body = "{\"x\":[";
    for (size_t i = 0; i < count; ++i) body += item;
    return body + last + "]}";
  };
  CHECK(parse_body(list("1,", 2'000'000, "1")).ok());
  const auto many = parse_body(list("1,", 2'200'000, "1"));
  REQUIRE(!many.ok());
  CHECK(many.error().status == 400);
  CHECK(many.error().message.find("JSON values") != std::string::npos);
  CHECK(!parse_body(list("[],", 1'100'000, "1")).ok());
  CHECK(parse_body(R"({"x":"\")" + std::string(3'000'000, ',') + "[{\"}").ok());
}

TEST_CASE("images: count, size, forms and fetching are bounded by the policy") {
  const std::string png = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA";
  const auto body = [&](const std::string& url, int count) {
    std::string parts;
    for (int i = 0; i < count; ++i)
      parts += std::string(i == 0 ? "" : ",") + R"({"type":"image_url","image_url":{"url":")" +
               url + "\"}}";
    return R"({"model":"kimi-k3","messages":[{"role":"user","content":[)" + parts + "]}]}";
  };
  CHECK(parse_chat_request(*parse_json(body(png, 10)), served()).ok());
  CHECK(refused(body(png, 11)).param == "messages[0].content[10].image_url");
  CHECK(refused(body("ms://file", 1)).message.find("unsupported image url") != std::string::npos);
  CHECK(refused(body("https://h/a.png", 1)).message.find("unsupported image url") !=
        std::string::npos);
  CHECK(refused(body("data:image/png;base64,aGVsbG8gd29ybGQh", 1))
            .message.find("unsupported image format") != std::string::npos);
  CHECK(refused(body("data:image/png,abc", 1)).message.find("invalid image") != std::string::npos);
  ApiPolicy policy = served();
  policy.image_urls_http = true;
  CHECK(parse_chat_request(*parse_json(body("HTTPS://h/a.png", 1)), policy).ok());
  policy.image_bytes_max = 10;
  CHECK(refused(body(png, 1), policy).message.find("exceed the limit of 10") != std::string::npos);
}

TEST_CASE("what the engine cannot do is refused in one place") {
  const EngineFeatures none, all{.n_choices = true, .grammar = true, .images = true};
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}],)";
  const std::pair<std::string, std::string> kCases[] = {
      {with("\"n\":2"), "n"},
      {with((tools + "\"tool_choice\":\"required\"").c_str()), "tool_choice"},
      {with((tools + R"("tool_choice":{"type":"function","function":{"name":"f"}})").c_str()),
       "tool_choice"},
      {with(R"("response_format":{"type":"json_object"})"), "response_format"},
      {with(R"("structured_outputs":{"json":{}})"), "structured_outputs"},
      {R"({"model":"kimi-k3","messages":[{"role":"user","content":[{"type":"text","text":"t"},)"
       R"({"type":"image_url","image_url":"data:image/gif;base64,R0lGODlhAQAB"}]}]})",
       "messages[0].content[1].image_url"}};
  for (const auto& [body, param] : kCases) {
    const ChatRequest request = accepted(body.c_str());
    const auto reason = unsupported_reason(request, none);
    REQUIRE(reason);
    CHECK(reason->status == 400);
    CHECK(reason->code == "unsupported");
    CHECK(reason->param == param);
    CHECK(!unsupported_reason(request, all));
  }
  CHECK(!unsupported_reason(accepted(with((tools + "\"tool_choice\":\"auto\"").c_str()).c_str()),
                            none));
}

TEST_CASE("structured outputs in languages that no engine here knows") {
  const EngineFeatures all{.n_choices = true, .grammar = true, .images = true};
  const auto reason =
      unsupported_reason(accepted(with(R"("structured_outputs":{"grammar":"root"})").c_str()), all);
  REQUIRE(reason);
  CHECK(reason->param == "structured_outputs.grammar");
}

TEST_CASE("tool results find their call by id, place or name") {
  const auto body = [](const char* result) {
    return R"({"model":"kimi-k3","messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[)"
           R"({"id":"a","type":"function","function":{"name":"f","arguments":""}}]},)" +
           std::string(result) + "]}";
  };
  CHECK(parse_chat_request(
            *parse_json(body(R"({"role":"tool","tool_call_id":"zz","content":"1"})")), served())
            .ok());
  CHECK(
      refused(
          body(
              R"({"role":"tool","tool_call_id":"zz","content":"1"},{"role":"tool","tool_call_id":"yy","content":"1"})"))
          .param == "messages[3].tool_call_id");
  CHECK(parse_chat_request(
            *parse_json(body(R"({"role":"tool","tool_call_id":"a","content":"1"},)"
                             R"({"role":"tool","tool_call_id":"yy","tool":"g","content":null})")),
            served())
            .ok());
}
