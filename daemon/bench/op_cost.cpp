#include "bench/op_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace weft::bench {
namespace {

constexpr double kActBytes = 4;

double product(uint64_t a, uint64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

std::string matrix_text(const weft_weight& w) {
  return fmt::format("{}x{} {}", w.n, w.k, dtype_word(w.dtype));
}

OpCost row_cost(uint32_t rows, uint64_t cols, double arrays, double flop_each) {
  OpCost c;
  c.rows = rows;
  c.shape = fmt::format("{}", cols);
  c.act_bytes = product(rows, cols) * arrays * kActBytes;
  c.flop = product(rows, cols) * flop_each;
  return c;
}

void add_matrix(const weft_weight& w, uint32_t rows, OpCost* c) {
  c->weight_bytes += matrix_bytes(w);
  c->act_bytes += product(rows, w.n) * kActBytes;
  c->flop += 2.0 * product(w.n, w.k) * rows;
}

OpCost gemm_cost(const weft_op_gemm& a) {
  OpCost c;
  c.rows = a.n_rows;
  c.shape = matrix_text(a.w);
  c.act_bytes = product(a.n_rows, a.w.k) * kActBytes;
  add_matrix(a.w, a.n_rows, &c);
  return c;
}

OpCost gemm_group_cost(const weft_op_gemm_group& a) {
  OpCost c;
  c.rows = a.n_rows;
  uint64_t n = 0;
  for (uint32_t i = 0; i < a.n_out; ++i) {
    add_matrix(a.out[i].w, a.n_rows, &c);
    n += a.out[i].w.n;
  }
  if (a.n_out == 0) return c;
  const weft_weight& first = a.out[0].w;
  c.act_bytes += product(a.n_rows, first.k) * kActBytes;
  c.shape = fmt::format("{}x{} {} ({} parts)", n, first.k, dtype_word(first.dtype), a.n_out);
  return c;
}

OpCost moe_cost(const weft_op_moe& a) {
  OpCost c;
  c.rows = a.n_rows;
  std::vector<bool> hit(a.n_local);
  uint64_t local = 0;
  for (uint64_t i = 0; a.id != nullptr && i < uint64_t{a.n_rows} * a.topk; ++i) {
    const uint32_t e = a.id[i] - a.first;  // wraps below `first`
    if (e >= a.n_local) continue;
    hit[e] = true;
    ++local;
  }
  c.experts = static_cast<uint32_t>(std::count(hit.begin(), hit.end(), true));
  const weft_weight &w1 = a.w1[0], &w2 = a.w2[0], &w3 = a.w3[0];
  c.weight_bytes = c.experts * (matrix_bytes(w1) + matrix_bytes(w2) + matrix_bytes(w3));
  c.act_bytes = product(a.n_rows, w1.k + w2.n) * kActBytes;
  c.flop = 2.0 * static_cast<double>(local) *
           (product(w1.n, w1.k) + product(w2.n, w2.k) + product(w3.n, w3.k));
  c.shape = fmt::format("{} of {} ({}x{} {})", a.topk, a.n_local, w1.n, w1.k, dtype_word(w1.dtype));
  return c;
}

OpCost kda_cost(const weft_op_kda& a) {
  OpCost c;
  c.rows = a.rows.n_rows;
  const double state = product(a.head_k, a.head_v) * a.heads;
  double states = 0;
  for (uint32_t i = 0; i < a.rows.n_seqs; ++i) {
    states += (a.read_slot[i] >= 0 ? 1 : 0) + (a.write_slot[i] >= 0 ? 1 : 0);
  }
  c.weight_bytes = states * state * 4;
  c.act_bytes = product(c.rows, uint64_t{a.heads} * (4 * a.head_k + 2 * a.head_v)) * kActBytes;
  c.flop = 7.0 * state * c.rows;
  c.shape =
      fmt::format("{} heads of {}x{}, {} sequences", a.heads, a.head_k, a.head_v, a.rows.n_seqs);
  return c;
}

OpCost mla_cost(const weft_op_mla& a, bool expanded) {
  OpCost c;
  c.rows = a.rows.n_rows;
  const uint64_t width = a.pages.latent + a.pages.tail;
  const double size = a.pages.dtype == WEFT_F32 ? 4 : a.pages.dtype == WEFT_BF16 ? 2 : 1;
  const double pair = expanded ? 2.0 * (a.nope + a.pages.tail + a.v_dim)
                               : 2.0 * static_cast<double>(width + a.pages.latent);
  for (uint32_t i = 0; i < a.rows.n_seqs; ++i) {
    const double n = a.rows.seq_start[i + 1] - a.rows.seq_start[i];
    const uint64_t context = a.rows.context[i];
    c.weight_bytes += (static_cast<double>(context) + n) * static_cast<double>(width) * size;
    c.flop += a.heads * pair * (n * static_cast<double>(context) + n * (n + 1) / 2);
  }
  add_matrix(a.kv_b, a.rows.n_rows, &c);
  c.shape = fmt::format("{} heads, {}+{} {}, {} sequences", a.heads, a.pages.latent, a.pages.tail,
                        dtype_word(a.pages.dtype), a.rows.n_seqs);
  return c;
}

OpCost route_cost(const weft_op_route& a) {
  OpCost c = row_cost(a.n_rows, a.n_experts, 1, 4);
  c.shape = fmt::format("{} of {}", a.topk, a.n_experts);
  return c;
}

}  // namespace

const char* dtype_word(uint32_t dtype) {
  switch (dtype) {
    case WEFT_F32:
      return "f32";
    case WEFT_BF16:
      return "bf16";
    case WEFT_MXFP4:
      return "mxfp4";
    default:
      return "-";
  }
}

double matrix_bytes(const weft_weight& w) {
  const double each = w.dtype == WEFT_F32 ? 4 : w.dtype == WEFT_BF16 ? 2 : 0.5 + 1.0 / 32;
  return product(w.n, w.k) * each;
}

OpCost cost_of(std::string_view op, const void* args) {
  const auto as = [args]<class Op>(Op*) -> const Op& { return *static_cast<const Op*>(args); };
  if (op == "gemm") return gemm_cost(as(static_cast<weft_op_gemm*>(nullptr)));
  if (op == "gemm_group") return gemm_group_cost(as(static_cast<weft_op_gemm_group*>(nullptr)));
  if (op == "moe") return moe_cost(as(static_cast<weft_op_moe*>(nullptr)));
  if (op == "kda_step" || op == "kda_chunk")
    return kda_cost(as(static_cast<weft_op_kda*>(nullptr)));
  if (op == "mla_decode" || op == "mla_prefill") {
    return mla_cost(as(static_cast<weft_op_mla*>(nullptr)), op == "mla_prefill");
  }
  if (op == "route") return route_cost(as(static_cast<weft_op_route*>(nullptr)));
  if (op == "mla_store") {
    const auto& a = as(static_cast<weft_op_mla_store*>(nullptr));
    return row_cost(a.rows.n_rows, a.pages.latent + a.pages.tail, 2, 4);
  }
  if (op == "embed") {
    const auto& a = as(static_cast<weft_op_embed*>(nullptr));
    return row_cost(a.n_rows, a.table.k, 1.5, 0);
  }
  if (op == "norm") {
    const auto& a = as(static_cast<weft_op_norm*>(nullptr));
    return row_cost(a.n_rows, a.n_cols, 2, 4);
  }
  if (op == "glu") {
    const auto& a = as(static_cast<weft_op_glu*>(nullptr));
    return row_cost(a.n_rows, a.n_cols, 3, 8);
  }
  if (op == "add") {
    const auto& a = as(static_cast<weft_op_add*>(nullptr));
    return row_cost(a.n_rows, a.n_cols, 3, 1);
  }
  if (op == "gather" || op == "scatter") {
    const auto& a = as(static_cast<weft_op_gather*>(nullptr));
    return row_cost(a.n_rows, a.n_cols, 2, 0);
  }
  if (op == "attnres") {
    const auto& a = as(static_cast<weft_op_attnres*>(nullptr));
    OpCost c = row_cost(a.n_rows, a.n_cols, a.n_blocks + 2.0, 6.0 * (a.n_blocks + 1));
    c.shape += fmt::format(", {} blocks", a.n_blocks);
    return c;
  }
  return {};
}

}  // namespace weft::bench
