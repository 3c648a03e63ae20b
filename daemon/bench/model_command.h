// "weft-bench model": writes a checkpoint of random weights. One thread calls.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "bench/bench.h"

namespace weft::bench {

struct ModelCommandOptions {
  std::string preset = "bench", directory, dtype = "released";
  std::map<std::string, uint32_t> numbers;  // by shape key
  uint64_t seed = 1;
  uint32_t threads = 0;
};

Status write_model(const ModelCommandOptions& options, const Streams& streams);

}  // namespace weft::bench
