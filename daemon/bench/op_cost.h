// What one launch of an operation has to do at least, read from its arguments: bytes to move and
// operations to perform. Shared by the benchmark of single operations and by the profile of whole
// steps. Pure; pointers in the arguments are followed only for row numbers, lengths and chosen
// experts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weft/kernels.h"

namespace weft::bench {

struct OpCost {
  std::string shape;  // "1024x512 bf16"
  uint32_t rows = 0;
  double weight_bytes = 0;  // matrices, states, cached rows: what comes from memory
  double act_bytes = 0;     // activations in and out, which may stay in caches
  double flop = 0;
  uint32_t experts = 0;  // distinct, of "moe"
  double bytes() const { return weight_bytes + act_bytes; }
};

// args: the argument struct of `op`. An unknown operation costs nothing and has no shape.
OpCost cost_of(std::string_view op, const void* args);

const char* dtype_word(uint32_t dtype);
double matrix_bytes(const weft_weight& w);

}  // namespace weft::bench
