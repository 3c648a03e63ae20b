// mla_store, mla_decode, mla_prefill: variants against ref, absorbed against expanded, splits,
// pages.
#include "mla_fixture.h"

namespace kit {
namespace {

using Shape = MlaShape;
using Cache = MlaCache;
using Batch = MlaBatch;

Shape random_shape(Rng& rng, bool quantised_b) {
  constexpr uint32_t kDims[] = {1, 7, 8, 16, 17, 33};
  Shape s;
  s.heads = 1 + rng.below(20);
  s.nope = kDims[rng.below(6)];
  s.v_dim = kDims[rng.below(6)];
  s.latent = quantised_b ? 32 * (1 + rng.below(2)) : kDims[rng.below(6)] + 1;
  s.tail = rng.below(10);
  s.page_tokens = 1 + rng.below(9);
  return s;
}

void compare_store(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  Shape s = random_shape(rng, false);
  if (seed % 4 == 0) s.latent = 512, s.tail = 64;
  Batch batch;
  batch.add(2, 3);
  batch.add(0, 5);
  Cache cache(rng, s, k.dtype_w, 2, 6);
  const Grid x = Grid::random(rng, 8, s.latent + s.tail, -3, 3);
  const auto w = rng.vector(s.latent, 0.5f, 1.5f);
  Cache by_two = cache, by_three = cache;
  CHECK(mla_store(k, x, w, batch, cache) == 0);
  mla_store(k, x, w, batch, by_two, 2);
  mla_store(k, x, w, batch, by_three, 3);
  CHECK((by_two.bytes == cache.bytes && by_three.bytes == cache.bytes));
  for (uint32_t seq = 0; seq < 2; ++seq)
    for (uint32_t r = batch.start[seq]; r < batch.start[seq + 1]; ++r) {
      const uint32_t t = batch.context[seq] + r - batch.start[seq];
      const uint8_t* row = cache.row(seq, t);
      double squares = 0;
      for (uint32_t c = 0; c < s.latent; ++c)
        squares += static_cast<double>(x.at(r, c)) * x.at(r, c);
      for (uint32_t c = 0; c < s.latent + s.tail; ++c) {
        double want = x.at(r, c);
        if (c < s.latent) want *= w[c] / std::sqrt(squares / s.latent + 1e-6);
        // F32: two products, a root, a division and half the error of the sum of squares.
        const double share = k.dtype_w == WEFT_F32    ? 0x1p-21
                             : k.dtype_w == WEFT_BF16 ? 0x1p-8
                                                      : 0x1p-4;
        const float value = weft::kernels_cpu::plain_value(row, k.dtype_w, c);
        REQUIRE(std::fabs(value - want) <=
                std::fabs(want) * share + (k.dtype_w == WEFT_F8E4M3 ? 0x1p-10 : 1e-30));
      }
    }
}

// f32: scores are sums of at most 80 products of size <= 4, values of size <= 3: a score error of
// 80/8 * 2^-24 * 200 = 1e-4 would be the worst case and shifts a weight by as much; random signs
// keep it a hundred times smaller.
//
// bf16: the query twice, the rows, the keys or mixed values and the weights are rounded, each by a
// relative 2^-9/sqrt(3) on average. Scores of size 0.9 and values of size 1 (even shapes scale
// their rows for that) then carry errors of 0.9 * 2^-9 and 2^-9, together 0.0026 of a value; the
// worst of 50,000 outputs lies 4.5 deviations out, at 0.012. What rounding cannot hide is left to
// the needle test, which is exact.
double tolerance(const weft_kernel& k) {
  return std::string(k.variant) == "avx512_bf16" ? 0.016 : 2e-5;
}

// Dimensions that vector variants treat in whole blocks.
Shape even_shape(Rng& rng) {
  constexpr uint32_t kPages[] = {1, 3, 16, 128};
  Shape s;
  s.heads = 1 + rng.below(20);
  s.nope = 16 * (1 + rng.below(4));
  s.v_dim = 32 * (1 + rng.below(3));
  s.latent = 32 * (1 + rng.below(4));
  s.tail = 32 * rng.below(3);
  s.page_tokens = kPages[rng.below(4)];
  return s;
}

void compare_attend(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t b_dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_MXFP4};
  const uint32_t b_dtype = seed % 2 == 0 ? uint32_t{WEFT_BF16} : b_dtypes[rng.below(3)];
  const bool even = seed % 2 == 0;
  const Shape s = even ? even_shape(rng) : random_shape(rng, b_dtype == WEFT_MXFP4);
  INFO("heads " << s.heads << " nope " << s.nope << " v " << s.v_dim << " latent " << s.latent
                << " tail " << s.tail << " page " << s.page_tokens << " kv_b " << b_dtype);
  Batch all;
  all.add(0, 75);
  all.add(0, 3);
  all.add(0, 34);
  Cache cache(rng, s, k.dtype_w, 3, 75);
  const float size = even ? std::sqrt(3.0f / static_cast<float>(s.latent)) : 1.0f;
  mla_store(find("mla_store", "ref", k.dtype_w), Grid::random(rng, 112, s.latent + s.tail, -2, 2),
            rng.vector(s.latent, 0.5f * size, 1.5f * size), all, cache);
  Batch batch;  // the last rows of each
  batch.add(40, 35);
  batch.add(0, 3);
  batch.add(33, 1);
  Weight kv_b = random_weight(rng, b_dtype, uint64_t{s.heads} * (s.nope + s.v_dim), s.latent);
  const Grid q = Grid::random(rng, 39, uint64_t{s.heads} * (s.nope + s.tail));
  const Grid u = Grid::random(rng, 39, uint64_t{s.heads} * s.v_dim, -3, 3);
  const Grid got = mla_attend(k, q, kv_b, &u, batch, cache);
  CHECK(distance(got, mla_attend(ref_of(k), q, kv_b, &u, batch, cache)) < tolerance(k));
  for (const uint32_t threads : {2u, 3u})
    CHECK(same_bits(mla_attend(k, q, kv_b, &u, batch, cache, threads), got));
  CHECK(distance(mla_attend(k, q, kv_b, nullptr, batch, cache),
                 mla_attend(ref_of(k), q, kv_b, nullptr, batch, cache)) < tolerance(k));
}

}  // namespace

std::vector<OpCase> mla_cases() {
  return {{"mla_store", compare_store},
          {"mla_decode", compare_attend},
          {"mla_prefill", compare_attend}};
}

TEST_CASE("mla: absorbed and expanded forms agree, and calls may split a sequence anywhere") {
  Rng rng(41);
  Shape s;
  s.heads = 18;
  Cache cache(rng, s, WEFT_BF16, 1, 70);
  Batch all;
  all.add(0, 70);
  mla_store(find("mla_store", "ref", WEFT_BF16), Grid::random(rng, 70, s.latent + s.tail, -2, 2),
            rng.vector(s.latent, 0.5f, 1.5f), all, cache);
  const Weight kv_b =
      random_weight(rng, WEFT_BF16, uint64_t{s.heads} * (s.nope + s.v_dim), s.latent);
  const Grid q = Grid::random(rng, 70, uint64_t{s.heads} * (s.nope + s.tail));
  const Grid want = mla_attend(find("mla_decode", "ref", WEFT_BF16), q, kv_b, nullptr, all, cache);
  for (const char* name : {"mla_decode", "mla_prefill"})
    for (const weft_kernel& k : runnable(name)) {
      if (k.dtype_w != WEFT_BF16) continue;
      INFO(k.op << " " << k.variant);
      const Grid whole = mla_attend(k, q, kv_b, nullptr, all, cache);
      CHECK(distance(whole, want) < tolerance(k));
      for (const uint32_t cut : {1u, 7u, 31u, 32u, 33u, 64u, 69u}) {
        Batch head, tail;
        head.add(0, cut);
        tail.add(cut, 70 - cut);
        CHECK(same_bits(mla_attend(k, q.slice(0, cut), kv_b, nullptr, head, cache),
                        whole.slice(0, cut)));
        CHECK(same_bits(mla_attend(k, q.slice(cut, 70 - cut), kv_b, nullptr, tail, cache),
                        whole.slice(cut, 70 - cut)));
      }
    }
}

TEST_CASE("mla: a row's bits do not depend on the batch or the threads") {
  Rng rng(42);
  Shape s;
  s.heads = 13, s.page_tokens = 16, s.v_dim = 32, s.tail = 32;
  Cache cache(rng, s, WEFT_F32, 32, 48);
  Batch all, last;
  for (uint32_t i = 0; i < 32; ++i) all.add(0, 48), last.add(10 + i, 1);
  mla_store(find("mla_store", "ref", WEFT_F32), Grid::random(rng, 32 * 48, s.latent + s.tail),
            rng.vector(s.latent), all, cache);
  const Weight kv_b =
      random_weight(rng, WEFT_BF16, uint64_t{s.heads} * (s.nope + s.v_dim), s.latent);
  const Grid q = Grid::random(rng, 32, uint64_t{s.heads} * (s.nope + s.tail));
  for (const char* name : {"mla_decode", "mla_prefill"})
    for (const weft_kernel& k : runnable(name)) {
      if (k.dtype_w != WEFT_F32) continue;
      const Grid whole = mla_attend(k, q, kv_b, nullptr, last, cache);
      for (const uint32_t threads : {2u, 3u})
        CHECK(same_bits(mla_attend(k, q, kv_b, nullptr, last, cache, threads), whole));
      for (const uint32_t i : {0u, 6u, 31u}) {
        Batch one;
        one.add(10 + i, 1);
        Cache alone = cache;
        alone.table.assign(cache.table.begin() + i * cache.per_seq,
                           cache.table.begin() + (i + 1) * cache.per_seq);
        CHECK(same_bits(mla_attend(k, q.slice(i, 1), kv_b, nullptr, one, alone, 3),
                        whole.slice(i, 1)));
      }
    }
}

// Every row asks for one token of its past, and no rounding blurs the answer: queries, rows and
// weights are small integers, the asked token wins by 2^60 or more. Later tokens would win by even
// more. Finds any slip in masks, tiles, pages, segments and stretches.
TEST_CASE("mla: a row finds the token that it asks for, whatever lies behind it") {
  for (const uint32_t tokens : {5u, 70u, 300u, 1100u}) {
    Rng rng(tokens);
    Shape s;
    s.heads = 3, s.nope = s.v_dim = s.latent = 64, s.tail = 0, s.page_tokens = 16;
    for (const uint32_t dtype : {uint32_t{WEFT_F32}, uint32_t{WEFT_BF16}, uint32_t{WEFT_F8E4M3}}) {
      Cache cache(rng, s, dtype, 1, tokens);
      Grid codes(tokens, s.latent);
      for (uint32_t t = 0; t < tokens; ++t)
        for (uint32_t c = 0; c < s.latent; ++c) {
          codes.at(t, c) = rng.below(2) != 0 ? 1.0f : -1.0f;
          weft::kernels_cpu::plain_put(cache.row(0, t), dtype, c, codes.at(t, c));
        }
      Weight kv_b = random_weight(rng, WEFT_BF16, uint64_t{s.heads} * 128, 64);
      for (uint64_t n = 0; n < kv_b.n; ++n)
        for (uint64_t c = 0; c < 64; ++c) {
          kv_b.value[n * 64 + c] = c == (n + n / 128) % 64 ? 1.0f : 0.0f;
          weft::kernels_cpu::plain_put(kv_b.data.data(), WEFT_BF16, n * 64 + c,
                                       kv_b.value[n * 64 + c]);
        }
      Grid q(tokens, uint64_t{s.heads} * 64), want(tokens, uint64_t{s.heads} * 64);
      for (uint32_t r = 0; r < tokens; ++r)
        for (uint32_t h = 0; h < s.heads; ++h) {
          const uint32_t asked = rng.below(3) == 0 ? r : rng.below(r + 1);
          for (uint32_t c = 0; c < 64; ++c) {
            const float code = codes.at(asked, (c + h) % 64);
            q.at(r, h * 64 + c) = 64 * code;
            want.at(r, h * 64 + c) = code;
          }
        }
      Batch all;
      all.add(0, tokens);
      for (const char* name : {"mla_decode", "mla_prefill"})
        for (const weft_kernel& k : runnable(name)) {
          if (k.dtype_w != dtype || std::string(k.variant) == "ref") continue;
          INFO(k.op << " " << k.variant << " dtype " << dtype << " tokens " << tokens);
          CHECK(distance(mla_attend(k, q, kv_b, nullptr, all, cache, 2), want) < 1e-5);
        }
    }
  }
}

TEST_CASE("mla: calls may split a sequence at the borders of tiles, segments and stretches") {
  Rng rng(45);
  Shape s;
  s.heads = 2, s.nope = 16, s.v_dim = 32, s.latent = 32, s.tail = 32, s.page_tokens = 16;
  constexpr uint32_t kTokens = 1100;
  Cache cache(rng, s, WEFT_BF16, 1, kTokens);
  Batch all;
  all.add(0, kTokens);
  mla_store(find("mla_store", "ref", WEFT_BF16),
            Grid::random(rng, kTokens, s.latent + s.tail, -2, 2), rng.vector(s.latent, 0.5f, 1.5f),
            all, cache);
  const Weight kv_b =
      random_weight(rng, WEFT_BF16, uint64_t{s.heads} * (s.nope + s.v_dim), s.latent);
  const Grid q = Grid::random(rng, kTokens, uint64_t{s.heads} * (s.nope + s.tail));
  for (const char* name : {"mla_decode", "mla_prefill"})
    for (const weft_kernel& k : runnable(name)) {
      if (k.dtype_w != WEFT_BF16 || k.score == 0) continue;
      INFO(k.op << " " << k.variant);
      const Grid whole = mla_attend(k, q, kv_b, nullptr, all, cache, 2);
      for (const uint32_t cut :
           {1u, 12u, 63u, 64u, 65u, 127u, 128u, 255u, 257u, 1023u, 1024u, 1025u}) {
        Batch head, tail;
        head.add(0, cut);
        tail.add(cut, kTokens - cut);
        CHECK(same_bits(mla_attend(k, q.slice(0, cut), kv_b, nullptr, head, cache),
                        whole.slice(0, cut)));
        CHECK(same_bits(mla_attend(k, q.slice(cut, kTokens - cut), kv_b, nullptr, tail, cache, 3),
                        whole.slice(cut, kTokens - cut)));
      }
    }
}

TEST_CASE("mla: contexts of tens of thousands of tokens, many rows on them") {
  Rng rng(46);
  Shape s;
  s.heads = 1, s.nope = 16, s.v_dim = 32, s.latent = 32, s.tail = 0, s.page_tokens = 128;
  constexpr uint32_t kTokens = 33000;
  Cache cache(rng, s, WEFT_BF16, 2, kTokens + 100);
  Batch all, batch;
  all.add(0, kTokens + 3);
  all.add(0, 400);
  mla_store(find("mla_store", "ref", WEFT_BF16), Grid::random(rng, kTokens + 403, s.latent, -2, 2),
            rng.vector(s.latent, 0.5f, 1.5f), all, cache);
  batch.add(kTokens, 3);
  batch.add(310, 90);
  const Weight kv_b = random_weight(rng, WEFT_BF16, s.nope + s.v_dim, s.latent);
  const Grid q = Grid::random(rng, 93, s.nope);
  for (const char* name : {"mla_decode", "mla_prefill"}) {
    const Grid want = mla_attend(find(name, "ref", WEFT_BF16), q, kv_b, nullptr, batch, cache);
    for (const weft_kernel& k : runnable(name)) {
      if (k.dtype_w != WEFT_BF16 || k.score == 0) continue;
      INFO(k.op << " " << k.variant);
      const Grid got = mla_attend(k, q, kv_b, nullptr, batch, cache);
      CHECK(distance(got, want) < tolerance(k));
      for (const uint32_t threads : {2u, 3u})
        CHECK(same_bits(mla_attend(k, q, kv_b, nullptr, batch, cache, threads), got));
    }
  }
}

TEST_CASE("mla: causal, missing pages raise the bad-index bit, NaN is visible") {
  for (const uint32_t tail : {8u, 32u}) {  // the dot products of bf16 take only the second
    Rng rng(43);
    Shape s;
    s.tail = tail, s.v_dim = 32;
    Cache cache(rng, s, WEFT_F32, 1, 40);
    Batch all;
    all.add(0, 40);
    Grid x = Grid::random(rng, 40, s.latent + s.tail);
    x.at(20, 1) = NAN;
    const auto w = rng.vector(s.latent, 0.5f, 1.5f);
    mla_store(find("mla_store", "ref", WEFT_F32), x, w, all, cache);
    const Weight kv_b =
        random_weight(rng, WEFT_BF16, uint64_t{s.heads} * (s.nope + s.v_dim), s.latent);
    const Grid q = Grid::random(rng, 40, uint64_t{s.heads} * (s.nope + s.tail));
    for (const char* name : {"mla_decode", "mla_prefill"})
      for (const weft_kernel& k : runnable(name)) {
        if (k.dtype_w != WEFT_F32) continue;
        INFO(k.op << " " << k.variant);
        const Grid y = mla_attend(k, q, kv_b, nullptr, all, cache);
        CHECK(std::isfinite(y.at(19, 0)));  // the poisoned token lies in its future
        CHECK(std::isnan(y.at(20, 0)));
        CHECK(std::isnan(y.at(39, 0)));
        Cache holes = cache;
        holes.table[5] = -1;  // also hides the NaN of token 20
        uint32_t err = 0;
        const Grid z = mla_attend(k, q, kv_b, nullptr, all, holes, 2, &err);
        CHECK(err == 2);
        CHECK(std::isfinite(z.at(39, 0)));
      }
    Cache holes(rng, s, WEFT_F32, 1, 40);
    holes.table[9] = -7;
    CHECK(mla_store(find("mla_store", "ref", WEFT_F32), x, w, all, holes) == 2);
  }
}

TEST_CASE("f8e4m3 and bf16: rounding and limits") {
  using weft::kernels_cpu::f8e4m3_of_float;
  using weft::kernels_cpu::float_of_f8e4m3;
  for (uint32_t i = 0; i < 256; ++i) {
    const float value = float_of_f8e4m3(static_cast<uint8_t>(i));
    if (std::isnan(value)) {
      CHECK((i == 0x7f || i == 0xff));
      continue;
    }
    CHECK(f8e4m3_of_float(value) == i);
  }
  CHECK(float_of_f8e4m3(0x7e) == 448);
  CHECK(float_of_f8e4m3(1) == 0x1p-9f);
  CHECK(f8e4m3_of_float(1e9f) == 0x7e);
  CHECK(f8e4m3_of_float(-INFINITY) == 0xfe);
  CHECK(std::isnan(float_of_f8e4m3(f8e4m3_of_float(NAN))));
  // Between neighbours the nearer wins, in the middle the even code.
  for (uint32_t i = 0; i < 0x7e; ++i) {
    const float low = float_of_f8e4m3(static_cast<uint8_t>(i)),
                high = float_of_f8e4m3(static_cast<uint8_t>(i + 1));
    const float middle = (low + high) / 2;
    CHECK(f8e4m3_of_float(middle) == (i % 2 == 0 ? i : i + 1));
    CHECK(f8e4m3_of_float(std::nextafter(middle, 0.0f)) == i);
    CHECK(f8e4m3_of_float(std::nextafter(middle, 1e9f)) == i + 1);
  }
  CHECK(bf16_of_float(1.0f) == 0x3f80);
  CHECK(bf16_of_float(float_of_bits(0x3f808000u)) == 0x3f80);
  CHECK(bf16_of_float(float_of_bits(0x3f818000u)) == 0x3f82);
  CHECK(std::isnan(float_of_bf16(bf16_of_float(float_of_bits(0x7f800001u)))));
}

}  // namespace kit
