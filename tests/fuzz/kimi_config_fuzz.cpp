// config.json of the Kimi family from anywhere: parsing must end in a Config whose lists fit its
// layer count, or in a Fault with a message.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "kimi_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft_kimi::Config config;
  const weft_kimi::Fault fault =
      weft_kimi::parse_config(std::string_view(reinterpret_cast<const char*>(data), size), &config);
  if (fault.ok()) {
    if (config.is_kda.size() != config.layers || config.is_moe.size() != config.layers)
      std::abort();
    if (config.topk > config.experts || config.hidden == 0 || config.vocab == 0) std::abort();
  } else if (fault.message.empty()) {
    std::abort();
  }
  return 0;
}
