// The command line of weftd: what it refuses, with which exit code, and what a good one becomes.
#include "main/options.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "temp_dir.h"

using namespace weft;  // NOLINT test file

namespace {

OptionsOutcome parse(std::vector<std::string> args) {
  std::vector<const char*> argv{"weftd"};
  for (const std::string& a : args) argv.push_back(a.c_str());
  return parse_options(static_cast<int>(argv.size()), argv.data());
}

void refused(const std::vector<std::string>& args, int code, const std::string& needle) {
  const OptionsOutcome out = parse(args);
  std::string line;
  for (const std::string& a : args) line += " " + a;
  CAPTURE(line);
  CHECK_FALSE(out.run);
  CHECK(out.exit_code == code);
  CHECK_MESSAGE(out.text.find(needle) != std::string::npos, out.text);
}

const char* const kGoodConfig = R"(
[daemon]
listen = ["127.0.0.1:9001"]

[[deployment]]
name = "tiny"
model = "/models/tiny"
)";

}  // namespace

TEST_CASE("without anything to serve weftd says what to give it") {
  refused({}, kExitUsage, "--model DIR or --config FILE");
  refused({"--listen", "127.0.0.1:1"}, kExitUsage, "nothing to serve");
}

TEST_CASE("help and version are no failures") {
  refused({"--help"}, kExitOk, "--model");
  refused({"--version"}, kExitOk, std::string("weftd ") + WEFT_VERSION);
}

TEST_CASE("wrong flags, conflicts and values are usage errors") {
  refused({"--model", "/m", "--no-such-flag"}, kExitUsage, "no-such-flag");
  refused({"--model", "/m", "--config", "/c.toml"}, kExitUsage, "exclude");
  refused({"--config", "/c.toml", "--name", "x"}, kExitUsage, "--model");
  refused({"--config", "/c.toml", "--threads", "2"}, kExitUsage, "--model");
  refused({"--model", "/m", "--threads", "many"}, kExitUsage, "threads");
  refused({"--model", "/m", "--threads", "-1"}, kExitUsage, "threads");
  refused({"--model", "/m", "--max-sequences", "0"}, kExitUsage, "max-sequences");
  refused({"--model", "/m", "--isa-max", "mmx"}, kExitUsage, "isa-max");
  refused({"--model", "/m", "--log-level", "loud"}, kExitUsage, "log-level");
  refused({"--model", "/m", "--memory", "8 potatoes"}, kExitUsage, "--memory 8 potatoes");
  refused({"--model", "/m", "--listen", "nowhere"}, kExitUsage, "nowhere");
  refused({"--model"}, kExitUsage, "--model");
}

TEST_CASE("flags of direct use become one deployment") {
  const TempDir dir;
  const OptionsOutcome out = parse({"-m",
                                    dir.path(),
                                    "-l",
                                    "127.0.0.1:0",
                                    "-l",
                                    "unix:/tmp/x.sock",
                                    "--socket",
                                    "rel.sock",
                                    "--name",
                                    "short",
                                    "--threads",
                                    "3",
                                    "--max-sequences",
                                    "5",
                                    "--max-batch-tokens",
                                    "64",
                                    "--max-context",
                                    "4096",
                                    "--memory",
                                    "2GiB",
                                    "--deterministic",
                                    "--isa-max",
                                    "avx2",
                                    "--plugin-dir",
                                    "/plugins",
                                    "--log-level",
                                    "debug",
                                    "--trust-user-plugins"});
  REQUIRE_MESSAGE(out.run, out.text);
  const config::Config& c = out.options.config;
  REQUIRE(c.deployments.size() == 1);
  const config::DeploymentConfig& d = c.deployments[0];
  CHECK(d.name == "short");
  CHECK(d.served_names == std::vector<std::string>{"short"});
  CHECK(d.model == dir.path());
  CHECK(d.threads == 3);
  CHECK(d.max_sequences == 5);
  CHECK(d.max_batch_tokens == 64);
  CHECK(d.max_context == 4096);
  CHECK(d.memory_bytes == 2ull << 30);
  CHECK(d.deterministic);
  CHECK(d.isa_max == "avx2");
  CHECK(c.daemon.listen == std::vector<std::string>{"127.0.0.1:0", "unix:/tmp/x.sock"});
  CHECK(std::filesystem::path(c.daemon.socket).is_absolute());
  CHECK(std::filesystem::path(c.daemon.socket).filename() == "rel.sock");
  CHECK(c.daemon.plugin_dir == "/plugins");
  CHECK(c.daemon.log_level == "debug");
  CHECK(c.daemon.trust_user_plugins);
  CHECK(out.options.config_path.empty());
}

TEST_CASE("prefixes can be turned off, and a check reads the key file") {
  const TempDir dir;
  CHECK(parse({"--model", dir.path()}).options.config.deployments[0].cache.prefix_cache);
  CHECK_FALSE(parse({"--model", dir.path(), "--no-prefix-cache"})
                  .options.config.deployments[0]
                  .cache.prefix_cache);
  const std::string keys = dir.file("keys");
  std::ofstream(keys) << "sk-secret-1 acme x\n";
  refused({"--model", dir.path(), "--api-key-file", keys.c_str(), "--check"}, kExitConfig,
          ":1: expected a weight");
  std::ofstream(keys) << "sk-secret-1 acme 2\n";
  CHECK(parse({"--model", dir.path(), "--api-key-file", keys.c_str(), "--check"}).exit_code ==
        kExitOk);
}

TEST_CASE("direct use without flags has defaults that work") {
  const OptionsOutcome out = parse({"--model", "/models/tiny-model"});
  REQUIRE(out.run);
  const config::Config& c = out.options.config;
  CHECK(c.deployments.at(0).served_names.at(0) == "tiny-model");
  CHECK(c.deployments.at(0).threads == 0);
  CHECK(c.daemon.listen == std::vector<std::string>{"127.0.0.1:8000"});
  CHECK(std::filesystem::path(c.daemon.plugin_dir).is_absolute());
  CHECK(!c.daemon.socket.empty());
}

TEST_CASE("a configuration file is read, and flags go over it") {
  const TempDir dir;
  const std::string path = dir.write("weft.toml", kGoodConfig);
  const OptionsOutcome plain = parse({"--config", path});
  REQUIRE_MESSAGE(plain.run, plain.text);
  CHECK(plain.options.config_path == path);
  CHECK(plain.options.config.deployments.at(0).name == "tiny");
  CHECK(plain.options.config.daemon.listen == std::vector<std::string>{"127.0.0.1:9001"});
  CHECK(plain.options.config.daemon.socket == "/run/weft/weft.sock");
  const OptionsOutcome over =
      parse({"--config", path, "--listen", "127.0.0.1:9002", "--log-level", "error"});
  REQUIRE(over.run);
  CHECK(over.options.config.daemon.listen == std::vector<std::string>{"127.0.0.1:9002"});
  CHECK(over.options.config.daemon.log_level == "error");
}

TEST_CASE("a configuration that cannot be used leaves with EX_CONFIG") {
  const TempDir dir;
  refused({"--config", dir.file("missing.toml")}, kExitConfig, "missing.toml");
  refused({"--config", dir.path()}, kExitConfig, dir.path());
  const std::string broken = dir.write("broken.toml", "[daemon\n");
  refused({"--config", broken}, kExitConfig, broken + ":1:");
  const std::string unknown = dir.write(
      "unknown.toml", std::string(kGoodConfig) + "\n[api]\nno_such_key = 1\nsampling_policy = 3\n");
  refused({"--config", unknown}, kExitConfig, "no_such_key");
  refused({"--config", unknown}, kExitConfig,
          "sampling_policy");  // all issues, not the first alone
}

TEST_CASE("--check only checks") {
  const TempDir dir;
  const std::string good = dir.write("weft.toml", kGoodConfig);
  refused({"--config", good, "--check"}, kExitOk, "ok");
  refused({"--config", dir.write("bad.toml", "x = 1\n"), "--check"}, kExitConfig, "x");
  refused({"--model", "/m", "--check"}, kExitOk, "ok");
}
