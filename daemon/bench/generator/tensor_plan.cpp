#include "bench/generator/tensor_plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace weft::bench {
namespace {

// Weights are scaled so that activations keep about unit size through every layer.
class Planner {
 public:
  explicit Planner(const ModelShape& shape)
      : s_(shape), prefix_(shape.linear ? "" : "language_model.") {}

  std::vector<PlannedTensor> run() {
    matrix("model.embed_tokens.weight", s_.vocab, s_.hidden, std::sqrt(float(s_.hidden)));
    matrix("lm_head.weight", s_.vocab, s_.hidden);
    vector("model.norm.weight", s_.hidden);
    if (s_.block != 0) mix("model.output_attn_res");
    for (uint32_t i = 0; i < s_.layers; ++i) layer(i);
    return std::move(out_);
  }

 private:
  void add(PlannedTensor t) {
    t.name = prefix_ + t.name;
    if (s_.all_f32 && std::strcmp(t.dtype, "BF16") == 0) t.dtype = "F32";
    out_.push_back(std::move(t));
  }
  void matrix(const std::string& name, uint64_t n, uint64_t k, float gain = 1) {
    add({name, "BF16", {n, k}, Fill::kNormal, 0, gain / std::sqrt(static_cast<float>(k))});
  }
  void vector(const std::string& name, uint64_t n, const char* dtype = "BF16", float base = 1,
              float deviation = 0.05f) {
    add({name, dtype, {n}, Fill::kNormal, base, deviation});
  }
  void mix(const std::string& stem) {
    vector(stem + "_norm.weight", s_.hidden);
    matrix(stem + "_proj.weight", 1, s_.hidden);
  }

  void layer(uint32_t i) {
    const std::string base = fmt::format("model.layers.{}.", i);
    vector(base + "input_layernorm.weight", s_.hidden);
    vector(base + "post_attention_layernorm.weight", s_.hidden);
    if (s_.block != 0) {
      mix(base + "self_attention_res");
      mix(base + "mlp_res");
    }
    if (s_.is_mla(i)) {
      latent_attention(base + "self_attn.");
    } else {
      delta_attention(base + "self_attn.");
    }
    if (s_.is_moe(i)) {
      experts(base + "block_sparse_moe.");
    } else {
      mlp(base + "mlp.", s_.dense);
    }
  }

  void mlp(const std::string& base, uint64_t width) {
    matrix(base + "gate_proj.weight", width, s_.hidden);
    matrix(base + "up_proj.weight", width, s_.hidden);
    matrix(base + "down_proj.weight", s_.hidden, width);
  }

  void delta_attention(const std::string& base) {
    // The small family stores these vectors like its matrices.
    const char* small = s_.linear ? "BF16" : "F32";
    const uint64_t width = s_.kda_width();
    for (const char* part : {"q", "k", "v"}) {
      matrix(base + part + "_proj.weight", width, s_.hidden);
      add({base + part + "_conv1d.weight", small, {width, 1, 4}, Fill::kNormal, 0, 0.5f});
    }
    matrix(base + "f_a_proj.weight", s_.head_dim, s_.hidden);
    matrix(base + "f_b_proj.weight", width, s_.head_dim);
    matrix(base + "b_proj.weight", s_.kda_heads, s_.hidden);
    PlannedTensor decay{base + "A_log", "F32", {1, 1, s_.kda_heads, 1},
                        Fill::kUniform, -0.4f, 1.3f};
    decay.live = s_.kda_heads;
    // The release pads with zeros, and a reader that takes them for heads should be found out.
    if (!s_.linear)
      decay.shape = {s_.kda_heads > 8 ? std::max(128u, s_.kda_heads) : s_.kda_heads + 2};
    add(decay);
    vector(base + "dt_bias", width, "F32", -2.0f, 0.7f);
    if (s_.full_rank_gate) {
      matrix(base + "g_proj.weight", width, s_.hidden);
    } else {
      matrix(base + "g_a_proj.weight", s_.head_dim, s_.hidden);
      matrix(base + "g_b_proj.weight", width, s_.head_dim);
    }
    vector(base + "o_norm.weight", s_.head_dim, small);
    matrix(base + "o_proj.weight", s_.hidden, width);
  }

  void latent_attention(const std::string& base) {
    const uint64_t heads = s_.mla_heads;
    if (s_.q_lora != 0) {
      matrix(base + "q_a_proj.weight", s_.q_lora, s_.hidden);
      vector(base + "q_a_layernorm.weight", s_.q_lora);
      matrix(base + "q_b_proj.weight", s_.q_width(), s_.q_lora);
    } else {
      matrix(base + "q_proj.weight", s_.q_width(), s_.hidden);
    }
    matrix(base + "kv_a_proj_with_mqa.weight", s_.kv_lora + s_.rope, s_.hidden);
    vector(base + "kv_a_layernorm.weight", s_.kv_lora);
    matrix(base + "kv_b_proj.weight", heads * (s_.nope + s_.v), s_.kv_lora);
    if (s_.mla_gate) matrix(base + "g_proj.weight", heads * s_.v, s_.hidden);
    matrix(base + "o_proj.weight", s_.hidden, heads * s_.v);
  }

  void experts(const std::string& base) {
    matrix(base + "gate.weight", s_.experts, s_.hidden);
    vector(base + "gate.e_score_correction_bias", s_.experts, s_.linear ? "BF16" : "F32", 0, 0.02f);
    if (s_.latent != 0) {
      matrix(base + "routed_expert_down_proj.weight", s_.latent, s_.hidden);
      vector(base + "routed_expert_norm.weight", s_.latent);
      matrix(base + "routed_expert_up_proj.weight", s_.hidden, s_.latent);
    }
    if (s_.shared != 0) mlp(base + "shared_experts.", s_.shared_width());
    const uint64_t width = s_.expert_width(), inner = s_.moe_inter;
    for (uint32_t e = 0; e < s_.experts; ++e) {
      const std::string expert = fmt::format("{}experts.{}.", base, e);
      expert_matrix(expert + "w1.weight", inner, width);
      expert_matrix(expert + "w2.weight", width, inner);
      expert_matrix(expert + "w3.weight", inner, width);
    }
  }

  void expert_matrix(const std::string& name, uint64_t n, uint64_t k) {
    if (!s_.mxfp4) return matrix(name, n, k);
    add({name + "_packed", "U8", {n, k / 2}, Fill::kCodes});
    // Uniform 4-bit codes have a deviation of about 3.
    const float exponent = 127 + std::log2(1 / (3 * std::sqrt(static_cast<float>(k))));
    add({name + "_scale",
         "U8",
         {n, k / 32},
         Fill::kScales,
         std::clamp(std::round(exponent), 2.0f, 253.0f)});
  }

  const ModelShape& s_;
  const std::string prefix_;
  std::vector<PlannedTensor> out_;
};

}  // namespace

uint64_t PlannedTensor::elements() const {
  uint64_t n = 1;
  for (const uint64_t d : shape) n *= d;
  return n;
}

uint64_t PlannedTensor::bytes() const {
  const uint64_t size = dtype[0] == 'F' ? 4 : dtype[0] == 'B' ? 2 : 1;
  return elements() * size;
}

std::vector<PlannedTensor> plan_tensors(const ModelShape& shape) { return Planner(shape).run(); }

}  // namespace weft::bench
