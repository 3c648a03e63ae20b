// The second half of SchemaCompiler: keywords of one schema object, without references and
// combinations, to nodes.
#include <algorithm>
#include <cmath>

#include "text/grammar/regex.h"
#include "text/grammar/schema_compiler.h"

namespace weft::text::grammar {
namespace {

constexpr size_t kString = static_cast<size_t>(ValueType::kString);
constexpr size_t kNumber = static_cast<size_t>(ValueType::kNumber);
constexpr size_t kBoolean = static_cast<size_t>(ValueType::kBoolean);
constexpr size_t kNull = static_cast<size_t>(ValueType::kNull);
constexpr size_t kArray = static_cast<size_t>(ValueType::kArray);
constexpr size_t kObject = static_cast<size_t>(ValueType::kObject);

size_t type_of(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::kNull:
      return kNull;
    case JsonValue::Kind::kBool:
      return kBoolean;
    case JsonValue::Kind::kNumber:
      return kNumber;
    case JsonValue::Kind::kString:
      return kString;
    case JsonValue::Kind::kArray:
      return kArray;
    case JsonValue::Kind::kObject:
      return kObject;
  }
  return kNull;
}

std::string json_key(const std::string& key) {
  std::string out;
  append_json_escaped(out, key);
  return out;
}
std::string attribute_key(const std::string& key) {
  std::string out;
  for (char c : key) {
    if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

// A value's JSON text, with an optional space after each comma and colon.
Nfa::State add_json_text(Nfa& nfa, Nfa::State from, const JsonValue& value) {
  const auto separator = [&](Nfa::State at, char c) {
    const Nfa::State after = nfa.add_text(at, std::string_view(&c, 1));
    const Nfa::State spaced = nfa.add_text(after, " ");
    nfa.add_epsilon(after, spaced);
    return spaced;
  };
  if (value.is_array()) {
    Nfa::State at = nfa.add_text(from, "[");
    for (size_t i = 0; i < value.items().size() && !nfa.full(); ++i)
      at = add_json_text(nfa, i == 0 ? at : separator(at, ','), value.items()[i]);
    return nfa.add_text(at, "]");
  }
  if (value.is_object()) {
    Nfa::State at = nfa.add_text(from, "{");
    bool first = true;
    for (const auto& [key, member] : value.members()) {
      if (nfa.full()) break;
      if (!std::exchange(first, false)) at = separator(at, ',');
      at = separator(nfa.add_text(at, "\"" + json_key(key) + "\""), ':');
      at = add_json_text(nfa, at, member);
    }
    return nfa.add_text(at, "}");
  }
  return nfa.add_text(from, dump_json(value));
}

// The bound as a whole number: the least integer not below (or not above) it. Nothing when it is
// out of int64's range.
std::optional<int64_t> integer_bound(const JsonValue* value, bool lower, bool exclusive) {
  constexpr double kLimit = 9.0e18;
  if (value == nullptr || !value->is_number()) return std::nullopt;
  constexpr int64_t kExactLimit = 9'000'000'000'000'000'000;
  if (const auto exact = value->as_int(); exact && *exact > -kExactLimit && *exact < kExactLimit)
    return exclusive ? *exact + (lower ? 1 : -1) : *exact;
  const double d = *value->as_double();
  if (!(std::fabs(d) < kLimit)) return std::nullopt;
  double whole = lower ? std::ceil(d) : std::floor(d);
  if (exclusive && whole == d) whole += lower ? 1 : -1;
  return static_cast<int64_t>(whole);
}

std::optional<int64_t> tighter(std::optional<int64_t> a, std::optional<int64_t> b, bool lower) {
  if (!a || !b) return a ? a : b;
  return lower ? std::max(*a, *b) : std::min(*a, *b);
}

}  // namespace

struct SchemaCompiler::Types {
  std::array<bool, kTypeCount> on{};
  bool integer_only = false;

  static Result<Types> of(const JsonValue& schema) {
    Types types;
    const JsonValue* type = schema.find("type");
    if (type == nullptr) {
      types.on.fill(true);
      return types;
    }
    bool number = false, integer = false;
    const auto add = [&](const JsonValue& name) -> Status {
      const std::string text = name.is_string() ? name.as_string() : "";
      if (text == "integer") {
        integer = true;
        return Status();
      }
      const auto found = std::find(kTypeNames.begin(), kTypeNames.end(), text);
      if (found == kTypeNames.end())
        return make_error(ErrorCode::kInvalid, "{} is not a JSON Schema type", dump_json(name));
      types.on[static_cast<size_t>(found - kTypeNames.begin())] = true;
      number = number || text == "number";
      return Status();
    };
    if (type->is_array())
      for (const JsonValue& item : type->items()) WEFT_TRY(add(item));
    else
      WEFT_TRY(add(*type));
    types.integer_only = integer && !number;
    types.on[kNumber] = integer || number;
    return types;
  }
};

Result<NodeId> SchemaCompiler::add_dfa(Result<Dfa> dfa) {
  if (!dfa.ok()) return std::move(dfa).error();
  dfa_states_ += dfa->next.size();
  WEFT_TRY(check_size());
  return program_.add_dfa(std::move(dfa).value());
}

Result<std::optional<uint32_t>> SchemaCompiler::count(const JsonValue& schema,
                                                      const char* key) const {
  const JsonValue* value = schema.find(key);
  if (value == nullptr) return std::optional<uint32_t>();
  const auto number = value->as_double();
  if (!number || *number < 0 || *number != std::floor(*number))
    return make_error(ErrorCode::kInvalid, "{} must be a whole number that is not negative", key);
  return std::optional<uint32_t>(static_cast<uint32_t>(std::min(*number, 4e9)));
}

Status SchemaCompiler::emit(const JsonValue& schema, Mode mode, Branches* out) {
  WEFT_TRY(refuse_unsupported(schema));
  WEFT_ASSIGN(const Types types, Types::of(schema));
  if (mode == Mode::kArguments)
    return types.on[kObject] ? emit_object(schema, mode, out) : Status();
  if (const JsonValue* constant = schema.find("const")) {
    const JsonValue* list = schema.find("enum");
    const bool listed = list == nullptr ||
                        (list->is_array() && std::find(list->items().begin(), list->items().end(),
                                                       *constant) != list->items().end());
    return listed ? emit_values({*constant}, types, mode, out) : Status();
  }
  if (const JsonValue* list = schema.find("enum")) {
    if (!list->is_array()) return make_error(ErrorCode::kInvalid, "enum must be an array");
    return emit_values(list->items(), types, mode, out);
  }
  if (types.on[kString]) WEFT_TRY(emit_string(schema, mode, out));
  if (types.on[kNumber]) WEFT_TRY(emit_number(schema, types.integer_only, out));
  if (types.on[kBoolean])
    WEFT_TRY(emit_values({JsonValue::boolean(true), JsonValue::boolean(false)}, types, mode, out));
  if (types.on[kNull]) WEFT_TRY(emit_values({JsonValue::null()}, types, mode, out));
  if (types.on[kArray]) WEFT_TRY(emit_array(schema, out));
  if (types.on[kObject]) WEFT_TRY(emit_object(schema, mode, out));
  return Status();
}

Status SchemaCompiler::emit_values(const std::vector<JsonValue>& values, const Types& types,
                                   Mode mode, Branches* out) {
  for (size_t t = 0; t < kTypeCount; ++t) {
    Nfa json, raw;
    const Nfa::State json_start = json.add_state(), json_end = json.add_state();
    const Nfa::State raw_start = raw.add_state(), raw_end = raw.add_state();
    bool any = false;
    for (const JsonValue& value : values) {
      if (type_of(value) != t || !types.on[t]) continue;
      if (t == kNumber && types.integer_only && !value.is_integer_spelling()) continue;
      any = true;
      json.add_epsilon(add_json_text(json, json_start, value), json_end);
      if (t == kString && mode == Mode::kBody)
        raw.add_epsilon(raw.add_text(raw_start, value.as_string()), raw_end);
      if (json.full() || raw.full())
        return make_error(ErrorCode::kInvalid, "an enumeration is too large");
    }
    if (!any) continue;
    if (t == kString && mode == Mode::kBody) {
      WEFT_ASSIGN(const NodeId id, add_dfa(determinize(raw, raw_start, raw_end)));
      out->raw.push_back(id);
    } else {
      WEFT_ASSIGN(const NodeId id, add_dfa(determinize(json, json_start, json_end)));
      out->json[t].push_back(id);
    }
  }
  return Status();
}

Status SchemaCompiler::emit_string(const JsonValue& schema, Mode mode, Branches* out) {
  WEFT_ASSIGN(const auto min, count(schema, "minLength"));
  WEFT_ASSIGN(auto max, count(schema, "maxLength"));
  const uint32_t least = min && *min <= kLengthMax ? *min : 0;
  if (max && *max > kLengthMax) max = std::nullopt;
  const JsonValue* pattern = schema.find("pattern");
  if (pattern != nullptr) {
    if (!pattern->is_string()) return make_error(ErrorCode::kInvalid, "pattern must be a string");
    Status status = emit_pattern(pattern->as_string(), least, max, mode, out);
    if (status.ok() || strict_) return status;
    warnings_.push_back(fmt::format("a pattern is ignored: {}", status.error().message));
  }
  if (mode == Mode::kBody) {
    // Without limits any bytes may come, as in all free text.
    const bool limited = least > 0 || max;
    out->raw.push_back(limited ? program_.add_string({.json = false, .min = least, .max = max})
                               : program_.add_free(std::nullopt));
  } else {
    out->json[kString].push_back(program_.add_string({.json = true, .min = least, .max = max}));
  }
  return Status();
}

Status SchemaCompiler::emit_pattern(const std::string& pattern, uint32_t min,
                                    std::optional<uint32_t> max, Mode mode, Branches* out) {
  WEFT_ASSIGN(Dfa dfa, compile_pattern(pattern));
  if (min > 0 || max) {
    WEFT_ASSIGN(dfa, limit_length(dfa, min, max));
  }
  if (mode == Mode::kBody) {
    WEFT_ASSIGN(const NodeId id, add_dfa(std::move(dfa)));
    out->raw.push_back(id);
    return Status();
  }
  WEFT_ASSIGN(const NodeId inner, add_dfa(json_escaped(dfa)));
  const NodeId quote = program_.add_symbols({'"'});
  out->json[kString].push_back(program_.add_list(NodeKind::kSequence, {quote, inner, quote}));
  return Status();
}

Status SchemaCompiler::emit_number(const JsonValue& schema, bool integer, Branches* out) {
  Nfa nfa;
  const Nfa::State start = nfa.add_state(), end = nfa.add_state();
  if (integer) {
    const auto min = tighter(integer_bound(schema.find("minimum"), true, false),
                             integer_bound(schema.find("exclusiveMinimum"), true, true), true);
    const auto max = tighter(integer_bound(schema.find("maximum"), false, false),
                             integer_bound(schema.find("exclusiveMaximum"), false, true), false);
    add_integer_range(nfa, start, end, min, max);
  } else {
    add_number(nfa, start, end);
  }
  WEFT_ASSIGN(const NodeId id, add_dfa(determinize(nfa, start, end)));
  out->json[kNumber].push_back(id);
  return Status();
}

Status SchemaCompiler::emit_array(const JsonValue& schema, Branches* out) {
  ArraySpec spec;
  WEFT_ASSIGN(const auto min, count(schema, "minItems"));
  WEFT_ASSIGN(spec.max, count(schema, "maxItems"));
  spec.min = min.value_or(0);
  const JsonValue* items = schema.find("items");
  const JsonValue* prefix = schema.find("prefixItems");
  if (items != nullptr && items->is_array())
    std::swap(items, prefix);  // the older spelling of prefixItems
  if (prefix != nullptr) {
    if (!prefix->is_array()) return make_error(ErrorCode::kInvalid, "prefixItems must be an array");
    for (const JsonValue& item : prefix->items()) {
      WEFT_ASSIGN(const NodeId id, value(item));
      spec.prefix.push_back(id);
    }
  }
  WEFT_ASSIGN(spec.items, value(items == nullptr ? JsonValue::boolean(true) : *items));
  program_.arrays.push_back(std::move(spec));
  out->json[kArray].push_back(program_.add(NodeKind::kArray, program_.arrays.size() - 1));
  return Status();
}

Status SchemaCompiler::emit_object(const JsonValue& schema, Mode mode, Branches* out) {
  ObjectSpec spec;
  WEFT_TRY(fill_object(schema, mode, &spec));
  program_.objects.push_back(std::move(spec));
  const size_t index = program_.objects.size() - 1;
  if (mode == Mode::kArguments)
    out->arguments.push_back(program_.add(NodeKind::kArguments, index));
  else
    out->json[kObject].push_back(program_.add(NodeKind::kObject, index));
  return Status();
}

Status SchemaCompiler::fill_object(const JsonValue& schema, Mode mode, ObjectSpec* spec) {
  const bool arguments = mode == Mode::kArguments;
  const auto compile = [&](const JsonValue& sub) -> Result<ValueSpec> {
    if (arguments) return bodies(sub);
    ValueSpec one;
    WEFT_ASSIGN(one.json, value(sub));
    return one;
  };
  WEFT_ASSIGN(const auto min, count(schema, "minProperties"));
  WEFT_ASSIGN(spec->max, count(schema, "maxProperties"));
  spec->min = min.value_or(0);

  const JsonValue* properties = schema.find("properties");
  if (properties != nullptr && !properties->is_object())
    return make_error(ErrorCode::kInvalid, "properties must be an object");
  const JsonValue* others = schema.find("additionalProperties");
  // Left open, a strict schema that lists properties means these only.
  const JsonValue by_default = JsonValue::boolean(!(strict_ && properties != nullptr));
  const JsonValue& other = others == nullptr ? by_default : *others;
  spec->open = !other.is_bool() || other.as_bool();
  if (spec->open) {
    WEFT_ASSIGN(spec->extra, compile(other));
  }
  std::map<std::string, const JsonValue*> schemas;
  if (properties != nullptr)
    for (const auto& [key, sub] : properties->members()) schemas.emplace(key, &sub);
  std::vector<std::string> required;
  if (const JsonValue* list = schema.find("required"); list != nullptr && list->is_array())
    for (const JsonValue& item : list->items())
      if (item.is_string()) required.push_back(item.as_string());
  for (const std::string& key : required) schemas.emplace(key, &other);
  for (const auto& [key, sub] : schemas) {
    if (key.size() > kKeyBytesMax)
      return make_error(ErrorCode::kInvalid, "a property name is longer than {} bytes",
                        kKeyBytesMax);
    ObjectSpec::Property property;
    property.key = arguments ? attribute_key(key) : json_key(key);
    property.required = std::find(required.begin(), required.end(), key) != required.end();
    WEFT_ASSIGN(property.value, compile(*sub));
    spec->required += property.required ? 1 : 0;
    spec->properties.push_back(std::move(property));
  }
  std::sort(spec->properties.begin(), spec->properties.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  std::vector<std::string> keys;
  for (const auto& property : spec->properties) keys.push_back(property.key);
  spec->trie.build(keys);
  return Status();
}

}  // namespace weft::text::grammar
