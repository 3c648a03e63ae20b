#include "bench/args.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace weft::bench {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  while (true) {
    const size_t end = text.find(separator);
    out.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

Result<uint64_t> parse_count(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  uint64_t scale = 0;
  if (unit.empty()) scale = 1;
  if (unit == "k" || unit == "K") scale = 1024;
  if (unit == "m" || unit == "M") scale = 1024 * 1024;
  if (error != std::errc() || scale == 0 || value > std::numeric_limits<uint32_t>::max() / scale) {
    return make_error(ErrorCode::kInvalid,
                      "\"{}\": expected a number such as 512, 16k or 1m, below 2^32", text);
  }
  return value * scale;
}

Result<std::vector<uint32_t>> parse_counts(std::string_view text) {
  std::vector<uint32_t> out;
  if (text.empty()) return out;
  for (const std::string_view item : split(text, ',')) {
    WEFT_ASSIGN(const uint64_t value, parse_count(item));
    out.push_back(static_cast<uint32_t>(value));
  }
  return out;
}

Result<std::map<std::string, uint32_t>> parse_shape(std::string_view text, std::string_view known) {
  std::map<std::string, uint32_t> out;
  if (text.empty()) return out;
  const std::vector<std::string_view> keys = split(known, ' ');
  for (const std::string_view item : split(text, ',')) {
    const size_t at = item.find('=');
    const std::string_view key = item.substr(0, at);
    if (at == std::string_view::npos || std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return make_error(ErrorCode::kInvalid, "\"{}\": expected KEY=NUMBER with one of the keys {}",
                        item, known);
    }
    WEFT_ASSIGN(const uint64_t value, parse_count(item.substr(at + 1)));
    if (value == 0) return make_error(ErrorCode::kInvalid, "\"{}\": expected 1 or more", item);
    out[std::string(key)] = static_cast<uint32_t>(value);
  }
  return out;
}

Result<std::pair<std::string, std::string>> parse_setting(std::string_view text) {
  const size_t at = text.find('=');
  if (at == std::string_view::npos || at == 0) {
    return make_error(ErrorCode::kInvalid, "\"{}\": expected KEY=VALUE", text);
  }
  return std::pair(std::string(text.substr(0, at)), std::string(text.substr(at + 1)));
}

}  // namespace weft::bench
