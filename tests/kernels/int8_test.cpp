// moe with WEFT_MOE_INT8: MXFP4 experts over rows rounded to 8-bit integers, against the same
// rounding done naively, and who ignores the flag.
#include <algorithm>

#include "kit.h"

namespace kit {
namespace {

struct Experts {
  std::vector<Weight> w1, w2, w3;
  std::vector<weft_weight> v1, v2, v3;
};

Experts views(Experts e) {
  for (size_t i = 0; i < e.w1.size(); ++i) {
    e.v1.push_back(e.w1[i].view());
    e.v2.push_back(e.w2[i].view());
    e.v3.push_back(e.w3[i].view());
  }
  return e;
}

Experts random_experts(Rng& rng, uint32_t dtype, uint32_t count, uint64_t width, uint64_t inner,
                       uint64_t n_out) {
  Experts e;
  for (uint32_t i = 0; i < count; ++i) {
    e.w1.push_back(random_weight(rng, dtype, inner, width));
    e.w3.push_back(random_weight(rng, dtype, inner, width));
    e.w2.push_back(random_weight(rng, dtype, n_out, inner));
  }
  return views(std::move(e));
}

Experts packed(const Experts& e) {
  Experts out;
  for (size_t i = 0; i < e.w1.size(); ++i) {
    out.w1.push_back(packed(e.w1[i]));
    out.w2.push_back(packed(e.w2[i]));
    out.w3.push_back(packed(e.w3[i]));
  }
  return views(std::move(out));
}

struct Routing {
  uint32_t topk;
  std::vector<uint16_t> id;
  std::vector<float> w;
};

// Neighbouring experts, so that they are different ones.
Routing random_routing(Rng& rng, uint64_t rows, uint32_t n_experts, uint32_t topk) {
  Routing out{topk, {}, rng.vector(rows * topk, 0.1f, 1)};
  for (uint64_t r = 0; r < rows; ++r) {
    const uint32_t first = rng.below(n_experts);
    for (uint32_t j = 0; j < topk; ++j)
      out.id.push_back(static_cast<uint16_t>((first + j) % n_experts));
  }
  return out;
}

constexpr float kBeta = 4, kUpBeta = 25;

weft_op_moe args_of(const Host& host, const Grid& x, const Routing& routing, const Experts& e,
                    Grid* y, uint32_t mode) {
  auto op = make_op<weft_op_moe>(host);
  op.n_rows = static_cast<uint32_t>(x.rows());
  op.topk = routing.topk;
  op.n_local = static_cast<uint32_t>(e.w1.size());
  op.act = WEFT_ACT_SITU;
  op.beta = kBeta;
  op.up_beta = kUpBeta;
  op.mode = mode;
  op.x = x.data();
  op.x_stride = x.stride();
  op.id = routing.id.data();
  op.w = routing.w.data();
  op.w1 = e.v1.data();
  op.w2 = e.v2.data();
  op.w3 = e.v3.data();
  op.y = y->data();
  op.y_stride = y->stride();
  return op;
}

Grid moe(const weft_kernel& k, const Grid& x, const Routing& routing, const Experts& e,
         uint32_t threads = 1, uint32_t mode = WEFT_MOE_INT8) {
  Host host(threads);
  Grid y(x.rows(), e.v2[0].n, 2);
  must_launch(k, args_of(host, x, routing, e, &y, mode));
  CHECK(y.surroundings_intact());
  return y;
}

// The variants that make use of the permission.
std::vector<weft_kernel> rounding_kernels() {
  std::vector<weft_kernel> out;
  for (const weft_kernel& k : runnable("moe"))
    if (k.dtype_w == WEFT_MXFP4 && std::string(k.variant) == "avx512_bf16") out.push_back(k);
  return out;
}

// 32 values as the kernel takes them in. `slack`: how far an element may be off because it lay
// within a hundredth of a step of the border between two integers.
struct Rounded {
  std::vector<double> value, slack;
};
Rounded rounded(const std::vector<double>& x) {
  Rounded out;
  for (size_t b = 0; b < x.size(); b += 32) {
    double largest = 0;
    for (size_t i = b; i < b + 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    const double step = largest / 127;
    for (size_t i = b; i < b + 32; ++i) {
      const double q = step == 0 ? 0 : x[i] / step, whole = std::nearbyint(q);
      out.value.push_back(whole * step);
      out.slack.push_back(std::fabs(q - whole) > 0.49 ? step : 0);
    }
  }
  return out;
}

struct Interval {
  double value, error;
};

// One expert's outputs for one row: the rounding done in double. Errors: an element of the
// activated vector that lies at a border may take either side; everything else is f32 rounding,
// whose share of a sum over at most 6 blocks is below 10 * 2^-24 of its magnitudes, before and
// after an activation that stretches it by at most its own value (gate times up): 4e-6 in all.
void add_expert(const Experts& e, uint32_t id, const std::vector<double>& x, double weight,
                std::vector<Interval>* y) {
  const Rounded in = rounded(x);
  const Weight &w1 = e.w1[id], &w3 = e.w3[id], &w2 = e.w2[id];
  std::vector<double> h(w1.n);
  double largest = 0;
  for (uint64_t i = 0; i < w1.n; ++i) {
    double gate = 0, up = 0, gate_size = 0, up_size = 0;
    for (uint64_t c = 0; c < w1.k; ++c) {
      const double g = in.value[c] * w1.value[i * w1.k + c],
                   u = in.value[c] * w3.value[i * w1.k + c];
      gate += g;
      up += u;
      gate_size += std::fabs(g);
      up_size += std::fabs(u);
    }
    h[i] =
        kBeta * std::tanh(gate / kBeta) / (1 + std::exp(-gate)) * kUpBeta * std::tanh(up / kUpBeta);
    largest = std::fmax(largest, std::fmin(gate_size, double{kBeta}) * up_size);
  }
  const Rounded act = rounded(h);
  for (uint64_t n = 0; n < w2.n; ++n)
    for (uint64_t i = 0; i < w2.k; ++i) {
      const double w = weight * w2.value[n * w2.k + i];
      (*y)[n].value += w * act.value[i];
      (*y)[n].error += std::fabs(w) * (act.slack[i] + 4e-6 * largest);
    }
}

}  // namespace

TEST_CASE("moe in int8: the same rounding done naively") {
  for (const weft_kernel& k : rounding_kernels()) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      const uint64_t width = 32 * (1 + rng.below(6)), inner = 32 * (1 + rng.below(6));
      const uint32_t n_experts = 2 + rng.below(4), topk = 1 + rng.below(2);
      const Experts e = random_experts(rng, k.dtype_w, n_experts, width, inner, 1 + rng.below(80));
      Grid x = Grid::random(rng, 1 + rng.below(18), width, -0.2f, 0.2f);
      // Sizes far apart, each exact: a multiple of its block's step, so no element is at a border.
      for (uint64_t r = 0; r < x.rows(); ++r)
        for (uint64_t c = 0; c < width; ++c) {
          const float size = std::ldexp(1.0f, -static_cast<int>(c / 32) - 7);
          x.at(r, c) = size * static_cast<float>(c % 32 == 7 ? 127 : rng.below(253) - 126.0);
        }
      const Routing routing = random_routing(rng, x.rows(), n_experts, topk);
      const Grid got = moe(k, x, routing, e);
      for (uint64_t r = 0; r < x.rows(); ++r) {
        std::vector<Interval> want(got.cols(), {0, 1e-30});
        const std::vector<double> row(x.data() + r * x.stride(), x.data() + r * x.stride() + width);
        for (uint32_t j = 0; j < topk; ++j)
          add_expert(e, routing.id[r * topk + j], row, routing.w[r * topk + j], &want);
        for (uint64_t n = 0; n < got.cols(); ++n)
          REQUIRE(std::fabs(got.at(r, n) - want[n].value) <= want[n].error);
      }
    }
  }
}

// Elements lose up to 1/254 of their block's largest. Of evenly spread inputs that is 0.4 % of an
// element's usual size, independent of each other; the activated vector, whose sizes differ more,
// loses about twice that: 1 % of an output's usual size. Single outputs stay below ten times that.
TEST_CASE("moe in int8: near the plain result, and not the same") {
  for (const weft_kernel& k : rounding_kernels()) {
    Rng rng(3);
    const Experts e = random_experts(rng, k.dtype_w, 5, 256, 192, 256);
    const Grid x = Grid::random(rng, 40, 256);
    const Routing routing = random_routing(rng, 40, 5, 3);
    const Grid got = moe(k, x, routing, e), want = moe(ref_of(k), x, routing, e);
    double square = 0, off = 0, worst = 0;
    for (uint64_t r = 0; r < want.rows(); ++r)
      for (uint64_t c = 0; c < want.cols(); ++c) {
        const double d = got.at(r, c) - want.at(r, c);
        square += static_cast<double>(want.at(r, c)) * want.at(r, c);
        off += d * d;
        worst = std::fmax(worst, std::fabs(d));
      }
    const double usual = std::sqrt(square / 10240);
    CHECK(std::sqrt(off / 10240) < 0.012 * usual);
    CHECK(worst < 0.1 * usual);
    CHECK_FALSE(same_bits(got, moe(k, x, routing, e, 1, 0)));
  }
}

TEST_CASE("moe in int8: a row's bits do not depend on batch, threads and layout") {
  for (const weft_kernel& k : rounding_kernels()) {
    Rng rng(4);
    const Experts e = random_experts(rng, k.dtype_w, 3, 96, 64, 70), in_panels = packed(e);
    const Grid x = Grid::random(rng, 71, 96);
    const Routing routing = random_routing(rng, 71, 3, 2);
    const Grid all = moe(k, x, routing, e);
    for (const uint32_t threads : {1u, 2u, 3u})
      CHECK(same_bits(moe(k, x, routing, in_panels, threads), all));
    for (const uint64_t rows : {1u, 2u, 5u, 7u, 32u})
      for (const uint64_t r : {0u, 13u, 39u}) {
        Routing some{2, {}, {}};
        some.id.assign(routing.id.begin() + static_cast<long>(2 * r), routing.id.end());
        some.w.assign(routing.w.begin() + static_cast<long>(2 * r), routing.w.end());
        CHECK(same_bits(moe(k, x.slice(r, rows), some, in_panels, 2), all.slice(r, rows)));
      }
  }
}

TEST_CASE("moe in int8: NaN, infinity, zeros and the smallest numbers") {
  for (const weft_kernel& k : rounding_kernels()) {
    Rng rng(5);
    const Experts e = random_experts(rng, k.dtype_w, 3, 96, 64, 70);
    Grid x = Grid::random(rng, 8, 96);
    const Routing routing = random_routing(rng, 8, 3, 2);
    x.at(1, 95) = NAN;
    x.at(2, 0) = -NAN;
    x.at(4, 40) = -INFINITY;
    for (uint64_t c = 0; c < 96; ++c) {
      x.at(6, c) = c % 2 == 0 ? 0.0f : -0.0f;
      x.at(7, c) = std::ldexp(1.0f, -140 + static_cast<int>(c % 32));
    }
    const Grid y = moe(k, x, routing, e);
    for (uint64_t n = 0; n < 70; ++n) {
      for (const uint64_t r : {1u, 2u, 4u}) CHECK(std::isnan(y.at(r, n)));
      for (const uint64_t r : {0u, 3u, 5u}) CHECK(std::isfinite(y.at(r, n)));
      CHECK(y.at(6, n) == 0);
      CHECK(std::fabs(y.at(7, n)) < 1e-25f);
    }
    // The largest numbers do not overflow inside where the result does not.
    for (uint64_t c = 0; c < 96; ++c) x.at(0, c) = c % 2 == 0 ? 1e30f : -1e30f;
    const Grid big = moe(k, x, routing, e);
    for (uint64_t n = 0; n < 70; ++n) CHECK(std::isfinite(big.at(0, n)));
    // A scale byte of 255 is NaN: one in the down matrix reaches its output alone.
    Experts broken = e;
    for (Weight& w : broken.w2) w.scale[3 * 2] = 255;
    broken.v1.clear();
    broken.v2.clear();
    broken.v3.clear();
    broken = views(std::move(broken));
    const Grid out = moe(k, x, routing, broken);
    CHECK(std::isnan(out.at(3, 3)));
    CHECK(std::isfinite(out.at(3, 2)));
    CHECK(std::isfinite(out.at(3, 4)));
  }
}

TEST_CASE("moe: variants without 8-bit products ignore the permission") {
  for (const weft_kernel& k : runnable("moe")) {
    if (k.dtype_w == WEFT_MXFP4 && std::string(k.variant) == "avx512_bf16") continue;
    CAPTURE(k.variant);
    Rng rng(6);
    const Experts e = random_experts(rng, k.dtype_w, 3, 64, 32, 32);
    const Grid x = Grid::random(rng, 9, 64);
    const Routing routing = random_routing(rng, 9, 3, 2);
    CHECK(same_bits(moe(k, x, routing, e), moe(k, x, routing, e, 1, 0)));
  }
}

TEST_CASE("moe: other modes are refused") {
  for (const weft_kernel& k : runnable("moe")) {
    Rng rng(7);
    const Experts e = random_experts(rng, k.dtype_w, 2, 64, 32, 32);
    const Grid x = Grid::random(rng, 2, 64);
    Grid y(2, 32);
    Host host(1);
    weft_err err{};
    err.struct_size = sizeof err;
    CHECK(launch(k, args_of(host, x, random_routing(rng, 2, 2, 1), e, &y, 2), &err) == WEFT_E_ARG);
    CHECK(std::string(err.msg).find("mode") != std::string::npos);
  }
}

}  // namespace kit
