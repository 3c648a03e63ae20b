#include <cmath>

#include "kda_head.h"
#include "numeric.h"
#include "ref.h"

// The state is f32 and is rounded after every token (kda_step) or chunk (kda_chunk); everything
// between two roundings is double. Splitting a sequence over calls therefore changes no bit of
// kda_step.
namespace weft::kernels_cpu::ref {

namespace {

void short_conv(const weft_op_kda& op, const KdaHead& head, int stream, uint32_t t, double* out) {
  const float* w = head.taps(stream);
  for (uint32_t c = 0; c < head.dim(stream); ++c) {
    double sum = 0;
    for (uint32_t j = 0; j < op.taps; ++j)
      sum += static_cast<double>(w[c * op.taps + j]) *
             head.raw(stream, int64_t{t} - op.taps + 1 + j, c);
    out[c] = sum * sigmoid(sum);
  }
}

void unit_length(double* x, uint32_t n, double scale) {
  double squares = 0;
  for (uint32_t c = 0; c < n; ++c) squares += x[c] * x[c];
  const double factor = scale / std::sqrt(squares + 1e-6);
  for (uint32_t c = 0; c < n; ++c) x[c] *= factor;
}

// q, k, v after convolution, activation and normalisation, and the log decay g; returns beta.
double token(const weft_op_kda& op, const KdaHead& head, uint32_t h, uint32_t t, double* q,
             double* k, double* v, double* g) {
  short_conv(op, head, KdaHead::kQ, t, q);
  short_conv(op, head, KdaHead::kK, t, k);
  short_conv(op, head, KdaHead::kV, t, v);
  unit_length(q, op.head_k, 1 / std::sqrt(static_cast<double>(op.head_k)));
  unit_length(k, op.head_k, 1);
  const double a = std::exp(static_cast<double>(op.a_log[h]));
  for (uint32_t c = 0; c < op.head_k; ++c) {
    const double z =
        static_cast<double>(head.decay_input(t)[c]) + op.dt_bias[uint64_t{h} * op.head_k + c];
    if (op.gate == WEFT_KDA_GATE_BOUNDED)
      g[c] = op.bound * sigmoid(a * z);
    else
      g[c] = -a * ((z > 0 ? z : 0) + std::log1p(std::exp(-std::fabs(z))));
  }
  return sigmoid(head.beta_input(t));
}

void write_output(const weft_op_kda& op, const KdaHead& head, uint32_t t, const double* o) {
  double squares = 0;
  for (uint32_t j = 0; j < op.head_v; ++j) squares += o[j] * o[j];
  const double inverse = 1 / std::sqrt(squares / op.head_v + static_cast<double>(op.norm_eps));
  for (uint32_t j = 0; j < op.head_v; ++j)
    head.output(t)[j] =
        static_cast<float>(o[j] * inverse * op.o_norm[j] * sigmoid(head.gate_input(t)[j]));
}

void step_head(const weft_op_kda& op, uint32_t seq, uint32_t h, uint8_t* scratch) {
  Bump bump(scratch);
  float* history = bump.take<float>(KdaHead::history_floats(op));
  float* S = bump.take<float>(KdaHead::state_floats(op));
  double *q = bump.take<double>(op.head_k), *k = bump.take<double>(op.head_k),
         *g = bump.take<double>(op.head_k);
  double *v = bump.take<double>(op.head_v), *o = bump.take<double>(op.head_v);
  const KdaHead head(op, seq, h, history, S);
  for (uint32_t t = 0; t < head.n(); ++t) {
    const double beta = token(op, head, h, t, q, k, v, g);
    for (uint32_t j = 0; j < op.head_v; ++j) {
      double guess = 0;
      for (uint32_t c = 0; c < op.head_k; ++c)
        guess += std::exp(g[c]) * S[c * op.head_v + j] * k[c];
      const double delta = beta * (v[j] - guess);
      o[j] = 0;
      for (uint32_t c = 0; c < op.head_k; ++c) {
        float& s = S[c * op.head_v + j];
        s = static_cast<float>(std::exp(g[c]) * s + k[c] * delta);
        o[j] += q[c] * s;
      }
    }
    write_output(op, head, t, o);
    head.snapshot_if_due(t + 1);
  }
  head.finish();
}

constexpr uint32_t kChunk = 64;
uint32_t chunk_of(const weft_op_kda& op) { return op.chunk == 0 ? kChunk : op.chunk; }

struct Chunk {
  double *q, *k, *g, *v, *beta, *delta;
};

// sum_c a_i,c exp(G_i,c - G_j,c) b_j,c for one pair j <= i.
double decayed_dot(uint32_t n, const double* a, const double* b, const double* g_i,
                   const double* g_j) {
  double sum = 0;
  for (uint32_t c = 0; c < n; ++c) sum += a[c] * std::exp(g_i[c] - g_j[c]) * b[c];
  return sum;
}

// Tokens t0 .. t0+n-1 with the state before them in S; leaves the state after them in S.
void run_chunk(const weft_op_kda& op, const KdaHead& head, uint32_t h, uint32_t t0, uint32_t n,
               const Chunk& w, double* o) {
  const uint32_t K = op.head_k, V = op.head_v;
  float* S = head.state();
  for (uint32_t i = 0; i < n; ++i) {
    w.beta[i] = token(op, head, h, t0 + i, w.q + i * K, w.k + i * K, w.v + i * V, w.g + i * K);
    for (uint32_t c = 0; c < K && i > 0; ++c) w.g[i * K + c] += w.g[(i - 1) * K + c];
  }
  for (uint32_t i = 0; i < n;
       ++i) {  // forward substitution of (I + A) D = diag(beta) (V - (e^G K) S)
    const double* g = w.g + i * K;
    double* delta = w.delta + i * V;
    for (uint32_t j = 0; j < V; ++j) {
      double guess = 0;
      for (uint32_t c = 0; c < K; ++c) guess += std::exp(g[c]) * w.k[i * K + c] * S[c * V + j];
      delta[j] = w.v[i * V + j] - guess;
    }
    for (uint32_t p = 0; p < i; ++p) {
      const double a = decayed_dot(K, w.k + i * K, w.k + p * K, g, w.g + p * K);
      for (uint32_t j = 0; j < V; ++j) delta[j] -= a * w.delta[p * V + j];
    }
    for (uint32_t j = 0; j < V; ++j) delta[j] *= w.beta[i];
  }
  for (uint32_t i = 0; i < n; ++i) {
    const double* g = w.g + i * K;
    for (uint32_t j = 0; j < V; ++j) {
      o[j] = 0;
      for (uint32_t c = 0; c < K; ++c) o[j] += std::exp(g[c]) * w.q[i * K + c] * S[c * V + j];
    }
    for (uint32_t p = 0; p <= i; ++p) {
      const double a = decayed_dot(K, w.q + i * K, w.k + p * K, g, w.g + p * K);
      for (uint32_t j = 0; j < V; ++j) o[j] += a * w.delta[p * V + j];
    }
    write_output(op, head, t0 + i, o);
  }
  const double* end = w.g + (n - 1) * K;
  for (uint32_t c = 0; c < K; ++c)
    for (uint32_t j = 0; j < V; ++j) {
      double s = std::exp(end[c]) * S[c * V + j];
      for (uint32_t i = 0; i < n; ++i)
        s += std::exp(end[c] - w.g[i * K + c]) * w.k[i * K + c] * w.delta[i * V + j];
      S[c * V + j] = static_cast<float>(s);
    }
}

void chunk_head(const weft_op_kda& op, uint32_t seq, uint32_t h, uint8_t* scratch) {
  Bump bump(scratch);
  const uint64_t C = chunk_of(op);
  float* history = bump.take<float>(KdaHead::history_floats(op));
  float* S = bump.take<float>(KdaHead::state_floats(op));
  double* o = bump.take<double>(op.head_v);
  Chunk w;
  w.q = bump.take<double>(C * op.head_k);
  w.k = bump.take<double>(C * op.head_k);
  w.g = bump.take<double>(C * op.head_k);
  w.v = bump.take<double>(C * op.head_v);
  w.beta = bump.take<double>(C);
  w.delta = bump.take<double>(C * op.head_v);
  const KdaHead head(op, seq, h, history, S);
  for (uint32_t t = 0; t < head.n();) {
    uint32_t n = head.n() - t < C ? head.n() - t : static_cast<uint32_t>(C);
    if (t < head.snap_at() && t + n > head.snap_at()) n = head.snap_at() - t;
    run_chunk(op, head, h, t, n, w, o);
    t += n;
    head.snapshot_if_due(t);
  }
  head.finish();
}

}  // namespace

Need kda_step_need(const weft_op_kda& op) {
  return {0, slab<float>(KdaHead::history_floats(op)) + slab<float>(KdaHead::state_floats(op)) +
                 3 * slab<double>(op.head_k) + 2 * slab<double>(op.head_v)};
}

Need kda_chunk_need(const weft_op_kda& op) {
  const uint64_t C = chunk_of(op);
  return {0, slab<float>(KdaHead::history_floats(op)) + slab<float>(KdaHead::state_floats(op)) +
                 slab<double>(op.head_v) + 3 * slab<double>(C * op.head_k) +
                 2 * slab<double>(C * op.head_v) + slab<double>(C)};
}

void kda_step(const weft_op_kda& op) {
  uint8_t* scratch = Team(op.head, kda_step_need(op), 0, 1).scratch(0);
  for (uint32_t seq = 0; seq < op.rows.n_seqs; ++seq)
    for (uint32_t h = 0; h < op.heads; ++h) step_head(op, seq, h, scratch);
}

void kda_chunk(const weft_op_kda& op) {
  uint8_t* scratch = Team(op.head, kda_chunk_need(op), 0, 1).scratch(0);
  for (uint32_t seq = 0; seq < op.rows.n_seqs; ++seq)
    for (uint32_t h = 0; h < op.heads; ++h) chunk_head(op, seq, h, scratch);
}

}  // namespace weft::kernels_cpu::ref
