// First line: a JSON Schema (also taken as the parameters of a strict tool). Rest: output tried on
// the grammar, 0x01..0x04 standing for the four structural tokens. Compilation must be bounded;
// what is accepted must always leave a way on; and a finished JSON answer must parse.
#include <cstdlib>

#include "text/grammar/grammar.h"

using namespace weft;
using namespace weft::text::grammar;

namespace {

void run(const GrammarRequest& request, std::string_view output, bool json) {
  const auto grammar = compile_grammar(request);
  if (!grammar.ok()) {
    if (grammar.error().message.empty()) std::abort();
    return;
  }
  Acceptor acceptor(grammar.value());
  std::string text;
  size_t checks = 0;
  for (char c : output) {
    const auto byte = static_cast<uint8_t>(c);
    const auto symbol =
        byte >= 1 && byte <= 4 ? static_cast<Symbol>(kOpenToken + byte - 1) : Symbol{byte};
    if (json && symbol == kCloseToken) {
      Acceptor trial = acceptor;
      if (trial.accept(symbol) && !parse_json(text).ok()) std::abort();
      return;
    }
    if (acceptor.accept(symbol)) text += c;
    if (++checks % 16 == 0 && !acceptor.finished() && !acceptor.allowed().any()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(input.find('\n'), input.size());
  if (line > 4096) return 0;
  const auto schema = parse_json(input.substr(0, line));
  if (!schema.ok()) return 0;
  const std::string_view output = input.substr(std::min(line + 1, input.size())).substr(0, 2048);

  GrammarRequest answer;
  answer.thinking = false;
  for (bool strict : {true, false}) {
    answer.response_format = JsonValue::object(
        {{"type", JsonValue::string("json_schema")},
         {"json_schema",
          JsonValue::object({{"schema", *schema}, {"strict", JsonValue::boolean(strict)}})}});
    run(answer, output, true);
  }
  GrammarRequest calls;
  calls.thinking = false;
  calls.tool_choice = api::ToolChoice::kRequired;
  calls.tools.items().push_back(
      JsonValue::object({{"function", JsonValue::object({{"name", JsonValue::string("f")},
                                                         {"strict", JsonValue::boolean(true)},
                                                         {"parameters", *schema}})}}));
  run(calls, output, false);
  return 0;
}
