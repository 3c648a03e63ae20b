// The host's kernels as the model graph uses them: one looked-up variant per operation, and a
// runner with two modes. In a dry run every operation only reports its scratch need, so walking the
// graph once over the largest step gives the exact workspace; in a live run it launches. Engine
// thread after construction.
#pragma once

#include <weft/kernels.h>

#include <cstddef>
#include <string>

#include "fault.h"

namespace weft_kimi {

class KernelSet {
 public:
  // Fails unless the kernels compute on host memory in f32, the form this graph is written for.
  Fault open(const weft_host* host);

  // Variant of `op`; dtype_w as in weft_kernel.dtype_w (0 when the operation takes no weight).
  Fault find(const char* op, uint32_t dtype_w, const weft_kernel** out) const;
  Fault pack_plan(const weft_weight& w, uint32_t* layout, uint64_t* bytes,
                  uint64_t* scale_bytes) const;
  Fault pack(const weft_weight& src, const weft_weight& dst) const;
  const weft_host* host() const { return host_; }

 private:
  const weft_host* host_ = nullptr;
  const weft_host_kernels_v1* table_ = nullptr;
};

class Runner {
 public:
  static Runner dry(const weft_host* host) { return Runner(host, nullptr, 0, nullptr, true); }
  static Runner live(const weft_host* host, void* scratch, uint64_t bytes, void* stream) {
    return Runner(host, scratch, bytes, stream, false);
  }

  bool is_dry() const { return dry_; }
  uint64_t scratch_needed() const { return needed_; }

  // A zeroed argument struct with its head filled in.
  template <class Op>
  Op args() {
    Op op{};
    op.head.struct_size = sizeof(Op);
    op.head.host = host_;
    op.head.stream = stream_;
    op.head.workspace = scratch_;
    op.head.workspace_bytes = scratch_bytes_;
    op.head.err = &bad_;
    return op;
  }
  template <class Op>
  Fault run(const weft_kernel* kernel, const Op& op) {
    return call(kernel, &op);
  }
  // Operations report bad indices here; any bit after a checked batch is a defect of ours.
  Fault finish() const;

 private:
  Runner(const weft_host* host, void* scratch, uint64_t bytes, void* stream, bool dry)
      : host_(host), scratch_(scratch), scratch_bytes_(bytes), stream_(stream), dry_(dry) {}
  Fault call(const weft_kernel* kernel, const void* args);

  const weft_host* host_;
  void* scratch_;
  uint64_t scratch_bytes_;
  void* stream_;
  bool dry_;
  uint64_t needed_ = 0;
  uint32_t bad_ = 0;
};

// p + n, keeping null: the dry run has no memory behind its buffers.
template <class T>
T* shift(T* p, uint64_t n) {
  return p == nullptr ? nullptr : p + n;
}

// Cuts one allocation into 64-byte aligned pieces; with a null base it only measures.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  T* take(uint64_t count) {
    at_ = (at_ + 63) & ~uint64_t{63};
    std::byte* p = shift(base_, at_);
    at_ += count * sizeof(T);
    if (at_ > peak_) peak_ = at_;
    return reinterpret_cast<T*>(p);
  }
  uint64_t mark() const { return at_; }
  void rewind(uint64_t mark) {
    at_ = mark;
  }  // what follows shares memory with what came after mark
  void seek_end() { at_ = peak_; }
  uint64_t bytes() const { return (peak_ + 63) & ~uint64_t{63}; }

 private:
  std::byte* base_;
  uint64_t at_ = 0;
  uint64_t peak_ = 0;
};

}  // namespace weft_kimi
