// Lower tiers: copies of kept prefixes in host memory, and of those that come back often on disk.
//
// Write-behind: a snapshot that would take longer to compute than to copy back is copied once, soon
// after it was made, by the copy thread; giving it up on the device then loses nothing. Rows of
// common prefixes are copied once. When host memory is full, what is worth least goes: to disk when
// it was used at least twice (and there is a disk tier), else for good. Files live as long as the
// process. Engine thread; copies run on the queue's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/cache/arenas.h"
#include "engine/cache/copy_queue.h"
#include "engine/cache/sequence_cache.h"
#include "engine/cache/tree.h"

namespace weft::engine::cache {

struct HostTierOptions {
  uint64_t bytes = 0;    // 0 = no lower tiers
  std::string disk_dir;  // an empty directory of this process; empty = no disk
  uint64_t disk_bytes = 0;
  bool inline_copies = false;  // tests
};

class HostTier {
 public:
  HostTier(Caches* caches, PrefixTree* tree, HostTierOptions options);

  bool enabled() const { return budget_.total > 0; }
  // Time to bring in what the device lacks of a snapshot, from measured copies.
  uint64_t restore_us(const Snapshot& snapshot) const;
  // Copies a snapshot that is on the device; now: done when this returns. pin: kept until unpin().
  // False when there is no room for it.
  bool save(Snapshot* snapshot, bool now, bool pin);
  void unpin(Snapshot* snapshot);

  // What has to be copied in so that a sequence can go on after the snapshot. Collected first,
  // because making room for it may give up pages that the sequence shares already.
  struct Load {
    size_t group = 0;
    uint32_t page = 0;  // of the sequence; states have none
    BlobRef blob;
  };
  std::vector<Load> collect(const Snapshot& snapshot) const;
  // The sequence owns every page and the state that is loaded.
  std::shared_ptr<CopyTask> start(std::vector<Load> loads, const SequenceCache& sequence);

  // Gives up the copies. The snapshot leaves the tree when the device has it neither.
  void drop(Snapshot* snapshot);
  void drop_all();     // but for what is pinned
  void drop_pinned();  // the end
  void set_score(Snapshot* snapshot, double score);

  CopyQueue& queue() { return queue_; }
  const CopyQueue& queue() const { return queue_; }
  const HostBudget& budget() const { return budget_; }
  // Grows whenever a match may answer differently because of this tier.
  uint64_t changes() const { return changes_; }
  bool copying() const { return queue_.pending() > 0; }
  uint64_t saved_bytes() const { return saved_bytes_; }
  uint64_t loaded_bytes() const { return loaded_bytes_; }
  // Bytes that can still be pinned.
  uint64_t room() const { return budget_.total - std::min(budget_.total, pinned_bytes_); }

 private:
  struct Save;
  uint64_t swap_size(const Snapshot& snapshot) const;
  static bool any_copy(const Snapshot& snapshot, bool (*is)(const Blob&), bool sole_nodes);
  uint64_t bytes_lacking(const Snapshot& snapshot, bool on_host) const;
  bool make_room(uint64_t bytes, const Snapshot* keep);
  bool add_page(size_t group, const CachedRef& unit, std::vector<BlobRef>* blobs, Save* save);
  bool collect_save(const Snapshot& snapshot, Save* save);
  void attach(Snapshot* snapshot, Save* save);
  void trim();
  void trim_disk();
  void drop_broken();
  void spill(Snapshot* snapshot);
  void spill_blob(const BlobRef& blob, std::shared_ptr<CopyTask>* task);
  void forget_order(Snapshot* snapshot);

  Caches* const caches_;
  PrefixTree* const tree_;
  const HostTierOptions options_;
  HostBudget budget_;
  CopyQueue queue_;
  std::set<std::pair<double, uint64_t>> order_;  // score, id
  uint64_t pinned_bytes_ = 0;
  uint64_t changes_ = 0;
  uint64_t spilling_bytes_ = 0;  // memory that files being written will free
  uint64_t saved_bytes_ = 0;
  uint64_t loaded_bytes_ = 0;
  uint64_t next_file_ = 1;
};

}  // namespace weft::engine::cache
