// Plans the views of a recorded trace again with some policy and compares with what was planned
// then: the same policy must plan the same, another one shows where it would have differed. One
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/plan/planner.h"
#include "engine/plan/trace.h"

namespace weft::sim {

struct ReplayReport {
  std::string recorded_by;  // scheduler that wrote the trace
  std::string planned_by;   // scheduler of the replay
  uint64_t records = 0;
  uint64_t different = 0;    // plans that differ
  uint64_t refused = 0;      // plans of the replay that broke a rule
  uint64_t bad_records = 0;  // recorded plans that break a rule
  uint64_t first_step = 0;   // of the first different plan
  std::string first_difference;
  std::string first_refusal;
  std::string damage;  // not empty: the trace ends in the middle, and why
  std::vector<double> plan_us, recorded_us;
};

// table NULL = the built-in policy.
ReplayReport replay(engine::TraceReader& trace, const engine::SchedulerRef& policy);

// What differs first between two plans of one view; empty = nothing.
std::string plan_difference(const weft_sched_plan& recorded, const weft_sched_plan& planned);

}  // namespace weft::sim
