// vit_pos, vit_attend, vit_merge. ref is checked against values worked out by hand or by other
// means, variants against ref.
#include "kit.h"

namespace kit {
namespace {

Grid vit_pos(const weft_kernel& k, const Grid& x, const std::vector<float>& table, uint32_t table_h,
             uint32_t table_w, uint32_t t, uint32_t h, uint32_t w) {
  Host host(1);
  Grid y = x;
  auto op = make_op<weft_op_vit_pos>(host);
  op.grid_t = t, op.grid_h = h, op.grid_w = w;
  op.n_cols = static_cast<uint32_t>(x.cols());
  op.table_h = table_h, op.table_w = table_w;
  op.table = table.data();
  op.x = y.data();
  op.x_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  return y;
}

void compare_pos(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t th = 1 + rng.below(6), tw = 1 + rng.below(6), t = 1 + rng.below(3),
                 n = 2 * (1 + rng.below(9));
  const uint32_t h = 1 + rng.below(7), w = 1 + rng.below(7);
  const auto table = rng.vector(uint64_t{th} * tw * n);
  const Grid x = Grid::random(rng, uint64_t{t} * h * w, n);
  CHECK(distance(vit_pos(k, x, table, th, tw, t, h, w),
                 vit_pos(ref_of(k), x, table, th, tw, t, h, w)) < 1e-6);
}

Grid vit_attend(const weft_kernel& k, const Grid& qkv, uint32_t t, uint32_t h, uint32_t w,
                uint32_t heads, uint32_t threads = 1) {
  Host host(threads);
  Grid y(qkv.rows(), qkv.cols() / 3, 2);
  auto op = make_op<weft_op_vit_attend>(host);
  op.grid_t = t, op.grid_h = h, op.grid_w = w;
  op.heads = heads;
  op.head_dim = static_cast<uint32_t>(qkv.cols() / 3 / heads);
  op.qkv = qkv.data();
  op.qkv_stride = qkv.stride();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  return y;
}

void compare_attend(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t t = 1 + rng.below(2), h = 1 + rng.below(6), w = 1 + rng.below(7),
                 heads = 1 + rng.below(3);
  const Grid qkv =
      Grid::random(rng, uint64_t{t} * h * w, 3 * heads * 4 * (1 + rng.below(6)), -2, 2);
  const Grid got = vit_attend(k, qkv, t, h, w, heads);
  CHECK(distance(got, vit_attend(ref_of(k), qkv, t, h, w, heads)) < 2e-5);  // as for mla
  CHECK(same_bits(vit_attend(k, qkv, t, h, w, heads, 3), got));
}

void compare_merge(const weft_kernel& k, uint64_t seed) {
  Rng rng(seed);
  const uint32_t t = 1 + rng.below(3), merge = 1 + rng.below(3), n = 1 + rng.below(9);
  const uint32_t h = merge * (1 + rng.below(3)), w = merge * (1 + rng.below(3));
  const Grid x = Grid::random(rng, uint64_t{t} * h * w, n);
  Host host(1);
  Grid y(uint64_t{h / merge} * (w / merge), uint64_t{merge} * merge * n);
  auto op = make_op<weft_op_vit_merge>(host);
  op.grid_t = t, op.grid_h = h, op.grid_w = w;
  op.n_cols = n;
  op.merge = merge;
  op.x = x.data();
  op.x_stride = x.stride();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  for (uint64_t r = 0; r < y.rows(); ++r)
    for (uint64_t c = 0; c < y.cols(); ++c) {
      const uint64_t a = c / n / merge, b = c / n % merge;
      const uint64_t row = r / (w / merge) * merge + a, col = r % (w / merge) * merge + b;
      double mean = 0;
      for (uint32_t f = 0; f < t; ++f) mean += x.at((uint64_t{f} * h + row) * w + col, c % n);
      CHECK(y.at(r, c) == doctest::Approx(mean / t).epsilon(1e-6));
    }
}

}  // namespace

std::vector<OpCase> vision_cases() {
  return {{"vit_pos", compare_pos}, {"vit_attend", compare_attend}, {"vit_merge", compare_merge}};
}

TEST_CASE(
    "vit_pos: a table of the grid's size is added as it is, a larger grid interpolates with "
    "clamped edges") {
  for (const weft_kernel& k : runnable("vit_pos")) {
    const std::vector<float> table = {1, 2, 3, 4, 5, 6};  // 2 x 3, one column
    const Grid zero = [] {
      Grid g(6, 1);
      for (uint64_t r = 0; r < 6; ++r) g.at(r, 0) = 0;
      return g;
    }();
    const Grid same = vit_pos(k, zero, table, 2, 3, 1, 2, 3);
    for (uint64_t r = 0; r < 6; ++r) CHECK(same.at(r, 0) == table[r]);
    const Grid wide =
        vit_pos(k, zero, {0, 12}, 1, 2, 1, 1, 6);  // centres at 1/6 - 1/2, 3/6 - 1/2, ...
    const double want[6] = {0, 0, 4, 8, 12, 12};
    for (uint64_t r = 0; r < 6; ++r) CHECK(wide.at(r, 0) == doctest::Approx(want[r]));
    // Frame 1 of a clip adds [sin 1, cos 1] for two columns.
    Grid clip(2, 2);
    for (uint64_t r = 0; r < 2; ++r) clip.at(r, 0) = clip.at(r, 1) = 0;
    const Grid frames = vit_pos(k, clip, {0, 0}, 1, 1, 2, 1, 1);
    CHECK(frames.at(0, 0) == 0);
    CHECK(frames.at(0, 1) == 1);
    CHECK(frames.at(1, 0) == doctest::Approx(std::sin(1.0)));
    CHECK(frames.at(1, 1) == doctest::Approx(std::cos(1.0)));
  }
}

TEST_CASE("vit_attend: rotary pairs turn by column, then by row") {
  // Two tokens side by side with equal queries and keys (1,0,1,0): the second token's score with
  // itself is 2/2, with the first one (cos 1 + 1)/2, because only the column pair turns.
  for (const weft_kernel& k : runnable("vit_attend")) {
    for (const bool tall : {false, true}) {
      Grid qkv(2, 12);
      for (uint64_t r = 0; r < 2; ++r)
        for (uint64_t c = 0; c < 12; ++c)
          qkv.at(r, c) =
              c >= 8 ? static_cast<float>(r) : c == (tall ? 2 : 0) || c == (tall ? 6 : 4);
      const Grid y = tall ? vit_attend(k, qkv, 1, 2, 1, 1) : vit_attend(k, qkv, 1, 1, 2, 1);
      const double self = std::exp(0.5), other = std::exp(std::cos(1.0) / 2);
      CHECK(y.at(1, 0) == doctest::Approx(self / (self + other)).epsilon(1e-5));
      CHECK(y.at(0, 3) == doctest::Approx(other / (self + other)).epsilon(1e-5));
    }
  }
}

}  // namespace kit
