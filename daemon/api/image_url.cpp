#include "api/image_url.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

namespace weft::api {
namespace {

constexpr size_t kMagicBytes = 12;

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Checks the whole text and decodes only its beginning.
struct Base64Scan {
  bool valid = true;
  size_t bytes = 0;
  std::string head;
};
Base64Scan scan_base64(std::string_view text) {
  Base64Scan scan;
  uint32_t bits = 0;
  size_t digits = 0, padding = 0;
  for (char c : text) {
    if (is_space(c)) continue;
    if (c == '=') {
      ++padding;
      continue;
    }
    const int digit = base64_digit(c);
    if (digit < 0 || padding > 0) return scan.valid = false, scan;
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    if (++digits % 4 != 1 && scan.head.size() < kMagicBytes)
      scan.head += static_cast<char>((bits >> (6 - 2 * ((digits - 1) % 4))) & 0xFF);
  }
  const size_t tail = digits % 4;
  scan.valid = tail != 1 && (padding == 0 ? tail == 0 : tail + padding == 4);
  scan.bytes = digits * 3 / 4;
  return scan;
}

bool looks_like_image(std::string_view head) {
  using namespace std::string_view_literals;
  constexpr std::array kMagics = {"\x89PNG\r\n\x1A\n"sv, "\xFF\xD8\xFF"sv, "GIF87a"sv, "GIF89a"sv,
                                  "BM"sv};
  for (std::string_view magic : kMagics)
    if (head.substr(0, magic.size()) == magic) return true;
  return head.size() >= kMagicBytes && head.substr(0, 4) == "RIFF" && head.substr(8, 4) == "WEBP";
}

bool has_scheme(std::string_view url, std::string_view scheme) {
  if (url.size() < scheme.size()) return false;
  for (size_t i = 0; i < scheme.size(); ++i) {
    const char c = url[i] >= 'A' && url[i] <= 'Z' ? static_cast<char>(url[i] - 'A' + 'a') : url[i];
    if (c != scheme[i]) return false;
  }
  return true;
}

}  // namespace

std::optional<std::string_view> data_url_payload(std::string_view url) {
  constexpr std::string_view kSuffix = ";base64";
  const size_t comma = url.find(',');
  if (!has_scheme(url, "data:") || comma == std::string_view::npos) return std::nullopt;
  const std::string_view left = url.substr(0, comma);
  if (left.size() < kSuffix.size() || left.substr(left.size() - kSuffix.size()) != kSuffix)
    return std::nullopt;
  return url.substr(comma + 1);
}

std::optional<std::string> image_url_problem(std::string_view url, const ApiPolicy& policy) {
  if (has_scheme(url, "http://") || has_scheme(url, "https://")) {
    if (policy.image_urls_http) return std::nullopt;
    return "unsupported image url: this server does not fetch images; send a data: URL with base64";
  }
  if (!has_scheme(url, "data:")) return "unsupported image url: send a data: URL with base64";
  const auto payload = data_url_payload(url);
  if (!payload) return "invalid image: a data: URL must look like data:image/png;base64,DATA";
  const Base64Scan scan = scan_base64(*payload);
  if (!scan.valid) return "invalid image: the data: URL is not well-formed base64";
  if (scan.bytes > policy.image_bytes_max)
    return fmt::format("invalid image: {} bytes exceed the limit of {}", scan.bytes,
                       policy.image_bytes_max);
  if (!looks_like_image(scan.head)) return "unsupported image format: send PNG, JPEG, WebP or GIF";
  return std::nullopt;
}

}  // namespace weft::api
