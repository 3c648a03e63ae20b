#include "engine/load/shard_index.h"

#include <doctest/doctest.h>

using namespace weft::engine;

namespace {

std::string message_of(std::string_view json) {
  const auto index = parse_shard_index(json);
  return index.ok() ? "accepted" : index.error().message;
}
std::string map_of(std::string_view body) {
  return fmt::format(R"({{"weight_map":{{{}}}}})", body);
}
std::string shard_message(std::string_view shard) {
  const std::string message = message_of(map_of(fmt::format(R"("t":"{}")", shard)));
  constexpr std::string_view kTail =
      "; expected the name of a .safetensors file in the model directory";
  const size_t tail = message.find(kTail);
  return tail == std::string::npos ? message : message.substr(0, tail);
}

}  // namespace

TEST_CASE("an index gives shards and tensors in name order; everything else in it is skipped") {
  const auto index = parse_shard_index(
      R"({"metadata":{"total_size":12,"weight_map":{"not":5},"list":[1,[{"x":null}],true]},
          "weight_map":{"z":"2.safetensors","a":"1.safetensors","m":"2.safetensors"},"more":"x"})");
  REQUIRE_MESSAGE(index.ok(), index.error().message);
  CHECK(index->shards == std::vector<std::string>{"1.safetensors", "2.safetensors"});
  REQUIRE(index->tensors.size() == 3);
  CHECK(index->tensors[0].tensor == "a");
  CHECK(index->tensors[0].shard == 0);
  CHECK(index->tensors[1].tensor == "m");
  CHECK(index->tensors[1].shard == 1);
  CHECK(index->tensors[2].tensor == "z");
}

TEST_CASE("each fault of an index has its own message") {
  CHECK(message_of("[]") == "expected a JSON object, got an array");
  CHECK(message_of("null") == "expected a JSON object, got null");
  CHECK(message_of("{}") == "has no weight_map");
  CHECK(message_of(R"({"metadata":{"weight_map":{"a":"b"}}})") == "has no weight_map");
  CHECK(message_of(map_of("")) == "weight_map is empty");
  CHECK(message_of(R"({"weight_map":[]})") == "weight_map: expected an object, got an array");
  CHECK(message_of(R"({"weight_map":"x"})") == "weight_map: expected an object, got a string");
  CHECK(message_of(R"({"weight_map":{"a":"1.safetensors"},"weight_map":{}})") ==
        "has weight_map twice");
  CHECK(message_of(map_of(R"("a":5)")) ==
        "weight_map: tensor 'a': expected the name of a shard, got a number");
  CHECK(message_of(map_of(R"("a":{})")) ==
        "weight_map: tensor 'a': expected the name of a shard, got an object");
  CHECK(message_of(map_of(R"("a":["x"])")) ==
        "weight_map: tensor 'a': expected the name of a shard, got an array");
  CHECK(message_of(map_of(R"("a":"1.safetensors","b":"1.safetensors","a":"2.safetensors")")) ==
        "weight_map names tensor 'a' twice");
  CHECK(message_of(map_of(R"("":"1.safetensors")")) ==
        "weight_map names a tensor with the empty string");
  CHECK(message_of(R"({"weight_map":{"a")").substr(0, 29) == "is not valid JSON at byte 19:");
  CHECK(message_of(map_of("\"" + std::string(513, 'n') + "\":\"x\"")) ==
        "tensor name '" + std::string(120, 'n') + "...' has 513 bytes, the limit is 512");
}

TEST_CASE("shard names that leave the model directory are refused") {
  CHECK(shard_message("model-1.safetensors") == "accepted");
  CHECK(shard_message("..safetensors") == "accepted");
  CHECK(shard_message("../x.safetensors") ==
        "weight_map: tensor 't': shard name '../x.safetensors' leads out of the model directory");
  CHECK(shard_message("a/../../x.safetensors") ==
        "weight_map: tensor 't': shard name 'a/../../x.safetensors' leads out of the model "
        "directory");
  CHECK(shard_message("..") ==
        "weight_map: tensor 't': shard name '..' leads out of the model directory");
  CHECK(shard_message("/etc/x.safetensors") ==
        "weight_map: tensor 't': shard name '/etc/x.safetensors' is an absolute path");
  CHECK(shard_message("sub/x.safetensors") ==
        "weight_map: tensor 't': shard name 'sub/x.safetensors' has a path separator");
  CHECK(shard_message("sub\\\\x.safetensors") ==
        R"(weight_map: tensor 't': shard name 'sub\\x.safetensors' has a path separator)");
  CHECK(shard_message("x\\u0000.safetensors") ==
        R"(weight_map: tensor 't': shard name 'x\u0000.safetensors' has a control character)");
  CHECK(shard_message("") == "weight_map: tensor 't': shard name '' is empty");
  CHECK(shard_message(".safetensors") ==
        "weight_map: tensor 't': shard name '.safetensors' does not end in .safetensors");
  CHECK(shard_message("config.json") ==
        "weight_map: tensor 't': shard name 'config.json' does not end in .safetensors");
  CHECK(shard_message(std::string(244, 'x') + ".safetensors").find("has more than 255 bytes") !=
        std::string::npos);
  CHECK(shard_message(std::string(243, 'x') + ".safetensors") == "accepted");
}

TEST_CASE("the number of shards is limited") {
  const auto with = [](size_t n) {
    std::string body;
    for (size_t i = 0; i < n; ++i)
      body += fmt::format("{}\"t{}\":\"{}.safetensors\"", i > 0 ? "," : "", i, i);
    return message_of(map_of(body));
  };
  CHECK(with(kShardsMax) == "accepted");
  CHECK(with(kShardsMax + 1) == "weight_map names more than 4096 shards");
}
