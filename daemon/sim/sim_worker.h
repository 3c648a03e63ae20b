// A worker without a model: requests arrive, a scheduler plans, steps take the time that a cost
// model says. To see what a policy does with a workload in milliseconds of real time.
//
//   SimOptions options;                       // cost model, pools, budgets
//   engine::Planner planner(scheduler_ref);   // a plugin, or {} for the built-in policy
//   SimWorker worker(options, &planner);
//   worker.add({.id = 1, .arrive_ns = 0, .prompt = 1000, .output = 50});
//   worker.run();                             // until everything is finished, dropped or refused
//   worker.report().tenants.at(0).ttft_ms     // samples; quantile(samples, 0.95)
//
// The cache follows the arithmetic of weft/scheduler.h: one paged group of rows, one group of
// states. A prefix hit is given per request (`cached` tokens), or follows from `blocks`: hashes of
// the prompt's blocks as in published traces; then what finished prefills left behind can be
// reused, and `promised` is set while a running one is about to leave it.
//
// Everything is deterministic: the same requests, options and policy give the same report. One
// thread. The planner is borrowed.
#pragma once

#include <weft/scheduler.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/plan/planner.h"
#include "engine/tenants.h"
#include "sim/block_cache.h"

namespace weft::sim {

struct SimRequest {
  uint64_t id = 0;  // unique
  uint64_t arrive_ns = 0;
  uint32_t tenant = 0;
  uint32_t weight = 1;  // of the tenant
  int32_t priority = 0;
  uint32_t prompt = 1;       // tokens
  uint32_t cached = 0;       // of these, tokens that the prefix cache has
  uint32_t output = 1;       // tokens that it will generate
  uint32_t output_max = 0;   // what the client allows; 0 = output
  uint64_t deadline_ns = 0;  // for the first token, after arrival; 0 = none
  uint64_t restore_ns = 0;   // time to copy the cached prefix in; 0 = it is at hand
  bool sheddable = false;
  std::vector<uint32_t> boundaries;  // useful lengths within the prompt, rising
  std::vector<uint64_t> blocks;      // hashes of the prompt's blocks of options.block_tokens
};

struct SimOptions {
  // Time of a step: fixed + per row + per token of context of every sequence in it.
  uint64_t step_ns = 5'000'000;
  uint64_t row_ns = 100'000;
  uint64_t context_token_ns = 0;

  uint32_t token_budget = 512;
  uint32_t seq_budget = 32;
  uint32_t run_budget = 32;
  uint32_t max_waiting = 100'000;
  uint32_t prefill_chunk = 0;  // most prefill rows of one sequence in a step; 0 = the budget alone
  uint64_t step_target_ns = 0;

  uint32_t page_tokens = 32;
  uint32_t pages = 4096;
  uint32_t states = 32;
  uint32_t watermark_pages = 0;  // 0 = one per running sequence

  uint64_t swap_bytes = 0;  // host memory for swapped sequences; 0 = none
  uint64_t token_bytes = 1 << 10;
  uint64_t state_bytes = 1 << 20;
  double copy_bytes_per_ns = 10;

  uint32_t block_tokens = 512;  // of SimRequest::blocks
  uint32_t cached_blocks = 0;   // blocks that the prefix cache remembers; 0 = all
  uint64_t seed = 1;
  bool retry = false;  // requests that admit() sends away come back after retry_after_ns
};

struct TenantReport {
  uint64_t finished = 0, dropped = 0, refused = 0, preemptions = 0, swaps = 0;
  uint64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;  // of finished ones
  uint64_t computed_rows = 0;      // all prefill rows that ran, repeated ones too
  uint64_t late_first_tokens = 0;  // after the deadline
  std::vector<double> ttft_ms, itl_ms, total_ms;
};

struct SimReport {
  std::map<uint32_t, TenantReport> tenants;
  uint64_t end_ns = 0, steps = 0, empty_steps = 0, rows = 0;
  std::vector<double> step_ms, plan_us;  // plan_us is real time
  std::string problem;                   // not empty: the simulation stood still, and why
  TenantReport total() const;
};

// q-th quantile (0..1), by rank; 0 when there are no values.
double quantile(std::vector<double> values, double q);

enum class SimOutcome { kFinished, kDropped, kRefused };

class SimWorker {
 public:
  SimWorker(const SimOptions& options, engine::Planner* planner);

  // At any time, also from on_done; an arrival in the past counts as now.
  void add(SimRequest request);
  // Called when a request is over; may add() others (the next turn of a conversation).
  std::function<void(const SimRequest&, SimOutcome)> on_done;
  // Called with every view and the plan that was taken, before it is applied.
  std::function<void(const weft_sched_view&, const weft_sched_plan&)> on_plan;

  // One step, or the leap to the next event when there is nothing to do. False when all is done or
  // the simulation stands still (report().problem).
  bool step();
  void run(uint64_t until_ns = UINT64_MAX);

  uint64_t now_ns() const { return now_ns_; }
  size_t running() const { return run_.size(); }
  size_t waiting() const { return wait_.size() + preempted_.size(); }
  const SimReport& report() const { return report_; }
  // Every unit is free or held by a running sequence.
  Status audit() const;

 private:
  struct Sequence {
    SimRequest request;
    weft_seq seq = {};
    uint64_t loaded_at_ns = 0;      // running: its prefix is there then
    uint64_t last_token_ns = 0;     // 0 = none yet
    uint32_t computed_at_swap = 0;  // swapped: what lies in host memory
    uint64_t swapped_bytes = 0;
    bool published = false;
    uint32_t served = 0;  // tokens of the prompt that need not be paid for (again)
  };
  using Owned = std::unique_ptr<Sequence>;

  void take_arrivals();
  void queue(Owned sequence);
  void end(Owned sequence, SimOutcome outcome);
  const weft_sched_view& make_view();
  void refresh_waiting(Sequence& s);
  void refresh_running(Sequence& s);
  void apply(const weft_sched_plan& plan);
  void preempt(Owned sequence, uint32_t mode);
  void begin(Sequence& s, uint32_t rows);
  void grow(Sequence& s, uint32_t tokens);
  void release(Sequence& s);
  uint64_t run_shares();
  void finish_rows(Sequence& s, uint32_t rows);
  void give_token(Sequence& s);
  void publish(Sequence& s);
  bool leap();
  void record_cost(uint32_t rows, uint64_t ns);
  TenantReport& tenant(const Sequence& s) { return report_.tenants[s.request.tenant]; }

  const SimOptions options_;
  engine::Planner* const planner_;
  std::multimap<uint64_t, Owned> arrivals_;             // by time
  std::vector<Owned> preempted_;                        // by arrival
  std::deque<Owned> wait_;                              // by arrival
  std::vector<Owned> run_;                              // by admission
  std::vector<std::pair<Sequence*, uint32_t>> shares_;  // of the present step
  BlockCache blocks_;

  uint64_t now_ns_ = 0, step_number_ = 0, swap_free_ = 0;
  uint32_t free_pages_ = 0, free_states_ = 0, idle_plans_ = 0;
  std::vector<weft_seq> view_wait_, view_run_;
  weft_sched_group groups_[2] = {};
  std::vector<weft_sched_cost> costs_;
  engine::TenantBook book_;
  std::vector<weft_sched_tenant> tenants_;
  weft_sched_view view_ = {};
  SimReport report_;
};

}  // namespace weft::sim
