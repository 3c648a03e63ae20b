// The real storage_file.so, through the host's plugin loader, on real files: micro-k3 and a
// directory with hostile links.
#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "engine/load/checkpoint.h"
#include "engine/load/model_dir.h"
#include "engine/load/weights_loader.h"
#include "load_fixture.h"
#include "plugin/host_table.h"
#include "plugin/instance.h"
#include "plugin/loader.h"
#include "temp_dir.h"

using namespace weft::engine;
using weft_test::FakeModel;

namespace {

class FileStorage {
 public:
  FileStorage() {
    host_ = weft::plugin::HostTable::make({});
    auto loaded = weft::plugin::Loader(weft::plugin::TrustPolicy::kUnchecked)
                      .load(WEFT_PLUGIN_DIR "/storage_file.so");
    REQUIRE_MESSAGE(loaded.ok(), (loaded.ok() ? "" : loaded.error().message));
    plugin_ = std::move(loaded).value();
    REQUIRE(plugin_->open(*host_).ok());
    auto made = weft::plugin::Instance::create(*plugin_, WEFT_STORAGE_ID,
                                               {{"threads", "3"}, {"queue", "16"}});
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? "" : made.error().message));
    instance_ = std::move(made).value();
    REQUIRE(instance_.start().ok());
  }
  StorageRef ref() const { return {instance_.table<weft_storage_v1>(), instance_.get()}; }

 private:
  std::unique_ptr<weft::plugin::HostTable> host_;
  std::unique_ptr<weft::plugin::LoadedPlugin> plugin_;
  weft::plugin::Instance instance_;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

constexpr const char* kMicro = WEFT_SOURCE_DIR "/models/micro-k3";

}  // namespace

TEST_CASE("micro-k3: configuration, catalog and every weight byte") {
  const FileStorage storage;
  const auto dir = read_model_dir(storage.ref(), kMicro);
  REQUIRE(dir.ok());
  CHECK(dir->config_json == read_file(std::string(kMicro) + "/config.json"));
  CHECK_FALSE(dir->generation_config_json.empty());
  const auto opened = Checkpoint::open(storage.ref(), std::string("file://") + kMicro);
  REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? "" : opened.error().message));
  const Checkpoint& checkpoint = **opened;
  CHECK(checkpoint.catalog()->n == 1020);
  CHECK(checkpoint.shards().size() == 12);
  CHECK(checkpoint.data_bytes() == 5058848);
  CHECK(checkpoint.unindexed() == 0);
  FakeModel model(FakeModel::all_of(checkpoint.catalog()));
  LoadOptions options;
  options.piece_bytes = 100'000;  // some tensors are larger
  const auto report = load_weights(checkpoint, model.ref(), options);
  REQUIRE_MESSAGE(report.ok(), (report.ok() ? "" : report.error().message));
  CHECK(report->bytes == 5058848);
  std::vector<std::string> files;
  for (const Shard& shard : checkpoint.shards())
    files.push_back(read_file(std::string(kMicro) + "/" + shard.name));
  int wrong = 0;
  for (const CatalogTensor& t : checkpoint.tensors())
    wrong += files[t.shard].compare(t.offset, t.entry.bytes, model.memory[t.name]) != 0;
  CHECK(wrong == 0);
}

TEST_CASE("a shard or config behind a link that leaves the directory is refused") {
  const FileStorage storage;
  const TempDir outside, dir;
  outside.write("other.safetensors", weft_test::u8_shard({{"a", 4}}));
  outside.write("secret.json", "{}");
  REQUIRE(::symlink(outside.file("other.safetensors").c_str(),
                    dir.file("model.safetensors").c_str()) == 0);
  REQUIRE(::symlink(outside.file("secret.json").c_str(), dir.file("config.json").c_str()) == 0);
  const auto opened = Checkpoint::open(storage.ref(), dir.path());
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().message.find("outside the model directory") != std::string::npos);
  const auto config = read_model_dir(storage.ref(), dir.path());
  REQUIRE_FALSE(config.ok());
  CHECK(config.error().message.find("outside the model directory") != std::string::npos);
}

TEST_CASE("a shard cut after validation fails the load with shard, tensor and range") {
  const FileStorage storage;
  const TempDir dir;
  const std::string path =
      dir.write("model.safetensors", weft_test::u8_shard({{"a", 4}, {"b", 5000}}));
  const auto opened = Checkpoint::open(storage.ref(), dir.path());
  REQUIRE(opened.ok());
  const uint64_t offset = (*opened)->find("b")->offset;
  REQUIRE(::truncate(path.c_str(), static_cast<off_t>(offset + 1000)) == 0);
  FakeModel model(FakeModel::all_of((*opened)->catalog()));
  const auto report = load_weights(**opened, model.ref(), {});
  REQUIRE_FALSE(report.ok());
  CHECK(report.error().code == weft::ErrorCode::kCorrupt);
  CHECK(report.error().message ==
        fmt::format(
            "model.safetensors: tensor 'b': read of 5000 bytes at offset {} ended after 1000: "
            "the file is shorter than when it was opened",
            offset));
}

TEST_CASE("a directory that does not exist or is a file says so") {
  const FileStorage storage;
  const TempDir dir;
  const auto none = Checkpoint::open(storage.ref(), dir.file("none"));
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code == weft::ErrorCode::kNotFound);
  CHECK(none.error().message == "list " + dir.file("none") + ": No such file or directory");
  CHECK(Checkpoint::open(storage.ref(), dir.write("f", "")).error().message ==
        "expected " + dir.file("f") + " to be a directory");
}
