// model.safetensors.index.json: which shard holds which tensor. The index comes from outside, so
// the shard names in it are checked to be plain file names of the model directory before anything
// is opened.
//
// Pure functions; values own their data; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::engine {

inline constexpr uint64_t kIndexBytesMax = 512ull << 20;
inline constexpr size_t kIndexTensorsMax = 4u << 20;
inline constexpr size_t kShardsMax = 4096;
inline constexpr size_t kShardNameBytesMax = 255;

struct IndexEntry {
  std::string tensor;
  uint32_t shard = 0;  // into ShardIndex::shards
};

struct ShardIndex {
  std::vector<std::string> shards;  // file names, in name order
  std::vector<IndexEntry> tensors;  // in tensor name order
};

// A name of a file that lies directly in the model directory.
Status check_shard_name(std::string_view name);

Result<ShardIndex> parse_shard_index(std::string_view json);

}  // namespace weft::engine
