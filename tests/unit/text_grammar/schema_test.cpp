// Schemas against a naive validator: random documents must be accepted exactly when they are valid,
// random walks through the grammar must never get stuck and end in valid documents.
#include <algorithm>
#include <cmath>
#include <random>

#include "unit/text_grammar/grammar_fixture.h"

using namespace weft;
using namespace weft::test;

namespace {

int64_t code_points(const std::string& s) {
  return std::count_if(s.begin(), s.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

// The reference: straight from the meaning of the keywords.
bool valid(const JsonValue& root, const JsonValue& schema, const JsonValue& v) {
  if (schema.is_bool()) return schema.as_bool();
  const auto has = [&](const char* key) { return schema.find(key); };
  const auto integer = [&](const char* key, int64_t fallback) {
    return has(key) ? has(key)->as_int().value_or(fallback) : fallback;
  };
  if (const JsonValue* ref = has("$ref")) {
    const std::string name = ref->as_string();
    const JsonValue* target = name == "#" ? &root : root.find("$defs")->find(name.substr(8));
    if (!valid(root, *target, v)) return false;
  }
  if (const JsonValue* all = has("allOf"))
    for (const JsonValue& s : all->items())
      if (!valid(root, s, v)) return false;
  if (const JsonValue* any = has("anyOf"))
    if (std::none_of(any->items().begin(), any->items().end(),
                     [&](const JsonValue& s) { return valid(root, s, v); }))
      return false;
  if (const JsonValue* type = has("type")) {
    const auto is = [&](const JsonValue& name) {
      const std::string& t = name.as_string();
      return (t == "null" && v.is_null()) || (t == "boolean" && v.is_bool()) ||
             (t == "string" && v.is_string()) || (t == "array" && v.is_array()) ||
             (t == "object" && v.is_object()) || (t == "number" && v.is_number()) ||
             (t == "integer" && v.is_integer_spelling());
    };
    if (type->is_array() ? std::none_of(type->items().begin(), type->items().end(), is)
                         : !is(*type))
      return false;
  }
  if (const JsonValue* list = has("enum"))
    if (std::find(list->items().begin(), list->items().end(), v) == list->items().end())
      return false;
  if (const JsonValue* one = has("const"))
    if (!(*one == v)) return false;
  if (v.is_string()) {
    const int64_t n = code_points(v.as_string());
    if (n < integer("minLength", 0) || n > integer("maxLength", INT64_MAX)) return false;
  }
  if (v.is_integer_spelling() && has("type") && has("type")->is_string() &&
      has("type")->as_string() == "integer") {
    const int64_t n = *v.as_int();
    if (n < integer("minimum", INT64_MIN) || n > integer("maximum", INT64_MAX)) return false;
  }
  if (v.is_array()) {
    const auto n = static_cast<int64_t>(v.items().size());
    if (n < integer("minItems", 0) || n > integer("maxItems", INT64_MAX)) return false;
    const size_t fixed = has("prefixItems") ? has("prefixItems")->items().size() : 0;
    for (size_t i = 0; i < v.items().size(); ++i) {
      if (i < fixed && !valid(root, has("prefixItems")->items()[i], v.items()[i])) return false;
      if (i >= fixed && has("items") && !valid(root, *has("items"), v.items()[i])) return false;
    }
  }
  if (v.is_object()) {
    const auto n = static_cast<int64_t>(v.members().size());
    if (n < integer("minProperties", 0) || n > integer("maxProperties", INT64_MAX)) return false;
    if (const JsonValue* required = has("required"))
      for (const JsonValue& key : required->items())
        if (!v.find(key.as_string())) return false;
    for (const auto& [key, member] : v.members()) {
      const JsonValue* declared = has("properties") ? has("properties")->find(key) : nullptr;
      if (declared
              ? !valid(root, *declared, member)
              : has("additionalProperties") && !valid(root, *has("additionalProperties"), member))
        return false;
    }
  }
  return true;
}

// Every object in these says what it does with other properties, so strict and lenient readings
// agree.
const char* const kSchemas[] = {
    R"({"type":"object","properties":{"a":{"type":"integer","minimum":-3,"maximum":12},"ab":{"type":"string","maxLength":3},
        "b":{"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":3}},"required":["ab"],
        "additionalProperties":false})",
    R"({"type":["string","null","integer"],"minLength":1,"maxLength":2})",
    R"({"type":"object","properties":{"a":{"type":"null"}},"additionalProperties":{"type":["integer","string"]}})",
    R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"$ref":"#"},"maxItems":3}]})",
    R"({"enum":["a","ab",1,[1,{"a":null}],true,null]})",
    R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"boolean"},"minItems":2})",
    R"({"type":"object","properties":{"a":true,"b":true,"c":true,"ab":true},"required":["a"],"minProperties":2,"maxProperties":3,
        "additionalProperties":true})",
    R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},
        {"type":"object","properties":{"a":{"type":"integer","minimum":0},"b":{"type":"string"}},"additionalProperties":false}]})",
    R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":false,
        "anyOf":[{"required":["a"]},{"required":["b"]}]})",
    R"({"$defs":{"n":{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"array","items":{"$ref":"#/$defs/n"}}},
        "required":["a"],"additionalProperties":false}},"$ref":"#/$defs/n"})",
    R"({"type":"object","additionalProperties":true})",
    R"({"anyOf":[{"type":"object","properties":{"a":{"const":"a"},"b":{"type":"integer"}},"required":["a"],
        "additionalProperties":false},{"type":"object","properties":{"a":{"const":"ab"},"b":{"type":"string"}},
        "required":["a"],"additionalProperties":false}]})"};

class RandomJson {
 public:
  explicit RandomJson(uint32_t seed) : random_(seed) {}
  JsonValue value(int depth) {
    const char* const kKeys[] = {"a", "b", "c", "ab", "", "x\"y"};
    const char* const kStrings[] = {"a", "ab", "", "xyz", "\xE4\xBD\xA0", "q\n", "\\"};
    switch (random_() % (depth > 2 ? 5 : 9)) {
      case 0:
        return JsonValue::null();
      case 1:
        return JsonValue::boolean(random_() % 2 == 0);
      case 2:
        return JsonValue::integer(static_cast<int64_t>(random_() % 20) - 5);
      case 3:
        return JsonValue::string(kStrings[random_() % 7]);
      case 4:
        return JsonValue::number("1.5");
      case 5:
      case 6: {
        JsonValue list = JsonValue::array();
        for (size_t n = random_() % 4; n > 0; --n) list.items().push_back(value(depth + 1));
        return list;
      }
      default: {
        JsonValue object = JsonValue::object();
        for (size_t n = random_() % 4; n > 0; --n) {
          const char* key = kKeys[random_() % 6];
          if (object.find(key) == nullptr) object.members().emplace_back(key, value(depth + 1));
        }
        return object;
      }
    }
  }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
};

std::string python_style(const JsonValue& v) {
  std::string out;
  bool in_string = false;
  const std::string compact = dump_json(v);
  for (size_t i = 0; i < compact.size(); ++i) {
    const char c = compact[i];
    out += c;
    if (in_string && c == '\\')
      out += compact[++i];
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string && (c == ',' || c == ':'))
      out += ' ';
  }
  return out;
}

// Walks at random among what is allowed, with a leaning towards the end. Returns the text, empty
// when it took too long.
std::string random_walk(const std::shared_ptr<const Grammar>& grammar, std::mt19937& random) {
  Acceptor acceptor(grammar);
  std::string text;
  for (int step = 0; step < 600; ++step) {
    const auto allowed = acceptor.allowed();
    REQUIRE_MESSAGE(allowed.any(), text);
    if (allowed.close && random() % 2 == 0) return text;
    std::vector<uint8_t> choices;
    for (int b = 0; b < 256; ++b) {
      if (!allowed.bytes[static_cast<size_t>(b)]) continue;
      const std::string_view kClosers = "\"]}";
      const int weight = kClosers.find(static_cast<char>(b)) != std::string_view::npos ? 60
                         : b == ','                                                    ? 5
                                                                                       : 1;
      choices.insert(choices.end(), static_cast<size_t>(weight), static_cast<uint8_t>(b));
    }
    if (choices.empty()) return text;  // only the end is left
    const uint8_t byte = choices[random() % choices.size()];
    REQUIRE(acceptor.accept(byte));
    text += static_cast<char>(byte);
  }
  return "";
}

}  // namespace

TEST_CASE("random documents are accepted exactly when the schema says so") {
  RandomJson source(42);
  for (const char* text : kSchemas) {
    CAPTURE(text);
    const JsonValue schema = *parse_json(text);
    const auto grammar = compile(json_request(text));
    size_t good = 0;
    for (int i = 0; i < 600; ++i) {
      const JsonValue v = source.value(0);
      const bool expected = valid(schema, schema, v);
      good += expected ? 1 : 0;
      CAPTURE(dump_json(v));
      if (accepts(grammar, answer(dump_json(v))) != expected)
        CHECK(accepts(grammar, answer(dump_json(v))) == expected);
      if (accepts(grammar, answer(python_style(v))) != expected)
        CHECK(accepts(grammar, answer(python_style(v))) == expected);
    }
    CHECK(good < 600);
  }
}

TEST_CASE("random walks never get stuck and end in valid documents") {
  std::mt19937 random(1);
  for (const char* text : kSchemas) {
    CAPTURE(text);
    const JsonValue schema = *parse_json(text);
    const auto grammar = compile(json_request(text));
    size_t finished = 0;
    for (int i = 0; i < 25; ++i) {
      const std::string document = random_walk(grammar, random);
      if (document.empty()) continue;
      ++finished;
      CAPTURE(document);
      const auto parsed = parse_json(document);
      REQUIRE(parsed.ok());
      CHECK(valid(schema, schema, *parsed));
    }
    CHECK(finished > 0);
  }
}

TEST_CASE("unsupported keywords: refused when strict, ignored with a warning otherwise") {
  for (const char* keyword :
       {R"("not":{})", R"("if":{})", R"("patternProperties":{"a":{}})", R"("uniqueItems":true)",
        R"("dependentSchemas":{})", R"("contains":{})", R"("propertyNames":{})",
        R"j("pattern":"(?=a)","type":"string")j"}) {
    const std::string schema = "{" + std::string(keyword) + "}";
    CAPTURE(schema);
    const auto strict = compile_grammar(json_request(schema, true));
    REQUIRE(!strict.ok());
    CHECK(strict.error().status == 400);
    CHECK(strict.error().param == "response_format.json_schema.schema");
    const auto lenient = compile_grammar(json_request(schema, false));
    REQUIRE(lenient.ok());
    CHECK(!lenient.value()->warnings.empty());
  }
  CHECK(compile_grammar(
            json_request(R"({"uniqueItems":false,"multipleOf":1,"format":"uri","title":"t"})"))
            .ok());
}

TEST_CASE("schemas that are wrong or can never be satisfied") {
  for (const char* schema :
       {R"({"$ref":"#"})", R"({"anyOf":[{"$ref":"#"}]})", R"({"$ref":"#/nope"})",
        R"({"$ref":"http://x"})", R"({"type":"wizard"})", R"({"enum":[]})",
        R"({"type":"integer","minimum":3,"maximum":2})",
        R"({"type":"string","minLength":3,"maxLength":2})",
        R"({"type":"array","items":false,"minItems":1})",
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "false", "[]",
        R"({"type":"object","properties":{},"required":["a"],"additionalProperties":false})",
        R"({"type":"object","minProperties":3,"maxProperties":2})",
        R"({"type":"string","pattern":"^abc$","maxLength":2})",
        R"({"type":"string","minLength":-1})",
        R"({"allOf":[{"type":"string"},{"type":"null"}]})"}) {
    CAPTURE(schema);
    const auto grammar = compile_grammar(json_request(schema));
    REQUIRE(!grammar.ok());
    CHECK(grammar.error().status == 400);
    CHECK(grammar.error().message.size() > 20);
  }
}

TEST_CASE("compilation is bounded") {
  std::string wide = R"({"anyOf":[{"type":"null"})";
  for (int i = 0; i < 30000; ++i)
    wide += R"(,{"type":"array","maxItems":)" + std::to_string(i) + "}";
  CHECK(!compile_grammar(json_request(wide + "]}")).ok());
  std::string deep = R"({"type":"null"})";
  for (int i = 0; i < 60; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  CHECK(compile_grammar(json_request(deep)).ok());
  // Each level doubles the ways to read; the number of places stays bounded and a valid text still
  // passes.
  const auto twice = compile(json_request(
      R"({"anyOf":[{"type":"array","items":{"$ref":"#"}},{"type":"array","items":{"$ref":"#"},"maxItems":9},{"type":"null"}]})"));
  CHECK(accepts(twice, answer("[[[[[[[[[[[[[[null]]]]]]]]]]]]]]")));
  const auto open_ended = compile(json_request("true"));
  CHECK(!accepts(open_ended, answer(std::string(1000, '[') + std::string(1000, ']'))));
  CHECK(accepts(open_ended, answer(std::string(50, '[') + std::string(50, ']'))));
}

TEST_CASE("keys: escapes, prefixes, others in one spelling only") {
  const auto grammar = compile(json_request(
      R"({"type":"object","properties":{"a\"b":{"type":"integer"},"é":{"type":"integer"}},"additionalProperties":{"type":"null"}})"));
  CHECK(accepts(grammar, answer(R"({"a\"b":1,"é":2,"a":null,"a\"bc":null})")));
  CHECK(!accepts(grammar, answer(R"({"a\"b":null})")));
  CHECK(!accepts(grammar, answer(R"({"a\u0022b":null})")));
  CHECK(!accepts(grammar, answer(R"({"é":null})")));
  CHECK(!accepts(grammar, answer(R"({"é":1,"é":1})")));
}

TEST_CASE("surrogate escapes and bad UTF-8 are not in JSON strings") {
  const auto grammar = compile(json_request(R"({"type":"string"})"));
  CHECK(accepts(grammar, answer(R"("\u00e9\ud7ff\/\b")")));
  CHECK(!accepts(grammar, answer(R"("\ud83d\ude00")")));
  CHECK(!accepts(grammar, answer("\"\xFF\"")));
  CHECK(!accepts(grammar, answer("\"\xE4\xBD\"")));
  CHECK(!accepts(grammar, answer("\"\x01\"")));
}
