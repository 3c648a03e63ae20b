#include <cmath>
#include <cstring>

#include "numeric.h"
#include "ref.h"

namespace weft::kernels_cpu::ref {

double sigmoid(double x) {
  const double e = std::exp(-std::fabs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);  // a NaN takes the second branch and stays NaN
}

double gated_unit(uint32_t act, double beta, double up_beta, double gate, double up) {
  if (act == WEFT_ACT_SILU) return gate * sigmoid(gate) * up;
  const double capped = up_beta == 0 ? up : up_beta * std::tanh(up / up_beta);
  return beta * std::tanh(gate / beta) * sigmoid(gate) * capped;
}

void embed(const weft_op_embed& op) {
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    float* y = row_of(op.y, op.y_stride, r);
    const int32_t id = op.id[r];
    const bool known = id >= 0 && static_cast<uint64_t>(id) < op.table.n;
    if (!known) raise(op.head, kErrBadIndex);
    for (uint64_t c = 0; c < op.table.k; ++c)
      y[c] = known ? weight_value(op.table, static_cast<uint64_t>(id), c) : 0.0f;
  }
}

void norm(const weft_op_norm& op) {
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    const float* x = row_of(op.x, op.x_stride, r);
    float* y = row_of(op.y, op.y_stride, r);
    double squares = 0;
    for (uint32_t c = 0; c < op.n_cols; ++c) squares += static_cast<double>(x[c]) * x[c];
    const double inverse = 1 / std::sqrt(squares / op.n_cols + static_cast<double>(op.eps));
    for (uint32_t c = 0; c < op.n_cols; ++c) y[c] = static_cast<float>(x[c] * inverse * op.w[c]);
  }
}

void glu(const weft_op_glu& op) {
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    const float* gate = row_of(op.gate, op.gate_stride, r);
    const float* up = row_of(op.up, op.up_stride, r);
    float* y = row_of(op.y, op.y_stride, r);
    for (uint32_t c = 0; c < op.n_cols; ++c)
      y[c] = static_cast<float>(gated_unit(op.act, op.beta, op.up_beta, gate[c], up[c]));
  }
}

void gate(const weft_op_gate& op) {
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    const float* x = row_of(op.x, op.x_stride, r);
    const float* u = row_of(op.u, op.u_stride, r);
    float* y = row_of(op.y, op.y_stride, r);
    for (uint32_t c = 0; c < op.n_cols; ++c) y[c] = static_cast<float>(x[c] * sigmoid(u[c]));
  }
}

void add(const weft_op_add& op) {
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    const float* a = row_of(op.a, op.a_stride, r);
    const float* b = row_of(op.b, op.b_stride, r);
    float* y = row_of(op.y, op.y_stride, r);
    for (uint32_t c = 0; c < op.n_cols; ++c) y[c] = a[c] + b[c];
  }
}

void gather(const weft_op_gather& op) {
  for (uint32_t i = 0; i < op.n_rows; ++i)
    memcpy(row_of(op.y, op.y_stride, i), row_of(op.x, op.x_stride, op.row[i]),
           op.n_cols * sizeof(float));
}

void scatter(const weft_op_gather& op) {
  for (uint32_t i = 0; i < op.n_rows; ++i)
    memcpy(row_of(op.y, op.y_stride, op.row[i]), row_of(op.x, op.x_stride, i),
           op.n_cols * sizeof(float));
}

Need attnres_need(const weft_op_attnres& op) {
  return {0, slab<double>(op.n_blocks + uint64_t{1})};
}

void attnres(const weft_op_attnres& op) {
  const uint32_t n = op.n_blocks + 1;
  double* p = reinterpret_cast<double*>(Team(op.head, attnres_need(op), 0, 1).scratch(0));
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    const auto source = [&](uint32_t j) {
      if (j == op.n_blocks) return row_of(op.prefix, op.prefix_stride, r);
      return static_cast<const float*>(op.blocks) + j * op.block_stride + r * op.row_stride;
    };
    double top = -INFINITY;
    for (uint32_t j = 0; j < n; ++j) {
      const float* v = source(j);
      double dot = 0, squares = 0;
      for (uint32_t c = 0; c < op.n_cols; ++c) {
        dot += static_cast<double>(op.q[c]) * v[c];
        squares += static_cast<double>(v[c]) * v[c];
      }
      p[j] = dot / std::sqrt(squares / op.n_cols + static_cast<double>(op.eps));
      if (!(p[j] <= top)) top = p[j];
    }
    double sum = 0;
    for (uint32_t j = 0; j < n; ++j) sum += p[j] = std::exp(p[j] - top);
    float* y = row_of(op.y, op.y_stride, r);
    double squares = 0;
    for (uint32_t c = 0; c < op.n_cols; ++c) {
      double h = 0;
      for (uint32_t j = 0; j < n; ++j) h += p[j] / sum * source(j)[c];
      squares += h * h;
      y[c] = static_cast<float>(h);
    }
    if (op.norm_w == nullptr) continue;
    const double inverse = 1 / std::sqrt(squares / op.n_cols + static_cast<double>(op.norm_eps));
    for (uint32_t c = 0; c < op.n_cols; ++c)
      y[c] = static_cast<float>(y[c] * inverse * op.norm_w[c]);
  }
}

void gelu(const weft_op_gelu& op) {
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    const float* x = row_of(op.x, op.x_stride, r);
    float* y = row_of(op.y, op.y_stride, r);
    for (uint32_t c = 0; c < op.n_cols; ++c) {
      const double v = x[c];
      const double inner = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
      const double half = op.tanh_form != 0 ? std::tanh(inner) : std::erf(v / std::sqrt(2.0));
      y[c] = static_cast<float>(0.5 * v * (1 + half));
    }
  }
}

}  // namespace weft::kernels_cpu::ref
