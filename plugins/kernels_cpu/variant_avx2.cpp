// The vector variants for AVX2 + FMA + F16C. This file alone is compiled with the matching target
// flags (plugins/CMakeLists.txt): nothing with shared inline symbols (standard library, bind.h,
// check.h) may be included here.
#include "fast.h"

#if defined(__x86_64__)

#include "kda_head.h"
#include "moe_groups.h"
#include "numeric.h"
#include "pages.h"
#include "team.h"
#include "vec_avx2.h"

namespace weft::kernels_cpu::avx2 {
namespace {
#include "fast_math.inl"
}  // namespace
// later files use earlier ones
// clang-format off
#include "fast_rows.inl"
#include "fast_route.inl"
#include "fast_matmul.inl"
#include "fast_kda.inl"
#include "fast_mla.inl"
// clang-format on
}  // namespace weft::kernels_cpu::avx2

#endif
