// Prints JSON the way Python's json module does, because that is what the model saw in training:
// integers keep all digits, floats print as repr (shortest round trip), non-ASCII stays.
//
// Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/json_value.h"

namespace weft::text {

// json.dumps(value, ensure_ascii=False): separators ", " and ": ".
std::string python_json(const JsonValue& value);
// Separators "," and ":", object keys sorted by code point at every level.
std::string compact_sorted_json(const JsonValue& value);
// Body of an <argument> of this value: strings raw, everything else as python_json.
std::string argument_body(const JsonValue& value);
// "string", "number", "boolean", "null", "array", "object".
const char* json_type_name(const JsonValue& value);

// Appends the JSON value in `text` without insignificant white space, spelling and key order kept.
// Returns false, and appends nothing, when `text` is not exactly one strict JSON value (white space
// around it is fine).
bool minify_json(std::string_view text, std::string* out);

}  // namespace weft::text
