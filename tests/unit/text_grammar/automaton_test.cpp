// Automata against brute force: integer ranges over a span of numbers, patterns against std::regex,
// UTF-8 ranges against the decoder.
// std::regex of gcc 12 draws a false -Wmaybe-uninitialized when compiled with sanitizers.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "text/grammar/automaton.h"

#include <doctest/doctest.h>

#include <random>
#include <regex>
#include <string>

#include "base/utf8.h"
#include "text/grammar/regex.h"

using namespace weft;
using namespace weft::text::grammar;

namespace {

Dfa integers(std::optional<int64_t> min, std::optional<int64_t> max) {
  Nfa nfa;
  const auto start = nfa.add_state(), end = nfa.add_state();
  add_integer_range(nfa, start, end, min, max);
  auto dfa = determinize(nfa, start, end);
  REQUIRE(dfa.ok());
  return std::move(dfa).value();
}

Dfa pattern(const std::string& text) {
  auto dfa = compile_pattern(text);
  REQUIRE_MESSAGE(dfa.ok(), text);
  return std::move(dfa).value();
}

}  // namespace

TEST_CASE("integer ranges accept exactly the numbers inside") {
  std::mt19937 random(7);
  const auto bound = [&]() -> std::optional<int64_t> {
    if (random() % 5 == 0) return std::nullopt;
    const int64_t scale = random() % 2 == 0 ? 30 : 1300;
    return static_cast<int64_t>(random() % static_cast<uint64_t>(2 * scale)) - scale;
  };
  for (int round = 0; round < 60; ++round) {
    const auto min = bound(), max = bound();
    const Dfa dfa = integers(min, max);
    for (int64_t v = -1500; v <= 1500; ++v) {
      const bool inside = (!min || v >= *min) && (!max || v <= *max);
      if (dfa.matches(std::to_string(v)) != inside) {
        CAPTURE(v);
        CAPTURE(min.value_or(-99999));
        CAPTURE(max.value_or(99999));
        CHECK(dfa.matches(std::to_string(v)) == inside);
      }
    }
    CHECK(!dfa.matches("007"));
    CHECK(!dfa.matches("+1"));
    CHECK(!dfa.matches(""));
    CHECK(!dfa.matches("1.0"));
  }
  const Dfa large =
      integers(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  CHECK(large.matches("-9223372036854775808"));
  CHECK(!large.matches("-9223372036854775809"));
  CHECK(large.matches("9223372036854775807"));
  CHECK(!large.matches("9223372036854775808"));
  CHECK(integers(5, 4).empty());
  CHECK(integers({}, {}).matches("-0"));
  CHECK(integers({}, {}).matches("123456789012345678901234567890"));
}

TEST_CASE("numbers") {
  Nfa nfa;
  const auto start = nfa.add_state(), end = nfa.add_state();
  add_number(nfa, start, end);
  const auto dfa = determinize(nfa, start, end);
  REQUIRE(dfa.ok());
  for (const char* good : {"0", "-0", "1.5", "-12.25e+10", "3E7", "1e-5", "0.0"})
    CHECK(dfa->matches(good));
  for (const char* bad : {"", "-", "01", "1.", ".5", "1e", "1e+", "+1", "NaN", "1 "})
    CHECK(!dfa->matches(bad));
}

TEST_CASE("patterns agree with a reference engine") {
  const std::vector<std::string> kPatterns = {
      "^[a-z]+$",        "ab",          "^a|b$",    "^(ab|c)*d?$",       "a.c",
      "^\\d{2,3}-\\w+$", "^[^ab]*$",    "^a{0}b$",  "^(a{2}){1,2}$",     "^x(?:y|z){2,}$",
      "[0-9]",           "^$",          "^a*?b+?$", "^[\\w.-]+@[a-c]+$", "^\\s*a\\s*$",
      "^[a\\]b-]+$",     "^a{,2}$|^q$", "b$",       "^(a|ab)(c|bcd)$",   "^\\.\\*$",
      "^[-a]+$"};
  std::mt19937 random(11);
  const std::string alphabet = "abcdxyzq019 .-_@*]\t{,}";
  for (const std::string& text : kPatterns) {
    CAPTURE(text);
    if (text.find("{,") != std::string::npos) {
      CHECK(!compile_pattern(text).ok());  // not a quantifier; we refuse rather than guess
      continue;
    }
    const Dfa dfa = pattern(text);
    const std::regex reference(text, std::regex::ECMAScript);
    for (int i = 0; i < 1500; ++i) {
      std::string s;
      for (size_t n = random() % 7; n > 0; --n) s += alphabet[random() % alphabet.size()];
      CAPTURE(s);
      if (dfa.matches(s) != std::regex_search(s, reference))
        CHECK(dfa.matches(s) == std::regex_search(s, reference));
    }
  }
}

TEST_CASE("patterns over code points") {
  CHECK(pattern("^.$").matches("\xE4\xBD\xA0"));
  CHECK(!pattern("^.$").matches("\xE4\xBD"));
  CHECK(!pattern("^.$").matches("\n"));
  CHECK(pattern("^[\xC3\xA0-\xC3\xBF]+$").matches("\xC3\xA9\xC3\xA8"));
  CHECK(!pattern("^[\xC3\xA0-\xC3\xBF]+$").matches("e"));
  CHECK(pattern("^\\u4f60$").matches("\xE4\xBD\xA0"));
  CHECK(pattern("^[^a]$").matches("\xF0\x9F\x98\x80"));
  std::mt19937 random(3);
  const auto below = [&](uint32_t limit) { return static_cast<char32_t>(random() % limit); };
  for (int round = 0; round < 40; ++round) {
    Nfa ranges;
    const auto from = ranges.add_state(), to = ranges.add_state();
    char32_t low = below(0x110000), high = below(0x110000);
    if (low > high) std::swap(low, high);
    if (round % 3 == 0) high = std::min<char32_t>(low + below(300), 0x10FFFF);
    ranges.add_code_points(from, low, high, to);
    const auto dfa = determinize(ranges, from, to);
    REQUIRE(dfa.ok());
    for (int i = 0; i < 400; ++i) {
      char32_t cp = below(0x110000);
      if (i < 6) cp = (i < 3 ? low : high) + static_cast<char32_t>(i % 3) - 1;
      if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) continue;
      std::string s;
      append_utf8(s, cp);
      CHECK(dfa->matches(s) == (cp >= low && cp <= high));
    }
  }
}

TEST_CASE("refused patterns say why") {
  for (const char* bad : {"(?=a)", "(?<!a)b", "\\bword", "a**", "(", ")", "[a", "a{3,1}", "\\1",
                          "\\p{L}", "a{99999}", "x^y", "*", "[z-a]", "\\"}) {
    CAPTURE(bad);
    const auto result = compile_pattern(bad);
    CHECK(!result.ok());
  }
  CHECK(!compile_pattern("^((a{100}){100}){100}$").ok());
}

TEST_CASE("length limits and JSON escapes of an automaton") {
  const auto limited = limit_length(pattern("^(ab)*$"), 3, 5);
  REQUIRE(limited.ok());
  CHECK(limited->matches("abab"));
  CHECK(!limited->matches("ab"));
  CHECK(!limited->matches("ababab"));
  CHECK(limit_length(pattern("^abc$"), 0, 2)->empty());
  CHECK(limit_length(pattern("^\xE4\xBD\xA0*$"), 0, 2)->matches("\xE4\xBD\xA0\xE4\xBD\xA0"));
  CHECK(limit_length(pattern("^a*$"), 2, std::nullopt)->matches("aaaaa"));
  CHECK(!limit_length(pattern("^a*$"), 2, std::nullopt)->matches("a"));
  const auto escaped = json_escaped(pattern("^[\"\\\\\\n\\x01a]+$"));
  REQUIRE(escaped.ok());
  CHECK(escaped->matches("\\\"\\\\\\na"));
  CHECK(!escaped->matches("\""));
  CHECK(!escaped->matches("\n"));
  CHECK(!escaped->matches("\x01"));
  CHECK(json_escaped(pattern("^\\x01$"))->empty());
}

TEST_CASE("the UTF-8 automaton agrees with the decoder") {
  std::mt19937 random(5);
  for (int i = 0; i < 20000; ++i) {
    std::string s;
    for (size_t n = random() % 5; n > 0; --n)
      s += static_cast<char>(random() % 3 == 0 ? random() % 256 : 0x80 + random() % 128);
    uint8_t state = kUtf8Start;
    for (size_t k = 0; k < s.size() && state != kUtf8Bad; ++k)
      state = utf8_next(state, static_cast<uint8_t>(s[k]));
    CHECK((state == kUtf8Start) == is_valid_utf8(s));
  }
}
