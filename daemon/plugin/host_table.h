// HostTable: everything that the daemon offers its plugins (weft/host.h), as C tables over C++
// services: memory, log, clock, the kernel thread pool, secrets, metrics, and the chosen kernel
// set.
//
// One per process (a worker, a test). table(name) gives each plugin a table of its own, so that log
// lines and metrics carry its name; all tables share the services. The tables live as long as the
// HostTable: destroy it after the plugins are closed. Construction and use_kernels belong to
// [init]; the functions in the tables keep the labels of the ABI.
#pragma once

#include <weft/host.h>
#include <weft/kernels.h>
#include <weft/threads.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "plugin/host_kernels.h"
#include "plugin/thread_pool.h"

namespace weft::plugin {

class LoadedPlugin;

struct HostOptions {
  uint32_t threads = 1;      // kernel threads including the engine thread; 0 = one per usable CPU
  bool pin_threads = false;  // when there are as many as usable CPUs
  std::function<uint64_t()> now_ns;  // default: the monotonic clock
  std::function<void(int32_t level, std::string_view plugin, std::string_view message)>
      log;                                                               // default: base/log.h
  std::function<void(uint64_t token)> wake;                              // default: nothing
  std::function<Result<std::string>(std::string_view name)> credential;  // default: there are none
};

struct MetricValue {
  std::string name;  // weft_plugin_<name>
  std::string plugin;
  std::string help;
  bool counter = false;
  double value = 0;
};

class HostTable {
 public:
  static constexpr size_t kMetricsMax = 256;  // of all plugins together

  static std::unique_ptr<HostTable> make(HostOptions options);
  ~HostTable();
  HostTable(const HostTable&) = delete;
  HostTable& operator=(const HostTable&) = delete;

  // The table for one plugin; the same pointer for the same name.
  const weft_host* table(std::string_view plugin_name = "host");

  // Chooses the kernel set for "weft.host.kernels/1". The plugin must be open. isa_max: "" no
  // limit, or "ref", "avx2", "avx512", "avx512_bf16", "amx": the best variant that needs no more
  // than that. Call before models are created.
  Status use_kernels(const LoadedPlugin& plugin, std::string_view isa_max);
  Status use_kernels(const weft_kernels_v1* kernels, weft_plugin* plugin, std::string_view isa_max);
  // The chosen kernels, or NULL before use_kernels.
  const HostKernels* kernels() const { return kernels_.get(); }

  ThreadPool& pool() { return pool_; }
  std::vector<MetricValue> metrics() const;
  uint64_t bytes_in_use() const { return bytes_in_use_.load(std::memory_order_relaxed); }
  // Forgets (wipes) the secrets that the plugin asked for; the loader calls it when open has
  // returned.
  void drop_credentials(std::string_view plugin_name);

 private:
  struct View;
  struct Metric {
    std::string name, plugin, help;
    bool counter = false;
    std::atomic<double> value{0};
  };
  struct Callbacks;
  friend struct Callbacks;

  explicit HostTable(HostOptions options);

  HostOptions options_;
  ThreadPool pool_;
  std::unique_ptr<HostKernels> kernels_;
  std::vector<std::unique_ptr<HostKernels>> retired_kernels_;  // models may still point into them
  std::atomic<uint64_t> bytes_in_use_{0};
  mutable std::mutex mutex_;  // guards views_ and adding to metrics_
  std::vector<std::unique_ptr<View>> views_;
  std::unique_ptr<Metric[]> metrics_;  // fixed: metric_put reads without a lock
  std::atomic<size_t> n_metrics_{0};   // stored (release) after the entry is complete
};

}  // namespace weft::plugin
