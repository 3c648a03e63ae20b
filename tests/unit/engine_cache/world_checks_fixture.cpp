// What must hold whatever the operations were.
#include <algorithm>
#include <set>

#include "unit/engine_cache/world.h"

namespace weft::engine {

void RunCounts::add(const RunCounts& o) {
  ops += o.ops;
  steps += o.steps;
  admitted += o.admitted;
  refused += o.refused;
  hits += o.hits;
  host_hits += o.host_hits;
  published += o.published;
  declined += o.declined;
  evicted += o.evicted;
  swaps += o.swaps;
  loads_failed += o.loads_failed;
  abandoned += o.abandoned;
  exact += o.exact;
  spilled += o.spilled;
  media_hits += o.media_hits;
}

std::string RunCounts::text() const {
  return fmt::format(
      "{} operations: {} steps, {} admitted ({} device hits, {} loads, {} with images), {} "
      "refused, "
      "{} published, {} declined, {} evicted, {} swapped, {} abandoned, {} loads failed, "
      "{} probes exact, {} times files were seen",
      ops, steps, admitted, hits, host_hits, media_hits, refused, published, declined, evicted,
      swaps, abandoned, loads_failed, exact, spilled);
}

World::Books World::books() const {
  Books b;
  for (const Caches::Group& g : caches_->groups()) {
    b.free.push_back(g.pool->free());
    b.active.push_back(g.pool->active());
  }
  b.snapshots = coordinator_->snapshots();
  b.version = coordinator_->version();
  b.made = coordinator_->stats().made;
  b.evicted = coordinator_->stats().evicted;
  b.host_used = coordinator_->host().budget().used;
  b.disk_used = coordinator_->host().budget().disk_used;
  return b;
}

uint32_t World::longest_known(const Stream& stream, uint32_t limit) const {
  uint32_t n = std::min(limit, stream.size());
  while (n > 0 && published_.count(stream.hash(n)) == 0) --n;
  return n;
}

uint32_t World::most_common(const Stream& stream) const {
  uint32_t n = 0;
  while (n < stream.size() && known_.count(stream.hash(n + 1)) != 0) ++n;
  return n;
}

void World::check_probe(const Stream& stream, uint32_t limit, const CacheProbe& probe) {
  for (const uint32_t length : {probe.device, probe.host}) {
    FAULT_UNLESS(length <= limit, "{} tokens offered, at most {} may be reused", length, limit);
    FAULT_UNLESS(length == 0 || published_.count(stream.hash(length)) != 0,
                 "{} tokens offered that were never published", length);
  }
  FAULT_UNLESS(probe.host == 0 || probe.host > probe.device, "host {}, device {}", probe.host,
               probe.device);
  const uint32_t common = most_common(stream);
  FAULT_UNLESS(probe.common <= common && probe.common >= probe.device,
               "{} tokens are said to be common, {} are; {} on the device", probe.common, common,
               probe.device);
  if (coordinator_->stats().evicted > 0) return;
  ++counts_.exact;
  const uint32_t longest = longest_known(stream, limit);
  FAULT_UNLESS(probe.device == longest, "{} tokens on the device, {} expected", probe.device,
               longest);
  FAULT_UNLESS(probe.common >= common / 128 * 128, "{} tokens common, {} expected", probe.common,
               common);
}

void World::check_admission(const Slot& slot, const CacheProbe& probe, const CacheAdmission& got,
                            const Books& before, uint32_t limit, uint32_t tokens, uint32_t spare) {
  bool cold_fits = true, roomy = true;
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    const uint64_t need = group.rows ? uint64_t{group.pages(tokens)} + spare : 1;
    const uint64_t available =
        uint64_t{group.total()} - before.active[g];  // free and kept: before the admission
    if (need > available) cold_fits = false;
    if (need + 1 > before.free[g]) roomy = false;
  }
  if (!got.ok) {
    FAULT_UNLESS(books() == before, "a refused admission has changed something");
    FAULT_UNLESS(slot.cache->empty() && got.loading == nullptr && got.local + got.host == 0,
                 "a refused admission holds something");
    FAULT_UNLESS(!cold_fits, "refused {} tokens with room for them", tokens);
    return;
  }
  const uint32_t hit = got.local + got.host;
  FAULT_UNLESS(hit <= limit && hit <= tokens, "{} tokens hit, limit {}, {} reserved", hit, limit,
               tokens);
  FAULT_UNLESS(hit == 0 || published_.count(slot.stream.hash(hit)) != 0,
               "{} tokens hit that were never published", hit);
  FAULT_UNLESS((got.host > 0) == (got.loading != nullptr), "host {}", got.host);
  FAULT_UNLESS((hit > 0) == (got.snapshot != 0), "hit {} of snapshot {}", hit, got.snapshot);
  if (roomy && limit <= tokens) {
    FAULT_UNLESS(hit == std::max(probe.device, probe.host), "{} hit, {} and {} promised", hit,
                 probe.device, probe.host);
  }
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    if (!group.rows) {
      FAULT_UNLESS(slot.cache->state(g).own.valid(), "no state of group {}", g);
      continue;
    }
    FAULT_UNLESS(slot.cache->rows(g).size() == group.pages(tokens), "{} pages for {} tokens",
                 slot.cache->rows(g).size(), tokens);
    FAULT_UNLESS(slot.cache->rows(g).shared.size() <= hit / group.unit_tokens,
                 "{} pages shared of {} tokens", slot.cache->rows(g).shared.size(), hit);
    const uint32_t left = coordinator_->available(g);
    FAULT_UNLESS(left >= spare, "{} pages of group {} are left, {} should be", left, g, spare);
  }
}

void World::check_books() {
  Status audit = coordinator_->audit();
  FAULT_UNLESS(audit.ok(), "{}", audit.error().message);
  const cache::HostBudget& budget = coordinator_->host().budget();
  FAULT_UNLESS(budget.used <= budget.total, "{} bytes of host memory in use, {} allowed",
               budget.used, budget.total);
  FAULT_UNLESS(budget.disk_used <= budget.disk_total, "{} bytes of disk in use, {} allowed",
               budget.disk_used, budget.disk_total);
  counts_.spilled += budget.disk_used > 0 ? 1 : 0;
  FAULT_UNLESS(budget.disk_failures == 0, "writing failed");
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    std::set<int32_t> shared, owned;
    size_t owned_handles = 0;
    for (const Slot& slot : slots_) {
      if (slot.cache == nullptr) continue;
      const auto own = [&](const cache::OwnedUnit& u) {
        ++owned_handles;
        owned.insert(u.unit());
      };
      for (const auto& u : slot.cache->rows(g).owned) own(u);
      for (const auto& u : slot.cache->rows(g).shared) shared.insert(u.unit());
      if (slot.cache->state(g).own.valid()) own(slot.cache->state(g).own);
      if (slot.cache->state(g).source.valid()) shared.insert(slot.cache->state(g).source.unit());
    }
    FAULT_UNLESS(owned.size() == owned_handles, "a unit of group {} has two owners", g);
    const size_t owned_count = owned.size();
    owned.merge(shared);
    FAULT_UNLESS(shared.empty(), "a unit of group {} is owned and shared", g);
    const size_t active = group.pool->active();
    FAULT_UNLESS(settled() ? active == owned.size() : active >= owned.size(),
                 "{} units of group {} are active, sequences hold {} ({} owned)", active, g,
                 owned.size(), owned_count);
  }
}

// The same version means the same answer.
void World::check_watch() {
  if (!watch_.on) return;
  if (watch_.version != coordinator_->version()) {
    watch_.on = false;
    return;
  }
  const CacheProbe now = coordinator_->probe(watch_.stream.view(watch_.limit));
  FAULT_UNLESS(now.device == watch_.answer.device && now.host == watch_.answer.host &&
                   now.common == watch_.answer.common,
               "version {} answered {} + {} (common {}) and now {} + {} (common {})",
               watch_.version, watch_.answer.device, watch_.answer.host, watch_.answer.common,
               now.device, now.host, now.common);
}

void World::check_gaps() const {
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const uint64_t used = caches_->groups()[g].unit_bytes;
    for (uint32_t u = 0; u < caches_->groups()[g].total(); ++u) {
      const unsigned char* at = caches_->data(g, static_cast<int32_t>(u));
      for (uint64_t i = used; i < caches_->arenas()[g].stride; ++i) {
        FAULT_UNLESS(at[i] == 0x5a, "byte {} after unit {} of group {} was written", i - used, u,
                     g);
      }
    }
  }
}

// ---- mistakes on purpose ----------------------------------------------------------------------

void World::inject_after_step(Slot* slot, uint32_t from) {
  const auto& groups = caches_->groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    unsigned char* target = nullptr;
    if (scenario_.inject == Inject::kWrongRow && groups[g].rows) {
      target = row_at(*caches_, *slot->cache, g, from);
    } else if (scenario_.inject == Inject::kWrongState && !groups[g].rows) {
      target = caches_->data(g, slot->cache->write_slot(g));
    } else if (scenario_.inject == Inject::kGap) {
      target = caches_->data(
                   g, groups[g].rows ? slot->cache->rows(g).unit(0) : slot->cache->write_slot(g)) +
               groups[g].unit_bytes;
      if (groups[g].unit_bytes == caches_->arenas()[g].stride) target = nullptr;
    } else if (scenario_.inject == Inject::kSharedWrite && groups[g].rows &&
               !slot->cache->rows(g).shared.empty()) {
      target = caches_->data(g, slot->cache->rows(g).shared[0].unit());
    }
    if (target != nullptr) *target ^= 1u;
  }
  if (scenario_.inject == Inject::kLeak && leaked_.empty()) {
    leaked_.push_back(groups[0].pool->take());
  }
  if (scenario_.inject == Inject::kCrash && slot->computed > 20) std::abort();
}

void World::inject_after_admission(Slot* slot, uint32_t hit) {
  if (scenario_.inject != Inject::kSkippedCopy) return;
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    if (!group.rows || hit % group.unit_tokens == 0) continue;
    const int32_t unit = slot->cache->rows(g).unit(hit / group.unit_tokens);
    std::memset(caches_->data(g, unit), 0xff, group.unit_bytes);
  }
}

}  // namespace weft::engine
