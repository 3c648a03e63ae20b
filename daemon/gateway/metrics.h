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

namespace weft::gateway {

struct ReplicaInfo;

// One model's series. Pointers belong to the registry and live as long as it.
struct ModelMetrics {
  prometheus::Gauge *running, *waiting, *kv_usage, *ready;
  prometheus::Counter *prompt_tokens, *generation_tokens, *preemptions, *worker_restarts;
  prometheus::Counter *success_stop, *success_length, *success_tool_calls, *success_abort,
      *success_error;
  prometheus::Histogram *ttft, *itl, *e2e, *queue, *prefill, *decode, *prompt_length,
      *generation_length;
  prometheus::Counter* streams_unterminated;
};

class Metrics {
 public:
  Metrics();

  ModelMetrics& model(const std::string& name);
  // Copies the worker's own numbers into the gauges. Counters of the worker restart with it; totals
  // here do not.
  void update(const std::string& name, const ReplicaInfo& info);

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
  std::map<std::string, ModelMetrics> models_;
  std::map<std::string, uint64_t> preemptions_seen_;
  std::map<std::string, uint64_t> restarts_seen_;
};

}  // namespace weft::gateway
