#include "plugin/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "plugin/numa.h"

namespace weft::plugin {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kBytesMax = uint64_t{1} << 47;  // the user address space of x86-64

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) & ~(unit - 1); }

// Maps more than needed and gives the ends back, because mmap itself only aligns to small pages.
void* map_aligned(uint64_t bytes, uint64_t align) {
  const uint64_t total = bytes + align;
  void* raw = mmap(nullptr, total, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const uint64_t start = reinterpret_cast<uintptr_t>(raw);
  const uint64_t first = round_up(start, align);
  if (first > start) munmap(raw, first - start);
  const uint64_t tail = start + total - (first + bytes);
  if (tail > 0) munmap(reinterpret_cast<void*>(first + bytes), tail);
  void* out = reinterpret_cast<void*>(first);
  spread_over_nodes(out, bytes);
  madvise(out, bytes,
          MADV_HUGEPAGE);  // advice: a kernel without huge pages says no, and small pages do
  return out;
}

}  // namespace

Result<void*> allocate_host(uint64_t bytes, uint64_t align) {
  if (align < kAlignMin || !std::has_single_bit(align)) {
    return make_error(ErrorCode::kInvalid,
                      "alloc: align must be a power of two of at least {}, came {}", kAlignMin,
                      align);
  }
  if (bytes > kBytesMax || align > kBytesMax) {
    return make_error(ErrorCode::kUnavailable,
                      "alloc: {} bytes (align {}) exceed the address space", bytes, align);
  }
  void* out = nullptr;
  if (bytes >= kHugePage) {
    out = map_aligned(round_up(bytes, kPage), std::max(align, kHugePage));
  } else {
    out = std::aligned_alloc(align, round_up(std::max<uint64_t>(bytes, 1), align));
    if (out != nullptr) std::memset(out, 0, bytes);
  }
  if (out == nullptr) {
    return make_error(ErrorCode::kUnavailable,
                      "alloc: the system has no {} bytes left; use a smaller model, fewer cache "
                      "units or a larger memory limit for the worker",
                      bytes);
  }
  return out;
}

void release_host(void* ptr, uint64_t bytes) {
  if (ptr == nullptr) return;
  if (bytes >= kHugePage) {
    munmap(ptr, round_up(bytes, kPage));
  } else {
    std::free(ptr);
  }
}

}  // namespace weft::plugin
