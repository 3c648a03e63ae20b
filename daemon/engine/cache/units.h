// The allocator of one cache group: who owns which unit (a page of rows, or a state slot).
//
// Three kinds of handle, and no other way to hold a unit:
//   OwnedUnit  one holder, may be written, move only
//   LiveRef    shared and read only; a running sequence or a copy in flight needs it
//   CachedRef  shared and read only; kept for later requests, can be given up when memory is needed
// A unit returns to the free list when the last handle of any kind goes. Writing needs an
// OwnedUnit, so a shared unit cannot be written, and nothing can be freed twice: by construction.
// Every unit has a generation (odd = held) that changes when it is taken and when it returns; a
// handle whose generation is not the unit's is a bug and stops the process. Engine thread only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/result.h"

namespace weft::engine::cache {

class OwnedUnit;
class LiveRef;
class CachedRef;

class UnitPool {
 public:
  explicit UnitPool(uint32_t total);
  UnitPool(const UnitPool&) = delete;
  UnitPool& operator=(const UnitPool&) = delete;
  ~UnitPool() { WEFT_CHECK(free_.size() == units_.size()); }

  uint32_t total() const { return static_cast<uint32_t>(units_.size()); }
  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }
  // Units with at least one owner or live reference.
  uint32_t active() const { return active_; }
  // Units that only cached references hold: free for whoever needs them.
  uint32_t cached() const { return total() - free() - active_; }

  // An invalid handle when nothing is free.
  [[nodiscard]] OwnedUnit take();

  // From now on a returned unit is filled with 0xff (NaN in every float type), so that reading a
  // unit one does not own shows at once. Unit u lies at base + u * stride.
  void poison_returned(void* base, uint64_t stride, uint64_t unit_bytes);
  // Checks free + active + cached = total, no unit twice in the free list, and every count.
  Status audit() const;

 private:
  friend class OwnedUnit;
  friend class LiveRef;
  friend class CachedRef;
  struct Unit {
    uint32_t generation = 0;
    uint32_t live = 0;    // owner or live references
    uint32_t cached = 0;  // cached references
  };

  Unit& held(uint32_t unit, uint32_t generation) {
    WEFT_CHECK(unit < units_.size() && units_[unit].generation == generation &&
               (generation & 1u) == 1u);
    return units_[unit];
  }
  void add_live(uint32_t unit, uint32_t generation);
  void add_cached(uint32_t unit, uint32_t generation);
  void drop_live(uint32_t unit, uint32_t generation);
  void drop_cached(uint32_t unit, uint32_t generation);
  void release(uint32_t unit);

  std::vector<Unit> units_;
  std::vector<uint32_t> free_;  // last in, first out: what was used last is warm and resident
  uint32_t active_ = 0;
  unsigned char* poison_base_ = nullptr;
  uint64_t poison_stride_ = 0;
  uint64_t poison_bytes_ = 0;
};

// What all handles share: which unit, and the check that it is still the same one.
class UnitHandle {
 public:
  bool valid() const { return pool_ != nullptr; }
  int32_t unit() const;
  uint32_t generation() const { return generation_; }

 protected:
  UnitHandle() = default;
  UnitHandle(UnitPool* pool, uint32_t unit, uint32_t generation)
      : pool_(pool), unit_(unit), generation_(generation) {}
  UnitPool* pool_ = nullptr;
  uint32_t unit_ = 0;
  uint32_t generation_ = 0;
};

class LiveRef : public UnitHandle {
 public:
  LiveRef() = default;
  LiveRef(const LiveRef& o) : UnitHandle(o) { add(); }
  LiveRef(LiveRef&& o) noexcept : UnitHandle(o) { o.pool_ = nullptr; }
  LiveRef& operator=(LiveRef o) noexcept {
    std::swap(pool_, o.pool_);
    std::swap(unit_, o.unit_);
    std::swap(generation_, o.generation_);
    return *this;
  }
  ~LiveRef() { reset(); }
  void reset() {
    if (pool_ != nullptr) std::exchange(pool_, nullptr)->drop_live(unit_, generation_);
  }
  CachedRef keep() const;
  // True when another live reference exists.
  bool shared() const { return pool_->units_[unit_].live > 1; }

 private:
  friend class OwnedUnit;
  friend class CachedRef;
  LiveRef(UnitPool* pool, uint32_t unit, uint32_t generation)
      : UnitHandle(pool, unit, generation) {}
  void add() {
    if (pool_ != nullptr) pool_->add_live(unit_, generation_);
  }
};

class OwnedUnit : public UnitHandle {
 public:
  OwnedUnit() = default;
  OwnedUnit(OwnedUnit&& o) noexcept : UnitHandle(o) { o.pool_ = nullptr; }
  OwnedUnit& operator=(OwnedUnit&& o) noexcept {
    if (this != &o) {
      reset();
      pool_ = std::exchange(o.pool_, nullptr);
      unit_ = o.unit_;
      generation_ = o.generation_;
    }
    return *this;
  }
  OwnedUnit(const OwnedUnit&) = delete;
  OwnedUnit& operator=(const OwnedUnit&) = delete;
  ~OwnedUnit() { reset(); }
  void reset() {
    if (pool_ != nullptr) std::exchange(pool_, nullptr)->drop_live(unit_, generation_);
  }
  // Gives up writing: from now on the unit can be shared.
  LiveRef freeze() && { return LiveRef(std::exchange(pool_, nullptr), unit_, generation_); }

 private:
  friend class UnitPool;
  friend class CachedRef;
  OwnedUnit(UnitPool* pool, uint32_t unit, uint32_t generation)
      : UnitHandle(pool, unit, generation) {}
};

class CachedRef : public UnitHandle {
 public:
  CachedRef() = default;
  CachedRef(const CachedRef& o) : UnitHandle(o) {
    if (pool_ != nullptr) pool_->add_cached(unit_, generation_);
  }
  CachedRef(CachedRef&& o) noexcept : UnitHandle(o) { o.pool_ = nullptr; }
  CachedRef& operator=(CachedRef o) noexcept {
    std::swap(pool_, o.pool_);
    std::swap(unit_, o.unit_);
    std::swap(generation_, o.generation_);
    return *this;
  }
  ~CachedRef() { reset(); }
  void reset() {
    if (pool_ != nullptr) std::exchange(pool_, nullptr)->drop_cached(unit_, generation_);
  }
  LiveRef use() const {
    LiveRef ref(pool_, unit_, generation_);
    ref.add();
    return ref;
  }
  // True when a running sequence or a copy holds the unit too.
  bool in_use() const { return pool_->units_[unit_].live > 0; }
  // True when this is the only handle of the unit.
  bool sole() const { return pool_->units_[unit_].live == 0 && pool_->units_[unit_].cached == 1; }
  // Takes the unit back for writing. Only the sole handle may.
  OwnedUnit thaw() &&;

 private:
  friend class LiveRef;
  CachedRef(UnitPool* pool, uint32_t unit, uint32_t generation)
      : UnitHandle(pool, unit, generation) {}
};

}  // namespace weft::engine::cache
