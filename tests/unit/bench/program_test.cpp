// weft-bench from the command line to its answers, on generated models small enough for a test.
// Times are only looked at for being there.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "bench_fixture.h"
#include "temp_dir.h"

namespace {

using bench_test::Ran;
using bench_test::run_bench;
using Json = nlohmann::json;

constexpr const char* kPlugins = WEFT_PLUGIN_DIR;

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> out;
  std::istringstream in(text);
  std::string line;
  while (std::getline(in, line)) out.push_back(Json::parse(line));
  return out;
}

void check_logits(const Json& answer, size_t vocab) {
  REQUIRE(answer.contains("logits"));
  CHECK(answer["logits"].size() == vocab);
  double square = 0;
  for (const auto& value : answer["logits"]) {
    REQUIRE(value.is_number());
    square += value.get<double>() * value.get<double>();
  }
  CHECK(std::isfinite(square));
  CHECK(square > 1);
}

TEST_CASE("every small preset loads and answers") {
  const std::vector<std::vector<std::string>> variants = {
      {"--preset", "mini"},
      {"--preset", "mini", "--dtype", "f32"},
      {"--preset", "linear-mini"},
      {"--preset", "linear-mini", "--dtype", "f32", "--q-lora", "64", "--shared", "0"},
      {"--preset", "mini", "--latent", "0", "--block", "0", "--layers", "5", "--q-lora", "0"}};
  for (const auto& variant : variants) {
    const TempDir dir;
    const std::string path = dir.file("m");
    std::vector<std::string> arguments = {"model", path};
    arguments.insert(arguments.end(), variant.begin(), variant.end());
    const Ran made = run_bench(arguments);
    CAPTURE(made.err);
    REQUIRE(made.code == 0);
    const Ran ran =
        run_bench({"run", "--model", path, "--stdin", "--plugin-dir", kPlugins,
                   "--max-batch-tokens", "64", "--max-context", "256"},
                  "info\nprefill 70\ndecode 2 3\nmixed 2 2\nlogits 1 2 3\nsing\nquit\n");
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    const auto lines = lines_of(ran.out);
    REQUIRE(lines.size() == 7);
    CHECK(lines[0]["vocab"] == 2048);
    CHECK(lines[1]["tokens"] == 70);
    CHECK(lines[2]["tokens"] == 6);
    CHECK(lines[2]["seconds"].get<double>() > 0);
    CHECK(lines[3]["tokens"] == 128);
    check_logits(lines[4], 2048);
    CHECK(lines[5].contains("error"));
    CHECK(lines[6]["what"] == "quit");
  }
}

TEST_CASE("tables, JSON and a profile of a whole model") {
  const TempDir dir;
  const std::string path = dir.file("m");
  REQUIRE(run_bench({"model", path, "--preset", "mini", "--layers", "5"}).code == 0);
  const std::vector<std::string> common = {"run",
                                           "--model",
                                           path,
                                           "--plugin-dir",
                                           kPlugins,
                                           "--prefill",
                                           "40",
                                           "--decode",
                                           "2",
                                           "--tokens",
                                           "2",
                                           "--repeat",
                                           "1",
                                           "--context",
                                           "8,64",
                                           "--profile",
                                           "--mixed",
                                           "--fake-context",
                                           "--set",
                                           "cache_dtype=bf16",
                                           "--max-batch-tokens",
                                           "32",
                                           "--threads",
                                           "2"};
  auto as_json = common;
  as_json.push_back("--json");
  const Ran json = run_bench(as_json);
  CAPTURE(json.err);
  REQUIRE(json.code == 0);
  const Json report = Json::parse(json.out);
  CHECK(report["machine"]["rates"].size() >= 2);
  CHECK(report["memory"]["weight_bytes"].get<double>() > 1e6);
  REQUIRE(report["measurements"].size() == 5);
  for (const Json& m : report["measurements"]) {
    CHECK(m["tok_s"].get<double>() > 0);
    CHECK(m["bytes"].get<double>() > 0);
    std::string layers;
    for (const Json& op : m["profile"]["operations"])
      layers += op["layer"].get<std::string>() + " ";
    for (const char* kind : {"kda", "mla", "moe", "dense", "embed", "head"}) {
      CAPTURE(kind);
      CHECK(layers.find(kind) != std::string::npos);
    }
    CHECK(layers.find("other") == std::string::npos);
  }
  auto as_table = common;
  as_table.push_back("--no-machine");
  const Ran table = run_bench(as_table);
  REQUIRE(table.code == 0);
  CHECK(table.out.find("between launches") != std::string::npos);
}

TEST_CASE("single operations, every variant") {
  for (const char* op : {"gemm", "gemm_group", "moe", "kda_step", "kda_chunk", "mla_decode",
                         "mla_prefill", "norm", "glu", "attnres", "route"}) {
    CAPTURE(op);
    const std::string shape =
        "n=64,k=64,rows=5,experts=4,topk=2,inner=32,width=64,heads=2,dim=16,seqs=2,context=40,"
        "latent=32,tail=16,nope=16,v=16,cols=64,blocks=2";
    const Ran ran = run_bench({"op", "--op", op, "--shape", shape, "--all-variants", "--seconds",
                               "0", "--warm", "--no-machine", "--json", "--plugin-dir", kPlugins});
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    const Json report = Json::parse(ran.out);
    REQUIRE(report["ops"].size() >= 1);
    CHECK(report["ops"][0]["variant"] == "ref");
    CHECK(report["ops"][0]["us"].get<double>() > 0);
  }
}

TEST_CASE("wrong arguments are named") {
  CHECK(run_bench({}).code == 2);
  CHECK(run_bench({"sing"}).code == 2);
  CHECK(run_bench({"run"}).code == 2);
  CHECK(run_bench({"model", "/nowhere/x", "--preset", "huge"}).code == 2);
  CHECK(run_bench({"op", "--op", "sing"}).code == 2);
  const auto fails = [](std::vector<std::string> arguments, const char* word) {
    const Ran ran = run_bench(std::move(arguments));
    CAPTURE(ran.err);
    CHECK(ran.code == 1);
    CHECK(ran.err.find(word) != std::string::npos);
  };
  fails({"run", "--model", "/nowhere", "--plugin-dir", kPlugins}, "/nowhere");
  fails({"run", "--model", "/nowhere", "--plugin-dir", kPlugins, "--decode", "x"}, "\"x\"");
  fails({"run", "--model", "/nowhere", "--once", "sing=3"}, "--once");
  fails({"run", "--model", "/nowhere", "--set", "x"}, "KEY=VALUE");
  fails({"op", "--shape", "n=3"}, "--op");
  fails({"op", "--op", "gemm", "--shape", "n=q"}, "\"q\"");
  fails({"op", "--op", "gemm", "--dtype", "f8"}, "f8");
  fails({"op", "--op", "gemm", "--plugin-dir", "/nowhere"}, "/nowhere");
  // Sizes whose product leaves 64 bits, and one that no machine has.
  for (const char* shape : {"n=4294967295,k=4294967295", "n=16m,k=16m"})
    fails({"op", "--op", "gemm", "--shape", shape, "--no-machine", "--plugin-dir", kPlugins},
          "memory");
  CHECK(run_bench({"--version"}).code == 0);
}

}  // namespace
