#include "engine/pools.h"

#include <cstring>

namespace weft::engine {

UnitPoolBase::UnitPoolBase(uint32_t total) : generation_(total, 0), free_(total) {
  for (uint32_t i = 0; i < total; ++i) free_[i] = total - 1 - i;  // unit 0 is taken first
}

void UnitPoolBase::poison_returned(void* base, uint64_t stride, uint64_t unit_bytes) {
  poison_base_ = static_cast<unsigned char*>(base);
  poison_stride_ = stride;
  poison_bytes_ = unit_bytes;
}

uint32_t UnitPoolBase::take(uint32_t* generation) {
  WEFT_CHECK(!free_.empty());
  const uint32_t unit = free_.back();
  free_.pop_back();
  *generation = ++generation_[unit];
  WEFT_CHECK((*generation & 1u) == 1u);
  return unit;
}

void UnitPoolBase::give_back(uint32_t unit, uint32_t generation) {
  WEFT_CHECK(owns(unit, generation));
  ++generation_[unit];
  if (poison_base_ != nullptr) {
    std::memset(poison_base_ + unit * poison_stride_, 0xff, poison_bytes_);
  }
  free_.push_back(unit);  // never allocates: the vector was born with room for every unit
}

Status UnitPoolBase::audit() const {
  std::vector<bool> is_free(generation_.size(), false);
  for (const uint32_t unit : free_) {
    if (unit >= generation_.size() || is_free[unit]) {
      return make_error(ErrorCode::kInternal, "cache unit {} of {} is twice in the free list", unit,
                        generation_.size());
    }
    is_free[unit] = true;
  }
  uint32_t owned = 0;
  for (uint32_t unit = 0; unit < generation_.size(); ++unit) {
    const bool odd = (generation_[unit] & 1u) == 1u;
    if (odd == is_free[unit]) {
      return make_error(ErrorCode::kInternal, "cache unit {} is {} but its generation is {}", unit,
                        is_free[unit] ? "free" : "not free", generation_[unit]);
    }
    owned += odd ? 1u : 0u;
  }
  if (owned + free_.size() != generation_.size()) {
    return make_error(ErrorCode::kInternal, "{} owned and {} free units do not make {}", owned,
                      free_.size(), generation_.size());
  }
  return {};
}

}  // namespace weft::engine
