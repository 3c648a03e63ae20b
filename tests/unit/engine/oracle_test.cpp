// The oracle test: random worlds of multi-turn conversations, and every answer must equal that of
// the same request alone, without any cache, bit for bit. What is drawn: conversations that go on,
// branch, edit their history or copy someone else's, tenants and salts, images, useful lengths,
// cancels, starved pools, a second and a third tier, policies (the built-in one, and one without
// any sense), step budgets and piece sizes from one row to everything.
//
// The fake model's logits are a hash of the whole token history read back from the caches, so any
// foreign row, stale state or wrong length shows at the next token. The number of worlds is
// WEFT_ORACLE_WORLDS, or one that is quick.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "unit/engine/chaos_scheduler.h"
#include "unit/engine/engine_rig.h"

using namespace weft;
using namespace weft::engine;

namespace {

uint32_t worlds() {
  const char* asked = std::getenv("WEFT_ORACLE_WORLDS");
#ifdef WEFT_SANITIZED
  return asked != nullptr ? static_cast<uint32_t>(std::atoi(asked)) : 40;
#else
  return asked != nullptr ? static_cast<uint32_t>(std::atoi(asked)) : 400;
#endif
}

struct Totals {
  uint64_t requests = 0, cached = 0, from_host = 0, preemptions = 0, cancelled = 0, swaps = 0;
};

// One conversation of a tenant: what has been said so far.
struct Conversation {
  std::string tenant, salt;
  std::vector<int32_t> history;
};

class World {
 public:
  explicit World(uint32_t seed) : rng_(seed) {
    Shape shape;
    shape.fake.max_context = 2000;
    shape.max_context = 900;
    shape.max_sequences = 1 + rng_.below(6);
    shape.slots = shape.max_sequences + rng_.below(8);
    const uint32_t budgets[] = {1, 3, 17, 64, 200, 1000};
    shape.max_batch_tokens = std::max(shape.max_sequences, budgets[rng_.below(6)]);
    const uint32_t chunks[] = {0, 0, 1, 7, 128};
    shape.prefill_chunk = chunks[rng_.below(5)];
    // From a pool that holds one conversation to one that holds everything.
    shape.pool_tokens = 900 + (rng_.below(3) == 0 ? 0 : rng_.below(6000));
    if (rng_.below(2) == 0) shape.host_bytes = 2000 + rng_.below(400000);
    if (shape.host_bytes > 0 && rng_.below(2) == 0) {
      disk_ = std::filesystem::temp_directory_path() /
              fmt::format("weft-oracle-{}-{}", ::getpid(), seed);
      std::filesystem::create_directory(disk_);
      shape.disk_dir = disk_.string();
    }
    shape.deterministic = true;
    rig_ = std::make_unique<Rig>(shape, rng_.below(2) == 0 ? ChaosScheduler::planner() : nullptr);
    const uint32_t n = 1 + rng_.below(5);
    const std::vector<int32_t> common = random_prompt(rng_, 1 + rng_.below(400));
    for (uint32_t i = 0; i < n; ++i) {
      Conversation c;
      c.tenant = rng_.below(3) == 0 ? "other" : "";
      c.salt = rng_.below(5) == 0 ? "salt" : "";
      if (rng_.below(3) != 0) c.history = common;
      conversations_.push_back(std::move(c));
    }
    common_ = static_cast<uint32_t>(common.size());
  }
  ~World() {
    rig_.reset();
    if (disk_.empty()) return;
    CHECK(std::filesystem::is_empty(disk_));
    std::filesystem::remove_all(disk_);
  }

  void live(Totals* totals) {
    const uint32_t requests = 6 + rng_.below(14);
    uint64_t steps = 0;
    while (sent_.size() < requests || rig_->engine->has_work()) {
      if (sent_.size() < requests && rng_.below(3) != 0) send();
      if (!sent_.empty() && rng_.below(25) == 0) {
        rig_->engine->cancel(1 + rng_.below(static_cast<uint32_t>(sent_.size())), "test");
      }
      step();
      REQUIRE(++steps < 200000);  // livelock
    }
    finish(totals);
  }

 private:
  void step() {
    rig_->engine->step();
    rig_->now_us += 50;
    if (rng_.below(40) == 0) REQUIRE(rig_->engine->audit().ok());
    for (auto& [id, conversation] : open_) {
      const auto got = rig_->out.requests.find(id);
      if (conversation == nullptr || got == rig_->out.requests.end() ||
          got->second.finish == wire::FINISH_NONE) {
        continue;
      }
      take_answer(*std::exchange(conversation, nullptr), sent_[id - 1], got->second);
    }
  }

  // What the client makes of an answer: usually the next turn begins with it.
  void take_answer(Conversation& c, const wire::Generate& request, const Collected& answer) {
    c.history.assign(request.prompt().begin(), request.prompt().end());
    if (rng_.below(8) != 0) {
      c.history.insert(c.history.end(), answer.tokens.begin(), answer.tokens.end());
    }
    if (rng_.below(10) == 0 && !c.history.empty()) {  // edits its history
      c.history[rng_.below(static_cast<uint32_t>(c.history.size()))] =
          static_cast<int32_t>(rng_.below(60));
    }
    if (rng_.below(10) == 0) {  // goes back
      c.history.resize(rng_.below(static_cast<uint32_t>(c.history.size()) + 1));
    }
    if (rng_.below(10) == 0) {  // copies someone else's
      c.history = conversations_[rng_.below(static_cast<uint32_t>(conversations_.size()))].history;
    }
    // A placeholder without its image is no prompt.
    std::replace(c.history.begin(), c.history.end(), 60, 59);
  }

  void send() {
    Conversation& c = conversations_[rng_.below(static_cast<uint32_t>(conversations_.size()))];
    std::vector<int32_t> prompt = c.history;
    const std::vector<int32_t> more =
        random_prompt(rng_, rng_.below(6) == 0 ? 1 : 1 + rng_.below(rng_.below(3) == 0 ? 300 : 30));
    prompt.insert(prompt.end(), more.begin(), more.end());
    if (prompt.size() > 800) prompt.resize(800);
    const uint64_t id = sent_.size() + 1;
    wire::Generate g = make_request(id, prompt, 1 + rng_.below(rng_.below(4) == 0 ? 60 : 8));
    wire::Sampling* s = g.mutable_sampling();
    s->set_seed(rng_());
    s->set_temperature(rng_.below(2) == 0 ? 0.0f : 1.0f);
    if (rng_.below(4) == 0) s->set_repetition_penalty(1.2f);
    if (rng_.below(3) == 0) s->set_logprobs(2);
    if (rng_.below(12) == 0) s->set_prompt_logprobs(1);
    if (rng_.below(4) == 0) s->add_stop_ids(static_cast<int32_t>(rng_.below(60)));
    if (prompt.size() > 12 && rng_.below(8) == 0) {
      add_media(&g, rng_, rng_.below(static_cast<uint32_t>(prompt.size()) - 8), 2, 4);
    }
    g.set_tenant(c.tenant);
    g.set_cache_salt(c.salt);
    g.set_priority(static_cast<int32_t>(rng_.below(3)) - 1);
    g.set_no_cache(rng_.below(15) == 0);
    if (common_ < prompt.size() && rng_.below(2) == 0) g.add_boundaries(common_);
    sent_.push_back(g);
    open_.emplace_back(id, &c);
    rig_->engine->generate(std::move(g));
  }

  void finish(Totals* totals) {
    for (int i = 0; i < 2000 && rig_->engine->coordinator().copying(); ++i) step();
    rig_->engine->step();
    for (const wire::Generate& request : sent_) check_against_oracle(*rig_, request);
    rig_->check_clean();
    wire::WorkerStats stats = rig_->out.stats.back();
    const wire::CacheStats& c = stats.cache();
    CHECK(c.queries_tokens() == c.hits_local_tokens() + c.hits_host_tokens() + c.computed_tokens());
    CHECK(c.copy_failures_total() == 0);
    totals->requests += sent_.size();
    totals->cached += c.hits_local_tokens();
    totals->from_host += c.hits_host_tokens();
    totals->preemptions += rig_->engine->preemptions();
    totals->swaps += stats.scheduler().swaps_total();
    for (const auto& [id, r] : rig_->out.requests) {
      totals->cancelled += r.finish == wire::FINISH_CANCELLED ? 1 : 0;
    }
    rig_->engine->coordinator().drop_all();
    for (const Caches::Group& g : rig_->caches->groups()) CHECK(g.pool->free() == g.total());
    CHECK(rig_->engine->coordinator().host().budget().used == 0);
  }

  TestRng rng_;
  std::filesystem::path disk_;
  std::unique_ptr<Rig> rig_;
  std::vector<Conversation> conversations_;
  std::vector<wire::Generate> sent_;
  std::vector<std::pair<uint64_t, Conversation*>> open_;
  uint32_t common_ = 0;
};

}  // namespace

TEST_CASE("oracle: in thousands of random worlds every answer equals that without a cache") {
  Totals totals;
  const uint32_t first = std::getenv("WEFT_ORACLE_FIRST") != nullptr
                             ? static_cast<uint32_t>(std::atoi(std::getenv("WEFT_ORACLE_FIRST")))
                             : 1;
  for (uint32_t seed = first; seed < first + worlds(); ++seed) {
    CAPTURE(seed);
    World world(seed);
    world.live(&totals);
  }
  MESSAGE(totals.requests, " requests, ", totals.cached, " tokens reused, ", totals.from_host,
          " from lower tiers, ", totals.preemptions, " preemptions (", totals.swaps,
          " to host memory), ", totals.cancelled, " cancelled");
  if (worlds() < 30) return;
  CHECK(totals.cached > 0);
  CHECK(totals.from_host > 0);
  CHECK(totals.preemptions > 0);
  CHECK(totals.swaps > 0);
  CHECK(totals.cancelled > 0);
}
