// The prefix cache: turns tokens into units and back. probe -> admit -> publish -> free.
//
//   probe    how much of a prompt is at hand; changes nothing
//   admit    gives a sequence its prefix, its pages and its state slot: all or nothing
//   publish  keeps what a sequence has computed up to now as a snapshot for later requests
//   free     a sequence's handles go; what was published stays until memory is needed
//
// Rules. A prefix is usable only where every group has it: all rows, and a state at exactly that
// length. Shared units are never written: the state is read from the snapshot's slot and written to
// a private one, a partly filled page is copied. Rows exist only below snapshots: rows that no
// snapshot needs are worth nothing and are given up at once. Memory is taken back from the snapshot
// with the least expected saving per byte: (weight * uses * tokens to compute again / bytes)
// halving with age. Lower tiers hold copies of the same units (host_tier.h). Engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/cache/arenas.h"
#include "engine/cache/copy_queue.h"
#include "engine/cache/host_tier.h"
#include "engine/cache/key.h"
#include "engine/cache/sequence_cache.h"
#include "engine/cache/tree.h"

namespace weft::engine {

struct CoordinatorOptions {
  bool keep_prefixes = true;
  cache::HostTierOptions host;
  std::function<uint64_t()> now_us;
};

// The tokens of a sequence with their keys. `limit`: longest prefix that may be reused.
struct PrefixView {
  const cache::KeyChain* chain = nullptr;
  std::span<const int32_t> tokens;
  uint32_t limit = 0;
  bool device_only = false;  // no copies from lower tiers
};

struct CacheProbe {
  uint32_t device = 0;  // tokens usable at once
  uint32_t host = 0;    // tokens usable after a copy that is worth it, above `device`; 0 = none
  uint64_t restore_us = 0;
  uint32_t common = 0;                                    // tokens that equal something known
  std::array<uint32_t, WEFT_CACHE_GROUPS_MAX> held = {};  // pages of `device` that others use now
};

struct CacheAdmission {
  bool ok = false;
  uint32_t local = 0;     // tokens of the prefix that were on the device
  uint32_t host = 0;      // tokens that come from a lower tier; once `loading` is over
  uint64_t snapshot = 0;  // id of what was hit, 0 = nothing
  std::shared_ptr<cache::CopyTask> loading;  // must be over before the sequence runs
};

struct CoordinatorStats {
  uint64_t made = 0;
  uint64_t evicted = 0;
  uint64_t declined = 0;  // snapshots not made because everything kept is worth more
};

class Coordinator {
 public:
  Coordinator(Caches* caches, CoordinatorOptions options);
  ~Coordinator();

  // How fast prompts are computed: prices of recomputation against copies.
  void set_prefill_rate(double tokens_per_second);

  CacheProbe probe(const PrefixView& view) const;
  // Reserves `tokens` tokens, reusing the longest usable prefix. `spare` pages of every row group
  // stay available. Not ok: nothing has changed.
  CacheAdmission admit(const PrefixView& view, uint32_t tokens, uint32_t spare,
                       SequenceCache* sequence);
  // More pages for a running sequence; gives up kept prefixes when needed. All or nothing.
  [[nodiscard]] bool grow(SequenceCache* sequence, uint32_t tokens);
  // Keeps the first `length` tokens, which are exactly what the sequence's state has seen. goes_on:
  // the sequence will run again (its next step reads the kept state); otherwise its state moves.
  // *last: id of the snapshot the sequence came from; updated. False when it was not worth its
  // memory.
  bool publish(const PrefixView& view, uint32_t length, cache::SnapshotKind kind, bool goes_on,
               SequenceCache* sequence, uint64_t* last);
  // Publishes the whole state of a sequence that leaves, with a copy in host memory made now and
  // kept until release(). 0 when that is impossible: nothing was kept then but an ordinary
  // snapshot.
  uint64_t swap_out(const PrefixView& view, uint32_t length, SequenceCache* sequence,
                    uint64_t* last);
  uint64_t swap_bytes(uint32_t length) const;
  void release(uint64_t snapshot);
  // Gives a snapshot up in every tier: its contents are in doubt.
  void discard(uint64_t snapshot);
  // Ends a load early; its units are free when the copy has stopped, which poll() notices.
  void abandon(std::shared_ptr<cache::CopyTask> loading, SequenceCache sequence);
  // Ends of copies. Call before every step.
  void poll();

  // Units that can be had: free ones, and kept ones that nobody uses.
  uint32_t available(size_t group) const;
  // Changes whenever a probe may answer differently.
  uint64_t version() const { return version_ + host_.changes(); }
  bool keeps_prefixes() const { return options_.keep_prefixes; }
  const CoordinatorStats& stats() const { return stats_; }
  size_t snapshots() const { return device_order_.size(); }
  cache::HostTier& host() { return host_; }
  const cache::HostTier& host() const { return host_; }
  // Copies in flight that hold units.
  bool copying() const { return host_.copying() || !abandoned_.empty(); }
  // Loads that were ended early and still hold units.
  bool abandoning() const { return !abandoned_.empty(); }
  // Gives up every kept prefix.
  void drop_all();
  // Checks every count of the tree, the pools and the tiers against each other.
  Status audit() const;

 private:
  struct Plan;  // of an admission

  uint32_t full_pages(size_t group, uint32_t length) const;
  bool plan_admission(const cache::Snapshot* hit, uint32_t tokens, uint32_t spare,
                      Plan* plan) const;
  bool admit_hit(cache::Snapshot* hit, uint32_t tokens, uint32_t spare, SequenceCache* sequence);
  bool admit_consuming(cache::Snapshot* hit, uint32_t tokens, SequenceCache* sequence);
  bool admit_cold(uint32_t tokens, uint32_t spare, SequenceCache* sequence);
  bool admit_host(cache::Snapshot* hit, uint32_t tokens, uint32_t spare, SequenceCache* sequence,
                  std::shared_ptr<cache::CopyTask>* loading);
  void share_pages(const cache::Snapshot& hit, SequenceCache* sequence) const;
  void fill(SequenceCache* sequence, uint32_t tokens);
  void make_room(size_t group, uint32_t units);
  bool afford(size_t group, uint32_t units, double score);
  bool frees(const cache::Snapshot& snapshot, size_t group) const;
  cache::Snapshot* cheapest(size_t group) const;
  void evict(cache::Snapshot* snapshot);
  bool can_keep(uint32_t length, double score, bool goes_on, const SequenceCache& sequence);
  void attach_pages(cache::Node* node, SequenceCache* sequence);
  void attach_tail(cache::Snapshot* snapshot, bool goes_on, SequenceCache* sequence);
  void attach_state(cache::Snapshot* snapshot, bool goes_on, SequenceCache* sequence);
  uint64_t bytes_of(const cache::Snapshot& snapshot, uint32_t previous) const;
  double score_of(const cache::Snapshot& snapshot, bool on_device) const;
  void touch(cache::Snapshot* snapshot);
  void rescore(cache::Snapshot* snapshot);
  void fail_pages(const cache::Node& node, Status* problem) const;

  Caches* const caches_;
  const CoordinatorOptions options_;
  cache::PrefixTree tree_;
  cache::HostTier host_;
  std::set<std::pair<double, uint64_t>> device_order_;  // score, id: the cheapest goes first
  std::vector<std::pair<std::shared_ptr<cache::CopyTask>, SequenceCache>> abandoned_;
  uint64_t state_bytes_ = 0;
  double tokens_per_us_ = 1e-3;
  uint64_t version_ = 1;
  CoordinatorStats stats_;
};

}  // namespace weft::engine
