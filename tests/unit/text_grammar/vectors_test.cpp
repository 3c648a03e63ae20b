// grammar_tools.json: whole outputs that must or must not be in the language, and what may follow a
// prefix.
#include <algorithm>
#include <map>

#include "text/grammar/token_mask.h"
#include "unit/text_grammar/grammar_fixture.h"

using namespace weft;
using namespace weft::test;

namespace {

// A vocabulary for the mask vectors: every byte, every text of the probes, the markers and two
// other special tokens.
struct ProbeVocabulary {
  std::vector<std::string> tokens;
  StructuralIds ids;
  std::map<std::string, int32_t> special;

  explicit ProbeVocabulary(const JsonValue& masks) {
    for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
    for (const JsonValue& row : masks.items())
      for (const char* side : {"allowed_next", "forbidden_next"})
        for (const JsonValue& probe : row.find(side)->items())
          if (const JsonValue* text = probe.find("text")) tokens.push_back(text->as_string());
    for (const char* name :
         {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]", "<|media_pad|>"}) {
      special[name] = static_cast<int32_t>(tokens.size());
      tokens.emplace_back();
    }
    ids = {special["<|open|>"], special["<|close|>"], special["<|sep|>"],
           special["<|end_of_msg|>"]};
  }
  int32_t id_of(const JsonValue& probe) const {
    if (const JsonValue* name = probe.find("special")) return special.at(name->as_string());
    const auto found =
        std::find(tokens.begin() + 256, tokens.end(), probe.find("text")->as_string());
    return static_cast<int32_t>(found - tokens.begin());
  }
};

}  // namespace

TEST_CASE("tool output vectors") {
  const JsonValue vectors = load_vectors("grammar_tools.json");
  size_t checked = 0;
  for (const JsonValue& group : vectors.find("tools")->items()) {
    CAPTURE(group.find("name")->as_string());
    const auto grammar = compile(tools_request(*group.find("tools"), *group.find("tool_choice"),
                                               group.find("parallel_tool_calls")->as_bool()));
    for (const JsonValue& row : group.find("cases")->items()) {
      CAPTURE(row.find("name")->as_string());
      CHECK(accepts(grammar, row.find("output")->as_string()) == row.find("accept")->as_bool());
      ++checked;
    }
  }
  CHECK(checked == 65);
}

TEST_CASE("response format vectors") {
  const JsonValue vectors = load_vectors("grammar_tools.json");
  const JsonValue& group = *vectors.find("response_format");
  GrammarRequest request = json_request(dump_json(*group.find("schema")));
  request.thinking = true;
  const auto grammar = compile(request);
  size_t checked = 0;
  for (const JsonValue& row : group.find("cases")->items()) {
    CAPTURE(row.find("name")->as_string());
    CHECK(accepts(grammar, row.find("output")->as_string()) == row.find("accept")->as_bool());
    ++checked;
  }
  CHECK(checked == 12);
}

TEST_CASE("mask vectors, by acceptor and by token mask") {
  const JsonValue vectors = load_vectors("grammar_tools.json");
  const JsonValue& tools = *vectors.find("tools")->items()[0].find("tools");
  const JsonValue& rows = *vectors.find("masks");
  const ProbeVocabulary probes(rows);
  const MaskVocabulary vocabulary(probes.tokens, probes.ids);
  std::vector<uint64_t> mask(vocabulary.words());
  for (const JsonValue& row : rows.items()) {
    CAPTURE(row.find("name")->as_string());
    Acceptor acceptor(compile(tools_request(tools, *row.find("tool_choice"))));
    REQUIRE(advance(&acceptor, row.find("prefix")->as_string()));
    vocabulary.fill(acceptor, mask);
    for (const auto& [side, expected] :
         {std::pair("allowed_next", true), std::pair("forbidden_next", false)})
      for (const JsonValue& probe : row.find(side)->items()) {
        CAPTURE(dump_json(probe));
        const int32_t id = probes.id_of(probe);
        CHECK((mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) == (expected ? 1 : 0));
        Acceptor trial = acceptor;
        CHECK(vocabulary.accept(&trial, id) == expected);
      }
  }
}
