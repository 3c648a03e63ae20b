#include <doctest/doctest.h>
#include <fmt/format.h>
#include <cstdio>  // before jpeglib.h, which needs it
#include <jpeglib.h>
#include <webp/encode.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "sha256.h"
#include "text/image/decode.h"
#include "text/image/image_input.h"
#include "text/image/pixels.h"

using namespace weft::text;
using Json = nlohmann::json;

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
}
const Json& vectors() {
  static const Json v = Json::parse(read_file(WEFT_TEST_DATA "/vectors/k3_image.json"));
  return v;
}

// The picture that the vectors are about.
Pixels pattern(int64_t width, int64_t height, int channels) {
  Pixels p{width, height, channels, {}};
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      const int64_t values[] = {7 * x + 13 * y, x * x + 3 * y, 5 * (x ^ y), 17 * x + 5 * y};
      for (int c = 0; c < channels; ++c) p.data.push_back(static_cast<uint8_t>(values[c] % 256));
    }
  return p;
}
std::string hex(const std::vector<uint8_t>& bytes) {
  std::string out;
  for (uint8_t b : bytes) out += fmt::format("{:02x}", b);
  return out;
}
std::string sha(const void* data, size_t n) {
  weft_test::Sha256 h;
  h.add(data, n);
  return h.hex();
}
std::string base64(std::string_view bytes) {
  static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t v = 0;
    for (size_t j = 0; j < 3; ++j)
      v = (v << 8) | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0u);
    for (size_t j = 0; j < 4; ++j)
      out += i + j > bytes.size() ? '=' : alphabet[(v >> (18 - 6 * j)) & 63];
  }
  return out;
}

}  // namespace

TEST_CASE("sizes, paddings and grids") {
  for (const Json& c : vectors()["sizes"]) {
    CAPTURE(c.dump());
    const ImageSize s = plan_size(c["width"], c["height"], ImageConfig());
    CHECK(s.new_width == c["new_width"]);
    CHECK(s.new_height == c["new_height"]);
    CHECK(s.pad_right == c["pad_right"]);
    CHECK(s.pad_bottom == c["pad_bottom"]);
    CHECK(Json({1, s.grid_h, s.grid_w}) == c["grid_thw"]);
    CHECK(s.rows == c["tokens"]);
  }
}

TEST_CASE("bicubic resampling is exact to the bit") {
  for (const Json& c : vectors()["bicubic"]) {
    const Pixels source = pattern(c["src"][0], c["src"][1], c["mode"] == "RGBA" ? 4 : 3);
    CHECK(hex(resize_bicubic(source, c["dst"][0], c["dst"][1]).data) == c["pixels_hex"]);
  }
}

TEST_CASE("chessboard, compositing and normalisation") {
  const Json& board = vectors()["chessboard"];
  Pixels clear{board["width"], board["height"], 4, {}};
  clear.data.assign(static_cast<size_t>(clear.width * clear.height * 4), 0);
  const Pixels seen = composite_on_chessboard(clear);
  for (int64_t y = 0; y < clear.height; ++y)
    for (int64_t x = 0; x < clear.width; ++x) {
      const bool white =
          board["rows"][static_cast<size_t>(y)].get<std::string>()[static_cast<size_t>(x)] == 'W';
      CHECK(seen.data[static_cast<size_t>((y * clear.width + x) * 3)] == (white ? 255 : 180));
    }
  for (const Json& c : vectors()["composite"]) {
    CAPTURE(c.dump());
    Pixels one{9, 1, 4, std::vector<uint8_t>(36, 0)};
    const size_t at = c["background"] == 255 ? 0 : 8;  // the ninth column is a gray square
    for (size_t i = 0; i < 4; ++i) one.data[at * 4 + i] = c["rgba"][i];
    const Pixels out = composite_on_chessboard(one);
    for (size_t i = 0; i < 3; ++i) CHECK(out.data[at * 3 + i] == c["rgb"][i]);
  }
  for (const Json& c : vectors()["normalize"])
    CHECK(fmt::format("{:08x}", std::bit_cast<uint32_t>(normalise(c["byte"], 0.5f, 0.5f))) ==
          c["bits"]);
}

TEST_CASE("whole pipelines") {
  const ImageConfig config;
  for (const Json& c : vectors()["pipeline"]) {
    CAPTURE(c["width"].get<int>());
    Pixels p = pattern(c["width"], c["height"], c["channels"]);
    const ImageSize s = plan_size(p.width, p.height, config);
    p = pad(composite_on_chessboard(resize_bicubic(p, s.new_width, s.new_height)), s.pad_right,
            s.pad_bottom);
    CHECK(sha(p.data.data(), p.data.size()) == c["padded_rgb_u8_sha256"]);
    const std::vector<float> patches = cut_patches(p, config);
    CHECK(patches.size() == c["patches"].get<size_t>() * 3 * 14 * 14);
    CHECK(sha(patches.data(), patches.size() * sizeof(float)) == c["patches_f32le_sha256"]);
    for (const Json& sample : c["samples_patch_c_y_x_value"]) {
      const size_t at =
          ((sample[0].get<size_t>() * 3 + sample[1].get<size_t>()) * 14 + sample[2].get<size_t>()) *
              14 +
          sample[3].get<size_t>();
      CHECK(patches[at] == sample[4].get<float>());
    }
  }
}

TEST_CASE("PNG of the demo model equals its PPM twin, through a data URL") {
  const std::string dir = WEFT_SOURCE_DIR "/models/micro-k3/images/";
  for (const char* name : {"red_square_56x56", "blue_circle_84x56"}) {
    const std::string png = read_file(dir + name + ".png"), ppm = read_file(dir + name + ".ppm");
    REQUIRE(!png.empty());
    auto pixels = decode_image(png, 1 << 20);
    REQUIRE(pixels.ok());
    CHECK(pixels->channels == 3);
    CHECK(std::string(pixels->data.begin(), pixels->data.end()) ==
          ppm.substr(ppm.size() - pixels->data.size()));
    auto config = load_image_config(WEFT_SOURCE_DIR "/models/micro-k3");
    REQUIRE(config.ok());
    auto input = image_from_data_url("data:image/png;base64," + base64(png), *config);
    REQUIRE(input.ok());
    CHECK(input->width == pixels->width);
    CHECK(input->rows == static_cast<int64_t>(input->grid_h * input->grid_w) / 4);
  }
}

TEST_CASE("data URLs: what is taken and what is refused") {
  for (const Json& c : vectors()["data_urls"]) {
    CAPTURE(c.dump());
    const std::string url = c["url"];
    const size_t comma = url.find(";base64,");
    const bool bad = c.contains("error");
    if (!bad) {
      auto bytes = decode_base64(std::string_view(url).substr(comma + 8), 1 << 20);
      REQUIRE(bytes.ok());
      CHECK(hex(std::vector<uint8_t>(bytes->begin(), bytes->end())) == c["bytes_hex"]);
    } else {
      CHECK(!image_from_data_url(url, ImageConfig()).ok());
    }
  }
  CHECK(!decode_base64("QUJD", 2).ok());
  CHECK(!decode_base64("QUJDR", 100).ok());
  CHECK(!decode_base64("QQ=Q", 100).ok());
  CHECK(*decode_base64("QQ==", 100) == "A");
}

TEST_CASE(
    "JPEG and WebP decode; sizes are bounded; every truncation is an error or a picture, never a "
    "crash") {
  const Pixels p = pattern(40, 24, 3);
  jpeg_compress_struct enc{};
  jpeg_error_mgr errors{};
  enc.err = jpeg_std_error(&errors);
  jpeg_create_compress(&enc);
  unsigned char* jpeg_bytes = nullptr;
  unsigned long jpeg_size = 0;
  jpeg_mem_dest(&enc, &jpeg_bytes, &jpeg_size);
  enc.image_width = 40;
  enc.image_height = 24;
  enc.input_components = 3;
  enc.in_color_space = JCS_RGB;
  jpeg_set_defaults(&enc);
  jpeg_start_compress(&enc, TRUE);
  while (enc.next_scanline < enc.image_height) {
    auto* row = const_cast<uint8_t*>(p.data.data()) + enc.next_scanline * 120;
    jpeg_write_scanlines(&enc, &row, 1);
  }
  jpeg_finish_compress(&enc);
  jpeg_destroy_compress(&enc);
  const std::string jpeg(reinterpret_cast<char*>(jpeg_bytes), jpeg_size);
  std::free(jpeg_bytes);
  uint8_t* webp_bytes = nullptr;
  const size_t webp_size = WebPEncodeLosslessRGB(p.data.data(), 40, 24, 120, &webp_bytes);
  const std::string webp(reinterpret_cast<char*>(webp_bytes), webp_size);
  WebPFree(webp_bytes);
  const std::string png = read_file(WEFT_SOURCE_DIR "/models/micro-k3/images/red_square_56x56.png");

  auto lossless = decode_image(webp, 1 << 20);
  REQUIRE(lossless.ok());
  CHECK(lossless->data == p.data);
  auto lossy = decode_image(jpeg, 1 << 20);
  REQUIRE(lossy.ok());
  CHECK(lossy->width == 40);
  for (const std::string& file : {jpeg, webp, png}) {
    CHECK(!decode_image(file, 40).ok());  // fewer pixels than it has
    for (size_t n = 0; n < file.size(); ++n)
      (void)decode_image(std::string_view(file).substr(0, n), 1 << 20);
  }
  CHECK(decode_image("GIF89a", 100).error().message.find("PNG, JPEG or WebP") != std::string::npos);
}

TEST_CASE("preprocessor_config.json is checked") {
  CHECK(load_image_config("/nonexistent").error().code == weft::ErrorCode::kNotFound);
}
