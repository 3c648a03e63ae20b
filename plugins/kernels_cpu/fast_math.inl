// Vector functions on V. The bounds are against the exact value; tests/kernels/rows_test.cpp holds
// sigmoid and tanh to them over their whole range.

// Calls would cost more than these functions do.
#define WEFT_INLINE [[gnu::always_inline]] inline
#define WEFT_ALWAYS __attribute__((always_inline))  // the same for lambdas

// e^r - 1 for the remainder of exp(): |r| <= ln 2 / (2 kExpSteps).
WEFT_INLINE V exp_remainder(V r) {
  V p = set(0.16666667f);
  if (kExpSteps < 16) p = fma(r, set(0.041666668f), p);
  return fma(fma(r, p, set(0.5f)), mul(r, r), r);
}
constexpr float kStepsPerUnit = 1.44269504f * kExpSteps;
constexpr float kStep = 0.69314718056f / kExpSteps;  // what rounding took from it:
constexpr float kStepRest = -1.90465430e-9f / kExpSteps;

// e^x. Relative error below 2^-22 where the result is normal; 0 below -104, infinite above 88.8;
// NaN stays NaN.
WEFT_INLINE V exp(V x) {
  x = at_least(at_most(x, 90.0f), -104.0f);
  const V shifted = fma(x, set(kStepsPerUnit), set(kShifter));
  const V n = minus(shifted, set(kShifter));
  const V p = exp_remainder(nfma(n, set(kStepRest), nfma(n, set(kStep), x)));
  const V step = step_power(shifted);
  return times_steps(fma(step, p, step), n);
}
// The same where |x| <= 87, and beyond that the value at 87; relative error below 2^-22 for
// |x| <= 20 and 2^-21.4 at 87, where kStepRest, which it ignores, counts.
WEFT_INLINE V exp_normal(V x) {
  x = at_least(at_most(x, 87.0f), -87.0f);
  const V shifted = fma(x, set(kStepsPerUnit), set(kShifter));
  const V p = exp_remainder(nfma(minus(shifted, set(kShifter)), set(kStep), x));
  const V step = power_of_steps(shifted);
  return fma(step, p, step);
}

// 1/(1 + e^-x). Relative error below 2^-21 for x > -87; not below e^-87.
WEFT_INLINE V sigmoid(V x) { return inverse(plus(set(1.0f), exp_normal(minus(zero(), x)))); }

// tanh(x) = numerator / denominator: a quotient of two polynomials in x^2 fitted to |x| <= 8.4,
// where tanh is 1 - 1e-7. Relative error below 2^-21 after the division, also next to zero.
struct Quotient {
  V numerator, denominator;
};
WEFT_INLINE Quotient tanh_quotient(V x) {
  x = at_least(at_most(x, 8.4f), -8.4f);
  const V z = mul(x, x);
  V p = fma(z, set(1.44578118e-8f), set(2.13797448e-5f));
  V q = fma(z, set(8.21994433e-7f), set(3.36142431e-4f));
  p = fma(z, p, set(3.54161556e-3f));
  q = fma(z, q, set(2.60514338e-2f));
  p = fma(z, p, set(0.134195790f));
  q = fma(z, q, set(0.467529029f));
  return {fma(mul(x, z), p, x), fma(z, q, set(1.0f))};
}
WEFT_INLINE V tanh(V x) {
  const Quotient t = tanh_quotient(x);
  return mul(t.numerator, inverse(t.denominator));
}

// A number as a type, for templates chosen inside a lambda.
template <int N>
struct Int {
  static constexpr int value = N;
};

// Calls body(column, lanes) over 0..n; lanes == kLanes except perhaps in the last call.
template <class Body>
inline void each_block(uint64_t n, const Body& body) {
  uint64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) body(c, kLanes);
  if (c < n) body(c, static_cast<uint32_t>(n - c));
}
inline V load_upto(const float* p, uint32_t lanes) {
  return lanes == kLanes ? load(p) : load_n(p, lanes);
}
inline void store_upto(float* p, V x, uint32_t lanes) {
  if (lanes == kLanes)
    store(p, x);
  else
    store_n(p, x, lanes);
}

inline float sum_of_squares(const float* x, uint64_t n) {
  V acc = zero(), more = zero();
  uint64_t c = 0;
  for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
    const V a = load(x + c), b = load(x + c + kLanes);
    acc = fma(a, a, acc);
    more = fma(b, b, more);
  }
  for (; c < n; c += kLanes) {
    const V a = load_upto(x + c, n - c < kLanes ? static_cast<uint32_t>(n - c) : kLanes);
    acc = fma(a, a, acc);
  }
  return sum(plus(acc, more));
}

inline float dot(const float* a, const float* b, uint64_t n) {
  V acc = zero();
  each_block(n, [&](uint64_t c, uint32_t lanes) {
    acc = fma(load_upto(a + c, lanes), load_upto(b + c, lanes), acc);
  });
  return sum(acc);
}

inline void scale_by(float* x, uint64_t n, float factor) {
  each_block(n, [&](uint64_t c, uint32_t lanes) {
    store_upto(x + c, mul(load_upto(x + c, lanes), set(factor)), lanes);
  });
}

inline float inverse_root(float mean_square, float eps) {
  return 1.0f / __builtin_sqrtf(mean_square + eps);
}

// y = x * factor * w
inline void scale_weighted(const float* x, const float* w, float factor, float* y, uint64_t n) {
  each_block(n, [&](uint64_t c, uint32_t lanes) {
    store_upto(y + c, mul(mul(load_upto(x + c, lanes), set(factor)), load_upto(w + c, lanes)),
               lanes);
  });
}

// Turns s into e^(s - top) and returns the sum. top is the maximum of s, or more.
inline float exp_all(float* s, uint32_t n, float top) {
  V acc = zero();
  uint32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V p = exp(minus(load(s + i), set(top)));
    store(s + i, p);
    acc = plus(acc, p);
  }
  float total = sum(acc);
  if (i < n) {
    const uint32_t lanes = n - i;
    store_n(s + i, exp(minus(load_n(s + i, lanes), set(top))), lanes);
    for (; i < n; ++i) total += s[i];
  }
  return total;
}

// NaN wins, so that it reaches the output.
inline float largest(const float* s, uint32_t n, float top) {
  for (uint32_t i = 0; i < n; ++i)
    if (!(s[i] <= top)) top = s[i];
  return top;
}

// The activation of glu and moe: act(gate, up).
inline V gated(uint32_t act, float beta, float up_beta, V gate, V up) {
  if (act == WEFT_ACT_SILU) return mul(mul(gate, sigmoid(gate)), up);
  const V capped = up_beta == 0 ? up : mul(set(up_beta), tanh(div(up, set(up_beta))));
  return mul(mul(mul(set(beta), tanh(div(gate, set(beta)))), sigmoid(gate)), capped);
}
