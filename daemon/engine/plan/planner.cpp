#include "engine/plan/planner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "plugin/status.h"

namespace weft::engine {
namespace {

uint64_t steady_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// Five times what a plan may take: less may be the machine's doing.
constexpr uint64_t kSlowPlanNs = 1'000'000;

bool has_shares(const weft_sched_plan& plan) { return plan.n_run > 0 || plan.n_admit > 0; }

}  // namespace

Planner::Planner(SchedulerRef plugin, std::unique_ptr<TraceWriter> trace)
    : plugin_(std::move(plugin)),
      trace_(std::move(trace)),
      name_(plugin_.table != nullptr ? plugin_.name : kBuiltInScheduler) {}

const weft_sched_plan& Planner::plan(const weft_sched_view& view) {
  make_room(view);
  const uint64_t start = steady_ns();
  by_plugin_ = false;
  if (!plan_by_plugin(view)) plan_built_in(view);
  last_plan_ns_ = steady_ns() - start;
  max_plan_ns_ = std::max(max_plan_ns_, last_plan_ns_);
  if (by_plugin_ && last_plan_ns_ > kSlowPlanNs) note_slow_plan();
  ++plans_;
  dropped_ += plan_.n_drop;
  if (trace_ != nullptr) trace_->append(view, plan_, last_plan_ns_, by_plugin_);
  return plan_;
}

void Planner::make_room(const weft_sched_view& view) {
  const size_t cap = std::max<size_t>(1, std::max(view.n_run, view.n_wait));
  if (run_.size() < cap) {
    const size_t room = std::max(cap, 2 * run_.size());
    run_.resize(room);
    admit_.resize(room);
    preempt_.resize(room);
    drop_.resize(room);
  }
  plan_ = {};
  plan_.struct_size = sizeof(plan_);
  plan_.cap = static_cast<uint32_t>(run_.size());
  plan_.run = run_.data();
  plan_.admit = admit_.data();
  plan_.preempt = preempt_.data();
  plan_.drop = drop_.data();
}

// False when the built-in policy has to plan this step.
bool Planner::plan_by_plugin(const weft_sched_view& view) {
  if (plugin_.table == nullptr) return false;
  weft_sched_plan filled = plan_;
  const weft_status status = plugin_.table->plan(plugin_.self, &view, &filled);
  // The arrays are ours, whatever the plugin did to the pointers.
  plan_.n_run = filled.n_run;
  plan_.n_admit = filled.n_admit;
  plan_.n_preempt = filled.n_preempt;
  plan_.n_drop = filled.n_drop;
  if (status != WEFT_OK) {
    strike(fmt::format("plan() returned {}", plugin::status_name(status)));
    return false;
  }
  const Status checked = check_.check(view, plan_);
  if (!checked.ok()) {
    strike(checked.error().message);
    return false;
  }
  by_plugin_ = true;
  if (has_shares(plan_)) {
    empty_plans_ = 0;
  } else if (ends_stall(view)) {
    by_plugin_ = false;
  }
  return true;
}

// The plugin planned no share. True when it did so for too long; then plan_ is the built-in one,
// and the plugin has a strike if that one runs something.
bool Planner::ends_stall(const weft_sched_view& view) {
  if (view.n_run == 0 && view.n_wait == 0) return false;
  if (++empty_plans_ < kEmptyPlansMax) return false;
  empty_plans_ = 0;
  plan_built_in(view);
  if (has_shares(plan_)) {
    strike(fmt::format("{} plans in a row without a share although something could run",
                       kEmptyPlansMax));
  }
  return true;
}

void Planner::plan_built_in(const weft_sched_view& view) { built_in_.plan(view, &plan_); }

// Slow is not wrong, but the operator should know: a line whenever the count has doubled.
void Planner::note_slow_plan() {
  ++slow_plans_;
  if ((slow_plans_ & (slow_plans_ - 1)) != 0) return;
  log_warning("scheduler {}: {} plans took longer than {} us, the last one {} us", plugin_.name,
              slow_plans_, kSlowPlanNs / 1000, last_plan_ns_ / 1000);
}

void Planner::strike(const std::string& problem) {
  ++refused_;
  ++strikes_;
  last_problem_ = problem;
  log_warning("scheduler {}: refused a plan, strike {} of {}: {}; planned first come, first served",
              plugin_.name, strikes_, kPlanStrikesMax, problem);
  if (strikes_ < kPlanStrikesMax) return;
  log_error(
      "scheduler {} is switched off after {} refused plans; requests are served first come, first "
      "served until the worker restarts",
      plugin_.name, strikes_);
  plugin_ = {};
  name_ = kBuiltInScheduler;
}

Status Planner::admit(const weft_sched_view& view, const weft_seq& seq, uint64_t* retry_after_ns) {
  *retry_after_ns = 0;
  if (plugin_.table == nullptr || plugin_.table->admit == nullptr) return {};
  weft_err err = plugin::make_err();
  const weft_status status = plugin_.table->admit(plugin_.self, &view, &seq, retry_after_ns, &err);
  if (status == WEFT_OK) return {};
  if (status == WEFT_AGAIN) {
    const std::string why = plugin::clean_text(err.msg);
    return make_error(ErrorCode::kUnavailable, "the scheduler takes no more requests now{}{}",
                      why.empty() ? "" : ": ", why);
  }
  return plugin::plugin_error(status, err, "the scheduler refused the request");
}

void Planner::finished(uint64_t id, weft_status why, uint64_t step) {
  if (plugin_.table == nullptr || plugin_.table->finished == nullptr) return;
  plugin_.table->finished(plugin_.self, id, why, step);
}

uint64_t Planner::caps() const {
  if (plugin_.table != nullptr) return plugin_.table->head.caps;
  return WEFT_SCHEDULER_CAP_DEADLINES;
}

void Planner::describe(wire::SchedulerStats* stats) const {
  stats->set_name(name_);
  stats->set_plans_total(plans_);
  stats->set_refused_plans_total(refused_);
  stats->set_last_plan_us(last_plan_ns_ / 1000);
  stats->set_dropped_total(dropped_);
}

}  // namespace weft::engine
