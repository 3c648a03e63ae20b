#include "bench/peaks.h"

#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace weft::bench {
namespace {

float sum_of(const float* values, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += values[i];
  return sum;
}

// For other CPUs: what the compiler makes of plain loops, an honest lower bound.
float f32_plain(uint64_t rounds) {
  float a[64];
  for (int i = 0; i < 64; ++i) a[i] = static_cast<float>(i);
  for (uint64_t r = 0; r < rounds; ++r) {
    for (float& x : a) x = x * 0.999f + 0.001f;
  }
  return sum_of(a, 64);
}

uint64_t read_plain(const void* begin, uint64_t bytes) {
  const auto* p = static_cast<const uint64_t*>(begin);
  uint64_t sums[8] = {};
  for (uint64_t i = 0; i < bytes / 8; i += 8) {
    for (uint64_t j = 0; j < 8; ++j) sums[j] ^= p[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum ^= s;
  return sum;
}

#if defined(__x86_64__)

// Sixteen independent chains cover the latency of every multiply-add of today's CPUs. The empty asm
// hides that they start alike: a compiler that saw it would compute one chain for all.
#define WEFT_SIXTEEN(X) \
  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

__attribute__((target("avx2,fma"))) float f32_avx2(uint64_t rounds) {
  __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
#define WEFT_STEP(i) \
  __m256 a##i = y;   \
  asm("" : "+x"(a##i));
  WEFT_STEP(0)
  WEFT_STEP(1)
  WEFT_STEP(2)
  WEFT_STEP(3)
  WEFT_STEP(4)
  WEFT_STEP(5)
  WEFT_STEP(6)
  WEFT_STEP(7)
  WEFT_STEP(8)
  WEFT_STEP(9)
  WEFT_STEP(10) WEFT_STEP(11) WEFT_STEP(12) WEFT_STEP(13)
#undef WEFT_STEP
      for (uint64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+x"(x), "+x"(y));
#define WEFT_STEP(i) a##i = _mm256_fmadd_ps(a##i, x, y);
    WEFT_STEP(0)
    WEFT_STEP(1)
    WEFT_STEP(2)
    WEFT_STEP(3)
    WEFT_STEP(4)
    WEFT_STEP(5)
    WEFT_STEP(6)
    WEFT_STEP(7) WEFT_STEP(8) WEFT_STEP(9) WEFT_STEP(10) WEFT_STEP(11) WEFT_STEP(12) WEFT_STEP(13)
#undef WEFT_STEP
  }
  a0 = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11 + a12 + a13;
  return _mm256_cvtss_f32(a0);
}

__attribute__((target("avx512f"))) float f32_avx512(uint64_t rounds) {
  __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
#define WEFT_STEP(i) \
  __m512 a##i = y;   \
  asm("" : "+v"(a##i));
  WEFT_SIXTEEN(WEFT_STEP)
#undef WEFT_STEP
  for (uint64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+v"(x), "+v"(y));
#define WEFT_STEP(i) a##i = _mm512_fmadd_ps(a##i, x, y);
    WEFT_SIXTEEN(WEFT_STEP)
#undef WEFT_STEP
  }
#define WEFT_STEP(i) y += a##i;
  WEFT_SIXTEEN(WEFT_STEP)
#undef WEFT_STEP
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, y);
  return sum_of(lanes, 16);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) float bf16_avx512(uint64_t rounds) {
  const __m512i one = _mm512_set1_epi32(0x3f803f80);
  __m512i x = one, y = one;
  __m512 sum = _mm512_setzero_ps();
#define WEFT_STEP(i) \
  __m512 a##i = sum; \
  asm("" : "+v"(a##i));
  WEFT_SIXTEEN(WEFT_STEP)
#undef WEFT_STEP
  for (uint64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+v"(x), "+v"(y));
#define WEFT_STEP(i) \
  a##i = _mm512_dpbf16_ps(a##i, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
    WEFT_SIXTEEN(WEFT_STEP)
#undef WEFT_STEP
  }
#define WEFT_STEP(i) sum += a##i;
  WEFT_SIXTEEN(WEFT_STEP)
#undef WEFT_STEP
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, sum);
  return sum_of(lanes, 16);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) float int8_avx512(uint64_t rounds) {
  __m512i x = _mm512_set1_epi8(1), y = x, sum = _mm512_setzero_si512();
#define WEFT_STEP(i)  \
  __m512i a##i = sum; \
  asm("" : "+v"(a##i));
  WEFT_SIXTEEN(WEFT_STEP)
#undef WEFT_STEP
  for (uint64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+v"(x), "+v"(y));
#define WEFT_STEP(i) a##i = _mm512_dpbusd_epi32(a##i, x, y);
    WEFT_SIXTEEN(WEFT_STEP)
#undef WEFT_STEP
  }
#define WEFT_STEP(i) sum = _mm512_add_epi32(sum, a##i);
  WEFT_SIXTEEN(WEFT_STEP)
#undef WEFT_STEP
  alignas(64) int32_t lanes[16];
  _mm512_store_si512(lanes, sum);
  return static_cast<float>(lanes[0]);
}

// Tiles of 16 rows of 64 bytes: four accumulators, two left and two right operands.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

__attribute__((target("amx-tile,amx-bf16"))) float bf16_amx(uint64_t rounds) {
  const TileConfig config;
  alignas(64) float block[16 * 16] = {};
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, block, 64);
  _tile_loadd(5, block, 64);
  _tile_loadd(6, block, 64);
  _tile_loadd(7, block, 64);
  for (uint64_t r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, block, 64);
  _tile_release();
  return block[0];
}

__attribute__((target("amx-tile,amx-int8"))) float int8_amx(uint64_t rounds) {
  const TileConfig config;
  alignas(64) float block[16 * 16] = {};
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, block, 64);
  _tile_loadd(5, block, 64);
  _tile_loadd(6, block, 64);
  _tile_loadd(7, block, 64);
  for (uint64_t r = 0; r < rounds; ++r) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_stored(0, block, 64);
  _tile_release();
  return block[0];
}

// The CPU has tiles and Linux lets this process use them.
bool has_amx(uint32_t bit) {
  constexpr long kRequestPermission = 0x1023;  // arch_prctl ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d >> 24 & 1) == 0 || (d >> bit & 1) == 0) return false;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

__attribute__((target("avx2"))) uint64_t read_avx2(const void* begin, uint64_t bytes) {
  const auto* p = static_cast<const __m256i*>(begin);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (uint64_t i = 0; i < bytes / 32; i += 8) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4096, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4160, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4224, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(p + i) + 4288, _MM_HINT_T0);
    a ^= p[i] ^ p[i + 4];
    b ^= p[i + 1] ^ p[i + 5];
    c ^= p[i + 2] ^ p[i + 6];
    d ^= p[i + 3] ^ p[i + 7];
  }
  a ^= b ^ c ^ d;
  return static_cast<uint64_t>(_mm256_extract_epi64(a, 0) ^ _mm256_extract_epi64(a, 1) ^
                               _mm256_extract_epi64(a, 2) ^ _mm256_extract_epi64(a, 3));
}

__attribute__((target("avx512f"))) uint64_t read_avx512(const void* begin, uint64_t bytes) {
  const auto* p = static_cast<const __m512i*>(begin);
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (uint64_t i = 0; i < bytes / 64; i += 4) {
    for (uint64_t j = 0; j < 4; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(p + i + j) + 4096, _MM_HINT_T0);
    }
    a ^= p[i];
    b ^= p[i + 1];
    c ^= p[i + 2];
    d ^= p[i + 3];
  }
  a ^= b ^ c ^ d;
  alignas(64) uint64_t lanes[8];
  _mm512_store_si512(lanes, a);
  return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3] ^ lanes[4] ^ lanes[5] ^ lanes[6] ^ lanes[7];
}

#endif

}  // namespace

std::vector<ComputeLoop> compute_loops() {
  std::vector<ComputeLoop> out = {{"f32", "plain", 64 * 2, &f32_plain}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    out.push_back({"f32", "avx2", 14 * 8 * 2, &f32_avx2});
  }
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl");
  if (wide) out.push_back({"f32", "avx512", 16 * 16 * 2, &f32_avx512});
  if (wide && __builtin_cpu_supports("avx512bf16")) {
    out.push_back({"bf16", "avx512_bf16", 16 * 32 * 2, &bf16_avx512});
  }
  if (has_amx(22)) out.push_back({"bf16", "amx", 4 * 16 * 16 * 32 * 2, &bf16_amx});
  if (wide && __builtin_cpu_supports("avx512vnni")) {
    out.push_back({"int8", "avx512_vnni", 16 * 64 * 2, &int8_avx512});
  }
  if (has_amx(25)) out.push_back({"int8", "amx", 4 * 16 * 16 * 64 * 2, &int8_amx});
#endif
  return out;
}

ReadLoop read_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return &read_avx512;
  if (__builtin_cpu_supports("avx2")) return &read_avx2;
#endif
  return &read_plain;
}

}  // namespace weft::bench
