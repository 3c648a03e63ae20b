#include "engine/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/rng.h"
#include "engine/sampler_math.h"
#include "engine/sampler_reference.h"
#include "unit/engine/test_rng.h"

using namespace weft;
using namespace weft::engine;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(TestRng& rng, size_t n, bool with_ties) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(n);
  for (float& x : logits) {
    x = normal(rng);
    if (with_ties) x = std::round(x);
    if (rng() % 50 == 0) x = -kInf;
  }
  logits[rng() % n] = 4.0f;
  return logits;
}

SamplingParams random_params(TestRng& rng, int32_t vocab) {
  const auto pick = [&](std::initializer_list<float> values) {
    return *(values.begin() + static_cast<ptrdiff_t>(rng() % values.size()));
  };
  SamplingParams p;
  p.temperature = pick({0.0f, 0.01f, 0.7f, 1.0f, 2.5f});
  p.top_p = pick({1.0f, 1.0f, 0.95f, 0.5f, 0.01f});
  p.top_k = rng() % 2 == 0 ? 0 : static_cast<int32_t>(1 + rng() % 300);
  p.min_p = pick({0.0f, 0.0f, 0.05f, 0.5f, 1.0f});
  p.presence_penalty = pick({0.0f, 0.0f, 1.5f, -2.0f});
  p.frequency_penalty = pick({0.0f, 0.0f, 0.3f, -0.4f});
  p.repetition_penalty = pick({1.0f, 1.0f, 1.3f, 0.5f});
  p.seed = rng();
  for (uint32_t i = rng() % 4; i > 0; --i) {
    p.bias.emplace_back(static_cast<int32_t>(rng() % vocab), pick({-100.0f, 5.0f, 0.5f}));
  }
  p.stop_ids = {1, 3};
  p.min_tokens = rng() % 3;
  return p;
}

int32_t sample(std::vector<float> logits, const SamplingParams& params, uint64_t position = 0) {
  SampleScratch scratch;
  const auto got = sample_token(logits, params, TokenCounts(), {0, position}, &scratch);
  REQUIRE(got.ok());
  return *got;
}

// Chi-square of draws at positions 0..n-1 against the expected distribution.
double chi_square(const std::vector<float>& logits, const SamplingParams& params, int n,
                  size_t* cells) {
  const auto expected = reference_distribution(logits, params, TokenCounts(), 0);
  std::vector<int> seen(logits.size(), 0);
  SampleScratch scratch;
  for (int i = 0; i < n; ++i) {
    std::vector<float> row = logits;
    const auto got =
        sample_token(row, params, TokenCounts(), {0, static_cast<uint64_t>(i)}, &scratch);
    REQUIRE(got.ok());
    ++seen[static_cast<size_t>(*got)];
  }
  double sum = 0.0;
  int counted = 0;
  for (const auto& [id, p] : expected) {
    const double mean = p * n;
    const double d = seen[static_cast<size_t>(id)] - mean;
    sum += d * d / mean;
    counted += seen[static_cast<size_t>(id)];
  }
  CHECK(counted == n);  // nothing outside the kept set was ever drawn
  *cells = expected.size();
  return sum;
}

}  // namespace

TEST_CASE("philox gives the published test vectors") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) ==
        PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        PhiloxCounter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                   {0xa4093822u, 0x299f31d0u}) ==
        PhiloxCounter{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("uniform numbers lie in [0, 1) and differ by seed and position") {
  double sum = 0.0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const double u = uniform_at(42, i, RandomStream::kSample);
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    sum += u;
  }
  CHECK(std::abs(sum / 10000 - 0.5) < 0.01);
  CHECK(uniform_at(1, 5, RandomStream::kSample) != uniform_at(2, 5, RandomStream::kSample));
  CHECK(uniform_at(1, 5, RandomStream::kSample) !=
        uniform_at(1, 5 + (uint64_t{1} << 32), RandomStream::kSample));
}

TEST_CASE("the sampler agrees with the naive reference on random rows") {
  TestRng rng(1);
  SampleScratch scratch;
  for (int round = 0; round < 4000; ++round) {
    const size_t vocab = round % 3 == 0 ? 5 + rng() % 20 : 200 + rng() % 1000;
    const std::vector<float> logits = random_logits(rng, vocab, round % 2 == 0);
    const SamplingParams params = random_params(rng, static_cast<int32_t>(vocab));
    TokenCounts counts;
    std::vector<int32_t> prompt(rng() % 10);
    for (int32_t& t : prompt) t = static_cast<int32_t>(rng() % vocab);
    counts.add_prompt(prompt);
    for (uint32_t i = rng() % 10; i > 0; --i)
      counts.add_output(static_cast<int32_t>(rng() % vocab));
    const SamplePoint point{static_cast<uint32_t>(rng() % 4), rng()};
    std::vector<float> row = logits;
    const auto got = sample_token(row, params, counts, point, &scratch);
    REQUIRE(got.ok());
    REQUIRE(*got == reference_sample(logits, params, counts, point));
  }
}

TEST_CASE("the sampler agrees with the naive reference where its shortcuts could fail") {
  TestRng rng(77);
  SampleScratch scratch;
  std::normal_distribution<float> normal(0.0f, 3.0f);
  constexpr float kFar = 3e38f;
  // Flat, few levels, one peak, far apart, mostly banned, a long tail; lengths around the block
  // sizes.
  for (int round = 0; round < 1500; ++round) {
    constexpr size_t kSizes[] = {1, 2, 63, 64, 65, 511, 512, 513, 1025, 5000};
    std::vector<float> logits(kSizes[rng() % std::size(kSizes)]);
    const int shape = round % 6;
    for (float& x : logits) {
      x = normal(rng);
      if (shape == 0) x = 1.5f;
      if (shape == 1) x = static_cast<float>(rng() % 3);
      if (shape == 2) x = x * 0.01f;
      if (shape == 3) x = rng() % 2 == 0 ? kFar : -kFar;
      if (shape == 4 && rng() % 20 != 0) x = -kInf;
      if (shape == 5) x = x * 8.0f;
    }
    logits[rng() % logits.size()] = shape == 2 ? 9.0f : logits[0] > -kInf ? logits[0] : 0.0f;
    SamplingParams params = random_params(rng, static_cast<int32_t>(logits.size()));
    params.stop_ids = {};
    params.bias = {};
    params.top_k = round % 4 == 0 ? static_cast<int32_t>(1 + rng() % 6000) : params.top_k;
    if (round % 50 == 0) params.temperature = std::numeric_limits<float>::denorm_min();
    const SamplePoint point{static_cast<uint32_t>(rng() % 4), rng()};
    std::vector<float> row = logits;
    const auto got = sample_token(row, params, TokenCounts(), point, &scratch);
    REQUIRE(got.ok());
    CAPTURE(round);
    CAPTURE(logits.size());
    CAPTURE(params.temperature);
    CAPTURE(params.top_k);
    CAPTURE(params.top_p);
    CAPTURE(params.min_p);
    REQUIRE(*got == reference_sample(logits, params, TokenCounts(), point));
  }
}

TEST_CASE("weights are within 1e-13 of the exponential, exact at the top, and cut at the floor") {
  std::vector<float> x;
  for (int i = 0; i < 3001; ++i) x.push_back(-0.25f * static_cast<float>(i));
  x.push_back(-kInf);
  std::vector<double> weight(x.size());
  for (size_t at = 0; at < x.size(); at += 7) {  // any length
    const size_t n = std::min<size_t>(7, x.size() - at);
    exp_weights({x.data() + at, n}, 0.0, 1.0, 0.0, weight.data() + at);
  }
  CHECK(weight[0] == 1.0);
  CHECK(weight.back() == 0.0);
  for (size_t i = 0; i + 1 < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    if (x[i] >= -706.0f) {
      REQUIRE(std::abs(weight[i] - want) <= 1e-13 * want);
    } else {
      REQUIRE(weight[i] == 0.0);
    }
  }
  exp_weights({x.data(), 20}, 0.0, 1.0, 0.25, weight.data());
  CHECK(weight[5] > 0.25);
  CHECK(weight[6] == 0.0);
}

TEST_CASE("temperature 0 takes the largest logit, the lowest id on ties") {
  SamplingParams p;
  p.temperature = 0.0f;
  CHECK(sample({1.0f, 3.0f, 3.0f, 2.0f}, p) == 1);
  CHECK(sample({-kInf, -5.0f}, p) == 1);
}

TEST_CASE("each filter keeps what its definition says") {
  const std::vector<float> logits = {0.0f, std::log(4.0f), std::log(2.0f), std::log(3.0f)};
  const auto kept = [&](auto change) {
    SamplingParams p;
    change(p);
    std::vector<int32_t> ids;
    for (const auto& c : reference_distribution(logits, p, TokenCounts(), 0))
      ids.push_back(c.first);
    std::sort(ids.begin(), ids.end());
    return ids;
  };
  using Ids = std::vector<int32_t>;
  CHECK(kept([](SamplingParams& p) { p.top_k = 2; }) == Ids{1, 3});
  CHECK(kept([](SamplingParams& p) { p.top_p = 0.39f; }) == Ids{1});  // 4/10 reaches it alone
  CHECK(kept([](SamplingParams& p) { p.top_p = 0.6f; }) == Ids{1, 3});
  CHECK(kept([](SamplingParams& p) { p.min_p = 0.45f; }) == Ids{1, 2, 3});
  // top-p works on the renormalised top-k: 4/7 reaches 0.55, of the whole it would not
  CHECK(kept([](SamplingParams& p) { p.top_k = 2, p.top_p = 0.55f; }) == Ids{1});
}

TEST_CASE("penalties follow their formulas") {
  SamplingParams p;
  p.repetition_penalty = 2.0f;
  p.presence_penalty = 0.5f;
  p.frequency_penalty = 0.25f;
  p.bias = {{3, 1.0f}};
  TokenCounts counts;
  counts.add_prompt(std::vector<int32_t>{0, 1});
  counts.add_output(1);
  counts.add_output(1);
  counts.add_output(2);
  std::vector<float> x = {4.0f, -4.0f, 2.0f, 1.0f};
  adjust_logits(x, p, counts, 0);
  CHECK(x == std::vector<float>{2.0f, -9.0f, 0.25f, 2.0f});
  p.repetition_penalty = 1e-38f;
  x = {4.0f, 0.0f, 0.0f, 0.0f};
  adjust_logits(x, p, counts, 0);
  CHECK(std::isfinite(x[0]));
}

TEST_CASE("stop ids are banned until min_tokens are there") {
  SamplingParams p;
  p.temperature = 0.0f;
  p.stop_ids = {1};
  p.min_tokens = 2;
  SampleScratch scratch;
  const std::vector<int32_t> expected = {0, 0, 1};
  for (uint32_t n = 0; n < 3; ++n) {
    std::vector<float> x = {0.0f, 9.0f};
    CHECK(*sample_token(x, p, TokenCounts(), {n, n}, &scratch) == expected[n]);
  }
}

TEST_CASE("bad logits are an error, not a token") {
  SamplingParams p;
  SampleScratch scratch;
  for (float temperature : {0.0f, 1.0f}) {
    p.temperature = temperature;
    for (std::vector<float> row :
         {std::vector<float>{0.0f, kNan}, {kNan, 0.0f}, {0.0f, kInf}, {-kInf, -kInf}}) {
      CHECK(log_normaliser(row).error().code == ErrorCode::kInternal);
      CHECK(sample_token(row, p, TokenCounts(), {}, &scratch).error().code == ErrorCode::kInternal);
    }
  }
  p.stop_ids = {0, 1};
  p.min_tokens = 1;
  std::vector<float> row = {0.0f, 1.0f};
  CHECK(sample_token(row, p, TokenCounts(), {}, &scratch).error().code == ErrorCode::kInternal);
}

TEST_CASE("extreme temperatures stay defined") {
  SamplingParams p;
  p.temperature = std::numeric_limits<float>::denorm_min();
  CHECK(sample({1.0f, 2.0f, 2.0f - 1e-3f}, p) == 1);
  p.temperature = 1e30f;
  const int32_t id = sample({1.0f, 2.0f}, p);
  CHECK((id == 0 || id == 1));
}

TEST_CASE("draws follow the distribution") {
  TestRng rng(5);
  const std::vector<float> logits = [&] {
    std::uniform_real_distribution<float> flat(-1.5f, 1.5f);
    std::vector<float> x(40);
    for (float& v : x) v = flat(rng);
    return x;
  }();
  for (int variant = 0; variant < 5; ++variant) {
    SamplingParams p;
    p.seed = 1000 + static_cast<uint64_t>(variant);
    p.temperature = variant == 1 ? 0.5f : 1.0f;
    if (variant == 2) p.top_k = 10;
    if (variant == 3) p.top_p = 0.7f;
    if (variant == 4) p.min_p = 0.3f;
    size_t cells = 0;
    const double x2 = chi_square(logits, p, 40000, &cells);
    const double freedom = static_cast<double>(cells - 1);
    CAPTURE(variant);
    // mean freedom, standard deviation sqrt(2 freedom); five of those is far beyond chance
    CHECK(x2 < freedom + 5.0 * std::sqrt(2.0 * freedom));
  }
}

TEST_CASE("log-probabilities match a long double softmax and survive large logits") {
  TestRng rng(9);
  for (const float offset : {0.0f, 1000.0f, -1000.0f}) {
    std::vector<float> logits = random_logits(rng, 500, true);
    for (float& x : logits) x += offset;
    const auto norm = log_normaliser(logits);
    REQUIRE(norm.ok());
    long double sum = 0.0L;
    for (const float x : logits) sum += std::exp(static_cast<long double>(x - offset));
    const long double expected = std::log(sum) + static_cast<long double>(offset);
    CHECK(std::abs(static_cast<double>(expected) - *norm) < 1e-9);
    std::vector<TopLogprob> top;
    for (const int32_t n : {0, 1, 5, 20}) {
      top_logprobs(logits, *norm, n, &top);
      REQUIRE(top.size() == static_cast<size_t>(n));
      std::vector<int32_t> ids(logits.size());
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
      std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      for (size_t i = 0; i < top.size(); ++i) {
        CHECK(top[i].id == ids[i]);
        CHECK(top[i].logprob == logprob_of(logits, *norm, ids[i]));
      }
    }
  }
  std::vector<TopLogprob> few;
  top_logprobs(std::vector<float>{1.0f, 2.0f}, 0.0, 20, &few);
  CHECK(few.size() == 2);
}
