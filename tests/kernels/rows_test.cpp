// embed, norm, glu, gate, add, gather, scatter, attnres, gelu against ref, on odd shapes.
#include "kit.h"

namespace kit {
namespace {

// Column counts around the vector widths, and one that is long.
uint32_t odd_width(Rng& rng) {
  constexpr uint32_t kWidths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 130, 513};
  return kWidths[rng.below(sizeof kWidths / sizeof kWidths[0])];
}

Grid embed(const weft_kernel& k, const std::vector<int32_t>& ids, const Weight& table,
           uint32_t* err) {
  Host host(3);
  Grid y(ids.size(), table.k);
  auto op = make_op<weft_op_embed>(host);
  op.head.err = err;
  op.n_rows = static_cast<uint32_t>(ids.size());
  op.id = ids.data();
  op.table = table.view();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  return y;
}

void compare_embed(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const Weight table = random_weight(rng, k.dtype_w, 1 + rng.below(9), odd_width(rng));
  std::vector<int32_t> ids(1 + rng.below(6));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint32_t>(table.n)));
  uint32_t err = 0;
  const Grid y = embed(k, ids, table, &err);
  CHECK(err == 0);
  for (size_t r = 0; r < ids.size(); ++r)
    for (uint64_t c = 0; c < table.k; ++c)
      CHECK(y.at(r, c) == table.value[static_cast<uint64_t>(ids[r]) * table.k + c]);
}

Grid norm(const weft_kernel& k, const Grid& x, const std::vector<float>& w, uint32_t threads = 1,
          bool in_place = false) {
  Host host(threads);
  Grid y = in_place ? x : Grid(x.rows(), x.cols(), 5);
  auto op = make_op<weft_op_norm>(host);
  op.n_rows = static_cast<uint32_t>(x.rows());
  op.n_cols = static_cast<uint32_t>(x.cols());
  op.x = in_place ? y.data() : x.data();
  op.x_stride = x.stride();
  op.w = w.data();
  op.eps = 1e-5f;
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  return y;
}

// The sum of squares has only positive terms, so its relative error stays below (n/lanes + 5) *
// 2^-24; the root halves it and three roundings follow. 513 columns in 8 lanes: 40 * 2^-24 / 2 + 3
// * 2^-24 < 1.5e-6.
constexpr double kNormTolerance = 1.5e-6;

void compare_norm(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t n = odd_width(rng);
  const Grid x = Grid::random(rng, 1 + rng.below(40), n, -3, 3);
  const auto w = rng.vector(n, 0.5f, 1.5f);
  const Grid want = norm(ref_of(k), x, w);
  const Grid got = norm(k, x, w);
  CHECK(distance(got, want, 1e-3) < kNormTolerance);
  CHECK(same_bits(norm(k, x, w, 3), got));
  CHECK(same_bits(norm(k, x, w, 1, true), got));
  CHECK(same_bits(norm(k, x.slice(x.rows() - 1, 1), w), got.slice(x.rows() - 1, 1)));
}

Grid glu(const weft_kernel& k, const Grid& gate, const Grid& up, uint32_t act, float up_beta,
         uint32_t threads = 1) {
  Host host(threads);
  Grid y(gate.rows(), gate.cols(), 1);
  auto op = make_op<weft_op_glu>(host);
  op.n_rows = static_cast<uint32_t>(gate.rows());
  op.n_cols = static_cast<uint32_t>(gate.cols());
  op.act = act;
  op.beta = 4;
  op.up_beta = up_beta;
  op.gate = gate.data();
  op.gate_stride = gate.stride();
  op.up = up.data();
  op.up_stride = up.stride();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  return y;
}

// Two tanh (2^-21 each), one sigmoid (2^-21) and five roundings: below 2e-6 relative, wherever the
// result is not tiny.
constexpr double kGluTolerance = 2e-6;

void compare_glu(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t n = odd_width(rng), rows = 1 + rng.below(5);
  const Grid gate = Grid::random(rng, rows, n, -40, 40), up = Grid::random(rng, rows, n, -60, 60);
  for (const uint32_t act : {uint32_t{WEFT_ACT_SILU}, uint32_t{WEFT_ACT_SITU}})
    for (const float up_beta : {0.0f, 25.0f}) {
      const Grid got = glu(k, gate, up, act, up_beta);
      CHECK(distance(got, glu(ref_of(k), gate, up, act, up_beta), 1e-30) < kGluTolerance);
      CHECK(same_bits(glu(k, gate, up, act, up_beta, 3), got));
    }
}

Grid gate(const weft_kernel& k, const Grid& x, const Grid& u) {
  Host host(2);
  Grid y(x.rows(), x.cols(), 2);
  auto op = make_op<weft_op_gate>(host);
  op.n_rows = static_cast<uint32_t>(x.rows());
  op.n_cols = static_cast<uint32_t>(x.cols());
  op.x = x.data();
  op.x_stride = x.stride();
  op.u = u.data();
  op.u_stride = u.stride();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  return y;
}

void compare_gate(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t n = odd_width(rng);
  const Grid x = Grid::random(rng, 3, n), u = Grid::random(rng, 3, n, -80, 80);
  CHECK(distance(gate(k, x, u), gate(ref_of(k), x, u), 1e-36) < 1e-6);
}

void compare_add(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t n = odd_width(rng);
  const Grid a = Grid::random(rng, 4, n), b = Grid::random(rng, 4, n);
  Host host(2);
  Grid y(4, n, 9);
  auto op = make_op<weft_op_add>(host);
  op.n_rows = 4;
  op.n_cols = n;
  op.a = a.data();
  op.a_stride = a.stride();
  op.b = b.data();
  op.b_stride = b.stride();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  for (uint64_t r = 0; r < 4; ++r)
    for (uint64_t c = 0; c < n; ++c) CHECK(y.at(r, c) == a.at(r, c) + b.at(r, c));
}

void compare_gather(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t n = odd_width(rng);
  const bool scatters = std::string(k.op) == "scatter";
  const std::vector<uint32_t> row = {5, 0, 3};
  const Grid x = Grid::random(rng, scatters ? 3 : 7, n);
  Grid y(scatters ? 7 : 3, n, 4);
  Host host(2);
  auto op = make_op<weft_op_gather>(host);
  op.n_rows = 3;
  op.n_cols = n;
  op.row = row.data();
  op.x = x.data();
  op.x_stride = x.stride();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  for (uint64_t i = 0; i < 3; ++i)
    for (uint64_t c = 0; c < n; ++c)
      CHECK(y.at(scatters ? row[i] : i, c) == x.at(scatters ? i : row[i], c));
  if (scatters) CHECK(is_sentinel(y.at(1, 0)));
}

Grid attnres(const weft_kernel& k, const Grid& blocks, const Grid& prefix,
             const std::vector<float>& q, const std::vector<float>* norm_w, uint32_t threads = 1) {
  Host host(threads);
  const uint64_t rows = prefix.rows();
  Grid y(rows, prefix.cols(), 7);
  auto op = make_op<weft_op_attnres>(host);
  op.n_rows = static_cast<uint32_t>(rows);
  op.n_cols = static_cast<uint32_t>(prefix.cols());
  op.n_blocks = static_cast<uint32_t>(blocks.rows() / rows);
  op.blocks = blocks.rows() > 0 ? blocks.data() : nullptr;
  op.block_stride = rows * blocks.stride();
  op.row_stride = blocks.stride();
  op.prefix = prefix.data();
  op.prefix_stride = prefix.stride();
  op.q = q.data();
  op.eps = op.norm_eps = 1e-5f;
  op.norm_w = norm_w == nullptr ? nullptr : norm_w->data();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  return y;
}

void compare_attnres(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t n = odd_width(rng), rows = 1 + rng.below(4);
  for (uint32_t blocks = 0; blocks <= 9; ++blocks) {
    const Grid b = Grid::random(rng, uint64_t{blocks} * rows, n, -2, 2),
               p = Grid::random(rng, rows, n, -2, 2);
    const auto q = rng.vector(n, -0.3f, 0.3f), w = rng.vector(n, 0.5f, 1.5f);
    for (const auto* norm_w : {static_cast<const std::vector<float>*>(nullptr), &w}) {
      const Grid got = attnres(k, b, p, q, norm_w);
      // A score is a dot product over 513 columns at most: |s| < 0.3 * 513 * 2, error below 40 *
      // 2^-24 * sum|q v| ~ 4e-4 at the very worst and 1e-5 for random signs; it enters the weights
      // as is, against values of size 2.
      CHECK(distance(got, attnres(ref_of(k), b, p, q, norm_w), 0.1) < 1e-4);
      CHECK(same_bits(attnres(k, b, p, q, norm_w, 3), got));
      if (blocks == 0 && norm_w == nullptr) CHECK(same_bits(got, p.slice(0, rows)));
    }
  }
}

Grid gelu(const weft_kernel& k, const Grid& x, uint32_t tanh_form) {
  Host host(1);
  Grid y(x.rows(), x.cols());
  auto op = make_op<weft_op_gelu>(host);
  op.n_rows = static_cast<uint32_t>(x.rows());
  op.n_cols = static_cast<uint32_t>(x.cols());
  op.tanh_form = tanh_form;
  op.x = x.data();
  op.x_stride = x.stride();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  return y;
}

void compare_gelu(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const Grid x = Grid::random(rng, 2, odd_width(rng), -6, 6);
  // 1 + tanh cancels for negative x: the error is absolute, |x| * 2^-22.
  for (const uint32_t form : {0u, 1u})
    CHECK(distance(gelu(k, x, form), gelu(ref_of(k), x, form), 1.0) < 1.5e-6);
}

}  // namespace

std::vector<OpCase> row_cases() {
  return {{"embed", compare_embed},    {"norm", compare_norm},       {"glu", compare_glu},
          {"gate", compare_gate},      {"add", compare_add},         {"gather", compare_gather},
          {"scatter", compare_gather}, {"attnres", compare_attnres}, {"gelu", compare_gelu}};
}

TEST_CASE("embed: an unknown id gives a zero row and the bad-index bit") {
  for (const weft_kernel& k : runnable("embed")) {
    Rng rng(3);
    const Weight table = random_weight(rng, k.dtype_w, 5, 9);
    uint32_t err = 0;
    const Grid y = embed(k, {2, 5, -1, 4}, table, &err);
    CHECK(err == 2);
    for (uint64_t c = 0; c < 9; ++c) {
      CHECK(y.at(1, c) == 0);
      CHECK(y.at(2, c) == 0);
      CHECK(y.at(3, c) == table.value[4 * 9 + c]);
    }
  }
}

TEST_CASE("glu and gate: accuracy over the whole range of the activation functions") {
  // Steps of 99991 units in the last place from 1e-30 to 100, both signs: small arguments are as
  // dense as large ones.
  std::vector<float> points;
  for (uint32_t bits = bits_of_float(1e-30f); bits < bits_of_float(100.0f); bits += 99991)
    for (const float sign : {1.0f, -1.0f}) points.push_back(sign * float_of_bits(bits));
  Grid x(1, points.size()), one(1, points.size());
  for (size_t i = 0; i < points.size(); ++i) x.at(0, i) = points[i], one.at(0, i) = 1;
  for (const weft_kernel& k : runnable("gate")) {
    INFO(k.variant);
    const Grid y = gate(k, one, x);
    for (size_t i = 0; i < points.size(); ++i) {
      if (points[i] < -87) continue;  // subnormal results
      const double want = 1 / (1 + std::exp(-static_cast<double>(points[i])));
      REQUIRE(std::fabs(y.at(0, i) - want) <= want * 0x1p-21);
    }
  }
  for (const weft_kernel& k : runnable("glu")) {
    INFO(k.variant);
    const Grid y = glu(k, one, x, WEFT_ACT_SITU, 25);
    const double left = 4 * std::tanh(0.25) / (1 + std::exp(-1.0));
    for (size_t i = 0; i < points.size(); ++i) {
      const double want = left * 25 * std::tanh(static_cast<double>(points[i]) / 25);
      REQUIRE(std::fabs(y.at(0, i) - want) <= std::fabs(want) * kGluTolerance);
    }
  }
}

TEST_CASE(
    "row ops: NaN and infinity reach the output of their own row only, and the check flag sees "
    "them") {
  for (const weft_kernel& k : runnable("norm")) {
    Rng rng(11);
    for (const float bad : {NAN, INFINITY}) {
      Grid x = Grid::random(rng, 3, 37);
      x.at(1, 20) = bad;
      const Grid y = norm(k, x, rng.vector(37));
      for (uint64_t c = 0; c < 37; ++c) {
        CHECK(std::isfinite(y.at(0, c)));
        CHECK(std::isfinite(y.at(2, c)));
      }
      CHECK(std::isnan(y.at(1, 20)));  // inf / inf
    }
  }
  for (const weft_kernel& k : runnable("glu")) {
    Grid g(1, 19), u(1, 19);
    for (uint64_t c = 0; c < 19; ++c) g.at(0, c) = u.at(0, c) = 1;
    g.at(0, 3) = NAN;
    u.at(0, 17) = NAN;
    g.at(0, 5) = INFINITY;
    const Grid y = glu(k, g, u, WEFT_ACT_SITU, 25);
    CHECK(std::isnan(y.at(0, 3)));
    CHECK(std::isnan(y.at(0, 17)));
    CHECK(y.at(0, 5) == doctest::Approx(4 * 25 * std::tanh(1 / 25.0)));
    CHECK(std::isfinite(y.at(0, 4)));
  }
  for (const weft_kernel& k : runnable("add")) {
    Host host(1);
    for (const bool finite : {true, false}) {
      const std::vector<float> a = {1, finite ? 2.0f : INFINITY, 3}, b = {1, 1, 1};
      std::vector<float> y(3);
      uint32_t err = 4;
      auto op = make_op<weft_op_add>(host);
      op.head.flags = WEFT_OP_CHECK_FINITE;
      op.head.err = &err;
      op.n_rows = 1;
      op.n_cols = 3;
      op.a = a.data();
      op.b = b.data();
      op.y = y.data();
      must_launch(k, op);
      CHECK(err == (finite ? 4u : 5u));  // bits are only ever added
    }
  }
}

TEST_CASE("route: every variant gives the ids and weights of ref to the last bit") {
  Rng rng(41);
  for (const weft_kernel& k : runnable("route")) {
    const weft_kernel ref = ref_of(k);
    for (uint32_t round = 0; round < 60; ++round) {
      const uint32_t groups = round % 3 == 0 ? 4 : 1;
      const uint32_t experts = groups * (3 + rng.below(round % 5 == 0 ? 300 : 30));
      const uint32_t rows = 1 + rng.below(70), topk = 1 + rng.below(experts < 17 ? 3 : 9);
      const float width = round % 4 == 0 ? 130.0f : 6.0f;  // also scores that are subnormal
      Grid logits = Grid::random(rng, rows, experts, -width, width);
      for (uint64_t r = 0; r < rows; ++r) {
        logits.at(r, rng.below(experts)) = round % 2 == 0 ? INFINITY : -INFINITY;
        if (round % 7 == 0) logits.at(r, rng.below(experts)) = NAN;
        for (uint32_t e = 1; e < experts; e += 3)  // ties
          logits.at(r, e) = logits.at(r, e - 1);
      }
      const std::vector<float> bias = rng.vector(experts, -0.1f, 0.1f);
      std::vector<uint16_t> id[2];
      std::vector<float> w[2];
      const auto run = [&](const weft_kernel& kernel, uint32_t threads, int into) {
        Host host(threads);
        auto op = make_op<weft_op_route>(host);
        op.n_rows = rows;
        op.n_experts = experts;
        op.topk = topk;
        op.kind = round % 5 == 1 ? WEFT_ROUTE_SOFTMAX : WEFT_ROUTE_SIGMOID;
        op.n_groups = groups;
        op.group_topk = groups == 1 ? 1 : 3;
        op.renorm = round % 2;
        op.scale = 2.5f;
        op.logits = logits.data();
        op.logits_stride = logits.stride();
        op.bias = round % 2 == 0 ? bias.data() : nullptr;
        id[into].assign(uint64_t{rows} * topk, 0);
        w[into].assign(uint64_t{rows} * topk, 0);
        op.id = id[into].data();
        op.w = w[into].data();
        must_launch(kernel, op);
      };
      run(ref, 1, 0);
      for (const uint32_t threads : {1u, 3u}) {
        INFO(k.variant << " round " << round << " threads " << threads);
        run(k, threads, 1);
        CHECK(id[0] == id[1]);
        for (size_t i = 0; i < w[0].size(); ++i) {
          if (std::isnan(w[0][i]) && std::isnan(w[1][i])) continue;
          CHECK(bits_of_float(w[0][i]) == bits_of_float(w[1][i]));
        }
      }
    }
  }
}

TEST_CASE("row ops: one wide row on several threads gives the bits of one thread") {
  Rng rng(42);
  const Grid g = Grid::random(rng, 1, 30011, -9, 9), u = Grid::random(rng, 1, 30011, -9, 9);
  for (const weft_kernel& k : runnable("glu")) {
    const Grid one = glu(k, g, u, WEFT_ACT_SITU, 25);
    CHECK(same_bits(glu(k, g, u, WEFT_ACT_SITU, 25, 2), one));
    CHECK(same_bits(glu(k, g, u, WEFT_ACT_SITU, 25, 3), one));
  }
}

}  // namespace kit
