// Moves the weights that a model wants from the checkpoint into the memory that the model names,
// once and without another copy: place() gives the destination, reads go straight there with many
// in flight, placed() tells the model.
//
// Everything the model wants is checked against the catalog before the first byte is read. On any
// failure, and on cancel, every read in flight is waited for before the call returns, so that no
// memory is written afterwards. Threads: one call at a time; place, placed and the progress
// callback run on the calling thread. While it runs, nobody else may reap from the checkpoint's
// storage instance.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/load/checkpoint.h"
#include "weft/model.h"

namespace weft::engine {

struct ModelRef {  // borrowed; declare() has succeeded with the checkpoint's catalog
  const weft_model_v1* table = nullptr;
  weft_instance* self = nullptr;
};

struct LoadProgress {
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  uint64_t tensors_done = 0;
  uint64_t tensors_total = 0;
};

struct LoadOptions {
  uint64_t piece_bytes = 16u << 20;  // larger tensors are read in pieces of this size
  uint32_t reads_max = 64;           // in flight at once; the storage's own queue may hold fewer
  const std::atomic<bool>* cancel = nullptr;  // set by any thread to stop the load
  // Never goes backwards; the last call of a successful load has done == total.
  std::function<void(const LoadProgress&)> progress;
};

inline constexpr size_t kUnusedNamesMax = 8;

struct LoadReport {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  uint64_t unused = 0;  // tensors of the catalog that the model did not want
  uint64_t unused_bytes = 0;
  std::vector<std::string> unused_names;  // the first few
};

Result<LoadReport> load_weights(const Checkpoint& checkpoint, ModelRef model,
                                const LoadOptions& options);

}  // namespace weft::engine
