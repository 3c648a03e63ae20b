// Planner: the plan of every step, from a scheduler plugin or from the built-in policy.
//
// It owns the plan's arrays, measures the plugin, checks each of its plans (plan_check.h) and takes
// the built-in one (fcfs_plan.h) where a plan breaks a rule. Three such plans switch the plugin off
// for good. A plugin may plan nothing for a while, but not for ever: after kEmptyPlansMax plans in
// a row without any share although something could run, the built-in policy takes one step and the
// plugin has a strike. Every view and plan can go to a trace (trace.h).
//
// Owned by the engine; engine thread only. The plugin's instance must outlive the planner.
#pragma once

#include <weft/scheduler.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/plan/fcfs_plan.h"
#include "engine/plan/plan_check.h"
#include "engine/plan/trace.h"
#include "wire/weft.pb.h"

namespace weft::engine {

inline constexpr const char* kBuiltInScheduler = "built-in";
inline constexpr uint32_t kPlanStrikesMax = 3;
inline constexpr uint32_t kEmptyPlansMax = 64;

// A started instance of weft.scheduler/1; table NULL = none, the built-in policy plans.
struct SchedulerRef {
  const weft_scheduler_v1* table = nullptr;
  weft_instance* self = nullptr;
  std::string name;  // of the plugin
};

class Planner {
 public:
  explicit Planner(SchedulerRef plugin = {}, std::unique_ptr<TraceWriter> trace = nullptr);

  // Valid until the next call. `view` obeys weft/scheduler.h. Its entries name sequences by their
  // index in view.run and view.wait. Empty of shares only when nothing can run or the plugin wants
  // to wait.
  const weft_sched_plan& plan(const weft_sched_view& view);

  // May this sequence queue? WEFT_OK; or kUnavailable with *retry_after_ns (0 = unknown), or
  // another error for never.
  Status admit(const weft_sched_view& view, const weft_seq& seq, uint64_t* retry_after_ns);
  // The sequence left the view for good.
  void finished(uint64_t id, weft_status why, uint64_t step);

  // Who plans: the plugin's name or "built-in".
  const std::string& name() const { return name_; }
  // WEFT_SCHEDULER_CAP_* of who plans; without DRAFTS no view should offer drafts.
  uint64_t caps() const;
  // Sets name, plans_total, refused_plans_total, last_plan_us and dropped_total; leaves the rest.
  void describe(wire::SchedulerStats* stats) const;

  uint64_t plans() const { return plans_; }
  uint64_t refused_plans() const { return refused_; }
  uint64_t last_plan_ns() const { return last_plan_ns_; }
  uint64_t max_plan_ns() const { return max_plan_ns_; }
  // Why the last plan of the plugin was refused; empty = none was.
  const std::string& last_problem() const { return last_problem_; }

 private:
  void make_room(const weft_sched_view& view);
  bool plan_by_plugin(const weft_sched_view& view);
  bool ends_stall(const weft_sched_view& view);
  void plan_built_in(const weft_sched_view& view);
  void note_slow_plan();
  void strike(const std::string& problem);

  SchedulerRef plugin_;
  std::unique_ptr<TraceWriter> trace_;
  std::string name_;
  PlanCheck check_;
  FcfsPlan built_in_;
  std::vector<weft_share> run_, admit_;
  std::vector<weft_preempt> preempt_;
  std::vector<uint32_t> drop_;
  weft_sched_plan plan_ = {};
  uint32_t strikes_ = 0, empty_plans_ = 0;
  bool by_plugin_ = false;  // the present plan_
  uint64_t plans_ = 0, refused_ = 0, dropped_ = 0, slow_plans_ = 0;
  uint64_t last_plan_ns_ = 0, max_plan_ns_ = 0;
  std::string last_problem_;
};

}  // namespace weft::engine
