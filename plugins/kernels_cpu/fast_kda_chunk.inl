// kda_chunk: the recurrence as matrix products over chunks of at most 16 tokens. With G the running
// sum of the log decay inside the chunk and e^G = `cum`,
//   D = beta (v - K' S - A D),  o = Q' S + P D,  S = e^(G_n) S + K''^T D,
//   K' = k cum, Q' = q cum, K'' = k e^(G_n - G), A[i,j] = K'_i . (k_j / cum_j) for j < i,
//   P[i,j] = Q'_i . (k_j / cum_j) for j <= i.
// Products with the state cost the same per token whatever the chunk, the triangular ones grow with
// it: 16, one vector, is the fastest. cum stays above e^-80 for a decay bound of -5; where it may
// not, A and P are built pair by pair without a division.

namespace {

constexpr int kChunkRows = kLanes == 16 ? 8 : 4;  // register tile: rows x 2 vectors

struct ChunkWork {
  TokenBlock tokens;
  float *rows_k, *rows_q, *tail_k;  // [kBlock][keys] K', Q', K''
  float* columns;                   // [keys][kBlock] k / cum
  float *A, *P;                     // [kBlock][kBlock]
  float* decay;                     // [keys] e^(G_n)
  float* D;                         // [kBlock][kPanelCols]
  float* panels;
};

template <class Memory>
inline ChunkWork chunk_work(const weft_op_kda& op, Memory& memory) {
  ChunkWork w;
  w.tokens = token_block(op, memory);
  const uint64_t keys = w.tokens.keys;
  w.rows_k = memory.template take<float>(kBlock * keys);
  w.rows_q = memory.template take<float>(kBlock * keys);
  w.tail_k = memory.template take<float>(kBlock * keys);
  w.columns = memory.template take<float>(kBlock * keys);
  w.A = memory.template take<float>(kBlock * kBlock);
  w.P = memory.template take<float>(kBlock * kBlock);
  w.decay = memory.template take<float>(keys);
  w.D = memory.template take<float>(kBlock * kPanelCols);
  w.panels = memory.template take<float>(op.head_k * w.tokens.values);
  return w;
}

// K', Q', K'' and e^(G_n) of n tokens, and, when `split` is set, k / cum. Rows from n on are zero.
inline void decayed_operands(const ChunkWork& w, uint32_t n, bool split) {
  const TokenBlock& t = w.tokens;
  for (uint64_t c = 0; c < t.keys; c += kLanes) {
    V cum = set(1.0f), tail = cum;
    for (uint32_t i = 0; i < n; ++i) {
      const uint64_t at = i * t.keys + c;
      cum = mul(cum, load(t.alpha + at));
      store(w.rows_k + at, mul(load(t.k + at), cum));
      store(w.rows_q + at, mul(load(t.q + at), cum));
      if (split) store(w.tail_k + at, mul(load(t.k + at), inverse(cum)));
    }
    for (uint32_t i = n; i < kBlock; ++i) {
      const uint64_t at = i * t.keys + c;
      store(w.rows_k + at, zero());
      store(w.rows_q + at, zero());
    }
    store(w.decay + c, cum);
    for (uint32_t i = 0; split && i < kBlock; i += kLanes) {
      V x[kLanes];
      for (uint32_t j = 0; j < kLanes; ++j)
        x[j] = i + j < n ? load(w.tail_k + (i + j) * t.keys + c) : zero();
      transpose(x);
      for (uint32_t j = 0; j < kLanes; ++j) store(w.columns + (c + j) * kBlock + i, x[j]);
    }
    for (uint32_t i = n; i-- > 0;) {
      const uint64_t at = i * t.keys + c;
      store(w.tail_k + at, mul(load(t.k + at), tail));
      tail = mul(tail, load(t.alpha + at));
    }
  }
}

// acc[r][c] += sum over k of a[r][k] b[k][c]; k ascending, one accumulator each.
template <int R, int C>
inline void add_product(const float* a, uint64_t a_stride, const float* b, uint64_t b_stride,
                        uint64_t n_inner, V (&acc)[R][C]) {
  const float* rows[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) rows[r] = a + static_cast<uint64_t>(r) * a_stride;
#pragma GCC unroll 2
  for (uint64_t k = 0; k < n_inner; ++k) {
    V bs[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) bs[c] = load(b + k * b_stride + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V factor = set(rows[r][k]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = fma(factor, bs[c], acc[r][c]);
    }
  }
}

template <int R, int C>
inline void clear(V (&acc)[R][C]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = zero();
}

// A and P for decays that can be divided out; what lies above the diagonal is never read. Here and
// below, rows past a short chunk hold anything: they are computed and enter no other row.
inline void split_products(const ChunkWork& w, uint32_t K, uint32_t n) {
  constexpr int kC = kBlock / kLanes;
  const auto rows = [&](const float* from, float* to) {
    for (uint32_t r = 0; r < n; r += kChunkRows) {
      V acc[kChunkRows][kC];
      clear(acc);
      add_product(from + r * w.tokens.keys, w.tokens.keys, w.columns, kBlock, K, acc);
      for (int i = 0; i < kChunkRows; ++i)
        for (int c = 0; c < kC; ++c)
          store(to + (r + static_cast<uint32_t>(i)) * kBlock + c * kLanes, acc[i][c]);
    }
  };
  rows(w.rows_k, w.A);
  rows(w.rows_q, w.P);
}

// The same for any decay: factors e^(G_i - G_j) grow by one alpha for every j, all at most 1.
// Scratch: the rows of `columns`.
inline void pairwise_products(const ChunkWork& w, uint32_t n) {
  const TokenBlock& t = w.tokens;
  float *k = w.columns, *q = w.columns + t.keys;
  for (uint32_t i = 0; i < n; ++i) {
    for (uint64_t c = 0; c < t.keys; c += kLanes) {
      store(k + c, load(t.k + i * t.keys + c));
      store(q + c, load(t.q + i * t.keys + c));
    }
    for (uint32_t j = i + 1; j-- > 0;) {
      V a = zero(), p = zero();
      for (uint64_t c = 0; c < t.keys; c += kLanes) {
        const V key = load(t.k + j * t.keys + c), decay = load(t.alpha + j * t.keys + c);
        const V by_k = load(k + c), by_q = load(q + c);
        a = fma(by_k, key, a);
        p = fma(by_q, key, p);
        store(k + c, mul(by_k, decay));
        store(q + c, mul(by_q, decay));
      }
      w.A[i * kBlock + j] = sum(a);
      w.P[i * kBlock + j] = sum(p);
    }
  }
}

// D of one vector of columns: v - K' S comes in, row by row of the triangle; every D is subtracted
// from the rows below it as soon as it is known.
inline void solve_deltas(const ChunkWork& w, uint32_t n, float* D) {
  V x[kBlock];
#pragma GCC unroll 16
  for (uint32_t i = 0; i < kBlock; ++i) x[i] = load(D + i * kPanelCols);
#pragma GCC unroll 16
  for (uint32_t j = 0; j < kBlock; ++j) {
    if (j == n) return;
    const V delta = mul(set(w.tokens.beta[j]), x[j]);
    store(D + j * kPanelCols, delta);
#pragma GCC unroll 16
    for (uint32_t i = j + 1; i < kBlock; ++i) x[i] = nfma(set(w.A[i * kBlock + j]), delta, x[i]);
  }
}

// Rows r .. of D: v - K' S.
inline void start_deltas(const ChunkWork& w, uint32_t K, uint32_t r, const float* panel,
                         uint64_t column) {
  const TokenBlock& t = w.tokens;
  V acc[kChunkRows][2];
  clear(acc);
  add_product(w.rows_k + r * t.keys, t.keys, panel, kPanelCols, K, acc);
#pragma GCC unroll 16
  for (uint32_t i = 0; i < kChunkRows; ++i)
#pragma GCC unroll 2
    for (uint32_t b = 0; b < 2; ++b)
      store(w.D + (r + i) * kPanelCols + b * kLanes,
            minus(load(t.v + (r + i) * t.values + column + b * kLanes), acc[i][b]));
}

// Rows r .. of o = Q' S + P D; D of a later token never enters, not even times zero.
inline void outputs(const ChunkWork& w, uint32_t K, uint32_t r, const float* panel,
                    uint64_t column) {
  const TokenBlock& t = w.tokens;
  V acc[kChunkRows][2];
  clear(acc);
  add_product(w.rows_q + r * t.keys, t.keys, panel, kPanelCols, K, acc);
  add_product(w.P + r * kBlock, kBlock, w.D, kPanelCols, r, acc);
#pragma GCC unroll 16
  for (uint32_t j = 0; j < kChunkRows; ++j) {
    const V d0 = load(w.D + (r + j) * kPanelCols), d1 = load(w.D + (r + j) * kPanelCols + kLanes);
#pragma GCC unroll 16
    for (uint32_t i = j; i < kChunkRows; ++i) {
      const V factor = set(w.P[(r + i) * kBlock + r + j]);
      acc[i][0] = fma(factor, d0, acc[i][0]);
      acc[i][1] = fma(factor, d1, acc[i][1]);
    }
  }
#pragma GCC unroll 16
  for (uint32_t i = 0; i < kChunkRows; ++i)
#pragma GCC unroll 2
    for (uint32_t b = 0; b < 2; ++b)
      store(t.o + (r + i) * t.values + column + b * kLanes, acc[i][b]);
}

// R rows of S = e^(G_n) S + K''^T D from row c on.
template <int R>
inline void update_rows(const ChunkWork& w, uint32_t n, uint64_t c, float* panel) {
  V acc[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b)
      acc[r][b] = mul(set(w.decay[c + static_cast<uint64_t>(r)]),
                      load(panel + (c + static_cast<uint64_t>(r)) * kPanelCols + b * kLanes));
  const float* factors = w.tail_k + c;
  for (uint32_t j = 0; j < n; ++j, factors += w.tokens.keys) {
    const V d0 = load(w.D + j * kPanelCols), d1 = load(w.D + j * kPanelCols + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V factor = set(factors[r]);
      acc[r][0] = fma(factor, d0, acc[r][0]);
      acc[r][1] = fma(factor, d1, acc[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int b = 0; b < 2; ++b)
      store(panel + (c + static_cast<uint64_t>(r)) * kPanelCols + b * kLanes, acc[r][b]);
}

inline void chunk_panel(const ChunkWork& w, uint32_t K, uint32_t n, float* panel, uint64_t column) {
  for (uint32_t r = 0; r < n; r += kChunkRows) start_deltas(w, K, r, panel, column);
  for (uint64_t b = 0; b < 2; ++b) solve_deltas(w, n, w.D + b * kLanes);
  for (uint32_t r = 0; r < n; r += kChunkRows) outputs(w, K, r, panel, column);
  uint64_t c = 0;
  for (; c + kChunkRows <= K; c += kChunkRows) update_rows<kChunkRows>(w, n, c, panel);
  for (; c < K; ++c) update_rows<1>(w, n, c, panel);
}

inline uint32_t chunk_of(const weft_op_kda& op) {
  return op.chunk == 0 || op.chunk > kBlock ? kBlock : op.chunk;
}

inline void chunk_head(const weft_op_kda& op, uint32_t seq, uint32_t h, uint8_t* scratch) {
  Bump bump(scratch);
  const ChunkWork w = chunk_work(op, bump);
  const KdaHead head(op, seq, h);
  const bool split = op.gate == WEFT_KDA_GATE_BOUNDED && op.bound * kBlock >= -80.0f;
  over_blocks(op, head, w.tokens, w.panels, chunk_of(op),
              [&](const PrivateState& s, uint32_t t, uint32_t n) {
                prepare_tokens(op, head, s.history, h, t, n, w.tokens);
                decayed_operands(w, n, split);
                if (split)
                  split_products(w, op.head_k, n);
                else
                  pairwise_products(w, n);
                for (uint64_t p = 0; p < state_panels(op); ++p) {
                  fetch_share(op, head, t + n, p, state_panels(op));
                  chunk_panel(w, op.head_k, n, s.panels + p * op.head_k * kPanelCols,
                              p * kPanelCols);
                }
                kda_outputs(op, head, t, n, w.tokens);
              });
}

}  // namespace

Need kda_chunk_need(const weft_op_kda& op) {
  Sizer sizer;
  chunk_work(op, sizer);
  return {0, sizer.bytes};
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
