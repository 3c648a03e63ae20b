// The whole model against vectors of the float64 reference, at every instruction set of this
// machine, and in every form a step can take: token by token, chunked, cut anywhere, batched and
// mixed.
//
// Tolerance. Weights are exact in f32, so what differs is f32 rounding (2^-24 = 6e-8 per operation,
// sums of up to some hundred terms) carried through at most nine layers. The reference itself, run
// in float32, lies within 3e-5 of its float64 logits for 100 tokens (as a share of the largest
// logit). Kernels sum in another order and approximate exp and tanh to a few units in the last
// place, hence ten times that. A wrong rule (a gate, an epsilon of 1e-5 for 1e-6, an expert) moves
// these models by 1e-3 and more, as the tests of single switches show.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model_fixture.h"

namespace weft_test {
namespace {

constexpr double kTolerance = 3e-4;
const char* const kVectors[] = {"tiny_k3", "tiny_linear", "one_kda_layer",
                                "all_mla", "groups",      "odd_k3"};
const char* const kLevels[] = {"ref", "avx2", "avx512"};

struct Loaded {
  Loaded(Bench& bench, const Json& vectors, weft::plugin::ParamList settings = {},
         uint32_t cache_dtype = 0)
      : model(bench, setup(vectors, std::move(settings), cache_dtype)) {
    checkpoint.add_weights(TensorList(vectors.at("config")), vectors.at("seed"));
    REQUIRE_MESSAGE(model.bring_up(checkpoint), model.last_error());
  }
  static ModelSetup setup(const Json& vectors, weft::plugin::ParamList settings,
                          uint32_t cache_dtype) {
    ModelSetup s;
    s.config = vectors.at("config").dump();
    s.settings = std::move(settings);
    s.cache_dtype = cache_dtype;
    return s;
  }
  MemoryCheckpoint checkpoint;
  TestModel model;
};

std::vector<int32_t> slice(const std::vector<int32_t>& v, size_t from, size_t to) {
  return {v.begin() + static_cast<std::ptrdiff_t>(from),
          v.begin() + static_cast<std::ptrdiff_t>(to)};
}

// All logits of one prompt, fed in pieces that end at `cuts`.
std::vector<float> run(TestModel& m, Sequence& s, const std::vector<int32_t>& ids,
                       std::vector<size_t> cuts = {}, uint32_t flags = 0) {
  std::vector<float> out;
  size_t at = 0;
  cuts.push_back(ids.size());
  for (const size_t cut : cuts) {
    const auto part = m.feed({{&s, slice(ids, at, cut), true, {}}}, {}, flags);
    out.insert(out.end(), part.begin(), part.end());
    at = cut;
  }
  return out;
}

std::vector<float> run_alone(TestModel& m, const std::vector<int32_t>& ids,
                             std::vector<size_t> cuts = {}, uint32_t flags = 0) {
  Sequence s;
  const auto out = run(m, s, ids, std::move(cuts), flags);
  m.release(s);
  return out;
}

// Compares with the digests of every position and the whole last row.
void check_prompt(const std::vector<float>& logits, const Json& prompt, size_t vocab,
                  double tolerance) {
  const Json& positions = prompt.at("positions");
  REQUIRE(logits.size() == positions.size() * vocab);
  double worst = 0;
  size_t wrong_argmax = 0;
  for (size_t p = 0; p < positions.size(); ++p) {
    const std::span<const float> row(logits.data() + p * vocab, vocab);
    double sum = 0, square = 0, wave = 0;
    for (size_t i = 0; i < vocab; ++i) {
      sum += row[i];
      square += static_cast<double>(row[i]) * row[i];
      wave += row[i] * std::cos(static_cast<double>(i) + 1.0);
    }
    const auto top = std::max_element(row.begin(), row.end());
    const Json& want = positions[p];
    const double largest = std::sqrt(want[4].get<double>() / static_cast<double>(vocab)) +
                           std::abs(want[2].get<double>());
    const double n = std::sqrt(static_cast<double>(vocab));
    for (const double off : {row[0] - want[1].get<double>(), *top - want[2].get<double>(),
                             (sum - want[3].get<double>()) / n, (wave - want[5].get<double>()) / n,
                             (square - want[4].get<double>()) / (2 * n * largest)}) {
      worst = std::max(worst, std::isfinite(off) ? std::abs(off) / largest : 1e9);
    }
    const auto index = static_cast<size_t>(want[0].get<int>());
    if (row[index] < *top - 2 * tolerance * largest) ++wrong_argmax;
  }
  CHECK(wrong_argmax == 0);
  CHECK(worst <= tolerance);
  const auto last = prompt.at("last").get<std::vector<float>>();
  CHECK(distance(std::span(logits).last(vocab), last) <= tolerance);
}

double state_sum(const TestModel& m, const Sequence& s, const Json& config) {
  const Json& t = config.contains("text_config") ? config.at("text_config") : config;
  const Json& kda = t.at("linear_attn_config");
  const auto heads = kda.at("num_heads").get<size_t>(), dim = kda.at("head_dim").get<size_t>();
  const auto* state = reinterpret_cast<const float*>(m.unit(m.group("kda"), s.slot));
  double sum = 0;
  for (size_t i = 0; i < heads * dim * dim; ++i) sum += static_cast<double>(state[i]) * state[i];
  return sum;
}

double rows_sum(const TestModel& m, const Sequence& s, const Json& config, uint32_t page_tokens) {
  const Json& t = config.contains("text_config") ? config.at("text_config") : config;
  const size_t width = t.at("kv_lora_rank").get<size_t>() + t.at("qk_rope_head_dim").get<size_t>();
  double sum = 0;
  for (uint32_t p = 0; p < s.context; ++p) {
    const auto* row =
        reinterpret_cast<const float*>(m.unit(m.group("mla"), s.pages[p / page_tokens])) +
        (p % page_tokens) * width;
    for (size_t i = 0; i < width; ++i) sum += static_cast<double>(row[i]) * row[i];
  }
  return sum;
}

size_t vocab_of(const Json& vectors) {
  const Json& c = vectors.at("config");
  return (c.contains("text_config") ? c.at("text_config") : c).at("vocab_size").get<size_t>();
}

const Json& longest(const Json& vectors) {
  return *std::max_element(
      vectors.at("prompts").begin(), vectors.at("prompts").end(),
      [](const Json& a, const Json& b) { return a.at("ids").size() < b.at("ids").size(); });
}

}  // namespace

TEST_CASE("logits and states match the reference in chunked, recurrent and token-by-token form") {
  for (const char* level : kLevels) {
    Bench bench(level);
    for (const char* name : kVectors) {
      CAPTURE(level);
      CAPTURE(name);
      const Json vectors = read_json(name);
      // Thresholds of 1 and of 1000 rows force one form each; 24 mixes both in one run.
      for (const char* threshold : {"1", "24", "1000"}) {
        CAPTURE(threshold);
        Loaded l(bench, vectors, {{"prefill_min_rows", threshold}});
        for (const Json& prompt : vectors.at("prompts")) {
          const auto ids = ints(prompt.at("ids"));
          CAPTURE(ids.size());
          Sequence s;
          check_prompt(run(l.model, s, ids), prompt, vocab_of(vectors), kTolerance);
          const Json& state = prompt.at("state");
          if (state.contains("kda_sumsq")) {
            const double want = state.at("kda_sumsq");
            CHECK(std::abs(state_sum(l.model, s, vectors.at("config")) - want) <=
                  kTolerance * want);
          }
          if (state.contains("mla_sumsq")) {
            const double want = state.at("mla_sumsq");
            CHECK(std::abs(rows_sum(l.model, s, vectors.at("config"), 16) - want) <=
                  kTolerance * want);
          }
          l.model.release(s);
        }
      }
    }
  }
}

TEST_CASE("a prompt cut anywhere gives the same logits") {
  for (const char* level : kLevels) {
    Bench bench(level);
    for (const char* name : {"tiny_k3", "tiny_linear", "groups"}) {
      CAPTURE(level);
      CAPTURE(name);
      const Json vectors = read_json(name);
      const Json& prompt = longest(vectors);
      auto ids = ints(prompt.at("ids"));
      ids.resize(36);
      Loaded l(bench, vectors, {{"prefill_min_rows", "6"}, {"kda_chunk", "16"}});
      const auto whole = run_alone(l.model, ids);
      for (size_t cut = 1; cut < ids.size(); ++cut) {
        CAPTURE(cut);
        CHECK(distance(run_alone(l.model, ids, {cut}), whole) <= kTolerance);
      }
      CHECK(distance(run_alone(l.model, ids, {7, 8, 20}), whole) <= kTolerance);
      std::vector<size_t> every(ids.size() - 1);
      std::iota(every.begin(), every.end(), size_t{1});
      CHECK(distance(run_alone(l.model, ids, every), whole) <= kTolerance);
    }
  }
}

TEST_CASE("recurrent batches give the same states for any cut") {
  Bench bench("ref");
  for (const char* name : {"tiny_k3", "tiny_linear"}) {
    const Json vectors = read_json(name);
    auto ids = ints(longest(vectors).at("ids"));
    ids.resize(40);
    Loaded l(bench, vectors);
    const auto whole = run_alone(l.model, ids, {}, WEFT_BATCH_RECURRENT);
    for (const size_t cut : {1, 13, 32, 39}) {
      // The reference kernels treat every row alone, so even the bits agree.
      CHECK(run_alone(l.model, ids, {cut}, WEFT_BATCH_RECURRENT) == whole);
    }
  }
}

TEST_CASE("sequences do not see each other: batches of prompts, decodes and both") {
  for (const char* level : kLevels) {
    Bench bench(level);
    for (const char* name : {"tiny_k3", "tiny_linear", "odd_k3"}) {
      CAPTURE(level);
      CAPTURE(name);
      const Json vectors = read_json(name);
      const size_t vocab = vocab_of(vectors);
      const auto ids = ints(longest(vectors).at("ids"));
      Loaded l(bench, vectors, {{"prefill_min_rows", "10"}});
      TestModel& m = l.model;
      const auto whole = run_alone(m, ids);
      const auto rows = [&](size_t from, size_t to) {
        return std::vector<float>(whole.begin() + static_cast<std::ptrdiff_t>(from * vocab),
                                  whole.begin() + static_cast<std::ptrdiff_t>(to * vocab));
      };
      // a: a prompt in pieces; b: decodes from the start; c: joins late; lengths on both sides of
      // the threshold.
      Sequence a, b, c;
      size_t at = 0, bt = 0, ct = 0;
      for (size_t round = 0; at < 60; ++round) {
        const size_t n = 1 + (round * 7) % 19;
        std::vector<Piece> pieces = {{&a, slice(ids, at, at + n), true, {}},
                                     {&b, slice(ids, bt, bt + 1), true, {}}};
        if (round >= 3) pieces.push_back({&c, slice(ids, ct, ct + 2), true, {}});
        if (round % 2 == 1) std::swap(pieces[0], pieces[1]);
        const auto got = m.feed(pieces);
        std::vector<float> want;
        for (const Piece& p : pieces) {
          const size_t from = p.sequence == &a ? at : p.sequence == &b ? bt : ct;
          const auto part = rows(from, from + p.tokens.size());
          want.insert(want.end(), part.begin(), part.end());
        }
        CAPTURE(round);
        CHECK(distance(got, want) <= kTolerance);
        at += n;
        bt += 1;
        ct += round >= 3 ? 2 : 0;
      }
      m.release(a);
      m.release(b);
      m.release(c);
    }
  }
}

TEST_CASE("golden numbers: greedy continuation of the tiny models") {
  for (const char* level : kLevels) {
    Bench bench(level, 2);
    for (const char* name : {"tiny_k3", "tiny_linear"}) {
      CAPTURE(level);
      CAPTURE(name);
      const Json vectors = read_json(name);
      const Json& golden = vectors.at("golden");
      const size_t vocab = vocab_of(vectors);
      const auto prompt =
          ints(vectors.at("prompts").at(golden.at("prompt").get<size_t>()).at("ids"));
      Loaded l(bench, vectors);
      Sequence s;
      std::vector<int32_t> got, next = prompt;
      for (int step = 0; step < 16; ++step) {
        const auto logits = l.model.feed({{&s, next, false, {}}});
        REQUIRE(logits.size() == vocab);
        next = {
            static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
        got.push_back(next[0]);
      }
      CHECK(got == ints(golden.at("greedy")));
    }
  }
}

TEST_CASE("image rows and a prompt with images match the reference") {
  const Json vectors = read_json("tiny_k3");
  const size_t hidden = 128, patch = 4;
  for (const char* level : kLevels) {
    CAPTURE(level);
    Bench bench(level);
    Loaded l(bench, vectors);
    CHECK(l.model.info().accepts_media == 1);
    CHECK(l.model.info().media_token == 253);
    std::vector<float> all_rows;
    for (const Json& image : vectors.at("images")) {
      const std::string name = image.at("stream");
      CAPTURE(name);
      const size_t h = image.at("height"), w = image.at("width"), frames = image.at("frames");
      const HashStream stream(5, name);
      std::vector<float> patches;
      for (size_t f = 0; f < frames; ++f) {
        for (size_t gy = 0; gy < h / patch; ++gy) {
          for (size_t gx = 0; gx < w / patch; ++gx) {
            for (size_t c = 0; c < 3; ++c) {
              for (size_t y = 0; y < patch; ++y) {
                for (size_t x = 0; x < patch; ++x) {
                  const size_t k = ((gy * patch + y) * w + gx * patch + x) * 3 + c;
                  const double value =
                      (static_cast<double>(stream.bits(k) & 255) / 255.0 - 0.5) / 0.5;
                  patches.push_back(
                      static_cast<float>(value * std::pow(0.5, static_cast<double>(f))));
                }
              }
            }
          }
        }
      }
      weft_media media{};
      media.struct_size = sizeof(media);
      media.grid_t = static_cast<uint32_t>(frames);
      media.grid_h = static_cast<uint32_t>(h / patch);
      media.grid_w = static_cast<uint32_t>(w / patch);
      media.patches = patches.data();
      std::vector<float> rows(image.at("rows").size());
      CHECK(rows.size() == media.grid_h * media.grid_w / 4 * hidden);
      REQUIRE_MESSAGE(l.model.encode(media, rows.data()) == WEFT_OK, l.model.last_error());
      CHECK(distance(rows, image.at("rows").get<std::vector<float>>()) <= kTolerance);
      all_rows.insert(all_rows.end(), rows.begin(), rows.end());
    }
    const Json& prompt = vectors.at("media_prompt");
    const auto ids = ints(prompt.at("ids"));
    for (const size_t cut : {size_t{0}, size_t{9}, size_t{20}}) {
      CAPTURE(cut);
      Sequence s, other;
      std::vector<float> got;
      size_t used = 0;
      for (const auto& [from, to] : {std::pair(size_t{0}, cut), std::pair(cut, ids.size())}) {
        if (from == to) continue;
        Piece piece{&s, slice(ids, from, to), true, {}};
        for (size_t i = from; i < to; ++i) {
          if (ids[i] == 253) piece.media_at.push_back(static_cast<uint32_t>(i - from));
        }
        // A decode beside it, first or last, must not take a media row.
        const auto part = l.model.feed({piece, {&other, {5}, false, {}}},
                                       std::span(all_rows).subspan(used * hidden));
        used += piece.media_at.size();
        got.insert(got.end(), part.begin(), part.end() - 256);
      }
      check_prompt(got, prompt, 256, kTolerance);
      l.model.release(s);
      l.model.release(other);
    }
  }
}

TEST_CASE("settings change what they name") {
  Bench bench("avx512");
  const Json linear = read_json("tiny_linear");
  const size_t vocab = vocab_of(linear);
  {
    Loaded l(bench, linear, {{"biased_router", "true"}});
    check_prompt(run_alone(l.model, ints(linear.at("biased").at("ids"))), linear.at("biased"),
                 vocab, kTolerance);
  }
  const Json& prompt = longest(linear);
  const auto ids = ints(prompt.at("ids"));
  Loaded plain(bench, linear);
  const auto want = run_alone(plain.model, ids);
  {
    Loaded l(bench, linear, {{"biased_router", "true"}});
    CHECK(distance(run_alone(l.model, ids), want) > 10 * kTolerance);
  }
  {
    Loaded l(bench, linear, {{"mla_lora_norm_eps", "0.01"}});
    CHECK(distance(run_alone(l.model, ids), want) > kTolerance);
  }
  {
    // bf16 rows: 2^-9 relative rounding of each cached number.
    for (const bool by_limit : {false, true}) {
      Loaded l(
          bench, linear,
          by_limit ? weft::plugin::ParamList{} : weft::plugin::ParamList{{"cache_dtype", "bf16"}},
          by_limit ? uint32_t{WEFT_BF16} : 0u);
      const double off = distance(run_alone(l.model, ids), want);
      CHECK(off > kTolerance);
      CHECK(off < 0.1);
      const uint64_t bytes = plain.model.memory().groups[0].unit_bytes;
      CHECK(l.model.memory().groups[0].unit_bytes == bytes / 2);
    }
  }
}

}  // namespace weft_test
