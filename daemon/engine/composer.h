// Composes steps: shows the policy what there is (a view), and carries its plan out on roster and
// caches.
//
// The policy decides who runs; this class owns what must not go wrong whatever it decides: units
// are had before rows are planned, a sequence whose prefix is being copied in does not run, nobody
// computes the same prefix twice at once, and a step that could not do what was planned makes room
// for the next one. Engine thread only.
#pragma once

#include <weft/scheduler.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/batch.h"
#include "engine/cache/coordinator.h"
#include "engine/plan/planner.h"
#include "engine/roster.h"
#include "engine/step_costs.h"
#include "engine/tenants.h"
#include "wire/weft.pb.h"

namespace weft::engine {

struct ComposerOptions {
  uint32_t max_sequences = 1;     // running at once; at most max_batch_tokens
  uint32_t max_batch_tokens = 1;  // rows of a step
  uint32_t max_logit_rows = 2;    // > max_sequences: the surplus serves prompt log-probabilities
  uint32_t prefill_chunk = 0;     // most prefill rows of one sequence in a step; 0 = no limit
  uint64_t itl_target_us = 0;
  uint64_t seed = 0;
  // A running sequence that got nothing for this long, and for many steps, is stalled; after three
  // times this it is given up.
  uint64_t stall_us = 10'000'000;
};

class Composer {
 public:
  Composer(ComposerOptions options, Caches* caches, Coordinator* coordinator, Roster* roster,
           TenantBook* tenants, std::unique_ptr<Planner> planner);

  // The runs of the next step. Valid until the next call or until one of their sequences goes.
  const std::vector<PlannedRun>& compose(uint64_t now_us);
  // Of the last compose(): refused by policy, given up by the watchdog. Still in the roster.
  const std::vector<Sequence*>& dropped() const { return dropped_; }
  const std::vector<Sequence*>& stuck() const { return stuck_; }
  // Asks the policy whether a new sequence may queue.
  Status may_queue(const Sequence& sequence, uint64_t now_us);
  // After the step: the runs' rows are in the caches.
  void stepped(uint32_t rows, uint64_t ns);
  // A sequence has left the roster: gives back all it holds, keeping what it computed for later
  // requests if `keep`.
  void leave(Sequence* sequence, bool keep, weft_status why, uint64_t now_us);
  // The state of a running sequence is at a useful length: keep it.
  void keep(Sequence* sequence);

  uint64_t preemptions() const { return preemptions_; }
  bool loading() const { return loading_ > 0; }
  void describe(wire::WorkerStats* stats) const;

 private:
  void finish_loads(uint64_t now_us);
  void watch(uint64_t now_us);
  void probe_waiting();
  void seek_promises();
  void build_view(uint64_t now_us);
  weft_seq describe_common(const Sequence& s) const;
  weft_seq describe_running(const Sequence& s) const;
  weft_seq describe_waiting(const Sequence& s, uint32_t promised) const;
  uint32_t rows_max(const Sequence& s, uint32_t from) const;

  void apply(const weft_sched_plan& plan, uint64_t now_us);
  void preempt(Sequence* sequence, bool swap, uint64_t now_us);
  void admit(Sequence* sequence, uint32_t rows, uint64_t now_us);
  bool follows_newcomer(const Sequence& sequence, uint32_t at_hand);
  void add_run(Sequence* sequence, uint32_t rows, uint64_t now_us);
  uint32_t within_logit_rows(const Sequence& sequence, uint32_t rows);
  void count(Sequence* sequence, uint32_t local, uint32_t host, uint64_t now_us);
  void make_way(uint64_t now_us);

  const ComposerOptions options_;
  Caches* const caches_;
  Coordinator* const coordinator_;
  Roster* const roster_;
  TenantBook* const tenants_;
  std::unique_ptr<Planner> planner_;
  StepCosts costs_;

  weft_sched_view view_ = {};
  std::vector<weft_seq> run_view_, wait_view_;
  std::vector<uint32_t> promised_;  // per waiting sequence
  std::vector<weft_sched_group> groups_;
  std::vector<weft_sched_cost> cost_list_;
  std::vector<weft_sched_tenant> tenant_list_;

  std::vector<PlannedRun> runs_;
  std::vector<Sequence*> dropped_, stuck_;
  std::vector<Sequence*> newcomers_;  // admitted in this step
  std::vector<Sequence*> scratch_run_, scratch_wait_;
  uint32_t prompt_logit_rows_left_ = 0;
  uint64_t steps_ = 0, watch_us_ = 0, last_look_us_ = 0;
  uint64_t looks_ = 0, looks_before_watch_ = 0;  // calls of compose()
  uint32_t loading_ = 0, stalled_ = 0;
  uint64_t preemptions_ = 0, swaps_ = 0;
  uint64_t queries_ = 0, hits_local_ = 0, hits_host_ = 0, recomputed_ = 0;
};

}  // namespace weft::engine
