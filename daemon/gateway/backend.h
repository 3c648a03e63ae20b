// Backend: what the gateway needs of a model replica, whoever runs it. The fabric room implements
// it over a worker link; tests implement it with a script. Loop thread only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "wire/weft.pb.h"

namespace weft::gateway {

// Receives what happens to one sequence. Exactly one call is the last: on_tokens with finish !=
// FINISH_NONE, or on_lost. After it, or after Backend::forget, the listener is never called again.
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  // Tokens, the admission notice, prompt log-probabilities, the finish: see wire/weft.proto.
  virtual void on_tokens(const wire::SequenceTokens& update) = 0;
  // The replica went away before the sequence ended.
  virtual void on_lost(const Error& why) = 0;
};

enum class ReplicaState { kStarting, kLoading, kReady, kDraining, kRestarting, kFailed, kStopped };
const char* to_string(ReplicaState state);

struct ReplicaInfo {
  std::string deployment;
  ReplicaState state = ReplicaState::kStarting;
  std::string reason;  // why not ready
  wire::LoadProgress progress;
  wire::Ready ready;  // meaningful once it has been ready
  wire::WorkerStats stats;
  int64_t worker_pid = 0;
  uint64_t restarts = 0;
  uint64_t state_since_ms = 0;    // loop clock
  uint64_t last_progress_ms = 0;  // last time the step counter moved or the worker was idle
  uint64_t last_message_ms = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const ReplicaInfo& info() const = 0;
  // True when there is nothing to do or the replica moves: feeds health and the service watchdog.
  virtual bool making_progress() const = 0;
  // Sends the sequence to the replica; `generate.id` is filled in. kUnavailable when it is not
  // ready. Never calls the listener from inside.
  virtual Result<uint64_t> submit(wire::Generate generate, GenerationListener* listener) = 0;
  // Ends the sequence early. The listener still gets its last call (FINISH_CANCELLED once its
  // blocks are free).
  virtual void cancel(uint64_t id, std::string_view reason) = 0;
  // Cancels, and drops the listener at once.
  virtual void forget(uint64_t id, std::string_view reason) = 0;
};

}  // namespace weft::gateway
