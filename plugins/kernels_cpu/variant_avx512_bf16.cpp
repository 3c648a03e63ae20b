// Matrix products by AVX512-BF16 dot products. This file alone is compiled with the matching target
// flags (plugins/CMakeLists.txt); see variant_avx512.cpp for what it may include. Ops that are not
// here run in the avx512 variant.
#include "fast.h"

#if defined(__x86_64__)

#include "moe_groups.h"
#include "numeric.h"
#include "pages.h"
#include "panels.h"
#include "team.h"
#include "vec_avx512.h"

namespace weft::kernels_cpu::avx512_bf16 {
namespace {
#include "fast_math.inl"
}  // namespace
// later files use earlier ones
// clang-format off
#include "bf16_core.inl"
#include "bf16_tiles.inl"
#include "int8_tiles.inl"
#include "bf16_gemm.inl"
#include "bf16_moe.inl"
#include "bf16_mla.inl"
#include "bf16_mla_decode.inl"
#include "bf16_mla_prefill.inl"
// clang-format on
}  // namespace weft::kernels_cpu::avx512_bf16

#endif
