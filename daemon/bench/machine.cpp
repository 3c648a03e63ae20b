#include "bench/machine.h"

#include <fmt/ostream.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>

#include "bench/peaks.h"
#include "engine/cache/sizes.h"
#include "plugin/host_memory.h"
#include "plugin/host_table.h"

namespace weft::bench {
namespace {

using Clock = std::chrono::steady_clock;
using plugin::HostTable;
using plugin::ThreadPool;

constexpr uint64_t kCacheMultiple = 16;  // the buffer against the last cache
constexpr uint64_t kBufferMin = 256ull << 20, kBufferMax = 4ull << 30;
constexpr double kLoopSeconds = 0.03;

std::atomic<uint64_t> g_sink{0};  // results go here, so that no loop is optimised away

template <class Work>
double timed(ThreadPool& pool, uint32_t threads, Work work) {
  const auto call = [](void* ctx, uint32_t part, uint32_t) { (*static_cast<Work*>(ctx))(part); };
  const auto begin = Clock::now();
  pool.run(call, &work, threads);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Rate rate_of(std::string kind, std::string name, uint32_t threads, double amount,
             const std::vector<double>& seconds) {
  const Summary s = summarize(seconds);
  return {std::move(kind), std::move(name), threads, amount / s.best, amount / s.median};
}

// Keeps the calling thread on the first CPU while it lives: the pool's threads are pinned to the
// others, and two threads on one CPU would measure half a machine.
class PinnedCaller {
 public:
  PinnedCaller() {
    CPU_ZERO(&before_);
    if (::sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &before_)) continue;
      cpu_set_t first;
      CPU_ZERO(&first);
      CPU_SET(cpu, &first);
      pinned_ = ::sched_setaffinity(0, sizeof(first), &first) == 0;
      return;
    }
  }
  ~PinnedCaller() {
    if (pinned_) ::sched_setaffinity(0, sizeof(before_), &before_);
  }
  PinnedCaller(const PinnedCaller&) = delete;
  PinnedCaller& operator=(const PinnedCaller&) = delete;

 private:
  cpu_set_t before_;
  bool pinned_ = false;
};

class Buffer {
 public:
  explicit Buffer(uint64_t bytes) : bytes_(bytes) {
    auto block = plugin::allocate_host(bytes, plugin::kHugePage);
    if (block.ok()) base_ = static_cast<char*>(*block);
  }
  ~Buffer() {
    if (base_ != nullptr) plugin::release_host(base_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* base() const { return base_; }

 private:
  uint64_t bytes_;
  char* base_ = nullptr;
};

uint64_t buffer_size() {
  // A quarter of what is left: see default_cache_budget.
  const uint64_t most = std::min(kBufferMax, engine::default_cache_budget(0) / 2);
  const uint64_t wanted = std::max(kBufferMin, kCacheMultiple * last_cache_bytes());
  return std::min(wanted, most) & ~uint64_t{1023};
}

Status measure_reads(ThreadPool& pool, uint32_t passes, MachineReport* out) {
  const uint64_t bytes = buffer_size();
  const Buffer buffer(bytes);
  if (buffer.base() == nullptr) {
    return make_error(ErrorCode::kUnavailable, "no memory for a buffer of {} MiB", bytes >> 20);
  }
  out->buffer_bytes = bytes;
  const ReadLoop loop = read_loop();
  std::vector<uint32_t> counts = {1};
  if (out->threads > 1) counts.push_back(out->threads);
  const uint64_t all = out->threads, piece = bytes / all & ~uint64_t{1023};
  timed(pool, out->threads, [&](uint32_t part) {  // written by the threads that will read it
    std::memset(buffer.base() + part * piece, static_cast<int>(part) + 1, piece);
  });
  for (const uint32_t threads : counts) {
    const uint64_t share = bytes / threads & ~uint64_t{1023};
    std::vector<double> seconds;
    for (uint32_t pass = 0; pass <= passes; ++pass) {
      const double s = timed(pool, threads, [&](uint32_t part) {
        g_sink.fetch_xor(loop(buffer.base() + part * share, share), std::memory_order_relaxed);
      });
      if (pass > 0) seconds.push_back(s);
    }
    out->rates.push_back(
        rate_of("read", "stream", threads, static_cast<double>(share * threads), seconds));
  }
  return {};
}

void measure_compute(ThreadPool& pool, uint32_t passes, MachineReport* out) {
  std::vector<uint32_t> counts = {1};
  if (out->threads > 1) counts.push_back(out->threads);
  for (const ComputeLoop& loop : compute_loops()) {
    if (std::string_view(loop.name) == "plain" && compute_loops().size() > 1) continue;
    uint64_t rounds = 1000;
    const auto work = [&](uint32_t) {
      g_sink.fetch_xor(loop.run(rounds) > 0 ? 1 : 0, std::memory_order_relaxed);
    };
    while (timed(pool, 1, work) < kLoopSeconds) rounds *= 2;
    for (const uint32_t threads : counts) {
      std::vector<double> seconds;
      for (uint32_t pass = 0; pass < passes; ++pass) seconds.push_back(timed(pool, threads, work));
      const double ops = loop.ops_per_round * static_cast<double>(rounds) * threads;
      out->rates.push_back(rate_of(loop.kind, loop.name, threads, ops, seconds));
    }
  }
}

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

double best_of(const std::vector<Rate>& rates, std::string_view kind, uint32_t threads,
               double Rate::*which) {
  double best = 0;
  for (const Rate& r : rates) {
    if (r.kind == kind && r.threads == threads) best = std::max(best, r.*which);
  }
  return best;
}

}  // namespace

uint64_t last_cache_bytes() {
  // What the kernel says is what this CPU can reach; sysconf counts the caches of a whole package.
  std::ifstream in("/sys/devices/system/cpu/cpu0/cache/index3/size");
  uint64_t kib = 0;
  char unit = 0;
  if (in >> kib >> unit && unit == 'K' && kib > 0) return kib << 10;
  const long bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<uint64_t>(bytes) : 32ull << 20;
}

Peaks MachineReport::peaks() const {
  return {best_of(rates, "read", threads, &Rate::median),
          best_of(rates, "f32", threads, &Rate::best), best_of(rates, "bf16", threads, &Rate::best),
          best_of(rates, "int8", threads, &Rate::best)};
}

Result<MachineReport> measure_machine(uint32_t threads, bool quick) {
  plugin::HostOptions options;
  options.threads = threads;
  options.pin_threads = true;
  const auto host = HostTable::make(std::move(options));
  const PinnedCaller pinned;
  MachineReport report;
  report.cpu = cpu_name();
  report.threads = host->pool().threads();
  report.last_cache_bytes = last_cache_bytes();
  const uint32_t passes = quick ? 5 : 11;
  WEFT_TRY(measure_reads(host->pool(), passes, &report));
  measure_compute(host->pool(), passes, &report);
  return report;
}

nlohmann::ordered_json to_json(const MachineReport& report) {
  nlohmann::ordered_json rates = nlohmann::ordered_json::array();
  for (const Rate& r : report.rates) {
    rates.push_back({{"kind", r.kind},
                     {"loop", r.name},
                     {"threads", r.threads},
                     {"best_per_s", r.best},
                     {"median_per_s", r.median}});
  }
  return {{"what", "machine"},
          {"cpu", report.cpu},
          {"threads", report.threads},
          {"last_cache_bytes", report.last_cache_bytes},
          {"buffer_bytes", report.buffer_bytes},
          {"rates", rates}};
}

void print(const MachineReport& report, std::ostream& out) {
  fmt::print(out, "machine: {}, {} threads, last cache {} MiB, buffer {} MiB\n", report.cpu,
             report.threads, report.last_cache_bytes >> 20, report.buffer_bytes >> 20);
  fmt::print(out, "{:<24}{:>8}{:>12}{:>12}\n", "", "threads", "best", "median");
  for (const Rate& r : report.rates) {
    const char* unit = r.kind == "read" ? "GB/s" : r.kind == "int8" ? "GOP/s" : "GFLOP/s";
    fmt::print(out, "{:<24}{:>8}{:>12.1f}{:>12.1f} {}\n", r.kind + " " + r.name, r.threads,
               r.best / 1e9, r.median / 1e9, unit);
  }
}

}  // namespace weft::bench
