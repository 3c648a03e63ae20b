// Products of bf16 rows with packed panels by AVX512-BF16 dot products: one output per lane, a pair
// of columns per instruction, the pair of the row broadcast to all lanes.
//
// Order of sums. BF16: per output one chain over the pairs, K ascending. MXFP4: per 32 columns one
// chain over the unscaled codes, then sum = fma(chain, scale, sum), blocks ascending. Neither
// depends on how many rows share a tile, so neither do the bits of a row.

namespace {

struct Bf16Panel {
  static constexpr int kTile = 8;  // rows: 16 accumulators, two weight registers
  const uint8_t* data;
};

struct Mxfp4Panel {
  static constexpr int kTile = 6;  // rows: 12 accumulators of the block, 12 of the sum
  const uint8_t* data;
  const uint8_t* scale;
};

template <int M>
inline void clear(V (&acc)[M][2]) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = zero();
}

template <int M>
inline void put_tile(const V (&acc)[M][2], float* out) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    store(out + m * kPanelOutputs, acc[m][0]);
    store(out + m * kPanelOutputs + kLanes, acc[m][1]);
  }
}

// out[m][32] = rows[m] . panel for M rows of k columns.
template <int M>
__attribute__((noinline)) void tile(const uint16_t* const* rows, Bf16Panel w, uint64_t k,
                                    float* out) {
  const uint16_t* x[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) x[m] = rows[m];
  V acc[M][2];
  clear<M>(acc);
  const uint8_t* p = w.data;
  for (uint64_t c = 0; c < k; c += 2, p += 4 * kPanelOutputs) {
    const Pairs w0 = pairs(_mm512_loadu_si512(p)), w1 = pairs(_mm512_loadu_si512(p + 64));
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const Pairs both = broadcast_pair(x[m] + c);
      acc[m][0] = dot2(acc[m][0], w0, both);
      acc[m][1] = dot2(acc[m][1], w1, both);
    }
  }
  put_tile<M>(acc, out);
}

template <int M, int J>
inline void dot_codes(const uint16_t* const (&x)[M], uint64_t c, __m512i low, __m512i high,
                      __m512i table, V (&acc)[M][2]) {
  const Pairs w0 = codes_of<J>(low, table), w1 = codes_of<J>(high, table);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const Pairs both = broadcast_pair(x[m] + c + 2 * J);
    acc[m][0] = dot2(acc[m][0], w0, both);
    acc[m][1] = dot2(acc[m][1], w1, both);
  }
}

template <int M>
__attribute__((noinline)) void tile(const uint16_t* const* rows, Mxfp4Panel w, uint64_t k,
                                    float* out) {
  const uint16_t* x[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) x[m] = rows[m];
  V acc[M][2];
  clear<M>(acc);
  const __m512i table = code_table();
  const uint8_t* p = w.data;
  const uint8_t* s = w.scale;
  for (uint64_t c = 0; c < k; c += kBlockColumns, s += kPanelOutputs) {
    V block[M][2];
    clear<M>(block);
#pragma GCC unroll 4
    for (uint64_t g = 0; g < kBlockColumns; g += 8, p += 128) {
      const __m512i low = _mm512_loadu_si512(p), high = _mm512_loadu_si512(p + 64);
      dot_codes<M, 0>(x, c + g, low, high, table, block);
      dot_codes<M, 1>(x, c + g, low, high, table, block);
      dot_codes<M, 2>(x, c + g, low, high, table, block);
      dot_codes<M, 3>(x, c + g, low, high, table, block);
    }
    const V s0 = scales_of(s), s1 = scales_of(s + kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      acc[m][0] = fma(block[m][0], s0, acc[m][0]);
      acc[m][1] = fma(block[m][1], s1, acc[m][1]);
    }
  }
  put_tile<M>(acc, out);
}

// A tile of `count` rows, count <= Panel::kTile.
template <class Panel, int M = Panel::kTile>
inline void tile_of(const uint16_t* const* rows, uint32_t count, Panel w, uint64_t k, float* out) {
  if constexpr (M == 1) {
    tile<1>(rows, w, k, out);
  } else {
    if (count == M) return tile<M>(rows, w, k, out);
    tile_of<Panel, M - 1>(rows, count, w, k, out);
  }
}

}  // namespace
