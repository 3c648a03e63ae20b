#include "sim/plan_bench.h"

#include <algorithm>
#include <random>

namespace weft::sim {
namespace {

constexpr uint32_t kPageTokens = 32;

// Not a simulation: nothing that is planned happens. Every view has the same number of sequences
// in a mixture of states, and both full and roomy pools occur.
class Views {
 public:
  explicit Views(const PlanBenchOptions& o) : o_(o), rng_(o.seed) {
    for (uint32_t i = 0; i < o.running; ++i) run_.push_back(make_running(i));
    for (uint32_t i = 0; i < o.waiting; ++i) wait_.push_back(make_waiting(o.running + i));
    for (uint32_t i = 0; i < o.tenants; ++i) tenants_.push_back({i, 1 + i % 3, 0});
    costs_ = {
        {1, 50, 20'000'000}, {64, 50, 30'000'000}, {256, 50, 60'000'000}, {512, 50, 100'000'000}};
  }

  const weft_sched_view& next(uint64_t step) {
    for (weft_seq& s : run_) advance(s);
    for (weft_seq& s : wait_) {
      if (below(64) == 0) s = make_waiting(static_cast<uint32_t>(s.id));
    }
    const uint32_t total = 1u << 18;
    // Every eighth view has a pool in which the running ones cannot all go on.
    const uint32_t free = step % 8 == 0 ? below(o_.running / 16 + 1) : below(1u << 16);
    groups_[0] = {WEFT_CACHE_ROWS, kPageTokens, free, total, 0, o_.running};
    const uint32_t states = o_.running + 64;
    groups_[1] = {WEFT_CACHE_STATE, 0, states - o_.running, states, 0, 0};
    view_ = {};
    view_.struct_size = sizeof(view_);
    view_.n_wait = o_.waiting;
    view_.n_run = o_.running;
    view_.n_groups = 2;
    view_.n_costs = static_cast<uint32_t>(costs_.size());
    view_.token_budget = o_.running + 512;
    view_.seq_budget = view_.run_budget = o_.running + 32;
    view_.chunk_grain = 1;
    view_.seed = o_.seed;
    view_.step = step;
    view_.now_ns = 1'000'000'000'000 + step * 50'000'000;
    view_.step_target_ns = 100'000'000;
    view_.swap_free = 1ull << 33;
    view_.wait = wait_.data();
    view_.run = run_.data();
    view_.groups = groups_;
    view_.costs = costs_.data();
    for (weft_sched_tenant& t : tenants_) t.served += below(1000);
    view_.n_tenants = static_cast<uint32_t>(tenants_.size());
    view_.tenants = tenants_.data();
    return view_;
  }

 private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(rng_() % n); }

  weft_seq make(uint32_t id) {
    weft_seq s = {};
    s.id = id + 1;
    s.tenant = below(std::max(1u, o_.tenants));
    s.weight = 1 + s.tenant % 3;
    s.priority = static_cast<int32_t>(below(8)) / 7;
    s.prompt = 500 + below(30'000);
    s.output_max = 1 + below(4000);
    s.arrive_ns = s.queued_ns = 900'000'000'000 + uint64_t{below(100'000)} * 1'000'000;
    if (below(10) == 0) s.deadline_ns = s.arrive_ns + uint64_t{1 + below(200)} * 1'000'000'000;
    return s;
  }
  weft_seq make_running(uint32_t id) {
    weft_seq s = make(id);
    const bool prefill = below(16) == 0;
    s.output = prefill ? 0 : 1 + below(s.output_max);
    s.known = s.prompt + s.output;
    s.context = prefill ? below(s.prompt) : s.known - 1;
    s.fresh = s.output;
    settle(s);
    return s;
  }
  weft_seq make_waiting(uint32_t id) {
    weft_seq s = make(id);
    s.id = id;
    s.known = s.prompt;
    s.context = s.prompt * below(100) / 100;
    s.rows_max = s.known - s.context;
    s.boundary = s.prompt;
    if (below(16) == 0) s.promised = s.context + below(s.prompt - s.context + 1);
    if (below(16) == 0) s.restore_ns = 1 + below(50'000'000);
    s.held[0] = s.context / kPageTokens / 2;
    return s;
  }
  void settle(weft_seq& s) {
    s.rows_max = s.known - s.context;
    s.boundary = s.context < s.prompt ? s.prompt : 0;
    s.held[0] = (s.context + kPageTokens - 1) / kPageTokens;
    s.held[1] = 1;
    s.shared[0] = std::min(s.held[0], s.prompt / kPageTokens / 2);
    s.swap_bytes = (1u << 20) + uint64_t{s.context} * 1024;
  }
  void advance(weft_seq& s) {
    if (s.context + 1 == s.known) {
      ++s.known, ++s.context, ++s.output, ++s.fresh;
    } else {
      s.context = std::min(s.known - 1, s.context + 64);
    }
    settle(s);
  }

  const PlanBenchOptions o_;
  std::mt19937_64 rng_;
  std::vector<weft_seq> run_, wait_;
  std::vector<weft_sched_cost> costs_;
  std::vector<weft_sched_tenant> tenants_;
  weft_sched_group groups_[2] = {};
  weft_sched_view view_ = {};
};

}  // namespace

PlanBenchReport bench_plans(const PlanBenchOptions& options, engine::Planner& planner) {
  Views views(options);
  PlanBenchReport out;
  for (uint32_t i = 0; i < options.plans; ++i) {
    const weft_sched_plan& plan = planner.plan(views.next(i));
    out.plan_us.push_back(static_cast<double>(planner.last_plan_ns()) / 1000);
    out.shares += plan.n_run;
    out.admitted += plan.n_admit;
    out.preempted += plan.n_preempt;
  }
  out.refused = planner.refused_plans();
  return out;
}

}  // namespace weft::sim
