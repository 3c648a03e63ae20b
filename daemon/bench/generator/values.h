// Fills a piece of a planned tensor. Element k depends on the tensor's name, the seed and k alone,
// so any number of threads give the same bytes. Pure; any thread.
#pragma once

#include <cstdint>

#include "bench/generator/tensor_plan.h"

namespace weft::bench {

uint64_t tensor_stream(const std::string& name, uint64_t seed);
// Elements [begin, begin + count) to `out`, in the tensor's type.
void fill_values(const PlannedTensor& tensor, uint64_t stream, uint64_t begin, uint64_t count,
                 void* out);

}  // namespace weft::bench
