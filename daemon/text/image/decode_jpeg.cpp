// clang-format off: jpeglib.h needs stdio before it
#include <csetjmp>
#include <cstdio>
#include <jpeglib.h>
// clang-format on

#include "text/image/decode.h"

namespace weft::text {
namespace {

// As with libpng: what a longjmp may skip lives here.
struct JpegReader {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = "damaged JPEG";
  Pixels pixels;
  std::vector<uint8_t> row;
  bool created = false;
  ~JpegReader() {
    if (created) jpeg_destroy_decompress(&info);
  }
};

void on_error(j_common_ptr info) {
  auto* r = static_cast<JpegReader*>(info->client_data);
  info->err->format_message(info, r->message);
  std::longjmp(r->jump, 1);
}
void on_message(j_common_ptr) {}

bool start(JpegReader& r, std::string_view bytes) {
  if (setjmp(r.jump)) return false;
  jpeg_create_decompress(&r.info);
  r.created = true;
  r.info.client_data = &r;
  jpeg_mem_src(&r.info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&r.info, TRUE);
  r.info.out_color_space = r.info.num_components == 4 ? JCS_CMYK : JCS_RGB;
  jpeg_calc_output_dimensions(&r.info);
  return true;
}

// Adobe writes CMYK inverted: 255 is no ink.
void cmyk_to_rgb(const uint8_t* in, uint8_t* out, int64_t n, bool inverted) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t k = inverted ? in[i * 4 + 3] : 255u - in[i * 4 + 3];
    for (int64_t c = 0; c < 3; ++c) {
      const uint32_t v = inverted ? in[i * 4 + c] : 255u - in[i * 4 + c];
      out[i * 3 + c] = static_cast<uint8_t>(v * k / 255);
    }
  }
}

bool read(JpegReader& r) {
  if (setjmp(r.jump)) return false;
  jpeg_start_decompress(&r.info);
  const auto stride = static_cast<size_t>(r.pixels.width) * 3;
  while (r.info.output_scanline < r.info.output_height) {
    uint8_t* out = r.pixels.data.data() + r.info.output_scanline * stride;
    if (r.info.out_color_space == JCS_CMYK) {
      JSAMPROW line = r.row.data();
      jpeg_read_scanlines(&r.info, &line, 1);
      cmyk_to_rgb(r.row.data(), out, r.pixels.width, r.info.saw_Adobe_marker != 0);
    } else {
      JSAMPROW line = out;
      jpeg_read_scanlines(&r.info, &line, 1);
    }
  }
  jpeg_finish_decompress(&r.info);
  return true;
}

}  // namespace

Result<Pixels> decode_jpeg(std::string_view bytes, int64_t pixels_max) {
  JpegReader r;
  r.info.err = jpeg_std_error(&r.errors);
  r.info.client_data = &r;
  r.errors.error_exit = on_error;
  r.errors.output_message = on_message;
  if (!start(r, bytes))
    return make_error(ErrorCode::kInvalid, "the JPEG image cannot be read: {}", r.message);
  r.pixels.width = r.info.output_width;
  r.pixels.height = r.info.output_height;
  if (r.pixels.width * r.pixels.height > pixels_max)
    return make_error(ErrorCode::kInvalid, "the image has {}x{} pixels, at most {} are taken",
                      r.pixels.width, r.pixels.height, pixels_max);
  r.pixels.data.resize(static_cast<size_t>(r.pixels.width * r.pixels.height * 3));
  r.row.resize(static_cast<size_t>(r.pixels.width) * 4);
  if (!read(r))
    return make_error(ErrorCode::kInvalid, "the JPEG image cannot be read: {}", r.message);
  return std::move(r.pixels);
}

}  // namespace weft::text
