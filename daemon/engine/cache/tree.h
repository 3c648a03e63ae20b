// Which token prefixes are known: a tree of units of kMatchUnit tokens, with snapshots hanging on
// it. The tree knows tokens only; what a node or a snapshot holds in memory is put there by the
// coordinator.
//
// A node is one full unit after its parent's. A snapshot belongs to the node of its last full unit
// and adds 0..kMatchUnit-1 tail tokens, so prefixes of any length can be kept. Tokens are always
// compared, keys only find candidates. Engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/cache/blob.h"
#include "engine/cache/key.h"
#include "engine/cache/units.h"

namespace weft::engine::cache {

struct Node;

// Pages of one row group: on the device, or copies of the same pages in the lower tiers.
struct PageList {
  std::vector<CachedRef> device;
  std::vector<BlobRef> host;
};

enum class SnapshotKind : uint8_t { kPrefix, kTurn, kOutput, kBranch, kPreempted };

struct Snapshot {
  uint64_t id = 0;
  Node* node = nullptr;
  std::vector<int32_t> tail;
  Key128 tail_media;
  uint32_t length = 0;  // tokens
  SnapshotKind kind = SnapshotKind::kTurn;

  bool on_device = false;
  bool on_host = false;         // copies exist or are being made
  uint32_t pins = 0;            // swapped sequences that come back for it: stays in the lower tiers
  std::vector<PageList> pages;  // per row group: pages that begin after the node's last full one
  std::vector<CachedRef> state;  // per state group, on the device
  std::vector<BlobRef> host_state;

  uint64_t last_use_us = 0;
  uint32_t uses = 0;
  uint32_t heat = 0;        // uses of it and of those it grew from
  bool superseded = false;  // its sequence went on and left a longer one
  double score = 0;         // place in the order of eviction from the device
  double host_score = 0;
};

struct Node {
  Key128 key;
  Node* parent = nullptr;
  uint32_t units = 0;  // up to and with this one; 0 = root
  uint32_t slot = 0;   // in parent->children
  std::array<int32_t, kMatchUnit> tokens = {};
  Key128 media;
  std::vector<Node*> children;
  std::vector<std::unique_ptr<Snapshot>> snapshots;

  std::vector<PageList> pages;  // per row group: the pages that end inside this unit
  uint32_t device_need = 0;     // snapshots at or below this node that are on the device
  uint32_t host_need = 0;
};

class PrefixTree {
 public:
  struct Match {
    const Node* node = nullptr;  // deepest full unit; NULL when even the root is unknown
    uint32_t common = 0;         // tokens that equal something the tree knows
    Snapshot* device = nullptr;  // longest usable one on the device
    Snapshot* host = nullptr;    // longest one with complete copies, longer than `device`
  };
  // Snapshots longer than `limit` tokens are not usable. chain must cover the tokens.
  Match match(const KeyChain& chain, std::span<const int32_t> tokens, uint32_t limit) const;

  // The node of the first `units` units, made where missing. NULL when a key is taken by other
  // tokens (a collision).
  Node* path(const KeyChain& chain, std::span<const int32_t> tokens, uint32_t units);
  // The snapshot of exactly these tokens, or NULL.
  Snapshot* find(const KeyChain& chain, std::span<const int32_t> tokens, uint32_t length) const;
  // A new one at the end of `tokens` below `node`.
  Snapshot* add(Node* node, const KeyChain& chain, std::span<const int32_t> tokens);
  // Removes a snapshot and every node that leads nowhere any more.
  void remove(Snapshot* snapshot);
  // Removes the nodes from `node` upwards that have neither children nor snapshots.
  void prune(Node* node);

  Snapshot* by_id(uint64_t id) const;
  size_t nodes() const { return nodes_.size(); }
  size_t snapshots() const { return by_id_.size(); }
  template <class F>
  void each_node(F&& f) const {
    for (const auto& [key, node] : nodes_) f(*node);
  }

 private:
  Node* child(const Node* parent, const KeyChain& chain, std::span<const int32_t> tokens,
              uint32_t unit) const;
  Node* make_node(const Key128& key, Node* parent);
  uint32_t common_below(const Node& node, const KeyChain& chain,
                        std::span<const int32_t> tokens) const;

  std::unordered_map<Key128, std::unique_ptr<Node>, KeyHash> nodes_;
  std::unordered_map<uint64_t, Snapshot*> by_id_;
  uint64_t next_id_ = 1;
};

}  // namespace weft::engine::cache
