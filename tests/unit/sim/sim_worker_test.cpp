#include "sim/sim_worker.h"

#include <doctest/doctest.h>

#include "unit/engine/test_rng.h"

using namespace weft;
using namespace weft::sim;

namespace {

SimOptions small() {
  SimOptions o;
  o.step_ns = 1'000'000;
  o.row_ns = 10'000;
  o.token_budget = 64;
  o.seq_budget = o.run_budget = o.states = 8;
  o.page_tokens = 16;
  o.pages = 64;
  return o;
}

SimRequest request(uint64_t id, uint64_t arrive_ns, uint32_t prompt, uint32_t output) {
  SimRequest r;
  r.id = id;
  r.arrive_ns = arrive_ns;
  r.prompt = prompt;
  r.output = output;
  return r;
}

}  // namespace

TEST_CASE("sim: one request takes the steps that the cost model says") {
  engine::Planner planner;
  SimWorker worker(small(), &planner);
  worker.add(request(1, 0, 100, 3));
  worker.run();
  const TenantReport& t = worker.report().tenants.at(0);
  REQUIRE(t.finished == 1);
  // 64 + 36 rows: 1.64 + 1.36 ms; then one row each.
  REQUIRE(t.ttft_ms.size() == 1);
  CHECK(t.ttft_ms[0] == doctest::Approx(3.0));
  REQUIRE(t.itl_ms.size() == 2);
  CHECK(t.itl_ms[0] == doctest::Approx(1.01));
  CHECK(worker.report().steps == 4);
  CHECK(worker.report().problem.empty());
  CHECK(worker.audit().ok());
}

TEST_CASE("sim: a prefix hit saves its rows, a restored one waits for its copy") {
  engine::Planner planner;
  SimWorker worker(small(), &planner);
  SimRequest r = request(1, 0, 100, 1);
  r.cached = 90;
  worker.add(r);
  worker.run();
  CHECK(worker.report().tenants.at(0).ttft_ms[0] == doctest::Approx(1.1));
  r.id = 2;
  r.restore_ns = 7'000'000;
  worker.add(r);
  worker.run();
  CHECK(worker.report().tenants.at(0).ttft_ms[1] == doctest::Approx(8.1));
  CHECK(worker.report().tenants.at(0).cached_tokens == 180);
  CHECK(worker.audit().ok());
}

TEST_CASE("sim: blocks of finished prefills are hits, and those on their way are waited for") {
  engine::Planner planner;
  SimOptions o = small();
  o.block_tokens = 128;
  SimWorker worker(o, &planner);
  SimRequest r = request(1, 0, 300, 1);
  r.blocks = {11, 12};
  worker.add(r);
  r.id = 2;
  r.arrive_ns = 1;
  r.blocks = {11, 12};
  worker.add(r);
  worker.run();
  const TenantReport& t = worker.report().tenants.at(0);
  CHECK(t.finished == 2);
  CHECK(t.cached_tokens == 256);
  CHECK(t.computed_rows == 300 + 44);
}

TEST_CASE("sim: a starved pool preempts, loses nothing and ends") {
  engine::Planner planner;
  SimOptions o = small();
  o.pages = 20;
  SimWorker worker(o, &planner);
  engine::TestRng rng(3);
  uint64_t done = 0;
  worker.on_done = [&](const SimRequest&, SimOutcome outcome) {
    done += outcome == SimOutcome::kFinished;
  };
  bool books = true;
  worker.on_plan = [&](const weft_sched_view&, const weft_sched_plan&) {
    books = books && worker.audit().ok();
  };
  for (uint32_t i = 0; i < 60; ++i) {
    worker.add(request(i + 1, rng() % 100'000'000, 1 + rng() % 150, 1 + rng() % 100));
  }
  worker.run();
  CHECK(worker.report().problem.empty());
  CHECK(books);
  CHECK(done == 60);
  CHECK(worker.report().total().preemptions > 0);
  CHECK(planner.refused_plans() == 0);
}

TEST_CASE("sim: the same run twice gives the same report") {
  const auto once = [] {
    engine::Planner planner;
    SimWorker worker(small(), &planner);
    engine::TestRng rng(5);
    for (uint32_t i = 0; i < 40; ++i) {
      SimRequest r = request(i + 1, rng() % 50'000'000, 1 + rng() % 300, 1 + rng() % 30);
      r.tenant = rng() % 3;
      if (i % 5 == 0) r.deadline_ns = 20'000'000;
      worker.add(r);
    }
    worker.run();
    return worker.report();
  };
  const SimReport a = once(), b = once();
  CHECK(a.end_ns == b.end_ns);
  CHECK(a.total().ttft_ms == b.total().ttft_ms);
  CHECK(a.total().dropped == b.total().dropped);
  CHECK(a.total().dropped > 0);
  CHECK(a.total().finished + a.total().dropped == 40);
}

TEST_CASE("sim: what can never fit is refused") {
  engine::Planner planner;
  SimWorker worker(small(), &planner);
  worker.add(request(1, 0, 64 * 16, 1));
  worker.run();
  CHECK(worker.report().tenants.at(0).refused == 1);
}
