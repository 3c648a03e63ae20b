// Tools of the kernel tests: a host with its own threads, matrices with guarded surroundings,
// access to the plugin's table.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "numeric.h"
#include "weft/kernels.h"

extern "C" const weft_desc* weft_plugin_query_v1(uint32_t host_major, uint32_t host_minor);

namespace kit {

using weft::kernels_cpu::bf16_of_float;
using weft::kernels_cpu::bits_of_float;
using weft::kernels_cpu::float_of_bf16;
using weft::kernels_cpu::float_of_bits;

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(next() % n); }
  float uniform(float low = -1, float high = 1) {
    return low + (high - low) * static_cast<float>(static_cast<double>(next() >> 11) * 0x1p-53);
  }
  std::vector<float> vector(size_t n, float low = -1, float high = 1) {
    std::vector<float> out(n);
    for (float& x : out) x = uniform(low, high);
    return out;
  }

 private:
  uint64_t state_;
};

// A host that offers nothing but a kernel pool.
class Host {
 public:
  explicit Host(uint32_t threads) : threads_(threads) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.threads = [](const weft_host* h) { return static_cast<Host*>(h->impl)->threads_; };
    table_.run = [](const weft_host* h, void (*fn)(void*, uint32_t, uint32_t), void* ctx,
                    uint32_t parts) {
      REQUIRE(parts >= 1);
      REQUIRE(parts <= static_cast<Host*>(h->impl)->threads_);
      std::vector<std::thread> others;
      for (uint32_t p = 1; p < parts; ++p) others.emplace_back(fn, ctx, p, parts);
      fn(ctx, 0, parts);
      for (std::thread& t : others) t.join();
    };
  }
  const weft_host* table() const { return &table_; }

 private:
  weft_host table_{};
  uint32_t threads_;
};

// A NaN with a payload that no computation makes: in inputs it shows reads outside a row, in
// outputs writes.
inline float sentinel() { return float_of_bits(0x7fc0beefu); }
inline bool is_sentinel(float x) { return bits_of_float(x) == 0x7fc0beefu; }

// rows x cols matrix with `gap` unused elements after each row and guards at both ends.
class Grid {
 public:
  Grid() = default;
  Grid(uint64_t rows, uint64_t cols, uint64_t gap = 3)
      : rows_(rows),
        cols_(cols),
        stride_(cols + gap),
        data_(2 * kGuard + rows * (cols + gap), sentinel()) {}
  static Grid random(Rng& rng, uint64_t rows, uint64_t cols, float low = -1, float high = 1,
                     uint64_t gap = 3) {
    Grid g(rows, cols, gap);
    for (uint64_t r = 0; r < rows; ++r)
      for (uint64_t c = 0; c < cols; ++c) g.at(r, c) = rng.uniform(low, high);
    return g;
  }

  uint64_t rows() const { return rows_; }
  uint64_t cols() const { return cols_; }
  uint64_t stride() const { return stride_; }
  float* data() { return data_.data() + kGuard; }
  const float* data() const { return data_.data() + kGuard; }
  float& at(uint64_t r, uint64_t c) { return data()[r * stride_ + c]; }
  float at(uint64_t r, uint64_t c) const { return data()[r * stride_ + c]; }

  // Rows [first, first + n) as a grid of their own.
  Grid slice(uint64_t first, uint64_t n) const {
    Grid out(n, cols_, stride_ - cols_);
    for (uint64_t r = 0; r < n; ++r)
      for (uint64_t c = 0; c < cols_; ++c) out.at(r, c) = at(first + r, c);
    return out;
  }
  bool surroundings_intact() const {
    for (size_t i = 0; i < data_.size(); ++i) {
      const bool inside =
          i >= kGuard && i < data_.size() - kGuard && (i - kGuard) % stride_ < cols_;
      if (!inside && !is_sentinel(data_[i])) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  uint64_t rows_ = 0, cols_ = 0, stride_ = 0;
  std::vector<float> data_;
};

inline bool same_bits(const Grid& a, const Grid& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return false;
  for (uint64_t r = 0; r < a.rows(); ++r)
    for (uint64_t c = 0; c < a.cols(); ++c)
      if (bits_of_float(a.at(r, c)) != bits_of_float(b.at(r, c))) return false;
  return true;
}

// Largest |a - b| / (1 + |b| * relative_share): 0 when equal; infinite when one is NaN and the
// other is not.
inline double distance(const Grid& a, const Grid& b, double floor = 1.0) {
  REQUIRE(a.rows() == b.rows());
  REQUIRE(a.cols() == b.cols());
  double worst = 0;
  for (uint64_t r = 0; r < a.rows(); ++r)
    for (uint64_t c = 0; c < a.cols(); ++c) {
      const double x = a.at(r, c), y = b.at(r, c);
      if (std::isnan(x) && std::isnan(y)) continue;
      if (x == y) continue;
      const double d = std::fabs(x - y) / std::fmax(std::fabs(y), floor);
      worst = d >= 0 ? std::fmax(worst, d) : INFINITY;
    }
  return worst;
}

// ---- the plugin

inline const weft_kernels_v1& table() {
  const weft_desc* desc = weft_plugin_query_v1(WEFT_ABI_MAJOR, WEFT_ABI_MINOR);
  REQUIRE(desc != nullptr);
  return *reinterpret_cast<const weft_kernels_v1*>(desc->interfaces[0].table);
}

// Variants that exist in the tests alone (amx_emulated_test.cpp).
std::vector<weft_kernel> emulated_kernels();

inline std::vector<weft_kernel> all_kernels() {
  std::vector<weft_kernel> out = emulated_kernels();
  weft_kernel k;
  for (uint32_t i = 0; table().get(nullptr, i, &k) == WEFT_OK; ++i) out.push_back(k);
  return out;
}

inline weft_kernel find(const std::string& op, const std::string& variant, uint32_t dtype_w) {
  for (const weft_kernel& k : all_kernels())
    if (op == k.op && variant == k.variant && dtype_w == k.dtype_w) return k;
  FAIL("no kernel " << op << "/" << variant << " for dtype " << dtype_w);
  return {};
}
inline weft_kernel ref_of(const weft_kernel& k) { return find(k.op, "ref", k.dtype_w); }

// Kernels of an op that this machine can run, ref first.
inline std::vector<weft_kernel> runnable(const std::string& op) {
  std::vector<weft_kernel> out;
  for (const weft_kernel& k : all_kernels())
    if (op == k.op && k.score >= 0) out.push_back(k);
  return out;
}

template <class Op>
Op make_op(const Host& host) {
  Op op;
  memset(static_cast<void*>(&op), 0, sizeof op);
  op.head.struct_size = sizeof op;
  op.head.host = host.table();
  return op;
}

// Plans and launches with a workspace of exactly the planned size, filled with NaN and guarded.
// Returns launch's status.
template <class Op>
weft_status launch(const weft_kernel& k, Op op, weft_err* err = nullptr) {
  weft_err local{};
  local.struct_size = sizeof local;
  if (err == nullptr) err = &local;
  weft_plan plan{};
  plan.struct_size = sizeof plan;
  weft_status status = k.plan(&op, &plan, err);
  if (status != WEFT_OK) return status;
  REQUIRE(plan.bits_class != 0);
  constexpr size_t kGuard = 64;
  std::vector<uint8_t> workspace(plan.workspace_bytes + 2 * kGuard, 0xff);
  op.head.workspace = workspace.data() + kGuard;
  op.head.workspace_bytes = plan.workspace_bytes;
  status = k.launch(&op, err);
  for (size_t i = 0; i < kGuard; ++i) {
    REQUIRE(workspace[i] == 0xff);
    REQUIRE(workspace[workspace.size() - 1 - i] == 0xff);
  }
  return status;
}

template <class Op>
void must_launch(const weft_kernel& k, const Op& op) {
  weft_err err{};
  err.struct_size = sizeof err;
  const weft_status status = launch(k, op, &err);
  INFO(k.op << "/" << k.variant << ": " << err.msg);
  REQUIRE(status == WEFT_OK);
}

// ---- weights

// A matrix in one of the weight formats together with its exact values.
struct Weight {
  uint64_t n = 0, k = 0;
  uint32_t dtype = 0, layout = 0;
  std::vector<uint8_t> data, scale;
  std::vector<float> value;  // [n, k]

  // Packed data starts at the first address of `data` that its layout allows; 64 bytes are spare.
  weft_weight view() const {
    const auto at = reinterpret_cast<uintptr_t>(data.data());
    const uint8_t* start = data.data() + (layout == 0 ? 0 : (64 - at % 64) % 64);
    return {dtype, layout, n, k, start, dtype == WEFT_MXFP4 ? scale.data() : nullptr};
  }
};

// The same matrix in the layout of packed panels; w.layout is 0. Not for F32. A copy of the result
// must be packed anew: its data may be aligned differently.
Weight packed(const Weight& w);
Weight random_weight(Rng& rng, uint32_t dtype, uint64_t n, uint64_t k);

// One comparison of a variant with ref on random shapes; every op has one (cases() is checked
// against the table).
struct OpCase {
  const char* op;
  void (*compare)(const weft_kernel& kernel, uint64_t seed);
};
std::vector<OpCase> row_cases();
std::vector<OpCase> matmul_cases();
std::vector<OpCase> kda_cases();
std::vector<OpCase> mla_cases();
std::vector<OpCase> vision_cases();

}  // namespace kit
