// "weft-bench op": single operations of the kernel plugin, variant by variant. One thread calls;
// the kernels use as many as asked.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "bench/bench.h"

namespace weft::bench {

struct OpOptions {
  std::string op, shape, dtype, isa, variant, plugin_dir;
  uint32_t threads = 0;
  double seconds = 0.3;  // of each variant
  uint64_t seed = 1;
  bool all_variants = false, warm = false, no_machine = false, json = false;
};

Status run_ops(const OpOptions& options, const Streams& streams);

}  // namespace weft::bench
