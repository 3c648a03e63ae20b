#include "engine/plan/fcfs_plan.h"

#include <algorithm>

#include "engine/plan/plan_check.h"

namespace weft::engine {
namespace {

// A prefix that is about to be there is worth waiting for from this many tokens on: one grain of
// the prefix cache.
constexpr uint32_t kPromisedTokensMin = 128;

bool decoding(const weft_seq& seq) { return seq.context > 0 && seq.known - seq.context == 1; }

// Rows until the next useful boundary, or all that can run.
uint32_t reach(const weft_seq& seq) {
  if (seq.boundary <= seq.context) return seq.rows_max;
  return std::min(seq.rows_max, seq.boundary - seq.context);
}

}  // namespace

void FcfsPlan::plan(const weft_sched_view& view, weft_sched_plan* out) {
  view_ = &view;
  out_ = out;
  out->n_run = out->n_admit = out->n_preempt = out->n_drop = 0;
  preempted_.assign(view.n_run, 0);
  dropped_.assign(view.n_wait, 0);
  rows_left_ = view.token_budget;
  seqs_left_ = view.seq_budget;
  running_ = view.n_run;
  claims_ = {};
  for (uint32_t g = 0; g < view.n_groups; ++g) free_[g] = view.groups[g].free;
  for (uint32_t i = 0; i < view.n_run; ++i) {
    const Units one = claim(view.run[i]);
    for (uint32_t g = 0; g < view.n_groups; ++g) claims_[g] += one[g];
  }
  preempt();
  drop_late();
  // With claims that nothing can cover (pinned sequences), age alone decides, or young decodes
  // would take the units that the oldest waits for.
  const bool enough = covered(claims_);
  if (enough) run_decodes();
  run_prefills(!enough);
  if (out->n_preempt == 0 && enough) admit();
  use_spare_rows();
}

// Units that the sequence still needs for all of its known tokens.
FcfsPlan::Units FcfsPlan::claim(const weft_seq& seq) const {
  Units out = {};
  for (uint32_t g = 0; g < view_->n_groups; ++g) {
    const uint64_t needs = units_needed(view_->groups[g], seq.known, false);
    out[g] = needs > seq.held[g] ? needs - seq.held[g] : 0;
  }
  return out;
}

bool FcfsPlan::covered(const Units& claims) const {
  for (uint32_t g = 0; g < view_->n_groups; ++g) {
    if (claims[g] > free_[g]) return false;
  }
  return true;
}

void FcfsPlan::preempt() {
  for (uint32_t i = view_->n_run; i > 1 && !covered(claims_); --i) {
    const uint32_t index = i - 1;
    const weft_seq& seq = view_->run[index];
    if ((seq.flags & WEFT_SEQ_PINNED) != 0) continue;
    const Units one = claim(seq);
    for (uint32_t g = 0; g < view_->n_groups; ++g) {
      claims_[g] -= one[g];
      free_[g] += seq.held[g] - std::min(seq.held[g], seq.shared[g]);
    }
    preempted_[index] = 1;
    --running_;
    out_->preempt[out_->n_preempt++] = {index, WEFT_PREEMPT_RECOMPUTE};
  }
}

void FcfsPlan::drop_late() {
  for (uint32_t i = 0; i < view_->n_wait; ++i) {
    const weft_seq& seq = view_->wait[i];
    // The deadline is one for the first token: who has that is not late any more.
    if (seq.deadline_ns == 0 || seq.deadline_ns >= view_->now_ns || seq.output > 0) continue;
    dropped_[i] = 1;
    out_->drop[out_->n_drop++] = i;
  }
}

void FcfsPlan::run_decodes() {
  for (uint32_t i = 0; i < view_->n_run; ++i) {
    if (decoding(view_->run[i])) run(i);
  }
}

void FcfsPlan::run_prefills(bool decodes_too) {
  for (uint32_t i = 0; i < view_->n_run; ++i) {
    if (decodes_too || !decoding(view_->run[i])) run(i);
  }
}

void FcfsPlan::run(uint32_t index) {
  const weft_seq& seq = view_->run[index];
  if (preempted_[index] != 0 || (seq.flags & WEFT_SEQ_LOADING) != 0) return;
  if (rows_left_ == 0 || seqs_left_ == 0 || seq.rows_max == 0) return;
  const uint32_t rows = rows_that_fit(seq, 0, piece(seq));
  if (rows == 0) return;
  take_units(seq, 0, rows);
  rows_left_ -= rows;
  --seqs_left_;
  out_->run[out_->n_run++] = {index, rows, 0, 0};
}

// A quarter of what is left stays for those behind: a long prompt must not make short ones wait for
// its end.
uint32_t FcfsPlan::piece(const weft_seq& seq) const {
  const uint32_t most = std::max(1u, rows_left_ - rows_left_ / 4);
  return std::min(reach(seq), std::min(most, rows_left_));
}

uint32_t FcfsPlan::rows_that_fit(const weft_seq& seq, uint32_t ended_rows, uint32_t wanted) const {
  uint64_t rows = uint64_t{ended_rows} + wanted;
  for (uint32_t g = 0; g < view_->n_groups; ++g) {
    const weft_sched_group& group = view_->groups[g];
    // What the first part of the share took is gone from free_ and counts as held.
    const uint64_t before =
        ended_rows == 0 ? 0 : units_needed(group, uint64_t{seq.context} + ended_rows, false);
    const uint64_t units = std::max<uint64_t>(seq.held[g], before) + free_[g];
    if (units_needed(group, seq.context + rows, false) <= units) continue;
    if (group.kind == WEFT_CACHE_STATE) return 0;
    const uint64_t tokens = units * std::max(1u, group.unit_tokens);
    rows = tokens > seq.context ? std::min(rows, tokens - seq.context) : 0;
  }
  return rows > ended_rows ? static_cast<uint32_t>(rows - ended_rows) : 0;
}

void FcfsPlan::take_units(const weft_seq& seq, uint32_t ended_rows, uint32_t rows) {
  for (uint32_t g = 0; g < view_->n_groups; ++g) {
    const weft_sched_group& group = view_->groups[g];
    const uint64_t end = uint64_t{seq.context} + ended_rows;
    uint64_t held = seq.held[g];
    if (ended_rows > 0) held = std::max(held, units_needed(group, end, false));
    const uint64_t needs = units_needed(group, end + rows, false);
    const uint64_t taken = needs > held ? needs - held : 0;
    free_[g] -= taken;
    claims_[g] -= std::min(claims_[g], taken);
  }
}

void FcfsPlan::admit() {
  for (uint32_t i = 0; i < view_->n_wait; ++i) {
    if (running_ >= view_->run_budget) return;
    const weft_seq& seq = view_->wait[i];
    if (dropped_[i] != 0) continue;
    const bool restored = seq.restore_ns > 0;
    if (!restored && seq.rows_max == 0) continue;  // nothing of it can run in this step
    if (!restored && (rows_left_ == 0 || seqs_left_ == 0)) return;
    if (running_ > 0 && seq.promised >= uint64_t{seq.context} + kPromisedTokensMin) continue;
    // Nobody overtakes one that waits for room, except when there is none even in an empty worker:
    // then something else is wrong with it, and the others shall not stand still.
    if (!admit_one(i) && running_ > 0) return;
  }
}

bool FcfsPlan::admit_one(uint32_t index) {
  const weft_seq& seq = view_->wait[index];
  const Units one = claim(seq);
  for (uint32_t g = 0; g < view_->n_groups; ++g) {
    const uint64_t watermark = running_ > 0 ? view_->groups[g].watermark : 0;
    if (claims_[g] + one[g] + watermark > free_[g]) return false;
  }
  const uint32_t rows = seq.restore_ns > 0 ? 0 : piece(seq);
  for (uint32_t g = 0; g < view_->n_groups; ++g) claims_[g] += one[g];
  take_units(seq, 0, rows);
  rows_left_ -= rows;
  if (rows > 0) --seqs_left_;
  ++running_;
  out_->admit[out_->n_admit++] = {index, rows, 0, 0};
  return true;
}

// Rows that were kept for newcomers and found no taker go to the prefills, oldest first.
void FcfsPlan::use_spare_rows() {
  const auto extend = [&](const weft_seq& seq, weft_share* share) {
    if (rows_left_ == 0 || share->rows == 0 || reach(seq) <= share->rows) return;
    const uint32_t wanted = std::min(reach(seq) - share->rows, rows_left_);
    const uint32_t extra = rows_that_fit(seq, share->rows, wanted);
    if (extra == 0) return;
    take_units(seq, share->rows, extra);
    share->rows += extra;
    rows_left_ -= extra;
  };
  for (uint32_t i = 0; i < out_->n_run && rows_left_ > 0; ++i) {
    extend(view_->run[out_->run[i].index], &out_->run[i]);
  }
  for (uint32_t i = 0; i < out_->n_admit && rows_left_ > 0; ++i) {
    extend(view_->wait[out_->admit[i].index], &out_->admit[i]);
  }
}

}  // namespace weft::engine
