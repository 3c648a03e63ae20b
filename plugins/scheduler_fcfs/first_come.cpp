#include "first_come.h"

#include <algorithm>

namespace scheduler_fcfs {
namespace {

constexpr uint64_t kWorthWaitingFor = 128;  // tokens: the grain of the host's prefix cache

bool is_decode(const weft_seq& s) { return s.context != 0 && s.context + 1 == s.known; }

// How far a piece may go: to the next useful boundary if there is one.
uint32_t farthest(const weft_seq& s) {
  const bool bounded = s.boundary > s.context && s.boundary - s.context < s.rows_max;
  return bounded ? s.boundary - s.context : s.rows_max;
}

}  // namespace

uint64_t FirstCome::lacking(uint32_t g, uint64_t owned, uint64_t tokens) const {
  const weft_sched_group& group = view_->groups[g];
  uint64_t wanted = 1;
  if (group.kind == WEFT_CACHE_ROWS) {
    const uint64_t unit = group.unit_tokens > 0 ? group.unit_tokens : 1;
    wanted = tokens / unit + (tokens % unit != 0 ? 1 : 0);
  }
  return wanted - std::min(wanted, owned);
}

void FirstCome::plan(const weft_sched_view& view, weft_sched_plan* out) {
  view_ = &view;
  out->n_run = out->n_admit = out->n_preempt = out->n_drop = 0;
  rows_ = view.token_budget;
  places_ = view.seq_budget;
  active_ = view.n_run;
  open_.clear();
  gone_.assign(view.n_run, false);
  late_.assign(view.n_wait, false);
  for (uint32_t g = 0; g < view.n_groups; ++g) {
    pool_[g] = view.groups[g].free;
    owed_[g] = 0;
    for (uint32_t i = 0; i < view.n_run; ++i) {
      owed_[g] += lacking(g, view.run[i].held[g], view.run[i].known);
    }
  }
  free_youngest(out);
  refuse_late(out);
  const bool starved = short_of_units();
  order_running(!starved);
  for (const uint32_t index : order_) {
    if (rows_ == 0 || places_ == 0) break;
    const weft_seq& s = view.run[index];
    if (s.rows_max == 0 || (s.flags & WEFT_SEQ_LOADING) != 0) continue;
    if (open_share(s, index, fair_part(s), &out->run[out->n_run])) ++out->n_run;
  }
  if (!starved && out->n_preempt == 0) let_in(out);
  for (Open& open : open_) {
    const uint32_t most = farthest(*open.seq);
    if (most > open.share->rows) extend(open, std::min(rows_, most - open.share->rows));
  }
}

bool FirstCome::short_of_units() const {
  for (uint32_t g = 0; g < view_->n_groups; ++g) {
    if (owed_[g] > pool_[g]) return true;
  }
  return false;
}

// Until the running sequences can all compute what they know, or only the oldest is left.
void FirstCome::free_youngest(weft_sched_plan* out) {
  uint32_t index = view_->n_run;
  while (index > 1 && short_of_units()) {
    const weft_seq& s = view_->run[--index];
    if ((s.flags & WEFT_SEQ_PINNED) != 0) continue;
    for (uint32_t g = 0; g < view_->n_groups; ++g) {
      owed_[g] -= lacking(g, s.held[g], s.known);
      if (s.held[g] > s.shared[g]) pool_[g] += s.held[g] - s.shared[g];
    }
    gone_[index] = true;
    --active_;
    out->preempt[out->n_preempt++] = weft_preempt{index, WEFT_PREEMPT_RECOMPUTE};
  }
}

void FirstCome::refuse_late(weft_sched_plan* out) {
  for (uint32_t i = 0; i < view_->n_wait; ++i) {
    const weft_seq& s = view_->wait[i];
    late_[i] = s.output == 0 && s.deadline_ns != 0 && view_->now_ns > s.deadline_ns;
    if (late_[i]) out->drop[out->n_drop++] = i;
  }
}

void FirstCome::order_running(bool decodes_first) {
  order_.clear();
  for (int round = decodes_first ? 0 : 2; round < 3; ++round) {
    for (uint32_t i = 0; i < view_->n_run; ++i) {
      const bool decode = is_decode(view_->run[i]);
      const bool now = round == 0 ? decode : round == 1 ? !decode : !decodes_first;
      if (now && !gone_[i]) order_.push_back(i);
    }
  }
}

// All but a quarter of what is left: those behind shall not wait for the end of a long prompt.
uint32_t FirstCome::fair_part(const weft_seq& s) const {
  const uint32_t part = rows_ < 4 ? rows_ : rows_ - rows_ / 4;
  return std::min(part, farthest(s));
}

void FirstCome::let_in(weft_sched_plan* out) {
  for (uint32_t i = 0; i < view_->n_wait && active_ < view_->run_budget; ++i) {
    const weft_seq& s = view_->wait[i];
    if (late_[i]) continue;
    const bool copies_first = s.restore_ns != 0;
    if (!copies_first) {
      if (s.rows_max == 0) continue;
      if (rows_ == 0 || places_ == 0) break;
    }
    if (active_ != 0 && s.promised >= s.context + kWorthWaitingFor) continue;
    if (!has_room_for(s)) {
      if (active_ != 0) break;
      continue;
    }
    for (uint32_t g = 0; g < view_->n_groups; ++g) owed_[g] += lacking(g, s.held[g], s.known);
    weft_share* entry = &out->admit[out->n_admit++];
    if (copies_first) {
      *entry = weft_share{i, 0, 0, 0};
      for (uint32_t g = 0; g < view_->n_groups; ++g) {
        const uint64_t units = lacking(g, s.held[g], s.context);
        pool_[g] -= units;
        owed_[g] -= units;
      }
    } else {
      open_share(s, i, fair_part(s), entry);
    }
    ++active_;
  }
}

bool FirstCome::has_room_for(const weft_seq& s) const {
  for (uint32_t g = 0; g < view_->n_groups; ++g) {
    const uint64_t kept = active_ != 0 ? view_->groups[g].watermark : 0;
    if (pool_[g] < owed_[g] + lacking(g, s.held[g], s.known) + kept) return false;
  }
  return true;
}

bool FirstCome::open_share(const weft_seq& s, uint32_t index, uint32_t rows, weft_share* entry) {
  Open open = {&s, entry, {}};
  std::copy(s.held, s.held + WEFT_CACHE_GROUPS_MAX, open.owned);
  *entry = weft_share{index, 0, 0, 0};
  if (extend(open, rows) == 0) return false;
  --places_;
  open_.push_back(open);
  return true;
}

uint32_t FirstCome::extend(Open& open, uint32_t rows) {
  const uint64_t from = uint64_t{open.seq->context} + open.share->rows;
  uint64_t to = from + rows;
  for (uint32_t g = 0; g < view_->n_groups; ++g) {
    const weft_sched_group& group = view_->groups[g];
    const uint64_t reachable = open.owned[g] + pool_[g];
    if (group.kind != WEFT_CACHE_ROWS) {
      if (reachable == 0) return 0;
      continue;
    }
    const uint64_t unit = group.unit_tokens > 0 ? group.unit_tokens : 1;
    to = std::min(to, reachable * unit);
  }
  if (to <= from) return 0;
  for (uint32_t g = 0; g < view_->n_groups; ++g) {
    const uint64_t units = lacking(g, open.owned[g], to);
    open.owned[g] += units;
    pool_[g] -= units;
    owed_[g] -= std::min(owed_[g], units);
  }
  const auto added = static_cast<uint32_t>(to - from);
  open.share->rows += added;
  rows_ -= added;
  return added;
}

}  // namespace scheduler_fcfs
