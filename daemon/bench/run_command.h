// "weft-bench run": a whole model, measured. See docs/benchmarks.md for what each column means.
// One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/bench.h"

namespace weft::bench {

struct RunOptions {
  std::string model, plugin_dir, isa;
  std::string prefill = "128,512,2048", decode = "1,4,16", context = "32";
  std::vector<std::string> settings;  // key=value of the model plugin
  std::vector<std::string> once;
  std::string next = "random";
  uint32_t tokens = 64;  // decoded by each sequence
  bool deterministic = false;
  uint32_t threads = 0, max_batch_tokens = 512, max_sequences = 32, max_context = 0;
  uint32_t repeat = 3;
  uint64_t seed = 1;
  bool mixed = false, fake_context = false, profile = false, no_machine = false, json = false,
       from_stdin = false;
};

Status run_model(const RunOptions& options, const Streams& streams);

}  // namespace weft::bench
