#include <doctest/doctest.h>

#include <string>

#include "engine/plan/fcfs_plan.h"
#include "engine/plan/plan_check.h"
#include "unit/engine/plan_view.h"

using namespace weft;
using namespace weft::engine;

namespace {

std::string planned(TestView& v) {
  const weft_sched_view& view = v.link();
  TestPlan p(view);
  FcfsPlan().plan(view, &p.plan);
  const Status checked = PlanCheck().check(view, p.plan);
  if (!checked.ok()) return "INVALID " + checked.error().message;
  return p.text();
}

}  // namespace

TEST_CASE("fcfs: nothing to do is an empty plan") {
  TestView v;
  CHECK(planned(v) == "");
}

TEST_CASE("fcfs: decodes first, then prefills, then the queue; spare rows go to the oldest") {
  TestView v;
  v.add_run(300, 20);
  v.add_run(31, 30);
  v.add_run(200, 16);
  v.add_wait(5);
  // 64 rows: 1 decode, 48 of 63, 12 of 15, 3 of 3 left; nothing is spare.
  CHECK(planned(v) == "run 1:1 0:48 2:12 admit 0:3");
  v.run[2] = v.make(18, 16);
  v.run[2].held[0] = v.run[2].held[1] = 1;
  // 48, 2, 5 of 13 left: 8 are spare and go to the long one.
  CHECK(planned(v) == "run 1:1 0:56 2:2 admit 0:5");
}

TEST_CASE("fcfs: a piece ends at the boundary, even when rows are left") {
  TestView v;
  v.add_run(300, 20).boundary = 30;
  CHECK(planned(v) == "run 0:10");
  v.run[0].boundary = 20;  // not above context: none
  CHECK(planned(v) == "run 0:64");
  v.run.clear();
  v.add_wait(100, 32).boundary = 40;
  CHECK(planned(v) == "admit 0:8");
}

TEST_CASE("fcfs: admission needs the pages of all known tokens, above the watermark") {
  TestView v(12);
  v.groups[0].watermark = 2;
  v.add_run(17, 16);       // holds 1 page, claims 1 more: 10 are left
  v.add_wait(16 * 8 + 1);  // 9 pages
  v.add_wait(1);
  CHECK(planned(v) == "run 0:1");  // and the short one does not overtake
  v.groups[0].watermark = 1;
  CHECK(planned(v) == "run 0:1 admit 0:63");  // then nothing is left for the second
  v.run.clear();
  v.groups[0].free = 9;
  v.groups[0].watermark = 100;  // an idle worker ignores it
  CHECK(planned(v) == "admit 0:64");
}

TEST_CASE("fcfs: cached units of others are not paid twice") {
  TestView v(12);
  v.add_run(17, 16);
  v.add_wait(16 * 12, 64).held[0] = 4;  // 12 pages, 4 of them are there
  CHECK(planned(v) == "run 0:1 admit 0:63");
  v.wait[0].held[0] = 1;
  CHECK(planned(v) == "run 0:1");
}

TEST_CASE("fcfs: the youngest leaves when a decode finds no page, and nobody enters") {
  TestView v(4);
  v.add_run(33, 32);
  v.add_run(17, 16);
  v.add_run(17, 16);
  v.add_wait(1);
  CHECK(v.groups[0].free == 0);
  // Three claims of a page each: the youngest gives one back, then the next one.
  CHECK(planned(v) == "run 0:1 preempt 2 1");
  v.run[2].flags = WEFT_SEQ_PINNED;
  CHECK(planned(v) == "run 0:1 preempt 1");  // one page: for the oldest
}

TEST_CASE("fcfs: states are units too") {
  TestView v(100, 2);
  v.add_run(17, 16);
  v.add_wait(3);
  v.add_wait(3);
  CHECK(planned(v) == "run 0:1 admit 0:3");
}

TEST_CASE("fcfs: who waits for a promised prefix lets others pass, unless nothing runs") {
  TestView v;
  v.add_run(300, 20);
  v.add_wait(300).promised = 128;
  v.add_wait(2);
  CHECK(planned(v) == "run 0:62 admit 1:2");
  v.wait[0].promised = 127;
  CHECK(planned(v).find("admit 0:") != std::string::npos);
  v.wait[0].promised = 128;
  v.run.clear();
  CHECK(planned(v).rfind("admit 0:", 0) == 0);
}

TEST_CASE("fcfs: a restored one is admitted without rows") {
  TestView v;
  v.add_wait(300, 200).restore_ns = 5;
  v.add_wait(2);
  CHECK(planned(v) == "admit 0:0 1:2");
}

TEST_CASE("fcfs: late ones are dropped before their first token only") {
  TestView v;
  v.add_wait(3).deadline_ns = 999'999;
  v.add_wait(3).deadline_ns = 1'000'000;
  v.add_wait(3).deadline_ns = 1;
  v.wait[2].output = 1;
  CHECK(planned(v) == "admit 1:3 2:3 drop 0");
}

TEST_CASE("fcfs: random views give valid, repeatable plans that never stand still") {
  TestRng rng(7);
  FcfsPlan policy;
  PlanCheck check;
  int with_preempt = 0, with_admit = 0, with_drop = 0;
  for (int round = 0; round < 20'000; ++round) {
    TestView v = random_view(rng);
    TestPlan a(v.view), b(v.view);
    policy.plan(v.view, &a.plan);
    FcfsPlan().plan(v.view, &b.plan);
    REQUIRE(a.text() == b.text());
    const Status status = check.check(v.view, a.plan);
    if (!status.ok()) FAIL(status.error().message);
    with_preempt += a.plan.n_preempt > 0;
    with_admit += a.plan.n_admit > 0;
    with_drop += a.plan.n_drop > 0;
    for (uint32_t i = 0; i < a.plan.n_run; ++i) {
      const weft_seq& s = v.run[a.run[i].index];
      if (s.boundary > s.context) CHECK(s.context + a.run[i].rows <= s.boundary);
    }
    // The oldest is never preempted, and runs when it can and the units suffice.
    for (uint32_t i = 0; i < a.plan.n_preempt; ++i) CHECK(a.preempt[i].index > 0);
    if (a.plan.n_run + a.plan.n_admit > 0) continue;
    const auto left = [&](uint32_t i) {
      return std::any_of(a.preempt.begin(), a.preempt.begin() + a.plan.n_preempt,
                         [&](const weft_preempt& p) { return p.index == i; });
    };
    for (uint32_t i = 0; i < v.view.n_run; ++i) {
      const weft_seq& s = v.run[i];
      const bool stuck = left(i) || s.rows_max == 0 || v.groups[0].free == 0;
      CHECK(stuck);
    }
    if (v.view.n_run > 0) continue;
    for (const weft_seq& s : v.wait) {
      const bool late = s.deadline_ns != 0 && s.deadline_ns < v.view.now_ns && s.output == 0;
      const bool stuck = late || (s.rows_max == 0 && s.restore_ns == 0) ||
                         (s.known + 15) / 16 > v.groups[0].free + s.held[0];
      CHECK(stuck);
    }
  }
  CHECK(with_preempt > 500);
  CHECK(with_admit > 5000);
  CHECK(with_drop > 5000);
}
