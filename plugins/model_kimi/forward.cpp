#include "forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace weft_kimi {
namespace {

uint64_t round_up(uint64_t n) { return (n + 63) & ~uint64_t{63}; }

template <class Op>
void set_activation(const Config& c, Op* op) {
  op->act = c.situ ? WEFT_ACT_SITU : WEFT_ACT_SILU;
  op->beta = c.situ_beta;
  op->up_beta = c.situ_up_beta;
}

}  // namespace

CacheLayout CacheLayout::make(const Config& c, uint32_t page_tokens, uint32_t row_dtype) {
  CacheLayout l;
  if (c.mla_layers() != 0) {
    l.page_tokens = page_tokens;
    l.row_dtype = row_dtype;
    l.row_bytes = uint64_t{c.row_width()} * (row_dtype == WEFT_F32 ? 4 : 2);
    l.page_bytes = l.row_bytes * page_tokens * c.mla_layers();
  }
  if (c.kda_layers() != 0) {
    l.state_bytes = round_up(uint64_t{c.kda_width()} * c.kda_dim * sizeof(float));
    l.conv_bytes = round_up(3 * uint64_t{c.kda_width()} * (c.taps - 1) * sizeof(float));
    l.conv_offset = l.state_bytes * c.kda_layers();
    l.slot_bytes = l.conv_offset + l.conv_bytes * c.kda_layers();
  }
  return l;
}

Fault TextKernels::find(const KernelSet& set, const Config& c, const Weights& w,
                        uint32_t row_dtype) {
  KIMI_TRY(set.find("embed", w.embed.dtype, &embed));
  KIMI_TRY(set.find("norm", 0, &norm));
  KIMI_TRY(set.find("gemm", WEFT_BF16, &gemm_bf16));
  KIMI_TRY(set.find("gemm", WEFT_F32, &gemm_f32));
  KIMI_TRY(set.find("gemm_group", WEFT_BF16, &group_bf16));
  KIMI_TRY(set.find("gemm_group", WEFT_F32, &group_f32));
  KIMI_TRY(set.find("glu", 0, &glu));
  KIMI_TRY(set.find("add", 0, &add));
  KIMI_TRY(set.find("gather", 0, &gather));
  if (c.res_block != 0) KIMI_TRY(set.find("attnres", 0, &attnres));
  if (c.kda_layers() != 0) {
    KIMI_TRY(set.find("kda_step", 0, &kda_step));
    KIMI_TRY(set.find("kda_chunk", 0, &kda_chunk));
  }
  if (c.mla_layers() != 0) {
    KIMI_TRY(set.find("mla_store", row_dtype, &mla_store));
    KIMI_TRY(set.find("mla_decode", row_dtype, &mla_decode));
    KIMI_TRY(set.find("mla_prefill", row_dtype, &mla_prefill));
  }
  for (const LayerWeights& layer : w.layers) {
    if (layer.moe.w1.empty()) continue;
    KIMI_TRY(set.find("route", 0, &route));
    const uint32_t dtype = layer.moe.w1[0].dtype;
    const weft_kernel** slot = dtype == WEFT_MXFP4 ? &moe_mxfp4
                               : dtype == WEFT_F32 ? &moe_f32
                                                   : &moe_bf16;
    KIMI_TRY(set.find("moe", dtype, slot));
  }
  return {};
}

TextBuffers TextBuffers::carve(const Config& c, uint64_t rows, uint64_t logit_rows,
                               Carver& carver) {
  TextBuffers b;
  b.max_rows = rows;
  const uint64_t slots = uint64_t{c.snapshots()} + 1;
  b.stream = carver.take<float>(slots * rows * c.hidden);
  b.x = carver.take<float>(rows * c.hidden);
  // Attention, feed-forward and the output head follow each other and share what comes now.
  const uint64_t shared = carver.mark();
  if (c.kda_layers() != 0) {
    const uint64_t wide = rows * c.kda_width();
    for (float** p : {&b.q, &b.k, &b.v, &b.f, &b.u, &b.o}) *p = carver.take<float>(wide);
    b.b = carver.take<float>(rows * c.kda_heads);
    b.low = carver.take<float>(rows * c.kda_dim);
    b.gate_low = carver.take<float>(rows * c.kda_dim);
  }
  carver.rewind(shared);
  if (c.mla_layers() != 0) {
    if (c.q_lora != 0) b.mla_qa = carver.take<float>(rows * c.q_lora);
    b.mla_q = carver.take<float>(rows * c.heads * c.q_dim());
    b.mla_c = carver.take<float>(rows * c.row_width());
    if (c.mla_gate) b.mla_u = carver.take<float>(rows * c.heads * c.v_dim);
    b.mla_o = carver.take<float>(rows * c.heads * c.v_dim);
  }
  carver.rewind(shared);
  const uint64_t width = std::max(c.dense_width, c.shared_width());
  b.gate = carver.take<float>(rows * width);
  b.up = carver.take<float>(rows * width);
  if (c.experts != 0) {
    b.logits = carver.take<float>(rows * c.experts);
    b.route_w = carver.take<float>(rows * c.topk);
    b.route_id = carver.take<uint16_t>(rows * c.topk);
    if (c.latent != 0) b.latent = carver.take<float>(rows * c.latent);
    b.expert = carver.take<float>(rows * c.expert_width());
  }
  carver.rewind(shared);
  b.tail = carver.take<float>(slots * logit_rows * c.hidden);
  b.tail_x = carver.take<float>(logit_rows * c.hidden);
  carver.seek_end();
  return b;
}

Fault TextForward::run(const BatchPlan& plan, const float* media, float* logits) {
  plan_ = &plan;
  rows_ = plan.rows();
  snapshots_ = 0;
  fresh_ = false;
  KIMI_TRY(embed(media));
  for (uint32_t i = 0; i < c_.layers; ++i) KIMI_TRY(layer(i));
  if (plan.logit_rows() == 0) return {};
  return head(logits);
}

Fault TextForward::embed(const float* media) {
  auto op = run_.args<weft_op_embed>();
  op.n_rows = rows_;
  op.id = plan_->tokens();
  op.table = w_.embed;
  op.y = prefix();
  op.y_stride = c_.hidden;
  KIMI_TRY(run_.run(k_.embed, op));
  if (run_.is_dry()) return {};
  for (uint32_t k = 0; k < plan_->media_rows(); ++k) {
    std::memcpy(prefix() + uint64_t{plan_->media_row()[k]} * c_.hidden,
                media + uint64_t{k} * c_.hidden, c_.hidden * sizeof(float));
  }
  return {};
}

Fault TextForward::layer(uint32_t i) {
  const LayerWeights& w = w_.layers[i];
  KIMI_TRY(mixed_norm(w.attn_mix, w.input_norm));
  if (c_.res_block != 0 && i % c_.res_block == 0) {
    ++snapshots_;  // the old prefix stays behind as the newest snapshot
    fresh_ = true;
  }
  uint32_t index = 0;  // among the layers of the same kind
  for (uint32_t j = 0; j < i; ++j) index += c_.is_kda[j] == c_.is_kda[i] ? 1 : 0;
  KIMI_TRY(c_.is_kda[i] ? kda(w.kda, index) : mla(w.mla, index));
  KIMI_TRY(mixed_norm(w.mlp_mix, w.post_norm));
  return c_.is_moe[i] ? moe(w.moe) : dense(w.dense, c_.dense_width);
}

// x = rms(mix(snapshots, prefix)), or of the prefix alone where nothing is mixed.
Fault TextForward::mixed_norm(const float* mix, const float* w) {
  if (c_.res_block == 0 || snapshots_ == 0) return norm(prefix(), c_.hidden, w, c_.eps, buf_.x);
  weft_op_attnres op = mix_op(stream_slot(0), buf_.max_rows * c_.hidden, mix);
  op.n_rows = rows_;
  op.prefix = prefix();
  op.norm_w = w;
  op.y = buf_.x;
  return run_.run(k_.attnres, op);
}

weft_op_attnres TextForward::mix_op(const float* blocks, uint64_t block_stride, const float* q) {
  auto op = run_.args<weft_op_attnres>();
  op.n_cols = c_.hidden;
  op.n_blocks = snapshots_;
  op.blocks = blocks;
  op.block_stride = block_stride;
  op.row_stride = op.prefix_stride = op.y_stride = c_.hidden;
  op.q = q;
  op.eps = op.norm_eps = c_.eps;
  return op;
}

Fault TextForward::norm(const float* x, uint32_t cols, const float* w, float eps, float* y) {
  auto op = run_.args<weft_op_norm>();
  op.n_rows = rows_;
  op.n_cols = cols;
  op.x = x;
  op.w = w;
  op.eps = eps;
  op.y = y;
  op.x_stride = op.y_stride = cols;
  return run_.run(k_.norm, op);
}

Fault TextForward::gemm(const float* x, const weft_weight& w, float* y, bool add) {
  auto op = run_.args<weft_op_gemm>();
  op.n_rows = rows_;
  op.mode = add ? WEFT_GEMM_ADD : 0;
  op.x = x;
  op.x_stride = w.k;
  op.w = w;
  op.y = y;
  op.y_stride = w.n;
  op.y_dtype = WEFT_F32;
  return run_.run(k_.gemm(w), op);
}

Fault TextForward::products(std::initializer_list<Product> list) {
  for (const uint32_t dtype : {uint32_t{WEFT_BF16}, uint32_t{WEFT_F32}}) {
    weft_gemm_out out[8];
    auto op = run_.args<weft_op_gemm_group>();
    for (const Product& p : list) {
      if (p.w->dtype != dtype) continue;
      out[op.n_out++] = {*p.w, p.y, p.w->n, 0, 0};
    }
    if (op.n_out == 0) continue;
    op.n_rows = rows_;
    op.x = buf_.x;
    op.x_stride = c_.hidden;
    op.out = out;
    op.y_dtype = WEFT_F32;
    KIMI_TRY(run_.run(k_.gemm_group(dtype), op));
  }
  return {};
}

Fault TextForward::into_stream(const float* x, const weft_weight& w) {
  const bool add = !fresh_;
  fresh_ = false;
  return gemm(x, w, prefix(), add);
}

Fault TextForward::kda(const KdaWeights& w, uint32_t index) {
  const bool full = c_.full_rank_gate;
  KIMI_TRY(products({{&w.q, buf_.q},
                     {&w.k, buf_.k},
                     {&w.v, buf_.v},
                     {full ? &w.g : &w.g_a, full ? buf_.u : buf_.gate_low},
                     {&w.f_a, buf_.low},
                     {&w.b, buf_.b}}));
  KIMI_TRY(gemm(buf_.low, w.f_b, buf_.f));
  if (!full) KIMI_TRY(gemm(buf_.gate_low, w.g_b, buf_.u));
  KIMI_TRY(kda_range(w, index, plan_->step_range(), k_.kda_step));
  KIMI_TRY(kda_range(w, index, plan_->chunk_range(), k_.kda_chunk));
  return into_stream(buf_.o, w.o);
}

Fault TextForward::kda_range(const KdaWeights& w, uint32_t index, const RowRange& range,
                             const weft_kernel* kernel) {
  if (range.n_seqs == 0) return {};
  auto op = run_.args<weft_op_kda>();
  op.rows = {range.n_seqs, range.n_rows, range.seq_start, range.context};
  op.heads = c_.kda_heads;
  op.head_k = op.head_v = c_.kda_dim;
  op.taps = c_.taps;
  op.gate = c_.bounded_decay ? WEFT_KDA_GATE_BOUNDED : WEFT_KDA_GATE_SOFTPLUS;
  op.bound = c_.decay_bound;
  op.chunk = s_.kda_chunk;
  op.norm_eps = c_.eps;
  const uint64_t width = c_.kda_width(), at = range.first_row * width;
  op.q = shift(buf_.q, at);
  op.k = shift(buf_.k, at);
  op.v = shift(buf_.v, at);
  op.f = shift(buf_.f, at);
  op.u = shift(buf_.u, at);
  op.y = shift(buf_.o, at);
  op.b = shift(buf_.b, uint64_t{range.first_row} * c_.kda_heads);
  op.q_stride = op.k_stride = op.v_stride = op.f_stride = op.u_stride = op.y_stride = width;
  op.b_stride = c_.kda_heads;
  op.conv_q = w.conv_q;
  op.conv_k = w.conv_k;
  op.conv_v = w.conv_v;
  op.a_log = w.a_log;
  op.dt_bias = w.dt_bias;
  op.o_norm = w.o_norm;
  std::byte* slots = static_cast<std::byte*>(arenas_.slots);
  op.state = shift(slots, index * layout_.state_bytes);
  op.conv_state = shift(slots, layout_.conv_offset + index * layout_.conv_bytes);
  op.state_stride = op.conv_stride = arenas_.slot_stride;
  op.read_slot = range.read_slot;
  op.write_slot = range.write_slot;
  return run_.run(kernel, op);
}

weft_mla_pages TextForward::pages(uint32_t index, const RowRange& range) const {
  weft_mla_pages p{};
  p.base = shift(static_cast<std::byte*>(arenas_.pages),
                 index * layout_.row_bytes * layout_.page_tokens);
  p.page_stride = arenas_.page_stride;
  p.page_tokens = layout_.page_tokens;
  p.dtype = layout_.row_dtype;
  p.latent = c_.kv_lora;
  p.tail = c_.tail;
  p.table = range.table;
  p.table_stride = plan_->table_stride();
  return p;
}

Fault TextForward::mla(const MlaWeights& w, uint32_t index) {
  const bool low_rank = c_.q_lora != 0;
  const Product q = {low_rank ? &w.q_a : &w.q, low_rank ? buf_.mla_qa : buf_.mla_q};
  if (c_.mla_gate)
    KIMI_TRY(products({q, {&w.kv_a, buf_.mla_c}, {&w.g, buf_.mla_u}}));
  else
    KIMI_TRY(products({q, {&w.kv_a, buf_.mla_c}}));
  if (low_rank) {
    KIMI_TRY(norm(buf_.mla_qa, c_.q_lora, w.q_norm, s_.lora_eps, buf_.mla_qa));
    KIMI_TRY(gemm(buf_.mla_qa, w.q_b, buf_.mla_q));
  }
  KIMI_TRY(mla_range(w, index, plan_->step_range(), k_.mla_decode));
  KIMI_TRY(mla_range(w, index, plan_->chunk_range(), k_.mla_prefill));
  return into_stream(buf_.mla_o, w.o);
}

Fault TextForward::mla_range(const MlaWeights& w, uint32_t index, const RowRange& range,
                             const weft_kernel* kernel) {
  if (range.n_seqs == 0) return {};
  const weft_rows rows = {range.n_seqs, range.n_rows, range.seq_start, range.context};
  auto store = run_.args<weft_op_mla_store>();
  store.rows = rows;
  store.x = shift(buf_.mla_c, uint64_t{range.first_row} * c_.row_width());
  store.x_stride = c_.row_width();
  store.w = w.kv_norm;
  store.eps = s_.lora_eps;
  store.pages = pages(index, range);
  KIMI_TRY(run_.run(k_.mla_store, store));

  auto op = run_.args<weft_op_mla>();
  op.rows = rows;
  op.heads = c_.heads;
  op.nope = c_.nope;
  op.v_dim = c_.v_dim;
  op.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c_.q_dim())));
  op.q_stride = uint64_t{c_.heads} * c_.q_dim();
  op.q = shift(buf_.mla_q, range.first_row * op.q_stride);
  op.kv_b = w.kv_b;
  op.pages = store.pages;
  op.u_stride = op.y_stride = uint64_t{c_.heads} * c_.v_dim;
  op.u = shift(buf_.mla_u, range.first_row * op.u_stride);
  op.y = shift(buf_.mla_o, range.first_row * op.y_stride);
  return run_.run(kernel, op);
}

Fault TextForward::dense(const MlpWeights& w, uint32_t width) {
  KIMI_TRY(products({{&w.gate, buf_.gate}, {&w.up, buf_.up}}));
  return gated_down(w, width);
}

Fault TextForward::gated_down(const MlpWeights& w, uint32_t width) {
  auto op = run_.args<weft_op_glu>();
  op.n_rows = rows_;
  op.n_cols = width;
  set_activation(c_, &op);
  op.gate = op.y = buf_.gate;
  op.up = buf_.up;
  op.gate_stride = op.up_stride = op.y_stride = width;
  KIMI_TRY(run_.run(k_.glu, op));
  return into_stream(buf_.gate, w.down);
}

Fault TextForward::moe(const MoeWeights& w) {
  // A part that this model lacks has an empty matrix, which products() passes over.
  KIMI_TRY(products({{&w.router, buf_.logits},
                     {&w.down, buf_.latent},
                     {&w.shared.gate, buf_.gate},
                     {&w.shared.up, buf_.up}}));
  if (c_.latent != 0) {
    KIMI_TRY(experts(w, buf_.latent, buf_.expert));
    if (c_.latent_norm) KIMI_TRY(norm(buf_.expert, c_.latent, w.latent_norm, c_.eps, buf_.expert));
    KIMI_TRY(into_stream(buf_.expert, w.up));
  } else {
    KIMI_TRY(experts(w, buf_.x, buf_.expert));
    auto op = run_.args<weft_op_add>();
    op.n_rows = rows_;
    op.n_cols = c_.hidden;
    op.a = op.y = prefix();
    op.b = buf_.expert;
    op.a_stride = op.b_stride = op.y_stride = c_.hidden;
    KIMI_TRY(run_.run(k_.add, op));
  }
  return c_.shared != 0 ? gated_down(w.shared, c_.shared_width()) : Fault{};
}

Fault TextForward::experts(const MoeWeights& w, const float* x, float* y) {
  auto route = run_.args<weft_op_route>();
  route.n_rows = rows_;
  route.n_experts = c_.experts;
  route.topk = c_.topk;
  route.kind = c_.softmax_router ? WEFT_ROUTE_SOFTMAX : WEFT_ROUTE_SIGMOID;
  route.n_groups = c_.groups;
  route.group_topk = c_.group_topk;
  route.renorm = c_.renorm && c_.topk > 1 ? 1 : 0;  // a single expert keeps its score as weight
  route.scale = c_.route_scale;
  route.logits = buf_.logits;
  route.logits_stride = c_.experts;
  route.bias = w.bias;
  route.id = buf_.route_id;
  route.w = buf_.route_w;
  KIMI_TRY(run_.run(k_.route, route));
  if (s_.biased_router && !run_.is_dry()) bias_weights(w);

  auto op = run_.args<weft_op_moe>();
  op.n_rows = rows_;
  op.topk = c_.topk;
  op.n_local = c_.experts;
  op.mode = s_.moe_mode;
  set_activation(c_, &op);
  op.x = x;
  op.x_stride = op.y_stride = c_.expert_width();
  op.id = buf_.route_id;
  op.w = buf_.route_w;
  op.w1 = w.w1.data();
  op.w2 = w.w2.data();
  op.w3 = w.w3.data();
  op.y = y;
  const uint32_t dtype = w.w1[0].dtype;
  return run_.run(dtype == WEFT_MXFP4 ? k_.moe_mxfp4
                  : dtype == WEFT_F32 ? k_.moe_f32
                                      : k_.moe_bf16,
                  op);
}

// Replaces the weights s[id] by the biased scores z[id] = s[id] + bias[id], renormalised and scaled
// alike.
void TextForward::bias_weights(const MoeWeights& w) {
  for (uint64_t r = 0; r < rows_; ++r) {
    const float* logits = buf_.logits + r * c_.experts;
    const uint16_t* id = buf_.route_id + r * c_.topk;
    float* out = buf_.route_w + r * c_.topk;
    double highest = 0, total = 0;
    if (c_.softmax_router) {
      highest = *std::max_element(logits, logits + c_.experts);
      for (uint32_t e = 0; e < c_.experts; ++e) total += std::exp(logits[e] - highest);
    }
    double sum = 0;
    for (uint32_t j = 0; j < c_.topk; ++j) {
      const double logit = logits[id[j]];
      const double score =
          c_.softmax_router ? std::exp(logit - highest) / total : 1 / (1 + std::exp(-logit));
      const double z = score + w.bias[id[j]];
      out[j] = static_cast<float>(z);
      sum += z;
    }
    const double divisor = c_.renorm && c_.topk > 1 ? sum + 1e-20 : 1.0;
    for (uint32_t j = 0; j < c_.topk; ++j) {
      out[j] = static_cast<float>(out[j] / divisor * c_.route_scale);
    }
  }
}

// Only the rows whose logits are asked for reach the last mix, the final norm and the head.
Fault TextForward::head(float* logits) {
  const uint32_t n = plan_->logit_rows();
  for (uint32_t slot = 0; slot <= snapshots_; ++slot) {
    auto op = run_.args<weft_op_gather>();
    op.n_rows = n;
    op.n_cols = c_.hidden;
    op.row = plan_->logit_row();
    op.x = stream_slot(slot);
    op.y = shift(buf_.tail, uint64_t{slot} * n * c_.hidden);
    op.x_stride = op.y_stride = c_.hidden;
    KIMI_TRY(run_.run(k_.gather, op));
  }
  const float* last = shift(buf_.tail, uint64_t{snapshots_} * n * c_.hidden);
  rows_ = n;
  if (c_.res_block != 0) {
    weft_op_attnres op = mix_op(buf_.tail, uint64_t{n} * c_.hidden, w_.final_mix);
    op.n_rows = n;
    op.prefix = last;
    op.norm_w = w_.norm;
    op.y = buf_.tail_x;
    KIMI_TRY(run_.run(k_.attnres, op));
  } else {
    KIMI_TRY(norm(last, c_.hidden, w_.norm, c_.eps, buf_.tail_x));
  }
  return gemm(buf_.tail_x, c_.tied_embeddings ? w_.embed : w_.head, logits);
}

}  // namespace weft_kimi
