// Random lives of the prefix cache against a naive model (world.h). WEFT_CACHE_OPS: operations;
// WEFT_CACHE_SEED: the first seed. A failure prints the shortest list of operations found that
// still fails.
#include <doctest/doctest.h>

#include <cstdlib>

#include "unit/engine_cache/shrink.h"

using namespace weft;
using namespace weft::engine;

namespace {

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* text = ::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

constexpr uint64_t kOps = 100000;  // some seconds; most of it are the processes and their memory
// Longer lives for who has time: more of them begin with much that is kept.
constexpr uint32_t kOpsPerRun = 1500, kOpsPerLongRun = 6000;

RunCounts run_many(uint64_t ops, uint64_t first_seed, bool threaded) {
  RunCounts all;
  for (uint64_t seed = first_seed; all.ops < ops; ++seed) {
    Scenario scenario = draw_scenario(seed, ops < 1000000 ? kOpsPerRun : kOpsPerLongRun);
    scenario.threaded = threaded;
    const RunResult result = run_in_child(scenario, /*loud=*/true);
    if (!result.ok) {
      const Scenario small = shrink(scenario, threaded ? 100 : 2000);
      const RunResult again = run_in_child(small, /*loud=*/true);
      FAIL("seed " << seed << ": " << result.message << "\nshrunk to " << small.ops.size()
                   << " operations: " << again.message << "\n"
                   << describe(small));
    }
    all.add(result.counts);
  }
  MESSAGE(all.text());
  return all;
}

}  // namespace

TEST_CASE("random lives keep every promise; copies are made when the test says") {
  const RunCounts counts =
      run_many(number_of("WEFT_CACHE_OPS", kOps), number_of("WEFT_CACHE_SEED", 1),
               /*threaded=*/false);
  // The rare things did happen.
  CHECK(counts.hits > 100);
  CHECK(counts.host_hits > 10);
  CHECK(counts.media_hits > 10);
  CHECK(counts.refused > 10);
  CHECK(counts.evicted > 100);
  CHECK(counts.declined > 10);
  CHECK(counts.swaps > 10);
  CHECK(counts.abandoned > 0);
  CHECK(counts.exact > 100);
  CHECK(counts.spilled > 0);
}

TEST_CASE("random lives keep every promise; copies are made by the copy thread") {
  run_many(number_of("WEFT_CACHE_OPS", kOps) / 10, number_of("WEFT_CACHE_SEED", 1) + 1000000,
           /*threaded=*/true);
}

TEST_CASE("mistakes made on purpose are found and shrunk to a few operations") {
  for (const Inject inject :
       {Inject::kWrongRow, Inject::kWrongState, Inject::kSkippedCopy, Inject::kSharedWrite,
        Inject::kLeak, Inject::kTenants, Inject::kForgotten, Inject::kGap, Inject::kCrash}) {
    CAPTURE(static_cast<int>(inject));
    Scenario failing;
    for (uint64_t seed = 1; failing.ops.empty() && seed < 200; ++seed) {
      Scenario scenario = draw_scenario(seed, 400);
      scenario.inject = inject;
      if (!run_in_child(scenario, /*loud=*/false).ok) failing = scenario;
    }
    REQUIRE_FALSE(failing.ops.empty());
    const Scenario small = shrink(failing, 250);
    INFO(run_in_child(small, false).message << "\n" << describe(small));
    CHECK(small.ops.size() >= 1);
    CHECK(small.ops.size() <= 16);
    CHECK_FALSE(run_in_child(small, /*loud=*/false).ok);
    Scenario right = small;
    right.inject = Inject::kNone;
    CHECK(run_in_child(right, /*loud=*/false).ok);
  }
}
