#include <doctest/doctest.h>

#include <functional>

#include "engine/plan/planner.h"
#include "unit/engine/plan_view.h"

using namespace weft;
using namespace weft::engine;

namespace {

using PlanCall = std::function<weft_status(const weft_sched_view&, weft_sched_plan*)>;

// A scheduler table over a C++ function.
struct Fake {
  explicit Fake(PlanCall c) : call(std::move(c)) {
    table.head = {sizeof(table), 1, WEFT_SCHEDULER_CAP_TENANTS};
    table.admit = [](weft_instance* self, const weft_sched_view*, const weft_seq*, uint64_t* retry,
                     weft_err*) {
      *retry = me(self).retry_ns;
      return me(self).admit_status;
    };
    table.plan = [](weft_instance* self, const weft_sched_view* view, weft_sched_plan* out) {
      ++me(self).calls;
      return me(self).call(*view, out);
    };
    table.finished = [](weft_instance* self, uint64_t id, weft_status, uint64_t) {
      me(self).finished.push_back(id);
    };
  }
  static Fake& me(weft_instance* self) { return *reinterpret_cast<Fake*>(self); }
  SchedulerRef ref() { return {&table, reinterpret_cast<weft_instance*>(this), "fake"}; }

  PlanCall call;
  weft_scheduler_v1 table = {};
  int calls = 0;
  uint64_t retry_ns = 0;
  weft_status admit_status = WEFT_OK;
  std::vector<uint64_t> finished;
};

TestView two_decodes() {
  TestView v;
  v.add_run(17, 16);
  v.add_run(17, 16);
  v.link();
  return v;
}

// Three of these must switch the plugin off, and each step is planned all the same.
void check_strikes(const PlanCall& call) {
  TestView v = two_decodes();
  Fake fake(call);
  Planner planner(fake.ref());
  for (uint64_t i = 1; i <= 5; ++i) {
    const weft_sched_plan& plan = planner.plan(v.link());
    CHECK(plan.n_run == 2);
    CHECK(planner.refused_plans() == std::min<uint64_t>(i, 3));
    CHECK(planner.name() == (i < 3 ? "fake" : "built-in"));
  }
  CHECK(fake.calls == 3);
  CHECK_FALSE(planner.last_problem().empty());
  wire::SchedulerStats stats;
  planner.describe(&stats);
  CHECK(stats.name() == "built-in");
  CHECK(stats.plans_total() == 5);
  CHECK(stats.refused_plans_total() == 3);
}

}  // namespace

TEST_CASE("planner: without a plugin the built-in policy plans") {
  TestView v = two_decodes();
  Planner planner;
  CHECK(planner.name() == "built-in");
  CHECK(planner.plan(v.link()).n_run == 2);
  uint64_t retry = 1;
  CHECK(planner.admit(v.view, v.run[0], &retry).ok());
  planner.finished(1, WEFT_OK, 1);
}

TEST_CASE("planner: a valid plan of the plugin is taken as it is") {
  TestView v = two_decodes();
  Fake fake([](const weft_sched_view&, weft_sched_plan* out) {
    out->run[out->n_run++] = {1, 1, 0, 0};
    return WEFT_OK;
  });
  Planner planner(fake.ref());
  const weft_sched_plan& plan = planner.plan(v.link());
  REQUIRE(plan.n_run == 1);
  CHECK(plan.run[0].index == 1);
  CHECK(planner.caps() == WEFT_SCHEDULER_CAP_TENANTS);
  planner.finished(42, WEFT_E_CANCELLED, 3);
  CHECK(fake.finished == std::vector<uint64_t>{42});
}

TEST_CASE("planner: three bad plans switch the plugin off") {
  SUBCASE("index out of range") {
    check_strikes([](const weft_sched_view&, weft_sched_plan* out) {
      out->run[out->n_run++] = {7, 1, 0, 0};
      return WEFT_OK;
    });
  }
  SUBCASE("more rows than there are") {
    check_strikes([](const weft_sched_view&, weft_sched_plan* out) {
      out->run[out->n_run++] = {0, 1000, 0, 0};
      return WEFT_OK;
    });
  }
  SUBCASE("one index twice") {
    check_strikes([](const weft_sched_view&, weft_sched_plan* out) {
      out->run[out->n_run++] = {0, 1, 0, 0};
      out->run[out->n_run++] = {0, 1, 0, 0};
      return WEFT_OK;
    });
  }
  SUBCASE("a count beyond the arrays, and pointers bent") {
    check_strikes([](const weft_sched_view&, weft_sched_plan* out) {
      out->n_drop = 0xffffffff;
      out->run = nullptr;
      return WEFT_OK;
    });
  }
  SUBCASE("a failure") {
    check_strikes([](const weft_sched_view&, weft_sched_plan*) { return WEFT_E_INTERNAL; });
  }
}

TEST_CASE("planner: empty plans may be, but not for ever") {
  TestView v = two_decodes();
  Fake fake([](const weft_sched_view&, weft_sched_plan*) { return WEFT_OK; });
  Planner planner(fake.ref());
  for (uint32_t round = 0; round < kPlanStrikesMax; ++round) {
    for (uint32_t i = 1; i < kEmptyPlansMax; ++i) REQUIRE(planner.plan(v.link()).n_run == 0);
    CHECK(planner.refused_plans() == round);
    CHECK(planner.plan(v.link()).n_run == 2);
    CHECK(planner.refused_plans() == round + 1);
  }
  CHECK(planner.name() == "built-in");
}

TEST_CASE("planner: empty plans are right when nothing can run") {
  TestView v;
  v.add_run(17, 16).rows_max = 0;
  v.run[0].flags = WEFT_SEQ_LOADING;
  Fake fake([](const weft_sched_view&, weft_sched_plan*) { return WEFT_OK; });
  Planner planner(fake.ref());
  for (uint32_t i = 0; i < 5 * kEmptyPlansMax; ++i) CHECK(planner.plan(v.link()).n_run == 0);
  CHECK(planner.refused_plans() == 0);
}

TEST_CASE("planner: admission passes through") {
  TestView v = two_decodes();
  Fake fake([](const weft_sched_view&, weft_sched_plan*) { return WEFT_OK; });
  Planner planner(fake.ref());
  uint64_t retry = 0;
  CHECK(planner.admit(v.view, v.run[0], &retry).ok());
  fake.admit_status = WEFT_AGAIN;
  fake.retry_ns = 99;
  const Status later = planner.admit(v.view, v.run[0], &retry);
  REQUIRE_FALSE(later.ok());
  CHECK(later.error().code == ErrorCode::kUnavailable);
  CHECK(retry == 99);
  fake.admit_status = WEFT_E_UNSUPPORTED;
  const Status never = planner.admit(v.view, v.run[0], &retry);
  REQUIRE_FALSE(never.ok());
  CHECK(never.error().code == ErrorCode::kUnsupported);
}
