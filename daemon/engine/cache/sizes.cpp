#include "engine/cache/sizes.h"

#include <algorithm>
#include <fstream>
#include <limits>

namespace weft::engine {
namespace {

uint64_t units_for(uint64_t tokens, uint32_t unit_tokens) {
  return (tokens + unit_tokens - 1) / unit_tokens;
}

// Bytes of all row groups when each holds `tokens` rows in units shared by any number of sequences.
uint64_t row_bytes(const weft_mem_plan& plan, uint64_t tokens) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan.n_groups; ++i) {
    const weft_cache_group& g = plan.groups[i];
    if (g.kind == WEFT_CACHE_ROWS) bytes += units_for(tokens, g.unit_tokens) * unit_stride(g);
  }
  return bytes;
}

Status check_groups(const weft_mem_plan& plan) {
  if (plan.n_groups > WEFT_CACHE_GROUPS_MAX) {
    return make_error(ErrorCode::kInternal,
                      "the model plans {} cache groups, at most {} are allowed", plan.n_groups,
                      WEFT_CACHE_GROUPS_MAX);
  }
  for (uint32_t i = 0; i < plan.n_groups; ++i) {
    const weft_cache_group& g = plan.groups[i];
    const bool rows = g.kind == WEFT_CACHE_ROWS;
    if ((!rows && g.kind != WEFT_CACHE_STATE) || g.name == nullptr || g.unit_bytes == 0 ||
        g.unit_bytes > (uint64_t{1} << 48) || (rows && g.unit_tokens == 0)) {
      return make_error(
          ErrorCode::kInternal,
          "cache group {} of the model's plan is malformed (kind {}, {} tokens and {} "
          "bytes per unit): the model plugin is broken",
          i, g.kind, g.unit_tokens, g.unit_bytes);
    }
  }
  return {};
}

// Snapshots take nothing from the rows of one sequence with its whole context.
uint32_t snapshot_slots(const weft_mem_plan& plan, uint64_t left, uint64_t state_bytes,
                        const CacheSizes& sizes, const CacheWishes& wishes) {
  if (!wishes.keep_prefixes) return 0;
  const uint64_t wanted =
      wishes.snapshots != 0 ? wishes.snapshots : uint64_t{4} * sizes.max_sequences + 16;
  if (state_bytes == 0) return static_cast<uint32_t>(std::min(wanted, kUnitsMax));
  const uint64_t rows = row_bytes(plan, wishes.max_context);
  const uint64_t room = left > rows ? left - rows : 0;
  const uint64_t most = (wishes.snapshots != 0 ? room : room / 5 * 2) / state_bytes;
  return static_cast<uint32_t>(std::min({wanted, most, kUnitsMax}));
}

uint64_t read_number(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  return in >> value ? value : std::numeric_limits<uint64_t>::max();  // "max" is no number
}

uint64_t available_memory() {
  uint64_t available = 1u << 30;
  std::ifstream info("/proc/meminfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("MemAvailable:", 0) == 0) available = std::stoull(line.substr(13)) * 1024;
  }
  std::ifstream groups("/proc/self/cgroup");
  while (std::getline(groups, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    const std::string dir = "/sys/fs/cgroup" + line.substr(3);
    const uint64_t limit = read_number(dir + "/memory.max");
    const uint64_t used = read_number(dir + "/memory.current");
    if (limit != std::numeric_limits<uint64_t>::max() && used <= limit) {
      available = std::min(available, limit - used);
    }
  }
  return available;
}

}  // namespace

uint64_t unit_stride(const weft_cache_group& group) {
  constexpr uint64_t kUnitAlign = 64;
  return (group.unit_bytes + kUnitAlign - 1) / kUnitAlign * kUnitAlign;
}

uint64_t default_cache_budget(uint64_t reserved_bytes) {
  constexpr uint64_t kFloor = 16u << 20;
  const uint64_t available = available_memory();
  return std::max(kFloor, available > reserved_bytes ? (available - reserved_bytes) / 2 : 0);
}

Result<CacheSizes> size_caches(const weft_mem_plan& plan, uint64_t budget_bytes,
                               const CacheWishes& wishes) {
  const uint32_t max_sequences = wishes.max_sequences, max_context = wishes.max_context;
  WEFT_CHECK(max_sequences > 0 && max_context > 0);
  WEFT_TRY(check_groups(plan));
  uint64_t state_bytes = 0;  // of one sequence
  for (uint32_t i = 0; i < plan.n_groups; ++i) {
    if (plan.groups[i].kind == WEFT_CACHE_STATE) state_bytes += unit_stride(plan.groups[i]);
  }
  const uint64_t row_one = row_bytes(plan, 1);
  if (state_bytes + row_one > budget_bytes) {
    return make_error(ErrorCode::kInvalid,
                      "one sequence needs at least {} bytes of cache ({} of state, {} of rows) but "
                      "only {} are allowed: give the worker more memory",
                      state_bytes + row_one, state_bytes, row_one, budget_bytes);
  }
  CacheSizes sizes;
  sizes.max_sequences = max_sequences;
  if (state_bytes > 0) {
    const uint64_t share = row_one > 0 ? budget_bytes / 2 : budget_bytes;
    const uint64_t fit = std::max<uint64_t>(1, share / state_bytes);
    sizes.max_sequences = static_cast<uint32_t>(std::min<uint64_t>(max_sequences, fit));
  }
  sizes.bytes = state_bytes * sizes.max_sequences;
  sizes.snapshots = snapshot_slots(plan, budget_bytes - sizes.bytes, state_bytes, sizes, wishes);
  sizes.bytes += state_bytes * sizes.snapshots;
  const uint64_t holders = uint64_t{sizes.max_sequences} + sizes.snapshots;
  // Most tokens whose pages fit; row_bytes grows with tokens, so halving finds it.
  const uint64_t left = budget_bytes - sizes.bytes;
  uint64_t low = 1, high = holders * max_context;
  if (row_one > 0)
    high = std::min(high, left);  // no row is smaller than a byte: keeps products small
  while (low < high) {
    const uint64_t middle = low + (high - low + 1) / 2;
    if (row_bytes(plan, middle) <= left)
      low = middle;
    else
      high = middle - 1;
  }
  const uint64_t tokens = low;
  sizes.max_context = static_cast<uint32_t>(std::min<uint64_t>(max_context, tokens));
  for (uint32_t i = 0; i < plan.n_groups; ++i) {
    const weft_cache_group& g = plan.groups[i];
    uint64_t units = holders;
    if (g.kind == WEFT_CACHE_ROWS) {
      // Holders may not share pages, so each may waste part of one: the bound is per holder, not
      // per token.
      const uint64_t most = holders * units_for(max_context, g.unit_tokens);
      units = std::min(most, units_for(tokens, g.unit_tokens));
      if (tokens == holders * max_context && sizes.bytes + most * unit_stride(g) <= budget_bytes) {
        units = most;
      }
      sizes.bytes += units * unit_stride(g);
    }
    sizes.units.push_back(static_cast<uint32_t>(std::min(units, kUnitsMax)));
  }
  return sizes;
}

}  // namespace weft::engine
