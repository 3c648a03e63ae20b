// Builds the JSON arguments string of one tool call piece by piece while the model writes the
// arguments, and makes the ids of calls. Strings are passed on as they come; other values are
// collected and printed at their end.
//
// One per choice, used by the one thread that owns the choice.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace weft::text {

// Ids of one response sort by ordinal as long as ordinals have three digits.
constexpr size_t kToolCallsMax = 1000;

// Opaque and unique across a conversation when `seed` is random: "call_" + 16 hex digits + "_" +
// ordinal.
std::string make_call_id(uint64_t seed, size_t ordinal);

// name="value" pairs of an opening tag; the first of a name counts, entities are decoded, anything
// odd ends the list.
std::map<std::string, std::string, std::less<>> parse_attributes(std::string_view text);

class ToolCallWriter {
 public:
  void begin_call();
  // Each returns what to append to the arguments string.
  std::string begin_argument(const std::map<std::string, std::string, std::less<>>& attributes);
  std::string begin_json();
  std::string value(std::string_view text);
  // `cut`: the value did not end by a tag of its call; a half-written value that is not JSON is
  // left out.
  std::string end_value(bool cut);
  std::string end_call();

 private:
  enum class Kind { kNone, kArguments, kJson };
  enum class Value { kNone, kIgnored, kString, kTyped, kJson };
  std::string key_prefix();

  Kind kind_ = Kind::kNone;
  Value value_ = Value::kNone;
  bool wrote_ = false;
  std::string key_;
  std::string typed_;
};

}  // namespace weft::text
