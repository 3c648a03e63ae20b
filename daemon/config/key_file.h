// The file of API keys: one client per line as "KEY [TENANT [WEIGHT]]". Read by weftd when it
// starts and by whoever checks a configuration; plain functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::config {

struct KeyEntry {
  std::string key;
  std::string tenant;   // never empty: a key without a name is a tenant of its own, "#LINE"
  uint32_t weight = 1;  // share of the tenant under load
};

constexpr size_t kKeysMax = 10'000;
constexpr size_t kKeyBytesMin = 8;
constexpr size_t kKeyBytesMax = 512;
constexpr size_t kTenantBytesMax = 64;
constexpr uint32_t kTenantWeightMax = 1000;
constexpr size_t kKeyFileBytesMax = 8u << 20;

// Blank lines and lines that start with '#' are ignored. kInvalid names the line, never the key.
Result<std::vector<KeyEntry>> parse_key_file(std::string_view text, std::string_view origin);
Result<std::vector<KeyEntry>> load_key_file(const std::string& path);

}  // namespace weft::config
