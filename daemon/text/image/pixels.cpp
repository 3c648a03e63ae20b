#include "text/image/pixels.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace weft::text {

ImageSize plan_size(int64_t width, int64_t height, const ImageConfig& c) {
  const int64_t p = c.patch_size, unit = p * c.merge, side = p * c.patch_limit_on_one_side;
  const auto w = static_cast<double>(width), h = static_cast<double>(height);
  const auto patches =
      static_cast<double>(std::max<int64_t>(1, width / p) * std::max<int64_t>(1, height / p));
  const double scale = std::min({1.0, std::sqrt(static_cast<double>(c.in_patch_limit) / patches),
                                 static_cast<double>(side) / w, static_cast<double>(side) / h});
  ImageSize s;
  s.new_width = std::min(side, std::max<int64_t>(1, static_cast<int64_t>(w * scale)));
  s.new_height = std::min(side, std::max<int64_t>(1, static_cast<int64_t>(h * scale)));
  s.pad_right = (unit - s.new_width % unit) % unit;
  s.pad_bottom = (unit - s.new_height % unit) % unit;
  s.grid_w = (s.new_width + s.pad_right) / p;
  s.grid_h = (s.new_height + s.pad_bottom) / p;
  s.rows = (s.grid_h / c.merge) * (s.grid_w / c.merge);
  return s;
}

namespace {

constexpr int kFixedBits = 22;

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

// Taps of one output position: source range [lo, lo + weight.size()) and fixed-point weights.
struct Taps {
  int64_t lo = 0;
  std::vector<int32_t> weight;
};

Taps taps_for(int64_t out, int64_t in_size, int64_t out_size) {
  const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
  const double filter = std::max(scale, 1.0);
  const double center = (static_cast<double>(out) + 0.5) * scale;
  Taps t;
  t.lo = std::max<int64_t>(0, static_cast<int64_t>(center - 2.0 * filter + 0.5));
  const int64_t hi = std::min(in_size, static_cast<int64_t>(center + 2.0 * filter + 0.5));
  std::vector<double> w;
  double sum = 0.0;
  for (int64_t i = t.lo; i < hi; ++i) {
    w.push_back(bicubic((static_cast<double>(i) - center + 0.5) / filter));
    sum += w.back();
  }
  for (double v : w) {
    const double fixed = (sum != 0.0 ? v / sum : v) * (1 << kFixedBits);
    t.weight.push_back(static_cast<int32_t>(fixed < 0 ? fixed - 0.5 : fixed + 0.5));
  }
  return t;
}

uint8_t clip(int64_t accumulated) {
  return static_cast<uint8_t>(std::clamp<int64_t>(accumulated >> kFixedBits, 0, 255));
}

Pixels horizontal_pass(const Pixels& in, int64_t width) {
  Pixels out{width, in.height, in.channels, {}};
  out.data.resize(static_cast<size_t>(width * in.height * in.channels));
  for (int64_t x = 0; x < width; ++x) {
    const Taps t = taps_for(x, in.width, width);
    for (int64_t y = 0; y < in.height; ++y) {
      for (int c = 0; c < in.channels; ++c) {
        int64_t sum = int64_t{1} << (kFixedBits - 1);
        for (size_t i = 0; i < t.weight.size(); ++i)
          sum += int64_t{t.weight[i]} *
                 in.data[static_cast<size_t>(
                     (y * in.width + t.lo + static_cast<int64_t>(i)) * in.channels + c)];
        out.data[static_cast<size_t>((y * width + x) * in.channels + c)] = clip(sum);
      }
    }
  }
  return out;
}

Pixels vertical_pass(const Pixels& in, int64_t height) {
  Pixels out{in.width, height, in.channels, {}};
  const int64_t row = in.width * in.channels;
  out.data.resize(static_cast<size_t>(row * height));
  for (int64_t y = 0; y < height; ++y) {
    const Taps t = taps_for(y, in.height, height);
    for (int64_t x = 0; x < row; ++x) {
      int64_t sum = int64_t{1} << (kFixedBits - 1);
      for (size_t i = 0; i < t.weight.size(); ++i)
        sum += int64_t{t.weight[i]} *
               in.data[static_cast<size_t>((t.lo + static_cast<int64_t>(i)) * row + x)];
      out.data[static_cast<size_t>(y * row + x)] = clip(sum);
    }
  }
  return out;
}

void premultiply(Pixels& p) {
  for (size_t i = 0; i < p.data.size(); i += 4) {
    const uint32_t alpha = p.data[i + 3];
    for (size_t c = 0; c < 3; ++c) {
      const uint32_t t = p.data[i + c] * alpha + 128;
      p.data[i + c] = static_cast<uint8_t>(((t >> 8) + t) >> 8);
    }
  }
}

void unpremultiply(Pixels& p) {
  for (size_t i = 0; i < p.data.size(); i += 4) {
    const uint32_t alpha = p.data[i + 3];
    if (alpha == 0 || alpha == 255) continue;
    for (size_t c = 0; c < 3; ++c)
      p.data[i + c] = static_cast<uint8_t>(std::min(255u, 255u * p.data[i + c] / alpha));
  }
}

}  // namespace

Pixels resize_bicubic(const Pixels& source, int64_t width, int64_t height) {
  if (width == source.width && height == source.height) return source;
  Pixels p = source;
  if (p.channels == 4) premultiply(p);
  if (width != p.width) p = horizontal_pass(p, width);
  if (height != p.height) p = vertical_pass(p, height);
  if (p.channels == 4) unpremultiply(p);
  return p;
}

Pixels composite_on_chessboard(Pixels source) {
  if (source.channels == 3) return source;
  constexpr int64_t kSquare = 8;
  Pixels out{source.width, source.height, 3, {}};
  out.data.resize(static_cast<size_t>(source.width * source.height * 3));
  for (int64_t y = 0; y < source.height; ++y) {
    for (int64_t x = 0; x < source.width; ++x) {
      const auto pixel = static_cast<size_t>(y * source.width + x);
      const float background = (y / kSquare + x / kSquare) % 2 == 1 ? 180.0f : 255.0f;
      const float alpha = static_cast<float>(source.data[pixel * 4 + 3]) / 255.0f;
      for (size_t c = 0; c < 3; ++c) {
        // Two roundings, then the sum: volatile keeps the compiler from fusing them into one.
        volatile const float front = alpha * static_cast<float>(source.data[pixel * 4 + c]);
        volatile const float back = (1.0f - alpha) * background;
        out.data[pixel * 3 + c] = static_cast<uint8_t>(front + back);
      }
    }
  }
  return out;
}

Pixels pad(const Pixels& rgb, int64_t pad_right, int64_t pad_bottom) {
  WEFT_CHECK(rgb.channels == 3);
  if (pad_right == 0 && pad_bottom == 0) return rgb;
  Pixels out{rgb.width + pad_right, rgb.height + pad_bottom, 3, {}};
  out.data.resize(static_cast<size_t>(out.width * out.height * 3));
  for (int64_t y = 0; y < rgb.height; ++y)
    std::copy_n(rgb.data.begin() + y * rgb.width * 3, rgb.width * 3,
                out.data.begin() + y * out.width * 3);
  return out;
}

float normalise(uint8_t value, float mean, float std) {
  const float unit = static_cast<float>(value) / 255.0f;
  return (unit - mean) * (1.0f / std);
}

std::vector<float> cut_patches(const Pixels& rgb, const ImageConfig& config) {
  WEFT_CHECK(rgb.channels == 3);
  const int64_t p = config.patch_size, grid_w = rgb.width / p, grid_h = rgb.height / p;
  float table[3][256];
  for (size_t c = 0; c < 3; ++c)
    for (size_t v = 0; v < 256; ++v)
      table[c][v] = normalise(static_cast<uint8_t>(v), config.mean[c], config.std[c]);
  std::vector<float> out(static_cast<size_t>(grid_h * grid_w * 3 * p * p));
  size_t at = 0;
  for (int64_t gy = 0; gy < grid_h; ++gy)
    for (int64_t gx = 0; gx < grid_w; ++gx)
      for (size_t c = 0; c < 3; ++c)
        for (int64_t y = 0; y < p; ++y)
          for (int64_t x = 0; x < p; ++x)
            out[at++] =
                table[c][rgb.data[static_cast<size_t>(((gy * p + y) * rgb.width + gx * p + x) * 3) +
                                  c]];
  return out;
}

}  // namespace weft::text
