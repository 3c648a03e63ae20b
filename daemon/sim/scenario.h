// A simulation described in TOML: the worker's cost model and limits, and its tenants.
//
//   seed = 1
//   [worker]
//   step_us = 5000          # fixed time of a step
//   row_us = 100            # more for every row
//   pages = 4096
//   [[tenants]]
//   id = 1
//   requests = 200
//   per_minute = 120
//   prompt = 4000
//   cached_percent = 90
//   output = 200
//
// Unknown keys and values out of range are errors with line and column. Pure; any thread.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/sim_worker.h"
#include "sim/workload.h"

namespace weft::sim {

struct Scenario {
  SimOptions worker;
  std::vector<TenantLoad> tenants;
};

Result<Scenario> parse_scenario(std::string_view toml);

}  // namespace weft::sim
