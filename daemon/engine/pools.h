// Ownership of cache units. A Page or a Slot is a move-only handle; whoever holds it owns the unit,
// and destroying it gives the unit back. There is no other way to give one back, so a unit cannot
// be freed twice, and the pool cannot be destroyed while anything is owned.
//
// Every unit carries a generation that changes when it is taken and when it is returned (odd =
// owned); a handle whose generation is not the unit's is a bug and stops the process. Engine thread
// only.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"

namespace weft::engine {

// The bookkeeping that both kinds of pool share. Units are numbers 0..total-1.
class UnitPoolBase {
 public:
  explicit UnitPoolBase(uint32_t total);
  UnitPoolBase(const UnitPoolBase&) = delete;
  UnitPoolBase& operator=(const UnitPoolBase&) = delete;
  ~UnitPoolBase() { WEFT_CHECK(free_.size() == generation_.size()); }

  uint32_t total() const { return static_cast<uint32_t>(generation_.size()); }
  uint32_t available() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t used() const { return total() - available(); }

  // From now on a returned unit is filled with 0xff (NaN in every float type), so that reading a
  // unit one does not own shows at once. base: unit u at base + u * stride, unit_bytes of it are
  // filled.
  void poison_returned(void* base, uint64_t stride, uint64_t unit_bytes);
  // Checks free + owned = total, no unit twice in the free list, and every generation against it.
  Status audit() const;

 protected:
  uint32_t take(uint32_t* generation);
  void give_back(uint32_t unit, uint32_t generation);
  bool owns(uint32_t unit, uint32_t generation) const {
    return unit < generation_.size() && generation_[unit] == generation && (generation & 1u) == 1u;
  }

 private:
  std::vector<uint32_t> generation_;
  std::vector<uint32_t>
      free_;  // last in, first out: recently used memory is warm and already resident
  unsigned char* poison_base_ = nullptr;
  uint64_t poison_stride_ = 0;
  uint64_t poison_bytes_ = 0;
};

// Tag makes pages and slots different types.
template <class Tag>
class UnitPool : public UnitPoolBase {
 public:
  using UnitPoolBase::UnitPoolBase;

  class Handle {
   public:
    Handle() = default;
    Handle(Handle&& o) noexcept
        : pool_(std::exchange(o.pool_, nullptr)), unit_(o.unit_), generation_(o.generation_) {}
    Handle& operator=(Handle&& o) noexcept {
      if (this != &o) {
        reset();
        pool_ = std::exchange(o.pool_, nullptr);
        unit_ = o.unit_;
        generation_ = o.generation_;
      }
      return *this;
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { reset(); }

    bool valid() const { return pool_ != nullptr; }
    int32_t unit() const {
      WEFT_CHECK(pool_ != nullptr && pool_->owns(unit_, generation_));
      return static_cast<int32_t>(unit_);
    }
    uint32_t generation() const { return generation_; }
    void reset() {
      if (pool_ != nullptr) std::exchange(pool_, nullptr)->give_back(unit_, generation_);
    }

   private:
    friend class UnitPool;
    UnitPool* pool_ = nullptr;
    uint32_t unit_ = 0;
    uint32_t generation_ = 0;
  };

  // An invalid handle when nothing is free.
  [[nodiscard]] Handle take() {
    Handle handle;
    if (available() == 0) return handle;
    handle.unit_ = UnitPoolBase::take(&handle.generation_);
    handle.pool_ = this;
    return handle;
  }
};

using PagePool = UnitPool<struct PageTag>;
using Page = PagePool::Handle;
using SlotPool = UnitPool<struct SlotTag>;
using Slot = SlotPool::Handle;

}  // namespace weft::engine
