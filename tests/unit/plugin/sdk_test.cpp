// The helper header for plugin authors: nothing escapes the fence, settings are typed, host memory
// goes back.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

#include "../../../plugins/sdk/weft.hpp"
#include "plugin/host_table.h"
#include "plugin/params.h"

namespace {

weft_err fresh() {
  weft_err err{};
  err.struct_size = sizeof err;
  return err;
}

}  // namespace

TEST_CASE("the fence turns every exception into a status and a message") {
  weft_err err = fresh();
  CHECK(weft::fence(&err, [] {}) == WEFT_OK);
  CHECK(weft::fence(&err, [] { return WEFT_AGAIN; }) == WEFT_AGAIN);
  CHECK(err.msg[0] == '\0');
  CHECK(weft::fence(&err, [] { weft::fail(WEFT_E_CONFIG, "port: expected %d", 80); }) ==
        WEFT_E_CONFIG);
  CHECK(std::string(err.msg) == "port: expected 80");
  CHECK(err.code == WEFT_E_CONFIG);
  CHECK(weft::fence(&err, [] { throw weft::Failure(WEFT_E_IO, "read", 5); }) == WEFT_E_IO);
  CHECK(err.sys == 5);
  CHECK(weft::fence(&err, [] { throw std::bad_alloc(); }) == WEFT_E_NOMEM);
  CHECK(weft::fence(&err, [] { throw std::runtime_error("odd"); }) == WEFT_E_INTERNAL);
  CHECK(std::string(err.msg) == "odd");
  CHECK(weft::fence(&err, []() -> weft_status { throw 7; }) == WEFT_E_INTERNAL);
  CHECK(weft::fence(nullptr, [] { throw 7; }) == WEFT_E_INTERNAL);
  CHECK(weft::fence(&err, [] { weft::fail(WEFT_E_IO, "%s", std::string(2000, 'x').c_str()); }) ==
        WEFT_E_IO);
  CHECK(std::string(err.msg) == std::string(495, 'x'));
  CHECK(weft::fence_value(-1, []() -> int { throw 7; }) == -1);
  CHECK(weft::fence_value(-1, [] { return 3; }) == 3);
  weft::fence_void([] { throw 7; });
  weft_err old = fresh();
  old.struct_size = 8;  // built by somebody whose struct had no message yet
  CHECK(weft::fence(&old, [] { throw 7; }) == WEFT_E_INTERNAL);
  CHECK(old.msg[0] == '\0');
}

TEST_CASE("settings are read by name and type") {
  const weft_key keys[] = {{"root", WEFT_KEY_STR, 0, "/srv", "Directory."},
                           {"depth", WEFT_KEY_INT, 0, "65", "Depth."},
                           {"direct", WEFT_KEY_BOOL, 0, "true", "Direct."},
                           {"ratio", WEFT_KEY_REAL, 0, "0.5", "Ratio."},
                           {nullptr, 0, 0, nullptr, nullptr}};
  auto set = weft::plugin::ParamSet::make(keys, {});
  REQUIRE(set.ok());
  const weft::Params params(set->data(), set->size());
  CHECK(params.text("root") == "/srv");
  CHECK(params.integer("depth") == 65);
  CHECK(params.flag("direct"));
  CHECK(params.real("ratio") == 0.5);
  CHECK(params.integer("absent", 9) == 9);
  CHECK(params.text("absent", "x") == "x");
  weft_err err = fresh();
  CHECK(weft::fence(&err, [&] { params.integer_in("depth", 1, 64); }) == WEFT_E_CONFIG);
  CHECK(std::string(err.msg) == "setting \"depth\": expected 1 to 64, came 65");
}

TEST_CASE("host memory is owned once and given back") {
  auto host = weft::plugin::HostTable::make({});
  {
    weft::HostBlock block(host->table(), 1000);
    CHECK(host->bytes_in_use() == 1000);
    weft::HostBlock moved(std::move(block));
    CHECK(block.data() == nullptr);
    moved = weft::HostBlock(host->table(), 10);
    CHECK(host->bytes_in_use() == 10);
    CHECK(moved.as<char>()[9] == 0);
  }
  CHECK(host->bytes_in_use() == 0);
  weft_err err = fresh();
  CHECK(weft::fence(&err, [&] { weft::HostBlock(host->table(), UINT64_MAX); }) == WEFT_E_NOMEM);
  CHECK(weft::host_extension<weft_host_threads_v1>(host->table(), WEFT_HOST_THREADS_ID) != nullptr);
}
