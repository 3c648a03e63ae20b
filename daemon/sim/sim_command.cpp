#include "sim/sim_command.h"

#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <iterator>

#include "sim/plan_bench.h"
#include "sim/policy.h"
#include "sim/replay.h"
#include "sim/scenario.h"
#include "sim/sim_worker.h"
#include "sim/workload.h"

namespace weft::sim {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 ok, 1 failure or a difference found, 2 unknown option or command. "
    "docs/scheduling.md explains traces, scenarios and reports.";
constexpr size_t kTextMax = 1u << 30;

struct PolicyOptions {
  std::string plugin = engine::kBuiltInPolicy;
  std::string plugin_dir;
  std::vector<std::string> settings;  // KEY=VALUE
};

struct Options {
  PolicyOptions policy;
  std::string trace_in, scenario, workload, trace_out;
  PlanBenchOptions bench;
};

std::string planned_by(const PolicyOptions& o) {
  return engine::is_built_in(o.plugin) ? engine::kBuiltInScheduler : o.plugin;
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_error(ErrorCode::kNotFound, "cannot open {}", path);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  if (text.size() <= kTextMax) return text;
  return make_error(ErrorCode::kInvalid, "{} has {} bytes, at most {} are read", path, text.size(),
                    kTextMax);
}

Result<Policy> open_policy(const PolicyOptions& o) {
  engine::SchedulerChoice choice;
  choice.name = o.plugin;
  for (const std::string& setting : o.settings) {
    const size_t at = setting.find('=');
    if (at == std::string::npos || at == 0) {
      return make_error(ErrorCode::kInvalid, "--set {}: KEY=VALUE expected", setting);
    }
    choice.params.emplace_back(setting.substr(0, at), setting.substr(at + 1));
  }
  return Policy::open(choice, o.plugin_dir);
}

std::string times_line(const char* name, const std::vector<double>& us) {
  return fmt::format("{:<12} p50 {:8.1f} us   p99 {:8.1f} us   max {:8.1f} us\n", name,
                     quantile(us, 0.5), quantile(us, 0.99), quantile(us, 1));
}

Result<int> run_replay(const Options& o, std::ostream& out) {
  WEFT_ASSIGN(const Policy policy, open_policy(o.policy));
  WEFT_ASSIGN(const auto trace, engine::TraceReader::open(o.trace_in));
  const ReplayReport r = replay(*trace, policy.ref());
  out << fmt::format("{} plans recorded by {}, planned again by {}\n", r.records, r.recorded_by,
                     r.planned_by);
  out << times_line("recorded", r.recorded_us) << times_line("replayed", r.plan_us);
  if (r.different == 0) {
    out << "all plans are the same\n";
  } else {
    out << fmt::format("{} plans differ, first at step {}: {}\n", r.different, r.first_step,
                       r.first_difference);
  }
  if (r.refused > 0) {
    out << fmt::format("{} plans break a rule, first: {}\n", r.refused, r.first_refusal);
  }
  if (r.bad_records > 0) out << fmt::format("{} recorded plans break a rule\n", r.bad_records);
  if (!r.damage.empty()) out << fmt::format("the trace is damaged: {}\n", r.damage);
  return r.different + r.refused + r.bad_records == 0 && r.damage.empty() ? 0 : 1;
}

void print_tenant(const std::string& name, const TenantReport& t, double seconds,
                  std::ostream& out) {
  out << fmt::format(
      "{:<8} {:>8} {:>7} {:>7} {:>8} {:>6} {:>9.0f} {:>9.0f} {:>9.0f} {:>8.1f} {:>8.1f} {:>8.1f} "
      "{:>6.1f}\n",
      name, t.finished, t.dropped, t.refused, t.preemptions, t.swaps, quantile(t.ttft_ms, 0.5),
      quantile(t.ttft_ms, 0.95), quantile(t.ttft_ms, 0.99), quantile(t.itl_ms, 0.5),
      quantile(t.itl_ms, 0.95), seconds > 0 ? static_cast<double>(t.output_tokens) / seconds : 0,
      t.prompt_tokens > 0
          ? 100.0 * static_cast<double>(t.cached_tokens) / static_cast<double>(t.prompt_tokens)
          : 0);
}

void print_report(const SimReport& r, const std::string& policy, std::ostream& out) {
  const double seconds = static_cast<double>(r.end_ns) / 1e9;
  out << fmt::format("{}: {:.1f} s, {} steps, {} rows, step p50 {:.1f} ms p99 {:.1f} ms\n", policy,
                     seconds, r.steps, r.rows, quantile(r.step_ms, 0.5), quantile(r.step_ms, 0.99));
  out << times_line("plan", r.plan_us);
  out << "tenant       done dropped refused preempts  swaps  TTFT p50  p95 (ms)       p99  ITL p50 "
         " "
         "p95(ms)    tok/s   hit%\n";
  for (const auto& [id, t] : r.tenants) print_tenant(fmt::format("{}", id), t, seconds, out);
  if (r.tenants.size() > 1) print_tenant("all", r.total(), seconds, out);
}

Result<int> run_scenario(const Options& o, std::ostream& out) {
  WEFT_ASSIGN(const Policy policy, open_policy(o.policy));
  Scenario scenario;
  if (!o.scenario.empty()) {
    WEFT_ASSIGN(const std::string text, read_text(o.scenario));
    auto parsed = parse_scenario(text);
    if (!parsed.ok()) return std::move(parsed).error().within(o.scenario);
    scenario = std::move(parsed).value();
  }
  std::vector<SimRequest> requests = make_workload(scenario.tenants, scenario.worker.seed);
  if (!o.workload.empty()) {
    WEFT_ASSIGN(const std::string text, read_text(o.workload));
    auto parsed = parse_workload(text);
    if (!parsed.ok()) return std::move(parsed).error().within(o.workload);
    const uint64_t shift = requests.size();
    for (SimRequest& r : *parsed) {
      r.id += shift;
      requests.push_back(std::move(r));
    }
  }
  if (requests.empty()) {
    return Error(ErrorCode::kInvalid,
                 "nothing to simulate: give a scenario with [[tenants]], or --workload FILE");
  }
  std::unique_ptr<engine::TraceWriter> trace;
  if (!o.trace_out.empty()) {
    WEFT_ASSIGN(trace, engine::TraceWriter::open(o.trace_out, planned_by(o.policy)));
  }
  engine::Planner planner(policy.ref(), std::move(trace));
  SimWorker worker(scenario.worker, &planner);
  for (SimRequest& r : requests) worker.add(std::move(r));
  worker.run();
  print_report(worker.report(), planned_by(o.policy), out);
  if (planner.refused_plans() > 0) {
    out << fmt::format("{} plans broke a rule: {}\n", planner.refused_plans(),
                       planner.last_problem());
  }
  if (!worker.report().problem.empty()) out << worker.report().problem << "\n";
  return worker.report().problem.empty() && planner.refused_plans() == 0 ? 0 : 1;
}

Result<int> run_bench(const Options& o, std::ostream& out) {
  WEFT_ASSIGN(const Policy policy, open_policy(o.policy));
  engine::Planner planner(policy.ref());
  const PlanBenchReport r = bench_plans(o.bench, planner);
  const double n = o.bench.plans;
  out << fmt::format(
      "{}: {} running, {} waiting, {} plans; per plan {:.1f} shares, {:.2f} admissions, {:.2f} "
      "preemptions\n",
      planned_by(o.policy), o.bench.running, o.bench.waiting, o.bench.plans,
      static_cast<double>(r.shares) / n, static_cast<double>(r.admitted) / n,
      static_cast<double>(r.preempted) / n);
  out << times_line("plan", r.plan_us);
  if (r.refused == 0) return 0;
  out << fmt::format("{} plans broke a rule: {}\n", r.refused, planner.last_problem());
  return 1;
}

void declare_policy(CLI::App& app, PolicyOptions& o) {
  app.add_option("--plugin", o.plugin, "Scheduler plugin, or builtin")->capture_default_str();
  app.add_option("--plugin-dir", o.plugin_dir, "Default: beside the program");
  app.add_option("--set", o.settings, "KEY=VALUE of the plugin");
}

}  // namespace

int run_weft_sim(const std::vector<std::string>& arguments, const SimStreams& streams) {
  CLI::App app("Simulates and replays schedulers without a model.", "weft-sim");
  app.footer(kFooter);
  app.require_subcommand(1);
  Options o;
  std::function<Result<int>()> chosen;
  CLI::App& re = *app.add_subcommand("replay", "Plans the views of a recorded trace again");
  re.add_option("trace", o.trace_in, "File that a worker or weft-sim run wrote")->required();
  declare_policy(re, o.policy);
  re.callback([&] { chosen = [&] { return run_replay(o, streams.out); }; });
  CLI::App& run = *app.add_subcommand("run", "Runs a workload through a simulated worker");
  run.add_option("scenario", o.scenario, "TOML: the worker and its tenants");
  run.add_option("--workload", o.workload, "JSONL of requests, also with block hashes");
  run.add_option("--trace", o.trace_out, "Writes every view and plan to this file");
  declare_policy(run, o.policy);
  run.callback([&] { chosen = [&] { return run_scenario(o, streams.out); }; });
  CLI::App& bench = *app.add_subcommand("bench", "Measures how long plans take");
  bench.add_option("--running", o.bench.running)
      ->capture_default_str()
      ->check(CLI::Range(0, 65536));
  bench.add_option("--waiting", o.bench.waiting)
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  bench.add_option("--tenants", o.bench.tenants)
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  bench.add_option("--plans", o.bench.plans)
      ->capture_default_str()
      ->check(CLI::Range(1, 10'000'000));
  bench.add_option("--seed", o.bench.seed)->capture_default_str();
  declare_policy(bench, o.policy);
  bench.callback([&] { chosen = [&] { return run_bench(o, streams.out); }; });
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& e) {
    return app.exit(e, streams.out, streams.err) == 0 ? 0 : 2;
  }
  const Result<int> code = chosen();
  if (code.ok()) return *code;
  streams.err << "weft-sim: " << code.error().message << "\n";
  return 1;
}

}  // namespace weft::sim
