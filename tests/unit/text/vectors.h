// Reading of tests/data/vectors and of the micro model, and small helpers for the text tests.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "base/utf8.h"

namespace weft::test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline JsonValue read_json(const std::filesystem::path& path) {
  auto value = parse_json(read_file(path));
  REQUIRE_MESSAGE(value.ok(), path.string());
  return std::move(value).value();
}

inline JsonValue vectors(const std::string& name) {
  return read_json(std::filesystem::path(WEFT_TEST_DATA) / "vectors" / (name + ".json"));
}

inline const JsonValue& at(const JsonValue& object, std::string_view key) {
  const JsonValue* found = object.find(key);
  REQUIRE_MESSAGE(found != nullptr, std::string(key));
  return *found;
}
// By value, so that it may stand in a range-for.
inline std::vector<JsonValue> cases(const std::string& name, std::string_view key) {
  return at(vectors(name), key).items();
}
inline const std::string& str(const JsonValue& object, std::string_view key) {
  return at(object, key).as_string();
}
// A member that may be absent or null.
inline std::string str_or(const JsonValue& object, std::string_view key,
                          std::string fallback = "") {
  const JsonValue* found = object.find(key);
  return found != nullptr && found->is_string() ? found->as_string() : fallback;
}
inline bool flag_or(const JsonValue& object, std::string_view key, bool fallback) {
  const JsonValue* found = object.find(key);
  return found != nullptr && found->is_bool() ? found->as_bool() : fallback;
}

inline std::vector<int32_t> ids_of(const JsonValue& array) {
  std::vector<int32_t> out;
  for (const JsonValue& item : array.items()) out.push_back(static_cast<int32_t>(*item.as_int()));
  return out;
}
inline std::vector<std::string> strings_of(const JsonValue& array) {
  std::vector<std::string> out;
  for (const JsonValue& item : array.items()) out.push_back(item.as_string());
  return out;
}

inline std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

inline std::vector<std::string> code_points(const std::string& text) {
  std::vector<std::string> out;
  for (size_t i = 0; i < text.size();) {
    char32_t cp = 0;
    const size_t n = std::max<size_t>(decode_utf8(text, i, &cp), 1);
    out.push_back(text.substr(i, n));
    i += n;
  }
  return out;
}

// Valid UTF-8 with scripts, marks, blanks, digits, contractions and marker spellings.
inline std::string random_text(std::mt19937& rng, size_t units) {
  static const std::vector<std::string> kUnits = {"a",
                                                  "B",
                                                  "z",
                                                  "Q",
                                                  " ",
                                                  "  ",
                                                  "\t",
                                                  "\n",
                                                  "\r\n",
                                                  "1",
                                                  "23",
                                                  "'s",
                                                  "'LL",
                                                  "'",
                                                  ".",
                                                  ",",
                                                  "/",
                                                  "()",
                                                  "_",
                                                  "\xC3\xA9",
                                                  "e\xCC\x81",
                                                  "\xCC\x81",
                                                  "\xE4\xBD\xA0\xE5\xA5\xBD",
                                                  "\xE3\x81\x8B",
                                                  "\xE3\x82\xAB",
                                                  "\xD0\x94\xD0\xB0",
                                                  "\xF0\x9F\x98\x80",
                                                  "\xE2\x80\x8D",
                                                  "\xC2\xA0",
                                                  "\xE3\x80\x80",
                                                  "\xD9\xA1\xD9\xA2",
                                                  "\xC7\x85",
                                                  "\xEF\xBF\xBD",
                                                  "\x1C",
                                                  std::string(1, '\0'),
                                                  "<|open|>",
                                                  "<|close|>",
                                                  "<|sep|>",
                                                  "<|end_of_msg|>",
                                                  "[EOS]",
                                                  "<|media_pad|>",
                                                  "hello",
                                                  "World",
                                                  "\xEA\xB0\x80",
                                                  "\xE0\xA4\xA8\xE0\xA5\x8D",
                                                  "<",
                                                  "|",
                                                  ">",
                                                  "\xC5\xBF",
                                                  "'\xC5\xBF"};
  std::uniform_int_distribution<size_t> pick(0, kUnits.size() - 1);
  std::string out;
  for (size_t i = 0; i < units; ++i) out += kUnits[pick(rng)];
  return out;
}

}  // namespace weft::test
