#include "engine/cache/units.h"

#include <cstring>

namespace weft::engine::cache {

UnitPool::UnitPool(uint32_t total) : units_(total), free_(total) {
  for (uint32_t i = 0; i < total; ++i) free_[i] = total - 1 - i;  // unit 0 is taken first
}

void UnitPool::poison_returned(void* base, uint64_t stride, uint64_t unit_bytes) {
  poison_base_ = static_cast<unsigned char*>(base);
  poison_stride_ = stride;
  poison_bytes_ = unit_bytes;
}

OwnedUnit UnitPool::take() {
  if (free_.empty()) return {};
  const uint32_t index = free_.back();
  free_.pop_back();
  Unit& unit = units_[index];
  WEFT_CHECK(unit.live == 0 && unit.cached == 0 && (unit.generation & 1u) == 0);
  ++unit.generation;
  unit.live = 1;
  ++active_;
  return OwnedUnit(this, index, unit.generation);
}

void UnitPool::add_live(uint32_t unit, uint32_t generation) {
  if (held(unit, generation).live++ == 0) ++active_;
}

void UnitPool::add_cached(uint32_t unit, uint32_t generation) { ++held(unit, generation).cached; }

void UnitPool::drop_live(uint32_t unit, uint32_t generation) {
  Unit& u = held(unit, generation);
  WEFT_CHECK(u.live > 0);
  if (--u.live > 0) return;
  --active_;
  if (u.cached == 0) release(unit);
}

void UnitPool::drop_cached(uint32_t unit, uint32_t generation) {
  Unit& u = held(unit, generation);
  WEFT_CHECK(u.cached > 0);
  if (--u.cached == 0 && u.live == 0) release(unit);
}

void UnitPool::release(uint32_t unit) {
  ++units_[unit].generation;
  if (poison_base_ != nullptr) {
    std::memset(poison_base_ + unit * poison_stride_, 0xff, poison_bytes_);
  }
  free_.push_back(unit);  // never allocates: the vector was born with room for every unit
}

Status UnitPool::audit() const {
  std::vector<bool> is_free(units_.size(), false);
  for (const uint32_t unit : free_) {
    if (unit >= units_.size() || is_free[unit]) {
      return make_error(ErrorCode::kInternal, "cache unit {} of {} is twice in the free list", unit,
                        units_.size());
    }
    is_free[unit] = true;
  }
  uint32_t active = 0;
  for (uint32_t i = 0; i < units_.size(); ++i) {
    const Unit& u = units_[i];
    const bool is_held = (u.generation & 1u) == 1u;
    if (is_held == is_free[i] || is_held != (u.live + u.cached > 0)) {
      return make_error(
          ErrorCode::kInternal,
          "cache unit {} is {} but has generation {}, {} live and {} cached references", i,
          is_free[i] ? "free" : "not free", u.generation, u.live, u.cached);
    }
    active += u.live > 0 ? 1u : 0u;
  }
  if (active != active_) {
    return make_error(ErrorCode::kInternal, "{} units have live references but {} are counted",
                      active, active_);
  }
  return {};
}

int32_t UnitHandle::unit() const {
  WEFT_CHECK(pool_ != nullptr);
  return static_cast<int32_t>(unit_);
}

CachedRef LiveRef::keep() const {
  WEFT_CHECK(valid());
  pool_->add_cached(unit_, generation_);
  return CachedRef(pool_, unit_, generation_);
}

OwnedUnit CachedRef::thaw() && {
  WEFT_CHECK(valid() && sole());
  pool_->add_live(unit_, generation_);
  pool_->drop_cached(unit_, generation_);
  return OwnedUnit(std::exchange(pool_, nullptr), unit_, generation_);
}

}  // namespace weft::engine::cache
