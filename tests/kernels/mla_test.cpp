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
  const Shape s = random_shape(rng, false);
  Batch batch;
  batch.add(2, 3);
  batch.add(0, 5);
  Cache cache(rng, s, k.dtype_w, 2, 6);
  const Grid x = Grid::random(rng, 8, s.latent + s.tail, -3, 3);
  const auto w = rng.vector(s.latent, 0.5f, 1.5f);
  CHECK(mla_store(k, x, w, batch, cache) == 0);
  for (uint32_t seq = 0; seq < 2; ++seq)
    for (uint32_t r = batch.start[seq]; r < batch.start[seq + 1]; ++r) {
      const uint32_t t = batch.context[seq] + r - batch.start[seq];
      const uint8_t* row =
          cache.bytes.data() +
          static_cast<uint64_t>(cache.table[seq * cache.per_seq + t / s.page_tokens]) *
              cache.page_stride +
          t % s.page_tokens * (s.latent + s.tail) * bytes_of(k.dtype_w);
      double squares = 0;
      for (uint32_t c = 0; c < s.latent; ++c)
        squares += static_cast<double>(x.at(r, c)) * x.at(r, c);
      for (uint32_t c = 0; c < s.latent + s.tail; ++c) {
        double want = x.at(r, c);
        if (c < s.latent) want *= w[c] / std::sqrt(squares / s.latent + 1e-6);
        const double share = k.dtype_w == WEFT_F32    ? 0x1p-22
                             : k.dtype_w == WEFT_BF16 ? 0x1p-8
                                                      : 0x1p-4;
        const float value = weft::kernels_cpu::plain_value(row, k.dtype_w, c);
        REQUIRE(std::fabs(value - want) <=
                std::fabs(want) * share + (k.dtype_w == WEFT_F8E4M3 ? 0x1p-10 : 1e-30));
      }
    }
}

// Scores are sums of at most 80 products of size <= 4, values of size <= 3: a score error of 80/8 *
// 2^-24 * 200 = 1e-4 would be the worst case and shifts a weight by as much; random signs keep it a
// hundred times smaller.
constexpr double kTolerance = 2e-5;

void compare_attend(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t b_dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_MXFP4};
  const uint32_t b_dtype = b_dtypes[rng.below(3)];
  const Shape s = random_shape(rng, b_dtype == WEFT_MXFP4);
  INFO("heads " << s.heads << " nope " << s.nope << " v " << s.v_dim << " latent " << s.latent
                << " tail " << s.tail << " page " << s.page_tokens << " kv_b " << b_dtype);
  Batch all;
  all.add(0, 75);
  all.add(0, 3);
  all.add(0, 34);
  Cache cache(rng, s, k.dtype_w, 3, 75);
  mla_store(find("mla_store", "ref", k.dtype_w), Grid::random(rng, 112, s.latent + s.tail, -2, 2),
            rng.vector(s.latent, 0.5f, 1.5f), all, cache);
  Batch batch;  // the last rows of each
  batch.add(40, 35);
  batch.add(0, 3);
  batch.add(33, 1);
  Weight kv_b = random_weight(rng, b_dtype, uint64_t{s.heads} * (s.nope + s.v_dim), s.latent);
  const Grid q = Grid::random(rng, 39, uint64_t{s.heads} * (s.nope + s.tail));
  const Grid u = Grid::random(rng, 39, uint64_t{s.heads} * s.v_dim, -3, 3);
  const Grid got = mla_attend(k, q, kv_b, &u, batch, cache);
  CHECK(distance(got, mla_attend(ref_of(k), q, kv_b, &u, batch, cache)) < kTolerance);
  CHECK(same_bits(mla_attend(k, q, kv_b, &u, batch, cache, 3), got));
  CHECK(distance(mla_attend(k, q, kv_b, nullptr, batch, cache),
                 mla_attend(ref_of(k), q, kv_b, nullptr, batch, cache)) < kTolerance);
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
      CHECK(distance(whole, want) < kTolerance);
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
  s.heads = 13, s.page_tokens = 16;
  Cache cache(rng, s, WEFT_F32, 32, 48);
  Batch all, last;
  for (uint32_t i = 0; i < 32; ++i) all.add(0, 48), last.add(10 + i, 1);
  mla_store(find("mla_store", "ref", WEFT_F32), Grid::random(rng, 32 * 48, s.latent + s.tail),
            rng.vector(s.latent), all, cache);
  const Weight kv_b =
      random_weight(rng, WEFT_F32, uint64_t{s.heads} * (s.nope + s.v_dim), s.latent);
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

TEST_CASE("mla: causal, missing pages raise the bad-index bit, NaN is visible") {
  Rng rng(43);
  Shape s;
  Cache cache(rng, s, WEFT_F32, 1, 40);
  Batch all;
  all.add(0, 40);
  Grid x = Grid::random(rng, 40, s.latent + s.tail);
  x.at(20, 1) = NAN;
  const auto w = rng.vector(s.latent, 0.5f, 1.5f);
  mla_store(find("mla_store", "ref", WEFT_F32), x, w, all, cache);
  const Weight kv_b =
      random_weight(rng, WEFT_F32, uint64_t{s.heads} * (s.nope + s.v_dim), s.latent);
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
