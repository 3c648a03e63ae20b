// Products of bf16 rows with packed panels by AMX tiles: 16 rows or pairs of columns of 64 bytes
// each. Tiles 0..3 hold results (upper and lower 16 rows, first and second 16 outputs), 4 and 5
// rows, 6 and 7 weights. Unused rows of a tile are zero, so a row's bits do not depend on its
// neighbours.
//
// Order of sums. BF16: per output the hardware's chain over the pairs, K ascending. MXFP4: per 32
// columns one such chain over the unscaled codes, then sum = fma(chain, scale, sum).

namespace {

constexpr uint32_t kTileRowCount = 16;
constexpr uint32_t kTileColumns = 32;  // bf16 values in a row of a tile

struct Bf16Panel {
  static constexpr int kTile = 32;
  const uint8_t* data;
};

struct Mxfp4Panel {
  static constexpr int kTile = 32;
  const uint8_t* data;
  const uint8_t* scale;
};

using Int8Panel = Mxfp4Panel;  // tiles multiply bf16 also where WEFT_MOE_INT8 allows less

// The tile instructions of <immintrin.h> do not tell the compiler that they read memory: what they
// read must be stored before this.
inline void finish_stores() { __asm__ volatile("" ::: "memory"); }

// All eight tiles in full size. The setting belongs to the thread.
inline void configure_tiles() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shapes;
  finish_stores();
  _tile_loadconfig(&shapes);
}

// Columns c .. c+31 of `count` rows below each other, zeros up to 32 rows.
inline void collect_rows(const uint16_t* const* rows, uint32_t count, uint64_t c,
                         uint16_t (*out)[kTileColumns]) {
  for (uint32_t m = 0; m < 2 * kTileRowCount; ++m)
    _mm512_storeu_si512(out[m],
                        m < count ? _mm512_loadu_si512(rows[m] + c) : _mm512_setzero_si512());
}

// Result tiles += the collected rows times 16 pairs of columns of 32 outputs.
inline void multiply_tiles(const uint16_t (*x)[kTileColumns], const void* weights, bool both) {
  const uint8_t* w = static_cast<const uint8_t*>(weights);
  finish_stores();
  _tile_loadd(6, w, 4 * kPanelOutputs);
  _tile_loadd(7, w + 64, 4 * kPanelOutputs);
  _tile_loadd(4, x, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (!both) return;
  _tile_loadd(5, x + kTileRowCount, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

inline void clear_results() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void store_results(float* out) {
  _tile_stored(0, out, 4 * kPanelOutputs);
  _tile_stored(1, out + kTileRowCount, 4 * kPanelOutputs);
  _tile_stored(2, out + kTileRowCount * kPanelOutputs, 4 * kPanelOutputs);
  _tile_stored(3, out + kTileRowCount * kPanelOutputs + kTileRowCount, 4 * kPanelOutputs);
}

// out[m][32] = rows[m] . panel; all 32 rows of out are written.
inline void tile_of(const uint16_t* const* rows, uint32_t count, Bf16Panel w, uint64_t k,
                    float* out) {
  alignas(64) uint16_t x[2 * kTileRowCount][kTileColumns];
  alignas(64) uint8_t tail[kTileRowCount * 4 * kPanelOutputs];
  configure_tiles();
  clear_results();
  const uint8_t* p = w.data;
  for (uint64_t c = 0; c < k; c += kTileColumns, p += sizeof tail) {
    collect_rows(rows, count, c, x);
    const void* weights = p;
    if (k - c < kTileColumns) {  // the panel ends inside the tile
      memset(tail, 0, sizeof tail);
      memcpy(tail, p, (k - c + 1) / 2 * 4 * kPanelOutputs);
      weights = tail;
    }
    multiply_tiles(x, weights, count > kTileRowCount);
  }
  store_results(out);
}

// 32 columns of codes as bf16: pair 4g+j of 32 outputs in row 4g+j.
inline void decode_block(const uint8_t* p, __m512i table, uint16_t (*out)[2 * kPanelOutputs]) {
  for (uint32_t g = 0; g < 4; ++g, out += 4)
    for (uint32_t half = 0; half < 2; ++half) {
      const __m512i group = _mm512_loadu_si512(p + (2 * g + half) * 64);
      uint16_t* to = out[0] + half * kPanelOutputs;
      const auto put = [&](uint32_t j, Pairs value) {
        _mm512_storeu_si512(to + j * 2 * kPanelOutputs, reinterpret_cast<__m512i>(value));
      };
      put(0, codes_of<0>(group, table));
      put(1, codes_of<1>(group, table));
      put(2, codes_of<2>(group, table));
      put(3, codes_of<3>(group, table));
    }
}

inline void tile_of(const uint16_t* const* rows, uint32_t count, Mxfp4Panel w, uint64_t k,
                    float* out) {
  alignas(64) uint16_t x[2 * kTileRowCount][kTileColumns];
  alignas(64) uint16_t codes[kTileRowCount][2 * kPanelOutputs];
  alignas(64) float block[2 * kTileRowCount * kPanelOutputs];
  configure_tiles();
  const __m512i table = code_table();
  for (uint32_t m = 0; m < count; ++m) {
    store(out + m * kPanelOutputs, zero());
    store(out + m * kPanelOutputs + kLanes, zero());
  }
  const uint8_t *p = w.data, *s = w.scale;
  for (uint64_t c = 0; c < k; c += kBlockColumns, p += 512, s += kPanelOutputs) {
    collect_rows(rows, count, c, x);
    decode_block(p, table, codes);
    clear_results();
    multiply_tiles(x, codes, count > kTileRowCount);
    store_results(block);
    const V scale[2] = {scales_of(s), scales_of(s + kLanes)};
    for (uint32_t m = 0; m < count; ++m)
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t at = m * kPanelOutputs + half * kLanes;
        store(out + at, fma(load(block + at), scale[half], load(out + at)));
      }
  }
}

}  // namespace
