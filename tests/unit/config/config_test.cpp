#include "config/config.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "config/key_file.h"
#include "config/units.h"

using namespace weft::config;

namespace {

std::string only_issue(std::string_view text) {
  const ParsedConfig parsed = parse_config(text);
  if (parsed.issues.size() != 1) return "issues: " + std::to_string(parsed.issues.size());
  return parsed.issues[0].to_string("weft.toml");
}

}  // namespace

TEST_CASE("a full deployment is read") {
  const auto p = parse_config(R"(
[daemon]
listen = ["0.0.0.0:80", "unix:/run/weft/http.sock", "[::1]:0"]
drain_timeout = "2m"
[http]
body_max = "8MiB"
[[deployment]]
name = "k3"
model = "/models/k3"
served_names = ["kimi-k3", "k3"]
memory = "2G"
[deployment.plugins.model]
name = "model_kimi"
params = { kda_chunk = 64, exact = true }
)");
  REQUIRE(p.ok());
  CHECK(p.config.daemon.listen.size() == 3);
  CHECK(p.config.daemon.drain_timeout_ms == 120'000);
  CHECK(p.config.http.body_max_bytes == 8u << 20);
  REQUIRE(p.config.deployments.size() == 1);
  const DeploymentConfig& d = p.config.deployments[0];
  CHECK(d.memory_bytes == 2ull << 30);
  CHECK(d.plugins.at("model").params.at("kda_chunk") == "64");
  CHECK(d.plugins.at("model").params.at("exact") == "true");
}

TEST_CASE("unknown keys are errors with line, column and the nearest key") {
  CHECK(only_issue("[http]\n  body_mx = 1\n") ==
        "weft.toml:2:3: [http] unknown key \"body_mx\" (did you mean \"body_max\"?)");
  CHECK(only_issue("[deamon]\n") ==
        "weft.toml:1:2: [top level] unknown key \"deamon\" (did you mean \"daemon\"?)");
  CHECK(only_issue("[http]\nzzz = 1\n").find("valid keys: body_max,") != std::string::npos);
}

TEST_CASE("bad values say what was expected and what came") {
  CHECK(only_issue("[http]\nbody_max = true\n") ==
        "weft.toml:2:12: [http] body_max: expected a size such as \"64MiB\" or a number of bytes, "
        "got a boolean");
  CHECK(only_issue("[http]\nconnections_max = 0\n") ==
        "weft.toml:2:19: [http] connections_max: expected 1 to 1000000, got 0");
  CHECK(only_issue("[http]\nidle_timeout = 5\n").find("expected a duration such as") !=
        std::string::npos);
  CHECK(only_issue("[api]\nsampling_policy = \"honor\"\n").find("(honour)") != std::string::npos);
  CHECK(
      only_issue("[daemon]\nlisten = [\"::1:8000\"]\n").find("write IPv6 addresses in brackets") !=
      std::string::npos);
  CHECK(only_issue("[daemon]\nsocket = \"x.sock\"\n").find("expected an absolute path") !=
        std::string::npos);
  CHECK(only_issue("[daemon]\nlisten = 3\n").find("expected an array of strings, got an integer") !=
        std::string::npos);
  CHECK(only_issue("deployment = 3\n").find("[[deployment]] tables") != std::string::npos);
}

TEST_CASE("addresses, paths and names that cannot work are found before the start") {
  const auto says = [](std::string_view text, std::string_view part) {
    CAPTURE(text);
    CHECK(only_issue(text).find(part) != std::string::npos);
  };
  says("[daemon]\nlisten = [\"1.2.3:80\"]\n", "\"1.2.3\" is not an IP address");
  says("[daemon]\nlisten = [\"example.com:80\"]\n", "is not an IP address");
  says("[daemon]\nlisten = []\n", "at least one address");
  says("[daemon]\nlisten = [\"[::1]:80\", \"[::1]:80\"]\n", "is named twice");
  says("[daemon]\nsocket = \"/" + std::string(120, 'x') + "\"\n", "at most 107");
  says("[[deployment]]\nname = \"a b\"\nmodel = \"/m\"\n", "name: expected 1 to 128");
  says("[[deployment]]\nname = \"\"\nmodel = \"/m\"\n", "name: expected 1 to 128");
  says("[[deployment]]\nname = \"a\"\nmodel = \"/m\"\nrestart_backoff = \"1m\"\n",
       "is above restart_backoff_max");
  says("[http]\nbody_max = \"12 parsecs\"\n", "got \"12 parsecs\"");
  CHECK(parse_config("[daemon]\nlisten = [\"127.0.0.1:0\", \"127.0.0.1:0\", \"localhost:80\"]\n")
            .ok());
}

TEST_CASE("syntax errors carry their place") {
  CHECK(only_issue("[http\nbody_max = 1").starts_with("weft.toml:1:6: not valid TOML:"));
}

TEST_CASE("all issues are reported, and deployments are checked against each other") {
  const auto p = parse_config(
      "[http]\na = 1\nb = 2\n[[deployment]]\nname = \"x\"\n[[deployment]]\nname = \"x\"\nmodel = "
      "\"/m\"\n");
  CHECK(p.issues.size() == 5);  // a, b, missing model, name twice, served name twice
}

TEST_CASE("oversized files are refused") {
  CHECK(!parse_config(std::string(kConfigBytesMax + 1, '#')).ok());
}

TEST_CASE("the shipped example is valid and shows every key") {
  std::ifstream in(WEFT_SOURCE_DIR "/etc/weft.toml");
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  REQUIRE(!text.empty());
  const auto p = parse_config(text);
  for (const auto& issue : p.issues) MESSAGE(issue.to_string("etc/weft.toml"));
  CHECK(p.ok());
  // Uncommenting every commented setting must still give a valid file: the comments cannot go
  // stale.
  std::string all;
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find('\n', start), text.size());
    std::string line = text.substr(start, end - start);
    if (line.starts_with("#") && !line.starts_with("# ") && line != "#") line.erase(0, 1);
    all += line + "\n";
    start = end + 1;
  }
  const auto full = parse_config(all);
  for (const auto& issue : full.issues) MESSAGE(issue.to_string("etc/weft.toml, uncommented"));
  CHECK(full.ok());
  CHECK(full.config.deployments.size() == 1);
}

TEST_CASE("units") {
  CHECK(parse_size("64MiB") == 64u << 20);
  CHECK(parse_size("1GB") == 1'000'000'000u);
  CHECK(parse_size("12") == 12u);
  CHECK(!parse_size("12 parsecs"));
  CHECK(!parse_size("-1"));
  CHECK(!parse_size("99999999999999T"));
  CHECK(parse_duration_ms("1m") == 60'000);
  CHECK(!parse_duration_ms("1"));
  CHECK(edit_distance("kitten", "sitting") == 3);
}

TEST_CASE("direct use names the deployment after the directory") {
  CHECK(direct_deployment("/a/b/micro-k3/").name == "micro-k3");
  CHECK(direct_deployment("/a/b/micro-k3").served_names == std::vector<std::string>{"micro-k3"});
}

TEST_CASE("cache and scheduler of a deployment") {
  const std::string head = "[[deployment]]\nname = \"a\"\nmodel = \"/m\"\n";
  const auto plain = parse_config(head);
  REQUIRE(plain.ok());
  CHECK(plain.config.deployments[0].cache.prefix_cache);
  CHECK(plain.config.deployments[0].scheduler.plugin().empty());
  const auto p = parse_config(head + R"(
[deployment.cache]
host_memory = "4GiB"
disk_dir = "/var/cache/weft"
disk_size = "1TiB"
snapshots = 12
[deployment.scheduler]
policy = "continuous"
itl_target = "40ms"
prefill_chunk = 256
trace = "/tmp/plans"
seed = 7
params = { quantum = 64 }
)");
  for (const auto& issue : p.issues) MESSAGE(issue.to_string("weft.toml"));
  REQUIRE(p.ok());
  const DeploymentConfig& d = p.config.deployments[0];
  CHECK(d.cache.host_memory_bytes == 4ull << 30);
  CHECK(d.cache.disk_dir == "/var/cache/weft");
  CHECK(d.cache.disk_bytes == 1ull << 40);
  CHECK(d.cache.snapshots == 12);
  CHECK(d.scheduler.plugin() == "scheduler_continuous");
  CHECK(d.scheduler.itl_target_ms == 40);
  CHECK(d.scheduler.prefill_chunk == 256);
  CHECK(d.scheduler.trace == "/tmp/plans");
  CHECK(d.scheduler.seed == 7);
  CHECK(d.scheduler.params.at("quantum") == "64");
  SchedulerConfig other;
  other.policy = "builtin";
  CHECK(other.plugin() == "builtin");
  other.policy = "my_policy";
  CHECK(other.plugin() == "my_policy");

  const auto says = [&](const std::string& text, std::string_view part) {
    CAPTURE(text);
    CHECK(only_issue(head + text).find(part) != std::string::npos);
  };
  says("[deployment.cache]\nprefix_cach = true\n", "did you mean \"prefix_cache\"?");
  says("[deployment.cache]\nprefix_cache = false\nhost_memory = \"1GiB\"\n",
       "host_memory: needs prefix_cache = true");
  says("[deployment.cache]\nhost_memory = \"1GiB\"\ndisk_dir = \"/d\"\n",
       "disk_dir: the size is missing");
  says("[deployment.cache]\ndisk_dir = \"/d\"\ndisk_size = \"1GiB\"\n",
       "below the tier in host memory, which is off");
  says("[deployment.cache]\ndisk_size = \"1GiB\"\n", "disk_size: the directory is missing");
  says("[deployment.cache]\nsnapshots = -1\n", "expected 0 to 1000000, got -1");
  says("[deployment.scheduler]\npolicy = \"../x\"\n", "or the name of a scheduler plugin");
  says("[deployment.scheduler]\npolicy = \"builtin\"\nparams = { a = 1 }\n",
       "the built-in policy has none");
  says("[deployment.scheduler]\nitl_target = 40\n", "expected a duration such as");
  says("[deployment.scheduler]\ntrace = \"plans\"\n", "expected an absolute path");
}

TEST_CASE("a key file: what a line may say") {
  const auto refused = [](std::string_view text, std::string_view part) {
    CAPTURE(text);
    const auto keys = parse_key_file(text, "keys");
    REQUIRE_FALSE(keys.ok());
    CHECK(keys.error().message.find(part) != std::string::npos);
    CHECK(keys.error().message.find("sk-secret") == std::string::npos);
  };
  refused("sk-secret-1 a b c\n", "keys:1: expected \"KEY [TENANT [WEIGHT]]\", got 4 words");
  refused("\nsk-secret-1 te/am\n", "keys:2: expected a tenant name");
  refused("sk-secret-1 " + std::string(65, 'a'), "keys:1: expected a tenant name");
  for (const char* weight : {"0", "1001", "-1", "1.5", "x", "99999999999"})
    refused(std::string("sk-secret-1 acme ") + weight, "keys:1: expected a weight of 1 to 1000");
  refused("sk-secret-1 acme 2\nsk-secret-2 acme 3\n",
          "keys:2: tenant acme has the weight 3 here and 2 in line 1");
  refused("sk-secret-1 acme\nsk-secret-1 other\n", "keys:2: the key of line 1 again");
  refused("short\n", "keys:1: expected a key of 8 to 512");
  refused("", "no key in it");
  refused(std::string(kKeyFileBytesMax + 1, '#'), "is it a key file?");
  const auto twice =
      parse_key_file("sk-secret-1 acme\n  # note\nsk-secret-1\nsk-secret-1 acme 2", "k");
  REQUIRE(twice.ok());
  CHECK(twice->size() == 1);
  CHECK(twice->front().weight == 2);
  CHECK_FALSE(load_key_file("/nonexistent/keys").ok());
}
