// The plugin directory of this build: every plugin there loads, opens and closes, and example_null
// serves zeros.
#include <doctest/doctest.h>
#include <weft/storage.h>

#include <array>

#include "plugin/host_table.h"
#include "plugin/instance.h"
#include "plugin/registry.h"

using namespace weft::plugin;

TEST_CASE("example_null loads, reads zeros and reports a short object") {
  auto host = HostTable::make({});
  auto registry = Registry::scan(WEFT_PLUGIN_DIR, TrustPolicy::kUnchecked);
  REQUIRE(registry.ok());
  auto plugin = (*registry)->open("example_null", *host);
  REQUIRE_MESSAGE(plugin.ok(), (plugin.ok() ? "" : plugin.error().message));
  CHECK((*registry)->record("example_null")->state == PluginState::kOpen);
  CHECK((*registry)->find_interface(WEFT_STORAGE_ID).plugin == *plugin);

  auto instance = Instance::create(**plugin, WEFT_STORAGE_ID, {{"size_max", "1MiB"}});
  REQUIRE(instance.ok());
  REQUIRE(instance->start().ok());
  const auto* storage = instance->table<weft_storage_v1>();
  const std::string uri = "null:100";
  weft_object* object = nullptr;
  weft_object_info info{};
  info.struct_size = sizeof info;
  weft_err err{};
  err.struct_size = sizeof err;
  REQUIRE(storage->open_object(instance->get(), {uri.data(), uri.size()}, &object, &info, &err) ==
          WEFT_OK);
  CHECK(info.size == 100);
  std::array<char, 100> buffer;
  buffer.fill('x');
  const weft_io reads[] = {{1, object, 0, 100, buffer.data(), WEFT_MEM_HOST, 0},
                           {2, object, 50, 51, buffer.data(), 0, 0}};
  CHECK(storage->submit(instance->get(), reads, 2) == 2);
  std::array<weft_done, 4> done{};
  REQUIRE(storage->reap(instance->get(), done.data(), 4, 0) == 2);
  CHECK(done[0].status == WEFT_OK);
  CHECK(done[0].bytes == 100);
  CHECK(done[1].status == WEFT_E_CORRUPT);
  CHECK(buffer == std::array<char, 100>{});
  storage->close_object(instance->get(), object);
  CHECK(*instance->drain(0));
  const std::string huge = "null:1048577";
  CHECK(storage->open_object(instance->get(), {huge.data(), huge.size()}, &object, &info, &err) ==
        WEFT_E_CONFIG);
}
