#include "admin/admin.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/parse_chat.h"
#include "base/log.h"
#include "base/paths.h"
#include "plugin/child_check.h"
#include "plugin/registry.h"

namespace weft::admin {

using Json = nlohmann::ordered_json;

std::string audit_problem(const wire::AuditReport& report, bool drop_cache) {
  if (!report.ok())
    return report.problem().empty() ? "the worker's books do not balance" : report.problem();
  for (const wire::AuditGroup& g : report.groups()) {
    if (g.free() + g.active() + g.cached() != g.total())
      return fmt::format("{}: {} free, {} active and {} cached units are not {}", g.name(),
                         g.free(), g.active(), g.cached(), g.total());
    if (report.running() + report.waiting() != 0) continue;
    if (g.active() != 0)
      return fmt::format("{}: {} units are in use although nothing runs", g.name(), g.active());
    if (drop_cache && g.free() != g.total())
      return fmt::format(
          "{}: {} of {} units are not free although nothing runs and the cache was "
          "dropped",
          g.name(), g.total() - g.free(), g.total());
  }
  return {};
}

namespace {

std::string error_body(std::string_view message, std::string_view code) {
  return Json{{"error", {{"message", message}, {"code", code}}}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

void send(http::Responder& responder, int status, const Json& body) {
  responder.send_json(status, body.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool is_administrator(const Peer& peer) {
  return peer.is_unix && peer.uid.has_value() && (*peer.uid == 0 || *peer.uid == ::geteuid());
}

Json groups_json(const gateway::ReplicaInfo& info) {
  Json out = Json::array();
  for (const auto& g : info.ready.groups()) {
    uint64_t used = 0, cached = 0;
    for (const auto& use : info.stats.groups())
      if (use.name() == g.name()) {
        used = use.units_used();
        cached = use.units_cached();
      }
    out.push_back({{"name", g.name()},
                   {"kind", g.kind()},
                   {"units_used", used},
                   {"units_cached", cached},
                   {"units_total", g.units_total()},
                   {"unit_bytes", g.unit_bytes()}});
  }
  return out;
}

Json cache_json(const gateway::ReplicaInfo& info) {
  const wire::CacheStats& c = info.stats.cache();
  return {
      {"queries_tokens", c.queries_tokens()},       {"hits_local_tokens", c.hits_local_tokens()},
      {"hits_host_tokens", c.hits_host_tokens()},   {"computed_tokens", c.computed_tokens()},
      {"recomputed_tokens", c.recomputed_tokens()}, {"snapshots", c.snapshots()},
      {"host_bytes_used", c.host_bytes_used()},     {"host_bytes_total", c.host_bytes_total()},
      {"disk_bytes_used", c.disk_bytes_used()}};
}

Json scheduler_json(const gateway::ReplicaInfo& info) {
  const wire::SchedulerStats& s = info.stats.scheduler();
  return {{"name", s.name()},
          {"plans_total", s.plans_total()},
          {"refused_plans_total", s.refused_plans_total()},
          {"last_plan_us", s.last_plan_us()},
          {"dropped_total", s.dropped_total()},
          {"swaps_total", s.swaps_total()},
          {"preemptions_total", info.stats.preemptions_total()},
          {"swapped", info.stats.swapped()},
          {"loading", info.stats.loading()},
          {"stalled", s.stalled()}};
}

Json deployment_json(const fabric::Replica& replica, uint64_t now_ms) {
  const gateway::ReplicaInfo& i = replica.info();
  const auto& d = replica.deployment();
  Json worker{{"pid", i.worker_pid},
              {"state", i.worker_pid == 0 ? "gone" : gateway::to_string(i.state)},
              {"restarts", i.restarts},
              {"uptime_s", (now_ms - i.state_since_ms) / 1000},
              {"resident_bytes", i.stats.resident_bytes()}};
  return {{"name", d.name},
          {"model", d.served_names.front()},
          {"served_names", d.served_names},
          {"root", d.model},
          {"state", gateway::to_string(i.state)},
          {"reason", i.reason},
          {"progress",
           {{"phase", i.progress.phase()},
            {"done", i.progress.bytes_done()},
            {"total", i.progress.bytes_total()}}},
          {"workers", Json::array({worker})},
          {"running", i.state == gateway::ReplicaState::kReady ? i.stats.running() : 0},
          {"waiting", i.state == gateway::ReplicaState::kReady ? i.stats.waiting() : 0},
          {"in_flight", replica.in_flight()},
          {"step", i.stats.step()},
          {"groups", groups_json(i)},
          {"cache", cache_json(i)},
          {"scheduler", scheduler_json(i)},
          {"kernels", i.ready.kernels()},
          {"vocab_size", i.ready.vocab_size()},
          {"max_context", i.ready.max_context()},
          {"weight_bytes", i.ready.weight_bytes()},
          {"load_seconds", i.ready.load_seconds()}};
}

Json scan_plugins(const std::string& directory, bool trust_user) {
  const auto policy =
      trust_user ? plugin::TrustPolicy::kRootOrUser : plugin::TrustPolicy::kRootOnly;
  const auto registry = plugin::Registry::scan(directory, policy);
  if (!registry.ok())
    return {
        {"directory", directory}, {"error", registry.error().message}, {"plugins", Json::array()}};
  Json list = Json::array();
  for (const plugin::PluginRecord& r : (*registry)->records())
    list.push_back({{"name", r.name},
                    {"version", r.version},
                    {"path", r.path},
                    {"state", plugin::to_string(r.state)},
                    {"reason", r.reason},
                    {"interfaces", Json::array()}});
  return {{"directory", directory}, {"plugins", list}};
}

// Workers know what became of a plugin once its code ran; the scan here only knows what lies in the
// directory.
void merge_worker_plugins(Json& scanned, const std::vector<fabric::Replica*>& replicas) {
  for (const fabric::Replica* replica : replicas)
    for (const auto& used : replica->info().ready.plugins())
      for (Json& entry : scanned["plugins"])
        if (entry["name"] == used.name() && entry["path"] == used.path()) {
          entry["state"] = used.state();
          entry["version"] = used.version();
          entry["interfaces"] =
              std::vector<std::string>(used.interfaces().begin(), used.interfaces().end());
        }
}

Json audit_json(const std::string& name, const Result<wire::AuditReport>& result, bool drop_cache) {
  if (!result.ok())
    return {{"name", name},
            {"ok", false},
            {"answered", false},
            {"problem", result.error().message},
            {"groups", Json::array()}};
  Json groups = Json::array();
  for (const wire::AuditGroup& g : result->groups())
    groups.push_back({{"name", g.name()},
                      {"total", g.total()},
                      {"free", g.free()},
                      {"active", g.active()},
                      {"cached", g.cached()}});
  const std::string problem = audit_problem(*result, drop_cache);
  return {{"name", name},
          {"ok", problem.empty()},
          {"answered", true},
          {"problem", problem},
          {"idle", result->running() + result->waiting() == 0},
          {"running", result->running()},
          {"waiting", result->waiting()},
          {"host_bytes_used", result->host_bytes_used()},
          {"host_bytes_total", result->host_bytes_total()},
          {"groups", groups}};
}

// The answers of several workers on their way into one.
struct AuditRound {
  http::Responder responder;
  Json deployments = Json::array();
  size_t open = 0;
};

}  // namespace

Admin::Admin(Loop& loop, const config::Config& config, gateway::Gateway& gateway,
             std::vector<fabric::Replica*> replicas, AdminActions actions)
    : loop_(loop),
      config_(config),
      gateway_(gateway),
      replicas_(std::move(replicas)),
      actions_(std::move(actions)),
      slow_(loop, {.name = "slow", .threads = 1, .queue_max = 64}) {}

std::string Admin::status_json() const {
  const DaemonFacts facts = actions_.facts();
  Json deployments = Json::array();
  for (const fabric::Replica* replica : replicas_)
    deployments.push_back(deployment_json(*replica, loop_.now_ms()));
  const Json out{
      {"version", WEFT_VERSION},
      {"pid", ::getpid()},
      {"uptime_s", (loop_.now_ms() - facts.started_ms) / 1000},
      {"state", facts.state},
      {"health", gateway_.unhealthy_reason().empty() ? "ok" : gateway_.unhealthy_reason()},
      {"listen", facts.listen},
      {"deployments", deployments},
      {"requests_total", gateway_.requests_total()},
      {"requests_inflight", gateway_.in_flight()}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Admin::add(http::Router& router, const char* method, const char* pattern, Need need,
                std::function<void(http::Request&, http::Responder&)> fn) {
  router.add(
      method, pattern,
      [need, fn = std::move(fn)](http::Request request, http::Responder responder) {
        if (!request.peer.is_unix)
          return responder.send_json(
              403, error_body("the control API is served on the control socket only", "forbidden"));
        if (need == Need::kAdminister && !is_administrator(request.peer)) {
          log_warning("uid {} was refused {} {}", request.peer.uid.value_or(static_cast<uid_t>(-1)),
                      request.method, request.path);
          return responder.send_json(
              403, error_body("this needs root or the user that weftd runs as", "forbidden"));
        }
        fn(request, responder);
      });
}

void Admin::add_routes(http::Router& router) {
  add(router, "GET", "/v1/status", Need::kLook,
      [this](auto&, auto& r) { r.send_json(200, status_json()); });
  add(router, "GET", "/v1/plugins", Need::kLook, [this](auto&, auto& r) { handle_plugins(r); });
  add(router, "GET", "/v1/requests", Need::kLook, [this](auto&, auto& r) { handle_requests(r); });
  add(router, "DELETE", "/v1/requests/{id}", Need::kAdminister,
      [this](auto& q, auto& r) { handle_cancel(q, r); });
  add(router, "POST", "/v1/drain", Need::kAdminister,
      [this](auto& q, auto& r) { handle_drain(q, r); });
  add(router, "POST", "/v1/stop", Need::kAdminister, [this](auto&, auto& r) {
    send(r, 202, {{"state", "stopping"}});
    actions_.stop();
  });
  add(router, "POST", "/v1/audit", Need::kAdminister,
      [this](auto& q, auto& r) { handle_audit(q, r); });
  add(router, "POST", "/v1/config/check", Need::kLook,
      [this](auto& q, auto& r) { handle_config_check(q, r); });
}

void Admin::handle_plugins(http::Responder& responder) {
  auto carried = std::make_shared<http::Responder>(
      std::move(responder));  // the lane may refuse; then we answer
  const bool taken = slow_.compute(
      [dir = config_.daemon.plugin_dir, trust = config_.daemon.trust_user_plugins] {
        return scan_plugins(dir, trust);
      },
      [this, carried](Json scanned) {
        merge_worker_plugins(scanned, replicas_);
        send(*carried, 200, scanned);
      });
  if (!taken)
    carried->send_json(503, error_body("too many directory scans are running; try again", "busy"));
}

void Admin::handle_requests(http::Responder& responder) {
  Json list = Json::array();
  for (const gateway::GenerationView& v : gateway_.list())
    list.push_back({{"id", v.id},
                    {"model", v.model},
                    {"endpoint", v.endpoint},
                    {"state", v.state},
                    {"prompt_tokens", v.prompt_tokens},
                    {"cached_tokens", v.cached_tokens},
                    {"output_tokens", v.output_tokens},
                    {"age_ms", v.age_ms},
                    {"peer", v.peer},
                    {"tenant", v.tenant},
                    {"stream", v.stream}});
  send(responder, 200, {{"requests", list}});
}

void Admin::handle_cancel(http::Request& request, http::Responder& responder) {
  const std::string& id = request.params["id"];
  if (gateway_.cancel(id)) return send(responder, 200, {{"id", id}, {"cancelled", true}});
  responder.send_json(404,
                      error_body(fmt::format("no running request has the id {}", id), "not_found"));
}

void Admin::handle_drain(http::Request& request, http::Responder& responder) {
  int64_t deadline_ms = -1;
  if (!request.body.empty()) {
    const auto body = parse_json(request.body, {.depth_max = 4, .bytes_max = 4096});
    const JsonValue* value = body.ok() ? body->find("deadline_ms") : nullptr;
    const auto number = value == nullptr ? std::nullopt : value->as_int();
    if (!body.ok() || (value != nullptr && (!number || *number < 0)))
      return responder.send_json(400,
                                 error_body("expected {\"deadline_ms\": milliseconds}", "invalid"));
    if (number) deadline_ms = *number;
  }
  send(responder, 202, {{"state", "draining"}});
  actions_.drain(deadline_ms);
}

void Admin::handle_audit(http::Request& request, http::Responder& responder) {
  std::string model;
  bool drop_cache = false;
  if (!request.body.empty()) {
    const auto body = parse_json(request.body, {.depth_max = 4, .bytes_max = 4096});
    const JsonValue* name = body.ok() ? body->find("model") : nullptr;
    const JsonValue* drop = body.ok() ? body->find("drop_cache") : nullptr;
    if (!body.ok() || !body->is_object() || (name != nullptr && !name->is_string()) ||
        (drop != nullptr && !drop->is_bool()))
      return responder.send_json(
          400,
          error_body("expected {\"model\": \"name\", \"drop_cache\": true or false}", "invalid"));
    if (name != nullptr) model = name->as_string();
    drop_cache = drop != nullptr && drop->as_bool();
  }
  std::vector<fabric::Replica*> chosen;
  for (fabric::Replica* replica : replicas_) {
    const auto& d = replica->deployment();
    if (model.empty() || d.name == model ||
        std::find(d.served_names.begin(), d.served_names.end(), model) != d.served_names.end())
      chosen.push_back(replica);
  }
  if (chosen.empty())
    return responder.send_json(404,
                               error_body(fmt::format("there is no model {}", model), "not_found"));
  // Shared by the calls below: the last answer, whenever it comes, is the one that sends.
  auto round = std::make_shared<AuditRound>();
  round->responder = std::move(responder);
  round->open = chosen.size();
  for (fabric::Replica* replica : chosen)
    replica->audit(drop_cache, [round, name = replica->deployment().name,
                                drop_cache](const Result<wire::AuditReport>& result) {
      round->deployments.push_back(audit_json(name, result, drop_cache));
      if (--round->open != 0) return;
      bool ok = true;
      for (const Json& d : round->deployments) ok = ok && d["ok"].get<bool>();
      send(round->responder, 200, {{"ok", ok}, {"deployments", round->deployments}});
    });
}

void Admin::handle_config_check(http::Request& request, http::Responder& responder) {
  const auto body =
      parse_json(request.body, {.depth_max = 4, .bytes_max = 4 * config::kConfigBytesMax});
  const JsonValue* text = body.ok() ? body->find("text") : nullptr;
  if (text == nullptr || !text->is_string())
    return responder.send_json(400,
                               error_body("expected {\"text\": \"the TOML file\"}", "invalid"));
  const config::ParsedConfig parsed = config::parse_config(text->as_string());
  Json errors = Json::array();
  for (const auto& issue : parsed.issues)
    errors.push_back({{"line", issue.line},
                      {"column", issue.column},
                      {"message", issue.message},
                      {"hint", issue.hint}});
  send(responder, 200, {{"ok", parsed.ok()}, {"errors", errors}});
}

}  // namespace weft::admin
