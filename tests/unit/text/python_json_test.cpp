#include "text/python_json.h"

#include "vectors.h"

using namespace weft;
using namespace weft::text;

TEST_CASE("python json: vectors") {
  const JsonValue doc = test::vectors("python_json");
  for (const JsonValue& c : test::at(doc, "cases").items()) {
    CAPTURE(test::str(c, "in"));
    const auto value = parse_json(test::str(c, "in"));
    REQUIRE(value.ok());
    CHECK(json_type_name(*value) == test::str(c, "type"));
    CHECK(python_json(*value) == test::str(c, "default"));
    CHECK(compact_sorted_json(*value) == test::str(c, "compact_sorted"));
    CHECK(argument_body(*value) == test::str(c, "argument_body"));
  }
  for (const std::string& bad : test::strings_of(test::at(doc, "invalid"))) {
    CAPTURE(bad);
    std::string out;
    CHECK(!minify_json(bad, &out));
    CHECK(out.empty());
  }
}

TEST_CASE("minify keeps spelling, order and the inside of strings") {
  std::string out;
  CHECK(minify_json(" {\"b\" : 1.50 ,\n\"a\": [ -0, 1e5, \"x  \\\" y\" ] } ", &out));
  CHECK(out == "{\"b\":1.50,\"a\":[-0,1e5,\"x  \\\" y\"]}");
}
