#include <png.h>

#include <cstring>

#include "text/image/decode.h"

namespace weft::text {
namespace {

struct Source {
  std::string_view bytes;
  size_t at = 0;
};

// libpng reports errors with longjmp. Everything that the jump may skip lives in this struct,
// outside the jumping function.
struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Source source;
  std::string message = "damaged PNG";
  Pixels pixels;
  std::vector<png_bytep> rows;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

void on_error(png_structp png, png_const_charp message) {
  static_cast<PngReader*>(png_get_error_ptr(png))->message = message;
  png_longjmp(png, 1);
}
void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep out, size_t n) {
  Source& s = *static_cast<Source*>(png_get_io_ptr(png));
  if (s.bytes.size() - s.at < n) png_error(png, "the file ends too early");
  std::memcpy(out, s.bytes.data() + s.at, n);
  s.at += n;
}

// False after a longjmp. Holds no object with a destructor.
bool read_header(PngReader& r) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  png_set_read_fn(r.png, &r.source, read_bytes);
  png_read_info(r.png, r.info);
  png_set_strip_16(r.png);
  png_set_palette_to_rgb(r.png);
  png_set_expand_gray_1_2_4_to_8(r.png);
  if (png_get_valid(r.png, r.info, PNG_INFO_tRNS)) png_set_tRNS_to_alpha(r.png);
  png_set_gray_to_rgb(r.png);
  png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  return true;
}

bool read_rows(PngReader& r) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  png_read_image(r.png, r.rows.data());
  png_read_end(r.png, nullptr);
  return true;
}

}  // namespace

Result<Pixels> decode_png(std::string_view bytes, int64_t pixels_max) {
  PngReader r;
  r.source.bytes = bytes;
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
  r.info = r.png == nullptr ? nullptr : png_create_info_struct(r.png);
  if (r.info == nullptr) return make_error(ErrorCode::kInternal, "libpng could not start");
  png_set_user_limits(r.png, 1u << 20, 1u << 20);
  if (!read_header(r))
    return make_error(ErrorCode::kInvalid, "the PNG image cannot be read: {}", r.message);
  r.pixels.width = png_get_image_width(r.png, r.info);
  r.pixels.height = png_get_image_height(r.png, r.info);
  r.pixels.channels = png_get_channels(r.png, r.info);
  if (r.pixels.width * r.pixels.height > pixels_max)
    return make_error(ErrorCode::kInvalid, "the image has {}x{} pixels, at most {} are taken",
                      r.pixels.width, r.pixels.height, pixels_max);
  if (r.pixels.channels != 3 && r.pixels.channels != 4)
    return make_error(ErrorCode::kInvalid, "the PNG image has {} channels, expected RGB or RGBA",
                      r.pixels.channels);
  const auto stride = static_cast<size_t>(r.pixels.width * r.pixels.channels);
  r.pixels.data.resize(stride * static_cast<size_t>(r.pixels.height));
  for (size_t y = 0; y < static_cast<size_t>(r.pixels.height); ++y)
    r.rows.push_back(r.pixels.data.data() + y * stride);
  if (!read_rows(r))
    return make_error(ErrorCode::kInvalid, "the PNG image cannot be read: {}", r.message);
  return std::move(r.pixels);
}

}  // namespace weft::text
