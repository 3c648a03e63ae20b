// Turns measurements of a model into rows that set time against the least that the work costs on
// this machine, and prints them as a table or as JSON. Pure apart from the stream; one thread.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "bench/cost.h"
#include "bench/loaded_model.h"
#include "bench/machine.h"
#include "bench/model_bench.h"
#include "bench/stats.h"

namespace weft::bench {

// One line. The unit is a whole prompt for "prefill", a step for the others.
struct ReportRow {
  std::string what;
  uint32_t batch = 1, rows_per_step = 0;
  uint64_t context = 0;
  bool fake_context = false;
  double tokens_per_unit = 0;
  Summary unit_seconds;
  StepCost cost;  // of a unit
  double tokens_per_second() const {
    return unit_seconds.median > 0 ? tokens_per_unit / unit_seconds.median : 0;
  }
};

// repeats: the same measurement again and again; at least one.
ReportRow make_row(const std::vector<Measurement>& repeats, const ModelShape& shape,
                   const CacheBytes& cache, uint32_t max_batch_tokens);

CacheBytes cache_bytes_of(const weft_mem_plan& plan);

nlohmann::ordered_json to_json(const ReportRow& row, const Peaks& peaks);
nlohmann::ordered_json memory_json(const LoadedModel& model);
void print_memory(const LoadedModel& model, std::ostream& out);
void print_rows(const std::vector<ReportRow>& rows, const Peaks& peaks, std::ostream& out);

}  // namespace weft::bench
