// The vector variants. Both namespaces are built from the same fast_*.inl sources over vec_avx2.h
// or vec_avx512.h; each function may only be called when cpu_runs() says so.
//
// Order of sums, which callers may rely on: every output is computed from its own row (and its own
// sequence) alone, in an order given by the widths of the op, never by the number of rows, by
// neighbours, or by the number of threads.
// - dot products over K: one accumulator of kLanes lanes per (row, output), K ascending, then a
//   fixed tree over the lanes;
// - mixing over tokens: tiles start at absolute position 0, ascending inside and over tiles;
// - experts: one product per (row, slot), added in slot order.
#pragma once

#include "team.h"
#include "weft/kernels.h"

// What the vector variants leave to ref, because the last digit decides.
namespace weft::kernels_cpu::ref {
double sigmoid(double x);
// The score of every expert.
void route_scores(const weft_op_route& op, const float* logits, float* s);
// Marks the experts outside the group_topk strongest groups as taken; `kept` is scratch, one per
// group. Equal groups: the lower index stays.
void route_keep_groups(const weft_op_route& op, const float* z, uint8_t* taken, uint8_t* kept);
}  // namespace weft::kernels_cpu::ref

#define WEFT_FAST_VARIANT(name)                       \
  namespace weft::kernels_cpu::name {                 \
  void embed(const weft_op_embed& op);                \
  void norm(const weft_op_norm& op);                  \
  void gemm(const weft_op_gemm& op);                  \
  void gemm_group(const weft_op_gemm_group& op);      \
  void glu(const weft_op_glu& op);                    \
  void gate(const weft_op_gate& op);                  \
  void add(const weft_op_add& op);                    \
  void gather(const weft_op_gather& op);              \
  void scatter(const weft_op_gather& op);             \
  void route(const weft_op_route& op);                \
  void attnres(const weft_op_attnres& op);            \
  void kda_step(const weft_op_kda& op);               \
  void kda_chunk(const weft_op_kda& op);              \
  void mla_store(const weft_op_mla_store& op);        \
  void mla_decode(const weft_op_mla& op);             \
  void mla_prefill(const weft_op_mla& op);            \
  void moe(const weft_op_moe& op);                    \
  void gelu(const weft_op_gelu& op);                  \
  void vit_attend(const weft_op_vit_attend& op);      \
  Need gemm_need(const weft_op_gemm& op);             \
  Need gemm_group_need(const weft_op_gemm_group& op); \
  Need attnres_need(const weft_op_attnres& op);       \
  Need route_need(const weft_op_route& op);           \
  Need kda_step_need(const weft_op_kda& op);          \
  Need kda_chunk_need(const weft_op_kda& op);         \
  Need mla_store_need(const weft_op_mla_store& op);   \
  Need mla_decode_need(const weft_op_mla& op);        \
  Need mla_prefill_need(const weft_op_mla& op);       \
  Need moe_need(const weft_op_moe& op);               \
  Need vit_attend_need(const weft_op_vit_attend& op); \
  }

#if defined(__x86_64__)
WEFT_FAST_VARIANT(avx2)
WEFT_FAST_VARIANT(avx512)
#endif

// BF16 dot products (AVX512-BF16): what matrix products take in is rounded to bf16 first.
#if defined(__x86_64__)
namespace weft::kernels_cpu::avx512_bf16 {
void gemm(const weft_op_gemm& op);
void gemm_group(const weft_op_gemm_group& op);
void moe(const weft_op_moe& op);
void mla_decode(const weft_op_mla& op);
void mla_prefill(const weft_op_mla& op);
Need gemm_need(const weft_op_gemm& op);
Need gemm_group_need(const weft_op_gemm_group& op);
Need moe_need(const weft_op_moe& op);
Need mla_decode_need(const weft_op_mla& op);
Need mla_prefill_need(const weft_op_mla& op);
}  // namespace weft::kernels_cpu::avx512_bf16
// The same products by AMX tiles.
namespace weft::kernels_cpu::amx {
void gemm(const weft_op_gemm& op);
void gemm_group(const weft_op_gemm_group& op);
void moe(const weft_op_moe& op);
Need gemm_need(const weft_op_gemm& op);
Need gemm_group_need(const weft_op_gemm_group& op);
Need moe_need(const weft_op_moe& op);
}  // namespace weft::kernels_cpu::amx
#endif

#undef WEFT_FAST_VARIANT
