// What users feel, over whole simulated loads: fairness, priorities, deadlines, steps within their
// target, no starvation and no thrashing.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "simulator_fixture.h"

namespace scheduler_continuous_test {
namespace {

// A tenant whose agents come back every period with a warm prompt, or a cold one now and then.
void add_light(std::vector<Request>* load, uint32_t tenant, int32_t priority, uint32_t turns,
               uint64_t period_ns) {
  for (uint32_t i = 0; i < turns; ++i) {
    Request request;
    request.arrive_ns = kSecond + i * period_ns + (i * 37 % 11) * kMs;
    request.tenant = tenant;
    request.priority = priority;
    request.prompt = 2000;
    request.cached = i % 8 == 0 ? 0 : 1800;
    request.output = 30;
    load->push_back(request);
  }
}

// Far more than the machine can do, all at once.
void add_flood(std::vector<Request>* load, uint32_t tenant, int32_t priority, uint32_t n,
               uint32_t prompt, uint32_t output) {
  for (uint32_t i = 0; i < n; ++i) {
    Request request;
    request.arrive_ns = 500 * kMs + i * kMs;
    request.tenant = tenant;
    request.priority = priority;
    request.prompt = prompt;
    request.output = output;
    load->push_back(request);
  }
}

std::vector<Request> mixed(uint64_t seed, uint32_t n, uint64_t spread_ns) {
  std::mt19937_64 random(seed);
  std::vector<Request> load(n);
  for (Request& request : load) {
    request.arrive_ns = random() % spread_ns;
    request.prompt = 1 + static_cast<uint32_t>(random() % (random() % 4 == 0 ? 6000 : 600));
    request.cached = random() % 2 == 0 ? 0 : static_cast<uint32_t>(random() % request.prompt);
    request.output = 1 + static_cast<uint32_t>(random() % 200);
    request.tenant = static_cast<uint32_t>(random() % 4);
    request.weight = 1 + request.tenant % 2;
    request.priority = static_cast<int32_t>(random() % 3);
    if (request.prompt > 10) request.boundaries = {request.prompt / 3, request.prompt - 3};
  }
  return load;
}

uint64_t finished(const Run& run) {
  return static_cast<uint64_t>(std::count_if(run.fates.begin(), run.fates.end(),
                                             [](const Fate& fate) { return fate.end_ns != 0; }));
}

double ratio(uint64_t a, uint64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

}  // namespace

TEST_CASE("a tenant that floods does not slow down another one much") {
  const auto of_light = [](const Request& request) { return request.tenant == 1; };
  for (const uint64_t target : {uint64_t{0}, 30 * kMs}) {
    for (const uint32_t prompt : {200u, 3000u}) {
      CAPTURE(target);
      CAPTURE(prompt);
      Machine machine;
      machine.step_target_ns = target;
      std::vector<Request> load;
      add_light(&load, 1, 0, 80, 250 * kMs);
      const Run alone = simulate(machine, load);
      add_flood(&load, 2, 0, 600, prompt, 150);
      const Run flooded = simulate(machine, load);
      REQUIRE(alone.fault == "");
      REQUIRE(flooded.fault == "");
      CHECK(finished(flooded) == load.size());
      const uint64_t before = ttft_quantile(alone, 0.95, of_light);
      const uint64_t after = ttft_quantile(flooded, 0.95, of_light);
      MESSAGE("p95 ms alone " << before / kMs << " flooded " << after / kMs);
      CHECK(ratio(after, before) <= 2.0);
    }
  }
}

TEST_CASE("a higher priority hardly notices lower ones, and they finish too") {
  const auto of_high = [](const Request& request) { return request.priority > 0; };
  Machine machine;
  machine.row_units = 2000;
  std::vector<Request> load;
  add_light(&load, 1, 5, 80, 250 * kMs);
  const Run alone = simulate(machine, load);
  add_flood(&load, 1, 0, 400, 1000, 200);
  const Run flooded = simulate(machine, load);
  REQUIRE(flooded.fault == "");
  CHECK(finished(flooded) == load.size());
  const uint64_t before = ttft_quantile(alone, 0.95, of_high);
  const uint64_t after = ttft_quantile(flooded, 0.95, of_high);
  MESSAGE("p95 ms alone " << before / kMs << " flooded " << after / kMs);
  CHECK(ratio(after, before) <= 2.0);
}

TEST_CASE("tenants receive by weight") {
  Machine machine;
  std::vector<Request> load;
  for (uint32_t tenant = 0; tenant < 2; ++tenant) add_flood(&load, tenant, 0, 300, 1500, 20);
  for (Request& request : load) request.weight = request.tenant == 0 ? 1 : 3;
  const Run run = simulate(machine, load, {}, 500);
  REQUIRE(run.fault == "");
  uint64_t done[2] = {};
  for (const Fate& fate : run.fates) done[fate.request.tenant] += fate.end_ns != 0 ? 1 : 0;
  CHECK(done[0] > 10);
  CHECK(ratio(done[1], done[0]) > 2.2);
  CHECK(ratio(done[1], done[0]) < 4.0);
}

TEST_CASE("near deadlines come first, hopeless and late requests go") {
  Machine machine;
  std::vector<Request> load;
  add_flood(&load, 0, 0, 200, 2000, 50);  // some 20 s of work
  for (size_t i = 0; i < load.size(); ++i)
    if (i % 10 == 0) load[i].deadline_ns = 4 * kSecond;
  const Run run = simulate(machine, load);
  REQUIRE(run.fault == "");
  uint32_t kept = 0, dropped = 0;
  for (const Fate& fate : run.fates) {
    if (fate.request.deadline_ns == 0) {
      CHECK(fate.end_ns != 0);
      continue;
    }
    dropped += fate.dropped ? 1 : 0;
    kept += fate.first_ns != 0 && fate.ttft_ns() <= fate.request.deadline_ns ? 1 : 0;
  }
  MESSAGE("kept " << kept << " dropped " << dropped);
  CHECK(kept >= 19);
  // Those that may be shed go at once when their turn would come too late.
  for (Request& request : load) request.flags = WEFT_SEQ_SHEDDABLE;
  for (Request& request : load) request.deadline_ns = 4 * kSecond;
  const Run shed = simulate(machine, load);
  REQUIRE(shed.fault == "");
  uint32_t late = 0, served = 0;
  for (const Fate& fate : shed.fates) {
    if (fate.dropped) continue;
    ++served;
    late += fate.ttft_ns() > fate.request.deadline_ns ? 1 : 0;
  }
  MESSAGE("served " << served << " late " << late);
  CHECK(served >= 20);
  CHECK(late * 10 <= served);
}

TEST_CASE("all finish in a starved pool, without thrashing, and every boundary is met") {
  for (const uint64_t swap : {uint64_t{0}, uint64_t{1} << 30}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(seed);
      Machine machine;
      machine.row_units = 450;  // hardly more than the largest request
      machine.watermark = 4;
      machine.states = 12;
      machine.swap_bytes = swap;
      const std::vector<Request> load = mixed(seed, 150, 20 * kSecond);
      const Run run = simulate(machine, load);
      REQUIRE(run.fault == "");
      CHECK(finished(run) == load.size());
      uint64_t rows = 0;
      for (const Request& request : load) rows += request.prompt - request.cached + request.output;
      MESSAGE("steps " << run.steps << " preemptions " << run.preemptions << " swaps " << run.swaps
                       << " rows " << run.rows << " of " << rows);
      CHECK(run.preemptions <= load.size());
      CHECK(run.rows <= rows * 3 / 2);
      for (const Fate& fate : run.fates) CHECK(fate.preemptions <= 8);
      for (const Fate& fate : run.fates) CHECK(fate.missed.empty());
    }
  }
}

TEST_CASE("boundaries are met under every budget") {
  for (const uint32_t budget : {16u, 100u, 512u, 4096u}) {
    CAPTURE(budget);
    Machine machine;
    machine.token_budget = budget;
    machine.run_budget = std::min(budget, 32u);
    const Run run = simulate(machine, mixed(9, 60, 5 * kSecond));
    REQUIRE(run.fault == "");
    CHECK(finished(run) == 60);
    for (const Fate& fate : run.fates) CHECK(fate.missed.empty());
  }
}

TEST_CASE("prompts do not stretch the steps of those who generate") {
  Machine machine;
  machine.run_budget = 16;
  machine.step_target_ns = 15 * kMs;  // 200 rows
  const Run guarded = simulate(machine, mixed(3, 100, 10 * kSecond));
  REQUIRE(guarded.fault == "");
  CHECK(finished(guarded) == 100);
  CHECK(guarded.slowest_step_with_decode_ns <= machine.step_target_ns);
  machine.step_target_ns = 1;  // cannot be met: prompts come on all the same
  const Run floor = simulate(machine, mixed(3, 100, 10 * kSecond));
  CHECK(finished(floor) == 100);
  CHECK(floor.slowest_step_with_decode_ns <=
        machine.step_ns + (machine.run_budget + 16) * machine.row_ns);
}

TEST_CASE("a low band waits, not for ever") {
  Machine machine;
  machine.run_budget = 4;
  std::vector<Request> load;
  add_flood(&load, 1, 3, 300, 1000, 60);
  add_flood(&load, 1, 0, 1, 100, 10);
  const auto low = [](const Request& request) { return request.priority == 0; };
  const Run patient = simulate(machine, load, {{"max_wait", 2 * static_cast<int64_t>(kSecond)}});
  const Run strict = simulate(machine, load, {{"max_wait", 0}});
  CHECK(finished(strict) == load.size());
  CHECK(ttft_quantile(patient, 0.5, low) < 4 * kSecond);
  CHECK(ttft_quantile(strict, 0.5, low) > 10 * kSecond);
}

TEST_CASE("a trace replays from a fresh instance") {
  Machine machine;
  machine.row_units = 700;
  const Run first = simulate(machine, mixed(5, 60, 5 * kSecond));
  const Run second = simulate(machine, mixed(5, 60, 5 * kSecond));
  CHECK(first.trace == second.trace);
}

TEST_CASE("without a table of tenants what runs stands for it") {
  Machine machine;
  machine.tell_tenants = false;
  std::vector<Request> load;
  add_light(&load, 1, 0, 40, 250 * kMs);
  add_flood(&load, 2, 0, 200, 1000, 100);
  const Run run = simulate(machine, load);
  REQUIRE(run.fault == "");
  CHECK(finished(run) == load.size());
  CHECK(ttft_quantile(run, 0.95, [](const Request& r) { return r.tenant == 1; }) < kSecond);
}

}  // namespace scheduler_continuous_test
