#include "engine/plan/plan_check.h"

#include <doctest/doctest.h>

#include <functional>

#include "engine/plan/fcfs_plan.h"
#include "unit/engine/plan_view.h"

using namespace weft;
using namespace weft::engine;

namespace {

// Two running sequences (a decode, a prefill), four waiting ones (plain, cached, to be restored,
// late). The plan that break() gets runs both and admits 0 and 2.
struct Case {
  const char* name;
  std::function<void(TestView&, TestPlan&)> change;
  const char* message;  // part of it
};

TestView base_view() {
  TestView v(40, 8);
  v.add_run(33, 32);
  v.add_run(100, 20);
  v.add_wait(30);
  v.add_wait(80, 32).held[0] = 2;
  v.add_wait(80, 32).restore_ns = 1000;
  v.add_wait(10).deadline_ns = 999'999;
  v.link();
  return v;
}

TestPlan base_plan(const weft_sched_view& view) {
  TestPlan p(view);
  p.plan.n_run = p.plan.n_admit = 2;
  p.run[0] = {0, 1, 0, 0};
  p.run[1] = {1, 20, 0, 0};
  p.admit[0] = {0, 30, 0, 0};
  p.admit[1] = {2, 0, 0, 0};
  return p;
}

void preempt(TestPlan& p, uint32_t index, uint32_t mode = WEFT_PREEMPT_RECOMPUTE) {
  p.preempt[p.plan.n_preempt++] = {index, mode};
}

const Case kBroken[] = {
    {"run: out of range", [](TestView&, TestPlan& p) { p.run[1].index = 2; },
     "run[1]: index 2 is out of range, there are 2"},
    {"admit: out of range", [](TestView&, TestPlan& p) { p.admit[0].index = 4; },
     "admit[0]: index 4 is out of range"},
    {"preempt: out of range", [](TestView&, TestPlan& p) { preempt(p, 9); },
     "preempt[0]: index 9 is out of range"},
    {"drop: out of range", [](TestView&, TestPlan& p) { p.drop[p.plan.n_drop++] = 4; },
     "drop[0]: index 4 is out of range"},
    {"run: twice", [](TestView&, TestPlan& p) { p.run[1].index = 0; },
     "run[1]: index 0 is named already, in run"},
    {"admit: twice", [](TestView&, TestPlan& p) { p.admit[1].index = 0; },
     "admit[1]: index 0 is named already, in admit"},
    {"run and preempt", [](TestView&, TestPlan& p) { preempt(p, 1); },
     "run[1]: index 1 is named already, in preempt"},
    {"admit and drop",
     [](TestView& v, TestPlan& p) {
       v.wait[0].flags = WEFT_SEQ_SHEDDABLE;
       p.drop[p.plan.n_drop++] = 0;
     },
     "admit[0]: index 0 is named already, in drop"},
    {"more entries than sequences", [](TestView&, TestPlan& p) { p.plan.n_run = 3; },
     "run has 3 entries, at most 2"},
    {"more entries than room", [](TestView&, TestPlan& p) { p.plan.cap = 1; },
     "run has 2 entries, at most 1"},
    {"huge count", [](TestView&, TestPlan& p) { p.plan.n_drop = 0xffffffff; },
     "drop has 4294967295 entries"},
    {"no rows", [](TestView&, TestPlan& p) { p.run[0].rows = 0; },
     "run[0]: sequence 1 can run 1 to 1 rows and its 0 drafts, got 0"},
    {"more rows than it has", [](TestView&, TestPlan& p) { p.run[0].rows = 2; },
     "run[0]: sequence 1 can run 1 to 1 rows and its 0 drafts, got 2"},
    {"rows_max is lower than what is known", [](TestView& v, TestPlan&) { v.run[1].rows_max = 19; },
     "can run 1 to 19 rows"},
    {"a loading one runs", [](TestView& v, TestPlan&) { v.run[1].flags = WEFT_SEQ_LOADING; },
     "still being loaded"},
    {"a restored one with rows", [](TestView&, TestPlan& p) { p.admit[1].rows = 1; },
     "admit[1]: sequence 5 must be restored first: expected 0 rows, got 1"},
    {"drafts that were not offered",
     [](TestView& v, TestPlan& p) {
       v.view.drafts_max = 4;
       p.run[0] = {0, 2, 1, 0};
     },
     "run[0]: sequence 1 has at most 0 drafts, got 1"},
    {"drafts beyond drafts_max",
     [](TestView& v, TestPlan& p) {
       v.view.drafts_max = 1;
       v.run[0].drafts = 4;
       p.run[0] = {0, 3, 2, 0};
     },
     "at most 1 drafts, got 2"},
    {"drafts alone",
     [](TestView& v, TestPlan& p) {
       v.view.drafts_max = v.run[0].drafts = 4;
       p.run[0] = {0, 2, 2, 0};
     },
     "its 2 drafts, got 2 rows"},
    {"drafts in the middle of a prompt",
     [](TestView& v, TestPlan& p) {
       v.view.drafts_max = v.run[1].drafts = 4;
       p.run[1] = {1, 12, 2, 0};
     },
     "drafts of sequence 2 must follow its 100 known tokens, got 20 cached and 10 rows"},
    {"more proposals than allowed", [](TestView&, TestPlan& p) { p.run[0].propose = 1; },
     "propose is at most 0, got 1"},
    {"token budget", [](TestView& v, TestPlan&) { v.view.token_budget = 50; },
     "the shares have 51 rows, the step takes 50"},
    {"sequence budget", [](TestView& v, TestPlan&) { v.view.seq_budget = 2; },
     "3 sequences have rows, the step takes 2"},
    {"run budget", [](TestView& v, TestPlan&) { v.view.run_budget = 3; },
     "4 sequences would be running (2 - 0 preempted + 2 admitted), at most 3"},
    {"dropped for nothing", [](TestView&, TestPlan& p) { p.drop[p.plan.n_drop++] = 1; },
     "drop[0]: sequence 4 is neither sheddable nor late"},
    {"dropped on the deadline, not after",
     [](TestView& v, TestPlan& p) {
       v.wait[3].deadline_ns = v.view.now_ns;
       p.drop[p.plan.n_drop++] = 3;
     },
     "neither sheddable nor late (deadline 1000000 ns, now 1000000 ns)"},
    {"a pinned one leaves",
     [](TestView& v, TestPlan& p) {
       v.run[1].flags = WEFT_SEQ_PINNED;
       p.plan.n_run = 1;
       preempt(p, 1);
     },
     "preempt[0]: sequence 2 is pinned"},
    {"unknown mode",
     [](TestView&, TestPlan& p) {
       p.plan.n_run = 1;
       preempt(p, 1, 2);
     },
     "mode is 0 (recompute) or 1 (swap), got 2"},
    // 1 page for the decode, 1 for the prefill (2 held, 40 tokens), 2 and 2 for the newcomers.
    {"one page too few", [](TestView& v, TestPlan&) { v.groups[0].free = 5; },
     "cache group 0: the shares need 6 more units, 5 are free and 0 come back"},
    {"one state too few", [](TestView& v, TestPlan&) { v.groups[1].free = 1; },
     "cache group 1: the shares need 2 more units, 1 are free"},
    {"states for roll-back",
     [](TestView& v, TestPlan& p) {
       v.view.drafts_max = v.run[0].drafts = 1;
       v.groups[1].free = 3;
       p.run[0] = {0, 2, 1, 0};
     },
     "cache group 1: the shares need 4 more units, 3 are free"},
    {"a preempted one's units that others share do not come back",
     [](TestView& v, TestPlan& p) {
       v.groups[0].free = 3;
       v.run[1].shared[0] = 1;
       p.plan.n_run = 1;
       preempt(p, 1);
     },
     "cache group 0: the shares need 5 more units, 3 are free and 1 come back"},
    {"held units of admissions do not count when somebody is preempted",
     [](TestView& v, TestPlan& p) {
       v.groups[0].free = 4;
       p.plan.n_run = 1;
       preempt(p, 1);
       p.plan.n_admit = 1;
       p.admit[0] = {1, 48, 0, 0};  // 5 pages, 2 of them held
       v.run[1].shared[0] = 2;
     },
     "cache group 0: the shares need 6 more units, 4 are free and 0 come back"},
};

}  // namespace

TEST_CASE("plan check: the base plan and harmless variants are valid") {
  TestView v = base_view();
  TestPlan p = base_plan(v.view);
  const auto fine = [&] {
    const Status s = PlanCheck().check(v.view, p.plan);
    INFO((s.ok() ? "" : s.error().message));
    return s.ok();
  };
  CHECK(fine());
  v.groups[0].free = 6;  // exactly
  v.groups[1].free = 2;
  CHECK(fine());
  v.view.token_budget = 51;
  v.view.seq_budget = 3;  // the restored one has no rows
  v.view.run_budget = 4;
  CHECK(fine());
  p.drop[p.plan.n_drop++] = 3;  // late
  CHECK(fine());
  v.wait[1].flags = WEFT_SEQ_SHEDDABLE;
  p.drop[p.plan.n_drop++] = 1;
  CHECK(fine());
  p.plan.n_run = 1;
  preempt(p, 1, WEFT_PREEMPT_SWAP);
  CHECK(fine());
  v.view.run_budget = 0;  // too many run already: that alone is not the plan's fault
  p.plan.n_admit = 0;
  CHECK(fine());
  v.view.drafts_max = v.run[0].drafts = 2;
  v.groups[1].free = 3;
  p.run[0] = {0, 3, 2, 2};
  CHECK(fine());
}

TEST_CASE("plan check: every broken rule is found and named") {
  PlanCheck check;  // kept: marks of one plan must not leak into the next
  for (const Case& c : kBroken) {
    CAPTURE(c.name);
    TestView v = base_view();
    TestPlan p = base_plan(v.view);
    REQUIRE(check.check(v.view, p.plan).ok());
    c.change(v, p);
    const Status s = check.check(v.view, p.plan);
    REQUIRE_FALSE(s.ok());
    CAPTURE(s.error().message);
    CHECK(s.error().code == ErrorCode::kInvalid);
    CHECK(s.error().message.find(c.message) != std::string::npos);
  }
}

TEST_CASE("plan check: sums do not wrap") {
  TestView v(40, 8);
  v.groups[0].unit_tokens = 1;
  v.groups[0].free = 10;
  v.view.token_budget = 0xffffffff;
  for (int i = 0; i < 4; ++i) {
    v.add_wait(0xffffffff);
  }
  v.link();
  TestPlan p(v.view);
  p.plan.n_admit = 4;
  for (uint32_t i = 0; i < 4; ++i) p.admit[i] = {i, 0x40000000, 0, 0};
  const Status s = PlanCheck().check(v.view, p.plan);
  REQUIRE_FALSE(s.ok());
  CHECK(s.error().message.find("4294967296 rows") != std::string::npos);
}
