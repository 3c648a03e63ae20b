// From one row of logits to one token, and to log-probabilities.
//
// Order of the steps: logit_bias; repetition, presence and frequency penalty; stop ids banned while
// fewer than min_tokens are generated; temperature (0 = the largest logit, lowest id on ties);
// top-k; top-p; min-p; draw. Candidates are ordered by falling logit, lower id first on ties; top-p
// keeps the shortest prefix whose probability reaches top_p, min-p what has at least min_p of the
// largest probability. Log-probabilities are those of the raw logits, before all of that.
//
// The same seed gives the same token on every machine: sampler_math.h says how.
//
// Pure functions of their arguments; scratch memory is the caller's and holds no meaning between
// calls. The vocabulary is never sorted as a whole. sampler_reference.h says the same thing naively
// and is the test oracle.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::engine {

inline constexpr int32_t kTopLogprobsMax = 20;

struct SamplingParams {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0 = off
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<int32_t> stop_ids;
  uint32_t min_tokens = 0;
  uint32_t max_tokens = 0;  // 0 = up to the context limit
  int32_t logprobs = -1;
  int32_t prompt_logprobs = -1;

  bool penalises() const {
    return presence_penalty != 0.0f || frequency_penalty != 0.0f || repetition_penalty != 1.0f;
  }
};

// Which tokens a sequence has seen, for the penalties. Repetition looks at prompt and output,
// presence and frequency at the output alone. Kept with the sequence; survives preemption.
class TokenCounts {
 public:
  void add_prompt(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) output_count_.try_emplace(token, 0u);
  }
  void add_output(int32_t token) { ++output_count_[token]; }
  // token -> occurrences in the output; tokens of the prompt alone have 0.
  const std::unordered_map<int32_t, uint32_t>& output_count() const { return output_count_; }

 private:
  std::unordered_map<int32_t, uint32_t> output_count_;
};

struct SampleScratch {
  std::vector<int32_t> order;
  std::vector<double> weight;
  std::vector<double> mass;
  std::vector<float> block_most, level;
};

// Where the sequence stands.
struct SamplePoint {
  uint32_t generated = 0;  // tokens generated before this one
  uint64_t position = 0;   // index of the new token in prompt + output: the random number's counter
};

// Chooses a token. `logits` are changed. kInternal when a logit is NaN or +inf or when every token
// is banned.
Result<int32_t> sample_token(std::span<float> logits, const SamplingParams& params,
                             const TokenCounts& counts, SamplePoint point, SampleScratch* scratch);

struct TopLogprob {
  int32_t id = 0;
  float logprob = 0.0f;
};

// log(sum(exp(logits))) in double precision. kInternal when a logit is NaN or +inf or none is
// finite.
Result<double> log_normaliser(std::span<const float> logits);
inline float logprob_of(std::span<const float> logits, double normaliser, int32_t token) {
  return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(token)]) - normaliser);
}
// The `n` most likely tokens, most likely first, lower id first on ties.
void top_logprobs(std::span<const float> logits, double normaliser, int32_t n,
                  std::vector<TopLogprob>* out);

// Bias, penalties and the stop ban; shared with the reference because each is one formula.
void adjust_logits(std::span<float> logits, const SamplingParams& params, const TokenCounts& counts,
                   uint32_t generated);

}  // namespace weft::engine
