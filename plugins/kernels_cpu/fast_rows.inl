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
  const Team team(op.head, {}, uint64_t{op.n_rows} * op.n_cols * kMathWork, op.n_rows);
  team.over(op.n_rows, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t r = begin; r < end; ++r) {
      const float* g = row_of(op.gate, op.gate_stride, r);
      const float* u = row_of(op.up, op.up_stride, r);
      float* y = row_of(op.y, op.y_stride, r);
      each_block(op.n_cols, [&](uint64_t c, uint32_t lanes) {
        const V value =
            gated(op.act, op.beta, op.up_beta, load_upto(g + c, lanes), load_upto(u + c, lanes));
        store_upto(y + c, value, lanes);
      });
    }
  });
}

void gate(const weft_op_gate& op) {
  const Team team(op.head, {}, uint64_t{op.n_rows} * op.n_cols * kMathWork, op.n_rows);
  team.over(op.n_rows, [&](uint64_t begin, uint64_t end, uint32_t) {
    for (uint64_t r = begin; r < end; ++r) {
      const float* x = row_of(op.x, op.x_stride, r);
      const float* u = row_of(op.u, op.u_stride, r);
      float* y = row_of(op.y, op.y_stride, r);
      each_block(op.n_cols, [&](uint64_t c, uint32_t lanes) {
        store_upto(y + c, mul(load_upto(x + c, lanes), sigmoid(load_upto(u + c, lanes))), lanes);
      });
    }
  });
}

void add(const weft_op_add& op) {
  for (uint32_t r = 0; r < op.n_rows; ++r) {
    const float* a = row_of(op.a, op.a_stride, r);
    const float* b = row_of(op.b, op.b_stride, r);
    float* y = row_of(op.y, op.y_stride, r);
    each_block(op.n_cols, [&](uint64_t c, uint32_t lanes) {
      store_upto(y + c, plus(load_upto(a + c, lanes), load_upto(b + c, lanes)), lanes);
    });
  }
}

Need attnres_need(const weft_op_attnres& op) { return {0, slab<float>(op.n_blocks + uint64_t{1})}; }

void attnres(const weft_op_attnres& op) {
  const uint32_t n = op.n_blocks + 1;
  const Team team(op.head, attnres_need(op), uint64_t{op.n_rows} * op.n_cols * n * 3, op.n_rows);
  team.over(op.n_rows, [&](uint64_t begin, uint64_t end, uint32_t part) {
    float* p = reinterpret_cast<float*>(team.scratch(part));
    for (uint64_t r = begin; r < end; ++r) {
      const auto source = [&](uint32_t j) {
        if (j == op.n_blocks) return row_of(op.prefix, op.prefix_stride, r);
        return static_cast<const float*>(op.blocks) + j * op.block_stride + r * op.row_stride;
      };
      for (uint32_t j = 0; j < n; ++j) {
        const float* v = source(j);
        V along = zero(), squares = zero();
        each_block(op.n_cols, [&](uint64_t c, uint32_t lanes) {
          const V x = load_upto(v + c, lanes);
          along = fma(load_upto(op.q + c, lanes), x, along);
          squares = fma(x, x, squares);
        });
        p[j] = sum(along) * inverse_root(sum(squares) / static_cast<float>(op.n_cols), op.eps);
      }
      const float total = exp_all(p, n, largest(p, n, -__builtin_inff()));
      for (uint32_t j = 0; j < n; ++j) p[j] /= total;
      float* y = row_of(op.y, op.y_stride, r);
      V squares = zero();
      each_block(op.n_cols, [&](uint64_t c, uint32_t lanes) {
        V h = zero();
        for (uint32_t j = 0; j < n; ++j) h = fma(set(p[j]), load_upto(source(j) + c, lanes), h);
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
