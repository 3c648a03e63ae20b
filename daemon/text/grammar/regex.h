// The `pattern` keyword: a subset of ECMAScript regular expressions, turned into a byte automaton
// over UTF-8.
//
// Supported: literals, ., classes, \d \w \s and their complements, \t \n \r \f \v \0 \xHH \uHHHH,
// groups, alternatives,
// * + ? {m,n} (lazy forms mean the same here), ^ and $ at the ends of the pattern's alternatives.
// Not supported, refused: look-around, back references, \b, \p, flags. A pattern without anchors
// may match anywhere, as JSON Schema says.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/grammar/automaton.h"

namespace weft::text::grammar {

Result<Dfa> compile_pattern(std::string_view pattern);

}  // namespace weft::text::grammar
