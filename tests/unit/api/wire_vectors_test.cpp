// The wire_formats.json vectors: chat streams and bodies, errors, Anthropic and Responses, in both
// directions.
#include <map>

#include "api/anthropic.h"
#include "api/chat_writer.h"
#include "api/errors.h"
#include "api/parse_chat.h"
#include "api/responses.h"
#include "unit/api/wire_fixture.h"

using namespace weft;
using namespace weft::api;
using namespace weft::test;

namespace {

constexpr Usage kUsage{
    .prompt_tokens = 20, .completion_tokens = 7, .cached_tokens = 16, .reasoning_tokens = 4};

// The vectors show the engine's counts as they are, and only OpenAI's fields.
ApiPolicy plain_policy() {
  ApiPolicy policy;
  policy.usage_excludes_opener = false;
  policy.usage_moonshot_fields = false;
  return policy;
}

ChatWriterOptions options_for(const JsonValue& request) {
  JsonValue body = *parse_json(R"({"model":"kimi-k3","messages":[{"role":"user","content":"q"}]})");
  ApiPolicy policy = plain_policy();
  for (const auto& [key, value] : request.members()) {
    if (key == "_config")
      policy.reasoning_alias = value.find("reasoning_alias")->as_bool();
    else
      body.members().emplace_back(key, value);
  }
  const auto parsed = parse_chat_request(body, policy);
  REQUIRE(parsed.ok());
  return ChatWriterOptions::from(parsed.value(), policy, {"chatcmpl-1", 1700000000, "kimi-k3"});
}

StopReason stop_of(const Step& step) {
  return step.stop_reason.empty() ? StopReason() : StopReason(step.stop_reason);
}

}  // namespace

TEST_CASE("chat stream vectors") {
  const JsonValue vectors = load_vectors("wire_formats.json");
  for (const JsonValue& row : vectors.find("chat_stream")->items()) {
    CAPTURE(text_of(row, "name"));
    ChatStreamWriter writer(options_for(*row.find("request")));
    std::string stream;
    bool failed = false;
    writer.start({}, {}, &stream);
    for (const JsonValue& item : row.find("internal")->items()) {
      const Step step = read_step(item);
      if (step.has_delta) writer.delta(step.choice, step.delta, {}, &stream);
      if (step.finish != FinishReason::kNone)
        writer.finish(step.choice, step.finish, stop_of(step), {}, &stream);
      if (step.error != nullptr) {
        writer.error(internal_error(text_of(*step.error, "message")), &stream);
        failed = true;
      }
    }
    if (!failed) writer.end(kUsage, &stream);
    const auto events = split_sse(stream);
    const auto& expected = row.find("events")->items();
    REQUIRE(events.size() == expected.size());
    Matcher matcher;
    for (size_t i = 0; i < events.size(); ++i) {
      const JsonValue actual =
          events[i].data == "[DONE]" ? JsonValue::string("[DONE]") : *parse_json(events[i].data);
      CHECK_MESSAGE(matcher.match(expected[i], actual), matcher.message());
    }
  }
}

TEST_CASE("chat body vectors") {
  const JsonValue vectors = load_vectors("wire_formats.json");
  for (const JsonValue& row : vectors.find("chat_full")->items()) {
    CAPTURE(text_of(row, "name"));
    ChatChoice choice;
    for (const JsonValue& item : row.find("internal")->items()) {
      const Step step = read_step(item);
      if (step.has_delta) choice.add(step.delta);
      if (step.finish != FinishReason::kNone) choice.finish(step.finish, stop_of(step));
    }
    const std::string body =
        chat_response_json(options_for(*row.find("request")), {choice}, {}, kUsage);
    Matcher matcher;
    CHECK_MESSAGE(matcher.match(*row.find("body"), *parse_json(body)), matcher.message());
  }
}

TEST_CASE("error vectors") {
  const std::map<std::string, ApiError> kErrors = {
      {"bad_request", bad_request("tools[0].type", "no")},
      {"context_length", context_length_exceeded(100, 101)},
      {"unauthorized", unauthorized()},
      {"model_not_found", model_not_found("nope")},
      {"route_not_found", route_not_found("POST", "/v1/nope")},
      {"body_too_large", body_too_large(64)},
      {"overloaded", overloaded()},
      {"rate_limited", rate_limited()},
      {"internal", internal_error()},
      {"draining", unavailable("draining")}};
  const JsonValue vectors = load_vectors("wire_formats.json");
  for (const JsonValue& row : vectors.find("errors")->items()) {
    const std::string kind = text_of(row, "kind");
    CAPTURE(kind);
    REQUIRE(kErrors.count(kind) == 1);
    const ApiError& error = kErrors.at(kind);
    CHECK(error.status == *row.find("status")->as_int());
    Matcher matcher;
    CHECK_MESSAGE(matcher.match(*row.find("body"), *parse_json(error_json(error))),
                  matcher.message());
    CHECK(retry_after_s(error).has_value() == (row.find("headers") != nullptr));
  }
  for (const JsonValue& row : vectors.find("anthropic_errors")->items()) {
    const std::string kind = text_of(row, "kind");
    CAPTURE(kind);
    const ApiError& error = kErrors.at(kind);
    CHECK(anthropic_status(error) == *row.find("status")->as_int());
    Matcher matcher;
    CHECK_MESSAGE(
        matcher.match(*row.find("body"), *parse_json(anthropic_error_json(error, "req_1"))),
        matcher.message());
  }
}

TEST_CASE("internal errors say nothing about the inside") {
  for (ErrorCode code :
       {ErrorCode::kInternal, ErrorCode::kCorrupt, ErrorCode::kIo, ErrorCode::kPeer}) {
    const ApiError error = from_error(make_error(code, "secret path"));
    CHECK(error.status == 500);
    CHECK(error.message.find("secret") == std::string::npos);
  }
  CHECK(from_error(make_error(ErrorCode::kInvalid, "bad x")).status == 400);
  CHECK(from_error(make_error(ErrorCode::kInvalid, "bad x")).message == "bad x");
  CHECK(from_error(make_error(ErrorCode::kUnavailable, "w")).status == 503);
  CHECK(from_error(make_error(ErrorCode::kTimeout, "w")).status == 504);
}

TEST_CASE("Anthropic requests become chat requests") {
  const JsonValue vectors = load_vectors("wire_formats.json");
  for (const JsonValue& row : vectors.find("anthropic_to_chat")->items()) {
    CAPTURE(text_of(row, "name"));
    const auto chat = anthropic_to_chat(*row.find("anthropic"));
    REQUIRE_MESSAGE(chat.ok(), (chat.ok() ? "" : chat.error().message));
    Matcher matcher;
    CHECK_MESSAGE(matcher.match(*row.find("chat"), chat.value()), matcher.message());
  }
}

TEST_CASE("Anthropic stream vectors") {
  const JsonValue vectors = load_vectors("wire_formats.json");
  for (const JsonValue& row : vectors.find("anthropic_stream")->items()) {
    CAPTURE(text_of(row, "name"));
    AnthropicStreamWriter writer({"msg_1", 1700000000, "kimi-k3"}, plain_policy());
    std::string stream;
    writer.start(kUsage, &stream);
    for (const JsonValue& item : row.find("internal")->items()) {
      const Step step = read_step(item);
      if (step.has_delta) writer.delta(step.delta, &stream);
      if (step.finish != FinishReason::kNone)
        writer.finish(step.finish, stop_of(step), kUsage, &stream);
    }
    const auto events = split_sse(stream);
    const auto& expected = row.find("events")->items();
    REQUIRE(events.size() == expected.size());
    Matcher matcher;
    for (size_t i = 0; i < events.size(); ++i) {
      CHECK(events[i].event == text_of(expected[i], "event"));
      CHECK_MESSAGE(matcher.match(*expected[i].find("data"), *parse_json(events[i].data)),
                    matcher.message());
    }
  }
}

TEST_CASE("Responses requests become chat requests") {
  const JsonValue vectors = load_vectors("wire_formats.json");
  for (const JsonValue& row : vectors.find("responses_to_chat")->items()) {
    CAPTURE(text_of(row, "name"));
    const auto chat = responses_to_chat(*row.find("responses"));
    REQUIRE_MESSAGE(chat.ok(), (chat.ok() ? "" : chat.error().message));
    Matcher matcher;
    CHECK_MESSAGE(matcher.match(*row.find("chat"), chat.value()), matcher.message());
  }
}

TEST_CASE("Responses stream vectors") {
  const JsonValue vectors = load_vectors("wire_formats.json");
  for (const JsonValue& row : vectors.find("responses_stream")->items()) {
    CAPTURE(text_of(row, "name"));
    const JsonValue body = *parse_json(R"({"model":"kimi-k3","input":"q","max_output_tokens":5})");
    ResponsesWriter writer({"resp_1", 1700000000, "kimi-k3"}, plain_policy(), body);
    ResponsesWriter whole({"resp_1", 1700000000, "kimi-k3"}, plain_policy(), body);
    std::string stream;
    writer.start(&stream);
    whole.start(nullptr);
    for (const JsonValue& item : row.find("internal")->items()) {
      const Step step = read_step(item);
      if (step.has_delta) writer.delta(step.delta, &stream), whole.delta(step.delta, nullptr);
      if (step.finish == FinishReason::kNone) continue;
      writer.finish(step.finish, stop_of(step), kUsage, &stream);
      whole.finish(step.finish, stop_of(step), kUsage, nullptr);
    }
    const auto events = split_sse(stream);
    const auto& types = row.find("event_types")->items();
    REQUIRE(events.size() == types.size());
    for (size_t i = 0; i < events.size(); ++i) {
      CHECK(events[i].event == types[i].as_string());
      const JsonValue data = *parse_json(events[i].data);
      CHECK(text_of(data, "type") == types[i].as_string());
      CHECK(data.find("sequence_number")->as_int() == static_cast<int64_t>(i));
    }
    const JsonValue last = *parse_json(events.back().data);
    const JsonValue& response = *last.find("response");
    CHECK(dump_json(response) == whole.response_json());
    CHECK(response.find("max_output_tokens")->as_int() == 5);
    Matcher matcher;
    if (const JsonValue* items = row.find("output_items"))
      CHECK_MESSAGE(matcher.match(*items, *response.find("output")), matcher.message());
    if (const JsonValue* details = row.find("incomplete_details"))
      CHECK_MESSAGE(matcher.match(*details, *response.find("incomplete_details")),
                    matcher.message());
  }
}
