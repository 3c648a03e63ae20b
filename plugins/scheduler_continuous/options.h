// The settings of the policy; plugin.cpp reads them, docs/scheduling.md explains them. Plain data.
#pragma once

#include <cstdint>

namespace scheduler_continuous {

struct Options {
  uint32_t prefill_chunk = 0;   // most prefill rows of one sequence in a step; 0 = the budget alone
  uint32_t min_prefill = 16;    // prefill rows that the step-time target cannot take away
  uint32_t short_prompt = 256;  // tokens left to compute up to which a prompt may overtake
  uint32_t quantum = 2048;      // tokens that a tenant may be ahead before another's turn comes
  uint32_t growth_tokens = 128;  // output for which an admission leaves room in every sequence
  uint32_t tenant_reserve = 12;  // percent of places and rows kept from tenants above their share
  uint64_t max_wait_ns =
      30'000'000'000;         // wait after which a sequence moves up one band; 0 = never
  uint64_t max_queue_ns = 0;  // expected wait above which requests are sent away; 0 = off
  double swap_gbps = 10;      // speed of a copy to host memory, bytes per nanosecond
  bool drop_late = true;      // waiting sequences whose deadline has passed are dropped
};

}  // namespace scheduler_continuous
