// The AMX kernels over tiles in software, for machines without AMX. Compiled with the AVX-512 flags
// of the kernels (tests/CMakeLists.txt), so like them it includes nothing that leaves shared inline
// symbols behind.
#include "amx_emulated.h"

#if defined(__x86_64__)

#include "moe_groups.h"
#include "numeric.h"
#include "panels.h"
#include "vec_avx512.h"

namespace weft::kernels_cpu::amx_emulated {
namespace {
#include "fast_math.inl"

constexpr uint32_t kRows = 16, kBytes = 64;
struct Tile {
  alignas(64) uint8_t row[kRows][kBytes];
};
thread_local Tile g_tile[8];
thread_local bool g_configured = false;

void tile_config(const void* shapes) {
  const auto* bytes = static_cast<const uint8_t*>(shapes);
  g_configured = bytes[0] == 1;
  for (int t = 0; t < 8; ++t) {
    uint16_t row_bytes;
    memcpy(&row_bytes, bytes + 16 + 2 * t, 2);
    g_configured = g_configured && row_bytes == kBytes && bytes[48 + t] == kRows;
  }
}

void tile_load(int t, const void* base, uint64_t stride) {
  for (uint32_t r = 0; r < kRows; ++r)
    memcpy(g_tile[t].row[r], static_cast<const uint8_t*>(base) + r * stride, kBytes);
}

void tile_store(int t, void* base, uint64_t stride) {
  for (uint32_t r = 0; r < kRows; ++r)
    memcpy(static_cast<uint8_t*>(base) + r * stride, g_tile[t].row[r], kBytes);
}

float bf16_at(const Tile& t, uint32_t row, uint32_t column) {
  uint16_t bits;
  memcpy(&bits, t.row[row] + 2 * column, 2);
  return float_of_bf16(bits);
}

// result[m][n] += sum over pairs of a[m][2k] b[k][2n] + a[m][2k+1] b[k][2n+1]; without
// configuration everything becomes NaN, where the machine would trap.
void tile_dot(int result, int a, int b) {
  for (uint32_t m = 0; m < kRows; ++m)
    for (uint32_t n = 0; n < kBytes / 4; ++n) {
      float sum;
      memcpy(&sum, g_tile[result].row[m] + 4 * n, 4);
      for (uint32_t k = 0; k < kRows; ++k)
        for (uint32_t i = 0; i < 2; ++i)
          sum = __builtin_fmaf(bf16_at(g_tile[a], m, 2 * k + i), bf16_at(g_tile[b], k, 2 * n + i),
                               sum);
      if (!g_configured) sum = float_of_bits(0x7fc00000u);
      memcpy(g_tile[result].row[m] + 4 * n, &sum, 4);
    }
}

}  // namespace

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(shapes) tile_config(shapes)
#define _tile_loadd(t, base, stride) tile_load(t, base, stride)
#define _tile_stored(t, base, stride) tile_store(t, base, stride)
#define _tile_zero(t) (g_tile[t] = Tile{})
#define _tile_dpbf16ps(result, a, b) tile_dot(result, a, b)

// later files use earlier ones
// clang-format off
#include "bf16_core.inl"
#include "amx_tiles.inl"
#include "bf16_gemm.inl"
#include "bf16_moe.inl"
// clang-format on
}  // namespace weft::kernels_cpu::amx_emulated

#endif
