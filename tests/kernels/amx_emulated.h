// The ops of amx_emulated.cpp.
#pragma once

#include "team.h"
#include "weft/kernels.h"

namespace weft::kernels_cpu::amx_emulated {
void gemm(const weft_op_gemm& op);
void gemm_group(const weft_op_gemm_group& op);
void moe(const weft_op_moe& op);
Need gemm_need(const weft_op_gemm& op);
Need gemm_group_need(const weft_op_gemm_group& op);
Need moe_need(const weft_op_moe& op);
}  // namespace weft::kernels_cpu::amx_emulated
