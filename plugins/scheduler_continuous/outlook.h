// How long waiting takes: the tokens ahead of a sequence times the measured time per token. Without
// measurements nothing is predicted (0).
#pragma once

#include <algorithm>
#include <cstdint>

#include "chunk.h"
#include "cost.h"
#include "weft/scheduler.h"

namespace scheduler_continuous {

class Outlook {
 public:
  // decodes: sequences that generate in each step; prefill_rows: what is left to prompts.
  void load(const CostModel& costs, uint32_t decodes, uint32_t prefill_rows) {
    const uint32_t rows = std::max(prefill_rows, 1u);
    known_ = costs.known();
    step_ns_ = costs.step_ns(decodes + rows);
    token_ns_ = step_ns_ / rows;
  }
  bool known() const { return known_; }
  uint64_t ns_for(uint64_t tokens) const {
    return static_cast<uint64_t>(std::min(token_ns_ * static_cast<double>(tokens), 9e18));
  }
  uint64_t step_ns() const { return static_cast<uint64_t>(std::min(step_ns_, 9e18)); }

 private:
  bool known_ = false;
  double step_ns_ = 0, token_ns_ = 0;
};

// What a waiting sequence will have to compute, given what others are about to leave in the cache.
inline uint64_t tokens_wanted(const weft_seq& seq) {
  const uint32_t have = std::max(seq.context, std::min(seq.promised, seq.known));
  return seq.known > have ? seq.known - have : 0;
}

// Tokens ahead of a newcomer of tenant `seq.tenant` with its priority, given fair turns: all that
// runs, of the queue what is of a higher band, and of its own band no more than the turns of other
// tenants until its own tenant's queue is done.
inline uint64_t tokens_ahead(const weft_sched_view& view, const weft_seq& seq, uint64_t weights) {
  uint64_t first = 0, band = 0, own = 0;
  for (uint32_t i = 0; i < view.n_run; ++i) first += tokens_left(view.run[i]);
  for (uint32_t i = 0; i < view.n_wait; ++i) {
    const weft_seq& other = view.wait[i];
    if (other.priority < seq.priority) continue;
    const uint64_t tokens = tokens_wanted(other);
    (other.priority > seq.priority ? first : band) += tokens;
    if (other.priority == seq.priority && other.tenant == seq.tenant) own += tokens;
  }
  const uint64_t weight = std::max(seq.weight, 1u);
  return first + std::min(band, (own + tokens_wanted(seq)) * weights / weight);
}

}  // namespace scheduler_continuous
