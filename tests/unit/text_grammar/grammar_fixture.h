// Shared by the grammar tests: output with markers to symbols, requests from JSON.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"

namespace weft::test {

using namespace text::grammar;

inline const std::pair<std::string_view, Symbol> kMarkers[] = {{"<|open|>", kOpenToken},
                                                               {"<|close|>", kCloseToken},
                                                               {"<|sep|>", kSepToken},
                                                               {"<|end_of_msg|>", kEndToken}};

inline std::vector<Symbol> symbols_of(std::string_view output) {
  std::vector<Symbol> symbols;
  for (size_t i = 0; i < output.size();) {
    bool marker = false;
    for (const auto& [text, symbol] : kMarkers)
      if (output.substr(i, text.size()) == text) {
        symbols.push_back(symbol);
        i += text.size();
        marker = true;
        break;
      }
    if (!marker) symbols.push_back(static_cast<uint8_t>(output[i++]));
  }
  return symbols;
}

inline bool advance(Acceptor* acceptor, std::string_view output) {
  for (Symbol symbol : symbols_of(output))
    if (!acceptor->accept(symbol)) return false;
  return true;
}
inline bool accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view output) {
  Acceptor acceptor(grammar);
  return advance(&acceptor, output) && acceptor.finished();
}

inline std::shared_ptr<const Grammar> compile(const GrammarRequest& request) {
  auto grammar = compile_grammar(request);
  REQUIRE_MESSAGE(grammar.ok(), (grammar.ok() ? "" : grammar.error().message));
  return grammar.value();
}

// A response_format with this schema; the answers are wrapped into a turn.
inline GrammarRequest json_request(const std::string& schema, bool strict = true) {
  auto parsed = parse_json(schema);
  REQUIRE_MESSAGE(parsed.ok(), schema);
  GrammarRequest request;
  request.thinking = false;
  request.response_format = JsonValue::object(
      {{"type", JsonValue::string("json_schema")},
       {"json_schema", JsonValue::object({{"name", JsonValue::string("n")},
                                          {"schema", *parsed},
                                          {"strict", JsonValue::boolean(strict)}})}});
  return request;
}
inline std::string answer(std::string_view json) {
  return std::string(json) + "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>";
}

inline JsonValue load_vectors(const std::string& name) {
  std::ifstream in(std::string(WEFT_TEST_DATA) + "/vectors/" + name);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  auto parsed = parse_json(text);
  REQUIRE_MESSAGE(parsed.ok(), name);
  return std::move(parsed).value();
}

inline GrammarRequest tools_request(const JsonValue& tools, const JsonValue& choice,
                                    bool parallel = true) {
  GrammarRequest request;
  request.tools = tools;
  request.parallel_tool_calls = parallel;
  if (choice.is_object()) {
    request.tool_choice = api::ToolChoice::kNamed;
    request.tool_choice_name = choice.find("function")->find("name")->as_string();
  } else if (choice.as_string() == "required") {
    request.tool_choice = api::ToolChoice::kRequired;
  } else if (choice.as_string() == "none") {
    request.tool_choice = api::ToolChoice::kNone;
  }
  return request;
}

}  // namespace weft::test
