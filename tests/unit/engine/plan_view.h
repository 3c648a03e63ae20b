// Random and hand-made views for tests of schedulers: owns the arrays that a weft_sched_view
// borrows. One thread.
#pragma once

#include <fmt/format.h>
#include <weft/scheduler.h>

#include <algorithm>
#include <string>
#include <vector>

#include "unit/engine/test_rng.h"

namespace weft::engine {

struct TestView {
  std::vector<weft_seq> wait, run;
  std::vector<weft_sched_group> groups;
  weft_sched_view view = {};

  // Rows of 16 tokens per page, and states.
  explicit TestView(uint32_t pages = 100, uint32_t slots = 16) {
    groups = {{WEFT_CACHE_ROWS, 16, pages, pages, 0, 0}, {WEFT_CACHE_STATE, 0, slots, slots, 2, 0}};
    view.token_budget = 64;
    view.seq_budget = view.run_budget = 16;
    view.chunk_grain = 1;
    view.now_ns = 1'000'000;
  }
  const weft_sched_view& link() {
    view.struct_size = sizeof(view);
    view.n_wait = static_cast<uint32_t>(wait.size());
    view.n_run = static_cast<uint32_t>(run.size());
    view.n_groups = static_cast<uint32_t>(groups.size());
    view.wait = wait.data();
    view.run = run.data();
    view.groups = groups.data();
    return view;
  }
  uint64_t next_id = 1;

  weft_seq make(uint32_t known, uint32_t context) {
    weft_seq s = {};
    s.id = next_id++;
    s.weight = 1;
    s.prompt = s.known = known;
    s.context = context;
    s.rows_max = known - context;
    s.output_max = 100;
    return s;
  }
  // A running one takes its units from what is free.
  weft_seq& add_run(uint32_t known, uint32_t context) {
    weft_seq s = make(known, context);
    for (size_t g = 0; g < groups.size(); ++g) {
      const bool rows = groups[g].kind == WEFT_CACHE_ROWS;
      s.held[g] = rows ? (context + groups[g].unit_tokens - 1) / groups[g].unit_tokens : 1;
      groups[g].free -= std::min(groups[g].free, s.held[g]);
    }
    run.push_back(s);
    return run.back();
  }
  weft_seq& add_wait(uint32_t known, uint32_t context = 0) {
    wait.push_back(make(known, context));
    return wait.back();
  }
};

// Arrays for a plan of the view.
struct TestPlan {
  std::vector<weft_share> run, admit;
  std::vector<weft_preempt> preempt;
  std::vector<uint32_t> drop;
  weft_sched_plan plan = {};
  explicit TestPlan(const weft_sched_view& view) {
    const uint32_t cap = std::max(1u, std::max(view.n_run, view.n_wait));
    run.resize(cap);
    admit.resize(cap);
    preempt.resize(cap);
    drop.resize(cap);
    plan.struct_size = sizeof(plan);
    plan.cap = cap;
    plan.run = run.data();
    plan.admit = admit.data();
    plan.preempt = preempt.data();
    plan.drop = drop.data();
  }
  // "run 0:4 1:1 admit 2:3 preempt 5 drop 7"
  std::string text() const {
    std::string out;
    const auto add = [&](const char* name, auto& list, uint32_t n, auto one) {
      if (n > 0) out += (out.empty() ? "" : " ") + std::string(name);
      for (uint32_t i = 0; i < n; ++i) out += " " + one(list[i]);
    };
    const auto share = [](const weft_share& s) { return fmt::format("{}:{}", s.index, s.rows); };
    add("run", run, plan.n_run, share);
    add("admit", admit, plan.n_admit, share);
    add("preempt", preempt, plan.n_preempt,
        [](const weft_preempt& p) { return fmt::format("{}", p.index); });
    add("drop", drop, plan.n_drop, [](uint32_t d) { return fmt::format("{}", d); });
    return out;
  }
};

// A view in which everything occurs: decodes, prefills, boundaries, shared units, loading and
// pinned ones, cached prefixes, promises, restores, deadlines, drafts, full and empty pools.
inline TestView random_view(TestRng& rng) {
  TestView v(20 + rng.below(200), 2 + rng.below(12));
  v.view.token_budget = 1 + rng.below(100);
  v.view.seq_budget = 1 + rng.below(12);
  v.view.run_budget = 1 + rng.below(12);
  v.view.drafts_max = rng.below(4);
  v.view.seed = rng();
  v.view.step = rng.below(1000);
  v.groups[0].watermark = rng.below(10);
  const auto decorate = [&](weft_seq& s) {
    s.tenant = rng.below(3);
    s.weight = 1 + rng.below(3);
    s.priority = static_cast<int32_t>(rng.below(3));
    s.arrive_ns = rng.below(1'000'000);
    if (rng.below(4) == 0) s.deadline_ns = 1 + rng.below(2'000'000);
    if (rng.below(2) == 0) s.boundary = s.context + 1 + rng.below(40);
    if (rng.below(4) == 0) s.drafts = rng.below(4);
    if (rng.below(8) == 0) s.flags |= WEFT_SEQ_SHEDDABLE;
  };
  const uint32_t n_run = rng.below(1 + std::min(v.view.run_budget, v.groups[1].total));
  for (uint32_t i = 0; i < n_run; ++i) {
    const uint32_t context = rng.below(150);
    const bool decode = context > 0 && rng.below(2) == 0;
    const uint32_t known = context + (decode ? 1 : 1 + rng.below(200));
    if ((context + 15) / 16 > v.groups[0].free) break;
    weft_seq& s = v.add_run(known, context);
    decorate(s);
    s.output = decode ? 1 : 0;
    s.shared[0] = rng.below(1 + s.held[0]);
    if (rng.below(10) == 0) s.flags |= WEFT_SEQ_PINNED;
    if (rng.below(10) == 0) {
      s.flags |= WEFT_SEQ_LOADING;
      s.rows_max = 0;
    }
    if (rng.below(10) == 0) s.rows_max = std::min(s.rows_max, rng.below(4));
  }
  const uint32_t n_wait = rng.below(12);
  for (uint32_t i = 0; i < n_wait; ++i) {
    const uint32_t known = 1 + rng.below(300);
    weft_seq& s = v.add_wait(known, rng.below(3) == 0 ? rng.below(known) : 0);
    decorate(s);
    if (rng.below(6) == 0) s.promised = rng.below(400);
    if (s.context > 0 && rng.below(4) == 0) s.restore_ns = 1 + rng.below(1000);
    if (rng.below(6) == 0) s.output = rng.below(3);
    if (rng.below(10) == 0) s.rows_max = rng.below(4);
    s.held[0] = rng.below(1 + s.context / 16);
  }
  v.link();
  return v;
}

}  // namespace weft::engine
