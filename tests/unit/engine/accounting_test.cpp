// Prompt tokens are counted once, when a request's prefix is in place for the first time, whatever
// happens to it before and after; and who makes no progress is found.
#include <doctest/doctest.h>

#include "unit/engine/engine_rig.h"

using namespace weft;
using namespace weft::engine;

namespace {

Shape starved() {
  Shape s;
  s.fake.max_context = 2000;
  s.max_context = 400;
  s.max_sequences = 6;
  s.slots = 8;
  s.pool_tokens = 420;
  s.max_batch_tokens = 48;
  s.deterministic = true;
  s.host_bytes = 1 << 18;
  return s;
}

const wire::CacheStats& counted(const Rig& rig) { return rig.out.stats.back().cache(); }

// Never plans the first request it has seen.
std::unique_ptr<Planner> unfair() {
  static const weft_scheduler_v1 kTable = [] {
    weft_scheduler_v1 t = {};
    t.head = {sizeof(t), 1, 0};
    t.admit = [](weft_instance*, const weft_sched_view*, const weft_seq*, uint64_t*, weft_err*) {
      return weft_status{WEFT_OK};
    };
    t.plan = [](weft_instance*, const weft_sched_view* v, weft_sched_plan* out) {
      for (uint32_t i = 0; i < v->n_run; ++i) {
        if (v->run[i].id != 1 && v->run[i].rows_max > 0) out->run[out->n_run++] = {i, 1, 0, 0};
      }
      if (v->n_wait > 0 && v->n_run < v->run_budget) {
        out->admit[out->n_admit++] = {0, v->wait[0].restore_ns > 0 ? 0u : 1u, 0, 0};
      }
      return weft_status{WEFT_OK};
    };
    t.finished = [](weft_instance*, uint64_t, weft_status, uint64_t) {};
    return t;
  }();
  SchedulerRef ref;
  ref.table = &kTable;
  ref.name = "unfair";
  return std::make_unique<Planner>(ref);
}

}  // namespace

TEST_CASE("tokens are counted once through failed admissions, preemptions and restores") {
  Rig rig(starved());
  TestRng rng(1);
  uint64_t prompts = 0;
  const std::vector<int32_t> common = random_prompt(rng, 150);
  for (uint64_t id = 1; id <= 60; ++id) {
    std::vector<int32_t> prompt = id % 3 == 0 ? random_prompt(rng, 100) : common;
    const std::vector<int32_t> own = random_prompt(rng, 1 + rng.below(60));
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompts += prompt.size();
    rig.engine->generate(make_request(id, std::move(prompt), 1 + rng.below(120)));
  }
  rig.run();
  uint64_t local = 0, host = 0;
  for (const auto& [id, r] : rig.out.requests) {
    REQUIRE(r.finish == wire::FINISH_LENGTH);
    CHECK(r.cached_host_tokens <= r.cached_tokens);
    host += r.cached_host_tokens;
    local += r.cached_tokens - r.cached_host_tokens;
  }
  CHECK(rig.engine->preemptions() > 10);
  CHECK(counted(rig).queries_tokens() == prompts);
  CHECK(counted(rig).hits_local_tokens() == local);
  CHECK(counted(rig).hits_host_tokens() == host);
  CHECK(counted(rig).computed_tokens() == prompts - local - host);
  CHECK(local > 0);
  rig.check_clean();
}

TEST_CASE("a request that waits for room is not counted before it has it") {
  Rig rig(starved());
  TestRng rng(2);
  rig.engine->generate(make_request(1, random_prompt(rng, 300), 90));
  rig.engine->generate(make_request(2, random_prompt(rng, 300), 1));
  for (int i = 0; i < 40; ++i) {  // thirty and more steps in which it cannot be admitted
    rig.engine->step();
    rig.now_us += 300'000;
  }
  REQUIRE_FALSE(rig.out.requests[2].admitted);
  CHECK(counted(rig).queries_tokens() == 300);
  rig.engine->cancel(2, "test");
  rig.run();
  CHECK(counted(rig).queries_tokens() == 300);
  CHECK(counted(rig).computed_tokens() == 300);
}

TEST_CASE("who gets nothing while others run is reported, then ended with an error") {
  Shape shape = starved();
  shape.max_batch_tokens = 6;
  Rig rig(shape, unfair());
  for (uint64_t id = 1; id <= 3; ++id) rig.engine->generate(make_request(id, {1, 2, 3}, 350));
  bool reported = false;
  for (int i = 0; i < 340 && rig.out.requests[1].finish == wire::FINISH_NONE; ++i) {
    rig.engine->step();
    rig.now_us += 200'000;
    reported =
        reported || (!rig.out.stats.empty() && rig.out.stats.back().scheduler().stalled() == 1);
  }
  CHECK(reported);
  CHECK(rig.out.requests[1].finish == wire::FINISH_ERROR);
  CHECK(rig.out.requests[1].error.find("no progress") != std::string::npos);
  CHECK(rig.out.requests[2].finish == wire::FINISH_NONE);
  rig.run();
  CHECK(rig.out.requests[2].finish == wire::FINISH_LENGTH);
  CHECK(rig.out.requests[3].finish == wire::FINISH_LENGTH);
  rig.check_clean();
}

TEST_CASE("two that do not fit together both end, whatever the pool") {
  for (const uint32_t pool : {400u, 420u, 500u, 700u}) {
    CAPTURE(pool);
    Shape shape = starved();
    shape.pool_tokens = pool;
    shape.host_bytes = pool % 200 == 0 ? 0 : 1 << 18;
    Rig rig(shape);
    TestRng rng(3);
    std::vector<wire::Generate> all;
    for (uint64_t id = 1; id <= 4; ++id) {
      all.push_back(make_request(id, random_prompt(rng, 100), 290));
      rig.engine->generate(all.back());
    }
    rig.run();
    for (const wire::Generate& g : all) check_against_oracle(rig, g);
    rig.check_clean();
  }
}
