#include "bind.h"
#include "pages.h"

namespace weft::kernels_cpu {

namespace {

void rows(const weft_op_head& head, const void* base, uint64_t stride, uint64_t n_rows,
          uint64_t n_cols) {
  for (uint64_t r = 0; r < n_rows; ++r) {
    const float* row = static_cast<const float*>(base) + r * stride;
    uint32_t bad = 0;
    for (uint64_t c = 0; c < n_cols; ++c)
      bad |= (bits_of_float(row[c]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
    if (bad != 0) return raise(head, kErrNotFinite);
  }
}

}  // namespace

void scan(const weft_op_embed& op) { rows(op.head, op.y, op.y_stride, op.n_rows, op.table.k); }
void scan(const weft_op_norm& op) { rows(op.head, op.y, op.y_stride, op.n_rows, op.n_cols); }
void scan(const weft_op_gemm& op) { rows(op.head, op.y, op.y_stride, op.n_rows, op.w.n); }
void scan(const weft_op_gemm_group& op) {
  for (uint32_t i = 0; i < op.n_out; ++i)
    rows(op.head, op.out[i].y, op.out[i].y_stride, op.n_rows, op.out[i].w.n);
}
void scan(const weft_op_glu& op) { rows(op.head, op.y, op.y_stride, op.n_rows, op.n_cols); }
void scan(const weft_op_gate& op) { rows(op.head, op.y, op.y_stride, op.n_rows, op.n_cols); }
void scan(const weft_op_add& op) { rows(op.head, op.y, op.y_stride, op.n_rows, op.n_cols); }
void scan_gather(const weft_op_gather& op) {
  rows(op.head, op.y, op.y_stride, op.n_rows, op.n_cols);
}
// A scatter writes exactly the values of x.
void scan_scatter(const weft_op_gather& op) {
  rows(op.head, op.x, op.x_stride, op.n_rows, op.n_cols);
}
void scan(const weft_op_attnres& op) { rows(op.head, op.y, op.y_stride, op.n_rows, op.n_cols); }
void scan(const weft_op_kda& op) {
  rows(op.head, op.y, op.y_stride, op.rows.n_rows, uint64_t{op.heads} * op.head_v);
}
void scan(const weft_op_mla& op) {
  rows(op.head, op.y, op.y_stride, op.rows.n_rows, uint64_t{op.heads} * op.v_dim);
}
void scan(const weft_op_route& op) { rows(op.head, op.w, op.topk, op.n_rows, op.topk); }
void scan(const weft_op_moe& op) { rows(op.head, op.y, op.y_stride, op.n_rows, op.w2[0].n); }
void scan(const weft_op_gelu& op) { rows(op.head, op.y, op.y_stride, op.n_rows, op.n_cols); }
void scan(const weft_op_vit_pos& op) {
  rows(op.head, op.x, op.x_stride, uint64_t{op.grid_t} * op.grid_h * op.grid_w, op.n_cols);
}
void scan(const weft_op_vit_attend& op) {
  rows(op.head, op.y, op.y_stride, uint64_t{op.grid_t} * op.grid_h * op.grid_w,
       uint64_t{op.heads} * op.head_dim);
}
void scan(const weft_op_vit_merge& op) {
  rows(op.head, op.y, op.y_stride, uint64_t{op.grid_h / op.merge} * (op.grid_w / op.merge),
       uint64_t{op.merge} * op.merge * op.n_cols);
}

void scan(const weft_op_mla_store& op) {
  for (uint32_t seq = 0; seq < op.rows.n_seqs; ++seq)
    for (uint32_t r = op.rows.seq_start[seq]; r < op.rows.seq_start[seq + 1]; ++r) {
      const uint8_t* row =
          page_row(op.pages, seq, uint64_t{op.rows.context[seq]} + r - op.rows.seq_start[seq]);
      if (row == nullptr) continue;
      for (uint64_t c = 0; c < uint64_t{op.pages.latent} + op.pages.tail; ++c)
        if (!is_finite(plain_value(row, op.pages.dtype, c))) raise(op.head, kErrNotFinite);
    }
}

}  // namespace weft::kernels_cpu
