#include "engine/load/checkpoint.h"

#include <doctest/doctest.h>

#include "load_fixture.h"

using namespace weft::engine;
using weft_test::FakeStorage;
using weft_test::index_json;
using weft_test::shard_bytes;
using weft_test::u8_shard;

namespace {

constexpr const char* kIndex = "/m/model.safetensors.index.json";

std::string message_of(FakeStorage& storage) {
  const auto checkpoint = Checkpoint::open(storage.ref(), "/m");
  return checkpoint.ok() ? "accepted" : checkpoint.error().message;
}

void put_two_shards(FakeStorage& storage) {
  storage.files["/m/1.safetensors"] = u8_shard({{"b", 3}, {"d", 5}}, 1);
  storage.files["/m/2.safetensors"] = u8_shard({{"c", 0}, {"a", 7}}, 2);
  storage.files[kIndex] = index_json({{"d", "1.safetensors"},
                                      {"a", "2.safetensors"},
                                      {"c", "2.safetensors"},
                                      {"b", "1.safetensors"}});
}

std::string name_of(const weft_catalog_entry* entry) {
  return entry == nullptr ? "none" : std::string(entry->name.data, entry->name.len);
}

}  // namespace

TEST_CASE("an indexed checkpoint becomes a catalog in name order") {
  FakeStorage storage;
  put_two_shards(storage);
  {
    const auto opened = Checkpoint::open(storage.ref(), "/m");
    REQUIRE_MESSAGE(opened.ok(), message_of(storage));
    const Checkpoint& checkpoint = **opened;
    CHECK(checkpoint.data_bytes() == 15);
    CHECK(checkpoint.unindexed() == 0);
    CHECK(checkpoint.shards().size() == 2);
    const weft_catalog* catalog = checkpoint.catalog();
    REQUIRE(catalog->n == 4);
    CHECK(name_of(catalog->at(catalog, 0)) == "a");
    CHECK(name_of(catalog->at(catalog, 3)) == "d");
    CHECK(catalog->at(catalog, 4) == nullptr);
    const weft_catalog_entry* d = catalog->find(catalog, {"d", 1});
    CHECK(d == catalog->at(catalog, 3));
    CHECK(d->bytes == 5);
    CHECK(d->dtype == WEFT_U8);
    CHECK(d->rank == 1);
    CHECK(d->shape[0] == 5);
    CHECK(catalog->find(catalog, {"e", 1}) == nullptr);
    CHECK(catalog->find(catalog, {"", 0}) == nullptr);
    const CatalogTensor* tensor = checkpoint.find("d");
    CHECK(checkpoint.shards()[tensor->shard].name == "1.safetensors");
    CHECK(storage.files["/m/1.safetensors"][tensor->offset] == weft_test::pattern_byte(3, 1));
    CHECK(storage.open_objects == 2);
  }
  CHECK(storage.open_objects == 0);
}

TEST_CASE("a single model.safetensors needs no index; with an index the index decides") {
  FakeStorage storage;
  storage.files["/m/model.safetensors"] = u8_shard({{"b", 3}, {"a", 5}});
  storage.files["/m/config.json"] = "{}";
  auto opened = Checkpoint::open(storage.ref(), "/m");
  REQUIRE(opened.ok());
  CHECK((*opened)->tensors().size() == 2);
  CHECK((*opened)->tensors()[0].name == "a");
  put_two_shards(storage);
  opened = Checkpoint::open(storage.ref(), "/m");
  REQUIRE(opened.ok());
  CHECK((*opened)->tensors().size() == 4);
}

TEST_CASE("a header longer than the first read is read whole") {
  FakeStorage storage;
  std::vector<weft_test::U8Tensor> tensors;
  for (int i = 0; i < 3000; ++i) tensors.push_back({"tensor." + std::to_string(i), 1});
  storage.files["/m/model.safetensors"] = u8_shard(tensors);
  const auto opened = Checkpoint::open(storage.ref(), "/m");
  REQUIRE(opened.ok());
  CHECK((*opened)->tensors().size() == 3000);
  CHECK(storage.reads == 2);
}

TEST_CASE("tensors outside the index are counted and left out") {
  FakeStorage storage;
  put_two_shards(storage);
  storage.files["/m/2.safetensors"] = u8_shard({{"c", 0}, {"a", 7}, {"extra", 2}});
  const auto opened = Checkpoint::open(storage.ref(), "/m");
  REQUIRE(opened.ok());
  CHECK((*opened)->unindexed() == 1);
  CHECK((*opened)->find("extra") == nullptr);
}

TEST_CASE("each fault of a checkpoint fails the whole with its own message") {
  FakeStorage storage;
  CHECK(message_of(storage) ==
        "no weights in '/m': expected model.safetensors.index.json with its shards, or "
        "model.safetensors; weft reads the safetensors format only");
  storage.files["/m/weights-1.safetensors"] = u8_shard({{"a", 1}});
  CHECK(message_of(storage) ==
        "'/m' has 'weights-1.safetensors' but neither model.safetensors.index.json nor "
        "model.safetensors, so weft cannot tell whether the weights are complete");
  put_two_shards(storage);
  REQUIRE(message_of(storage) == "accepted");

  SUBCASE("shards missing") {
    storage.files.erase("/m/2.safetensors");
    CHECK(message_of(storage) ==
          "1 of 2 shards are missing from '/m': '2.safetensors'; download the checkpoint again");
    storage.files[kIndex] = index_json({{"a", "5.safetensors"},
                                        {"b", "6.safetensors"},
                                        {"c", "7.safetensors"},
                                        {"d", "8.safetensors"},
                                        {"e", "9.safetensors"}});
    CHECK(message_of(storage) ==
          "5 of 5 shards are missing from '/m': '5.safetensors', '6.safetensors', "
          "'7.safetensors' and 2 more; download the checkpoint again");
  }
  SUBCASE("tensor missing from its shard") {
    storage.files["/m/2.safetensors"] = u8_shard({{"a", 7}});
    CHECK(message_of(storage) ==
          "tensor 'c' is not in '2.safetensors', where model.safetensors.index.json puts it");
  }
  SUBCASE("tensor in two shards") {
    storage.files["/m/2.safetensors"] = u8_shard({{"c", 0}, {"a", 7}, {"b", 3}});
    CHECK(message_of(storage) ==
          "tensor 'b' is in '2.safetensors', but model.safetensors.index.json puts it into "
          "'1.safetensors'");
  }
  SUBCASE("tensor outside the index in two shards") {
    storage.files["/m/1.safetensors"] = u8_shard({{"b", 3}, {"d", 5}, {"x", 1}});
    storage.files["/m/2.safetensors"] = u8_shard({{"c", 0}, {"a", 7}, {"x", 1}});
    CHECK(message_of(storage) ==
          "tensor 'x' is in two shards, '1.safetensors' and '2.safetensors'");
  }
  SUBCASE("header fault names the shard") {
    storage.files["/m/2.safetensors"].pop_back();
    CHECK(message_of(storage) ==
          "2.safetensors: tensor 'a': data_offsets [0, 7] reach past the 6 data bytes of the file; "
          "the file is truncated or its header is wrong");
    storage.files["/m/2.safetensors"] = "short";
    CHECK(message_of(storage) ==
          "2.safetensors: the file has 5 bytes, too few for a safetensors header");
    storage.files["/m/2.safetensors"] = "";
    CHECK(message_of(storage) ==
          "2.safetensors: the file has 0 bytes, too few for a safetensors header");
  }
  SUBCASE("index fault names the index") {
    storage.files[kIndex] = "{}";
    CHECK(message_of(storage) == "model.safetensors.index.json: has no weight_map");
    storage.files[kIndex] = index_json({{"a", "../1.safetensors"}});
    CHECK(message_of(storage).substr(0, 75) ==
          "model.safetensors.index.json: weight_map: tensor 'a': shard name '../1.safe");
  }
  SUBCASE("read error") {
    storage.fail_offset = 0;
    CHECK(message_of(storage).find("failed after 0: Input/output error") != std::string::npos);
  }
  SUBCASE("storage that takes no reads") {
    storage.accepting = false;
    CHECK(message_of(storage) ==
          "model.safetensors.index.json: the storage instance takes no reads: not started, "
          "draining, or in use");
  }
  SUBCASE("storage that invents completions") {
    storage.lie_about_id = true;
    CHECK(message_of(storage) ==
          "model.safetensors.index.json: the storage plugin completed read 12345, "
          "which nobody asked for");
  }
  CHECK(storage.open_objects == 0);
  CHECK(storage.in_flight() == 0);
}

TEST_CASE("an empty single file is no model") {
  FakeStorage storage;
  storage.files["/m/model.safetensors"] = shard_bytes("{}", 0);
  CHECK(message_of(storage) == "model.safetensors holds no tensor");
}
