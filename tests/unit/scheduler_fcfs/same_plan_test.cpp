// The plugin and the host's built-in policy were written apart and must plan alike.
#include <doctest/doctest.h>

#include "engine/plan/fcfs_plan.h"
#include "engine/plan/plan_check.h"
#include "sim/sim_worker.h"
#include "unit/engine/plan_view.h"
#include "weft/note.h"

using namespace weft;
using namespace weft::engine;

extern "C" const weft_desc* weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor);

namespace {

// The instance of the plugin that is linked into this program.
struct Plugin {
  Plugin() {
    const weft_desc* desc = weft_plugin_query_v1(WEFT_ABI_MAJOR, WEFT_ABI_MINOR);
    REQUIRE(desc != nullptr);
    REQUIRE(desc->interfaces[0].id == std::string(WEFT_SCHEDULER_ID));
    life = desc->interfaces[0].life;
    table = reinterpret_cast<const weft_scheduler_v1*>(desc->interfaces[0].table);
    REQUIRE(life->create(nullptr, nullptr, 0, &self, nullptr) == WEFT_OK);
  }
  ~Plugin() { life->destroy(self); }
  const weft_life* life = nullptr;
  const weft_scheduler_v1* table = nullptr;
  weft_instance* self = nullptr;
};

}  // namespace

TEST_CASE("scheduler_fcfs: plans as the built-in policy does") {
  Plugin plugin;
  FcfsPlan built_in;
  PlanCheck check;
  TestRng rng(99);
  for (int round = 0; round < 20'000; ++round) {
    TestView v = random_view(rng);
    TestPlan a(v.view), b(v.view);
    built_in.plan(v.view, &a.plan);
    REQUIRE(plugin.table->plan(plugin.self, &v.view, &b.plan) == WEFT_OK);
    REQUIRE(a.text() == b.text());
    const Status status = check.check(v.view, b.plan);
    if (!status.ok()) FAIL(status.error().message);
  }
}

TEST_CASE("scheduler_fcfs: a simulated day is the same with either") {
  const auto simulate = [](SchedulerRef ref) {
    Planner planner(std::move(ref));
    sim::SimOptions options;
    options.pages = 120;
    options.run_budget = options.seq_budget = options.states = 12;
    options.token_budget = 100;
    sim::SimWorker worker(options, &planner);
    TestRng rng(4);
    for (uint32_t i = 0; i < 200; ++i) {
      sim::SimRequest r;
      r.id = i + 1;
      r.arrive_ns = uint64_t{rng.below(4000)} * 1'000'000;
      r.prompt = 1 + rng.below(1500);
      r.cached = rng.below(2) == 0 ? rng.below(r.prompt) : 0;
      r.output = 1 + rng.below(200);
      if (rng.below(5) == 0) r.restore_ns = 20'000'000;
      if (rng.below(5) == 0) r.deadline_ns = 2'000'000'000;
      worker.add(r);
    }
    worker.run();
    CHECK(worker.report().problem.empty());
    CHECK(planner.refused_plans() == 0);
    return worker.report();
  };
  Plugin plugin;
  const sim::SimReport a = simulate({});
  const sim::SimReport b = simulate({plugin.table, plugin.self, "scheduler_fcfs"});
  CHECK(a.steps == b.steps);
  CHECK(a.end_ns == b.end_ns);
  CHECK(a.total().ttft_ms == b.total().ttft_ms);
  CHECK(a.total().preemptions == b.total().preemptions);
  CHECK(a.total().preemptions > 0);
  CHECK(a.total().finished > 100);
}

TEST_CASE("scheduler_fcfs: refuses a view of a host that it does not know") {
  Plugin plugin;
  TestView v;
  v.link();
  TestPlan p(v.view);
  v.view.struct_size = 16;
  CHECK(plugin.table->plan(plugin.self, &v.view, &p.plan) == WEFT_E_ARG);
}
