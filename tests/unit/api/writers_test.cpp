// What the vectors do not show: usage variants, token ids, completions, models, tokenize,
// converters' refusals.
#include <cmath>

#include "api/anthropic.h"
#include "api/chat_writer.h"
#include "api/completion_writer.h"
#include "api/models_list.h"
#include "api/parse_chat.h"
#include "api/parse_completion.h"
#include "api/responses.h"
#include "api/tokenize.h"
#include "api/wire_json.h"
#include "unit/api/wire_fixture.h"

using namespace weft;
using namespace weft::api;
using namespace weft::test;

namespace {

constexpr Usage kUsage{
    .prompt_tokens = 20, .completion_tokens = 7, .cached_tokens = 19, .reasoning_tokens = 4};

ApiPolicy served() {
  ApiPolicy policy;
  policy.models = {"m"};
  policy.vocab_size = 1000;
  return policy;
}
Parsed<CompletionRequest> completion(const std::string& fields) {
  return parse_completion_request(*parse_json(R"({"model":"m",)" + fields + "}"), served());
}
std::string refused_param(const std::string& fields) {
  const auto parsed = completion(fields);
  return parsed.ok() ? "accepted" : parsed.error().param;
}
std::vector<JsonValue> payloads(const std::string& stream) {
  std::vector<JsonValue> out;
  for (const SseEvent& event : split_sse(stream))
    if (event.data != "[DONE]") out.push_back(*parse_json(event.data));
  return out;
}
const JsonValue& choice_of(const JsonValue& chunk) { return chunk.find("choices")->items()[0]; }

}  // namespace

TEST_CASE("usage: the opener is not counted, cached tokens never exceed the prompt") {
  std::string out;
  ApiPolicy policy;
  append_usage(out, reported_usage(kUsage, policy, true), policy);
  const JsonValue usage = *parse_json(out);
  CHECK(usage.find("prompt_tokens")->as_int() == 17);
  CHECK(usage.find("total_tokens")->as_int() == 24);
  CHECK(usage.find("cached_tokens")->as_int() == 17);
  CHECK(reported_usage(kUsage, policy, false).prompt_tokens == 20);
  CHECK(reported_usage({.prompt_tokens = 2}, policy, true).prompt_tokens == 0);
}

TEST_CASE("chat stream: continuous usage, usage in the final choice, token ids") {
  ChatWriterOptions options;
  options.head = {"id", 1, "m\"x"};
  options.continuous_usage = true;
  options.return_token_ids = true;
  options.policy.usage_in_final_choice = true;
  ChatStreamWriter writer(options);
  std::string stream;
  writer.start({5, 6}, {.prompt_tokens = 5}, &stream);
  writer.add_tokens(0, {1, 2});
  writer.delta(0, {Delta::Kind::kContent, 0, "", "a\n\x01", {}},
               {.prompt_tokens = 5, .completion_tokens = 2}, &stream);
  writer.add_tokens(0, {3});
  writer.finish(0, FinishReason::kStop, int32_t{77}, {.prompt_tokens = 5, .completion_tokens = 3},
                &stream);
  writer.end(kUsage, &stream);
  const auto chunks = payloads(stream);
  REQUIRE(chunks.size() == 3);
  CHECK(text_of(chunks[0], "model") == "m\"x");
  CHECK(dump_json(*chunks[0].find("prompt_token_ids")) == "[5,6]");
  CHECK(chunks[1].find("prompt_token_ids") == nullptr);
  CHECK(dump_json(*choice_of(chunks[0]).find("token_ids")) == "[]");
  CHECK(dump_json(*choice_of(chunks[1]).find("token_ids")) == "[1,2]");
  CHECK(dump_json(*choice_of(chunks[2]).find("token_ids")) == "[3]");
  CHECK(chunks[1].find("usage")->find("completion_tokens")->as_int() == 2);
  CHECK(choice_of(chunks[2]).find("usage")->find("completion_tokens")->as_int() == 3);
  CHECK(choice_of(chunks[2]).find("stop_reason")->as_int() == 77);
  CHECK(choice_of(chunks[1]).find("delta")->find("content")->as_string() == "a\n\x01");
}

TEST_CASE("chat stream: reasoning can be left out, its token ids travel with the next chunk") {
  ChatWriterOptions options;
  options.include_reasoning = false;
  options.return_token_ids = true;
  ChatStreamWriter writer(options);
  std::string stream;
  writer.start({}, {}, &stream);
  writer.add_tokens(0, {1});
  writer.delta(0, {Delta::Kind::kReasoning, 0, "", "r", {}}, {}, &stream);
  writer.add_tokens(0, {2});
  writer.delta(0, {Delta::Kind::kContent, 0, "", "c", {}}, {}, &stream);
  const auto chunks = payloads(stream);
  REQUIRE(chunks.size() == 2);
  CHECK(dump_json(*choice_of(chunks[1]).find("token_ids")) == "[1,2]");
}

TEST_CASE(
    "chat body: a call cut off by the length limit is removed, token ids and logprobs are "
    "complete") {
  ChatChoice choice;
  choice.add({Delta::Kind::kContent, 0, "", "x", {{9, "x", -0.5, {}}, {8, "\xFF", -INFINITY, {}}}});
  choice.add({Delta::Kind::kToolOpen, 0, "c0", "f", {}});
  choice.add({Delta::Kind::kToolArguments, 0, "", "{\"a\":1}", {}});
  choice.add({Delta::Kind::kToolOpen, 1, "c1", "g", {}});
  choice.add({Delta::Kind::kToolArguments, 1, "", "{\"a\":", {}});
  choice.token_ids = {9, 8};
  choice.finish(FinishReason::kLength);
  ChatWriterOptions options;
  options.logprobs = options.return_token_ids = options.return_tokens_as_token_ids = true;
  const JsonValue body = *parse_json(chat_response_json(options, {choice}, {1, 2, 3}, kUsage));
  const JsonValue& c = choice_of(body);
  CHECK(c.find("message")->find("tool_calls")->items().size() == 1);
  CHECK(text_of(*c.find("message"), "content") == "x");
  CHECK(dump_json(*c.find("token_ids")) == "[9,8]");
  CHECK(dump_json(*body.find("prompt_token_ids")) == "[1,2,3]");
  const auto& entries = c.find("logprobs")->find("content")->items();
  REQUIRE(entries.size() == 2);
  CHECK(text_of(entries[0], "token") == "token_id:9");
  CHECK(entries[1].find("logprob")->as_double() == -9999.0);
  CHECK(dump_json(*entries[1].find("bytes")) == "[255]");
}

TEST_CASE("lossy UTF-8 replaces maximal ill-formed parts") {
  CHECK(lossy_utf8("a\xE4\xBD\xA0z") == "a\xE4\xBD\xA0z");
  CHECK(lossy_utf8("\xE4\xBD") == "\xEF\xBF\xBD");
  CHECK(lossy_utf8("\xE4\xBDz") == "\xEF\xBF\xBDz");
  CHECK(lossy_utf8("\xFF\xFE") == "\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(lossy_utf8("\xED\xA0\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(lossy_utf8("\xF0\x9F\x98") == "\xEF\xBF\xBD");
}

TEST_CASE("completion prompts in all four shapes") {
  CHECK(std::get<std::string>(completion(R"("prompt":"hi")")->prompts[0]) == "hi");
  CHECK(completion(R"("prompt":["a","b"])")->prompts.size() == 2);
  CHECK(std::get<std::vector<int32_t>>(completion(R"("prompt":[1,2])")->prompts[0]) ==
        std::vector<int32_t>{1, 2});
  CHECK(completion(R"("prompt":[[1],[2,3]])")->prompts.size() == 2);
  CHECK(completion(R"("prompt":"")").ok());
  for (const char* bad : {R"("prompt":3)", R"("prompt":[])", R"("prompt":["a",1])",
                          R"("prompt":[[1],"a"])", R"("x":1)", R"("prompt":[{}])"}) {
    CAPTURE(bad);
    CHECK(refused_param(bad) == "prompt");
  }
  CHECK(refused_param(R"("prompt":[1,1000])") == "prompt");
  CHECK(refused_param(R"("prompt":[-1])") == "prompt");
  CHECK(refused_param(R"("prompt":[[1],[2,"x"]])") == "prompt[1]");
  CHECK(refused_param(R"("prompt":[[]])") == "prompt[0]");
}

TEST_CASE("completion limits") {
  CHECK(completion(R"("prompt":"a")")->sampling.max_tokens == 16);
  CHECK(refused_param(R"("prompt":"a","max_tokens":0)") == "max_tokens");
  const auto echo = completion(R"("prompt":"a","max_tokens":0,"echo":true,"logprobs":2)");
  REQUIRE(echo.ok());
  CHECK(echo->sampling.max_tokens == 0);
  CHECK(echo->sampling.logprobs == 2);
  CHECK(echo->sampling.prompt_logprobs == 2);
  CHECK(completion(R"("prompt":"a","logprobs":20)").ok());
  CHECK(refused_param(R"("prompt":"a","logprobs":21)") == "logprobs");
  CHECK(refused_param(R"("prompt":"a","logprobs":true)") == "logprobs");
  CHECK(refused_param(R"("prompt":"a","suffix":"xyz")") == "suffix");
  CHECK(completion(R"("prompt":"a","suffix":"")").ok());
  CHECK(refused_param(R"("prompt":"a","best_of":2)") == "best_of");
  CHECK(completion(R"("prompt":"a","best_of":2,"n":2)").ok());
  CHECK(unsupported_reason(*completion(R"("prompt":"a","n":2)"), {})->param == "n");
  CHECK(completion(R"("prompt":"a","skip_special_tokens":false)")->skip_special_tokens == false);
}

TEST_CASE("completion body: echo, logprobs and offsets in code points") {
  CompletionWriterOptions options;
  options.head = {"cmpl-1", 1, "m"};
  options.logprobs = 1;
  options.return_token_ids = true;
  CompletionChoice choice;
  choice.output.text =
      "\xE4\xBD\xA0"
      "b!";
  choice.output.logprobs = {{1, "\xE4\xBD\xA0", NAN, {}},
                            {2, "b", -0.25, {{3, "c", -1.5}, {4, "d", -2}}},
                            {5, "!", -1, {{5, "!", -1}}}};
  choice.output.token_ids = {5};
  choice.prompt_ids = {1, 2};
  choice.finish_reason = FinishReason::kLength;
  const JsonValue body = *parse_json(completion_response_json(options, {choice}, kUsage));
  CHECK(text_of(body, "object") == "text_completion");
  const JsonValue& c = choice_of(body);
  CHECK(text_of(c, "finish_reason") == "length");
  const JsonValue& l = *c.find("logprobs");
  CHECK(dump_json(*l.find("tokens")) == "[\"\xE4\xBD\xA0\",\"b\",\"!\"]");
  CHECK(dump_json(*l.find("token_logprobs")) == "[null,-0.25,-1]");
  CHECK(dump_json(*l.find("top_logprobs")) == R"([null,{"b":-0.25,"c":-1.5},{"!":-1}])");
  CHECK(dump_json(*l.find("text_offset")) == "[0,1,2]");
  CHECK(dump_json(*c.find("prompt_token_ids")) == "[1,2]");
  CHECK(dump_json(*c.find("token_ids")) == "[5]");
  CHECK(body.find("usage")->find("prompt_tokens")->as_int() == 20);  // no opener here
}

TEST_CASE("completion stream: several choices, offsets run on, usage at the end") {
  CompletionRequest request;
  request.prompts = {std::string("a"), std::string("b")};
  request.sampling.logprobs = 0;
  request.stream.include_usage = true;
  request.return_token_ids = true;
  CompletionStreamWriter writer(CompletionWriterOptions::from(request, {}, {"c", 1, "m"}));
  std::string stream;
  writer.set_prompt_ids(1, {7});
  writer.piece(1, {"xy", {{1, "xy", -1, {}}}, {1}}, {}, &stream);
  writer.piece(1, {"z", {{2, "z", -1, {}}}, {2}}, {}, &stream);
  writer.finish(0, {}, FinishReason::kStop, std::string("END"), {}, &stream);
  writer.end(kUsage, &stream);
  CHECK(stream.substr(stream.size() - kSseDone.size()) == kSseDone);
  const auto chunks = payloads(stream);
  REQUIRE(chunks.size() == 4);
  CHECK(choice_of(chunks[0]).find("index")->as_int() == 1);
  CHECK(dump_json(*choice_of(chunks[0]).find("prompt_token_ids")) == "[7]");
  CHECK(choice_of(chunks[1]).find("prompt_token_ids") == nullptr);
  CHECK(dump_json(*choice_of(chunks[1]).find("logprobs")->find("text_offset")) == "[2]");
  CHECK(text_of(choice_of(chunks[2]), "stop_reason") == "END");
  CHECK(choice_of(chunks[2]).find("logprobs")->is_null());
  CHECK(chunks[0].find("usage")->is_null());
  CHECK(chunks[3].find("choices")->items().empty());
  CHECK(chunks[3].find("usage")->find("total_tokens")->as_int() == 27);
}

TEST_CASE("models and tokenize") {
  const JsonValue list = *parse_json(
      models_list_json({{.id = "a", .root = "r", .created = 3, .max_model_len = 9}, {.id = "b"}}));
  REQUIRE(list.find("data")->items().size() == 2);
  const JsonValue& model = list.find("data")->items()[0];
  CHECK(text_of(model, "id") == "a");
  CHECK(text_of(model, "root") == "r");
  CHECK(model.find("max_model_len")->as_int() == 9);
  CHECK(text_of(list.find("data")->items()[1], "root") == "b");
  CHECK(text_of(*parse_json(model_json({.id = "a"})), "object") == "model");

  const auto text =
      parse_tokenize(*parse_json(R"({"prompt":"x","return_token_strs":true})"), served());
  REQUIRE(text.ok());
  CHECK(text->model == "m");
  CHECK(text->return_token_strs);
  CHECK(std::get<std::string>(text->input) == "x");
  const auto chat =
      parse_tokenize(*parse_json(R"({"messages":[{"role":"user","content":"q"}]})"), served());
  REQUIRE(chat.ok());
  CHECK(std::get<ChatRequest>(chat->input).messages.size() == 1);
  CHECK(parse_tokenize(*parse_json("{}"), served()).error().param == "prompt");
  CHECK(parse_tokenize(*parse_json(R"({"model":"no","prompt":"x"})"), served()).error().status ==
        404);
  const std::vector<std::string> strs = {"a", "\xFF"};
  CHECK(tokenize_response_json({1, 2}, 10, &strs) ==
        "{\"count\":2,\"max_model_len\":10,\"tokens\":[1,2],\"token_strs\":[\"a\",\"\xEF\xBF\xBD\"]"
        "}");
  CHECK(tokenize_response_json({}, 10, nullptr) ==
        R"({"count":0,"max_model_len":10,"tokens":[],"token_strs":null})");
  CHECK(parse_detokenize(*parse_json(R"({"tokens":[1,2]})"), served())->tokens.size() == 2);
  CHECK(parse_detokenize(*parse_json(R"({"tokens":[1,1000]})"), served()).error().param ==
        "tokens");
  CHECK(detokenize_response_json("a\"") == R"({"prompt":"a\"","text":"a\""})");
}

TEST_CASE("Anthropic: refusals, count call, body") {
  const auto convert = [](const char* body) { return anthropic_to_chat(*parse_json(body)); };
  CHECK(convert(R"({"messages":[]})").error().param == "max_tokens");
  CHECK(anthropic_to_chat(*parse_json(R"({"messages":[]})"), AnthropicCall::kCountTokens).ok());
  CHECK(convert(
            R"({"max_tokens":1,"messages":[],"tools":[{"type":"web_search_20250305","name":"w"}]})")
            .error()
            .param == "tools[0].type");
  CHECK(convert(R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"document"}]}]})")
            .error()
            .param == "messages[0].content[0].type");
  CHECK(convert(R"({"max_tokens":1,"messages":[{"role":"bot","content":""}]})").error().param ==
        "messages[0].role");
  CHECK(
      convert(R"({"max_tokens":1,"messages":[],"tool_choice":{"type":"perhaps"}})").error().param ==
      "tool_choice.type");

  ChatChoice choice;
  choice.reasoning = "r";
  choice.content = "c";
  choice.calls = {{"t1", "f", "{\"a\": [1]}"}, {"t2", "g", "broken"}};
  choice.finish(FinishReason::kToolCalls);
  const JsonValue body =
      *parse_json(anthropic_response_json({"msg_1", 1, "m"}, {}, choice, kUsage));
  const auto& blocks = body.find("content")->items();
  REQUIRE(blocks.size() == 4);
  CHECK(!text_of(blocks[0], "signature").empty());
  CHECK(dump_json(*blocks[2].find("input")) == R"({"a":[1]})");
  CHECK(dump_json(*blocks[3].find("input")) == R"({"raw_arguments":"broken"})");
  CHECK(text_of(body, "stop_reason") == "tool_use");
  choice.finish(FinishReason::kStop, std::string("END"));
  const JsonValue stopped =
      *parse_json(anthropic_response_json({"msg_1", 1, "m"}, {}, choice, kUsage));
  CHECK(text_of(stopped, "stop_reason") == "stop_sequence");
  CHECK(text_of(stopped, "stop_sequence") == "END");
}

TEST_CASE("Responses: refusals and failure") {
  const auto param = [](const char* body) {
    const auto chat = responses_to_chat(*parse_json(body));
    return chat.ok() ? "accepted" : chat.error().param;
  };
  CHECK(param(R"({"input":"q","previous_response_id":"r"})") == "previous_response_id");
  CHECK(param(R"({"input":"q","background":true})") == "background");
  CHECK(param(R"({"input":"q","truncation":"auto"})") == "truncation");
  CHECK(param(R"({"input":"q","tools":[{"type":"web_search"}]})") == "tools[0].type");
  CHECK(param(R"({"input":[{"type":"computer_call"}]})") == "input[0].type");
  CHECK(param(R"({"model":"m"})") == "input");
  CHECK(param(R"({"input":"q","store":true,"include":["reasoning.encrypted_content"]})") ==
        "accepted");

  ResponsesWriter writer({"resp_1", 1, "m"}, {}, JsonValue::object());
  std::string stream;
  writer.start(&stream);
  writer.delta({Delta::Kind::kContent, 0, "", "a", {}}, &stream);
  writer.error({500, "server_error", "engine failed", "", ""}, &stream);
  const auto events = split_sse(stream);
  CHECK(events.back().event == "response.failed");
  CHECK(text_of(*parse_json(writer.response_json()), "status") == "failed");
}
