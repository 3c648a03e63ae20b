// One safetensors file, judged by its header alone. The file is: 8 bytes little-endian length, that
// many bytes of JSON (padded with spaces), then the data area. Everything the loader later relies
// on is checked here, so that reading never needs a second look: names unique, shapes and byte
// counts agreeing, and the tensors tiling the data area exactly, without overlap, gap or rest.
//
// Pure functions over bytes; values own their data; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "weft/tensor.h"

namespace weft::engine {

inline constexpr uint64_t kHeaderLengthBytes = 8;
inline constexpr uint64_t kHeaderBytesMax = 100ull << 20;  // of JSON
inline constexpr size_t kShardTensorsMax = 1u << 20;
inline constexpr size_t kTensorNameBytesMax = 512;

struct TensorEntry {
  std::string name;
  std::string_view dtype_name;       // static: the format's word for it
  uint32_t dtype = WEFT_DTYPE_NONE;  // NONE: a type of the format for which weft has no number, not
                                     // usable by models
  uint32_t rank = 0;
  std::array<int64_t, WEFT_RANK_MAX> shape{};
  uint64_t begin = 0;  // in the data area
  uint64_t end = 0;
};

struct ShardHeader {
  uint64_t data_start = 0;  // offset of the data area in the file
  uint64_t data_bytes = 0;
  std::vector<TensorEntry> tensors;  // in file order
};

// Length of the JSON, from the first 8 bytes of a file of `file_bytes` bytes.
Result<uint64_t> safetensors_json_bytes(std::string_view first, uint64_t file_bytes);

// `head` is the file's first 8 + safetensors_json_bytes bytes; more is ignored.
Result<ShardHeader> parse_safetensors(std::string_view head, uint64_t file_bytes);

}  // namespace weft::engine
