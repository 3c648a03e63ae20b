// The settings of one model instance: the operator's keys, checked against kKeys by the host, as
// one typed struct.
#pragma once

#include <weft/plugin.h>

#include <cstdint>
#include <optional>
#include <string>

#include "fault.h"

namespace weft_kimi {

struct Options {
  std::string config;        // text of config.json
  uint32_t cache_dtype = 0;  // WEFT_F32, WEFT_BF16, or 0: as the kernels compute
  std::optional<float> lora_norm_eps;
  float vision_norm_eps = 0;
  uint32_t kda_chunk = 0;
  bool biased_router = false;
  uint32_t prefill_min_rows = 0;
  uint32_t max_media_patches = 0;
  uint32_t moe_mode = 0;  // WEFT_MOE_*
};

extern const weft_key kKeys[];

Fault read_options(const weft_param* params, uint32_t n, Options* out);

}  // namespace weft_kimi
