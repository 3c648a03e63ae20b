// The numbers that make a model of this family: read from a config.json, or chosen to generate one.
// One struct for both, so that what is generated and what is counted cannot disagree. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::bench {

struct ModelShape {
  bool linear = false;   // Kimi-Linear: plain residual, SiLU, no latent experts
  bool all_f32 = false;  // every tensor in F32, experts too
  uint32_t hidden = 0, layers = 0;
  uint32_t kda_heads = 0, head_dim = 0;
  uint32_t mla_heads = 0;
  uint32_t q_lora = 0;  // 0 = direct
  uint32_t kv_lora = 0, nope = 0, rope = 0, v = 0;
  uint32_t experts = 0, topk = 0, shared = 0, moe_inter = 0;
  uint32_t latent = 0;  // 0 = experts see the full width
  uint32_t dense = 0;   // width of the dense layers
  uint32_t vocab = 0;
  uint32_t block = 0;  // of attention residuals, 0 = none
  uint32_t dense_layers = 1, moe_every = 1;
  bool full_rank_gate = true;  // of delta attention
  bool mla_gate = true;
  bool latent_norm = true;
  bool mxfp4 = true;                     // routed experts
  std::vector<uint32_t> full_attention;  // layers with latent attention, from 0

  bool is_mla(uint32_t layer) const;
  bool is_moe(uint32_t layer) const {
    return experts != 0 && layer >= dense_layers && layer % moe_every == 0;
  }
  uint32_t kda_width() const { return kda_heads * head_dim; }
  uint32_t q_width() const { return mla_heads * (nope + rope); }
  uint32_t expert_width() const { return latent != 0 ? latent : hidden; }
  uint32_t shared_width() const { return shared * moe_inter; }
  uint32_t count_mla() const { return static_cast<uint32_t>(full_attention.size()); }
  uint32_t count_moe() const;
};

// Names of the presets, and of the numbers that --KEY changes.
const std::vector<std::string>& preset_names();
const std::vector<std::string>& shape_keys();
Result<ModelShape> preset(std::string_view name);
// The number behind a key, NULL for an unknown one.
uint32_t* shape_field(ModelShape* shape, std::string_view key);
// Every fourth layer and the last have latent attention; numbers are checked against each other.
Status settle(ModelShape* shape);

nlohmann::ordered_json config_json(const ModelShape& shape);
Result<ModelShape> shape_from_config(std::string_view config_text);

}  // namespace weft::bench
