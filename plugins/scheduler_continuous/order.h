// Who may get prefill rows in this step, in bands of priority; and who waits in vain.
//
// A band is one priority that occurs in the view. A sequence that has waited for max_wait moves up
// one band, after twice that time two, so that no band starves. Within a band the candidates stand
// as in the view: running before waiting, preempted before new, then by arrival. Sequences whose
// deadline cannot be kept by waiting for their turn are marked urgent. Owned by the planner; all
// memory is kept between plans.
#pragma once

#include <cstdint>
#include <vector>

#include "fairness.h"
#include "options.h"
#include "outlook.h"
#include "weft/scheduler.h"

namespace scheduler_continuous {

struct Candidate {
  uint32_t at = 0;  // below n_run: index into view.run; else n_run + index into view.wait
  uint32_t tenant = 0;
  uint32_t next = 0;  // in its tenant's queue
  bool open = true;   // not looked at yet
  bool urgent = false;
};

class Order {
 public:
  // gone: preempted in this plan, by index into view.run.
  void load(const weft_sched_view& view, const std::vector<uint8_t>& gone, TenantTable* tenants,
            const Outlook& outlook, const Options& options);

  uint32_t bands() const { return static_cast<uint32_t>(priorities_.size()); }
  uint32_t begin(uint32_t band) const { return band == 0 ? 0 : ends_[band - 1]; }
  uint32_t end(uint32_t band) const { return ends_[band]; }
  Candidate& operator[](uint32_t i) { return candidates_[i]; }
  const std::vector<uint32_t>& drops() const { return drops_; }

 private:
  void find_priorities();
  uint32_t band_of(const weft_seq& seq) const;
  void place(const std::vector<uint8_t>& gone, TenantTable* tenants);
  void judge(uint32_t band, uint64_t* first, TenantTable* tenants, const Outlook& outlook);
  bool wanted(uint32_t run_index, const std::vector<uint8_t>& gone) const;

  const weft_sched_view* view_ = nullptr;
  const Options* options_ = nullptr;
  std::vector<int32_t> priorities_;  // falling
  std::vector<uint32_t> band_;       // of run and wait; UINT32_MAX = no candidate
  std::vector<uint32_t> ends_;
  std::vector<Candidate> candidates_;
  std::vector<uint32_t> drops_;
};

}  // namespace scheduler_continuous
