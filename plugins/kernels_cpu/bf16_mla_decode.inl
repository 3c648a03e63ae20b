// mla_decode: the query is brought into the space of the latent rows, which are then read once for
// all heads. Four phases, each spread over the threads:
//   absorb  q~ = scale (q_nope WK_h), tail       per head and block of columns, for all rows
//   attend  one segment of 256 tokens of a sequence: scores, weights, weighted sum of the rows
//   fold    the segments of a row, in the order of position
//   value   y = WV_h (sum), gated                per head and sixteen outputs, for all rows
// Segments and their tiles of 64 tokens begin at absolute positions and are folded in order, so a
// row's bits depend on nothing but its own tokens. Rows come in chunks and segments in waves, which
// bounds the workspace whatever the context.
//
// Roundings to bf16: q, q~, cached rows (F32 pages), the weights of the softmax, the folded sum.

namespace {

constexpr uint32_t kMlaSegment = 256;    // tokens per segment
constexpr uint32_t kMlaChunkRows = 64;   // rows that go through the phases together
constexpr uint32_t kMlaSlots = 128;      // (row, segment) results per wave
constexpr uint32_t kMlaGroupHeads = 32;  // query vectors that share a pass over the rows
constexpr uint32_t kAbsorbRows = 16;

// Rows of one sequence that share the pass over a segment, row i into slot + i.
struct MlaItem {
  uint32_t row, n_rows, seq, segment, slot;
};
// Results of one row in this wave, `step` slots apart.
struct MlaFold {
  uint32_t row, slot, step, count;
  bool first, last;
};

struct MlaShape {
  uint64_t width, latent;
  uint32_t heads;       // rounded up to whole blocks of eight
  uint32_t group_rows;  // most rows of a sequence in one item
  uint64_t vectors;     // most query vectors of an item

  explicit MlaShape(const weft_op_mla& op)
      : width(mla_width(op)), latent(op.pages.latent), heads((op.heads + 7) / 8 * 8) {
    group_rows = heads >= kMlaGroupHeads ? 1 : kMlaGroupHeads / heads;
    vectors = uint64_t{group_rows} * heads;
  }
};

struct MlaShared {
  uint16_t* q;        // [chunk rows, heads, width]
  uint16_t* context;  // [chunk rows, heads, latent]
  float* slots;       // [slots, heads, latent], columns as `ordered` takes them
  float* slot_stat;   // [slots, heads, 2] top and sum
  float* state;       // [chunk rows, heads, latent] rows that span waves
  float* state_stat;  // [chunk rows, heads, 2]
  MlaItem* items;     // [slots]
  MlaFold* folds;     // [slots]
};

struct MlaScratch {
  uint16_t* rows;     // [tile + 1, width], the last one zeros
  float* scores;      // [vectors, tile]
  uint16_t* weights;  // [vectors, tile]
  float* top;         // [vectors]
  float* rescale;     // [vectors]
  float* sums;        // [vectors, lanes]
  uint16_t* q;        // [kAbsorbRows, nope]
  float* mixed;       // [kAbsorbRows, latent]
};

inline MlaShared mla_shared(const weft_op_mla& op, uint8_t* at) {
  const MlaShape s(op);
  const uint64_t rows = op.rows.n_rows < kMlaChunkRows ? op.rows.n_rows : kMlaChunkRows;
  Bump bump(at);
  MlaShared w;
  w.q = bump.take<uint16_t>(rows * s.heads * s.width);
  w.context = bump.take<uint16_t>(rows * s.heads * s.latent);
  w.slots = bump.take<float>(kMlaSlots * s.heads * s.latent);
  w.slot_stat = bump.take<float>(uint64_t{kMlaSlots} * s.heads * 2);
  w.state = bump.take<float>(rows * s.heads * s.latent);
  w.state_stat = bump.take<float>(rows * s.heads * 2);
  w.items = bump.take<MlaItem>(kMlaSlots);
  w.folds = bump.take<MlaFold>(kMlaSlots);
  return w;
}

inline MlaScratch mla_scratch(const weft_op_mla& op, uint8_t* at) {
  const MlaShape s(op);
  Bump bump(at);
  MlaScratch w;
  w.rows = bump.take<uint16_t>((kMlaTile + 1) * s.width);
  w.scores = bump.take<float>(s.vectors * kMlaTile);
  w.weights = bump.take<uint16_t>(s.vectors * kMlaTile);
  w.top = bump.take<float>(s.vectors + kLanes);
  w.rescale = bump.take<float>(s.vectors + kLanes);
  w.sums = bump.take<float>(s.vectors * kLanes);
  w.q = bump.take<uint16_t>(uint64_t{kAbsorbRows} * op.nope);
  w.mixed = bump.take<float>(kAbsorbRows * s.latent);
  return w;
}

inline uint64_t mla_tokens(const weft_op_mla& op, uint32_t seq, uint32_t row) {
  return uint64_t{op.rows.context[seq]} + row - op.rows.seq_start[seq] + 1;
}

// ---- absorb

// Sixteen rows of W, as pairs of rows, into the sums of n query rows.
inline void absorb_rows(const uint16_t* w, uint64_t latent, uint64_t c0, uint64_t c1,
                        const uint16_t* q, uint64_t q_stride, uint32_t n, bool first,
                        float* mixed) {
  for (uint64_t c = c0; c < c1; c += 32) {
    Pairs low[8], high[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const uint16_t* at = w + static_cast<uint64_t>(2 * i) * latent + c;
      const __m512i a = _mm512_loadu_si512(at), b = _mm512_loadu_si512(at + latent);
      low[i] = pairs(_mm512_unpacklo_epi16(a, b));
      high[i] = pairs(_mm512_unpackhi_epi16(a, b));
      // The next sixteen rows follow in memory.
      __builtin_prefetch(at + 16 * latent, 0, 2);
      __builtin_prefetch(at + 17 * latent, 0, 2);
    }
    for (uint32_t r = 0; r < n; ++r) {
      float* out = mixed + r * latent + c;
      V acc0 = first ? zero() : load(out), acc1 = first ? zero() : load(out + kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const Pairs both = broadcast_pair(q + r * q_stride + 2 * i);
        acc0 = dot2(acc0, low[i], both);
        acc1 = dot2(acc1, high[i], both);
      }
      store(out, acc0);
      store(out + kLanes, acc1);
    }
  }
}

// Columns c0 .. c1-1 of one head for all rows of the chunk; the head's tail goes with column 0.
inline void absorb_head(const weft_op_mla& op, const MlaShared& shared, const MlaScratch& w,
                        uint32_t row0, uint32_t n_rows, uint32_t h, uint64_t c0, uint64_t c1) {
  const MlaShape s(op);
  const uint64_t q_width = op.nope + uint64_t{op.pages.tail};
  for (uint32_t r0 = 0; r0 < n_rows; r0 += kAbsorbRows) {
    const uint32_t n = n_rows - r0 < kAbsorbRows ? n_rows - r0 : kAbsorbRows;
    for (uint32_t r = 0; r < n; ++r)
      round_scaled(mla_row(op.q, op.q_stride, row0 + r0 + r) + h * q_width, op.nope, mla_scale(op),
                   w.q + uint64_t{r} * op.nope);
    for (uint32_t i = 0; i < op.nope; i += 16)
      absorb_rows(mla_weight(op, uint64_t{h} * (op.nope + op.v_dim) + i), s.latent, c0, c1, w.q + i,
                  op.nope, n, i == 0, w.mixed);
    for (uint32_t r = 0; r < n; ++r) {
      const float* mixed = w.mixed + r * s.latent;
      uint16_t* out = shared.q + (uint64_t{r0 + r} * s.heads + h) * s.width;
      for (uint64_t c = c0; c < c1; c += 32)
        _mm512_storeu_si512(out + c, ordered(load(mixed + c), load(mixed + c + kLanes)));
      if (c0 == 0)
        round_scaled(mla_row(op.q, op.q_stride, row0 + r0 + r) + h * q_width + op.nope,
                     op.pages.tail, mla_scale(op), out + s.latent);
    }
  }
}

// ---- attend

// Rows of the following tile, brought into the cache while this one is computed.
struct MlaAhead {
  const uint8_t* row[kMlaTile];
};

// Scores of four query vectors and four tokens. kBytes: size of a stored value, for `ahead`.
template <int kBytes>
__attribute__((noinline)) void score_four(const uint16_t* q, uint64_t width,
                                          const uint16_t* const* rows, const uint8_t* ahead,
                                          float* scores) {
  V acc[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) acc[i] = zero();
  const uint16_t *t0 = rows[0], *t1 = rows[1], *t2 = rows[2], *t3 = rows[3];
  const uint16_t* q2 = q + 2 * width;
  for (uint64_t c = 0; c < width; c += 32) {
    __builtin_prefetch(ahead + c * kBytes, 0, 2);
    if constexpr (kBytes == 4) __builtin_prefetch(ahead + c * kBytes + 64, 0, 2);
    const Pairs t[4] = {load_pairs(t0 + c), load_pairs(t1 + c), load_pairs(t2 + c),
                        load_pairs(t3 + c)};
    const Pairs x[4] = {load_pairs(q + c), load_pairs(q + width + c), load_pairs(q2 + c),
                        load_pairs(q2 + width + c)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) acc[4 * i + j] = dot2(acc[4 * i + j], x[i], t[j]);
  }
  const V sums = sum_each(acc);
  _mm_storeu_ps(scores, _mm512_castps512_ps128(sums));
  _mm_storeu_ps(scores + kMlaTile, _mm512_extractf32x4_ps(sums, 1));
  _mm_storeu_ps(scores + 2 * kMlaTile, _mm512_extractf32x4_ps(sums, 2));
  _mm_storeu_ps(scores + 3 * kMlaTile, _mm512_extractf32x4_ps(sums, 3));
}

// 32 columns of eight weighted sums over pairs of rows.
template <int kLines>
__attribute__((noinline)) void mix_eight(const uint16_t* weights, const uint16_t* const* rows,
                                         uint32_t n_pairs, uint64_t c, const float* rescale,
                                         float* sums, uint64_t latent, const uint8_t* ahead) {
  V acc[8][2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    if (rescale == nullptr) {
      acc[i][0] = acc[i][1] = zero();
    } else {
      const float* at = sums + static_cast<uint64_t>(i) * latent;
      acc[i][0] = mul(load(at), set(rescale[i]));
      acc[i][1] = mul(load(at + kLanes), set(rescale[i]));
    }
  }
  for (uint32_t p = 0; p < n_pairs; ++p) {
    const __m512i a = _mm512_loadu_si512(rows[2 * p] + c),
                  b = _mm512_loadu_si512(rows[2 * p + 1] + c);
    const Pairs low = pairs(_mm512_unpacklo_epi16(a, b)), high = pairs(_mm512_unpackhi_epi16(a, b));
#pragma GCC unroll 4
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(ahead + 64 * i, 0, 2);
    ahead += 64 * kLines;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const Pairs both = broadcast_pair(weights + static_cast<uint32_t>(i) * kMlaTile + 2 * p);
      acc[i][0] = dot2(acc[i][0], low, both);
      acc[i][1] = dot2(acc[i][1], high, both);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    float* at = sums + static_cast<uint64_t>(i) * latent;
    store(at, acc[i][0]);
    store(at + kLanes, acc[i][1]);
  }
}

// Query vectors of one item against one tile of which all of them see the first n tokens. `rows`
// holds zero rows behind those.
template <int kBytes>
inline void attend_tile(const MlaShape& s, const MlaScratch& w, const uint16_t* q,
                        uint64_t first_vector, uint64_t n_vectors, const uint16_t* const* rows,
                        uint32_t n, bool first, const MlaAhead& ahead, float* sums) {
  for (uint32_t t = 0; t < n; t += 4)
    for (uint64_t i = 0; i < n_vectors; i += 4)
      score_four<kBytes>(q + i * s.width, s.width, rows + t, ahead.row[t / 2 + (i / 4) % 2],
                         w.scores + i * kMlaTile + t);
  float* top = w.top + first_vector;
  float higher[kLanes] = {};
  for (uint64_t i0 = 0; i0 < n_vectors; i0 += 8) {
    for (uint64_t i = 0; i < 8; ++i)
      higher[i] = highest<kMlaTile>(w.scores + (i0 + i) * kMlaTile, n,
                                    first ? -__builtin_inff() : top[i0 + i]);
    // The other eight lanes belong to the next vectors, which write them later.
    store(w.rescale + i0, power_of_two(minus(load(top + i0), load(higher))));
    for (uint64_t i = 0; i < 8; ++i) {
      const V weight = weigh<kMlaTile>(w.scores + (i0 + i) * kMlaTile, n, higher[i],
                                       w.weights + (i0 + i) * kMlaTile);
      float* sum = w.sums + (first_vector + i0 + i) * kLanes;
      store(sum, first ? weight : fma(load(sum), set(w.rescale[i0 + i]), weight));
      top[i0 + i] = higher[i];
    }
  }
  // While the first eight vectors are mixed, some rows of the next tile per block of columns.
  constexpr uint64_t kAheadRows = kMlaTile / 32;
  const uint64_t blocks = s.latent / 32, ahead_bytes = kAheadRows * s.width * kBytes;
  for (uint64_t i = 0; i < n_vectors; i += 8)
    for (uint64_t block = 0; block < blocks; ++block) {
      const auto mix = [&](auto count, const uint8_t* ahead_rows) {
        mix_eight<decltype(count)::value>(w.weights + i * kMlaTile, rows, (n + 1) / 2, block * 32,
                                          first ? nullptr : w.rescale + i,
                                          sums + i * s.latent + block * 32, s.latent, ahead_rows);
      };
      const uint64_t row = kMlaTile / 2 + kAheadRows * block;
      if (i != 0 || row >= kMlaTile) {
        mix(Int<0>(), nullptr);
        continue;
      }
      const uint8_t* at = ahead.row[row];
      constexpr int kLines = kBytes == 4 ? 2 : 1;
      for (uint64_t left = kMlaTile / 2 * 64 * kLines; left < ahead_bytes; left += 64)
        __builtin_prefetch(at + left, 0, 2);
      mix(Int<kLines>(), at);
    }
}

// Pointers to a tile's rows as bf16, zero rows behind them.
inline void tile_rows(const weft_op_mla& op, const MlaScratch& w, const MlaAhead& found, uint32_t n,
                      const uint16_t** rows) {
  const uint64_t width = mla_width(op);
  for (uint32_t t = 0; t < n; ++t) {
    if (op.pages.dtype == WEFT_BF16 && found.row[t] != nullptr) {
      rows[t] = reinterpret_cast<const uint16_t*>(found.row[t]);
    } else {
      copy_row(op, found.row[t], w.rows + t * width);
      rows[t] = w.rows + t * width;
    }
  }
  for (uint32_t t = n; t < kMlaTile; ++t) rows[t] = w.rows + kMlaTile * width;
}

inline uint32_t tile_tokens(uint64_t tokens, uint64_t first) {
  return tokens - first < kMlaTile ? static_cast<uint32_t>(tokens - first) : kMlaTile;
}

inline void find_tile(const weft_op_mla& op, const MlaItem& item, uint64_t first, MlaAhead* out) {
  const uint64_t tokens = mla_tokens(op, item.seq, item.row + item.n_rows - 1);
  const uint32_t n = tile_tokens(tokens, first);
  find_rows(op.pages, item.seq, first, n, out->row);
  for (uint32_t t = n; t < kMlaTile; ++t) out->row[t] = out->row[0];
}

// One item; `found` holds its first tile, and that of `next` (when there is one) afterwards.
template <int kBytes>
inline void attend_item(const weft_op_mla& op, const MlaShared& shared, const MlaScratch& w,
                        uint32_t row0, const MlaItem& item, const MlaItem* next, MlaAhead* found) {
  const MlaShape s(op);
  const uint64_t most = mla_tokens(op, item.seq, item.row + item.n_rows - 1);
  const uint64_t begin = uint64_t{item.segment} * kMlaSegment;
  const uint64_t end = most - begin < kMlaSegment ? most : begin + kMlaSegment;
  const uint16_t* q = shared.q + uint64_t{item.row - row0} * s.heads * s.width;
  float* sums = shared.slots + uint64_t{item.slot} * s.heads * s.latent;
  const uint16_t* rows[kMlaTile];
  for (uint64_t t = begin; t < end; t += kMlaTile) {
    const uint32_t n = tile_tokens(end, t);
    tile_rows(op, w, *found, n, rows);
    MlaAhead ahead = *found;
    if (t + kMlaTile < end)
      find_tile(op, item, t + kMlaTile, &ahead);
    else if (next != nullptr)
      find_tile(op, *next, uint64_t{next->segment} * kMlaSegment, &ahead);
    const bool first = t == begin;
    if (mla_tokens(op, item.seq, item.row) >= t + n) {
      attend_tile<kBytes>(s, w, q, 0, uint64_t{item.n_rows} * s.heads, rows, n, first, ahead, sums);
    } else {
      // Rows that see different parts of the tile go one by one.
      for (uint32_t r = item.n_rows; r-- > 0;) {
        const uint64_t seen = mla_tokens(op, item.seq, item.row + r);
        if (seen <= t) break;
        const uint32_t own = tile_tokens(seen, t);
        for (uint32_t i = own; i < n; ++i) rows[i] = w.rows + kMlaTile * s.width;
        attend_tile<kBytes>(s, w, q + uint64_t{r} * s.heads * s.width, uint64_t{r} * s.heads,
                            s.heads, rows, own, first, ahead,
                            sums + uint64_t{r} * s.heads * s.latent);
      }
    }
    *found = ahead;
  }
  float* stat = shared.slot_stat + uint64_t{item.slot} * s.heads * 2;
  for (uint64_t i = 0; i < uint64_t{item.n_rows} * s.heads; ++i) {
    stat[2 * i] = w.top[i];
    stat[2 * i + 1] = sum(load(w.sums + i * kLanes));
  }
}

template <int kBytes>
inline void attend_items(const weft_op_mla& op, const MlaShared& shared, const Team& team,
                         uint32_t row0, uint32_t n_items) {
  const MlaShape s(op);
  team.over(n_items, [&](uint64_t begin, uint64_t end, uint32_t part) {
    const MlaScratch w = mla_scratch(op, team.scratch(part));
    memset(w.rows + kMlaTile * s.width, 0, s.width * sizeof *w.rows);
    MlaAhead found;
    find_tile(op, shared.items[begin], uint64_t{shared.items[begin].segment} * kMlaSegment, &found);
    for (uint64_t i = begin; i < end; ++i)
      attend_item<kBytes>(op, shared, w, row0, shared.items[i],
                          i + 1 < end ? shared.items + i + 1 : nullptr, &found);
  });
}

// ---- fold

// Folds this wave's segments of one row and head into what earlier waves gathered.
inline void fold_head(const weft_op_mla& op, const MlaShared& shared, uint32_t row0,
                      const MlaFold& f, uint32_t h) {
  const MlaShape s(op);
  const uint64_t at = uint64_t{f.row - row0} * s.heads + h;
  const uint64_t slot = uint64_t{f.slot} * s.heads + h, step = uint64_t{f.step} * s.heads;
  float* stat = shared.state_stat + at * 2;
  float top = f.first ? -__builtin_inff() : stat[0], total = f.first ? 0.0f : stat[1];
  float keep[kMlaSlots], take[kMlaSlots];
  for (uint32_t k = 0; k < f.count; ++k) {
    const float* own = shared.slot_stat + (slot + k * step) * 2;
    const float higher = own[0] <= top ? top : own[0];
    const bool none = f.first && k == 0;
    keep[k] = none ? 0.0f : lane0(power_of_two(set(top - higher)));
    take[k] = none ? 1.0f : lane0(power_of_two(set(own[0] - higher)));
    top = higher;
    total = total * keep[k] + own[1] * take[k];
  }
  stat[0] = top;
  stat[1] = total;
  float* state = shared.state + at * s.latent;
  uint16_t* out = shared.context + at * s.latent;
  const float* sums = shared.slots + slot * s.latent;
  for (uint64_t c = 0; c < s.latent; c += 32) {
    V low = f.first ? zero() : load(state + c), high = f.first ? zero() : load(state + c + kLanes);
    for (uint32_t k = 0; k < f.count; ++k) {
      const float* own = sums + k * step * s.latent + c;
      low = fma(load(own), set(take[k]), mul(low, set(keep[k])));
      high = fma(load(own + kLanes), set(take[k]), mul(high, set(keep[k])));
    }
    if (f.last) {
      _mm512_storeu_si512(out + c, ordered(div(low, set(total)), div(high, set(total))));
    } else {
      store(state + c, low);
      store(state + c + kLanes, high);
    }
  }
}

// ---- value

// Outputs v0 .. v0+15 of one head for all rows of the chunk.
inline void value_block(const weft_op_mla& op, const MlaShared& shared, uint32_t row0,
                        uint32_t n_rows, uint32_t h, uint32_t v0) {
  const MlaShape s(op);
  const uint16_t* w = mla_weight(op, uint64_t{h} * (op.nope + op.v_dim) + op.nope + v0);
  const uint64_t at = uint64_t{h} * op.v_dim + v0;
  for (uint32_t r = 0; r < n_rows; ++r) {
    const uint16_t* x = shared.context + (uint64_t{r} * s.heads + h) * s.latent;
    V acc[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) acc[i] = zero();
    for (uint64_t c = 0; c < s.latent; c += 32) {
      const Pairs both = load_pairs(x + c);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        const uint16_t* row = w + static_cast<uint64_t>(i) * s.latent + c;
        acc[i] = dot2(acc[i], load_pairs(row), both);
        if (r == 0) __builtin_prefetch(row + 16 * s.latent, 0, 2);
      }
    }
    V y = sum_each(acc);
    if (op.u != nullptr) y = mul(y, sigmoid(load(mla_row(op.u, op.u_stride, row0 + r) + at)));
    store(static_cast<float*>(op.y) + (row0 + r) * op.y_stride + at, y);
  }
}

// ---- the op

// Where the next wave begins: a group of rows and one of its segments.
struct MlaCursor {
  uint32_t row, seq, segment;
};

// Fills one wave, advances the cursor, returns the numbers of items and folds.
struct MlaWave {
  uint32_t items, folds;
};
inline MlaWave plan_wave(const weft_op_mla& op, const MlaShared& w, uint32_t end_row,
                         MlaCursor* at) {
  const MlaShape s(op);
  MlaWave wave = {0, 0};
  uint32_t slots = 0;
  while (at->row < end_row) {
    while (op.rows.seq_start[at->seq + 1] <= at->row) ++at->seq;
    const uint32_t seq_end = op.rows.seq_start[at->seq + 1];
    const uint32_t last_row = seq_end < end_row ? seq_end : end_row;
    const uint32_t n = last_row - at->row < s.group_rows ? last_row - at->row : s.group_rows;
    const uint64_t most = mla_tokens(op, at->seq, at->row + n - 1);
    const auto segments = static_cast<uint32_t>((most + kMlaSegment - 1) / kMlaSegment);
    const uint32_t room = (kMlaSlots - slots) / n;
    const uint32_t count = segments - at->segment < room ? segments - at->segment : room;
    if (count == 0) break;
    for (uint32_t k = 0; k < count; ++k)
      w.items[wave.items++] = {at->row, n, at->seq, at->segment + k, slots + k * n};
    for (uint32_t r = 0; r < n; ++r) {
      const uint64_t tokens = mla_tokens(op, at->seq, at->row + r);
      const auto own = static_cast<uint32_t>((tokens + kMlaSegment - 1) / kMlaSegment);
      if (own <= at->segment) continue;
      const bool last = own <= at->segment + count;
      w.folds[wave.folds++] = {at->row + r,      slots + r, n, last ? own - at->segment : count,
                               at->segment == 0, last};
    }
    slots += count * n;
    at->segment += count;
    if (at->segment == segments) *at = {at->row + n, at->seq, 0};
  }
  return wave;
}

inline void decode_chunk(const weft_op_mla& op, const MlaShared& shared, const Team& team,
                         uint32_t row0, uint32_t n_rows, MlaCursor* at) {
  const MlaShape s(op);
  // Fewer heads than threads: split the columns too.
  const uint64_t parts = op.heads >= team.parts() || s.latent % 256 != 0 ? 1 : s.latent / 256;
  const uint64_t columns = s.latent / parts;
  team.over(op.heads * parts, [&](uint64_t begin, uint64_t end, uint32_t part) {
    const MlaScratch w = mla_scratch(op, team.scratch(part));
    for (uint64_t i = begin; i < end; ++i)
      absorb_head(op, shared, w, row0, n_rows, static_cast<uint32_t>(i / parts),
                  i % parts * columns, (i % parts + 1) * columns);
  });
  while (at->row < row0 + n_rows) {
    const MlaWave wave = plan_wave(op, shared, row0 + n_rows, at);
    if (op.pages.dtype == WEFT_F32)
      attend_items<4>(op, shared, team, row0, wave.items);
    else if (op.pages.dtype == WEFT_BF16)
      attend_items<2>(op, shared, team, row0, wave.items);
    else
      attend_items<1>(op, shared, team, row0, wave.items);
    team.over(uint64_t{wave.folds} * op.heads, [&](uint64_t begin, uint64_t end, uint32_t) {
      for (uint64_t i = begin; i < end; ++i)
        fold_head(op, shared, row0, shared.folds[i / op.heads],
                  static_cast<uint32_t>(i % op.heads));
    });
  }
  const uint32_t blocks = op.v_dim / 16;
  team.over(uint64_t{op.heads} * blocks, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i)
      value_block(op, shared, row0, n_rows, static_cast<uint32_t>(i / blocks),
                  static_cast<uint32_t>(i % blocks) * 16);
  });
}

inline uint64_t mla_work(const weft_op_mla& op, uint64_t per_token) {
  uint64_t work = uint64_t{op.rows.n_rows} * op.kv_b.n * op.kv_b.k;
  for (uint32_t seq = 0; seq < op.rows.n_seqs; ++seq) {
    const uint64_t n = op.rows.seq_start[seq + 1] - op.rows.seq_start[seq];
    work += n * (op.rows.context[seq] + n) * op.heads * per_token;
  }
  return work;
}

}  // namespace

Need mla_decode_need(const weft_op_mla& op) {
  if (!mla_fits(op)) return avx512::mla_decode_need(op);
  const MlaShape s(op);
  const uint64_t rows = op.rows.n_rows < kMlaChunkRows ? op.rows.n_rows : kMlaChunkRows;
  Need need;
  need.shared =
      slab<uint16_t>(rows * s.heads * s.width) + slab<uint16_t>(rows * s.heads * s.latent) +
      slab<float>(kMlaSlots * s.heads * s.latent) + slab<float>(uint64_t{kMlaSlots} * s.heads * 2) +
      slab<float>(rows * s.heads * s.latent) + slab<float>(rows * s.heads * 2) +
      slab<MlaItem>(kMlaSlots) + slab<MlaFold>(kMlaSlots);
  need.per_part = slab<uint16_t>((kMlaTile + 1) * s.width) + slab<float>(s.vectors * kMlaTile) +
                  slab<uint16_t>(s.vectors * kMlaTile) + 2 * slab<float>(s.vectors + kLanes) +
                  slab<float>(s.vectors * kLanes) +
                  slab<uint16_t>(uint64_t{kAbsorbRows} * op.nope) +
                  slab<float>(kAbsorbRows * s.latent);
  return need;
}

void mla_decode(const weft_op_mla& op) {
  if (!mla_fits(op)) return avx512::mla_decode(op);
  const Team team(op.head, mla_decode_need(op), mla_work(op, 2 * mla_width(op)), kMlaSlots);
  const MlaShared shared = mla_shared(op, team.shared());
  MlaCursor at = {0, 0, 0};
  for (uint32_t row = 0; row < op.rows.n_rows; row += kMlaChunkRows) {
    const uint32_t left = op.rows.n_rows - row;
    decode_chunk(op, shared, team, row, left < kMlaChunkRows ? left : kMlaChunkRows, &at);
  }
}
