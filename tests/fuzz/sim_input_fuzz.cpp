// Workloads and scenarios of the simulator. The first byte chooses.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "sim/scenario.h"
#include "sim/workload.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == '[') {
    const auto scenario = weft::sim::parse_scenario(text);
    if (!scenario.ok()) {
      WEFT_CHECK(!scenario.error().message.empty());
      return 0;
    }
    WEFT_CHECK(scenario->worker.page_tokens >= 1 && scenario->worker.token_budget >= 1);
    return 0;
  }
  const auto workload = weft::sim::parse_workload(text);
  if (!workload.ok()) {
    WEFT_CHECK(!workload.error().message.empty());
    return 0;
  }
  for (const weft::sim::SimRequest& r : *workload) {
    WEFT_CHECK(r.prompt >= 1 && r.prompt <= weft::sim::kTokensMax && r.output >= 1);
  }
  return 0;
}
