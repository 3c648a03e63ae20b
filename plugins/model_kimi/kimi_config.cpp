#include "kimi_config.h"

#include <algorithm>

#include "json_fields.h"

namespace weft_kimi {
namespace {

// Bounds that no sane checkpoint reaches; they keep products of two or three of them inside 64
// bits.
constexpr uint32_t kMaxVocab = 1u << 24;
constexpr uint32_t kMaxWidth = 1u << 20;
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxHeads = 4096;
constexpr uint32_t kMaxHeadDim = 4096;
constexpr uint32_t kMaxExperts = 65535;  // expert ids are 16 bits wide
constexpr uint32_t kMaxTaps = 16;
constexpr uint32_t kDefaultContext = 1u
                                     << 20;  // both released models; nothing in the model limits it

constexpr const char* kArchitectures[] = {"KimiK3ForConditionalGeneration",
                                          "KimiLinearForCausalLM"};
constexpr const char* kModelTypes[] = {"kimi_k3", "kimi_linear"};

template <size_t N>
bool one_of(const Json& value, const char* const (&names)[N]) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return std::any_of(std::begin(names), std::end(names), [&](const char* n) { return text == n; });
}

Fault check_family(const Json& root) {
  const auto architectures = root.find("architectures");
  if (architectures != root.end() && architectures->is_array()) {
    for (const Json& name : *architectures) {
      if (one_of(name, kArchitectures)) return {};
    }
  }
  const auto type = root.find("model_type");
  if (type != root.end() && one_of(*type, kModelTypes)) return {};
  return fault(WEFT_E_UNSUPPORTED,
               "config.json: expected architectures to name {} or {} (or model_type {} or {}), got "
               "architectures {} and model_type {}",
               kArchitectures[0], kArchitectures[1], kModelTypes[0], kModelTypes[1],
               architectures == root.end() ? "absent" : brief(*architectures),
               type == root.end() ? "absent" : brief(*type));
}

// Marks the one-based layers of one list; the two lists together must name each layer exactly once.
void read_layer_list(Fields& f, const char* key, bool kda, std::vector<int>& owner) {
  const Json* list = f.get(key);
  if (list == nullptr) {
    f.fail(key, WEFT_E_CONFIG,
           "missing; a list of one-based layer numbers is required, the pattern is never guessed");
    return;
  }
  if (!list->is_array()) {
    f.fail(key, WEFT_E_CONFIG,
           fmt::format("expected a list of layer numbers, got {}", brief(*list)));
    return;
  }
  for (const Json& item : *list) {
    const int64_t n = item.is_number_integer() ? item.get<int64_t>() : 0;
    if (n < 1 || n > static_cast<int64_t>(owner.size())) {
      f.fail(key, WEFT_E_CONFIG,
             fmt::format("expected layer numbers from 1 to {}, got {}", owner.size(), brief(item)));
      return;
    }
    int& slot = owner[static_cast<size_t>(n - 1)];
    if (slot != -1) {
      f.fail(key, WEFT_E_CONFIG,
             fmt::format("layer {} is listed twice; kda_layers and full_attn_layers must partition "
                         "layers 1 to {}",
                         n, owner.size()));
      return;
    }
    slot = kda ? 1 : 0;
  }
}

Fault read_linear_attention(Fields& text, Config* c) {
  const Json& object = text.object("linear_attn_config");
  KIMI_TRY(text.fault());
  Fields f(object, text.name("linear_attn_config"));
  c->kda_heads = f.number("num_heads", 1, kMaxHeads);
  c->kda_dim = f.number("head_dim", 1, kMaxHeadDim);
  c->taps = f.number("short_conv_kernel_size", 1, kMaxTaps);
  c->full_rank_gate = f.flag_or("use_full_rank_gate", false);
  c->bounded_decay = f.has("gate_lower_bound");
  if (c->bounded_decay) {
    c->decay_bound = f.real("gate_lower_bound", -5.0, 0.0);
    if (c->decay_bound == 0) {
      f.fail("gate_lower_bound", WEFT_E_CONFIG, "expected a number from -5 to below 0, got 0");
    }
  }
  std::vector<int> owner(c->layers, -1);
  read_layer_list(f, "kda_layers", true, owner);
  read_layer_list(f, "full_attn_layers", false, owner);
  KIMI_TRY(f.fault());
  const auto missing = std::find(owner.begin(), owner.end(), -1);
  if (missing != owner.end()) {
    f.fail(
        "kda_layers", WEFT_E_CONFIG,
        fmt::format("layer {} is in neither kda_layers nor full_attn_layers, which must partition "
                    "layers 1 to {}",
                    missing - owner.begin() + 1, c->layers));
    return f.fault();
  }
  c->is_kda.assign(c->layers, false);
  for (uint32_t i = 0; i < c->layers; ++i) c->is_kda[i] = owner[i] == 1;
  return {};
}

void read_latent_attention(Fields& f, Config* c) {
  c->heads = f.number("num_attention_heads", 1, kMaxHeads);
  const uint32_t kv_heads = f.number_or("num_key_value_heads", 1, kMaxHeads, c->heads);
  if (kv_heads != c->heads) {
    f.fail("num_key_value_heads", WEFT_E_UNSUPPORTED,
           fmt::format("must equal num_attention_heads ({}), got {}", c->heads, kv_heads));
  }
  c->q_lora = f.number_or("q_lora_rank", 1, kMaxWidth, 0);
  c->kv_lora = f.number("kv_lora_rank", 1, kMaxWidth);
  c->nope = f.number("qk_nope_head_dim", 1, kMaxHeadDim);
  c->tail = f.number("qk_rope_head_dim", 0, kMaxHeadDim);
  c->v_dim = f.number("v_head_dim", 1, kMaxHeadDim);
  c->mla_gate = f.flag_or("mla_use_output_gate", false);
  c->lora_eps = f.real_or("mla_lora_norm_eps", 0.0, 1.0, 1e-6f);
  if (!f.flag_or("mla_use_nope", false)) {
    f.fail("mla_use_nope", WEFT_E_UNSUPPORTED,
           "must be true: attention with rotary positions is not part of this family");
  }
}

void check_expert_groups(Fields& f, Config* c) {
  const bool grouped = f.flag_or("use_grouped_topk", true);
  c->groups = f.number_or("num_expert_group", 1, kMaxExperts, 1);
  c->group_topk = f.number_or("topk_group", 1, kMaxExperts, 1);
  if (!grouped || c->groups == 1) {
    c->groups = c->group_topk = 1;
    return;
  }
  if (c->experts % c->groups != 0 || c->experts / c->groups < 2) {
    f.fail("num_expert_group", WEFT_E_CONFIG,
           fmt::format("{} groups do not divide {} experts into groups of two or more", c->groups,
                       c->experts));
  } else if (c->group_topk > c->groups) {
    f.fail("topk_group", WEFT_E_CONFIG,
           fmt::format("expected at most num_expert_group ({}), got {}", c->groups, c->group_topk));
  } else if (c->topk > c->group_topk * (c->experts / c->groups)) {
    f.fail("num_experts_per_token", WEFT_E_CONFIG,
           fmt::format("{} experts per token do not fit into {} groups of {}", c->topk,
                       c->group_topk, c->experts / c->groups));
  }
}

void read_experts(Fields& f, Config* c) {
  const uint32_t first = f.number_or("first_k_dense_replace", 0, kMaxLayers, 0);
  const uint32_t freq = f.number_or("moe_layer_freq", 1, kMaxLayers, 1);
  c->experts = f.number_or("num_experts", 0, kMaxExperts, 0);
  c->is_moe.assign(c->layers, false);
  if (c->experts == 0) return;
  for (uint32_t i = 0; i < c->layers; ++i) c->is_moe[i] = i >= first && i % freq == 0;
  if (!f.has("num_experts_per_token") && f.has("num_experts_per_tok")) {
    f.fail("num_experts_per_token", WEFT_E_CONFIG,
           "missing; this family spells it num_experts_per_token, not num_experts_per_tok");
  }
  c->topk = f.number("num_experts_per_token", 1, kMaxExperts);
  if (c->topk > c->experts) {
    f.fail("num_experts_per_token", WEFT_E_CONFIG,
           fmt::format("expected at most num_experts ({}), got {}", c->experts, c->topk));
  }
  c->shared = f.number_or("num_shared_experts", 0, 1024, 0);
  c->expert_inner = f.number("moe_intermediate_size", 1, kMaxWidth);
  c->latent = f.number_or("routed_expert_hidden_size", 1, kMaxWidth, 0);
  c->latent_norm = c->latent != 0 && f.flag_or("latent_moe_use_norm", false);
  c->renorm = f.flag_or("moe_renormalize", true);
  c->route_scale = f.real_or("routed_scaling_factor", 0.0, 1e6, 1.0f);
  const std::string kind = f.text_or("moe_router_activation_func", "sigmoid");
  if (kind != "sigmoid" && kind != "softmax") {
    f.fail("moe_router_activation_func", WEFT_E_UNSUPPORTED,
           fmt::format("expected \"sigmoid\" or \"softmax\", got \"{}\"", kind));
  }
  c->softmax_router = kind == "softmax";
  f.expect("topk_method", "noaux_tc");
  check_expert_groups(f, c);
}

void read_activation(Fields& f, Config* c) {
  const std::string act = f.text_or("hidden_act", "silu");
  if (act != "silu" && act != "situ") {
    f.fail("hidden_act", WEFT_E_UNSUPPORTED,
           fmt::format("expected \"silu\" or \"situ\", got \"{}\"", act));
  }
  c->situ = act == "situ";
  if (!c->situ) return;
  c->situ_beta = f.real("activation_situ_beta", 1e-6, 1e6);
  c->situ_up_beta = f.real_or("activation_situ_linear_beta", 1e-6, 1e6, 0.0f);
}

// Which tensors are packed is decided by the tensors themselves; this only refuses other packings
// early.
Fault check_quantization(const Json* block, const std::string& path) {
  if (block == nullptr) return {};
  if (!block->is_object()) {
    return fault(WEFT_E_CONFIG, "config.json: {}: expected an object, got {}", path, brief(*block));
  }
  Fields f(*block, path);
  f.expect("quant_method", "compressed-tensors");
  f.expect("format", "mxfp4-pack-quantized");
  return f.fault();
}

void read_eos(const Json& root, const char* key, Fields& f, Config* c) {
  const auto it = root.find(key);
  if (it == root.end() || it->is_null()) return;
  const size_t count = it->is_array() ? it->size() : 1;
  if (count > c->eos.size()) {
    f.fail(key, WEFT_E_CONFIG,
           fmt::format("expected at most {} ids, got {}", c->eos.size(), count));
    return;
  }
  for (size_t n = 0; n < count; ++n) {
    const Json& id = it->is_array() ? (*it)[n] : *it;
    const int64_t value = id.is_number_integer() ? id.get<int64_t>() : -1;
    if (value < 0 || value >= int64_t{c->vocab}) {
      f.fail(key, WEFT_E_CONFIG,
             fmt::format("expected token ids below vocab_size ({}), got {}", c->vocab, brief(id)));
      return;
    }
    c->eos[n] = static_cast<int32_t>(value);
  }
}

uint32_t read_merge(Fields& f) {
  const Json* merge = f.get("merge_kernel_size");
  if (merge == nullptr) return 2;
  const bool pair = merge->is_array() && merge->size() == 2 && (*merge)[0].is_number_integer() &&
                    (*merge)[0] == (*merge)[1];
  const Json& side = pair ? (*merge)[0] : *merge;
  const int64_t n = side.is_number_integer() ? side.get<int64_t>() : 0;
  if (n < 1 || n > 16) {
    f.fail("merge_kernel_size", WEFT_E_UNSUPPORTED,
           fmt::format("expected two equal numbers from 1 to 16, got {}", brief(*merge)));
    return 1;
  }
  return static_cast<uint32_t>(n);
}

void check_vision(Fields& f, const Config& c, const VisionConfig& v) {
  if (v.qkv_width % v.heads != 0 || v.head_dim() % 4 != 0) {
    f.fail("qkv_hidden_size", WEFT_E_CONFIG,
           fmt::format("{} is not vt_num_attention_heads ({}) times a multiple of 4", v.qkv_width,
                       v.heads));
  }
  if (v.hidden % 2 != 0) {
    f.fail("vt_hidden_size", WEFT_E_CONFIG,
           fmt::format("expected an even number, got {}", v.hidden));
  }
  if (f.number_or("mm_hidden_size", 1, kMaxWidth, v.hidden) != v.hidden) {
    f.fail("mm_hidden_size", WEFT_E_CONFIG,
           fmt::format("must equal vt_hidden_size ({})", v.hidden));
  }
  if (f.number_or("text_hidden_size", 1, kMaxWidth, c.hidden) != c.hidden) {
    f.fail("text_hidden_size", WEFT_E_CONFIG,
           fmt::format("must equal the text model's hidden_size ({})", c.hidden));
  }
  f.expect("pos_emb_type", "divided_fixed");
  f.expect("pos_emb_interpolation_mode", "bilinear");
  f.expect("merge_type", "sd2_tpool");
  f.expect("mm_projector_type", "patchmergerv2");
  f.expect("norm_type", "rmsnorm");
  f.expect("mlp_type", "mlp2");
  f.expect("activation_func", "gelu_pytorch_tanh");
  f.expect("projector_hidden_act", "gelu");
  f.expect_false("attn_bias");
  f.expect_false("linear_bias");
  f.expect_false("patch_embed_proj_bias");
}

Fault read_vision(Fields& root, Config* c) {
  if (!root.has("vision_config")) return {};
  const Json& object = root.object("vision_config");
  KIMI_TRY(root.fault());
  Fields f(object, "vision_config");
  VisionConfig v;
  v.patch = f.number("patch_size", 1, 256);
  v.hidden = f.number("vt_hidden_size", 1, 1u << 16);
  v.layers = f.number("vt_num_hidden_layers", 1, kMaxLayers);
  v.heads = f.number("vt_num_attention_heads", 1, kMaxHeads);
  v.qkv_width = f.number_or("qkv_hidden_size", 1, 1u << 16, v.hidden);
  v.inner = f.number("vt_intermediate_size", 1, 1u << 16);
  v.table_h = f.number("init_pos_emb_height", 1, 4096);
  v.table_w = f.number("init_pos_emb_width", 1, 4096);
  v.table_t = f.number_or("init_pos_emb_time", 1, 4096, 4);
  v.projector_eps = f.real_or("projector_ln_eps", 0.0, 1.0, 1e-5f);
  v.merge = read_merge(f);
  check_vision(f, *c, v);
  KIMI_TRY(f.fault());
  c->media_token = static_cast<int32_t>(root.number("media_placeholder_token_id", 0, c->vocab - 1));
  KIMI_TRY(root.fault());
  c->vision = v;
  return {};
}

Fault read_text(const Json& root, const Json& object, Config* c) {
  Fields f(object, c->wrapped ? "text_config" : "");
  c->vocab = f.number("vocab_size", 1, kMaxVocab);
  c->hidden = f.number("hidden_size", 1, kMaxWidth);
  c->layers = f.number("num_hidden_layers", 1, kMaxLayers);
  c->eps = f.real_or("rms_norm_eps", 0.0, 1.0, 1e-6f);
  c->max_context = f.number_or("model_max_length", 1, 1u << 30, kDefaultContext);
  c->max_context = f.number_or("max_position_embeddings", 1, 1u << 30, c->max_context);
  c->tied_embeddings = f.flag_or("tie_word_embeddings", false);
  c->res_block = f.number_or("attn_res_block_size", 1, kMaxLayers, 0);
  read_activation(f, c);
  read_latent_attention(f, c);
  read_experts(f, c);
  const bool any_dense = std::find(c->is_moe.begin(), c->is_moe.end(), false) != c->is_moe.end();
  if (any_dense) c->dense_width = f.number("intermediate_size", 1, kMaxWidth);
  KIMI_TRY(f.fault());
  KIMI_TRY(read_linear_attention(f, c));
  KIMI_TRY(check_quantization(f.get("quantization_config"), f.name("quantization_config")));
  read_eos(c->wrapped && !root.contains("eos_token_id") ? object : root, "eos_token_id", f, c);
  return f.fault();
}

}  // namespace

uint32_t Config::kda_layers() const {
  return static_cast<uint32_t>(std::count(is_kda.begin(), is_kda.end(), true));
}

Fault parse_config(std::string_view text, Config* out) {
  const Json root = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return fault(WEFT_E_CONFIG, "config.json: not valid JSON");
  if (!root.is_object()) {
    return fault(WEFT_E_CONFIG, "config.json: expected an object, got {}", brief(root));
  }
  KIMI_TRY(check_family(root));
  Config config;
  Fields top(root, "");
  config.wrapped = top.has("text_config");
  const Json& object = config.wrapped ? top.object("text_config") : root;
  KIMI_TRY(top.fault());
  KIMI_TRY(read_text(root, object, &config));
  if (config.wrapped) {
    KIMI_TRY(check_quantization(top.get("quantization_config"), "quantization_config"));
    KIMI_TRY(read_vision(top, &config));
  }
  *out = std::move(config);
  return {};
}

}  // namespace weft_kimi
