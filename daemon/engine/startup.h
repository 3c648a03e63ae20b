// From a Configure message to an engine that can step: open the model, decide the limits, size and
// map the caches, load the weights, run a first step. Engine thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"
#include "engine/cache/disk_dir.h"
#include "engine/engine.h"
#include "engine/model_source.h"
#include "wire/weft.pb.h"

namespace weft::engine {

inline constexpr uint32_t kDefaultMaxSequences = 32;
inline constexpr uint32_t kDefaultMaxBatchTokens = 512;
inline constexpr uint32_t kDefaultMaxWaiting = 1024;
inline constexpr uint64_t kMaxWaitingBytes = 1ull << 30;
inline constexpr uint32_t kPageTokens = 32;
// Rows of a step beyond one per sequence whose logits may be asked for (prompt log-probabilities).
inline constexpr uint32_t kPromptLogitRows = 64;
inline constexpr uint32_t kSequencesMax = 1u << 16;
inline constexpr uint32_t kBatchTokensMax = 1u << 20;

// Members are destroyed bottom-up: the engine's sequences return their units, then the model stops,
// then the arenas go.
struct RunningModel {
  std::unique_ptr<cache::DiskDir> disk;  // the third tier's files
  std::unique_ptr<Caches> caches;
  std::unique_ptr<ModelSession> session;
  std::unique_ptr<Engine> engine;
  wire::Ready ready;
};

// What a model that is opened but not loaded will need, under the limits of a Configure.
struct MemoryPlan {
  weft_mem_plan plan = {};
  uint64_t cache_budget = 0;
  CacheSizes sizes;
  uint32_t max_batch_tokens = 0, max_waiting = 0;
  bool deterministic = false;
};
Result<MemoryPlan> plan_model(const wire::Configure& configure, const StepModel& model);

struct StartupHooks {
  Engine::Emit emit;                 // LoadProgress now, everything the engine says later
  std::function<uint64_t()> now_us;  // monotonic
  const std::atomic<bool>* cancel = nullptr;
};

Result<RunningModel> start_model(const wire::Configure& configure, ModelSource& source,
                                 const StartupHooks& hooks);

// True when restarting the worker with the same Configure would fail the same way.
bool is_permanent(ErrorCode code);

}  // namespace weft::engine
