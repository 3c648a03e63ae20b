#include "engine/plan/plan_check.h"

#include <algorithm>

namespace weft::engine {
namespace {

template <class... Args>
Error broken(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kInvalid, format, std::forward<Args>(args)...);
}

const char* list_name(bool admit) { return admit ? "admit" : "run"; }

// One share alone: its rows and drafts.
Status check_share(const weft_sched_view& view, const weft_seq& seq, const weft_share& share,
                   bool admit, uint32_t entry) {
  const char* list = list_name(admit);
  if ((seq.flags & WEFT_SEQ_LOADING) != 0) {
    return broken("{}[{}]: sequence {} is still being loaded and has no share, got {} rows", list,
                  entry, seq.id, share.rows);
  }
  if (share.propose > view.drafts_max) {
    return broken("{}[{}]: propose is at most {}, got {}", list, entry, view.drafts_max,
                  share.propose);
  }
  if (admit && seq.restore_ns > 0) {
    if (share.rows == 0 && share.drafts == 0) return {};
    return broken("{}[{}]: sequence {} must be restored first: expected 0 rows, got {}", list,
                  entry, seq.id, share.rows);
  }
  if (share.drafts > std::min(seq.drafts, view.drafts_max)) {
    return broken("{}[{}]: sequence {} has at most {} drafts, got {}", list, entry, seq.id,
                  std::min(seq.drafts, view.drafts_max), share.drafts);
  }
  if (share.rows <= share.drafts || share.rows - share.drafts > seq.rows_max) {
    return broken("{}[{}]: sequence {} can run 1 to {} rows and its {} drafts, got {} rows", list,
                  entry, seq.id, seq.rows_max, share.drafts, share.rows);
  }
  if (share.drafts > 0 && uint64_t{seq.context} + share.rows - share.drafts != seq.known) {
    return broken(
        "{}[{}]: drafts of sequence {} must follow its {} known tokens, got {} cached and {} rows "
        "before them",
        list, entry, seq.id, seq.known, seq.context, share.rows - share.drafts);
  }
  return {};
}

}  // namespace

uint64_t units_needed(const weft_sched_group& group, uint64_t tokens, bool drafts) {
  if (group.kind == WEFT_CACHE_STATE) return 1 + (drafts ? uint64_t{group.spare} : 0);
  const uint64_t unit = std::max(1u, group.unit_tokens);
  return (tokens + unit - 1) / unit;
}

Status PlanCheck::check(const weft_sched_view& view, const weft_sched_plan& plan) {
  WEFT_TRY(check_counts(view, plan));
  run_marks_.assign(view.n_run, Mark::kFree);
  wait_marks_.assign(view.n_wait, Mark::kFree);
  rows_ = shares_with_rows_ = 0;
  needed_ = returned_ = {};
  WEFT_TRY(check_preempt(view, plan));
  WEFT_TRY(check_drop(view, plan));
  WEFT_TRY(check_shares(view, plan, false));
  WEFT_TRY(check_shares(view, plan, true));
  if (rows_ > view.token_budget) {
    return broken("the shares have {} rows, the step takes {}", rows_, view.token_budget);
  }
  if (shares_with_rows_ > view.seq_budget) {
    return broken("{} sequences have rows, the step takes {}", shares_with_rows_, view.seq_budget);
  }
  const uint64_t running = uint64_t{view.n_run} - plan.n_preempt + plan.n_admit;
  if (plan.n_admit > 0 && running > view.run_budget) {
    return broken("{} sequences would be running ({} - {} preempted + {} admitted), at most {} may",
                  running, view.n_run, plan.n_preempt, plan.n_admit, view.run_budget);
  }
  return check_units(view);
}

Status PlanCheck::check_counts(const weft_sched_view& view, const weft_sched_plan& plan) const {
  const auto one = [&](const char* list, uint32_t n, uint32_t of) -> Status {
    if (n <= std::min(of, plan.cap)) return {};
    return broken("{} has {} entries, at most {} are possible (room for {}, {} sequences)", list, n,
                  std::min(of, plan.cap), plan.cap, of);
  };
  WEFT_TRY(one("run", plan.n_run, view.n_run));
  WEFT_TRY(one("admit", plan.n_admit, view.n_wait));
  WEFT_TRY(one("preempt", plan.n_preempt, view.n_run));
  return one("drop", plan.n_drop, view.n_wait);
}

Status PlanCheck::take_mark(std::vector<Mark>& marks, const char* list, uint32_t entry,
                            uint32_t index, Mark mark) {
  if (index >= marks.size()) {
    return broken("{}[{}]: index {} is out of range, there are {} sequences", list, entry, index,
                  marks.size());
  }
  if (marks[index] != Mark::kFree) {
    static constexpr const char* kNames[] = {"", "run", "preempt", "admit", "drop"};
    return broken("{}[{}]: index {} is named already, in {}", list, entry, index,
                  kNames[static_cast<int>(marks[index])]);
  }
  marks[index] = mark;
  return {};
}

Status PlanCheck::check_preempt(const weft_sched_view& view, const weft_sched_plan& plan) {
  for (uint32_t i = 0; i < plan.n_preempt; ++i) {
    const weft_preempt& p = plan.preempt[i];
    WEFT_TRY(take_mark(run_marks_, "preempt", i, p.index, Mark::kPreempt));
    const weft_seq& seq = view.run[p.index];
    if ((seq.flags & WEFT_SEQ_PINNED) != 0) {
      return broken("preempt[{}]: sequence {} is pinned", i, seq.id);
    }
    if (p.mode != WEFT_PREEMPT_RECOMPUTE && p.mode != WEFT_PREEMPT_SWAP) {
      return broken("preempt[{}]: mode is {} (recompute) or {} (swap), got {}", i,
                    static_cast<int>(WEFT_PREEMPT_RECOMPUTE), static_cast<int>(WEFT_PREEMPT_SWAP),
                    p.mode);
    }
    for (uint32_t g = 0; g < view.n_groups; ++g) {
      returned_[g] += seq.held[g] - std::min(seq.held[g], seq.shared[g]);
    }
  }
  return {};
}

Status PlanCheck::check_drop(const weft_sched_view& view, const weft_sched_plan& plan) {
  for (uint32_t i = 0; i < plan.n_drop; ++i) {
    WEFT_TRY(take_mark(wait_marks_, "drop", i, plan.drop[i], Mark::kDrop));
    const weft_seq& seq = view.wait[plan.drop[i]];
    const bool late = seq.deadline_ns != 0 && seq.deadline_ns < view.now_ns;
    if (!late && (seq.flags & WEFT_SEQ_SHEDDABLE) == 0) {
      return broken(
          "drop[{}]: sequence {} is neither sheddable nor late (deadline {} ns, now {} ns)", i,
          seq.id, seq.deadline_ns, view.now_ns);
    }
  }
  return {};
}

Status PlanCheck::check_shares(const weft_sched_view& view, const weft_sched_plan& plan,
                               bool admit) {
  const uint32_t n = admit ? plan.n_admit : plan.n_run;
  // Units that waiting sequences count on may be those that a preemption gives up.
  const bool counts_held = !admit || plan.n_preempt == 0;
  for (uint32_t i = 0; i < n; ++i) {
    const weft_share& share = admit ? plan.admit[i] : plan.run[i];
    WEFT_TRY(take_mark(admit ? wait_marks_ : run_marks_, list_name(admit), i, share.index,
                       admit ? Mark::kAdmit : Mark::kShare));
    const weft_seq& seq = admit ? view.wait[share.index] : view.run[share.index];
    WEFT_TRY(check_share(view, seq, share, admit, i));
    rows_ += share.rows;
    shares_with_rows_ += share.rows > 0 ? 1 : 0;
    for (uint32_t g = 0; g < view.n_groups; ++g) {
      const uint64_t needs =
          units_needed(view.groups[g], uint64_t{seq.context} + share.rows, share.drafts > 0);
      const uint64_t held = counts_held ? seq.held[g] : 0;
      needed_[g] += needs > held ? needs - held : 0;
    }
  }
  return {};
}

Status PlanCheck::check_units(const weft_sched_view& view) const {
  for (uint32_t g = 0; g < view.n_groups; ++g) {
    const uint64_t at_hand = view.groups[g].free + returned_[g];
    if (needed_[g] > at_hand) {
      return broken("cache group {}: the shares need {} more units, {} are free and {} come back",
                    g, needed_[g], view.groups[g].free, returned_[g]);
    }
  }
  return {};
}

}  // namespace weft::engine
