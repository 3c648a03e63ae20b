#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "engine/rng.h"
#include "engine/sampler_math.h"

namespace weft::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// Largest logit; kInternal unless all are finite or -inf and one is finite.
Result<float> largest_logit(std::span<const float> logits, std::vector<float>* block_most) {
  if (block_most != nullptr) block_most->resize((logits.size() + kScanBlock - 1) / kScanBlock);
  const ScanResult scan = scan_logits(logits, block_most != nullptr ? block_most->data() : nullptr);
  if (scan.bad) {
    return Error(ErrorCode::kInternal, "the model produced a logit that is NaN or infinite");
  }
  if (scan.most == -kInfinity) {
    return Error(ErrorCode::kInternal, "no token is left to sample: every logit is minus infinity");
  }
  return scan.most;
}

struct Before {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

// Calls body(first id, logits) for consecutive pieces of the row.
template <class Body>
void over_pieces(std::span<const float> logits, size_t size, const Body& body) {
  for (size_t at = 0; at < logits.size(); at += size) {
    body(at, logits.subspan(at, std::min(size, logits.size() - at)));
  }
}

// What one call works with.
struct Row {
  std::span<const float> logits;
  double most, inverse_temperature, min_p;
  SampleScratch* scratch;

  // Those below `floor` count as 0.
  void weigh(std::span<const float> piece, double floor, double* out) const {
    exp_weights(piece, most, inverse_temperature, floor, out);
  }
  // The largest of the logits at .. at+kWeightBlock-1.
  float piece_most(size_t at) const {
    const auto first = scratch->block_most.begin() + static_cast<ptrdiff_t>(at / kScanBlock);
    const auto left = scratch->block_most.end() - first;
    constexpr ptrdiff_t kBlocks = kWeightBlock / kScanBlock;
    return *std::max_element(first, first + std::min(left, kBlocks));
  }
};

int32_t greedy(std::span<const float> logits, float most, const std::vector<float>& block_most) {
  size_t block = 0;
  while (block_most[block] != most) ++block;
  const auto first = logits.begin() + static_cast<ptrdiff_t>(block * kScanBlock);
  return static_cast<int32_t>(std::find(first, logits.end(), most) - logits.begin());
}

// The first candidate whose running sum exceeds `target`; the last with any weight when rounding
// leaves none, -1 when none has.
template <class IdOf>
int32_t pick(std::span<const double> weight, double sum, double target, const IdOf& id_of) {
  int32_t last = -1;
  for (size_t i = 0; i < weight.size(); ++i) {
    if (weight[i] == 0.0) continue;
    last = id_of(i);
    sum += weight[i];
    if (target < sum) return last;
  }
  return last;
}

// The part that `target` falls into when parts are laid end to end, and what lies before it. The
// last part with any mass when rounding leaves target at the end.
struct Spot {
  size_t part = 0;
  double before = 0.0;
};
Spot locate(std::span<const double> mass, double target) {
  Spot spot;
  double sum = 0.0;
  for (size_t i = 0; i < mass.size(); ++i) {
    if (mass[i] == 0.0) continue;
    spot = {i, sum};
    sum += mass[i];
    if (target < sum) break;
  }
  return spot;
}

// Draws from the whole row, ids ascending: sums of pieces first, then the piece that u falls into.
int32_t draw_from_row(const Row& row, double u) {
  double weight[kWeightBlock];
  std::vector<double>& mass = row.scratch->mass;
  mass.clear();
  double total = 0.0;
  over_pieces(row.logits, kWeightBlock, [&](size_t at, std::span<const float> piece) {
    mass.push_back(0.0);
    if (row.min_p > 0.0) {  // most pieces hold nothing that min-p keeps
      const float most = row.piece_most(at);
      row.weigh({&most, 1}, row.min_p, weight);
      if (weight[0] == 0.0) return;
    }
    row.weigh(piece, row.min_p, weight);
    mass.back() = sum_weights({weight, piece.size()});
    total += mass.back();
  });
  const Spot spot = locate(mass, u * total);
  const size_t at = spot.part * kWeightBlock;
  const auto piece = row.logits.subspan(at, std::min(kWeightBlock, row.logits.size() - at));
  row.weigh(piece, row.min_p, weight);
  return pick({weight, piece.size()}, spot.before, u * total,
              [&](size_t i) { return static_cast<int32_t>(at + i); });
}

// Weights of scratch->order, in its order.
void weigh_order(const Row& row) {
  std::vector<int32_t>& order = row.scratch->order;
  std::vector<double>& weight = row.scratch->weight;
  weight.resize(order.size());
  float logits[kWeightBlock];
  for (size_t at = 0; at < order.size(); at += kWeightBlock) {
    const size_t n = std::min(kWeightBlock, order.size() - at);
    for (size_t i = 0; i < n; ++i) logits[i] = row.logits[static_cast<size_t>(order[at + i])];
    row.weigh({logits, n}, 0.0, weight.data() + at);
  }
}

// scratch->order becomes the k best, best first. Each of the k largest blocks holds a logit that is
// at least the smallest of their maxima, so nothing below that can be among the k best.
void keep_top_k(const Row& row, size_t k) {
  const std::vector<float>& block_most = row.scratch->block_most;
  std::vector<int32_t>& order = row.scratch->order;
  float least = -kInfinity;
  if (k <= block_most.size()) {
    std::vector<float>& level = row.scratch->level;
    level = block_most;
    const auto kth = level.begin() + static_cast<ptrdiff_t>(k - 1);
    std::nth_element(level.begin(), kth, level.end(), std::greater<>());
    least = *kth;
  }
  order.clear();
  over_pieces(row.logits, kScanBlock, [&](size_t at, std::span<const float> piece) {
    if (block_most[at / kScanBlock] < least) return;
    for (size_t i = 0; i < piece.size(); ++i) {
      if (piece[i] >= least) order.push_back(static_cast<int32_t>(at + i));
    }
  });
  const Before before{row.logits.data()};
  if (order.size() > k) {
    std::nth_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(k), order.end(), before);
    order.resize(k);
  }
  std::sort(order.begin(), order.end(), before);
}

int32_t draw_from_top_k(const Row& row, const SamplingParams& params, double u) {
  keep_top_k(row, std::min(static_cast<size_t>(params.top_k), row.logits.size()));
  weigh_order(row);
  const std::vector<double>& weight = row.scratch->weight;
  double total = 0.0;
  for (const double w : weight) total += w;
  size_t kept = weight.size();
  if (params.top_p < 1.0f) {
    double sum = 0.0;
    for (kept = 0; kept < weight.size(); ++kept) {
      if (kept > 0 && sum >= static_cast<double>(params.top_p) * total) break;
      sum += weight[kept];
    }
  }
  while (kept > 1 && weight[kept - 1] < row.min_p) --kept;  // weights fall: a prefix stays
  total = 0.0;
  for (size_t i = 0; i < kept; ++i) total += weight[i];
  const int32_t id =
      pick({weight.data(), kept}, 0.0, u * total, [&](size_t i) { return row.scratch->order[i]; });
  return id;
}

// top-p over the whole row. Candidates are put into bins by falling logit, so only the bin in which
// the mass is reached and the one that u falls into have to be sorted.
class MassDraw {
 public:
  MassDraw(const Row& row, double top_p) : row_(row), mass_(row.scratch->mass) {
    mass_.assign(2 * kBins, 0.0);
    double weight[kWeightBlock];
    over_pieces(row_.logits, kWeightBlock, [&](size_t, std::span<const float> piece) {
      row_.weigh(piece, 0.0, weight);
      for (size_t i = 0; i < piece.size(); ++i) {
        const size_t bin = bin_of(piece[i]);
        mass_[bin] += weight[i];
        if (weight[i] >= row_.min_p) mass_[kBins + bin] += weight[i];
      }
    });
    double total = 0.0;
    for (size_t b = 0; b < kBins; ++b) total += mass_[b];
    cut(top_p * total);
  }

  int32_t draw(double u) {
    const std::span<const double> kept(mass_.data() + kBins, last_bin_ + 1);
    double total = 0.0;
    for (const double mass : kept) total += mass;
    const Spot spot = locate(kept, u * total);
    sort_bin(spot.part);
    const std::vector<double>& weight = row_.scratch->weight;
    const size_t n = spot.part == last_bin_ ? last_kept_ : weight.size();
    return pick({weight.data(), n}, spot.before, u * total,
                [&](size_t i) { return row_.scratch->order[i]; });
  }

 private:
  static constexpr size_t kBins = 3073;  // the last one holds everything below e^-48
  static constexpr double kPerUnit = 64.0;

  size_t bin_of(float logit) const {
    const double depth =
        (row_.most - static_cast<double>(logit)) * row_.inverse_temperature * kPerUnit;
    return static_cast<size_t>(std::min(depth, static_cast<double>(kBins - 1)));
  }

  // The bin's candidates, best first, with their weights; those below min_p weigh 0.
  void sort_bin(size_t bin) {
    std::vector<int32_t>& order = row_.scratch->order;
    order.clear();
    over_pieces(row_.logits, kScanBlock, [&](size_t at, std::span<const float> piece) {
      if (bin_of(row_.scratch->block_most[at / kScanBlock]) > bin) return;
      for (size_t i = 0; i < piece.size(); ++i) {
        if (bin_of(piece[i]) == bin) order.push_back(static_cast<int32_t>(at + i));
      }
    });
    std::sort(order.begin(), order.end(), Before{row_.logits.data()});
    weigh_order(row_);
    for (double& w : row_.scratch->weight) w = w < row_.min_p ? 0.0 : w;
  }

  // Finds the last bin and how many of its best are kept; its kept mass replaces its mass.
  void cut(double target) {
    double sum = 0.0;
    for (size_t b = 0; b < kBins; ++b) {
      if (mass_[b] == 0.0) continue;
      last_bin_ = b;
      if (sum + mass_[b] >= target) break;
      sum += mass_[b];
    }
    if (sum + mass_[last_bin_] < target) sum -= mass_[last_bin_];  // rounding: keep all of the last
    sort_bin(last_bin_);
    const std::vector<double>& weight = row_.scratch->weight;
    double kept = 0.0;
    for (last_kept_ = 0; last_kept_ < weight.size(); ++last_kept_) {
      if (last_kept_ > 0 && sum >= target) break;
      const float logit = row_.logits[static_cast<size_t>(row_.scratch->order[last_kept_])];
      double all = 0.0;
      row_.weigh({&logit, 1}, 0.0, &all);
      sum += all;
      kept += weight[last_kept_];
    }
    mass_[kBins + last_bin_] = kept;
  }

  const Row& row_;
  std::vector<double>& mass_;  // per bin: all, then those of at least min_p
  size_t last_bin_ = 0;
  size_t last_kept_ = 0;
};

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
  WEFT_ASSIGN(float most, largest_logit(logits, &scratch->block_most));
  if (!params.bias.empty() || params.penalises() || point.generated < params.min_tokens) {
    adjust_logits(logits, params, counts, point.generated);
    WEFT_ASSIGN(most, largest_logit(logits, &scratch->block_most));
  }
  if (params.temperature <= 0.0f) return greedy(logits, most, scratch->block_most);
  const double u = uniform_at(params.seed, point.position, RandomStream::kSample);
  const Row row{logits, most, 1.0 / static_cast<double>(params.temperature),
                std::min(static_cast<double>(params.min_p), 1.0), scratch};
  if (params.top_k > 0) return draw_from_top_k(row, params, u);
  if (params.top_p < 1.0f) return MassDraw(row, params.top_p).draw(u);
  return draw_from_row(row, u);
}

Result<double> log_normaliser(std::span<const float> logits) {
  WEFT_ASSIGN(const double most, largest_logit(logits, nullptr));
  double sum = 0.0, weight[kWeightBlock];
  over_pieces(logits, kWeightBlock, [&](size_t, std::span<const float> piece) {
    exp_weights(piece, most, 1.0, 0.0, weight);
    sum += sum_weights({weight, piece.size()});
  });
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
