#include "gateway/api_keys.h"

namespace weft::gateway {
namespace {

constexpr std::string_view kOpenPaths[] = {"/health", "/live",    "/ready",
                                           "/ping",   "/metrics", "/version"};
constexpr std::string_view kBearer = "bearer ";

// Looks at every byte whatever it finds.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  size_t different = a.size() ^ b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    different |= static_cast<unsigned char>(a[i] ^ other);
  }
  return different == 0;
}

}  // namespace

Result<ApiKeys> ApiKeys::parse(std::string_view text, std::string_view origin) {
  ApiKeys out;
  WEFT_ASSIGN(out.keys_, config::parse_key_file(text, origin));
  return out;
}

Result<ApiKeys> ApiKeys::load(const std::string& path) {
  ApiKeys out;
  WEFT_ASSIGN(out.keys_, config::load_key_file(path));
  return out;
}

const config::KeyEntry* ApiKeys::find(std::string_view key) const {
  const config::KeyEntry* found = nullptr;
  for (const config::KeyEntry& known : keys_)
    if (equal_in_constant_time(known.key, key)) found = &known;
  return found;
}

std::optional<Tenant> ApiKeys::tenant_of(const http::Request& request) const {
  if (!configured()) return Tenant{};
  for (std::string_view open : kOpenPaths)
    if (request.path == open) return Tenant{};
  const config::KeyEntry* entry = nullptr;
  if (const std::string* key = request.headers.get("x-api-key")) {
    entry = find(*key);
  } else if (const std::string* header = request.headers.get("authorization");
             header != nullptr && header->size() > kBearer.size() &&
             http::equals_ignoring_case(std::string_view(*header).substr(0, kBearer.size()),
                                        kBearer)) {
    entry = find(std::string_view(*header).substr(kBearer.size()));
  }
  if (entry == nullptr) return std::nullopt;
  return Tenant{entry->tenant, entry->weight};
}

}  // namespace weft::gateway
