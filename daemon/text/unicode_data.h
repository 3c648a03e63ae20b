// The raw Unicode tables, as generated; everyone but unicode.cpp and nfc.cpp uses the functions of
// unicode.h and nfc.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::text {

extern const char* const kUnicodeVersion;
extern const uint32_t kClassRuns[];  // first code point << 9 | flags
extern const size_t kClassRuns_count;
extern const uint32_t kDecompositions[];  // triples: code point, first, second << 1 | composes
extern const size_t kDecompositions_count;
extern const uint32_t kCombiningRuns[];  // first code point << 8 | class
extern const size_t kCombiningRuns_count;

}  // namespace weft::text
