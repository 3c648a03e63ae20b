// Sixteen floats at a time with AVX-512 F, BW, DQ, VL. Same names as vec_avx2.h, so that one source
// serves both. Only for files compiled with the matching flags; internal linkage, see numeric.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "numeric.h"

namespace weft::kernels_cpu {
namespace {

using V = __m512;
constexpr uint32_t kLanes = 16;
// Register tile of the dot kernel: rows x outputs.
constexpr int kTileRows = 4;
constexpr int kTileCols = 4;

inline V zero() { return _mm512_setzero_ps(); }
inline V set(float x) { return _mm512_set1_ps(x); }
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V x) { _mm512_storeu_ps(p, x); }
inline __mmask16 first_lanes(uint32_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
// The first n lanes, n < kLanes; the others read as zero and are not touched in memory.
inline V load_n(const float* p, uint32_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void store_n(float* p, V x, uint32_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }

inline V plus(V a, V b) { return _mm512_add_ps(a, b); }
inline V minus(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V div(V a, V b) { return _mm512_div_ps(a, b); }
inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }    // a*b + c
inline V nfma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a*b
// When x is NaN the result is NaN: the instruction returns its second operand then.
inline V at_most(V x, float limit) { return _mm512_min_ps(set(limit), x); }
inline V at_least(V x, float limit) { return _mm512_max_ps(set(limit), x); }
inline V max(V a, V b) { return _mm512_max_ps(a, b); }
inline V abs(V x) { return _mm512_andnot_ps(set(-0.0f), x); }
inline V with_sign_of(V magnitude, V sign) {
  return _mm512_or_ps(_mm512_andnot_ps(set(-0.0f), magnitude), _mm512_and_ps(set(-0.0f), sign));
}
// a < b ? x : y; false for NaN.
inline V if_less(V a, V b, V x, V y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
// Bit i: a[i] > limit.
inline uint32_t above(V a, float limit) { return _mm512_cmp_ps_mask(a, set(limit), _CMP_GT_OQ); }

inline V round(V x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// x * 2^n for integral n; subnormal results round once.
inline V times_power(V x, V n) { return _mm512_scalef_ps(x, n); }

// 1/x within 2^-23 for 2^-126 <= |x| <= 2^126; NaN stays NaN.
inline V inverse(V x) {
  const V guess = _mm512_rcp14_ps(x);
  return fma(guess, nfma(x, guess, set(1.0f)), guess);
}

// Steps of exp(): n is an integer, held both as a float and, by adding kShifter to it, in the low
// mantissa bits.
constexpr int kExpSteps = 16;
constexpr float kShifter = 12582912.0f;  // 1.5 * 2^23
// 2^(i/16), i the low four bits of n.
inline V step_power(V shifted) {
  const V table = _mm512_setr_ps(1.0f, 1.0442737824f, 1.0905077327f, 1.1387886347f, 1.1892071150f,
                                 1.2418578121f, 1.2968395547f, 1.3542555469f, 1.4142135624f,
                                 1.4768261459f, 1.5422108254f, 1.6104903319f, 1.6817928305f,
                                 1.7562521604f, 1.8340080864f, 1.9152065614f);
  return _mm512_permutexvar_ps(_mm512_castps_si512(shifted), table);
}
// x * 2^floor(n/16) for any n.
inline V times_steps(V x, V n) { return _mm512_scalef_ps(x, mul(n, set(0.0625f))); }
// 2^(n/16) where it is a normal number: the four low bits of n also land in the mantissa when n is
// moved to the exponent, so the table has them subtracted.
inline V power_of_steps(V shifted) {
  const __m512i table =
      _mm512_setr_epi32(0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532,
                        0x3f75fed7, 0x3f75583f, 0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c,
                        0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d);
  const __m512i n = _mm512_castps_si512(shifted);
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_permutexvar_epi32(n, table), _mm512_slli_epi32(n, 19)));
}

// x[i] lane j becomes x[j] lane i.
inline void transpose(V (&x)[kLanes]) {
  V t[kLanes];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int h = 0; h < 2; ++h) {
      x[i + 2 * h] = _mm512_shuffle_ps(t[i + h], t[i + h + 2], 0x44);
      x[i + 2 * h + 1] = _mm512_shuffle_ps(t[i + h], t[i + h + 2], 0xee);
    }
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0x88);
      t[i + j + 4] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0xdd);
    }
  for (int i = 0; i < 8; ++i) {
    x[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
  }
}

// Fixed tree: halves, quarters, neighbours.
inline float sum(V x) {
  const __m256 quarter = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(quarter), _mm256_extractf128_ps(quarter, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  half = _mm_add_ss(half, _mm_shuffle_ps(half, half, 1));
  return _mm_cvtss_f32(half);
}

inline V widen_bf16(__m256i raw) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}
inline V load_bf16(const uint16_t* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline V load_bf16_n(const uint16_t* p, uint32_t n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}

// kLanes values from kLanes/2 bytes of MXFP4, times twice `half_scale`.
inline V load_mxfp4(const uint8_t* p, V half_scale) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(bytes, mask);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  const __m512i codes = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high));
  const V table = _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12);
  return mul(_mm512_permutexvar_ps(codes, table), half_scale);
}

// Lane numbers of a permutation; of two vectors, 16 and up stand for the second.
struct LaneList {
  int32_t at[kLanes];
};
template <class Pick>
constexpr LaneList lane_list(const Pick& pick) {
  LaneList out{};
  for (int i = 0; i < 16; ++i) out.at[i] = pick(i);
  return out;
}
inline __m512i lanes_of(const LaneList& list) { return _mm512_loadu_si512(list.at); }

// 16 groups of `count` neighbouring floats become `count` rows of 16. False: not this count.
inline bool split_whole(const float* p, uint32_t count, float* out) {
  if (count == 3) {
    static constexpr LaneList kFrom[3] = {lane_list([](int i) { return 3 * i % 32; }),
                                          lane_list([](int i) { return (3 * i + 1) % 32; }),
                                          lane_list([](int i) { return (3 * i + 2) % 32; })};
    static constexpr LaneList kLast[3] = {lane_list([](int i) { return 3 * i & 15; }),
                                          lane_list([](int i) { return (3 * i + 1) & 15; }),
                                          lane_list([](int i) { return (3 * i + 2) & 15; })};
    const V a = load(p), b = load(p + 16), c = load(p + 32);
    constexpr __mmask16 kThird[3] = {0xf800, 0xf800, 0xfc00};  // 3 i + j >= 32
    for (int j = 0; j < 3; ++j) {
      const V two = _mm512_permutex2var_ps(a, lanes_of(kFrom[j]), b);
      store(out + j * 16, _mm512_mask_permutexvar_ps(two, kThird[j], lanes_of(kLast[j]), c));
    }
    return true;
  }
  if (count != 4) return false;
  static constexpr LaneList kFourth[4] = {lane_list([](int i) { return (4 * i) & 31; }),
                                          lane_list([](int i) { return (4 * i + 1) & 31; }),
                                          lane_list([](int i) { return (4 * i + 2) & 31; }),
                                          lane_list([](int i) { return (4 * i + 3) & 31; })};
  const V a = load(p), b = load(p + 16), c = load(p + 32), d = load(p + 48);
  for (int j = 0; j < 4; ++j) {
    const V low = _mm512_permutex2var_ps(a, lanes_of(kFourth[j]), b);
    const V high = _mm512_permutex2var_ps(c, lanes_of(kFourth[j]), d);
    store(out + j * 16, _mm512_mask_blend_ps(0xff00, low, high));
  }
  return true;
}
// The way back, for groups of three.
inline bool join_whole(const float* in, uint32_t count, float* p) {
  if (count != 3) return false;
  // Float f of the result is element f % 3 of group f / 3; rows 0 and 1 come first, row 2 is put in
  // between.
  static constexpr LaneList kPair[3] = {
      lane_list([](int i) { return i / 3 + i % 3 % 2 * 16; }),
      lane_list([](int i) { return (i + 16) / 3 + (i + 16) % 3 % 2 * 16; }),
      lane_list([](int i) { return (i + 32) / 3 + (i + 32) % 3 % 2 * 16; })};
  constexpr __mmask16 kOdd[3] = {0x4924, 0x2492, 0x9249};  // f % 3 == 2
  const V a = load(in), b = load(in + 16), c = load(in + 32);
  for (int j = 0; j < 3; ++j) {
    const V two = _mm512_permutex2var_ps(a, lanes_of(kPair[j]), b);
    store(p + j * 16, _mm512_mask_permutexvar_ps(two, kOdd[j], lanes_of(kPair[j]), c));
  }
  return true;
}

}  // namespace
}  // namespace weft::kernels_cpu
