// One request inside the engine: its tokens, its cache units, and what must survive preemption
// (sampler state, recorded prompt log-probabilities, timings). Owned by the scheduler; engine
// thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cache.h"
#include "engine/request.h"

namespace weft::engine {

struct Sequence {
  Sequence(Request r, Caches* caches, uint64_t order_number, uint64_t now_us)
      : request(std::move(r)),
        order(order_number),
        prompt_tokens(static_cast<uint32_t>(request.prompt.size())),
        tokens(std::move(request.prompt)),
        cache(caches),
        arrived_us(now_us) {
    if (request.sampling.penalises()) counts.add_prompt(tokens);
  }

  Request request;       // request.prompt has moved into tokens
  const uint64_t order;  // arrival: smaller is older
  const uint32_t prompt_tokens;
  std::vector<int32_t> tokens;  // prompt, then output
  uint32_t computed = 0;        // tokens whose rows are in the caches
  SequenceCache cache;

  TokenCounts counts;
  std::vector<float> prompt_logprobs;   // entry i: of token i + 1
  std::vector<TopLogprob> prompt_tops;  // prompt_top_count per entry
  uint32_t prompt_top_count = 0;

  uint64_t waiting_bytes = 0;  // what it counts for in the waiting queue
  uint64_t arrived_us = 0;
  uint64_t admitted_us = 0;     // 0 = never yet
  uint64_t first_token_us = 0;  // 0 = never yet

  uint64_t batch_mark = 0;  // the output batch that entry_index belongs to
  int entry_index = 0;

  uint64_t id() const { return request.id; }
  uint32_t length() const { return static_cast<uint32_t>(tokens.size()); }
  uint32_t generated() const { return length() - prompt_tokens; }
  // Rows to run before the next token can be sampled; at least 1.
  uint32_t pending() const { return length() - computed; }
  // A decode runs one row and samples; everything else is prefill (first time, or again after
  // preemption).
  bool decoding() const { return computed > 0 && pending() == 1; }
  // True when the logits of this position are still to be recorded as prompt log-probabilities.
  bool wants_prompt_row(uint32_t position) const {
    return request.sampling.prompt_logprobs >= 0 && position + 1 < prompt_tokens &&
           position >= prompt_logprobs.size();
  }
};

}  // namespace weft::engine
