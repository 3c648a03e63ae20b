#include "main/daemon.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "api/errors.h"
#include "base/log.h"
#include "base/paths.h"
#include "main/options.h"

namespace weft {

using gateway::ReplicaState;

namespace {

constexpr uint64_t kHeartbeatMs = 1'000;
constexpr uint64_t kWorkerGraceMs = 5'000;
constexpr uint64_t kLingerMs = 2'000;
constexpr uint64_t kLingerStepMs = 5;
constexpr uint64_t kExtendUsec =
    30'000'000;  // the next message comes within this time while bytes advance
constexpr unsigned kControlSocketMode = 0660;

}  // namespace

const char* Daemon::name(State state) {
  switch (state) {
    case State::kStarting:
      return "starting";
    case State::kLoading:
      return "loading";
    case State::kReady:
      return "ready";
    case State::kDraining:
      return "draining";
    case State::kStopping:
      return "stopping";
  }
  return "unknown";
}

Daemon::~Daemon() {
  // Servers first: their handlers point into the gateway. Replicas before the loop: they own
  // streams and timers.
  public_server_.reset();
  control_server_.reset();
  admin_.reset();
  gateway_.reset();
  replicas_.clear();
}

Status Daemon::make_models() {
  std::vector<std::shared_ptr<const gateway::ServedModel>> models;
  const std::string worker = executable_dir() + "/weft-worker";
  if (::access(worker.c_str(), X_OK) != 0)
    return make_error(ErrorCode::kIo,
                      "the worker program {} cannot be run: {}; install it beside weftd", worker,
                      std::strerror(errno));
  for (const config::DeploymentConfig& d : config_.deployments) {
    if (direct_ && ::access((d.model + "/config.json").c_str(), R_OK) != 0)
      return make_error(
          ErrorCode::kNotFound,
          "cannot read {}/config.json: {}; --model takes a directory with config.json and "
          "*.safetensors",
          d.model, std::strerror(errno));
    auto model = gateway::load_served_model(d);
    if (!model.ok()) return std::move(model).error().within("deployment " + d.name);
    if (!(*model)->no_text_reason.empty())
      log_warning("deployment {}: serves requests given as token ids only: {}", d.name,
                  (*model)->no_text_reason);
    else if (!(*model)->no_chat_reason.empty())
      log_warning("deployment {}: no chat endpoint: {}", d.name, (*model)->no_chat_reason);
    fabric::ReplicaEvents events;
    events.on_change = [this] { on_replica_change(); };
    events.on_cancel_freed = [this](double s) {
      if (gateway_) gateway_->metrics().cancel_to_free(s);
    };
    events.on_step = [this, name = (*model)->names.front()](uint64_t batch_tokens) {
      if (gateway_) gateway_->metrics().step(name, batch_tokens);
    };
    replicas_.push_back(std::make_unique<fabric::Replica>(
        *loop_, *reaper_,
        fabric::ReplicaOptions{d, worker, config_.daemon.plugin_dir,
                               config_.daemon.trust_user_plugins},
        std::move(events)));
    (*model)->backend = replicas_.back().get();
    models.push_back(std::move(*model));
  }
  gateway_ = std::make_unique<gateway::Gateway>(*loop_, config_, std::move(models));
  gateway_->on_idle([this] { finish_drain(); });
  return {};
}

http::Limits Daemon::limits() const {
  const config::HttpConfig& c = config_.http;
  http::Limits l;
  l.body_max = c.body_max_bytes;
  l.header_bytes_max = c.header_max_bytes;
  l.body_total_max = c.buffered_bodies_max_bytes;
  l.connections_max = static_cast<size_t>(c.connections_max);
  l.header_timeout_ms = static_cast<uint64_t>(c.header_timeout_ms);
  l.body_timeout_ms = static_cast<uint64_t>(c.body_timeout_ms);
  l.idle_timeout_ms = static_cast<uint64_t>(c.idle_timeout_ms);
  l.write_stall_ms = static_cast<uint64_t>(c.slow_reader_timeout_ms);
  return l;
}

Status Daemon::open_sockets() {
  gateway_->add_routes(public_router_);
  gateway_->add_routes(control_router_);
  std::vector<fabric::Replica*> replicas;
  for (const auto& r : replicas_) replicas.push_back(r.get());
  admin::AdminActions actions;
  actions.facts = [this] { return facts(); };
  actions.drain = [this](int64_t deadline_ms) { drain(deadline_ms); };
  actions.stop = [this] {
    stop_after_drain_ = true;
    drain(-1);
  };
  admin_ = std::make_unique<admin::Admin>(*loop_, config_, *gateway_, std::move(replicas),
                                          std::move(actions));
  admin_->add_routes(control_router_);

  if (!config_.api.key_file.empty()) {
    WEFT_ASSIGN(api_keys_, gateway::ApiKeys::load(config_.api.key_file));
  }
  public_server_ = std::make_unique<http::Server>(
      *loop_, limits(), [this](http::Request request, http::Responder responder) {
        if (auto tenant = api_keys_.tenant_of(request)) {
          request.tenant = std::move(tenant->name);
          request.tenant_weight = tenant->weight;
          return public_router_.handle(std::move(request), std::move(responder));
        }
        gateway_->metrics().http_request(401);
        const api::ApiError error = api::unauthorized();
        responder.send(error.status,
                       {{"content-type", "application/json"}, {"www-authenticate", "Bearer"}},
                       api::error_json(error));
      });
  control_server_ = std::make_unique<http::Server>(*loop_, limits(), control_router_.handler());
  bool control_inherited = false;
  bool public_inherited = false;
  for (service::InheritedSocket& s : service::take_inherited_sockets()) {
    const bool control = s.name == "control" || s.name == "weft-control.socket";
    (control ? control_inherited : public_inherited) = true;
    auto bound = (control ? control_server_ : public_server_)->adopt(std::move(s.fd));
    if (!bound.ok()) return std::move(bound).error().within("inherited socket " + s.name);
  }
  if (!public_inherited)
    for (const std::string& address : config_.daemon.listen) {
      auto bound = public_server_->listen(address);
      if (!bound.ok()) return std::move(bound).error();
      log_notice("listening on {}", *bound);
    }
  if (!control_inherited) {
    auto bound =
        control_server_->listen("unix:" + config_.daemon.socket, {.unix_mode = kControlSocketMode});
    if (!bound.ok()) return std::move(bound).error().within("control socket");
  }
  return {};
}

Status Daemon::start() {
  WEFT_ASSIGN(loop_, Loop::make());
  WEFT_ASSIGN(reaper_, ChildReaper::make(*loop_));
  started_ms_ = loop_->now_ms();
  WEFT_TRY(make_models());
  WEFT_TRY(open_sockets());
  for (int signal : {SIGTERM, SIGINT}) {
    WEFT_ASSIGN(auto watch, SignalWatch::make(*loop_, signal, [this] { on_terminate_signal(); }));
    signals_.push_back(std::move(watch));
  }
  if (notifier_.enabled()) {
    // A service has no terminal to lose: dying of SIGHUP would count as a clean end, and nobody
    // would restart it.
    WEFT_ASSIGN(auto watch, SignalWatch::make(*loop_, SIGHUP, [] {
                  log_notice("SIGHUP changes nothing: the configuration is read when weftd starts");
                }));
    signals_.push_back(std::move(watch));
  }
  drain_timer_ = std::make_unique<Timer>(*loop_);
  heartbeat_ = std::make_unique<Timer>(*loop_);
  uint64_t beat = kHeartbeatMs;
  if (notifier_.watchdog_interval_us() > 0)
    beat = std::clamp<uint64_t>(notifier_.watchdog_interval_us() / 4000, 50, kHeartbeatMs);
  heartbeat_->repeat(beat, [this] { feed_watchdog(); });
  for (const auto& replica : replicas_) replica->start();
  update_state();
  return {};
}

int Daemon::run() {
  loop_->run();
  return exit_status_;
}

void Daemon::on_replica_change() {
  report_progress();
  update_state();
  const bool hopeless =
      !replicas_.empty() && std::all_of(replicas_.begin(), replicas_.end(), [](const auto& r) {
        return r->info().state == ReplicaState::kFailed;
      });
  // A start that systemd waits for must fail at once and for good: its timeout would restart weftd
  // again and again.
  const bool leave = direct_ || (notifier_.enabled() && !announced_ready_);
  if (!leave || !hopeless || exit_status_ != 0) return;
  log_error("{}: leaving",
            replicas_.size() == 1 ? "the only model can never serve" : "no model can ever serve");
  exit_status_ = kExitConfig;
  loop_->stop();
}

void Daemon::update_state() {
  if (state_ == State::kDraining || state_ == State::kStopping || gateway_ == nullptr) return;
  const bool all_ready = std::all_of(replicas_.begin(), replicas_.end(), [](const auto& r) {
    return r->info().state == ReplicaState::kReady;
  });
  state_ = all_ready ? State::kReady : State::kLoading;
  // A model that can never serve does not keep the others waiting: STATUS= names it.
  const auto settled = [](const auto& r) {
    return r->info().state == ReplicaState::kReady || r->info().state == ReplicaState::kFailed;
  };
  const bool some_ready = std::any_of(replicas_.begin(), replicas_.end(), [](const auto& r) {
    return r->info().state == ReplicaState::kReady;
  });
  const bool ready =
      all_ready || (some_ready && std::all_of(replicas_.begin(), replicas_.end(), settled));
  if (ready && !announced_ready_) {
    announced_ready_ = true;
    log_notice("{}", all_ready ? "ready" : "ready, but not every model can serve");
    notifier_.ready();
  }
}

// STATUS= for people; EXTEND_TIMEOUT_USEC only while bytes advance, so that a stuck load is not
// kept alive.
void Daemon::report_progress() {
  uint64_t done = 0, total = 0;
  std::string worst;
  for (const auto& replica : replicas_) {
    const gateway::ReplicaInfo& info = replica->info();
    done += info.progress.bytes_done();
    total += info.progress.bytes_total();
    if (info.state == ReplicaState::kReady) continue;
    worst = fmt::format("{}: {}", info.deployment, gateway::to_string(info.state));
    if (info.state == ReplicaState::kLoading && info.progress.bytes_total() > 0)
      worst += fmt::format(", {} {}%", info.progress.phase(),
                           info.progress.bytes_done() * 100 / info.progress.bytes_total());
    if (!info.reason.empty()) worst += ": " + info.reason;
  }
  notifier_.status(worst.empty() ? fmt::format("serving {} model(s)", replicas_.size()) : worst);
  if (!announced_ready_ && done > last_progress_bytes_) notifier_.extend_timeout(kExtendUsec);
  last_progress_bytes_ = done;
}

void Daemon::feed_watchdog() {
  // This timer running is the loop's progress. Workers without progress are killed by their
  // replicas; while one is stuck beyond that, the service as a whole is not well and systemd may
  // restart it.
  const bool moving = std::all_of(replicas_.begin(), replicas_.end(), [](const auto& r) {
    return r->info().state != ReplicaState::kReady || r->making_progress();
  });
  if (moving) notifier_.watchdog();
}

void Daemon::on_terminate_signal() {
  // A drain that an operator asked for is no reason to hurry: only a second wish to stop is.
  const bool again = stop_after_drain_ && state_ == State::kDraining;
  stop_after_drain_ = true;
  if (state_ == State::kStopping) return;
  if (again) {
    log_notice("second signal: ending the running requests now");
    gateway_->abort_all(api::unavailable("weftd is shutting down"), "shutdown");
    return finish_drain();
  }
  drain(-1);
}

void Daemon::drain(int64_t deadline_ms) {
  if (state_ == State::kStopping) return;
  if (deadline_ms < 0) deadline_ms = config_.daemon.drain_timeout_ms;
  state_ = State::kDraining;
  notifier_.status(fmt::format("draining {} request(s)", gateway_->in_flight()));
  if (stop_after_drain_) {
    notifier_.stopping();
    notifier_.extend_timeout(static_cast<uint64_t>(deadline_ms) * 1000 + kExtendUsec);
    public_server_->stop_listening();
  }
  log_notice("draining: {} request(s) may finish within {} ms", gateway_->in_flight(), deadline_ms);
  gateway_->begin_drain();
  if (gateway_->in_flight() == 0) return finish_drain();
  drain_timer_->start(static_cast<uint64_t>(deadline_ms), [this] {
    gateway_->abort_all(api::unavailable("weftd is shutting down: the drain deadline has passed"),
                        "shutdown");
    finish_drain();
  });
}

void Daemon::finish_drain() {
  if (!stop_after_drain_ || state_ == State::kStopping || gateway_->in_flight() != 0) return;
  state_ = State::kStopping;
  drain_timer_->stop();
  public_server_->drain();
  stop_replicas();
}

void Daemon::stop_replicas() {
  stopping_replicas_ = replicas_.size();
  const auto one_gone = [this] {
    if (--stopping_replicas_ == 0) linger();
  };
  if (replicas_.empty()) return linger();
  for (const auto& replica : replicas_) replica->stop(kWorkerGraceMs, one_gone);
}

// Last bytes are on their way to clients: give them a moment to be taken.
void Daemon::linger() {
  const uint64_t end = loop_->now_ms() + kLingerMs;
  drain_timer_->repeat(kLingerStepMs, [this, end] {
    if (public_server_->stats().connections == 0 || loop_->now_ms() >= end) loop_->stop();
  });
}

admin::DaemonFacts Daemon::facts() const {
  admin::DaemonFacts f;
  f.state = name(state_);
  f.listen = public_server_->addresses();
  f.started_ms = started_ms_;
  return f;
}

}  // namespace weft
