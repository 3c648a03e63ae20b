#include <doctest/doctest.h>

#include <cstring>

#include "engine/cache/arenas.h"
#include "engine/cache/sequence_cache.h"
#include "engine/cache/sizes.h"
#include "unit/engine/test_rng.h"

using namespace weft;
using namespace weft::engine;

namespace {

weft_mem_plan plan_of(std::vector<weft_cache_group> groups) {
  weft_mem_plan plan = {};
  plan.struct_size = sizeof(plan);
  plan.n_groups = static_cast<uint32_t>(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) plan.groups[i] = groups[i];
  return plan;
}

const weft_cache_group kRowsA = {"a", WEFT_CACHE_ROWS, 4, 64};
const weft_cache_group kRowsB = {"b", WEFT_CACHE_ROWS, 3, 128};
const weft_cache_group kState = {"s", WEFT_CACHE_STATE, 0, 640};

}  // namespace

TEST_CASE("sizing stays in the budget, fits one full sequence and wastes nothing on the small") {
  TestRng rng(4);
  for (int round = 0; round < 500; ++round) {
    const auto plan = plan_of({kRowsA, kState, kRowsB});
    const uint64_t budget = 900 + rng() % 200000;
    const uint32_t seqs = 1 + rng() % 40, context = 1 + rng() % 3000;
    const auto sizes = size_caches(plan, budget, {seqs, context, false, 0});
    REQUIRE(sizes.ok());
    CHECK(sizes->bytes <= budget);
    CHECK(sizes->max_sequences >= 1);
    CHECK(sizes->max_sequences <= seqs);
    CHECK(sizes->units[1] == sizes->max_sequences);
    CHECK(sizes->max_context <= context);
    CHECK(sizes->max_context >= 1);
    CHECK(uint64_t{sizes->units[0]} * 4 >= sizes->max_context);
    CHECK(uint64_t{sizes->units[2]} * 3 >= sizes->max_context);
    CHECK(uint64_t{sizes->units[0]} <= uint64_t{seqs} * ((context + 3) / 4));
  }
  // plenty of memory: every sequence can have its whole context
  const auto roomy = size_caches(plan_of({kRowsA, kState}), uint64_t{1} << 30, {8, 10, false, 0});
  CHECK(roomy->units[0] == 8 * 3);
  CHECK(roomy->max_context == 10);
  // a model of states alone, and one of rows alone
  CHECK(size_caches(plan_of({kState}), 640 * 5, {8, 10, false, 0})->max_sequences == 5);
  CHECK(size_caches(plan_of({kRowsA}), 64 * 5, {8, 100, false, 0})->max_context == 20);
}

TEST_CASE("snapshots get slots beyond those of sequences, but no rows of a whole context") {
  TestRng rng(5);
  for (int round = 0; round < 500; ++round) {
    const auto plan = plan_of({kRowsA, kState, kRowsB});
    const uint64_t budget = 900 + rng() % 400000;
    const uint32_t seqs = 1 + rng() % 10, context = 1 + rng() % 1000;
    const auto plain = size_caches(plan, budget, {seqs, context, false, 0});
    const auto kept = size_caches(plan, budget, {seqs, context, true, rng() % 2 == 0 ? 0 : 7u});
    REQUIRE(kept.ok());
    CHECK(kept->bytes <= budget);
    CHECK(kept->max_sequences == plain->max_sequences);
    CHECK(kept->max_context == plain->max_context);
    CHECK(kept->units[1] == kept->max_sequences + kept->snapshots);
    CHECK(plain->snapshots == 0);
  }
  CHECK(size_caches(plan_of({kRowsA, kState}), uint64_t{1} << 30, {8, 10, true, 5})->snapshots ==
        5);
  CHECK(size_caches(plan_of({kRowsA, kState}), uint64_t{1} << 30, {8, 10, true, 0})->snapshots ==
        4 * 8 + 16);
}

TEST_CASE("too little memory and broken plans are refused with numbers") {
  const auto small = size_caches(plan_of({kRowsA, kState}), 703, {8, 10, false, 0});
  CHECK(small.error().code == ErrorCode::kInvalid);
  CHECK(small.error().message.find("704") != std::string::npos);
  CHECK(size_caches(plan_of({{"x", WEFT_CACHE_ROWS, 0, 8}}), 1000, {1, 1, false, 0}).error().code ==
        ErrorCode::kInternal);
  CHECK_FALSE(size_caches(plan_of({{"x", 7, 1, 8}}), 1000, {1, 1, false, 0}).ok());
}

TEST_CASE("the default budget leaves room for what is still to be loaded") {
  CHECK(default_cache_budget(0) > 0);
  CHECK(default_cache_budget(uint64_t{1} << 60) <= default_cache_budget(0));
}

TEST_CASE("sequence caches take all or nothing and give everything back") {
  CacheSizes sizes;
  sizes.units = {6, 2, 8};
  auto made = Caches::make(plan_of({kRowsA, kState, kRowsB}), sizes, true);
  REQUIRE(made.ok());
  Caches& caches = **made;
  {
    SequenceCache one(&caches), two(&caches), three(&caches);
    REQUIRE(one.reserve(9, 0));  // 3 pages of a, 3 of b
    CHECK(one.rows(0).size() == 3);
    CHECK(one.rows(2).size() == 3);
    CHECK(one.state(1).own.valid());
    CHECK_FALSE(two.reserve(16, 0));  // 4 pages of a are not free
    CHECK(two.empty());
    CHECK_FALSE(two.reserve(9, 1));  // would leave no spare page in a
    REQUIRE(two.reserve(9, 0));
    CHECK_FALSE(three.reserve(1, 0));
    CHECK_FALSE(two.reserve(13, 0));
    CHECK(two.rows(0).size() == 3);
    CHECK(caches.audit().ok());
    two.clear();
    CHECK(two.empty());
    CHECK(three.reserve(1, 0));
    CHECK_FALSE(caches.idle());
  }
  CHECK(caches.idle());
  CHECK(caches.audit().ok());
}

TEST_CASE("arenas start zeroed and returned units are poisoned") {
  CacheSizes sizes;
  sizes.units = {2, 1};
  auto made = Caches::make(plan_of({kRowsA, kState}), sizes, true);
  REQUIRE(made.ok());
  const weft_arena& arena = (*made)->arenas()[0];
  CHECK(arena.n_units == 2);
  const std::vector<unsigned char> zero(64, 0), poison(64, 0xff);
  CHECK(std::memcmp(arena.base, zero.data(), 64) == 0);
  SequenceCache sequence(made->get());
  REQUIRE(sequence.reserve(1, 0));
  const int32_t unit = sequence.rows(0).unit(0);
  sequence.clear();
  CHECK(std::memcmp(static_cast<char*>(arena.base) + unit * arena.stride, poison.data(), 64) == 0);
  CHECK((*made)->groups()[0].name == "a");
}
