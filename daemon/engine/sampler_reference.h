// The sampler said naively: sort everything, filter, draw. Test oracle of sampler.h; never on the
// serving path.
#pragma once

#include <span>
#include <vector>

#include "engine/sampler.h"

namespace weft::engine {

// The kept candidates in drawing order with their probabilities (sum 1). `logits` must be valid.
std::vector<std::pair<int32_t, double>> reference_distribution(std::vector<float> logits,
                                                               const SamplingParams& params,
                                                               const TokenCounts& counts,
                                                               uint32_t generated);
int32_t reference_sample(std::vector<float> logits, const SamplingParams& params,
                         const TokenCounts& counts, SamplePoint point);

}  // namespace weft::engine
