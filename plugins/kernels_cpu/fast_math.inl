// Vector functions on V. The bounds are against the exact value; tests/kernels/rows_test.cpp holds
// sigmoid and tanh to them over their whole range.

// e^x. Relative error below 2^-22 where the result is normal; 0 below -104, infinite above 88.8;
// NaN stays NaN.
inline V exp(V x) {
  x = at_least(at_most(x, 90.0f), -104.0f);
  const V n = round(mul(x, set(1.44269504f)));
  V r = nfma(n, set(0.693359375f), x);
  r = nfma(n, set(-2.12194440e-4f), r);
  V p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  p = fma(mul(r, r), p, r);
  return times_power(plus(p, set(1.0f)), n);
}

// 1/(1 + e^-x). Relative error below 2^-21 for x > -87.
inline V sigmoid(V x) {
  const V e = exp(minus(zero(), abs(x)));
  const V high = div(set(1.0f), plus(set(1.0f), e));
  return if_less(x, zero(), mul(e, high), high);
}

// Relative error below 2^-21, also next to zero.
inline V tanh(V x) {
  const V z = mul(x, x);
  V p = set(-5.70498872745e-3f);
  p = fma(p, z, set(2.06390887954e-2f));
  p = fma(p, z, set(-5.37397155531e-2f));
  p = fma(p, z, set(1.33314422036e-1f));
  p = fma(p, z, set(-3.33332819422e-1f));
  const V small = fma(mul(p, z), x, x);
  const V magnitude = abs(x);
  const V e = exp(plus(magnitude, magnitude));
  const V large = with_sign_of(minus(set(1.0f), div(set(2.0f), plus(e, set(1.0f)))), x);
  return if_less(magnitude, set(0.625f), small, large);
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
