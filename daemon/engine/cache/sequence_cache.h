// What one sequence holds of the caches: pages of every row group and its state.
//
// Pages come in order of tokens: first those it shares (read only), then those it owns. The state
// is written to a slot of its own; after a prefix hit, or after its state was kept as a snapshot,
// the next step reads a shared slot and writes the own one (copy on write without a copy). Engine
// thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/arenas.h"
#include "engine/cache/units.h"

namespace weft::engine {

class SequenceCache {
 public:
  explicit SequenceCache(Caches* caches)
      : caches_(caches), rows_(caches->groups().size()), states_(caches->groups().size()) {}

  struct Rows {
    std::vector<cache::LiveRef> shared;
    std::vector<cache::OwnedUnit> owned;
    size_t size() const { return shared.size() + owned.size(); }
    int32_t unit(size_t i) const {
      return i < shared.size() ? shared[i].unit() : owned[i - shared.size()].unit();
    }
  };
  struct State {
    cache::OwnedUnit own;
    cache::LiveRef source;  // read by the next step instead of `own`
  };

  Rows& rows(size_t group) { return rows_[group]; }
  const Rows& rows(size_t group) const { return rows_[group]; }
  State& state(size_t group) { return states_[group]; }
  const State& state(size_t group) const { return states_[group]; }
  int32_t read_slot(size_t group) const {
    const State& s = states_[group];
    return s.source.valid() ? s.source.unit() : s.own.unit();
  }
  int32_t write_slot(size_t group) const { return states_[group].own.unit(); }

  // Takes what is missing for `tokens` rows and the states from what is free. `spare` pages of
  // every row group must stay free. All or nothing: false and no change when a pool has too little.
  [[nodiscard]] bool reserve(uint32_t tokens, uint32_t spare);
  // Makes the first `pages` pages of a group shareable: they are full and will not be written
  // again.
  void freeze(size_t group, size_t pages);
  // The step that read the shared slots is over.
  void stepped() {
    for (State& s : states_) s.source.reset();
  }
  void clear();
  bool empty() const;

 private:
  Caches* caches_;
  std::vector<Rows> rows_;
  std::vector<State> states_;
};

}  // namespace weft::engine
