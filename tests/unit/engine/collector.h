// Gathers what an engine emits, per request, and checks the protocol on the way: admitted once and
// before tokens, nothing after the final message, prompt log-probabilities once.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "wire/weft.pb.h"

namespace weft::engine {

struct Collected {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, prompt_logprobs;
  std::vector<std::vector<TopLogprob>> tops, prompt_tops;
  bool admitted = false;
  wire::Finish finish = wire::FINISH_NONE;
  std::string error, error_code;
  uint32_t cached_tokens = 0, cached_host_tokens = 0;
  uint64_t queue_us = 0, prefill_us = 0, decode_us = 0;
};

class Collector {
 public:
  void take(const wire::Envelope& envelope) {
    if (envelope.has_tokens()) {
      for (const wire::SequenceTokens& s : envelope.tokens().sequences()) take(s);
      ++batches;
    } else if (envelope.has_stats()) {
      stats.push_back(envelope.stats());
    } else if (envelope.has_drained()) {
      ++drained;
    } else if (envelope.has_fault()) {
      faults.push_back(envelope.fault());
    }
  }

  std::map<uint64_t, Collected> requests;
  std::vector<wire::WorkerStats> stats;
  std::vector<wire::WorkerFault> faults;
  int drained = 0;
  int batches = 0;

 private:
  static std::vector<TopLogprob> tops_of(const wire::Alternatives& a) {
    std::vector<TopLogprob> out;
    for (int i = 0; i < a.ids_size(); ++i) out.push_back({a.ids(i), a.logprobs(i)});
    return out;
  }
  void take(const wire::SequenceTokens& s) {
    Collected& c = requests[s.id()];
    REQUIRE(c.finish == wire::FINISH_NONE);
    if (s.admitted()) {
      CHECK_FALSE(c.admitted);
      CHECK(c.tokens.empty());
      c.admitted = true;
      c.cached_tokens = s.cached_tokens();
      c.cached_host_tokens = s.cached_host_tokens();
    }
    if (s.prompt_logprobs_size() > 0) {
      CHECK(c.prompt_logprobs.empty());
      CHECK(c.tokens.empty());
    }
    if (s.tokens_size() > 0) CHECK(c.admitted);
    c.tokens.insert(c.tokens.end(), s.tokens().begin(), s.tokens().end());
    c.logprobs.insert(c.logprobs.end(), s.logprobs().begin(), s.logprobs().end());
    for (const auto& a : s.alternatives()) c.tops.push_back(tops_of(a));
    c.prompt_logprobs.insert(c.prompt_logprobs.end(), s.prompt_logprobs().begin(),
                             s.prompt_logprobs().end());
    for (const auto& a : s.prompt_alternatives()) c.prompt_tops.push_back(tops_of(a));
    c.finish = s.finish();
    c.error = s.error();
    c.error_code = s.error_code();
    c.queue_us = s.queue_us();
    c.prefill_us = s.prefill_us();
    c.decode_us = s.decode_us();
  }
};

}  // namespace weft::engine
