// Argument validation of every op: the first broken rule becomes WEFT_E_ARG with a message that
// names the field, what was expected and what came. Shapes are checked by plan and launch, pointers
// and index arrays by launch alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "weft/kernels.h"

namespace weft::kernels_cpu {

// Fills err (may be NULL) and returns `code`.
weft_status fail(weft_err* err, weft_status code, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// Which weights a variant takes.
enum Weights : uint32_t {
  kWeightsRows,   // row-major ones
  kWeightsAny,    // row-major ones and packed panels (panels.h)
  kWeightsNarrow  // the same, but not F32
};

// Matrices of one gemm_group.
constexpr uint32_t kGroupMax = 16;

class Check {
 public:
  Check(const char* op, bool launch, weft_err* err, Weights weights = kWeightsRows)
      : op_(op), launch_(launch), weights_(weights), err_(err) {}

  weft_status status() const { return status_; }
  bool ok() const { return status_ == WEFT_OK; }
  bool launch() const { return launch_; }

  void that(bool holds, const char* field, const char* expected, long long got);
  void positive(uint64_t value, const char* field) {
    that(value > 0, field, "at least 1", as_ll(value));
  }
  void at_most(uint64_t value, uint64_t limit, const char* field);
  void one_of(uint32_t value, uint32_t a, uint32_t b, const char* field);
  void finite(float value, const char* field);
  void flag(uint32_t value, const char* field) { that(value <= 1, field, "0 or 1", as_ll(value)); }
  // Row pointer, stride in elements, columns: the pointer must be there and aligned, rows must not
  // overlap.
  void rows(const void* base, uint64_t stride, uint64_t n_rows, uint64_t n_cols, const char* field);
  void pointer(const void* base, const char* field, uint64_t align = 4);
  void stride_bytes(uint64_t stride, uint64_t least, const char* field);
  void weight(const weft_weight& w, bool allow_mxfp4, const char* field);
  void sequences(const weft_rows& rows);
  void pages(const weft_mla_pages& pages, const weft_rows& rows);

 private:
  static long long as_ll(uint64_t value) { return static_cast<long long>(value); }

  const char* op_;
  bool launch_;
  Weights weights_;
  weft_err* err_;
  weft_status status_ = WEFT_OK;
};

weft_status check_embed(const weft_op_embed& op, bool launch, weft_err* err);
weft_status check_norm(const weft_op_norm& op, bool launch, weft_err* err);
weft_status check_gemm(const weft_op_gemm& op, bool launch, weft_err* err,
                       Weights weights = kWeightsRows);
weft_status check_gemm_group(const weft_op_gemm_group& op, bool launch, weft_err* err,
                             Weights weights = kWeightsRows);
weft_status check_glu(const weft_op_glu& op, bool launch, weft_err* err);
weft_status check_gate(const weft_op_gate& op, bool launch, weft_err* err);
weft_status check_add(const weft_op_add& op, bool launch, weft_err* err);
weft_status check_gather(const weft_op_gather& op, bool launch, weft_err* err);
weft_status check_attnres(const weft_op_attnres& op, bool launch, weft_err* err);
weft_status check_kda(const weft_op_kda& op, bool launch, weft_err* err);
weft_status check_mla_store(const weft_op_mla_store& op, bool launch, weft_err* err);
weft_status check_mla(const weft_op_mla& op, bool launch, weft_err* err);
weft_status check_route(const weft_op_route& op, bool launch, weft_err* err);
weft_status check_moe(const weft_op_moe& op, bool launch, weft_err* err,
                      Weights weights = kWeightsRows);
weft_status check_gelu(const weft_op_gelu& op, bool launch, weft_err* err);
weft_status check_vit_pos(const weft_op_vit_pos& op, bool launch, weft_err* err);
weft_status check_vit_attend(const weft_op_vit_attend& op, bool launch, weft_err* err);
weft_status check_vit_merge(const weft_op_vit_merge& op, bool launch, weft_err* err);

}  // namespace weft::kernels_cpu
