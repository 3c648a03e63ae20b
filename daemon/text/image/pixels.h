// Pixel buffers and the arithmetic between a decoded image and the patches of the vision tower. All
// of it is defined to the bit by the model's reference processing, so the order of operations here
// is not free. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "text/image/image_input.h"

namespace weft::text {

// Row-major, channels last; 3 (RGB) or 4 (RGBA) channels.
struct Pixels {
  int64_t width = 0;
  int64_t height = 0;
  int channels = 3;
  std::vector<uint8_t> data;
};

struct ImageSize {
  int64_t new_width = 0, new_height = 0;  // after shrinking; never larger than the input
  int64_t pad_right = 0, pad_bottom = 0;
  int64_t grid_h = 0, grid_w = 0;
  int64_t rows = 0;
};
ImageSize plan_size(int64_t width, int64_t height, const ImageConfig& config);

// Antialiased bicubic (a = -0.5), two passes through 8 bits, alpha premultiplied.
Pixels resize_bicubic(const Pixels& source, int64_t width, int64_t height);

// RGBA over a chessboard of 8-pixel squares, white at the top left, gray 180. RGB is returned as it
// is.
Pixels composite_on_chessboard(Pixels source);

// Zero bytes to the right and below.
Pixels pad(const Pixels& rgb, int64_t pad_right, int64_t pad_bottom);

float normalise(uint8_t value, float mean, float std);

// [grid_h*grid_w, 3, patch, patch] of a padded RGB image.
std::vector<float> cut_patches(const Pixels& rgb, const ImageConfig& config);

}  // namespace weft::text
