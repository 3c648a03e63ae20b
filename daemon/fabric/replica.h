// Replica: one worker process of a deployment, its link, and its supervision: start, watch, restart
// with backoff, stop. Implements gateway::Backend. Loop thread only. A worker's death ends its
// sequences with on_lost and nothing else.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/result.h"
#include "config/config.h"
#include "gateway/backend.h"
#include "loop/loop.h"
#include "loop/stream.h"
#include "wire/framing.h"

namespace weft::fabric {

struct ReplicaOptions {
  config::DeploymentConfig deployment;
  std::string worker_program;  // absolute path of weft-worker
  std::string plugin_dir;
  bool trust_user_plugins = false;
  uint64_t audit_timeout_ms = 10'000;
};

struct ReplicaEvents {
  std::function<void()> on_change;                      // state, progress or reason changed
  std::function<void(double seconds)> on_cancel_freed;  // cancel sent -> blocks free
  std::function<void(uint64_t batch_tokens)> on_step;   // statistics of a later step came
};

class Replica : public gateway::Backend {
 public:
  // `loop` and `reaper` outlive the replica.
  Replica(Loop& loop, ChildReaper& reaper, ReplicaOptions options, ReplicaEvents events);
  // Kills the worker; the reaper still collects it. Listeners of running sequences hear nothing
  // more.
  ~Replica() override;

  void start();
  // Asks the worker to leave and kills it after the grace period; `done` runs once it is gone. No
  // restart afterwards.
  void stop(uint64_t grace_ms, std::function<void()> done);

  const gateway::ReplicaInfo& info() const override { return info_; }
  Result<uint64_t> submit(wire::Generate generate, gateway::GenerationListener* listener) override;
  void cancel(uint64_t id, std::string_view reason) override;
  void forget(uint64_t id, std::string_view reason) override;

  using AuditDone = std::function<void(Result<wire::AuditReport>)>;
  // Has the worker check its books; `done` runs once: with its report, or kUnavailable when there
  // is no ready worker or it was lost, or kTimeout. May run inside the call.
  void audit(bool drop_cache, AuditDone done);

  // True when there is nothing to do or the worker does something: takes steps, or copies the
  // caches of sequences in or out.
  bool making_progress() const override;
  const config::DeploymentConfig& deployment() const { return options_.deployment; }
  size_t in_flight() const { return sequences_.size(); }
  uint64_t backoff_ms() const { return backoff_ms_; }  // of the latest restart; 0: there was none

 private:
  struct Sequence {
    gateway::GenerationListener* listener = nullptr;  // null once forgotten
    uint64_t cancelled_at_ms = 0;
  };

  struct PendingAudit {
    AuditDone done;
    std::unique_ptr<Timer> timer;
  };

  void spawn();
  void on_bytes(std::string_view bytes);
  void on_envelope(const wire::Envelope& envelope);
  void on_hello(const wire::Hello& hello);
  void on_ready(const wire::Ready& ready);
  void on_token_batch(const wire::TokenBatch& batch);
  void on_stats(const wire::WorkerStats& stats);
  void on_fault(const wire::WorkerFault& fault);
  void on_exit(const ChildExit& exit);
  void end_audit(uint64_t id, Result<wire::AuditReport> result);
  void send(const wire::Envelope& envelope);
  void configure();
  // Takes what the worker wrote before it died: its last tokens, and why it had to go.
  void read_rest();
  void kill_worker();
  // The link is useless: fail the sequences, make sure the process dies.
  void lose(std::string reason);
  void fail_sequences(const Error& why);
  void schedule_restart();
  void check_stall();
  void set_state(gateway::ReplicaState state, std::string reason = {});

  Loop& loop_;
  ChildReaper& reaper_;
  const ReplicaOptions options_;
  const ReplicaEvents events_;
  gateway::ReplicaInfo info_;
  std::unique_ptr<Stream> link_;
  wire::FrameDecoder decoder_;
  std::unordered_map<uint64_t, Sequence> sequences_;
  std::map<uint64_t, PendingAudit> audits_;
  uint64_t next_id_ = 1;  // never reused, also not by the next worker
  pid_t pid_ = -1;
  bool permanent_fault_ = false;
  bool stopping_ = false;
  uint64_t backoff_ms_ = 0;
  uint64_t ready_at_ms_ = 0;
  std::function<void()> stopped_;
  std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // shared with the reaper and posted closures
  Timer restart_timer_;
  Timer kill_timer_;
  Timer stall_timer_;
};

}  // namespace weft::fabric
