// One plan: decodes, then prefill pieces and admissions by band, within the budgets of the view.
//
// The planner holds options and scratch memory only, so a plan depends on nothing but the view: the
// same view gives the same plan, from any instance. After the first plans of a size nothing is
// allocated. One thread at a time (the engine's).
#pragma once

#include <cstdint>
#include <vector>

#include "budget.h"
#include "cost.h"
#include "fairness.h"
#include "options.h"
#include "order.h"
#include "outlook.h"
#include "weft/scheduler.h"

namespace scheduler_continuous {

class Planner {
 public:
  explicit Planner(const Options& options) : options_(options) {}

  void plan(const weft_sched_view& view, weft_sched_plan* out);
  // Nanoseconds after which a new sequence should ask again; 0 = it may queue.
  uint64_t retry_after_ns(const weft_sched_view& view, const weft_seq& seq);

 private:
  struct Turn {  // of a tenant
    uint64_t key;
    uint32_t head, tenant;
  };

  void begin(const weft_sched_view& view);
  const weft_seq& seq_at(uint32_t at) const {
    return at < view_->n_run ? view_->run[at] : view_->wait[at - view_->n_run];
  }

  // decodes (planner_decode.cpp)
  void collect_decodes();
  void plan_decodes();
  void make_room_for_decodes();
  void preempt(uint32_t run_index);
  void rescue();
  uint32_t rows_for_prefill(uint32_t decode_rows) const;

  // prefill and admissions (planner_prefill.cpp)
  void plan_band(uint32_t band);
  void serve_resumed(uint32_t band);
  void serve_urgent(uint32_t band);
  void queue_by_tenant(uint32_t band);
  void serve_turns(bool short_lane, int64_t lane_rows);
  void push_turn(uint32_t tenant, bool short_lane);
  void give_back();
  void serve(Candidate* candidate, int64_t cap, bool leave);
  void serve_running(const Candidate& candidate, int64_t cap);
  void serve_waiting(const Candidate& candidate, int64_t cap);
  bool admissible(const Candidate& candidate, bool* skip);
  void make_way(const Candidate& candidate);
  bool within_share(const Candidate& candidate);
  bool may_lose(const weft_seq& other, const weft_seq& seq, bool fair);
  uint64_t end_of_piece(const weft_seq& seq, uint64_t from, int64_t rows) const;
  void grant(const Candidate& candidate, uint64_t rows);
  bool done() const { return prefill_rows_ <= 0 || budget_.seqs <= 0; }

  const Options options_;
  const weft_sched_view* view_ = nullptr;
  Budget budget_;
  CostModel costs_;
  Outlook outlook_;
  TenantTable tenants_;
  Order order_;
  std::vector<uint8_t> gone_;       // preempted, by index into view.run
  std::vector<uint32_t> rows_;      // of run and wait
  std::vector<uint32_t> decodes_;   // indices into view.run
  std::vector<uint32_t> admitted_;  // indices into view.wait, in order
  std::vector<weft_preempt> preempted_;
  std::vector<Candidate> granted_;  // of the present band
  std::vector<uint32_t> urgent_;
  std::vector<uint32_t> in_band_;  // tenants
  std::vector<Turn> turns_;        // heap
  uint64_t swap_free_ = 0;
  int64_t prefill_rows_ = 0;
  uint32_t open_ = 0;          // candidates of the band that have had no turn
  uint64_t first_long_ = 0;    // virtual time at which a waiting long prompt has its turn
  bool running_long_ = false;  // the band has a long prompt that has begun
  bool closed_ = false;        // no more admissions in this step
};

}  // namespace scheduler_continuous
