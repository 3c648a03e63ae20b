// mla_store, multi-head latent attention over paged rows, and the vision tower's attention: online
// softmax over token tiles that start at absolute position 0, so a row's bits do not depend on how
// its sequence was split into calls.

namespace {

// Plain loops over the functions that define the formats: the compiler makes vectors of them.
inline void put_row(const float* x, uint64_t n, uint32_t dtype, uint8_t* out) {
  if (dtype == WEFT_F32) {
    memcpy(out, x, n * sizeof *x);
  } else if (dtype == WEFT_BF16) {
    uint16_t* wide = reinterpret_cast<uint16_t*>(out);
    for (uint64_t c = 0; c < n; ++c) wide[c] = bf16_of_float(x[c]);
  } else {
    for (uint64_t c = 0; c < n; ++c) out[c] = f8e4m3_of_float(x[c]);
  }
}

inline uint32_t seq_of_row(const weft_rows& rows, uint32_t r) {
  uint32_t seq = 0;
  while (rows.seq_start[seq + 1] <= r) ++seq;
  return seq;
}

}  // namespace

Need mla_store_need(const weft_op_mla_store& op) {
  return {0, slab<float>(uint64_t{op.pages.latent} + op.pages.tail)};
}

void mla_store(const weft_op_mla_store& op) {
  if (op.rows.n_rows == 0) return;
  const uint32_t latent = op.pages.latent;
  const uint64_t width = uint64_t{latent} + op.pages.tail;
  const Team team(op.head, mla_store_need(op), op.rows.n_rows * width * 4, op.rows.n_rows);
  team.over(op.rows.n_rows, [&](uint64_t begin, uint64_t end, uint32_t part) {
    float* whole = Bump(team.scratch(part)).take<float>(width);
    uint32_t seq = seq_of_row(op.rows, static_cast<uint32_t>(begin));
    for (uint64_t r = begin; r < end; ++r) {
      while (op.rows.seq_start[seq + 1] <= r) ++seq;
      const uint64_t token = uint64_t{op.rows.context[seq]} + r - op.rows.seq_start[seq];
      uint8_t* out = page_row(op.pages, seq, token);
      if (out == nullptr) {
        raise(op.head, kErrBadIndex);
        continue;
      }
      const float* x = row_of(op.x, op.x_stride, r);
      const float mean = sum_of_squares(x, latent) / static_cast<float>(latent);
      scale_weighted(x, op.w, inverse_root(mean, op.eps), whole, latent);
      memcpy(whole + latent, x + latent, op.pages.tail * sizeof *x);
      put_row(whole, width, op.pages.dtype, out);
    }
  });
}

namespace {

constexpr uint32_t kTokens = 32;      // tokens per tile
constexpr uint32_t kHeadGroup = 16;   // decode: most heads that share one pass over the latent rows
constexpr uint32_t kQueryBlock = 16;  // prefill: query rows per block

// Rows first .. first+n-1 of a sequence as f32, `width` apart. A missing page gives zeros and the
// bad-index bit.
inline void load_tokens(const weft_op_head& head, const weft_mla_pages& pages, uint32_t seq,
                        uint64_t first, uint32_t n, float* out, uint64_t width) {
  for (uint32_t i = 0; i < n; ++i, out += width) {
    const uint8_t* row = page_row(pages, seq, first + i);
    if (row == nullptr) {
      raise(head, kErrBadIndex);
      memset(out, 0, width * sizeof(float));
    } else if (pages.dtype == WEFT_F32) {
      memcpy(out, row, width * sizeof(float));
    } else if (pages.dtype == WEFT_BF16) {
      decode_row(Bf16Row{reinterpret_cast<const uint16_t*>(row)}, 0, width, out);
    } else {
      for (uint64_t c = 0; c < width; ++c) out[c] = float_of_f8e4m3(row[c]);
    }
  }
}

// scores[r, t] = scale * (x_r . row_t); rows of scores are kTokens apart.
inline void score_tile(const Rows& x, uint64_t n_rows, const float* tokens, uint64_t token_stride,
                       uint32_t n, uint64_t k, float scale, float* scores) {
  for (uint32_t t = 0; t < n; t += kPanel) {
    const uint32_t count = panel_width(n, t);
    F32Row rows[kPanel];
    for (uint32_t j = 0; j < count; ++j) rows[j] = {tokens + (t + j) * token_stride};
    dot_rows(x, n_rows, rows, count, k, [&](uint64_t r, uint32_t j, float value) {
      scores[r * kTokens + t + j] = value * scale;
    });
  }
}

// Running maximum and sum of one row's softmax. A first tile finds top = -inf and a rescale of 0.
struct Online {
  float top, sum;

  static Online start() { return {-__builtin_inff(), 0.0f}; }

  // Turns n scores into weights and returns what everything gathered so far must be multiplied
  // with.
  float take(float* scores, uint32_t n) {
    const float higher = largest(scores, n, top);
    float rescale = 0.0f;
    if (top != -__builtin_inff()) {
      float lanes[kLanes];
      store(lanes, exp(set(top - higher)));
      rescale = lanes[0];
    }
    top = higher;
    sum = sum * rescale + exp_all(scores, n, top);
    return rescale;
  }
};

// y = x / sum, gated when u is set.
inline void finish_row(const float* x, float sum, const float* u, uint64_t n, float* y) {
  each_block(n, [&](uint64_t c, uint32_t lanes) {
    V value = div(load_upto(x + c, lanes), set(sum));
    if (u != nullptr) value = mul(value, sigmoid(load_upto(u + c, lanes)));
    store_upto(y + c, value, lanes);
  });
}

inline uint64_t page_width(const weft_op_mla& op) {
  return uint64_t{op.pages.latent} + op.pages.tail;
}

struct DecodeWork {
  float* tokens;  // [kTokens, width]
  float* q;       // [kHeadGroup, width] absorbed query, then the tail query
  float* mixed;   // [kHeadGroup, latent]
  float* scores;  // [kHeadGroup, kTokens]
  float* panel;   // [kPanel, latent]
};

inline DecodeWork decode_work(const weft_op_mla& op, uint8_t* scratch) {
  Bump bump(scratch);
  DecodeWork w;
  w.tokens = bump.take<float>(kTokens * page_width(op));
  w.q = bump.take<float>(kHeadGroup * page_width(op));
  w.mixed = bump.take<float>(uint64_t{kHeadGroup} * op.pages.latent);
  w.scores = bump.take<float>(kHeadGroup * kTokens);
  w.panel = bump.take<float>(uint64_t{kPanel} * op.pages.latent);
  return w;
}

// q~ = q_nope WK_h (rows of kv_b mixed by the query), then the tail copied behind it.
inline void absorb(const weft_op_mla& op, const DecodeWork& w, const float* q, uint32_t h,
                   float* out) {
  const uint32_t latent = op.pages.latent;
  const uint64_t b = uint64_t{h} * (op.nope + op.v_dim);
  memset(out, 0, latent * sizeof(float));
  const float one = 1.0f;
  for (uint32_t i = 0; i < op.nope; i += kPanel) {
    const uint32_t count = panel_width(op.nope, i);
    for (uint32_t j = 0; j < count; ++j)
      decode_weight_row(op.kv_b, b + i + j, w.panel + uint64_t{j} * latent);
    mix({q + i, 0, 1}, 1, count, w.panel, latent, latent, out, latent, &one);
  }
  memcpy(out + latent, q + op.nope, op.pages.tail * sizeof(float));
}

// Heads h0 .. h1-1 of one row, which sits at position `tokens - 1` of its sequence.
inline void decode_heads(const weft_op_mla& op, uint32_t seq, uint32_t r, uint64_t tokens,
                         uint32_t h0, uint32_t h1, uint8_t* scratch) {
  const DecodeWork w = decode_work(op, scratch);
  const uint32_t latent = op.pages.latent, n_heads = h1 - h0;
  const uint64_t width = page_width(op), q_width = op.nope + uint64_t{op.pages.tail};
  Online softmax[kHeadGroup];
  for (uint32_t i = 0; i < n_heads; ++i) {
    absorb(op, w, row_of(op.q, op.q_stride, r) + (h0 + i) * q_width, h0 + i, w.q + i * width);
    softmax[i] = Online::start();
  }
  for (uint64_t t = 0; t < tokens; t += kTokens) {
    const uint32_t n = tokens - t < kTokens ? static_cast<uint32_t>(tokens - t) : kTokens;
    load_tokens(op.head, op.pages, seq, t, n, w.tokens, width);
    score_tile({w.q, width, nullptr}, n_heads, w.tokens, width, n, width, op.scale, w.scores);
    float rescale[kHeadGroup];
    for (uint32_t i = 0; i < n_heads; ++i) rescale[i] = softmax[i].take(w.scores + i * kTokens, n);
    mix({w.scores, kTokens, 1}, n_heads, n, w.tokens, width, latent, w.mixed, latent, rescale);
  }
  for (uint32_t i = 0; i < n_heads; ++i) {
    const uint64_t at = uint64_t{h0 + i} * op.v_dim;
    float* y = row_of(op.y, op.y_stride, r) + at;
    const uint64_t b = uint64_t{h0 + i} * (op.nope + op.v_dim) + op.nope;
    for (uint32_t v = 0; v < op.v_dim; v += kPanel)
      panel({w.mixed + uint64_t{i} * latent, latent, nullptr}, 1, op.kv_b, b + v,
            panel_width(op.v_dim, v), w.panel,
            [&](uint64_t, uint32_t j, float value) { y[v + j] = value; });
    finish_row(y, softmax[i].sum, op.u == nullptr ? nullptr : row_of(op.u, op.u_stride, r) + at,
               op.v_dim, y);
  }
}

// Multiply-adds of a call; long contexts dominate.
inline uint64_t attention_work(const weft_op_mla& op, uint64_t per_token) {
  uint64_t work = 0;
  for (uint32_t seq = 0; seq < op.rows.n_seqs; ++seq) {
    const uint64_t n = op.rows.seq_start[seq + 1] - op.rows.seq_start[seq];
    work += n * (op.rows.context[seq] + n);
  }
  return work * op.heads * per_token;
}

}  // namespace

Need mla_decode_need(const weft_op_mla& op) {
  const uint64_t width = page_width(op);
  return {0, slab<float>(kTokens * width) + slab<float>(kHeadGroup * width) +
                 slab<float>(uint64_t{kHeadGroup} * op.pages.latent) +
                 slab<float>(kHeadGroup * kTokens) +
                 slab<float>(uint64_t{kPanel} * op.pages.latent)};
}

void mla_decode(const weft_op_mla& op) {
  const uint64_t absorption = uint64_t{op.rows.n_rows} * op.kv_b.n * op.kv_b.k;
  const Team team(op.head, mla_decode_need(op), absorption + attention_work(op, 2 * page_width(op)),
                  uint64_t{op.rows.n_rows} * op.heads);
  // Heads are independent, so the size of a group changes no bit: wide groups read the cache once
  // for many heads, narrow ones give every thread something to do.
  const uint64_t all = uint64_t{op.rows.n_rows} * op.heads;
  uint64_t group = all / team.parts();
  group = group < 1 ? 1 : group > kHeadGroup ? kHeadGroup : group;
  const uint64_t groups = (op.heads + group - 1) / group;
  team.over(op.rows.n_rows * groups, [&](uint64_t begin, uint64_t end, uint32_t part) {
    for (uint64_t i = begin; i < end; ++i) {
      const uint32_t r = static_cast<uint32_t>(i / groups);
      const uint32_t seq = seq_of_row(op.rows, r);
      const uint32_t h0 = static_cast<uint32_t>(i % groups * group);
      const uint32_t h1 = h0 + group < op.heads ? static_cast<uint32_t>(h0 + group) : op.heads;
      const uint64_t tokens = uint64_t{op.rows.context[seq]} + r - op.rows.seq_start[seq] + 1;
      decode_heads(op, seq, r, tokens, h0, h1, team.scratch(part));
    }
  });
}

namespace {

struct PrefillWork {
  float* weights;   // [nope + v_dim, latent] this head's rows of kv_b
  float* tokens;    // [kTokens, width]
  float* keys;      // [kTokens, nope + tail]
  float* values;    // [kTokens, v_dim]
  float* scores;    // [kQueryBlock, kTokens]
  Online* softmax;  // [n_rows]
};

inline PrefillWork prefill_work(const weft_op_mla& op, uint8_t* scratch) {
  Bump bump(scratch);
  PrefillWork w;
  w.weights = bump.take<float>((uint64_t{op.nope} + op.v_dim) * op.pages.latent);
  w.tokens = bump.take<float>(kTokens * page_width(op));
  w.keys = bump.take<float>(kTokens * (uint64_t{op.nope} + op.pages.tail));
  w.values = bump.take<float>(uint64_t{kTokens} * op.v_dim);
  w.scores = bump.take<float>(kQueryBlock * kTokens);
  w.softmax = bump.take<Online>(op.rows.n_rows);
  return w;
}

// Keys and values of n cached rows for the head whose weights are loaded.
inline void expand_tile(const weft_op_mla& op, const PrefillWork& w, uint32_t n) {
  const uint32_t latent = op.pages.latent;
  const uint64_t width = page_width(op), q_width = op.nope + uint64_t{op.pages.tail};
  const auto product = [&](uint64_t from, uint32_t count_all, float* out, uint64_t stride) {
    for (uint32_t i = 0; i < count_all; i += kPanel) {
      const uint32_t count = panel_width(count_all, i);
      F32Row rows[kPanel];
      for (uint32_t j = 0; j < count; ++j) rows[j] = {w.weights + (from + i + j) * latent};
      dot_rows(Rows{w.tokens, width, nullptr}, n, rows, count, latent,
               [&](uint64_t r, uint32_t j, float value) { out[r * stride + i + j] = value; });
    }
  };
  product(0, op.nope, w.keys, q_width);
  product(op.nope, op.v_dim, w.values, op.v_dim);
  for (uint32_t t = 0; t < n; ++t)
    memcpy(w.keys + t * q_width + op.nope, w.tokens + t * width + latent,
           op.pages.tail * sizeof(float));
}

// One head of one sequence. y holds the unnormalised sums until the end.
inline void prefill_head(const weft_op_mla& op, uint32_t seq, uint32_t h, uint8_t* scratch) {
  const PrefillWork w = prefill_work(op, scratch);
  const uint32_t first = op.rows.seq_start[seq], n_rows = op.rows.seq_start[seq + 1] - first;
  const uint64_t context = op.rows.context[seq], q_width = op.nope + uint64_t{op.pages.tail};
  const uint64_t b = uint64_t{h} * (op.nope + op.v_dim), at = uint64_t{h} * op.v_dim;
  for (uint32_t i = 0; i < op.nope + op.v_dim; ++i)
    decode_weight_row(op.kv_b, b + i, w.weights + uint64_t{i} * op.pages.latent);
  for (uint32_t i = 0; i < n_rows; ++i) w.softmax[i] = Online::start();
  for (uint64_t t = 0; t < context + n_rows; t += kTokens) {
    const uint64_t left = context + n_rows - t;
    const uint32_t n = left < kTokens ? static_cast<uint32_t>(left) : kTokens;
    load_tokens(op.head, op.pages, seq, t, n, w.tokens, page_width(op));
    expand_tile(op, w, n);
    // Row i sees tokens 0 .. context + i; rows before this tile's first token see nothing of it.
    for (uint64_t i = t > context ? t - context : 0; i < n_rows; i += kQueryBlock) {
      const uint32_t block =
          n_rows - i < kQueryBlock ? static_cast<uint32_t>(n_rows - i) : kQueryBlock;
      const float* q = row_of(op.q, op.q_stride, first + i) + h * q_width;
      score_tile({q, op.q_stride, nullptr}, block, w.keys, q_width, n, q_width, op.scale, w.scores);
      float* y = row_of(op.y, op.y_stride, first + i) + at;
      float rescale[kQueryBlock];
      for (uint32_t j = 0; j < block; ++j) {
        const uint64_t seen = context + i + j + 1 - t;
        const uint32_t valid = seen < n ? static_cast<uint32_t>(seen) : n;
        float* scores = w.scores + j * kTokens;
        rescale[j] = w.softmax[i + j].take(scores, valid);
        if (valid < n)
          mix({scores, 0, 1}, 1, valid, w.values, op.v_dim, op.v_dim, y + j * op.y_stride, op.v_dim,
              rescale + j);
      }
      // Rows that see the whole tile come last in a block and go together.
      const uint64_t cut = context + i + 1 - t;  // tokens that the block's first row sees
      const uint32_t whole = cut >= n          ? 0
                             : n - cut < block ? static_cast<uint32_t>(n - cut)
                                               : block;
      mix({w.scores + whole * kTokens, kTokens, 1}, block - whole, n, w.values, op.v_dim, op.v_dim,
          y + whole * op.y_stride, op.y_stride, rescale + whole);
    }
  }
  for (uint32_t i = 0; i < n_rows; ++i) {
    float* y = row_of(op.y, op.y_stride, first + i) + at;
    const float* u = op.u == nullptr ? nullptr : row_of(op.u, op.u_stride, first + i) + at;
    finish_row(y, w.softmax[i].sum, u, op.v_dim, y);
  }
}

}  // namespace

Need mla_prefill_need(const weft_op_mla& op) {
  const uint64_t q_width = op.nope + uint64_t{op.pages.tail};
  return {0, slab<float>((uint64_t{op.nope} + op.v_dim) * op.pages.latent) +
                 slab<float>(kTokens * page_width(op)) + slab<float>(kTokens * q_width) +
                 slab<float>(uint64_t{kTokens} * op.v_dim) + slab<float>(kQueryBlock * kTokens) +
                 slab<Online>(op.rows.n_rows)};
}

void mla_prefill(const weft_op_mla& op) {
  const uint64_t items = uint64_t{op.rows.n_seqs} * op.heads;
  const uint64_t per_token = uint64_t{op.nope} + op.pages.tail + op.v_dim;
  const uint64_t expansion = uint64_t{op.rows.n_rows} * op.kv_b.n * op.kv_b.k;
  const Team team(op.head, mla_prefill_need(op), expansion + attention_work(op, per_token), items);
  team.over(items, [&](uint64_t begin, uint64_t end, uint32_t part) {
    for (uint64_t i = begin; i < end; ++i)
      prefill_head(op, static_cast<uint32_t>(i / op.heads), static_cast<uint32_t>(i % op.heads),
                   team.scratch(part));
  });
}

namespace {

// Cosines and sines of every (axis position, frequency): [side, head_dim / 4] each.
struct VitWork {
  float *cosine, *sine;  // shared
};

inline uint64_t longer_side(const weft_op_vit_attend& op) {
  return op.grid_h > op.grid_w ? op.grid_h : op.grid_w;
}

inline VitWork vit_tables(const weft_op_vit_attend& op, uint8_t* shared) {
  Bump bump(shared);
  const uint64_t quarter = op.head_dim / 4;
  VitWork w;
  w.cosine = bump.take<float>(longer_side(op) * quarter);
  w.sine = bump.take<float>(longer_side(op) * quarter);
  for (uint64_t i = 0; i < quarter; ++i) {
    const double frequency = __builtin_pow(10000.0, -4.0 * static_cast<double>(i) / op.head_dim);
    for (uint64_t p = 0; p < longer_side(op); ++p) {
      w.cosine[p * quarter + i] =
          static_cast<float>(__builtin_cos(static_cast<double>(p) * frequency));
      w.sine[p * quarter + i] =
          static_cast<float>(__builtin_sin(static_cast<double>(p) * frequency));
    }
  }
  return w;
}

// Rotates one head vector of token `index`: pairs 2i by the column, 2i+1 by the row.
inline void turn(const weft_op_vit_attend& op, const VitWork& w, uint64_t index, const float* in,
                 float* out) {
  const uint64_t cell = index % (uint64_t{op.grid_h} * op.grid_w), quarter = op.head_dim / 4;
  const uint64_t side[2] = {cell % op.grid_w, cell / op.grid_w};
  for (uint64_t i = 0; i < quarter; ++i)
    for (uint64_t axis = 0; axis < 2; ++axis) {
      const float c = w.cosine[side[axis] * quarter + i], s = w.sine[side[axis] * quarter + i];
      const uint64_t at = 4 * i + 2 * axis;
      const float a = in[at], b = in[at + 1];
      out[at] = a * c - b * s;
      out[at + 1] = a * s + b * c;
    }
}

inline void vit_head(const weft_op_vit_attend& op, const VitWork& tables, uint32_t h,
                     uint8_t* scratch) {
  const uint64_t n = uint64_t{op.grid_t} * op.grid_h * op.grid_w, dim = op.head_dim, at = h * dim;
  Bump bump(scratch);
  float* keys = bump.take<float>(n * dim);
  float* queries = bump.take<float>(kQueryBlock * dim);
  float* scores = bump.take<float>(kQueryBlock * kTokens);
  const float* qkv = static_cast<const float*>(op.qkv);
  const uint64_t width = op.heads * dim;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
  for (uint64_t j = 0; j < n; ++j)
    turn(op, tables, j, qkv + j * op.qkv_stride + width + at, keys + j * dim);
  for (uint64_t i = 0; i < n; i += kQueryBlock) {
    const uint32_t block = n - i < kQueryBlock ? static_cast<uint32_t>(n - i) : kQueryBlock;
    Online softmax[kQueryBlock];
    for (uint32_t r = 0; r < block; ++r) {
      turn(op, tables, i + r, qkv + (i + r) * op.qkv_stride + at, queries + r * dim);
      softmax[r] = Online::start();
    }
    float* y = row_of(op.y, op.y_stride, i) + at;
    for (uint64_t t = 0; t < n; t += kTokens) {
      const uint32_t count = n - t < kTokens ? static_cast<uint32_t>(n - t) : kTokens;
      score_tile({queries, dim, nullptr}, block, keys + t * dim, dim, count, dim, scale, scores);
      float rescale[kQueryBlock];
      for (uint32_t r = 0; r < block; ++r)
        rescale[r] = softmax[r].take(scores + r * kTokens, count);
      mix({scores, kTokens, 1}, block, count, qkv + t * op.qkv_stride + 2 * width + at,
          op.qkv_stride, dim, y, op.y_stride, rescale);
    }
    for (uint32_t r = 0; r < block; ++r)
      finish_row(y + r * op.y_stride, softmax[r].sum, nullptr, dim, y + r * op.y_stride);
  }
}

}  // namespace

Need vit_attend_need(const weft_op_vit_attend& op) {
  const uint64_t n = uint64_t{op.grid_t} * op.grid_h * op.grid_w;
  return {2 * slab<float>(longer_side(op) * (op.head_dim / 4)),
          slab<float>(n * op.head_dim) + slab<float>(uint64_t{kQueryBlock} * op.head_dim) +
              slab<float>(kQueryBlock * kTokens)};
}

void vit_attend(const weft_op_vit_attend& op) {
  const uint64_t n = uint64_t{op.grid_t} * op.grid_h * op.grid_w;
  const Team team(op.head, vit_attend_need(op), n * n * op.heads * op.head_dim * 2, op.heads);
  const VitWork tables = vit_tables(op, team.shared());
  team.over(op.heads, [&](uint64_t begin, uint64_t end, uint32_t part) {
    for (uint64_t h = begin; h < end; ++h)
      vit_head(op, tables, static_cast<uint32_t>(h), team.scratch(part));
  });
}
