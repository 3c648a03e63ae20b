// What every variant that multiplies bf16 rows with packed panels (panels.h) shares: rounding rows,
// the values of MXFP4 codes and scales, and where a panel lies. The products themselves are in
// bf16_tiles.inl or amx_tiles.inl.

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

// How rows are stored for products with a kind of panel: units(k) numbers per row of k columns.
template <class Panel>
struct RowForm {
  static uint64_t units(uint64_t k) { return padded(k); }
  static void put_row(const float* x, uint64_t k, uint16_t* out) { round_row(x, k, out); }
  // Columns 32 * block .. + 31.
  static void put_block(V low, V high, uint64_t block, uint16_t* row) {
    _mm512_storeu_si512(row + block * 32,
                        reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
};

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

// Brings a packed panel nearer while another one is being multiplied: experts lie apart in memory,
// so the hardware's own prefetch starts anew at each of their matrices.
class Ahead {
 public:
  Ahead() = default;
  // `steps` calls of step() cover the panel; a panel used once (steps 1) gets only its start.
  Ahead(const weft_weight& w, uint64_t panel, uint64_t steps) {
    if (w.layout != kLayoutPanels) return;
    data_ = static_cast<const uint8_t*>(w.data) + panel * panel_bytes(w);
    end_ = data_ + (steps < 4 ? kStart : panel_bytes(w));
    if (w.scale != nullptr) {
      scale_ = static_cast<const uint8_t*>(w.scale) + panel * panel_scale_bytes(w);
      scale_end_ = scale_ + panel_scale_bytes(w);
    }
    per_step_ = steps < 4 ? kStart : panel_bytes(w) / steps + 64;
  }
  void step() {
    fetch(data_, end_);
    fetch(scale_, scale_end_);
  }

 private:
  static constexpr uint64_t kStart = 1024;
  void fetch(const uint8_t*& at, const uint8_t* end) const {
    const uint8_t* stop = at + per_step_ < end ? at + per_step_ : end;
    for (; at < stop; at += 64) _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
  }
  const uint8_t *data_ = nullptr, *end_ = nullptr, *scale_ = nullptr, *scale_end_ = nullptr;
  uint64_t per_step_ = 0;
};

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
