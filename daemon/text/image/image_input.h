// Image parts of a request: from a data URL to the patches a vision tower takes. Decoding and
// resizing run on a lane, never on the loop; every step is bounded before it allocates.
//
// Pure functions over immutable configuration; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::text {

// From preprocessor_config.json of the model directory ("media_proc_cfg"); the defaults are Kimi
// K3's.
struct ImageConfig {
  int64_t patch_size = 14;
  int64_t merge = 2;
  int64_t in_patch_limit = 65'536;
  int64_t patch_limit_on_one_side = 512;
  float mean[3] = {0.5f, 0.5f, 0.5f};
  float std[3] = {0.5f, 0.5f, 0.5f};
  size_t bytes_max = 20u << 20;      // encoded
  int64_t pixels_max = 100'000'000;  // decoded, before resizing
};

// kNotFound without the file; kInvalid when it contradicts itself.
Result<ImageConfig> load_image_config(const std::filesystem::path& model_dir);

struct ImageInput {
  int64_t width = 0;  // as uploaded
  int64_t height = 0;
  uint32_t grid_t = 1, grid_h = 0, grid_w = 0;  // patches
  int64_t rows = 0;            // placeholder tokens: (grid_h/merge) * (grid_w/merge)
  std::vector<float> patches;  // [grid_t*grid_h*grid_w, 3*patch*patch], channel first, normalised
};

// "data:image/...;base64,..." -> patches. PNG, JPEG and WebP by content, whatever the media type
// says. kInvalid with a sentence for the client.
Result<ImageInput> image_from_data_url(std::string_view url, const ImageConfig& config);

}  // namespace weft::text
