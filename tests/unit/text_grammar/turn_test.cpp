// Whole turns: tool choices, lenient tools, thinking off, description round trip, and the token
// mask against trying every token.
#include <algorithm>
#include <random>

#include "text/grammar/token_mask.h"
#include "unit/text_grammar/grammar_fixture.h"

using namespace weft;
using namespace weft::test;

namespace {

const std::string kEnd = "<|close|>message<|sep|><|end_of_msg|>";
const std::string kThought = "r<|close|>think<|sep|><|open|>response<|sep|>";

JsonValue tools_of(const char* text) { return *parse_json(text); }
std::string call(const std::string& name, int index, const std::string& arguments) {
  return "<|open|>call tool=\"" + name + "\" index=\"" + std::to_string(index) + "\"<|sep|>" +
         arguments + "<|close|>call<|sep|>";
}
std::string argument(const std::string& key, const std::string& type, const std::string& body) {
  return "<|open|>argument key=\"" + key + "\" type=\"" + type + "\"<|sep|>" + body +
         "<|close|>argument<|sep|>";
}
std::string turn(const std::string& content, const std::string& calls) {
  return kThought + content + "<|close|>response<|sep|><|open|>tools<|sep|>" + calls +
         "<|close|>tools<|sep|>" + kEnd;
}
const JsonValue kRequired = JsonValue::string("required");
const JsonValue kAuto = JsonValue::string("auto");

// At every third place of the output: each bit of the mask against trying that token.
void check_masks(const std::shared_ptr<const Grammar>& grammar, const std::string& output,
                 const std::vector<std::string>& tokens, const MaskVocabulary& vocabulary) {
  std::vector<uint64_t> mask(vocabulary.words());
  Acceptor acceptor(grammar);
  size_t places = 0;
  for (Symbol symbol : symbols_of(output)) {
    REQUIRE(acceptor.accept(symbol));
    if (places++ % 3 != 0 && symbol < 256) continue;
    vocabulary.fill(acceptor, mask);
    for (int32_t id = 0; id < static_cast<int32_t>(tokens.size()); ++id) {
      Acceptor trial = acceptor;
      const bool fine = vocabulary.accept(&trial, id);
      const bool bit = (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
      if (fine != bit) {
        CAPTURE(places);
        CAPTURE(tokens[static_cast<size_t>(id)]);
        CHECK(fine == bit);
      }
    }
  }
  CHECK(acceptor.finished());
  CHECK(!acceptor.allowed().any());
}

}  // namespace

TEST_CASE("tools that are not strict: any well-formed arguments") {
  const auto grammar = compile(tools_request(
      tools_of(
          R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}])"),
      kRequired));
  CHECK(accepts(grammar, turn("", call("f", 1, argument("z", "string", "free \"text\"\n")))));
  CHECK(accepts(grammar, turn("", call("f", 1,
                                       argument("a", "object", R"({"x": [1, null]})") +
                                           argument("b", "null", "null")))));
  CHECK(accepts(grammar, turn("", call("f", 1, ""))));
  CHECK(!accepts(grammar, turn("", call("f", 1, argument("a", "object", "[]")))));
  CHECK(!accepts(grammar, turn("", call("f", 1, argument("a", "integer", "1")))));
  CHECK(!accepts(grammar, turn("", call("f", 1, argument("", "null", "null")))));
  CHECK(!accepts(grammar, turn("", call("g", 1, ""))));
}

TEST_CASE("strict tools: references at the top, attribute escapes, no parameters") {
  const auto grammar = compile(tools_request(
      tools_of(
          R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"$ref":"#/$defs/n","$defs":{"n":{
        "type":"object","properties":{"x\"&":{"type":"boolean"},"n":{"$ref":"#/$defs/n"}},"additionalProperties":false}}}}},
        {"type":"function","function":{"name":"f2","strict":true}}])"),
      kRequired));
  CHECK(accepts(grammar, turn("", call("f", 1, argument("x&quot;&amp;", "boolean", "true")))));
  CHECK(accepts(grammar,
                turn("", call("f", 1, argument("n", "object", R"({"n": {"x\"&": false}})")))));
  CHECK(!accepts(grammar, turn("", call("f", 1, argument("n", "object", R"({"m": 1})")))));
  CHECK(accepts(grammar, turn("", call("f2", 1, ""))));
  CHECK(!accepts(grammar, turn("", call("f2", 1, argument("a", "null", "null")))));
}

TEST_CASE("content before forced calls is bounded, after a named choice it is empty") {
  const JsonValue tools =
      tools_of(R"([{"type":"function","function":{"name":"f","strict":true}}])");
  const auto required = compile(tools_request(tools, kRequired));
  CHECK(accepts(required, turn(std::string(kContentBeforeCallsBytes, 'x'), call("f", 1, ""))));
  CHECK(!accepts(required, turn(std::string(kContentBeforeCallsBytes + 1, 'x'), call("f", 1, ""))));
  const auto named =
      compile(tools_request(tools, *parse_json(R"({"type":"function","function":{"name":"f"}})")));
  CHECK(accepts(named, turn("", call("f", 1, ""))));
  CHECK(!accepts(named, turn("x", call("f", 1, ""))));
  const auto automatic = compile(tools_request(tools, kAuto));
  CHECK(accepts(automatic, turn(std::string(kContentBeforeCallsBytes + 1, 'x'), call("f", 1, ""))));
}

TEST_CASE("many calls, and the limit on them") {
  const auto grammar = compile(tools_request(
      tools_of(R"([{"type":"function","function":{"name":"f","strict":true}}])"), kRequired));
  std::string calls;
  for (int i = 1; i <= static_cast<int>(kCallsMax); ++i) calls += call("f", i, "");
  CHECK(accepts(grammar, turn("", calls)));
  CHECK(!accepts(grammar, turn("", calls + call("f", static_cast<int>(kCallsMax) + 1, ""))));
}

TEST_CASE("more than 64 properties") {
  std::string properties, all;
  for (int i = 0; i < 150; ++i) {
    properties +=
        std::string(i == 0 ? "" : ",") + "\"p" + std::to_string(i) + "\":{\"type\":\"null\"}";
    all += argument("p" + std::to_string(149 - i), "null", "null");
  }
  const auto grammar = compile(tools_request(
      tools_of(
          (R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{)" +
           properties + R"(},"required":["p7","p140"]}}}])")
              .c_str()),
      kRequired));
  CHECK(accepts(grammar, turn("", call("f", 1, all))));
  CHECK(!accepts(grammar, turn("", call("f", 1, all + argument("p3", "null", "null")))));
  CHECK(!accepts(grammar, turn("", call("f", 1, argument("p7", "null", "null")))));
}

TEST_CASE("response format together with tools, and without thinking") {
  GrammarRequest request = json_request(
      R"({"type":"object","properties":{"a":{"type":"null"}},"additionalProperties":false})");
  request.tools = tools_of(R"([{"type":"function","function":{"name":"f","strict":true}}])");
  const std::string json = "{\"a\":null}<|close|>response<|sep|>" + kEnd;
  const std::string calls = "<|close|>response<|sep|><|open|>tools<|sep|>" + call("f", 1, "") +
                            "<|close|>tools<|sep|>" + kEnd;
  CHECK(accepts(compile(request), json));
  CHECK(accepts(compile(request), calls));
  CHECK(!accepts(compile(request), "x" + calls));
  CHECK(!accepts(compile(request), "<|close|>response<|sep|>" + kEnd));
  request.tool_choice = api::ToolChoice::kRequired;
  CHECK(!accepts(compile(request), json));
  CHECK(accepts(compile(request), calls));
  request.tool_choice = api::ToolChoice::kNone;
  CHECK(accepts(compile(request), json));
  CHECK(!accepts(compile(request), calls));
  request.thinking = true;
  CHECK(!accepts(compile(request), json));
  CHECK(accepts(compile(request), kThought + json));
  GrammarRequest object;
  object.thinking = false;
  object.response_format = *parse_json(R"({"type":"json_object"})");
  CHECK(accepts(compile(object), answer(R"({"x": [1, "y"]})")));
  CHECK(!accepts(compile(object), answer("[1]")));
}

TEST_CASE("when a grammar is needed") {
  GrammarRequest request;
  CHECK(!needs_grammar(request));
  request.tool_choice = api::ToolChoice::kNone;
  CHECK(!needs_grammar(request));
  request.tools = tools_of(R"([{"type":"function","function":{"name":"f"}}])");
  CHECK(needs_grammar(request));
  request.tool_choice = api::ToolChoice::kAuto;
  CHECK(!needs_grammar(request));
  request.tools = tools_of(R"([{"type":"function","function":{"name":"f","strict":true}}])");
  CHECK(needs_grammar(request));
  CHECK(needs_grammar(json_request("{}")));
}

TEST_CASE("a description brings the same request back") {
  GrammarRequest request = json_request(R"({"type":"object"})");
  request.tools = tools_of(R"([{"type":"function","function":{"name":"f"}}])");
  request.tool_choice = api::ToolChoice::kNamed;
  request.tool_choice_name = "f";
  request.parallel_tool_calls = false;
  const auto again = GrammarRequest::parse(request.description());
  REQUIRE(again.ok());
  CHECK(again->description() == request.description());
  CHECK(again->tool_choice_name == "f");
  CHECK(!again->thinking);
  CHECK(!GrammarRequest::parse("{}").ok());
  CHECK(!GrammarRequest::parse("{\"tools\":[],\"tool_choice\":\"x\"}").ok());
}

TEST_CASE("compile errors name the tool") {
  const auto grammar = compile_grammar(
      tools_request(tools_of(R"([{"type":"function","function":{"name":"f","strict":true}},
                   {"type":"function","function":{"name":"g","strict":true,"parameters":{"type":"object","not":{}}}}])"),
                    kRequired));
  REQUIRE(!grammar.ok());
  CHECK(grammar.error().param == "tools[1].function.parameters");
  CHECK(grammar.error().message.find("\"not\"") != std::string::npos);
}

TEST_CASE("the mask of a vocabulary equals trying every token, all along random outputs") {
  std::mt19937 random(17);
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  const char* const kPieces[] = {
      "call",   " tool", "=\"",      "f",     "\" index=\"", "argument", "key",     "type",
      "string", "null",  "{\"",      "\": ",  "\"}",         ", ",       "[1",      "think",
      "a",      "\xE4",  "\xBD\xA0", "hello", "\n\n",        "]}",       "response"};
  for (const char* piece : kPieces) tokens.emplace_back(piece);
  for (int i = 0; i < 400; ++i)
    tokens.push_back(std::string(kPieces[random() % 23]) + kPieces[random() % 23]);
  const auto special = static_cast<int32_t>(tokens.size());
  tokens.resize(tokens.size() + 6);
  const MaskVocabulary vocabulary(tokens, {special, special + 1, special + 2, special + 3});
  const auto grammar = compile(tools_request(
      tools_of(
          R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{
        "a":{"type":"string","maxLength":6},"o":{"type":"object","properties":{"s":{"type":"string","maxLength":4}}},
        "p":{"type":"string","pattern":"^[a-l]*$"}}}}}])"),
      kAuto));
  check_masks(grammar,
              turn("hello", call("f", 1,
                                 argument("a", "string", "x\xE4\xBD\xA0y") +
                                     argument("p", "string", "hell") +
                                     argument("o", "object", "{\"s\": \"q\\n\"}"))),
              tokens, vocabulary);
  const auto open = compile(tools_request(
      tools_of(R"([{"type":"function","function":{"name":"f","parameters":{}}}])"), kRequired));
  check_masks(open,
              turn("hello", call("f", 1,
                                 argument("any", "string", "x\"y") +
                                     argument("z", "object", "{\"key\": {\"\\\"\":[1, \"s\"]}}"))),
              tokens, vocabulary);
  const Acceptor fresh(grammar);
  const std::vector<int32_t> draft = {'r', special + 1, 't', 'x'};
  CHECK(vocabulary.count_accepted(fresh, draft) == 3);
}

TEST_CASE("structured outputs: json, choice and regex in place of a response format") {
  const auto request = [](const char* outputs) {
    GrammarRequest out;
    out.thinking = false;
    out.structured_outputs = *parse_json(outputs);
    return out;
  };
  const auto choice = compile(request(R"({"choice":["yes","no, \"never\""]})"));
  CHECK(accepts(choice, answer("yes")));
  CHECK(accepts(choice, answer("no, \"never\"")));
  CHECK(!accepts(choice, answer("ye")));
  CHECK(!accepts(choice, answer("\"yes\"")));
  const auto regex = compile(request(R"({"regex":"a|b+"})"));
  CHECK(accepts(regex, answer("bbb")));
  CHECK(!accepts(regex, answer("ab")));
  CHECK(accepts(compile(request(R"({"json":{"type":"integer"}})")), answer("12")));
  CHECK(!accepts(compile(request(R"({"json_object":true})")), answer("12")));
  CHECK(needs_grammar(request(R"({"choice":["a"]})")));
  CHECK(compile_grammar(request(R"({"choice":[]})")).error().param == "structured_outputs.choice");
  CHECK(compile_grammar(request(R"({"choice":[1]})")).error().param == "structured_outputs.choice");
  CHECK(compile_grammar(request(R"j({"regex":"(?=x)"})j")).error().param ==
        "structured_outputs.regex");
  CHECK(compile_grammar(request("{}")).error().code == "unsupported");
  const auto again = GrammarRequest::parse(request(R"({"regex":"a"})").description());
  REQUIRE(again.ok());
  CHECK(accepts(compile(*again), answer("a")));
}
