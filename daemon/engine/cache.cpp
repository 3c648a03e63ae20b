#include "engine/cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

namespace weft::engine {
namespace {

constexpr uint64_t kUnitAlign = 64;

uint64_t stride_of(const weft_cache_group& group) {
  return (group.unit_bytes + kUnitAlign - 1) / kUnitAlign * kUnitAlign;
}

uint64_t units_for(uint64_t tokens, uint32_t unit_tokens) {
  return (tokens + unit_tokens - 1) / unit_tokens;
}

// Bytes of all row groups when each holds `tokens` rows in units shared by any number of sequences.
uint64_t row_bytes(const weft_mem_plan& plan, uint64_t tokens) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan.n_groups; ++i) {
    const weft_cache_group& g = plan.groups[i];
    if (g.kind == WEFT_CACHE_ROWS) bytes += units_for(tokens, g.unit_tokens) * stride_of(g);
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

uint64_t default_cache_budget(uint64_t reserved_bytes) {
  constexpr uint64_t kFloor = 16u << 20;
  const uint64_t available = available_memory();
  return std::max(kFloor, available > reserved_bytes ? (available - reserved_bytes) / 2 : 0);
}

Result<CacheSizes> size_caches(const weft_mem_plan& plan, uint64_t budget_bytes,
                               uint32_t max_sequences, uint32_t max_context) {
  WEFT_CHECK(max_sequences > 0 && max_context > 0);
  WEFT_TRY(check_groups(plan));
  uint64_t state_bytes = 0;  // of one sequence
  for (uint32_t i = 0; i < plan.n_groups; ++i) {
    if (plan.groups[i].kind == WEFT_CACHE_STATE) state_bytes += stride_of(plan.groups[i]);
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
  // Most tokens whose pages fit; row_bytes grows with tokens, so halving finds it.
  const uint64_t left = budget_bytes - sizes.bytes;
  uint64_t low = 1, high = uint64_t{sizes.max_sequences} * max_context;
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
    uint64_t units = sizes.max_sequences;
    if (g.kind == WEFT_CACHE_ROWS) {
      // Sequences do not share pages, so each may waste part of one: the bound is per sequence, not
      // per token.
      const uint64_t most = uint64_t{sizes.max_sequences} * units_for(max_context, g.unit_tokens);
      units = std::min(most, units_for(tokens, g.unit_tokens));
      if (tokens == uint64_t{sizes.max_sequences} * max_context &&
          sizes.bytes + most * stride_of(g) <= budget_bytes) {
        units = most;
      }
      sizes.bytes += units * stride_of(g);
    }
    sizes.units.push_back(static_cast<uint32_t>(std::min(units, kUnitsMax)));
  }
  return sizes;
}

Result<std::unique_ptr<Caches>> Caches::make(const weft_mem_plan& plan, const CacheSizes& sizes,
                                             bool poison) {
  WEFT_CHECK(sizes.units.size() == plan.n_groups);
  std::unique_ptr<Caches> caches(new Caches);
  for (uint32_t i = 0; i < plan.n_groups; ++i) {
    const weft_cache_group& g = plan.groups[i];
    const uint64_t stride = stride_of(g);
    const uint64_t bytes = std::max<uint64_t>(stride * sizes.units[i], 1);
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      return make_error(ErrorCode::kUnavailable, "cannot map {} bytes for cache group {}: {}",
                        bytes, g.name, std::strerror(errno));
    }
    caches->arenas_.push_back(weft_arena{base, stride, sizes.units[i]});
    caches->mapped_bytes_.push_back(bytes);
    Group group;
    group.name = g.name;
    group.rows = g.kind == WEFT_CACHE_ROWS;
    group.unit_tokens = g.unit_tokens;
    group.unit_bytes = g.unit_bytes;
    UnitPoolBase* pool = nullptr;
    if (group.rows) {
      group.pages = std::make_unique<PagePool>(sizes.units[i]);
      pool = group.pages.get();
    } else {
      group.slots = std::make_unique<SlotPool>(sizes.units[i]);
      pool = group.slots.get();
    }
    if (poison) pool->poison_returned(base, stride, g.unit_bytes);
    caches->groups_.push_back(std::move(group));
  }
  return caches;
}

Caches::~Caches() {
  for (size_t i = 0; i < arenas_.size(); ++i) ::munmap(arenas_[i].base, mapped_bytes_[i]);
}

Status Caches::audit() const {
  for (const Group& group : groups_) {
    const UnitPoolBase& pool = group.rows ? static_cast<const UnitPoolBase&>(*group.pages)
                                          : static_cast<const UnitPoolBase&>(*group.slots);
    Status status = pool.audit();
    if (!status.ok()) return std::move(status).error().within("cache group " + group.name);
  }
  return {};
}

bool Caches::idle() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const Group& g) { return g.used() == 0; });
}

bool SequenceCache::reserve(uint32_t tokens, uint32_t spare) {
  for (size_t i = 0; i < caches_->groups_.size(); ++i) {
    const Caches::Group& g = caches_->groups_[i];
    if (g.rows) {
      const uint64_t need = units_for(tokens, g.unit_tokens);
      const uint64_t missing = need > pages_[i].size() ? need - pages_[i].size() : 0;
      if (missing > 0 && missing + spare > g.pages->available()) return false;
    } else if (!slots_[i].valid() && g.slots->available() == 0) {
      return false;
    }
  }
  for (size_t i = 0; i < caches_->groups_.size(); ++i) {
    const Caches::Group& g = caches_->groups_[i];
    if (g.rows) {
      const uint64_t need = units_for(tokens, g.unit_tokens);
      while (pages_[i].size() < need) pages_[i].push_back(g.pages->take());
    } else if (!slots_[i].valid()) {
      slots_[i] = g.slots->take();
    }
  }
  return true;
}

void SequenceCache::clear() {
  for (auto& pages : pages_) pages.clear();
  for (Slot& slot : slots_) slot.reset();
}

bool SequenceCache::empty() const {
  for (const auto& pages : pages_) {
    if (!pages.empty()) return false;
  }
  return std::none_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.valid(); });
}

}  // namespace weft::engine
