// How long plans take: views of a worker with many running and many waiting sequences, changed a
// little from plan to plan as a real one would. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/planner.h"

namespace weft::sim {

struct PlanBenchOptions {
  uint32_t running = 256;
  uint32_t waiting = 1000;
  uint32_t tenants = 16;
  uint32_t plans = 2000;
  uint64_t seed = 1;
};

struct PlanBenchReport {
  std::vector<double> plan_us;
  uint64_t refused = 0, shares = 0, admitted = 0, preempted = 0;
};

PlanBenchReport bench_plans(const PlanBenchOptions& options, engine::Planner& planner);

}  // namespace weft::sim
