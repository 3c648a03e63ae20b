#include "gateway/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <utility>

#include "config/config.h"
#include "gateway/backend.h"

namespace weft::gateway {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

namespace {

const Histogram::BucketBoundaries kTtftBuckets{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                               0.1,   0.25,  0.5,  0.75, 1.0,  2.5,  5.0,
                                               7.5,   10.0,  20.0, 40.,  80.0, 160.0};
const Histogram::BucketBoundaries kItlBuckets{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                              0.1,   0.15,   0.2,   0.3,  0.4,   0.5,  0.75,
                                              1.0,   2.5,    5.0,   7.5,  10.0,  20.0};
const Histogram::BucketBoundaries kLatencyBuckets{0.05, 0.1,  0.3,  0.5,  0.8,  1.0,  1.5, 2.0,
                                                  2.5,  5.0,  10.0, 15.0, 20.,  30.,  40., 50.,
                                                  60.,  120., 240., 480., 960., 1920.};
const Histogram::BucketBoundaries kTokenBuckets{1,     2,      5,      10,     20,     50,    100,
                                                200,   500,    1000,   2000,   5000,   10000, 20000,
                                                50000, 100000, 200000, 500000, 1000000};
const Histogram::BucketBoundaries kStepBuckets{1,   8,    16,   32,   64,   128,  256,
                                               512, 1024, 2048, 4096, 8192, 16384};

}  // namespace

struct Metrics::Families {
  explicit Families(prometheus::Registry& r) : registry(r) {}
  prometheus::Registry& registry;
  Gauge& gauge(const char* name, const char* help, const prometheus::Labels& labels = {}) {
    return BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
  Counter& counter(const char* name, const char* help, const prometheus::Labels& labels = {}) {
    return BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
  }
  Histogram& histogram(const char* name, const char* help, const prometheus::Labels& labels,
                       const Histogram::BucketBoundaries& buckets) {
    return BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, buckets);
  }
};

namespace {

template <class F>
void add_prompt_counters(F& f, const std::string& name, ModelMetrics* m) {
  const prometheus::Labels l{{"model_name", name}};
  const auto source = [&](const char* from) {
    return &f.counter("vllm:prompt_tokens_by_source_total",
                      "Prompt tokens of admitted requests by where they come from",
                      {{"model_name", name}, {"source", from}});
  };
  m->from_compute = source("local_compute");
  m->from_cache = source("local_cache_hit");
  m->from_host = source("external_kv_transfer");
  m->cache_queries = &f.counter("vllm:prefix_cache_queries_total",
                                "Prompt tokens looked up in the prefix cache", l);
  m->cache_hits =
      &f.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache", l);
  m->host_queries = &f.counter("vllm:external_prefix_cache_queries_total",
                               "Prompt tokens that the prefix cache itself did not have", l);
  m->host_hits = &f.counter("vllm:external_prefix_cache_hits_total",
                            "Prompt tokens brought in from host memory or disk", l);
  m->prompt_cached = &f.counter("vllm:prompt_tokens_cached_total",
                                "Prompt tokens that were not computed, from any tier", l);
  m->recomputed = &f.counter("vllm:prompt_tokens_recomputed_total",
                             "Tokens computed again after a preemption", l);
}

template <class F>
void add_histograms(F& f, const prometheus::Labels& l, ModelMetrics* m) {
  m->ttft = &f.histogram("vllm:time_to_first_token_seconds", "Request received to first token", l,
                         kTtftBuckets);
  m->itl = &f.histogram("vllm:inter_token_latency_seconds", "Time between tokens of a sequence", l,
                        kItlBuckets);
  m->e2e = &f.histogram("vllm:e2e_request_latency_seconds", "Request received to finish", l,
                        kLatencyBuckets);
  m->queue = &f.histogram("vllm:request_queue_time_seconds", "Waiting for a place in the batch", l,
                          kLatencyBuckets);
  m->prefill = &f.histogram("vllm:request_prefill_time_seconds", "Admission to first token", l,
                            kLatencyBuckets);
  m->decode =
      &f.histogram("vllm:request_decode_time_seconds", "First token to finish", l, kLatencyBuckets);
  m->inference = &f.histogram("vllm:request_inference_time_seconds", "Admission to finish", l,
                              kLatencyBuckets);
  m->time_per_token =
      &f.histogram("vllm:request_time_per_output_token_seconds",
                   "Mean time between tokens of a finished sequence", l, kItlBuckets);
  m->prompt_length = &f.histogram("vllm:request_prompt_tokens", "Prompt length", l, kTokenBuckets);
  m->computed_length = &f.histogram("vllm:request_prefill_kv_computed_tokens",
                                    "Prompt tokens that had to be computed", l, kTokenBuckets);
  m->generation_length =
      &f.histogram("vllm:request_generation_tokens", "Output length", l, kTokenBuckets);
  m->longest_generation =
      &f.histogram("vllm:request_max_num_generation_tokens",
                   "Longest output of the samples of a prompt", l, kTokenBuckets);
  m->params_max_tokens = &f.histogram("vllm:request_params_max_tokens",
                                      "Output limit of admitted requests", l, kTokenBuckets);
  m->iteration_tokens = &f.histogram("vllm:iteration_tokens_total",
                                     "Rows of a step, of a sample of all steps", l, kStepBuckets);
}

}  // namespace

void ModelMetrics::admitted(const PromptTokens& t) const {
  const auto local = static_cast<double>(t.local);
  const auto host = static_cast<double>(t.host);
  const auto prompt = static_cast<double>(t.prompt);
  const auto computed = static_cast<double>(t.computed());
  prompt_tokens->Increment(prompt);
  prompt_length->Observe(prompt);
  computed_length->Observe(computed);
  cache_queries->Increment(prompt);
  cache_hits->Increment(local);
  host_queries->Increment(prompt - local);
  host_hits->Increment(host);
  from_compute->Increment(computed);
  from_cache->Increment(local);
  from_host->Increment(host);
  prompt_cached->Increment(local + host);
}

Metrics::Metrics() : families_(std::make_shared<Families>(registry_)) {
  set_inflight(0);
  set_connections(0);
  set_loop_lag(0);
}

ModelMetrics& Metrics::model(const std::string& name) {
  if (const auto found = models_.find(name); found != models_.end()) return found->second;
  Families& f = *families_;
  const prometheus::Labels l{{"model_name", name}};
  const auto success = [&](const char* reason) {
    return &f.counter("vllm:request_success_total", "Finished requests",
                      {{"model_name", name}, {"finished_reason", reason}});
  };
  ModelMetrics m{};
  m.running = &f.gauge("vllm:num_requests_running", "Sequences in the batch", l);
  m.waiting = &f.gauge("vllm:num_requests_waiting", "Sequences waiting for a place", l);
  const auto waiting_for = [&](const char* reason) {
    return &f.gauge("vllm:num_requests_waiting_by_reason",
                    "Sequences waiting for a place, by reason",
                    {{"model_name", name}, {"reason", reason}});
  };
  m.waiting_capacity = waiting_for("capacity");
  m.waiting_swapped = waiting_for("swapped");
  m.kv_usage = &f.gauge("vllm:kv_cache_usage_perc",
                        "Share of the fullest cache group that running sequences use, 0 to 1", l);
  m.ready = &f.gauge("weft_replica_ready", "1 when the replica serves", l);
  m.prompt_tokens = &f.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests", l);
  m.generation_tokens = &f.counter("vllm:generation_tokens_total", "Generated tokens", l);
  m.preemptions =
      &f.counter("vllm:num_preemptions_total", "Sequences put back for lack of cache", l);
  m.worker_restarts = &f.counter("weft_worker_restarts_total", "Times a worker was restarted", l);
  add_prompt_counters(f, name, &m);
  m.success_stop = success("stop");
  m.success_length = success("length");
  m.success_tool_calls = success("tool_calls");
  m.success_abort = success("abort");
  m.success_error = success("error");
  add_histograms(f, l, &m);
  m.streams_unterminated =
      &f.counter("weft_stream_unterminated_total",
                 "Streams that ended without a terminal event; must stay 0", l);
  return models_.emplace(name, m).first->second;
}

WorkerMetrics& Metrics::worker(const std::string& name) {
  if (const auto found = workers_.find(name); found != workers_.end()) return found->second;
  Families& f = *families_;
  const prometheus::Labels l{{"model_name", name}};
  const auto host_bytes = [&](const char* state) {
    return &f.gauge("weft_cache_host_bytes", "Host memory of the prefix cache by state",
                    {{"model_name", name}, {"state", state}});
  };
  WorkerMetrics w{};
  w.snapshots = &f.gauge("weft_cache_snapshots", "States kept for later requests", l);
  w.host_used = host_bytes("used");
  w.host_free = host_bytes("free");
  w.disk_used = &f.gauge("weft_cache_disk_bytes", "Bytes of the prefix cache on disk", l);
  w.swapped = &f.gauge("weft_sched_swapped", "Preempted sequences in host memory", l);
  w.loading = &f.gauge("weft_sched_loading", "Sequences whose prefix is being copied in", l);
  w.stalled = &f.gauge("weft_sched_stalled", "Sequences without progress for too long", l);
  w.last_plan_seconds = &f.gauge("weft_sched_last_plan_seconds", "Time the latest plan took", l);
  w.snapshots_made = &f.counter("weft_cache_snapshots_made_total", "States put into the cache", l);
  w.snapshots_evicted =
      &f.counter("weft_cache_snapshots_evicted_total", "States given up for others", l);
  w.saved_bytes = &f.counter("weft_cache_saved_bytes_total", "Bytes copied to host memory", l);
  w.loaded_bytes = &f.counter("weft_cache_loaded_bytes_total", "Bytes copied back", l);
  w.copy_failures = &f.counter("weft_cache_copy_failures_total", "Copies that failed", l);
  w.plans = &f.counter("weft_sched_plans_total", "Plans made", l);
  w.refused_plans = &f.counter("weft_sched_refused_plans_total",
                               "Plans of the scheduler plugin that were invalid; must stay 0", l);
  w.dropped = &f.counter("weft_sched_dropped_total", "Waiting requests refused by policy", l);
  w.swaps = &f.counter("weft_sched_swaps_total", "Preemptions that went to host memory", l);
  return workers_.emplace(name, w).first->second;
}

// A number below what was seen is that of a new worker, which counted it from zero.
void Metrics::grow(Counter* counter, uint64_t value) {
  uint64_t& seen = seen_[counter];
  counter->Increment(static_cast<double>(value >= seen ? value - seen : value));
  seen = value;
}

void Metrics::update_blocks(const std::string& name, const ReplicaInfo& info, bool ready) {
  double usage = 0;
  for (const auto& group : info.stats.groups()) {
    if (ready && group.units_total() > 0)
      usage = std::max(usage, static_cast<double>(group.units_used()) /
                                  static_cast<double>(group.units_total()));
    const uint64_t busy = group.units_used() + group.units_cached();
    const std::pair<const char*, uint64_t> states[] = {
        {"free", group.units_total() - std::min(busy, group.units_total())},
        {"cached", group.units_cached()},
        {"active", group.units_used()}};
    for (const auto& [state, units] : states)
      families_
          ->gauge("weft_kv_blocks", "Cache units by group and state",
                  {{"model_name", name}, {"group", group.name()}, {"state", state}})
          .Set(ready ? static_cast<double>(units) : 0);
  }
  model(name).kv_usage->Set(usage);
}

void Metrics::update_worker(const std::string& name, const ReplicaInfo& info, bool ready) {
  WorkerMetrics& w = worker(name);
  const wire::CacheStats& c = info.stats.cache();
  const wire::SchedulerStats& s = info.stats.scheduler();
  const auto set = [&](prometheus::Gauge* gauge, uint64_t value) {
    gauge->Set(ready ? static_cast<double>(value) : 0);
  };
  set(w.snapshots, c.snapshots());
  set(w.host_used, c.host_bytes_used());
  set(w.host_free, c.host_bytes_total() - std::min(c.host_bytes_used(), c.host_bytes_total()));
  set(w.disk_used, c.disk_bytes_used());
  set(w.swapped, info.stats.swapped());
  set(w.loading, info.stats.loading());
  set(w.stalled, s.stalled());
  w.last_plan_seconds->Set(static_cast<double>(s.last_plan_us()) / 1e6);
  grow(w.snapshots_made, c.snapshots_made_total());
  grow(w.snapshots_evicted, c.snapshots_evicted_total());
  grow(w.saved_bytes, c.saved_bytes_total());
  grow(w.loaded_bytes, c.loaded_bytes_total());
  grow(w.copy_failures, c.copy_failures_total());
  grow(w.plans, s.plans_total());
  grow(w.refused_plans, s.refused_plans_total());
  grow(w.dropped, s.dropped_total());
  grow(w.swaps, s.swaps_total());
  grow(model(name).recomputed, c.recomputed_tokens());
}

void Metrics::update(const std::string& name, const ReplicaInfo& info) {
  ModelMetrics& m = model(name);
  const bool ready = info.state == ReplicaState::kReady || info.state == ReplicaState::kDraining;
  const uint32_t waiting = ready ? info.stats.waiting() : 0;
  const uint32_t swapped = std::min(ready ? info.stats.swapped() : 0, waiting);
  m.ready->Set(ready ? 1 : 0);
  m.running->Set(ready ? info.stats.running() : 0);
  m.waiting->Set(waiting);
  m.waiting_capacity->Set(waiting - swapped);
  m.waiting_swapped->Set(swapped);
  update_blocks(name, info, ready);
  update_worker(name, info, ready);
  grow(m.preemptions, info.stats.preemptions_total());
  grow(m.worker_restarts, info.restarts);
}

void Metrics::step(const std::string& name, uint64_t batch_tokens) {
  model(name).iteration_tokens->Observe(static_cast<double>(batch_tokens));
}

void Metrics::cache_config(const std::string& name, const ReplicaInfo& info,
                           const config::DeploymentConfig& deployment) {
  const wire::CacheGroup* rows = nullptr;
  for (const wire::CacheGroup& g : info.ready.groups())
    if (rows == nullptr && g.kind() == "rows") rows = &g;
  auto& family = BuildGauge()
                     .Name("vllm:cache_config_info")
                     .Help("Settings of the cache; always 1")
                     .Register(registry_);
  Gauge*& last = cache_config_[name];
  Gauge& now =
      family.Add({{"model_name", name},
                  {"block_size", std::to_string(rows == nullptr ? 0 : rows->tokens_per_unit())},
                  {"num_gpu_blocks", std::to_string(rows == nullptr ? 0 : rows->units_total())},
                  {"enable_prefix_caching", deployment.cache.prefix_cache ? "True" : "False"},
                  {"host_memory_bytes", std::to_string(deployment.cache.host_memory_bytes)}});
  if (last != nullptr && last != &now) family.Remove(last);
  now.Set(1);
  last = &now;
}

void Metrics::http_request(int status) {
  families_
      ->counter("weft_http_requests_total", "HTTP requests by status class",
                {{"code", std::to_string(status)}})
      .Increment();
}
void Metrics::disconnect() {
  families_
      ->counter("weft_client_disconnects_total",
                "Clients that went away before their answer was complete")
      .Increment();
}
void Metrics::cancelled(const char* origin) {
  families_->counter("weft_cancel_total", "Cancelled sequences by origin", {{"origin", origin}})
      .Increment();
}
void Metrics::cancel_to_free(double seconds) {
  families_->histogram("weft_cancel_to_free_seconds", "Cancel to last block free", {}, kTtftBuckets)
      .Observe(seconds);
}
void Metrics::set_inflight(double n) {
  families_->gauge("weft_requests_inflight", "Generation requests being served").Set(n);
}
void Metrics::set_connections(double n) {
  families_->gauge("weft_http_connections", "Open client connections").Set(n);
}
void Metrics::set_loop_lag(double s) {
  families_->gauge("weft_loop_lag_seconds", "Delay of the event loop").Set(s);
}

std::string Metrics::render() {
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace weft::gateway
