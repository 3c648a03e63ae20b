// Writes a generated checkpoint: config.json, safetensors shards and their index, the released
// layout. Bytes are made and written piece by piece by several threads, so memory stays small and
// the disk is the limit. Nothing is left behind after a failure. One call at a time.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "bench/model_shape.h"

namespace weft::bench {

struct GenerateOptions {
  std::string directory;  // made when missing; refused when not empty
  uint64_t seed = 1;
  uint32_t threads = 0;  // 0 = one per CPU
  uint64_t shard_bytes = 256ull << 20;
};

struct GenerateReport {
  uint64_t bytes = 0, tensors = 0, shards = 0;
  double seconds = 0;
};

Result<GenerateReport> generate_checkpoint(const ModelShape& shape, const GenerateOptions& options);

}  // namespace weft::bench
