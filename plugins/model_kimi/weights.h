// The model's parameters as the graph reads them, and the declaration that ties them to checkpoint
// names. Matrices are weft_weight (their data pointers appear when the book allocates), vectors are
// f32. The structs must not move between declaring and the end of the model: the book holds
// pointers into them.
#pragma once

#include <weft/kernels.h>

#include <vector>

#include "fault.h"
#include "kimi_config.h"
#include "weight_book.h"

namespace weft_kimi {

struct KdaWeights {
  weft_weight q{}, k{}, v{}, f_a{}, f_b{}, b{}, o{};
  weft_weight g{};           // full-rank output gate
  weft_weight g_a{}, g_b{};  // or its two factors
  const float *conv_q = nullptr, *conv_k = nullptr, *conv_v = nullptr;
  const float *a_log = nullptr, *dt_bias = nullptr, *o_norm = nullptr;
};

struct MlaWeights {
  weft_weight q{};           // direct
  weft_weight q_a{}, q_b{};  // or through a low rank
  const float* q_norm = nullptr;
  weft_weight kv_a{}, kv_b{}, g{}, o{};
  const float* kv_norm = nullptr;
};

struct MlpWeights {
  weft_weight gate{}, up{}, down{};
};

struct MoeWeights {
  weft_weight router{};
  const float* bias = nullptr;
  weft_weight down{}, up{};  // latent projections
  const float* latent_norm = nullptr;
  MlpWeights shared;
  std::vector<weft_weight> w1, w2, w3;
};

struct LayerWeights {
  const float *input_norm = nullptr, *post_norm = nullptr;
  const float *attn_mix = nullptr, *mlp_mix = nullptr;  // attention-residual queries
  KdaWeights kda;
  MlaWeights mla;
  MlpWeights dense;
  MoeWeights moe;
};

struct VisionBlock {
  const float *norm0 = nullptr, *norm1 = nullptr;
  weft_weight qkv{}, out{}, fc0{}, fc1{};
};

struct VisionWeights {
  weft_weight patch{};
  const float *positions = nullptr, *final_norm = nullptr, *post_norm = nullptr;
  std::vector<VisionBlock> blocks;
  weft_weight proj0{}, proj2{};
};

struct Weights {
  weft_weight embed{}, head{};
  const float *norm = nullptr, *final_mix = nullptr;
  std::vector<LayerWeights> layers;
  VisionWeights vision;
  bool has_vision = false;
};

// Names every tensor of the model in reading order. Fails with the first few that are missing or do
// not fit.
Fault declare_weights(const Config& config, WeightBook& book, Weights* out);

}  // namespace weft_kimi
