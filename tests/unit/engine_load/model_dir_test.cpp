#include "engine/load/model_dir.h"

#include <doctest/doctest.h>

#include "load_fixture.h"

using namespace weft::engine;
using weft_test::FakeStorage;

TEST_CASE("config.json is required, generation_config.json is not") {
  FakeStorage storage;
  storage.files["/m/config.json"] = R"({"model_type":"x"})";
  auto dir = read_model_dir(storage.ref(), "/m");
  REQUIRE(dir.ok());
  CHECK(dir->location == "/m");
  CHECK(dir->config_json == R"({"model_type":"x"})");
  CHECK(dir->generation_config_json.empty());
  storage.files["/m/generation_config.json"] = R"({"eos_token_id":7})";
  dir = read_model_dir(storage.ref(), "/m");
  REQUIRE(dir.ok());
  CHECK(dir->generation_config_json == R"({"eos_token_id":7})");
  CHECK(storage.open_objects == 0);
}

TEST_CASE("what is wrong with a model directory is said in one sentence") {
  FakeStorage storage;
  const auto message = [&] { return read_model_dir(storage.ref(), "/m").error().message; };
  CHECK(message() ==
        "config.json not found in '/m': expected a model directory with config.json and "
        "*.safetensors");
  storage.files["/m/config.json"] = "{";
  CHECK(message().substr(0, 33) == "config.json of '/m': invalid JSON");
  storage.files["/m/config.json"] = "[]";
  CHECK(message() == "config.json of '/m': expected a JSON object");
  storage.files["/m/config.json"] = std::string(kConfigBytesMax + 1, ' ');
  CHECK(message() == "'/m/config.json' has 16777217 bytes, the limit is 16777216");
  storage.files["/m/config.json"] = "{}" + std::string(kConfigBytesMax - 2, ' ');
  CHECK(read_model_dir(storage.ref(), "/m").ok());
  storage.files["/m/generation_config.json"] = "nonsense";
  CHECK(message().substr(0, 44) == "generation_config.json of '/m': invalid JSON");
  storage.fail_offset = 0;
  CHECK(message() == "read of 16777216 bytes at offset 0 failed after 0: Input/output error");
}
