#include "bench/op_args.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

namespace weft::bench {
namespace {

constexpr uint32_t kPageTokens = 32;  // as the engine asks for

// Copies of one argument struct, with what their pointers point to.
template <class Op>
class CaseOf : public OpCase {
 public:
  CaseOf(const OpRequest& request, OpMemory& memory) : r_(request), m_(memory) {}
  size_t copies() const override { return ops_.size(); }
  void* args(size_t copy) override { return &ops_[copy]; }

 protected:
  Op& fresh() {
    ops_.emplace_back();
    ops_.back() = Op{};
    ops_.back().head.struct_size = sizeof(Op);
    return ops_.back();
  }
  // The same activations for every copy, made once; `slot` numbers the arrays of a case.
  float* shared(size_t slot, uint64_t n) {
    if (slot >= shared_.size()) shared_.resize(slot + 1, nullptr);
    if (shared_[slot] == nullptr) shared_[slot] = m_.floats(n);
    return shared_[slot];
  }
  uint32_t get(const char* key, uint32_t fallback) const { return r_.get(key, fallback); }

  const OpRequest r_;
  OpMemory& m_;

 private:
  std::deque<Op> ops_;  // stable addresses
  std::vector<float*> shared_;
};

class GemmCase : public CaseOf<weft_op_gemm> {
 public:
  using CaseOf::CaseOf;
  Status add_copy() override {
    const uint32_t n = get("n", 1024), k = get("k", 1024), rows = get("rows", 1);
    WEFT_ASSIGN(const weft_weight w, m_.weight(r_.dtype, n, k));
    weft_op_gemm& op = fresh();
    op.n_rows = rows;
    op.w = w;
    op.x = shared(0, uint64_t{rows} * k);
    op.x_stride = k;
    op.y = shared(1, uint64_t{rows} * n);
    op.y_stride = n;
    op.y_dtype = WEFT_F32;
    return {};
  }
};

class GemmGroupCase : public CaseOf<weft_op_gemm_group> {
 public:
  using CaseOf::CaseOf;
  Status add_copy() override {
    const uint32_t parts = get("parts", 4), n = get("n", 1024), k = get("k", 1024);
    const uint32_t rows = get("rows", 1);
    if (parts > 16) return make_error(ErrorCode::kInvalid, "parts={}: at most 16", parts);
    outs_.emplace_back();
    for (uint32_t i = 0; i < parts; ++i) {
      weft_gemm_out out{};
      WEFT_ASSIGN(out.w, m_.weight(r_.dtype, n, k));
      out.y = shared(1 + i, uint64_t{rows} * n);
      out.y_stride = n;
      outs_.back().push_back(out);
    }
    weft_op_gemm_group& op = fresh();
    op.n_rows = rows;
    op.n_out = parts;
    op.x = shared(0, uint64_t{rows} * k);
    op.x_stride = k;
    op.out = outs_.back().data();
    op.y_dtype = WEFT_F32;
    return {};
  }

 private:
  std::deque<std::vector<weft_gemm_out>> outs_;
};

class MoeCase : public CaseOf<weft_op_moe> {
 public:
  using CaseOf::CaseOf;
  Status add_copy() override {
    const uint32_t experts = get("experts", 64), topk = get("topk", 8), rows = get("rows", 1);
    const uint32_t inner = get("inner", 512), width = get("width", 512);
    if (topk > experts || experts > 65535) {
      return make_error(ErrorCode::kInvalid, "expected topk ({}) <= experts ({}) <= 65535", topk,
                        experts);
    }
    weights_.emplace_back();
    Weights& w = weights_.back();
    for (uint32_t e = 0; e < experts; ++e) {
      WEFT_ASSIGN(const weft_weight w1, m_.weight(r_.dtype, inner, width));
      WEFT_ASSIGN(const weft_weight w2, m_.weight(r_.dtype, width, inner));
      WEFT_ASSIGN(const weft_weight w3, m_.weight(r_.dtype, inner, width));
      w.w1.push_back(w1);
      w.w2.push_back(w2);
      w.w3.push_back(w3);
    }
    choose(rows, topk, experts, &w);
    weft_op_moe& op = fresh();
    op.n_rows = rows;
    op.topk = topk;
    op.mode = get("int8", 0) != 0 ? uint32_t{WEFT_MOE_INT8} : 0;
    op.n_local = experts;
    op.act = WEFT_ACT_SITU;
    op.beta = 4;
    op.up_beta = 25;
    op.x = shared(0, uint64_t{rows} * width);
    op.y = shared(1, uint64_t{rows} * width);
    op.x_stride = op.y_stride = width;
    op.id = w.id.data();
    op.w = w.share.data();
    op.w1 = w.w1.data();
    op.w2 = w.w2.data();
    op.w3 = w.w3.data();
    return {};
  }

 private:
  struct Weights {
    std::vector<weft_weight> w1, w2, w3;
    std::vector<uint16_t> id;
    std::vector<float> share;
  };
  // topk different experts for every row, all equally likely.
  void choose(uint32_t rows, uint32_t topk, uint32_t experts, Weights* w) {
    std::vector<uint16_t> deck(experts);
    std::iota(deck.begin(), deck.end(), uint16_t{0});
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t j = 0; j < topk; ++j) {
        std::swap(deck[j], deck[j + m_.random() % (experts - j)]);
        w->id.push_back(deck[j]);
        w->share.push_back(1.0f / static_cast<float>(topk));
      }
    }
  }
  std::deque<Weights> weights_;
};

// Rows of `seqs` sequences of equal length, as the row descriptors of attention want them.
struct RowSet {
  std::vector<uint32_t> start, context;
  std::vector<int32_t> slot, table;
  uint32_t stride = 0;

  RowSet(uint32_t seqs, uint32_t rows_each, uint32_t tokens) {
    stride = (tokens + rows_each + kPageTokens - 1) / kPageTokens;
    for (uint32_t i = 0; i <= seqs; ++i) start.push_back(i * rows_each);
    context.assign(seqs, tokens);
    slot.resize(seqs);
    std::iota(slot.begin(), slot.end(), 0);
    table.resize(uint64_t{seqs} * stride);
    std::iota(table.begin(), table.end(), 0);
  }
  weft_rows rows() const {
    return {static_cast<uint32_t>(context.size()), start.back(), start.data(), context.data()};
  }
};

class KdaCase : public CaseOf<weft_op_kda> {
 public:
  KdaCase(const OpRequest& request, OpMemory& memory)
      : CaseOf(request, memory),
        seqs_(get("seqs", 1)),
        rows_(seqs_, request.op == "kda_step" ? 1 : get("rows", 512), get("context", 512)) {}

  Status add_copy() override {
    const uint32_t heads = get("heads", 8), dim = get("dim", 128), taps = 4;
    const uint64_t width = uint64_t{heads} * dim, rows = rows_.start.back();
    weft_op_kda& op = fresh();
    op.rows = rows_.rows();
    op.heads = heads;
    op.head_k = op.head_v = dim;
    op.taps = taps;
    op.gate = WEFT_KDA_GATE_BOUNDED;
    op.bound = -5;
    op.chunk = r_.get("chunk", 0);
    op.norm_eps = 1e-5f;
    const void** inputs[] = {&op.q, &op.k, &op.v, &op.f, &op.u};
    for (size_t i = 0; i < 5; ++i) *inputs[i] = shared(i, rows * width);
    op.q_stride = op.k_stride = op.v_stride = op.f_stride = op.u_stride = op.y_stride = width;
    op.b = shared(5, rows * heads);
    op.b_stride = heads;
    op.conv_q = shared(6, width * taps);
    op.conv_k = shared(7, width * taps);
    op.conv_v = shared(8, width * taps);
    op.a_log = shared(9, heads);
    op.dt_bias = shared(10, width);
    op.o_norm = shared(11, dim);
    op.y = shared(12, rows * width);
    const uint64_t state = width * dim, history = 3 * width * (taps - 1);
    op.state = m_.floats(state * seqs_);
    op.conv_state = m_.floats(history * seqs_);
    op.state_stride = state * sizeof(float);
    op.conv_stride = history * sizeof(float);
    op.read_slot = op.write_slot = rows_.slot.data();
    if (op.state == nullptr || op.conv_state == nullptr) {
      return make_error(ErrorCode::kUnavailable, "no memory for {} states", seqs_);
    }
    return {};
  }

 private:
  const uint32_t seqs_;
  const RowSet rows_;
};

class MlaCase : public CaseOf<weft_op_mla> {
 public:
  MlaCase(const OpRequest& request, OpMemory& memory)
      : CaseOf(request, memory),
        seqs_(get("seqs", 1)),
        rows_(seqs_, request.op == "mla_decode" ? 1 : get("rows", 512), get("context", 1024)) {}

  Status add_copy() override {
    const uint32_t heads = get("heads", 8), latent = get("latent", 512), tail = get("tail", 64);
    const uint32_t nope = get("nope", 128), v = get("v", 128);
    const uint64_t rows = rows_.start.back(), width = latent + tail;
    const uint64_t size = r_.dtype == WEFT_F32 ? 4 : 2;
    // kv_b is a weight as well, and taken apart by head: row-major.
    WEFT_ASSIGN(const weft_weight kv_b, m_.weight(WEFT_BF16, uint64_t{heads} * (nope + v), latent,
                                                  /*row_major=*/true));
    weft_op_mla& op = fresh();
    op.rows = rows_.rows();
    op.heads = heads;
    op.nope = nope;
    op.v_dim = v;
    op.scale = 1.0f / std::sqrt(static_cast<float>(nope + tail));
    op.q_stride = uint64_t{heads} * (nope + tail);
    op.q = shared(0, rows * op.q_stride);
    op.u_stride = op.y_stride = uint64_t{heads} * v;
    op.u = shared(1, rows * op.u_stride);
    op.y = shared(2, rows * op.y_stride);
    op.kv_b = kv_b;
    op.pages.page_tokens = kPageTokens;
    op.pages.dtype = r_.dtype;
    op.pages.latent = latent;
    op.pages.tail = tail;
    op.pages.page_stride = kPageTokens * width * size;
    op.pages.table = rows_.table.data();
    op.pages.table_stride = rows_.stride;
    WEFT_ASSIGN(op.pages.base, cached_rows(rows_.table.size() * kPageTokens * width));
    return {};
  }

 private:
  Result<void*> cached_rows(uint64_t numbers) {
    void* base = nullptr;
    if (r_.dtype == WEFT_F32) {
      base = m_.floats(numbers);
    } else if ((base = m_.bytes(numbers * 2)) != nullptr) {
      // bf16 numbers from 0.5 to 1 of both signs.
      for (uint64_t i = 0; i < numbers; ++i) {
        static_cast<uint16_t*>(base)[i] = static_cast<uint16_t>((m_.random() & 0x807f) | 0x3f00);
      }
    }
    if (base == nullptr) return make_error(ErrorCode::kUnavailable, "no memory for cached rows");
    return base;
  }
  const uint32_t seqs_;
  const RowSet rows_;
};

class NormCase : public CaseOf<weft_op_norm> {
 public:
  using CaseOf::CaseOf;
  Status add_copy() override {
    weft_op_norm& op = fresh();
    op.n_rows = get("rows", 1);
    op.n_cols = get("cols", 1024);
    op.x = m_.floats(uint64_t{op.n_rows} * op.n_cols);
    op.w = shared(0, op.n_cols);
    op.eps = 1e-5f;
    op.y = m_.floats(uint64_t{op.n_rows} * op.n_cols);
    op.x_stride = op.y_stride = op.n_cols;
    return {};
  }
};

class GluCase : public CaseOf<weft_op_glu> {
 public:
  using CaseOf::CaseOf;
  Status add_copy() override {
    weft_op_glu& op = fresh();
    op.n_rows = get("rows", 1);
    op.n_cols = get("cols", 4096);
    op.act = WEFT_ACT_SITU;
    op.beta = 4;
    op.up_beta = 25;
    op.gate = m_.floats(uint64_t{op.n_rows} * op.n_cols);
    op.up = m_.floats(uint64_t{op.n_rows} * op.n_cols);
    op.y = m_.floats(uint64_t{op.n_rows} * op.n_cols);
    op.gate_stride = op.up_stride = op.y_stride = op.n_cols;
    return {};
  }
};

class AttnresCase : public CaseOf<weft_op_attnres> {
 public:
  using CaseOf::CaseOf;
  Status add_copy() override {
    weft_op_attnres& op = fresh();
    op.n_rows = get("rows", 1);
    op.n_cols = get("cols", 1024);
    op.n_blocks = get("blocks", 3);
    const uint64_t plane = uint64_t{op.n_rows} * op.n_cols;
    op.blocks = m_.floats(plane * op.n_blocks);
    op.block_stride = plane;
    op.prefix = m_.floats(plane);
    op.q = shared(0, op.n_cols);
    op.norm_w = shared(1, op.n_cols);
    op.eps = op.norm_eps = 1e-5f;
    op.y = m_.floats(plane);
    op.row_stride = op.prefix_stride = op.y_stride = op.n_cols;
    return {};
  }
};

class RouteCase : public CaseOf<weft_op_route> {
 public:
  using CaseOf::CaseOf;
  Status add_copy() override {
    weft_op_route& op = fresh();
    op.n_rows = get("rows", 1);
    op.n_experts = get("experts", 64);
    op.topk = get("topk", 8);
    op.kind = WEFT_ROUTE_SIGMOID;
    op.n_groups = op.group_topk = op.renorm = 1;
    op.scale = 1;
    op.logits = m_.floats(uint64_t{op.n_rows} * op.n_experts);
    op.logits_stride = op.n_experts;
    op.bias = shared(0, op.n_experts);
    const uint64_t chosen = uint64_t{op.n_rows} * op.topk;
    op.id = static_cast<uint16_t*>(m_.bytes(chosen * sizeof(uint16_t)));
    op.w = m_.floats(chosen);
    return {};
  }
};

}  // namespace

uint32_t OpRequest::get(const char* key, uint32_t fallback) const {
  const auto it = shape.find(key);
  return it == shape.end() ? fallback : it->second;
}

const std::vector<std::string>& measurable_ops() {
  static const std::vector<std::string> ops = {"gemm",      "gemm_group", "moe",         "kda_step",
                                               "kda_chunk", "mla_decode", "mla_prefill", "norm",
                                               "glu",       "attnres",    "route"};
  return ops;
}

uint32_t kernel_dtype(const OpRequest& r) {
  const bool has_dtype = r.op == "gemm" || r.op == "gemm_group" || r.op == "moe" ||
                         r.op == "mla_decode" || r.op == "mla_prefill";
  return has_dtype ? r.dtype : uint32_t{WEFT_DTYPE_NONE};
}

Result<std::unique_ptr<OpCase>> make_case(const OpRequest& r, OpMemory& memory,
                                          uint32_t act_dtype) {
  if (act_dtype != WEFT_F32) {
    return make_error(ErrorCode::kUnsupported,
                      "only kernels with f32 activations can be measured alone");
  }
  std::unique_ptr<OpCase> made;
  if (r.op == "gemm") made = std::make_unique<GemmCase>(r, memory);
  if (r.op == "gemm_group") made = std::make_unique<GemmGroupCase>(r, memory);
  if (r.op == "moe") made = std::make_unique<MoeCase>(r, memory);
  if (r.op == "kda_step" || r.op == "kda_chunk") made = std::make_unique<KdaCase>(r, memory);
  if (r.op == "mla_decode" || r.op == "mla_prefill") made = std::make_unique<MlaCase>(r, memory);
  if (r.op == "norm") made = std::make_unique<NormCase>(r, memory);
  if (r.op == "glu") made = std::make_unique<GluCase>(r, memory);
  if (r.op == "attnres") made = std::make_unique<AttnresCase>(r, memory);
  if (r.op == "route") made = std::make_unique<RouteCase>(r, memory);
  if (made == nullptr) {
    return make_error(ErrorCode::kInvalid, "operation \"{}\": expected one of {}", r.op,
                      fmt::join(measurable_ops(), ", "));
  }
  return made;
}

}  // namespace weft::bench
