// JsonValue: a JSON document that keeps what requests need and ordinary DOMs lose: key order,
// duplicate detection and the spelling of numbers (a tool schema with 1e400 or a 30-digit integer
// must reach the prompt as the client wrote it).
//
// Parsing is strict and bounded by our own limits. Values own their data. Any thread, no sharing
// while written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft {

struct JsonLimits {
  size_t depth_max = 128;
  size_t bytes_max = 64u << 20;
};

class JsonValue {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };
  using Member = std::pair<std::string, JsonValue>;

  JsonValue() = default;
  static JsonValue null() { return {}; }
  static JsonValue boolean(bool v);
  static JsonValue integer(int64_t v);
  static JsonValue number(std::string spelling);  // spelling must be a JSON number
  static JsonValue string(std::string v);
  static JsonValue array(std::vector<JsonValue> v = {});
  static JsonValue object(std::vector<Member> v = {});

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_number() const { return kind_ == Kind::kNumber; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }

  bool as_bool() const;                     // CHECKs the kind
  const std::string& as_string() const;     // CHECKs the kind
  const std::string& spelling() const;      // number as written
  std::optional<int64_t> as_int() const;    // number without fraction or exponent that fits
  std::optional<double> as_double() const;  // any number; +-inf when out of range
  bool is_integer_spelling() const;         // number without '.', 'e', 'E'

  const std::vector<JsonValue>& items() const;  // array; CHECKs
  std::vector<JsonValue>& items();
  const std::vector<Member>& members()
      const;  // object, in order; on duplicate keys the last value at the first place
  std::vector<Member>& members();
  const JsonValue* find(
      std::string_view key) const;  // object member or nullptr (also when not an object)

  bool operator==(
      const JsonValue& other) const;  // objects compare without order, numbers by spelling

 private:
  Kind kind_ = Kind::kNull;
  bool bool_ = false;
  std::string text_;  // string, or number spelling
  std::vector<JsonValue> items_;
  std::vector<Member> members_;
};

// Strict RFC 8259: no NaN, no comments, no trailing bytes, valid UTF-8. Lone surrogate escapes
// become U+FFFD.
Result<JsonValue> parse_json(std::string_view text, const JsonLimits& limits = {});
// Compact form: key order and number spelling kept, non-ASCII verbatim.
std::string dump_json(const JsonValue& value);
// Appends `text` with JSON escapes (short forms, else \u00xx in lower case), without quotes.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace weft
