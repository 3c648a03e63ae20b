#include "engine/cache/coordinator.h"

#include <algorithm>

namespace weft::engine {

using cache::CopyTask;
using cache::kMatchUnit;
using cache::Node;
using cache::PageList;
using cache::Snapshot;

Coordinator::Coordinator(Caches* caches, CoordinatorOptions options)
    : caches_(caches),
      options_(std::move(options)),
      host_(caches, &tree_, options_.keep_prefixes ? options_.host : cache::HostTierOptions()) {
  WEFT_CHECK(options_.now_us);
  for (const Caches::Group& g : caches_->groups()) {
    if (!g.rows) state_bytes_ += g.unit_bytes;
  }
}

Coordinator::~Coordinator() {
  for (const auto& [task, sequence] : abandoned_) task->cancel();
  // Files of copies that nobody has polled would be left behind.
  host_.queue().cancel_all();
  while (copying()) {
    host_.queue().wait(1000);
    poll();
  }
  drop_all();
  host_.drop_pinned();
}

void Coordinator::set_prefill_rate(double tokens_per_second) {
  if (tokens_per_second > 0) tokens_per_us_ = tokens_per_second * 1e-6;
}

uint32_t Coordinator::full_pages(size_t group, uint32_t length) const {
  return length / caches_->groups()[group].unit_tokens;
}

uint32_t Coordinator::available(size_t group) const {
  const cache::UnitPool& pool = *caches_->groups()[group].pool;
  return pool.free() + pool.cached();
}

// Calls f(group, page) for every whole page of the snapshot's prefix, in order of tokens per group.
namespace {
template <class F>
void each_whole_page(const Caches& caches, const Snapshot& hit, F&& f) {
  std::vector<const Node*> path;
  for (const Node* n = hit.node; n != nullptr; n = n->parent) path.push_back(n);
  for (size_t g = 0; g < caches.groups().size(); ++g) {
    if (!caches.groups()[g].rows) continue;
    for (auto n = path.rbegin(); n != path.rend(); ++n) {
      if ((*n)->pages.empty()) continue;
      for (const cache::CachedRef& page : (*n)->pages[g].device) f(g, page);
    }
    const auto& tail = hit.pages[g].device;
    const bool partial = hit.length % caches.groups()[g].unit_tokens != 0;
    for (size_t i = 0; i + (partial ? 1 : 0) < tail.size(); ++i) f(g, tail[i]);
  }
}
}  // namespace

// ---- probe ------------------------------------------------------------------------------------

CacheProbe Coordinator::probe(const PrefixView& view) const {
  CacheProbe out;
  if (!options_.keep_prefixes) return out;
  const cache::PrefixTree::Match m = tree_.match(*view.chain, view.tokens, view.limit);
  out.common = m.common;
  if (m.device != nullptr) {
    out.device = m.device->length;
    each_whole_page(*caches_, *m.device, [&](size_t g, const cache::CachedRef& page) {
      if (page.in_use()) ++out.held[g];
    });
  }
  if (m.host != nullptr && !view.device_only) {
    const uint64_t restore = host_.restore_us(*m.host);
    const auto compute = static_cast<double>(m.host->length - out.device) / tokens_per_us_;
    if (m.host->pins > 0 || static_cast<double>(restore) < compute) {
      out.host = m.host->length;
      out.restore_us = std::max<uint64_t>(restore, 1);
      // What is shared with the device part stays in use; the rest is copied into new units.
    }
  }
  return out;
}

// ---- admit ------------------------------------------------------------------------------------

struct Coordinator::Plan {
  std::array<uint32_t, WEFT_CACHE_GROUPS_MAX> need = {};
};

bool Coordinator::plan_admission(const Snapshot* hit, uint32_t tokens, uint32_t spare,
                                 Plan* plan) const {
  std::array<uint32_t, WEFT_CACHE_GROUPS_MAX> taken = {};  // kept units that the hit puts in use
  if (hit != nullptr) {
    each_whole_page(*caches_, *hit, [&](size_t g, const cache::CachedRef& page) {
      if (!page.in_use()) ++taken[g];
    });
  }
  size_t state = 0;
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    uint32_t room = spare;
    if (group.rows) {
      const uint32_t full = hit == nullptr ? 0 : full_pages(g, hit->length);
      plan->need[g] = group.pages(tokens) - full;
      const bool partial = hit != nullptr && hit->length % group.unit_tokens != 0;
      if (partial && !hit->pages[g].device.back().in_use()) ++taken[g];  // while it is copied
    } else {
      plan->need[g] = 1;
      room = 0;
      if (hit != nullptr && !hit->state[state].in_use()) ++taken[g];
      ++state;
    }
    if (uint64_t{plan->need[g]} + room + taken[g] > available(g)) return false;
  }
  return true;
}

void Coordinator::share_pages(const Snapshot& hit, SequenceCache* sequence) const {
  each_whole_page(*caches_, hit, [&](size_t g, const cache::CachedRef& page) {
    sequence->rows(g).shared.push_back(page.use());
  });
}

void Coordinator::fill(SequenceCache* sequence, uint32_t tokens) {
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    if (group.rows) {
      SequenceCache::Rows& rows = sequence->rows(g);
      const uint32_t total = group.pages(tokens);
      const auto have = static_cast<uint32_t>(rows.size());
      if (total <= have) continue;
      make_room(g, total - have);
      while (rows.size() < total) rows.owned.push_back(group.pool->take());
    } else if (!sequence->state(g).own.valid()) {
      make_room(g, 1);
      sequence->state(g).own = group.pool->take();
    }
  }
}

bool Coordinator::admit_hit(Snapshot* hit, uint32_t tokens, uint32_t spare,
                            SequenceCache* sequence) {
  Plan plan;
  if (!plan_admission(hit, tokens, spare, &plan)) return false;
  const uint32_t length = hit->length;
  // From here on everything that the hit needs is in use, so making room cannot take it, even when
  // it takes the snapshot itself.
  share_pages(*hit, sequence);
  std::vector<cache::LiveRef> partial(caches_->groups().size());
  size_t state = 0;
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    if (!caches_->groups()[g].rows) {
      sequence->state(g).source = hit->state[state++].use();
    } else if (length % caches_->groups()[g].unit_tokens != 0) {
      partial[g] = hit->pages[g].device.back().use();
    }
  }
  fill(sequence, tokens);
  for (size_t g = 0; g < partial.size(); ++g) {
    if (partial[g].valid()) {
      caches_->copy(g, partial[g].unit(), sequence->rows(g).owned.front().unit());
    }
  }
  return true;
}

// For a starved pool: the snapshot gives its own state slot and partial pages to the sequence.
bool Coordinator::admit_consuming(Snapshot* hit, uint32_t tokens, SequenceCache* sequence) {
  std::array<uint32_t, WEFT_CACHE_GROUPS_MAX> taken = {};
  each_whole_page(*caches_, *hit, [&](size_t g, const cache::CachedRef& page) {
    if (!page.in_use()) ++taken[g];
  });
  for (const cache::CachedRef& unit : hit->state) {
    if (!unit.sole()) return false;
  }
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    if (!group.rows) continue;
    const bool partial = hit->length % group.unit_tokens != 0;
    if (partial && !hit->pages[g].device.back().sole()) return false;
    const uint32_t need = group.pages(tokens) - full_pages(g, hit->length);
    if (need + taken[g] > available(g)) return false;
  }
  share_pages(*hit, sequence);
  size_t state = 0;
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    if (!group.rows) {
      sequence->state(g).own = std::move(hit->state[state++]).thaw();
    } else if (hit->length % group.unit_tokens != 0) {
      sequence->rows(g).owned.push_back(std::move(hit->pages[g].device.back()).thaw());
    }
  }
  evict(hit);
  fill(sequence, tokens);
  return true;
}

bool Coordinator::admit_cold(uint32_t tokens, uint32_t spare, SequenceCache* sequence) {
  Plan plan;
  if (!plan_admission(nullptr, tokens, spare, &plan)) return false;
  fill(sequence, tokens);
  return true;
}

bool Coordinator::admit_host(Snapshot* hit, uint32_t tokens, uint32_t spare,
                             SequenceCache* sequence, std::shared_ptr<CopyTask>* loading) {
  // Whole pages that the device still has, because other snapshots need them, are shared. They are
  // the first ones: a node is on the device when anything below it is.
  std::vector<const Node*> path;
  for (const Node* n = hit->node; n != nullptr; n = n->parent) {
    if (n->device_need > 0 && !n->pages.empty()) path.push_back(n);
  }
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    uint32_t present = 0;
    for (auto n = path.rbegin(); group.rows && n != path.rend(); ++n) {
      for (const cache::CachedRef& page : (*n)->pages[g].device) {
        ++present;
        sequence->rows(g).shared.push_back(page.use());
      }
    }
    // What has just been shared is in use now and counted in neither.
    const uint32_t need = group.rows ? group.pages(tokens) - present : 1;
    if (uint64_t{need} + (group.rows ? spare : 0) > available(g)) {
      sequence->clear();
      return false;
    }
  }
  std::vector<cache::HostTier::Load> loads = host_.collect(*hit);
  fill(sequence, tokens);
  *loading = host_.start(std::move(loads), *sequence);
  return true;
}

CacheAdmission Coordinator::admit(const PrefixView& asked, uint32_t tokens, uint32_t spare,
                                  SequenceCache* sequence) {
  WEFT_CHECK(sequence->empty() && tokens <= asked.tokens.size());
  // A longer prefix than what is reserved has no pages to lie in.
  PrefixView view = asked;
  view.limit = std::min(asked.limit, tokens);
  CacheAdmission out;
  const cache::PrefixTree::Match m = options_.keep_prefixes
                                         ? tree_.match(*view.chain, view.tokens, view.limit)
                                         : cache::PrefixTree::Match();
  if (m.host != nullptr && probe(view).host != 0) {
    const uint32_t length = m.host->length, local = m.device == nullptr ? 0 : m.device->length;
    if (admit_host(m.host, tokens, spare, sequence, &out.loading)) {
      touch(m.host);  // making room gives up nothing of the lower tiers
      out.snapshot = m.host->id;
      out.ok = true;
      out.local = local;
      out.host = length - local;
      return out;
    }
  }
  if (m.device != nullptr) {
    const uint32_t length = m.device->length;
    const uint64_t id = m.device->id;
    if (admit_hit(m.device, tokens, spare, sequence) ||
        (spare == 0 && admit_consuming(m.device, tokens, sequence))) {
      if (Snapshot* hit = tree_.by_id(id)) touch(hit);
      return {true, length, 0, id, nullptr};
    }
  }
  out.snapshot = 0;
  out.ok = admit_cold(tokens, spare, sequence);
  return out;
}

bool Coordinator::grow(SequenceCache* sequence, uint32_t tokens) {
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    const auto have = static_cast<uint32_t>(group.rows ? sequence->rows(g).size() : 0);
    const uint32_t need = !group.rows                  ? (sequence->state(g).own.valid() ? 0 : 1)
                          : group.pages(tokens) > have ? group.pages(tokens) - have
                                                       : 0;
    if (need > available(g)) return false;
  }
  fill(sequence, tokens);
  return true;
}

void Coordinator::abandon(std::shared_ptr<CopyTask> loading, SequenceCache sequence) {
  loading->cancel();
  abandoned_.emplace_back(std::move(loading), std::move(sequence));
}

void Coordinator::poll() {
  const size_t before = host_.queue().pending();
  host_.queue().poll();
  if (host_.queue().pending() != before) ++version_;
  std::erase_if(abandoned_, [](const auto& entry) { return entry.first->over(); });
}

}  // namespace weft::engine
