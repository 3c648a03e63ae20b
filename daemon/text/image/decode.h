// Encoded image bytes -> pixels. The format is recognised by content. Sizes are checked before
// anything is allocated, so a small file cannot claim a huge picture. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "text/image/pixels.h"

namespace weft::text {

// PNG, JPEG or WebP. Gray becomes RGB, 16 bits become 8 (high byte), palettes expand; alpha is
// kept.
Result<Pixels> decode_image(std::string_view bytes, int64_t pixels_max);

// The three decoders, for tests and fuzzing.
Result<Pixels> decode_png(std::string_view bytes, int64_t pixels_max);
Result<Pixels> decode_jpeg(std::string_view bytes, int64_t pixels_max);
Result<Pixels> decode_webp(std::string_view bytes, int64_t pixels_max);

// Standard alphabet; white space is ignored, padding optional at the end only.
Result<std::string> decode_base64(std::string_view text, size_t bytes_max);

}  // namespace weft::text
