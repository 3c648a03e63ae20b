#include "config/config.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

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
