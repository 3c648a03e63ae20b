// What kda_step and kda_chunk share: the tokens of one head before the recurrence (convolution,
// activation, norms, decay) and after it (norm and gate), up to kBlock tokens at a time, and the
// head's private state. Nothing here depends on where a block begins.

namespace {

constexpr uint32_t kBlock = 16;
// A private state lies in panels of this many value columns, [panel][head_k][kPanelCols], so that
// one panel stays in the first-level cache.
constexpr uint32_t kPanelCols = 2 * kLanes;

inline uint64_t whole_vectors(uint64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }
inline uint64_t state_panels(const weft_op_kda& op) {
  return (uint64_t{op.head_v} + kPanelCols - 1) / kPanelCols;
}

// Rows of `keys` or `values` floats, whole vectors; the padding of q, k and v is zero.
struct TokenBlock {
  uint64_t keys, values;
  float *q, *k, *alpha;  // [kBlock][keys]; alpha = e^g, the decay of one token
  float *v, *o;          // [kBlock][values]
  float* beta;           // [kBlock]
  float *taps, *past;    // [taps][kLanes], [taps - 1][kLanes] of the channels at hand
  float* history;        // a copy of the slot's, as KdaHead lays it out
};

template <class Memory>
inline TokenBlock token_block(const weft_op_kda& op, Memory& memory) {
  TokenBlock w;
  w.keys = whole_vectors(op.head_k);
  w.values = state_panels(op) * kPanelCols;
  w.q = memory.template take<float>(kBlock * w.keys);
  w.k = memory.template take<float>(kBlock * w.keys);
  w.alpha = memory.template take<float>(kBlock * w.keys);
  w.v = memory.template take<float>(kBlock * w.values);
  w.o = memory.template take<float>(kBlock * w.values);
  w.beta = memory.template take<float>(kBlock);
  w.taps = memory.template take<float>(uint64_t{op.taps} * kLanes);
  w.past = memory.template take<float>(uint64_t{op.taps} * kLanes);
  w.history = memory.template take<float>(KdaHead::history_floats(op));
  return w;
}

// `lanes` channels of `count` floats each: out row j holds element j of every channel.
inline void split_channels(const float* p, uint32_t count, uint32_t lanes, float* out) {
  if (lanes == kLanes && split_whole(p, count, out)) return;
  for (uint32_t j = 0; j < count; ++j) store(out + j * kLanes, zero());
  for (uint32_t c = 0; c < lanes; ++c)
    for (uint32_t j = 0; j < count; ++j) out[j * kLanes + c] = p[c * count + j];
}
inline void join_channels(const float* in, uint32_t count, uint32_t lanes, float* p) {
  if (lanes == kLanes && join_whole(in, count, p)) return;
  for (uint32_t c = 0; c < lanes; ++c)
    for (uint32_t j = 0; j < count; ++j) p[c * count + j] = in[j * kLanes + c];
}

// Where the history of a stream begins; NULL stands for zeros.
using History = const float* [3];

// Raw inputs of tokens t - (taps - 1) .. t - 1, channels c.., into w.past.
inline void load_past(const weft_op_kda& op, const KdaHead& head, const float* history, int stream,
                      uint32_t t, uint64_t c, uint32_t lanes, const TokenBlock& w) {
  const uint32_t keep = op.taps - 1;
  if (t < keep) {
    if (history != nullptr)
      split_channels(history + c * keep, keep, lanes, w.past);
    else
      for (uint32_t j = 0; j < keep; ++j) store(w.past + j * kLanes, zero());
    for (uint32_t j = 0; t > 0 && j + t < keep; ++j)
      store(w.past + j * kLanes, load(w.past + (j + t) * kLanes));
  }
  for (uint32_t j = t < keep ? keep - t : 0; j < keep; ++j)
    store(w.past + j * kLanes, load_upto(head.input(stream, t + j - keep) + c, lanes));
}

// SiLU of the convolution for tokens t .. t+n-1, n <= kBlock. squares[i] (NULL: unwanted) gains the
// squares of token i, one accumulator per token, channels ascending.
inline void short_conv(const weft_op_kda& op, const KdaHead& head, const float* history, int stream,
                       uint32_t t, uint32_t n, const TokenBlock& w, float* out, uint64_t stride,
                       V* squares) {
  const uint32_t keep = op.taps - 1;
  const uint64_t in_stride = head.input_stride(stream);
  const float* taps = head.taps(stream);
  each_block(head.dim(stream), [&](uint64_t c, uint32_t lanes) {
    split_channels(taps + c * op.taps, op.taps, lanes, w.taps);
    load_past(op, head, history, stream, t, c, lanes, w);
    const float* x = head.input(stream, t) + c;
    const auto put = [&](uint32_t i, V acc) WEFT_ALWAYS {
      const V y = mul(acc, sigmoid(acc));
      store(out + i * stride + c, y);
      if (squares != nullptr) squares[i] = fma(y, y, squares[i]);
    };
    if (op.taps == 4) {
      const V w0 = load(w.taps), w1 = load(w.taps + kLanes), w2 = load(w.taps + 2 * kLanes),
              w3 = load(w.taps + 3 * kLanes);
      V a = load(w.past), b = load(w.past + kLanes), d = load(w.past + 2 * kLanes);
      for (uint32_t i = 0; i < n; ++i) {
        const V now = load_upto(x + i * in_stride, lanes);
        put(i, fma(w3, now, fma(w2, d, fma(w1, b, mul(w0, a)))));
        a = b, b = d, d = now;
      }
      return;
    }
    for (uint32_t i = 0; i < n; ++i) {
      V acc = zero();
      for (uint32_t j = 0; j < op.taps; ++j) {
        const V in = i + j < keep ? load(w.past + (i + j) * kLanes)
                                  : load_upto(x + (i + j - keep) * in_stride, lanes);
        acc = fma(load(w.taps + j * kLanes), in, acc);
      }
      put(i, acc);
    }
  });
}

// log(1 + y) for 0 <= y <= 1, relative error below 2^-22: twice the inverse hyperbolic tangent of
// y / (2 + y) <= 1/3, as a power series.
inline V log1p(V y) {
  const V s = div(y, plus(set(2.0f), y));
  const V z = mul(s, s);
  V p = set(1.0f / 15);
  p = fma(z, p, set(1.0f / 13));
  p = fma(z, p, set(1.0f / 11));
  p = fma(z, p, set(1.0f / 9));
  p = fma(z, p, set(1.0f / 7));
  p = fma(z, p, set(1.0f / 5));
  p = fma(z, p, set(1.0f / 3));
  const V twice = plus(s, s);
  return fma(mul(twice, z), p, twice);
}

// The decay of tokens t .. t+n-1.
inline void decays(const weft_op_kda& op, const KdaHead& head, uint32_t h, uint32_t t, uint32_t n,
                   const TokenBlock& w) {
  const float* bias = op.dt_bias + uint64_t{h} * op.head_k;
  const float* f = head.decay_input(t);
  float lanes_of_a[kLanes];
  store(lanes_of_a, exp(set(op.a_log[h])));
  const V a = set(lanes_of_a[0]);
  const bool bounded = op.gate == WEFT_KDA_GATE_BOUNDED;
  for (uint32_t i = 0; i < n; ++i)
    each_block(op.head_k, [&](uint64_t c, uint32_t lanes) {
      const V z = plus(load_upto(f + i * op.f_stride + c, lanes), load_upto(bias + c, lanes));
      V alpha;
      if (bounded)
        alpha = exp_normal(mul(set(op.bound), sigmoid(mul(a, z))));
      else
        alpha = exp(mul(minus(zero(), a),
                        plus(at_least(z, 0.0f), log1p(exp_normal(minus(zero(), abs(z)))))));
      store(w.alpha + i * w.keys + c, alpha);
    });
}

// Everything the recurrence needs of tokens t .. t+n-1.
inline void prepare_tokens(const weft_op_kda& op, const KdaHead& head, const History& history,
                           uint32_t h, uint32_t t, uint32_t n, const TokenBlock& w) {
  V q_squares[kBlock], k_squares[kBlock];
  for (uint32_t i = 0; i < n; ++i) q_squares[i] = k_squares[i] = zero();
  short_conv(op, head, history[KdaHead::kQ], KdaHead::kQ, t, n, w, w.q, w.keys, q_squares);
  short_conv(op, head, history[KdaHead::kK], KdaHead::kK, t, n, w, w.k, w.keys, k_squares);
  short_conv(op, head, history[KdaHead::kV], KdaHead::kV, t, n, w, w.v, w.values, nullptr);
  decays(op, head, h, t, n, w);
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(op.head_k));
  for (uint32_t i = 0; i < n; ++i) {
    scale_by(w.q + i * w.keys, w.keys, scale / __builtin_sqrtf(sum(q_squares[i]) + 1e-6f));
    scale_by(w.k + i * w.keys, w.keys, 1.0f / __builtin_sqrtf(sum(k_squares[i]) + 1e-6f));
    w.beta[i] = head.beta_input(t + i);
  }
  for (uint32_t i = n; i < kBlock; ++i) w.beta[i] = 0.0f;
  each_block(kBlock, [&](uint64_t i, uint32_t) { store(w.beta + i, sigmoid(load(w.beta + i))); });
}

// y of tokens t .. t+n-1 from their rows of o.
inline void kda_outputs(const weft_op_kda& op, const KdaHead& head, uint32_t t, uint32_t n,
                        const TokenBlock& w) {
  float factors[kBlock];  // all of them first: each waits for a chain of slow instructions
  for (uint32_t i = 0; i < n; ++i)
    factors[i] = inverse_root(
        sum_of_squares(w.o + i * w.values, op.head_v) / static_cast<float>(op.head_v), op.norm_eps);
  for (uint32_t i = 0; i < n; ++i) {
    const float* o = w.o + i * w.values;
    const float* u = head.gate_input(t + i);
    float* y = head.output(t + i);
    const V factor = set(factors[i]);
    each_block(op.head_v, [&](uint64_t c, uint32_t lanes) {
      const V normed = mul(mul(load(o + c), factor), load_upto(op.o_norm + c, lanes));
      store_upto(y + c, mul(normed, sigmoid(load_upto(u + c, lanes))), lanes);
    });
  }
}

// The history after `done` tokens, written to a slot. `history` may be that slot's own.
inline void store_history(const weft_op_kda& op, const KdaHead& head, const History& history,
                          uint32_t done, int32_t slot, const TokenBlock& w) {
  const uint32_t keep = op.taps - 1;
  if (keep == 0) return;
  for (int s = KdaHead::kQ; s <= KdaHead::kV; ++s) {
    float* out = head.slot_history(slot, s);
    each_block(head.dim(s), [&](uint64_t c, uint32_t lanes) {
      load_past(op, head, history[s], s, done, c, lanes, w);
      join_channels(w.past, keep, lanes, out + c * keep);
    });
  }
}

// A head's state and history as private copies, for sequences of several tokens: slots may then be
// read and written in any combination.
struct PrivateState {
  float* panels;
  History history;
};

inline void load_private(const weft_op_kda& op, const KdaHead& head, const TokenBlock& w,
                         PrivateState* s) {
  const uint64_t V_dim = op.head_v;
  const bool fresh = head.read_slot() < 0;
  const float* from = fresh ? nullptr : head.slot_state(head.read_slot());
  for (uint64_t c = 0; c < op.head_k; ++c) {
    for (uint64_t j = 0; !fresh && j < V_dim; j += 16)
      __builtin_prefetch(from + (c + 8) * V_dim + j);  // past the end is harmless
    for (uint64_t j = 0; j < w.values; j += kLanes) {
      const uint64_t left = j < V_dim ? V_dim - j : 0;
      float* to = s->panels + (j / kPanelCols * op.head_k + c) * kPanelCols + j % kPanelCols;
      if (fresh || left == 0)
        store(to, zero());
      else
        store(to, load_upto(from + c * V_dim + j,
                            left < kLanes ? static_cast<uint32_t>(left) : kLanes));
    }
  }
  const uint64_t keep = op.taps - 1;
  for (int i = KdaHead::kQ; i <= KdaHead::kV; ++i) {
    float* copy = w.history + uint64_t(i) * op.head_k * keep;
    s->history[i] = fresh || keep == 0 ? nullptr : copy;
    if (s->history[i] != nullptr)
      memcpy(copy, head.slot_history(head.read_slot(), i), head.dim(i) * keep * sizeof(float));
  }
}

inline void store_private(const weft_op_kda& op, const KdaHead& head, const TokenBlock& w,
                          const PrivateState& s, uint32_t done, int32_t slot) {
  if (slot < 0) return;
  const uint64_t V_dim = op.head_v;
  float* to = head.slot_state(slot);
  for (uint64_t p = 0; p < state_panels(op); ++p)
    for (uint64_t c = 0; c < op.head_k; ++c) {
      const float* from = s.panels + (p * op.head_k + c) * kPanelCols;
      const uint64_t at = p * kPanelCols;
      each_block(V_dim - at < kPanelCols ? V_dim - at : kPanelCols,
                 [&](uint64_t j, uint32_t lanes) {
                   store_upto(to + c * V_dim + at + j, load(from + j), lanes);
                 });
    }
  store_history(op, head, s.history, done, slot, w);
}

// Fetches what token t will be prepared from and gated with: rows far apart, which the hardware
// does not foresee.
inline void fetch_token(const weft_op_kda& op, const KdaHead& head, uint32_t t) {
  const auto fetch = [](const float* p, uint64_t n) {
    for (uint64_t c = 0; c < n; c += 16) __builtin_prefetch(p + c, 0, 2);
  };
  for (int s = KdaHead::kQ; s <= KdaHead::kV; ++s) fetch(head.input(s, t), head.dim(s));
  fetch(head.decay_input(t), op.head_k);
  fetch(head.gate_input(t), op.head_v);
}
// Share `part` of `parts` of the tokens t .. t+kBlock-1, as far as they exist.
inline void fetch_share(const weft_op_kda& op, const KdaHead& head, uint32_t t, uint64_t part,
                        uint64_t parts) {
  const uint64_t end = t + kBlock * (part + 1) / parts;
  for (uint64_t i = t + kBlock * part / parts; i < end && i < head.n(); ++i)
    fetch_token(op, head, static_cast<uint32_t>(i));
}

// Runs body(s, t, n) over blocks of at most `most` tokens; a snapshot ends a block.
template <class Body>
inline void over_blocks(const weft_op_kda& op, const KdaHead& head, const TokenBlock& w,
                        float* panels, uint32_t most, const Body& body) {
  PrivateState s;
  s.panels = panels;
  load_private(op, head, w, &s);
  for (uint32_t t = 0; t < head.n();) {
    uint32_t n = head.n() - t < most ? head.n() - t : most;
    if (t < head.snap_at() && t + n > head.snap_at()) n = head.snap_at() - t;
    body(s, t, n);
    t += n;
    if (t == head.snap_at()) store_private(op, head, w, s, t, head.snap_slot());
  }
  store_private(op, head, w, s, head.n(), head.write_slot());
}

}  // namespace
