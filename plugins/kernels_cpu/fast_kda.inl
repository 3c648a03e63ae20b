// Kimi Delta Attention. The state is f32; both forms work on a private copy of one head's state at
// a time.

namespace {

// Convolution operands of one stream with channels innermost, so that the loop over taps is a
// vector loop over channels.
struct ConvStream {
  float* taps;     // [taps][dim]
  float* history;  // [taps - 1][dim]
};

struct HeadWork {
  float* slots;  // KdaHead's copies
  float* state;
  ConvStream conv[3];
};

inline HeadWork head_work(const weft_op_kda& op, Bump& bump) {
  HeadWork w;
  w.slots = bump.take<float>(KdaHead::history_floats(op));
  w.state = bump.take<float>(KdaHead::state_floats(op));
  for (int s = 0; s < 3; ++s) {
    const uint64_t dim = s == KdaHead::kV ? op.head_v : op.head_k;
    w.conv[s].taps = bump.take<float>(dim * op.taps);
    w.conv[s].history = bump.take<float>(dim * (op.taps - 1));
  }
  return w;
}

inline uint64_t head_work_bytes(const weft_op_kda& op) {
  uint64_t bytes =
      slab<float>(KdaHead::history_floats(op)) + slab<float>(KdaHead::state_floats(op));
  for (int s = 0; s < 3; ++s) {
    const uint64_t dim = s == KdaHead::kV ? op.head_v : op.head_k;
    bytes += slab<float>(dim * op.taps) + slab<float>(dim * (op.taps - 1));
  }
  return bytes;
}

inline void transpose_conv(const weft_op_kda& op, const KdaHead& head, const HeadWork& w) {
  const uint32_t keep = op.taps - 1;
  for (int s = 0; s < 3; ++s) {
    const uint32_t dim = head.dim(s);
    const float* taps = head.taps(s);
    const float* past = head.past(s);
    for (uint32_t c = 0; c < dim; ++c) {
      for (uint32_t j = 0; j < op.taps; ++j) w.conv[s].taps[j * dim + c] = taps[c * op.taps + j];
      for (uint32_t j = 0; j < keep; ++j) w.conv[s].history[j * dim + c] = past[c * keep + j];
    }
  }
}

inline void short_conv(const weft_op_kda& op, const KdaHead& head, const HeadWork& w, int stream,
                       uint32_t t, float* out) {
  const uint32_t dim = head.dim(stream), keep = op.taps - 1;
  const float* taps = w.conv[stream].taps;
  each_block(dim, [&](uint64_t c, uint32_t lanes) {
    V acc = zero();
    for (uint32_t j = 0; j < op.taps; ++j) {
      const float* x =
          t + j >= keep ? head.input(stream, t + j - keep) : w.conv[stream].history + (t + j) * dim;
      acc = fma(load_upto(taps + j * dim + c, lanes), load_upto(x + c, lanes), acc);
    }
    store_upto(out + c, mul(acc, sigmoid(acc)), lanes);
  });
}

inline void unit_length(float* x, uint32_t n, float scale) {
  scale_by(x, n, scale / __builtin_sqrtf(sum_of_squares(x, n) + 1e-6f));
}

// The log decay of one token. softplus keeps its digits through log1p for every z.
inline void log_decay(const weft_op_kda& op, const KdaHead& head, uint32_t h, uint32_t t,
                      float* g) {
  const float* f = head.decay_input(t);
  const float* bias = op.dt_bias + uint64_t{h} * op.head_k;
  const float a = __builtin_expf(op.a_log[h]);
  if (op.gate == WEFT_KDA_GATE_BOUNDED) {
    each_block(op.head_k, [&](uint64_t c, uint32_t lanes) {
      const V z = plus(load_upto(f + c, lanes), load_upto(bias + c, lanes));
      store_upto(g + c, mul(set(op.bound), sigmoid(mul(set(a), z))), lanes);
    });
    return;
  }
  for (uint32_t c = 0; c < op.head_k; ++c) {
    const float z = f[c] + bias[c];
    g[c] = -a * ((z > 0 ? z : 0.0f) + __builtin_log1pf(__builtin_expf(-__builtin_fabsf(z))));
  }
}

// q, k, v after convolution, activation and normalisation, and the log decay g of token t; returns
// beta.
inline float kda_token(const weft_op_kda& op, const KdaHead& head, const HeadWork& w, uint32_t h,
                       uint32_t t, float* q, float* k, float* v, float* g) {
  short_conv(op, head, w, KdaHead::kQ, t, q);
  short_conv(op, head, w, KdaHead::kK, t, k);
  short_conv(op, head, w, KdaHead::kV, t, v);
  unit_length(q, op.head_k, 1.0f / __builtin_sqrtf(static_cast<float>(op.head_k)));
  unit_length(k, op.head_k, 1.0f);
  log_decay(op, head, h, t, g);
  float lanes[kLanes];
  store(lanes, sigmoid(set(head.beta_input(t))));
  return lanes[0];
}

inline void kda_output(const weft_op_kda& op, const KdaHead& head, uint32_t t, const float* o) {
  const float factor =
      inverse_root(sum_of_squares(o, op.head_v) / static_cast<float>(op.head_v), op.norm_eps);
  const float* u = head.gate_input(t);
  float* y = head.output(t);
  each_block(op.head_v, [&](uint64_t c, uint32_t lanes) {
    const V normed =
        mul(mul(load_upto(o + c, lanes), set(factor)), load_upto(op.o_norm + c, lanes));
    store_upto(y + c, mul(normed, sigmoid(load_upto(u + c, lanes))), lanes);
  });
}

// One token on B vectors of value columns: decay and read along k, then write and read along q.
template <int B>
inline void step_columns(const weft_op_kda& op, float* state, const float* alpha, const float* q,
                         const float* k, const float* v, float beta, float* o, uint32_t lanes) {
  const uint32_t V_dim = op.head_v;
  const auto get = [&](const float* p) { return B == 1 ? load_upto(p, lanes) : load(p); };
  const auto put = [&](float* p, V x) { B == 1 ? store_upto(p, x, lanes) : store(p, x); };
  V delta[B], out[B];
#pragma GCC unroll 8
  for (int b = 0; b < B; ++b) delta[b] = out[b] = zero();
  for (uint32_t c = 0; c < op.head_k; ++c) {
    float* s = state + uint64_t{c} * V_dim;
    const V decay = set(alpha[c]), key = set(k[c]);
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
      const V kept = mul(decay, get(s + b * kLanes));
      put(s + b * kLanes, kept);
      delta[b] = fma(key, kept, delta[b]);
    }
  }
#pragma GCC unroll 8
  for (int b = 0; b < B; ++b) delta[b] = mul(set(beta), minus(get(v + b * kLanes), delta[b]));
  for (uint32_t c = 0; c < op.head_k; ++c) {
    float* s = state + uint64_t{c} * V_dim;
    const V key = set(k[c]), query = set(q[c]);
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
      const V now = fma(key, delta[b], get(s + b * kLanes));
      put(s + b * kLanes, now);
      out[b] = fma(query, now, out[b]);
    }
  }
#pragma GCC unroll 8
  for (int b = 0; b < B; ++b) put(o + b * kLanes, out[b]);
}

inline void step_head(const weft_op_kda& op, uint32_t seq, uint32_t h, uint8_t* scratch) {
  Bump bump(scratch);
  const HeadWork w = head_work(op, bump);
  float *q = bump.take<float>(op.head_k), *k = bump.take<float>(op.head_k),
        *g = bump.take<float>(op.head_k);
  float *v = bump.take<float>(op.head_v), *o = bump.take<float>(op.head_v);
  const KdaHead head(op, seq, h, w.slots, w.state);
  transpose_conv(op, head, w);
  for (uint32_t t = 0; t < head.n(); ++t) {
    const float beta = kda_token(op, head, w, h, t, q, k, v, g);
    each_block(op.head_k, [&](uint64_t c, uint32_t lanes) {
      store_upto(g + c, exp(load_upto(g + c, lanes)), lanes);
    });
    uint32_t j = 0;
    for (; j + 4 * kLanes <= op.head_v; j += 4 * kLanes)
      step_columns<4>(op, w.state + j, g, q, k, v + j, beta, o + j, kLanes);
    for (; j < op.head_v; j += kLanes) {
      const uint32_t left = op.head_v - j;
      step_columns<1>(op, w.state + j, g, q, k, v + j, beta, o + j, left < kLanes ? left : kLanes);
    }
    kda_output(op, head, t, o);
    head.snapshot_if_due(t + 1);
  }
  head.finish();
}

constexpr uint32_t kChunk = 64;
constexpr uint32_t kTile = 16;  // tokens whose decay factors share one reference row
inline uint32_t chunk_of(const weft_op_kda& op) { return op.chunk == 0 ? kChunk : op.chunk; }

// Workspace of one chunk; C = tokens, K and V the head dims.
struct ChunkWork {
  float *q, *k, *G;              // [C, K]; G is the inclusive running sum of the log decay
  float* v;                      // [C, V], later v - W S, later the per-token deltas
  float* beta;                   // [C]
  float *A, *P;                  // [C, C] -k.k and q.k products with decay
  float *row_q, *row_k, *col_k;  // [C, K] scaled operands
  float* o;                      // [C, V]
};

inline ChunkWork chunk_work(const weft_op_kda& op, Bump& bump) {
  const uint64_t C = chunk_of(op), K = op.head_k, V_dim = op.head_v;
  ChunkWork w;
  w.q = bump.take<float>(C * K);
  w.k = bump.take<float>(C * K);
  w.G = bump.take<float>(C * K);
  w.v = bump.take<float>(C * V_dim);
  w.beta = bump.take<float>(C);
  w.A = bump.take<float>(C * C);
  w.P = bump.take<float>(C * C);
  w.row_q = bump.take<float>(C * K);
  w.row_k = bump.take<float>(C * K);
  w.col_k = bump.take<float>(C * K);
  w.o = bump.take<float>(C * V_dim);
  return w;
}

inline uint64_t chunk_work_bytes(const weft_op_kda& op) {
  const uint64_t C = chunk_of(op), K = op.head_k, V_dim = op.head_v;
  return 6 * slab<float>(C * K) + 2 * slab<float>(C * V_dim) + slab<float>(C) +
         2 * slab<float>(C * C);
}

// out = x * e^(a - b), elementwise over K.
inline void scale_decay(const float* x, const float* a, const float* b, uint32_t K, float* out) {
  each_block(K, [&](uint64_t c, uint32_t lanes) {
    const V power = exp(minus(load_upto(a + c, lanes), load_upto(b + c, lanes)));
    store_upto(out + c, mul(load_upto(x + c, lanes), power), lanes);
  });
}

// A[i, j] = -k_i e^(G_i - G_j) k_j and P[i, j] = q_i e^(G_i - G_j) k_j for rows of tile r0..r1 and
// columns c0..c1 as plain products: every exponent is split at the reference row `ref`.
inline void decay_products(const ChunkWork& w, uint32_t C, uint32_t K, uint32_t r0, uint32_t r1,
                           uint32_t c0, uint32_t c1, const float* ref) {
  for (uint32_t i = r0; i < r1; ++i) {
    scale_decay(w.k + uint64_t{i} * K, w.G + uint64_t{i} * K, ref, K,
                w.row_k + uint64_t{i - r0} * K);
    scale_decay(w.q + uint64_t{i} * K, w.G + uint64_t{i} * K, ref, K,
                w.row_q + uint64_t{i - r0} * K);
  }
  for (uint32_t j = c0; j < c1; ++j)
    scale_decay(w.k + uint64_t{j} * K, ref, w.G + uint64_t{j} * K, K,
                w.col_k + uint64_t{j - c0} * K);
  for (uint32_t j = c0; j < c1; j += kPanel) {
    const uint32_t count = panel_width(c1, j);
    F32Row columns[kPanel];
    for (uint32_t n = 0; n < count; ++n) columns[n] = {w.col_k + uint64_t{j + n - c0} * K};
    const auto into = [&](float* out, float sign) {
      return [=](uint64_t r, uint32_t n, float value) { out[(r0 + r) * C + j + n] = sign * value; };
    };
    dot_rows(Rows{w.row_k, K, nullptr}, r1 - r0, columns, count, K, into(w.A, -1.0f));
    dot_rows(Rows{w.row_q, K, nullptr}, r1 - r0, columns, count, K, into(w.P, 1.0f));
  }
}

// The same for one diagonal tile, pair by pair: G_i - G_j first, so nothing can overflow however
// strong the decay is.
inline void pairwise_products(const ChunkWork& w, uint32_t C, uint32_t K, uint32_t r0,
                              uint32_t r1) {
  for (uint32_t i = r0; i < r1; ++i)
    for (uint32_t j = r0; j <= i; ++j) {
      scale_decay(w.k + uint64_t{j} * K, w.G + uint64_t{i} * K, w.G + uint64_t{j} * K, K, w.col_k);
      w.A[i * C + j] = -dot(w.k + uint64_t{i} * K, w.col_k, K);
      w.P[i * C + j] = dot(w.q + uint64_t{i} * K, w.col_k, K);
    }
}

// Fills the lower triangles of A and P (diagonal included).
inline void chunk_products(const weft_op_kda& op, const ChunkWork& w, uint32_t C, uint32_t n) {
  const uint32_t K = op.head_k;
  // Inside a diagonal tile exponents reach half a tile times the bound: 40 for a bound of -5, and
  // e^40 squared still fits.
  const bool split_diagonal = op.gate == WEFT_KDA_GATE_BOUNDED && op.bound * (kTile / 2) >= -40.0f;
  for (uint32_t r0 = 0; r0 < n; r0 += kTile) {
    const uint32_t r1 = r0 + kTile < n ? r0 + kTile : n;
    for (uint32_t c0 = 0; c0 < r0; c0 += kTile)
      decay_products(w, C, K, r0, r1, c0, c0 + kTile, w.G + uint64_t{r0} * K);
    if (split_diagonal)
      decay_products(w, C, K, r0, r1, r0, r1, w.G + uint64_t{(r0 + r1) / 2} * K);
    else
      pairwise_products(w, C, K, r0, r1);
  }
}

// v becomes the deltas: row i is beta_i (v_i + sum_{j<i} A[i, j] delta_j), j ascending; A holds
// negated products. Whole tiles to the left go through mix(), the triangle inside the tile row by
// row.
inline void solve_deltas(const ChunkWork& w, uint32_t C, uint32_t n, uint32_t V_dim,
                         const float* ones) {
  for (uint32_t r0 = 0; r0 < n; r0 += kTile) {
    const uint32_t r1 = r0 + kTile < n ? r0 + kTile : n;
    mix({w.A + uint64_t{r0} * C, C, 1}, r1 - r0, r0, w.v, V_dim, V_dim, w.v + uint64_t{r0} * V_dim,
        V_dim, ones);
    for (uint32_t i = r0; i < r1; ++i) {
      float* row = w.v + uint64_t{i} * V_dim;
      each_block(V_dim, [&](uint64_t c, uint32_t lanes) {
        V acc = load_upto(row + c, lanes);
        for (uint32_t j = r0; j < i; ++j)
          acc = fma(set(w.A[i * C + j]), load_upto(w.v + uint64_t{j} * V_dim + c, lanes), acc);
        store_upto(row + c, mul(set(w.beta[i]), acc), lanes);
      });
    }
  }
}

// o += P D with P lower triangular, diagonal included; same cut.
inline void add_within_chunk(const ChunkWork& w, uint32_t C, uint32_t n, uint32_t V_dim,
                             const float* ones) {
  for (uint32_t r0 = 0; r0 < n; r0 += kTile) {
    const uint32_t r1 = r0 + kTile < n ? r0 + kTile : n;
    mix({w.P + uint64_t{r0} * C, C, 1}, r1 - r0, r0, w.v, V_dim, V_dim, w.o + uint64_t{r0} * V_dim,
        V_dim, ones);
    for (uint32_t i = r0; i < r1; ++i)
      mix({w.P + uint64_t{i} * C + r0, 0, 1}, 1, i + 1 - r0, w.v + uint64_t{r0} * V_dim, V_dim,
          V_dim, w.o + uint64_t{i} * V_dim, V_dim, ones);
  }
}

// Tokens t0 .. t0+n-1 of the head, n <= C; moves the state past them.
inline void run_chunk(const weft_op_kda& op, const KdaHead& head, const HeadWork& hw,
                      const ChunkWork& w, uint32_t h, uint32_t t0, uint32_t n) {
  const uint32_t C = chunk_of(op), K = op.head_k, V_dim = op.head_v;
  for (uint32_t i = 0; i < n; ++i) {
    float* G = w.G + uint64_t{i} * K;
    w.beta[i] = kda_token(op, head, hw, h, t0 + i, w.q + uint64_t{i} * K, w.k + uint64_t{i} * K,
                          w.v + uint64_t{i} * V_dim, G);
    const float* before = i > 0 ? G - K : nullptr;
    for (uint32_t c = 0; c < K && before != nullptr; ++c) G[c] += before[c];
  }
  chunk_products(op, w, C, n);

  // v -= (e^G k) S and o = (e^G q) S.
  for (uint32_t i = 0; i < n; ++i)
    each_block(K, [&](uint64_t c, uint32_t lanes) {
      const uint64_t at = uint64_t{i} * K + c;
      const V power = exp(load_upto(w.G + at, lanes));
      store_upto(w.row_k + at, mul(minus(zero(), load_upto(w.k + at, lanes)), power), lanes);
      store_upto(w.row_q + at, mul(load_upto(w.q + at, lanes), power), lanes);
    });
  float ones[128];
  for (uint32_t i = 0; i < n; ++i) ones[i] = 1.0f;
  mix({w.row_k, K, 1}, n, K, head.state(), V_dim, V_dim, w.v, V_dim, ones);
  mix({w.row_q, K, 1}, n, K, head.state(), V_dim, V_dim, w.o, V_dim);

  solve_deltas(w, C, n, V_dim, ones);
  add_within_chunk(w, C, n, V_dim, ones);
  for (uint32_t i = 0; i < n; ++i) kda_output(op, head, t0 + i, w.o + uint64_t{i} * V_dim);

  // S = e^(G_n) S + (e^(G_n - G) k)^T D; row factors of S reuse the first row of row_q.
  const float* last = w.G + uint64_t{n - 1} * K;
  for (uint32_t i = 0; i < n; ++i)
    scale_decay(w.k + uint64_t{i} * K, last, w.G + uint64_t{i} * K, K, w.row_k + uint64_t{i} * K);
  each_block(K, [&](uint64_t c, uint32_t lanes) {
    store_upto(w.row_q + c, exp(load_upto(last + c, lanes)), lanes);
  });
  mix({w.row_k, 1, K}, K, n, w.v, V_dim, V_dim, head.state(), V_dim, w.row_q);
}

inline void chunk_head(const weft_op_kda& op, uint32_t seq, uint32_t h, uint8_t* scratch) {
  Bump bump(scratch);
  const HeadWork hw = head_work(op, bump);
  const ChunkWork w = chunk_work(op, bump);
  const KdaHead head(op, seq, h, hw.slots, hw.state);
  transpose_conv(op, head, hw);
  const uint32_t C = chunk_of(op);
  for (uint32_t t = 0; t < head.n();) {
    uint32_t n = head.n() - t < C ? head.n() - t : C;
    if (t < head.snap_at() && t + n > head.snap_at())
      n = head.snap_at() - t;  // a snapshot ends a chunk
    run_chunk(op, head, hw, w, h, t, n);
    t += n;
    head.snapshot_if_due(t);
  }
  head.finish();
}

}  // namespace

Need kda_step_need(const weft_op_kda& op) {
  return {0, head_work_bytes(op) + 3 * slab<float>(op.head_k) + 2 * slab<float>(op.head_v)};
}
Need kda_chunk_need(const weft_op_kda& op) {
  return {0, head_work_bytes(op) + chunk_work_bytes(op)};
}

void kda_step(const weft_op_kda& op) {
  const uint64_t items = uint64_t{op.rows.n_seqs} * op.heads;
  const uint64_t work = uint64_t{op.rows.n_rows} * op.heads * op.head_k * op.head_v * 4;
  const Team team(op.head, kda_step_need(op), work, items);
  team.over(items, [&](uint64_t begin, uint64_t end, uint32_t part) {
    for (uint64_t i = begin; i < end; ++i)
      step_head(op, static_cast<uint32_t>(i / op.heads), static_cast<uint32_t>(i % op.heads),
                team.scratch(part));
  });
}

void kda_chunk(const weft_op_kda& op) {
  const uint64_t items = uint64_t{op.rows.n_seqs} * op.heads;
  const uint64_t work = uint64_t{op.rows.n_rows} * op.heads * op.head_k * op.head_v * 4;
  const Team team(op.head, kda_chunk_need(op), work, items);
  team.over(items, [&](uint64_t begin, uint64_t end, uint32_t part) {
    for (uint64_t i = begin; i < end; ++i)
      chunk_head(op, static_cast<uint32_t>(i / op.heads), static_cast<uint32_t>(i % op.heads),
                 team.scratch(part));
  });
}
