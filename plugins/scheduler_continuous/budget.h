// What a step may still use: rows, sequences, places among the running ones, cache units. The cache
// arithmetic is that of weft/scheduler.h.
//
// Two counts of units: `free` is what this step may take; `headroom` is what stays when every
// running sequence has computed its known tokens and grown by some output. Admissions look at the
// second, so that they do not take what the running ones are about to need. Owned by the planner.
#pragma once

#include <algorithm>
#include <cstdint>

#include "weft/scheduler.h"

namespace scheduler_continuous {

class Budget {
 public:
  int64_t rows = 0, seqs = 0, places = 0;
  uint32_t alive = 0;  // running after the step, as planned so far

  void load(const weft_sched_view& view, uint32_t growth_tokens) {
    view_ = &view;
    growth_ = growth_tokens;
    rows = view.token_budget;
    seqs = view.seq_budget;
    places = static_cast<int64_t>(view.run_budget) - view.n_run;
    alive = view.n_run;
    for (uint32_t g = 0; g < view.n_groups; ++g) free_[g] = headroom_[g] = view.groups[g].free;
    for (uint32_t i = 0; i < view.n_run; ++i)
      for (uint32_t g = 0; g < view.n_groups; ++g)
        headroom_[g] -= missing(view.run[i], g, horizon(view.run[i]));
  }

  uint32_t groups() const { return view_->n_groups; }
  int64_t free(uint32_t g) const { return free_[g]; }

  // Units of group g that seq lacks to stand at `context`.
  int64_t missing(const weft_seq& seq, uint32_t g, uint64_t context) const {
    const weft_sched_group& group = view_->groups[g];
    uint64_t need = 1;
    if (group.kind == WEFT_CACHE_ROWS) {
      const uint64_t unit = std::max(group.unit_tokens, 1u);
      need = (context + unit - 1) / unit;
    }
    return need > seq.held[g] ? static_cast<int64_t>(need - seq.held[g]) : 0;
  }

  // The length up to which room is kept for a sequence.
  uint64_t horizon(const weft_seq& seq) const {
    const uint32_t left = seq.output_max > seq.output ? seq.output_max - seq.output : 0;
    return static_cast<uint64_t>(std::max(seq.known, seq.context)) + std::min(left, growth_);
  }

  // The longest context at most `wish` for which the units are there, given that seq has already
  // taken those for `taken`; 0 when a state is missing.
  uint64_t reach(const weft_seq& seq, uint64_t taken, uint64_t wish) const {
    for (uint32_t g = 0; g < view_->n_groups; ++g) {
      const int64_t have = free_[g] + (taken == 0 ? 0 : missing(seq, g, taken));
      if (missing(seq, g, wish) <= have) continue;
      if (view_->groups[g].kind != WEFT_CACHE_ROWS) return 0;
      const uint64_t unit = std::max(view_->groups[g].unit_tokens, 1u);
      wish = (seq.held[g] + static_cast<uint64_t>(std::max<int64_t>(have, 0))) * unit;
    }
    return wish;
  }

  // seq moves from the units of `from` (0 = only what it holds) to those of `to`.
  void take(const weft_seq& seq, uint64_t from, uint64_t to) {
    for (uint32_t g = 0; g < view_->n_groups; ++g)
      free_[g] -= missing(seq, g, to) - (from == 0 ? 0 : missing(seq, g, from));
  }
  void untake(const weft_seq& seq, uint64_t to) {
    for (uint32_t g = 0; g < view_->n_groups; ++g) free_[g] += missing(seq, g, to);
  }

  // A running sequence gives its units and its place back.
  void preempt(const weft_seq& seq) {
    for (uint32_t g = 0; g < view_->n_groups; ++g) {
      const int64_t back = gain(seq, g);
      free_[g] += back;
      headroom_[g] += back + missing(seq, g, horizon(seq));
    }
    ++places;
    --alive;
  }
  static int64_t gain(const weft_seq& seq, uint32_t g) {
    return seq.held[g] > seq.shared[g] ? seq.held[g] - seq.shared[g] : 0;
  }

  // May a waiting sequence come in? It must find the units of all its known tokens, of some growth
  // and the watermark, and leave `percent` of all rows to others. When nothing runs there is nobody
  // to leave room for.
  bool admissible(const weft_seq& seq, uint32_t percent) const {
    for (uint32_t g = 0; g < view_->n_groups; ++g)
      if (shortage(seq, g, percent) > 0) return false;
    return true;
  }
  // Units of group g that are missing for that.
  int64_t shortage(const weft_seq& seq, uint32_t g, uint32_t percent) const {
    const int64_t now = missing(seq, g, seq.known) - free_[g];
    if (alive == 0) return now;
    const weft_sched_group& group = view_->groups[g];
    int64_t kept = group.watermark;
    if (group.kind == WEFT_CACHE_ROWS) kept += static_cast<int64_t>(group.total) * percent / 100;
    return std::max(now, missing(seq, g, horizon(seq)) + kept - headroom_[g]);
  }
  // Would it come in if it were alone?
  bool possible(const weft_seq& seq) const {
    for (uint32_t g = 0; g < view_->n_groups; ++g)
      if (missing(seq, g, seq.known) > view_->groups[g].total) return false;
    return true;
  }
  // A waiting sequence becomes a running one that stands at `context` after the step.
  void admit(const weft_seq& seq, uint64_t context) {
    take(seq, 0, context);
    for (uint32_t g = 0; g < view_->n_groups; ++g) headroom_[g] -= missing(seq, g, horizon(seq));
    --places;
    --seqs;
    ++alive;
  }

 private:
  const weft_sched_view* view_ = nullptr;
  uint32_t growth_ = 0;
  int64_t free_[WEFT_CACHE_GROUPS_MAX] = {};
  int64_t headroom_[WEFT_CACHE_GROUPS_MAX] = {};
};

}  // namespace scheduler_continuous
