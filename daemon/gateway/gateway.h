// Gateway: the HTTP face of the served models. Registers the routes, prepares requests on the fast
// lane, runs generations, and answers health and metrics. Loop thread. Models and their backends
// outlive it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "api/policy.h"
#include "config/config.h"
#include "gateway/generation.h"
#include "gateway/metrics.h"
#include "gateway/prepare.h"
#include "gateway/served_model.h"
#include "http/router.h"
#include "loop/lane.h"
#include "loop/loop.h"

namespace weft::gateway {

class Gateway {
 public:
  Gateway(Loop& loop, const config::Config& config,
          std::vector<std::shared_ptr<const ServedModel>> models);
  ~Gateway();

  // OpenAI API, health and metrics. The router keeps references to this object.
  void add_routes(http::Router& router);

  Metrics& metrics() { return metrics_; }
  // From now on new generations are refused with 503.
  void begin_drain() { draining_ = true; }
  bool draining() const { return draining_; }
  size_t in_flight() const { return generations_.size() + preparing_; }
  uint64_t requests_total() const { return requests_total_; }
  // Ends every generation with an error event.
  void abort_all(const api::ApiError& error, const char* origin);
  // False when there is no such request.
  bool cancel(const std::string& id);
  std::vector<GenerationView> list() const;
  const std::vector<std::shared_ptr<const ServedModel>>& models() const { return models_; }

  // Empty when everything moves; otherwise what does not.
  std::string unhealthy_reason() const;
  // Runs when the number of running requests falls to zero while draining.
  void on_idle(std::function<void()> fn) { on_idle_ = std::move(fn); }

 private:
  template <class Prepared, class Prepare, class Start>
  void handle_generation(http::Request request, http::Responder responder, Prepare prepare,
                         Start start);
  template <class Answer>
  void handle_on_lane(http::Request request, http::Responder responder, Answer answer);
  std::shared_ptr<PrepareInput> snapshot(http::Request& request) const;
  GenerationContext context_for(const http::Request& request,
                                std::shared_ptr<const ServedModel> model, const char* endpoint,
                                const char* id_prefix);
  void adopt(std::unique_ptr<Generation> generation);
  void generation_done(const std::string& id);
  void notify_if_idle();
  void reply(http::Responder& responder, int status, std::string body,
             const char* type = "application/json");
  void reply_error(http::Responder& responder, const api::ApiError& error,
                   const std::string& request_id = {});
  void handle_models(http::Request request, http::Responder responder);
  void handle_health(http::Responder responder, bool with_drain);
  std::string render_metrics();

  Loop& loop_;
  const config::Config& config_;
  std::vector<std::shared_ptr<const ServedModel>> models_;
  std::shared_ptr<const api::ApiPolicy> policy_;  // shared with lanes
  Metrics metrics_;
  std::map<std::string, std::unique_ptr<Generation>> generations_;
  size_t preparing_ = 0;
  uint64_t requests_total_ = 0;
  bool draining_ = false;
  std::function<void()> on_idle_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // shared with posted closures
  Lane fast_;  // last: its threads stop before anything else goes
};

}  // namespace weft::gateway
