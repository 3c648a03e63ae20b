// Who of the tenants comes next. Each has a virtual time: tokens received per weight. The smallest
// is served first, so that under load tenants receive in proportion to their weights however many
// requests they send. What they received before this step comes with the view (served), what they
// get in this plan is added here; nothing is remembered from plan to plan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/scheduler.h"

namespace scheduler_continuous {

struct Tenant {
  uint32_t id = 0;
  uint32_t weight = 1;
  uint64_t time = 0;                           // virtual time
  uint32_t places = 0;                         // running sequences
  uint64_t units[WEFT_CACHE_GROUPS_MAX] = {};  // cache units that its running sequences hold
  // Of the band that is being planned: first and last candidates of its two queues, and the tokens
  // that its earlier candidates have still to compute.
  uint32_t band = 0;
  uint32_t head[2] = {}, tail[2] = {};
  uint64_t ahead = 0;
};

class TenantTable {
 public:
  static constexpr uint64_t kScale = 1024;  // of virtual time, so that small weights count

  void load(const weft_sched_view& view);
  // Index of the tenant, which is added when it is new. References stay valid until the next
  // slot().
  uint32_t slot(const weft_seq& seq);
  Tenant& at(uint32_t slot) { return tenants_[slot]; }
  uint32_t size() const { return static_cast<uint32_t>(tenants_.size()); }
  uint64_t weights() const { return weights_; }
  void charge(uint32_t slot, uint64_t tokens) {
    Tenant& tenant = tenants_[slot];
    tenant.time += std::max<uint64_t>(tokens, 1) * kScale / tenant.weight;
  }
  // Would the tenant hold more places, or more units of row group g, than its part by weight, with
  // `more` of them on top?
  bool above_places(uint32_t slot, const weft_sched_view& view, uint64_t more) const;
  bool above_units(uint32_t slot, const weft_sched_view& view, uint32_t g, uint64_t more) const;
  // One of the two as things stand.
  bool above_share(uint32_t slot, const weft_sched_view& view) const;

 private:
  uint32_t add(uint32_t id, uint32_t weight, uint64_t time);
  uint32_t* bucket(uint32_t id);

  std::vector<Tenant> tenants_;
  std::vector<uint32_t> table_;  // open hash: index + 1 into tenants_, 0 = empty
  uint64_t weights_ = 0;
  uint64_t newcomer_ = 0;  // virtual time of a tenant that the view does not list
  uint32_t last_ = 0;      // neighbours in a queue often have the same tenant
};

inline uint32_t* TenantTable::bucket(uint32_t id) {
  const size_t mask = table_.size() - 1;
  size_t at = (id * 2654435761u) >> 7 & mask;
  while (table_[at] != 0 && tenants_[table_[at] - 1].id != id) at = (at + 1) & mask;
  return &table_[at];
}

inline uint32_t TenantTable::add(uint32_t id, uint32_t weight, uint64_t time) {
  Tenant tenant;
  tenant.id = id;
  tenant.weight = std::max(weight, 1u);
  tenant.time = time;
  *bucket(id) = static_cast<uint32_t>(tenants_.size()) + 1;
  tenants_.push_back(tenant);
  weights_ += tenant.weight;
  return static_cast<uint32_t>(tenants_.size()) - 1;
}

inline uint32_t TenantTable::slot(const weft_seq& seq) {
  if (last_ < tenants_.size() && tenants_[last_].id == seq.tenant) return last_;
  const uint32_t found = *bucket(seq.tenant);
  last_ = found != 0 ? found - 1 : add(seq.tenant, seq.weight, newcomer_);
  return last_;
}

inline void TenantTable::load(const weft_sched_view& view) {
  // A host of an earlier minor does not have the table.
  const bool listed =
      view.struct_size >= offsetof(weft_sched_view, tenants) + sizeof(view.tenants) &&
      view.tenants != nullptr;
  const uint32_t n = listed ? view.n_tenants : 0;
  size_t wanted = 64;
  while (wanted < 2 * (static_cast<size_t>(n) + view.n_run + view.n_wait + 1)) wanted *= 2;
  table_.assign(std::max(wanted, table_.size()), 0);
  tenants_.clear();
  weights_ = last_ = 0;
  newcomer_ = UINT64_MAX;
  for (uint32_t i = 0; i < n; ++i) {
    const weft_sched_tenant& tenant = view.tenants[i];
    const uint32_t weight = std::max(tenant.weight, 1u);
    const uint64_t time = std::min(tenant.served, UINT64_MAX / (4 * kScale)) * kScale / weight;
    newcomer_ = std::min(newcomer_, time);
    if (*bucket(tenant.id) == 0) add(tenant.id, weight, time);
  }
  if (n == 0) newcomer_ = 0;
  for (uint32_t i = 0; i < view.n_run; ++i) {
    const uint32_t index = slot(view.run[i]);
    Tenant& tenant = tenants_[index];
    ++tenant.places;
    for (uint32_t g = 0; g < view.n_groups; ++g) tenant.units[g] += view.run[i].held[g];
    // Without the host's count, what a tenant has running stands for what it received.
    if (n == 0) charge(index, view.run[i].context);
  }
}

inline bool TenantTable::above_places(uint32_t slot, const weft_sched_view& view,
                                      uint64_t more) const {
  const Tenant& tenant = tenants_[slot];
  const uint64_t places = tenant.places + more;  // one is nobody's too many
  return places > 1 && places * weights_ > static_cast<uint64_t>(view.run_budget) * tenant.weight;
}

inline bool TenantTable::above_units(uint32_t slot, const weft_sched_view& view, uint32_t g,
                                     uint64_t more) const {
  const Tenant& tenant = tenants_[slot];
  const weft_sched_group& group = view.groups[g];
  return group.kind == WEFT_CACHE_ROWS &&
         (tenant.units[g] + more) * weights_ > static_cast<uint64_t>(group.total) * tenant.weight;
}

inline bool TenantTable::above_share(uint32_t slot, const weft_sched_view& view) const {
  bool above = above_places(slot, view, 0);
  for (uint32_t g = 0; g < view.n_groups; ++g) above = above || above_units(slot, view, g, 0);
  return above;
}

}  // namespace scheduler_continuous
