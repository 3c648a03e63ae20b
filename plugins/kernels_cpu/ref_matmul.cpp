#include <cmath>

#include "numeric.h"
#include "panels.h"
#include "ref.h"

namespace weft::kernels_cpu::ref {

namespace {

double dot(const weft_weight& w, uint64_t n, const float* x) {
  double sum = 0;
  for (uint64_t k = 0; k < w.k; ++k) sum += static_cast<double>(any_weight_value(w, n, k)) * x[k];
  return sum;
}

}  // namespace

void gemm(const weft_op_gemm& op) {
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    const float* x = row_of(op.x, op.x_stride, r);
    float* y = row_of(op.y, op.y_stride, r);
    for (uint64_t n = 0; n < op.w.n; ++n) {
      const double sum = dot(op.w, n, x);
      y[n] = static_cast<float>((op.mode & WEFT_GEMM_ADD) != 0 ? y[n] + sum : sum);
    }
  }
}

void gemm_group(const weft_op_gemm_group& op) {
  for (uint32_t i = 0; i < op.n_out; ++i) gemm(member_of(op, i));
}

Need moe_need(const weft_op_moe& op) {
  return {0, slab<float>(op.w1[0].n) + slab<float>(op.w2[0].n)};
}

// Rounds to f32 where the ops it is built from would: the activated vector, each expert's output,
// the running sum.
void moe(const weft_op_moe& op) {
  Bump bump(Team(op.head, moe_need(op), 0, 1).scratch(0));
  float* h = bump.take<float>(op.w1[0].n);
  float* sum = bump.take<float>(op.w2[0].n);
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    const float* x = row_of(op.x, op.x_stride, r);
    float* y = row_of(op.y, op.y_stride, r);
    for (uint64_t n = 0; n < op.w2[0].n; ++n) sum[n] = 0;
    for (uint32_t j = 0; j < op.topk; ++j) {
      const uint32_t id = op.id[uint64_t{r} * op.topk + j];
      if (id < op.first || id - op.first >= op.n_local) continue;
      const uint32_t e = id - op.first;
      const float weight = op.w[uint64_t{r} * op.topk + j];
      for (uint64_t i = 0; i < op.w1[0].n; ++i)
        h[i] = static_cast<float>(
            gated_unit(op.act, op.beta, op.up_beta, dot(op.w1[e], i, x), dot(op.w3[e], i, x)));
      for (uint64_t n = 0; n < op.w2[0].n; ++n)
        sum[n] += weight * static_cast<float>(dot(op.w2[e], n, h));
    }
    for (uint64_t n = 0; n < op.w2[0].n; ++n) y[n] = sum[n];
  }
}

// z of every expert, s of every expert, one "still selectable" mark per expert.
Need route_need(const weft_op_route& op) {
  return {0, 2 * slab<float>(op.n_experts) + slab<uint8_t>(op.n_experts) +
                 slab<uint8_t>(op.n_groups + uint64_t{1})};
}

void route_scores(const weft_op_route& op, const float* logits, float* s) {
  if (op.kind == WEFT_ROUTE_SIGMOID) {
    for (uint32_t e = 0; e < op.n_experts; ++e) s[e] = static_cast<float>(sigmoid(logits[e]));
    return;
  }
  double top = -INFINITY;
  for (uint32_t e = 0; e < op.n_experts; ++e)
    if (!(logits[e] <= top)) top = logits[e];
  double sum = 0;
  for (uint32_t e = 0; e < op.n_experts; ++e) sum += std::exp(logits[e] - top);
  for (uint32_t e = 0; e < op.n_experts; ++e)
    s[e] = static_cast<float>(std::exp(logits[e] - top) / sum);
}

void route_keep_groups(const weft_op_route& op, const float* z, uint8_t* taken, uint8_t* kept) {
  const uint32_t size = op.n_experts / op.n_groups;
  const auto strength = [&](uint32_t g) {
    float first = -INFINITY, second = size == 1 ? 0.0f : -INFINITY;
    for (uint32_t i = 0; i < size; ++i) {
      const float value = z[g * size + i];
      if (value > first) {
        if (size > 1) second = first;
        first = value;
      } else if (value > second && size > 1) {
        second = value;
      }
    }
    return first + second;
  };
  for (uint32_t g = 0; g < op.n_groups; ++g) kept[g] = 0;
  for (uint32_t round = 0; round < op.group_topk; ++round) {
    uint32_t best = op.n_groups;
    float best_strength = 0;
    for (uint32_t g = 0; g < op.n_groups; ++g) {
      if (kept[g] != 0) continue;
      const float value = strength(g);
      if (best == op.n_groups || value > best_strength) best = g, best_strength = value;
    }
    kept[best] = 1;
  }
  for (uint32_t e = 0; e < op.n_experts; ++e)
    if (kept[e / size] == 0) taken[e] = 1;
}

// s and z are f32, as on every other device: selection must not depend on digits that others do not
// have.
void route(const weft_op_route& op) {
  Bump bump(Team(op.head, route_need(op), 0, 1).scratch(0));
  float* s = bump.take<float>(op.n_experts);
  float* z = bump.take<float>(op.n_experts);
  uint8_t* taken = bump.take<uint8_t>(op.n_experts);
  uint8_t* kept = bump.take<uint8_t>(op.n_groups + uint64_t{1});
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    route_scores(op, op.logits + r * op.logits_stride, s);
    for (uint32_t e = 0; e < op.n_experts; ++e) {
      z[e] = op.bias != nullptr ? s[e] + op.bias[e] : s[e];
      if (std::isnan(z[e]))
        z[e] = -INFINITY;  // never preferred; its weight still shows the NaN if it must be taken
      taken[e] = 0;
    }
    if (op.n_groups > 1) route_keep_groups(op, z, taken, kept);
    uint16_t* id = op.id + uint64_t{r} * op.topk;
    float* w = op.w + uint64_t{r} * op.topk;
    double sum = 0;
    for (uint32_t j = 0; j < op.topk; ++j) {
      uint32_t best = op.n_experts;
      for (uint32_t e = 0; e < op.n_experts; ++e)
        if (taken[e] == 0 && (best == op.n_experts || z[e] > z[best])) best = e;
      taken[best] = 1;
      id[j] = static_cast<uint16_t>(best);
      w[j] = s[best];
      sum += s[best];
    }
    for (uint32_t j = 0; j < op.topk; ++j) {
      const double share = op.renorm != 0 ? w[j] / (sum + 1e-20) : w[j];
      w[j] = static_cast<float>(share * op.scale);
    }
  }
}

}  // namespace weft::kernels_cpu::ref
