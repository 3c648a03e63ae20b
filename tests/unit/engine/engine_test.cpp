#include "engine/engine.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "unit/engine/collector.h"
#include "unit/engine/engine_rig.h"
#include "unit/engine/fake_model.h"
#include "unit/engine/requests.h"
#include "unit/engine/test_rng.h"

using namespace weft;
using namespace weft::engine;

namespace {

// Random arrivals and cancels; every sequence must equal its run alone.
uint64_t random_life(const Shape& shape, uint32_t seed, uint32_t requests, uint32_t max_prompt,
                     uint32_t max_output) {
  Rig rig(shape);
  TestRng rng(seed);
  std::vector<wire::Generate> sent;
  uint64_t steps = 0;
  while (sent.size() < requests || rig.engine->has_work()) {
    if (sent.size() < requests && rng.below(3) != 0) {
      for (uint32_t i = rng.below(4); i > 0 && sent.size() < requests; --i) {
        sent.push_back(random_request(rng, 100 + sent.size(), max_prompt, max_output));
        rig.engine->generate(sent.back());
      }
    }
    if (!sent.empty() && rng.below(8) == 0) {
      rig.engine->cancel(100 + rng.below(static_cast<uint32_t>(sent.size())), "test");
    }
    rig.engine->step();
    REQUIRE(rig.engine->audit().ok());
    REQUIRE(++steps < 200000);
  }
  rig.engine->step();
  for (const wire::Generate& request : sent) check_against_oracle(rig, request);
  rig.check_clean();
  return rig.engine->preemptions();
}

}  // namespace

TEST_CASE("every sequence equals its run alone under random arrivals and cancels") {
  uint32_t seed = 1;
  for (const uint32_t sequences : {1u, 3u, 8u}) {
    for (const uint32_t budget : {8u, 40u}) {
      for (const uint32_t chunk : {0u, 1u, 5u}) {
        Shape shape;
        shape.max_sequences = sequences;
        shape.slots = sequences;
        shape.max_batch_tokens = budget;
        shape.prefill_chunk = chunk;
        random_life(shape, seed++, 40, 40, 20);
      }
    }
  }
}

TEST_CASE("small pools preempt, and no token is lost, repeated or changed") {
  uint64_t preemptions = 0;
  for (uint32_t seed = 50; seed < 62; ++seed) {
    Shape shape;
    shape.max_sequences = 6;
    shape.slots = 6;
    shape.pool_tokens = 60 + seed % 3 * 25;
    shape.max_context = 60;
    shape.max_batch_tokens = 6 + seed % 5;
    preemptions += random_life(shape, seed, 40, 20, 39);
  }
  CHECK(preemptions > 50);
}

TEST_CASE("a pool of one sequence and a budget of one row still serve everyone") {
  Shape shape;
  shape.max_sequences = 1;
  shape.slots = 1;
  shape.max_batch_tokens = 1;
  shape.prompt_logit_rows = 1;
  shape.pool_tokens = 48;
  shape.max_context = 48;
  random_life(shape, 7, 25, 30, 17);
}

TEST_CASE("every chunk size gives the same answer, log-probabilities included") {
  TestRng rng(11);
  wire::Generate request = make_request(1, random_prompt(rng, 23), 6);
  request.mutable_sampling()->set_prompt_logprobs(2);
  request.mutable_sampling()->set_logprobs(3);
  add_media(&request, rng, 5, 4, 4);
  for (uint32_t chunk = 1; chunk <= 24; ++chunk) {
    Shape shape;
    shape.max_batch_tokens = 64;
    shape.prefill_chunk = chunk;
    shape.prompt_logit_rows = 1 + chunk * 7 % 40;
    Rig rig(shape);
    rig.engine->generate(request);
    rig.run();
    check_against_oracle(rig, request);
    CHECK(rig.model.media_encoded == 1);
    rig.check_clean();
  }
}

TEST_CASE("deterministic: every step asks for the forms that no cut can change") {
  for (const bool deterministic : {false, true}) {
    Shape shape;
    shape.deterministic = deterministic;
    Rig rig(shape);
    uint64_t steps = 0;
    rig.model.before_step = [&](const weft_batch& batch) {
      ++steps;
      CHECK(batch.flags == (deterministic ? uint32_t{WEFT_BATCH_RECURRENT} : 0));
    };
    REQUIRE(rig.engine->warm_up().ok());
    CHECK(steps == 1);
    rig.engine->generate(make_request(1, {5, 6, 7}, 4));
    rig.run();
    CHECK(steps > 1);
  }
}

TEST_CASE("many sequences share a step") {
  Shape shape;
  Rig rig(shape);
  for (uint64_t id = 1; id <= 4; ++id) rig.engine->generate(make_request(id, {1, 2, 3}, 5));
  rig.run();
  CHECK(rig.model.largest_batch_sequences == 4);
  CHECK(rig.model.steps == 5);  // one prefill of all, four decodes
  CHECK(rig.out.batches == 5);
}

TEST_CASE("cancel takes effect at the next boundary and frees everything before it says so") {
  Shape shape;
  Rig rig(shape);
  rig.engine->generate(make_request(1, {1, 2, 3}, 50));
  rig.engine->step();
  rig.engine->step();
  CHECK_FALSE(rig.caches->idle());
  rig.engine->cancel(1, "client went away");
  CHECK(rig.caches->idle());
  rig.engine->cancel(1, "twice");
  rig.engine->cancel(99, "unknown");
  rig.engine->step();
  const Collected& got = rig.out.requests.at(1);
  CHECK(got.finish == wire::FINISH_CANCELLED);
  CHECK(got.error == "client went away");
  CHECK(got.tokens.size() == 2);
  CHECK_FALSE(rig.engine->has_work());
}

TEST_CASE("stop, length, minimum and context limits") {
  Shape shape;
  shape.max_context = 20;
  Rig rig(shape);
  wire::Generate forever = make_request(1, {5, 6}, 0);  // up to the context
  rig.engine->generate(forever);
  rig.run();
  CHECK(rig.out.requests.at(1).finish == wire::FINISH_LENGTH);
  CHECK(rig.out.requests.at(1).tokens.size() == 18);

  wire::Generate stops = make_request(2, {5, 6}, 18);
  stops.mutable_sampling()->add_stop_ids(rig.out.requests.at(1).tokens[3]);
  rig.engine->generate(stops);
  rig.run();
  const Collected& stopped = rig.out.requests.at(2);
  CHECK(stopped.finish == wire::FINISH_STOP);
  CHECK(stopped.tokens.back() == stops.sampling().stop_ids(0));
  CHECK(stopped.tokens.size() <= 4);

  stops.set_id(3);
  stops.mutable_sampling()->set_min_tokens(10);
  rig.engine->generate(stops);
  rig.run();
  CHECK(rig.out.requests.at(3).tokens.size() > 10);
  check_against_oracle(rig, stops);
}

TEST_CASE("what can never run is refused with numbers, what cannot run now waits or is refused") {
  Shape shape;
  shape.max_context = 20;
  shape.max_sequences = 1;
  shape.max_waiting = 2;
  Rig rig(shape);
  const auto refused = [&](wire::Generate g, const char* code, const char* part) {
    g.set_id(1000 + rig.out.requests.size());
    rig.engine->generate(g);
    rig.engine->step();
    const Collected& got = rig.out.requests.at(g.id());
    CAPTURE(got.error);
    CHECK(got.finish == wire::FINISH_ERROR);
    CHECK(got.error_code == code);
    CHECK(got.error.find(part) != std::string::npos);
  };
  const wire::Generate good = make_request(0, {1, 2}, 3);
  wire::Generate g = make_request(0, std::vector<int32_t>(20, 1), 1);
  refused(g, "invalid", "20 tokens");
  refused(make_request(0, {}, 1), "invalid", "at least one");
  refused(make_request(0, {61}, 1), "invalid", "0..60");
  refused(make_request(0, {-1}, 1), "invalid", "prompt token");
  g = good;
  g.set_grammar_json("{}");
  refused(g, "unsupported", "grammar");
  g = good;
  g.mutable_sampling()->set_temperature(-1.0f);
  refused(g, "invalid", "temperature");
  g = good;
  g.mutable_sampling()->set_top_p(std::nanf(""));
  refused(g, "invalid", "top_p");
  g = good;
  g.mutable_sampling()->add_bias_ids(3);
  refused(g, "invalid", "logit_bias");
  g = good;
  g.mutable_sampling()->add_stop_ids(61);
  refused(g, "invalid", "stop id");
  g = good;
  g.mutable_sampling()->set_logprobs(21);
  refused(g, "invalid", "logprobs");

  for (uint64_t id = 1; id <= 5; ++id) rig.engine->generate(make_request(id, {1, 2}, 4));
  rig.engine->generate(make_request(3, {1, 2}, 4));  // in use: refused, but the first one goes on
  rig.engine->step();
  CHECK(rig.out.requests.at(4).error_code == "unavailable");
  CHECK(rig.out.requests.at(5).error_code == "unavailable");
}

TEST_CASE("media that do not fit the tower or the prompt are refused") {
  TestRng rng(2);
  const wire::Generate good = [&] {
    wire::Generate g = make_request(0, std::vector<int32_t>(10, 1), 1);
    add_media(&g, rng, 2, 4, 4);
    return g;
  }();
  Shape shape;
  shape.fake.bad_patch = 5000;
  Rig rig(shape);
  uint64_t id = 0;
  const auto outcome = [&](auto change) {
    wire::Generate g = good;
    g.set_id(++id);
    change(&g, g.mutable_media(0));
    rig.engine->generate(g);
    rig.run();
    return rig.out.requests.at(id).finish;
  };
  CHECK(outcome([](auto*, auto*) {}) == wire::FINISH_LENGTH);
  CHECK(outcome([](auto*, auto* m) { m->set_rows(5); }) == wire::FINISH_ERROR);
  CHECK(outcome([](auto*, auto* m) { m->set_grid_h(3); }) == wire::FINISH_ERROR);
  CHECK(outcome([](auto*, auto* m) { m->set_grid_t(0xffffffffu); }) == wire::FINISH_ERROR);
  CHECK(outcome([](auto*, auto* m) { m->mutable_patches()->pop_back(); }) == wire::FINISH_ERROR);
  CHECK(outcome([](auto*, auto* m) { m->set_first_position(7); }) == wire::FINISH_ERROR);
  CHECK(outcome([](auto*, auto* m) { m->set_first_position(0xffffffffu); }) == wire::FINISH_ERROR);
  CHECK(outcome([](auto* g, auto* m) { *g->add_media() = *m; }) == wire::FINISH_ERROR);
  CHECK(outcome([](auto* g, auto*) { g->set_prompt(3, 1); }) == wire::FINISH_ERROR);
  CHECK(outcome([](auto*, auto* m) {
          const float bad = 5000.0f;
          std::memcpy(m->mutable_patches()->data(), &bad, sizeof(bad));
        }) == wire::FINISH_ERROR);
  CHECK(rig.out.requests.at(id).error.find("bad patch") != std::string::npos);
  CHECK(rig.out.requests.at(id).error_code == "invalid");
  rig.check_clean();
}

TEST_CASE("NaN logits end that sequence alone") {
  for (const int32_t prompt_logprobs : {-1, 1}) {
    Shape shape;
    shape.fake.nan_token = 59;
    Rig rig(shape);
    wire::Generate bad = make_request(1, {3, 59, 4, 5, 59}, 4);
    bad.mutable_sampling()->set_prompt_logprobs(prompt_logprobs);
    wire::Generate good = make_request(2, {3, 4, 5}, 4);
    good.mutable_sampling()->set_prompt_logprobs(prompt_logprobs);
    good.mutable_sampling()->add_bias_ids(59);
    good.mutable_sampling()->add_bias_values(-100.0f);
    rig.engine->generate(bad);
    rig.engine->generate(good);
    rig.run();
    CHECK(rig.out.requests.at(1).finish == wire::FINISH_ERROR);
    CHECK(rig.out.requests.at(1).error_code == "internal");
    CHECK(rig.out.requests.at(1).tokens.empty());
    check_against_oracle(rig, good);
    rig.check_clean();
  }
}

TEST_CASE("a failing step ends its sequences; the worker goes on until it fails again and again") {
  Shape shape;
  shape.max_sequences = 1;
  shape.slots = 1;
  shape.fake.fail_token = 59;
  Rig rig(shape);
  rig.engine->generate(make_request(1, {59}, 4));
  rig.engine->generate(make_request(2, {3}, 1));
  rig.run();
  CHECK(rig.out.requests.at(1).finish == wire::FINISH_ERROR);
  CHECK(rig.out.requests.at(1).error.find("fail token") != std::string::npos);
  CHECK(rig.out.requests.at(2).finish == wire::FINISH_LENGTH);
  CHECK_FALSE(rig.engine->faulted());
  for (uint64_t id = 10; id < 30; ++id) rig.engine->generate(make_request(id, {59}, 4));
  rig.run();
  CHECK(rig.engine->faulted());
  CHECK(rig.out.faults.size() == 1);
  for (uint64_t id = 10; id < 30; ++id) CHECK(rig.out.requests.at(id).finish == wire::FINISH_ERROR);
  CHECK(rig.model.steps == 2 + Engine::kFailedStepsMax);
  rig.check_clean();

  shape.fake.fail_status = WEFT_E_DEVICE;
  Rig device(shape);
  device.engine->generate(make_request(1, {59}, 4));
  device.run();
  CHECK(device.engine->faulted());
}

TEST_CASE("draining finishes what is there and refuses what comes") {
  Shape shape;
  shape.max_sequences = 1;
  Rig rig(shape);
  rig.engine->generate(make_request(1, {1}, 5));
  rig.engine->generate(make_request(2, {2}, 5));
  rig.engine->step();
  rig.engine->drain(1'000'000);
  rig.engine->generate(make_request(3, {3}, 5));
  rig.run();
  CHECK(rig.out.requests.at(1).finish == wire::FINISH_LENGTH);
  CHECK(rig.out.requests.at(2).finish == wire::FINISH_LENGTH);
  CHECK(rig.out.requests.at(3).error_code == "unavailable");
  CHECK(rig.out.drained == 1);
  rig.engine->drain(0);
  rig.engine->generate(make_request(4, {3}, 5));
  rig.run();
  CHECK(rig.out.requests.at(4).error_code == "unavailable");
  CHECK(rig.out.drained == 1);
}

TEST_CASE("the drain deadline ends what is left with a final message") {
  Shape shape;
  shape.max_sequences = 1;
  Rig rig(shape);
  rig.engine->generate(make_request(1, {1}, 50));
  rig.engine->generate(make_request(2, {2}, 5));
  rig.engine->step();
  rig.engine->drain(1);
  rig.now_us += 999;
  rig.engine->step();
  CHECK(rig.out.drained == 0);
  rig.now_us += 1;
  rig.run();
  CHECK(rig.out.requests.at(1).error_code == "unavailable");
  CHECK(rig.out.requests.at(1).tokens.size() == 2);
  CHECK(rig.out.requests.at(2).error_code == "unavailable");
  CHECK(rig.out.drained == 1);
  rig.check_clean();
}

TEST_CASE("stats come at their interval while busy, and when idleness changes") {
  Shape shape;
  Rig rig(shape);
  rig.engine->step();
  CHECK(rig.out.stats.size() == 1);  // idle
  rig.now_us += 1'000'000;
  rig.engine->step();
  CHECK(rig.out.stats.size() == 1);
  rig.engine->generate(make_request(1, {1}, 40));
  rig.engine->step();
  REQUIRE(rig.out.stats.size() == 2);
  CHECK(rig.out.stats[1].running() == 1);
  CHECK(rig.out.stats[1].groups(1).units_used() ==
        2);  // its own slot, and the kept one it goes on from
  CHECK(rig.out.stats[1].resident_bytes() > 0);
  rig.engine->step();
  CHECK(rig.out.stats.size() == 2);
  rig.now_us += 250'000;
  rig.engine->step();
  REQUIRE(rig.out.stats.size() == 3);
  CHECK(rig.out.stats[2].step() > rig.out.stats[1].step());
  rig.run();
  const wire::WorkerStats& last = rig.out.stats.back();
  CHECK(last.running() == 0);
  CHECK(last.generated_tokens_total() == 40);
  CHECK(last.prompt_tokens_total() == 1);
  for (const auto& group : last.groups()) CHECK(group.units_used() == 0);
}

TEST_CASE("timings add up on the last message") {
  Shape shape;
  shape.max_sequences = 1;
  Rig rig(shape);
  rig.engine->generate(make_request(1, {1}, 3));
  rig.engine->generate(make_request(2, {1}, 3));
  rig.run();
  CHECK(rig.out.requests.at(1).queue_us == 0);
  CHECK(rig.out.requests.at(1).decode_us == 20);
  CHECK(rig.out.requests.at(2).queue_us == 30);
}

TEST_CASE("warming up leaves nothing behind and finds a broken model") {
  Shape shape;
  Rig rig(shape);
  CHECK(rig.engine->warm_up().ok());
  rig.check_clean();
  shape.fake.nan_token = 0;
  CHECK_FALSE(Rig(shape).engine->warm_up().ok());
  shape.fake.fail_token = 0;
  CHECK_FALSE(Rig(shape).engine->warm_up().ok());
}
