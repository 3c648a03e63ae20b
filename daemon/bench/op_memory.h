// Memory and contents for operations that are measured alone: blocks in huge pages as models get
// them, random numbers that stay finite, and weights in the layout that the kernels ask for. Owns
// everything it hands out. One thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "plugin/host_kernels.h"

namespace weft::bench {

class OpMemory {
 public:
  OpMemory(const plugin::HostKernels& kernels, uint64_t seed) : kernels_(kernels), state_(seed) {}
  ~OpMemory();
  OpMemory(const OpMemory&) = delete;
  OpMemory& operator=(const OpMemory&) = delete;

  // Zeroed, 64-byte aligned; NULL when there is no memory left.
  void* bytes(uint64_t n);
  // Uniform in [low, high).
  float* floats(uint64_t n, float low = -1, float high = 1);
  // Random, about unit gain, packed. dtype: WEFT_F32, WEFT_BF16, WEFT_MXFP4. row_major: never
  // packed.
  Result<weft_weight> weight(uint32_t dtype, uint64_t n, uint64_t k, bool row_major = false);
  uint64_t random();
  uint64_t used() const { return used_; }

 private:
  struct Block {
    char* base = nullptr;
    uint64_t bytes = 0, at = 0;
  };
  void fill_row_major(weft_weight* w, void* data, void* scale);

  const plugin::HostKernels& kernels_;
  uint64_t state_;
  std::vector<Block> blocks_;
  uint64_t used_ = 0;
};

}  // namespace weft::bench
