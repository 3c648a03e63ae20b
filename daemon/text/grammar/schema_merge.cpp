#include "text/grammar/schema_merge.h"

#include <algorithm>
#include <array>

namespace weft::text::grammar {
namespace {

JsonValue* find_member(JsonValue& object, std::string_view key) {
  for (auto& [name, value] : object.members())
    if (name == key) return &value;
  return nullptr;
}

JsonValue both(const JsonValue& a, const JsonValue& b) {
  if (a == b) return a;
  return JsonValue::object({{"allOf", JsonValue::array({a, b})}});
}

std::vector<std::string> type_names(const JsonValue& type) {
  std::vector<std::string> names;
  if (type.is_string()) names.push_back(type.as_string());
  if (type.is_array())
    for (const JsonValue& item : type.items())
      if (item.is_string()) names.push_back(item.as_string());
  return names;
}

// "integer" lies inside "number".
JsonValue intersect_types(const JsonValue& a, const JsonValue& b) {
  const auto left = type_names(a), right = type_names(b);
  const auto has = [](const std::vector<std::string>& list, const char* name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  JsonValue out = JsonValue::array();
  for (const std::string& name : left) {
    if (has(right, name.c_str()) || (name == "integer" && has(right, "number")))
      out.items().push_back(JsonValue::string(name));
    else if (name == "number" && has(right, "integer"))
      out.items().push_back(JsonValue::string("integer"));
  }
  return out;
}

JsonValue intersect_values(const JsonValue& a, const JsonValue& b) {
  JsonValue out = JsonValue::array();
  if (!a.is_array() || !b.is_array()) return out;
  for (const JsonValue& value : a.items())
    if (std::find(b.items().begin(), b.items().end(), value) != b.items().end())
      out.items().push_back(value);
  return out;
}

JsonValue union_of(const JsonValue& a, const JsonValue& b) {
  JsonValue out = a;
  if (!out.is_array() || !b.is_array()) return out;
  for (const JsonValue& value : b.items())
    if (std::find(out.items().begin(), out.items().end(), value) == out.items().end())
      out.items().push_back(value);
  return out;
}

bool takes_larger(std::string_view key) {
  constexpr std::array<std::string_view, 5> kKeys = {"minimum", "exclusiveMinimum", "minLength",
                                                     "minItems", "minProperties"};
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}
bool takes_smaller(std::string_view key) {
  constexpr std::array<std::string_view, 5> kKeys = {"maximum", "exclusiveMaximum", "maxLength",
                                                     "maxItems", "maxProperties"};
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

// What `schema` says about a property that it does not list itself.
const JsonValue* rule_for_others(const JsonValue& schema) {
  return schema.find("additionalProperties");
}

JsonValue merge_properties(const JsonValue& a, const JsonValue& b) {
  const JsonValue* left = a.find("properties");
  const JsonValue* right = b.find("properties");
  JsonValue out = JsonValue::object();
  const auto add = [&](const JsonValue* from, const JsonValue* other,
                       const JsonValue& other_schema) {
    if (from == nullptr || !from->is_object()) return;
    for (const auto& [key, value] : from->members()) {
      if (out.find(key) != nullptr) continue;
      const JsonValue* twin = other == nullptr ? nullptr : other->find(key);
      if (twin == nullptr) twin = rule_for_others(other_schema);
      out.members().emplace_back(key, twin == nullptr ? value : both(value, *twin));
    }
  };
  add(left, right, b);
  add(right, left, a);
  return out;
}

Status merge_keyword(const std::string& key, JsonValue* left, const JsonValue& right) {
  if (*left == right || is_annotation(key) || key == "$defs" || key == "definitions")
    return Status();
  if (key == "type") {
    *left = intersect_types(*left, right);
  } else if (key == "required") {
    *left = union_of(*left, right);
  } else if (key == "enum") {
    *left = intersect_values(*left, right);
  } else if (key == "allOf" && left->is_array() && right.is_array()) {
    left->items().insert(left->items().end(), right.items().begin(), right.items().end());
  } else if (key == "items" || key == "additionalProperties") {
    *left = both(*left, right);
  } else if (takes_larger(key) || takes_smaller(key)) {
    const double l = left->as_double().value_or(0), r = right.as_double().value_or(0);
    if (takes_larger(key) ? r > l : r < l) *left = right;
  } else if (key == "const") {
    return make_error(ErrorCode::kInvalid, "two different values of \"const\" cannot both hold");
  } else {
    return make_error(ErrorCode::kInvalid, "the keyword \"{}\" occurs twice in a combination", key);
  }
  return Status();
}

}  // namespace

bool is_annotation(std::string_view keyword) {
  constexpr std::array<std::string_view, 13> kKeywords = {
      "title",    "description", "default", "examples", "example", "$comment",        "deprecated",
      "readOnly", "writeOnly",   "$schema", "$id",      "$anchor", "contentMediaType"};
  return std::find(kKeywords.begin(), kKeywords.end(), keyword) != kKeywords.end();
}

Result<JsonValue> merge_schemas(const JsonValue& a, const JsonValue& b) {
  if (a.is_bool()) return a.as_bool() ? b : a;
  if (b.is_bool()) return b.as_bool() ? a : b;
  if (!a.is_object() || !b.is_object())
    return make_error(ErrorCode::kInvalid, "a schema must be an object or a boolean");
  JsonValue out = a;
  for (const auto& [key, value] : b.members()) {
    if (key == "properties") continue;
    JsonValue* left = find_member(out, key);
    if (left == nullptr)
      out.members().emplace_back(key, value);
    else
      WEFT_TRY(merge_keyword(key, left, value));
  }
  if (a.find("properties") != nullptr || b.find("properties") != nullptr) {
    JsonValue properties = merge_properties(a, b);
    if (JsonValue* left = find_member(out, "properties"))
      *left = std::move(properties);
    else
      out.members().emplace_back("properties", std::move(properties));
  }
  return out;
}

}  // namespace weft::text::grammar
