#include "text/image/decode.h"

#include <algorithm>
#include <array>

namespace weft::text {

Result<Pixels> decode_image(std::string_view bytes, int64_t pixels_max) {
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(bytes, pixels_max);
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(bytes, pixels_max);
  if (bytes.size() >= 12 && bytes.starts_with("RIFF") && bytes.substr(8, 4) == "WEBP")
    return decode_webp(bytes, pixels_max);
  return make_error(ErrorCode::kInvalid,
                    "the image is not PNG, JPEG or WebP; convert it to one of them");
}

namespace {

constexpr std::array<int8_t, 256> make_base64_table() {
  std::array<int8_t, 256> t{};
  t.fill(-1);
  constexpr std::string_view alphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < alphabet.size(); ++i)
    t[static_cast<uint8_t>(alphabet[i])] = static_cast<int8_t>(i);
  return t;
}
constexpr auto kBase64 = make_base64_table();

}  // namespace

Result<std::string> decode_base64(std::string_view text, size_t bytes_max) {
  std::string out;
  out.reserve(std::min(text.size() / 4 * 3 + 3, bytes_max));
  uint32_t bits = 0;
  int have = 0, padding = 0;
  size_t symbols = 0;
  for (char c : text) {
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') continue;
    if (c == '=') {
      ++padding;
      continue;
    }
    const int8_t value = kBase64[static_cast<uint8_t>(c)];
    if (value < 0 || padding > 0)
      return make_error(ErrorCode::kInvalid, "the image data is not valid base64");
    bits = (bits << 6) | static_cast<uint32_t>(value);
    ++symbols;
    have += 6;
    if (have < 8) continue;
    have -= 8;
    if (out.size() >= bytes_max)
      return make_error(ErrorCode::kInvalid,
                        "the image is larger than {} bytes; send a smaller one", bytes_max);
    out += static_cast<char>((bits >> have) & 0xFF);
  }
  const bool complete = symbols % 4 != 1 &&
                        (padding == 0 || (symbols + static_cast<size_t>(padding)) % 4 == 0) &&
                        padding <= 2;
  if (!complete)
    return make_error(ErrorCode::kInvalid,
                      "the image data is not valid base64: it ends in the middle");
  return out;
}

}  // namespace weft::text
