// Checks a plan of a scheduler against the view it was made from: every rule of weft/scheduler.h.
// A plan comes from plugin code and is believed only after this. Owned by whoever plans; engine
// thread. Linear in the view, no allocation once the largest view has been seen.
#pragma once

#include <weft/scheduler.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace weft::engine {

// ceil(tokens / unit) for row groups, 1 (+ spare with drafts) for states.
uint64_t units_needed(const weft_sched_group& group, uint64_t tokens, bool drafts);

class PlanCheck {
 public:
  // kInvalid names the entry, what was expected and what came.
  Status check(const weft_sched_view& view, const weft_sched_plan& plan);

 private:
  enum class Mark : uint8_t { kFree, kShare, kPreempt, kAdmit, kDrop };

  Status check_counts(const weft_sched_view& view, const weft_sched_plan& plan) const;
  Status check_preempt(const weft_sched_view& view, const weft_sched_plan& plan);
  Status check_drop(const weft_sched_view& view, const weft_sched_plan& plan);
  Status check_shares(const weft_sched_view& view, const weft_sched_plan& plan, bool admit);
  Status check_units(const weft_sched_view& view) const;
  Status take_mark(std::vector<Mark>& marks, const char* list, uint32_t entry, uint32_t index,
                   Mark mark);

  std::vector<Mark> run_marks_, wait_marks_;
  uint64_t rows_ = 0, shares_with_rows_ = 0;
  std::array<uint64_t, WEFT_CACHE_GROUPS_MAX> needed_ = {}, returned_ = {};
};

}  // namespace weft::engine
