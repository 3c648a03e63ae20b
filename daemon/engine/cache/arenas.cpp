#include "engine/cache/arenas.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace weft::engine {

Result<std::unique_ptr<Caches>> Caches::make(const weft_mem_plan& plan, const CacheSizes& sizes,
                                             bool poison) {
  WEFT_CHECK(sizes.units.size() == plan.n_groups);
  std::unique_ptr<Caches> caches(new Caches);
  for (uint32_t i = 0; i < plan.n_groups; ++i) {
    const weft_cache_group& g = plan.groups[i];
    const uint64_t stride = unit_stride(g);
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
    group.pool = std::make_unique<cache::UnitPool>(sizes.units[i]);
    if (poison) group.pool->poison_returned(base, stride, g.unit_bytes);
    caches->groups_.push_back(std::move(group));
  }
  return caches;
}

Caches::~Caches() {
  for (size_t i = 0; i < arenas_.size(); ++i) ::munmap(arenas_[i].base, mapped_bytes_[i]);
}

void Caches::copy(size_t group, int32_t from, int32_t to) const {
  std::memcpy(data(group, to), data(group, from), groups_[group].unit_bytes);
}

Status Caches::audit() const {
  for (const Group& group : groups_) {
    Status status = group.pool->audit();
    if (!status.ok()) return std::move(status).error().within("cache group " + group.name);
  }
  return {};
}

bool Caches::idle() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const Group& g) { return g.used() == 0; });
}

}  // namespace weft::engine
