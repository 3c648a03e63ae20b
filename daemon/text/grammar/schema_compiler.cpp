#include "text/grammar/schema_compiler.h"

#include <algorithm>

#include "text/grammar/schema_merge.h"

namespace weft::text::grammar {
namespace {

JsonValue without(const JsonValue& schema, std::string_view key) {
  JsonValue out = JsonValue::object();
  for (const auto& member : schema.members())
    if (member.first != key) out.members().push_back(member);
  return out;
}

bool only_annotations(const JsonValue& schema) {
  return std::all_of(schema.members().begin(), schema.members().end(), [](const auto& member) {
    return is_annotation(member.first) || member.first == "$defs" || member.first == "definitions";
  });
}

bool is_on(const JsonValue& value) { return !value.is_bool() || value.as_bool(); }

}  // namespace

Status SchemaCompiler::check_size() const {
  if (program_.nodes.size() > kNodesMax || expansions_ > kExpansionsMax ||
      dfa_states_ > kDfaStatesMax)
    return make_error(ErrorCode::kInvalid, "the schema is too large to compile; simplify it");
  return Status();
}

Result<NodeId> SchemaCompiler::json_value() {
  WEFT_ASSIGN(const NodeId id, value(root_));
  WEFT_TRY(drain());
  return id;
}

Result<NodeId> SchemaCompiler::arguments() {
  Branches branches;
  WEFT_TRY(expand(root_, Mode::kArguments, &branches));
  WEFT_TRY(drain());
  if (branches.arguments.empty())
    return make_error(ErrorCode::kInvalid, "the parameters must allow an object");
  return alternatives(std::move(branches.arguments));
}

NodeId SchemaCompiler::alternatives(std::vector<NodeId> list) {
  return list.size() == 1 ? list[0] : program_.add_list(NodeKind::kAlternatives, std::move(list));
}

// Nested values are compiled later, so that a schema may refer to itself below an object or array.
Result<NodeId> SchemaCompiler::value(const JsonValue& schema) {
  const auto [place, fresh] = memo_.emplace(dump_json(schema), kNoNode);
  if (!fresh) return place->second;
  WEFT_TRY(check_size());
  place->second = program_.add_list(NodeKind::kAlternatives, {});
  queue_.emplace_back(place->second, schema);
  return place->second;
}

Status SchemaCompiler::drain() {
  while (!queue_.empty()) {
    const auto [id, schema] = std::move(queue_.front());
    queue_.pop_front();
    Branches branches;
    WEFT_TRY(expand(schema, Mode::kValue, &branches));
    auto& list = program_.lists[program_.nodes[id].index];
    for (const auto& nodes : branches.json) list.insert(list.end(), nodes.begin(), nodes.end());
  }
  return Status();
}

Result<ValueSpec> SchemaCompiler::bodies(const JsonValue& schema) {
  // A body stands below the call, so references may start anew here.
  Branches branches;
  std::vector<std::string> outer = std::exchange(refs_, {});
  const Status status = expand(schema, Mode::kBody, &branches);
  refs_ = std::move(outer);
  if (!status.ok()) return status.error();
  ValueSpec spec;
  for (size_t t = 0; t < kTypeCount; ++t) {
    auto& list = t == static_cast<size_t>(ValueType::kString) ? branches.raw : branches.json[t];
    if (!list.empty()) spec.body[t] = alternatives(std::move(list));
  }
  return spec;
}

Status SchemaCompiler::refuse_unsupported(const JsonValue& schema) {
  for (const char* key :
       {"not", "if", "then", "else", "patternProperties", "dependentSchemas", "dependentRequired",
        "dependencies", "contains", "minContains", "maxContains", "propertyNames",
        "unevaluatedProperties", "unevaluatedItems", "additionalItems", "$dynamicRef",
        "$recursiveRef", "uniqueItems", "multipleOf"}) {
    const JsonValue* found = schema.find(key);
    if (found == nullptr || (std::string_view(key) == "uniqueItems" && !is_on(*found))) continue;
    if (std::string_view(key) == "multipleOf" && found->as_double() == 1.0) continue;
    if (strict_)
      return make_error(
          ErrorCode::kInvalid,
          "the keyword \"{}\" is not supported in a strict schema; remove it or set strict "
          "to false",
          key);
    warnings_.push_back(fmt::format("the keyword \"{}\" is ignored", key));
  }
  return Status();
}

Result<const JsonValue*> SchemaCompiler::pointer(const std::string& ref) const {
  const auto unknown = [&] {
    return make_error(ErrorCode::kInvalid, "$ref \"{}\" points to nothing in this schema", ref);
  };
  if (ref.empty() || ref[0] != '#') return unknown();
  const JsonValue* at = &root_;
  size_t pos = 1;
  while (pos < ref.size()) {
    if (ref[pos] != '/') return unknown();
    const size_t end = std::min(ref.find('/', pos + 1), ref.size());
    std::string key;
    for (size_t i = pos + 1; i < end; ++i) {
      const bool escape = ref[i] == '~' && i + 1 < end && (ref[i + 1] == '0' || ref[i + 1] == '1');
      key += escape ? (ref[++i] == '0' ? '~' : '/') : ref[i];
    }
    if (at->is_array()) {
      const bool index =
          !key.empty() && key.size() < 6 &&
          std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!index || std::stoul(key) >= at->items().size()) return unknown();
      at = &at->items()[std::stoul(key)];
    } else {
      at = at->find(key);
      if (at == nullptr) return unknown();
    }
    pos = end;
  }
  return at;
}

// Follows a bare $ref, so that merging sees keywords.
Result<JsonValue> SchemaCompiler::resolve(const JsonValue& schema) const {
  const JsonValue* at = &schema;
  for (int i = 0; i < kDepthOfExpansion; ++i) {
    const JsonValue* ref = at->find("$ref");
    if (ref == nullptr || !ref->is_string() || !only_annotations(without(*at, "$ref"))) return *at;
    WEFT_ASSIGN(at, pointer(ref->as_string()));
  }
  return make_error(ErrorCode::kInvalid, "a chain of $ref does not end");
}

Status SchemaCompiler::expand(const JsonValue& schema, Mode mode, Branches* out) {
  ++expansions_;
  WEFT_TRY(check_size());
  if (schema.is_bool()) return schema.as_bool() ? emit(JsonValue::object(), mode, out) : Status();
  if (!schema.is_object())
    return make_error(ErrorCode::kInvalid, "a schema must be an object or a boolean");
  if (depth_ >= kDepthOfExpansion)
    return make_error(ErrorCode::kInvalid, "combinations of schemas are nested too deeply");
  ++depth_;
  Status status;
  if (const JsonValue* ref = schema.find("$ref"))
    status = expand_ref(schema, *ref, mode, out);
  else if (const JsonValue* all = schema.find("allOf"))
    status = expand_all_of(schema, *all, mode, out);
  else if (schema.find("anyOf"))
    status = expand_any_of(schema, "anyOf", mode, out);
  else if (schema.find("oneOf"))
    status = expand_any_of(schema, "oneOf", mode, out);
  else
    status = emit(schema, mode, out);
  --depth_;
  return status;
}

Status SchemaCompiler::expand_ref(const JsonValue& schema, const JsonValue& ref, Mode mode,
                                  Branches* out) {
  if (!ref.is_string()) return make_error(ErrorCode::kInvalid, "$ref must be a string");
  const std::string& name = ref.as_string();
  if (std::find(refs_.begin(), refs_.end(), name) != refs_.end())
    return make_error(ErrorCode::kInvalid,
                      "$ref \"{}\" refers to itself without an object or array between", name);
  WEFT_ASSIGN(const JsonValue* target, pointer(name));
  const JsonValue rest = without(schema, "$ref");
  refs_.push_back(name);
  Status status;
  if (only_annotations(rest)) {
    status = expand(*target, mode, out);
  } else {
    auto merged = merge_schemas(*target, rest);
    status = merged.ok() ? expand(*merged, mode, out) : Status(std::move(merged).error());
  }
  refs_.pop_back();
  return status;
}

Status SchemaCompiler::expand_all_of(const JsonValue& schema, const JsonValue& list, Mode mode,
                                     Branches* out) {
  if (!list.is_array()) return make_error(ErrorCode::kInvalid, "allOf must be an array");
  JsonValue merged = without(schema, "allOf");
  for (const JsonValue& item : list.items()) {
    WEFT_ASSIGN(const JsonValue part, resolve(item));
    WEFT_ASSIGN(merged, merge_schemas(merged, part));
  }
  return expand(merged, mode, out);
}

Status SchemaCompiler::expand_any_of(const JsonValue& schema, const std::string& key, Mode mode,
                                     Branches* out) {
  const JsonValue& list = *schema.find(key);
  if (!list.is_array() || list.items().empty())
    return make_error(ErrorCode::kInvalid, "{} must be a non-empty array", key);
  const JsonValue base = without(schema, key);
  for (const JsonValue& item : list.items()) {
    if (only_annotations(base)) {
      WEFT_TRY(expand(item, mode, out));
      continue;
    }
    WEFT_ASSIGN(const JsonValue part, resolve(item));
    WEFT_ASSIGN(const JsonValue merged, merge_schemas(base, part));
    WEFT_TRY(expand(merged, mode, out));
  }
  return Status();
}

}  // namespace weft::text::grammar
