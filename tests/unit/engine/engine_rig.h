// An engine over the fake model, with everything it emits, and the comparison of answers with the
// oracle: what a sequence alone, without any cache, must produce.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "unit/engine/collector.h"
#include "unit/engine/fake_model.h"
#include "unit/engine/requests.h"

namespace weft::engine {

struct Shape {
  uint32_t max_sequences = 4;
  uint32_t max_batch_tokens = 16;
  uint32_t prefill_chunk = 0;
  uint32_t pool_tokens = 400;  // rows that each row group can hold
  uint32_t slots = 4;
  uint32_t max_context = 100;
  uint32_t max_waiting = 1000;
  uint32_t prompt_logit_rows = 8;
  bool deterministic = false;
  bool keep_prefixes = true;
  uint64_t host_bytes = 0;  // second tier; copies happen one per step
  std::string disk_dir;
  FakeOptions fake;
};

// An engine over the fake model, with everything it emits.
struct Rig {
  explicit Rig(Shape s, std::unique_ptr<Planner> planner = nullptr) : shape(s), model(s.fake) {
    CacheSizes sizes;
    sizes.units = {(s.pool_tokens + 3) / 4, s.slots, (s.pool_tokens + 2) / 3};
    auto made = Caches::make(model.plan(), sizes, true);
    REQUIRE(made.ok());
    caches = std::move(made).value();
    model.set_arenas(caches->arenas().data(), 3);
    EngineOptions options;
    options.compose.max_sequences = s.max_sequences;
    options.compose.max_batch_tokens = s.max_batch_tokens;
    options.compose.max_logit_rows = s.max_sequences + s.prompt_logit_rows;
    options.compose.prefill_chunk = s.prefill_chunk;
    options.max_waiting = s.max_waiting;
    options.max_waiting_bytes = 1 << 20;
    options.max_context = s.max_context;
    options.deterministic = s.deterministic;
    options.keep_prefixes = s.keep_prefixes;
    options.host = {s.host_bytes, s.disk_dir, s.disk_dir.empty() ? 0 : uint64_t{1} << 30, true};
    options.now_us = [this] { return now_us; };
    engine = std::make_unique<Engine>(
        model.ref(), caches.get(), options, [this](const wire::Envelope& e) { out.take(e); },
        std::move(planner));
  }
  void run() {
    int steps = 0;
    while (engine->has_work()) {
      engine->step();
      now_us += 10;
      REQUIRE(++steps < 100000);  // livelock
    }
    engine->step();
  }
  void check_clean() {
    CHECK(caches->idle());
    const Status audit = engine->audit();
    CHECK(audit.ok());
    for (const std::string& v : model.violations) FAIL_CHECK(v);
    CHECK(model.token_arrays.size() <= 1);
    CHECK(model.largest_batch_rows <= shape.max_batch_tokens);
    CHECK(model.largest_batch_sequences <= shape.max_sequences);
  }

  Shape shape;
  uint64_t now_us = 1000;
  FakeModel model;
  std::unique_ptr<Caches> caches;
  Collector out;
  std::unique_ptr<Engine> engine;  // destroyed first: its sequences return their units
};

inline void check_tops(const std::vector<std::vector<TopLogprob>>& got,
                       const std::vector<std::vector<TopLogprob>>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    REQUIRE(got[i].size() == want[i].size());
    for (size_t j = 0; j < got[i].size(); ++j) {
      CHECK(got[i][j].id == want[i][j].id);
      CHECK(std::abs(got[i][j].logprob - want[i][j].logprob) < 1e-5f);
    }
  }
}

// Whole answers of finished sequences, exact prefixes of cancelled ones.
inline void check_against_oracle(const Rig& rig, const wire::Generate& request) {
  const Collected& got = rig.out.requests.at(request.id());
  const OracleResult want = oracle_generate(rig.shape.fake, request, rig.shape.max_context);
  CAPTURE(request.id());
  if (got.finish == wire::FINISH_CANCELLED) {
    REQUIRE(got.tokens.size() <= want.tokens.size());
    CHECK(std::equal(got.tokens.begin(), got.tokens.end(), want.tokens.begin()));
    return;
  }
  CHECK(got.finish == want.finish);
  CHECK(got.tokens == want.tokens);
  REQUIRE(got.logprobs.size() == want.logprobs.size());
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    CHECK(std::abs(got.logprobs[i] - want.logprobs[i]) < 1e-5f);
  }
  REQUIRE(got.prompt_logprobs.size() == want.prompt_logprobs.size());
  for (size_t i = 0; i < got.prompt_logprobs.size(); ++i) {
    CHECK(std::abs(got.prompt_logprobs[i] - want.prompt_logprobs[i]) < 1e-5f);
  }
  check_tops(got.tops, want.tops);
  check_tops(got.prompt_tops, want.prompt_tops);
}

}  // namespace weft::engine
