// The worker's caches: how much memory they get, the arenas that the model works in, and what one
// sequence owns of them.
//
// A model declares groups: row groups are paged (a sequence owns pages, one row per token), state
// groups have one slot per sequence. Caches owns arenas and pools; SequenceCache owns the units of
// one sequence and returns them when it is cleared or destroyed. Engine thread only after startup.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/pools.h"
#include "weft/model.h"

namespace weft::engine {

// Largest number of units of one group: unit numbers travel as int32.
inline constexpr uint64_t kUnitsMax = 1u << 30;

struct CacheSizes {
  std::vector<uint32_t> units;  // per group, in plan order
  uint32_t max_sequences = 0;   // at most what was asked for
  uint32_t max_context = 0;     // at most what was asked for and what all pages together can hold
  uint64_t bytes = 0;
};

// Pure. Divides `budget_bytes`: one state slot per sequence first (states take at most half of the
// budget when there are row groups too; fewer sequences otherwise), pages for the rest, the same
// number of tokens in every row group, never more than max_sequences sequences of max_context
// tokens can use. kInvalid with numbers when not even one sequence fits.
Result<CacheSizes> size_caches(const weft_mem_plan& plan, uint64_t budget_bytes,
                               uint32_t max_sequences, uint32_t max_context);

// What the caches may take when the operator named nothing: half of what the machine and the
// control group have left after `reserved_bytes` (weights and workspace still to be loaded).
uint64_t default_cache_budget(uint64_t reserved_bytes);

class SequenceCache;

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
    std::unique_ptr<PagePool> pages;  // row groups
    std::unique_ptr<SlotPool> slots;  // state groups
    uint32_t total() const { return rows ? pages->total() : slots->total(); }
    uint32_t used() const { return rows ? pages->used() : slots->used(); }
  };

  const std::vector<Group>& groups() const { return groups_; }
  const std::vector<weft_arena>& arenas() const { return arenas_; }
  // Every pool's own audit.
  Status audit() const;
  // True when no sequence owns anything.
  bool idle() const;

 private:
  friend class SequenceCache;
  Caches() = default;

  std::vector<Group> groups_;
  std::vector<weft_arena> arenas_;
  std::vector<uint64_t> mapped_bytes_;
};

class SequenceCache {
 public:
  explicit SequenceCache(Caches* caches) : caches_(caches), pages_(caches->groups_.size()) {
    slots_.resize(caches->groups_.size());
  }

  // Takes what is missing for `tokens` rows and the states. `spare` units of every row group must
  // stay free. All or nothing: false and no change when a pool has too little.
  [[nodiscard]] bool reserve(uint32_t tokens, uint32_t spare);
  void clear();
  bool empty() const;

  const std::vector<Page>& pages(size_t group) const { return pages_[group]; }
  const Slot& slot(size_t group) const { return slots_[group]; }

 private:
  Caches* caches_;
  std::vector<std::vector<Page>> pages_;  // per group; empty for state groups
  std::vector<Slot> slots_;               // per group; invalid for row groups
};

}  // namespace weft::engine
