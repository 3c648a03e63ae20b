// Typed reading of one JSON object with messages that name the field. The first problem sticks;
// reads after it return harmless defaults, so a parser reads everything and asks fault() once.
// Borrows the JSON value. One thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "fault.h"

namespace weft_kimi {

using Json = nlohmann::json;

class Fields {
 public:
  // path: "" for the document, else "text_config" and the like.
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  const Fault& fault() const { return fault_; }
  void fail(const char* key, weft_status code, const std::string& what);
  bool has(const char* key) const;  // present and not null
  const Json* get(const char* key) const { return has(key) ? &object_.at(key) : nullptr; }
  std::string name(const char* key) const { return path_.empty() ? key : path_ + "." + key; }

  uint32_t number(const char* key, uint32_t low, uint32_t high);
  uint32_t number_or(const char* key, uint32_t low, uint32_t high, uint32_t fallback);
  float real(const char* key, double low, double high);
  float real_or(const char* key, double low, double high, float fallback);
  bool flag_or(const char* key, bool fallback);
  std::string text_or(const char* key, const std::string& fallback);
  // The value must be `only` when the key is present.
  void expect(const char* key, const std::string& only);
  void expect_false(const char* key);
  // A required object; an empty one after a failure.
  const Json& object(const char* key);

 private:
  const Json& object_;
  std::string path_;
  Fault fault_;
};

std::string brief(const Json& value);

}  // namespace weft_kimi
