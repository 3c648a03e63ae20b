// Requests for a simulation: read from JSONL, or made from a description of tenants.
//
// A line is one object, either ours
//   {"arrival_s": 1.5, "prompt": 1000, "output": 50, "cached": 900, "tenant": 2, "weight": 1,
//    "priority": 0, "deadline_s": 3}
// (all but arrival_s, prompt and output optional), or one of the published traces with block
// hashes
//   {"timestamp": 1500, "input_length": 1000, "output_length": 50, "hash_ids": [1, 2]}
// whose timestamp is in milliseconds and whose blocks have 512 tokens. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/sim_worker.h"

namespace weft::sim {

inline constexpr uint32_t kTokensMax = 1u << 28;  // of a prompt or an output
inline constexpr size_t kRequestsMax = 10'000'000;

// Ids count from 1 in the order of lines. An error names its line.
Result<std::vector<SimRequest>> parse_workload(std::string_view jsonl);

// A tenant that sends requests at random times, as many per minute on average.
struct TenantLoad {
  uint32_t tenant = 0;
  uint32_t weight = 1;
  int32_t priority = 0;
  uint32_t requests = 100;
  uint32_t per_minute = 60;
  uint64_t start_ms = 0;
  uint32_t prompt = 1000;       // mean; lengths spread from half to one and a half times of it
  uint32_t cached_percent = 0;  // of each prompt
  uint32_t output = 100;        // mean
  uint64_t deadline_ms = 0;
  bool sheddable = false;
};
// The same seed gives the same requests, ids from 1 on.
std::vector<SimRequest> make_workload(const std::vector<TenantLoad>& tenants, uint64_t seed);

}  // namespace weft::sim
