#include "api/fields.h"

#include <fmt/format.h>

#include "api/errors.h"

namespace weft::api {

const JsonValue* Fields::get(std::string_view key) const {
  const JsonValue* found = object_.find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

std::string Fields::param(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

Check Fields::boolean(std::string_view key, bool* out) const {
  const JsonValue* value = get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool())
    return bad_request(
        param(key), fmt::format("{} must be true or false, not {}", param(key), kind_name(*value)));
  *out = value->as_bool();
  return std::nullopt;
}

Check Fields::integer(std::string_view key, int64_t min, int64_t max,
                      std::optional<int64_t>* out) const {
  const JsonValue* value = get(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = value->as_int();
  if (!number)
    return bad_request(param(key),
                       fmt::format("{} must be an integer, not {}", param(key),
                                   value->is_number() ? value->spelling() : kind_name(*value)));
  if (*number < min || *number > max)
    return bad_request(param(key),
                       fmt::format("{} must be {}, not {}", param(key),
                                   max == INT64_MAX ? fmt::format("at least {}", min)
                                                    : fmt::format("between {} and {}", min, max),
                                   *number));
  *out = *number;
  return std::nullopt;
}

Check Fields::integer(std::string_view key, int64_t min, int64_t max, int64_t* out) const {
  std::optional<int64_t> value;
  WEFT_API_TRY(integer(key, min, max, &value));
  if (value) *out = *value;
  return std::nullopt;
}

Check Fields::number(std::string_view key, const NumberRange& range, double* out) const {
  const JsonValue* value = get(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = value->as_double();
  if (!number)
    return bad_request(param(key),
                       fmt::format("{} must be a number, not {}", param(key), kind_name(*value)));
  if (*number < range.min || *number > range.max || (range.above_min && *number == range.min))
    return bad_request(param(key), fmt::format("{} must be {} {} and at most {}, not {}",
                                               param(key), range.above_min ? "above" : "at least",
                                               range.min, range.max, value->spelling()));
  *out = *number;
  return std::nullopt;
}

Check Fields::string(std::string_view key, size_t bytes_max, std::string* out) const {
  const JsonValue* value = get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string())
    return bad_request(param(key),
                       fmt::format("{} must be a string, not {}", param(key), kind_name(*value)));
  if (value->as_string().size() > bytes_max)
    return bad_request(param(key), fmt::format("{} must have at most {} bytes, not {}", param(key),
                                               bytes_max, value->as_string().size()));
  *out = value->as_string();
  return std::nullopt;
}

Check Fields::object(std::string_view key, const JsonValue** out) const {
  const JsonValue* value = get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object())
    return bad_request(param(key),
                       fmt::format("{} must be an object, not {}", param(key), kind_name(*value)));
  *out = value;
  return std::nullopt;
}

Check Fields::array(std::string_view key, const JsonValue** out) const {
  const JsonValue* value = get(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array())
    return bad_request(param(key),
                       fmt::format("{} must be an array, not {}", param(key), kind_name(*value)));
  *out = value;
  return std::nullopt;
}

const char* kind_name(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBool:
      return "a boolean";
    case JsonValue::Kind::kNumber:
      return "a number";
    case JsonValue::Kind::kString:
      return "a string";
    case JsonValue::Kind::kArray:
      return "an array";
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "an unknown value";
}

std::string index_path(std::string_view path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

}  // namespace weft::api
