// Which prefixes stay and which go.
#include <doctest/doctest.h>

#include "unit/engine_cache/kit.h"

using namespace weft;
using namespace weft::engine;
using cache::SnapshotKind;

namespace {

Layout layout_of(uint32_t pages, uint32_t states, uint64_t state_bytes = 512) {
  return {{{"rows", WEFT_CACHE_ROWS, 16, 16 * 16}, {"state", WEFT_CACHE_STATE, 0, state_bytes}},
          {pages, states}};
}

}  // namespace

TEST_CASE("rows that no snapshot needs are free at once") {
  Kit kit(layout_of(100, 10));
  const Stream s = prompt(300, 0, 1);
  {
    SequenceCache sequence(kit.caches.get());
    uint64_t last = 0;
    REQUIRE(kit.coordinator->admit(s.view(299), 300, 0, &sequence).ok);
    compute(*kit.caches, &sequence, s, 0, 160);
    REQUIRE(kit.coordinator->publish(s.view(0), 160, SnapshotKind::kTurn, true, &sequence, &last));
    compute(*kit.caches, &sequence, s, 160, 300);
  }
  // 160 tokens are kept, the pages after them came back with their sequence.
  CHECK(kit.free(0) == 90);
  CHECK(kit.free(1) == 9);
  CHECK(kit.probe(s).device == 160);
  kit.coordinator->drop_all();
  CHECK(kit.free(0) == 100);
  CHECK(kit.free(1) == 10);
}

TEST_CASE("giving up the last snapshot that needs rows gives up the rows") {
  // Four state slots: three snapshots and who runs.
  Kit kit(layout_of(1000, 4));
  for (uint32_t i = 0; i < 3; ++i) CHECK(kit.serve(prompt(320, 128, i)).ran);
  CHECK(kit.free(0) == 1000 - (8 + 3 * 12));
  CHECK(kit.serve(prompt(160, 0, 9)).ran);
  CHECK(kit.serve(prompt(160, 0, 10)).ran);
  CHECK(kit.coordinator->snapshots() == 4);
  REQUIRE(kit.coordinator->audit().ok());
  kit.coordinator->drop_all();
  CHECK(kit.free(0) == 1000);
}

TEST_CASE("what saves least per byte goes first") {
  // A long prompt saves much for its one state slot, a short one little.
  Kit kit(layout_of(1000, 4, 65536));
  const Stream big = prompt(2000, 0, 1), small = prompt(32, 0, 2), middle = prompt(500, 0, 3);
  kit.serve(big);
  kit.serve(small);
  kit.serve(middle);
  CHECK(kit.coordinator->stats().evicted == 0);
  kit.serve(prompt(400, 0, 4));
  kit.serve(prompt(401, 0, 5));
  CHECK(kit.probe(small).device == 0);
  CHECK(kit.probe(big).device == 2000);
  CHECK(kit.probe(middle).device == 500);
}

TEST_CASE("a shared prefix survives a flood of prompts that nobody repeats") {
  Kit kit(layout_of(200, 8));
  const uint32_t common = 640;
  kit.serve(prompt(700, common, 0), {common});
  for (uint32_t i = 1; i < 6; ++i) kit.serve(prompt(700, common, i), {common});
  for (uint32_t i = 100; i < 200; ++i) {
    REQUIRE(kit.serve(prompt(900 + i, 0, i)).ran);
    REQUIRE(kit.probe(prompt(700, common, 1)).device >= common);
  }
  CHECK(kit.coordinator->stats().evicted > 50);
  CHECK(kit.serve(prompt(700, common, 7)).admission.local == common);
}

TEST_CASE("a turn that its conversation has left behind goes before fresh ones") {
  Kit kit(layout_of(1000, 5));
  const Stream turn = prompt(400, 0, 1), next = longer(turn, 300, 2);
  const Kit::Got first = kit.serve(turn);
  kit.serve(prompt(400, 0, 3));
  kit.serve(next, {}, first.last);
  CHECK(kit.probe(turn).device == 400);
  const Stream others[] = {prompt(400, 0, 4), prompt(400, 0, 5), prompt(400, 0, 6)};
  kit.serve(others[0]);
  kit.serve(others[1]);
  CHECK(kit.coordinator->stats().evicted == 0);
  kit.serve(others[2]);
  CHECK(kit.coordinator->stats().evicted == 1);
  CHECK(kit.probe(turn).device == 0);
  CHECK(kit.probe(next).device == 700);
  CHECK(kit.probe(prompt(400, 0, 3)).device == 400);
  CHECK(kit.probe(others[1]).device == 400);
}

TEST_CASE("what was used long ago goes before what was used just now") {
  Kit kit(layout_of(1000, 4));
  const Stream old = prompt(400, 0, 1), used = prompt(400, 0, 2), fresh = prompt(400, 0, 3);
  kit.serve(old);
  kit.serve(used);
  kit.now_us += 400000000;
  kit.serve(longer(used, 16, 1));
  kit.serve(fresh);
  kit.serve(prompt(400, 0, 4));
  CHECK(kit.probe(old).device == 0);
  CHECK(kit.probe(used).device == 400);
}

TEST_CASE("a snapshot worth less than all that is kept is not made") {
  Kit kit(layout_of(1000, 3, 65536));
  for (uint32_t i = 0; i < 6; ++i) kit.serve(prompt(3000, 0, 1));
  kit.serve(prompt(3001, 0, 2));
  const uint64_t evicted = kit.coordinator->stats().evicted;
  SequenceCache sequence(kit.caches.get());
  const Stream s = prompt(40, 0, 5);
  REQUIRE(kit.coordinator->admit(s.view(39), 40, 0, &sequence).ok);
  compute(*kit.caches, &sequence, s, 0, 20);
  uint64_t last = 0;
  CHECK_FALSE(kit.coordinator->publish(s.view(0), 20, SnapshotKind::kTurn, true, &sequence, &last));
  CHECK(kit.coordinator->stats().declined == 1);
  CHECK(kit.coordinator->stats().evicted == evicted);
  check_state(*kit.caches, sequence, s, 20);
}
