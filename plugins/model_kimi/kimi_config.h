// config.json of the Kimi K3 family as one typed struct: K3 (text inside "text_config", vision
// tower) and Kimi-Linear (flat). Both are the same decoder with different switches. Unknown keys
// are ignored, every key that matters is checked for type, range and consistency, so that later
// code needs no doubts. Values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fault.h"

namespace weft_kimi {

struct VisionConfig {
  uint32_t patch = 0;
  uint32_t hidden = 0;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t qkv_width = 0;  // heads * head_dim
  uint32_t inner = 0;
  uint32_t table_h = 0, table_w = 0;  // learned position table
  uint32_t table_t = 0;               // frames of the longest clip
  uint32_t merge = 0;                 // side of the square of patches that becomes one row
  float projector_eps = 0;

  uint32_t head_dim() const { return qkv_width / heads; }
  uint32_t patch_values() const { return 3 * patch * patch; }
  uint32_t merged_width() const { return hidden * merge * merge; }
};

struct Config {
  bool wrapped = false;  // "text_config" present: tensor names start with "language_model."
  uint32_t vocab = 0;
  uint32_t hidden = 0;
  uint32_t layers = 0;
  uint32_t dense_width = 0;
  uint32_t max_context = 0;
  float eps = 0;
  bool tied_embeddings = false;
  bool situ = false;       // SiTU instead of SiLU, everywhere
  float situ_beta = 0;     // cap of the gate branch
  float situ_up_beta = 0;  // cap of the up branch, 0 = none
  uint32_t res_block = 0;  // attention-residual block size, 0 = plain residual stream

  // Latent attention
  uint32_t heads = 0;
  uint32_t q_lora = 0;  // 0 = direct q_proj
  uint32_t kv_lora = 0;
  uint32_t nope = 0, tail = 0, v_dim = 0;
  bool mla_gate = false;
  float lora_eps = 1e-6f;  // of q_a_layernorm and kv_a_layernorm

  // Delta attention
  uint32_t kda_heads = 0, kda_dim = 0, taps = 0;
  bool full_rank_gate = false;
  bool bounded_decay = false;
  float decay_bound = 0;

  // Experts
  uint32_t experts = 0;  // 0 = every layer is dense
  uint32_t topk = 0;
  uint32_t shared = 0;
  uint32_t expert_inner = 0;
  uint32_t latent = 0;  // 0 = experts see the full width
  bool latent_norm = false;
  bool renorm = true;
  bool softmax_router = false;
  uint32_t groups = 1, group_topk = 1;
  float route_scale = 1;

  std::vector<bool> is_kda, is_moe;  // per layer
  std::array<int32_t, 4> eos = {-1, -1, -1, -1};
  int32_t media_token = -1;
  std::optional<VisionConfig> vision;

  std::string prefix() const { return wrapped ? "language_model." : ""; }
  uint32_t kda_width() const { return kda_heads * kda_dim; }
  uint32_t q_dim() const { return nope + tail; }
  uint32_t row_width() const { return kv_lora + tail; }  // cached values per token and layer
  uint32_t expert_width() const { return latent != 0 ? latent : hidden; }
  uint32_t shared_width() const { return shared * expert_inner; }
  uint32_t kda_layers() const;
  uint32_t mla_layers() const { return layers - kda_layers(); }
  // Residual snapshots that a forward pass takes.
  uint32_t snapshots() const { return res_block == 0 ? 0 : (layers + res_block - 1) / res_block; }
};

// WEFT_E_UNSUPPORTED when the text is valid JSON of another family or variant, WEFT_E_CONFIG when
// it contradicts itself.
Fault parse_config(std::string_view text, Config* out);

}  // namespace weft_kimi
