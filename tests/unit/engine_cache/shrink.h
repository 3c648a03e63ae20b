// Runs a scenario in a process of its own and, when it fails, looks for a short list of operations
// that still fails. A child process, because what is looked for includes failed checks and
// sanitizer reports that end it.
#pragma once

#include <string>

#include "unit/engine_cache/world.h"

namespace weft::engine {

struct RunResult {
  bool ok = false;
  std::string message;  // why not
  RunCounts counts;
};

// loud: what the child prints on standard error is shown.
RunResult run_in_child(const Scenario& scenario, bool loud);

// Delta debugging: leaves out halves, quarters, ... single operations while it keeps failing. At
// most `runs` runs.
Scenario shrink(Scenario failing, uint32_t runs);

}  // namespace weft::engine
