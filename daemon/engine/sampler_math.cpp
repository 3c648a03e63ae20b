#include "engine/sampler_math.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

namespace weft::engine {
namespace {

// Vectors of the compiler's own kind: one register with AVX2, several otherwise.
using Floats = float __attribute__((vector_size(32)));
using Masks = int32_t __attribute__((vector_size(32)));
using FourFloats = float __attribute__((vector_size(16)));
using Doubles = double __attribute__((vector_size(32)));
using Words = int64_t __attribute__((vector_size(32)));
constexpr size_t kFloats = 8;
constexpr size_t kDoubles = 4;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

#define WEFT_BODY [[gnu::always_inline]] inline

WEFT_BODY void scan_body(const float* x, size_t n, float* block_most, ScanResult* out) {
  Masks good = {-1, -1, -1, -1, -1, -1, -1, -1};
  float most = -kInfinity;
  for (size_t at = 0; at < n; at += kScanBlock) {
    const size_t count = std::min(kScanBlock, n - at);
    Floats best;
    for (size_t j = 0; j < kFloats; ++j) best[j] = -kInfinity;
    size_t i = 0;
    for (; i + kFloats <= count; i += kFloats) {
      Floats v;
      std::memcpy(&v, x + at + i, sizeof v);
      good &= v <= kLargest;
      best = v > best ? v : best;
    }
    float block = -kInfinity;
    for (size_t j = 0; j < kFloats; ++j) block = best[j] > block ? best[j] : block;
    for (; i < count; ++i) {
      out->bad |= !(x[at + i] <= kLargest);
      block = x[at + i] > block ? x[at + i] : block;
    }
    if (block_most != nullptr) block_most[at / kScanBlock] = block;
    most = block > most ? block : most;
  }
  for (size_t j = 0; j < kFloats; ++j) out->bad |= good[j] == 0;
  out->most = most;
}

// 1/k! for k = 11 .. 1.
constexpr double kFactorials[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                  1.0 / 5040,     1.0 / 720,     1.0 / 120,    1.0 / 24,
                                  1.0 / 6,        1.0 / 2,       1.0};

struct WeightArgs {
  double most, inverse_temperature, floor;
};

// Four weights. e^y = 2^n e^r with n the nearest integer to y/ln 2: relative error below 1e-14.
WEFT_BODY void weigh(const float* x, const WeightArgs& args, double* out) {
  FourFloats logit;
  std::memcpy(&logit, x, sizeof logit);
  const Doubles raw =
      (__builtin_convertvector(logit, Doubles) - args.most) * args.inverse_temperature;
  constexpr double kLowest = -706.0;  // e^-706 is still a normal number
  const Words counts = raw >= kLowest;
  const Doubles lowest = {kLowest, kLowest, kLowest, kLowest};
  const Doubles y = counts ? raw : lowest;
  constexpr double kShifter = 6755399441055744.0;  // 1.5 * 2^52: leaves n in the low bits
  const Doubles shifted = y * 1.4426950408889634 + kShifter;
  const Doubles n = shifted - kShifter;
  // ln 2 in two parts, the first with 21 zero bits at its end: n times it is exact.
  const Doubles r = (y - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
  Doubles p = r * kFactorials[0] + kFactorials[1];
#pragma GCC unroll 16
  for (size_t k = 2; k < std::size(kFactorials); ++k) p = p * r + kFactorials[k];
  p = p * r + 1.0;
  Words bits, power;
  std::memcpy(&bits, &p, sizeof bits);
  std::memcpy(&power, &shifted, sizeof power);
  bits += power << 52;
  std::memcpy(&p, &bits, sizeof p);
  const Words kept = counts & (p >= args.floor);
  std::memcpy(&bits, &p, sizeof bits);
  bits &= kept;
  std::memcpy(out, &bits, sizeof bits);
}

WEFT_BODY void weights_body(const float* x, size_t n, const WeightArgs& args, double* out) {
  size_t i = 0;
  for (; i + kDoubles <= n; i += kDoubles) weigh(x + i, args, out + i);
  if (i == n) return;
  float last[kDoubles];
  double weights[kDoubles];
  for (size_t j = 0; j < kDoubles; ++j) last[j] = i + j < n ? x[i + j] : -kInfinity;
  weigh(last, args, weights);
  std::copy(weights, weights + (n - i), out + i);
}

using Scan = void (*)(const float*, size_t, float*, ScanResult*);
using Weights = void (*)(const float*, size_t, const WeightArgs&, double*);
struct Table {
  Scan scan;
  Weights weights;
};

void scan_plain(const float* x, size_t n, float* block_most, ScanResult* out) {
  scan_body(x, n, block_most, out);
}
void weights_plain(const float* x, size_t n, const WeightArgs& args, double* out) {
  weights_body(x, n, args, out);
}
#if defined(__x86_64__)
// AVX2 without FMA: a fused multiply-add would round differently.
__attribute__((target("avx2"))) void scan_avx2(const float* x, size_t n, float* block_most,
                                               ScanResult* out) {
  scan_body(x, n, block_most, out);
}
__attribute__((target("avx2"))) void weights_avx2(const float* x, size_t n, const WeightArgs& args,
                                                  double* out) {
  weights_body(x, n, args, out);
}
#endif

const Table& table() {
  static const Table chosen = [] {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return Table{scan_avx2, weights_avx2};
#endif
    return Table{scan_plain, weights_plain};
  }();
  return chosen;
}

}  // namespace

ScanResult scan_logits(std::span<const float> logits, float* block_most) {
  ScanResult out;
  table().scan(logits.data(), logits.size(), block_most, &out);
  return out;
}

void exp_weights(std::span<const float> x, double most, double inverse_temperature, double floor,
                 double* out) {
  table().weights(x.data(), x.size(), {most, inverse_temperature, floor}, out);
}

double sum_weights(std::span<const double> weight) {
  double part[4] = {};
  size_t i = 0;
  for (; i + 4 <= weight.size(); i += 4)
    for (size_t j = 0; j < 4; ++j) part[j] += weight[i + j];
  for (size_t j = 0; i < weight.size(); ++i, ++j) part[j] += weight[i];
  return (part[0] + part[1]) + (part[2] + part[3]);
}

}  // namespace weft::engine
