// Eight floats at a time with AVX2, FMA and F16C. Same names as vec_avx512.h, so that one source
// serves both. Only for files compiled with the matching flags; internal linkage, see numeric.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "numeric.h"

namespace weft::kernels_cpu {
namespace {

using V = __m256;
constexpr uint32_t kLanes = 8;
// Register tile of the dot kernel: rows x outputs.
constexpr int kTileRows = 4;
constexpr int kTileCols = 2;

inline V zero() { return _mm256_setzero_ps(); }
inline V set(float x) { return _mm256_set1_ps(x); }
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, V x) { _mm256_storeu_ps(p, x); }
inline __m256i first_lanes(uint32_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first n lanes, n < kLanes; the others read as zero and are not touched in memory.
inline V load_n(const float* p, uint32_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
inline void store_n(float* p, V x, uint32_t n) { _mm256_maskstore_ps(p, first_lanes(n), x); }

inline V plus(V a, V b) { return _mm256_add_ps(a, b); }
inline V minus(V a, V b) { return _mm256_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V div(V a, V b) { return _mm256_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }    // a*b + c
inline V nfma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a*b
// When x is NaN the result is NaN: the instruction returns its second operand then.
inline V at_most(V x, float limit) { return _mm256_min_ps(set(limit), x); }
inline V at_least(V x, float limit) { return _mm256_max_ps(set(limit), x); }
inline V max(V a, V b) { return _mm256_max_ps(a, b); }
inline V abs(V x) { return _mm256_andnot_ps(set(-0.0f), x); }
inline V with_sign_of(V magnitude, V sign) {
  return _mm256_or_ps(_mm256_andnot_ps(set(-0.0f), magnitude), _mm256_and_ps(set(-0.0f), sign));
}
// a < b ? x : y; false for NaN.
inline V if_less(V a, V b, V x, V y) {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
// Bit i: a[i] > limit.
inline uint32_t above(V a, float limit) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, set(limit), _CMP_GT_OQ)));
}

inline V round(V x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// x * 2^n for integral n in -150..129, in two steps so that subnormal results round once at the
// end.
inline V times_power(V x, V n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256i bias = _mm256_set1_epi32(127);
  const V a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const V b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return mul(mul(x, a), b);
}

// 1/x; the counterpart in vec_avx512.h says what callers may pass.
inline V inverse(V x) { return div(set(1.0f), x); }

// Steps of exp(): n is an integer, held both as a float and, by adding kShifter to it, in the low
// mantissa bits.
constexpr int kExpSteps = 8;
constexpr float kShifter = 12582912.0f;  // 1.5 * 2^23
// 2^(i/8), i the low three bits of n.
inline V step_power(V shifted) {
  const V table = _mm256_setr_ps(1.0f, 1.0905077327f, 1.1892071150f, 1.2968395547f, 1.4142135624f,
                                 1.5422108254f, 1.6817928305f, 1.8340080864f);
  return _mm256_permutevar8x32_ps(table, _mm256_castps_si256(shifted));
}
// x * 2^floor(n/8) for any n.
inline V times_steps(V x, V n) { return times_power(x, _mm256_floor_ps(mul(n, set(0.125f)))); }
// 2^(n/8) where it is a normal number; vec_avx512.h explains.
inline V power_of_steps(V shifted) {
  const __m256i table = _mm256_setr_epi32(0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7,
                                          0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7);
  const __m256i n = _mm256_castps_si256(shifted);
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_permutevar8x32_epi32(table, n), _mm256_slli_epi32(n, 20)));
}

// x[i] lane j becomes x[j] lane i.
inline void transpose(V (&x)[kLanes]) {
  V t[kLanes];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int h = 0; h < 2; ++h) {
      x[i + 2 * h] = _mm256_shuffle_ps(t[i + h], t[i + h + 2], 0x44);
      x[i + 2 * h + 1] = _mm256_shuffle_ps(t[i + h], t[i + h + 2], 0xee);
    }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) x[i] = t[i];
}

// Fixed tree: halves, quarters, neighbours.
inline float sum(V x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  half = _mm_add_ss(half, _mm_shuffle_ps(half, half, 1));
  return _mm_cvtss_f32(half);
}

inline V load_bf16(const uint16_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
inline V load_bf16_n(const uint16_t* p, uint32_t n) {
  uint16_t copy[kLanes] = {};
  memcpy(copy, p, n * sizeof(uint16_t));
  return load_bf16(copy);
}

// kLanes values from kLanes/2 bytes of MXFP4, times twice `half_scale`.
inline V load_mxfp4(const uint8_t* p, V half_scale) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  const __m128i bytes = _mm_cvtsi32_si128(four);
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(bytes, mask);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  const __m128i codes = _mm_unpacklo_epi8(low, high);
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kE2m1Twice));
  const __m256i wide = _mm256_cvtepi8_epi32(_mm_shuffle_epi8(table, codes));
  return mul(_mm256_cvtepi32_ps(wide), half_scale);
}

// Counterparts in vec_avx512.h; here the plain loops serve.
inline bool split_whole(const float*, uint32_t, float*) { return false; }
inline bool join_whole(const float*, uint32_t, float*) { return false; }

}  // namespace
}  // namespace weft::kernels_cpu
