// Two JSON schemas as one that accepts what both accept. Used for allOf, and for keywords beside
// $ref and anyOf.
#pragma once

#include "base/json_value.h"
#include "base/result.h"

namespace weft::text::grammar {

// Fails for combinations that one schema object cannot express (two patterns, two anyOf).
Result<JsonValue> merge_schemas(const JsonValue& a, const JsonValue& b);

// Says nothing about which values are valid: title, description, default and the like.
bool is_annotation(std::string_view keyword);

}  // namespace weft::text::grammar
