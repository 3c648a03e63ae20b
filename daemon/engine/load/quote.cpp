#include "engine/load/quote.h"

#include <algorithm>

#include "base/json_value.h"
#include "base/utf8.h"

namespace weft::engine {

std::string quote_name(std::string_view name) {
  size_t length = std::min(name.size(), kQuotedBytesMax);
  const auto continues = [&](size_t i) {
    return i < name.size() && (static_cast<unsigned char>(name[i]) & 0xC0) == 0x80;
  };
  while (length > 0 && length < name.size() && continues(length)) --length;
  std::string out = "'";
  append_json_escaped(out, name.substr(0, length));
  out += length < name.size() ? "...'" : "'";
  if (!is_valid_utf8(out))
    std::replace_if(
        out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  return out;
}

}  // namespace weft::engine
