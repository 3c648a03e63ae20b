// The small JSON files of a model directory, as text: the model plugin and the sampler read their
// own fields out of them. Here only presence, size and JSON syntax are checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/load/storage_client.h"

namespace weft::engine {

inline constexpr uint64_t kConfigBytesMax = 16ull << 20;

struct ModelDir {
  std::string location;
  std::string config_json;
  std::string generation_config_json;  // empty when the directory has none
};

// `location`: absolute path or URI. Any thread that may block.
Result<ModelDir> read_model_dir(StorageRef storage, std::string_view location);

}  // namespace weft::engine
