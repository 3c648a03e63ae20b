#include "bench/model_shape.h"

#include <algorithm>
#include <array>

#include "base/json_value.h"

namespace weft::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Field {
  const char* key;
  uint32_t ModelShape::*number;
};
constexpr std::array kFields = {
    Field{"hidden", &ModelShape::hidden},       Field{"layers", &ModelShape::layers},
    Field{"kda-heads", &ModelShape::kda_heads}, Field{"head-dim", &ModelShape::head_dim},
    Field{"mla-heads", &ModelShape::mla_heads}, Field{"q-lora", &ModelShape::q_lora},
    Field{"kv-lora", &ModelShape::kv_lora},     Field{"nope", &ModelShape::nope},
    Field{"rope", &ModelShape::rope},           Field{"v", &ModelShape::v},
    Field{"experts", &ModelShape::experts},     Field{"topk", &ModelShape::topk},
    Field{"shared", &ModelShape::shared},       Field{"moe-inter", &ModelShape::moe_inter},
    Field{"latent", &ModelShape::latent},       Field{"dense", &ModelShape::dense},
    Field{"vocab", &ModelShape::vocab},         Field{"block", &ModelShape::block}};

struct Preset {
  const char* name;
  std::array<uint32_t, kFields.size()> numbers;  // in the order of kFields
};
constexpr Preset kPresets[] = {
    {"mini", {256, 9, 4, 64, 4, 96, 64, 32, 16, 32, 16, 4, 2, 128, 128, 512, 2048, 4}},
    {"bench", {1024, 17, 8, 128, 8, 384, 512, 128, 64, 128, 64, 8, 2, 512, 512, 4096, 16384, 6}},
    {"wide", {2048, 13, 16, 128, 16, 512, 512, 128, 64, 128, 128, 8, 2, 768, 1024, 6144, 32768, 6}},
    {"linear-mini", {256, 8, 4, 64, 4, 0, 64, 32, 16, 32, 16, 4, 1, 128, 0, 512, 2048, 0}},
    {"linear", {1024, 9, 8, 128, 8, 0, 512, 128, 64, 128, 32, 8, 1, 512, 0, 4096, 16384, 0}},
};

bool may_be_zero(std::string_view key) {
  return key == "q-lora" || key == "shared" || key == "latent" || key == "block";
}

uint32_t number(const nlohmann::json& object, const char* key, uint32_t fallback) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned()) return fallback;
  return static_cast<uint32_t>(std::min<uint64_t>(it->get<uint64_t>(), 1u << 30));
}

bool flag(const nlohmann::json& object, const char* key, bool fallback) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

void read_numbers(const nlohmann::json& text, ModelShape* s) {
  s->hidden = number(text, "hidden_size", 0);
  s->layers = number(text, "num_hidden_layers", 0);
  s->dense = number(text, "intermediate_size", 0);
  s->vocab = number(text, "vocab_size", 0);
  s->mla_heads = number(text, "num_attention_heads", 0);
  s->q_lora = number(text, "q_lora_rank", 0);
  s->kv_lora = number(text, "kv_lora_rank", 0);
  s->nope = number(text, "qk_nope_head_dim", 0);
  s->rope = number(text, "qk_rope_head_dim", 0);
  s->v = number(text, "v_head_dim", 0);
  s->experts = number(text, "num_experts", 0);
  s->topk = number(text, "num_experts_per_token", 0);
  s->shared = number(text, "num_shared_experts", 0);
  s->moe_inter = number(text, "moe_intermediate_size", 0);
  s->latent = number(text, "routed_expert_hidden_size", 0);
  s->block = number(text, "attn_res_block_size", 0);
  s->dense_layers = number(text, "first_k_dense_replace", 0);
  s->moe_every = std::max(1u, number(text, "moe_layer_freq", 1));
  s->mla_gate = flag(text, "mla_use_output_gate", false);
  s->latent_norm = flag(text, "latent_moe_use_norm", false);
  s->mxfp4 = text.contains("quantization_config");
}

Json quantization() {
  const Json weights = {{"num_bits", 4},       {"type", "float"},   {"group_size", 32},
                        {"strategy", "group"}, {"symmetric", true}, {"scale_dtype", "torch.uint8"}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "mxfp4-pack-quantized"},
          {"config_groups",
           {{"group_0", {{"targets", Json::array({"Linear"})}, {"weights", weights}}}}}};
}

// Ids of control tokens, counted from the end as in the released vocabulary.
Json control_ids(const ModelShape& s) {
  return {{"bos_token_id", s.vocab - 256},
          {"eos_token_id", s.vocab - 254},
          {"pad_token_id", s.vocab - 1}};
}

Json attention_config(const ModelShape& s) {
  Json full = Json::array(), delta = Json::array();  // counted from 1
  for (uint32_t i = 0; i < s.layers; ++i) (s.is_mla(i) ? full : delta).push_back(i + 1);
  Json out = {{"kda_layers", delta},
              {"full_attn_layers", full},
              {"num_heads", s.kda_heads},
              {"head_dim", s.head_dim},
              {"short_conv_kernel_size", 4}};
  if (s.linear) return out;
  out["use_full_rank_gate"] = true;
  out["gate_lower_bound"] = -5.0;
  return out;
}

Json text_json(const ModelShape& s) {
  Json t = {{"model_type", "kimi_linear"},
            {"architectures", Json::array({"KimiLinearForCausalLM"})},
            {"vocab_size", s.vocab},
            {"hidden_size", s.hidden},
            {"intermediate_size", s.dense},
            {"num_hidden_layers", s.layers},
            {"num_attention_heads", s.mla_heads},
            {"num_key_value_heads", s.mla_heads},
            {"hidden_act", s.linear ? "silu" : "situ"},
            {"rms_norm_eps", 1e-5},
            {"q_lora_rank", s.q_lora == 0 ? Json(nullptr) : Json(s.q_lora)},
            {"kv_lora_rank", s.kv_lora},
            {"qk_nope_head_dim", s.nope},
            {"qk_rope_head_dim", s.rope},
            {"v_head_dim", s.v},
            {"mla_use_nope", true},
            {"num_experts", s.experts},
            {"num_experts_per_token", s.topk},
            {"num_shared_experts", s.shared},
            {"moe_intermediate_size", s.moe_inter},
            {"moe_renormalize", true},
            {"moe_router_activation_func", "sigmoid"},
            {"use_grouped_topk", true},
            {"num_expert_group", 1},
            {"topk_group", 1},
            {"routed_scaling_factor", s.linear ? 2.446 : 1.0},
            {"first_k_dense_replace", s.dense_layers},
            {"moe_layer_freq", s.moe_every},
            {"num_nextn_predict_layers", 0},
            {"tie_word_embeddings", false},
            {"dtype", s.all_f32 ? "float32" : "bfloat16"},
            {"linear_attn_config", attention_config(s)}};
  t.update(control_ids(s));
  if (s.linear) {
    t["model_max_length"] = 1048576;
    return t;
  }
  t["max_position_embeddings"] = 1048576;
  t["topk_method"] = "noaux_tc";
  t["activation_situ_beta"] = 4.0;
  t["activation_situ_linear_beta"] = 25.0;
  t["mla_use_output_gate"] = true;
  if (s.latent != 0) t["routed_expert_hidden_size"] = s.latent;
  if (s.latent != 0) t["latent_moe_use_norm"] = true;
  if (s.block != 0) t["attn_res_block_size"] = s.block;
  if (s.mxfp4) t["quantization_config"] = quantization();
  return t;
}

}  // namespace

bool ModelShape::is_mla(uint32_t layer) const {
  return std::find(full_attention.begin(), full_attention.end(), layer) != full_attention.end();
}

uint32_t ModelShape::count_moe() const {
  uint32_t n = 0;
  for (uint32_t i = 0; i < layers; ++i) n += is_moe(i) ? 1 : 0;
  return n;
}

const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Preset& p : kPresets) out.emplace_back(p.name);
    return out;
  }();
  return names;
}

const std::vector<std::string>& shape_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> out;
    for (const Field& f : kFields) out.emplace_back(f.key);
    return out;
  }();
  return keys;
}

uint32_t* shape_field(ModelShape* shape, std::string_view key) {
  for (const Field& f : kFields) {
    if (f.key == key) return &(shape->*f.number);
  }
  return nullptr;
}

Result<ModelShape> preset(std::string_view name) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    ModelShape s;
    for (size_t i = 0; i < kFields.size(); ++i) s.*kFields[i].number = p.numbers[i];
    s.linear = name.substr(0, 6) == "linear";
    s.full_rank_gate = s.mla_gate = s.latent_norm = s.mxfp4 = !s.linear;
    return s;
  }
  return make_error(ErrorCode::kInvalid, "preset \"{}\": expected {}", name,
                    fmt::join(preset_names(), ", "));
}

Status settle(ModelShape* s) {
  for (const Field& f : kFields) {
    const uint32_t value = s->*f.number;
    if ((value == 0 && !may_be_zero(f.key)) || value > (1u << 20)) {
      return make_error(ErrorCode::kInvalid, "--{} {}: expected a number from 1 to {}", f.key,
                        value, 1u << 20);
    }
  }
  if (s->linear && (s->latent != 0 || s->block != 0)) {
    return make_error(ErrorCode::kInvalid,
                      "Kimi-Linear has neither latent experts nor attention residuals: --latent "
                      "and --block must be 0");
  }
  if (s->topk > s->experts || s->vocab < 512 || s->layers > 4096) {
    return make_error(ErrorCode::kInvalid,
                      "expected topk ({}) <= experts ({}), vocab ({}) >= 512 and layers ({}) <= "
                      "4096",
                      s->topk, s->experts, s->vocab, s->layers);
  }
  if (s->mxfp4 && (s->expert_width() % 32 != 0 || s->moe_inter % 32 != 0)) {
    return make_error(ErrorCode::kInvalid,
                      "MXFP4 experts need an expert width ({}) and --moe-inter ({}) that are "
                      "multiples of 32",
                      s->expert_width(), s->moe_inter);
  }
  s->full_attention.clear();
  for (uint32_t i = 1; i <= s->layers; ++i) {
    if (i % 4 == 0 || i == s->layers) s->full_attention.push_back(i - 1);
  }
  return {};
}

Json config_json(const ModelShape& s) {
  if (s.linear) return text_json(s);
  Json top = {{"architectures", Json::array({"KimiK3ForConditionalGeneration"})},
              {"model_type", "kimi_k3"},
              {"media_placeholder_token_id", s.vocab - 235},
              {"tie_word_embeddings", false},
              {"dtype", s.all_f32 ? "float32" : "bfloat16"}};
  top.update(control_ids(s));
  top["text_config"] = text_json(s);
  return top;
}

Result<ModelShape> shape_from_config(std::string_view config_text) {
  const auto root = nlohmann::json::parse(config_text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return make_error(ErrorCode::kInvalid, "config.json: expected a JSON object");
  }
  const bool wrapped = root.contains("text_config") && root["text_config"].is_object();
  const nlohmann::json& text = wrapped ? root["text_config"] : root;
  ModelShape s;
  s.linear = !wrapped;
  read_numbers(text, &s);
  s.all_f32 = text.value("dtype", nlohmann::json("")) == "float32";
  const auto attention = text.find("linear_attn_config");
  if (attention == text.end() || !attention->is_object() ||
      !attention->contains("full_attn_layers") || !(*attention)["full_attn_layers"].is_array()) {
    return make_error(
        ErrorCode::kInvalid,
        "config.json: linear_attn_config.full_attn_layers: expected a list of layers");
  }
  s.kda_heads = number(*attention, "num_heads", 0);
  s.head_dim = number(*attention, "head_dim", 0);
  s.full_rank_gate = flag(*attention, "use_full_rank_gate", false);
  for (const auto& layer : (*attention)["full_attn_layers"]) {
    if (layer.is_number_unsigned() && layer.get<uint32_t>() > 0)
      s.full_attention.push_back(layer.get<uint32_t>() - 1);
  }
  return s;
}

}  // namespace weft::bench
