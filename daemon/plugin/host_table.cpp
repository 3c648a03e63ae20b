#include "plugin/host_table.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include <algorithm>

#include "base/log.h"
#include "plugin/host_memory.h"
#include "plugin/loader.h"
#include "plugin/status.h"
#include "plugin/thread_labels.h"

namespace weft::plugin {
namespace {

uint32_t usable_cpu_count() {
  return static_cast<uint32_t>(std::max<size_t>(1, process_cpus().size()));
}

uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

ThreadPoolOptions pool_options(const HostOptions& options) {
  ThreadPoolOptions pool;
  pool.threads = options.threads == 0 ? usable_cpu_count() : options.threads;
  // A pool that has the whole machine; a smaller one leaves the choice of CPUs to the system.
  pool.pin = options.pin_threads && pool.threads == usable_cpu_count();
  return pool;
}

bool is_metric_name(std::string_view name) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && name.size() <= 96 && std::all_of(name.begin(), name.end(), good);
}

}  // namespace

// What weft_host.impl points to: which plugin asks.
struct HostTable::View {
  weft_host table{};
  HostTable* host = nullptr;
  std::string name;
  std::vector<std::unique_ptr<std::string>> secrets;  // stable addresses until drop_credentials
};

// The functions in the tables. All are noexcept in effect: whatever can throw is an allocation at
// [init].
struct HostTable::Callbacks {
  static View& view(const weft_host* host) { return *static_cast<View*>(host->impl); }
  static HostTable& self(const weft_host* host) { return *view(host).host; }

  static const void* extension(const weft_host* host, const char* id) {
    const std::string_view wanted = id == nullptr ? "" : id;
    if (wanted == WEFT_HOST_KERNELS_ID) return self(host).kernels_ ? &kKernels : nullptr;
    if (wanted == WEFT_HOST_THREADS_ID) return &kThreads;
    return nullptr;
  }

  static void log(const weft_host* host, int32_t level, const char* message) {
    const std::string text = clean_text(message == nullptr ? "" : message);
    const View& v = view(host);
    if (self(host).options_.log) {
      self(host).options_.log(level, v.name, text);
    } else {
      log_at(static_cast<LogLevel>(std::clamp(level, 3, 7)), "plugin {}: {}", v.name, text);
    }
  }

  static uint64_t now_ns(const weft_host* host) {
    const auto& clock = self(host).options_.now_ns;
    return clock ? clock() : monotonic_ns();
  }

  static weft_status alloc(const weft_host* host, int32_t mem, int32_t, uint64_t bytes,
                           uint64_t align, void** out) {
    // Without a device plugin there is nothing to pin for: pinned memory is host memory.
    if (mem != WEFT_MEM_HOST && mem != WEFT_MEM_PINNED) return WEFT_E_UNSUPPORTED;
    auto block = allocate_host(bytes, align);
    if (!block.ok()) return block.error().code == ErrorCode::kInvalid ? WEFT_E_ARG : WEFT_E_NOMEM;
    self(host).bytes_in_use_.fetch_add(bytes, std::memory_order_relaxed);
    *out = *block;
    return WEFT_OK;
  }

  static void release(const weft_host* host, int32_t, int32_t, void* ptr, uint64_t bytes) {
    if (ptr == nullptr) return;
    self(host).bytes_in_use_.fetch_sub(bytes, std::memory_order_relaxed);
    release_host(ptr, bytes);
  }

  static void wake(const weft_host* host, uint64_t token) {
    if (self(host).options_.wake) self(host).options_.wake(token);
  }

  static void run(const weft_host* host, void (*fn)(void*, uint32_t, uint32_t), void* ctx,
                  uint32_t parts) {
    self(host).pool_.run(fn, ctx, parts);
  }

  static uint32_t threads(const weft_host* host) { return self(host).pool_.threads(); }

  static weft_status credential(const weft_host* host, const char* name, weft_bytes* out) {
    const auto& source = self(host).options_.credential;
    if (!source || name == nullptr) return WEFT_E_CONFIG;
    auto secret = source(name);
    if (!secret.ok()) return status_of(secret.error().code);
    auto& secrets = view(host).secrets;
    secrets.push_back(std::make_unique<std::string>(std::move(secret).value()));
    *out = weft_bytes{secrets.back()->data(), secrets.back()->size()};
    return WEFT_OK;
  }

  static uint64_t metric(const weft_host* host, const char* name, int32_t kind, const char* help) {
    HostTable& h = self(host);
    if (name == nullptr || !is_metric_name(name) || (kind != 1 && kind != 2)) return 0;
    const std::string full = std::string("weft_plugin_") + name;
    const std::lock_guard lock(h.mutex_);
    const size_t n = h.n_metrics_.load(std::memory_order_relaxed);
    for (size_t i = 0; i < n; ++i) {
      if (h.metrics_[i].name == full && h.metrics_[i].plugin == view(host).name) return i + 1;
    }
    if (n == kMetricsMax) return 0;
    Metric& metric = h.metrics_[n];
    metric.name = full;
    metric.plugin = view(host).name;
    metric.help = clean_text(help == nullptr ? "" : help);
    metric.counter = kind == 1;
    h.n_metrics_.store(n + 1, std::memory_order_release);
    return n + 1;
  }

  static void metric_put(const weft_host* host, uint64_t id, double value) {
    HostTable& h = self(host);
    if (id == 0 || id > h.n_metrics_.load(std::memory_order_acquire)) return;
    Metric& metric = h.metrics_[id - 1];
    if (metric.counter) {
      metric.value.fetch_add(value, std::memory_order_relaxed);
    } else {
      metric.value.store(value, std::memory_order_relaxed);
    }
  }

  // "weft.host.kernels/1"
  static weft_status kernels_info(const weft_host* host, weft_kernels_info* out, weft_err*) {
    const uint32_t size = std::min<uint32_t>(out->struct_size, sizeof(weft_kernels_info));
    memcpy(out, &self(host).kernels_->info(), size);
    out->struct_size = size;
    return WEFT_OK;
  }
  static const weft_kernel* kernels_find(const weft_host* host, const char* op, uint32_t dtype_w,
                                         uint32_t dtype_act) {
    return op == nullptr ? nullptr : self(host).kernels_->find(op, dtype_w, dtype_act);
  }
  static weft_status kernels_pack_plan(const weft_host* host, const weft_weight* w,
                                       uint32_t* layout, uint64_t* bytes, uint64_t* scale_bytes) {
    return self(host).kernels_->pack_plan(w, layout, bytes, scale_bytes);
  }
  static weft_status kernels_pack(const weft_host* host, const weft_weight* src,
                                  const weft_weight* dst, weft_err* err) {
    return self(host).kernels_->pack(src, dst, err);
  }

  // "weft.host.threads/1"
  static uint32_t labels(const weft_host*) { return ThreadLabel::current(); }
  static int32_t is_engine_thread(const weft_host*) {
    return (ThreadLabel::current() & WEFT_THREAD_ENGINE) != 0 ? 1 : 0;
  }

  static constexpr weft_host_kernels_v1 kKernels = {sizeof(weft_host_kernels_v1),
                                                    0,
                                                    &kernels_info,
                                                    &kernels_find,
                                                    &kernels_pack_plan,
                                                    &kernels_pack};
  static constexpr weft_host_threads_v1 kThreads = {sizeof(weft_host_threads_v1), 0, &labels,
                                                    &is_engine_thread};
};

HostTable::HostTable(HostOptions options)
    : options_(std::move(options)),
      pool_(pool_options(options_)),
      metrics_(std::make_unique<Metric[]>(kMetricsMax)) {}

HostTable::~HostTable() {
  for (const auto& view : views_) drop_credentials(view->name);
}

std::unique_ptr<HostTable> HostTable::make(HostOptions options) {
  return std::unique_ptr<HostTable>(new HostTable(std::move(options)));
}

const weft_host* HostTable::table(std::string_view plugin_name) {
  const std::lock_guard lock(mutex_);
  for (const auto& view : views_)
    if (view->name == plugin_name) return &view->table;
  auto view = std::make_unique<View>();
  view->host = this;
  view->name = plugin_name;
  weft_host& t = view->table;
  t.struct_size = sizeof t;
  t.abi_minor = WEFT_ABI_MINOR;
  t.impl = view.get();
  t.extension = &Callbacks::extension;
  t.log = &Callbacks::log;
  t.now_ns = &Callbacks::now_ns;
  t.alloc = &Callbacks::alloc;
  t.release = &Callbacks::release;
  t.wake = &Callbacks::wake;
  t.run = &Callbacks::run;
  t.threads = &Callbacks::threads;
  t.credential = &Callbacks::credential;
  t.metric = &Callbacks::metric;
  t.metric_put = &Callbacks::metric_put;
  views_.push_back(std::move(view));
  return &views_.back()->table;
}

Status HostTable::use_kernels(const LoadedPlugin& plugin, std::string_view isa_max) {
  const auto* kernels = plugin.table<weft_kernels_v1>(WEFT_KERNELS_ID);
  if (kernels == nullptr || !plugin.is_open()) {
    return make_error(
        ErrorCode::kInvalid,
        "plugin {}: expected an open plugin with interface {}, came {}; choose a kernel "
        "plugin and open it first",
        plugin.name(), WEFT_KERNELS_ID,
        kernels == nullptr ? "one without that interface" : "one that is not open");
  }
  return use_kernels(kernels, plugin.handle(), isa_max);
}

Status HostTable::use_kernels(const weft_kernels_v1* kernels, weft_plugin* plugin,
                              std::string_view isa_max) {
  WEFT_ASSIGN(auto chosen, HostKernels::make(kernels, plugin, isa_max));
  if (kernels_) retired_kernels_.push_back(std::move(kernels_));
  kernels_ = std::move(chosen);
  return {};
}

std::vector<MetricValue> HostTable::metrics() const {
  std::vector<MetricValue> out;
  const size_t n = n_metrics_.load(std::memory_order_acquire);
  for (size_t i = 0; i < n; ++i) {
    const Metric& m = metrics_[i];
    out.push_back({m.name, m.plugin, m.help, m.counter, m.value.load(std::memory_order_relaxed)});
  }
  return out;
}

void HostTable::drop_credentials(std::string_view plugin_name) {
  for (const auto& view : views_) {
    if (view->name != plugin_name) continue;
    for (const auto& secret : view->secrets) explicit_bzero(secret->data(), secret->size());
    view->secrets.clear();
  }
}

}  // namespace weft::plugin
