// Where a worker's model comes from. The real source opens plugins and a checkpoint
// (plugin_models.h); unit tests put a toy behind the same two classes.
//
// All calls come from the engine thread, in the order open -> model -> (host plans and maps the
// caches) -> load_weights -> model().table->ready -> steps. Destroying the session stops and
// destroys the model; the caches outlive it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/plan/planner.h"
#include "wire/weft.pb.h"

namespace weft::engine {

using BytesProgress = std::function<void(uint64_t done, uint64_t total)>;

class ModelSession {
 public:
  virtual ~ModelSession() = default;
  // Created and declared: info is valid, plan may be called.
  virtual StepModel model() = 0;
  // cancel: gives kCancelled soon after it is set.
  virtual Status load_weights(const BytesProgress& progress, const std::atomic<bool>& cancel) = 0;
  // The checkpoint's tensors until describe(), or NULL when the source has no checkpoint.
  virtual const weft_catalog* catalog() const { return nullptr; }
  // What tells this model from every other one (prefixes are never shared between them).
  virtual std::string identity() const { return {}; }
  // The scheduler plugin in charge, alive as long as the session; an empty one means the built-in
  // policy.
  virtual SchedulerRef scheduler() { return {}; }
  // Adds what only the source knows: plugins, kernels.
  virtual void describe(wire::Ready* ready) = 0;
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  virtual Result<std::unique_ptr<ModelSession>> open(const wire::Configure& configure) = 0;
};

}  // namespace weft::engine
