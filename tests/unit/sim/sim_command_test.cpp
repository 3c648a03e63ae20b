#include "sim/sim_command.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "sim/plan_bench.h"
#include "sim/replay.h"
#include "sim/scenario.h"
#include "sim/workload.h"

using namespace weft;
using namespace weft::sim;

namespace {

struct TempDir {
  TempDir() {
    char name[] = "/tmp/weft_sim_XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
  }
  ~TempDir() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name) << text;
    return path + "/" + name;
  }
  std::string path;
};

struct Ran {
  int code;
  std::string out, err;
};
Ran run(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int code = run_weft_sim(arguments, {out, err});
  return {code, out.str(), err.str()};
}
bool has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  MESSAGE(text);
  return false;
}

std::string workload_error(std::string_view jsonl) {
  const auto parsed = parse_workload(jsonl);
  REQUIRE_FALSE(parsed.ok());
  return parsed.error().message;
}
std::string scenario_error(std::string_view toml) {
  const auto parsed = parse_scenario(toml);
  REQUIRE_FALSE(parsed.ok());
  return parsed.error().message;
}

constexpr const char* kScenario =
    "seed = 3\n[worker]\nstep_us = 1000\nrow_us = 20\ntoken_budget = 64\npages = 200\n"
    "run_budget = 6\nseq_budget = 6\nstates = 6\n"
    "[[tenants]]\nid = 1\nrequests = 30\nper_minute = 6000\nprompt = 300\noutput = 40\n"
    "[[tenants]]\nid = 2\nrequests = 10\nper_minute = 3000\nprompt = 600\ncached_percent = 50\n"
    "output = 10\ndeadline_ms = 300\n";

}  // namespace

TEST_CASE("sim workload: both kinds of lines") {
  const auto parsed = parse_workload(
      "{\"arrival_s\": 1.5, \"prompt\": 10, \"output\": 3, \"tenant\": 4, \"deadline_s\": 2}\n"
      "\r\n"
      "{\"timestamp\": 250, \"input_length\": 1000, \"output_length\": 5, \"hash_ids\": [7, 8]}");
  REQUIRE(parsed.ok());
  REQUIRE(parsed->size() == 2);
  const SimRequest& a = (*parsed)[0];
  CHECK(a.id == 1);
  CHECK(a.arrive_ns == 1'500'000'000);
  CHECK(a.prompt == 10);
  CHECK(a.output == 3);
  CHECK(a.tenant == 4);
  CHECK(a.deadline_ns == 2'000'000'000);
  const SimRequest& b = (*parsed)[1];
  CHECK(b.arrive_ns == 250'000'000);
  CHECK(b.blocks == std::vector<uint64_t>{7, 8});
}

TEST_CASE("sim workload: bad lines are named") {
  CHECK(has(workload_error("{}"), "line 1: \"arrival_s\""));
  CHECK(has(workload_error("\n[1]"), "line 2: an object expected"));
  CHECK(has(workload_error("{\"arrival_s\": 0, \"prompt\": 0, \"output\": 1}"), "\"prompt\""));
  CHECK(has(workload_error("{\"arrival_s\": -1, \"prompt\": 1, \"output\": 1}"), "\"arrival_s\""));
  CHECK(has(workload_error("{\"arrival_s\": 1e300, \"prompt\": 1, \"output\": 1}"), "arrival_s"));
  CHECK(has(workload_error("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, "
                           "\"hash_ids\": [1.5]}"),
            "\"hash_ids\": integers expected, got 1.5"));
  CHECK(has(workload_error("{\"arrival_s\": 0"), "line 1"));
}

TEST_CASE("sim scenario: reads, and names what does not fit") {
  const auto parsed = parse_scenario(kScenario);
  REQUIRE(parsed.ok());
  CHECK(parsed->worker.step_ns == 1'000'000);
  CHECK(parsed->worker.seed == 3);
  REQUIRE(parsed->tenants.size() == 2);
  CHECK(parsed->tenants[1].cached_percent == 50);
  CHECK(make_workload(parsed->tenants, 3).size() == 40);
  CHECK(has(scenario_error("[worker]\nsteps_us = 1"), "line 2"));
  CHECK(has(scenario_error("[worker]\npages = 0"), "pages"));
  CHECK(has(scenario_error("[[tenants]]\nid = \"x\""), "id"));
  CHECK(has(scenario_error("= 1"), "line 1"));
}

TEST_CASE("weft-sim: a run, its trace, and the replay of it") {
  const TempDir dir;
  const std::string scenario = dir.write("s.toml", kScenario);
  const std::string trace = dir.path + "/trace";
  const Ran ran = run({"run", scenario, "--trace", trace});
  CHECK(ran.code == 0);
  CHECK(has(ran.out, "built-in:"));
  CHECK(has(ran.out, "\nall "));
  const Ran again = run({"replay", trace});
  CHECK(again.code == 0);
  CHECK(has(again.out, "recorded by built-in, planned again by built-in"));
  CHECK(has(again.out, "all plans are the same"));

  std::filesystem::resize_file(trace, std::filesystem::file_size(trace) - 5);
  const Ran cut = run({"replay", trace});
  CHECK(cut.code == 1);
  CHECK(has(cut.out, "the trace is damaged: record"));

  const std::string work =
      dir.write("w.jsonl", "{\"arrival_s\": 0, \"prompt\": 10, \"output\": 3}\n");
  CHECK(has(run({"run", "--workload", work}).out, "\n0               1 "));
}

TEST_CASE("weft-sim: mistakes are explained") {
  CHECK(run({"fly"}).code == 2);
  CHECK(run({}).code == 2);
  CHECK(run({"--help"}).code == 0);
  CHECK(has(run({"run"}).err, "nothing to simulate"));
  CHECK(has(run({"run", "/nowhere/s.toml"}).err, "cannot open /nowhere/s.toml"));
  CHECK(has(run({"replay", "/nowhere/t"}).err, "cannot open the trace"));
  CHECK(has(run({"bench", "--set", "a=b"}).err, "no settings"));
  CHECK(has(run({"bench", "--plugin", "x", "--set", "ab"}).err, "KEY=VALUE"));
  const TempDir dir;
  CHECK(has(run({"bench", "--plugin", "x", "--plugin-dir", dir.path}).err, "x"));
}

TEST_CASE("weft-sim bench: plans are valid") {
  PlanBenchOptions o;
  o.running = 40;
  o.waiting = 100;
  o.plans = 100;
  engine::Planner planner;
  const PlanBenchReport r = bench_plans(o, planner);
  CHECK(r.plan_us.size() == 100);
  CHECK(r.refused == 0);
  CHECK(r.admitted > 0);
  CHECK(r.preempted > 0);
}

TEST_CASE("replay: another policy's plans are found to differ, bad ones to be bad") {
  weft_scheduler_v1 table = {};
  table.head = {sizeof(table), 1, 0};
  table.plan = [](weft_instance*, const weft_sched_view*, weft_sched_plan* out) -> weft_status {
    out->run[out->n_run++] = {0xffff, 1, 0, 0};
    return WEFT_OK;
  };
  const TempDir dir;
  const std::string trace = dir.path + "/trace";
  REQUIRE(run({"run", dir.write("s.toml", kScenario), "--trace", trace}).code == 0);
  auto reader = engine::TraceReader::open(trace);
  REQUIRE(reader.ok());
  const ReplayReport r = replay(**reader, {&table, nullptr, "bad"});
  CHECK(r.records > 10);
  CHECK(r.refused == r.records);
  CHECK(has(r.first_refusal, "run has 1 entries, at most 0"));

  weft_share one = {0, 1, 0, 0}, two = {0, 2, 0, 0};
  weft_sched_plan a = {}, b = {};
  a.n_run = b.n_run = 1;
  a.run = &one;
  b.run = &two;
  CHECK(plan_difference(a, b) ==
        "run[0]: recorded index 0 rows 1 drafts 0 propose 0, planned index 0 rows 2 drafts 0 "
        "propose 0");
  b.n_run = 0;
  CHECK(plan_difference(a, b) == "run: recorded 1 entries, planned 0");
  CHECK(plan_difference(a, a).empty());
}

// Whatever the pool, everybody is served in the end, and nobody waits for ever behind others.
TEST_CASE("first come, first served starves nobody") {
  for (const uint32_t pages : {20u, 40u, 200u}) {
    CAPTURE(pages);
    auto scenario = parse_scenario(kScenario);
    REQUIRE(scenario.ok());
    scenario->worker.pages = pages;
    scenario->worker.page_tokens = 50;
    scenario->tenants[1].deadline_ms = 0;
    engine::Planner planner;
    SimWorker worker(scenario->worker, &planner);
    for (SimRequest& r : make_workload(scenario->tenants, pages)) worker.add(std::move(r));
    worker.run();
    CHECK(worker.report().problem.empty());
    CHECK(worker.report().total().finished == 40);
    CHECK(planner.refused_plans() == 0);
    CHECK(worker.audit().ok());
  }
}
