#include "engine/cache/tree.h"

#include <algorithm>

namespace weft::engine::cache {
namespace {

// Brothers whose tokens are looked at to find where a prompt leaves the known ones. They share a
// parent, so the latest ones tell as much as all.
constexpr size_t kBrothersMax = 32;

bool tail_matches(const Snapshot& s, const KeyChain& chain, std::span<const int32_t> tokens) {
  if (s.length > tokens.size()) return false;
  const uint32_t begin = s.length - static_cast<uint32_t>(s.tail.size());
  return std::equal(s.tail.begin(), s.tail.end(), tokens.begin() + begin) &&
         s.tail_media == chain.media_in(begin, s.length);
}

uint32_t equal_tokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t n = std::min(a.size(), b.size());
  const auto at = std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin());
  return static_cast<uint32_t>(at.first - a.begin());
}

bool copies_ready(const Snapshot& s) {
  const auto complete = [](const BlobRef& b) {
    return b != nullptr && b->ready.load(std::memory_order_acquire) &&
           !b->broken.load(std::memory_order_relaxed);
  };
  for (const BlobRef& b : s.host_state) {
    if (b != nullptr && !complete(b)) return false;
  }
  for (const PageList& list : s.pages) {
    if (!std::all_of(list.host.begin(), list.host.end(), complete)) return false;
  }
  for (const Node* n = s.node; n != nullptr; n = n->parent) {
    for (const PageList& list : n->pages) {
      if (!std::all_of(list.host.begin(), list.host.end(), complete)) return false;
    }
  }
  return true;
}

}  // namespace

Node* PrefixTree::child(const Node* parent, const KeyChain& chain, std::span<const int32_t> tokens,
                        uint32_t unit) const {
  const auto found = nodes_.find(chain.after(unit + 1));
  if (found == nodes_.end()) return nullptr;
  Node* node = found->second.get();
  const size_t begin = size_t{unit} * kMatchUnit;
  if (node->parent != parent || begin + kMatchUnit > tokens.size() ||
      !std::equal(node->tokens.begin(), node->tokens.end(), tokens.begin() + begin) ||
      node->media !=
          chain.media_in(static_cast<uint32_t>(begin), static_cast<uint32_t>(begin) + kMatchUnit)) {
    return nullptr;
  }
  return node;
}

PrefixTree::Match PrefixTree::match(const KeyChain& chain, std::span<const int32_t> tokens,
                                    uint32_t limit) const {
  Match m;
  const auto root = nodes_.find(chain.root());
  if (root == nodes_.end()) return m;
  std::vector<Snapshot*> on_host;  // rising length
  const Node* node = root->second.get();
  for (uint32_t unit = 0;; ++unit) {
    m.node = node;
    for (const auto& s : node->snapshots) {
      if (!tail_matches(*s, chain, tokens)) continue;
      m.common = std::max(m.common, s->length);  // images in the tail too
      if (s->length > limit) continue;
      if (s->on_device && (m.device == nullptr || s->length > m.device->length)) {
        m.device = s.get();
      }
      if (s->on_host) on_host.push_back(s.get());
    }
    const Node* next = unit < chain.units() ? child(node, chain, tokens, unit) : nullptr;
    if (next == nullptr) break;
    node = next;
  }
  const uint32_t floor = m.device == nullptr ? 0 : m.device->length;
  std::sort(on_host.begin(), on_host.end(),
            [](const Snapshot* a, const Snapshot* b) { return a->length > b->length; });
  for (Snapshot* s : on_host) {
    if (s->length <= floor) break;
    if (!copies_ready(*s)) continue;
    m.host = s;
    break;
  }
  m.common = std::max(m.common, m.node->units * kMatchUnit + common_below(*m.node, chain, tokens));
  return m;
}

uint32_t PrefixTree::common_below(const Node& node, const KeyChain& chain,
                                  std::span<const int32_t> tokens) const {
  const uint32_t begin = node.units * kMatchUnit;
  std::span<const int32_t> rest = tokens.subspan(std::min<size_t>(begin, tokens.size()));
  if (rest.size() > kMatchUnit) rest = rest.first(kMatchUnit);
  // An image is equal as a whole or not at all; the exact units above have settled that.
  const uint32_t media = chain.next_media(begin);
  if (media != UINT32_MAX && media - begin < rest.size()) rest = rest.first(media - begin);
  uint32_t most = 0;
  const size_t n = std::min(node.children.size(), kBrothersMax);
  for (size_t i = node.children.size() - n; i < node.children.size(); ++i) {
    const Node& brother = *node.children[i];
    if (brother.media.zero()) most = std::max(most, equal_tokens(rest, brother.tokens));
  }
  const size_t k = std::min(node.snapshots.size(), kBrothersMax);
  for (size_t i = node.snapshots.size() - k; i < node.snapshots.size(); ++i) {
    const Snapshot& s = *node.snapshots[i];
    if (s.tail_media.zero()) most = std::max(most, equal_tokens(rest, s.tail));
  }
  return most;
}

Node* PrefixTree::make_node(const Key128& key, Node* parent) {
  auto node = std::make_unique<Node>();
  node->key = key;
  node->parent = parent;
  if (parent != nullptr) {
    node->units = parent->units + 1;
    node->slot = static_cast<uint32_t>(parent->children.size());
    parent->children.push_back(node.get());
  }
  Node* out = node.get();
  nodes_.emplace(key, std::move(node));
  return out;
}

Node* PrefixTree::path(const KeyChain& chain, std::span<const int32_t> tokens, uint32_t units) {
  WEFT_CHECK(units <= chain.units() && size_t{units} * kMatchUnit <= tokens.size());
  const auto root = nodes_.find(chain.root());
  Node* node = root != nodes_.end() ? root->second.get() : make_node(chain.root(), nullptr);
  if (node->parent != nullptr) return nullptr;
  for (uint32_t unit = 0; unit < units; ++unit) {
    Node* next = child(node, chain, tokens, unit);
    if (next == nullptr) {
      if (nodes_.count(chain.after(unit + 1)) != 0) {
        prune(node);
        return nullptr;
      }
      next = make_node(chain.after(unit + 1), node);
      const size_t begin = size_t{unit} * kMatchUnit;
      std::copy_n(tokens.begin() + static_cast<ptrdiff_t>(begin), kMatchUnit, next->tokens.begin());
      next->media =
          chain.media_in(static_cast<uint32_t>(begin), static_cast<uint32_t>(begin) + kMatchUnit);
    }
    node = next;
  }
  return node;
}

Snapshot* PrefixTree::find(const KeyChain& chain, std::span<const int32_t> tokens,
                           uint32_t length) const {
  const auto root = nodes_.find(chain.root());
  const Node* node = root == nodes_.end() ? nullptr : root->second.get();
  for (uint32_t unit = 0; node != nullptr && unit < length / kMatchUnit; ++unit) {
    node = child(node, chain, tokens, unit);
  }
  if (node == nullptr) return nullptr;
  for (const auto& s : node->snapshots) {
    if (s->length == length && tail_matches(*s, chain, tokens)) return s.get();
  }
  return nullptr;
}

Snapshot* PrefixTree::add(Node* node, const KeyChain& chain, std::span<const int32_t> tokens) {
  const uint32_t begin = node->units * kMatchUnit;
  WEFT_CHECK(tokens.size() >= begin && tokens.size() - begin < kMatchUnit);
  auto s = std::make_unique<Snapshot>();
  s->id = next_id_++;
  s->node = node;
  s->tail.assign(tokens.begin() + begin, tokens.end());
  s->length = static_cast<uint32_t>(tokens.size());
  s->tail_media = chain.media_in(begin, s->length);
  Snapshot* out = s.get();
  node->snapshots.push_back(std::move(s));
  by_id_.emplace(out->id, out);
  return out;
}

void PrefixTree::remove(Snapshot* snapshot) {
  Node* node = snapshot->node;
  by_id_.erase(snapshot->id);
  auto& all = node->snapshots;
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const auto& s) { return s.get() == snapshot; });
  WEFT_CHECK(at != all.end());
  all.erase(at);
  prune(node);
}

void PrefixTree::prune(Node* node) {
  while (node != nullptr && node->children.empty() && node->snapshots.empty()) {
    WEFT_CHECK(node->device_need == 0 && node->host_need == 0);
    Node* parent = node->parent;
    if (parent != nullptr) {
      Node* last = parent->children.back();
      parent->children[node->slot] = last;
      last->slot = node->slot;
      parent->children.pop_back();
    }
    nodes_.erase(Key128(node->key));
    node = parent;
  }
}

Snapshot* PrefixTree::by_id(uint64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

}  // namespace weft::engine::cache
