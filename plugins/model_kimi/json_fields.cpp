#include "json_fields.h"

#include <cmath>

namespace weft_kimi {

// Nested containers are named, not printed: dump() and copies recurse, and the depth is the file's
// choice.
std::string brief(const Json& value) {
  if (value.is_structured()) {
    for (const Json& item : value) {
      if (item.is_structured()) return value.is_array() ? "a nested array" : "an object";
    }
  }
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

void Fields::fail(const char* key, weft_status code, const std::string& what) {
  if (fault_.ok()) fault_ = weft_kimi::fault(code, "config.json: {}: {}", name(key), what);
}

bool Fields::has(const char* key) const {
  const auto it = object_.find(key);
  return it != object_.end() && !it->is_null();
}

uint32_t Fields::number(const char* key, uint32_t low, uint32_t high) {
  if (!has(key)) {
    fail(key, WEFT_E_CONFIG,
         fmt::format("missing; an integer from {} to {} is required", low, high));
    return low;
  }
  const Json& value = object_.at(key);
  // get<int64_t> of an unsigned above 2^63 wraps to a negative number, which the range refuses as
  // well.
  const bool whole = value.is_number_integer();
  const int64_t n = whole ? value.get<int64_t>() : -1;
  if (!whole || n < int64_t{low} || n > int64_t{high}) {
    fail(key, WEFT_E_CONFIG,
         fmt::format("expected an integer from {} to {}, got {}", low, high, brief(value)));
    return low;
  }
  return static_cast<uint32_t>(n);
}

uint32_t Fields::number_or(const char* key, uint32_t low, uint32_t high, uint32_t fallback) {
  return has(key) ? number(key, low, high) : fallback;
}

float Fields::real(const char* key, double low, double high) {
  if (!has(key)) {
    fail(key, WEFT_E_CONFIG, fmt::format("missing; a number from {} to {} is required", low, high));
    return static_cast<float>(low);
  }
  const Json& value = object_.at(key);
  const double x = value.is_number() ? value.get<double>() : std::nan("");
  if (!(x >= low && x <= high)) {
    fail(key, WEFT_E_CONFIG,
         fmt::format("expected a number from {} to {}, got {}", low, high, brief(value)));
    return static_cast<float>(low);
  }
  return static_cast<float>(x);
}

float Fields::real_or(const char* key, double low, double high, float fallback) {
  return has(key) ? real(key, low, high) : fallback;
}

bool Fields::flag_or(const char* key, bool fallback) {
  if (!has(key)) return fallback;
  const Json& value = object_.at(key);
  if (!value.is_boolean()) {
    fail(key, WEFT_E_CONFIG, fmt::format("expected true or false, got {}", brief(value)));
    return fallback;
  }
  return value.get<bool>();
}

std::string Fields::text_or(const char* key, const std::string& fallback) {
  if (!has(key)) return fallback;
  const Json& value = object_.at(key);
  if (!value.is_string()) {
    fail(key, WEFT_E_CONFIG, fmt::format("expected a string, got {}", brief(value)));
    return fallback;
  }
  return value.get<std::string>();
}

void Fields::expect(const char* key, const std::string& only) {
  const std::string got = text_or(key, only);
  if (got != only) {
    fail(key, WEFT_E_UNSUPPORTED, fmt::format("only \"{}\" is supported, got \"{}\"", only, got));
  }
}

void Fields::expect_false(const char* key) {
  if (flag_or(key, false)) fail(key, WEFT_E_UNSUPPORTED, "only false is supported, got true");
}

const Json& Fields::object(const char* key) {
  static const Json empty = Json::object();
  if (!has(key)) {
    fail(key, WEFT_E_CONFIG, "missing; an object is required");
    return empty;
  }
  const Json& value = object_.at(key);
  if (!value.is_object()) {
    fail(key, WEFT_E_CONFIG, fmt::format("expected an object, got {}", brief(value)));
    return empty;
  }
  return value;
}

}  // namespace weft_kimi
