#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "base/utf8.h"
#include "config/config.h"
#include "config/key_file.h"
#include "ctl/ctl.h"
#include "ctl/format.h"
#include "http/target.h"

namespace weft::ctl {
namespace {

// Bounds of numeric options. CLI11's own "positive" checks print the largest double, all 309
// digits of it.
constexpr int64_t kWaitMaxS = 7 * 86'400;
constexpr int64_t kDrainMaxMs = 86'400'000;
constexpr int64_t kTokensMax = int64_t{1} << 30;
constexpr int64_t kSequencesMax = 1 << 16;
constexpr int64_t kBatchTokensMax = 1 << 20;
constexpr double kTemperatureMax = 2.0;

void no_options(CLI::App&, Options&) {}

// Fetches, and prints the JSON when that was asked for. Sets `done` when there is nothing left to
// print.
ApiOutcome fetch(const Context& c, std::string_view method, std::string_view target,
                 std::string body, bool* done) {
  ApiOutcome out = c.api().call(method, target, std::move(body));
  *done = !out.ok || c.options.json;
  if (out.ok && c.options.json) c.console.out << out.reply.text << "\n";
  return out;
}

std::string worker_text(const JsonValue& deployment) {
  std::string out;
  for (const JsonValue& w : list_at(deployment, "workers")) {
    if (!out.empty()) out += ", ";
    out += fmt::format("{} {}", int_at(w, "pid"), text_at(w, "state"));
    const int64_t restarts = int_at(w, "restarts");
    if (restarts > 0) out += fmt::format(" ({} restart{})", restarts, restarts == 1 ? "" : "s");
  }
  return out;
}

std::string state_text(const JsonValue& deployment) {
  std::string out = text_at(deployment, "state");
  const JsonValue* progress = deployment.find("progress");
  if (out != "ready" && progress != nullptr && progress->is_object()) {
    const std::string percent =
        format_percent(int_at(*progress, "done"), int_at(*progress, "total"));
    const std::string phase = text_at(*progress, "phase");
    if (!phase.empty()) out += ": " + phase;
    if (!percent.empty()) out += " " + percent;
  }
  return out;
}

// Lines only for what is out of the ordinary.
void print_scheduling(std::ostream& out, const JsonValue& deployment) {
  const std::string name = text_at(deployment, "name");
  const JsonValue* cache = deployment.find("cache");
  if (cache != nullptr && int_at(*cache, "queries_tokens") > 0) {
    const int64_t hits = int_at(*cache, "hits_local_tokens") + int_at(*cache, "hits_host_tokens");
    out << terminal_safe(fmt::format(
        "{}: {} of the prompt tokens came from the cache, {} snapshots\n", name,
        format_percent(hits, int_at(*cache, "queries_tokens")), int_at(*cache, "snapshots")));
  }
  const JsonValue* s = deployment.find("scheduler");
  if (s == nullptr) return;
  if (int_at(*s, "swapped") > 0)
    out << terminal_safe(fmt::format("{}: {} preempted requests wait in host memory\n", name,
                                     int_at(*s, "swapped")));
  if (int_at(*s, "refused_plans_total") > 0)
    out << terminal_safe(fmt::format("{}: {} plans of scheduler {} were invalid\n", name,
                                     int_at(*s, "refused_plans_total"), text_at(*s, "name")));
  if (int_at(*s, "stalled") > 0)
    out << terminal_safe(
        fmt::format("{}: {} requests make no progress\n", name, int_at(*s, "stalled")));
}

void print_status(std::ostream& out, const JsonValue& s) {
  out << terminal_safe(fmt::format("weftd {}: {}, pid {}, up {}\n", text_at(s, "version"),
                                   text_at(s, "state"), int_at(s, "pid"),
                                   format_duration_s(int_at(s, "uptime_s"))));
  std::string listen;
  for (const JsonValue& a : list_at(s, "listen")) {
    if (a.is_string()) listen += (listen.empty() ? "" : ", ") + a.as_string();
  }
  if (!listen.empty()) out << "listening on " << terminal_safe(listen) << "\n";
  out << fmt::format("requests: {} running, {} in all\n", int_at(s, "requests_inflight"),
                     int_at(s, "requests_total"));
  const auto& deployments = list_at(s, "deployments");
  if (deployments.empty()) return;
  Table table({"DEPLOYMENT", "MODEL", "STATE", "RUNNING", "WAITING", "CONTEXT", "WORKERS"});
  for (const JsonValue& d : deployments) {
    table.add({text_at(d, "name"), text_at(d, "model"), state_text(d),
               std::to_string(int_at(d, "running")), std::to_string(int_at(d, "waiting")),
               std::to_string(int_at(d, "max_context")), worker_text(d)});
  }
  out << "\n" << table.to_string();
  for (const JsonValue& d : deployments) {
    const std::string reason = text_at(d, "reason");
    if (!reason.empty()) out << terminal_safe(text_at(d, "name") + ": " + reason) << "\n";
    for (const JsonValue& g : list_at(d, "groups")) {
      out << terminal_safe(fmt::format("{}: cache {}: {} of {} units used", text_at(d, "name"),
                                       text_at(g, "name"), int_at(g, "units_used"),
                                       int_at(g, "units_total")));
      if (int_at(g, "units_cached") > 0)
        out << fmt::format(", {} cached", int_at(g, "units_cached"));
      out << "\n";
    }
    print_scheduling(out, d);
  }
}

int run_status(const Context& c) {
  bool done = false;
  const ApiOutcome out = fetch(c, "GET", "/v1/status", "", &done);
  if (!out.ok) return c.fail(out.failure);
  if (!done) print_status(c.console.out, out.reply.json);
  return text_at(out.reply.json, "state") == "ready" ? kOk : kNotReady;
}

// The first deployment that will not become ready by waiting, or nothing.
std::string hopeless_deployment(const JsonValue& status) {
  for (const JsonValue& d : list_at(status, "deployments"))
    if (text_at(d, "state") == "failed")
      return fmt::format("{} failed: {}", text_at(d, "name"), text_at(d, "reason"));
  return {};
}

int run_wait(const Context& c) {
  const int64_t end_us = monotonic_us() + c.options.timeout_s * 1'000'000;
  ApiOutcome out;
  while (true) {
    out = c.api().call("GET", "/v1/status");
    const std::string state = out.ok ? text_at(out.reply.json, "state") : "";
    if (state == "ready") {
      c.console.out << (c.options.json ? out.reply.text : "ready") << "\n";
      return kOk;
    }
    if (state == "draining" || state == "stopping") return c.fail(kNotReady, "weftd is " + state);
    if (const std::string lost = out.ok ? hopeless_deployment(out.reply.json) : ""; !lost.empty())
      return c.fail(kNotReady, lost);
    if (monotonic_us() >= end_us) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (!out.ok) return c.fail(out.failure);
  return c.fail(kNotReady, fmt::format("weftd is still {} after {} s; weftctl status says more",
                                       text_at(out.reply.json, "state"), c.options.timeout_s));
}

int run_plugins(const Context& c) {
  bool done = false;
  const ApiOutcome out = fetch(c, "GET", "/v1/plugins", "", &done);
  if (!out.ok) return c.fail(out.failure);
  if (done) return kOk;
  c.console.out << "plugins in " << terminal_safe(text_at(out.reply.json, "directory")) << "\n";
  Table table({"NAME", "VERSION", "STATE", "INTERFACES", "REASON"});
  for (const JsonValue& p : list_at(out.reply.json, "plugins")) {
    std::string interfaces;
    for (const JsonValue& i : list_at(p, "interfaces")) {
      if (i.is_string()) interfaces += (interfaces.empty() ? "" : " ") + i.as_string();
    }
    const std::string name = text_at(p, "name");
    table.add({name.empty() ? text_at(p, "path") : name, text_at(p, "version"), text_at(p, "state"),
               interfaces, text_at(p, "reason")});
  }
  c.console.out << table.to_string();
  const std::string error = text_at(out.reply.json, "error");
  return error.empty() ? kOk : c.fail(kFailure, error);
}

int run_models(const Context& c) {
  bool done = false;
  const ApiOutcome out = fetch(c, "GET", "/v1/models", "", &done);
  if (!out.ok) return c.fail(out.failure);
  if (done) return kOk;
  // The OpenAI route calls its list "data", the control route "models".
  const JsonValue& json = out.reply.json;
  const auto& models =
      json.find("models") != nullptr ? list_at(json, "models") : list_at(json, "data");
  Table table({"MODEL", "DEPLOYMENT", "STATE", "CONTEXT"});
  for (const JsonValue& m : models) {
    const int64_t context =
        int_at(m, "max_context") != 0 ? int_at(m, "max_context") : int_at(m, "max_model_len");
    table.add({text_at(m, "id"), text_at(m, "deployment"), text_at(m, "state"),
               context > 0 ? std::to_string(context) : ""});
  }
  c.console.out << table.to_string();
  return kOk;
}

int run_requests(const Context& c) {
  bool done = false;
  const ApiOutcome out = fetch(c, "GET", "/v1/requests", "", &done);
  if (!out.ok) return c.fail(out.failure);
  if (done) return kOk;
  Table table({"ID", "MODEL", "ENDPOINT", "STATE", "PROMPT", "OUTPUT", "AGE", "PEER"});
  for (const JsonValue& r : list_at(out.reply.json, "requests")) {
    table.add({text_at(r, "id"), text_at(r, "model"),
               text_at(r, "endpoint") + (bool_at(r, "stream") ? " (stream)" : ""),
               text_at(r, "state"), std::to_string(int_at(r, "prompt_tokens")),
               std::to_string(int_at(r, "output_tokens")), format_duration_ms(int_at(r, "age_ms")),
               text_at(r, "peer")});
  }
  c.console.out << table.to_string();
  return kOk;
}

int run_cancel(const Context& c) {
  bool done = false;
  const ApiOutcome out =
      fetch(c, "DELETE", "/v1/requests/" + http::percent_encode(c.options.id), "", &done);
  if (!out.ok) return c.fail(out.failure);
  if (!done) c.console.out << "request " << terminal_safe(c.options.id) << " is cancelled\n";
  return kOk;
}

int run_drain(const Context& c) {
  bool done = false;
  std::string body = "{}";
  if (c.options.deadline_ms >= 0)
    body = fmt::format("{{\"deadline_ms\":{}}}", c.options.deadline_ms);
  const ApiOutcome out = fetch(c, "POST", "/v1/drain", std::move(body), &done);
  if (!out.ok) return c.fail(out.failure);
  if (!done) c.console.out << "weftd drains: running requests may finish, new ones are refused\n";
  return kOk;
}

int run_stop(const Context& c) {
  bool done = false;
  const ApiOutcome out = fetch(c, "POST", "/v1/stop", "{}", &done);
  if (!out.ok) return c.fail(out.failure);
  if (!done) c.console.out << "weftd stops\n";
  return kOk;
}

// The same answer as the API gives, from the rules built into weftctl.
std::string check_locally(std::string_view text) {
  const config::ParsedConfig parsed = config::parse_config(text);
  std::vector<JsonValue> errors;
  for (const config::ConfigIssue& issue : parsed.issues) {
    errors.push_back(JsonValue::object({{"line", JsonValue::integer(issue.line)},
                                        {"column", JsonValue::integer(issue.column)},
                                        {"message", JsonValue::string(issue.message)},
                                        {"hint", JsonValue::string(issue.hint)}}));
  }
  return dump_json(JsonValue::object(
      {{"ok", JsonValue::boolean(parsed.ok())}, {"errors", JsonValue::array(std::move(errors))}}));
}

// The key file that a good configuration names, read with the rights of who asks: weftd, which may
// read more, must not tell others about files. Empty: nothing to complain about.
std::string check_key_file(const Context& c, std::string_view text) {
  const std::string path = config::parse_config(text).config.api.key_file;
  if (path.empty()) return {};
  const auto keys = config::load_key_file(path);
  if (keys.ok()) return {};
  if (keys.error().code != ErrorCode::kPermission) return keys.error().message;
  c.console.err << terminal_safe(keys.error().message) << "; it was not checked\n";
  return {};
}

int run_config_check(const Context& c) {
  const std::string& path = c.options.file;
  if (std::filesystem::is_directory(path))
    return c.fail(kUsage, path + " is a directory; expected a TOML file");
  std::ifstream file(path, std::ios::binary);
  if (!file) return c.fail(kNotReady, "cannot read " + path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return c.fail(kFailure, "cannot read " + path);
  // Bytes that are no UTF-8 cannot travel in JSON; they are an error in any version.
  const bool sendable = is_valid_utf8(text);
  const JsonValue body =
      JsonValue::object({{"text", JsonValue::string(text)}, {"path", JsonValue::string(path)}});
  // The running weftd knows best what it accepts; without one the rules of this build are used.
  std::string answer;
  ApiOutcome out;
  if (sendable) out = c.api().call("POST", "/v1/config/check", dump_json(body));
  if (out.ok) {
    answer = out.reply.text;
  } else if (!sendable || out.failure.exit_code == kUnreachable ||
             out.failure.exit_code == kDenied) {
    answer = check_locally(text);
  } else {
    return c.fail(out.failure);
  }
  const auto json = parse_json(answer);
  if (!json.ok()) return c.fail(kFailure, "weftd's answer is not JSON");
  bool good = bool_at(*json, "ok");
  const std::string keys = good ? check_key_file(c, text) : "";
  if (!keys.empty()) {
    good = false;
    answer = dump_json(JsonValue::object(
        {{"ok", JsonValue::boolean(false)},
         {"errors", JsonValue::array({JsonValue::object({{"line", JsonValue::integer(0)},
                                                         {"column", JsonValue::integer(0)},
                                                         {"message", JsonValue::string(keys)},
                                                         {"hint", JsonValue::string("")}})})}}));
  }
  if (c.options.json) {
    c.console.out << answer << "\n";
    return good ? kOk : kFailure;
  }
  if (!keys.empty()) c.console.err << terminal_safe(keys) << "\n";
  for (const JsonValue& e : list_at(*json, "errors")) {
    const std::string hint = text_at(e, "hint");
    c.console.err << terminal_safe(fmt::format("{}:{}:{}: {}{}\n", path, int_at(e, "line"),
                                               int_at(e, "column"), text_at(e, "message"),
                                               hint.empty() ? "" : " (" + hint + ")"));
  }
  if (good) c.console.out << terminal_safe(path) << ": ok\n";
  return good ? kOk : kFailure;
}

int run_version(const Context& c) {
  // Of this program; the daemon's is in status. Works without a daemon.
  if (c.options.json) {
    c.console.out << "{\"version\":\"" WEFT_VERSION "\"}\n";
  } else {
    c.console.out << "weftctl " WEFT_VERSION "\n";
  }
  return kOk;
}

int run_completion(const Context& c) {
  // First words complete at position 1, second words behind their first word.
  std::map<std::string, std::string> next;
  for (const Command& command : commands()) {
    const size_t space = command.name.find(' ');
    const std::string first(command.name.substr(0, space));
    if ((" " + next[""] + " ").find(" " + first + " ") == std::string::npos) {
      next[""] += (next[""].empty() ? "" : " ") + first;
    }
    if (space != std::string_view::npos) {
      std::string& words = next[first];
      words += (words.empty() ? "" : " ") + std::string(command.name.substr(space + 1));
    }
  }
  std::ostream& out = c.console.out;
  out << "_weftctl() {\n  local word=\"${COMP_WORDS[COMP_CWORD]}\" words=\"\"\n"
      << "  if [ \"$COMP_CWORD\" -eq 1 ]; then words=\"" << next[""]
      << " --socket --json --help --version\"\n";
  for (const auto& [first, words] : next) {
    if (first.empty()) continue;
    out << "  elif [ \"$COMP_CWORD\" -eq 2 ] && [ \"${COMP_WORDS[1]}\" = " << first
        << " ]; then words=\"" << words << "\"\n";
  }
  out << "  else COMPREPLY=($(compgen -f -- \"$word\")); return; fi\n"
      << "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\ncomplete -F _weftctl weftctl\n";
  return kOk;
}

void declare_cancel(CLI::App& app, Options& o) {
  app.add_option("ID", o.id, "Request id, as \"weftctl requests\" shows it")->required();
}
void declare_wait(CLI::App& app, Options& o) {
  app.add_option("--timeout", o.timeout_s, "Seconds to wait at most")
      ->check(CLI::Range(int64_t{0}, kWaitMaxS));
}
void declare_drain(CLI::App& app, Options& o) {
  app.add_option("--deadline-ms", o.deadline_ms, "End what still runs after so long")
      ->check(CLI::Range(int64_t{0}, kDrainMaxMs));
}
void declare_config_check(CLI::App& app, Options& o) {
  app.add_option("FILE", o.file, "A weft.toml")->required();
}
void declare_plan(CLI::App& app, Options& o) {
  app.add_option("MODEL", o.model, "Directory of a model")->required();
  app.add_option("--memory", o.memory, "For caches, e.g. 8GiB; default: as a worker would choose");
  app.add_option("--max-sequences", o.max_sequences, "Sequences at once")
      ->check(CLI::Range(int64_t{1}, kSequencesMax));
  app.add_option("--max-batch-tokens", o.max_batch_tokens, "Rows of a step")
      ->check(CLI::Range(int64_t{1}, kBatchTokensMax));
  app.add_option("--max-context", o.max_context, "Tokens of one sequence")
      ->check(CLI::Range(int64_t{2}, kTokensMax));
  app.add_option("--plugin-dir", o.plugin_dir, "Default: beside weftctl");
}
void declare_audit(CLI::App& app, Options& o) {
  app.add_option("MODEL", o.model, "Served model or deployment; default: all");
  app.add_flag("--drop-cache", o.drop_cache, "Give up all cached prefixes first");
}
void declare_completion(CLI::App& app, Options& o) {
  app.add_option("SHELL", o.shell, "bash")->required()->check(CLI::IsMember({"bash"}));
}
void declare_chat(CLI::App& app, Options& o) {
  app.add_option("--model", o.model, "Served model name; default: the first one");
  app.add_option("--system", o.system, "System message");
  app.add_option("--effort", o.effort, "How long to think")
      ->check(CLI::IsMember({"low", "medium", "high", "max"}));
  app.add_flag("--no-thinking", o.no_thinking, "Answer without thinking");
  app.add_option("--max-tokens", o.max_tokens, "Longest answer")
      ->check(CLI::Range(int64_t{1}, kTokensMax));
  app.add_option("--temperature", o.temperature, "Sampling temperature")
      ->check(CLI::Range(0.0, kTemperatureMax));
  app.add_option_function<std::string>(
      "-m,--message",
      [&o](const std::string& text) {
        o.message = text;
        o.message_given = true;
      },
      "One question, one answer");
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> kCommands = {
      {"status", "", "What weftd, its deployments and workers are doing", "look", no_options,
       run_status},
      {"wait", "[--timeout S]", "Wait until every deployment is ready", "look", declare_wait,
       run_wait},
      {"plugins", "", "Plugins: which are there, which are used, why others are not", "look",
       no_options, run_plugins},
      {"models", "", "Models that are served", "look", no_options, run_models},
      {"requests", "", "Requests in progress", "look", no_options, run_requests},
      {"requests list", "", "Requests in progress", "look", no_options, run_requests},
      {"requests cancel", "ID", "End one request", "administer", declare_cancel, run_cancel},
      {"chat",
       "[--model M] [--system S] [--effort low|medium|high|max] [--no-thinking] [--max-tokens N] "
       "[--temperature T] "
       "[-m MESSAGE]",
       "Talk to a model", "look", declare_chat, run_chat},
      {"audit", "[MODEL] [--drop-cache]",
       "Have the workers prove that no unit of their caches is lost", "administer", declare_audit,
       run_audit},
      {"drain", "[--deadline-ms N]", "Finish what runs, take nothing new", "administer",
       declare_drain, run_drain},
      {"stop", "", "Stop weftd", "administer", no_options, run_stop},
      {"config check", "FILE", "Check a configuration file, with or without a running weftd",
       "none", declare_config_check, run_config_check},
      {"plan",
       "MODEL [--memory SIZE] [--max-sequences N] [--max-batch-tokens N] [--max-context N] "
       "[--plugin-dir DIR]",
       "What a model would need, without loading it", "none", declare_plan, run_plan},
      {"version", "", "Version of weftctl", "none", no_options, run_version},
      {"completion", "bash", "Completion script for a shell", "none", declare_completion,
       run_completion},
  };
  return kCommands;
}

}  // namespace weft::ctl
