// What both forms of multi-head latent attention share here: cached rows as bf16, sums of many
// vectors at once, softmax weights rounded to bf16. Scores are in units of log2, so that a weight
// is a power of two.

namespace {

constexpr uint32_t kMlaTile = 64;  // tokens per tile of mla_decode, at most per load_rows

// Shapes that the dot products below take; others run in the avx512 variant.
inline bool mla_fits(const weft_op_mla& op) {
  return op.kv_b.dtype == WEFT_BF16 && op.nope > 0 && op.nope % 16 == 0 && op.v_dim % 32 == 0 &&
         op.pages.latent % 32 == 0 && op.pages.tail % 32 == 0;
}

inline uint64_t mla_width(const weft_op_mla& op) {
  return uint64_t{op.pages.latent} + op.pages.tail;
}
inline const uint16_t* mla_weight(const weft_op_mla& op, uint64_t row) {
  return static_cast<const uint16_t*>(op.kv_b.data) + row * op.pages.latent;
}
inline const float* mla_row(const void* base, uint64_t stride, uint64_t r) {
  return static_cast<const float*>(base) + r * stride;
}
// Folded into the query before it is rounded.
inline float mla_scale(const weft_op_mla& op) { return op.scale * 1.44269504f; }

inline Pairs load_pairs(const uint16_t* p) { return pairs(_mm512_loadu_si512(p)); }
inline __m512i narrow(V low, V high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// x * factor as bf16; n a multiple of 16.
inline void round_scaled(const float* x, uint64_t n, float factor, uint16_t* out) {
  for (uint64_t c = 0; c < n; c += kLanes)
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(out + c),
        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(mul(load(x + c), set(factor)))));
}

// Two rows of bf16 become pairs of columns by unpacking, which shuffles the columns of each block
// of 32: the sums come in two registers, columns 0-3, 8-11, ... and 4-7, 12-15, .... This brings
// them back in order, as bf16.
inline __m512i ordered(V low, V high) {
  const __m512i index = _mm512_set_epi16(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9,
                                         8, 23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  return _mm512_permutexvar_epi16(index, narrow(low, high));
}

// Lane i of the result is the sum over v[i]; the same tree for each of the sixteen.
inline V sum_each(const V (&v)[16]) {
  V four[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const V* x = v + 4 * i;
    const V ab = plus(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const V cd = plus(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const __m512d p = _mm512_castps_pd(ab), q = _mm512_castps_pd(cd);
    four[i] = plus(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)),
                   _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
  }
  const V a = plus(_mm512_shuffle_f32x4(four[0], four[1], 0x44),
                   _mm512_shuffle_f32x4(four[0], four[1], 0xee));
  const V b = plus(_mm512_shuffle_f32x4(four[2], four[3], 0x44),
                   _mm512_shuffle_f32x4(four[2], four[3], 0xee));
  return plus(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// 2^x for x <= 0, relative error below 2^-22; 2^-127 below that; exactly 1 at 0; NaN stays NaN.
inline V power_of_two(V x) {
  x = at_least(x, -127.0f);
  const V n = round(x), r = minus(x, n);
  V p = set(1.338130254e-3f);
  p = fma(p, r, set(9.666368515e-3f));
  p = fma(p, r, set(5.550381014e-2f));
  p = fma(p, r, set(2.402234904e-1f));
  p = fma(p, r, set(6.931471806e-1f));
  return times_power(fma(p, r, set(1.0f)), n);
}

inline float lane0(V x) { return _mm512_cvtss_f32(x); }

// A softmax over scores that come tile by tile: rows of kCols scores, of which the first n count.
// NaN and infinite scores may be lost in `top`, but their own weight is NaN.
template <int kCols>
inline float highest(const float* scores, uint32_t n, float top) {
  V most = set(top);
#pragma GCC unroll 8
  for (int i = 0; i < kCols / 16; ++i) {
    const uint32_t at = 16 * static_cast<uint32_t>(i);
    const uint32_t lanes = n <= at ? 0 : n - at < 16 ? n - at : 16;
    most = _mm512_mask_max_ps(most, first_lanes(lanes), most, load(scores + at));
  }
  return _mm512_reduce_max_ps(most);
}

// Weights 2^(score - top) as bf16, zeros from column n on. Returns their sum by lanes.
template <int kCols>
inline V weigh(const float* scores, uint32_t n, float top, uint16_t* weights) {
  V total = zero();
#pragma GCC unroll 4
  for (int i = 0; i < kCols / 32; ++i) {
    V p[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const uint32_t at = static_cast<uint32_t>(32 * i + 16 * half);
      const uint32_t lanes = n <= at ? 0 : n - at < 16 ? n - at : 16;
      p[half] =
          _mm512_maskz_mov_ps(first_lanes(lanes), power_of_two(minus(load(scores + at), set(top))));
      total = plus(total, p[half]);
    }
    _mm512_storeu_si512(weights + 32 * i, narrow(p[0], p[1]));
  }
  return total;
}

// Where rows first .. first+n-1 of a sequence lie; NULL for those in missing pages.
inline void find_rows(const weft_mla_pages& pages, uint32_t seq, uint64_t first, uint32_t n,
                      const uint8_t** rows) {
  const uint64_t bytes = page_row_bytes(pages);
  uint64_t page = first / pages.page_tokens, in = first % pages.page_tokens;
  for (uint32_t i = 0; i < n; ++page, in = 0) {
    const int32_t at = pages.table[seq * pages.table_stride + page];
    const uint8_t* row = static_cast<const uint8_t*>(pages.base) +
                         static_cast<uint64_t>(at < 0 ? 0 : at) * pages.page_stride + in * bytes;
    for (; in < pages.page_tokens && i < n; ++in, ++i, row += bytes)
      rows[i] = at < 0 ? nullptr : row;
  }
}

// n F8E4M3 values as bf16, exactly: shifted into place they are halves 2^-8 times as large. n a
// multiple of 32.
inline void widen_f8(const uint8_t* in, uint64_t n, uint16_t* out) {
  const auto sixteen = [&](const uint8_t* p) {
    const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(x, _mm256_set1_epi16(0x80)), 8);
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
    const V value =
        mul(_mm512_cvtph_ps(_mm256_or_si256(sign, _mm256_slli_epi16(magnitude, 7))), set(256.0f));
    return _mm512_mask_mov_ps(value, nan, set(__builtin_nanf("")));
  };
  for (uint64_t c = 0; c < n; c += 32)
    _mm512_storeu_si512(out + c, narrow(sixteen(in + c), sixteen(in + c + 16)));
}

// One cached row as bf16 in `out`; zeros and the bad-index bit for a missing one.
inline void copy_row(const weft_op_mla& op, const uint8_t* row, uint16_t* out) {
  const uint64_t width = mla_width(op);
  if (row == nullptr) {
    raise(op.head, kErrBadIndex);
    memset(out, 0, width * sizeof *out);
  } else if (op.pages.dtype == WEFT_F32) {
    round_row(reinterpret_cast<const float*>(row), width, out);
  } else if (op.pages.dtype == WEFT_BF16) {
    memcpy(out, row, width * sizeof *out);
  } else {
    widen_f8(row, width, out);
  }
}

// y = x / sum, gated when u is set; n a multiple of 16.
inline void finish_values(const float* x, float sum, const float* u, uint64_t n, float* y) {
  for (uint64_t c = 0; c < n; c += kLanes) {
    V value = div(load(x + c), set(sum));
    if (u != nullptr) value = mul(value, sigmoid(load(u + c)));
    store(y + c, value);
  }
}

}  // namespace
