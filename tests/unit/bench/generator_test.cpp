// The model generator: equal seeds give equal bytes whatever the threads, other seeds others, and
// what is wrong with a directory is said before anything is written.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "bench/generator/checkpoint_writer.h"
#include "bench/generator/tensor_plan.h"
#include "bench/generator/values.h"
#include "bench_fixture.h"
#include "temp_dir.h"

namespace {

using namespace weft::bench;
namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

weft::Result<GenerateReport> generate(const std::string& directory, uint64_t seed, uint32_t threads,
                                      uint64_t shard_bytes = 256 << 20) {
  ModelShape shape = preset("mini").value();
  REQUIRE(settle(&shape).ok());
  GenerateOptions options;
  options.directory = directory;
  options.seed = seed;
  options.threads = threads;
  options.shard_bytes = shard_bytes;
  return generate_checkpoint(shape, options);
}

TEST_CASE("one seed, one checkpoint") {
  const TempDir dir;
  REQUIRE(generate(dir.file("a"), 7, 1).ok());
  REQUIRE(generate(dir.file("b"), 7, 3).ok());
  REQUIRE(generate(dir.file("c"), 8, 3).ok());
  const std::string shard = "model-00001-of-00001.safetensors";
  const std::string a = contents(dir.file("a/" + shard));
  CHECK(a.size() > 15'000'000);
  CHECK(a == contents(dir.file("b/" + shard)));
  CHECK(a != contents(dir.file("c/" + shard)));
  CHECK(contents(dir.file("a/config.json")) == contents(dir.file("b/config.json")));
}

TEST_CASE("several shards, one index") {
  const TempDir dir;
  const auto report = generate(dir.file("m"), 1, 2, 4 << 20);
  REQUIRE(report.ok());
  CHECK(report->shards > 2);
  const auto index = nlohmann::json::parse(contents(dir.file("m/model.safetensors.index.json")));
  CHECK(index["weight_map"].size() == report->tensors);
  CHECK(index["metadata"]["total_size"] == report->bytes);
  for (const auto& [name, file] : index["weight_map"].items()) {
    CHECK(fs::exists(dir.file("m/" + file.get<std::string>())));
  }
}

TEST_CASE("a directory with something in it is left alone") {
  const TempDir dir;
  fs::create_directory(dir.file("m"));
  std::ofstream(dir.file("m/note")) << "mine";
  const auto report = generate(dir.file("m"), 1, 1);
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().message.find("not empty") != std::string::npos);
  CHECK(contents(dir.file("m/note")) == "mine");
  CHECK_FALSE(generate(dir.file("m/note"), 1, 1).ok());
  CHECK_FALSE(generate("", 1, 1).ok());
  CHECK_FALSE(generate("/proc/none/m", 1, 1).ok());
}

TEST_CASE("a checkpoint larger than the disk leaves nothing behind") {
  const TempDir dir;
  ModelShape shape = preset("mini").value();
  shape.vocab = shape.hidden = 1u << 20;  // terabytes
  REQUIRE(settle(&shape).ok());
  GenerateOptions options;
  options.directory = dir.file("a/b/c");
  const auto report = generate_checkpoint(shape, options);
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().message.find("free") != std::string::npos);
  CHECK_FALSE(fs::exists(dir.file("a")));
}

TEST_CASE("values depend on their position alone") {
  const PlannedTensor t{"t", "BF16", {10, 10}, Fill::kNormal, 0, 1};
  const uint64_t stream = tensor_stream("t", 3);
  std::vector<uint16_t> whole(100), piece(40);
  fill_values(t, stream, 0, 100, whole.data());
  fill_values(t, stream, 37, 40, piece.data());
  CHECK(std::equal(piece.begin(), piece.end(), whole.begin() + 37));
  CHECK(tensor_stream("t", 3) != tensor_stream("t", 4));
  CHECK(tensor_stream("t", 3) != tensor_stream("u", 3));
  const PlannedTensor codes{"c", "U8", {8, 8}, Fill::kCodes};
  std::vector<uint8_t> all(64), part(16);
  fill_values(codes, stream, 0, 64, all.data());
  fill_values(codes, stream, 20, 13, part.data());
  CHECK(std::equal(part.begin(), part.begin() + 13, all.begin() + 20));
  const PlannedTensor padded{"a", "F32", {6}, Fill::kUniform, -0.4f, 1.3f, 4};
  std::vector<float> decay(6);
  fill_values(padded, stream, 0, 6, decay.data());
  CHECK(decay[3] >= -0.4f);
  CHECK(decay[3] <= 0.9f);
  CHECK(decay[4] == 0);
  CHECK(decay[5] == 0);
}

TEST_CASE("names of both families") {
  const auto names_of = [](const char* name) {
    ModelShape shape = preset(name).value();
    REQUIRE(settle(&shape).ok());
    std::vector<std::string> out;
    for (const PlannedTensor& t : plan_tensors(shape)) out.push_back(t.name);
    return out;
  };
  const auto has = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const auto big = names_of("mini"), small = names_of("linear-mini");
  CHECK(has(big, "language_model.model.layers.1.block_sparse_moe.experts.15.w2.weight_packed"));
  CHECK(has(big, "language_model.model.layers.8.self_attn.q_a_proj.weight"));
  CHECK(has(small, "model.layers.1.block_sparse_moe.experts.15.w2.weight"));
  CHECK(has(small, "model.layers.3.self_attn.q_proj.weight"));
  CHECK(has(small, "model.layers.0.self_attn.g_b_proj.weight"));
  CHECK_FALSE(has(small, "model.layers.3.self_attn.g_proj.weight"));
}

}  // namespace
