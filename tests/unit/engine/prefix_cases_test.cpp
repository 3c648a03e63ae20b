// What public engines got wrong with caches of hybrid models, one named case each, on the fake
// model: its answers are a hash of everything that was read from the caches.
#include <doctest/doctest.h>

#include "unit/engine/engine_rig.h"

using namespace weft;
using namespace weft::engine;

namespace {

Shape shape_of(uint32_t slots, uint32_t pool_tokens) {
  Shape s;
  s.fake.max_context = 4000;
  s.max_context = 2000;
  s.max_sequences = 2;
  s.slots = slots;
  s.pool_tokens = pool_tokens;
  s.max_batch_tokens = 64;
  s.deterministic = true;
  return s;
}

wire::Generate greedy(uint64_t id, std::vector<int32_t> prompt, uint32_t tokens) {
  wire::Generate g = make_request(id, std::move(prompt), tokens);
  g.mutable_sampling()->set_logprobs(1);
  return g;
}

// Runs the request to its end and checks the answer; the tokens that came from a cache.
uint32_t ask(Rig& rig, const wire::Generate& request) {
  rig.engine->generate(request);
  rig.run();
  check_against_oracle(rig, request);
  return rig.out.requests.at(request.id()).cached_tokens;
}

std::vector<int32_t> longer(const Rig& rig, uint64_t id, std::vector<int32_t> prompt, TestRng& rng,
                            uint32_t more) {
  const auto& answer = rig.out.requests.at(id).tokens;
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  const std::vector<int32_t> rest = random_prompt(rng, more);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  return prompt;
}

}  // namespace

TEST_CASE("turn two goes on exactly where turn one ended") {
  Rig rig(shape_of(10, 4000));
  TestRng rng(1);
  std::vector<int32_t> prompt = random_prompt(rng, 300);
  CHECK(ask(rig, greedy(1, prompt, 9)) == 0);
  for (uint64_t turn = 2; turn < 8; ++turn) {
    const uint32_t before = static_cast<uint32_t>(prompt.size()) + 9;
    prompt = longer(rig, turn - 1, prompt, rng, 17);
    // All of the turn before but its last token, whose row was never run.
    CHECK(ask(rig, greedy(turn, prompt, 9)) == before - 1);
  }
  rig.check_clean();
}

TEST_CASE("turn two without the answer goes on at the end of the prompt") {
  Rig rig(shape_of(10, 4000));
  TestRng rng(2);
  std::vector<int32_t> prompt = random_prompt(rng, 200);
  ask(rig, greedy(1, prompt, 5));
  prompt.resize(230, 7);
  CHECK(ask(rig, greedy(2, prompt, 5)) == 200);
}

TEST_CASE("a prompt shorter than a hash unit and than a page is reused") {
  Rig rig(shape_of(10, 4000));
  CHECK(ask(rig, greedy(1, {1, 2, 3}, 1)) == 0);
  CHECK(ask(rig, greedy(2, {1, 2, 3, 4}, 1)) == 3);
  CHECK(ask(rig, greedy(3, {1, 2, 3, 4, 5, 6}, 1)) == 4);
  CHECK(ask(rig, greedy(4, {1, 2, 9}, 1)) == 0);
}

TEST_CASE("the same prompt again runs its last token and no more than a cut away") {
  Rig rig(shape_of(10, 4000));
  TestRng rng(3);
  const std::vector<int32_t> prompt = random_prompt(rng, 300);
  CHECK(ask(rig, greedy(1, prompt, 4)) == 0);
  CHECK(ask(rig, greedy(2, prompt, 4)) == 0);    // seen twice: leaves a state before the last token
  CHECK(ask(rig, greedy(3, prompt, 4)) == 299);  // found
}

TEST_CASE(
    "a shared prefix of 480 tokens: kept where the gateway says, or at the branch seen twice") {
  for (const bool told : {true, false}) {
    CAPTURE(told);
    Rig rig(shape_of(12, 8000));
    TestRng rng(4);
    const std::vector<int32_t> shared = random_prompt(rng, 480);
    for (uint64_t user = 1; user <= 5; ++user) {
      std::vector<int32_t> prompt = shared;
      prompt.push_back(static_cast<int32_t>(user));
      const std::vector<int32_t> own = random_prompt(rng, 50);
      prompt.insert(prompt.end(), own.begin(), own.end());
      wire::Generate g = greedy(user, prompt, 3);
      if (told) g.add_boundaries(480);
      const uint32_t cached = ask(rig, g);
      CHECK(cached == (user >= (told ? 2u : 3u) ? 480u : 0u));
    }
  }
}

TEST_CASE("several users at once compute a shared prefix once") {
  Shape shape = shape_of(14, 8000);
  shape.max_sequences = 6;
  Rig rig(shape);
  TestRng rng(5);
  const std::vector<int32_t> shared = random_prompt(rng, 700);
  for (uint64_t user = 1; user <= 6; ++user) {
    std::vector<int32_t> prompt = shared;
    prompt.push_back(static_cast<int32_t>(user));
    rig.engine->generate(greedy(user, prompt, 3));
  }
  rig.run();
  CHECK(rig.model.rows <= 700 + 6 * 4);
  for (uint64_t user = 2; user <= 6; ++user) {
    CAPTURE(user);
    CHECK(rig.out.requests.at(user).cached_tokens == 700);
  }
  rig.check_clean();
}

namespace {

void settle(Rig& rig) {
  for (int i = 0; i < 500 && rig.engine->coordinator().copying(); ++i) {
    rig.engine->step();
    rig.now_us += 10;
  }
}

}  // namespace

TEST_CASE("what was evicted comes back from host memory with the same bits") {
  Shape shape = shape_of(3, 2100);
  shape.host_bytes = 1 << 20;
  Rig rig(shape);
  TestRng rng(6);
  std::vector<std::vector<int32_t>> talks;
  for (uint64_t i = 0; i < 6; ++i) talks.push_back(random_prompt(rng, 600));
  uint64_t id = 1, from_host = 0;
  for (int turn = 0; turn < 5; ++turn) {
    for (auto& talk : talks) {
      const uint32_t cached = ask(rig, greedy(id, talk, 4));
      CHECK((turn == 0 || cached >= 600));
      from_host += rig.out.requests.at(id).cached_host_tokens;
      talk = longer(rig, id++, talk, rng, 5);
      settle(rig);
    }
  }
  CHECK(from_host > 6 * 600);
  rig.check_clean();
}

TEST_CASE("what people come back to goes to disk when host memory is full, and comes back") {
  char dir[] = "/tmp/weft-prefix-XXXXXX";
  REQUIRE(::mkdtemp(dir) != nullptr);
  {
    Shape shape = shape_of(3, 2100);
    shape.host_bytes = 100'000;
    shape.disk_dir = dir;
    Rig rig(shape);
    TestRng rng(6);
    uint64_t id = 1;
    std::vector<int32_t> talk = random_prompt(rng, 600);
    const auto turn = [&] {
      const uint32_t cached = ask(rig, greedy(id, talk, 4));
      talk = longer(rig, id++, talk, rng, 5);
      settle(rig);
      return cached;
    };
    for (int i = 0; i < 4; ++i) turn();
    for (int i = 0; i < 12; ++i) {  // others, once each
      ask(rig, greedy(id++, random_prompt(rng, 600), 4));
      settle(rig);
    }
    ask(rig, greedy(id++, random_prompt(rng, 1990), 4));  // takes the whole device
    CHECK(rig.engine->coordinator().host().budget().disk_used > 0);
    CHECK(turn() >= 600);
    CHECK(rig.out.requests.at(id - 1).cached_host_tokens > 0);
    rig.check_clean();
  }
  CHECK(::rmdir(dir) == 0);
}

TEST_CASE("restore after eviction without a second tier computes again") {
  Rig rig(shape_of(2, 2100));
  TestRng rng(7);
  const std::vector<int32_t> first = random_prompt(rng, 900), second = random_prompt(rng, 1900);
  ask(rig, greedy(1, first, 3));
  ask(rig, greedy(2, second, 3));  // needs nearly the whole pool
  std::vector<int32_t> again = longer(rig, 1, first, rng, 3);
  CHECK(ask(rig, greedy(3, again, 3)) == 0);
  again = longer(rig, 3, again, rng, 3);
  CHECK(ask(rig, greedy(4, again, 3)) > 900);
  rig.check_clean();
}

TEST_CASE("a pool of one sequence still reuses: the snapshot becomes the sequence") {
  Shape shape = shape_of(1, 2000);
  shape.max_sequences = 1;
  Rig rig(shape);
  TestRng rng(8);
  std::vector<int32_t> prompt = random_prompt(rng, 1000);
  ask(rig, greedy(1, prompt, 5));
  prompt = longer(rig, 1, prompt, rng, 20);
  CHECK(ask(rig, greedy(2, prompt, 5)) == 1004);
  CHECK(ask(rig, greedy(3, random_prompt(rng, 1990), 5)) == 0);
  rig.check_clean();
}

TEST_CASE("a budget of one token per step gives the same answers and the same hits") {
  Shape shape = shape_of(6, 4000);
  shape.max_sequences = 1;
  shape.max_batch_tokens = 1;
  shape.prompt_logit_rows = 1;
  Rig rig(shape);
  TestRng rng(9);
  std::vector<int32_t> prompt = random_prompt(rng, 150);
  ask(rig, greedy(1, prompt, 5));
  prompt = longer(rig, 1, prompt, rng, 10);
  CHECK(ask(rig, greedy(2, prompt, 5)) == 154);
}

TEST_CASE("tenants and salts never see each other's prefixes") {
  Rig rig(shape_of(12, 8000));
  TestRng rng(10);
  const std::vector<int32_t> prompt = random_prompt(rng, 400);
  uint64_t id = 1;
  for (const char* tenant : {"", "a", "b"}) {
    for (const char* salt : {"", "x"}) {
      for (int time = 0; time < 2; ++time) {
        std::vector<int32_t> p = prompt;
        p.resize(400 + static_cast<size_t>(time) * 5, 3);
        wire::Generate g = greedy(id++, p, 2);
        g.set_tenant(tenant);
        g.set_cache_salt(salt);
        CHECK(ask(rig, g) == (time == 0 ? 0u : 400u));
      }
    }
  }
}

TEST_CASE("equal placeholders with another image are another prefix") {
  Rig rig(shape_of(12, 8000));
  TestRng rng(11);
  std::vector<int32_t> prompt = random_prompt(rng, 300);
  wire::Generate one = greedy(1, prompt, 3);
  add_media(&one, rng, 100, 4, 4);
  wire::Generate two = greedy(2, prompt, 3);
  add_media(&two, rng, 100, 4, 4);
  CHECK(ask(rig, one) == 0);
  CHECK(ask(rig, two) == 0);  // the same ids
  wire::Generate three = one;
  three.set_id(3);
  for (int i = 0; i < 9; ++i) three.add_prompt(5);
  CHECK(ask(rig, three) == 300);
}

TEST_CASE("no_cache reads and leaves nothing") {
  Rig rig(shape_of(10, 4000));
  TestRng rng(12);
  std::vector<int32_t> prompt = random_prompt(rng, 300);
  wire::Generate secret = greedy(1, prompt, 3);
  secret.set_no_cache(true);
  ask(rig, secret);
  CHECK(rig.engine->coordinator().snapshots() == 0);
  prompt.push_back(1);
  CHECK(ask(rig, greedy(2, prompt, 3)) == 0);
  prompt.push_back(1);
  wire::Generate again = greedy(3, prompt, 3);
  again.set_no_cache(true);
  CHECK(ask(rig, again) == 0);
}
