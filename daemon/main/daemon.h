// Daemon: weftd put together: loop, replicas, gateway, HTTP servers, control socket, systemd. Owns
// everything; one per process, main thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "admin/admin.h"
#include "base/result.h"
#include "config/config.h"
#include "fabric/replica.h"
#include "gateway/api_keys.h"
#include "gateway/gateway.h"
#include "http/router.h"
#include "http/server.h"
#include "loop/loop.h"
#include "service/notify.h"

namespace weft {

class Daemon {
 public:
  // `direct`: there is one model and nothing else to do, so a model that can never serve ends the
  // daemon.
  Daemon(config::Config config, bool direct) : config_(std::move(config)), direct_(direct) {}
  ~Daemon();

  // Reads tokenizers, binds sockets, starts workers. Nothing runs until run().
  Status start();
  int run();  // until the daemon has stopped; the exit status

 private:
  enum class State { kStarting, kLoading, kReady, kDraining, kStopping };
  static const char* name(State state);

  Status make_models();
  Status open_sockets();
  http::Limits limits() const;
  void on_replica_change();
  void update_state();
  void report_progress();
  void feed_watchdog();
  // First call drains and then stops; a second one hurries.
  void on_terminate_signal();
  void drain(int64_t deadline_ms);
  void finish_drain();
  void stop_replicas();
  void linger();
  admin::DaemonFacts facts() const;

  config::Config config_;
  const bool direct_;
  int exit_status_ = 0;
  service::Notifier notifier_;
  State state_ = State::kStarting;
  bool stop_after_drain_ = false;
  bool announced_ready_ = false;
  uint64_t started_ms_ = 0;
  uint64_t last_progress_bytes_ = 0;
  size_t stopping_replicas_ = 0;

  std::unique_ptr<Loop> loop_;
  std::unique_ptr<ChildReaper> reaper_;
  std::vector<std::unique_ptr<fabric::Replica>> replicas_;
  std::unique_ptr<gateway::Gateway> gateway_;
  std::unique_ptr<admin::Admin> admin_;
  gateway::ApiKeys api_keys_;
  http::Router public_router_;
  http::Router control_router_;
  std::unique_ptr<http::Server> public_server_;
  std::unique_ptr<http::Server> control_server_;
  std::vector<std::unique_ptr<SignalWatch>> signals_;
  std::unique_ptr<Timer> heartbeat_;
  std::unique_ptr<Timer> drain_timer_;
};

}  // namespace weft
