#include "config/units.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace weft::config {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr uint64_t kKi = 1024;
constexpr Unit kSizeUnits[] = {
    {"", 1},
    {"B", 1},
    {"K", kKi},
    {"KiB", kKi},
    {"KB", 1000},
    {"M", kKi* kKi},
    {"MiB", kKi* kKi},
    {"MB", 1000'000},
    {"G", kKi << 20},
    {"GiB", kKi << 20},
    {"GB", 1000'000'000},
    {"T", kKi << 30},
    {"TiB", kKi << 30},
    {"TB", 1000'000'000'000},
};
constexpr Unit kDurationUnits[] = {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};

template <size_t N>
std::optional<uint64_t> parse_with_units(std::string_view text, const Unit (&units)[N]) {
  uint64_t number = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (ec != std::errc()) return std::nullopt;
  std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
  while (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  for (const Unit& unit : units) {
    if (suffix != unit.name) continue;
    uint64_t product = 0;
    if (__builtin_mul_overflow(number, unit.factor, &product)) return std::nullopt;
    return product;
  }
  return std::nullopt;
}

Status check_port(std::string_view whole, std::string_view port) {
  unsigned value = 0;
  const auto [end, ec] = std::from_chars(port.data(), port.data() + port.size(), value);
  if (ec != std::errc() || end != port.data() + port.size() || value > 65535)
    return make_error(ErrorCode::kInvalid,
                      "listen address \"{}\": expected a port from 0 to 65535 after the last ':'",
                      whole);
  return {};
}

bool is_listen_host(std::string_view host, bool bracketed) {
  unsigned char ignored[sizeof(in6_addr)];
  const std::string text(host);
  if (bracketed) return inet_pton(AF_INET6, text.c_str(), ignored) == 1;
  return host == "localhost" || inet_pton(AF_INET, text.c_str(), ignored) == 1;
}

}  // namespace

std::optional<uint64_t> parse_size(std::string_view text) {
  return parse_with_units(text, kSizeUnits);
}

std::optional<int64_t> parse_duration_ms(std::string_view text) {
  const auto ms = parse_with_units(text, kDurationUnits);
  if (!ms || *ms > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<int64_t>(*ms);
}

Status check_listen_address(std::string_view text) {
  constexpr size_t kUnixPathMax = 107;
  if (text.starts_with("unix:")) {
    const std::string_view path = text.substr(5);
    if (!path.starts_with('/') || path.size() > kUnixPathMax)
      return make_error(
          ErrorCode::kInvalid,
          "listen address \"{}\": expected an absolute path of at most {} bytes after unix:", text,
          kUnixPathMax);
    return {};
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0)
    return make_error(ErrorCode::kInvalid,
                      "listen address \"{}\": expected ADDRESS:PORT, [IPV6]:PORT or unix:/PATH",
                      text);
  const std::string_view host = text.substr(0, colon);
  const bool bracketed = host.front() == '[' && host.back() == ']';
  if (host.find(':') != std::string_view::npos && !bracketed)
    return make_error(ErrorCode::kInvalid,
                      "listen address \"{}\": write IPv6 addresses in brackets, [::1]:8000", text);
  if (!is_listen_host(bracketed ? host.substr(1, host.size() - 2) : host, bracketed))
    return make_error(
        ErrorCode::kInvalid,
        "listen address \"{}\": \"{}\" is not an IP address (names other than localhost are "
        "not looked up)",
        text, host);
  return check_port(text, text.substr(colon + 1));
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t up = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      diagonal = up;
    }
  }
  return row[b.size()];
}

}  // namespace weft::config
