#include "text/hf_tokenizer.h"

#include "text/nfc.h"
#include "vectors.h"

using namespace weft;
using namespace weft::text;

namespace {

// A small valid document with parts to replace.
std::string document(const std::string& normalizer = "null",
                     const std::string& pre = R"({"type":"ByteLevel"})",
                     const std::string& extra_model = "", const std::string& merges = "[]",
                     const std::string& rest = "") {
  std::string vocab;
  for (int b = 0; b < 256; ++b) {
    std::string symbol;
    append_utf8(symbol, byte_symbol(static_cast<uint8_t>(b)));
    if (!vocab.empty()) vocab += ',';
    vocab += dump_json(JsonValue::string(symbol)) + ":" + std::to_string(b);
  }
  return R"({"normalizer":)" + normalizer + R"(,"pre_tokenizer":)" + pre +
         R"(,"model":{"type":"BPE",)" + extra_model + R"("vocab":{)" + vocab +
         R"(,"ab":256,"odd ":257},"merges":)" + merges + "}" + rest + "}";
}

Result<std::unique_ptr<HfTokenizer>> create(const std::string& text) {
  auto json = parse_json(text);
  REQUIRE_MESSAGE(json.ok(), text);
  return HfTokenizer::create(*json);
}

}  // namespace

TEST_CASE("tokenizer.json: vectors") {
  const JsonValue doc = test::vectors("hf_bytelevel");
  const auto alphabet = test::code_points(test::str(doc, "byte_to_unicode"));
  REQUIRE(alphabet.size() == 256);
  for (size_t b = 0; b < 256; ++b) {
    std::string symbol;
    append_utf8(symbol, byte_symbol(static_cast<uint8_t>(b)));
    CHECK(symbol == alphabet[b]);
  }
  std::map<std::string, std::unique_ptr<HfTokenizer>> tokenizers;
  for (const auto& [name, config] : test::at(doc, "configs").members()) {
    auto made = HfTokenizer::create(config);
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? "" : made.error().message));
    tokenizers[name] = std::move(made).value();
  }
  CHECK(test::at(doc, "cases").items().size() == 88);
  for (const JsonValue& c : test::at(doc, "cases").items()) {
    CAPTURE(test::str(c, "config"));
    CAPTURE(test::str(c, "text"));
    const HfTokenizer& tokenizer = *tokenizers.at(test::str(c, "config"));
    auto ids = tokenizer.encode(test::str(c, "text"), true);
    if (test::at(c, "add_special_tokens").as_bool()) tokenizer.add_prompt_template(&ids);
    CHECK(ids == test::ids_of(test::at(c, "ids")));
    CHECK(decode(tokenizer, ids, false) == test::str(c, "decoded"));
    CHECK(decode(tokenizer, ids, true) == test::str(c, "decoded_skip_special"));
  }
}

TEST_CASE("tokenizer.json: special spellings are text unless they are asked for") {
  const JsonValue doc = test::vectors("hf_bytelevel");
  const auto tokenizer =
      std::move(HfTokenizer::create(test::at(test::at(doc, "configs"), "llama3_style"))).value();
  for (const int32_t id : tokenizer->encode("<|im_start|>hello<|bos|>", false))
    CHECK(!tokenizer->is_special(id));
  CHECK(tokenizer->encode("a word", false).back() == 282);  // an added token that is not special
  std::mt19937 rng(2);
  for (int round = 0; round < 200; ++round) {
    const std::string text = test::random_text(rng, 20);
    CHECK(decode(*tokenizer, tokenizer->encode(text, false), false) == text);
  }
}

TEST_CASE("tokenizer.json: unknown components are refused by name") {
  CHECK(create(document()).ok());
  const std::pair<std::string, const char*> kBad[] = {
      {"[]", "must be an object"},
      {R"({"model":{"type":"WordPiece"}})", "WordPiece"},
      {document(R"({"type":"NFKC"})"), "NFKC"},
      {document(R"({"type":"Sequence"})"), "Sequence"},
      {document("null", R"({"type":"Metaspace"})"), "Metaspace"},
      {document("null", "null"), "ByteLevel"},
      {document("null", R"({"type":"Digits"})"), "ByteLevel"},
      {document("null", R"({"type":"Split","pattern":{"Regex":"x+"},"behavior":"Isolated"})"),
       "x+"},
      {document("null", R"({"type":"Split","pattern":{"String":" "},"behavior":"Removed"})"),
       "Removed"},
      {document("null", R"({"type":"ByteLevel"})", R"("byte_fallback":true,)"), "byte_fallback"},
      {document("null", R"({"type":"ByteLevel"})", R"("unk_token":"<unk>",)"), "unk_token"},
      {document("null", R"({"type":"ByteLevel"})", "", R"(["ab"])"), "no space"},
      {document("null", R"({"type":"ByteLevel"})", "", R"([["a","b","c"]])"), "merges[0]"},
      {document("null", R"({"type":"ByteLevel"})", "", R"(["a c"])"), "not in the vocabulary"},
      {document("null", R"({"type":"ByteLevel"})", "", "{}"), "must be an array"},
      {document("null", R"({"type":"ByteLevel"})", "", "[]", R"(,"decoder":{"type":"WordPiece"})"),
       "decoder"},
      {document("null", R"({"type":"ByteLevel"})", "", "[]", R"(,"added_tokens":[{"id":1}])"),
       "id and content"},
      {document("null", R"({"type":"ByteLevel"})", "", "[]",
                R"(,"post_processor":{"type":"Bert"})"),
       "Bert"}};
  for (const auto& [text, want] : kBad) {
    CAPTURE(want);
    const auto made = create(text);
    REQUIRE(!made.ok());
    CHECK(made.error().message.find(want) != std::string::npos);
  }
}

TEST_CASE("tokenizer.json: merges, literal splits, digits, odd vocabulary") {
  auto made = create(
      document("null",
               R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"String":"b"},)"
               R"("behavior":"Isolated"},{"type":"ByteLevel","add_prefix_space":false}]})",
               "", R"(["a b"])"));
  REQUIRE(made.ok());
  CHECK(made.value()->encode("ab") == std::vector<int32_t>{'a', 'b'});
  CHECK(made.value()->token_bytes(257) == "odd ");
  made = create(
      document("null", R"({"type":"ByteLevel","add_prefix_space":false})", "", R"([["a","b"]])"));
  REQUIRE(made.ok());
  CHECK(made.value()->encode("abab a") == std::vector<int32_t>{256, 256, ' ', 'a'});
  CHECK(made.value()->vocab_size() == 258);
}

TEST_CASE("NFC") {
  const std::pair<const char*, const char*> kCases[] = {
      {"", ""},
      {"abc", "abc"},
      {"e\xCC\x81", "\xC3\xA9"},
      {"A\xCC\x8A \xE2\x84\xAB", "\xC3\x85 \xC3\x85"},           // angstrom sign
      {"\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"},  // Hangul L V T
      {"a\xCC\xA7\xCC\x81", "\xC3\xA1\xCC\xA7"},                 // marks reordered around composing
      {"a\xCC\x81\xCC\xA7", "\xC3\xA1\xCC\xA7"},
      {"a\xCC\x81\xCC\x81", "\xC3\xA1\xCC\x81"},                 // the second is blocked
      {"\xE0\xA4\x95\xE0\xA4\xBC", "\xE0\xA4\x95\xE0\xA4\xBC"},  // excluded from composition
      {"\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"},
      {"\xCD\x84", "\xCC\x88\xCC\x81"},
      {"\xEF\xA4\x80", "\xE8\xB1\x88"},  // compatibility ideograph, singleton
  };
  for (const auto& [in, want] : kCases) {
    CAPTURE(in);
    CHECK(to_nfc(in) == want);
  }
  std::mt19937 rng(9);
  for (int round = 0; round < 200; ++round) {
    const std::string once = to_nfc(test::random_text(rng, 25));
    CHECK(to_nfc(once) == once);
  }
}
