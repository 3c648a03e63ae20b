// Expert selection. Scores are those of `ref` to the last bit, so every variant selects the same
// experts: they are computed in double vectors, and where those come so close to the border between
// two floats that another way to the same double could fall on the other side, ref's own formula
// decides.

namespace {

using Doubles = double __attribute__((vector_size(kLanes * 4)));
using Words = int64_t __attribute__((vector_size(kLanes * 4)));
using HalfFloats = float __attribute__((vector_size(kLanes * 2)));
constexpr uint32_t kDoubles = kLanes / 2;

// e^-|x|, relative error below 2^-50; |x| beyond 700 counts as 700.
inline Doubles exp_minus_abs(Doubles x) {
  Words bits;
  memcpy(&bits, &x, sizeof bits);
  bits |= static_cast<int64_t>(0x8000000000000000u);
  memcpy(&x, &bits, sizeof bits);
  const Doubles lowest = Doubles{} - 700.0;
  x = x < -700.0 ? lowest : x;
  constexpr double kShifter53 = 6755399441055744.0;  // 1.5 * 2^52: leaves n in the low bits
  const Doubles shifted = x * 1.4426950408889634 + kShifter53;
  const Doubles n = shifted - kShifter53;
  // ln 2 in two parts; the first ends in zeros, so that n times it is exact.
  const Doubles r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
  constexpr double kInverseFactorials[] = {1.0 / 6227020800,
                                           1.0 / 479001600,
                                           1.0 / 39916800,
                                           1.0 / 3628800,
                                           1.0 / 362880,
                                           1.0 / 40320,
                                           1.0 / 5040,
                                           1.0 / 720,
                                           1.0 / 120,
                                           1.0 / 24,
                                           1.0 / 6,
                                           1.0 / 2,
                                           1.0,
                                           1.0};
  Doubles p = r * kInverseFactorials[0] + kInverseFactorials[1];
#pragma GCC unroll 16
  for (int k = 2; k < 14; ++k) p = p * r + kInverseFactorials[k];
  Words power;
  memcpy(&power, &shifted, sizeof power);
  memcpy(&bits, &p, sizeof bits);
  bits += power << 52;
  memcpy(&p, &bits, sizeof p);
  return p;
}

// kDoubles scores from as many logits.
inline void sigmoid_scores(const float* logits, float* s) {
  HalfFloats in;
  memcpy(&in, logits, sizeof in);
  const Doubles x = __builtin_convertvector(in, Doubles);
  const Doubles e = exp_minus_abs(x);
  const Doubles ones = Doubles{} + 1.0;
  const Doubles score = (x >= 0.0 ? ones : e) / (1.0 + e);
  const HalfFloats out = __builtin_convertvector(score, HalfFloats);
  memcpy(s, &out, sizeof out);
  // A float keeps the upper bits of a double; the lower 29 tell how far it is from the middle
  // between two floats. Errors here and in ref stay below 16 units. NaN and what rounds to a
  // subnormal float are left to ref as well.
  Words bits;
  memcpy(&bits, &score, sizeof bits);
  const Words low = (bits & 0x1fffffff) - (0x10000000 - 64);
  const Words doubtful = ((low >= 0) & (low <= 128)) | ~(score >= 1.5e-38);
  for (uint32_t i = 0; i < kDoubles; ++i)
    if (doubtful[i] != 0) s[i] = static_cast<float>(ref::sigmoid(static_cast<double>(logits[i])));
}

struct RouteWork {
  float *s, *z, *best;  // [n_experts] each, best [topk]
  uint8_t *taken, *kept;
};
template <class Memory>
inline RouteWork route_work(const weft_op_route& op, Memory& memory) {
  RouteWork w;
  w.s = memory.template take<float>(op.n_experts);
  w.z = memory.template take<float>(op.n_experts);
  w.best = memory.template take<float>(op.topk);
  w.taken = memory.template take<uint8_t>(op.n_experts);
  w.kept = memory.template take<uint8_t>(op.n_groups + uint64_t{1});
  return w;
}

inline void route_scores(const weft_op_route& op, const float* logits, const RouteWork& w) {
  if (op.kind != WEFT_ROUTE_SIGMOID) {
    ref::route_scores(op, logits, w.s);
  } else {
    uint32_t e = 0;
    for (; e + kDoubles <= op.n_experts; e += kDoubles) sigmoid_scores(logits + e, w.s + e);
    for (; e < op.n_experts; ++e)
      w.s[e] = static_cast<float>(ref::sigmoid(static_cast<double>(logits[e])));
  }
  each_block(op.n_experts, [&](uint64_t c, uint32_t lanes) {
    V z = load_upto(w.s + c, lanes);
    if (op.bias != nullptr) z = plus(z, load_upto(op.bias + c, lanes));
    store_upto(w.z + c, max(z, set(-__builtin_inff())), lanes);  // NaN becomes -inf
  });
}

// The topk best, best first; equal ones by index, which the order of insertion keeps.
inline void select_experts(const weft_op_route& op, const RouteWork& w, bool groups, uint16_t* id) {
  uint32_t n = 0;
  const auto insert = [&](uint32_t e) {
    const float z = w.z[e];
    if (n == op.topk && !(z > w.best[n - 1])) return;
    uint32_t at = n < op.topk ? n++ : n - 1;
    for (; at > 0 && z > w.best[at - 1]; --at) {
      w.best[at] = w.best[at - 1];
      id[at] = id[at - 1];
    }
    w.best[at] = z;
    id[at] = static_cast<uint16_t>(e);
  };
  uint32_t e = 0;
  for (; e + kLanes <= op.n_experts; e += kLanes) {
    uint32_t open = n < op.topk ? (1u << kLanes) - 1 : above(load(w.z + e), w.best[n - 1]);
    for (; open != 0; open &= open - 1) {
      const uint32_t i = e + static_cast<uint32_t>(__builtin_ctz(open));
      if (!groups || w.taken[i] == 0) insert(i);
    }
  }
  for (; e < op.n_experts; ++e)
    if (!groups || w.taken[e] == 0) insert(e);
}

}  // namespace

Need route_need(const weft_op_route& op) {
  Sizer sizer;
  route_work(op, sizer);
  return {0, sizer.bytes};
}

void route(const weft_op_route& op) {
  const Team team(op.head, route_need(op), uint64_t{op.n_rows} * op.n_experts * 64, op.n_rows);
  team.over(op.n_rows, [&](uint64_t begin, uint64_t end, uint32_t part) {
    Bump bump(team.scratch(part));
    const RouteWork w = route_work(op, bump);
    for (uint64_t r = begin; r < end; ++r) {
      route_scores(op, op.logits + r * op.logits_stride, w);
      if (op.n_groups > 1) {
        memset(w.taken, 0, op.n_experts);
        ref::route_keep_groups(op, w.z, w.taken, w.kept);
      }
      uint16_t* id = op.id + r * op.topk;
      float* out = op.w + r * op.topk;
      select_experts(op, w, op.n_groups > 1, id);
      double sum = 0;
      for (uint32_t j = 0; j < op.topk; ++j) sum += static_cast<double>(w.s[id[j]]);
      for (uint32_t j = 0; j < op.topk; ++j) {
        const double s = static_cast<double>(w.s[id[j]]);
        const double share = op.renorm != 0 ? s / (sum + 1e-20) : s;
        out[j] = static_cast<float>(share * static_cast<double>(op.scale));
      }
    }
  });
}
