#include "engine/tenants.h"

#include <algorithm>

namespace weft::engine {
namespace {

constexpr uint64_t kRememberUs = 300'000'000;
// Tokens per weight that a tenant may be behind the others when it comes: who asks rarely is served
// at once, also with a long prompt.
constexpr double kCredit = 8192;

}  // namespace

uint32_t TenantBook::enter(const std::string& name, uint32_t weight, uint64_t now_us) {
  const auto [at, is_new] = numbers_.emplace(name, static_cast<uint32_t>(tenants_.size()));
  if (is_new) tenants_.emplace_back();
  tenants_[at->second].weight = std::max(1u, weight);
  tenants_[at->second].seen_us = now_us;
  return at->second;
}

void TenantBook::begin(uint32_t tenant) {
  Tenant& t = tenants_[tenant];
  if (t.sequences++ > 0) return;
  // In tokens per weight; nobody saves up a claim while idle.
  double least = -1;
  for (const Tenant& other : tenants_) {
    if (&other == &t || other.sequences == 0) continue;
    const double share = static_cast<double>(other.served) / other.weight;
    if (least < 0 || share < least) least = share;
  }
  least -= kCredit;
  if (least > 0) t.served = std::max(t.served, static_cast<uint64_t>(least * t.weight));
}

void TenantBook::end(uint32_t tenant, uint64_t now_us) {
  --tenants_[tenant].sequences;
  tenants_[tenant].seen_us = now_us;
}

void TenantBook::list(uint64_t now_us, std::vector<weft_sched_tenant>* out) const {
  out->clear();
  for (uint32_t i = 0; i < tenants_.size(); ++i) {
    const Tenant& t = tenants_[i];
    if (t.sequences == 0 && t.seen_us + kRememberUs < now_us) continue;
    out->push_back({i, t.weight, t.served});
  }
}

}  // namespace weft::engine
