// Times of the prefix cache's own work: hashing a prompt, looking it up, admitting a sequence on
// it, keeping a snapshot. Units are as small as they can be, so that nothing but the bookkeeping is
// measured. One thread.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "bench/bench.h"

namespace weft::bench {

struct CacheBenchOptions {
  uint32_t tokens = 1u << 20;
  uint32_t others = 1000;  // conversations that are kept too, each with 4096 tokens of its own
  uint32_t repeat = 50;
  bool json = false;
};

Status run_cache_bench(const CacheBenchOptions& options, const Streams& streams);

}  // namespace weft::bench
