#include "http/target.h"

#include "http/types.h"

namespace weft::http {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_digit(text[i + 1]);
      const int low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0 || (high == 0 && low == 0)) return std::nullopt;
      out += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      out += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::string percent_encode(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

std::optional<Target> parse_target(std::string_view target) {
  if (target == "*") return Target{"*", ""};
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() > scheme.size() &&
        equals_ignoring_case(target.substr(0, scheme.size()), scheme)) {
      target.remove_prefix(scheme.size());
      const size_t end = target.find_first_of("/?#");
      if (end == 0) return std::nullopt;  // no host
      target = end == std::string_view::npos ? std::string_view() : target.substr(end);
      if (target.empty() || target[0] != '/') {
        // "http://host" and "http://host?q" mean the root.
        Target root{"/", ""};
        if (!target.empty() && target[0] == '?')
          root.query = target.substr(1, target.find('#') - 1);
        return root;
      }
      break;
    }
  }
  if (target.empty() || target[0] != '/') return std::nullopt;
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  auto path = percent_decode(target.substr(0, mark), false);
  if (!path) return std::nullopt;
  Target out;
  out.path = std::move(*path);
  if (mark != std::string_view::npos) out.query = target.substr(mark + 1);
  return out;
}

}  // namespace weft::http
