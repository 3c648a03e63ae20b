// How the memory for caches is divided between the groups of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "weft/model.h"

namespace weft::engine {

// Largest number of units of one group: unit numbers travel as int32.
inline constexpr uint64_t kUnitsMax = 1u << 30;

struct CacheSizes {
  std::vector<uint32_t> units;  // per group, in plan order
  uint32_t max_sequences = 0;   // at most what was asked for
  uint32_t max_context = 0;     // at most what was asked for and what all pages together can hold
  uint32_t snapshots = 0;       // state slots beyond one per sequence
  uint64_t bytes = 0;
};

// What is wanted of the caches.
struct CacheWishes {
  uint32_t max_sequences = 1;
  uint32_t max_context = 1;
  // State slots for kept prefixes: none without the prefix cache, else this many, or a number that
  // suits the budget (0).
  bool keep_prefixes = false;
  uint32_t snapshots = 0;
};

// Distance of two units of a group in its arena, in bytes.
uint64_t unit_stride(const weft_cache_group& group);

// Pure. Divides `budget_bytes`: one state slot per sequence first (states take at most half of the
// budget when there are row groups too; fewer sequences otherwise), then slots for snapshots (at
// most two fifths of what is left), pages for the rest, the same number of tokens in every row
// group, never more than all sequences and snapshots with their whole context can use. kInvalid
// with numbers when not even one sequence fits.
Result<CacheSizes> size_caches(const weft_mem_plan& plan, uint64_t budget_bytes,
                               const CacheWishes& wishes);

// What the caches may take when the operator named nothing: half of what the machine and the
// control group have left after `reserved_bytes` (weights and workspace still to be loaded).
uint64_t default_cache_budget(uint64_t reserved_bytes);

}  // namespace weft::engine
