// One coordinator with a few groups and prompts to run through it: what tests of single promises of
// the prefix cache share. One test, one thread.
#pragma once

#include <functional>
#include <memory>

#include "unit/engine_cache/cache_kit.h"

namespace weft::engine {

// A prompt of `n` tokens that begins with the first `common` tokens of all prompts of the tenant.
inline Stream prompt(uint32_t n, uint32_t common, uint32_t number, uint32_t tenant = 0) {
  Stream s(tenant);
  for (uint32_t i = 0; i < n; ++i) {
    s.append(static_cast<int32_t>(i < common ? i % 1000 : 1000 + (number * 7919 + i) % 100000));
  }
  s.seal();
  return s;
}

inline Stream longer(const Stream& s, uint32_t n, uint32_t number) {
  Stream out = s;
  for (uint32_t i = 0; i < n; ++i) out.append(static_cast<int32_t>(2000000 + number * 1000 + i));
  out.seal();
  return out;
}

struct Kit {
  explicit Kit(Layout layout, cache::HostTierOptions host = {}) : caches(make_caches(layout)) {
    host.inline_copies = true;
    CoordinatorOptions options;
    options.now_us = [this] { return now_us; };
    options.host = std::move(host);
    coordinator = std::make_unique<Coordinator>(caches.get(), std::move(options));
  }
  void settle() {
    while (coordinator->copying()) coordinator->poll();
  }
  CacheProbe probe(const Stream& s, uint32_t limit = UINT32_MAX) {
    return coordinator->probe(s.view(std::min(limit, s.size())));
  }
  struct Got {
    CacheAdmission admission;
    bool ran = false;
    uint64_t last = 0;
  };
  // Admits a prompt, waits for what is copied in, checks what it got, computes the rest, keeps a
  // snapshot at each length of `marks` and one at the end, and lets it go.
  Got serve(const Stream& s, std::vector<uint32_t> marks = {}, uint64_t last = 0,
            cache::SnapshotKind kind = cache::SnapshotKind::kPrefix) {
    Got out;
    SequenceCache sequence(caches.get());
    out.admission = coordinator->admit(s.view(s.size() - 1), s.size(), 0, &sequence);
    if (!out.admission.ok) return out;
    while (out.admission.loading != nullptr && !out.admission.loading->over()) coordinator->poll();
    if (out.admission.loading != nullptr && !out.admission.loading->ok()) return out;
    uint32_t at = out.admission.local + out.admission.host;
    out.last = last != 0 ? last : out.admission.snapshot;
    check_rows(*caches, sequence, s, 0, at);
    check_state(*caches, sequence, s, at);
    for (const uint32_t mark : marks) {
      if (mark <= at) continue;
      compute(*caches, &sequence, s, at, mark);
      at = mark;
      coordinator->publish(s.view(0), at, kind, true, &sequence, &out.last);
    }
    compute(*caches, &sequence, s, at, s.size());
    out.ran = coordinator->publish(s.view(0), s.size(), cache::SnapshotKind::kTurn, false,
                                   &sequence, &out.last);
    sequence.clear();
    now_us += 1000;
    return out;
  }
  // Makes the device give up everything without the lower tiers knowing: one sequence takes all.
  void flood() {
    SequenceCache hog(caches.get());
    uint32_t most = UINT32_MAX;
    for (size_t g = 0; g < caches->groups().size(); ++g) {
      const Caches::Group& group = caches->groups()[g];
      if (group.rows) most = std::min(most, coordinator->available(g) * group.unit_tokens);
    }
    WEFT_CHECK(coordinator->grow(&hog, most));
    hog.clear();
  }
  uint32_t free(size_t g) const { return caches->groups()[g].pool->free(); }
  uint32_t total(size_t g) const { return caches->groups()[g].total(); }

  uint64_t now_us = 1000000;
  std::unique_ptr<Caches> caches;
  std::unique_ptr<Coordinator> coordinator;
};

}  // namespace weft::engine
