#include "engine/sampler_reference.h"

#include <algorithm>
#include <cmath>

#include "engine/rng.h"

namespace weft::engine {

std::vector<std::pair<int32_t, double>> reference_distribution(std::vector<float> logits,
                                                               const SamplingParams& params,
                                                               const TokenCounts& counts,
                                                               uint32_t generated) {
  adjust_logits(logits, params, counts, generated);
  std::vector<std::pair<int32_t, double>> kept;
  for (size_t i = 0; i < logits.size(); ++i) {
    kept.emplace_back(static_cast<int32_t>(i), static_cast<double>(logits[i]));
  }
  const double most = std::max_element(kept.begin(), kept.end(), [](const auto& a, const auto& b) {
                        return a.second < b.second;
                      })->second;
  const bool sorts = params.top_k > 0 || params.top_p < 1.0f || params.temperature <= 0.0f;
  if (sorts) {
    std::stable_sort(kept.begin(), kept.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
  }
  if (params.temperature <= 0.0f) return {{kept[0].first, 1.0}};
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < kept.size()) {
    kept.resize(static_cast<size_t>(params.top_k));
  }
  double total = 0.0;
  for (auto& [id, x] : kept) x = std::exp((x - most) / static_cast<double>(params.temperature));
  if (params.top_k > 0) {
    for (const auto& c : kept) total += c.second;
  } else {  // the same order of summation as the fast path: ids ascending
    auto by_id = kept;
    std::sort(by_id.begin(), by_id.end());
    for (const auto& c : by_id) total += c.second;
  }
  if (params.top_p < 1.0f) {
    double sum = 0.0;
    size_t n = 0;
    while (n < kept.size() && (n == 0 || sum < static_cast<double>(params.top_p) * total)) {
      sum += kept[n++].second;
    }
    kept.resize(n);
  }
  std::erase_if(kept, [&](const auto& c) { return c.second < params.min_p; });
  total = 0.0;
  for (const auto& c : kept) total += c.second;
  for (auto& c : kept) c.second /= total;
  return kept;
}

int32_t reference_sample(std::vector<float> logits, const SamplingParams& params,
                         const TokenCounts& counts, SamplePoint point) {
  const auto kept = reference_distribution(std::move(logits), params, counts, point.generated);
  const double u = uniform_at(params.seed, point.position, RandomStream::kSample);
  double sum = 0.0;
  for (const auto& [id, p] : kept) {
    sum += p;
    if (u < sum) return id;
  }
  return kept.back().first;
}

}  // namespace weft::engine
