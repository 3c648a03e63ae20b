#include "options.h"

#include <weft/kernels.h>
#include <weft/tensor.h>

#include <string_view>

namespace weft_kimi {

const weft_key kKeys[] = {
    {"config", WEFT_KEY_STR, WEFT_KEY_REQUIRED, nullptr, "Text of the checkpoint's config.json."},
    {"cache_dtype", WEFT_KEY_STR, 0, "auto",
     "Stored type of attention cache rows: f32, bf16, or auto for what the kernels compute in; a "
     "wish of the engine wins."},
    {"mla_lora_norm_eps", WEFT_KEY_REAL, 0, nullptr,
     "Epsilon of q_a_layernorm and kv_a_layernorm; absent means the config key of this name, or "
     "1e-6."},
    {"vision_norm_eps", WEFT_KEY_REAL, 0, "1.1920928955078125e-07",
     "Epsilon of the vision tower's norms."},
    {"kda_chunk", WEFT_KEY_INT, 0, "0",
     "Tokens per chunk of chunked delta attention, 1 to 128; 0 lets the kernels choose."},
    {"biased_router", WEFT_KEY_BOOL, 0, "false",
     "Weigh experts by their biased scores, as the first Kimi-Linear code did by accident."},
    {"prefill_min_rows", WEFT_KEY_INT, 0, "32",
     "Sequences with at least this many rows in a step use the prefill forms of attention."},
    {"expert_activations", WEFT_KEY_STR, 0, "bf16",
     "Precision of what MXFP4 experts multiply, bf16 or int8 (faster where the CPU has a path for "
     "it, less exact)."},
    {"max_media_patches", WEFT_KEY_INT, 0, "69632",
     "Largest image in patches; the vision workspace is sized for it."},
    {nullptr, 0, 0, nullptr, nullptr},
};

namespace {

Fault in_range(const weft_param& p, int64_t low, int64_t high, uint32_t* out) {
  if (p.i < low || p.i > high) {
    return fault(WEFT_E_CONFIG, "{}: expected a number from {} to {}, got {}", p.name, low, high,
                 p.i);
  }
  *out = static_cast<uint32_t>(p.i);
  return {};
}

Fault epsilon(const weft_param& p, float* out) {
  if (!(p.r >= 0 && p.r <= 1)) {
    return fault(WEFT_E_CONFIG, "{}: expected a number from 0 to 1, got {}", p.name, p.r);
  }
  *out = static_cast<float>(p.r);
  return {};
}

Fault read_dtype(const weft_param& p, std::string_view text, uint32_t* out) {
  if (text == "auto") {
    *out = 0;
  } else if (text == "f32") {
    *out = WEFT_F32;
  } else if (text == "bf16") {
    *out = WEFT_BF16;
  } else {
    return fault(WEFT_E_CONFIG, "{}: expected \"auto\", \"f32\" or \"bf16\", got \"{}\"", p.name, text);
  }
  return {};
}

Fault read_expert_activations(const weft_param& p, std::string_view text, uint32_t* mode) {
  if (text != "bf16" && text != "int8") {
    return fault(WEFT_E_CONFIG, "{}: expected \"bf16\" or \"int8\", got \"{}\"", p.name, text);
  }
  *mode = text == "int8" ? uint32_t{WEFT_MOE_INT8} : 0;
  return {};
}

Fault read_one(const weft_param& p, Options* o) {
  const std::string_view key = p.name;
  const std::string_view text(p.text.data == nullptr ? "" : p.text.data, p.text.len);
  if (key == "config") {
    o->config = text;
  } else if (key == "cache_dtype") {
    return read_dtype(p, text, &o->cache_dtype);
  } else if (key == "mla_lora_norm_eps") {
    float eps = 0;
    KIMI_TRY(epsilon(p, &eps));
    o->lora_norm_eps = eps;
  } else if (key == "vision_norm_eps") {
    return epsilon(p, &o->vision_norm_eps);
  } else if (key == "kda_chunk") {
    return in_range(p, 0, 128, &o->kda_chunk);
  } else if (key == "biased_router") {
    o->biased_router = p.i != 0;
  } else if (key == "prefill_min_rows") {
    return in_range(p, 1, 1 << 30, &o->prefill_min_rows);
  } else if (key == "expert_activations") {
    return read_expert_activations(p, text, &o->moe_mode);
  } else if (key == "max_media_patches") {
    return in_range(p, 1, 1 << 22, &o->max_media_patches);
  } else {
    return fault(WEFT_E_CONFIG, "{}: this model has no such setting", key);
  }
  return {};
}

}  // namespace

Fault read_options(const weft_param* params, uint32_t n, Options* out) {
  Options o;
  o.vision_norm_eps = 0x1p-23f;
  o.prefill_min_rows = 32;
  o.max_media_patches = 69632;  // what preprocessing can make of a limit of 65536
  for (uint32_t i = 0; i < n; ++i) KIMI_TRY(read_one(params[i], &o));
  if (o.config.empty()) {
    return fault(WEFT_E_CONFIG, "config: missing; the text of config.json is required");
  }
  *out = std::move(o);
  return {};
}

}  // namespace weft_kimi
