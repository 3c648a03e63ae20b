#include "engine/scheduler.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "unit/engine/fake_model.h"
#include "unit/engine/test_rng.h"

using namespace weft;
using namespace weft::engine;

namespace {

struct Rig {
  Rig(SchedulerLimits l, uint32_t pool_tokens) : limits(l), scheduler(l) {
    CacheSizes sizes;
    sizes.units = {(pool_tokens + 3) / 4, l.max_sequences, (pool_tokens + 2) / 3};
    auto made = Caches::make(FakeModel({}).plan(), sizes, true);
    REQUIRE(made.ok());
    caches = std::move(made).value();
  }
  ~Rig() {
    for (const uint64_t id : scheduler.ids()) scheduler.remove(id);
  }
  Status add(uint64_t id, uint32_t prompt, int32_t prompt_logprobs = -1) {
    Request request;
    request.id = id;
    request.prompt.assign(prompt, 1);
    request.sampling.prompt_logprobs = prompt_logprobs;
    return scheduler.enqueue(std::make_unique<Sequence>(std::move(request), caches.get(), id, 0));
  }
  // What the engine does with a plan, without a model.
  void run(const std::vector<PlannedRun>& plan) {
    for (const PlannedRun& run : plan) {
      Sequence& s = *run.sequence;
      for (uint32_t i = 0; i < run.rows; ++i) {
        if (s.wants_prompt_row(s.computed + i)) s.prompt_logprobs.push_back(0.0f);
      }
      s.computed += run.rows;
      if (s.computed == s.length()) s.tokens.push_back(2);
    }
  }
  void check_plan(const std::vector<PlannedRun>& plan) {
    uint32_t rows = 0, prompt_rows = 0;
    bool prefill_seen = false;
    for (const PlannedRun& run : plan) {
      const Sequence& s = *run.sequence;
      rows += run.rows;
      REQUIRE(run.rows >= 1);
      REQUIRE(run.rows <= s.pending());
      CHECK(s.cache.pages(0).size() * 4 >= s.computed + run.rows);
      CHECK(s.cache.slot(1).valid());
      if (!s.decoding()) prefill_seen = true;
      CHECK_FALSE((prefill_seen && s.decoding()));  // decodes come first
      if (!s.decoding() && limits.prefill_chunk > 0) CHECK(run.rows <= limits.prefill_chunk);
      for (uint32_t i = 0; i < run.rows; ++i) {
        prompt_rows += s.wants_prompt_row(s.computed + i) ? 1u : 0u;
      }
    }
    CHECK(rows <= limits.max_batch_tokens);
    CHECK(prompt_rows + limits.max_sequences <= limits.max_logit_rows);
    // Running before waiting, both in order of arrival: preemption jumps no queue and loses no
    // place.
    const std::vector<uint64_t> ids = scheduler.ids();
    CHECK(std::is_sorted(ids.begin(), ids.end()));
    REQUIRE_FALSE(plan.empty());
    // The oldest always progresses.
    CHECK(std::any_of(plan.begin(), plan.end(),
                      [&](const PlannedRun& run) { return run.sequence->id() == ids.front(); }));
  }

  SchedulerLimits limits;
  std::unique_ptr<Caches> caches;
  Scheduler scheduler;
};

SchedulerLimits limits_of(uint32_t sequences, uint32_t rows) {
  SchedulerLimits l;
  l.max_sequences = sequences;
  l.max_batch_tokens = rows;
  l.max_logit_rows = sequences + 3;
  l.max_waiting = 100;
  l.max_waiting_bytes = 1 << 20;
  return l;
}

}  // namespace

TEST_CASE("every plan keeps the rules, whatever comes, goes and runs out") {
  uint64_t preemptions = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    TestRng rng(seed);
    SchedulerLimits limits = limits_of(1 + seed % 6, 6 + seed % 7);
    limits.prefill_chunk = seed % 3 * 2;
    Rig rig(limits, 48);
    uint64_t next = 1;
    for (int step = 0; step < 400; ++step) {
      for (uint32_t n = rng.below(3); n > 0; --n) {
        const Status added = rig.add(next, 1 + rng.below(30), rng.below(4) == 0 ? 0 : -1);
        if (added.ok()) ++next;
      }
      if (!rig.scheduler.has_work()) continue;
      const std::vector<PlannedRun> plan = rig.scheduler.plan();
      rig.check_plan(plan);
      rig.run(plan);
      for (const PlannedRun& run : plan) {
        // The pool of 48 holds a sequence of 40 alone: none may grow further.
        if (run.sequence->length() >= 40 || rng.below(60) == 0) {
          REQUIRE(rig.scheduler.remove(run.sequence->id()) != nullptr);
        }
      }
      REQUIRE(rig.caches->audit().ok());
    }
    preemptions += rig.scheduler.preemptions();
  }
  CHECK(preemptions > 0);
}

TEST_CASE("the waiting queue is bounded in number and in bytes") {
  SchedulerLimits limits = limits_of(2, 8);
  limits.max_waiting = 3;
  Rig rig(limits, 48);
  for (uint64_t id = 1; id <= 5; ++id) REQUIRE(rig.add(id, 4).ok());
  CHECK(rig.add(6, 4).error().code == ErrorCode::kUnavailable);
  CHECK(rig.add(5, 4).error().code == ErrorCode::kInvalid);  // in use
  CHECK(rig.scheduler.remove(5) != nullptr);
  CHECK(rig.scheduler.remove(5) == nullptr);
  CHECK(rig.add(6, 4).ok());

  limits.max_waiting = 100;
  limits.max_waiting_bytes = 100;
  Rig bytes(limits, 48);
  REQUIRE(bytes.add(1, 20).ok());
  REQUIRE(bytes.add(2, 5).ok());
  CHECK(bytes.add(3, 1).error().code == ErrorCode::kUnavailable);
  bytes.scheduler.plan();  // the first is admitted and no longer waits
  CHECK(bytes.add(3, 1).ok());
}

TEST_CASE("a newcomer leaves one page per running sequence") {
  Rig rig(limits_of(4, 40), 24);  // six pages of 4 rows, eight of 3
  REQUIRE(rig.add(1, 8).ok());    // two pages and three
  REQUIRE(rig.add(2, 12).ok());   // three pages and four: one of each would be left
  REQUIRE(rig.add(3, 1).ok());    // fits, but would leave nothing for the two
  const std::vector<PlannedRun> plan = rig.scheduler.plan();
  CHECK(rig.scheduler.running() == 2);
  CHECK(rig.scheduler.waiting() == 1);
  CHECK(plan.size() == 2);
}

TEST_CASE("a long prompt leaves room for those behind it, and takes what they do not need") {
  Rig rig({.max_sequences = 4, .max_batch_tokens = 16, .max_logit_rows = 20, .max_waiting = 8},
          400);
  const auto rows_of = [&](uint64_t id, const std::vector<PlannedRun>& plan) {
    uint32_t rows = 0;
    for (const PlannedRun& run : plan) rows += run.sequence->id() == id ? run.rows : 0;
    return rows;
  };
  REQUIRE(rig.add(1, 200).ok());
  const auto alone = rig.scheduler.plan();
  CHECK(rows_of(1, alone) == 16);  // nobody behind it: the whole step
  rig.run(alone);
  REQUIRE(rig.add(2, 2).ok());
  const auto both = rig.scheduler.plan();
  CHECK(rows_of(2, both) == 2);  // a newcomer starts in the very next step
  CHECK(rows_of(1, both) == 14);
  rig.run(both);
  CHECK(rig.scheduler.plan().size() == 2);  // one decodes, the other goes on with its prompt
}
