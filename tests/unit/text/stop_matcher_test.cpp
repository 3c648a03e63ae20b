#include "text/stop_matcher.h"

#include "vectors.h"

using namespace weft;
using namespace weft::text;

namespace {

struct Outcome {
  std::string text;
  std::string match;
  bool operator==(const Outcome&) const = default;
};

// By the definition, on the whole text: the match that ends first, of those the one that starts
// first.
Outcome naive(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 0; end <= text.size(); ++end)
    for (size_t begin = 0; begin < end; ++begin)
      for (const std::string& stop : stops)
        if (text.substr(begin, end - begin) == stop) return {text.substr(0, begin), stop};
  return {text, ""};
}

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& chunks) {
  StopMatcher matcher(stops);
  Outcome out;
  for (const std::string& chunk : chunks) out.text += matcher.feed(chunk);
  out.text += matcher.flush();
  out.match = std::string(matcher.match());
  return out;
}

}  // namespace

TEST_CASE("stop strings: vectors") {
  for (const JsonValue& c : test::cases("wire_formats", "stop_strings")) {
    CAPTURE(test::str(c, "name"));
    const auto stops = test::strings_of(test::at(c, "stop"));
    StopMatcher matcher(stops);
    std::vector<std::string> deltas;
    std::string whole;
    for (const std::string& chunk : test::strings_of(test::at(c, "chunks"))) {
      deltas.push_back(matcher.feed(chunk));
      whole += chunk;
    }
    CHECK(deltas == test::strings_of(test::at(c, "deltas")));
    CHECK(matcher.flush() == test::str(c, "flush"));
    CHECK(matcher.match() == test::str_or(c, "matched"));
    CHECK(run(stops, test::code_points(whole)) == naive(stops, whole));
  }
}

TEST_CASE("stop strings: any cut equals the definition") {
  std::mt19937 rng(3);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(1 + rng() % 3);
    for (std::string& stop : stops)
      for (size_t i = 0, n = 1 + rng() % 4; i < n; ++i) stop += static_cast<char>('a' + rng() % 2);
    std::string text;
    for (int i = 0; i < 10; ++i) text += static_cast<char>('a' + rng() % 3);
    std::vector<std::string> chunks;
    for (size_t i = 0; i < text.size();) {
      const size_t n = 1 + rng() % 4;
      chunks.push_back(text.substr(i, n));
      i += n;
    }
    CAPTURE(text);
    CHECK(run(stops, chunks) == naive(stops, text));
  }
}

TEST_CASE("stop strings: the string itself on request, empty ones ignored, nothing after a match") {
  StopMatcher matcher({"", "END"}, true);
  CHECK(matcher.feed("abEN") == "ab");
  CHECK(matcher.feed("Dcd") == "END");
  CHECK(matcher.matched());
  CHECK(matcher.feed("more").empty());
  CHECK(matcher.flush().empty());
  CHECK(!StopMatcher({""}).active());
}
