// kda_step. One token reads the state twice: along k and q together, then to write
// S = alpha S + k delta^T. A sequence of one token works in its slots, without a copy; longer ones
// keep a private state in panels and join a token's write with the next one's read. Both do the
// same operations per element in the same order, so a sequence may be cut anywhere.

namespace {

struct StepWork {
  TokenBlock tokens;
  float *k_alpha, *q_alpha;  // [kBlock][keys]
  float* qk;                 // [kBlock] q.k
  float* panels;
};

template <class Memory>
inline StepWork step_work(const weft_op_kda& op, Memory& memory) {
  StepWork w;
  w.tokens = token_block(op, memory);
  w.k_alpha = memory.template take<float>(kBlock * w.tokens.keys);
  w.q_alpha = memory.template take<float>(kBlock * w.tokens.keys);
  w.qk = memory.template take<float>(kBlock);
  w.panels = memory.template take<float>(op.head_k * w.tokens.values);
  return w;
}

inline void prepare_steps(const weft_op_kda& op, const KdaHead& head, const History& history,
                          uint32_t h, uint32_t t, uint32_t n, const StepWork& w) {
  prepare_tokens(op, head, history, h, t, n, w.tokens);
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t at = i * w.tokens.keys;
    V qk = zero();
    for (uint64_t c = at; c < at + w.tokens.keys; c += kLanes) {
      const V alpha = load(w.tokens.alpha + c);
      const V q = load(w.tokens.q + c), k = load(w.tokens.k + c);
      store(w.k_alpha + c, mul(k, alpha));
      store(w.q_alpha + c, mul(q, alpha));
      qk = fma(q, k, qk);
    }
    w.qk[i] = sum(qk);
  }
}

// Factors of one token, per row of the state.
struct StepRows {
  const float *alpha, *k, *k_alpha, *q_alpha;
  float beta, qk;
};
inline StepRows step_rows(const StepWork& w, uint32_t i) {
  const uint64_t at = i * w.tokens.keys;
  return {w.tokens.alpha + at, w.tokens.k + at,  w.k_alpha + at,
          w.q_alpha + at,      w.tokens.beta[i], w.qk[i]};
}

// Sums along k and q, rows ascending; later delta and output of the token.
template <int B>
struct Along {
  V k[B], q[B];
  void clear() {
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) k[b] = q[b] = zero();
  }
  void add(V k_alpha, V q_alpha, int b, V s) {
    k[b] = fma(k_alpha, s, k[b]);
    q[b] = fma(q_alpha, s, q[b]);
  }
  // From sums to delta = beta (v - sum) and o = sum + (q.k) delta.
  void close(const StepRows& t, int b, V v) {
    k[b] = mul(set(t.beta), minus(v, k[b]));
    q[b] = fma(set(t.qk), k[b], q[b]);
  }
};
inline V stepped(V alpha, V key, V s, V delta) { return fma(key, delta, mul(alpha, s)); }

// B vectors of columns of one token, state rows `stride` apart; `ahead`, of the same shape, will be
// wanted next.
template <int B>
inline void step_columns(const StepRows& t, uint32_t K, const float* from, float* to,
                         uint64_t stride, const float* v, float* o, uint32_t lanes,
                         const float* ahead) {
  const auto get = [&](const float* p) { return B == 1 ? load_upto(p, lanes) : load(p); };
  Along<B> sums;
  sums.clear();
  for (uint64_t c = 0; c < K; ++c) {
    const V k_alpha = set(t.k_alpha[c]), q_alpha = set(t.q_alpha[c]);
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) sums.add(k_alpha, q_alpha, b, get(from + c * stride + b * kLanes));
  }
#pragma GCC unroll 8
  for (int b = 0; b < B; ++b) {
    sums.close(t, b, get(v + b * kLanes));
    store(o + b * kLanes, sums.q[b]);
  }
  for (uint64_t c = 0; c < K; ++c) {
    const V alpha = set(t.alpha[c]), key = set(t.k[c]);
#pragma GCC unroll 8
    for (int b = 0; b < B; ++b) {
      const uint64_t at = c * stride + static_cast<uint64_t>(b) * kLanes;
      const V now = stepped(alpha, key, get(from + at), sums.k[b]);
      if (B == 1)
        store_upto(to + at, now, lanes);
      else
        store(to + at, now);
      if (B > 1 && ahead != nullptr) __builtin_prefetch(ahead + at, 0, 2);
    }
  }
}

// A sequence of one token between two slots (or in one).
inline void step_in_slots(const weft_op_kda& op, const KdaHead& head, uint32_t h, const StepWork& w,
                          const float* ahead) {
  const int32_t read = head.read_slot();
  History history;
  for (int s = KdaHead::kQ; s <= KdaHead::kV; ++s)
    history[s] = op.taps > 1 ? head.slot_history(read, s) : nullptr;
  prepare_steps(op, head, history, h, 0, 1, w);
  const StepRows t = step_rows(w, 0);
  const float* from = head.slot_state(read);
  float* to = head.slot_state(head.write_slot());
  const uint64_t V_dim = op.head_v;
  constexpr int kWide = kLanes == 16 ? 8 : 4;
  uint64_t j = 0;
  const auto columns = [&](auto width, uint32_t lanes) {
    constexpr int kB = decltype(width)::value;
    step_columns<kB>(t, op.head_k, from + j, to + j, V_dim, w.tokens.v + j, w.tokens.o + j, lanes,
                     ahead != nullptr ? ahead + j : nullptr);
    j += kB * kLanes;
  };
  while (j + kWide * kLanes <= V_dim) columns(Int<kWide>{}, kLanes);
  while (j + 2 * kLanes <= V_dim) columns(Int<2>{}, kLanes);
  while (j < V_dim)
    columns(Int<1>{}, V_dim - j < kLanes ? static_cast<uint32_t>(V_dim - j) : kLanes);
  kda_outputs(op, head, 0, 1, w.tokens);
  store_history(op, head, history, 1, head.write_slot(), w.tokens);
}

// n tokens on one panel.
inline void step_panel(const StepWork& w, uint32_t K, uint32_t n, float* panel, uint64_t column) {
  Along<2> sums;
  sums.clear();
  StepRows t = step_rows(w, 0);
  for (uint64_t c = 0; c < K; ++c)
    for (int b = 0; b < 2; ++b)
      sums.add(set(t.k_alpha[c]), set(t.q_alpha[c]), b, load(panel + c * kPanelCols + b * kLanes));
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t at = i * w.tokens.values + column;
    for (int b = 0; b < 2; ++b) {
      sums.close(t, b, load(w.tokens.v + at + b * kLanes));
      store(w.tokens.o + at + b * kLanes, sums.q[b]);
    }
    const V delta0 = sums.k[0], delta1 = sums.k[1];
    sums.clear();
    const StepRows next = step_rows(w, i + 1 < n ? i + 1 : i);  // the last one's sums are unused
    for (uint64_t c = 0; c < K; ++c) {
      const V alpha = set(t.alpha[c]), key = set(t.k[c]);
      const V k_alpha = set(next.k_alpha[c]), q_alpha = set(next.q_alpha[c]);
      float* s = panel + c * kPanelCols;
      const V now0 = stepped(alpha, key, load(s), delta0);
      const V now1 = stepped(alpha, key, load(s + kLanes), delta1);
      sums.add(k_alpha, q_alpha, 0, now0);
      sums.add(k_alpha, q_alpha, 1, now1);
      store(s, now0);
      store(s + kLanes, now1);
    }
    t = next;
  }
}

inline bool stays_in_slots(const KdaHead& head) {
  return head.n() == 1 && head.snap_at() == 0 && head.read_slot() >= 0 && head.write_slot() >= 0;
}

inline void step_head(const weft_op_kda& op, uint32_t seq, uint32_t h, uint8_t* scratch,
                      const float* ahead) {
  Bump bump(scratch);
  const StepWork w = step_work(op, bump);
  const KdaHead head(op, seq, h);
  if (stays_in_slots(head)) return step_in_slots(op, head, h, w, ahead);
  over_blocks(
      op, head, w.tokens, w.panels, kBlock, [&](const PrivateState& s, uint32_t t, uint32_t n) {
        prepare_steps(op, head, s.history, h, t, n, w);
        for (uint64_t p = 0; p < state_panels(op); ++p) {
          fetch_share(op, head, t + n, p, state_panels(op));
          step_panel(w, op.head_k, n, s.panels + p * op.head_k * kPanelCols, p * kPanelCols);
        }
        kda_outputs(op, head, t, n, w.tokens);
      });
}

// The state that item i will read; NULL when it reads none.
inline const float* state_of_item(const weft_op_kda& op, uint64_t i) {
  const KdaHead head(op, static_cast<uint32_t>(i / op.heads), static_cast<uint32_t>(i % op.heads));
  return head.read_slot() < 0 ? nullptr : head.slot_state(head.read_slot());
}

}  // namespace

Need kda_step_need(const weft_op_kda& op) {
  Sizer sizer;
  step_work(op, sizer);
  return {0, sizer.bytes};
}

void kda_step(const weft_op_kda& op) {
  const uint64_t items = uint64_t{op.rows.n_seqs} * op.heads;
  const uint64_t work = uint64_t{op.rows.n_rows} * op.heads * op.head_k * op.head_v * 4;
  const Team team(op.head, kda_step_need(op), work, items);
  team.over(items, [&](uint64_t begin, uint64_t end, uint32_t part) {
    for (uint64_t i = begin; i < end; ++i)
      step_head(op, static_cast<uint32_t>(i / op.heads), static_cast<uint32_t>(i % op.heads),
                team.scratch(part), i + 1 < end ? state_of_item(op, i + 1) : nullptr);
  });
}
