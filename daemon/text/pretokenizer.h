// Splits text into the pieces that byte-pair merging works in. The patterns are ordered
// alternations of regular expressions; each is written out here as a matcher by hand, so no regex
// engine runs on client text.
//
// Pure functions over constant tables, any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "text/unicode.h"

namespace weft::text {

enum class SplitPattern {
  kKimi,            // Han runs apart, case-aware words, numbers in threes
  kGpt2,            // 's 't ..., ?letters, ?numbers, ?others
  kCl100k3,         // case-blind contractions, numbers in threes
  kCl100k1,         // the same with single numbers
  kO200k,           // as kKimi without the Han rule, '/' after punctuation runs
  kDigitsBy3,       // \p{N}{1,3}; the rest stays whole
  kDigitsSingle,    // every \p{N} alone; the rest stays whole
  kDigitRuns,       // \p{N}+; the rest stays whole
  kCjkKana,         // runs of unified ideographs and kana; the rest stays whole
  kDeepSeekGeneral  // marks with letters, punctuation and symbols apart
};

// End of the match of `pattern` at code point `i` of [0, text.size()), or i when it does not match
// there.
size_t match_piece(SplitPattern pattern, const CodePoints& text, size_t i);

// Calls piece(begin_byte, end_byte) for matches and for the gaps between them, in order; together
// they are the text.
template <class F>
void for_each_piece(SplitPattern pattern, const CodePoints& text, F&& piece) {
  const size_t n = text.size();
  size_t gap = 0;
  for (size_t i = 0; i < n;) {
    const size_t end = match_piece(pattern, text, i);
    if (end == i) {
      ++i;
      continue;
    }
    if (gap < i) piece(text.offset[gap], text.offset[i]);
    piece(text.offset[i], text.offset[end]);
    i = gap = end;
  }
  if (gap < n) piece(text.offset[gap], text.offset[n]);
}

// The pattern a tokenizer.json names, recognised by its exact spelling.
std::optional<SplitPattern> known_split_pattern(std::string_view regex);

// Cuts text so that no run of white space, or of anything else, is longer than `run_max` code
// points, and no part is longer than `part_max`. Bounds the work of one merge.
void split_runs(std::string_view text, size_t part_max, size_t run_max,
                const std::function<void(std::string_view)>& part);

}  // namespace weft::text
