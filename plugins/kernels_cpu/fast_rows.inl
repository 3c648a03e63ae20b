// Row operations.

namespace {

inline const float* row_of(const void* base, uint64_t stride, uint64_t r) {
  return static_cast<const float*>(base) + r * stride;
}
inline float* row_of(void* base, uint64_t stride, uint64_t r) {
  return static_cast<float*>(base) + r * stride;
}

// Work of an element of a transcendental op, in multiply-adds.
constexpr uint64_t kMathWork = 16;
constexpr uint64_t kGatedWork = 32;

// Elementwise ops: body(r, begin, end) for pieces of rows, so that one wide row keeps several
// threads busy. A piece is a whole number of vectors: it changes no bit.
constexpr uint64_t kPiece = 1024;
template <class Body>
inline void over_pieces(const weft_op_head& head, uint64_t n_rows, uint64_t n_cols,
                        uint64_t work_per_element, const Body& body) {
  const uint64_t pieces = (n_cols + kPiece - 1) / kPiece;
  const Team team(head, {}, n_rows * n_cols * work_per_element, n_rows * pieces);
  team.over(n_rows * pieces, [&](uint64_t from, uint64_t to, uint32_t) {
    for (uint64_t i = from; i < to; ++i) {
      const uint64_t begin = i % pieces * kPiece;
      body(i / pieces, begin, n_cols - begin < kPiece ? n_cols : begin + kPiece);
    }
  });
}

}  // namespace

void norm(const weft_op_norm& op) {
  const Team team(op.head, {}, uint64_t{op.n_rows} * op.n_cols * 2, op.n_rows);
  team.over(op.n_rows, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t r = begin; r < end; ++r) {
      const float* x = row_of(op.x, op.x_stride, r);
      const float mean = sum_of_squares(x, op.n_cols) / static_cast<float>(op.n_cols);
      scale_weighted(x, op.w, inverse_root(mean, op.eps), row_of(op.y, op.y_stride, r), op.n_cols);
    }
  });
}

void glu(const weft_op_glu& op) {
  over_pieces(
      op.head, op.n_rows, op.n_cols, kGatedWork, [&](uint64_t r, uint64_t begin, uint64_t end) {
        const float* g = row_of(op.gate, op.gate_stride, r) + begin;
        const float* u = row_of(op.up, op.up_stride, r) + begin;
        float* y = row_of(op.y, op.y_stride, r) + begin;
        each_block(end - begin, [&](uint64_t c, uint32_t lanes) {
          store_upto(
              y + c,
              gated(op.act, op.beta, op.up_beta, load_upto(g + c, lanes), load_upto(u + c, lanes)),
              lanes);
        });
      });
}

void gate(const weft_op_gate& op) {
  over_pieces(op.head, op.n_rows, op.n_cols, kMathWork,
              [&](uint64_t r, uint64_t begin, uint64_t end) {
                const float* x = row_of(op.x, op.x_stride, r) + begin;
                const float* u = row_of(op.u, op.u_stride, r) + begin;
                float* y = row_of(op.y, op.y_stride, r) + begin;
                each_block(end - begin, [&](uint64_t c, uint32_t lanes) {
                  const V factor = sigmoid(load_upto(u + c, lanes));
                  store_upto(y + c, mul(load_upto(x + c, lanes), factor), lanes);
                });
              });
}

void add(const weft_op_add& op) {
  over_pieces(op.head, op.n_rows, op.n_cols, 2, [&](uint64_t r, uint64_t begin, uint64_t end) {
    const float* a = row_of(op.a, op.a_stride, r) + begin;
    const float* b = row_of(op.b, op.b_stride, r) + begin;
    float* y = row_of(op.y, op.y_stride, r) + begin;
    each_block(end - begin, [&](uint64_t c, uint32_t lanes) {
      store_upto(y + c, plus(load_upto(a + c, lanes), load_upto(b + c, lanes)), lanes);
    });
  });
}

namespace {

inline void copy_row(const float* x, uint64_t n, float* y) {
  each_block(
      n, [&](uint64_t c, uint32_t lanes) { store_upto(y + c, load_upto(x + c, lanes), lanes); });
}

}  // namespace

void embed(const weft_op_embed& op) {
  const Team team(op.head, {}, uint64_t{op.n_rows} * op.table.k * 2, op.n_rows);
  team.over(op.n_rows, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t r = begin; r < end; ++r) {
      float* y = row_of(op.y, op.y_stride, r);
      const int32_t id = op.id[r];
      if (id < 0 || static_cast<uint64_t>(id) >= op.table.n) {
        raise(op.head, kErrBadIndex);
        each_block(op.table.k,
                   [&](uint64_t c, uint32_t lanes) { store_upto(y + c, zero(), lanes); });
        continue;
      }
      const uint8_t* row = weight_row(op.table, static_cast<uint64_t>(id));
      if (op.table.dtype == WEFT_F32) {
        copy_row(reinterpret_cast<const float*>(row), op.table.k, y);
        continue;
      }
      const uint16_t* x = reinterpret_cast<const uint16_t*>(row);
      each_block(op.table.k, [&](uint64_t c, uint32_t lanes) {
        store_upto(y + c, lanes == kLanes ? load_bf16(x + c) : load_bf16_n(x + c, lanes), lanes);
      });
    }
  });
}

void gather(const weft_op_gather& op) {
  const Team team(op.head, {}, uint64_t{op.n_rows} * op.n_cols * 2, op.n_rows);
  team.over(op.n_rows, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i)
      copy_row(row_of(op.x, op.x_stride, op.row[i]), op.n_cols, row_of(op.y, op.y_stride, i));
  });
}

void scatter(const weft_op_gather& op) {
  const Team team(op.head, {}, uint64_t{op.n_rows} * op.n_cols * 2, op.n_rows);
  team.over(op.n_rows, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t i = begin; i < end; ++i)
      copy_row(row_of(op.x, op.x_stride, i), op.n_cols, row_of(op.y, op.y_stride, op.row[i]));
  });
}

namespace {

// sum of q x / sqrt(mean(x^2) + eps): two accumulators each, as sum_of_squares.
inline float depth_score(const float* x, const float* q, uint64_t n, float eps) {
  V along = zero(), squares = zero(), along2 = zero(), squares2 = zero();
  uint64_t c = 0;
  for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
    const V a = load(x + c), b = load(x + c + kLanes);
    along = fma(load(q + c), a, along);
    squares = fma(a, a, squares);
    along2 = fma(load(q + c + kLanes), b, along2);
    squares2 = fma(b, b, squares2);
  }
  for (; c < n; c += kLanes) {
    const uint32_t lanes = n - c < kLanes ? static_cast<uint32_t>(n - c) : kLanes;
    const V a = load_upto(x + c, lanes);
    along = fma(load_upto(q + c, lanes), a, along);
    squares = fma(a, a, squares);
  }
  return sum(plus(along, along2)) *
         inverse_root(sum(plus(squares, squares2)) / static_cast<float>(n), eps);
}

}  // namespace

Need attnres_need(const weft_op_attnres& op) {
  return {0,
          slab<float>(op.n_blocks + uint64_t{1}) + slab<const float*>(op.n_blocks + uint64_t{1})};
}

void attnres(const weft_op_attnres& op) {
  const uint32_t n = op.n_blocks + 1;
  const Team team(op.head, attnres_need(op), uint64_t{op.n_rows} * op.n_cols * n * 3, op.n_rows);
  team.over(op.n_rows, [&](uint64_t begin, uint64_t end, uint32_t part) {
    Bump bump(team.scratch(part));
    float* p = bump.take<float>(n);
    const float** source = bump.take<const float*>(n);
    for (uint64_t r = begin; r < end; ++r) {
      for (uint32_t j = 0; j < op.n_blocks; ++j)
        source[j] = static_cast<const float*>(op.blocks) + j * op.block_stride + r * op.row_stride;
      source[n - 1] = row_of(op.prefix, op.prefix_stride, r);
      for (uint32_t j = 0; j < n; ++j) p[j] = depth_score(source[j], op.q, op.n_cols, op.eps);
      const float total = exp_all(p, n, largest(p, n, -__builtin_inff()));
      for (uint32_t j = 0; j < n; ++j) p[j] /= total;
      float* y = row_of(op.y, op.y_stride, r);
      V squares = zero();
      each_block(op.n_cols, [&](uint64_t c, uint32_t lanes) {
        V h = zero();
        for (uint32_t j = 0; j < n; ++j) h = fma(set(p[j]), load_upto(source[j] + c, lanes), h);
        squares = fma(h, h, squares);
        store_upto(y + c, h, lanes);
      });
      if (op.norm_w == nullptr) continue;
      const float mean = sum(squares) / static_cast<float>(op.n_cols);
      scale_weighted(y, op.norm_w, inverse_root(mean, op.norm_eps), y, op.n_cols);
    }
  });
}

void gelu(const weft_op_gelu& op) {
  const Team team(op.head, {}, uint64_t{op.n_rows} * op.n_cols * kMathWork, op.n_rows);
  team.over(op.n_rows, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t r = begin; r < end; ++r) {
      const float* x = row_of(op.x, op.x_stride, r);
      float* y = row_of(op.y, op.y_stride, r);
      if (op.tanh_form == 0) {  // erf has no vector form here; the projector that uses it is small
        for (uint32_t c = 0; c < op.n_cols; ++c)
          y[c] = 0.5f * x[c] * (1.0f + __builtin_erff(x[c] * 0.70710678f));
        continue;
      }
      each_block(op.n_cols, [&](uint64_t c, uint32_t lanes) {
        const V v = load_upto(x + c, lanes);
        const V inner = mul(set(0.79788456f), fma(mul(set(0.044715f), mul(v, v)), v, v));
        store_upto(y + c, mul(mul(set(0.5f), v), plus(set(1.0f), tanh(inner))), lanes);
      });
    }
  });
}
