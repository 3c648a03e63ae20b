// The oracle test with real models: random worlds of conversations through the real engine, with
// its prefix cache, host tier, starved pools, preemption and a policy without sense, against the
// same request alone on an engine that keeps nothing and runs one sequence.
//
// Deterministic mode: every token and every log-probability must have the same bits.
//
// Default mode: a cached prefix was cut into other pieces than the lone prompt, so sums are formed
// in another order. logits_test.cpp holds every form of a step within 3e-4 of the exact logits (as
// a share of the largest), so two forms lie within twice that of each other; a log-probability is a
// logit minus a normaliser that moves as much at most: 1.2e-3 of the largest logit in all. A winner
// may change only where the two best lie nearer than twice that; from there the texts differ and
// nothing more is compared. WEFT_ORACLE_WORLDS is the number of worlds, for each model and
// instruction set.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "engine/engine.h"
#include "engine/load/checkpoint.h"
#include "engine/load/weights_loader.h"
#include "model_fixture.h"
#include "unit/engine/chaos_scheduler.h"
#include "unit/engine/collector.h"

namespace weft_test {
namespace {

namespace we = weft::engine;
namespace wire = weft::wire;
using we::TestRng;

constexpr uint32_t kContext = 400;
constexpr uint32_t kPageTokens = 16;
constexpr double kLogprobShare = 4 * 3e-4;

uint32_t worlds(uint32_t quick) {
  const char* asked = std::getenv("WEFT_ORACLE_WORLDS");
  return asked != nullptr ? static_cast<uint32_t>(std::atoi(asked)) : quick;
}

uint32_t first_world() {
  const char* asked = std::getenv("WEFT_ORACLE_FIRST");
  return asked != nullptr ? static_cast<uint32_t>(std::atoi(asked)) : 1;
}

// The largest logit that any model has shown since it was last cleared.
float largest_logit = 0;
const weft_model_v1* real_table = nullptr;

// The model's table, with an eye on its logits.
const weft_model_v1* watched(const weft_model_v1* table) {
  real_table = table;
  static weft_model_v1 copy;
  copy = *table;
  copy.step = [](weft_instance* self, const weft_batch* b, weft_err* err) {
    const weft_status status = real_table->step(self, b, err);
    weft_model_info info = {};
    info.struct_size = sizeof(info);
    real_table->info(self, &info);
    for (size_t i = 0; i < size_t{b->n_logit_rows} * info.vocab; ++i) {
      largest_logit = std::max(largest_logit, std::abs(b->logits[i]));
    }
    return status;
  };
  return &copy;
}

// Where a model comes from: numbers made from its vectors' seed, or micro-k3 on disk.
struct Source {
  explicit Source(const std::string& name) {
    setup.max_rows = 256;
    setup.max_seqs = 8;
    setup.max_context = kContext;
    setup.page_tokens = kPageTokens;
    setup.settings = {{"prefill_min_rows", "8"}};
    if (name == "micro-k3") {
      directory = WEFT_SOURCE_DIR "/models/micro-k3";
      std::ifstream in(directory + "/config.json");
      std::stringstream text;
      text << in.rdbuf();
      setup.config = text.str();
      return;
    }
    const Json vectors = read_json(name);
    setup.config = vectors.at("config").dump();
    checkpoint.add_weights(TensorList(vectors.at("config")), vectors.at("seed"));
  }
  ModelSetup setup;
  std::string directory;
  MemoryCheckpoint checkpoint;
};

struct Shape {
  uint32_t max_sequences = 1, max_batch_tokens = 64, prefill_chunk = 0;
  uint32_t pages = kContext / kPageTokens, slots = 1;
  uint64_t host_states = 0;  // host memory, in sizes of a state
  bool keep_prefixes = false, deterministic = true, chaos = false;
};

// An engine over a freshly loaded model.
class Rig {
 public:
  Rig(Bench& bench, Source& source, const Shape& shape) : model_(bench, source.setup) {
    load(bench, source);
    we::CacheSizes sizes;
    uint64_t state_bytes = 1;
    for (uint32_t g = 0; g < model_.memory().n_groups; ++g) {
      const weft_cache_group& group = model_.memory().groups[g];
      const bool rows = group.kind == WEFT_CACHE_ROWS;
      sizes.units.push_back(rows ? shape.pages : shape.slots);
      if (!rows) state_bytes += group.unit_bytes;
    }
    auto made = we::Caches::make(model_.memory(), sizes, true);
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? std::string() : made.error().message));
    caches = std::move(made).value();
    REQUIRE_MESSAGE(model_.ready(caches->arenas()) == WEFT_OK, model_.last_error());
    we::EngineOptions o;
    o.compose.max_sequences = shape.max_sequences;
    o.compose.max_batch_tokens = std::max(shape.max_sequences, shape.max_batch_tokens);
    o.compose.max_logit_rows = shape.max_sequences + 8;
    o.compose.prefill_chunk = shape.prefill_chunk;
    o.max_waiting = 1000;
    o.max_waiting_bytes = 1 << 24;
    o.max_context = kContext;
    o.deterministic = shape.deterministic;
    o.keep_prefixes = shape.keep_prefixes;
    o.host = {shape.host_states * state_bytes, "", 0, true};
    o.now_us = [this] { return now_us; };
    info = model_.info();
    engine = std::make_unique<we::Engine>(
        we::StepModel{watched(model_.table()), model_.self(), info}, caches.get(), o,
        [this](const wire::Envelope& e) { out.take(e); },
        shape.chaos ? we::ChaosScheduler::planner() : nullptr);
  }

  void step() {
    engine->step();
    now_us += 50;
  }
  const we::Collected& run(const wire::Generate& request) {
    engine->generate(request);
    for (int steps = 0; engine->has_work(); ++steps) {
      step();
      REQUIRE(steps < 100000);
    }
    return out.requests.at(request.id());
  }

 private:
  void load(Bench& bench, Source& source) {
    if (source.directory.empty()) {
      REQUIRE_MESSAGE(model_.declare(source.checkpoint.catalog()) == WEFT_OK, model_.last_error());
      REQUIRE_MESSAGE(model_.plan() == WEFT_OK, model_.last_error());
      REQUIRE_MESSAGE(model_.load(source.checkpoint) == WEFT_OK, model_.last_error());
      return;
    }
    auto storage = weft::plugin::Instance::create(bench.storage_plugin(), WEFT_STORAGE_ID, {});
    REQUIRE(storage.ok());
    REQUIRE(storage->start().ok());
    const we::StorageRef ref{storage->table<weft_storage_v1>(), storage->get()};
    auto checkpoint = we::Checkpoint::open(ref, source.directory);
    REQUIRE(checkpoint.ok());
    REQUIRE_MESSAGE(model_.declare((*checkpoint)->catalog()) == WEFT_OK, model_.last_error());
    REQUIRE_MESSAGE(model_.plan() == WEFT_OK, model_.last_error());
    REQUIRE(we::load_weights(**checkpoint, {model_.table(), model_.self()}, {}).ok());
  }

  TestModel model_;

 public:
  uint64_t now_us = 1000;
  weft_model_info info = {};
  std::unique_ptr<we::Caches> caches;
  we::Collector out;
  std::unique_ptr<we::Engine> engine;  // destroyed first
};

struct Totals {
  uint64_t worlds = 0, requests = 0, tokens = 0, cached = 0, from_host = 0, preemptions = 0,
           swaps = 0, cancelled = 0, near_ties = 0, torn = 0;
  double worst = 0;  // log-probability apart, as a share of the largest logit
};

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

void check_bits(const we::Collected& got, const we::Collected& want) {
  const size_t n = got.tokens.size();
  REQUIRE(n <= want.tokens.size());
  if (got.finish != wire::FINISH_CANCELLED) {
    CHECK(got.finish == want.finish);
    CHECK(n == want.tokens.size());
  }
  REQUIRE(got.tops.size() == n);
  bool same = true;
  for (size_t i = 0; i < n; ++i) {
    same = same && got.tokens[i] == want.tokens[i] && same_bits(got.logprobs[i], want.logprobs[i]);
    for (size_t j = 0; j < want.tops[i].size(); ++j) {
      same = same && got.tops[i][j].id == want.tops[i][j].id &&
             same_bits(got.tops[i][j].logprob, want.tops[i][j].logprob);
    }
  }
  CHECK(same);
}

// False when the two are further apart than rounding alone explains.
bool is_near(const we::Collected& got, const we::Collected& want, Totals* totals) {
  const double tolerance = kLogprobShare * static_cast<double>(largest_logit);
  double worst = 0;
  for (size_t i = 0; i < std::min(got.tokens.size(), want.tokens.size()); ++i) {
    const double off = std::abs(static_cast<double>(got.tops[i][0].logprob) -
                                static_cast<double>(want.tops[i][0].logprob));
    if (off > tolerance) return false;
    worst = std::max(worst, off / static_cast<double>(largest_logit));
    if (got.tokens[i] == want.tokens[i]) continue;
    const double margin =
        static_cast<double>(want.tops[i][0].logprob) - static_cast<double>(want.tops[i][1].logprob);
    if (margin > 2 * tolerance) return false;
    ++totals->near_ties;
    totals->worst = std::max(totals->worst, worst);
    return true;  // from here on the two read different texts
  }
  totals->worst = std::max(totals->worst, worst);
  return got.finish == wire::FINISH_CANCELLED ||
         (got.tokens.size() == want.tokens.size() && got.finish == want.finish);
}

class World {
 public:
  World(Bench& bench, Source& source, Rig& lone, uint32_t seed, bool deterministic)
      : bench_(bench), source_(source), rng_(seed), lone_(lone), deterministic_(deterministic) {
    Shape s;
    s.max_sequences = 1 + rng_.below(5);
    s.slots = s.max_sequences + rng_.below(6);
    const uint32_t budgets[] = {1, 5, 32, 100, 250};
    s.max_batch_tokens = budgets[rng_.below(5)];
    const uint32_t chunks[] = {0, 0, 7, 64};
    s.prefill_chunk = chunks[rng_.below(4)];
    s.pages = kContext / kPageTokens + (rng_.below(3) == 0 ? 0 : rng_.below(60));
    s.host_states = rng_.below(2) == 0 ? 0 : 2 + rng_.below(40);
    s.keep_prefixes = true;
    s.deterministic = deterministic;
    s.chaos = rng_.below(2) == 0;
    rig_ = std::make_unique<Rig>(bench, source, s);
    common_ = random_ids(1 + rng_.below(200));
    histories_.resize(1 + rng_.below(4));
    for (auto& h : histories_) {
      if (rng_.below(4) != 0) h = common_;
    }
  }

  void live(Totals* totals) {
    const uint32_t requests = 4 + rng_.below(6);
    for (uint32_t steps = 0; sent_.size() < requests || rig_->engine->has_work(); ++steps) {
      if (sent_.size() < requests && rng_.below(3) == 0) send();
      if (!sent_.empty() && rng_.below(60) == 0) {
        rig_->engine->cancel(1 + rng_.below(static_cast<uint32_t>(sent_.size())), "test");
      }
      rig_->step();
      take_answers();
      REQUIRE(steps < 100000);
    }
    finish(totals);
  }

 private:
  std::vector<int32_t> random_ids(uint32_t n) {
    std::vector<int32_t> out(n);
    for (int32_t& id : out) id = static_cast<int32_t>(rng_.below(rig_->info.vocab));
    return out;
  }

  void send() {
    const size_t who = rng_.below(static_cast<uint32_t>(histories_.size()));
    std::vector<int32_t> prompt = histories_[who];
    const auto more = random_ids(1 + rng_.below(rng_.below(4) == 0 ? 120 : 20));
    prompt.insert(prompt.end(), more.begin(), more.end());
    if (prompt.size() > kContext - 30) prompt.resize(kContext - 30);
    // A placeholder without its image is no prompt.
    std::replace(prompt.begin(), prompt.end(), rig_->info.media_token, 1);
    wire::Generate g;
    g.set_id(sent_.size() + 1);
    g.set_tenant(who == 3 ? "other" : "");
    g.mutable_prompt()->Add(prompt.begin(), prompt.end());
    g.set_no_cache(rng_.below(15) == 0);
    if (common_.size() < prompt.size() && rng_.below(2) == 0) {
      g.add_boundaries(static_cast<uint32_t>(common_.size()));
    }
    wire::Sampling* s = g.mutable_sampling();
    s->set_max_tokens(1 + rng_.below(rng_.below(4) == 0 ? 24 : 6));
    s->set_seed(rng_());
    s->set_temperature(deterministic_ && rng_.below(2) == 0 ? 1.0f : 0.0f);
    s->set_logprobs(4);
    s->set_prompt_logprobs(-1);
    if (rig_->info.accepts_media != 0 && prompt.size() > 10 && rng_.below(4) == 0) {
      add_image(&g, rng_.below(static_cast<uint32_t>(prompt.size()) - 4));
    }
    sent_.push_back(g);
    owner_.push_back(who);
    rig_->engine->generate(std::move(g));
  }

  void add_image(wire::Generate* g, uint32_t first) {
    const weft_model_info& info = rig_->info;
    wire::Media* m = g->add_media();
    const uint32_t h = info.media_merge, w = 2 * info.media_merge;
    std::vector<float> patches(size_t{h} * w * info.media_patch_values);
    for (float& x : patches) x = static_cast<float>(rng_.below(2000)) / 1000.0f - 1.0f;
    m->set_patches(patches.data(), patches.size() * sizeof(float));
    m->set_grid_t(1);
    m->set_grid_h(h);
    m->set_grid_w(w);
    m->set_first_position(first);
    m->set_rows(2);
    for (int i = 0; i < 2; ++i) g->set_prompt(static_cast<int>(first) + i, info.media_token);
  }

  // The next turn of a conversation begins with what was said, or with an edited or shorter
  // history.
  void take_answers() {
    for (size_t i = 0; i < sent_.size(); ++i) {
      const auto got = rig_->out.requests.find(i + 1);
      if (owner_[i] == SIZE_MAX || got == rig_->out.requests.end() ||
          got->second.finish == wire::FINISH_NONE) {
        continue;
      }
      std::vector<int32_t>& h = histories_[std::exchange(owner_[i], SIZE_MAX)];
      h.assign(sent_[i].prompt().begin(), sent_[i].prompt().end());
      h.insert(h.end(), got->second.tokens.begin(), got->second.tokens.end());
      const auto n = static_cast<uint32_t>(h.size());
      if (rng_.below(10) == 0) h[rng_.below(n)] = 2;
      if (rng_.below(10) == 0 || n > kContext - 60) h.resize(rng_.below(n));
      if (rng_.below(10) == 0) {
        h = histories_[rng_.below(static_cast<uint32_t>(histories_.size()))];
      }
    }
  }

  // A router whose choice hangs on the last bit picks other experts for other pieces, and then
  // rounding bounds nothing. That is so without any cache too: some piece size must show it.
  bool torn_without_cache(wire::Generate request, const we::Collected& want) {
    for (const uint32_t chunk : {1u, 2u, 3u, 5u, 7u, 8u, 9u, 13u, 17u, 24u, 32u, 50u, 64u, 100u}) {
      Shape alone;
      alone.deterministic = false;
      alone.prefill_chunk = chunk;
      Rig rig(bench_, source_, alone);
      request.set_id(++lone_id_);
      Totals ignored;
      if (!is_near(rig.run(request), want, &ignored)) return true;
    }
    return false;
  }

  void finish(Totals* totals) {
    for (int i = 0; i < 2000 && rig_->engine->coordinator().copying(); ++i) rig_->step();
    rig_->step();
    for (wire::Generate request : sent_) {
      const we::Collected& got = rig_->out.requests.at(request.id());
      if (got.finish == wire::FINISH_CANCELLED && got.tokens.empty()) continue;
      CAPTURE(request.id());
      request.set_id(++lone_id_);
      largest_logit = 0;
      const we::Collected& want = lone_.run(request);
      REQUIRE_MESSAGE(want.finish != wire::FINISH_ERROR, want.error);
      REQUIRE_MESSAGE(got.finish != wire::FINISH_ERROR, got.error);
      if (deterministic_) {
        check_bits(got, want);
      } else if (!is_near(got, want, totals)) {
        CHECK(torn_without_cache(request, want));
        ++totals->torn;
      }
      totals->tokens += got.tokens.size();
    }
    const auto audit = rig_->engine->audit();
    CHECK_MESSAGE(audit.ok(), (audit.ok() ? std::string() : audit.error().message));
    const wire::WorkerStats& stats = rig_->out.stats.back();
    ++totals->worlds;
    totals->requests += sent_.size();
    totals->cached += stats.cache().hits_local_tokens();
    totals->from_host += stats.cache().hits_host_tokens();
    totals->preemptions += rig_->engine->preemptions();
    totals->swaps += stats.scheduler().swaps_total();
    for (const auto& [id, r] : rig_->out.requests) {
      totals->cancelled += r.finish == wire::FINISH_CANCELLED ? 1 : 0;
    }
    rig_->engine->coordinator().drop_all();
    for (const auto& g : rig_->caches->groups()) CHECK(g.pool->free() == g.total());
    CHECK(rig_->engine->coordinator().host().budget().used == 0);
  }

  Bench& bench_;
  Source& source_;
  TestRng rng_;
  Rig& lone_;
  const bool deterministic_;
  std::unique_ptr<Rig> rig_;
  std::vector<int32_t> common_;
  std::vector<std::vector<int32_t>> histories_;
  std::vector<wire::Generate> sent_;
  std::vector<size_t> owner_;  // whose turn a request is; SIZE_MAX once its answer is taken
  static inline uint64_t lone_id_ = 0;
};

void live(const std::string& name, const std::string& level, uint32_t n, bool deterministic,
          Totals* totals) {
  CAPTURE(name);
  CAPTURE(level);
  Bench bench(level);
  Source source(name);
  Shape alone;
  alone.deterministic = deterministic;
  Rig lone(bench, source, alone);
  for (uint32_t seed = first_world(); seed < first_world() + n; ++seed) {
    CAPTURE(seed);
    World(bench, source, lone, seed, deterministic).live(totals);
  }
}

void report(const std::string& mode, const Totals& t) {
  MESSAGE(mode, ": ", t.worlds, " worlds, ", t.requests, " requests, ", t.tokens, " tokens, ",
          t.cached, " reused, ", t.from_host, " from host memory, ", t.preemptions,
          " preemptions (", t.swaps, " swaps), ", t.cancelled, " cancelled, ", t.near_ties,
          " near ties, ", t.torn, " torn by a router's tie, worst ", t.worst);
}

const char* const kModels[] = {"tiny_k3", "tiny_linear", "odd_k3", "micro-k3"};

}  // namespace

TEST_CASE("oracle: real models in deterministic mode answer bit for bit as alone") {
#ifdef WEFT_SANITIZED  // the slow ones add nothing there
  const std::pair<const char*, uint32_t> levels[] = {{"avx512_bf16", 1}};
#else
  const std::pair<const char*, uint32_t> levels[] = {
      {"ref", 1}, {"avx2", 2}, {"avx512", 3}, {"avx512_bf16", 3}};
#endif
  Totals totals;
  for (const char* name : kModels) {
    for (const auto& [level, quick] : levels) {
      // The plain loops are a tenth as fast.
      const uint32_t n = worlds(quick);
      live(name, level, std::string(level) == "ref" && n > 10 ? n / 10 : n, true, &totals);
    }
  }
  report("deterministic", totals);
  CHECK(totals.cached > 0);
}

TEST_CASE("oracle: real models in default mode differ by rounding alone") {
#ifdef WEFT_SANITIZED
  constexpr uint32_t kQuick = 1;
#else
  constexpr uint32_t kQuick = 5;
#endif
  Totals totals;
  for (const char* name : kModels) live(name, "avx512", worlds(kQuick), false, &totals);
  report("default", totals);
  CHECK(totals.cached > 0);
  CHECK(totals.near_ties * 50 <= totals.requests + 50);
  CHECK(totals.torn * 100 <= totals.requests + 100);
}

TEST_CASE("oracle: equal placeholders with another image are another prompt") {
  Bench bench("avx512");
  Source source("micro-k3");
  Shape shape;
  shape.slots = 8;
  shape.pages *= 4;
  shape.keep_prefixes = true;
  Rig rig(bench, source, shape);
  const auto ask = [&](uint64_t id, float shade, uint32_t more) -> const we::Collected& {
    wire::Generate g;
    g.set_id(id);
    for (uint32_t i = 0; i < 40 + more; ++i) g.add_prompt(i == 4 ? rig.info.media_token : 7);
    wire::Media* m = g.add_media();
    const std::vector<float> patches(
        size_t{rig.info.media_merge} * rig.info.media_merge * rig.info.media_patch_values, shade);
    m->set_patches(patches.data(), patches.size() * sizeof(float));
    m->set_grid_t(1);
    m->set_grid_h(rig.info.media_merge);
    m->set_grid_w(rig.info.media_merge);
    m->set_first_position(4);
    m->set_rows(1);
    g.mutable_sampling()->set_max_tokens(2);
    g.mutable_sampling()->set_logprobs(2);
    g.mutable_sampling()->set_prompt_logprobs(-1);
    const we::Collected& got = rig.run(g);
    REQUIRE_MESSAGE(got.finish == wire::FINISH_LENGTH, got.error);
    return got;
  };
  const we::Collected& white = ask(1, 1.0f, 0);
  const we::Collected& black = ask(2, -1.0f, 0);
  CHECK(white.cached_tokens == 0);
  CHECK(black.cached_tokens == 0);
  CHECK(white.logprobs != black.logprobs);
  CHECK(ask(3, 1.0f, 9).cached_tokens == 40);
}

}  // namespace weft_test
