// Key files: any text gives keys that clients could send, or an error that shows none of them.
#include <cstdint>
#include <string_view>

#include "config/key_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace config = weft::config;
  const auto keys =
      config::parse_key_file(std::string_view(reinterpret_cast<const char*>(data), size), "f");
  if (!keys.ok()) {
    if (keys.error().message.empty()) __builtin_trap();
    return 0;
  }
  for (const config::KeyEntry& e : *keys) {
    const bool fits = e.key.size() >= config::kKeyBytesMin && e.key.size() <= config::kKeyBytesMax;
    if (!fits || e.tenant.empty() || e.weight < 1 || e.weight > config::kTenantWeightMax)
      __builtin_trap();
  }
  return 0;
}
