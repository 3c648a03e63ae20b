// Request targets: splitting, percent-decoding. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace weft::http {

// Decodes %XX; nullopt on a broken escape or %00.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space);
std::string percent_encode(std::string_view text);  // everything but unreserved characters

struct Target {
  std::string path;   // decoded; starts with '/', or is "*"
  std::string query;  // raw
};
// Origin form (/p?q), absolute form (http://host/p?q) and "*". nullopt when it is none of them or
// badly escaped.
std::optional<Target> parse_target(std::string_view target);

}  // namespace weft::http
