// Checkpoints without files: for a config.json of the Kimi family, the list of its tensors, and
// weights that are a pure function of (seed, tensor name, element number). The reference that made
// tests/data/model uses the same rule, so both sides have the same model. Values; any thread.
#pragma once

#include <weft/model.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace weft_test {

using Json = nlohmann::json;

inline uint64_t fnv1a(const std::string& text) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  return h;
}

// Element k of the stream of a name.
class HashStream {
 public:
  HashStream(uint64_t seed, const std::string& name) : start_(fnv1a(name) ^ (seed * kGolden)) {}
  uint64_t bits(uint64_t k) const {
    uint64_t z = start_ + (k + 1) * kGolden;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  double unit(uint64_t k) const { return static_cast<double>(bits(k) >> 11) * 0x1p-52 - 1.0; }

 private:
  static constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
  uint64_t start_;
};

inline uint16_t bf16_bits(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((u + 0x7FFF + ((u >> 16) & 1)) >> 16);
}

struct TensorRule {
  enum class Kind { kNumbers, kNibbles, kScales };
  std::string name;
  uint32_t dtype = WEFT_BF16;
  std::vector<int64_t> shape;
  Kind kind = Kind::kNumbers;
  double centre = 0, spread = 0;
  uint64_t padding = 0;  // zeros at the end, part of the shape

  uint64_t count() const {
    uint64_t n = 1;
    for (const int64_t d : shape) n *= static_cast<uint64_t>(d);
    return n;
  }
  uint64_t bytes() const { return count() * (dtype == WEFT_F32 ? 4 : dtype == WEFT_BF16 ? 2 : 1); }
};

// Every tensor that a checkpoint with this config has. a_log_padding: zeros after A_log in K3
// checkpoints.
class TensorList {
 public:
  explicit TensorList(const Json& config, uint64_t a_log_padding = 2)
      : root_(config),
        wrapped_(config.contains("text_config")),
        t_(wrapped_ ? config.at("text_config") : config),
        pad_(a_log_padding),
        prefix_(wrapped_ ? "language_model." : ""),
        hi_(wrapped_ ? WEFT_F32 : WEFT_BF16) {
    build();
  }
  const std::vector<TensorRule>& rules() const { return rules_; }

 private:
  int64_t num(const char* key) const { return t_.at(key).get<int64_t>(); }
  int64_t num_or(const char* key, int64_t d) const {
    return t_.contains(key) && !t_.at(key).is_null() ? num(key) : d;
  }
  bool flag(const Json& o, const char* key) const { return o.value(key, false); }

  TensorRule& add(const std::string& name, uint32_t dtype, std::vector<int64_t> shape,
                  double centre, double spread) {
    rules_.push_back(
        {name, dtype, std::move(shape), TensorRule::Kind::kNumbers, centre, spread, 0});
    return rules_.back();
  }
  void lin(const std::string& name, int64_t out, int64_t in, double gain = 1.0) {
    add(name, WEFT_BF16, {out, in}, 0, gain * std::sqrt(3.0 / static_cast<double>(in)));
  }
  void norm(const std::string& name, int64_t n, uint32_t dtype = WEFT_BF16) {
    add(name, dtype, {n}, 1.0, 0.25);
  }
  void depth_query(const std::string& stem) {
    const int64_t h = num("hidden_size");
    norm(stem + "_norm.weight", h);
    add(stem + "_proj.weight", WEFT_BF16, {1, h}, 0, 1.5 * std::sqrt(3.0 / static_cast<double>(h)));
  }

  void build() {
    const int64_t vocab = num("vocab_size"), h = num("hidden_size"),
                  layers = num("num_hidden_layers");
    add(prefix_ + "model.embed_tokens.weight", WEFT_BF16, {vocab, h}, 0, 1);
    lin(prefix_ + "lm_head.weight", vocab, h, 1.5);
    norm(prefix_ + "model.norm.weight", h);
    const bool mixes = num_or("attn_res_block_size", 0) != 0;
    if (mixes) depth_query(prefix_ + "model.output_attn_res");
    const auto kda_list = t_.at("linear_attn_config").at("kda_layers").get<std::vector<int64_t>>();
    for (int64_t i = 0; i < layers; ++i) {
      const std::string base = prefix_ + "model.layers." + std::to_string(i) + ".";
      norm(base + "input_layernorm.weight", h);
      norm(base + "post_attention_layernorm.weight", h);
      if (mixes) {
        depth_query(base + "self_attention_res");
        depth_query(base + "mlp_res");
      }
      const bool kda_layer = std::find(kda_list.begin(), kda_list.end(), i + 1) != kda_list.end();
      kda_layer ? kda(base + "self_attn.") : mla(base + "self_attn.");
      const bool moe_layer = num_or("num_experts", 0) != 0 &&
                             i >= num_or("first_k_dense_replace", 0) &&
                             i % num_or("moe_layer_freq", 1) == 0;
      moe_layer ? moe(base + "block_sparse_moe.") : mlp(base + "mlp.", num("intermediate_size"));
    }
    if (root_.contains("vision_config")) vision(root_.at("vision_config"));
  }

  void mlp(const std::string& base, int64_t width) {
    lin(base + "gate_proj.weight", width, num("hidden_size"));
    lin(base + "up_proj.weight", width, num("hidden_size"));
    lin(base + "down_proj.weight", num("hidden_size"), width);
  }

  void kda(const std::string& base) {
    const Json& c = t_.at("linear_attn_config");
    const int64_t heads = c.at("num_heads"), dim = c.at("head_dim"),
                  taps = c.at("short_conv_kernel_size");
    const int64_t width = heads * dim, h = num("hidden_size");
    for (const char* x : {"q", "k", "v"}) {
      lin(base + x + "_proj.weight", width, h);
      add(base + x + "_conv1d.weight", hi_, {width, 1, taps}, 0, 0.8);
    }
    lin(base + "f_a_proj.weight", dim, h);
    lin(base + "f_b_proj.weight", width, dim);
    lin(base + "b_proj.weight", heads, h);
    add(base + "dt_bias", WEFT_F32, {width}, -2.0, 2.0);
    if (wrapped_) {
      add(base + "A_log", WEFT_F32, {heads + static_cast<int64_t>(pad_)}, 0.25, 0.7).padding = pad_;
    } else {
      add(base + "A_log", WEFT_F32, {1, 1, heads, 1}, 0.25, 0.7);
    }
    if (flag(c, "use_full_rank_gate")) {
      lin(base + "g_proj.weight", width, h);
    } else {
      lin(base + "g_a_proj.weight", dim, h);
      lin(base + "g_b_proj.weight", width, dim);
    }
    norm(base + "o_norm.weight", dim, hi_);
    lin(base + "o_proj.weight", h, width);
  }

  void mla(const std::string& base) {
    const int64_t heads = num("num_attention_heads"), h = num("hidden_size"),
                  latent = num("kv_lora_rank");
    const int64_t nope = num("qk_nope_head_dim"), tail = num("qk_rope_head_dim"),
                  v = num("v_head_dim");
    const int64_t q_lora = num_or("q_lora_rank", 0);
    if (q_lora != 0) {
      lin(base + "q_a_proj.weight", q_lora, h);
      norm(base + "q_a_layernorm.weight", q_lora);
      lin(base + "q_b_proj.weight", heads * (nope + tail), q_lora, 2.0);
    } else {
      lin(base + "q_proj.weight", heads * (nope + tail), h, 2.0);
    }
    lin(base + "kv_a_proj_with_mqa.weight", latent + tail, h);
    norm(base + "kv_a_layernorm.weight", latent);
    lin(base + "kv_b_proj.weight", heads * (nope + v), latent);
    if (flag(t_, "mla_use_output_gate")) lin(base + "g_proj.weight", heads * v, h);
    lin(base + "o_proj.weight", h, heads * v);
  }

  void expert(const std::string& name, int64_t out, int64_t in) {
    const Json q = t_.value("quantization_config", Json::object());
    if (!q.is_object() || q.value("format", "") != "mxfp4-pack-quantized")
      return lin(name + ".weight", out, in);
    add(name + ".weight_packed", WEFT_U8, {out, in / 2}, 0, 0).kind = TensorRule::Kind::kNibbles;
    add(name + ".weight_scale", WEFT_U8, {out, in / 32}, 0, 0).kind = TensorRule::Kind::kScales;
  }

  void moe(const std::string& base) {
    const int64_t h = num("hidden_size"), experts = num("num_experts"),
                  inner = num("moe_intermediate_size");
    const int64_t latent = num_or("routed_expert_hidden_size", 0), width = latent != 0 ? latent : h;
    lin(base + "gate.weight", experts, h, 1.5);
    add(base + "gate.e_score_correction_bias", hi_, {experts}, 0, 0.3);
    if (latent != 0) {
      lin(base + "routed_expert_down_proj.weight", latent, h);
      lin(base + "routed_expert_up_proj.weight", h, latent);
      if (flag(t_, "latent_moe_use_norm")) norm(base + "routed_expert_norm.weight", latent);
    }
    if (num_or("num_shared_experts", 0) != 0) {
      mlp(base + "shared_experts.", num("num_shared_experts") * inner);
    }
    for (int64_t e = 0; e < experts; ++e) {
      const std::string one = base + "experts." + std::to_string(e);
      expert(one + ".w1", inner, width);
      expert(one + ".w3", inner, width);
      expert(one + ".w2", width, inner);
    }
  }

  void vision(const Json& v) {
    const int64_t width = v.at("vt_hidden_size"), qkv = v.at("qkv_hidden_size"),
                  p = v.at("patch_size");
    const int64_t inner = v.at("vt_intermediate_size"), text = v.at("text_hidden_size");
    const std::string base = "vision_tower.";
    add(base + "patch_embed.proj.weight", WEFT_BF16, {width, 3, p, p}, 0,
        std::sqrt(3.0 / static_cast<double>(3 * p * p)));
    add(base + "patch_embed.pos_emb.weight", WEFT_BF16,
        {v.at("init_pos_emb_height"), v.at("init_pos_emb_width"), width}, 0, 0.5);
    for (int64_t b = 0; b < v.at("vt_num_hidden_layers").get<int64_t>(); ++b) {
      const std::string block = base + "encoder.blocks." + std::to_string(b) + ".";
      norm(block + "norm0.weight", width);
      norm(block + "norm1.weight", width);
      lin(block + "wqkv.weight", 3 * qkv, width, 1.5);
      lin(block + "wo.weight", width, qkv);
      lin(block + "mlp.fc0.weight", inner, width);
      lin(block + "mlp.fc1.weight", width, inner);
    }
    norm(base + "encoder.final_layernorm.weight", width);
    const Json& merge = v.at("merge_kernel_size");
    const int64_t merged = width * merge[0].get<int64_t>() * merge[1].get<int64_t>();
    lin("mm_projector.proj.0.weight", merged, merged);
    lin("mm_projector.proj.2.weight", text, merged);
    norm("mm_projector.post_norm.weight", text);
  }

  const Json root_;
  bool wrapped_;
  const Json t_;
  uint64_t pad_;
  std::string prefix_;
  uint32_t hi_;
  std::vector<TensorRule> rules_;
};

inline std::vector<uint8_t> hash_bytes(const TensorRule& rule, uint64_t seed) {
  const HashStream stream(seed, rule.name);
  std::vector<uint8_t> out(rule.bytes());
  const uint64_t n = rule.count() - rule.padding;
  for (uint64_t k = 0; k < n; ++k) {
    if (rule.kind == TensorRule::Kind::kNibbles) {
      out[k] = static_cast<uint8_t>(stream.bits(k) & 255);
    } else if (rule.kind == TensorRule::Kind::kScales) {
      out[k] = static_cast<uint8_t>(122 + (stream.bits(k) & 1));
    } else {
      const auto value = static_cast<float>(rule.centre + rule.spread * stream.unit(k));
      const uint16_t narrow = bf16_bits(value);
      if (rule.dtype == WEFT_F32) std::memcpy(out.data() + 4 * k, &value, 4);
      if (rule.dtype == WEFT_BF16) std::memcpy(out.data() + 2 * k, &narrow, 2);
    }
  }
  return out;
}

// Tensors in memory behind the catalog of weft/model.h. Entries may have no bytes when only
// declaring is tested.
class MemoryCheckpoint {
 public:
  struct Tensor {
    weft_catalog_entry entry{};
    std::vector<uint8_t> bytes;
  };

  MemoryCheckpoint() {
    catalog_.struct_size = sizeof(catalog_);
    catalog_.impl = this;
    catalog_.find = [](const weft_catalog* c, weft_str name) -> const weft_catalog_entry* {
      const auto& all = static_cast<MemoryCheckpoint*>(c->impl)->tensors_;
      const auto it = all.find(std::string(name.data, name.len));
      return it == all.end() ? nullptr : &it->second.entry;
    };
    catalog_.at = [](const weft_catalog* c, uint64_t i) -> const weft_catalog_entry* {
      auto it = static_cast<MemoryCheckpoint*>(c->impl)->tensors_.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(i));
      return &it->second.entry;
    };
  }
  MemoryCheckpoint(const MemoryCheckpoint&) = delete;
  MemoryCheckpoint& operator=(const MemoryCheckpoint&) = delete;

  void add(const std::string& name, uint32_t dtype, const std::vector<int64_t>& shape,
           uint64_t bytes) {
    const auto it = tensors_.insert_or_assign(name, Tensor{}).first;
    weft_catalog_entry& e = it->second.entry;
    e.name = {it->first.data(), it->first.size()};
    e.dtype = dtype;
    e.rank = static_cast<uint32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), e.shape);
    e.bytes = bytes;
    catalog_.n = tensors_.size();
  }
  void add_shapes(const TensorList& list) {
    for (const TensorRule& rule : list.rules())
      add(rule.name, rule.dtype, rule.shape, rule.bytes());
  }
  void add_weights(const TensorList& list, uint64_t seed) {
    for (const TensorRule& rule : list.rules()) {
      add(rule.name, rule.dtype, rule.shape, rule.bytes());
      tensors_.at(rule.name).bytes = hash_bytes(rule, seed);
    }
  }
  void erase(const std::string& name) {
    tensors_.erase(name);
    catalog_.n = tensors_.size();
  }

  const weft_catalog* catalog() const { return &catalog_; }
  std::map<std::string, Tensor>& tensors() { return tensors_; }  // in name order

 private:
  std::map<std::string, Tensor> tensors_;
  weft_catalog catalog_{};
};

}  // namespace weft_test
