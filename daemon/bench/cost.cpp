#include "bench/cost.h"

#include <cmath>

namespace weft::bench {
namespace {

// Sequences with fewer rows in a step attend in the latent space, longer pieces with expanded keys.
constexpr uint32_t kExpandedRows = 32;

uint64_t mlp_parameters(const ModelShape& s, uint64_t width) { return 3 * width * s.hidden; }

uint64_t delta_parameters(const ModelShape& s) {
  const uint64_t width = s.kda_width(), dim = s.head_dim;
  const uint64_t low_rank = dim * (s.hidden + width);
  const uint64_t gate = s.full_rank_gate ? width * s.hidden : low_rank;
  return 4 * width * s.hidden + low_rank + uint64_t{s.kda_heads} * s.hidden + gate;
}

uint64_t latent_parameters(const ModelShape& s) {
  const uint64_t q = s.q_lora != 0 ? uint64_t{s.q_lora} * (s.hidden + s.q_width())
                                   : uint64_t{s.q_width()} * s.hidden;
  const uint64_t heads_v = uint64_t{s.mla_heads} * s.v;
  return q + uint64_t{s.kv_lora + s.rope} * s.hidden +
         uint64_t{s.mla_heads} * (s.nope + s.v) * s.kv_lora +
         (s.mla_gate ? 2 : 1) * heads_v * s.hidden;
}

uint64_t norm_parameters(const ModelShape& s) {
  const uint64_t mix = s.block != 0 ? 2 * uint64_t{s.hidden} : 0;
  const uint64_t mla = s.count_mla(), kda = s.layers - mla, moe = s.count_moe();
  const uint64_t delta = 3 * 4 * uint64_t{s.kda_width()} + s.kda_heads + s.kda_width() + s.head_dim;
  const uint64_t layer = 2 * uint64_t{s.hidden} + 2 * mix;
  const uint64_t routed = s.experts + (s.latent != 0 && s.latent_norm ? s.latent : 0);
  return s.hidden + mix + s.layers * layer + kda * delta + mla * (s.q_lora + s.kv_lora) +
         moe * routed;
}

}  // namespace

std::vector<WeightPart> weight_parts(const ModelShape& s) {
  const double size = s.all_f32 ? 4 : 2;
  const double expert_size = s.mxfp4 ? 0.5 + 1.0 / 32 : size;
  const uint64_t mla = s.count_mla(), kda = s.layers - mla, moe = s.count_moe();
  const uint64_t expert = 3 * uint64_t{s.moe_inter} * s.expert_width();
  std::vector<WeightPart> out;
  const auto add = [&](const char* name, uint64_t count, uint64_t each, double bytes_each) {
    out.push_back(
        {name, count * each, static_cast<double>(count * each) * bytes_each, count * each});
  };
  add("embedding", 1, uint64_t{s.vocab} * s.hidden, size);
  out.back().per_row = 0;  // looked up
  add("delta attention", kda, delta_parameters(s), size);
  add("latent attention", mla, latent_parameters(s), size);
  add("dense layers", s.layers - moe, mlp_parameters(s, s.dense), size);
  add("router", moe, uint64_t{s.experts} * s.hidden, size);
  add("latent projections", moe, 2 * uint64_t{s.latent} * s.hidden, size);
  add("shared experts", moe, mlp_parameters(s, s.shared_width()), size);
  add("routed experts", moe * s.experts, expert, expert_size);
  out.back().per_row = moe * s.topk * expert;
  add("head", 1, uint64_t{s.vocab} * s.hidden, size);
  add("norms", 1, norm_parameters(s), size);
  out.back().per_row = 0;
  return out;
}

double weight_bytes(const ModelShape& shape) {
  double bytes = 0;
  for (const WeightPart& part : weight_parts(shape)) bytes += part.bytes;
  return bytes;
}

void StepCost::add(const StepCost& other) {
  weight_bytes += other.weight_bytes;
  expert_bytes += other.expert_bytes;
  state_bytes += other.state_bytes;
  row_bytes += other.row_bytes;
  flop += other.flop;
}

double expected_experts(uint32_t experts, uint32_t topk, double rows) {
  if (experts == 0) return 0;
  const double missed = std::pow(1 - static_cast<double>(topk) / experts, rows);
  return experts * (1 - missed);
}

StepCost step_cost(const ModelShape& s, const CacheBytes& cache, std::span<const RunCost> runs,
                   uint32_t logit_rows, double experts_per_layer) {
  StepCost cost;
  double rows = 0;
  const double mla = s.count_mla(), kda = s.layers - mla;
  const double heads = s.mla_heads, q_dim = s.nope + s.rope;
  for (const RunCost& run : runs) {
    const double n = run.rows, context = static_cast<double>(run.context);
    rows += n;
    const double pairs = n * context + n * (n + 1) / 2;
    const double expanded = 2 * q_dim + 2.0 * s.v;
    const double absorbed = 2.0 * (s.kv_lora + s.rope) + 2.0 * s.kv_lora;
    cost.flop += mla * heads * pairs * (run.rows >= kExpandedRows ? expanded : absorbed);
    cost.flop += kda * n * 7.0 * s.kda_heads * s.head_dim * s.head_dim;
    cost.state_bytes += cache.per_sequence * (run.context == 0 ? 1 : 2);
    cost.row_bytes += cache.per_token * (context + n);
  }
  cost.experts_per_layer =
      experts_per_layer >= 0 ? experts_per_layer : expected_experts(s.experts, s.topk, rows);
  for (const WeightPart& part : weight_parts(s)) {
    const double used = part.name == "head" ? logit_rows : rows;
    cost.flop += 2.0 * static_cast<double>(part.per_row) * used;
    if (part.name == "embedding") {
      cost.weight_bytes += part.bytes / s.vocab * rows;
    } else if (part.name == "routed experts") {
      if (s.experts != 0) cost.expert_bytes += part.bytes / s.experts * cost.experts_per_layer;
    } else if (part.name != "head" || logit_rows > 0) {
      cost.weight_bytes += part.bytes;
    }
  }
  return cost;
}

}  // namespace weft::bench
