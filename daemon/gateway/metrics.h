// Metrics of the gateway: vLLM's names where a dashboard knows them, weft_ names for the rest.
// Counted once, at the place where the thing happens. Updated on the loop thread; rendered there
// too.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <string>

namespace weft::config {
struct DeploymentConfig;
}

namespace weft::gateway {

struct ReplicaInfo;

// Where the tokens of one admitted prompt come from: local + host + computed = prompt.
struct PromptTokens {
  int64_t prompt = 0;
  int64_t local = 0;  // from the prefix cache
  int64_t host = 0;   // from its second or third tier
  int64_t computed() const { return prompt - local - host; }
};

// One model's series. Pointers belong to the registry and live as long as it.
struct ModelMetrics {
  prometheus::Gauge *running, *waiting, *waiting_capacity, *waiting_swapped, *kv_usage, *ready;
  prometheus::Counter *prompt_tokens, *generation_tokens, *preemptions, *worker_restarts;
  prometheus::Counter *cache_queries, *cache_hits, *host_queries, *host_hits, *from_compute,
      *from_cache, *from_host, *prompt_cached, *recomputed;
  prometheus::Counter *success_stop, *success_length, *success_tool_calls, *success_abort,
      *success_error;
  prometheus::Histogram *ttft, *itl, *e2e, *queue, *prefill, *decode, *inference, *time_per_token,
      *prompt_length, *computed_length, *generation_length, *longest_generation, *params_max_tokens,
      *iteration_tokens;
  prometheus::Counter* streams_unterminated;

  // Counts a prompt. The only place that counts prompt tokens.
  void admitted(const PromptTokens& tokens) const;
};

// Series that mirror what a worker says of its cache and its scheduler.
struct WorkerMetrics {
  prometheus::Gauge *snapshots, *host_used, *host_free, *disk_used, *swapped, *loading, *stalled,
      *last_plan_seconds;
  prometheus::Counter *snapshots_made, *snapshots_evicted, *saved_bytes, *loaded_bytes,
      *copy_failures, *plans, *refused_plans, *dropped, *swaps;
};

class Metrics {
 public:
  Metrics();

  ModelMetrics& model(const std::string& name);
  // Copies the worker's own numbers. Its counters begin again when it is restarted; totals here do
  // not: only growth is added.
  void update(const std::string& name, const ReplicaInfo& info);
  // One step of a worker, as its statistics tell. They come less often than steps: a sample.
  void step(const std::string& name, uint64_t batch_tokens);

  void cache_config(const std::string& name, const ReplicaInfo& info,
                    const config::DeploymentConfig& deployment);

  void http_request(int status);
  void disconnect();
  void cancelled(const char* origin);
  void cancel_to_free(double seconds);
  void set_inflight(double n);
  void set_connections(double n);
  void set_loop_lag(double seconds);

  std::string render();  // Prometheus text format 0.0.4

 private:
  struct Families;
  prometheus::Registry registry_;
  std::shared_ptr<Families> families_;
  WorkerMetrics& worker(const std::string& name);
  void update_blocks(const std::string& name, const ReplicaInfo& info, bool ready);
  void update_worker(const std::string& name, const ReplicaInfo& info, bool ready);
  void grow(prometheus::Counter* counter, uint64_t value);

  std::map<std::string, ModelMetrics> models_;
  std::map<std::string, WorkerMetrics> workers_;
  std::map<std::string, prometheus::Gauge*> cache_config_;
  std::map<const prometheus::Counter*, uint64_t> seen_;  // what the running worker had counted
};

}  // namespace weft::gateway
