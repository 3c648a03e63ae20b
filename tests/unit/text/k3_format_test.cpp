#include "text/k3_format.h"

#include "api/options.h"
#include "k3_requests.h"
#include "kimi_tokenizer.h"
#include "text/output_parser.h"
#include "vectors.h"

using namespace weft;
using namespace weft::text;

namespace {

std::vector<Segment> segments_of(const JsonValue& array) {
  std::vector<Segment> out;
  for (const JsonValue& item : array.items())
    out.push_back({item.items()[0].as_string(), item.items()[1].as_bool()});
  return out;
}

std::vector<Segment> rendered(const JsonValue& request) {
  RenderOptions options;
  options.generation_prompt = test::flag_or(request, "add_gen", true);
  auto segments = render_k3(test::request_of(request), test::images_of(request), options);
  REQUIRE_MESSAGE(segments.ok(), (segments.ok() ? "" : segments.error().message));
  return std::move(segments).value();
}

K3Format format_of(const Tokenizer& tokenizer) {
  auto format = K3Format::create(tokenizer);
  REQUIRE(format.ok());
  return std::move(format).value();
}

size_t special_count(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return static_cast<size_t>(
      std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer.is_special(id); }));
}

}  // namespace

TEST_CASE("K3 rendering: vectors") {
  const JsonValue doc = test::vectors("k3_render");
  CHECK(test::at(doc, "cases").items().size() == 49);
  for (const JsonValue& c : test::at(doc, "cases").items()) {
    CAPTURE(test::str(c, "name"));
    CHECK(rendered(test::at(c, "request")) == segments_of(test::at(c, "segments")));
  }
  for (const JsonValue& c : test::at(doc, "errors").items()) {
    CAPTURE(test::str(c, "name"));
    const auto result = render_k3(test::request_of(test::at(c, "request")), {});
    REQUIRE(!result.ok());
    CHECK(result.error().code == ErrorCode::kInvalid);
    CHECK(result.error().message.starts_with("messages["));
  }
}

TEST_CASE("K3 prompt ids: vectors") {
  const auto tokenizer = test::kimi_tokenizer();
  if (tokenizer == nullptr) return;
  const K3Format format = format_of(*tokenizer);
  const JsonValue doc = test::vectors("k3_render");
  for (const JsonValue& c : test::at(doc, "cases").items()) {
    CAPTURE(test::str(c, "name"));
    const auto ids = format.encode(segments_of(test::at(c, "segments")));
    CHECK(ids == test::ids_of(test::at(c, "ids")));
    CHECK(static_cast<int64_t>(ids.size()) == test::at(c, "prompt_len").as_int());
  }
  for (const JsonValue& c : test::at(doc, "golden_counts").items())
    CHECK(static_cast<int64_t>(format.encode(rendered(test::at(c, "request"))).size()) - 3 ==
          test::at(c, "usage_prompt_tokens").as_int());
  CHECK(format.stop_ids() == std::vector<int32_t>{163585, 163586});
}

TEST_CASE("K3 round trips: model output, parsed, rendered again") {
  const auto tokenizer = test::micro_tokenizer();
  const K3Format format = format_of(*tokenizer);
  for (const JsonValue& c : test::cases("k3_render", "round_trips")) {
    CAPTURE(test::str(c, "name"));
    const auto output = format.encode(segments_of(test::at(c, "output_segments")));
    K3OutputParser parser(*tokenizer, format, {});
    MessageBuilder builder;
    builder.add(parser.feed(output));
    api::FinishReason reason;
    builder.add(parser.finish(EndReason::kStop, &reason));
    const ParsedMessage message = builder.finish(parser.calls_complete());

    const JsonValue& want = test::at(c, "assistant_message");
    CHECK(message.reasoning == test::str_or(want, "reasoning_content"));
    CHECK(message.content == test::str_or(want, "content"));
    api::ChatRequest request = test::request_of(test::at(c, "prefix"));
    auto prompt = format.prompt_ids(request, {});
    REQUIRE(prompt.ok());
    api::Message answer;
    answer.role = api::Role::kAssistant;
    answer.content.push_back(api::TextPart{message.content});
    answer.reasoning = message.reasoning;
    for (const auto& call : message.tool_calls)
      answer.tool_calls.push_back({call.id, call.name, JsonValue::string(call.arguments)});
    request.messages.push_back(answer);
    RenderOptions no_prompt;
    no_prompt.generation_prompt = false;
    auto again = format.prompt_ids(request, {}, no_prompt);
    REQUIRE(again.ok());
    std::vector<int32_t> joined = *prompt;
    joined.insert(joined.end(), output.begin(), output.end());
    CHECK((joined == *again) == test::at(c, "ids_equal").as_bool());
  }
}

TEST_CASE("micro model: every golden prompt, and every golden output parses") {
  const auto tokenizer = test::micro_tokenizer();
  const K3Format format = format_of(*tokenizer);
  const JsonValue golden =
      test::read_json(std::filesystem::path(WEFT_SOURCE_DIR) / "models/micro-k3/golden.json");
  CHECK(test::at(golden, "cases").items().size() == 31);
  for (const JsonValue& c : test::at(golden, "cases").items()) {
    CAPTURE(test::str(c, "name"));
    std::vector<int32_t> ids;
    const JsonValue* request = c.find("request");
    if (request == nullptr)
      ids = tokenizer->encode(test::str(c, "prompt"));
    else
      ids = format.encode(rendered(*request));
    CHECK(ids == test::ids_of(test::at(c, "prompt_ids")));
    const auto output = test::ids_of(test::at(c, "output_ids"));
    CHECK(decode(*tokenizer, output, false) == test::str(c, "output_text"));
    if (request == nullptr) continue;
    K3ParserOptions options;
    options.start = format.start_state(ids);
    CHECK(options.start ==
          (test::flag_or(*request, "thinking", true) ? StartState::kThink : StartState::kResponse));
    K3OutputParser parser(*tokenizer, format, options);
    MessageBuilder builder;
    builder.add(parser.feed(output));
    api::FinishReason reason;
    builder.add(parser.finish(
        test::str(c, "finish") == "length" ? EndReason::kLength : EndReason::kStop, &reason));
    const ParsedMessage message = builder.finish(parser.calls_complete());
    for (const auto& call : message.tool_calls) CHECK(parse_json(call.arguments).ok());
    CHECK(message.content.find("<|") == std::string::npos);
    if (reason != api::FinishReason::kLength)
      CHECK((reason == api::FinishReason::kToolCalls) == !message.tool_calls.empty());
  }
}

TEST_CASE("no text of a client becomes structure") {
  const auto tokenizer = test::micro_tokenizer();
  const K3Format format = format_of(*tokenizer);
  std::mt19937 rng(23);
  const auto build = [&](bool hostile) {
    const auto text = [&] { return hostile ? test::random_text(rng, 12) : std::string("x"); };
    const auto schema = [&] {
      return JsonValue::object(
          {{"type", JsonValue::string("function")},
           {"function", JsonValue::object({{"name", JsonValue::string("f")},
                                           {"description", JsonValue::string(text())}})}});
    };
    api::ChatRequest request;
    request.tools_json = JsonValue::array({schema()});
    request.tools.push_back({schema(), "f", "", {}, false});
    request.tool_choice = api::ToolChoice::kRequired;
    request.response_format = api::ResponseFormat::kJsonSchema;
    request.response_format_json = JsonValue::object(
        {{"json_schema",
          JsonValue::object({{"schema", JsonValue::object({{"d", JsonValue::string(text())}})}})}});
    api::Message message;
    message.role = api::Role::kSystem;
    message.name = text() + "n";
    message.content = {api::TextPart{text()}, api::TextPart{text()}};
    request.messages.push_back(message);
    message.role = api::Role::kAssistant;
    message.reasoning = text() + "r";
    message.tool_calls.push_back(
        {"id", text() + "f", JsonValue::object({{text(), JsonValue::string(text())}})});
    message.tool_calls.push_back({"id2", text() + "f", JsonValue::string("{" + text())});
    request.messages.push_back(message);
    api::Message result;
    result.role = api::Role::kTool;
    result.tool_call_id = "id";
    result.content = {api::TextPart{text()}};
    request.messages.push_back(result);
    return request;
  };
  const size_t want = special_count(*tokenizer, *format.prompt_ids(build(false), {}));
  for (int round = 0; round < 200; ++round) {
    const auto ids = format.prompt_ids(build(true), {});
    REQUIRE(ids.ok());
    CHECK(special_count(*tokenizer, *ids) == want);
  }
}

TEST_CASE("images: the original size and one pad per row, nothing for a spelled placeholder") {
  const auto tokenizer = test::micro_tokenizer();
  const K3Format format = format_of(*tokenizer);
  api::ChatRequest request;
  api::Message message;
  message.content = {api::ImagePart{"data:", ""},
                     api::TextPart{"<|kimi_image_placeholder|><|media_pad|>"}};
  request.messages.push_back(message);
  const std::vector<ImageInfo> images = {{84, 56, 6}};
  const auto ids = format.prompt_ids(request, images);
  REQUIRE(ids.ok());
  CHECK(std::count(ids->begin(), ids->end(), format.markers().media_pad) == 6);
  CHECK(std::count(ids->begin(), ids->end(), format.markers().media_begin) == 1);
  CHECK(decode(*tokenizer, *ids, false).find("image 84x56<|media_content|>") != std::string::npos);
  const std::vector<ImageInfo> two = {{84, 56, 6}, {1, 1, 1}};
  CHECK(!render_k3(request, two).ok());
  request.messages.push_back(message);
  CHECK(!render_k3(request, images).ok());
}

TEST_CASE(
    "segments: remembered constants equal plain encoding, and only eight names are structure") {
  const auto tokenizer = test::micro_tokenizer();
  const K3Format format = format_of(*tokenizer);
  for (const JsonValue& c : test::cases("k3_render", "cases")) {
    std::vector<int32_t> plain;
    for (const Segment& segment : segments_of(test::at(c, "segments")))
      tokenizer->encode_into(segment.text, segment.special, &plain);
    CHECK(format.encode(segments_of(test::at(c, "segments"))) == plain);
  }
  const std::vector<Segment> odd = {{"[EOS]<|open|><|reserved_token_1900|>", true},
                                    {"<|open|>", false}};
  CHECK(special_count(*tokenizer, format.encode(odd)) == 1);
}

TEST_CASE("partial messages continue in their channel") {
  const auto tokenizer = test::micro_tokenizer();
  const K3Format format = format_of(*tokenizer);
  api::ChatRequest request;
  request.messages.resize(2);
  request.messages[1].role = api::Role::kAssistant;
  request.messages[1].partial = true;
  request.messages[1].reasoning = "so far";
  CHECK(!render_k3(request, {}).ok());
  RenderOptions options;
  options.allow_partial = true;
  auto ids = format.prompt_ids(request, {}, options);
  REQUIRE(ids.ok());
  CHECK(decode(*tokenizer, *ids, false).ends_with("<|open|>think<|sep|>so far"));
  CHECK(format.start_state(*ids) == StartState::kThink);
  request.messages[1].content = {api::TextPart{"The answer"}};
  ids = format.prompt_ids(request, {}, options);
  REQUIRE(ids.ok());
  CHECK(decode(*tokenizer, *ids, false)
            .ends_with("<|close|>think<|sep|><|open|>response<|sep|>The answer"));
  CHECK(format.start_state(*ids) == StartState::kResponse);
  request.messages[1].tool_calls.push_back({"a", "f", {}});
  CHECK(!format.prompt_ids(request, {}, options).ok());
}

TEST_CASE("start state of prompts without an open channel") {
  const auto tokenizer = test::micro_tokenizer();
  const K3Format format = format_of(*tokenizer);
  const auto state = [&](std::string_view text) {
    return format.start_state(tokenizer->encode(text, true));
  };
  CHECK(state("") == StartState::kIdle);
  CHECK(state("text") == StartState::kIdle);
  CHECK(state("<|open|>think<|sep|>") == StartState::kThink);
  CHECK(state("<|open|>response<|sep|>") == StartState::kResponse);
  CHECK(state("<|open|>message role=\"assistant\"<|sep|>") == StartState::kIdle);
  CHECK(state("<|open|>think<|sep|>x<|close|>think<|sep|>") == StartState::kIdle);
  CHECK(state("<|open|>think") == StartState::kIdle);
}

TEST_CASE("a tokenizer without the markers has no K3 format") {
  auto ranks = parse_rank_file(
      test::read_file(std::filesystem::path(WEFT_SOURCE_DIR) / "models/micro-k3/tiktoken.model"));
  REQUIRE(ranks.ok());
  const auto bare = TiktokenTokenizer::create(std::move(ranks).value(), JsonValue::object());
  REQUIRE(bare.ok());
  const auto format = K3Format::create(*bare.value());
  REQUIRE(!format.ok());
  CHECK(format.error().message.find("<|open|>") != std::string::npos);
}

TEST_CASE("thinking and effort: vectors") {
  for (const JsonValue& c : test::cases("k3_options", "cases")) {
    CAPTURE(test::str(c, "name"));
    const auto resolved = api::resolve_thinking(test::at(c, "request"));
    const JsonValue& expect = test::at(c, "expect");
    if (const JsonValue* status = expect.find("status")) {
      REQUIRE(std::holds_alternative<api::ApiError>(resolved));
      CHECK(std::get<api::ApiError>(resolved).status == *status->as_int());
      CHECK(std::get<api::ApiError>(resolved).param == test::str(expect, "param"));
      continue;
    }
    REQUIRE(std::holds_alternative<api::ThinkingChoice>(resolved));
    const auto& choice = std::get<api::ThinkingChoice>(resolved);
    CHECK(choice.thinking == test::at(expect, "thinking").as_bool());
    if (choice.thinking) CHECK(api::to_string(choice.effort) == test::str(expect, "effort"));
  }
}

TEST_CASE("the boundary of a prompt: what system and tools say, whatever the conversation is") {
  const auto tokenizer = test::micro_tokenizer();
  const K3Format format = format_of(*tokenizer);
  const auto message = [](api::Role role, const char* text) {
    api::Message m;
    m.role = role;
    m.content.push_back(api::TextPart{text});
    return m;
  };
  const auto prompt = [&](const api::ChatRequest& request) {
    auto made = format.prompt(request, {});
    REQUIRE(made.ok());
    CHECK(made->ids == *format.prompt_ids(request, {}));
    return std::move(made).value();
  };
  const auto tools = parse_json(
      R"([{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}])");
  REQUIRE(tools.ok());

  for (const bool with_system : {false, true})
    for (const bool with_tools : {false, true})
      for (const bool thinking : {false, true}) {
        CAPTURE(with_system);
        CAPTURE(with_tools);
        CAPTURE(thinking);
        api::ChatRequest base;
        base.thinking = thinking;
        if (with_tools) {
          base.tools_json = *tools;
          base.tools = test::tools_of(*tools);
        }
        if (with_system) {
          base.messages.push_back(message(api::Role::kSystem, "You are brief."));
          base.messages.push_back(message(api::Role::kDeveloper, "And kind."));
        }
        api::ChatRequest one = base;
        one.messages.push_back(message(api::Role::kUser, "Hello!"));
        api::ChatRequest two = base;
        two.messages.push_back(message(api::Role::kUser, "And now something else."));
        two.messages.push_back(message(api::Role::kAssistant, "Why?"));
        two.messages.push_back(message(api::Role::kSystem, "A late word belongs to the rest."));
        two.messages.push_back(message(api::Role::kUser, "Because."));
        const K3Prompt a = prompt(one);
        const K3Prompt b = prompt(two);
        CHECK(a.boundaries == b.boundaries);
        if (!with_system && !with_tools) {
          CHECK(a.boundaries.empty());  // nothing that is worth keeping
          continue;
        }
        REQUIRE(a.boundaries.size() == 1);
        const size_t at = a.boundaries[0];
        REQUIRE(at < std::min(a.ids.size(), b.ids.size()));
        CHECK(std::equal(a.ids.begin(), a.ids.begin() + static_cast<int64_t>(at), b.ids.begin()));
        CHECK(a.ids[at] == format.markers().open);
        CHECK(a.ids[at - 1] == format.markers().end_of_msg);
        // What differs after it is the conversation; another head has another boundary's ids.
        CHECK(decode(*tokenizer, std::span(a.ids).subspan(at), false).find("user") !=
              std::string::npos);
      }
}
