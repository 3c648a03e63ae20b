#include "text/image/image_input.h"

#include <fstream>
#include <iterator>

#include "api/image_url.h"
#include "base/json_value.h"
#include "text/image/decode.h"
#include "text/image/pixels.h"

namespace weft::text {
namespace {

constexpr size_t kConfigBytesMax = 1u << 20;

Status read_int(const JsonValue& object, const char* key, int64_t low, int64_t high, int64_t* out) {
  const JsonValue* v = object.find(key);
  if (v == nullptr || v->is_null()) return {};
  const auto number = v->as_int();
  if (!number || *number < low || *number > high)
    return make_error(ErrorCode::kInvalid,
                      "preprocessor_config.json: {}: expected an integer from {} to {}", key, low,
                      high);
  *out = *number;
  return {};
}

Status read_triple(const JsonValue& object, const char* key, bool positive, float (&out)[3]) {
  const JsonValue* v = object.find(key);
  if (v == nullptr || v->is_null()) return {};
  if (!v->is_array() || v->items().size() != 3)
    return make_error(ErrorCode::kInvalid, "preprocessor_config.json: {}: expected three numbers",
                      key);
  for (size_t i = 0; i < 3; ++i) {
    const auto number = v->items()[i].as_double();
    if (!number || (positive && *number <= 0))
      return make_error(ErrorCode::kInvalid,
                        "preprocessor_config.json: {}[{}]: expected a {}number", key, i,
                        positive ? "positive " : "");
    out[i] = static_cast<float>(*number);
  }
  return {};
}

}  // namespace

Result<ImageConfig> load_image_config(const std::filesystem::path& model_dir) {
  const auto path = model_dir / "preprocessor_config.json";
  std::ifstream in(path, std::ios::binary);
  if (!in)
    return make_error(ErrorCode::kNotFound, "no preprocessor_config.json in {}",
                      model_dir.string());
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  auto json = parse_json(text, {.depth_max = 32, .bytes_max = kConfigBytesMax});
  if (!json.ok()) return std::move(json).error().within(path.string());
  const JsonValue* c = json->find("media_proc_cfg");
  if (c == nullptr) c = &*json;
  ImageConfig config;
  WEFT_TRY(read_int(*c, "patch_size", 1, 256, &config.patch_size));
  WEFT_TRY(read_int(*c, "merge_kernel_size", 1, 16, &config.merge));
  WEFT_TRY(read_int(*c, "in_patch_limit", 1, 1 << 24, &config.in_patch_limit));
  WEFT_TRY(read_int(*c, "patch_limit_on_one_side", 1, 1 << 16, &config.patch_limit_on_one_side));
  WEFT_TRY(read_triple(*c, "image_mean", false, config.mean));
  WEFT_TRY(read_triple(*c, "image_std", true, config.std));
  return config;
}

Result<ImageInput> image_from_data_url(std::string_view url, const ImageConfig& config) {
  const auto payload = api::data_url_payload(url);
  if (!payload)
    return make_error(ErrorCode::kInvalid,
                      "expected a data URL of the form data:image/png;base64,...");
  WEFT_ASSIGN(const std::string bytes, decode_base64(*payload, config.bytes_max));
  WEFT_ASSIGN(Pixels pixels, decode_image(bytes, config.pixels_max));
  const ImageSize size = plan_size(pixels.width, pixels.height, config);
  ImageInput out;
  out.width = pixels.width;
  out.height = pixels.height;
  out.grid_h = static_cast<uint32_t>(size.grid_h);
  out.grid_w = static_cast<uint32_t>(size.grid_w);
  out.rows = size.rows;
  pixels = resize_bicubic(pixels, size.new_width, size.new_height);
  pixels = pad(composite_on_chessboard(std::move(pixels)), size.pad_right, size.pad_bottom);
  out.patches = cut_patches(pixels, config);
  return out;
}

}  // namespace weft::text
