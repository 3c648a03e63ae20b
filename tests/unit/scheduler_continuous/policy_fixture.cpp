#include "policy_fixture.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

extern "C" const weft_desc* weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor);

namespace scheduler_continuous_test {

const weft_desc& Policy::desc() { return *weft_plugin_query_v1(WEFT_ABI_MAJOR, WEFT_ABI_MINOR); }

Policy::Policy(const std::map<std::string, int64_t>& settings) {
  host_.struct_size = sizeof host_;
  REQUIRE(desc().open(&host_, &plugin_, &err_) == WEFT_OK);
  table_ = reinterpret_cast<const weft_scheduler_v1*>(desc().interfaces[0].table);
  life_ = desc().interfaces[0].life;
  std::vector<weft_param> params;
  for (const auto& [name, value] : settings) {
    weft_param param{};
    param.name = name.c_str();
    param.type = WEFT_KEY_INT;
    param.i = value;
    params.push_back(param);
  }
  const uint32_t n = static_cast<uint32_t>(params.size());
  const weft_status status = life_->create(plugin_, params.data(), n, &self_, &err_);
  REQUIRE_MESSAGE(status == WEFT_OK, std::string(err_.msg));
  REQUIRE(life_->start(self_, &err_) == WEFT_OK);
}

Policy::~Policy() {
  life_->stop(self_);
  life_->destroy(self_);
  desc().close(plugin_);
}

const weft_sched_plan& Policy::plan(const weft_sched_view& view) {
  const size_t cap = std::max<size_t>(view.n_run + view.n_wait, 1);
  run_.assign(cap, {});
  admit_.assign(cap, {});
  preempt_.assign(cap, {});
  drop_.assign(cap, 0);
  plan_ = {sizeof(weft_sched_plan),
           static_cast<uint32_t>(cap),
           0,
           0,
           0,
           0,
           run_.data(),
           admit_.data(),
           preempt_.data(),
           drop_.data()};
  REQUIRE(table_->plan(self_, &view, &plan_) == WEFT_OK);
  return plan_;
}

weft_status Policy::admit(const weft_sched_view& view, const weft_seq& seq, uint64_t* retry_ns) {
  return table_->admit(self_, &view, &seq, retry_ns, &err_);
}

ViewData::ViewData() {
  view.struct_size = sizeof view;
  view.token_budget = 512;
  view.seq_budget = 64;
  view.run_budget = 64;
  view.chunk_grain = 128;
  view.now_ns = 1'000'000'000;
  view.step = 1;
  groups.push_back({WEFT_CACHE_ROWS, 16, 10000, 10000, 0, 0});
  groups.push_back({WEFT_CACHE_STATE, 0, 100, 100, 2, 0});
}

const weft_sched_view& ViewData::get() {
  view.n_wait = static_cast<uint32_t>(wait.size());
  view.n_run = static_cast<uint32_t>(run.size());
  view.n_groups = static_cast<uint32_t>(groups.size());
  view.n_costs = static_cast<uint32_t>(costs.size());
  view.n_tenants = static_cast<uint32_t>(tenants.size());
  view.wait = wait.data();
  view.run = run.data();
  view.groups = groups.data();
  view.costs = costs.data();
  view.tenants = tenants.data();
  return view;
}

weft_seq waiting(uint64_t id, uint32_t prompt, uint32_t context) {
  weft_seq seq{};
  seq.id = id;
  seq.weight = 1;
  seq.arrive_ns = seq.queued_ns = 900'000'000 + id;
  seq.prompt = seq.known = prompt;
  seq.context = context;
  seq.rows_max = prompt - context;
  seq.output_max = 100;
  return seq;
}

void hold(const std::vector<weft_sched_group>& groups, weft_seq* seq) {
  for (size_t g = 0; g < groups.size(); ++g)
    seq->held[g] = groups[g].kind == WEFT_CACHE_ROWS
                       ? (seq->context + groups[g].unit_tokens - 1) / groups[g].unit_tokens
                       : 1;
}

weft_seq running(const ViewData& data, uint64_t id, uint32_t prompt, uint32_t context) {
  weft_seq seq = waiting(id, prompt, context);
  hold(data.groups, &seq);
  return seq;
}

weft_seq decoding(const ViewData& data, uint64_t id, uint32_t prompt, uint32_t output) {
  weft_seq seq = waiting(id, prompt, 0);
  seq.output = seq.fresh = output;
  seq.known = prompt + output;
  seq.context = seq.known - 1;
  seq.rows_max = 1;
  hold(data.groups, &seq);
  return seq;
}

namespace {

uint64_t needs(const weft_sched_group& group, uint64_t context) {
  if (group.kind == WEFT_CACHE_STATE) return 1;
  return (context + group.unit_tokens - 1) / group.unit_tokens;
}

// Rules for one share; *units grows by what it takes.
std::string share_fault(const weft_sched_view& view, const weft_seq& seq, const weft_share& share,
                        bool admit, std::vector<int64_t>* units) {
  if (share.drafts != 0 || share.propose != 0) return fmt::format("{}: drafts", seq.id);
  if (seq.flags & WEFT_SEQ_LOADING) return fmt::format("{}: still loading", seq.id);
  if (admit && seq.restore_ns > 0) {
    if (share.rows != 0) return fmt::format("{}: rows before its prefix", seq.id);
  } else if (share.rows == 0 || share.rows > seq.rows_max) {
    return fmt::format("{}: {} rows of {}", seq.id, share.rows, seq.rows_max);
  }
  const uint64_t end = static_cast<uint64_t>(seq.context) + share.rows;
  if (seq.boundary > seq.context && end > seq.boundary)
    return fmt::format("{}: from {} to {} past the boundary {}", seq.id, seq.context, end,
                       seq.boundary);
  for (uint32_t g = 0; g < view.n_groups; ++g) {
    const uint64_t need = needs(view.groups[g], end);
    if (need > seq.held[g]) (*units)[g] += static_cast<int64_t>(need - seq.held[g]);
  }
  return {};
}

// Could this running sequence do a row with the units at hand?
bool could_run(const weft_sched_view& view, const weft_seq& seq) {
  if (seq.rows_max == 0 || (seq.flags & WEFT_SEQ_LOADING)) return false;
  for (uint32_t g = 0; g < view.n_groups; ++g) {
    const uint64_t need = needs(view.groups[g], seq.context + 1ull);
    if (need > seq.held[g] && need - seq.held[g] > view.groups[g].free) return false;
  }
  return true;
}

}  // namespace

std::string fault_of(const weft_sched_view& view, const weft_sched_plan& plan) {
  std::set<uint32_t> run_seen, wait_seen;
  std::vector<int64_t> units(view.n_groups, 0);
  uint64_t rows = 0;
  for (uint32_t i = 0; i < plan.n_preempt; ++i) {
    const uint32_t index = plan.preempt[i].index;
    if (index >= view.n_run || !run_seen.insert(index).second) return "preempt: index";
    const weft_seq& seq = view.run[index];
    if (seq.flags & (WEFT_SEQ_PINNED | WEFT_SEQ_LOADING)) return "preempt: pinned or loading";
    for (uint32_t g = 0; g < view.n_groups; ++g)
      units[g] -= static_cast<int64_t>(seq.held[g]) - seq.shared[g];
  }
  for (uint32_t i = 0; i < plan.n_run; ++i) {
    const uint32_t index = plan.run[i].index;
    if (index >= view.n_run || !run_seen.insert(index).second) return "run: index";
    std::string fault = share_fault(view, view.run[index], plan.run[i], false, &units);
    if (!fault.empty()) return "run " + fault;
    rows += plan.run[i].rows;
  }
  for (uint32_t i = 0; i < plan.n_admit; ++i) {
    const uint32_t index = plan.admit[i].index;
    if (index >= view.n_wait || !wait_seen.insert(index).second) return "admit: index";
    std::string fault = share_fault(view, view.wait[index], plan.admit[i], true, &units);
    if (!fault.empty()) return "admit " + fault;
    rows += plan.admit[i].rows;
  }
  for (uint32_t i = 0; i < plan.n_drop; ++i) {
    const uint32_t index = plan.drop[i];
    if (index >= view.n_wait || !wait_seen.insert(index).second) return "drop: index";
    const weft_seq& seq = view.wait[index];
    const bool late = seq.deadline_ns != 0 && seq.deadline_ns < view.now_ns;
    if (!late && !(seq.flags & WEFT_SEQ_SHEDDABLE)) return "drop: neither late nor sheddable";
  }
  if (rows > view.token_budget) return fmt::format("{} rows of {}", rows, view.token_budget);
  if (plan.n_run + plan.n_admit > view.seq_budget) return "more sequences than the step takes";
  if (view.n_run + plan.n_admit - plan.n_preempt > view.run_budget) return "too many running";
  if (plan.n_preempt > 0 && plan.n_admit > 0) return "admissions together with preemptions";
  for (uint32_t g = 0; g < view.n_groups; ++g)
    if (units[g] > view.groups[g].free) return fmt::format("group {}: {} units", g, units[g]);
  const bool empty = plan.n_run + plan.n_admit == 0;
  for (uint32_t i = 0; i < view.n_run && empty && view.token_budget > 0; ++i)
    if (!run_seen.contains(i) && could_run(view, view.run[i])) return "empty though some could run";
  return {};
}

std::string text_of(const weft_sched_plan& plan) {
  std::string text;
  for (uint32_t i = 0; i < plan.n_run; ++i)
    text += fmt::format("run {} {};", plan.run[i].index, plan.run[i].rows);
  for (uint32_t i = 0; i < plan.n_admit; ++i)
    text += fmt::format("admit {} {};", plan.admit[i].index, plan.admit[i].rows);
  for (uint32_t i = 0; i < plan.n_preempt; ++i)
    text += fmt::format("preempt {} {};", plan.preempt[i].index, plan.preempt[i].mode);
  for (uint32_t i = 0; i < plan.n_drop; ++i) text += fmt::format("drop {};", plan.drop[i]);
  return text;
}

uint32_t rows_of_run(const weft_sched_plan& plan, uint32_t index) {
  for (uint32_t i = 0; i < plan.n_run; ++i)
    if (plan.run[i].index == index) return plan.run[i].rows;
  return 0;
}

uint32_t rows_of_admit(const weft_sched_plan& plan, uint32_t index) {
  for (uint32_t i = 0; i < plan.n_admit; ++i)
    if (plan.admit[i].index == index) return plan.admit[i].rows;
  return 0;
}

}  // namespace scheduler_continuous_test
