// mla_prefill: keys and values are expanded from the cached rows, 1024 tokens of a sequence at a
// time, for all heads and once per call; then every block of query rows attends to them. Phases:
//   pack    32 tokens: their rows as bf16, and as pairs of columns with a token per lane
//   expand  32 tokens and one head: K = W_k L as pairs of columns with a token per lane,
//           V = L W_v as pairs of tokens with an output per lane
//   attend  twelve query rows and one head: tiles of 128 tokens with an online softmax
// All products are outer(): rows of pairs broadcast to the lanes of a packed matrix, one chain per
// output with K ascending. Stretches and tiles begin at absolute positions, so a row's bits depend
// neither on the call's other rows nor on how its sequence was cut into calls. What lies in a row's
// future never enters its sums, not even with weight zero: it may be NaN.
//
// Roundings to bf16: q, cached rows (F32 pages), K, V, the weights of the softmax.

namespace {

constexpr uint32_t kMlaStretch = 1024;        // tokens expanded at a time
constexpr uint32_t kMlaKeys = 128;            // tokens per softmax tile
constexpr uint32_t kMlaLane = 32;             // tokens, or outputs, side by side in a packed matrix
constexpr uint32_t kMlaQueries = 12;          // query rows per block
constexpr uint64_t kPairStep = 2 * kMlaLane;  // elements from one pair to the next

// What remains of a row's softmax between stretches.
struct MlaRest {
  float top, sum;
};

struct ExpandedShared {
  uint16_t* rows;    // [stretch, width]
  uint16_t* packed;  // [stretch / 32, width / 2, 32, 2]
  uint16_t* keys;    // [heads, stretch / 32, nope / 2, 32, 2]
  uint16_t* values;  // [heads, v_dim / 32, stretch / 2, 32, 2]
  uint16_t* w_v;     // [heads, v_dim / 32, latent / 2, 32, 2]
  MlaRest* rest;     // [n_rows, heads]
};

struct ExpandedScratch {
  uint16_t* q;        // [queries, nope + tail]
  float* scores;      // [queries, keys]
  uint16_t* weights;  // [queries, keys]
  float* sums;        // [queries, v_dim]
};

inline uint64_t mla_query_width(const weft_op_mla& op) { return op.nope + uint64_t{op.pages.tail}; }

inline ExpandedShared expanded_shared(const weft_op_mla& op, uint8_t* at) {
  Bump bump(at);
  ExpandedShared w;
  w.rows = bump.take<uint16_t>(kMlaStretch * mla_width(op));
  w.packed = bump.take<uint16_t>(kMlaStretch * mla_width(op));
  w.keys = bump.take<uint16_t>(uint64_t{op.heads} * kMlaStretch * op.nope);
  w.values = bump.take<uint16_t>(uint64_t{op.heads} * kMlaStretch * op.v_dim);
  w.w_v = bump.take<uint16_t>(uint64_t{op.heads} * op.v_dim * op.pages.latent);
  w.rest = bump.take<MlaRest>(uint64_t{op.rows.n_rows} * op.heads);
  return w;
}

inline ExpandedScratch expanded_scratch(const weft_op_mla& op, uint8_t* at) {
  Bump bump(at);
  ExpandedScratch w;
  w.q = bump.take<uint16_t>(kMlaQueries * mla_query_width(op));
  w.scores = bump.take<float>(kMlaQueries * kMlaKeys);
  w.weights = bump.take<uint16_t>(kMlaQueries * kMlaKeys);
  w.sums = bump.take<float>(uint64_t{kMlaQueries} * op.v_dim);
  return w;
}

// acc[m] += a_m B over n pairs: a_m = a + m * stride, B packed with 32 lanes.
template <int M>
inline void outer(const uint16_t* a, uint64_t stride, const uint16_t* b, uint64_t n_pairs,
                  V (&acc)[M][2]) {
  // Rows in threes: what the address forms of the machine reach from one pointer.
  const uint16_t* base[(M + 2) / 3];
#pragma GCC unroll 4
  for (int i = 0; i < (M + 2) / 3; ++i) base[i] = a + static_cast<uint64_t>(3 * i) * stride;
  for (uint64_t p = 0; p < n_pairs; ++p, b += kPairStep) {
    const Pairs b0 = load_pairs(b), b1 = load_pairs(b + kMlaLane);
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const Pairs both = broadcast_pair(base[m / 3] + static_cast<uint64_t>(m % 3) * stride);
      acc[m][0] = dot2(acc[m][0], both, b0);
      acc[m][1] = dot2(acc[m][1], both, b1);
    }
#pragma GCC unroll 4
    for (int i = 0; i < (M + 2) / 3; ++i) base[i] += 2;
  }
}

template <int M>
inline void clear_rows(V (&acc)[M][2]) {
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = zero();
}

// ---- pack

// Sixteen rows of sixteen pairs, transposed.
inline void transpose_pairs(const uint16_t* const* rows, uint64_t column, uint16_t* out) {
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(rows[i] + column);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
    b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
  }
  // a[4g + j]: pair 4L + j of rows 4g .. 4g+3 in quarter L.
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const __m512i* x = b + 4 * g;
    a[4 * g] = _mm512_unpacklo_epi64(x[0], x[2]);
    a[4 * g + 1] = _mm512_unpackhi_epi64(x[0], x[2]);
    a[4 * g + 2] = _mm512_unpacklo_epi64(x[1], x[3]);
    a[4 * g + 3] = _mm512_unpackhi_epi64(x[1], x[3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x44),
                  low2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x44),
                  high = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xee),
                  high2 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xee);
    uint16_t* at = out + static_cast<uint64_t>(j) * kPairStep;
    _mm512_storeu_si512(at, _mm512_shuffle_i32x4(low, low2, 0x88));
    _mm512_storeu_si512(at + 4 * kPairStep, _mm512_shuffle_i32x4(low, low2, 0xdd));
    _mm512_storeu_si512(at + 8 * kPairStep, _mm512_shuffle_i32x4(high, high2, 0x88));
    _mm512_storeu_si512(at + 12 * kPairStep, _mm512_shuffle_i32x4(high, high2, 0xdd));
  }
}

// 32 rows, `stride` apart, as [columns / 2][32][2]; columns a multiple of 32.
inline void pack_lanes(const uint16_t* rows, uint64_t stride, uint64_t columns, uint16_t* out) {
  const uint16_t* at[kMlaLane];
  for (uint32_t i = 0; i < kMlaLane; ++i) at[i] = rows + i * stride;
  for (uint64_t c = 0; c < columns; c += 32)
    for (uint32_t half = 0; half < 2; ++half)
      transpose_pairs(at + 16 * half, c, out + c / 2 * kPairStep + 32 * half);
}

// Tokens first .. first+31 of a sequence of `tokens`, group g of the stretch.
inline void pack_tokens(const weft_op_mla& op, const ExpandedShared& w, uint32_t seq,
                        uint64_t first, uint64_t tokens, uint64_t g) {
  const uint64_t width = mla_width(op);
  const uint32_t n = tokens - first < kMlaLane ? static_cast<uint32_t>(tokens - first) : kMlaLane;
  const uint8_t* found[kMlaLane];
  find_rows(op.pages, seq, first, n, found);
  uint16_t* rows = w.rows + g * kMlaLane * width;
  for (uint32_t t = 0; t < n; ++t) copy_row(op, found[t], rows + t * width);
  memset(rows + n * width, 0, (kMlaLane - n) * width * sizeof *rows);
  pack_lanes(rows, width, width, w.packed + g * kMlaLane * width);
}

inline void pack_values(const weft_op_mla& op, const ExpandedShared& w, uint64_t head,
                        uint64_t block) {
  const uint64_t latent = op.pages.latent, row = block * kMlaLane;
  pack_lanes(mla_weight(op, head * (op.nope + op.v_dim) + op.nope + row), latent, latent,
             w.w_v + (head * op.v_dim + row) * latent);
}

// ---- expand

// Rows m and m+1 become the two halves of pairs.
template <int M>
inline void put_pairs(const V (&acc)[M][2], uint16_t* out) {
  const __m512i index = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
#pragma GCC unroll 6
  for (int m = 0; m < M; m += 2)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
      _mm512_storeu_si512(out + static_cast<uint64_t>(m / 2) * kPairStep + 32 * half,
                          _mm512_permutexvar_epi16(index, narrow(acc[m][half], acc[m + 1][half])));
}

template <int M>
__attribute__((noinline)) void expand_rows(const uint16_t* a, uint64_t stride, const uint16_t* b,
                                           uint64_t n_pairs, uint16_t* out) {
  V acc[M][2];
  clear_rows<M>(acc);
  outer<M>(a, stride, b, n_pairs, acc);
  put_pairs<M>(acc, out);
}

// n rows of a (a multiple of 8) times B, as pairs of rows.
inline void expand(const uint16_t* a, uint64_t stride, const uint16_t* b, uint64_t n_pairs,
                   uint64_t n, uint16_t* out) {
  while (n > 0) {
    const uint64_t m = n % 12 == 0 ? 12 : 8;
    if (m == 12)
      expand_rows<12>(a, stride, b, n_pairs, out);
    else
      expand_rows<8>(a, stride, b, n_pairs, out);
    n -= m;
    a += m * stride;
    out += m / 2 * kPairStep;
  }
}

inline void expand_group(const weft_op_mla& op, const ExpandedShared& w, uint64_t head,
                         uint64_t g) {
  const uint64_t latent = op.pages.latent, width = mla_width(op);
  expand(mla_weight(op, head * (op.nope + op.v_dim)), latent, w.packed + g * kMlaLane * width,
         latent / 2, op.nope, w.keys + (head * kMlaStretch + g * kMlaLane) * op.nope);
  for (uint64_t v = 0; v < op.v_dim; v += kMlaLane)
    expand(w.rows + g * kMlaLane * width, width, w.w_v + (head * op.v_dim + v) * latent, latent / 2,
           kMlaLane, w.values + (head * op.v_dim + v) * kMlaStretch + g * kMlaLane * kMlaLane);
}

// ---- attend

// Twelve query rows of one head against one tile. seen[m]: how many of the tile's tokens row m
// sees, ascending.
struct TileView {
  const uint16_t* keys;    // of the tile's first group of 32 tokens
  const uint16_t* packed;  // likewise; the tails are its last pairs
  const uint16_t* values;  // of the tile's first pair of tokens and first 32 outputs
  uint32_t seen[kMlaQueries];
};

inline void score_queries(const weft_op_mla& op, const ExpandedScratch& w, const TileView& tile) {
  const uint64_t latent = op.pages.latent, q_width = mla_query_width(op);
  for (uint32_t t = 0; t < tile.seen[kMlaQueries - 1]; t += kMlaLane) {
    V acc[kMlaQueries][2];
    clear_rows<kMlaQueries>(acc);
    outer<kMlaQueries>(w.q, q_width, tile.keys + uint64_t{t} * op.nope, op.nope / 2, acc);
    outer<kMlaQueries>(w.q + op.nope, q_width,
                       tile.packed + t * mla_width(op) + latent / 2 * kPairStep, op.pages.tail / 2,
                       acc);
#pragma GCC unroll 12
    for (uint32_t m = 0; m < kMlaQueries; ++m) {
      store(w.scores + m * kMlaKeys + t, acc[m][0]);
      store(w.scores + m * kMlaKeys + t + kLanes, acc[m][1]);
    }
  }
}

// The pairs from `from` on, which not all rows see, row by row. Of a pair that a row sees by half,
// the other half counts as zero.
inline void mix_rest(const ExpandedScratch& w, const TileView& tile, const uint16_t* values,
                     uint32_t from, V (&acc)[kMlaQueries][2]) {
#pragma GCC unroll 12
  for (uint32_t m = 0; m < kMlaQueries; ++m)
    for (uint32_t p = from; 2 * p < tile.seen[m]; ++p) {
      const __mmask32 part = 2 * p + 1 < tile.seen[m] ? 0xffffffffu : 0x55555555u;
      const uint16_t* at = values + p * kPairStep;
      const Pairs both = broadcast_pair(w.weights + m * kMlaKeys + 2 * p);
      acc[m][0] = dot2(acc[m][0], both, pairs(_mm512_maskz_loadu_epi16(part, at)));
      acc[m][1] = dot2(acc[m][1], both, pairs(_mm512_maskz_loadu_epi16(part, at + kMlaLane)));
    }
}

inline void mix_values(const weft_op_mla& op, const ExpandedScratch& w, const TileView& tile,
                       const float* rescale) {
  const uint32_t whole = tile.seen[0] / 2;  // pairs that every row sees
  const bool more = tile.seen[kMlaQueries - 1] > 2 * whole;
  for (uint64_t v = 0; v < op.v_dim; v += kMlaLane) {
    const uint16_t* values = tile.values + v * kMlaStretch;
    float* sums = w.sums + v;
    V acc[kMlaQueries][2];
#pragma GCC unroll 12
    for (uint32_t m = 0; m < kMlaQueries; ++m) {
      acc[m][0] = mul(load(sums + m * op.v_dim), set(rescale[m]));
      acc[m][1] = mul(load(sums + m * op.v_dim + kLanes), set(rescale[m]));
    }
    outer<kMlaQueries>(w.weights, kMlaKeys, values, whole, acc);
    if (more) mix_rest(w, tile, values, whole, acc);
#pragma GCC unroll 12
    for (uint32_t m = 0; m < kMlaQueries; ++m) {
      store(sums + m * op.v_dim, acc[m][0]);
      store(sums + m * op.v_dim + kLanes, acc[m][1]);
    }
  }
}

// The softmax of twelve rows over one stretch.
struct BlockState {
  float top[kMlaQueries];
  float sums[kMlaQueries][kLanes];
};

inline void attend_keys(const weft_op_mla& op, const ExpandedScratch& w, const TileView& tile,
                        BlockState* state) {
  score_queries(op, w, tile);
  alignas(64) float higher[kLanes] = {}, was[kLanes] = {}, rescale[kLanes];
  for (uint32_t m = 0; m < kMlaQueries; ++m) {
    was[m] = state->top[m];
    higher[m] = highest<kMlaKeys>(w.scores + m * kMlaKeys, tile.seen[m], was[m]);
  }
  store(rescale, power_of_two(minus(load(was), load(higher))));
  for (uint32_t m = 0; m < kMlaQueries; ++m) {
    if (tile.seen[m] == 0) {
      rescale[m] = 1.0f;
      continue;
    }
    if (was[m] == -__builtin_inff()) rescale[m] = 0.0f;  // the first tile
    const V weight =
        weigh<kMlaKeys>(w.scores + m * kMlaKeys, tile.seen[m], higher[m], w.weights + m * kMlaKeys);
    store(state->sums[m], fma(load(state->sums[m]), set(rescale[m]), weight));
    state->top[m] = higher[m];
  }
  mix_values(op, w, tile, rescale);
}

// Rows first .. first+n-1 of the call, n <= 12, which sit at positions from `position` on, against
// `count` tokens expanded from position `begin` on. y holds unnormalised sums until `last`.
struct QueryBlock {
  uint32_t first, n;
  uint64_t position, begin, count;
  bool last;
};

inline void attend_block(const weft_op_mla& op, const ExpandedShared& shared,
                         const ExpandedScratch& w, const QueryBlock& b, uint64_t head) {
  const uint64_t q_width = mla_query_width(op), at = head * op.v_dim;
  BlockState state;
  memset(state.sums, 0, sizeof state.sums);
  for (uint32_t m = 0; m < kMlaQueries; ++m) {
    const uint32_t r = b.first + (m < b.n ? m : b.n - 1);  // the last row fills the block
    round_scaled(mla_row(op.q, op.q_stride, r) + head * q_width, q_width, mla_scale(op),
                 w.q + m * q_width);
    float* sums = w.sums + uint64_t{m} * op.v_dim;
    if (b.begin == 0) {
      state.top[m] = -__builtin_inff();
      memset(sums, 0, op.v_dim * sizeof *sums);
    } else {
      const MlaRest& rest = shared.rest[r * uint64_t{op.heads} + head];
      state.top[m] = rest.top;
      state.sums[m][0] = rest.sum;
      memcpy(sums, mla_row(op.y, op.y_stride, r) + at, op.v_dim * sizeof *sums);
    }
  }
  for (uint64_t t = 0; t < b.count; t += kMlaKeys) {
    const uint64_t left = b.count - t < kMlaKeys ? b.count - t : kMlaKeys;
    TileView tile;
    tile.keys = shared.keys + (head * kMlaStretch + t) * op.nope;
    tile.packed = shared.packed + t * mla_width(op);
    tile.values = shared.values + head * op.v_dim * kMlaStretch + t * kMlaLane;
    for (uint32_t m = 0; m < kMlaQueries; ++m) {
      const uint64_t end = b.position + (m < b.n ? m : b.n - 1) + 1, from = b.begin + t;
      const uint64_t seen = end <= from ? 0 : end - from;
      tile.seen[m] = static_cast<uint32_t>(seen < left ? seen : left);
    }
    if (tile.seen[kMlaQueries - 1] == 0) break;
    attend_keys(op, w, tile, &state);
  }
  for (uint32_t m = 0; m < b.n; ++m) {
    const uint64_t r = b.first + m;
    float* y = static_cast<float*>(op.y) + r * op.y_stride + at;
    const float* sums = w.sums + uint64_t{m} * op.v_dim;
    const float total = sum(load(state.sums[m]));
    if (b.last) {
      finish_values(sums, total, op.u == nullptr ? nullptr : mla_row(op.u, op.u_stride, r) + at,
                    op.v_dim, y);
    } else {
      memcpy(y, sums, op.v_dim * sizeof *y);
      shared.rest[r * op.heads + head] = {state.top[m], total};
    }
  }
}

// ---- the op

// body(item, part) for every item: threads take the next one when they are done with theirs.
template <class Body>
inline void take_turns(const Team& team, uint64_t items, const Body& body) {
  uint64_t taken = 0;
  team.over(items < team.parts() ? items : team.parts(),
            [&](uint64_t begin, uint64_t end, uint32_t part) {
              for (uint64_t i = begin; i < end; ++i)
                for (;;) {
                  const uint64_t item = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
                  if (item >= items) break;
                  body(item, part);
                }
            });
}

inline void attend_stretch(const weft_op_mla& op, const ExpandedShared& shared, const Team& team,
                           uint32_t seq, uint64_t begin, uint64_t count) {
  const uint32_t first = op.rows.seq_start[seq];
  const uint64_t n = op.rows.seq_start[seq + 1] - first, context = op.rows.context[seq];
  // Rows before the stretch see nothing of it.
  const uint64_t from = begin > context ? (begin - context) / kMlaQueries : 0;
  const uint64_t blocks = (n + kMlaQueries - 1) / kMlaQueries - from;
  take_turns(team, op.heads * blocks, [&](uint64_t i, uint32_t part) {
    // Late rows have the most to see and come first.
    const uint64_t row = (from + blocks - 1 - i % blocks) * kMlaQueries;
    QueryBlock b;
    b.first = static_cast<uint32_t>(first + row);
    b.n = n - row < kMlaQueries ? static_cast<uint32_t>(n - row) : kMlaQueries;
    b.position = context + row;
    b.begin = begin;
    b.count = count;
    if (b.position + b.n <= begin) return;
    b.last = b.position + b.n <= begin + kMlaStretch;
    attend_block(op, shared, expanded_scratch(op, team.scratch(part)), b, i / blocks);
  });
}

}  // namespace

Need mla_prefill_need(const weft_op_mla& op) {
  if (!mla_fits(op)) return avx512::mla_prefill_need(op);
  Need need;
  need.shared = 2 * slab<uint16_t>(kMlaStretch * mla_width(op)) +
                slab<uint16_t>(uint64_t{op.heads} * kMlaStretch * op.nope) +
                slab<uint16_t>(uint64_t{op.heads} * kMlaStretch * op.v_dim) +
                slab<uint16_t>(uint64_t{op.heads} * op.v_dim * op.pages.latent) +
                slab<MlaRest>(uint64_t{op.rows.n_rows} * op.heads);
  need.per_part = slab<uint16_t>(kMlaQueries * mla_query_width(op)) +
                  slab<float>(kMlaQueries * kMlaKeys) + slab<uint16_t>(kMlaQueries * kMlaKeys) +
                  slab<float>(uint64_t{kMlaQueries} * op.v_dim);
  return need;
}

void mla_prefill(const weft_op_mla& op) {
  if (!mla_fits(op)) return avx512::mla_prefill(op);
  const uint64_t items = uint64_t{op.heads} * kMlaStretch;
  const Team team(op.head, mla_prefill_need(op), mla_work(op, mla_query_width(op) + op.v_dim),
                  items);
  const ExpandedShared shared = expanded_shared(op, team.shared());
  const uint64_t v_blocks = op.v_dim / kMlaLane;
  bool packed_values = false;
  for (uint32_t seq = 0; seq < op.rows.n_seqs; ++seq) {
    const uint64_t n = op.rows.seq_start[seq + 1] - op.rows.seq_start[seq];
    const uint64_t tokens = op.rows.context[seq] + n;
    for (uint64_t begin = 0; n > 0 && begin < tokens; begin += kMlaStretch) {
      const uint64_t count = tokens - begin < kMlaStretch ? tokens - begin : kMlaStretch;
      const uint64_t groups = (count + kMlaLane - 1) / kMlaLane;
      const uint64_t extra = packed_values ? 0 : op.heads * v_blocks;
      take_turns(team, groups + extra, [&](uint64_t i, uint32_t) {
        if (i < extra)
          pack_values(op, shared, i / v_blocks, i % v_blocks);
        else
          pack_tokens(op, shared, seq, begin + (i - extra) * kMlaLane, tokens, i - extra);
      });
      packed_values = true;
      take_turns(team, groups * op.heads,
                 [&](uint64_t i, uint32_t) { expand_group(op, shared, i / groups, i % groups); });
      attend_stretch(op, shared, team, seq, begin, count);
    }
  }
}
