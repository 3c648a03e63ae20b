// The step loop of one worker: takes requests, runs the model one batched step at a time, samples,
// and reports tokens.
//
// Contract of a step. Commands (generate, cancel, drain) take effect between steps. A step runs
// every planned row exactly once, then for each sequence whose last row it ran samples one token;
// what happened to all sequences leaves as one TokenBatch. Each request gets exactly one message
// with `finish` set, and its cache units are free before that message is emitted. A failing step
// ends the sequences that were in it and no others.
//
// One thread at a time owns an Engine (in a worker: the engine thread). It does no I/O and reads no
// clock but options.now_us; messages go out through `emit`, which may wait (that is the
// backpressure) but must not call back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/batch.h"
#include "engine/cache/coordinator.h"
#include "engine/composer.h"
#include "engine/roster.h"
#include "engine/tenants.h"
#include "weft/model.h"
#include "wire/weft.pb.h"

namespace weft::engine {

// A model that is ready to step. Borrowed: outlives the Engine.
struct StepModel {
  const weft_model_v1* table = nullptr;
  weft_instance* self = nullptr;
  weft_model_info info = {};
};

struct EngineOptions {
  ComposerOptions compose;
  uint32_t max_waiting = 1;
  uint64_t max_waiting_bytes = 0;
  bool keep_prefixes = true;
  cache::HostTierOptions host;
  std::string model_identity;  // prefixes of different models are never shared
  // Tokens of prompt and output together; every such sequence fits the caches alone.
  uint32_t max_context = 1;
  // Every step in the form whose bits do not depend on how a sequence is cut into steps.
  bool deterministic = false;
  uint64_t stats_interval_us = 250'000;
  std::function<uint64_t()> now_us;  // monotonic
};

class Engine {
 public:
  using Emit = std::function<void(const wire::Envelope&)>;
  // Failing steps in a row after which the worker gives up and asks to be restarted.
  static constexpr uint32_t kFailedStepsMax = 8;

  // caches: borrowed, outlives the Engine. planner: NULL = the built-in policy.
  Engine(StepModel model, Caches* caches, EngineOptions options, Emit emit,
         std::unique_ptr<Planner> planner = nullptr);

  void generate(wire::Generate message);
  void cancel(uint64_t id, const std::string& reason);
  // Nothing new is taken; Drained follows when the last sequence has ended, by itself or at the
  // deadline.
  void drain(uint64_t deadline_ms);
  // Runs one step when there is work. False when there was none. Sends pending messages either way.
  bool step();
  bool has_work() const { return !roster_.empty() || draining() || coordinator_.copying(); }
  // Set when the worker must be restarted; a WorkerFault has been emitted and every sequence has
  // ended.
  bool faulted() const { return faulted_; }

  // Runs one row through the model and throws the result away: memory becomes resident, and a model
  // that produces nonsense is found before it is called ready.
  Status warm_up();
  // Every count against what is there; when idle also that nothing is held.
  Status audit() const;
  // Answers an Audit message. drop_cache: first gives up every kept prefix.
  void report_audit(uint64_t id, bool drop_cache);
  uint64_t preemptions() const { return composer_.preemptions(); }
  Coordinator& coordinator() { return coordinator_; }

 private:
  bool draining() const { return drain_deadline_us_ != 0 && !drained_; }
  wire::SequenceTokens* entry(Sequence* sequence);
  // error_code: for FINISH_ERROR, when the word of the error is not the right one.
  void finish(std::unique_ptr<Sequence> sequence, wire::Finish finish, const Error* error,
              const char* error_code = nullptr);
  void refuse(uint64_t id, const Error& error);
  void fail_all(const Error& error);
  void fail_step(weft_status status, const std::string& message);
  void flush_tokens();
  void end_draining();
  void emit_stats(uint64_t now);

  void end_refused();
  void idle_wait();
  void note_admissions();
  bool encode_media();
  Status encode(Sequence* sequence, uint32_t rows);
  void run_step();
  void take_results(const PlannedRun& run, uint32_t* logit_row);
  Status record_prompt_row(Sequence* sequence, uint32_t position, std::span<const float> logits);
  Result<int32_t> next_token(Sequence* sequence, std::span<float> logits);
  wire::Finish finish_after(const Sequence& sequence, int32_t token) const;
  void send_prompt_logprobs(Sequence* sequence);

  const StepModel model_;
  Caches* const caches_;
  const EngineOptions options_;
  const Emit emit_;
  Coordinator coordinator_;
  TenantBook tenants_;
  Roster roster_;  // its sequences hold units: gone before the coordinator
  Composer composer_;
  BatchBuilder builder_;
  SampleScratch scratch_;
  std::vector<TopLogprob> tops_;
  std::vector<float> raw_copy_;  // raw logits of a row that penalties or bias change

  std::vector<PlannedRun> runs_;  // of the step being run
  wire::Envelope out_;            // the TokenBatch being collected; memory is reused
  uint64_t batch_mark_ = 1;       // number of that batch
  std::vector<std::pair<uint64_t, wire::Finish>>
      ended_;                      // scratch: sequences that end after this step
  std::vector<uint64_t> refused_;  // scratch
  wire::Envelope stats_;

  uint64_t next_order_ = 0;
  uint64_t steps_ = 0;
  uint64_t prompt_tokens_total_ = 0;
  uint64_t generated_tokens_total_ = 0;
  uint64_t last_step_us_ = 0;
  uint64_t last_batch_tokens_ = 0;
  uint64_t stats_due_us_ = 0;
  bool stats_idle_ = false;  // the last stats said idle
  uint64_t drain_deadline_us_ = 0;
  bool drained_ = false;
  uint32_t failed_steps_ = 0;
  bool faulted_ = false;
};

}  // namespace weft::engine
