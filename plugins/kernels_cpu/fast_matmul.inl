// Dot-product kernels (both operands contiguous along K), the matrix products of attention, gemm
// and moe.

namespace {

// Readers of one weight row, kLanes columns at a time.
struct F32Row {
  const float* p;
  V at(uint64_t k) const { return load(p + k); }
  V at_n(uint64_t k, uint32_t n) const { return load_n(p + k, n); }
};
struct Bf16Row {
  const uint16_t* p;
  V at(uint64_t k) const { return load_bf16(p + k); }
  V at_n(uint64_t k, uint32_t n) const { return load_bf16_n(p + k, n); }
};
struct Mxfp4Row {
  const uint8_t* p;
  const uint8_t* scale;
  V at(uint64_t k) const { return load_mxfp4(p + k / 2, set(half_e8m0(scale[k / 32]))); }
  V at_n(uint64_t, uint32_t) const { return zero(); }  // never: k is a multiple of 32
};

template <class Row>
inline Row weight_row_at(const weft_weight& w, uint64_t n);
template <>
inline F32Row weight_row_at<F32Row>(const weft_weight& w, uint64_t n) {
  return {reinterpret_cast<const float*>(weight_row(w, n))};
}
template <>
inline Bf16Row weight_row_at<Bf16Row>(const weft_weight& w, uint64_t n) {
  return {reinterpret_cast<const uint16_t*>(weight_row(w, n))};
}
template <>
inline Mxfp4Row weight_row_at<Mxfp4Row>(const weft_weight& w, uint64_t n) {
  return {weight_row(w, n), scale_row(w, n)};
}

// M x N dot products over columns begin .. end (begin a multiple of kLanes), continuing the
// accumulators in `acc`. This is where the order along K is fixed: whatever M and N are and however
// K is cut into calls, each result is one chain of fused multiply-adds per lane with K ascending,
// closed by sum().
template <int M, int N, class Row>
inline void dot_tile(const float* const* x, const Row* w, uint64_t begin, uint64_t end,
                     V (&acc)[M][N]) {
  uint64_t k = begin;
  for (; k + kLanes <= end; k += kLanes) {
    V xs[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) xs[m] = load(x[m] + k);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      const V ws = w[n].at(k);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) acc[m][n] = fma(xs[m], ws, acc[m][n]);
    }
  }
  if (k == end) return;
  const uint32_t lanes = static_cast<uint32_t>(end - k);
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    const V ws = w[n].at_n(k, lanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[m][n] = fma(load_n(x[m] + k, lanes), ws, acc[m][n]);
  }
}

// Outputs that share their decoded weight rows.
constexpr uint32_t kPanel = 8;

// x rows of a product: either base + r*stride, or through a list of row numbers.
struct Rows {
  const float* base;
  uint64_t stride;
  const uint32_t* list;  // NULL: rows 0, 1, 2, ...
  const float* at(uint64_t r) const {
    return base + (list == nullptr ? r : uint64_t{list[r]}) * stride;
  }
};

template <int M, int N, class Row, class Put>
inline void tile_rows(const Rows& x, uint64_t r, const Row* w, uint64_t k, uint32_t first,
                      const Put& put) {
  const float* xs[M];
  for (int m = 0; m < M; ++m) xs[m] = x.at(r + static_cast<uint64_t>(m));
  V acc[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) acc[m][n] = zero();
  dot_tile<M, N>(xs, w, 0, k, acc);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
      put(r + static_cast<uint64_t>(m), first + static_cast<uint32_t>(n), sum(acc[m][n]));
}

// put(row, j, value) for every row of x and j < count, where value = x[row] . w[j].
template <class Row, class Put>
inline void dot_rows(const Rows& x, uint64_t n_rows, const Row* w, uint32_t count, uint64_t k,
                     const Put& put) {
  uint64_t r = 0;
  for (; r + kTileRows <= n_rows; r += kTileRows) {
    uint32_t j = 0;
    for (; j + kTileCols <= count; j += kTileCols)
      tile_rows<kTileRows, kTileCols>(x, r, w + j, k, j, put);
    for (; j < count; ++j) tile_rows<kTileRows, 1>(x, r, w + j, k, j, put);
  }
  for (; r < n_rows; ++r) {
    if (count == kPanel) {
      tile_rows<1, kPanel>(x, r, w, k, 0, put);
      continue;
    }
    for (uint32_t j = 0; j < count; ++j) tile_rows<1, 1>(x, r, w + j, k, j, put);
  }
}

template <class Row>
inline void decode_row(const Row& row, uint64_t begin, uint64_t end, float* out) {
  uint64_t c = begin;
  for (; c + kLanes <= end; c += kLanes, out += kLanes) store(out, row.at(c));
  if (c < end)
    store_n(out, row.at_n(c, static_cast<uint32_t>(end - c)), static_cast<uint32_t>(end - c));
}

// With this many rows a panel is decoded once and used for all of them, kBlockK columns at a time
// so that it stays in the first-level cache; the accumulators of up to kBlockRows rows wait in
// scratch between the blocks. Decoding is exact, so this gives the same bits as the direct way.
constexpr uint64_t kBlockFrom = 2 * kTileRows;
constexpr uint64_t kBlockRows = 64;
constexpr uint64_t kBlockK = 512;
constexpr uint64_t kPanelScratch = kPanel * kBlockK + kBlockRows * kPanel * kLanes;  // floats

template <int M, int N>
inline void block_tile(const Rows& x, uint64_t r, const F32Row* w, uint64_t k0, uint64_t k1,
                       float* partial) {
  const float* xs[M];
  for (int m = 0; m < M; ++m) xs[m] = x.at(r + static_cast<uint64_t>(m)) + k0;
  V acc[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
      acc[m][n] = k0 == 0 ? zero() : load(partial + (m * kPanel + n) * kLanes);
  dot_tile<M, N>(xs, w, 0, k1 - k0, acc);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) store(partial + (m * kPanel + n) * kLanes, acc[m][n]);
}

template <int M>
inline void block_row(const Rows& x, uint64_t r, const F32Row* w, uint32_t count, uint64_t k0,
                      uint64_t k1, float* partial) {
  uint32_t j = 0;
  for (; j + kTileCols <= count; j += kTileCols)
    block_tile<M, kTileCols>(x, r, w + j, k0, k1, partial + j * kLanes);
  for (; j < count; ++j) block_tile<M, 1>(x, r, w + j, k0, k1, partial + j * kLanes);
}

template <class Row, class Put>
inline void blocked_panel(const Rows& x, uint64_t n_rows, const Row* rows, uint32_t count,
                          uint64_t k, float* scratch, const Put& put) {
  float *decoded = scratch, *partial = scratch + kPanel * kBlockK;
  for (uint64_t r0 = 0; r0 < n_rows; r0 += kBlockRows) {
    const uint64_t r1 = r0 + kBlockRows < n_rows ? r0 + kBlockRows : n_rows;
    for (uint64_t k0 = 0; k0 < k; k0 += kBlockK) {
      const uint64_t k1 = k0 + kBlockK < k ? k0 + kBlockK : k;
      F32Row block[kPanel];
      for (uint32_t j = 0; j < count; ++j) {
        block[j] = {decoded + j * kBlockK};
        decode_row(rows[j], k0, k1, decoded + j * kBlockK);
      }
      uint64_t r = r0;
      for (; r + kTileRows <= r1; r += kTileRows)
        block_row<kTileRows>(x, r, block, count, k0, k1, partial + (r - r0) * kPanel * kLanes);
      for (; r < r1; ++r)
        block_row<1>(x, r, block, count, k0, k1, partial + (r - r0) * kPanel * kLanes);
    }
    for (uint64_t r = r0; r < r1; ++r)
      for (uint32_t j = 0; j < count; ++j)
        put(r, j, sum(load(partial + ((r - r0) * kPanel + j) * kLanes)));
  }
}

template <class Row, class Put>
inline void panel_of(const Rows& x, uint64_t n_rows, const weft_weight& w, uint64_t first,
                     uint32_t count, float* scratch, const Put& put) {
  Row rows[kPanel];
  for (uint32_t j = 0; j < count; ++j) rows[j] = weight_row_at<Row>(w, first + j);
  if (n_rows < kBlockFrom)
    dot_rows(x, n_rows, rows, count, w.k, put);
  else
    blocked_panel(x, n_rows, rows, count, w.k, scratch, put);
}

// Outputs first .. first+count-1 (count <= kPanel) of x w^T. scratch: kPanelScratch floats, unused
// below kBlockFrom rows.
template <class Put>
inline void panel(const Rows& x, uint64_t n_rows, const weft_weight& w, uint64_t first,
                  uint32_t count, float* scratch, const Put& put) {
  switch (w.dtype) {
    case WEFT_BF16:
      return panel_of<Bf16Row>(x, n_rows, w, first, count, scratch, put);
    case WEFT_MXFP4:
      return panel_of<Mxfp4Row>(x, n_rows, w, first, count, scratch, put);
    default:
      return panel_of<F32Row>(x, n_rows, w, first, count, scratch, put);
  }
}

inline void decode_weight_row(const weft_weight& w, uint64_t n, float* out) {
  switch (w.dtype) {
    case WEFT_BF16:
      return decode_row(weight_row_at<Bf16Row>(w, n), 0, w.k, out);
    case WEFT_MXFP4:
      return decode_row(weight_row_at<Mxfp4Row>(w, n), 0, w.k, out);
    default:
      return decode_row(weight_row_at<F32Row>(w, n), 0, w.k, out);
  }
}

// A matrix of broadcast factors: element (i, p) at base[i * row + p * column].
struct Factors {
  const float* base;
  uint64_t row, column;
};

// out[i, :] = start[i] * out[i, :] + sum_p a(i, p) * b[p, :], p ascending. start NULL: the sum
// alone; a start of 0 discards the old value even when it is not finite.
template <int R, int B>
inline void mix_tile(const Factors& a, uint64_t i, uint64_t n_inner, const float* b,
                     uint64_t b_stride, float* out, uint64_t out_stride, const float* start) {
  V acc[R][B];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < B; ++c) {
      const float factor = start == nullptr ? 0.0f : start[i + static_cast<uint64_t>(r)];
      acc[r][c] = zero();
      if (factor != 0.0f)
        acc[r][c] =
            mul(set(factor), load(out + (i + static_cast<uint64_t>(r)) * out_stride + c * kLanes));
    }
  for (uint64_t p = 0; p < n_inner; ++p) {
    V bs[B];
#pragma GCC unroll 8
    for (int c = 0; c < B; ++c) bs[c] = load(b + p * b_stride + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V factor = set(a.base[(i + static_cast<uint64_t>(r)) * a.row + p * a.column]);
#pragma GCC unroll 8
      for (int c = 0; c < B; ++c) acc[r][c] = fma(factor, bs[c], acc[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < B; ++c)
      store(out + (i + static_cast<uint64_t>(r)) * out_stride + c * kLanes, acc[r][c]);
}

// The last, narrower than kLanes columns; same order.
inline void mix_tail(const Factors& a, uint64_t i, uint64_t n_inner, const float* b,
                     uint64_t b_stride, float* out, uint64_t out_stride, const float* start,
                     uint32_t lanes) {
  V acc = zero();
  const float first = start == nullptr ? 0.0f : start[i];
  if (first != 0.0f) acc = mul(set(first), load_n(out + i * out_stride, lanes));
  for (uint64_t p = 0; p < n_inner; ++p)
    acc = fma(set(a.base[i * a.row + p * a.column]), load_n(b + p * b_stride, lanes), acc);
  store_n(out + i * out_stride, acc, lanes);
}

inline void mix(const Factors& a, uint64_t n_rows, uint64_t n_inner, const float* b,
                uint64_t b_stride, uint64_t n_cols, float* out, uint64_t out_stride,
                const float* start = nullptr) {
  constexpr int kR = kTileRows, kB = 2;
  uint64_t c = 0;
  const auto columns = [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    uint64_t i = 0;
    for (; i + kR <= n_rows; i += kR)
      mix_tile<kR, kWidth>(a, i, n_inner, b + c, b_stride, out + c, out_stride, start);
    for (; i < n_rows; ++i)
      mix_tile<1, kWidth>(a, i, n_inner, b + c, b_stride, out + c, out_stride, start);
    c += kWidth * kLanes;
  };
  while (c + kB * kLanes <= n_cols) columns(Int<kB>{});
  while (c + kLanes <= n_cols) columns(Int<1>{});
  if (c == n_cols) return;
  for (uint64_t i = 0; i < n_rows; ++i)
    mix_tail(a, i, n_inner, b + c, b_stride, out + c, out_stride, start,
             static_cast<uint32_t>(n_cols - c));
}

inline uint32_t panel_width(uint64_t n, uint64_t at) {
  return n - at < kPanel ? static_cast<uint32_t>(n - at) : kPanel;
}
inline uint64_t panels(uint64_t n) { return (n + kPanel - 1) / kPanel; }

}  // namespace

Need gemm_need(const weft_op_gemm& op) {
  if (op.n_rows < kBlockFrom) return {};
  return {0, slab<float>(kPanelScratch)};
}

void gemm(const weft_op_gemm& op) {
  const Team team(op.head, gemm_need(op), uint64_t{op.n_rows} * op.w.n * op.w.k, panels(op.w.n));
  const Rows x{static_cast<const float*>(op.x), op.x_stride, nullptr};
  team.over(panels(op.w.n), [&](uint64_t begin, uint64_t end, uint32_t part) {
    float* scratch = reinterpret_cast<float*>(team.scratch(part));
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t first = i * kPanel;
      float* y = static_cast<float*>(op.y) + first;
      const bool adds = (op.mode & WEFT_GEMM_ADD) != 0;
      panel(x, op.n_rows, op.w, first, panel_width(op.w.n, first), scratch,
            [&](uint64_t r, uint32_t j, float value) {
              float& out = y[r * op.y_stride + j];
              out = adds ? out + value : value;
            });
    }
  });
}

Need gemm_group_need(const weft_op_gemm_group& op) { return gemm_need(member_of(op, 0)); }

void gemm_group(const weft_op_gemm_group& op) {
  for (uint32_t i = 0; i < op.n_out; ++i) gemm(member_of(op, i));
}

namespace {

// Workspace that all threads of a moe call share.
struct MoeWork {
  ExpertGroups groups;
  float *gate, *up;  // [entries, w1.n]; gate becomes the activated vector
  float* out;        // [entries, w2.n]
};

inline MoeWork moe_work(const weft_op_moe& op, uint8_t* shared) {
  Bump bump(shared);
  const uint64_t slots = uint64_t{op.n_rows} * op.topk;
  MoeWork w;
  w.groups = ExpertGroups::take(op, bump);
  w.gate = bump.take<float>(slots * op.w1[0].n);
  w.up = bump.take<float>(slots * op.w1[0].n);
  w.out = bump.take<float>(slots * op.w2[0].n);
  return w;
}

inline void moe_up(const weft_op_moe& op, const MoeWork& w, uint32_t e, uint64_t first,
                   float* scratch) {
  const uint64_t inner = op.w1[0].n;
  const uint64_t begin = w.groups.start[e], n = w.groups.start[e + 1] - begin;
  const Rows x{static_cast<const float*>(op.x), op.x_stride, w.groups.row + begin};
  const uint32_t count = panel_width(inner, first);
  const auto into = [&](float* buffer) {
    return [=](uint64_t r, uint32_t j, float value) {
      buffer[(begin + r) * inner + first + j] = value;
    };
  };
  panel(x, n, op.w1[e], first, count, scratch, into(w.gate));
  panel(x, n, op.w3[e], first, count, scratch, into(w.up));
  for (uint64_t r = begin; r < begin + n; ++r) {
    float* g = w.gate + r * inner + first;
    const float* u = w.up + r * inner + first;
    each_block(count, [&](uint64_t c, uint32_t lanes) {
      const V value =
          gated(op.act, op.beta, op.up_beta, load_upto(g + c, lanes), load_upto(u + c, lanes));
      store_upto(g + c, value, lanes);
    });
  }
}

inline void moe_down(const weft_op_moe& op, const MoeWork& w, uint32_t e, uint64_t first,
                     float* scratch) {
  const uint64_t inner = op.w1[0].n, width = op.w2[0].n;
  const uint64_t begin = w.groups.start[e], n = w.groups.start[e + 1] - begin;
  const Rows h{w.gate + begin * inner, inner, nullptr};
  panel(
      h, n, op.w2[e], first, panel_width(width, first), scratch,
      [&](uint64_t r, uint32_t j, float value) { w.out[(begin + r) * width + first + j] = value; });
}

// y of one row, columns first .. first+count-1: slots in slot order.
inline void moe_sum(const weft_op_moe& op, const MoeWork& w, uint64_t r, uint64_t first,
                    uint64_t count) {
  float* y = row_of(op.y, op.y_stride, r) + first;
  each_block(count, [&](uint64_t c, uint32_t lanes) {
    V acc = zero();
    for (uint32_t j = 0; j < op.topk; ++j) {
      const uint32_t entry = w.groups.entry[r * op.topk + j];
      if (entry == kNoEntry) continue;
      const V value = load_upto(w.out + uint64_t{entry} * op.w2[0].n + first + c, lanes);
      acc = plus(acc, mul(set(op.w[r * op.topk + j]), value));
    }
    store_upto(y + c, acc, lanes);
  });
}

constexpr uint64_t kSumColumns = 512;

}  // namespace

Need moe_need(const weft_op_moe& op) {
  const uint64_t slots = uint64_t{op.n_rows} * op.topk;
  const uint64_t shared = ExpertGroups::bytes(op) + 2 * slab<float>(slots * op.w1[0].n) +
                          slab<float>(slots * op.w2[0].n);
  return {shared, slab<float>(kPanelScratch)};
}

void moe(const weft_op_moe& op) {
  const uint64_t work = uint64_t{op.n_rows} * op.topk * op.w1[0].n * (2 * op.w1[0].k + op.w2[0].n);
  const Team team(op.head, moe_need(op), work, UINT32_MAX);
  const MoeWork w = moe_work(op, team.shared());
  const uint32_t n_active = group_by_expert(op, w.groups);
  const uint64_t up_panels = panels(op.w1[0].n), down_panels = panels(op.w2[0].n);
  team.over(n_active * up_panels, [&](uint64_t begin, uint64_t end, uint32_t part) {
    float* scratch = reinterpret_cast<float*>(team.scratch(part));
    for (uint64_t i = begin; i < end; ++i)
      moe_up(op, w, w.groups.active[i / up_panels], i % up_panels * kPanel, scratch);
  });
  team.over(n_active * down_panels, [&](uint64_t begin, uint64_t end, uint32_t part) {
    float* scratch = reinterpret_cast<float*>(team.scratch(part));
    for (uint64_t i = begin; i < end; ++i)
      moe_down(op, w, w.groups.active[i / down_panels], i % down_panels * kPanel, scratch);
  });
  const uint64_t width = op.w2[0].n, blocks = (width + kSumColumns - 1) / kSumColumns;
  team.over(op.n_rows * blocks, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t first = i % blocks * kSumColumns;
      moe_sum(op, w, i / blocks, first, width - first < kSumColumns ? width - first : kSumColumns);
    }
  });
}
