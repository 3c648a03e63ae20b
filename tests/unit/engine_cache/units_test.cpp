#include "engine/cache/units.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>

#include "unit/engine/test_rng.h"
#include "unit/engine_cache/child.h"

using namespace weft;
using namespace weft::engine;
using namespace weft::engine::cache;

TEST_CASE("a unit returns when its last handle of any kind goes") {
  UnitPool pool(2);
  OwnedUnit own = pool.take();
  const int32_t unit = own.unit();
  CHECK(pool.active() == 1);
  LiveRef live = std::move(own).freeze();
  CHECK_FALSE(own.valid());
  CHECK(live.unit() == unit);
  CachedRef kept = live.keep();
  CHECK(kept.in_use());
  CHECK_FALSE(kept.sole());
  live.reset();
  CHECK(kept.sole());
  CHECK(pool.active() == 0);
  CHECK(pool.cached() == 1);
  CHECK(pool.free() == 1);
  LiveRef again = kept.use();
  kept.reset();
  CHECK(pool.active() == 1);
  CHECK(pool.free() == 1);
  again.reset();
  again.reset();
  CHECK(pool.free() == 2);
  CHECK(pool.audit().ok());
}

TEST_CASE("copies and moves of handles count right") {
  UnitPool pool(3);
  {
    LiveRef a = pool.take().freeze();
    LiveRef b = a;
    LiveRef c = std::move(a);
    CHECK_FALSE(a.valid());
    b = c;
    b = b;  // NOLINT: on purpose
    CachedRef k = c.keep();
    CachedRef l = k;
    CHECK_FALSE(l.sole());
    k = CachedRef();
    c.reset();
    CHECK(pool.active() == 1);
    b = LiveRef();
    CHECK(pool.active() == 0);
    CHECK(l.sole());
    OwnedUnit first = pool.take(), second = pool.take();
    CHECK_FALSE(pool.take().valid());
    first = std::move(second);
    CHECK(pool.free() == 1);
    CHECK(pool.audit().ok());
  }
  CHECK(pool.free() == 3);
}

TEST_CASE("only the sole handle can be thawed, and the unit stays the same") {
  UnitPool pool(1);
  OwnedUnit own = pool.take();
  const uint32_t generation = own.generation();
  CachedRef kept = std::move(own).freeze().keep();
  OwnedUnit back = std::move(kept).thaw();
  CHECK_FALSE(kept.valid());
  CHECK(back.generation() == generation);
  CHECK(pool.active() == 1);
  back.reset();
  CHECK(pool.take().generation() == generation + 2);
  CHECK(pool.free() == 1);
}

TEST_CASE("returned units are poisoned, the gap between units is not") {
  std::array<unsigned char, 3 * 64> memory;
  memory.fill(0x11);
  UnitPool pool(3);
  pool.poison_returned(memory.data(), 64, 40);
  OwnedUnit a = pool.take(), b = pool.take();
  CachedRef kept = std::move(b).freeze().keep();
  a.reset();
  for (size_t i = 0; i < memory.size(); ++i) CHECK(memory[i] == (i < 40 ? 0xff : 0x11));
  kept.reset();
  for (size_t i = 64; i < 128; ++i) CHECK(memory[i] == (i < 104 ? 0xff : 0x11));
  CHECK(memory[128] == 0x11);
}

TEST_CASE("misuse stops the process") {
  CHECK(dies([] {  // a pool goes before what it handed out
    auto* pool = new UnitPool(1);
    OwnedUnit own = pool->take();
    delete pool;
  }));
  CHECK(dies([] {
    UnitPool pool(1);
    CachedRef kept = pool.take().freeze().keep();
    CachedRef other = kept;
    OwnedUnit own = std::move(kept).thaw();  // shared with `other`
  }));
  CHECK(dies([] {
    UnitPool pool(1);
    LiveRef live = pool.take().freeze();
    CachedRef kept = live.keep();
    OwnedUnit own = std::move(kept).thaw();  // in use
  }));
  CHECK(dies([] { OwnedUnit().unit(); }));
  CHECK(dies([] { LiveRef().keep(); }));
  CHECK(dies([] { CachedRef().thaw(); }));
  CHECK(dies([] {  // a stale handle, forged: its unit has gone on to the next holder
    UnitPool pool(1);
    alignas(LiveRef) unsigned char bytes[sizeof(LiveRef)];
    LiveRef live = pool.take().freeze();
    std::memcpy(bytes, static_cast<const void*>(&live), sizeof(bytes));
    live.reset();
    OwnedUnit next = pool.take();
    reinterpret_cast<LiveRef*>(bytes)->reset();
  }));
  CHECK_FALSE(dies([] {
    UnitPool pool(1);
    OwnedUnit own = pool.take();
  }));
}

TEST_CASE("pools survive a random life of all kinds of handles") {
  TestRng rng(7);
  UnitPool pool(30);
  std::vector<OwnedUnit> owned;
  std::vector<LiveRef> live;
  std::vector<CachedRef> kept;
  const auto remove = [&](auto& all) {
    if (all.empty()) return;
    std::swap(all[rng.below(static_cast<uint32_t>(all.size()))], all.back());
    all.pop_back();
  };
  for (int i = 0; i < 20000; ++i) {
    switch (rng.below(9)) {
      case 0:
      case 1:
        if (OwnedUnit unit = pool.take(); unit.valid()) owned.push_back(std::move(unit));
        break;
      case 2:
        if (owned.empty()) break;
        live.push_back(std::move(owned.back()).freeze());
        owned.pop_back();
        break;
      case 3:
        if (!live.empty())
          kept.push_back(live[rng.below(static_cast<uint32_t>(live.size()))].keep());
        break;
      case 4:
        if (!kept.empty())
          live.push_back(kept[rng.below(static_cast<uint32_t>(kept.size()))].use());
        break;
      case 5:
        remove(owned);
        break;
      case 6:
        remove(live);
        break;
      case 7:
        remove(kept);
        break;
      default:
        if (kept.empty() || !kept.back().sole()) break;
        owned.push_back(std::move(kept.back()).thaw());
        kept.pop_back();
    }
    REQUIRE(pool.free() + pool.active() + pool.cached() == pool.total());
    if (i % 50 == 0) REQUIRE(pool.audit().ok());
  }
  owned.clear();
  live.clear();
  kept.clear();
  CHECK(pool.free() == 30);
}
