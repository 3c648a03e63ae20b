#include "main/options.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <sstream>

#include "base/paths.h"
#include "config/key_file.h"
#include "config/units.h"

namespace weft {
namespace {

struct Flags {
  std::string config, model, name, socket, plugin_dir, isa_max, log_level, api_key_file;
  std::vector<std::string> listen;
  int64_t threads = -1, max_sequences = -1, max_context = -1, max_batch_tokens = -1;
  std::string memory;
  bool trust_user_plugins = false, check = false, deterministic = false, no_prefix_cache = false;
};

OptionsOutcome refuse(int code, std::string text) {
  OptionsOutcome out;
  out.exit_code = code;
  out.text = std::move(text);
  return out;
}

std::string read_file(const std::string& path, std::string* error) {
  std::string text;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             std::fclose);
  char buffer[64 << 10];
  size_t n = 0;
  while (file != nullptr && (n = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) {
    text.append(buffer, n);
    if (text.size() > config::kConfigBytesMax) {
      *error = fmt::format("{} is larger than {} bytes: is it a configuration file?", path,
                           config::kConfigBytesMax);
      return {};
    }
  }
  if (file == nullptr || std::ferror(file.get()) != 0)
    *error = fmt::format("cannot read {}: {} (give the right path with --config)", path,
                         std::strerror(errno));
  return text;
}

// Plugins beside the binary are as trustworthy as the binary itself when the same user owns both.
bool owns_binary_dir() {
  std::error_code ec;
  struct stat st {};
  return stat(executable_dir().c_str(), &st) == 0 && st.st_uid == geteuid();
}

std::string apply_flags(const Flags& f, Options& o) {
  config::Config& c = o.config;
  if (!f.model.empty()) {
    config::DeploymentConfig d = config::direct_deployment(f.model);
    if (!f.name.empty()) {
      d.name = f.name;
      d.served_names = {f.name};
    }
    if (f.threads >= 0) d.threads = f.threads;
    if (f.max_sequences > 0) d.max_sequences = f.max_sequences;
    if (f.max_context > 0) d.max_context = f.max_context;
    if (f.max_batch_tokens > 0) d.max_batch_tokens = f.max_batch_tokens;
    d.isa_max = f.isa_max;
    d.deterministic = f.deterministic;
    d.cache.prefix_cache = !f.no_prefix_cache;
    if (!f.memory.empty()) {
      const auto bytes = config::parse_size(f.memory);
      if (!bytes) return fmt::format("--memory {}: expected a size such as 8GiB", f.memory);
      d.memory_bytes = *bytes;
    }
    c.deployments.push_back(std::move(d));
  }
  if (!f.listen.empty()) c.daemon.listen = f.listen;
  for (const std::string& address : c.daemon.listen)
    if (const Status s = config::check_listen_address(address); !s.ok()) return s.error().message;
  if (!f.socket.empty())
    c.daemon.socket = std::filesystem::absolute(f.socket).string();
  else if (o.config_path.empty())
    c.daemon.socket = writable_control_socket();
  if (!f.plugin_dir.empty()) c.daemon.plugin_dir = std::filesystem::absolute(f.plugin_dir).string();
  if (!f.api_key_file.empty()) c.api.key_file = std::filesystem::absolute(f.api_key_file).string();
  if (!f.log_level.empty()) c.daemon.log_level = f.log_level;
  if (f.trust_user_plugins) c.daemon.trust_user_plugins = true;
  if (c.daemon.plugin_dir.empty()) {
    c.daemon.plugin_dir =
        (std::filesystem::path(executable_dir()).parent_path() / "lib/weft/plugins").string();
    if (owns_binary_dir()) c.daemon.trust_user_plugins = true;
  }
  return {};
}

void declare(CLI::App& app, Flags& f) {
  auto* config = app.add_option("-c,--config", f.config, "Configuration file (TOML)");
  auto* model = app.add_option("-m,--model", f.model,
                               "Serve this checkpoint directory, without a configuration file");
  config->excludes(model);
  app.add_option(
      "-l,--listen", f.listen,
      "ADDRESS:PORT, [IPV6]:PORT or unix:/PATH; may be repeated (default 127.0.0.1:8000)");
  app.add_option("--socket", f.socket, "Control socket for weftctl");
  app.add_option("--name", f.name, "Model name for clients (default: the directory's name)")
      ->needs(model);
  app.add_option("--threads", f.threads, "Kernel threads (default: all cores)")
      ->needs(model)
      ->check(CLI::Range(0, 4096));
  app.add_option("--max-sequences", f.max_sequences, "Sequences in one batch")
      ->needs(model)
      ->check(CLI::Range(1, 4096));
  app.add_option("--max-batch-tokens", f.max_batch_tokens, "Rows of one step")
      ->needs(model)
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--max-context", f.max_context, "Longest prompt plus output, in tokens")
      ->needs(model)
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--memory", f.memory, "Memory for caches, such as 8GiB")->needs(model);
  app.add_option("--isa-max", f.isa_max, "Highest instruction set for kernels")
      ->needs(model)
      ->check(CLI::IsMember({"ref", "avx2", "avx512", "avx512_bf16", "amx"}));
  app.add_flag("--deterministic", f.deterministic,
               "The same bits however prompts are cut into steps; prompts run slower")
      ->needs(model);
  app.add_flag("--no-prefix-cache", f.no_prefix_cache, "Compute every prompt from its beginning")
      ->needs(model);
  app.add_option("--plugin-dir", f.plugin_dir,
                 "Plugin directory (default: ../lib/weft/plugins beside the program)");
  app.add_option("--api-key-file", f.api_key_file, "Ask clients for one of the keys in this file");
  app.add_option("--log-level", f.log_level, "error, warning, notice, info or debug")
      ->check(CLI::IsMember({"error", "warning", "notice", "info", "debug"}));
  app.add_flag("--trust-user-plugins", f.trust_user_plugins,
               "Development: also load plugins owned by the current user");
  app.add_flag("--check", f.check, "Check the configuration and leave");
  app.set_version_flag("--version", std::string("weftd ") + WEFT_VERSION);
}

}  // namespace

OptionsOutcome parse_options(int argc, const char* const* argv) {
  CLI::App app("weftd: LLM serving daemon", "weftd");
  Flags f;
  declare(app, f);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::ostringstream out, err;
    const int code = app.exit(e, out, err);
    return refuse(code == 0 ? kExitOk : kExitUsage, out.str() + err.str());
  }
  if (f.config.empty() && f.model.empty())
    return refuse(kExitUsage,
                  "weftd: nothing to serve: give --model DIR or --config FILE (see --help)\n");
  OptionsOutcome out;
  Options& o = out.options;
  o.check_only = f.check;
  if (!f.config.empty()) {
    std::string error;
    o.config_path = f.config;
    const std::string text = read_file(f.config, &error);
    if (!error.empty()) return refuse(kExitConfig, "weftd: " + error + "\n");
    config::ParsedConfig parsed = config::parse_config(text);
    if (!parsed.ok()) {
      std::string all;
      for (const config::ConfigIssue& issue : parsed.issues)
        all += issue.to_string(f.config) + "\n";
      return refuse(kExitConfig, all);
    }
    o.config = std::move(parsed.config);
  }
  if (const std::string problem = apply_flags(f, o); !problem.empty())
    return refuse(kExitUsage, "weftd: " + problem + "\n");
  if (f.check && !o.config.api.key_file.empty())
    if (const auto keys = config::load_key_file(o.config.api.key_file); !keys.ok())
      return refuse(kExitConfig, "weftd: " + keys.error().message + "\n");
  if (f.check)
    return refuse(kExitOk, fmt::format("{}: ok\n", f.config.empty() ? "command line" : f.config));
  out.run = true;
  return out;
}

}  // namespace weft
