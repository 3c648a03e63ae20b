// Decodes, the preemptions that they need, and the plan as a whole.
#include <algorithm>

#include "planner.h"
#include "preempt.h"

namespace scheduler_continuous {
namespace {

// In one step; whoever still finds no unit then waits for the next one.
constexpr uint32_t kVictimsMax = 16;

}  // namespace

void Planner::begin(const weft_sched_view& view) {
  view_ = &view;
  budget_.load(view, options_.growth_tokens);
  costs_.load(view);
  tenants_.load(view);
  gone_.assign(view.n_run, 0);
  rows_.assign(static_cast<size_t>(view.n_run) + view.n_wait, 0);
  admitted_.clear();
  preempted_.clear();
  swap_free_ = view.swap_free;
  closed_ = false;
}

void Planner::plan(const weft_sched_view& view, weft_sched_plan* out) {
  begin(view);
  plan_decodes();
  order_.load(view, gone_, &tenants_, outlook_, options_);
  if (view.n_wait == 0) closed_ = true;
  for (uint32_t band = 0; band < order_.bands() && !done(); ++band) plan_band(band);
  const bool idle =
      std::all_of(rows_.begin(), rows_.end(), [](uint32_t rows) { return rows == 0; });
  if (idle && admitted_.empty()) rescue();

  out->n_run = out->n_admit = out->n_preempt = out->n_drop = 0;
  for (uint32_t i = 0; i < view.n_run && out->n_run < out->cap; ++i)
    if (rows_[i] != 0) out->run[out->n_run++] = {i, rows_[i], 0, 0};
  for (const uint32_t i : admitted_)
    if (out->n_admit < out->cap) out->admit[out->n_admit++] = {i, rows_[view.n_run + i], 0, 0};
  for (const weft_preempt& victim : preempted_)
    if (out->n_preempt < out->cap) out->preempt[out->n_preempt++] = victim;
  for (const uint32_t i : order_.drops())
    if (out->n_drop < out->cap) out->drop[out->n_drop++] = i;
}

uint64_t Planner::retry_after_ns(const weft_sched_view& view, const weft_seq& seq) {
  if (options_.max_queue_ns == 0) return 0;
  begin(view);
  collect_decodes();
  const uint32_t decodes = static_cast<uint32_t>(decodes_.size());
  outlook_.load(costs_, decodes, rows_for_prefill(decodes));
  const uint32_t own = tenants_.slot(seq);
  const uint64_t weights = tenants_.weights() * std::max(seq.weight, 1u) / tenants_.at(own).weight;
  const uint64_t wait = outlook_.ns_for(tokens_ahead(view, seq, weights));
  // Those that may be rejected first meet half the patience.
  const bool first = (seq.flags & WEFT_SEQ_SHEDDABLE) != 0;
  const uint64_t patience = std::max<uint64_t>(options_.max_queue_ns / (first ? 2 : 1), 1);
  return wait > patience ? wait - patience : 0;
}

// Those that can generate now. When the step has not room for all, the highest priorities come
// first, and among equals each step begins one step's worth further, so that all get their turn.
void Planner::collect_decodes() {
  decodes_.clear();
  for (uint32_t i = 0; i < view_->n_run; ++i) {
    const weft_seq& seq = view_->run[i];
    if (is_decode(seq) && seq.rows_max > 0 && (seq.flags & WEFT_SEQ_LOADING) == 0)
      decodes_.push_back(i);
  }
  const uint64_t room =
      static_cast<uint64_t>(std::max<int64_t>(std::min(budget_.rows, budget_.seqs), 0));
  if (decodes_.size() <= room) return;
  const uint32_t n = view_->n_run;
  const uint32_t start = static_cast<uint32_t>(view_->step % n * room % n);
  std::sort(decodes_.begin(), decodes_.end(), [&](uint32_t a, uint32_t b) {
    const int32_t left = view_->run[a].priority, right = view_->run[b].priority;
    if (left != right) return left > right;
    return (a + n - start) % n < (b + n - start) % n;
  });
  decodes_.resize(room);
}

void Planner::plan_decodes() {
  collect_decodes();
  make_room_for_decodes();
  // Without room for all, the highest priorities get theirs; the others keep their caches and wait.
  bool fits = true;
  for (uint32_t g = 0; g < budget_.groups(); ++g) {
    int64_t need = 0;
    for (const uint32_t i : decodes_)
      need += budget_.missing(view_->run[i], g, view_->run[i].context + 1ull);
    fits = fits && need <= budget_.free(g);
  }
  if (!fits)
    std::stable_sort(decodes_.begin(), decodes_.end(), [&](uint32_t a, uint32_t b) {
      return view_->run[a].priority > view_->run[b].priority;
    });
  uint32_t rows = 0;
  for (const uint32_t i : decodes_) {
    const weft_seq& seq = view_->run[i];
    const uint64_t end = seq.context + 1ull;
    if (!fits && budget_.reach(seq, 0, end) < end) continue;
    budget_.take(seq, 0, end);
    --budget_.rows;
    --budget_.seqs;
    rows_[i] = 1;
    ++rows;
  }
  prefill_rows_ = rows_for_prefill(rows);
  outlook_.load(costs_, rows, static_cast<uint32_t>(prefill_rows_));
}

// The rows of the step that prompts may use: what keeps the step within its target while somebody
// generates, but never less than a little, so that prompts come on.
uint32_t Planner::rows_for_prefill(uint32_t decode_rows) const {
  const uint32_t budget = view_->token_budget;
  const uint32_t left = budget > decode_rows ? budget - decode_rows : 0;
  if (view_->step_target_ns == 0 || decode_rows == 0 || !costs_.known()) return left;
  const uint32_t within = costs_.rows_within(view_->step_target_ns, budget);
  const uint32_t rows = within > decode_rows ? within - decode_rows : 0;
  return std::min(left, std::max(rows, options_.min_prefill));
}

void Planner::make_room_for_decodes() {
  int64_t need[WEFT_CACHE_GROUPS_MAX] = {};
  int32_t lowest = INT32_MAX;  // priority of those that lack something
  const uint32_t groups = budget_.groups();
  for (const uint32_t i : decodes_)
    for (uint32_t g = 0; g < groups; ++g) {
      const int64_t units = budget_.missing(view_->run[i], g, view_->run[i].context + 1ull);
      need[g] += units;
      if (units > 0) lowest = std::min(lowest, view_->run[i].priority);
    }
  const auto lacking = [&](uint32_t g) { return need[g] > budget_.free(g); };
  const auto useful = [&](const weft_seq& seq) {
    for (uint32_t g = 0; g < groups; ++g)
      if (lacking(g) && Budget::gain(seq, g) > 0) return true;
    return false;
  };
  for (uint32_t victims = 0; victims < kVictimsMax; ++victims) {
    bool enough = true;
    for (uint32_t g = 0; g < groups; ++g) enough = enough && !lacking(g);
    if (enough || budget_.alive <= 1) return;
    const uint32_t victim = pick_victim(*view_, gone_, lowest, true, useful);
    if (victim == kNobody) return;
    const auto at = std::find(decodes_.begin(), decodes_.end(), victim);
    if (at != decodes_.end()) {
      const weft_seq& seq = view_->run[victim];
      for (uint32_t g = 0; g < groups; ++g) need[g] -= budget_.missing(seq, g, seq.context + 1ull);
      decodes_.erase(at);
    }
    preempt(victim);
    closed_ = true;  // whoever came in now would be the next to go
  }
}

// Takes a running sequence out of the step; what it was granted is free again.
void Planner::preempt(uint32_t i) {
  const weft_seq& seq = view_->run[i];
  if (rows_[i] != 0) {
    budget_.untake(seq, static_cast<uint64_t>(seq.context) + rows_[i]);
    budget_.rows += rows_[i];
    ++budget_.seqs;
    if (!is_decode(seq)) prefill_rows_ += rows_[i];
    rows_[i] = 0;
  }
  const uint32_t mode =
      preempt_mode(seq, swap_free_, costs_, std::max(view_->token_budget, 1u), options_);
  if (mode == WEFT_PREEMPT_SWAP) swap_free_ -= seq.swap_bytes;
  preempted_.push_back({i, mode});
  gone_[i] = 1;
  budget_.preempt(seq);
}

// Nothing could be planned although somebody wants to run: units are missing. The most important
// sequence, among equals the oldest, gets them from the others, whoever they are.
void Planner::rescue() {
  uint32_t best = kNobody;
  for (uint32_t i = 0; i < view_->n_run; ++i) {
    const weft_seq& seq = view_->run[i];
    if (gone_[i] != 0 || seq.rows_max == 0 || (seq.flags & WEFT_SEQ_LOADING) != 0) continue;
    if (best == kNobody || seq.priority > view_->run[best].priority) best = i;
  }
  if (best == kNobody || budget_.rows <= 0 || budget_.seqs <= 0) return;
  const weft_seq& seq = view_->run[best];
  const uint64_t end = seq.context + 1ull;
  gone_[best] = 1;  // not a victim of itself
  const auto useful = [&](const weft_seq& other) {
    for (uint32_t g = 0; g < budget_.groups(); ++g)
      if (budget_.missing(seq, g, end) > budget_.free(g) && Budget::gain(other, g) > 0) return true;
    return false;
  };
  while (budget_.reach(seq, 0, end) < end) {
    uint32_t victim = pick_victim(*view_, gone_, INT32_MAX, true, useful);
    if (victim == kNobody) victim = pick_victim(*view_, gone_, INT32_MAX, false, useful);
    if (victim == kNobody) return;
    preempt(victim);
  }
  gone_[best] = 0;
  const uint32_t rows =
      std::min(seq.rows_max, static_cast<uint32_t>(std::max<int64_t>(budget_.rows, 1)));
  const uint64_t wish = end_of_piece(seq, 0, rows);
  if (wish <= seq.context) return;
  budget_.take(seq, 0, wish);
  rows_[best] = static_cast<uint32_t>(wish - seq.context);
}

}  // namespace scheduler_continuous
