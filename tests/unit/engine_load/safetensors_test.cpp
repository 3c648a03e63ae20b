#include "engine/load/safetensors.h"

#include <doctest/doctest.h>

#include <random>

#include "load_fixture.h"

using namespace weft::engine;
using weft_test::shard_bytes;

namespace {

std::string message_of(const std::string& file) {
  const auto header = parse_safetensors(file, file.size());
  return header.ok() ? "accepted" : header.error().message;
}

std::string tensor(std::string_view name, std::string_view dtype, std::string_view shape,
                   std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

}  // namespace

TEST_CASE("a good header gives names, dtypes, shapes and places in file order") {
  const std::string json = R"( {"__metadata__":{"format":"pt","x":"y"},)" +
                           tensor("b", "BF16", "[2,3]", "[4,16]") + "," +
                           tensor("scalar", "F32", "[]", "[0,4]") + "," +
                           tensor("none", "I64", "[5,0,7]", "[16,16]") + "," +
                           tensor("odd", "F8_E5M2", "[1]", "[16,17]") + "," +
                           tensor("half", "F4", "[3,2]", "[17,20]") + "}   ";
  const std::string file = shard_bytes(json, 20);
  const auto header = parse_safetensors(file, file.size());
  REQUIRE_MESSAGE(header.ok(), message_of(file));
  CHECK(header->data_start == 8 + json.size());
  CHECK(header->data_bytes == 20);
  const auto& t = header->tensors;
  REQUIRE(t.size() == 5);
  CHECK(t[0].name == "scalar");
  CHECK(t[0].rank == 0);
  CHECK(t[0].dtype == WEFT_F32);
  CHECK(t[1].name == "b");
  CHECK(t[1].dtype == WEFT_BF16);
  CHECK(t[1].rank == 2);
  CHECK(t[1].shape[0] == 2);
  CHECK(t[1].shape[1] == 3);
  CHECK(t[1].begin == 4);
  CHECK(t[1].end == 16);
  CHECK(t[2].name == "none");
  CHECK(t[3].dtype == WEFT_DTYPE_NONE);  // of the format, but not for models
  CHECK(t[3].dtype_name == "F8_E5M2");
  CHECK(t[4].name == "half");
}

TEST_CASE("no tensor at all is a valid file") {
  CHECK(message_of(shard_bytes("{}", 0)) == "accepted");
}

TEST_CASE("each fault of a header has its own message") {
  struct Row {
    std::string json;
    size_t data_bytes;
    std::string message;
  };
  const auto in = [](const std::string& body) { return "{" + body + "}"; };
  const std::string a = tensor("a", "U8", "[4]", "[0,4]");
  const Row rows[] = {
      {"[1]", 0, "header: expected a JSON object, got an array"},
      {"7", 0, "header: expected a JSON object, got a number"},
      {R"({"__metadata__":[]})", 0, "__metadata__: expected an object of strings, got an array"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__: expected string values, got a number"},
      {R"({"__metadata__":{"a":{}}})", 0, "__metadata__: expected string values, got an object"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "header has __metadata__ twice"},
      {R"({"a":5})", 0,
       "tensor 'a': expected an object with dtype, shape and data_offsets, got a number"},
      {R"({"":{}})", 0, "header names a tensor with the empty string"},
      {R"({"a":{"shape":[4],"data_offsets":[0,4]}})", 4, "tensor 'a': has no dtype"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", 4, "tensor 'a': has no shape"},
      {R"({"a":{"dtype":"U8","shape":[4]}})", 4, "tensor 'a': has no data_offsets"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4,
       "tensor 'a': has dtype twice"},
      {R"({"a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})", 4,
       "tensor 'a': has shape twice"},
      {R"({"a":{"dtype":"U8","strides":[1],"shape":[4],"data_offsets":[0,4]}})", 4,
       "tensor 'a': unknown field 'strides', expected dtype, shape and data_offsets"},
      {in(tensor("a", "E4M3", "[4]", "[0,4]")), 4,
       "tensor 'a': dtype 'E4M3' is none that the format knows"},
      {R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", 4,
       "tensor 'a': dtype: expected a string, got a number"},
      {in(tensor("a", "U8", "4", "[0,4]")), 4,
       "tensor 'a': shape: expected an array, got a number"},
      {in(tensor("a", "U8", "[4]", "4")), 4,
       "tensor 'a': data_offsets: expected an array, got a number"},
      {in(tensor("a", "U8", "[[4]]", "[0,4]")), 4,
       "tensor 'a': shape: expected whole numbers, got an array"},
      {in(tensor("a", "U8", "[4]", "[0,null]")), 4,
       "tensor 'a': data_offsets: expected whole numbers, got null"},
      {in(tensor("a", "U8", "[2,-2]", "[0,4]")), 4,
       "tensor 'a': shape[1] is -2, expected 0 or more"},
      {in(tensor("a", "U8", "[4.0]", "[0,4]")), 4,
       "tensor 'a': shape has '4.0', expected whole numbers below 2^63"},
      {in(tensor("a", "U8", "[9223372036854775808]", "[0,4]")), 4,
       "tensor 'a': shape[0] is 9223372036854775808, expected below 2^63"},
      {in(tensor("a", "U8", "[99999999999999999999]", "[0,4]")), 4,
       "tensor 'a': shape has '99999999999999999999', expected whole numbers below 2^63"},
      {in(tensor("a", "U8", "[4294967296,4294967296]", "[0,0]")), 0,
       "tensor 'a': shape and dtype U8 give no countable number of bytes"},
      {in(tensor("a", "F64", "[2305843009213693952]", "[0,0]")), 0,
       "tensor 'a': shape and dtype F64 give no countable number of bytes"},
      {in(tensor("a", "F4", "[3]", "[0,2]")), 2,
       "tensor 'a': shape and dtype F4 give no countable number of bytes"},
      {in(tensor("a", "U8", "[1,1,1,1,1,1,1]", "[0,1]")), 1,
       "tensor 'a': has more than 6 dimensions"},
      {in(tensor("a", "BF16", "[4]", "[0,4]")), 4,
       "tensor 'a': shape and dtype BF16 need 8 bytes, data_offsets [0, 4] span 4"},
      {in(tensor("a", "U8", "[4]", "[4,0]")), 4,
       "tensor 'a': data_offsets [4, 0] end before they begin"},
      {in(tensor("a", "U8", "[4]", "[-4,0]")), 4,
       "tensor 'a': data_offsets has -4, expected 0 or more"},
      {in(tensor("a", "U8", "[4]", "[0]")), 4,
       "tensor 'a': data_offsets: expected [begin, end], got 1 numbers"},
      {in(tensor("a", "U8", "[4]", "[0,4,8]")), 4,
       "tensor 'a': data_offsets: expected [begin, end], got 3 numbers"},
      {in(a), 3,
       "tensor 'a': data_offsets [0, 4] reach past the 3 data bytes of the file; the file is "
       "truncated or its header is wrong"},
      {in(tensor("a", "U8", "[4]", "[18446744073709551611,18446744073709551615]")), 4,
       "tensor 'a': data_offsets [18446744073709551611, 18446744073709551615] reach past the 4 "
       "data bytes of the file; the file is truncated or its header is wrong"},
      {in(a + "," + tensor("b", "U8", "[4]", "[2,6]")), 6,
       "tensor 'b' [2, 6] overlaps tensor 'a' [0, 4]"},
      {in(a + "," + tensor("b", "U8", "[4]", "[0,4]")), 4,
       "tensor 'b' [0, 4] overlaps tensor 'a' [0, 4]"},
      {in(a + "," + tensor("b", "U8", "[4]", "[6,10]")), 10,
       "2 bytes before tensor 'b' (data bytes 4 to 6) belong to no tensor"},
      {in(tensor("a", "U8", "[4]", "[1,5]")), 5,
       "1 bytes before tensor 'a' (data bytes 0 to 1) belong to no tensor"},
      {in(a), 7, "3 bytes after the last tensor (data bytes 4 to 7) belong to no tensor"},
      {"{}", 2, "2 bytes after the last tensor (data bytes 0 to 2) belong to no tensor"},
      {in(a + "," + a), 4, "header names tensor 'a' twice"},
      {in(tensor("a", "U8", "[2]", "[0,2]") + "," + tensor("\\u0061", "U8", "[2]", "[2,4]")), 4,
       "header names tensor 'a' twice"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    CHECK(message_of(shard_bytes(row.json, row.data_bytes)) == row.message);
  }
}

TEST_CASE("broken JSON says where") {
  for (const char* json :
       {"", "{", R"({"a":)", "{}x", R"({"a":{"dtype":"U8","shape":[1],}})", "\xff"}) {
    CAPTURE(json);
    CHECK(message_of(shard_bytes(json, 0)).substr(0, 36) ==
          "header is not valid JSON at byte " + message_of(shard_bytes(json, 0)).substr(33, 3));
  }
}

TEST_CASE("length field: too short, past the end, past the limit") {
  CHECK(message_of("1234567") == "the file has 7 bytes, too few for a safetensors header");
  CHECK(message_of("") == "the file has 0 bytes, too few for a safetensors header");
  std::string file = shard_bytes("{}", 0);
  file[0] = 3;
  CHECK(message_of(file) == "header length 3 exceeds the file of 10 bytes; the file is truncated");
  file = shard_bytes("{}", 0);
  file[7] = '\x7f';
  CHECK(message_of(file) ==
        "header length 9151314442816847874 exceeds the limit of 104857600; is this a safetensors "
        "file?");
  const std::string most("\0\0\x40\x06\0\0\0\0", 8), more("\x01\0\x40\x06\0\0\0\0", 8);
  CHECK(*safetensors_json_bytes(most, kHeaderBytesMax + 8) == kHeaderBytesMax);
  CHECK_FALSE(safetensors_json_bytes(more, kHeaderBytesMax + 9).ok());
  // The head may be asked about before all of it has been read.
  CHECK(parse_safetensors(shard_bytes("{}", 0).substr(0, 9), 10).error().message ==
        "header: expected 2 bytes, got 1");
}

TEST_CASE("limits on names and on the number of tensors") {
  const auto named = [](size_t n) {
    return shard_bytes("{" + tensor(std::string(n, 'n'), "U8", "[1]", "[0,1]") + "}", 1);
  };
  CHECK(message_of(named(512)) == "accepted");
  CHECK(message_of(named(513)) ==
        "tensor name '" + std::string(120, 'n') + "...' has 513 bytes, the limit is 512");
  std::string json = "{";
  for (size_t i = 0; i <= kShardTensorsMax; ++i) {
    json += i == 0 ? "\"" : ",\"";
    json += std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  CHECK(message_of(shard_bytes(json + "}", 0)) == "header names more than 1048576 tensors");
}

TEST_CASE("names in messages are escaped and cut between characters") {
  CHECK(message_of(shard_bytes(R"({"a\n\u0000\"b":5})", 0)).substr(0, 27) ==
        R"(tensor 'a\n\u0000\"b': expe)");
  std::string name(119, 'n');
  name += "\xc3\xa9zz";  // its two bytes straddle the cut
  CHECK(message_of(shard_bytes("{\"" + name + "\":5}", 0)).substr(0, 135) ==
        "tensor '" + std::string(119, 'n') + "...': ex");
}

TEST_CASE("random tilings parse to themselves; any changed byte never crashes") {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<weft_test::U8Tensor> tensors;
    for (size_t i = 0, n = random() % 6; i < n; ++i)
      tensors.push_back({"t" + std::to_string(i), random() % 40});
    std::string file = weft_test::u8_shard(tensors);
    const auto header = parse_safetensors(file, file.size());
    REQUIRE(header.ok());
    REQUIRE(header->tensors.size() == tensors.size());
    uint64_t at = 0;
    for (const TensorEntry& t : header->tensors) {
      CHECK(t.begin == at);
      at = t.end;
    }
    for (int change = 0; change < 50; ++change) {
      std::string broken = file;
      broken[random() % broken.size()] = static_cast<char>(random());
      (void)parse_safetensors(broken, broken.size());
    }
  }
}
