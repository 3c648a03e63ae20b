#include "engine/load/weights_loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "load_fixture.h"

using namespace weft::engine;
using weft_test::FakeModel;
using weft_test::FakeStorage;
using weft_test::index_json;
using weft_test::u8_shard;

namespace {

// Two shards, tensors from empty to several pieces (piece_bytes 100), and what each should hold.
struct World {
  FakeStorage storage;
  std::unique_ptr<Checkpoint> checkpoint;
  std::map<std::string, std::string> expected;
  LoadOptions options;

  World() {
    add_shard("1.safetensors", {{"d", 250}, {"b", 3}, {"empty", 0}, {"long", 1000}}, 1);
    add_shard("2.safetensors", {{"c", 100}, {"a", 101}}, 2);
    std::vector<std::pair<std::string, std::string>> map;
    for (const auto& [name, bytes] : expected) map.emplace_back(name, shard_of[name]);
    storage.files["/m/model.safetensors.index.json"] = index_json(map);
    auto opened = Checkpoint::open(storage.ref(), "/m");
    REQUIRE(opened.ok());
    checkpoint = std::move(opened).value();
    storage.reads = storage.bytes_read = storage.longest_read = storage.in_flight_peak = 0;
    options.piece_bytes = 100;
  }
  std::string message(FakeModel& model) {
    const auto report = load_weights(*checkpoint, model.ref(), options);
    return report.ok() ? "loaded" : report.error().message;
  }
  FakeModel all() const { return FakeModel(FakeModel::all_of(checkpoint->catalog())); }

 private:
  std::map<std::string, std::string> shard_of;
  void add_shard(const std::string& name, const std::vector<weft_test::U8Tensor>& tensors,
                 int salt) {
    storage.files["/m/" + name] = u8_shard(tensors, salt);
    size_t at = 0;
    for (const auto& t : tensors) {
      std::string& bytes = expected[t.name];
      for (size_t i = 0; i < t.bytes; ++i) bytes += weft_test::pattern_byte(at + i, salt);
      at += t.bytes;
      shard_of[t.name] = name;
    }
  }
};

}  // namespace

TEST_CASE(
    "every wanted tensor arrives in the memory the model named, whatever order reads complete in") {
  World w;
  FakeModel model = w.all();
  const auto report = load_weights(*w.checkpoint, model.ref(), w.options);
  REQUIRE(report.ok());
  CHECK(model.memory == w.expected);
  CHECK(report->tensors == 6);
  CHECK(report->bytes == 1454);
  CHECK(report->unused == 0);
  CHECK(w.storage.bytes_read == 1454);  // once each
  CHECK(w.storage.longest_read == 100);
  CHECK(w.storage.in_flight_peak == 7);  // the storage's own bound, reached and respected
  std::set<std::string> placed, done;
  for (const std::string& call : model.calls) {
    const std::string name = call.substr(call.find(' ') + 1);
    if (call.substr(0, 6) == "place ")
      CHECK(placed.insert(name).second);
    else
      CHECK((placed.count(name) == 1 && done.insert(name).second));
  }
  CHECK(done.size() == 6);
}

TEST_CASE("tensors are placed in file order, not in the model's") {
  World w;
  w.options.reads_max = 1;
  FakeModel model = w.all();
  REQUIRE(w.message(model) == "loaded");
  std::vector<std::string> order;
  for (const std::string& call : model.calls)
    if (call.substr(0, 6) == "place ") order.push_back(call.substr(6));
  CHECK(order == std::vector<std::string>{"d", "b", "long", "empty", "c", "a"});
  CHECK(w.storage.in_flight_peak == 1);
}

TEST_CASE("a storage that accepts one read at a time is served too") {
  World w;
  w.storage.accept_per_submit = 1;
  w.storage.queue = 2;
  FakeModel model = w.all();
  REQUIRE(w.message(model) == "loaded");
  CHECK(model.memory == w.expected);
}

TEST_CASE("progress never goes back and ends at the total") {
  World w;
  std::vector<LoadProgress> seen;
  w.options.progress = [&](const LoadProgress& p) { seen.push_back(p); };
  FakeModel model = w.all();
  REQUIRE(w.message(model) == "loaded");
  REQUIRE(seen.size() > 3);
  CHECK(seen.front().bytes_done == 0);
  for (size_t i = 1; i < seen.size(); ++i) {
    CHECK(seen[i].bytes_done >= seen[i - 1].bytes_done);
    CHECK(seen[i].tensors_done >= seen[i - 1].tensors_done);
    CHECK(seen[i].bytes_total == 1454);
    CHECK(seen[i].tensors_total == 6);
  }
  CHECK(seen.back().bytes_done == 1454);
  CHECK(seen.back().tensors_done == 6);
}

TEST_CASE("tensors the model does not want are reported and not read") {
  World w;
  FakeModel model(FakeModel::all_of(w.checkpoint->catalog(), {"long", "c"}));
  const auto report = load_weights(*w.checkpoint, model.ref(), w.options);
  REQUIRE(report.ok());
  CHECK(report->tensors == 4);
  CHECK(report->unused == 2);
  CHECK(report->unused_bytes == 1100);
  CHECK(report->unused_names == std::vector<std::string>{"c", "long"});
  CHECK(w.storage.bytes_read == 354);
  FakeModel nothing({});
  const auto none = load_weights(*w.checkpoint, nothing.ref(), w.options);
  REQUIRE(none.ok());
  CHECK(none->unused == 6);
}

TEST_CASE("wants that do not fit the checkpoint fail before anything is placed or read") {
  World w;
  std::string message, expected;
  std::vector<weft_want> wants = FakeModel::all_of(w.checkpoint->catalog());
  SUBCASE("absent") {
    wants.push_back({sizeof(weft_want), 0, {"absent", 6}, 4});
    expected = "the model wants tensor 'absent', which the checkpoint does not have";
  }
  SUBCASE("size") {
    wants.back().bytes += 1;  // reverse order: this is "a"
    expected = "the model wants 102 bytes of tensor 'a', the checkpoint has 101";
  }
  SUBCASE("twice") {
    wants.push_back(wants.front());
    expected = "the model wants tensor 'long' twice";
  }
  SUBCASE("want fails") { expected = "model: want(2) failed with status -9"; }
  FakeModel model(wants);
  if (expected.find("want(2)") != std::string::npos) model.want_status_at = 2;
  CHECK(w.message(model) == expected);
  CHECK(model.calls.empty());
  CHECK(w.storage.reads == 0);
}

TEST_CASE("any failure gives one error, and nothing is in flight afterwards") {
  World w;
  FakeModel model = w.all();
  std::string expected;
  SUBCASE("place") {
    model.fail_place = "c";
    expected = "model: place of tensor 'c': no room left";
  }
  SUBCASE("placed") {
    model.fail_placed = "d";
    expected = "model: placed of tensor 'd': scale is NaN";
  }
  SUBCASE("no memory given") {
    model.null_place = "long";
    expected = "the model gave no memory for tensor 'long'";
  }
  SUBCASE("read error") {
    w.storage.fail_offset = static_cast<int64_t>(w.checkpoint->find("long")->offset + 350);
    w.storage.fail_bytes = 12;
    expected = fmt::format(
        "1.safetensors: tensor 'long': read of 100 bytes at offset {} failed after 12: "
        "Input/output error",
        w.checkpoint->find("long")->offset + 300);
  }
  SUBCASE("file became shorter") {
    w.storage.fail_offset = static_cast<int64_t>(w.checkpoint->find("a")->offset + 100);
    w.storage.fail_in = "/m/2.safetensors";
    w.storage.fail_status = WEFT_E_CORRUPT;
    expected = fmt::format(
        "2.safetensors: tensor 'a': read of 1 bytes at offset {} ended after 0: the file is "
        "shorter "
        "than when it was opened",
        w.checkpoint->find("a")->offset + 100);
  }
  SUBCASE("success with too few bytes") {
    w.storage.fail_offset = static_cast<int64_t>(w.checkpoint->find("b")->offset);
    w.storage.fail_status = WEFT_OK;
    w.storage.fail_bytes = 2;
    expected = fmt::format(
        "1.safetensors: tensor 'b': read of 3 bytes at offset {} ended after 2: the file is "
        "shorter "
        "than when it was opened",
        w.checkpoint->find("b")->offset);
  }
  SUBCASE("invented completion") {
    w.storage.lie_about_id = true;
    expected = "the storage plugin completed read 12345, which is not in flight";
  }
  SUBCASE("storage stopped") {
    w.storage.accepting = false;
    expected =
        "the storage instance takes no reads although none is in flight: not started or draining";
  }
  CHECK(w.message(model) == expected);
  CHECK(w.storage.in_flight() == 0);
}

TEST_CASE("cancel stops the load at once, before it starts and in the middle") {
  World w;
  std::atomic<bool> cancel{true};
  w.options.cancel = &cancel;
  {
    FakeModel model = w.all();
    const auto report = load_weights(*w.checkpoint, model.ref(), w.options);
    REQUIRE_FALSE(report.ok());
    CHECK(report.error().code == weft::ErrorCode::kCancelled);
    CHECK(w.storage.reads == 0);
  }
  cancel = false;
  w.options.progress = [&](const LoadProgress& p) { cancel = p.bytes_done > 0; };
  FakeModel model = w.all();
  CHECK(w.message(model) == "loading was cancelled");
  CHECK(w.storage.in_flight() == 0);
  CHECK(w.storage.cancels > 0);
  CHECK(w.storage.bytes_read < 1454);
}

TEST_CASE("random checkpoints, pieces and queues load the same bytes as a plain copy") {
  std::mt19937 engine(3);
  const auto random = [&] { return static_cast<uint32_t>(engine()); };
  for (int round = 0; round < 60; ++round) {
    FakeStorage storage;
    std::vector<weft_test::U8Tensor> tensors;
    for (size_t i = 0, n = 1 + random() % 12; i < n; ++i)
      tensors.push_back({"t" + std::to_string(i), random() % 4 == 0 ? 0 : random() % 3000});
    const std::string file = u8_shard(tensors, round);
    storage.files["/m/model.safetensors"] = file;
    storage.queue = 1 + random() % 9;
    storage.accept_per_submit = 1 + random() % 4;
    auto checkpoint = Checkpoint::open(storage.ref(), "/m");
    REQUIRE(checkpoint.ok());
    FakeModel model(FakeModel::all_of((*checkpoint)->catalog()));
    LoadOptions options;
    options.piece_bytes = 1 + random() % 700;
    options.reads_max = 1 + random() % 20;
    REQUIRE(load_weights(**checkpoint, model.ref(), options).ok());
    for (const CatalogTensor& t : (*checkpoint)->tensors())
      CHECK(model.memory[t.name] == file.substr(t.offset, t.entry.bytes));
  }
}
