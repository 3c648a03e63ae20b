// Coordinator, third part: its books against what is really there.
#include <unordered_map>

#include "engine/cache/coordinator.h"

namespace weft::engine {

using cache::Node;
using cache::Snapshot;

Status Coordinator::audit() const {
  WEFT_TRY(caches_->audit());
  std::unordered_map<const Node*, std::pair<uint32_t, uint32_t>> need;  // device, host
  size_t on_device = 0;
  Status problem;
  const auto fail = [&](Error error) {
    if (problem.ok()) problem = std::move(error);
  };
  tree_.each_node([&](const Node& node) {
    for (const auto& s : node.snapshots) {
      if (!s->on_device && !s->on_host) {
        fail(Error(ErrorCode::kInternal,
                   fmt::format("snapshot {} of {} tokens is kept nowhere", s->id, s->length)));
      }
      if (s->on_device && device_order_.count({s->score, s->id}) == 0) {
        fail(Error(ErrorCode::kInternal,
                   fmt::format("snapshot {} is missing in the order of eviction", s->id)));
      }
      on_device += s->on_device ? 1 : 0;
      for (const Node* n = &node; n != nullptr; n = n->parent) {
        need[n].first += s->on_device ? 1 : 0;
        need[n].second += s->on_host ? 1 : 0;
      }
    }
  });
  tree_.each_node([&](const Node& node) {
    const auto expected = need[&node];
    if (node.device_need != expected.first || node.host_need != expected.second) {
      fail(
          Error(ErrorCode::kInternal,
                fmt::format("a prefix of {} units counts {} snapshots on the device and {} copies, "
                            "but there are {} and {}",
                            node.units, node.device_need, node.host_need, expected.first,
                            expected.second)));
    }
    fail_pages(node, &problem);
  });
  if (on_device != device_order_.size()) {
    fail(Error(ErrorCode::kInternal, fmt::format("{} snapshots on the device, {} in their order",
                                                 on_device, device_order_.size())));
  }
  return problem;
}

// A node holds all pages that end in it on the device exactly when something needs them.
void Coordinator::fail_pages(const Node& node, Status* problem) const {
  if (node.units == 0 || !problem->ok()) return;
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    if (!caches_->groups()[g].rows) continue;
    const size_t whole = full_pages(g, node.units * cache::kMatchUnit) -
                         full_pages(g, (node.units - 1) * cache::kMatchUnit);
    const size_t device = node.pages.empty() ? 0 : node.pages[g].device.size();
    const size_t host = node.pages.empty() ? 0 : node.pages[g].host.size();
    if (device != (node.device_need > 0 ? whole : 0) || host != (node.host_need > 0 ? whole : 0)) {
      *problem = Error(ErrorCode::kInternal,
                       fmt::format("a prefix of {} units holds {} pages of {} and {} copies, "
                                   "expected {} each where needed",
                                   node.units, device, caches_->groups()[g].name, host, whole));
      return;
    }
  }
}

}  // namespace weft::engine
