// Static work splitting over the host's kernel pool, and the workspace of a launch. Nothing here
// may influence a result: parts only decide who computes an output, never in which order its sum is
// taken. Internal linkage: see numeric.h.
#pragma once

#include <cstdint>

#include "weft/kernels.h"

namespace weft::kernels_cpu {

// Bytes of workspace: `shared` once, `per_part` for every thread that takes part.
struct Need {
  uint64_t shared = 0;
  uint64_t per_part = 0;
};

static constexpr uint64_t kWorkspaceAlign = 64;
// Multiply-adds below which another thread costs more than it brings (a wake-up takes a few
// microseconds).
static constexpr uint64_t kWorkPerPart = 64 * 1024;

static inline uint64_t align_up(uint64_t bytes) {
  return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
}

static inline uint32_t host_threads(const weft_op_head& head) {
  const uint32_t n = head.host != nullptr ? head.host->threads(head.host) : 1;
  return n == 0 ? 1 : n;
}

// What plan reports. The extra alignment lets launch accept a workspace at any address.
static inline uint64_t workspace_bytes(Need need, uint32_t parts) {
  if (need.shared == 0 && need.per_part == 0) return 0;
  return kWorkspaceAlign + align_up(need.shared) + parts * align_up(need.per_part);
}

namespace {  // internal linkage, see above

class Team {
 public:
  // `work` in multiply-adds, `items` = independent pieces.
  Team(const weft_op_head& head, Need need, uint64_t work, uint64_t items)
      : head_(head), need_(need) {
    uint64_t parts = host_threads(head);
    const uint64_t by_work = work / kWorkPerPart + 1;
    if (parts > by_work) parts = by_work;
    if (parts > items) parts = items;
    if (need.per_part != 0) {
      const uint64_t fixed = kWorkspaceAlign + align_up(need.shared);
      const uint64_t room = head.workspace_bytes > fixed ? head.workspace_bytes - fixed : 0;
      const uint64_t by_room = room / align_up(need.per_part);
      if (parts > by_room) parts = by_room;
    }
    parts_ = parts == 0 ? 1 : static_cast<uint32_t>(parts);
  }

  uint32_t parts() const { return parts_; }

  uint8_t* shared() const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(head_.workspace);
    return reinterpret_cast<uint8_t*>((at + kWorkspaceAlign - 1) / kWorkspaceAlign *
                                      kWorkspaceAlign);
  }
  uint8_t* scratch(uint32_t part) const {
    return shared() + align_up(need_.shared) + part * align_up(need_.per_part);
  }

  // Calls body(begin, end, part) on the pool; the ranges cut 0..items in order.
  template <class Body>
  void over(uint64_t items, const Body& body) const {
    struct Job {
      const Body* body;
      uint64_t items;
    } job{&body, items};
    const uint32_t used = items < parts_ ? static_cast<uint32_t>(items) : parts_;
    if (used <= 1 || head_.host == nullptr) {
      body(uint64_t{0}, items, 0u);
      return;
    }
    head_.host->run(
        head_.host,
        [](void* ctx, uint32_t part, uint32_t parts) {
          const Job& j = *static_cast<const Job*>(ctx);
          const uint64_t begin = j.items * part / parts;
          const uint64_t end = j.items * (part + 1) / parts;
          if (begin < end) (*j.body)(begin, end, part);
        },
        &job, used);
  }

 private:
  const weft_op_head& head_;
  Need need_;
  uint32_t parts_ = 1;
};

// Matrix i of a group as an op of its own, with the group's workspace.
inline weft_op_gemm member_of(const weft_op_gemm_group& group, uint32_t i) {
  const weft_gemm_out& out = group.out[i];
  weft_op_gemm op{};
  op.head = group.head;
  op.n_rows = group.n_rows;
  op.mode = out.mode;
  op.x = group.x;
  op.x_stride = group.x_stride;
  op.w = out.w;
  op.y = out.y;
  op.y_stride = out.y_stride;
  op.y_dtype = group.y_dtype;
  return op;
}

// Hands out aligned arrays from one block of workspace.
class Bump {
 public:
  explicit Bump(uint8_t* at) : at_(at) {}
  template <class T>
  T* take(uint64_t count) {
    T* out = reinterpret_cast<T*>(at_);
    at_ += align_up(count * sizeof(T));
    return out;
  }

 private:
  uint8_t* at_;
};

}  // namespace

// The same sum for Need: bytes that take<T>(count) consumes.
template <class T>
static constexpr uint64_t slab(uint64_t count) {
  return (count * sizeof(T) + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
}

namespace {

// Counts what Bump would hand out: code that lays out memory with either cannot disagree with
// itself.
struct Sizer {
  uint64_t bytes = 0;
  template <class T>
  T* take(uint64_t count) {
    bytes += slab<T>(count);
    return nullptr;
  }
};

}  // namespace

}  // namespace weft::kernels_cpu
