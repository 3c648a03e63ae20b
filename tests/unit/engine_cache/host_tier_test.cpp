#include "engine/cache/host_tier.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "temp_dir.h"
#include "unit/engine_cache/kit.h"

using namespace weft;
using namespace weft::engine;

namespace {

// 96-token pages do not end where the units of the tree do.
Layout layout_of(uint32_t pages = 100, uint32_t states = 12) {
  return {{{"a", WEFT_CACHE_ROWS, 16, 16 * 24},
           {"state", WEFT_CACHE_STATE, 0, 1000},
           {"b", WEFT_CACHE_ROWS, 96, 96 * 16}},
          {pages * 6, states, pages}};
}
constexpr uint64_t kTokenBytes = 24 + 16;

cache::HostTierOptions memory(uint64_t bytes) {
  cache::HostTierOptions out;
  out.bytes = bytes;
  return out;
}

cache::HostTierOptions with_disk(uint64_t bytes, const TempDir& dir, uint64_t disk) {
  cache::HostTierOptions out = memory(bytes);
  out.disk_dir = dir.path();
  out.disk_bytes = disk;
  return out;
}

void damage_all(const TempDir& dir) {
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    std::filesystem::resize_file(entry.path(), 40);
  }
}

size_t files(const TempDir& dir) {
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) n += entry.exists();
  return n;
}

}  // namespace

TEST_CASE("what the device gave up comes back from host memory with the same bytes") {
  Kit kit(layout_of(), memory(10u << 20));
  const Stream s = prompt(1000, 300, 1);
  REQUIRE(kit.serve(s, {300}).ran);
  kit.settle();
  CHECK(kit.coordinator->host().saved_bytes() > 1000 * kTokenBytes);
  kit.flood();
  const Stream next = longer(s, 50, 1);
  const CacheProbe probe = kit.probe(next);
  CHECK(probe.device == 0);
  CHECK(probe.host == 1000);
  CHECK(probe.restore_us > 0);
  const Kit::Got got = kit.serve(next);  // checks every row and the state
  CHECK(got.ran);
  CHECK(got.admission.host == 1000);
  CHECK(kit.coordinator->host().loaded_bytes() > 1000 * kTokenBytes);
  REQUIRE(kit.coordinator->audit().ok());
}

TEST_CASE("only what the device lacks is copied in") {
  Kit kit(layout_of(), memory(10u << 20));
  const Stream s = prompt(1000, 768, 1), other = prompt(800, 768, 2);
  kit.serve(s);
  kit.settle();
  kit.flood();
  REQUIRE(kit.serve(other, {768}).ran);
  kit.settle();
  const uint64_t before = kit.coordinator->host().loaded_bytes();
  const Stream next = longer(s, 20, 1);
  CHECK(kit.probe(next).device == 768);
  CHECK(kit.probe(next).host == 1000);
  const Kit::Got got = kit.serve(next);
  CHECK(got.ran);
  CHECK(got.admission.local == 768);
  CHECK(got.admission.host == 232);
  CHECK(kit.coordinator->host().loaded_bytes() - before < 1000 + (232 + 96) * kTokenBytes);
}

TEST_CASE("a copy is made and offered only where it is quicker than computing again") {
  Kit kit(layout_of(), memory(10u << 20));
  kit.coordinator->set_prefill_rate(1e9);
  const Stream s = prompt(1000, 0, 1), t = prompt(1000, 0, 2);
  kit.serve(s);
  kit.settle();
  CHECK(kit.coordinator->host().saved_bytes() == 0);
  kit.coordinator->set_prefill_rate(1000);
  kit.serve(t);
  kit.settle();
  CHECK(kit.coordinator->host().saved_bytes() > 0);
  kit.flood();
  CHECK(kit.probe(t).host == 1000);
  kit.coordinator->set_prefill_rate(1e9);
  CHECK(kit.probe(t).host == 0);
  CHECK(kit.probe(s).host == 0);
}

TEST_CASE("what is being copied cannot be given up meanwhile") {
  Kit kit(layout_of(), memory(10u << 20));
  const Stream s = prompt(1000, 0, 1);
  kit.serve(s);
  CHECK(kit.coordinator->copying());
  kit.flood();  // takes all that is available
  CHECK(kit.probe(s).device == 1000);
  CHECK(kit.probe(s).host == 0);
  kit.settle();
  kit.flood();
  CHECK(kit.probe(s).host == 1000);
}

TEST_CASE("full host memory keeps what is worth most and never takes more than it may") {
  const uint64_t room = 3 * (1000 * kTokenBytes + 5000);
  Kit kit(layout_of(), memory(room));
  kit.serve(prompt(1000, 0, 1));
  for (uint32_t i = 0; i < 8; ++i) kit.serve(longer(prompt(1000, 0, 1), 1 + i, i));
  kit.settle();
  for (uint32_t i = 2; i < 30; ++i) {
    kit.serve(prompt(900, 0, i));
    kit.settle();
    CHECK(kit.coordinator->host().budget().used <= room);
  }
  REQUIRE(kit.coordinator->audit().ok());
  kit.flood();
  CHECK(kit.probe(longer(prompt(1000, 0, 1), 5, 77)).host == 1000);
  kit.coordinator->drop_all();
  CHECK(kit.coordinator->host().budget().used == 0);
}

TEST_CASE("a swapped sequence is pinned until it is released, also when two have the same tokens") {
  Kit kit(layout_of(), memory(2 * 500 * kTokenBytes + 8000));
  const Stream s = prompt(500, 0, 1);
  uint64_t ids[2] = {};
  for (uint64_t& id : ids) {
    SequenceCache sequence(kit.caches.get());
    const CacheAdmission got = kit.coordinator->admit(s.view(499), 500, 0, &sequence);
    REQUIRE(got.ok);
    uint64_t last = got.snapshot;
    compute(*kit.caches, &sequence, s, 0, 500);
    id = kit.coordinator->swap_out(s.view(0), 500, &sequence, &last);
    CHECK(id != 0);
    CHECK(sequence.empty());
  }
  CHECK(ids[0] == ids[1]);
  kit.coordinator->drop_all();
  kit.coordinator->set_prefill_rate(1e12);  // never worth it, but for what is pinned
  CHECK(kit.probe(s).host == 500);
  kit.coordinator->release(ids[0]);
  CHECK(kit.probe(s).host == 500);
  for (uint32_t i = 2; i < 10; ++i) kit.serve(prompt(450, 0, i));
  kit.settle();
  kit.coordinator->drop_all();
  CHECK(kit.probe(s).host == 500);
  const uint64_t version = kit.coordinator->version();
  kit.coordinator->release(ids[1]);
  CHECK(kit.coordinator->version() != version);
  CHECK(kit.probe(s).host == 0);
  kit.coordinator->drop_all();
  CHECK(kit.coordinator->host().budget().used == 0);
}

TEST_CASE("what does not fit next to what is pinned is not pinned") {
  Kit kit(layout_of(), memory(600 * kTokenBytes + 8000));
  uint64_t pinned = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    const Stream s = prompt(500, 0, i);
    SequenceCache sequence(kit.caches.get());
    REQUIRE(kit.coordinator->admit(s.view(499), 500, 0, &sequence).ok);
    compute(*kit.caches, &sequence, s, 0, 500);
    uint64_t last = 0;
    const uint64_t id = kit.coordinator->swap_out(s.view(0), 500, &sequence, &last);
    CHECK((id != 0) == (i == 0));
    if (i == 0) pinned = id;
    CHECK(kit.probe(s).device == 500);
  }
  kit.coordinator->release(pinned);
  CHECK(kit.coordinator->host().room() == 600 * kTokenBytes + 8000);
}

TEST_CASE("only what was used at least twice is spilled to disk, and comes back") {
  TempDir dir;
  Kit kit(layout_of(), with_disk(20 * (700 * kTokenBytes + 5000), dir, 10u << 20));
  const Stream often = prompt(700, 0, 1);
  kit.serve(often);
  for (uint32_t i = 0; i < 3; ++i) kit.serve(longer(often, 10, i));
  kit.settle();
  for (uint32_t i = 2; i < 60; ++i) {
    kit.now_us += 100000000;
    kit.serve(prompt(700, 0, i));
    kit.settle();
  }
  CHECK(kit.coordinator->host().budget().disk_used > 0);
  CHECK(kit.coordinator->host().budget().disk_used < 2 * (800 * kTokenBytes + 5000));
  CHECK(files(dir) > 0);
  kit.flood();
  const Stream next = longer(often, 30, 9);
  REQUIRE(kit.probe(next).host == 700);
  CHECK(kit.serve(next).ran);
  kit.coordinator->drop_all();
  kit.settle();
  CHECK(files(dir) == 0);
  CHECK(kit.coordinator->host().budget().disk_used == 0);
}

TEST_CASE("a damaged file makes its prefix unknown, and it can be kept anew") {
  TempDir dir;
  Kit kit(layout_of(), with_disk(20 * (700 * kTokenBytes + 5000), dir, 10u << 20));
  const Stream often = prompt(700, 0, 1);
  kit.serve(often);
  for (uint32_t i = 0; i < 3; ++i) kit.serve(longer(often, 10, i));
  for (uint32_t i = 2; i < 60; ++i) {
    kit.now_us += 100000000;
    kit.serve(prompt(700, 0, i));
    kit.settle();
  }
  kit.flood();
  const Stream next = longer(often, 30, 9);
  REQUIRE(kit.probe(next).host == 700);
  REQUIRE(files(dir) > 0);
  damage_all(dir);
  CHECK_FALSE(kit.serve(next).ran);
  CHECK(kit.coordinator->host().queue().failures() == 1);
  CHECK(kit.probe(next).host == 0);
  REQUIRE(kit.coordinator->audit().ok());
  CHECK(kit.serve(next).ran);  // computed again
  kit.settle();
  kit.flood();
  CHECK(kit.probe(longer(next, 5, 1)).host == 730);
  CHECK(kit.serve(longer(next, 5, 1)).ran);
}

TEST_CASE("the end leaves no file behind, also amid copies") {
  TempDir dir;
  {
    Kit kit(layout_of(), with_disk(3 * (700 * kTokenBytes + 5000), dir, 10u << 20));
    for (uint32_t round = 0; round < 3; ++round) {
      for (uint32_t i = 1; i < 5; ++i) kit.serve(longer(prompt(700, 0, i), 5, round));
      kit.coordinator->poll();
    }
  }
  CHECK(files(dir) == 0);
}
