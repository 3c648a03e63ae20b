#include <webp/decode.h>

#include "text/image/decode.h"

namespace weft::text {

Result<Pixels> decode_webp(std::string_view bytes, int64_t pixels_max) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(data, bytes.size(), &features) != VP8_STATUS_OK)
    return make_error(ErrorCode::kInvalid, "the WebP image cannot be read: damaged header");
  if (features.has_animation)
    return make_error(ErrorCode::kInvalid, "animated WebP images are not taken; send one picture");
  Pixels p{features.width, features.height, features.has_alpha ? 4 : 3, {}};
  if (p.width <= 0 || p.height <= 0 || p.width * p.height > pixels_max)
    return make_error(ErrorCode::kInvalid, "the image has {}x{} pixels, at most {} are taken",
                      p.width, p.height, pixels_max);
  p.data.resize(static_cast<size_t>(p.width * p.height * p.channels));
  const int stride = static_cast<int>(p.width) * p.channels;
  const uint8_t* done =
      p.channels == 4 ? WebPDecodeRGBAInto(data, bytes.size(), p.data.data(), p.data.size(), stride)
                      : WebPDecodeRGBInto(data, bytes.size(), p.data.data(), p.data.size(), stride);
  if (done == nullptr)
    return make_error(ErrorCode::kInvalid, "the WebP image cannot be read: damaged or truncated");
  return p;
}

}  // namespace weft::text
