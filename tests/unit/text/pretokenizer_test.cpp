#include "text/pretokenizer.h"

#include "vectors.h"

using namespace weft;
using namespace weft::text;

namespace {

std::vector<std::string> pieces(SplitPattern pattern, const std::string& text) {
  CodePoints points;
  points.assign(text);
  std::vector<std::string> out;
  for_each_piece(pattern, points,
                 [&](size_t begin, size_t end) { out.push_back(text.substr(begin, end - begin)); });
  return out;
}

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("kimi pieces: vectors") {
  const JsonValue doc = test::vectors("tokenizer_pretok");
  CHECK(test::at(doc, "cases").items().size() == 81);
  for (const JsonValue& c : test::at(doc, "cases").items()) {
    CAPTURE(test::str(c, "name"));
    CHECK(pieces(SplitPattern::kKimi, test::str(c, "text")) ==
          test::strings_of(test::at(c, "pieces")));
  }
}

TEST_CASE("run splitter: vectors") {
  for (const JsonValue& c : test::cases("run_split", "cases")) {
    CAPTURE(test::str(c, "name"));
    Strings got;
    split_runs(test::str(c, "text"), 400'000, static_cast<size_t>(*test::at(c, "max_run").as_int()),
               [&](std::string_view part) { got.emplace_back(part); });
    CHECK(got == test::strings_of(test::at(c, "pieces")));
  }
}

TEST_CASE("run splitter: parts of a fixed length start afresh") {
  Strings got;
  split_runs("aaaabbb ccc", 4, 3, [&](std::string_view part) { got.emplace_back(part); });
  CHECK(got == Strings{"aaa", "a", "bbb ", "ccc"});
}

TEST_CASE("other patterns") {
  CHECK(pieces(SplitPattern::kGpt2, "it's IT'S  x12 ab\n\nc ") ==
        Strings{"it", "'s", " IT", "'", "S", " ", " x", "12", " ab", "\n", "\n", "c", " "});
  CHECK(pieces(SplitPattern::kCl100k3, "it's IT'S 12345\n\n x") ==
        Strings{"it", "'s", " IT", "'S", " ", "123", "45", "\n\n", " x"});
  CHECK(pieces(SplitPattern::kCl100k1, "a12") == Strings{"a", "1", "2"});
  CHECK(pieces(SplitPattern::kO200k, "GPU\xE8\xBF\x90 don't ABcd !/\n/x") ==
        Strings{"GPU\xE8\xBF\x90", " don't", " ABcd", " !/\n/", "x"});
  CHECK(pieces(SplitPattern::kDigitsBy3, "ab1234c") == Strings{"ab", "123", "4", "c"});
  CHECK(pieces(SplitPattern::kDigitsSingle, "ab12c") == Strings{"ab", "1", "2", "c"});
  CHECK(pieces(SplitPattern::kDigitRuns, "ab1234c") == Strings{"ab", "1234", "c"});
  CHECK(pieces(SplitPattern::kCjkKana,
               "a\xE4\xBD\xA0\xE3\x81\x8B"
               "b") == Strings{"a", "\xE4\xBD\xA0\xE3\x81\x8B", "b"});
  CHECK(pieces(SplitPattern::kDeepSeekGeneral, "say .foo.bar $$\n x") ==
        Strings{"say", " .", "foo", ".bar", " $$\n", " x"});
}

TEST_CASE("pieces join to the text for every pattern and random text") {
  std::mt19937 rng(7);
  for (int round = 0; round < 400; ++round) {
    const std::string text = test::random_text(rng, 1 + round % 40);
    for (int p = 0; p <= static_cast<int>(SplitPattern::kDeepSeekGeneral); ++p) {
      std::string joined;
      for (const std::string& piece : pieces(static_cast<SplitPattern>(p), text)) {
        CHECK(!piece.empty());
        joined += piece;
      }
      CHECK(joined == text);
    }
  }
}

TEST_CASE("character classes") {
  const CharClasses& classes = CharClasses::get();
  CHECK(classes[U'a'] == (kLetter | kLower));
  CHECK(classes[U'A'] == (kLetter | kUpper));
  CHECK(classes[0x01C5] == (kLetter | kUpper));           // titlecase
  CHECK(classes[0x02B0] == (kLetter | kUpper | kLower));  // modifier letter
  CHECK(classes[0x0301] == (kMark | kUpper | kLower));
  CHECK(classes[0x4E00] == (kLetter | kUpper | kLower | kHan));
  CHECK(classes[0x3007] == (kNumber | kHan));
  CHECK((classes[0x30FC] & kHan) == 0);
  CHECK(classes[0x3000] == kSpace);
  CHECK(classes[0x1C] == 0);
  CHECK(is_python_space(0x1C));
  CHECK(classes[0x10FFFF] == 0);
  CHECK(is_blank(""));
  CHECK(is_blank(" \t\xC2\xA0"));
  CHECK(!is_blank(" x"));
}
