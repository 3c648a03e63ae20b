#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/rng.h"

namespace weft::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
// First number of candidates that top-p looks at, and how it grows while their mass is too small.
constexpr size_t kTopPFirst = 64;
constexpr size_t kTopPGrowth = 8;

// Largest logit; kInternal unless all are finite or -inf and one is finite.
Result<float> largest_logit(std::span<const float> logits) {
  float most = -kInfinity;
  bool bad = false;
  for (const float x : logits) {
    bad |= !(x <= kLargest);  // NaN and +inf
    most = x > most ? x : most;
  }
  if (bad) return Error(ErrorCode::kInternal, "the model produced a logit that is NaN or infinite");
  if (most == -kInfinity) {
    return Error(ErrorCode::kInternal, "no token is left to sample: every logit is minus infinity");
  }
  return most;
}

struct Before {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

int32_t greedy(std::span<const float> logits, float most) {
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), most) - logits.begin());
}

double weight_of(float logit, double most, double temperature) {
  return std::exp((static_cast<double>(logit) - most) / temperature);
}

// Candidates in `order` (n of them, weights alongside); u in [0, 1).
int32_t draw(std::span<const int32_t> order, std::span<const double> weight, double u) {
  double total = 0.0;
  for (const double w : weight) total += w;
  const double target = u * total;
  double sum = 0.0;
  for (size_t i = 0; i < order.size(); ++i) {
    sum += weight[i];
    if (target < sum) return order[i];
  }
  for (size_t i = order.size(); i-- > 0;) {  // rounding: the last that can be drawn at all
    if (weight[i] > 0.0) return order[i];
  }
  return order[0];
}

// Sorted prefix of order[0, n) extended from `have` to `want` entries.
void extend_sorted(std::vector<int32_t>& order, size_t have, size_t want, Before before) {
  const auto first = order.begin() + static_cast<ptrdiff_t>(have);
  const auto middle = order.begin() + static_cast<ptrdiff_t>(want);
  if (middle != order.end()) std::nth_element(first, middle, order.end(), before);
  std::sort(first, middle, before);
}

// top-k and top-p: leaves the kept candidates, best first, in scratch.
void keep_best(std::span<const float> logits, const SamplingParams& params, double most,
               SampleScratch* scratch) {
  const double temperature = params.temperature;
  const Before before{logits.data()};
  std::vector<int32_t>& order = scratch->order;
  std::vector<double>& weight = scratch->weight;
  order.resize(logits.size());
  std::iota(order.begin(), order.end(), 0);
  weight.clear();
  const bool by_mass = params.top_p < 1.0f;
  double total = 0.0;
  if (params.top_k > 0) {
    const size_t k = std::min(static_cast<size_t>(params.top_k), logits.size());
    extend_sorted(order, 0, k, before);
    order.resize(k);
    for (const int32_t id : order) {
      weight.push_back(weight_of(logits[static_cast<size_t>(id)], most, temperature));
      total += weight.back();
    }
  } else {
    for (const float x : logits) total += weight_of(x, most, temperature);
  }
  if (!by_mass) return;
  const double target = static_cast<double>(params.top_p) * total;
  double sum = 0.0;
  size_t kept = 0, sorted = params.top_k > 0 ? order.size() : 0;
  while (kept < order.size() && (kept == 0 || sum < target)) {
    if (kept == sorted) {
      const size_t want = std::min(order.size(), sorted == 0 ? kTopPFirst : sorted * kTopPGrowth);
      extend_sorted(order, sorted, want, before);
      sorted = want;
    }
    if (kept == weight.size()) {
      weight.push_back(weight_of(logits[static_cast<size_t>(order[kept])], most, temperature));
    }
    sum += weight[kept++];
  }
  order.resize(kept);
  weight.resize(kept);
}

}  // namespace

void adjust_logits(std::span<float> logits, const SamplingParams& params, const TokenCounts& counts,
                   uint32_t generated) {
  for (const auto& [id, value] : params.bias) logits[static_cast<size_t>(id)] += value;
  if (params.penalises()) {
    const float repetition = params.repetition_penalty;
    for (const auto& [id, n] : counts.output_count()) {
      float& x = logits[static_cast<size_t>(id)];
      if (repetition != 1.0f) x = x > 0.0f ? x / repetition : x * repetition;
      if (n > 0) {
        x -= params.frequency_penalty * static_cast<float>(n);
        x -= params.presence_penalty;
      }
      if (x > kLargest) x = kLargest;  // a tiny repetition penalty must not make an infinity
    }
  }
  if (generated < params.min_tokens) {
    for (const int32_t id : params.stop_ids) logits[static_cast<size_t>(id)] = -kInfinity;
  }
}

Result<int32_t> sample_token(std::span<float> logits, const SamplingParams& params,
                             const TokenCounts& counts, SamplePoint point, SampleScratch* scratch) {
  WEFT_ASSIGN(float most, largest_logit(logits));
  if (!params.bias.empty() || params.penalises() || point.generated < params.min_tokens) {
    adjust_logits(logits, params, counts, point.generated);
    WEFT_ASSIGN(most, largest_logit(logits));
  }
  if (params.temperature <= 0.0f) return greedy(logits, most);
  const double u = uniform_at(params.seed, point.position, RandomStream::kSample);
  if (params.top_k > 0 || params.top_p < 1.0f) {
    keep_best(logits, params, most, scratch);
    if (params.min_p > 0.0f) {  // weights fall, the first is 1: min-p keeps a prefix
      size_t kept = 1;
      while (kept < scratch->weight.size() && scratch->weight[kept] >= params.min_p) ++kept;
      scratch->order.resize(kept);
      scratch->weight.resize(kept);
    }
    return draw(scratch->order, scratch->weight, u);
  }
  scratch->order.clear();
  scratch->weight.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const double w = weight_of(logits[i], most, params.temperature);
    if (w < params.min_p) continue;
    scratch->order.push_back(static_cast<int32_t>(i));
    scratch->weight.push_back(w);
  }
  return draw(scratch->order, scratch->weight, u);
}

Result<double> log_normaliser(std::span<const float> logits) {
  WEFT_ASSIGN(const double most, largest_logit(logits));
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - most);
  return most + std::log(sum);
}

void top_logprobs(std::span<const float> logits, double normaliser, int32_t n,
                  std::vector<TopLogprob>* out) {
  out->clear();
  const size_t want = std::min(static_cast<size_t>(std::max(n, 0)), logits.size());
  if (want == 0) return;
  // A heap of the best `want` so far with the worst on top; most tokens fail one comparison.
  const Before before{logits.data()};
  int32_t best[kTopLogprobsMax];
  WEFT_CHECK(want <= static_cast<size_t>(kTopLogprobsMax));
  for (size_t i = 0; i < want; ++i) best[i] = static_cast<int32_t>(i);
  std::make_heap(best, best + want, before);
  for (size_t i = want; i < logits.size(); ++i) {
    if (!before(static_cast<int32_t>(i), best[0])) continue;
    std::pop_heap(best, best + want, before);
    best[want - 1] = static_cast<int32_t>(i);
    std::push_heap(best, best + want, before);
  }
  std::sort_heap(best, best + want, before);
  for (size_t i = 0; i < want; ++i) {
    out->push_back({best[i], logprob_of(logits, normaliser, best[i])});
  }
}

}  // namespace weft::engine
