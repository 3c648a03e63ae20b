// What this machine can do at most, measured: every other number of weft-bench is quoted as a share
// of these. One thread calls; measures on as many as asked.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/stats.h"

namespace weft::bench {

struct Rate {
  std::string kind;  // "read", "f32", "bf16", "int8"
  std::string name;  // of the loop
  uint32_t threads = 0;
  double best = 0, median = 0;  // bytes or operations per second
};

struct MachineReport {
  std::string cpu;
  uint32_t threads = 0;
  uint64_t last_cache_bytes = 0;  // of the largest cache, as the system reports it
  uint64_t buffer_bytes = 0;
  std::vector<Rate> rates;  // one thread and all threads

  // With all threads. Arithmetic at its best; memory at its median, because what a shared machine
  // gives now and then is not what it gives.
  Peaks peaks() const;
};

// quick: half as many passes, for runs in which the machine is only the yardstick.
Result<MachineReport> measure_machine(uint32_t threads, bool quick = false);
uint64_t last_cache_bytes();

nlohmann::ordered_json to_json(const MachineReport& report);
void print(const MachineReport& report, std::ostream& out);

}  // namespace weft::bench
