#include "base/json_value.h"

#include <doctest/doctest.h>

using namespace weft;

TEST_CASE("json keeps key order, number spelling and the last duplicate") {
  auto v = parse_json(R"({"b": 1e400, "a": 123456789012345678901234567890, "b": -0.50})");
  REQUIRE(v.ok());
  CHECK(dump_json(*v) == R"({"b":-0.50,"a":123456789012345678901234567890})");
}

TEST_CASE("json strings: escapes, surrogate pairs, lone surrogates") {
  auto v = parse_json(R"(["\u0041\n\/", "\ud83d\ude00", "\ud83dx", "\udc00", "\ud83d\u0041"])");
  REQUIRE(v.ok());
  CHECK(v->items()[0].as_string() == "A\n/");
  CHECK(v->items()[1].as_string() == "\xF0\x9F\x98\x80");
  CHECK(v->items()[2].as_string() == "\xEF\xBF\xBDx");
  CHECK(v->items()[3].as_string() == "\xEF\xBF\xBD");
  CHECK(v->items()[4].as_string() ==
        "\xEF\xBF\xBD"
        "A");
}

TEST_CASE("json refuses what RFC 8259 refuses, with a position") {
  for (const char* bad :
       {"",      "{",         "[1,]",        "{\"a\":1,}", "01",      "1.",       "+1",
        "NaN",   "'a'",       "\"\x01\"",    "[1] 2",      "\"\\x\"", "\"\xff\"", "tru",
        "{1:2}", "\"\\u12\"", "\"\\u12g4\"", "-",          "1e",      "[1 2]"}) {
    CAPTURE(bad);
    auto v = parse_json(bad);
    REQUIRE(!v.ok());
    CHECK(v.error().message.find("line 1, column") != std::string::npos);
  }
  CHECK(parse_json("{\n \"a\": x}").error().message.find("line 2, column 7") != std::string::npos);
}

TEST_CASE("json depth and size limits are exact") {
  const std::string deep = std::string(128, '[') + std::string(128, ']');
  CHECK(parse_json(deep).ok());
  CHECK(!parse_json('[' + deep + ']').ok());
  CHECK(!parse_json("[1,2]", {.depth_max = 9, .bytes_max = 4}).ok());
}

TEST_CASE("json numbers") {
  auto v = parse_json("[9223372036854775807, 9223372036854775808, 1.0, 1e2, -7]");
  REQUIRE(v.ok());
  CHECK(v->items()[0].as_int() == 9223372036854775807LL);
  CHECK(!v->items()[1].as_int());
  CHECK(!v->items()[2].as_int());
  CHECK(v->items()[3].as_double() == 100.0);
  CHECK(v->items()[4].as_int() == -7);
}
