// How long a prefill piece is. A piece ends where its state is worth keeping: at the sequence's
// next boundary when that is in reach, else at a multiple of the grain, unless it finishes the
// tokens. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "weft/scheduler.h"

namespace scheduler_continuous {

// Tokens that the sequence has still to compute before it can generate the next one.
inline uint32_t tokens_left(const weft_seq& seq) {
  return seq.known > seq.context ? seq.known - seq.context : 0;
}

// A step in which the sequence generates: nothing but its newest token is left.
inline bool is_decode(const weft_seq& seq) { return tokens_left(seq) <= 1; }

// Where a piece ends that starts at seq.context and may not pass `limit`. The result is at most
// limit, and above context when limit is.
inline uint64_t piece_end(const weft_seq& seq, uint64_t limit, uint32_t grain) {
  uint64_t end = std::min<uint64_t>(limit, static_cast<uint64_t>(seq.context) + seq.rows_max);
  if (seq.boundary > seq.context && end >= seq.boundary) return seq.boundary;
  if (end >= seq.known || grain <= 1) return end;
  const uint64_t even = end / grain * grain;
  return even > seq.context ? even : end;
}

}  // namespace scheduler_continuous
