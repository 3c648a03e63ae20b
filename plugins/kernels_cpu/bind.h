// Turns a bare compute function into the plan/launch pair of the ABI: checks the arguments, checks
// the workspace, runs, scans the output when the caller asked for it. Baseline code only; never
// include from a file with special target flags.
#pragma once

#include "check.h"
#include "numeric.h"
#include "team.h"

namespace weft::kernels_cpu {

inline weft_status check(const weft_op_embed& op, bool launch, weft_err* err) {
  return check_embed(op, launch, err);
}
inline weft_status check(const weft_op_norm& op, bool launch, weft_err* err) {
  return check_norm(op, launch, err);
}
inline weft_status check(const weft_op_gemm& op, bool launch, weft_err* err, Weights weights) {
  return check_gemm(op, launch, err, weights);
}
inline weft_status check(const weft_op_gemm_group& op, bool launch, weft_err* err,
                         Weights weights) {
  return check_gemm_group(op, launch, err, weights);
}
inline weft_status check(const weft_op_glu& op, bool launch, weft_err* err) {
  return check_glu(op, launch, err);
}
inline weft_status check(const weft_op_gate& op, bool launch, weft_err* err) {
  return check_gate(op, launch, err);
}
inline weft_status check(const weft_op_add& op, bool launch, weft_err* err) {
  return check_add(op, launch, err);
}
inline weft_status check(const weft_op_gather& op, bool launch, weft_err* err) {
  return check_gather(op, launch, err);
}
inline weft_status check(const weft_op_attnres& op, bool launch, weft_err* err) {
  return check_attnres(op, launch, err);
}
inline weft_status check(const weft_op_kda& op, bool launch, weft_err* err) {
  return check_kda(op, launch, err);
}
inline weft_status check(const weft_op_mla_store& op, bool launch, weft_err* err) {
  return check_mla_store(op, launch, err);
}
inline weft_status check(const weft_op_mla& op, bool launch, weft_err* err) {
  return check_mla(op, launch, err);
}
inline weft_status check(const weft_op_route& op, bool launch, weft_err* err) {
  return check_route(op, launch, err);
}
inline weft_status check(const weft_op_moe& op, bool launch, weft_err* err, Weights weights) {
  return check_moe(op, launch, err, weights);
}
inline weft_status check(const weft_op_gelu& op, bool launch, weft_err* err) {
  return check_gelu(op, launch, err);
}
inline weft_status check(const weft_op_vit_pos& op, bool launch, weft_err* err) {
  return check_vit_pos(op, launch, err);
}
inline weft_status check(const weft_op_vit_attend& op, bool launch, weft_err* err) {
  return check_vit_attend(op, launch, err);
}
inline weft_status check(const weft_op_vit_merge& op, bool launch, weft_err* err) {
  return check_vit_merge(op, launch, err);
}

// Raises the not-finite bit when an output of the op holds a NaN or an infinity.
void scan(const weft_op_embed& op);
void scan(const weft_op_norm& op);
void scan(const weft_op_gemm& op);
void scan(const weft_op_gemm_group& op);
void scan(const weft_op_glu& op);
void scan(const weft_op_gate& op);
void scan(const weft_op_add& op);
void scan_gather(const weft_op_gather& op);
void scan_scatter(const weft_op_gather& op);
void scan(const weft_op_attnres& op);
void scan(const weft_op_kda& op);
void scan(const weft_op_mla_store& op);
void scan(const weft_op_mla& op);
void scan(const weft_op_route& op);
void scan(const weft_op_moe& op);
void scan(const weft_op_gelu& op);
void scan(const weft_op_vit_pos& op);
void scan(const weft_op_vit_attend& op);
void scan(const weft_op_vit_merge& op);

template <class Op>
Need no_workspace(const Op&) {
  return {};
}

// Taken: which weights the variant takes.
template <class Op, Weights Taken>
weft_status checked(const void* args, bool launch, weft_err* err) {
  const Op* op = static_cast<const Op*>(args);
  if (op == nullptr)
    return fail(err, WEFT_E_ARG, "kernels_cpu: args: expected a pointer, got NULL; fix the caller");
  if (op->head.struct_size < sizeof(Op))
    return fail(
        err, WEFT_E_ARG,
        "kernels_cpu: head.struct_size: expected at least %zu, got %u; set it to the struct's size",
        sizeof(Op), op->head.struct_size);
  if ((op->head.flags & ~uint32_t{WEFT_OP_CHECK_FINITE}) != 0)
    return fail(
        err, WEFT_E_ARG,
        "kernels_cpu: head.flags: expected WEFT_OP_CHECK_FINITE or 0, got %u; fix the caller",
        op->head.flags);
  if constexpr (requires { check(*op, launch, err, Taken); }) {
    return check(*op, launch, err, Taken);
  } else {
    return check(*op, launch, err);
  }
}

template <class Op, Need (*NeedOf)(const Op&), uint32_t Class, Weights Taken>
weft_status plan_op(const void* args, weft_plan* out, weft_err* err) {
  if (out == nullptr || out->struct_size < sizeof(weft_plan))
    return fail(err, WEFT_E_ARG,
                "kernels_cpu: plan.struct_size: expected at least %zu, got %u; fix the caller",
                sizeof(weft_plan), out == nullptr ? 0 : out->struct_size);
  const weft_status status = checked<Op, Taken>(args, false, err);
  if (status != WEFT_OK) return status;
  const Op& op = *static_cast<const Op*>(args);
  out->bits_class = Class;
  out->workspace_bytes = workspace_bytes(NeedOf(op), host_threads(op.head));
  return WEFT_OK;
}

template <class Op, void (*Run)(const Op&), Need (*NeedOf)(const Op&), void (*Scan)(const Op&),
          Weights Taken>
weft_status launch_op(const void* args, weft_err* err) {
  const weft_status status = checked<Op, Taken>(args, true, err);
  if (status != WEFT_OK) return status;
  const Op& op = *static_cast<const Op*>(args);
  // One thread's share is enough to run; more than that is speed.
  const uint64_t least = workspace_bytes(NeedOf(op), 1);
  if (least > 0 && (op.head.workspace == nullptr || op.head.workspace_bytes < least))
    return fail(err, WEFT_E_ARG,
                "kernels_cpu: head.workspace: expected at least %llu bytes, got %llu at %p; pass "
                "what plan asked for",
                static_cast<unsigned long long>(least),
                static_cast<unsigned long long>(op.head.workspace_bytes), op.head.workspace);
  Run(op);
  if ((op.head.flags & WEFT_OP_CHECK_FINITE) != 0 && op.head.err != nullptr) Scan(op);
  return WEFT_OK;
}

template <class Op, void (*Run)(const Op&), Need (*NeedOf)(const Op&), uint32_t Class,
          void (*Scan)(const Op&) = &scan, Weights Taken = kWeightsRows>
constexpr weft_kernel kernel(const char* op, const char* variant, uint32_t isa, uint32_t dtype_w,
                             int32_t score) {
  return {op,
          variant,
          isa,
          dtype_w,
          WEFT_F32,
          score,
          &plan_op<Op, NeedOf, Class, Taken>,
          &launch_op<Op, Run, NeedOf, Scan, Taken>};
}

}  // namespace weft::kernels_cpu
