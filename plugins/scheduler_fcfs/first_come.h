// First come, first served, as a scheduler plugin: the policy of the host's built-in scheduler,
// written a second time against the C headers alone. It serves as an example of a scheduler in a
// page of code, and each of the two keeps the other honest: a test compares their plans on
// thousands of views.
//
// One FirstCome per instance, called by the host's engine thread only. It remembers nothing between
// plans but the capacity of its lists.
#pragma once

#include <weft/scheduler.h>

#include <cstdint>
#include <vector>

namespace scheduler_fcfs {

class FirstCome {
 public:
  void plan(const weft_sched_view& view, weft_sched_plan* out);

 private:
  // A share that is being filled, and what it has taken from the pools.
  struct Open {
    const weft_seq* seq;
    weft_share* share;
    uint64_t owned[WEFT_CACHE_GROUPS_MAX];
  };
  // Units that the sequence lacks in group g to hold `tokens`.
  uint64_t lacking(uint32_t g, uint64_t owned, uint64_t tokens) const;
  bool short_of_units() const;
  void free_youngest(weft_sched_plan* out);
  void order_running(bool decodes_first);
  void refuse_late(weft_sched_plan* out);
  void let_in(weft_sched_plan* out);
  bool has_room_for(const weft_seq& seq) const;
  // Opens a share with as many of `rows` as there are units for; false when that is none.
  bool open_share(const weft_seq& seq, uint32_t index, uint32_t rows, weft_share* entry);
  // Adds rows to the share, at most `rows`; returns how many.
  uint32_t extend(Open& open, uint32_t rows);
  uint32_t fair_part(const weft_seq& seq) const;

  const weft_sched_view* view_ = nullptr;
  std::vector<uint32_t> order_;  // indices of running sequences in the order they are served
  std::vector<bool> gone_;       // by index into run
  std::vector<bool> late_;       // by index into wait
  std::vector<Open> open_;
  uint64_t pool_[WEFT_CACHE_GROUPS_MAX] = {};  // units that nobody has
  uint64_t owed_[WEFT_CACHE_GROUPS_MAX] = {};  // of these, units that running sequences will need
  uint32_t rows_ = 0, places_ = 0, active_ = 0;
};

}  // namespace scheduler_fcfs
