// Matrix products by AMX tiles (bf16). This file alone is compiled with the matching target flags
// (plugins/CMakeLists.txt); see variant_avx512.cpp for what it may include. Ops that are not here
// run in the variants below.
#include "fast.h"

#if defined(__x86_64__)

#include "moe_groups.h"
#include "numeric.h"
#include "panels.h"
#include "team.h"
#include "vec_avx512.h"

namespace weft::kernels_cpu::amx {
namespace {
#include "fast_math.inl"
}  // namespace
// later files use earlier ones
// clang-format off
#include "bf16_core.inl"
#include "amx_tiles.inl"
#include "bf16_gemm.inl"
#include "bf16_moe.inl"
// clang-format on
}  // namespace weft::kernels_cpu::amx

#endif
