#include "bench/op_bench.h"

#include <fmt/ostream.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <vector>

#include "bench/args.h"
#include "bench/loaded_model.h"
#include "bench/machine.h"
#include "bench/op_args.h"
#include "bench/op_cost.h"
#include "bench/stats.h"
#include "plugin/host_table.h"
#include "plugin/registry.h"
#include "plugin/status.h"

namespace weft::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr const char* kIsaLimits[] = {"ref", "avx2", "avx512", "avx512_bf16", "amx"};
constexpr uint64_t kColdCaches = 4;  // copies together against the last cache
constexpr size_t kCopiesMax = 256;
constexpr uint64_t kMemoryMax = 4ull << 30;
constexpr size_t kLaunchesMin = 5, kLaunchesMax = 20000;

struct OpResult {
  std::string op, variant;
  OpCost cost;  // of one launch
  Summary seconds;
  size_t copies = 0;
};

Result<uint32_t> dtype_of(const std::string& text, const std::string& op) {
  if (text.empty()) {
    if (op == "moe") return uint32_t{WEFT_MXFP4};
    return op == "mla_decode" || op == "mla_prefill" ? uint32_t{WEFT_F32} : uint32_t{WEFT_BF16};
  }
  for (const uint32_t dtype : {uint32_t{WEFT_F32}, uint32_t{WEFT_BF16}, uint32_t{WEFT_MXFP4}}) {
    if (text == dtype_word(dtype)) return dtype;
  }
  return make_error(ErrorCode::kInvalid, "--dtype {}: expected bf16, mxfp4 or f32", text);
}

// What a step of the "bench" preset consists of: one row, a batch of 8, a prompt piece.
constexpr const char* kDefaultWork[][2] = {
    {"gemm", "n=1024,k=1024,rows=1"},
    {"gemm", "n=1024,k=1024,rows=8"},
    {"gemm", "n=1024,k=1024,rows=512"},
    {"gemm", "n=16384,k=1024,rows=1"},
    {"gemm", "n=1024,k=4096,rows=512"},
    {"gemm_group", "n=1024,k=1024,parts=4,rows=1"},
    {"gemm_group", "n=1024,k=1024,parts=4,rows=512"},
    {"moe", "experts=64,topk=8,inner=512,width=512,rows=1"},
    {"moe", "experts=64,topk=8,inner=512,width=512,rows=8"},
    {"moe", "experts=64,topk=8,inner=512,width=512,rows=512"},
    {"kda_step", "heads=8,dim=128,seqs=1"},
    {"kda_step", "heads=8,dim=128,seqs=16"},
    {"kda_chunk", "heads=8,dim=128,rows=512"},
    {"mla_decode", "heads=8,context=1k,seqs=1"},
    {"mla_decode", "heads=8,context=16k,seqs=1"},
    {"mla_decode", "heads=8,context=1k,seqs=16"},
    {"mla_prefill", "heads=8,context=512,rows=512"},
    {"norm", "cols=1024,rows=1"},
    {"norm", "cols=1024,rows=512"},
    {"glu", "cols=1024,rows=512"},
    {"attnres", "cols=1024,blocks=3,rows=512"},
    {"route", "experts=64,topk=8,rows=512"},
};

class OpBench {
 public:
  OpBench(const OpOptions& options) : o_(options) {}

  Status open();
  Result<std::vector<OpResult>> measure(const OpRequest& request);
  uint32_t threads() const { return host_->pool().threads(); }

 private:
  Result<OpResult> measure_kernel(const weft_kernel& kernel, const OpRequest& request);
  Status launch(const weft_kernel& kernel, void* args, double* seconds);

  const OpOptions& o_;
  std::unique_ptr<plugin::HostTable> host_;
  std::unique_ptr<plugin::Registry> registry_;
  plugin::InterfaceRef kernels_;
};

Status OpBench::open() {
  plugin::HostOptions options;
  options.threads = o_.threads;
  host_ = plugin::HostTable::make(std::move(options));
  const std::string dir = o_.plugin_dir.empty() ? default_plugin_dir() : o_.plugin_dir;
  WEFT_ASSIGN(registry_, plugin::Registry::scan(dir, plugin::TrustPolicy::kRootOrUser));
  registry_->load_all();
  int32_t best = 0;
  for (const plugin::InterfaceRef& ref : registry_->find_interfaces(WEFT_KERNELS_ID)) {
    if (!registry_->open(ref.plugin->name(), *host_).ok()) continue;
    const int32_t score = ref.table<weft_kernels_v1>()->probe(ref.plugin->handle());
    if (score <= best) continue;
    best = score;
    kernels_ = ref;
  }
  if (kernels_) return {};
  return make_error(ErrorCode::kNotFound, "no plugin in {} offers {} on this machine", dir,
                    WEFT_KERNELS_ID);
}

// One limit of the instruction set after the other: each gives the best variant that needs no more,
// and the layouts that belong to it.
Result<std::vector<OpResult>> OpBench::measure(const OpRequest& request) {
  std::vector<std::string> limits = {o_.isa};
  if (o_.all_variants || !o_.variant.empty()) {
    limits.assign(std::begin(kIsaLimits), std::end(kIsaLimits));
  }
  std::vector<OpResult> out;
  std::set<std::string> seen;
  for (const std::string& limit : limits) {
    WEFT_TRY(host_->use_kernels(*kernels_.plugin, limit));
    const weft_kernel* kernel = host_->kernels()->find(request.op, kernel_dtype(request),
                                                       host_->kernels()->info().act_dtype);
    if (kernel == nullptr || !seen.insert(kernel->variant).second) continue;
    if (!o_.variant.empty() && o_.variant != kernel->variant) continue;
    WEFT_ASSIGN(OpResult result, measure_kernel(*kernel, request));
    out.push_back(std::move(result));
  }
  if (out.empty()) {
    return make_error(ErrorCode::kUnsupported, "the kernels have no \"{}\" for {}{}{}", request.op,
                      dtype_word(request.dtype),
                      o_.variant.empty() ? "" : " with variant " + o_.variant,
                      o_.isa.empty() ? "" : " within " + o_.isa);
  }
  return out;
}

Status OpBench::launch(const weft_kernel& kernel, void* args, double* seconds) {
  weft_err err = plugin::make_err();
  const auto begin = Clock::now();
  const weft_status status = kernel.launch(args, &err);
  *seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return status == WEFT_OK ? Status() : Status(plugin::plugin_error(status, err, kernel.op));
}

Result<OpResult> OpBench::measure_kernel(const weft_kernel& kernel, const OpRequest& request) {
  OpMemory memory(*host_->kernels(), o_.seed);
  WEFT_ASSIGN(const auto work, make_case(request, memory, host_->kernels()->info().act_dtype));
  const uint64_t wanted = o_.warm ? 0 : kColdCaches * last_cache_bytes();
  do {
    WEFT_TRY(work->add_copy());
    // The bytes of one launch, not of all data: of a mixture only some experts are read.
    const double cold = cost_of(request.op, work->args(0)).bytes() * double(work->copies());
    if (cold >= static_cast<double>(wanted)) break;
  } while (work->copies() < kCopiesMax && memory.used() < kMemoryMax);
  weft_plan plan{};
  plan.struct_size = sizeof(plan);
  weft_err err = plugin::make_err();
  uint32_t bad = 0;
  std::vector<double> seconds;
  for (size_t i = 0; i < work->copies(); ++i) {
    auto* head = static_cast<weft_op_head*>(work->args(i));
    head->host = host_->table();
    head->err = &bad;
    if (i == 0) {
      const weft_status status = kernel.plan(head, &plan, &err);
      if (status != WEFT_OK) return plugin::plugin_error(status, err, kernel.op);
    }
    head->workspace_bytes = plan.workspace_bytes;
    head->workspace = i == 0 ? memory.bytes(plan.workspace_bytes)
                             : static_cast<weft_op_head*>(work->args(0))->workspace;
    double unused = 0;
    WEFT_TRY(launch(kernel, head, &unused));
  }
  double total = 0;
  while (seconds.size() < kLaunchesMax && (total < o_.seconds || seconds.size() < kLaunchesMin)) {
    double s = 0;
    WEFT_TRY(launch(kernel, work->args(seconds.size() % work->copies()), &s));
    seconds.push_back(s);
    total += s;
  }
  OpResult result{request.op, kernel.variant, cost_of(request.op, work->args(0)),
                  summarize(seconds), work->copies()};
  const uint32_t context = request.get("context", 0);
  if (context != 0) result.cost.shape += fmt::format(", context {}", context);
  return result;
}

double roof_share(const OpResult& r, const Peaks& peaks, bool warm) {
  // Row operations move nothing but activations; the others are held to their weights and caches.
  const double bytes = r.cost.weight_bytes > 0 ? r.cost.weight_bytes : r.cost.act_bytes;
  const double least =
      roofline_seconds(warm ? 0 : bytes, r.cost.flop, peaks.read_bytes, peaks.matmul_flops());
  return r.seconds.median > 0 ? 100 * least / r.seconds.median : 0;
}

Json json_of(const OpResult& r, const Peaks& peaks, bool warm) {
  return {{"what", "op"},
          {"op", r.op},
          {"variant", r.variant},
          {"shape", r.cost.shape},
          {"rows", r.cost.rows},
          {"copies", r.copies},
          {"launches", r.seconds.count},
          {"us", r.seconds.median * 1e6},
          {"us_p10", r.seconds.p10 * 1e6},
          {"us_p90", r.seconds.p90 * 1e6},
          {"weight_bytes", r.cost.weight_bytes},
          {"act_bytes", r.cost.act_bytes},
          {"flop", r.cost.flop},
          {"roofline_percent", roof_share(r, peaks, warm)}};
}

void print_line(const OpResult& r, const Peaks& peaks, bool warm, std::ostream& out) {
  std::string shape = r.cost.shape;
  if (r.cost.experts != 0) shape += fmt::format(", {} hit", r.cost.experts);
  const double s = r.seconds.median;
  const double bytes = r.cost.weight_bytes > 0 ? r.cost.weight_bytes : r.cost.act_bytes;
  fmt::print(
      out, "{:<12}{:<12}{:<42}{:>6}{:>11.2f}{:>11.2f}{:>11.2f}{:>10.3f}{:>8.1f}{:>9.1f}{:>7.0f}\n",
      r.op, r.variant, shape, r.cost.rows, s * 1e6, r.seconds.p10 * 1e6, r.seconds.p90 * 1e6,
      bytes / 1e6, bytes / s / 1e9, r.cost.flop / s / 1e9, roof_share(r, peaks, warm));
}

Result<std::vector<OpRequest>> requests_of(const OpOptions& o) {
  std::vector<OpRequest> out;
  const auto add = [&](const std::string& op, std::string_view shape) -> Status {
    OpRequest request;
    request.op = op;
    WEFT_ASSIGN(request.dtype, dtype_of(o.dtype, op));
    WEFT_ASSIGN(request.shape, parse_shape(shape, kShapeKeys));
    out.push_back(std::move(request));
    return {};
  };
  if (!o.op.empty()) {
    WEFT_TRY(add(o.op, o.shape));
    return out;
  }
  if (!o.shape.empty() || !o.dtype.empty()) {
    return make_error(ErrorCode::kInvalid,
                      "--shape and --dtype belong to one operation: name it "
                      "with --op");
  }
  for (const auto& [op, shape] : kDefaultWork) WEFT_TRY(add(op, shape));
  return out;
}

}  // namespace

Status run_ops(const OpOptions& o, const Streams& streams) {
  WEFT_ASSIGN(const std::vector<OpRequest> requests, requests_of(o));
  OpBench bench(o);
  WEFT_TRY(bench.open());
  MachineReport machine;
  if (!o.no_machine) {
    WEFT_ASSIGN(machine, measure_machine(o.threads, /*quick=*/true));
  }
  const Peaks peaks = machine.peaks();
  Json lines = Json::array();
  if (!o.json) {
    if (!o.no_machine) print(machine, streams.out);
    fmt::print(streams.out, "\n{:<12}{:<12}{:<42}{:>6}{:>11}{:>11}{:>11}{:>10}{:>8}{:>9}{:>7}\n",
               "op", "variant", "shape", "rows", "us", "p10", "p90", "MB", "GB/s", "GFLOP/s",
               "%roof");
  }
  for (const OpRequest& request : requests) {
    WEFT_ASSIGN(const std::vector<OpResult> results, bench.measure(request));
    for (const OpResult& r : results) {
      if (o.json) {
        lines.push_back(json_of(r, peaks, o.warm));
      } else {
        print_line(r, peaks, o.warm, streams.out);
        streams.out << std::flush;
      }
    }
  }
  if (o.json) streams.out << Json{{"machine", to_json(machine)}, {"ops", lines}}.dump() << "\n";
  return {};
}

}  // namespace weft::bench
