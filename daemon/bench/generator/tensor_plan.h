// The tensors of a generated checkpoint: names, types, shapes and how each is filled, in file
// order. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/model_shape.h"

namespace weft::bench {

enum class Fill {
  kNormal,   // base + scale * normal
  kUniform,  // base + scale * [0, 1); numbers from `live` on are 0
  kCodes,    // random bytes: pairs of 4-bit numbers
  kScales,   // exponents base - 1, base, base + 1
};

struct PlannedTensor {
  std::string name;
  const char* dtype = "BF16";  // as the file says: BF16, F32, U8
  std::vector<uint64_t> shape;
  Fill fill = Fill::kNormal;
  float base = 0, scale = 1;
  uint64_t live = UINT64_MAX;

  uint64_t elements() const;
  uint64_t bytes() const;
};

std::vector<PlannedTensor> plan_tensors(const ModelShape& shape);

}  // namespace weft::bench
