// Products of 8-bit rows with packed MXFP4 panels by AVX512-VNNI dot products, for callers that
// allow such rounding (WEFT_MOE_INT8): one output per lane, four columns per instruction.
//
// A stored row holds, per 32 columns, an Int8Block. The instruction multiplies unsigned with signed
// bytes, and the one it can broadcast from memory is the signed one: so the row is signed, and the
// codes carry an offset that makes them unsigned. What the offset adds, the block's chain starts
// with, negated.
//
// Order of sums: per 32 columns one exact integer chain, then sum = fma(chain * row scale, weight
// scale, sum), blocks ascending. How many rows share a tile changes no bit.

namespace {

struct Int8Block {
  int8_t q[32];   // per 8 columns in the order 0 4 1 5 2 6 3 7, in which bytes of codes hold them
  int32_t start;  // -kCodeOffset * sum of q
  float scale;    // of a unit of q times half a unit of E2M1 (codes are doubled)
};
constexpr int32_t kCodeOffset = 12;
constexpr uint64_t kInt8Units = sizeof(Int8Block) / sizeof(uint16_t);  // rows are kept in uint16_t

struct Int8Panel {
  static constexpr int kTile = 6;  // rows: 12 chains of the block, 12 sums
  const uint8_t* data;
  const uint8_t* scale;
};

// Below this nothing is left of a block, so that its scale has an inverse.
constexpr float kLeastInt8 = 1e-30f;

// 32 columns to the nearest of -127 .. 127 times the largest magnitude / 127; a NaN or an infinity
// makes the block's scale NaN, which reaches every product with the row.
inline void round_block(V low, V high, Int8Block* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  // Compared as integers: NaN is the largest, whichever operand holds it.
  const __m512i most = _mm512_max_epi32(_mm512_and_epi32(_mm512_castps_si512(low), magnitude),
                                        _mm512_and_epi32(_mm512_castps_si512(high), magnitude));
  const uint32_t bits = static_cast<uint32_t>(_mm512_reduce_max_epi32(most));
  const float largest = float_of_bits(bits);
  const bool usable = bits < 0x7f800000u && largest >= kLeastInt8;
  const V inverse = set(usable ? 127.0f / largest : 0.0f);
  const __mmask16 all = usable ? 0xffff : 0;
  const __m512i a = _mm512_maskz_cvtps_epi32(all, mul(low, inverse)),
                b = _mm512_maskz_cvtps_epi32(all, mul(high, inverse));
  const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(b), _mm512_cvtepi32_epi8(a));
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->q), _mm256_shuffle_epi8(bytes, order));
  out->start = -kCodeOffset * _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
  out->scale = bits >= 0x7f800000u ? float_of_bits(0x7fc00000u)
               : usable            ? largest / 127.0f * 0.5f
                                   : 0.0f;
}

template <>
struct RowForm<Int8Panel> {
  static uint64_t units(uint64_t k) { return k / kBlockColumns * kInt8Units; }
  static void put_row(const float* x, uint64_t k, uint16_t* out) {
    for (uint64_t c = 0; c < k; c += kBlockColumns)
      put_block(load(x + c), load(x + c + kLanes), c / kBlockColumns, out);
  }
  static void put_block(V low, V high, uint64_t block, uint16_t* row) {
    round_block(low, high, reinterpret_cast<Int8Block*>(row) + block);
  }
};

// Doubled E2M1 codes plus kCodeOffset.
inline __m512i int8_table() {
  return _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

inline __m512i broadcast_quad(const int8_t* p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}

// chains += four columns (`at` of the block) of every row times codes of 32 outputs.
template <int M>
inline void dot_quads(const Int8Block* const (&x)[M], uint64_t block, uint64_t at, __m512i w0,
                      __m512i w1, __m512i (&chain)[M][2]) {
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    const __m512i quad = broadcast_quad(x[m][block].q + at);
    chain[m][0] = _mm512_dpbusd_epi32(chain[m][0], w0, quad);
    chain[m][1] = _mm512_dpbusd_epi32(chain[m][1], w1, quad);
  }
}

template <int M>
__attribute__((noinline)) void tile(const uint16_t* const* rows, Int8Panel w, uint64_t k,
                                    float* out) {
  const Int8Block* x[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) x[m] = reinterpret_cast<const Int8Block*>(rows[m]);
  V acc[M][2];
  clear<M>(acc);
  const __m512i table = int8_table(), nibble = _mm512_set1_epi8(15);
  const auto codes = [&](__m512i bytes) {
    return _mm512_shuffle_epi8(table, _mm512_and_si512(bytes, nibble));
  };
  const uint8_t* p = w.data;
  for (uint64_t b = 0; b < k / kBlockColumns; ++b) {
    __m512i chain[M][2];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) chain[m][0] = chain[m][1] = _mm512_set1_epi32(x[m][b].start);
#pragma GCC unroll 4
    for (uint64_t g = 0; g < kBlockColumns; g += 8, p += 128) {
      const __m512i low = _mm512_loadu_si512(p), high = _mm512_loadu_si512(p + 64);
      dot_quads<M>(x, b, g, codes(low), codes(high), chain);
      dot_quads<M>(x, b, g + 4, codes(_mm512_srli_epi16(low, 4)), codes(_mm512_srli_epi16(high, 4)),
                   chain);
    }
    const uint8_t* s = w.scale + b * kPanelOutputs;
    const V s0 = scales_of(s), s1 = scales_of(s + kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const V scale = set(x[m][b].scale);
      acc[m][0] = fma(mul(_mm512_cvtepi32_ps(chain[m][0]), scale), s0, acc[m][0]);
      acc[m][1] = fma(mul(_mm512_cvtepi32_ps(chain[m][1]), scale), s1, acc[m][1]);
    }
  }
  put_tile<M>(acc, out);
}

}  // namespace
