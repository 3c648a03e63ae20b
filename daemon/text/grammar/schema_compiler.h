// JSON Schema to grammar nodes.
//
// Supported: type, enum, const, properties, required, additionalProperties, minProperties,
// maxProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, minimum and
// maximum of integers (also exclusive), $ref inside the document, allOf (merged), anyOf and oneOf
// (both as "any of"), boolean schemas. Ignored: annotations, format, the range of non-integers.
// Everything else is refused in strict mode and ignored, with a warning, otherwise.
//
// Lives during one compilation; deterministic; bounded in nodes, automaton states and depth.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json_value.h"
#include "base/result.h"
#include "text/grammar/program.h"

namespace weft::text::grammar {

class SchemaCompiler {
 public:
  static constexpr size_t kNodesMax = 20'000;
  static constexpr size_t kDfaStatesMax = 65'536;
  static constexpr size_t kExpansionsMax = 20'000;
  static constexpr int kDepthOfExpansion = 64;
  static constexpr size_t kKeyBytesMax = 512;
  static constexpr size_t kSchemaBytesMax = 512u << 10;
  static constexpr uint32_t kLengthMax = 4'096;  // longer limits count as none

  SchemaCompiler(Program& program, const JsonValue& root, bool strict)
      : program_(program), root_(root), strict_(strict) {}

  // A JSON text of the root schema.
  Result<NodeId> json_value();
  // The argument blocks of a call whose parameters are the root schema.
  Result<NodeId> arguments();
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  // Nodes for one place, by type; `raw` has the raw spelling of strings.
  struct Branches {
    std::array<std::vector<NodeId>, kTypeCount> json;
    std::vector<NodeId> raw;
    std::vector<NodeId> arguments;  // in argument mode only these are filled
  };
  enum class Mode { kValue, kBody, kArguments };

  Status check_size() const;
  Status drain();
  Result<NodeId> value(const JsonValue& schema);  // memoised by text
  Result<ValueSpec> bodies(const JsonValue& schema);
  NodeId alternatives(std::vector<NodeId> list);

  Status expand(const JsonValue& schema, Mode mode, Branches* out);
  Status expand_ref(const JsonValue& schema, const JsonValue& ref, Mode mode, Branches* out);
  Status expand_all_of(const JsonValue& schema, const JsonValue& list, Mode mode, Branches* out);
  Status expand_any_of(const JsonValue& schema, const std::string& key, Mode mode, Branches* out);
  Status refuse_unsupported(const JsonValue& schema);
  Result<JsonValue> resolve(const JsonValue& schema) const;
  Result<const JsonValue*> pointer(const std::string& ref) const;

  struct Types;
  Status emit(const JsonValue& schema, Mode mode, Branches* out);
  Status emit_values(const std::vector<JsonValue>& values, const Types& types, Mode mode,
                     Branches* out);
  Status emit_string(const JsonValue& schema, Mode mode, Branches* out);
  Status emit_pattern(const std::string& pattern, uint32_t min, std::optional<uint32_t> max,
                      Mode mode, Branches* out);
  Status emit_number(const JsonValue& schema, bool integer, Branches* out);
  Status emit_array(const JsonValue& schema, Branches* out);
  Status emit_object(const JsonValue& schema, Mode mode, Branches* out);
  Status fill_object(const JsonValue& schema, Mode mode, ObjectSpec* spec);
  Result<NodeId> add_dfa(Result<Dfa> dfa);
  Result<std::optional<uint32_t>> count(const JsonValue& schema, const char* key) const;

  Program& program_;
  const JsonValue& root_;
  bool strict_;
  std::map<std::string, NodeId> memo_;
  std::deque<std::pair<NodeId, JsonValue>> queue_;
  std::vector<std::string> refs_;  // being expanded at this place
  std::vector<std::string> warnings_;
  size_t expansions_ = 0;
  size_t dfa_states_ = 0;
  int depth_ = 0;
};

}  // namespace weft::text::grammar
