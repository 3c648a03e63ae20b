#include "gateway/api_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

namespace weft::gateway {
namespace {

constexpr std::string_view kOpenPaths[] = {"/health", "/live", "/ready", "/ping", "/metrics", "/version"};
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
  size_t line_number = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    std::string_view line = text.substr(start, end - start);
    start = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    const bool printable = std::all_of(line.begin(), line.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    if (line.size() < kKeyBytesMin || line.size() > kKeyBytesMax || !printable)
      return make_error(ErrorCode::kInvalid, "{}:{}: expected a key of {} to {} printable characters without blanks", origin,
                        line_number, kKeyBytesMin, kKeyBytesMax);
    if (out.keys_.size() == kKeysMax) return make_error(ErrorCode::kInvalid, "{}: more than {} keys", origin, kKeysMax);
    out.keys_.emplace_back(line);
  }
  if (out.keys_.empty())
    return make_error(ErrorCode::kInvalid, "{}: no key in it; an empty key file would let nobody in or everybody", origin);
  return out;
}

Result<ApiKeys> ApiKeys::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_error(ErrorCode::kInvalid, "cannot read the API key file {}: {}", path, std::strerror(errno));
  return parse(std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>()), path);
}

bool ApiKeys::accepts(std::string_view key) const {
  bool found = false;
  for (const std::string& known : keys_) found |= equal_in_constant_time(known, key);
  return found;
}

bool ApiKeys::allows(const http::Request& request) const {
  if (!configured()) return true;
  for (std::string_view open : kOpenPaths)
    if (request.path == open) return true;
  if (const std::string* key = request.headers.get("x-api-key")) return accepts(*key);
  const std::string* header = request.headers.get("authorization");
  if (header == nullptr || header->size() <= kBearer.size()) return false;
  if (!http::equals_ignoring_case(std::string_view(*header).substr(0, kBearer.size()), kBearer)) return false;
  return accepts(std::string_view(*header).substr(kBearer.size()));
}

}  // namespace weft::gateway
