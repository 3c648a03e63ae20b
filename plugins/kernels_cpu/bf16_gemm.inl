// gemm and gemm_group: rows are rounded to bf16 once, then every thread walks its panels and, for
// each, all rows.

namespace {

// Elements that one thread rounds faster than a second thread wakes up.
constexpr uint64_t kRoundAlone = 16 * 1024;

template <class Form>
inline void round_rows(const Team& team, const void* x, uint64_t stride, uint64_t n_rows,
                       uint64_t k, uint16_t* out) {
  const auto some = [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t r = begin; r < end; ++r)
      Form::put_row(static_cast<const float*>(x) + r * stride, k, out + r * Form::units(k));
  };
  if (n_rows * k <= kRoundAlone)
    some(0, n_rows, 0);
  else
    team.over(n_rows, some);
}

inline void store_outputs(const float* from, float* to, uint32_t count, bool adds) {
  for (uint32_t c = 0; c < count; c += kLanes) {
    const uint32_t lanes = count - c < kLanes ? count - c : kLanes;
    const V value = load(from + c);
    store_upto(to + c, adds ? plus(load_upto(to + c, lanes), value) : value, lanes);
  }
}

// One panel of outputs for all rows.
template <class Panel>
inline void panel_product(const BfRows& x, uint64_t n_rows, const weft_gemm_out& out,
                          uint64_t panel, uint8_t* scratch, Ahead ahead = {}) {
  const Panel w = panel_at<Panel>(out.w, panel, scratch);
  const uint64_t first = panel * kPanelOutputs;
  const uint32_t count =
      out.w.n - first < kPanelOutputs ? static_cast<uint32_t>(out.w.n - first) : kPanelOutputs;
  const bool adds = (out.mode & WEFT_GEMM_ADD) != 0;
  alignas(64) float values[Panel::kTile * kPanelOutputs];
  for (uint64_t r = 0; r < n_rows; r += Panel::kTile) {
    const uint32_t m = n_rows - r < Panel::kTile ? static_cast<uint32_t>(n_rows - r) : Panel::kTile;
    const uint16_t* rows[Panel::kTile];
    for (uint32_t i = 0; i < m; ++i) rows[i] = x.at(r + i);
    ahead.step();
    tile_of(rows, m, w, out.w.k, values);
    for (uint32_t i = 0; i < m; ++i)
      store_outputs(values + i * kPanelOutputs,
                    static_cast<float*>(out.y) + (r + i) * out.y_stride + first, count, adds);
  }
}

inline uint64_t largest_scratch(const weft_op_gemm_group& op) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < op.n_out; ++i) {
    const uint64_t bytes = panel_scratch(op.out[i].w);
    if (bytes > most) most = bytes;
  }
  return most;
}

inline uint64_t all_panels(const weft_op_gemm_group& op) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < op.n_out; ++i) n += panel_count(op.out[i].w.n);
  return n;
}

inline uint64_t all_outputs(const weft_op_gemm_group& op) {
  uint64_t n = 0;
  for (uint32_t i = 0; i < op.n_out; ++i) n += op.out[i].w.n;
  return n;
}

// A single gemm as a group of one.
struct Single {
  weft_gemm_out out;
  weft_op_gemm_group group;
  explicit Single(const weft_op_gemm& op)
      : out{op.w, op.y, op.y_stride, op.mode, 0}, group{op.head,     op.n_rows, 1,          op.x,
                                                        op.x_stride, &out,      op.y_dtype, 0} {}
  Single(const Single&) = delete;
  Single& operator=(const Single&) = delete;
};

}  // namespace

Need gemm_group_need(const weft_op_gemm_group& op) {
  return {slab<uint16_t>(op.n_rows * padded(op.out[0].w.k)), largest_scratch(op)};
}

void gemm_group(const weft_op_gemm_group& op) {
  const uint64_t k = op.out[0].w.k;
  const Team team(op.head, gemm_group_need(op), op.n_rows * all_outputs(op) * k, all_panels(op));
  auto* rounded = reinterpret_cast<uint16_t*>(team.shared());
  round_rows<RowForm<Bf16Panel>>(team, op.x, op.x_stride, op.n_rows, k, rounded);
  const BfRows x{rounded, padded(k), nullptr};
  team.over(all_panels(op), [&](uint64_t begin, uint64_t end, uint32_t part) {
    uint64_t first = 0;  // number of out's first panel
    for (const weft_gemm_out* out = op.out; out < op.out + op.n_out; ++out) {
      const uint64_t last = first + panel_count(out->w.n);
      for (uint64_t i = begin > first ? begin : first; i < end && i < last; ++i) {
        if (out->w.dtype == WEFT_MXFP4)
          panel_product<Mxfp4Panel>(x, op.n_rows, *out, i - first, team.scratch(part));
        else
          panel_product<Bf16Panel>(x, op.n_rows, *out, i - first, team.scratch(part));
      }
      first = last;
    }
  });
}

Need gemm_need(const weft_op_gemm& op) { return gemm_group_need(Single(op).group); }

void gemm(const weft_op_gemm& op) { gemm_group(Single(op).group); }
