#include "engine/cache/sequence_cache.h"

#include <algorithm>

namespace weft::engine {

bool SequenceCache::reserve(uint32_t tokens, uint32_t spare) {
  const auto& groups = caches_->groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    const Caches::Group& g = groups[i];
    if (g.rows) {
      const uint64_t need = g.pages(tokens);
      const uint64_t missing = need > rows_[i].size() ? need - rows_[i].size() : 0;
      if (missing > 0 && missing + spare > g.pool->free()) return false;
    } else if (!states_[i].own.valid() && g.pool->free() == 0) {
      return false;
    }
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    const Caches::Group& g = groups[i];
    if (g.rows) {
      const uint64_t need = g.pages(tokens);
      while (rows_[i].size() < need) rows_[i].owned.push_back(g.pool->take());
    } else if (!states_[i].own.valid()) {
      states_[i].own = g.pool->take();
    }
  }
  return true;
}

void SequenceCache::freeze(size_t group, size_t pages) {
  Rows& r = rows_[group];
  WEFT_CHECK(pages <= r.size());
  if (pages <= r.shared.size()) return;
  const size_t n = pages - r.shared.size();
  for (size_t i = 0; i < n; ++i) r.shared.push_back(std::move(r.owned[i]).freeze());
  r.owned.erase(r.owned.begin(), r.owned.begin() + static_cast<ptrdiff_t>(n));
}

void SequenceCache::clear() {
  for (Rows& r : rows_) {
    r.shared.clear();
    r.owned.clear();
  }
  for (State& s : states_) s = State();
}

bool SequenceCache::empty() const {
  return std::all_of(rows_.begin(), rows_.end(), [](const Rows& r) { return r.size() == 0; }) &&
         std::none_of(states_.begin(), states_.end(),
                      [](const State& s) { return s.own.valid() || s.source.valid(); });
}

}  // namespace weft::engine
