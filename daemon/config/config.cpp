#include "config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "config/table_reader.h"
#include "config/units.h"

namespace weft::config {
namespace {

constexpr int64_t kDayMs = 24 * 3600 * 1000;
constexpr uint64_t kTiB = 1ull << 40;
constexpr size_t kPluginNameMax = 64;
constexpr const char* kPluginKinds[] = {"model", "kernels", "storage"};

void read_daemon(const toml::table& table, DaemonConfig& c, std::vector<ConfigIssue>& issues) {
  TableReader r(table, "daemon", issues);
  r.strings("listen", c.listen);
  r.absolute_path("socket", c.socket);
  r.absolute_path("plugin_dir", c.plugin_dir);
  r.choice("log_level", c.log_level, {"error", "warning", "notice", "info", "debug"});
  r.duration("drain_timeout", c.drain_timeout_ms, 0, kDayMs);
  r.boolean("trust_user_plugins", c.trust_user_plugins);
  constexpr size_t kUnixPathMax = 107;
  if (c.socket.size() > kUnixPathMax)
    r.report(r.node("socket")->source(),
             fmt::format("[daemon] socket: the path has {} bytes, a Unix socket takes at most {}",
                         c.socket.size(), kUnixPathMax));
  if (c.listen.empty())
    r.report(r.node("listen")->source(), "[daemon] listen: expected at least one address");
  std::set<std::string> seen;
  for (const std::string& address : c.listen)
    if (!seen.insert(address).second && !address.ends_with(":0"))
      r.report(r.node("listen")->source(),
               fmt::format("[daemon] listen: \"{}\" is named twice", address));
  for (const std::string& address : c.listen)
    if (const Status s = check_listen_address(address); !s.ok())
      r.report(r.node("listen")->source(), fmt::format("[daemon] {}", s.error().message));
  r.finish();
}

void read_http(const toml::table& table, HttpConfig& c, std::vector<ConfigIssue>& issues) {
  TableReader r(table, "http", issues);
  r.size("body_max", c.body_max_bytes, 1024, 1ull << 32);
  r.size("header_max", c.header_max_bytes, 1024, 1u << 20);
  r.size("buffered_bodies_max", c.buffered_bodies_max_bytes, 1u << 20, kTiB);
  r.integer("connections_max", c.connections_max, 1, 1'000'000);
  r.duration("header_timeout", c.header_timeout_ms, 10, kDayMs);
  r.duration("body_timeout", c.body_timeout_ms, 10, kDayMs);
  r.duration("idle_timeout", c.idle_timeout_ms, 10, kDayMs);
  r.duration("slow_reader_timeout", c.slow_reader_timeout_ms, 10, kDayMs);
  r.duration("keepalive_comment", c.keepalive_comment_ms, 10, kDayMs);
  r.finish();
}

void read_api(const toml::table& table, ApiConfig& c, std::vector<ConfigIssue>& issues) {
  TableReader r(table, "api", issues);
  r.absolute_path("key_file", c.key_file);
  r.choice("sampling_policy", c.sampling_policy, {"honour", "ignore", "reject"});
  r.integer("max_tokens_default", c.max_tokens_default, 1, 1'048'576);
  r.boolean("usage_excludes_opener", c.usage_excludes_opener);
  r.boolean("usage_moonshot_fields", c.usage_moonshot_fields);
  r.boolean("usage_in_final_choice", c.usage_in_final_choice);
  r.boolean("reasoning_alias", c.reasoning_alias);
  r.boolean("promote_orphan_response", c.promote_orphan_response);
  r.boolean("raw_special_tokens", c.raw_special_tokens);
  r.finish();
}

// Plugin settings are opaque here: the worker checks them against the plugin's own key table.
std::string scalar_text(const toml::node& node) {
  if (const auto s = node.value_exact<std::string>()) return *s;
  if (const auto i = node.value_exact<int64_t>()) return fmt::format("{}", *i);
  if (const auto d = node.value_exact<double>()) return fmt::format("{}", *d);
  if (const auto b = node.value_exact<bool>()) return *b ? "true" : "false";
  return {};
}

void read_params(TableReader& r, const std::string& where,
                 std::map<std::string, std::string>& out) {
  const toml::table* params = r.table("params");
  if (params == nullptr) return;
  for (const auto& [key, node] : *params) {
    if (node.is_table() || node.is_array())
      r.report(node.source(),
               fmt::format("[{}.params] {}: expected a single value", where, key.str()));
    else
      out[std::string(key.str())] = scalar_text(node);
  }
}

void read_plugin(const toml::table& table, const char* kind, PluginConfig& c,
                 std::vector<ConfigIssue>& issues) {
  const std::string where = fmt::format("deployment.plugins.{}", kind);
  TableReader r(table, where, issues);
  r.string("name", c.name);
  read_params(r, where, c.params);
  r.finish();
}

void read_cache(const toml::table& table, CacheConfig& c, std::vector<ConfigIssue>& issues) {
  TableReader r(table, "deployment.cache", issues);
  r.boolean("prefix_cache", c.prefix_cache);
  r.size("host_memory", c.host_memory_bytes, 0, 1024 * kTiB);
  r.absolute_path("disk_dir", c.disk_dir);
  r.size("disk_size", c.disk_bytes, 0, 1024 * kTiB);
  r.integer("snapshots", c.snapshots, 0, 1'000'000);
  const auto at = [&](const char* key) { return r.node(key)->source(); };
  if (!c.prefix_cache)
    for (const char* key : {"host_memory", "disk_dir", "disk_size", "snapshots"})
      if (r.has(key))
        r.report(at(key), fmt::format("[deployment.cache] {}: needs prefix_cache = true", key));
  if (c.prefix_cache && !c.disk_dir.empty() && c.disk_bytes == 0)
    r.report(at("disk_dir"), "[deployment.cache] disk_dir: the size is missing",
             "add disk_size = \"100GiB\"");
  if (c.prefix_cache && !c.disk_dir.empty() && c.host_memory_bytes == 0)
    r.report(
        at("disk_dir"),
        "[deployment.cache] disk_dir: the disk lies below the tier in host memory, which is off",
        "add host_memory = \"4GiB\"");
  if (c.prefix_cache && c.disk_dir.empty() && c.disk_bytes > 0)
    r.report(at("disk_size"), "[deployment.cache] disk_size: the directory is missing",
             "add disk_dir = \"/var/cache/weft\"");
  r.finish();
}

void read_scheduler(const toml::table& table, SchedulerConfig& c,
                    std::vector<ConfigIssue>& issues) {
  TableReader r(table, "deployment.scheduler", issues);
  r.string("policy", c.policy);
  r.duration("itl_target", c.itl_target_ms, 0, 60'000);
  r.integer("prefill_chunk", c.prefill_chunk, 0, 1 << 20);
  r.absolute_path("trace", c.trace);
  r.integer("seed", c.seed, 0, INT64_MAX);
  read_params(r, "deployment.scheduler", c.params);
  const bool plain = std::all_of(c.policy.begin(), c.policy.end(), [](char ch) {
    return std::isalnum(static_cast<unsigned char>(ch)) || ch == '_' || ch == '-';
  });
  if (!plain || c.policy.size() > kPluginNameMax)
    r.report(r.node("policy")->source(),
             fmt::format("[deployment.scheduler] policy: expected \"continuous\", \"fcfs\", "
                         "\"builtin\" or the name of a scheduler plugin, got \"{}\"",
                         c.policy));
  if (c.policy == "builtin" && !c.params.empty())
    r.report(r.node("params")->source(),
             "[deployment.scheduler] params: the built-in policy has none",
             "they belong to a plugin; name one as policy");
  r.finish();
}

void read_plugins(const toml::table& table, DeploymentConfig& c, std::vector<ConfigIssue>& issues) {
  TableReader r(table, "deployment.plugins", issues);
  for (const char* kind : kPluginKinds)
    if (const toml::table* t = r.table(kind)) read_plugin(*t, kind, c.plugins[kind], issues);
  r.finish();
}

// Names appear in URLs, logs, metrics and file names.
bool is_plain_name(std::string_view name) {
  constexpr size_t kNameMax = 128;
  return !name.empty() && name.size() <= kNameMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) ||
                  std::string_view("-_./:@").find(c) != std::string_view::npos;
         });
}

void check_deployment(TableReader& r, const DeploymentConfig& c) {
  const auto at = [&](const char* key) { return r.node(key)->source(); };
  if (r.has("name") && !is_plain_name(c.name))
    r.report(at("name"), "[deployment] name: expected 1 to 128 letters, digits or - _ . / : @");
  for (const std::string& name : c.served_names)
    if (r.has("served_names") && !is_plain_name(name))
      r.report(at("served_names"),
               "[deployment] served_names: expected 1 to 128 letters, digits or - _ . / : @");
  if (c.restart_backoff_ms > c.restart_backoff_max_ms)
    r.report_here(
        fmt::format("[deployment] restart_backoff ({} ms) is above restart_backoff_max ({} ms)",
                    c.restart_backoff_ms, c.restart_backoff_max_ms));
}

void read_deployment(const toml::table& table, DeploymentConfig& c,
                     std::vector<ConfigIssue>& issues) {
  TableReader r(table, "deployment", issues);
  r.string("name", c.name);
  r.absolute_path("model", c.model);
  r.strings("served_names", c.served_names);
  r.integer("max_sequences", c.max_sequences, 1, 4096);
  r.integer("max_batch_tokens", c.max_batch_tokens, 1, 1 << 20);
  r.integer("max_context", c.max_context, 0, 1 << 24);
  r.integer("max_waiting", c.max_waiting, 0, 1'000'000);
  r.size("memory", c.memory_bytes, 0, 1024 * kTiB);
  r.integer("threads", c.threads, 0, 4096);
  r.boolean("deterministic", c.deterministic);
  r.choice("isa_max", c.isa_max, {"", "ref", "avx2", "avx512", "avx512_bf16", "amx"});
  r.duration("restart_backoff", c.restart_backoff_ms, 10, kDayMs);
  r.duration("restart_backoff_max", c.restart_backoff_max_ms, 10, kDayMs);
  r.duration("stall_timeout", c.stall_timeout_ms, 100, kDayMs);
  if (const toml::table* cache = r.table("cache")) read_cache(*cache, c.cache, issues);
  if (const toml::table* scheduler = r.table("scheduler"))
    read_scheduler(*scheduler, c.scheduler, issues);
  if (const toml::table* plugins = r.table("plugins")) read_plugins(*plugins, c, issues);
  if (!r.has("name")) r.report_here("[deployment] name is missing", "add name = \"my-model\"");
  if (!r.has("model"))
    r.report_here("[deployment] model is missing", "add model = \"/path/to/checkpoint\"");
  if (c.served_names.empty()) c.served_names = {c.name};
  check_deployment(r, c);
  r.finish();
}

void read_deployments(const toml::array& list, Config& config, std::vector<ConfigIssue>& issues) {
  std::set<std::string> names, served;
  for (const toml::node& node : list) {
    DeploymentConfig c;
    read_deployment(*node.as_table(), c, issues);
    const auto at = node.source().begin;
    if (!c.name.empty() && !names.insert(c.name).second)
      issues.push_back({at.line, at.column,
                        fmt::format("[deployment] name \"{}\" is used twice", c.name),
                        "names are unique"});
    for (const std::string& name : c.served_names)
      if (!name.empty() && !served.insert(name).second)
        issues.push_back({at.line, at.column,
                          fmt::format("[deployment] served name \"{}\" is used twice", name),
                          "each served name belongs to one deployment"});
    config.deployments.push_back(std::move(c));
  }
}

void read_root(const toml::table& root, ParsedConfig& out) {
  TableReader r(root, "top level", out.issues);
  if (const auto* t = r.table("daemon")) read_daemon(*t, out.config.daemon, out.issues);
  if (const auto* t = r.table("http")) read_http(*t, out.config.http, out.issues);
  if (const auto* t = r.table("api")) read_api(*t, out.config.api, out.issues);
  if (const auto* list = r.tables("deployment")) read_deployments(*list, out.config, out.issues);
  r.finish();
}

}  // namespace

std::string ConfigIssue::to_string(std::string_view path) const {
  return fmt::format("{}:{}:{}: {}{}", path, line, column, message,
                     hint.empty() ? "" : fmt::format(" ({})", hint));
}

ParsedConfig parse_config(std::string_view text) {
  ParsedConfig out;
  if (text.size() > kConfigBytesMax) {
    out.issues.push_back(
        {1, 1, fmt::format("file of {} bytes, expected at most {}", text.size(), kConfigBytesMax),
         ""});
    return out;
  }
  try {
    const toml::table root = toml::parse(text);
    read_root(root, out);
  } catch (const toml::parse_error& e) {
    const auto at = e.source().begin;
    out.issues.push_back(
        {at.line, at.column, fmt::format("not valid TOML: {}", e.description()), ""});
  }
  return out;
}

DeploymentConfig direct_deployment(std::string_view model_dir) {
  namespace fs = std::filesystem;
  DeploymentConfig c;
  std::error_code ignored;
  const fs::path path = fs::weakly_canonical(fs::path(std::string(model_dir)), ignored);
  c.model = path.string();
  c.name =
      path.filename().empty() ? path.parent_path().filename().string() : path.filename().string();
  if (c.name.empty()) c.name = "model";
  c.served_names = {c.name};
  return c;
}

}  // namespace weft::config
