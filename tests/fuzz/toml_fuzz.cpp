// Configuration files: any text gives a config or issues, each with a place.
#include <cstdint>
#include <string_view>

#include "config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed =
      weft::config::parse_config(std::string_view(reinterpret_cast<const char*>(data), size));
  for (const auto& issue : parsed.issues)
    if (issue.message.empty() || issue.to_string("f").empty()) __builtin_trap();
  return 0;
}
