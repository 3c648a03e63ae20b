// Fields: reads typed members of a request object. null equals absent; a value of the wrong type or
// outside its range becomes an ApiError whose param is the path of the field.
//
// Borrows the object; lives on the stack of a parser.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "api/parsed.h"
#include "base/json_value.h"

namespace weft::api {

// A closed range, or open at the bottom.
struct NumberRange {
  double min = 0;
  double max = 0;
  bool above_min = false;  // min itself is outside
};

class Fields {
 public:
  explicit Fields(const JsonValue& object, std::string path = {})
      : object_(object), path_(std::move(path)) {}

  const JsonValue* get(std::string_view key) const;  // nullptr when absent or null
  std::string param(std::string_view key) const;     // path of a member

  // Each leaves *out as it is when the field is absent.
  Check boolean(std::string_view key, bool* out) const;
  Check integer(std::string_view key, int64_t min, int64_t max, std::optional<int64_t>* out) const;
  Check integer(std::string_view key, int64_t min, int64_t max, int64_t* out) const;
  Check number(std::string_view key, const NumberRange& range, double* out) const;
  Check string(std::string_view key, size_t bytes_max, std::string* out) const;
  Check object(std::string_view key, const JsonValue** out) const;
  Check array(std::string_view key, const JsonValue** out) const;

 private:
  const JsonValue& object_;
  std::string path_;
};

// "an object", "a string": the kind of a value in a sentence.
const char* kind_name(const JsonValue& value);
std::string index_path(std::string_view path, size_t index);  // "messages[3]"

}  // namespace weft::api
