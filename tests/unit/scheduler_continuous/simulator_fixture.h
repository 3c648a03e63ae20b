// A host without a model: keeps sequences, caches and a clock, builds a view for every step, checks
// the plan and carries it out. A step takes what its cost line says, so that latencies mean
// something.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "policy_fixture.h"

namespace scheduler_continuous_test {

constexpr uint64_t kMs = 1'000'000, kSecond = 1'000 * kMs;

struct Request {
  uint64_t arrive_ns = 0;
  uint32_t prompt = 1, output = 1;
  uint32_t cached = 0;  // tokens that the prefix cache has
  uint32_t tenant = 0, weight = 1;
  int32_t priority = 0;
  uint64_t deadline_ns = 0;  // after the arrival; 0 = none
  uint32_t flags = 0;
  std::vector<uint32_t> boundaries;
};

struct Machine {
  uint32_t token_budget = 512, run_budget = 32;
  uint32_t row_units = 4096, unit_tokens = 16, watermark = 16, states = 64;
  uint64_t step_target_ns = 0;
  uint64_t step_ns = 5 * kMs, row_ns = 50'000;  // a step takes step_ns + rows * row_ns
  uint64_t swap_bytes = 0;                      // host memory
  bool tell_tenants = true;
  uint64_t credit = 8192;  // tokens per weight that a tenant may be behind the others when it comes
};

struct Fate {
  Request request;
  uint64_t first_ns = 0, end_ns = 0;  // of the first token, of the last; 0 = never
  uint32_t preemptions = 0;
  bool dropped = false;
  uint64_t longest_gap_ns = 0;   // between two tokens
  std::vector<uint32_t> missed;  // boundaries at which no step ended
  uint64_t ttft_ns() const { return first_ns - request.arrive_ns; }
};

struct Run {
  std::vector<Fate> fates;
  uint64_t steps = 0, empty_steps = 0, preemptions = 0, swaps = 0, rows = 0, most_running = 0;
  uint64_t slowest_step_with_decode_ns = 0;
  std::string fault;  // the first fault of a plan
  std::string trace;  // all plans as text
};

// Runs until every request is done or `most_steps` are over.
Run simulate(const Machine& machine, std::vector<Request> requests,
             const std::map<std::string, int64_t>& settings = {}, uint64_t most_steps = 20000);

// The q-quantile of the times to first token, over those chosen.
uint64_t ttft_quantile(const Run& run, double q, const std::function<bool(const Request&)>& chosen);

}  // namespace scheduler_continuous_test
