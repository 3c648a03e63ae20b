#include "sim/replay.h"

#include <algorithm>

#include "engine/plan/plan_check.h"

namespace weft::sim {
namespace {

using engine::Planner;

std::string show(const weft_share& s) {
  return fmt::format("index {} rows {} drafts {} propose {}", s.index, s.rows, s.drafts, s.propose);
}
std::string show(const weft_preempt& p) { return fmt::format("index {} mode {}", p.index, p.mode); }
std::string show(uint32_t index) { return fmt::format("index {}", index); }

template <class T>
std::string list_difference(const char* name, const T* a, uint32_t n_a, const T* b, uint32_t n_b) {
  for (uint32_t i = 0; i < std::min(n_a, n_b); ++i) {
    const std::string x = show(a[i]), y = show(b[i]);
    if (x != y) return fmt::format("{}[{}]: recorded {}, planned {}", name, i, x, y);
  }
  if (n_a == n_b) return {};
  return fmt::format("{}: recorded {} entries, planned {}", name, n_a, n_b);
}

}  // namespace

std::string plan_difference(const weft_sched_plan& a, const weft_sched_plan& b) {
  std::string out = list_difference("preempt", a.preempt, a.n_preempt, b.preempt, b.n_preempt);
  if (out.empty()) out = list_difference("drop", a.drop, a.n_drop, b.drop, b.n_drop);
  if (out.empty()) out = list_difference("run", a.run, a.n_run, b.run, b.n_run);
  if (out.empty()) out = list_difference("admit", a.admit, a.n_admit, b.admit, b.n_admit);
  return out;
}

ReplayReport replay(engine::TraceReader& trace, const engine::SchedulerRef& policy) {
  ReplayReport out;
  out.recorded_by = trace.scheduler();
  out.planned_by = policy.table != nullptr ? policy.name : engine::kBuiltInScheduler;
  engine::TraceRecord record;
  engine::PlanCheck check;
  // A planner of its own for every plan that is refused: the replay goes on with the plugin.
  auto planner = std::make_unique<Planner>(policy);
  for (;;) {
    const Result<bool> more = trace.next(&record);
    if (!more.ok()) out.damage = more.error().message;
    if (!more.ok() || !*more) return out;
    ++out.records;
    if (!check.check(record.view, record.plan).ok()) ++out.bad_records;
    const weft_sched_plan& plan = planner->plan(record.view);
    out.plan_us.push_back(static_cast<double>(planner->last_plan_ns()) / 1000);
    out.recorded_us.push_back(static_cast<double>(record.plan_ns) / 1000);
    const std::string difference = plan_difference(record.plan, plan);
    if (!difference.empty() && ++out.different == 1) {
      out.first_step = record.view.step;
      out.first_difference = difference;
    }
    if (planner->refused_plans() > 0) {
      if (++out.refused == 1) out.first_refusal = planner->last_problem();
      planner = std::make_unique<Planner>(policy);
    }
  }
}

}  // namespace weft::sim
