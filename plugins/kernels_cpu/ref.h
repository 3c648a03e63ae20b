// The naive variant of every op: one thread, plain loops in the order of the formulas, sums in
// double. It is the oracle that every other variant is compared with, so clarity beats speed.
// Inputs and outputs are f32 activations.
#pragma once

#include "team.h"
#include "weft/kernels.h"

namespace weft::kernels_cpu::ref {

void embed(const weft_op_embed& op);
void norm(const weft_op_norm& op);
void gemm(const weft_op_gemm& op);
void gemm_group(const weft_op_gemm_group& op);
void glu(const weft_op_glu& op);
void gate(const weft_op_gate& op);
void add(const weft_op_add& op);
void gather(const weft_op_gather& op);
void scatter(const weft_op_gather& op);
void attnres(const weft_op_attnres& op);
void kda_step(const weft_op_kda& op);
void kda_chunk(const weft_op_kda& op);
void mla_store(const weft_op_mla_store& op);
void mla_decode(const weft_op_mla& op);
void mla_prefill(const weft_op_mla& op);
void route(const weft_op_route& op);
void moe(const weft_op_moe& op);
void gelu(const weft_op_gelu& op);
void vit_pos(const weft_op_vit_pos& op);
void vit_attend(const weft_op_vit_attend& op);
void vit_merge(const weft_op_vit_merge& op);

Need attnres_need(const weft_op_attnres& op);
Need kda_step_need(const weft_op_kda& op);
Need kda_chunk_need(const weft_op_kda& op);
Need mla_decode_need(const weft_op_mla& op);
Need mla_prefill_need(const weft_op_mla& op);
Need route_need(const weft_op_route& op);
Need moe_need(const weft_op_moe& op);
Need vit_attend_need(const weft_op_vit_attend& op);

// act(gate, up) of glu and moe.
double gated_unit(uint32_t act, double beta, double up_beta, double gate, double up);
double sigmoid(double x);
// Parts of route that the vector variants use too; fast.h says what they do.
void route_scores(const weft_op_route& op, const float* logits, float* s);
void route_keep_groups(const weft_op_route& op, const float* z, uint8_t* taken, uint8_t* kept);

inline const float* row_of(const void* base, uint64_t stride, uint64_t r) {
  return static_cast<const float*>(base) + r * stride;
}
inline float* row_of(void* base, uint64_t stride, uint64_t r) {
  return static_cast<float*>(base) + r * stride;
}

}  // namespace weft::kernels_cpu::ref
