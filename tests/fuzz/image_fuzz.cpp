// Image bytes of a client: decode with a small pixel limit, then the whole preprocessing.
#include <cstdint>
#include <string_view>

#include "text/image/decode.h"
#include "text/image/pixels.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::text;
  auto pixels = decode_image(std::string_view(reinterpret_cast<const char*>(data), size), 1 << 16);
  if (!pixels.ok()) return 0;
  ImageConfig config;
  config.in_patch_limit = 16;
  const ImageSize s = plan_size(pixels->width, pixels->height, config);
  const Pixels p = pad(composite_on_chessboard(resize_bicubic(*pixels, s.new_width, s.new_height)),
                       s.pad_right, s.pad_bottom);
  if (cut_patches(p, config).size() != static_cast<size_t>(s.grid_h * s.grid_w * 3 * 14 * 14))
    __builtin_trap();
  return 0;
}
