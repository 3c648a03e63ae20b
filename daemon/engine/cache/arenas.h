// The memory of all cache groups and the pools that hand it out in units.
//
// A model declares groups: row groups are paged (one row per token, unit_tokens rows per page),
// state groups have one slot per sequence and per kept snapshot. Engine thread only after startup.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/cache/sizes.h"
#include "engine/cache/units.h"
#include "weft/model.h"

namespace weft::engine {

class Caches {
 public:
  // Maps the arenas; memory becomes resident when it is first used. poison: fill returned units
  // (debugging).
  static Result<std::unique_ptr<Caches>> make(const weft_mem_plan& plan, const CacheSizes& sizes,
                                              bool poison);
  ~Caches();
  Caches(const Caches&) = delete;
  Caches& operator=(const Caches&) = delete;

  struct Group {
    std::string name;
    bool rows = false;
    uint32_t unit_tokens = 0;  // row groups
    uint64_t unit_bytes = 0;
    std::unique_ptr<cache::UnitPool> pool;
    uint32_t total() const { return pool->total(); }
    uint32_t used() const { return pool->active(); }
    // Pages that `tokens` tokens begin.
    uint32_t pages(uint64_t tokens) const {
      return static_cast<uint32_t>((tokens + unit_tokens - 1) / unit_tokens);
    }
  };

  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<weft_arena>& arenas() const { return arenas_; }
  // The bytes of a unit. Writing is for who owns it.
  unsigned char* data(size_t group, int32_t unit) const {
    return static_cast<unsigned char*>(arenas_[group].base) +
           static_cast<uint64_t>(unit) * arenas_[group].stride;
  }
  void copy(size_t group, int32_t from, int32_t to) const;
  // Every pool's own audit.
  Status audit() const;
  // True when no sequence owns anything; what is kept for later requests does not count.
  bool idle() const;

 private:
  Caches() = default;

  std::vector<Group> groups_;
  std::vector<weft_arena> arenas_;
  std::vector<uint64_t> mapped_bytes_;
};

}  // namespace weft::engine
