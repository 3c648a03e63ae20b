// gemm, moe and route: formats, agreement with ref, independence of rows and threads, ties and
// groups.
#include <algorithm>
#include <set>

#include "kit.h"

namespace kit {

Weight random_weight(Rng& rng, uint32_t dtype, uint64_t n, uint64_t k) {
  Weight w;
  w.n = n;
  w.k = k;
  w.dtype = dtype;
  w.value.resize(n * k);
  if (dtype == WEFT_MXFP4) {
    static constexpr float kMagnitude[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    w.data.resize(n * k / 2);
    w.scale.resize(n * k / 32);
    for (uint8_t& b : w.data) b = static_cast<uint8_t>(rng.next());
    for (uint8_t& s : w.scale) s = static_cast<uint8_t>(122 + rng.below(4));
    for (uint64_t i = 0; i < n * k; ++i) {
      const uint8_t code = i % 2 == 0 ? w.data[i / 2] & 15 : w.data[i / 2] >> 4;
      const float magnitude = std::ldexp(kMagnitude[code & 7], w.scale[i / 32] - 127);
      w.value[i] = (code & 8) != 0 ? -magnitude : magnitude;
    }
    return w;
  }
  for (float& v : w.value) v = rng.uniform();
  w.data.resize(n * k * (dtype == WEFT_BF16 ? 2 : 4));
  for (uint64_t i = 0; i < n * k; ++i) {
    if (dtype == WEFT_BF16) {
      const uint16_t bits = bf16_of_float(w.value[i]);
      w.value[i] = float_of_bf16(bits);
      memcpy(w.data.data() + 2 * i, &bits, 2);
    } else {
      memcpy(w.data.data() + 4 * i, &w.value[i], 4);
    }
  }
  return w;
}

Weight packed(const Weight& w) {
  Weight out = w;
  weft_err err{};
  err.struct_size = sizeof err;
  out.layout = 1;
  const uint64_t panels = (w.n + 31) / 32;
  out.data.assign(panels * (w.dtype == WEFT_MXFP4 ? 16 * w.k : (w.k + 1) / 2 * 128) + 64, 0xee);
  out.scale.assign(w.dtype == WEFT_MXFP4 ? panels * w.k : 0, 0xee);
  const weft_weight from = w.view(), to = out.view();
  REQUIRE(table().pack(nullptr, &from, &to, &err) == WEFT_OK);
  return out;
}

namespace {

Grid gemm(const weft_kernel& k, const Grid& x, const Weight& w, uint32_t threads = 1,
          const Grid* onto = nullptr) {
  Host host(threads);
  Grid y = onto != nullptr ? *onto : Grid(x.rows(), w.n, 5);
  auto op = make_op<weft_op_gemm>(host);
  op.n_rows = static_cast<uint32_t>(x.rows());
  op.mode = onto != nullptr ? WEFT_GEMM_ADD : 0;
  op.x = x.data();
  op.x_stride = x.stride();
  op.w = w.view();
  op.y = y.data();
  op.y_stride = y.stride();
  op.y_dtype = WEFT_F32;
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  return y;
}

// The variants that round what a product takes in to bf16.
bool rounds_input(const weft_kernel& k) {
  const std::string variant = k.variant;
  return variant == "avx512_bf16" || variant == "amx" || variant == "amx_emulated";
}

// What the variant really multiplies.
Grid taken_in(const weft_kernel& k, const Grid& x) {
  Grid out = x;
  if (!rounds_input(k)) return out;
  for (uint64_t r = 0; r < x.rows(); ++r)
    for (uint64_t c = 0; c < x.cols(); ++c) out.at(r, c) = float_of_bf16(bf16_of_float(x.at(r, c)));
  return out;
}

// |got - exact| <= (terms per lane + lanes' tree + 1) * 2^-24 * sum |x w|: every fused multiply-add
// and every addition of a partial sum rounds once, and no partial sum exceeds the sum of
// magnitudes.
// Variants with one output per lane have all terms in one lane.
double gemm_bound(const weft_kernel& kernel, const Grid& x, const Weight& w, uint64_t r,
                  uint64_t n) {
  double magnitude = 0;
  for (uint64_t k = 0; k < w.k; ++k)
    magnitude += std::fabs(static_cast<double>(x.at(r, k)) * w.value[n * w.k + k]);
  const double terms = static_cast<double>(w.k) / (rounds_input(kernel) ? 1 : 8);
  return (terms + 6) * 0x1p-24 * magnitude;
}

uint64_t odd_k(Rng& rng, uint32_t dtype);
bool packs(const weft_kernel& k);

// Several matrices over the same rows give what each gives alone.
void compare_gemm_group(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint64_t width = odd_k(rng, k.dtype_w);
  const uint32_t n_out = 1 + rng.below(5);
  const Grid x = Grid::random(rng, 1 + rng.below(20), width);
  std::vector<Weight> weights;
  std::vector<Grid> y;
  for (uint32_t i = 0; i < n_out; ++i) {
    weights.push_back(random_weight(rng, k.dtype_w, 1 + rng.below(70), width));
    if (packs(k) && i % 2 == 1) weights.back() = packed(weights.back());
    y.push_back(Grid::random(rng, x.rows(), weights.back().n, -1, 1, 5));
  }
  weft_kernel one = find("gemm", k.variant, k.dtype_w);
  for (const uint32_t threads : {1u, 2u, 3u}) {
    std::vector<Grid> got = y;
    std::vector<weft_gemm_out> out;
    for (uint32_t i = 0; i < n_out; ++i)
      out.push_back({weights[i].view(), got[i].data(), got[i].stride(),
                     i == 1 ? uint32_t{WEFT_GEMM_ADD} : 0, 0});
    Host host(threads);
    auto op = make_op<weft_op_gemm_group>(host);
    op.n_rows = static_cast<uint32_t>(x.rows());
    op.n_out = n_out;
    op.x = x.data();
    op.x_stride = x.stride();
    op.out = out.data();
    op.y_dtype = WEFT_F32;
    must_launch(k, op);
    for (uint32_t i = 0; i < n_out; ++i)
      CHECK(same_bits(got[i], gemm(one, x, weights[i], 1, i == 1 ? &y[i] : nullptr)));
  }
}

uint64_t odd_k(Rng& rng, uint32_t dtype) {
  constexpr uint64_t kWidths[] = {1, 5, 8, 15, 16, 17, 33, 100, 129, 260};
  return dtype == WEFT_MXFP4 ? 32 * (1 + rng.below(6)) : kWidths[rng.below(10)];
}

// ref reads packed panels too, whichever variant they were made for.
bool packs(const weft_kernel& k) {
  return k.dtype_w != WEFT_F32 && (rounds_input(k) || std::string(k.variant) == "ref");
}

void compare_gemm(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const Weight w = random_weight(rng, k.dtype_w, 1 + rng.below(40), odd_k(rng, k.dtype_w));
  const Grid x = Grid::random(rng, 1 + rng.below(20), w.k);
  const Grid got = gemm(k, x, w);
  const Grid in = taken_in(k, x);
  for (uint64_t r = 0; r < x.rows(); ++r)
    for (uint64_t n = 0; n < w.n; ++n) {
      double exact = 0;
      for (uint64_t c = 0; c < w.k; ++c)
        exact += static_cast<double>(in.at(r, c)) * w.value[n * w.k + c];
      REQUIRE(std::fabs(got.at(r, n) - exact) <= gemm_bound(k, in, w, r, n) + 1e-30);
    }
  if (packs(k)) CHECK(same_bits(gemm(k, x, packed(w)), got));
  const Grid base = Grid::random(rng, x.rows(), w.n);
  const Grid sum = gemm(k, x, w, 1, &base);
  // Within two rounding errors of the sum: ref adds before it rounds.
  for (uint64_t r = 0; r < x.rows(); ++r)
    for (uint64_t n = 0; n < w.n; ++n)
      REQUIRE(std::fabs(sum.at(r, n) - (double{base.at(r, n)} + got.at(r, n))) <=
              0x1p-23 * (std::fabs(base.at(r, n)) + std::fabs(got.at(r, n))));
}

struct Experts {
  std::vector<Weight> w1, w2, w3;
  std::vector<weft_weight> v1, v2, v3;
};

Experts random_experts(Rng& rng, uint32_t dtype, uint32_t count, uint64_t width, uint64_t inner) {
  Experts e;
  for (uint32_t i = 0; i < count; ++i) {
    e.w1.push_back(random_weight(rng, dtype, inner, width));
    e.w3.push_back(random_weight(rng, dtype, inner, width));
    e.w2.push_back(random_weight(rng, dtype, width, inner));
  }
  for (uint32_t i = 0; i < count; ++i) {
    e.v1.push_back(e.w1[i].view());
    e.v3.push_back(e.w3[i].view());
    e.v2.push_back(e.w2[i].view());
  }
  return e;
}

Experts packed(const Experts& e) {
  Experts out;
  for (size_t i = 0; i < e.w1.size(); ++i) {
    out.w1.push_back(packed(e.w1[i]));
    out.w2.push_back(packed(e.w2[i]));
    out.w3.push_back(packed(e.w3[i]));
  }
  for (size_t i = 0; i < e.w1.size(); ++i) {
    out.v1.push_back(out.w1[i].view());
    out.v2.push_back(out.w2[i].view());
    out.v3.push_back(out.w3[i].view());
  }
  return out;
}

struct Routing {
  uint32_t topk;
  std::vector<uint16_t> id;
  std::vector<float> w;
};

Routing random_routing(Rng& rng, uint64_t rows, uint32_t n_experts, uint32_t topk) {
  Routing out{topk, {}, rng.vector(rows * topk, 0, 1)};
  for (uint64_t r = 0; r < rows; ++r) {
    std::set<uint16_t> taken;
    while (taken.size() < topk) {
      const uint16_t id = static_cast<uint16_t>(rng.below(n_experts));
      if (taken.insert(id).second) out.id.push_back(id);
    }
  }
  return out;
}

Grid moe(const weft_kernel& k, const Grid& x, const Routing& routing, const Experts& e,
         uint32_t first, uint32_t n_local, uint32_t threads = 1, uint32_t act = WEFT_ACT_SITU) {
  Host host(threads);
  Grid y(x.rows(), e.v2[0].n, 2);
  auto op = make_op<weft_op_moe>(host);
  op.n_rows = static_cast<uint32_t>(x.rows());
  op.topk = routing.topk;
  op.first = first;
  op.n_local = n_local;
  op.act = act;
  op.beta = 4;
  op.up_beta = 25;
  op.x = x.data();
  op.x_stride = x.stride();
  op.id = routing.id.data();
  op.w = routing.w.data();
  op.w1 = e.v1.data() + first;
  op.w2 = e.v2.data() + first;
  op.w3 = e.v3.data() + first;
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  return y;
}

Routing one_row(const Routing& all, uint64_t r) {
  const auto part = [&](const auto& v) {
    return std::remove_cvref_t<decltype(v)>(v.begin() + static_cast<long>(r * all.topk),
                                            v.begin() + static_cast<long>((r + 1) * all.topk));
  };
  return {all.topk, part(all.id), part(all.w)};
}

// Inputs of size 1 through two matrices whose sums have at most 96 terms of size <= 1: outputs are
// of size sqrt(96) and the worst relative error of a sum is 20 * 2^-24 of the magnitudes; two of
// them in a row stay below 2e-5 of the largest output.
constexpr double kMoeTolerance = 2e-5;
// Rounding x and the activated vector to bf16 moves every term of both sums by up to 2^-9 of itself;
// the terms' magnitudes add up to at most sqrt(96) times an output of usual size.
constexpr double kRoundedMoeTolerance = 2e-2;

double scaled_distance(const Grid& got, const Grid& want) {
  double largest = 1e-30;
  for (uint64_t r = 0; r < want.rows(); ++r)
    for (uint64_t c = 0; c < want.cols(); ++c)
      largest = std::fmax(largest, std::fabs(want.at(r, c)));
  return distance(got, want, largest);
}

void compare_moe(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const bool quantised = k.dtype_w == WEFT_MXFP4;
  const uint64_t width = quantised ? 64 : 19 + rng.below(30),
                 inner = quantised ? 96 : 9 + rng.below(40);
  const uint32_t n_experts = 3 + rng.below(5);
  const Experts e = random_experts(rng, k.dtype_w, n_experts, width, inner);
  const Grid x = Grid::random(rng, 1 + rng.below(24), width);
  const Routing routing = random_routing(rng, x.rows(), n_experts, 1 + rng.below(n_experts));
  for (const uint32_t act : {uint32_t{WEFT_ACT_SILU}, uint32_t{WEFT_ACT_SITU}}) {
    const Grid got = moe(k, x, routing, e, 0, n_experts, 1, act);
    CHECK(scaled_distance(got, moe(ref_of(k), x, routing, e, 0, n_experts, 1, act)) <
          (rounds_input(k) ? kRoundedMoeTolerance : kMoeTolerance));
    CHECK(same_bits(moe(k, x, routing, e, 0, n_experts, 3, act), got));
    if (packs(k))
      CHECK(same_bits(moe(k, x, routing, packed(e), 0, n_experts, 2, act), got));
  }
}

struct Routed {
  std::vector<uint16_t> id;
  std::vector<float> w;
};

Routed route(const weft_kernel& k, const Grid& logits, uint32_t topk, uint32_t kind,
             const std::vector<float>& bias, uint32_t n_groups = 1, uint32_t group_topk = 1,
             uint32_t renorm = 1, float scale = 1) {
  Host host(2);
  Routed out{std::vector<uint16_t>(logits.rows() * topk, 60000),
             std::vector<float>(logits.rows() * topk, sentinel())};
  auto op = make_op<weft_op_route>(host);
  op.n_rows = static_cast<uint32_t>(logits.rows());
  op.n_experts = static_cast<uint32_t>(logits.cols());
  op.topk = topk;
  op.kind = kind;
  op.n_groups = n_groups;
  op.group_topk = group_topk;
  op.renorm = renorm;
  op.scale = scale;
  op.logits = logits.data();
  op.logits_stride = logits.stride();
  op.bias = bias.empty() ? nullptr : bias.data();
  op.id = out.id.data();
  op.w = out.w.data();
  must_launch(k, op);
  return out;
}

void compare_route(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t n = 1 + rng.below(40), topk = 1 + rng.below(n);
  const Grid logits = Grid::random(rng, 3, n, -4, 4);
  const auto bias = rng.vector(n, -0.3f, 0.3f);
  for (const uint32_t kind : {uint32_t{WEFT_ROUTE_SIGMOID}, uint32_t{WEFT_ROUTE_SOFTMAX}}) {
    const Routed got = route(k, logits, topk, kind, bias, 1, 1, 0);
    const Routed want = route(ref_of(k), logits, topk, kind, bias, 1, 1, 0);
    CHECK(got.id == want.id);
    for (uint64_t r = 0; r < 3; ++r) {
      double sum = 0;
      for (uint32_t e = 0; e < n; ++e) sum += std::exp(static_cast<double>(logits.at(r, e)));
      const auto score = [&](uint32_t e) {
        const double l = logits.at(r, e);
        return kind == WEFT_ROUTE_SIGMOID ? 1 / (1 + std::exp(-l)) : std::exp(l) / sum;
      };
      std::set<uint32_t> chosen;
      for (uint32_t j = 0; j < topk; ++j) {
        const uint32_t id = got.id[r * topk + j];
        CHECK(chosen.insert(id).second);
        CHECK(got.w[r * topk + j] == doctest::Approx(score(id)).epsilon(1e-6));
        if (j > 0)
          CHECK(score(id) + bias[id] <=
                score(got.id[r * topk + j - 1]) + bias[got.id[r * topk + j - 1]] + 1e-6);
      }
      for (uint32_t e = 0; e < n; ++e) {
        const uint32_t last = got.id[r * topk + topk - 1];
        if (chosen.count(e) == 0) CHECK(score(e) + bias[e] <= score(last) + bias[last] + 1e-6);
      }
    }
  }
}

}  // namespace

std::vector<OpCase> matmul_cases() {
  return {{"gemm", compare_gemm}, {"gemm_group", compare_gemm_group}, {"moe", compare_moe}, {"route", compare_route}};
}

TEST_CASE("gemm: a row's bits do not depend on the batch or the threads") {
  for (const weft_kernel& k : runnable("gemm")) {
    INFO(k.variant << " " << k.dtype_w);
    Rng rng(5);
    const uint64_t width = k.dtype_w == WEFT_MXFP4 ? 1056 : 1061;  // several blocks of K
    const Weight w = random_weight(rng, k.dtype_w, 77, width);
    const Grid x = Grid::random(rng, 71, width);
    const Grid all = gemm(k, x, w);
    for (const uint32_t threads : {2u, 3u}) CHECK(same_bits(gemm(k, x, w, threads), all));
    CHECK(same_bits(gemm(k, x.slice(0, 7), w, 3), all.slice(0, 7)));
    CHECK(same_bits(gemm(k, x.slice(25, 7), w), all.slice(25, 7)));
    CHECK(same_bits(gemm(k, x.slice(0, 32), w, 2), all.slice(0, 32)));
    for (const uint64_t r : {0u, 4u, 31u, 70u})
      CHECK(same_bits(gemm(k, x.slice(r, 1), w, 2), all.slice(r, 1)));
    CHECK(distance(all, gemm(ref_of(k), taken_in(k, x), w), 1e3) < 1e-5);
  }
}

TEST_CASE("gemm: mxfp4 decodes by position") {
  // Unit vectors pick single weights, so a swap of nibbles, columns or scales cannot hide.
  Weight w = [] {
    Rng rng(9);
    return random_weight(rng, WEFT_MXFP4, 3, 64);
  }();
  for (size_t i = 0; i < w.data.size(); ++i) w.data[i] = static_cast<uint8_t>(i * 37 + 0x1e);
  w.scale = {127, 128, 120, 130, 0, 1};
  static constexpr double kMagnitude[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  Grid x(64, 64);
  for (uint64_t i = 0; i < 64; ++i)
    for (uint64_t j = 0; j < 64; ++j) x.at(i, j) = i == j ? 1.0f : 0.0f;
  for (const weft_kernel& k : runnable("gemm")) {
    if (k.dtype_w != WEFT_MXFP4) continue;
    INFO(k.variant);
    for (const uint64_t rows :
         {1u, 64u}) {  // below and above the size from which panels are decoded once
      for (uint64_t first = 0; first < 64; first += rows) {
        const Grid y = gemm(k, x.slice(first, rows), w);
        for (uint64_t r = 0; r < rows; ++r)
          for (uint64_t n = 0; n < 3; ++n) {
            const uint64_t column = first + r;
            const uint8_t byte = w.data[n * 32 + column / 2];
            const int code = column % 2 == 0 ? byte & 15 : byte >> 4;
            const double value =
                std::ldexp(kMagnitude[code & 7], w.scale[n * 2 + column / 32] - 127);
            REQUIRE(y.at(r, n) == (code >= 8 ? -value : value));
          }
      }
    }
    w.scale[2] = 255;
    const Grid y = gemm(k, x.slice(0, 1), w);
    CHECK(std::isnan(y.at(0, 1)));
    CHECK(std::isfinite(y.at(0, 0)));
    CHECK(std::isfinite(y.at(0, 2)));
    w.scale[2] = 120;
  }
}

TEST_CASE("gemm: NaN and infinity stay in their row") {
  for (const weft_kernel& k : runnable("gemm")) {
    Rng rng(6);
    const Weight w = random_weight(rng, k.dtype_w, 11, 96);
    Grid x = Grid::random(rng, 6, 96);
    x.at(2, 95) = NAN;
    x.at(4, 0) = INFINITY;
    const Grid y = gemm(k, x, w);
    for (uint64_t n = 0; n < 11; ++n) {
      CHECK(std::isnan(y.at(2, n)));
      CHECK((!std::isfinite(y.at(4, n)) || w.value[n * 96] == 0));
      for (const uint64_t r : {0u, 1u, 3u, 5u}) CHECK(std::isfinite(y.at(r, n)));
    }
  }
}

TEST_CASE("moe: expert ranges add up, and a row does not depend on the batch") {
  for (const weft_kernel& k : runnable("moe")) {
    INFO(k.variant << " " << k.dtype_w);
    Rng rng(8);
    const uint32_t n = 7;
    const Experts e = random_experts(rng, k.dtype_w, n, 64, 32);
    const Grid x = Grid::random(rng, 32, 64);
    const Routing routing = random_routing(rng, 32, n, 3);
    const Grid all = moe(k, x, routing, e, 0, n);
    for (const uint32_t threads : {2u, 3u})
      CHECK(same_bits(moe(k, x, routing, e, 0, n, threads), all));
    for (const uint64_t r : {0u, 13u, 31u})
      CHECK(same_bits(moe(k, x.slice(r, 1), one_row(routing, r), e, 0, n, 2), all.slice(r, 1)));
    const Grid low = moe(k, x, routing, e, 0, 3), high = moe(k, x, routing, e, 3, 4);
    double worst = 0;
    for (uint64_t r = 0; r < 32; ++r)
      for (uint64_t c = 0; c < 64; ++c)
        worst = std::fmax(worst, std::fabs(low.at(r, c) + high.at(r, c) - all.at(r, c)) /
                                     std::fmax(1.0f, std::fabs(all.at(r, c))));
    CHECK(worst < 1e-5);  // three terms in another order
    // A row whose experts are all elsewhere gets zeros.
    Routing elsewhere{1, std::vector<uint16_t>(32, 65535), std::vector<float>(32, 1.0f)};
    const Grid none = moe(k, x, elsewhere, e, 0, n);
    for (uint64_t c = 0; c < 64; ++c) CHECK(none.at(31, c) == 0);
  }
}

TEST_CASE("route: ties go to the lower index, groups limit the choice, renormalisation and scale") {
  for (const weft_kernel& k : runnable("route")) {
    Grid same(1, 9);
    for (uint64_t e = 0; e < 9; ++e) same.at(0, e) = 0.25f;
    CHECK(route(k, same, 9, WEFT_ROUTE_SIGMOID, {}).id ==
          std::vector<uint16_t>{0, 1, 2, 3, 4, 5, 6, 7, 8});
    const Routed scaled = route(k, same, 4, WEFT_ROUTE_SIGMOID, {}, 1, 1, 1, 2.5f);
    for (const float w : scaled.w) CHECK(w == doctest::Approx(2.5 / 4));
    // Three groups of three. The best single expert sits in the group with the smallest pair.
    Grid l(1, 9);
    const float values[9] = {1, 1, -5, 3, -5, -5, 0.9f, 1.2f, -5};
    for (uint64_t e = 0; e < 9; ++e) l.at(0, e) = values[e];
    CHECK(route(k, l, 2, WEFT_ROUTE_SIGMOID, {}, 3, 1).id == std::vector<uint16_t>{7, 6});
    CHECK(route(k, l, 3, WEFT_ROUTE_SIGMOID, {}, 3, 2).id == std::vector<uint16_t>{7, 0, 1});
    CHECK(route(k, same, 3, WEFT_ROUTE_SOFTMAX, {}, 3, 1).id == std::vector<uint16_t>{0, 1, 2});
    CHECK(route(k, l, 9, WEFT_ROUTE_SIGMOID, {}, 9, 9).id[0] == 3);  // groups of one
    // The bias selects but does not weigh.
    std::vector<float> bias(9, 0.0f);
    bias[2] = 5;
    const Routed biased = route(k, l, 1, WEFT_ROUTE_SIGMOID, bias, 1, 1, 0);
    CHECK(biased.id[0] == 2);
    CHECK(biased.w[0] == doctest::Approx(1 / (1 + std::exp(5.0))));
    // NaN never wins and no expert is chosen twice.
    l.at(0, 3) = NAN;
    CHECK(route(k, l, 9, WEFT_ROUTE_SIGMOID, {}).id ==
          std::vector<uint16_t>{7, 0, 1, 6, 2, 4, 5, 8, 3});
  }
}

}  // namespace kit
