// Who gives its cache back, and how. Pure functions over one view and the marks of the plan so far.
#pragma once

#include <cstdint>
#include <vector>

#include "budget.h"
#include "chunk.h"
#include "cost.h"
#include "options.h"
#include "weft/scheduler.h"

namespace scheduler_continuous {

constexpr uint32_t kNobody = UINT32_MAX;
constexpr uint32_t kJustResumed = 8;  // tokens: who was preempted before keeps its place that long
constexpr uint32_t kSettled = 32;     // tokens after which a higher band may take the place

// Nearly finished, or back from a preemption a moment ago: taking it would buy little for much
// work.
inline bool is_spared(const weft_seq& seq) {
  const uint64_t left = seq.output_max > seq.output ? seq.output_max - seq.output : 0;
  return left * 10 < seq.output_max || (seq.preemptions > 0 && seq.fresh < kJustResumed);
}

inline bool may_go(const weft_seq& seq) {
  return (seq.flags & (WEFT_SEQ_PINNED | WEFT_SEQ_LOADING)) == 0;
}

// The lowest band loses first, within it the newest: what it computed is the least. `useful(seq)`
// says whether its units would help. gone[i] != 0: preempted already.
template <class Useful>
uint32_t pick_victim(const weft_sched_view& view, const std::vector<uint8_t>& gone,
                     int32_t highest_priority, bool spare, Useful&& useful) {
  uint32_t best = kNobody;
  for (uint32_t i = view.n_run; i-- > 0;) {
    const weft_seq& seq = view.run[i];
    if (gone[i] != 0 || seq.priority > highest_priority || !may_go(seq)) continue;
    if (best != kNobody && seq.priority >= view.run[best].priority) continue;
    if ((spare && is_spared(seq)) || !useful(seq)) continue;
    best = i;
  }
  return best;
}

// A copy to host memory and back, when that is faster than computing the tokens again.
inline uint32_t preempt_mode(const weft_seq& seq, uint64_t swap_free, const CostModel& costs,
                             uint32_t step_rows, const Options& options) {
  if (seq.swap_bytes == 0 || seq.swap_bytes > swap_free) return WEFT_PREEMPT_RECOMPUTE;
  if (!costs.known()) return WEFT_PREEMPT_SWAP;
  const double copies = 2 * static_cast<double>(seq.swap_bytes) / options.swap_gbps;
  const uint32_t piece = std::max(std::min(seq.context, step_rows), 1u);
  const double again = costs.step_ns(piece) / piece * seq.context;
  return copies < again ? WEFT_PREEMPT_SWAP : WEFT_PREEMPT_RECOMPUTE;
}

}  // namespace scheduler_continuous
