#include <cmath>

#include "numeric.h"
#include "pages.h"
#include "ref.h"

// A token whose page is missing counts as a row of zeros and raises the bad-index bit.
namespace weft::kernels_cpu::ref {

void mla_store(const weft_op_mla_store& op) {
  const uint32_t latent = op.pages.latent;
  for (uint32_t seq = 0; seq < op.rows.n_seqs; ++seq)
    for (uint32_t r = op.rows.seq_start[seq]; r < op.rows.seq_start[seq + 1]; ++r) {
      const float* x = row_of(op.x, op.x_stride, r);
      uint8_t* out =
          page_row(op.pages, seq, uint64_t{op.rows.context[seq]} + r - op.rows.seq_start[seq]);
      if (out == nullptr) {
        raise(op.head, kErrBadIndex);
        continue;
      }
      double squares = 0;
      for (uint32_t c = 0; c < latent; ++c) squares += static_cast<double>(x[c]) * x[c];
      const double inverse = 1 / std::sqrt(squares / latent + static_cast<double>(op.eps));
      for (uint32_t c = 0; c < latent; ++c)
        plain_put(out, op.pages.dtype, c, static_cast<float>(x[c] * inverse * op.w[c]));
      for (uint32_t c = latent; c < latent + op.pages.tail; ++c)
        plain_put(out, op.pages.dtype, c, x[c]);
    }
}

namespace {

// Softmax weights with an online rescale, so that no list of scores over the context is needed.
struct Online {
  double top = -INFINITY;
  double sum = 0;

  // Returns the weight of this score; `rescale` is what everything gathered so far must be
  // multiplied with.
  double take(double score, double* rescale) {
    const double higher = score <= top ? top : score;
    *rescale = top == -INFINITY ? 0.0 : std::exp(top - higher);
    top = higher;
    const double weight = std::exp(score - top);
    sum = sum * *rescale + weight;
    return weight;
  }
};

double at_row(const weft_op_mla& op, const uint8_t* row, uint64_t column) {
  return row == nullptr ? 0.0 : plain_value(row, op.pages.dtype, column);
}

double tail_score(const weft_op_mla& op, const float* q, const uint8_t* row) {
  double sum = 0;
  for (uint32_t c = 0; c < op.pages.tail; ++c)
    sum += static_cast<double>(q[op.nope + c]) * at_row(op, row, uint64_t{op.pages.latent} + c);
  return sum;
}

double gate_of(const weft_op_mla& op, uint32_t r, uint64_t column) {
  return op.u == nullptr ? 1.0 : sigmoid(row_of(op.u, op.u_stride, r)[column]);
}

template <class Head>
void for_each_head(const weft_op_mla& op, const Head& body) {
  for (uint32_t seq = 0; seq < op.rows.n_seqs; ++seq)
    for (uint32_t r = op.rows.seq_start[seq]; r < op.rows.seq_start[seq + 1]; ++r)
      for (uint32_t h = 0; h < op.heads; ++h)
        body(seq, r, h, uint64_t{op.rows.context[seq]} + r - op.rows.seq_start[seq] + 1);
}

}  // namespace

Need mla_decode_need(const weft_op_mla& op) { return {0, 2 * slab<double>(op.pages.latent)}; }
Need mla_prefill_need(const weft_op_mla& op) { return {0, slab<double>(op.v_dim)}; }

void mla_decode(const weft_op_mla& op) {
  Bump bump(Team(op.head, mla_decode_need(op), 0, 1).scratch(0));
  const uint32_t latent = op.pages.latent;
  double* absorbed = bump.take<double>(latent);
  double* mixed = bump.take<double>(latent);
  for_each_head(op, [&](uint32_t seq, uint32_t r, uint32_t h, uint64_t tokens) {
    const float* q = row_of(op.q, op.q_stride, r) + uint64_t{h} * (op.nope + op.pages.tail);
    const uint64_t b = uint64_t{h} * (op.nope + op.v_dim);
    for (uint32_t c = 0; c < latent; ++c) {
      absorbed[c] = mixed[c] = 0;
      for (uint32_t i = 0; i < op.nope; ++i)
        absorbed[c] += static_cast<double>(q[i]) * weight_value(op.kv_b, b + i, c);
    }
    Online softmax;
    for (uint64_t t = 0; t < tokens; ++t) {
      const uint8_t* row = page_row(op.pages, seq, t);
      if (row == nullptr) raise(op.head, kErrBadIndex);
      double score = tail_score(op, q, row);
      for (uint32_t c = 0; c < latent; ++c) score += absorbed[c] * at_row(op, row, c);
      double rescale;
      const double p = softmax.take(score * op.scale, &rescale);
      for (uint32_t c = 0; c < latent; ++c) mixed[c] = mixed[c] * rescale + p * at_row(op, row, c);
    }
    float* y = row_of(op.y, op.y_stride, r);
    for (uint32_t i = 0; i < op.v_dim; ++i) {
      double sum = 0;
      for (uint32_t c = 0; c < latent; ++c)
        sum += mixed[c] * weight_value(op.kv_b, b + op.nope + i, c);
      const uint64_t column = uint64_t{h} * op.v_dim + i;
      y[column] = static_cast<float>(sum / softmax.sum * gate_of(op, r, column));
    }
  });
}

void mla_prefill(const weft_op_mla& op) {
  double* mixed = reinterpret_cast<double*>(Team(op.head, mla_prefill_need(op), 0, 1).scratch(0));
  for_each_head(op, [&](uint32_t seq, uint32_t r, uint32_t h, uint64_t tokens) {
    const float* q = row_of(op.q, op.q_stride, r) + uint64_t{h} * (op.nope + op.pages.tail);
    const uint64_t b = uint64_t{h} * (op.nope + op.v_dim);
    for (uint32_t i = 0; i < op.v_dim; ++i) mixed[i] = 0;
    Online softmax;
    for (uint64_t t = 0; t < tokens; ++t) {
      const uint8_t* row = page_row(op.pages, seq, t);
      if (row == nullptr) raise(op.head, kErrBadIndex);
      const auto expanded = [&](uint64_t n) {
        double sum = 0;
        for (uint32_t c = 0; c < op.pages.latent; ++c)
          sum += weight_value(op.kv_b, n, c) * at_row(op, row, c);
        return sum;
      };
      double score = tail_score(op, q, row);
      for (uint32_t i = 0; i < op.nope; ++i) score += q[i] * expanded(b + i);
      double rescale;
      const double p = softmax.take(score * op.scale, &rescale);
      for (uint32_t i = 0; i < op.v_dim; ++i)
        mixed[i] = mixed[i] * rescale + p * expanded(b + op.nope + i);
    }
    for (uint32_t i = 0; i < op.v_dim; ++i) {
      const uint64_t column = uint64_t{h} * op.v_dim + i;
      row_of(op.y, op.y_stride, r)[column] =
          static_cast<float>(mixed[i] / softmax.sum * gate_of(op, r, column));
    }
  });
}

}  // namespace weft::kernels_cpu::ref
