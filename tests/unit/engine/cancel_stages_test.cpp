// A cancel at every stage of a request: all it held is free or kept for later at the next step,
// there is exactly one final message, and the same prompt asked again is answered right.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "unit/engine/engine_rig.h"

using namespace weft;
using namespace weft::engine;

namespace {

Shape shape_of() {
  Shape s;
  s.fake.max_context = 4000;
  s.max_context = 1500;
  s.max_sequences = 2;
  s.slots = 4;
  s.pool_tokens = 1500;
  s.max_batch_tokens = 64;
  s.deterministic = true;
  s.host_bytes = 1 << 20;
  return s;
}

wire::Generate request_of(uint64_t id, uint32_t seed, uint32_t prompt, uint32_t tokens) {
  TestRng rng(seed);
  return make_request(id, random_prompt(rng, prompt), tokens);
}

// After the cancel: nothing in use, nothing pinned, everything can be had, and the prompt works.
void check_nothing_left(Rig& rig, const wire::Generate& again) {
  rig.engine->step();
  CHECK(rig.caches->idle());
  for (int i = 0; i < 50 && rig.engine->coordinator().copying(); ++i) rig.engine->step();
  CHECK(rig.engine->audit().ok());
  CHECK(rig.engine->coordinator().host().room() == rig.shape.host_bytes);
  rig.engine->generate(again);
  rig.run();
  check_against_oracle(rig, again);
  for (int i = 0; i < 50 && rig.engine->coordinator().copying(); ++i) rig.engine->step();
  rig.engine->coordinator().drop_all();
  for (const Caches::Group& g : rig.caches->groups()) CHECK(g.pool->free() == g.total());
  CHECK(rig.engine->coordinator().host().budget().used == 0);
  rig.check_clean();
}

wire::Generate renamed(wire::Generate g, uint64_t id) {
  g.set_id(id);
  return g;
}

// Preempts everyone, by the mode given, in the steps that it is told to.
struct Preemptor {
  static inline bool now = false;
  static inline uint32_t mode = WEFT_PREEMPT_RECOMPUTE;
  static inline bool admits = true;

  static std::unique_ptr<Planner> planner() {
    static const weft_scheduler_v1 kTable = [] {
      weft_scheduler_v1 t = {};
      t.head = {sizeof(t), 1, 0};
      t.admit = [](weft_instance*, const weft_sched_view*, const weft_seq*, uint64_t*, weft_err*) {
        return weft_status{WEFT_OK};
      };
      t.plan = [](weft_instance*, const weft_sched_view* v, weft_sched_plan* out) {
        plan(*v, out);
        return weft_status{WEFT_OK};
      };
      t.finished = [](weft_instance*, uint64_t, weft_status, uint64_t) {};
      return t;
    }();
    SchedulerRef ref;
    ref.table = &kTable;
    ref.name = "preemptor";
    now = false;
    admits = true;
    return std::make_unique<Planner>(ref);
  }
  static void plan(const weft_sched_view& v, weft_sched_plan* out) {
    uint32_t left = v.token_budget;
    for (uint32_t i = 0; i < v.n_run; ++i) {
      if (now) {
        out->preempt[out->n_preempt++] = {i, mode};
      } else if (v.run[i].rows_max > 0 && left > 0) {
        const uint32_t rows = std::min(left, v.run[i].rows_max);
        left -= rows;
        out->run[out->n_run++] = {i, rows, 0, 0};
      }
    }
    const bool ready = !now && admits && v.n_wait > 0 && v.n_run < v.run_budget;
    if (ready && (left > 0 || v.wait[0].restore_ns > 0)) {
      const uint32_t rows = v.wait[0].restore_ns > 0 ? 0 : std::min(left, v.wait[0].rows_max);
      out->admit[out->n_admit++] = {0, rows, 0, 0};
    }
  }
};

}  // namespace

TEST_CASE("cancel while queued") {
  Rig rig(shape_of());
  const wire::Generate a = request_of(1, 1, 1000, 300), b = request_of(2, 2, 1000, 3);
  rig.engine->generate(a);
  rig.engine->generate(b);  // no room beside the first
  for (int i = 0; i < 5; ++i) rig.engine->step();
  rig.engine->cancel(2, "test");
  rig.engine->cancel(1, "test");
  rig.engine->step();
  CHECK(rig.out.requests.at(2).finish == wire::FINISH_CANCELLED);
  CHECK_FALSE(rig.out.requests.at(2).admitted);
  check_nothing_left(rig, renamed(b, 3));
}

TEST_CASE("cancel in the middle of a prompt, and while decoding") {
  for (const int steps : {1, 2, 7, 20}) {
    CAPTURE(steps);
    Rig rig(shape_of());
    const wire::Generate a = request_of(1, 3, 500, 40);
    rig.engine->generate(a);
    for (int i = 0; i < steps; ++i) rig.engine->step();
    rig.engine->cancel(1, "test");
    rig.engine->step();
    CHECK(rig.out.requests.at(1).finish == wire::FINISH_CANCELLED);
    wire::Generate again = renamed(a, 2);
    again.add_prompt(5);
    check_nothing_left(rig, again);
    CHECK(rig.out.requests.at(2).cached_tokens > 0);  // what it had computed is kept
  }
}

TEST_CASE("cancel while preempted, and while swapped to host memory") {
  for (const uint32_t mode : {WEFT_PREEMPT_RECOMPUTE, WEFT_PREEMPT_SWAP}) {
    CAPTURE(mode);
    Rig rig(shape_of(), Preemptor::planner());
    Preemptor::mode = mode;
    const wire::Generate a = request_of(1, 4, 500, 40);
    rig.engine->generate(a);
    for (int i = 0; i < 15; ++i) rig.engine->step();
    Preemptor::now = true;
    rig.engine->step();
    Preemptor::now = false;
    Preemptor::admits = false;
    rig.engine->step();
    CHECK(rig.caches->idle());
    CHECK(rig.engine->preemptions() == 1);
    const bool swapped = mode == WEFT_PREEMPT_SWAP;
    CHECK((rig.engine->coordinator().host().room() < rig.shape.host_bytes) == swapped);
    rig.engine->cancel(1, "test");
    Preemptor::admits = true;
    rig.engine->step();
    CHECK(rig.out.requests.at(1).finish == wire::FINISH_CANCELLED);
    check_nothing_left(rig, renamed(a, 2));
  }
}

TEST_CASE("a swapped request comes back and ends as if nothing had happened") {
  Rig rig(shape_of(), Preemptor::planner());
  Preemptor::mode = WEFT_PREEMPT_SWAP;
  const wire::Generate a = request_of(1, 5, 500, 40);
  rig.engine->generate(a);
  for (int i = 0; i < 15; ++i) rig.engine->step();
  Preemptor::now = true;
  rig.engine->step();
  Preemptor::now = false;
  const uint64_t rows = rig.model.rows;
  rig.run();
  check_against_oracle(rig, a);
  CHECK(rig.model.rows - rows <= 41);  // nothing was computed again
  CHECK(rig.engine->coordinator().host().room() == rig.shape.host_bytes);
  rig.check_clean();
}

TEST_CASE("cancel while its prefix is being copied in") {
  Rig rig(shape_of());
  const wire::Generate a = request_of(1, 6, 900, 3);
  rig.engine->generate(a);
  rig.run();
  for (int i = 0; i < 50 && rig.engine->coordinator().copying(); ++i) rig.engine->step();
  rig.engine->generate(request_of(2, 7, 1490, 3));  // takes the whole device
  rig.run();
  for (int i = 0; i < 50 && rig.engine->coordinator().copying(); ++i) rig.engine->step();
  wire::Generate b = renamed(a, 3);
  for (int i = 0; i < 20; ++i) b.add_prompt(5);
  rig.engine->generate(b);
  rig.engine->step();  // admitted: the copy is submitted, and not done before the next step
  REQUIRE(rig.engine->coordinator().copying());
  CHECK_FALSE(rig.caches->idle());
  rig.engine->cancel(3, "test");
  rig.engine->step();
  CHECK(rig.out.requests.at(3).finish == wire::FINISH_CANCELLED);
  CHECK_FALSE(rig.out.requests.at(3).admitted);
  check_nothing_left(rig, renamed(b, 4));
}

TEST_CASE("cancel and deadline during a drain") {
  Rig rig(shape_of());
  rig.engine->generate(request_of(1, 8, 500, 900));
  rig.engine->generate(request_of(2, 9, 500, 900));
  for (int i = 0; i < 12; ++i) rig.engine->step();
  rig.engine->drain(1);
  rig.engine->cancel(1, "test");
  rig.engine->step();
  CHECK(rig.out.requests.at(1).finish == wire::FINISH_CANCELLED);
  rig.now_us += 10'000;
  rig.engine->step();
  CHECK(rig.out.requests.at(2).finish == wire::FINISH_ERROR);
  CHECK(rig.out.drained == 1);
  CHECK(rig.caches->idle());
  CHECK(rig.engine->audit().ok());
}

TEST_CASE("a failing step and a row of no numbers leave no snapshot and hurt nobody else's") {
  Shape shape = shape_of();
  shape.fake.fail_token = 58;
  shape.fake.nan_token = 57;
  Rig rig(shape);
  TestRng rng(10);
  std::vector<int32_t> shared = random_prompt(rng, 300);
  for (int32_t& t : shared) t %= 50;
  const auto ask = [&](uint64_t id, int32_t last) {
    std::vector<int32_t> prompt = shared;
    prompt.push_back(last);
    wire::Generate g = make_request(id, prompt, 1);
    for (int32_t t = 57; t < 60; ++t) {
      g.mutable_sampling()->add_bias_ids(t);
      g.mutable_sampling()->add_bias_values(-100);
    }
    g.add_boundaries(300);
    rig.engine->generate(g);
    rig.run();
    return g;
  };
  check_against_oracle(rig, ask(1, 3));
  const size_t kept = rig.engine->coordinator().snapshots();
  ask(2, 58);
  CHECK(rig.out.requests.at(2).finish == wire::FINISH_ERROR);
  ask(3, 57);
  CHECK(rig.out.requests.at(3).finish == wire::FINISH_ERROR);
  CHECK(rig.engine->coordinator().snapshots() == kept);
  const wire::Generate after = ask(4, 4);
  check_against_oracle(rig, after);
  CHECK(rig.out.requests.at(4).cached_tokens == 300);
  rig.check_clean();
}

TEST_CASE("a damaged file of the disk tier costs its prefix and nothing else") {
  char dir[] = "/tmp/weft-damage-XXXXXX";
  REQUIRE(::mkdtemp(dir) != nullptr);
  {
    Shape shape = shape_of();
    shape.host_bytes = 60'000;
    shape.disk_dir = dir;
    Rig rig(shape);
    const auto settle = [&] {
      for (int i = 0; i < 500 && rig.engine->coordinator().copying(); ++i) rig.engine->step();
    };
    wire::Generate talk = request_of(1, 11, 500, 2);
    for (uint64_t id = 1; id <= 4; ++id) {
      rig.engine->generate(renamed(talk, id));
      rig.run();
      settle();
      for (int i = 0; i < 3; ++i) talk.add_prompt(7);
    }
    for (uint64_t id = 5; id < 12; ++id) {
      rig.engine->generate(request_of(id, static_cast<uint32_t>(id) + 50, 500, 2));
      rig.run();
      settle();
    }
    rig.engine->generate(request_of(20, 99, 1490, 2));
    rig.run();
    settle();
    size_t damaged = 0;
    for (const auto& file : std::filesystem::directory_iterator(dir)) {
      std::filesystem::resize_file(file.path(), 40);
      ++damaged;
    }
    REQUIRE(damaged > 0);
    const wire::Generate again = renamed(talk, 21);
    rig.engine->generate(again);
    rig.run();
    check_against_oracle(rig, again);
    settle();
    rig.check_clean();
    rig.engine->coordinator().drop_all();
    for (const Caches::Group& g : rig.caches->groups()) CHECK(g.pool->free() == g.total());
  }
  CHECK(std::filesystem::is_empty(dir));
  std::filesystem::remove_all(dir);
}
