// Paged cache rows and attention calls over them.
#pragma once

#include "kit.h"

namespace kit {

struct MlaShape {
  uint32_t heads = 3, nope = 16, v_dim = 16, latent = 32, tail = 8, page_tokens = 4;
};

inline uint64_t bytes_of(uint32_t dtype) { return weft::kernels_cpu::dtype_bytes(dtype); }

// Pages in shuffled order with guard bytes between them.
struct MlaCache {
  MlaShape shape;
  uint32_t dtype, per_seq;
  uint64_t page_stride;
  std::vector<uint8_t> bytes;
  std::vector<int32_t> table;

  MlaCache(Rng& rng, const MlaShape& s, uint32_t page_dtype, uint32_t n_seqs, uint32_t tokens)
      : shape(s), dtype(page_dtype), per_seq((tokens + s.page_tokens - 1) / s.page_tokens) {
    page_stride = uint64_t{s.latent + s.tail} * s.page_tokens * bytes_of(dtype) + 32;
    bytes.assign((n_seqs * per_seq) * page_stride, 0xee);
    for (uint32_t i = 0; i < n_seqs * per_seq; ++i) table.push_back(static_cast<int32_t>(i));
    for (size_t i = table.size(); i > 1; --i)
      std::swap(table[i - 1], table[rng.below(static_cast<uint32_t>(i))]);
  }
  weft_mla_pages view() {
    return {bytes.data(), page_stride, shape.page_tokens, dtype,
            shape.latent, shape.tail,  table.data(),      per_seq};
  }
  uint8_t* row(uint32_t seq, uint32_t token) {
    const auto page = static_cast<uint64_t>(table[seq * per_seq + token / shape.page_tokens]);
    return bytes.data() + page * page_stride +
           uint64_t{token % shape.page_tokens} * (shape.latent + shape.tail) * bytes_of(dtype);
  }
  bool gaps_intact() const {
    const uint64_t used = page_stride - 32;
    for (size_t i = 0; i < bytes.size(); ++i)
      if (i % page_stride >= used && bytes[i] != 0xee) return false;
    return true;
  }
};

struct MlaBatch {
  std::vector<uint32_t> start = {0}, context;
  void add(uint32_t ctx, uint32_t n) {
    context.push_back(ctx);
    start.push_back(start.back() + n);
  }
  weft_rows rows() const {
    return {static_cast<uint32_t>(context.size()), start.back(), start.data(), context.data()};
  }
};

inline uint32_t mla_store(const weft_kernel& k, const Grid& x, const std::vector<float>& w,
                          const MlaBatch& batch, MlaCache& cache, uint32_t threads = 1) {
  Host host(threads);
  uint32_t err = 0;
  auto op = make_op<weft_op_mla_store>(host);
  op.head.err = &err;
  op.rows = batch.rows();
  op.x = x.data();
  op.x_stride = x.stride();
  op.w = w.data();
  op.eps = 1e-6f;
  op.pages = cache.view();
  must_launch(k, op);
  CHECK(cache.gaps_intact());
  return err;
}

inline Grid mla_attend(const weft_kernel& k, const Grid& q, const Weight& kv_b, const Grid* u,
                       const MlaBatch& batch, MlaCache& cache, uint32_t threads = 1,
                       uint32_t* err = nullptr) {
  Host host(threads);
  const MlaShape& s = cache.shape;
  Grid y(q.rows(), uint64_t{s.heads} * s.v_dim, 4);
  auto op = make_op<weft_op_mla>(host);
  op.head.err = err;
  op.rows = batch.rows();
  op.heads = s.heads;
  op.nope = s.nope;
  op.v_dim = s.v_dim;
  op.scale = 1 / std::sqrt(static_cast<float>(s.nope + s.tail));
  op.q = q.data();
  op.q_stride = q.stride();
  op.kv_b = kv_b.view();
  op.pages = cache.view();
  op.u = u == nullptr ? nullptr : u->data();
  op.u_stride = u == nullptr ? 0 : u->stride();
  op.y = y.data();
  op.y_stride = y.stride();
  must_launch(k, op);
  CHECK(y.surroundings_intact());
  CHECK(cache.gaps_intact());
  return y;
}

}  // namespace kit
