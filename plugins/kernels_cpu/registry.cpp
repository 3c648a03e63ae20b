#include "registry.h"

#include "bind.h"
#include "cpu.h"
#include "fast.h"
#include "ref.h"

namespace weft::kernels_cpu {

namespace {

constexpr weft_kernel ref_embed(uint32_t dtype_w) {
  return kernel<weft_op_embed, ref::embed, no_workspace, kBitsRef>("embed", "ref", WEFT_ISA_ANY,
                                                                   dtype_w, 0);
}
constexpr weft_kernel ref_gemm(uint32_t dtype_w) {
  return kernel<weft_op_gemm, ref::gemm, no_workspace, kBitsRef, &scan, kWeightsAny>(
      "gemm", "ref", WEFT_ISA_ANY, dtype_w, 0);
}
constexpr weft_kernel ref_gemm_group(uint32_t dtype_w) {
  return kernel<weft_op_gemm_group, ref::gemm_group, no_workspace, kBitsRef, &scan, kWeightsAny>(
      "gemm_group", "ref", WEFT_ISA_ANY, dtype_w, 0);
}
constexpr weft_kernel ref_moe(uint32_t dtype_w) {
  return kernel<weft_op_moe, ref::moe, ref::moe_need, kBitsRef, &scan, kWeightsAny>(
      "moe", "ref", WEFT_ISA_ANY, dtype_w, 0);
}
constexpr weft_kernel ref_mla_store(uint32_t dtype_w) {
  return kernel<weft_op_mla_store, ref::mla_store, no_workspace, kBitsRef>(
      "mla_store", "ref", WEFT_ISA_ANY, dtype_w, 0);
}
constexpr weft_kernel ref_mla_decode(uint32_t dtype_w) {
  return kernel<weft_op_mla, ref::mla_decode, ref::mla_decode_need, kBitsRef>(
      "mla_decode", "ref", WEFT_ISA_ANY, dtype_w, 0);
}
constexpr weft_kernel ref_mla_prefill(uint32_t dtype_w) {
  return kernel<weft_op_mla, ref::mla_prefill, ref::mla_prefill_need, kBitsRef>(
      "mla_prefill", "ref", WEFT_ISA_ANY, dtype_w, 0);
}

// The rows of one vector variant.
#define WEFT_FAST_ROW(ns, isa, bits, score, args, op, dtype_w) \
  kernel<args, ns::op, ns::op##_need, bits>(#op, #ns, isa, dtype_w, score)
#define WEFT_FAST_PLAIN(ns, isa, bits, score, args, op) \
  kernel<args, ns::op, no_workspace, bits>(#op, #ns, isa, 0, score)
#define WEFT_FAST_COPY(ns, isa, bits, score, op) \
  kernel<weft_op_gather, ns::op, no_workspace, bits, scan_##op>(#op, #ns, isa, 0, score)
#define WEFT_FAST_EMBED(ns, isa, bits, score, dtype_w) \
  kernel<weft_op_embed, ns::embed, no_workspace, bits>("embed", #ns, isa, dtype_w, score)
#define WEFT_FAST_ROWS(ns, isa, bits, score)                                                       \
  WEFT_FAST_ROW(ns, isa, bits, score, weft_op_gemm, gemm, WEFT_F32),                               \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_gemm, gemm, WEFT_BF16),                          \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_gemm, gemm, WEFT_MXFP4),                         \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_gemm_group, gemm_group, WEFT_F32),               \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_moe, moe, WEFT_F32),                             \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_gemm_group, gemm_group, WEFT_BF16),              \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_moe, moe, WEFT_BF16),                            \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_gemm_group, gemm_group, WEFT_MXFP4),             \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_moe, moe, WEFT_MXFP4),                           \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla_store, mla_store, WEFT_F32),                 \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla_store, mla_store, WEFT_BF16),                \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla_store, mla_store, WEFT_F8E4M3),              \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_decode, WEFT_F32),                      \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_decode, WEFT_BF16),                     \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_decode, WEFT_F8E4M3),                   \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_prefill, WEFT_F32),                     \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_prefill, WEFT_BF16),                    \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_prefill, WEFT_F8E4M3),                  \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_attnres, attnres, 0),                            \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_kda, kda_step, 0),                               \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_kda, kda_chunk, 0),                              \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_vit_attend, vit_attend, 0),                      \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_route, route, 0),                                \
      WEFT_FAST_EMBED(ns, isa, bits, score, WEFT_F32),                                             \
      WEFT_FAST_EMBED(ns, isa, bits, score, WEFT_BF16),                                            \
      WEFT_FAST_COPY(ns, isa, bits, score, gather), WEFT_FAST_COPY(ns, isa, bits, score, scatter), \
      WEFT_FAST_PLAIN(ns, isa, bits, score, weft_op_norm, norm),                                   \
      WEFT_FAST_PLAIN(ns, isa, bits, score, weft_op_glu, glu),                                     \
      WEFT_FAST_PLAIN(ns, isa, bits, score, weft_op_gate, gate),                                   \
      WEFT_FAST_PLAIN(ns, isa, bits, score, weft_op_add, add),                                     \
      WEFT_FAST_PLAIN(ns, isa, bits, score, weft_op_gelu, gelu)

// Variants that read packed panels.
#define WEFT_PANEL_ROW(ns, isa, bits, score, args, op, dtype_w) \
  kernel<args, ns::op, ns::op##_need, bits, &scan, kWeightsNarrow>(#op, #ns, isa, dtype_w, score)
#define WEFT_PANEL_ROWS(ns, isa, bits, score)                                           \
  WEFT_PANEL_ROW(ns, isa, bits, score, weft_op_gemm, gemm, WEFT_BF16),                  \
      WEFT_PANEL_ROW(ns, isa, bits, score, weft_op_gemm, gemm, WEFT_MXFP4),             \
      WEFT_PANEL_ROW(ns, isa, bits, score, weft_op_gemm_group, gemm_group, WEFT_BF16),  \
      WEFT_PANEL_ROW(ns, isa, bits, score, weft_op_gemm_group, gemm_group, WEFT_MXFP4), \
      WEFT_PANEL_ROW(ns, isa, bits, score, weft_op_moe, moe, WEFT_BF16),                \
      WEFT_PANEL_ROW(ns, isa, bits, score, weft_op_moe, moe, WEFT_MXFP4)

// Latent attention by bf16 dot products.
#define WEFT_DOT_MLA_ROWS(ns, isa, bits, score)                                  \
  WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_decode, WEFT_F32),        \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_decode, WEFT_BF16),   \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_decode, WEFT_F8E4M3), \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_prefill, WEFT_F32),   \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_prefill, WEFT_BF16),  \
      WEFT_FAST_ROW(ns, isa, bits, score, weft_op_mla, mla_prefill, WEFT_F8E4M3)

constexpr weft_kernel kKernels[] = {
    ref_embed(WEFT_F32),
    ref_embed(WEFT_BF16),
    ref_gemm(WEFT_F32),
    ref_gemm(WEFT_BF16),
    ref_gemm(WEFT_MXFP4),
    ref_gemm_group(WEFT_F32),
    ref_gemm_group(WEFT_BF16),
    ref_gemm_group(WEFT_MXFP4),
    ref_moe(WEFT_F32),
    ref_moe(WEFT_BF16),
    ref_moe(WEFT_MXFP4),
    ref_mla_store(WEFT_F32),
    ref_mla_store(WEFT_BF16),
    ref_mla_store(WEFT_F8E4M3),
    ref_mla_decode(WEFT_F32),
    ref_mla_decode(WEFT_BF16),
    ref_mla_decode(WEFT_F8E4M3),
    ref_mla_prefill(WEFT_F32),
    ref_mla_prefill(WEFT_BF16),
    ref_mla_prefill(WEFT_F8E4M3),
    kernel<weft_op_norm, ref::norm, no_workspace, kBitsRef>("norm", "ref", WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_glu, ref::glu, no_workspace, kBitsRef>("glu", "ref", WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_gate, ref::gate, no_workspace, kBitsRef>("gate", "ref", WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_add, ref::add, no_workspace, kBitsRef>("add", "ref", WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_gather, ref::gather, no_workspace, kBitsRef, scan_gather>("gather", "ref",
                                                                             WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_gather, ref::scatter, no_workspace, kBitsRef, scan_scatter>("scatter", "ref",
                                                                               WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_attnres, ref::attnres, ref::attnres_need, kBitsRef>("attnres", "ref",
                                                                       WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_kda, ref::kda_step, ref::kda_step_need, kBitsRef>("kda_step", "ref",
                                                                     WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_kda, ref::kda_chunk, ref::kda_chunk_need, kBitsRef>("kda_chunk", "ref",
                                                                       WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_route, ref::route, ref::route_need, kBitsRef>("route", "ref", WEFT_ISA_ANY, 0,
                                                                 0),
    kernel<weft_op_gelu, ref::gelu, no_workspace, kBitsRef>("gelu", "ref", WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_vit_pos, ref::vit_pos, no_workspace, kBitsRef>("vit_pos", "ref", WEFT_ISA_ANY, 0,
                                                                  0),
    kernel<weft_op_vit_attend, ref::vit_attend, ref::vit_attend_need, kBitsRef>("vit_attend", "ref",
                                                                                WEFT_ISA_ANY, 0, 0),
    kernel<weft_op_vit_merge, ref::vit_merge, no_workspace, kBitsRef>("vit_merge", "ref",
                                                                      WEFT_ISA_ANY, 0, 0),
#if defined(__x86_64__)
    WEFT_FAST_ROWS(avx2, WEFT_ISA_X86_AVX2, kBitsAvx2, 100),
    WEFT_FAST_ROWS(avx512, WEFT_ISA_X86_AVX512, kBitsAvx512, 200),
    WEFT_PANEL_ROWS(avx512_bf16, WEFT_ISA_X86_AVX512_BF16, kBitsAvx512Bf16, 300),
    WEFT_DOT_MLA_ROWS(avx512_bf16, WEFT_ISA_X86_AVX512_BF16, kBitsAvx512Bf16, 300),
    WEFT_PANEL_ROWS(amx, WEFT_ISA_X86_AMX, kBitsAmx, 400),
#endif
};

}  // namespace

uint32_t kernel_count() { return static_cast<uint32_t>(sizeof kKernels / sizeof kKernels[0]); }

weft_kernel kernel_at(uint32_t i) {
  weft_kernel row = kKernels[i];
  if (!cpu_runs(row.isa)) row.score = -1;
  return row;
}

}  // namespace weft::kernels_cpu
