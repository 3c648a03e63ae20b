#include "text/utf8_stream.h"

#include "kimi_tokenizer.h"
#include "vectors.h"

using namespace weft;
using namespace weft::text;

TEST_CASE("detokenising stream: vectors") {
  for (const JsonValue& c : test::cases("detok_stream", "cases")) {
    CAPTURE(test::str(c, "name"));
    Utf8Stream stream;
    std::vector<std::string> deltas;
    for (const std::string& hex : test::strings_of(test::at(c, "token_bytes_hex"))) {
      deltas.emplace_back();
      stream.feed(test::from_hex(hex), &deltas.back());
    }
    CHECK(deltas == test::strings_of(test::at(c, "deltas")));
    std::string rest;
    stream.flush(&rest);
    CHECK(rest == test::str(c, "flush"));
    CHECK(!stream.pending());
  }
}

TEST_CASE("detokenising stream: K3 ids") {
  const auto tokenizer = test::kimi_tokenizer();
  if (tokenizer == nullptr) return;
  for (const JsonValue& c : test::cases("detok_stream", "k3_ids")) {
    CHECK(tokenizer->encode(test::str(c, "text")) == test::ids_of(test::at(c, "ids")));
    Utf8Stream stream;
    std::vector<std::string> deltas;
    for (const int32_t id : test::ids_of(test::at(c, "ids"))) {
      deltas.emplace_back();
      stream.feed(tokenizer->token_bytes(id), &deltas.back());
    }
    CHECK(deltas == test::strings_of(test::at(c, "deltas")));
  }
}

TEST_CASE("detokenising stream: no cut of random bytes changes the text") {
  std::mt19937 rng(11);
  const std::string kLikely("\x80\xBF\xC0\xC2\xE0\xE4\xED\xF0\xF4\xF5\x41\x9F\xA0\x90", 14);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 12; ++i) bytes += kLikely[rng() % kLikely.size()];
    const std::string whole = decode_lossy(bytes);
    CHECK(is_valid_utf8(whole));
    std::string pieces;
    Utf8Stream stream;
    for (size_t i = 0; i < bytes.size();) {
      const size_t n = 1 + rng() % 3;
      stream.feed(std::string_view(bytes).substr(i, n), &pieces);
      i += n;
    }
    stream.flush(&pieces);
    CHECK(pieces == whole);
  }
}
