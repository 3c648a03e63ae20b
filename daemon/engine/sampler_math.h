// The two passes over a whole row of logits that sampling needs: where the large ones are, and what
// they weigh.
//
// Results are the same bits on every machine: the exponential is computed here with plain double
// multiplications and additions (never fused), and sums have a fixed order. What the CPU offers
// only decides how many are computed at a time. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <span>

namespace weft::engine {

// Logits per entry of ScanResult's block maxima.
inline constexpr size_t kScanBlock = 64;
// Most logits of one exp_weights call.
inline constexpr size_t kWeightBlock = 512;

struct ScanResult {
  float most = 0.0f;  // -inf when every logit is
  bool bad = false;   // a logit is NaN or +inf
};
// `block_most` (or NULL) gets the largest of every kScanBlock logits.
ScanResult scan_logits(std::span<const float> logits, float* block_most);

// out[i] = exp((x[i] - most) * inverse_temperature) for x[i] <= most, 0 where that is below `floor`
// or below 1e-307; exactly 1 for x[i] == most.
void exp_weights(std::span<const float> x, double most, double inverse_temperature, double floor,
                 double* out);

// Sum in four interleaved parts.
double sum_weights(std::span<const double> weight);

}  // namespace weft::engine
