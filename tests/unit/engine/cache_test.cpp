#include "engine/cache.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

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

TEST_CASE("a handle returns its unit exactly once") {
  PagePool pool(2);
  {
    Page a = pool.take();
    Page b = pool.take();
    CHECK(a.unit() != b.unit());
    CHECK_FALSE(pool.take().valid());
    Page c = std::move(a);
    CHECK_FALSE(a.valid());
    CHECK(pool.available() == 0);
    b = std::move(c);  // the unit that b held goes back
    CHECK(pool.available() == 1);
    CHECK(pool.audit().ok());
    b.reset();
    b.reset();
    CHECK(pool.available() == 2);
  }
  CHECK(pool.available() == 2);
  CHECK(pool.audit().ok());
}

TEST_CASE("a unit has a new generation each time it is taken") {
  SlotPool pool(1);
  Slot first = pool.take();
  const uint32_t generation = first.generation();
  first.reset();
  Slot second = pool.take();
  CHECK(second.unit() == 0);
  CHECK(second.generation() == generation + 2);
}

TEST_CASE("pools survive a random life with audits") {
  TestRng rng(3);
  PagePool pool(50);
  std::vector<Page> held;
  for (int i = 0; i < 20000; ++i) {
    if (rng() % 2 == 0) {
      Page page = pool.take();
      CHECK(page.valid() == (held.size() < 50));
      if (page.valid()) held.push_back(std::move(page));
    } else if (!held.empty()) {
      std::swap(held[rng() % held.size()], held.back());
      held.pop_back();
    }
    REQUIRE(pool.used() == held.size());
    if (i % 100 == 0) REQUIRE(pool.audit().ok());
  }
}

TEST_CASE("destroying a pool with owned units stops the process") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::freopen("/dev/null", "w", stderr);
    ::signal(SIGABRT, SIG_DFL);
    auto* pool = new PagePool(1);
    Page page = pool->take();
    delete pool;
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("sizing stays in the budget, fits one full sequence and wastes nothing on the small") {
  TestRng rng(4);
  for (int round = 0; round < 500; ++round) {
    const auto plan = plan_of({kRowsA, kState, kRowsB});
    const uint64_t budget = 900 + rng() % 200000;
    const uint32_t seqs = 1 + rng() % 40, context = 1 + rng() % 3000;
    const auto sizes = size_caches(plan, budget, seqs, context);
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
  const auto roomy = size_caches(plan_of({kRowsA, kState}), uint64_t{1} << 30, 8, 10);
  CHECK(roomy->units[0] == 8 * 3);
  CHECK(roomy->max_context == 10);
  // a model of states alone, and one of rows alone
  CHECK(size_caches(plan_of({kState}), 640 * 5, 8, 10)->max_sequences == 5);
  CHECK(size_caches(plan_of({kRowsA}), 64 * 5, 8, 100)->max_context == 20);
}

TEST_CASE("too little memory and broken plans are refused with numbers") {
  const auto small = size_caches(plan_of({kRowsA, kState}), 703, 8, 10);
  CHECK(small.error().code == ErrorCode::kInvalid);
  CHECK(small.error().message.find("704") != std::string::npos);
  CHECK(size_caches(plan_of({{"x", WEFT_CACHE_ROWS, 0, 8}}), 1000, 1, 1).error().code ==
        ErrorCode::kInternal);
  CHECK_FALSE(size_caches(plan_of({{"x", 7, 1, 8}}), 1000, 1, 1).ok());
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
    CHECK(one.pages(0).size() == 3);
    CHECK(one.pages(2).size() == 3);
    CHECK(one.slot(1).valid());
    CHECK_FALSE(two.reserve(16, 0));  // 4 pages of a are not free
    CHECK(two.empty());
    CHECK_FALSE(two.reserve(9, 1));  // would leave no spare page in a
    REQUIRE(two.reserve(9, 0));
    CHECK_FALSE(three.reserve(1, 0));
    CHECK_FALSE(two.reserve(13, 0));
    CHECK(two.pages(0).size() == 3);
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
  const int32_t unit = sequence.pages(0)[0].unit();
  sequence.clear();
  CHECK(std::memcmp(static_cast<char*>(arena.base) + unit * arena.stride, poison.data(), 64) == 0);
  CHECK((*made)->groups()[0].name == "a");
}
