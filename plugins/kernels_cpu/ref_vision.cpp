#include <cmath>

#include "numeric.h"
#include "ref.h"

namespace weft::kernels_cpu::ref {

namespace {

struct Tap {
  uint32_t low, high;
  double share;  // of high
};

// One axis of a bilinear resize without aligned corners: output centres map to input centres, edges
// clamp.
Tap tap(uint32_t in, uint32_t out, uint32_t i) {
  const double at = std::fmax((i + 0.5) * in / out - 0.5, 0.0);
  const uint32_t floor_at = static_cast<uint32_t>(at);
  const uint32_t low = floor_at < in - 1 ? floor_at : in - 1;
  return {low, low + 1 < in ? low + 1 : in - 1, at - low};
}

}  // namespace

void vit_pos(const weft_op_vit_pos& op) {
  const uint32_t half = op.n_cols / 2;
  for (uint32_t t = 0; t < op.grid_t; ++t)
    for (uint32_t h = 0; h < op.grid_h; ++h)
      for (uint32_t w = 0; w < op.grid_w; ++w) {
        const Tap row = tap(op.table_h, op.grid_h, h);
        const Tap col = tap(op.table_w, op.grid_w, w);
        float* x = row_of(op.x, op.x_stride, (uint64_t{t} * op.grid_h + h) * op.grid_w + w);
        for (uint32_t c = 0; c < op.n_cols; ++c) {
          const auto table = [&](uint32_t a, uint32_t b) {
            return static_cast<double>(op.table[(uint64_t{a} * op.table_w + b) * op.n_cols + c]);
          };
          const double left =
              table(row.low, col.low) * (1 - row.share) + table(row.high, col.low) * row.share;
          const double right =
              table(row.low, col.high) * (1 - row.share) + table(row.high, col.high) * row.share;
          double value = left * (1 - col.share) + right * col.share;
          if (op.grid_t > 1) {
            const uint32_t j = c < half ? c : c - half;
            const double angle = t * std::pow(10000.0, -static_cast<double>(j) / half);
            value += c < half ? std::sin(angle) : std::cos(angle);
          }
          x[c] = static_cast<float>(x[c] + value);
        }
      }
}

Need vit_attend_need(const weft_op_vit_attend& op) {
  const uint64_t n = uint64_t{op.grid_t} * op.grid_h * op.grid_w;
  return {0, 2 * slab<double>(op.head_dim) + slab<double>(n)};
}

namespace {

// Rotates one head vector of token `index` into `out`.
void turn(const weft_op_vit_attend& op, uint64_t index, const float* in, double* out) {
  const uint64_t cell = index % (uint64_t{op.grid_h} * op.grid_w);
  const double row = static_cast<double>(cell / op.grid_w);
  const double col = static_cast<double>(cell % op.grid_w);
  for (uint32_t p = 0; p < op.head_dim / 2; ++p) {
    const double frequency = std::pow(10000.0, -4.0 * (p / 2) / op.head_dim);
    const double angle = (p % 2 == 0 ? col : row) * frequency;
    const double cosine = std::cos(angle), sine = std::sin(angle);
    out[2 * p] = in[2 * p] * cosine - in[2 * p + 1] * sine;
    out[2 * p + 1] = in[2 * p] * sine + in[2 * p + 1] * cosine;
  }
}

}  // namespace

void vit_attend(const weft_op_vit_attend& op) {
  const uint64_t n = uint64_t{op.grid_t} * op.grid_h * op.grid_w;
  const uint64_t width = uint64_t{op.heads} * op.head_dim;
  Bump bump(Team(op.head, vit_attend_need(op), 0, 1).scratch(0));
  double* q = bump.take<double>(op.head_dim);
  double* k = bump.take<double>(op.head_dim);
  double* p = bump.take<double>(n);
  for (uint32_t h = 0; h < op.heads; ++h)
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t at = uint64_t{h} * op.head_dim;
      turn(op, i, row_of(op.qkv, op.qkv_stride, i) + at, q);
      double top = -INFINITY;
      for (uint64_t j = 0; j < n; ++j) {
        turn(op, j, row_of(op.qkv, op.qkv_stride, j) + width + at, k);
        p[j] = 0;
        for (uint32_t c = 0; c < op.head_dim; ++c) p[j] += q[c] * k[c];
        p[j] /= std::sqrt(static_cast<double>(op.head_dim));
        if (!(p[j] <= top)) top = p[j];
      }
      double sum = 0;
      for (uint64_t j = 0; j < n; ++j) sum += p[j] = std::exp(p[j] - top);
      float* y = row_of(op.y, op.y_stride, i) + at;
      for (uint32_t c = 0; c < op.head_dim; ++c) {
        double value = 0;
        for (uint64_t j = 0; j < n; ++j)
          value += p[j] * row_of(op.qkv, op.qkv_stride, j)[2 * width + at + c];
        y[c] = static_cast<float>(value / sum);
      }
    }
}

void vit_merge(const weft_op_vit_merge& op) {
  for (uint32_t h = 0; h < op.grid_h / op.merge; ++h)
    for (uint32_t w = 0; w < op.grid_w / op.merge; ++w) {
      float* y = row_of(op.y, op.y_stride, uint64_t{h} * (op.grid_w / op.merge) + w);
      for (uint32_t a = 0; a < op.merge; ++a)
        for (uint32_t b = 0; b < op.merge; ++b)
          for (uint32_t c = 0; c < op.n_cols; ++c) {
            double sum = 0;
            for (uint32_t t = 0; t < op.grid_t; ++t) {
              const uint64_t row =
                  (uint64_t{t} * op.grid_h + h * op.merge + a) * op.grid_w + w * op.merge + b;
              sum += row_of(op.x, op.x_stride, row)[c];
            }
            y[(uint64_t{a} * op.merge + b) * op.n_cols + c] = static_cast<float>(sum / op.grid_t);
          }
    }
}

}  // namespace weft::kernels_cpu::ref
