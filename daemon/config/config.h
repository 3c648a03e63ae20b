// Config: everything an operator can set, as typed values with their defaults. One struct per TOML
// table.
//
// Built once at start by parse_config (or from command-line flags), then read only; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weft::config {

struct DaemonConfig {
  std::vector<std::string> listen{"127.0.0.1:8000"};  // "ADDR:PORT", "[V6]:PORT" or "unix:/PATH"
  std::string socket = "/run/weft/weft.sock";         // control socket
  std::string plugin_dir;                             // empty: beside the installed binaries
  std::string log_level = "info";
  int64_t drain_timeout_ms = 30'000;
  bool trust_user_plugins = false;  // development: plugins owned by the current user load too
};

struct HttpConfig {
  uint64_t body_max_bytes = 64ull << 20;
  uint64_t header_max_bytes = 32ull << 10;
  uint64_t buffered_bodies_max_bytes = 512ull << 20;
  int64_t connections_max = 4096;
  int64_t header_timeout_ms = 10'000;
  int64_t body_timeout_ms = 30'000;
  int64_t idle_timeout_ms = 75'000;
  int64_t slow_reader_timeout_ms = 60'000;
  int64_t keepalive_comment_ms = 15'000;
};

struct ApiConfig {
  std::string key_file;                    // see config/key_file.h; empty: no key is asked for
  std::string sampling_policy = "honour";  // honour | ignore | reject
  int64_t max_tokens_default = 131'072;
  bool usage_excludes_opener = true;
  bool usage_moonshot_fields = true;
  bool usage_in_final_choice = false;
  bool reasoning_alias = false;
  bool promote_orphan_response = true;
  bool raw_special_tokens = true;  // spellings in /v1/completions prompts and /tokenize are special
};

struct PluginConfig {
  std::string name;  // empty: the best one that accepts
  std::map<std::string, std::string>
      params;  // checked against the plugin's key table by the worker
};

// What is kept of the caches of finished requests, and where.
struct CacheConfig {
  bool prefix_cache = true;
  uint64_t host_memory_bytes = 0;  // second tier; 0: none
  std::string disk_dir;            // third tier; empty: none
  uint64_t disk_bytes = 0;
  int64_t snapshots = 0;  // states kept beyond those of running sequences; 0: chosen by the worker
};

// Who runs in a step, and how much of it.
struct SchedulerConfig {
  std::string policy;         // "", "continuous", "fcfs", "builtin" or a plugin's name
  int64_t itl_target_ms = 0;  // wished time between tokens; 0: no guard
  int64_t prefill_chunk = 0;  // most prompt tokens of one sequence in a step; 0: the step's limit
  std::string trace;          // file that records every view and plan; empty: none
  int64_t seed = 0;
  std::map<std::string, std::string> params;  // checked by the worker
  // Name of the plugin behind `policy`: "" for the worker's choice, "builtin" for none.
  std::string plugin() const {
    return policy == "continuous" || policy == "fcfs" ? "scheduler_" + policy : policy;
  }
};

struct DeploymentConfig {
  std::string name;
  std::string model;                      // absolute path of a checkpoint directory
  std::vector<std::string> served_names;  // empty: the deployment's name
  int64_t max_sequences = 64;
  int64_t max_batch_tokens = 512;
  int64_t max_context = 0;  // 0: the model's
  int64_t max_waiting = 1024;
  uint64_t memory_bytes = 0;   // caches; 0: chosen by the worker
  int64_t threads = 0;         // kernel threads; 0: all cores
  bool deterministic = false;  // any split of a sequence gives the same bits; prompts run slower
  std::string isa_max;         // "", "ref", "avx2", "avx512", "avx512_bf16", "amx"
  int64_t restart_backoff_ms = 500;
  int64_t restart_backoff_max_ms = 30'000;
  int64_t stall_timeout_ms =
      120'000;  // busy without progress for this long: the worker is restarted
  CacheConfig cache;
  SchedulerConfig scheduler;
  std::map<std::string, PluginConfig> plugins;  // by kind: model, kernels, storage
};

struct Config {
  DaemonConfig daemon;
  HttpConfig http;
  ApiConfig api;
  std::vector<DeploymentConfig> deployments;
};

// One complaint about a file, in the form editors understand: path:line:column: message (hint).
struct ConfigIssue {
  uint32_t line = 0;
  uint32_t column = 0;
  std::string message;
  std::string hint;
  std::string to_string(std::string_view path) const;
};

struct ParsedConfig {
  Config config;
  std::vector<ConfigIssue> issues;  // empty: config is usable
  bool ok() const { return issues.empty(); }
};

constexpr size_t kConfigBytesMax = 1u << 20;

// Unknown keys, wrong types and values out of range are issues with line, column and the nearest
// valid key. All issues of a file are reported, not only the first.
ParsedConfig parse_config(std::string_view toml_text);

// The deployment that `weftd --model DIR` stands for.
DeploymentConfig direct_deployment(std::string_view model_dir);

}  // namespace weft::config
