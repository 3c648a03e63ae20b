// Products of bf16 rows with packed panels (panels.h) by AVX512-BF16 dot products: one output per
// lane, a pair of columns per instruction, the pair of the row broadcast to all lanes.
//
// Order of sums. BF16: per output one chain over the pairs, K ascending. MXFP4: per 32 columns one
// chain over the unscaled codes, then sum = fma(chain, scale, sum), blocks ascending. Neither
// depends on how many rows share a tile, so neither do the bits of a row.

namespace {

using Pairs = __m512bh;
inline Pairs pairs(__m512i x) { return reinterpret_cast<Pairs>(x); }
inline V dot2(V acc, Pairs a, Pairs b) { return _mm512_dpbf16_ps(acc, a, b); }
inline Pairs broadcast_pair(const uint16_t* p) {
  int32_t two;
  memcpy(&two, p, sizeof two);
  return pairs(_mm512_set1_epi32(two));
}

// Columns of a stored bf16 row: whole blocks, so that tiles of AMX and MXFP4 blocks see no tail.
inline uint64_t padded(uint64_t k) { return (k + 31) / 32 * 32; }

inline void round_row(const float* x, uint64_t k, uint16_t* out) {
  uint64_t c = 0;
  for (; c + 32 <= k; c += 32)
    _mm512_storeu_si512(
        out + c, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(load(x + c + 16), load(x + c))));
  if (c == k) return;
  const uint32_t left = static_cast<uint32_t>(k - c);
  const V low = load_upto(x + c, left),
          high = left > 16 ? load_upto(x + c + 16, left - 16) : zero();
  _mm512_storeu_si512(out + c, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}

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

// E2M1 codes as bf16. Looked up by the low five bits of a word: bit 4 belongs to the next code, so
// the table holds everything twice.
inline __m512i code_table() {
  const __m256i half = _mm256_setr_epi16(
      0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, static_cast<int16_t>(0x8000),
      static_cast<int16_t>(0xbf00), static_cast<int16_t>(0xbf80), static_cast<int16_t>(0xbfc0),
      static_cast<int16_t>(0xc000), static_cast<int16_t>(0xc040), static_cast<int16_t>(0xc080),
      static_cast<int16_t>(0xc0c0));
  return _mm512_broadcast_i64x4(half);
}

// 2^(byte - 127) of 16 outputs; 255 is NaN, 0 subnormal.
inline V scales_of(const uint8_t* bytes) {
  const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  __m512i bits = _mm512_slli_epi32(e, 23);
  bits =
      _mm512_mask_set1_epi32(bits, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)), 0x7fc00000);
  bits = _mm512_mask_set1_epi32(bits, _mm512_testn_epi32_mask(e, e), 0x00400000);
  return _mm512_castsi512_ps(bits);
}

// The four pairs of columns that a group of 64 bytes holds for 16 outputs.
template <int J>
inline Pairs codes_of(__m512i group, __m512i table) {
  return pairs(_mm512_permutexvar_epi16(J == 0 ? group : _mm512_srli_epi16(group, 4 * J), table));
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

// bf16 rows of a product: base + r * stride, or through a list of row numbers.
struct BfRows {
  const uint16_t* base;
  uint64_t stride;
  const uint32_t* list;  // NULL: rows 0, 1, 2, ...
  const uint16_t* at(uint64_t r) const {
    return base + (list == nullptr ? r : uint64_t{list[r]}) * stride;
  }
};

// Panel number `panel` of a weight in either layout; row-major ones are packed into scratch
// (panel_scratch bytes) first.
inline uint64_t panel_scratch(const weft_weight& w) {
  return w.layout == kLayoutPanels ? 0 : align_up(panel_bytes(w)) + align_up(panel_scale_bytes(w));
}
template <class Panel>
inline Panel panel_at(const weft_weight& w, uint64_t panel, uint8_t* scratch) {
  const auto* data = static_cast<const uint8_t*>(w.data) + panel * panel_bytes(w);
  const auto* scale = static_cast<const uint8_t*>(w.scale) + panel * panel_scale_bytes(w);
  if (w.layout != kLayoutPanels) {
    uint8_t* packed_scale = scratch + align_up(panel_bytes(w));
    pack_panel(w, panel, scratch, packed_scale);
    data = scratch;
    scale = packed_scale;
  }
  if constexpr (requires(Panel p) { p.scale; })
    return {data, scale};
  else
    return {data};
}

}  // namespace
