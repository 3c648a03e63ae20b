#include "weights.h"

namespace weft_kimi {
namespace {

class Declarer {
 public:
  Declarer(const Config& config, WeightBook& book) : c_(config), book_(book) {}

  void layer(uint32_t i, LayerWeights* w) {
    const std::string base = fmt::format("{}model.layers.{}.", c_.prefix(), i);
    book_.begin_block();
    vector(base + "input_layernorm.weight", c_.hidden, &w->input_norm);
    vector(base + "post_attention_layernorm.weight", c_.hidden, &w->post_norm);
    if (c_.res_block != 0) {
      mix(base + "self_attention_res", &w->attn_mix);
      mix(base + "mlp_res", &w->mlp_mix);
    }
    if (c_.is_kda[i]) {
      kda(base + "self_attn.", &w->kda);
    } else {
      mla(base + "self_attn.", &w->mla);
    }
    if (c_.is_moe[i]) {
      moe(base + "block_sparse_moe.", &w->moe);
    } else {
      mlp(base + "mlp.", c_.dense_width, &w->dense);
    }
  }

  void model(Weights* w) {
    book_.begin_block();
    const std::string base = c_.prefix() + "model.";
    book_.matrix(base + "embed_tokens.weight", c_.vocab, c_.hidden, MatrixUse::kRowMajor,
                 &w->embed);
    if (!c_.tied_embeddings) matrix(c_.prefix() + "lm_head.weight", c_.vocab, c_.hidden, &w->head);
    vector(base + "norm.weight", c_.hidden, &w->norm);
    if (c_.res_block != 0) mix(base + "output_attn_res", &w->final_mix);
  }

  void vision(VisionWeights* w) {
    const VisionConfig& v = *c_.vision;
    book_.begin_block();
    const std::string base = "vision_tower.";
    const int64_t width = v.hidden, patch = v.patch;
    book_.matrix(base + "patch_embed.proj.weight", v.hidden, v.patch_values(), MatrixUse::kMultiply,
                 &w->patch, {width, 3, patch, patch});
    book_.vector(base + "patch_embed.pos_emb.weight", {v.table_h, v.table_w, width}, &w->positions);
    w->blocks.resize(v.layers);
    for (uint32_t b = 0; b < v.layers; ++b) {
      const std::string block = fmt::format("{}encoder.blocks.{}.", base, b);
      VisionBlock* out = &w->blocks[b];
      vector(block + "norm0.weight", v.hidden, &out->norm0);
      vector(block + "norm1.weight", v.hidden, &out->norm1);
      matrix(block + "wqkv.weight", 3 * uint64_t{v.qkv_width}, v.hidden, &out->qkv);
      matrix(block + "wo.weight", v.hidden, v.qkv_width, &out->out);
      matrix(block + "mlp.fc0.weight", v.inner, v.hidden, &out->fc0);
      matrix(block + "mlp.fc1.weight", v.hidden, v.inner, &out->fc1);
    }
    vector(base + "encoder.final_layernorm.weight", v.hidden, &w->final_norm);
    matrix("mm_projector.proj.0.weight", v.merged_width(), v.merged_width(), &w->proj0);
    matrix("mm_projector.proj.2.weight", c_.hidden, v.merged_width(), &w->proj2);
    vector("mm_projector.post_norm.weight", c_.hidden, &w->post_norm);
  }

 private:
  void matrix(const std::string& name, uint64_t n, uint64_t k, weft_weight* out) {
    book_.matrix(name, n, k, MatrixUse::kMultiply, out);
  }
  void vector(const std::string& name, uint32_t n, const float** out) {
    book_.vector(name, {int64_t{n}}, out);
  }
  void mix(const std::string& stem, const float** out) {
    book_.product(stem + "_norm.weight", stem + "_proj.weight", c_.hidden, out);
  }

  void mlp(const std::string& base, uint32_t width, MlpWeights* w) {
    matrix(base + "gate_proj.weight", width, c_.hidden, &w->gate);
    matrix(base + "up_proj.weight", width, c_.hidden, &w->up);
    matrix(base + "down_proj.weight", c_.hidden, width, &w->down);
  }

  void kda(const std::string& base, KdaWeights* w) {
    const uint32_t width = c_.kda_width();
    const int64_t channels = width, taps = c_.taps;
    matrix(base + "q_proj.weight", width, c_.hidden, &w->q);
    matrix(base + "k_proj.weight", width, c_.hidden, &w->k);
    matrix(base + "v_proj.weight", width, c_.hidden, &w->v);
    book_.vector(base + "q_conv1d.weight", {channels, 1, taps}, &w->conv_q);
    book_.vector(base + "k_conv1d.weight", {channels, 1, taps}, &w->conv_k);
    book_.vector(base + "v_conv1d.weight", {channels, 1, taps}, &w->conv_v);
    matrix(base + "f_a_proj.weight", c_.kda_dim, c_.hidden, &w->f_a);
    matrix(base + "f_b_proj.weight", width, c_.kda_dim, &w->f_b);
    matrix(base + "b_proj.weight", c_.kda_heads, c_.hidden, &w->b);
    book_.decay_log(base + "A_log", c_.kda_heads, &w->a_log);
    vector(base + "dt_bias", width, &w->dt_bias);
    if (c_.full_rank_gate) {
      matrix(base + "g_proj.weight", width, c_.hidden, &w->g);
    } else {
      matrix(base + "g_a_proj.weight", c_.kda_dim, c_.hidden, &w->g_a);
      matrix(base + "g_b_proj.weight", width, c_.kda_dim, &w->g_b);
    }
    vector(base + "o_norm.weight", c_.kda_dim, &w->o_norm);
    matrix(base + "o_proj.weight", c_.hidden, width, &w->o);
  }

  void mla(const std::string& base, MlaWeights* w) {
    const uint64_t heads = c_.heads;
    if (c_.q_lora != 0) {
      matrix(base + "q_a_proj.weight", c_.q_lora, c_.hidden, &w->q_a);
      vector(base + "q_a_layernorm.weight", c_.q_lora, &w->q_norm);
      matrix(base + "q_b_proj.weight", heads * c_.q_dim(), c_.q_lora, &w->q_b);
    } else {
      matrix(base + "q_proj.weight", heads * c_.q_dim(), c_.hidden, &w->q);
    }
    matrix(base + "kv_a_proj_with_mqa.weight", c_.row_width(), c_.hidden, &w->kv_a);
    vector(base + "kv_a_layernorm.weight", c_.kv_lora, &w->kv_norm);
    // The attention operations take kv_b apart by head, so it stays row-major.
    book_.matrix(base + "kv_b_proj.weight", heads * (c_.nope + c_.v_dim), c_.kv_lora,
                 MatrixUse::kRowMajor, &w->kv_b);
    if (c_.mla_gate) matrix(base + "g_proj.weight", heads * c_.v_dim, c_.hidden, &w->g);
    matrix(base + "o_proj.weight", c_.hidden, heads * c_.v_dim, &w->o);
  }

  void moe(const std::string& base, MoeWeights* w) {
    matrix(base + "gate.weight", c_.experts, c_.hidden, &w->router);
    vector(base + "gate.e_score_correction_bias", c_.experts, &w->bias);
    if (c_.latent != 0) {
      matrix(base + "routed_expert_down_proj.weight", c_.latent, c_.hidden, &w->down);
      if (c_.latent_norm) vector(base + "routed_expert_norm.weight", c_.latent, &w->latent_norm);
      matrix(base + "routed_expert_up_proj.weight", c_.hidden, c_.latent, &w->up);
    }
    if (c_.shared != 0) mlp(base + "shared_experts.", c_.shared_width(), &w->shared);
    experts(base + "experts.", w);
  }

  // Packed or plain is decided by which tensors the first expert has; one layer has one kind.
  void experts(const std::string& base, MoeWeights* w) {
    const bool packed = book_.find(base + "0.w1.weight_packed") != nullptr;
    if (!packed && book_.find(base + "0.w1.weight") == nullptr) {
      book_.problem(fmt::format(
          "{0}0.w1.weight_packed (MXFP4, U8) or {0}0.w1.weight (BF16) is missing", base));
      return;
    }
    w->w1.resize(c_.experts);
    w->w2.resize(c_.experts);
    w->w3.resize(c_.experts);
    const uint64_t width = c_.expert_width(), inner = c_.expert_inner;
    for (uint32_t e = 0; e < c_.experts; ++e) {
      const std::string expert = base + std::to_string(e);
      const auto add = [&](const char* part, uint64_t n, uint64_t k, weft_weight* out) {
        if (packed) {
          book_.mxfp4(expert + part, n, k, out);
        } else {
          matrix(expert + part, n, k, out);
        }
        if (out->dtype != w->w1[0].dtype) {
          book_.problem(fmt::format("{}{}: stored in another type than the layer's first expert",
                                    expert, part));
        }
      };
      add(".w1.weight", inner, width, &w->w1[e]);
      add(".w2.weight", width, inner, &w->w2[e]);
      add(".w3.weight", inner, width, &w->w3[e]);
    }
  }

  const Config& c_;
  WeightBook& book_;
};

}  // namespace

Fault declare_weights(const Config& config, WeightBook& book, Weights* out) {
  Declarer declarer(config, book);
  out->layers.resize(config.layers);
  for (uint32_t i = 0; i < config.layers; ++i) declarer.layer(i, &out->layers[i]);
  declarer.model(out);
  // A checkpoint whose tower was removed still serves text.
  out->has_vision =
      config.vision.has_value() && book.find("vision_tower.patch_embed.proj.weight") != nullptr;
  if (out->has_vision) declarer.vision(&out->vision);
  return book.declared();
}

}  // namespace weft_kimi
