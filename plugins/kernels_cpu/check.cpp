#include "check.h"

#include <cstdarg>
#include <cstdio>

#include "numeric.h"
#include "panels.h"

namespace weft::kernels_cpu {

weft_status fail(weft_err* err, weft_status code, const char* format, ...) {
  if (WEFT_HAS(err, weft_err, msg)) {
    err->code = code;
    err->sys = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(err->msg, sizeof err->msg, format, args);
    va_end(args);
  }
  return code;
}

void Check::that(bool holds, const char* field, const char* expected, long long got) {
  if (holds || !ok()) return;
  status_ = fail(err_, WEFT_E_ARG, "kernels_cpu: %s.%s: expected %s, got %lld; fix the caller", op_,
                 field, expected, got);
}

void Check::at_most(uint64_t value, uint64_t limit, const char* field) {
  if (value <= limit || !ok()) return;
  char expected[48];
  snprintf(expected, sizeof expected, "at most %llu", static_cast<unsigned long long>(limit));
  that(false, field, expected, as_ll(value));
}

void Check::one_of(uint32_t value, uint32_t a, uint32_t b, const char* field) {
  if (value == a || value == b || !ok()) return;
  char expected[48];
  snprintf(expected, sizeof expected, "%u or %u", a, b);
  that(false, field, expected, value);
}

void Check::finite(float value, const char* field) {
  if (is_finite(value) || !ok()) return;
  status_ =
      fail(err_, WEFT_E_ARG, "kernels_cpu: %s.%s: expected a finite number, got %g; fix the caller",
           op_, field, static_cast<double>(value));
}

void Check::pointer(const void* base, const char* field, uint64_t align) {
  if (!launch_ || !ok()) return;
  that(base != nullptr, field, "a pointer", 0);
  const uint64_t low = reinterpret_cast<uintptr_t>(base) % align;
  if (ok() && low != 0) {
    char expected[48];
    snprintf(expected, sizeof expected, "an address aligned to %u", static_cast<unsigned>(align));
    that(false, field, expected, as_ll(low));
  }
}

void Check::rows(const void* base, uint64_t stride, uint64_t n_rows, uint64_t n_cols,
                 const char* field) {
  if (n_rows == 0) return;
  pointer(base, field);
  if (n_rows < 2 || stride >= n_cols || !ok()) return;
  char expected[64];
  snprintf(expected, sizeof expected, "a row stride of at least %llu",
           static_cast<unsigned long long>(n_cols));
  that(false, field, expected, as_ll(stride));
}

void Check::stride_bytes(uint64_t stride, uint64_t least, const char* field) {
  if (!ok()) return;
  if (stride >= least && stride % 4 == 0) return;
  char expected[64];
  snprintf(expected, sizeof expected, "a multiple of 4 and at least %llu bytes",
           static_cast<unsigned long long>(least));
  that(false, field, expected, as_ll(stride));
}

void Check::weight(const weft_weight& w, bool allow_mxfp4, const char* field) {
  const bool known = (w.dtype == WEFT_F32 && weights_ != kWeightsNarrow) || w.dtype == WEFT_BF16 ||
                     (allow_mxfp4 && w.dtype == WEFT_MXFP4);
  const uint64_t align = w.layout == kLayoutPanels        ? kPanelAlign
                         : known && w.dtype != WEFT_MXFP4 ? dtype_bytes(w.dtype)
                                                          : 1;
  const bool quantised = w.dtype == WEFT_MXFP4;
  const bool panels = weights_ != kWeightsRows && w.layout == kLayoutPanels && w.dtype != WEFT_F32;
  const bool placed = w.layout == kLayoutRows || panels;
  const bool shaped = placed && w.n > 0 && w.k > 0 && w.n <= UINT32_MAX && w.k <= UINT32_MAX;
  const bool here = w.data != nullptr && reinterpret_cast<uintptr_t>(w.data) % align == 0 &&
                    (!quantised || w.scale != nullptr);
  // The common case leaves before any name is spelled out: moe checks thousands of matrices per
  // launch.
  if (known && shaped && (!quantised || w.k % 32 == 0) && (here || !launch_)) return;

  char name[64];
  const auto part = [&](const char* what) {
    snprintf(name, sizeof name, "%s.%s", field, what);
    return name;
  };
  that(known, part("dtype"),
       weights_ == kWeightsNarrow ? "bf16 (2) or mxfp4 (64)"
       : allow_mxfp4              ? "f32 (1), bf16 (2) or mxfp4 (64)"
                                  : "f32 (1) or bf16 (2)",
       w.dtype);
  that(placed, part("layout"),
       weights_ != kWeightsRows ? "0 (row-major) or 1 (panels, not of f32)" : "0 (row-major)",
       w.layout);
  that(w.n > 0, part("n"), "at least 1", as_ll(w.n));
  that(w.k > 0, part("k"), "at least 1", as_ll(w.k));
  at_most(w.n, UINT32_MAX, part("n"));
  at_most(w.k, UINT32_MAX, part("k"));
  if (quantised) {
    that(w.k % 32 == 0, part("k"), "a multiple of 32 for mxfp4", as_ll(w.k));
    pointer(w.scale, part("scale"), 1);
  }
  pointer(w.data, part("data"), align);
}

void Check::sequences(const weft_rows& rows) {
  if (!launch_ || !ok()) return;
  if (rows.n_seqs == 0) {
    that(rows.n_rows == 0, "rows.n_seqs", "at least 1 when there are rows", 0);
    return;
  }
  pointer(rows.seq_start, "rows.seq_start");
  pointer(rows.context, "rows.context");
  if (!ok()) return;
  that(rows.seq_start[0] == 0, "rows.seq_start[0]", "0", rows.seq_start[0]);
  for (uint32_t i = 0; i < rows.n_seqs && ok(); ++i) {
    that(rows.seq_start[i] <= rows.seq_start[i + 1], "rows.seq_start", "ascending entries",
         rows.seq_start[i + 1]);
    that(rows.context[i] <= INT32_MAX, "rows.context", "at most 2147483647", rows.context[i]);
  }
  if (!ok() || rows.seq_start[rows.n_seqs] == rows.n_rows) return;
  char expected[48];
  snprintf(expected, sizeof expected, "n_rows (%u)", rows.n_rows);
  that(false, "rows.seq_start[n_seqs]", expected, rows.seq_start[rows.n_seqs]);
}

void Check::pages(const weft_mla_pages& pages, const weft_rows& rows) {
  const bool known = dtype_bytes(pages.dtype) != 0;
  that(known, "pages.dtype", "f32 (1), bf16 (2) or f8e4m3 (8)", pages.dtype);
  positive(pages.page_tokens, "pages.page_tokens");
  positive(pages.latent, "pages.latent");
  at_most(pages.latent, 1u << 20, "pages.latent");
  at_most(pages.tail, 1u << 20, "pages.tail");
  if (!ok()) return;
  const uint64_t row = (uint64_t{pages.latent} + pages.tail) * dtype_bytes(pages.dtype);
  that(pages.page_stride >= row * pages.page_tokens, "pages.page_stride",
       "at least page_tokens rows of bytes", as_ll(pages.page_stride));
  that(pages.page_stride % dtype_bytes(pages.dtype) == 0, "pages.page_stride",
       "a multiple of the element size", as_ll(pages.page_stride));
  if (!launch_ || rows.n_rows == 0) return;
  pointer(pages.base, "pages.base", dtype_bytes(pages.dtype));
  pointer(pages.table, "pages.table");
  for (uint32_t i = 0; i < rows.n_seqs && ok(); ++i) {
    const uint64_t tokens = uint64_t{rows.context[i]} + rows.seq_start[i + 1] - rows.seq_start[i];
    const uint64_t least = (tokens + pages.page_tokens - 1) / pages.page_tokens;
    that(least <= pages.table_stride, "pages.table_stride", "enough entries for context and rows",
         as_ll(pages.table_stride));
  }
}

namespace {

constexpr uint64_t kDimMax =
    1u << 20;  // of one head, tap count or group: keeps every workspace size far from overflow

void act_kind(Check& c, uint32_t act, float beta, float up_beta) {
  c.one_of(act, WEFT_ACT_SILU, WEFT_ACT_SITU, "act");
  if (act != WEFT_ACT_SITU) return;
  c.finite(beta, "beta");
  c.finite(up_beta, "up_beta");
  c.that(!(beta <= 0), "beta", "more than 0", static_cast<long long>(beta));
  c.that(!(up_beta < 0), "up_beta", "0 (no cap) or more", static_cast<long long>(up_beta));
}

void eps_value(Check& c, float eps, const char* field) {
  c.finite(eps, field);
  c.that(eps >= 0, field, "0 or more", static_cast<long long>(eps));
}

}  // namespace

weft_status check_embed(const weft_op_embed& op, bool launch, weft_err* err) {
  Check c("embed", launch, err);
  if (op.n_rows > 0) c.pointer(op.id, "id");
  c.weight(op.table, false, "table");
  c.rows(op.y, op.y_stride, op.n_rows, op.table.k, "y");
  return c.status();
}

weft_status check_norm(const weft_op_norm& op, bool launch, weft_err* err) {
  Check c("norm", launch, err);
  c.positive(op.n_cols, "n_cols");
  eps_value(c, op.eps, "eps");
  c.pointer(op.w, "w");
  c.rows(op.x, op.x_stride, op.n_rows, op.n_cols, "x");
  c.rows(op.y, op.y_stride, op.n_rows, op.n_cols, "y");
  return c.status();
}

weft_status check_gemm(const weft_op_gemm& op, bool launch, weft_err* err, Weights weights) {
  Check c("gemm", launch, err, weights);
  c.that((op.mode & ~WEFT_GEMM_ADD) == 0, "mode", "WEFT_GEMM_ADD or 0", op.mode);
  c.that(op.y_dtype == WEFT_F32, "y_dtype", "f32 (1)", op.y_dtype);
  c.weight(op.w, true, "w");
  c.rows(op.x, op.x_stride, op.n_rows, op.w.k, "x");
  c.rows(op.y, op.y_stride, op.n_rows, op.w.n, "y");
  return c.status();
}

weft_status check_gemm_group(const weft_op_gemm_group& op, bool launch, weft_err* err,
                             Weights weights) {
  Check c("gemm_group", launch, err, weights);
  c.positive(op.n_out, "n_out");
  c.at_most(op.n_out, kGroupMax, "n_out");
  c.that(op.y_dtype == WEFT_F32, "y_dtype", "f32 (1)", op.y_dtype);
  // The list is host memory that plan needs as well.
  c.that(op.out != nullptr, "out", "a pointer", 0);
  for (uint32_t i = 0; i < op.n_out && c.ok(); ++i) {
    const weft_gemm_out& out = op.out[i];
    c.that((out.mode & ~WEFT_GEMM_ADD) == 0, "out.mode", "WEFT_GEMM_ADD or 0", out.mode);
    c.weight(out.w, true, "out.w");
    c.that(out.w.k == op.out[0].w.k && out.w.dtype == op.out[0].w.dtype, "out.w",
           "the k and dtype of out[0].w", static_cast<long long>(i));
    c.rows(out.y, out.y_stride, op.n_rows, out.w.n, "out.y");
  }
  if (c.ok()) c.rows(op.x, op.x_stride, op.n_rows, op.out[0].w.k, "x");
  return c.status();
}

weft_status check_glu(const weft_op_glu& op, bool launch, weft_err* err) {
  Check c("glu", launch, err);
  c.positive(op.n_cols, "n_cols");
  act_kind(c, op.act, op.beta, op.up_beta);
  c.rows(op.gate, op.gate_stride, op.n_rows, op.n_cols, "gate");
  c.rows(op.up, op.up_stride, op.n_rows, op.n_cols, "up");
  c.rows(op.y, op.y_stride, op.n_rows, op.n_cols, "y");
  return c.status();
}

weft_status check_gate(const weft_op_gate& op, bool launch, weft_err* err) {
  Check c("gate", launch, err);
  c.positive(op.n_cols, "n_cols");
  c.rows(op.x, op.x_stride, op.n_rows, op.n_cols, "x");
  c.rows(op.u, op.u_stride, op.n_rows, op.n_cols, "u");
  c.rows(op.y, op.y_stride, op.n_rows, op.n_cols, "y");
  return c.status();
}

weft_status check_add(const weft_op_add& op, bool launch, weft_err* err) {
  Check c("add", launch, err);
  c.positive(op.n_cols, "n_cols");
  c.rows(op.a, op.a_stride, op.n_rows, op.n_cols, "a");
  c.rows(op.b, op.b_stride, op.n_rows, op.n_cols, "b");
  c.rows(op.y, op.y_stride, op.n_rows, op.n_cols, "y");
  return c.status();
}

weft_status check_gather(const weft_op_gather& op, bool launch, weft_err* err) {
  Check c("gather", launch, err);
  c.positive(op.n_cols, "n_cols");
  if (op.n_rows > 0) {
    c.pointer(op.row, "row");
    c.pointer(op.x, "x");
    c.pointer(op.y, "y");
    c.that(op.x_stride >= op.n_cols, "x_stride", "at least n_cols",
           static_cast<long long>(op.x_stride));
    c.that(op.y_stride >= op.n_cols, "y_stride", "at least n_cols",
           static_cast<long long>(op.y_stride));
  }
  return c.status();
}

weft_status check_attnres(const weft_op_attnres& op, bool launch, weft_err* err) {
  Check c("attnres", launch, err);
  c.positive(op.n_cols, "n_cols");
  c.at_most(op.n_blocks, 4096, "n_blocks");
  eps_value(c, op.eps, "eps");
  if (op.n_blocks > 0) c.rows(op.blocks, op.row_stride, op.n_rows, op.n_cols, "blocks");
  if (op.n_blocks > 1)
    c.that(op.block_stride >= op.n_cols, "block_stride", "at least n_cols",
           static_cast<long long>(op.block_stride));
  c.rows(op.prefix, op.prefix_stride, op.n_rows, op.n_cols, "prefix");
  c.pointer(op.q, "q");
  if (op.norm_w != nullptr) {
    c.pointer(op.norm_w, "norm_w");
    eps_value(c, op.norm_eps, "norm_eps");
  }
  c.rows(op.y, op.y_stride, op.n_rows, op.n_cols, "y");
  return c.status();
}

weft_status check_kda(const weft_op_kda& op, bool launch, weft_err* err) {
  Check c("kda", launch, err);
  c.positive(op.heads, "heads");
  c.positive(op.head_k, "head_k");
  c.positive(op.head_v, "head_v");
  c.positive(op.taps, "taps");
  c.at_most(op.heads, kDimMax, "heads");
  c.at_most(op.head_k, 4096, "head_k");
  c.at_most(op.head_v, 4096, "head_v");
  c.at_most(op.taps, 64, "taps");
  c.at_most(op.chunk, 128, "chunk");
  c.one_of(op.gate, WEFT_KDA_GATE_BOUNDED, WEFT_KDA_GATE_SOFTPLUS, "gate");
  if (op.gate == WEFT_KDA_GATE_BOUNDED)
    c.that(is_finite(op.bound) && op.bound < 0, "bound", "a finite number below 0",
           static_cast<long long>(op.bound));
  eps_value(c, op.norm_eps, "norm_eps");
  if (!c.ok()) return c.status();
  const uint64_t keys = uint64_t{op.heads} * op.head_k;
  const uint64_t values = uint64_t{op.heads} * op.head_v;
  c.stride_bytes(op.state_stride, keys * op.head_v * 4, "state_stride");
  c.stride_bytes(op.conv_stride, (2 * keys + values) * (op.taps - 1) * 4, "conv_stride");
  c.rows(op.q, op.q_stride, op.rows.n_rows, keys, "q");
  c.rows(op.k, op.k_stride, op.rows.n_rows, keys, "k");
  c.rows(op.v, op.v_stride, op.rows.n_rows, values, "v");
  c.rows(op.f, op.f_stride, op.rows.n_rows, keys, "f");
  c.rows(op.u, op.u_stride, op.rows.n_rows, values, "u");
  c.rows(op.b, op.b_stride, op.rows.n_rows, op.heads, "b");
  c.rows(op.y, op.y_stride, op.rows.n_rows, values, "y");
  c.sequences(op.rows);
  if (op.rows.n_seqs == 0) return c.status();
  c.pointer(op.conv_q, "conv_q");
  c.pointer(op.conv_k, "conv_k");
  c.pointer(op.conv_v, "conv_v");
  c.pointer(op.a_log, "a_log");
  c.pointer(op.dt_bias, "dt_bias");
  c.pointer(op.o_norm, "o_norm");
  c.pointer(op.state, "state");
  if (op.taps > 1) c.pointer(op.conv_state, "conv_state");
  c.pointer(op.read_slot, "read_slot");
  c.pointer(op.write_slot, "write_slot");
  if (op.snap_at != nullptr) c.pointer(op.snap_slot, "snap_slot");
  if (!launch || op.snap_at == nullptr) return c.status();
  for (uint32_t i = 0; i < op.rows.n_seqs && c.ok(); ++i)
    c.at_most(op.snap_at[i], op.rows.seq_start[i + 1] - op.rows.seq_start[i],
              "snap_at (rows of the sequence)");
  return c.status();
}

weft_status check_mla_store(const weft_op_mla_store& op, bool launch, weft_err* err) {
  Check c("mla_store", launch, err);
  eps_value(c, op.eps, "eps");
  c.rows(op.x, op.x_stride, op.rows.n_rows, uint64_t{op.pages.latent} + op.pages.tail, "x");
  c.pointer(op.w, "w");
  c.sequences(op.rows);
  if (c.ok()) c.pages(op.pages, op.rows);
  return c.status();
}

weft_status check_mla(const weft_op_mla& op, bool launch, weft_err* err) {
  Check c("mla", launch, err);
  c.positive(op.heads, "heads");
  c.positive(op.v_dim, "v_dim");
  c.at_most(op.heads, kDimMax, "heads");
  c.at_most(op.nope, 4096, "nope");
  c.at_most(op.v_dim, 4096, "v_dim");
  c.that(op.nope + uint64_t{op.pages.tail} > 0, "nope", "at least 1 when pages.tail is 0", op.nope);
  c.finite(op.scale, "scale");
  c.weight(op.kv_b, true, "kv_b");
  if (!c.ok()) return c.status();
  const uint64_t rows_of_b = uint64_t{op.heads} * (op.nope + op.v_dim);
  c.that(op.kv_b.n == rows_of_b, "kv_b.n", "heads * (nope + v_dim)",
         static_cast<long long>(op.kv_b.n));
  c.that(op.kv_b.k == op.pages.latent, "kv_b.k", "pages.latent", static_cast<long long>(op.kv_b.k));
  c.rows(op.q, op.q_stride, op.rows.n_rows, uint64_t{op.heads} * (op.nope + op.pages.tail), "q");
  if (op.u != nullptr)
    c.rows(op.u, op.u_stride, op.rows.n_rows, uint64_t{op.heads} * op.v_dim, "u");
  c.rows(op.y, op.y_stride, op.rows.n_rows, uint64_t{op.heads} * op.v_dim, "y");
  c.sequences(op.rows);
  if (c.ok()) c.pages(op.pages, op.rows);
  return c.status();
}

weft_status check_route(const weft_op_route& op, bool launch, weft_err* err) {
  Check c("route", launch, err);
  c.positive(op.n_experts, "n_experts");
  c.at_most(op.n_experts, 65536, "n_experts");
  c.positive(op.topk, "topk");
  c.at_most(op.topk, op.n_experts, "topk");
  c.one_of(op.kind, WEFT_ROUTE_SIGMOID, WEFT_ROUTE_SOFTMAX, "kind");
  c.flag(op.renorm, "renorm");
  c.finite(op.scale, "scale");
  if (op.n_groups > 1) {
    c.that(op.n_experts % op.n_groups == 0, "n_groups", "a divisor of n_experts", op.n_groups);
    c.positive(op.group_topk, "group_topk");
    c.at_most(op.group_topk, op.n_groups, "group_topk");
    if (c.ok())
      c.at_most(op.topk, uint64_t{op.group_topk} * (op.n_experts / op.n_groups),
                "topk (with groups)");
  }
  c.rows(op.logits, op.logits_stride, op.n_rows, op.n_experts, "logits");
  if (op.n_rows > 0) {
    c.pointer(op.id, "id", 2);
    c.pointer(op.w, "w");
  }
  return c.status();
}

weft_status check_moe(const weft_op_moe& op, bool launch, weft_err* err, Weights weights) {
  Check c("moe", launch, err, weights);
  c.positive(op.n_local, "n_local");
  c.at_most(uint64_t{op.first} + op.n_local, 65536, "first + n_local");
  c.positive(op.topk, "topk");
  c.at_most(op.topk, 65536, "topk");
  act_kind(c, op.act, op.beta, op.up_beta);
  c.that((op.mode & ~uint32_t{WEFT_MOE_INT8}) == 0, "mode", "WEFT_MOE_INT8 or 0", op.mode);
  // The expert tables are host memory that outlives the plan, so plan needs them as well.
  c.that(op.w1 != nullptr, "w1", "a pointer", 0);
  c.that(op.w2 != nullptr, "w2", "a pointer", 0);
  c.that(op.w3 != nullptr, "w3", "a pointer", 0);
  for (uint32_t e = 0; e < op.n_local && c.ok(); ++e) {
    c.weight(op.w1[e], true, "w1");
    c.weight(op.w2[e], true, "w2");
    c.weight(op.w3[e], true, "w3");
    const auto same = [&](const weft_weight& w, uint64_t n, uint64_t k, const char* field) {
      c.that(w.n == n && w.k == k && w.dtype == op.w1[0].dtype && w.layout == op.w1[0].layout,
             field, "the shape, dtype and layout of w1[0]", static_cast<long long>(e));
    };
    same(op.w1[e], op.w1[0].n, op.w1[0].k, "w1");
    same(op.w3[e], op.w1[0].n, op.w1[0].k, "w3");
    same(op.w2[e], op.w2[0].n, op.w1[0].n, "w2");
  }
  if (!c.ok()) return c.status();
  c.rows(op.x, op.x_stride, op.n_rows, op.w1[0].k, "x");
  c.rows(op.y, op.y_stride, op.n_rows, op.w2[0].n, "y");
  if (op.n_rows > 0) {
    c.pointer(op.id, "id", 2);
    c.pointer(op.w, "w");
  }
  return c.status();
}

weft_status check_gelu(const weft_op_gelu& op, bool launch, weft_err* err) {
  Check c("gelu", launch, err);
  c.positive(op.n_cols, "n_cols");
  c.flag(op.tanh_form, "tanh_form");
  c.rows(op.x, op.x_stride, op.n_rows, op.n_cols, "x");
  c.rows(op.y, op.y_stride, op.n_rows, op.n_cols, "y");
  return c.status();
}

namespace {

void grid(Check& c, uint32_t t, uint32_t h, uint32_t w) {
  c.positive(t, "grid_t");
  c.positive(h, "grid_h");
  c.positive(w, "grid_w");
  c.at_most(t, 4096, "grid_t");
  c.at_most(h, 65536, "grid_h");
  c.at_most(w, 65536, "grid_w");
  if (c.ok()) c.at_most(uint64_t{t} * h * w, UINT32_MAX, "grid_t * grid_h * grid_w");
}

}  // namespace

weft_status check_vit_pos(const weft_op_vit_pos& op, bool launch, weft_err* err) {
  Check c("vit_pos", launch, err);
  grid(c, op.grid_t, op.grid_h, op.grid_w);
  c.positive(op.n_cols, "n_cols");
  c.positive(op.table_h, "table_h");
  c.positive(op.table_w, "table_w");
  if (op.grid_t > 1)
    c.that(op.n_cols % 2 == 0, "n_cols", "an even number for more than one frame", op.n_cols);
  c.pointer(op.table, "table");
  c.rows(op.x, op.x_stride, uint64_t{op.grid_t} * op.grid_h * op.grid_w, op.n_cols, "x");
  return c.status();
}

weft_status check_vit_attend(const weft_op_vit_attend& op, bool launch, weft_err* err) {
  Check c("vit_attend", launch, err);
  grid(c, op.grid_t, op.grid_h, op.grid_w);
  c.positive(op.heads, "heads");
  c.positive(op.head_dim, "head_dim");
  c.at_most(op.heads, kDimMax, "heads");
  c.at_most(op.head_dim, 4096, "head_dim");
  c.that(op.head_dim % 4 == 0, "head_dim", "a multiple of 4 (column and row pairs)", op.head_dim);
  const uint64_t n = uint64_t{op.grid_t} * op.grid_h * op.grid_w;
  const uint64_t width = uint64_t{op.heads} * op.head_dim;
  c.rows(op.qkv, op.qkv_stride, n, 3 * width, "qkv");
  c.rows(op.y, op.y_stride, n, width, "y");
  return c.status();
}

weft_status check_vit_merge(const weft_op_vit_merge& op, bool launch, weft_err* err) {
  Check c("vit_merge", launch, err);
  grid(c, op.grid_t, op.grid_h, op.grid_w);
  c.positive(op.n_cols, "n_cols");
  c.positive(op.merge, "merge");
  if (!c.ok()) return c.status();
  c.that(op.grid_h % op.merge == 0, "grid_h", "a multiple of merge", op.grid_h);
  c.that(op.grid_w % op.merge == 0, "grid_w", "a multiple of merge", op.grid_w);
  const uint64_t n = uint64_t{op.grid_t} * op.grid_h * op.grid_w;
  const uint64_t out = uint64_t{op.grid_h / op.merge} * (op.grid_w / op.merge);
  c.rows(op.x, op.x_stride, n, op.n_cols, "x");
  c.rows(op.y, op.y_stride, out, uint64_t{op.merge} * op.merge * op.n_cols, "y");
  return c.status();
}

}  // namespace weft::kernels_cpu
