#include "bench/report.h"

#include <fmt/ostream.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace weft::bench {
namespace {

using Json = nlohmann::ordered_json;

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

struct Shares {
  double gb_per_s = 0, gflop_per_s = 0, bandwidth = 0, arithmetic = 0, roofline = 0;
};

Shares shares_of(const ReportRow& row, const Peaks& peaks) {
  const double seconds = row.unit_seconds.median;
  Shares s;
  if (seconds <= 0) return s;
  s.gb_per_s = row.cost.bytes() / seconds / 1e9;
  s.gflop_per_s = row.cost.flop / seconds / 1e9;
  s.bandwidth = percent(s.gb_per_s * 1e9, peaks.read_bytes);
  s.arithmetic = percent(s.gflop_per_s * 1e9, peaks.matmul_flops());
  s.roofline = percent(
      roofline_seconds(row.cost.bytes(), row.cost.flop, peaks.read_bytes, peaks.matmul_flops()),
      seconds);
  return s;
}

uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t pages = 0, resident = 0;
  in >> pages >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

double file_bytes(const std::string& directory) {
  double bytes = 0;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ec)) {
    if (entry.path().extension() != ".safetensors") continue;
    const uint64_t size = entry.file_size(ec);
    if (!ec) bytes += static_cast<double>(size);
  }
  return bytes;
}

StepCost prompt_cost(const ModelShape& shape, const CacheBytes& cache, uint64_t tokens,
                     uint32_t step_rows) {
  StepCost total;
  for (uint64_t done = 0; done < tokens; done += step_rows) {
    const auto rows = static_cast<uint32_t>(std::min<uint64_t>(step_rows, tokens - done));
    const RunCost run{rows, done};
    total.add(step_cost(shape, cache, {&run, 1}, done + rows == tokens ? 1 : 0));
  }
  return total;
}

}  // namespace

CacheBytes cache_bytes_of(const weft_mem_plan& plan) {
  CacheBytes out;
  for (uint32_t i = 0; i < plan.n_groups; ++i) {
    const weft_cache_group& g = plan.groups[i];
    const auto bytes = static_cast<double>(g.unit_bytes);
    if (g.kind == WEFT_CACHE_ROWS) {
      out.per_token += bytes / g.unit_tokens;
    } else {
      out.per_sequence += bytes;
    }
  }
  return out;
}

ReportRow make_row(const std::vector<Measurement>& repeats, const ModelShape& shape,
                   const CacheBytes& cache, uint32_t max_batch_tokens) {
  const Measurement& first = repeats.front();
  ReportRow row;
  row.what = first.what;
  row.batch = first.batch;
  row.rows_per_step = first.rows_per_step;
  row.context = first.context;
  row.fake_context = first.fake_context;
  std::vector<double> units;
  for (const Measurement& m : repeats) {
    if (m.what == "prefill") {
      units.push_back(m.seconds);
    } else {
      units.insert(units.end(), m.step_seconds.begin(), m.step_seconds.end());
    }
  }
  row.unit_seconds = summarize(units);
  if (first.what == "prefill") {
    row.tokens_per_unit = static_cast<double>(first.tokens);
    row.cost = prompt_cost(shape, cache, first.tokens, max_batch_tokens);
    return row;
  }
  row.tokens_per_unit = first.rows_per_step;
  // The context grows while decoding: the middle stands for all.
  const uint64_t middle = first.context + first.step_seconds.size() / 2;
  std::vector<RunCost> runs(first.batch, RunCost{1, middle});
  const uint32_t piece = first.rows_per_step - first.batch;
  if (piece > 0) runs.push_back({piece, 0});
  row.cost = step_cost(shape, cache, runs, first.batch + (piece > 0 ? 1 : 0));
  return row;
}

Json to_json(const ReportRow& row, const Peaks& peaks) {
  const Shares s = shares_of(row, peaks);
  return {{"what", row.what},
          {"batch", row.batch},
          {"context", row.context},
          {"fake_context", row.fake_context},
          {"rows_per_step", row.rows_per_step},
          {"tokens", row.tokens_per_unit},
          {"tok_s", row.tokens_per_second()},
          {"ms", row.unit_seconds.median * 1e3},
          {"ms_p10", row.unit_seconds.p10 * 1e3},
          {"ms_p90", row.unit_seconds.p90 * 1e3},
          {"bytes", row.cost.bytes()},
          {"weight_bytes", row.cost.weight_bytes},
          {"expert_bytes", row.cost.expert_bytes},
          {"state_bytes", row.cost.state_bytes},
          {"row_bytes", row.cost.row_bytes},
          {"flop", row.cost.flop},
          {"gb_s", s.gb_per_s},
          {"gflop_s", s.gflop_per_s},
          {"bandwidth_percent", s.bandwidth},
          {"arithmetic_percent", s.arithmetic},
          {"roofline_percent", s.roofline}};
}

Json memory_json(const LoadedModel& model) {
  const CacheBytes cache = cache_bytes_of(model.plan());
  return {{"checkpoint_bytes", file_bytes(model.options().model_dir)},
          {"weight_bytes", model.plan().weight_bytes},
          {"workspace_bytes", model.plan().workspace_bytes},
          {"cache_bytes_per_token", cache.per_token},
          {"cache_bytes_per_sequence", cache.per_sequence},
          {"resident_bytes", resident_bytes()}};
}

void print_memory(const LoadedModel& model, std::ostream& out) {
  const CacheBytes cache = cache_bytes_of(model.plan());
  const ModelOptions& o = model.options();
  fmt::print(out,
             "model: {}, kernels {}{}, {} layers of {}, loaded in {:.1f} s\n"
             "memory: weights {:.1f} MB (files {:.1f}), workspace {:.1f} MB for {} rows and "
             "{} sequences,\n        caches {:.0f} B per token + {:.2f} MB per sequence, resident "
             "{:.1f} MB\n",
             o.model_dir, model.kernels(), o.isa_max.empty() ? "" : " limited to " + o.isa_max,
             model.info().layers, model.info().hidden, model.load_seconds(),
             static_cast<double>(model.plan().weight_bytes) / 1e6, file_bytes(o.model_dir) / 1e6,
             static_cast<double>(model.plan().workspace_bytes) / 1e6, o.max_batch_tokens,
             o.max_sequences, cache.per_token, cache.per_sequence / 1e6,
             static_cast<double>(resident_bytes()) / 1e6);
}

void print_rows(const std::vector<ReportRow>& rows, const Peaks& peaks, std::ostream& out) {
  fmt::print(out,
             "\n{:<8}{:>6}{:>9}{:>6}{:>10}{:>10}{:>10}{:>10}{:>9}{:>8}{:>6}{:>9}{:>9}{:>6}{:>7}\n",
             "", "batch", "context", "rows", "tok/s", "ms", "p10", "p90", "GB", "GB/s", "%bw",
             "GFLOP", "GFLOP/s", "%fl", "%roof");
  for (const ReportRow& row : rows) {
    const Shares s = shares_of(row, peaks);
    const bool prompt = row.what == "prefill";
    const double context = prompt ? row.tokens_per_unit : static_cast<double>(row.context);
    fmt::print(out,
               "{:<8}{:>6}{:>8.0f}{}{:>6}{:>10.1f}{:>10.3f}{:>10.3f}{:>10.3f}{:>9.3f}{:>8.1f}"
               "{:>6.0f}{:>9.2f}{:>9.1f}{:>6.0f}{:>7.0f}\n",
               row.what, row.batch, context, row.fake_context ? "*" : " ", row.rows_per_step,
               row.tokens_per_second(), row.unit_seconds.median * 1e3, row.unit_seconds.p10 * 1e3,
               row.unit_seconds.p90 * 1e3, row.cost.bytes() / 1e9, s.gb_per_s, s.bandwidth,
               row.cost.flop / 1e9, s.gflop_per_s, s.arithmetic, s.roofline);
  }
}

}  // namespace weft::bench
