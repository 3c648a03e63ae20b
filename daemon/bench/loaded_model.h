// A model brought up in this process as a worker does it: real plugins, real loader, caches sized
// and mapped by the engine's own code, batches built by the engine's own builder. What is missing
// is the scheduler, so that a measurement decides what a step holds.
//
// One thread (the engine thread of the ABI). Sequences must be destroyed before the model.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/batch.h"
#include "engine/cache/arenas.h"
#include "engine/plugin_models.h"
#include "engine/sequence.h"
#include "plugin/params.h"

namespace weft::bench {

struct ModelOptions {
  std::string model_dir;
  std::string plugin_dir;  // empty: beside this program
  std::string isa_max;
  uint32_t threads = 0;        // 0 = all
  bool deterministic = false;  // WEFT_BATCH_RECURRENT in every step
  uint32_t max_batch_tokens = 512;
  uint32_t max_sequences = 32;
  uint32_t max_context = 4096;  // of one sequence; lowered to the model's own limit
  plugin::ParamList settings;   // of the model plugin
  engine::UseKernels use_kernels;
};

// $bin/../lib/weft/plugins of the running program.
std::string default_plugin_dir();

class LoadedModel {
 public:
  static Result<std::unique_ptr<LoadedModel>> open(const ModelOptions& options);

  const weft_model_info& info() const { return model_.info; }
  const weft_mem_plan& plan() const { return plan_; }
  const ModelOptions& options() const { return options_; }
  const std::string& kernels() const { return kernels_; }
  double load_seconds() const { return load_seconds_; }
  engine::Caches& caches() { return *caches_; }
  // Bytes that `sequences` sequences of `tokens` tokens occupy in the caches.
  uint64_t cache_bytes(uint64_t sequences, uint64_t tokens) const;

  // A sequence with these tokens and room in the caches for `tokens.size() + extra`; kUnavailable
  // with numbers when memory does not suffice.
  Result<std::unique_ptr<engine::Sequence>> make_sequence(std::vector<int32_t> tokens,
                                                          uint32_t extra);
  // Runs the planned rows and moves the sequences forward. `seconds` gets the time of building the
  // batch and of the model's step.
  Status step(std::span<const engine::PlannedRun> runs, double* seconds);
  // Of the last step: one row for each run that reached the end of its sequence, in order.
  std::span<float> logits(uint32_t row) { return builder_->logits(row); }

 private:
  explicit LoadedModel(ModelOptions options) : options_(std::move(options)) {}
  Status bring_up();
  Status plan_memory();

  ModelOptions options_;
  // Destroyed bottom-up: builder, model, then the caches that the model works in.
  std::unique_ptr<engine::Caches> caches_;
  std::unique_ptr<engine::ModelSession> session_;
  std::unique_ptr<engine::BatchBuilder> builder_;
  engine::StepModel model_;
  weft_mem_plan plan_ = {};
  std::string kernels_;
  double load_seconds_ = 0;
  uint64_t next_order_ = 0;
};

}  // namespace weft::bench
