#include "fabric/replica.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "fabric/spawn.h"

namespace weft::fabric {

using gateway::ReplicaState;

namespace {

constexpr uint64_t kStallCheckMs = 250;
constexpr uint64_t kKillGraceMs = 2'000;    // between losing the link and SIGKILL
constexpr size_t kLinkBytesMax = 1u << 30;  // queued towards the worker

std::string describe_exit(const ChildExit& exit) {
  if (exit.signal != 0)
    return fmt::format("worker {} was killed by signal {} ({})", exit.pid, exit.signal,
                       strsignal(exit.signal));
  return fmt::format("worker {} exited with status {}", exit.pid, exit.code);
}

void add_params(const std::map<std::string, std::string>& params, wire::PluginChoice* out) {
  for (const auto& [name, value] : params) {
    wire::Parameter& p = *out->add_params();
    p.set_name(name);
    p.set_value(value);
  }
}

void set_cache(const config::CacheConfig& c, wire::CacheSettings* out) {
  out->set_prefix_off(!c.prefix_cache);
  out->set_host_bytes(c.host_memory_bytes);
  out->set_disk_dir(c.disk_dir);
  out->set_disk_bytes(c.disk_bytes);
  out->set_snapshots(static_cast<uint32_t>(c.snapshots));
}

void set_scheduler(const config::SchedulerConfig& c, wire::Configure* out) {
  wire::SchedulerSettings& s = *out->mutable_scheduler();
  s.set_itl_target_us(static_cast<uint64_t>(c.itl_target_ms) * 1000);
  s.set_prefill_chunk(static_cast<uint32_t>(c.prefill_chunk));
  s.set_trace_file(c.trace);
  s.set_seed(static_cast<uint64_t>(c.seed));
  if (c.policy.empty() && c.params.empty()) return;  // the worker's choice
  wire::PluginChoice& choice = *out->add_plugins();
  choice.set_interface("weft.scheduler/1");
  choice.set_name(c.plugin());
  add_params(c.params, &choice);
}

// Grows while the worker does anything for its sequences: also while it only copies their caches.
uint64_t work_done(const wire::WorkerStats& s) {
  return s.step() + s.cache().loaded_bytes_total() + s.cache().saved_bytes_total();
}

}  // namespace

Replica::Replica(Loop& loop, ChildReaper& reaper, ReplicaOptions options, ReplicaEvents events)
    : loop_(loop),
      reaper_(reaper),
      options_(std::move(options)),
      events_(std::move(events)),
      restart_timer_(loop),
      kill_timer_(loop),
      stall_timer_(loop) {
  info_.deployment = options_.deployment.name;
  info_.state_since_ms = loop_.now_ms();
}

Replica::~Replica() {
  *alive_ = false;
  kill_worker();
}

// pid_ is cleared in the same turn in which the process is reaped, so the number is still its own.
// The whole group goes: a worker may have children of its own.
void Replica::kill_worker() {
  if (pid_ > 0) ::kill(-pid_, SIGKILL);
}

void Replica::start() {
  stall_timer_.repeat(kStallCheckMs, [this] { check_stall(); });
  spawn();
}

void Replica::spawn() {
  auto worker = spawn_worker(options_.worker_program);
  if (!worker.ok()) {
    set_state(ReplicaState::kRestarting, worker.error().message);
    return schedule_restart();
  }
  pid_ = worker->pid;
  info_.worker_pid = pid_;
  reaper_.watch(pid_, [this, alive = alive_](const ChildExit& exit) {
    if (*alive) on_exit(exit);
  });
  auto link = Stream::adopt(loop_, std::move(worker->link));
  if (!link.ok()) return lose(link.error().message);
  decoder_ = wire::FrameDecoder();
  link_ = std::move(link).value();
  StreamCallbacks callbacks;
  callbacks.on_data = [this](std::string_view bytes) { on_bytes(bytes); };
  callbacks.on_eof = [this] { lose("the worker closed its link"); };
  callbacks.on_error = [this](Error e) { lose("the link to the worker broke: " + e.message); };
  link_->set_callbacks(std::move(callbacks));
  link_->resume_reading();
  info_.progress.Clear();
  info_.stats.Clear();
  info_.last_progress_ms = info_.last_message_ms = loop_.now_ms();
  set_state(ReplicaState::kStarting);
}

void Replica::on_bytes(std::string_view bytes) {
  info_.last_message_ms = loop_.now_ms();
  decoder_.feed(bytes);
  wire::Envelope envelope;
  while (link_ != nullptr) {
    const auto more = decoder_.next(&envelope);
    if (!more.ok()) return lose("the worker broke the protocol: " + more.error().message);
    if (!*more) return;
    on_envelope(envelope);
  }
}

void Replica::on_envelope(const wire::Envelope& e) {
  switch (e.body_case()) {
    case wire::Envelope::kHello:
      return on_hello(e.hello());
    case wire::Envelope::kLoadProgress:
      if (stopping_) return;
      if (e.load_progress().bytes_done() > info_.progress.bytes_done() ||
          info_.state != ReplicaState::kLoading ||
          e.load_progress().phase() != info_.progress.phase())
        info_.last_progress_ms = loop_.now_ms();
      info_.progress = e.load_progress();
      return set_state(ReplicaState::kLoading);
    case wire::Envelope::kReady:
      return on_ready(e.ready());
    case wire::Envelope::kTokens:
      return on_token_batch(e.tokens());
    case wire::Envelope::kStats:
      return on_stats(e.stats());
    case wire::Envelope::kFault:
      return on_fault(e.fault());
    case wire::Envelope::kAuditReport:
      return end_audit(e.audit_report().id(), e.audit_report());
    default:
      return;  // a newer worker may say more
  }
}

void Replica::on_hello(const wire::Hello& hello) {
  if (hello.protocol() != wire::kProtocolVersion)
    return lose(fmt::format(
        "worker speaks protocol {}, expected {}: install weftd and weft-worker of the same version",
        hello.protocol(), wire::kProtocolVersion));
  configure();
}

void Replica::configure() {
  const config::DeploymentConfig& d = options_.deployment;
  wire::Envelope envelope;
  wire::Configure& c = *envelope.mutable_configure();
  c.set_model_dir(d.model);
  c.set_plugin_dir(options_.plugin_dir);
  c.set_allow_untrusted_plugins(options_.trust_user_plugins);
  c.set_memory_bytes(d.memory_bytes);
  c.set_max_sequences(static_cast<uint32_t>(d.max_sequences));
  c.set_max_batch_tokens(static_cast<uint32_t>(d.max_batch_tokens));
  c.set_max_context(static_cast<uint32_t>(d.max_context));
  c.set_max_waiting(static_cast<uint32_t>(d.max_waiting));
  c.set_threads(static_cast<uint32_t>(d.threads));
  c.set_deterministic(d.deterministic);
  c.set_isa_max(d.isa_max);
  for (const auto& [kind, plugin] : d.plugins) {
    wire::PluginChoice& choice = *c.add_plugins();
    choice.set_interface(fmt::format("weft.{}/1", kind));
    choice.set_name(plugin.name);
    add_params(plugin.params, &choice);
  }
  set_cache(d.cache, c.mutable_cache());
  set_scheduler(d.scheduler, &c);
  send(envelope);
}

void Replica::on_ready(const wire::Ready& ready) {
  if (stopping_) return;
  info_.ready = ready;
  ready_at_ms_ = info_.last_progress_ms = loop_.now_ms();
  log_notice("deployment {}: ready after {:.1f} s, {} kernels, {} MiB of weights, context {}",
             info_.deployment, ready.load_seconds(), ready.kernels(), ready.weight_bytes() >> 20,
             ready.max_context());
  set_state(ReplicaState::kReady);
}

void Replica::on_token_batch(const wire::TokenBatch& batch) {
  info_.last_progress_ms = loop_.now_ms();
  for (const wire::SequenceTokens& update : batch.sequences()) {
    const auto found = sequences_.find(update.id());
    if (found == sequences_.end()) continue;  // ended here before the worker knew
    const Sequence sequence = found->second;
    if (update.finish() != wire::FINISH_NONE) {
      sequences_.erase(found);
      if (sequence.cancelled_at_ms != 0 && events_.on_cancel_freed)
        events_.on_cancel_freed(static_cast<double>(loop_.now_ms() - sequence.cancelled_at_ms) /
                                1000.0);
    }
    if (sequence.listener != nullptr) sequence.listener->on_tokens(update);
    if (link_ == nullptr) return;
  }
}

void Replica::on_stats(const wire::WorkerStats& stats) {
  // An idle worker is well only when we have given it nothing: a request that it lost must not wait
  // forever.
  const bool idle = stats.running() == 0 && stats.waiting() == 0 && sequences_.empty();
  if (work_done(stats) != work_done(info_.stats) || idle) info_.last_progress_ms = loop_.now_ms();
  const bool stepped = stats.step() != info_.stats.step();
  info_.stats = stats;
  if (stepped && events_.on_step) events_.on_step(stats.last_batch_tokens());
}

void Replica::audit(bool drop_cache, AuditDone done) {
  if (info_.state != ReplicaState::kReady || link_ == nullptr)
    return done(make_error(ErrorCode::kUnavailable, "model {} is {}{}{}; nothing to audit",
                           info_.deployment, gateway::to_string(info_.state),
                           info_.reason.empty() ? "" : ": ", info_.reason));
  const uint64_t id = next_id_++;
  wire::Envelope envelope;
  envelope.mutable_audit()->set_id(id);
  envelope.mutable_audit()->set_drop_cache(drop_cache);
  PendingAudit& pending = audits_[id];
  pending.done = std::move(done);
  pending.timer = std::make_unique<Timer>(loop_);
  pending.timer->start(options_.audit_timeout_ms, [this, id] {
    end_audit(id,
              make_error(ErrorCode::kTimeout, "the worker of model {} did not answer within {} ms",
                         info_.deployment, options_.audit_timeout_ms));
  });
  send(envelope);
}

void Replica::end_audit(uint64_t id, Result<wire::AuditReport> result) {
  const auto found = audits_.find(id);
  if (found == audits_.end()) return;  // too late
  const AuditDone done = std::move(found->second.done);
  audits_.erase(found);
  done(std::move(result));
}

void Replica::on_fault(const wire::WorkerFault& fault) {
  permanent_fault_ = permanent_fault_ || fault.permanent();
  info_.reason = fmt::format("{}: {}", fault.where(), fault.message());
  log_error("deployment {}: worker fault: {}", info_.deployment, info_.reason);
}

void Replica::send(const wire::Envelope& envelope) {
  if (link_ == nullptr) return;
  std::string frame;
  if (const Status s = wire::append_frame(envelope, &frame); !s.ok()) {
    log_error("deployment {}: message not sent: {}", info_.deployment, s.error().message);
    return;
  }
  link_->write(std::move(frame));
}

Result<uint64_t> Replica::submit(wire::Generate generate, gateway::GenerationListener* listener) {
  if (info_.state != ReplicaState::kReady || link_ == nullptr)
    return make_error(ErrorCode::kUnavailable, "model {} is {}{}{}", info_.deployment,
                      gateway::to_string(info_.state), info_.reason.empty() ? "" : ": ",
                      info_.reason);
  if (link_->buffered() > kLinkBytesMax)
    return make_error(ErrorCode::kUnavailable,
                      "model {} is busy: {} bytes are queued towards its worker", info_.deployment,
                      link_->buffered());
  const uint64_t id = next_id_++;
  generate.set_id(id);
  wire::Envelope envelope;
  *envelope.mutable_generate() = std::move(generate);
  std::string frame;
  WEFT_TRY(wire::append_frame(envelope, &frame));
  if (sequences_.empty()) info_.last_progress_ms = loop_.now_ms();
  sequences_[id] = Sequence{listener, 0};
  link_->write(std::move(frame));
  return id;
}

void Replica::cancel(uint64_t id, std::string_view reason) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second.cancelled_at_ms != 0) return;
  found->second.cancelled_at_ms = std::max<uint64_t>(1, loop_.now_ms());
  wire::Envelope envelope;
  envelope.mutable_cancel()->set_id(id);
  envelope.mutable_cancel()->set_reason(std::string(reason));
  send(envelope);
}

void Replica::forget(uint64_t id, std::string_view reason) {
  cancel(id, reason);
  const auto found = sequences_.find(id);
  if (found != sequences_.end()) found->second.listener = nullptr;
}

void Replica::lose(std::string reason) {
  if (link_ == nullptr && pid_ <= 0) return;
  if (info_.reason.empty()) info_.reason = reason;
  link_.reset();
  const Error why(ErrorCode::kUnavailable, fmt::format("the worker of model {} was lost: {}",
                                                       info_.deployment, info_.reason));
  if (!stopping_) {
    log_error("deployment {}: {}", info_.deployment, reason);
    set_state(ReplicaState::kRestarting, info_.reason);
  }
  // A worker that lost us leaves by itself; one that hangs is killed.
  if (pid_ > 0) kill_timer_.start(kKillGraceMs, [this] { kill_worker(); });
  fail_sequences(why);
}

void Replica::fail_sequences(const Error& why) {
  while (!audits_.empty()) end_audit(audits_.begin()->first, why);
  // One at a time: a listener may forget others, and those must then hear nothing.
  while (!sequences_.empty()) {
    gateway::GenerationListener* listener = sequences_.begin()->second.listener;
    sequences_.erase(sequences_.begin());
    if (listener != nullptr) listener->on_lost(why);
  }
}

void Replica::read_rest() {
  std::string buffer(Loop::kReadBufferBytes, '\0');
  while (link_ != nullptr) {
    const ssize_t n = ::read(link_->fd(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    on_bytes(std::string_view(buffer.data(), static_cast<size_t>(n)));
  }
}

void Replica::on_exit(const ChildExit& exit) {
  pid_ = -1;
  read_rest();
  kill_timer_.stop();
  info_.worker_pid = 0;
  const std::string what = describe_exit(exit);
  if (!stopping_) {
    info_.reason =
        info_.reason.empty() || info_.reason == "the worker closed its link" ? what : info_.reason;
    log_error("deployment {}: {}", info_.deployment, what);
  }
  link_.reset();
  fail_sequences(Error(ErrorCode::kUnavailable,
                       fmt::format("the worker of model {} was lost: {}", info_.deployment, what)));
  if (stopping_) {
    set_state(ReplicaState::kStopped);
    if (stopped_) std::exchange(stopped_, nullptr)();
    return;
  }
  if (permanent_fault_) {
    log_error("deployment {} has failed and will not be tried again: {}", info_.deployment,
              info_.reason);
    return set_state(ReplicaState::kFailed, info_.reason);
  }
  schedule_restart();
}

void Replica::schedule_restart() {
  const auto base = static_cast<uint64_t>(options_.deployment.restart_backoff_ms);
  const auto limit = static_cast<uint64_t>(options_.deployment.restart_backoff_max_ms);
  // Only failures on the way to ready back off further: a worker that had served is wanted back at
  // once.
  backoff_ms_ = ready_at_ms_ != 0 || backoff_ms_ == 0 ? base : std::min(backoff_ms_ * 2, limit);
  ready_at_ms_ = 0;
  ++info_.restarts;
  set_state(ReplicaState::kRestarting, info_.reason);
  log_notice("deployment {}: restarting the worker in {} ms", info_.deployment, backoff_ms_);
  restart_timer_.start(backoff_ms_, [this] {
    info_.reason.clear();
    spawn();
  });
}

bool Replica::making_progress() const {
  if (info_.state == ReplicaState::kReady && sequences_.empty()) return true;
  return loop_.now_ms() - info_.last_progress_ms <
         static_cast<uint64_t>(options_.deployment.stall_timeout_ms);
}

void Replica::check_stall() {
  if (pid_ <= 0 || link_ == nullptr || making_progress()) return;
  info_.reason = fmt::format("no progress for {} ms", options_.deployment.stall_timeout_ms);
  log_error("deployment {}: worker {} makes no progress, killing it", info_.deployment, pid_);
  kill_worker();
  info_.last_progress_ms = loop_.now_ms();
}

void Replica::stop(uint64_t grace_ms, std::function<void()> done) {
  stopping_ = true;
  restart_timer_.stop();
  stall_timer_.stop();
  stopped_ = std::move(done);
  if (pid_ <= 0) {
    set_state(ReplicaState::kStopped);
    loop_.post([this, alive = alive_] {
      if (*alive && stopped_) std::exchange(stopped_, nullptr)();
    });
    return;
  }
  wire::Envelope envelope;
  envelope.mutable_shutdown();
  send(envelope);
  kill_timer_.start(grace_ms, [this] { kill_worker(); });
  set_state(ReplicaState::kDraining, "stopping");
}

void Replica::set_state(ReplicaState state, std::string reason) {
  if (state != info_.state) info_.state_since_ms = loop_.now_ms();
  info_.state = state;
  if (state == ReplicaState::kReady || state == ReplicaState::kLoading)
    info_.reason.clear();
  else if (!reason.empty())
    info_.reason = std::move(reason);
  if (events_.on_change) events_.on_change();
}

}  // namespace weft::fabric
