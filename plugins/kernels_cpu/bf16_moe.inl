// moe on packed panels. Rows and activated vectors are stored in bf16, or as RowForm says for the
// kind of panel; the products of an entry are f32 and are added in slot order.

namespace {

struct BfMoeWork {
  ExpertGroups groups;
  uint16_t* x;    // [n_rows, units(w1.k)], see RowForm
  uint16_t* act;  // [entries, units(w1.n)]
  float* out;     // [entries, w2.n]
};

template <class Panel>
inline BfMoeWork bf_moe_work(const weft_op_moe& op, uint8_t* shared) {
  Bump bump(shared);
  const uint64_t slots = uint64_t{op.n_rows} * op.topk;
  BfMoeWork w;
  w.groups = ExpertGroups::take(op, bump);
  w.x = bump.take<uint16_t>(op.n_rows * RowForm<Panel>::units(op.w1[0].k));
  w.act = bump.take<uint16_t>(slots * RowForm<Panel>::units(op.w1[0].n));
  w.out = bump.take<float>(slots * op.w2[0].n);
  return w;
}

// Work of an expert beside its rows, in rows: its weights must be read.
constexpr uint64_t kExpertCost = 4;

struct ExpertItem {
  uint32_t expert = 0;
  uint64_t panel = 0;
};

// Cuts the (active expert, panel) items of a phase by work: an item weighs the expert's rows plus
// kExpertCost. A cut is given in units of weight and rounded up to an item, so ranges of units that
// cover all of them give ranges of items that do.
struct ExpertCuts {
  const ExpertGroups& groups;
  uint32_t n_active;
  uint64_t panels;

  uint64_t weight(uint64_t i) const {
    const uint32_t e = groups.active[i];
    return groups.start[e + 1] - groups.start[e] + kExpertCost;
  }
  uint64_t units() const {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n_active; ++i) sum += weight(i) * panels;
    return sum;
  }
  uint64_t item_at(uint64_t unit) const {
    for (uint64_t i = 0; i < n_active; ++i) {
      const uint64_t one = weight(i);
      if (unit <= one * panels) return i * panels + (unit + one - 1) / one;
      unit -= one * panels;
    }
    return n_active * panels;
  }
  ExpertItem item(uint64_t i) const { return {groups.active[i / panels], i % panels}; }

  // body(item, the thread's next item or NULL, part) for every item, on all threads.
  template <class Body>
  void over(const Team& team, const Body& body) const {
    team.over(units(), [&](uint64_t begin, uint64_t end, uint32_t part) {
      const uint64_t last = item_at(end);
      for (uint64_t i = item_at(begin); i < last; ++i) {
        const ExpertItem now = item(i), next = i + 1 < last ? item(i + 1) : ExpertItem{};
        body(now, i + 1 < last ? &next : nullptr, part);
      }
    });
  }
};

// act[entry, first .. first+31] of one expert: gate and up product of a tile of rows, then the
// activation.
inline uint64_t tiles_of(const BfMoeWork& w, uint32_t e, uint64_t tile) {
  return (w.groups.start[e + 1] - w.groups.start[e] + tile - 1) / tile;
}

// `next`: the panel of the next expert or the same that this thread multiplies after this one.
template <class Panel>
inline void bf_moe_up(const weft_op_moe& op, const BfMoeWork& w, const ExpertItem& item,
                      const ExpertItem* next, uint8_t* scratch) {
  const uint32_t e = item.expert;
  const uint64_t panel = item.panel, n_tiles = tiles_of(w, e, Panel::kTile);
  // The first tile meets its up panel as late as possible; the others find everything here.
  Ahead up_ahead(op.w3[e], panel, 1), next_gate, next_up;
  if (next != nullptr) {
    next_gate = Ahead(op.w1[next->expert], next->panel, n_tiles);
    if (n_tiles >= 4) next_up = Ahead(op.w3[next->expert], next->panel, n_tiles);
  }
  const Panel gate_w = panel_at<Panel>(op.w1[e], panel, scratch);
  const Panel up_w = panel_at<Panel>(op.w3[e], panel, scratch + panel_scratch(op.w1[e]));
  using Form = RowForm<Panel>;
  const BfRows x{w.x, Form::units(op.w1[0].k), w.groups.row};
  const uint64_t stride = Form::units(op.w1[0].n);
  alignas(64) float gate[Panel::kTile * kPanelOutputs], up[Panel::kTile * kPanelOutputs];
  for (uint64_t i = w.groups.start[e]; i < w.groups.start[e + 1]; i += Panel::kTile) {
    const uint64_t left = w.groups.start[e + 1] - i;
    const uint32_t m = left < Panel::kTile ? static_cast<uint32_t>(left) : Panel::kTile;
    const uint16_t* rows[Panel::kTile];
    for (uint32_t j = 0; j < m; ++j) rows[j] = x.at(i + j);
    up_ahead.step();
    tile_of(rows, m, gate_w, op.w1[0].k, gate);
    next_gate.step();
    next_up.step();
    tile_of(rows, m, up_w, op.w1[0].k, up);
    for (uint32_t j = 0; j < m; ++j) {
      const float *g = gate + j * kPanelOutputs, *u = up + j * kPanelOutputs;
      const V low = gated(op.act, op.beta, op.up_beta, load(g), load(u));
      const V high = gated(op.act, op.beta, op.up_beta, load(g + kLanes), load(u + kLanes));
      Form::put_block(low, high, panel, w.act + (i + j) * stride);
    }
  }
}

template <class Panel>
inline void bf_moe_down(const weft_op_moe& op, const BfMoeWork& w, const ExpertItem& item,
                        const ExpertItem* next, uint8_t* scratch) {
  const uint32_t e = item.expert;
  Ahead ahead;
  if (next != nullptr)
    ahead = Ahead(op.w2[next->expert], next->panel, tiles_of(w, e, Panel::kTile));
  const uint64_t begin = w.groups.start[e], width = op.w2[0].n,
                 stride = RowForm<Panel>::units(op.w1[0].n);
  const weft_gemm_out out{op.w2[e], w.out + begin * width, width, 0, 0};
  panel_product<Panel>({w.act + begin * stride, stride, nullptr}, w.groups.start[e + 1] - begin,
                       out, item.panel, scratch, ahead);
}

// y of one row, columns first .. first+count-1: slots in slot order.
inline void bf_moe_sum(const weft_op_moe& op, const BfMoeWork& w, uint64_t r, uint64_t first,
                       uint64_t count) {
  float* y = static_cast<float*>(op.y) + r * op.y_stride + first;
  each_block(count, [&](uint64_t c, uint32_t lanes) {
    V acc = zero();
    for (uint32_t j = 0; j < op.topk; ++j) {
      const uint32_t entry = w.groups.entry[r * op.topk + j];
      if (entry == kNoEntry) continue;
      const V value = load_upto(w.out + uint64_t{entry} * op.w2[0].n + first + c, lanes);
      acc = fma(set(op.w[r * op.topk + j]), value, acc);
    }
    store_upto(y + c, acc, lanes);
  });
}

constexpr uint64_t kSumBlock = 512;  // columns of a piece of the last phase

template <class Panel>
inline void bf_moe(const weft_op_moe& op, const Team& team) {
  const BfMoeWork w = bf_moe_work<Panel>(op, team.shared());
  round_rows<RowForm<Panel>>(team, op.x, op.x_stride, op.n_rows, op.w1[0].k, w.x);
  const uint32_t n_active = group_by_expert(op, w.groups);
  ExpertCuts{w.groups, n_active, panel_count(op.w1[0].n)}.over(
      team, [&](const ExpertItem& item, const ExpertItem* next, uint32_t part) {
        bf_moe_up<Panel>(op, w, item, next, team.scratch(part));
      });
  ExpertCuts{w.groups, n_active, panel_count(op.w2[0].n)}.over(
      team, [&](const ExpertItem& item, const ExpertItem* next, uint32_t part) {
        bf_moe_down<Panel>(op, w, item, next, team.scratch(part));
      });
  const uint64_t width = op.w2[0].n, blocks = (width + kSumBlock - 1) / kSumBlock;
  const auto sum_some = [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i) {
      const uint64_t first = i % blocks * kSumBlock;
      bf_moe_sum(op, w, i / blocks, first, width - first < kSumBlock ? width - first : kSumBlock);
    }
  };
  if (op.n_rows * width * op.topk <= kRoundAlone)
    sum_some(0, op.n_rows * blocks, 0);
  else
    team.over(op.n_rows * blocks, sum_some);
}

template <class Panel>
inline Need bf_moe_need(const weft_op_moe& op) {
  using Form = RowForm<Panel>;
  const uint64_t slots = uint64_t{op.n_rows} * op.topk;
  const uint64_t shared =
      ExpertGroups::bytes(op) + slab<uint16_t>(op.n_rows * Form::units(op.w1[0].k)) +
      slab<uint16_t>(slots * Form::units(op.w1[0].n)) + slab<float>(slots * op.w2[0].n);
  const uint64_t up = 2 * panel_scratch(op.w1[0]), down = panel_scratch(op.w2[0]);
  return {shared, up > down ? up : down};
}

// Calls body with a null pointer to the kind of panel that fits the op.
template <class Body>
inline auto with_moe_panel(const weft_op_moe& op, const Body& body) {
  if (op.w1[0].dtype != WEFT_MXFP4) return body(static_cast<Bf16Panel*>(nullptr));
  if ((op.mode & WEFT_MOE_INT8) != 0) return body(static_cast<Int8Panel*>(nullptr));
  return body(static_cast<Mxfp4Panel*>(nullptr));
}

}  // namespace

Need moe_need(const weft_op_moe& op) {
  return with_moe_panel(op, [&]<class Panel>(Panel*) { return bf_moe_need<Panel>(op); });
}

void moe(const weft_op_moe& op) {
  const uint64_t work = uint64_t{op.n_rows} * op.topk * op.w1[0].n * (2 * op.w1[0].k + op.w2[0].n);
  const Team team(op.head, moe_need(op), work, UINT32_MAX);
  with_moe_panel(op, [&]<class Panel>(Panel*) { bf_moe<Panel>(op, team); });
}
