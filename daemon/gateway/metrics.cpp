#include "gateway/metrics.h"

#include <prometheus/text_serializer.h>

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
  m.kv_usage =
      &f.gauge("vllm:kv_cache_usage_perc", "Used share of the fullest cache group, 0 to 1", l);
  m.ready = &f.gauge("weft_replica_ready", "1 when the replica serves", l);
  m.prompt_tokens = &f.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests", l);
  m.generation_tokens = &f.counter("vllm:generation_tokens_total", "Generated tokens", l);
  m.preemptions =
      &f.counter("vllm:num_preemptions_total", "Sequences put back for lack of cache", l);
  m.worker_restarts = &f.counter("weft_worker_restarts_total", "Times a worker was restarted", l);
  m.success_stop = success("stop");
  m.success_length = success("length");
  m.success_tool_calls = success("tool_calls");
  m.success_abort = success("abort");
  m.success_error = success("error");
  m.ttft = &f.histogram("vllm:time_to_first_token_seconds", "Request received to first token", l,
                        kTtftBuckets);
  m.itl = &f.histogram("vllm:inter_token_latency_seconds", "Time between tokens of a sequence", l,
                       kItlBuckets);
  m.e2e = &f.histogram("vllm:e2e_request_latency_seconds", "Request received to finish", l,
                       kLatencyBuckets);
  m.queue = &f.histogram("vllm:request_queue_time_seconds", "Waiting for a place in the batch", l,
                         kLatencyBuckets);
  m.prefill = &f.histogram("vllm:request_prefill_time_seconds", "Admission to first token", l,
                           kLatencyBuckets);
  m.decode =
      &f.histogram("vllm:request_decode_time_seconds", "First token to finish", l, kLatencyBuckets);
  m.prompt_length = &f.histogram("vllm:request_prompt_tokens", "Prompt length", l, kTokenBuckets);
  m.generation_length =
      &f.histogram("vllm:request_generation_tokens", "Output length", l, kTokenBuckets);
  m.streams_unterminated =
      &f.counter("weft_stream_unterminated_total",
                 "Streams that ended without a terminal event; must stay 0", l);
  return models_.emplace(name, m).first->second;
}

void Metrics::update(const std::string& name, const ReplicaInfo& info) {
  ModelMetrics& m = model(name);
  const bool ready = info.state == ReplicaState::kReady || info.state == ReplicaState::kDraining;
  m.ready->Set(ready ? 1 : 0);
  m.running->Set(ready ? info.stats.running() : 0);
  m.waiting->Set(ready ? info.stats.waiting() : 0);
  double usage = 0;
  for (const auto& group : info.stats.groups()) {
    if (ready && group.units_total() > 0)
      usage = std::max(usage, static_cast<double>(group.units_used()) /
                                  static_cast<double>(group.units_total()));
    for (const char* state : {"free", "active"}) {
      const bool active = state[0] == 'a';
      const uint64_t units = !ready   ? 0
                             : active ? group.units_used()
                                      : group.units_total() - group.units_used();
      families_
          ->gauge("weft_kv_blocks", "Cache units by group and state",
                  {{"model_name", name}, {"group", group.name()}, {"state", state}})
          .Set(static_cast<double>(units));
    }
  }
  m.kv_usage->Set(usage);
  // A restarted worker counts from zero again: only growth is added.
  uint64_t& preemptions = preemptions_seen_[name];
  if (info.stats.preemptions_total() > preemptions)
    m.preemptions->Increment(static_cast<double>(info.stats.preemptions_total() - preemptions));
  preemptions = info.stats.preemptions_total();
  uint64_t& restarts = restarts_seen_[name];
  if (info.restarts > restarts)
    m.worker_restarts->Increment(static_cast<double>(info.restarts - restarts));
  restarts = info.restarts;
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
