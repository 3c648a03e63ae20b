// Building JsonValue objects member by member; used by the protocol converters.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/json_value.h"

namespace weft::api {

inline void put(JsonValue& object, std::string_view key, JsonValue value) {
  object.members().emplace_back(std::string(key), std::move(value));
}
inline void put(JsonValue& object, std::string_view key, std::string_view text) {
  put(object, key, JsonValue::string(std::string(text)));
}
inline void put(JsonValue& object, std::string_view key, const char* text) {
  put(object, key, std::string_view(text));
}

// Copies the member under another name when it is there and not null.
inline void copy_member(const JsonValue& from, std::string_view key, JsonValue& to,
                        std::string_view new_key) {
  const JsonValue* value = from.find(key);
  if (value != nullptr && !value->is_null()) put(to, new_key, *value);
}
// The member as text, or nothing.
inline std::string_view text_member(const JsonValue& from, std::string_view key) {
  const JsonValue* value = from.find(key);
  return value != nullptr && value->is_string() ? std::string_view(value->as_string())
                                                : std::string_view();
}

inline JsonValue text_part(std::string_view text) {
  JsonValue part = JsonValue::object();
  put(part, "type", "text");
  put(part, "text", text);
  return part;
}
inline JsonValue image_part(std::string_view url) {
  JsonValue image = JsonValue::object();
  put(image, "url", url);
  JsonValue part = JsonValue::object();
  put(part, "type", "image_url");
  put(part, "image_url", std::move(image));
  return part;
}

}  // namespace weft::api
