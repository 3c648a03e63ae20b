#include "text/grammar/program.h"

#include <algorithm>

namespace weft::text::grammar {
namespace {

constexpr uint32_t kNever = UINT32_MAX;

uint32_t height_of(const std::vector<Node>& nodes, NodeId id) {
  return id == kNoNode ? kNever : nodes[id].height;
}
uint32_t above(uint32_t height) { return height == kNever ? kNever : height + 1; }

uint32_t object_height(const Program& p, const ObjectSpec& object, bool as_arguments) {
  const auto value_height = [&](const ValueSpec& value) {
    if (!as_arguments) return height_of(p.nodes, value.json);
    uint32_t least = kNever;
    for (NodeId body : value.body) least = std::min(least, height_of(p.nodes, body));
    return least;
  };
  if (object.max && *object.max < std::max(object.required, object.min)) return kNever;
  uint32_t height = 0;
  std::vector<uint32_t> optional;
  for (const auto& property : object.properties) {
    const uint32_t h = value_height(property.value);
    if (property.required)
      height = std::max(height, h);
    else
      optional.push_back(h);
  }
  if (object.min > object.required) {
    const size_t missing = object.min - object.required;
    if (object.open) optional.insert(optional.end(), missing, value_height(object.extra));
    if (optional.size() < missing) return kNever;
    std::sort(optional.begin(), optional.end());
    height = std::max(height, optional[missing - 1]);
  }
  return above(height);
}

uint32_t node_height(const Program& p, const Node& node) {
  switch (node.kind) {
    case NodeKind::kSymbols:
    case NodeKind::kFree:
      return 1;
    case NodeKind::kDfa:
      return p.dfas[node.index].empty() ? kNever : 1;
    case NodeKind::kString: {
      const StringSpec& s = p.strings[node.index];
      return s.max && *s.max < s.min ? kNever : 1;
    }
    case NodeKind::kArray: {
      const ArraySpec& a = p.arrays[node.index];
      if (a.max && *a.max < a.min) return kNever;
      uint32_t height = 0;
      for (uint32_t i = 0; i < a.min && height != kNever; ++i) {
        height = std::max(height, height_of(p.nodes, i < a.prefix.size() ? a.prefix[i] : a.items));
        if (i >= a.prefix.size()) break;
      }
      return above(height);
    }
    case NodeKind::kObject:
      return object_height(p, p.objects[node.index], false);
    case NodeKind::kArguments:
      return object_height(p, p.objects[node.index], true);
    case NodeKind::kCalls: {
      uint32_t least = kNever;
      for (NodeId id : p.calls[node.index].arguments)
        least = std::min(least, height_of(p.nodes, id));
      return above(least);
    }
    case NodeKind::kAlternatives: {
      uint32_t least = kNever;
      for (NodeId id : p.lists[node.index]) least = std::min(least, height_of(p.nodes, id));
      return least;
    }
    case NodeKind::kSequence: {
      uint32_t most = 0;
      for (NodeId id : p.lists[node.index]) most = std::max(most, height_of(p.nodes, id));
      return above(most);
    }
  }
  return kNever;
}

void build_trie(std::vector<KeyTrie::TrieNode>& nodes, const std::vector<std::string>& keys,
                uint32_t low, uint32_t high, size_t depth, uint32_t id) {
  nodes[id].low = low;
  nodes[id].high = high;
  uint32_t i = low;
  if (i < high && keys[i].size() == depth) nodes[id].key = static_cast<int32_t>(i++);
  while (i < high) {
    const char byte = keys[i][depth];
    uint32_t end = i;
    while (end < high && keys[end][depth] == byte) ++end;
    nodes.emplace_back();
    const auto child = static_cast<uint32_t>(nodes.size() - 1);
    nodes[id].children.emplace_back(static_cast<uint8_t>(byte), child);
    build_trie(nodes, keys, i, end, depth + 1, child);
    i = end;
  }
}

}  // namespace

void KeyTrie::build(const std::vector<std::string>& keys) {
  nodes_.assign(1, {});
  build_trie(nodes_, keys, 0, static_cast<uint32_t>(keys.size()), 0, 0);
}

uint32_t KeyTrie::child(uint32_t id, uint8_t byte) const {
  if (id == kOff) return kOff;
  for (const auto& [label, to] : nodes_[id].children)
    if (label == byte) return to;
  return kOff;
}

NodeId Program::add_symbols(std::vector<Symbol> sequence) {
  symbols.push_back(std::move(sequence));
  return add(NodeKind::kSymbols, symbols.size() - 1);
}
NodeId Program::add_dfa(Dfa dfa) {
  dfas.push_back(std::move(dfa));
  return add(NodeKind::kDfa, dfas.size() - 1);
}
NodeId Program::add_free(std::optional<uint32_t> bytes_max) {
  frees.push_back({bytes_max});
  return add(NodeKind::kFree, frees.size() - 1);
}
NodeId Program::add_string(StringSpec spec) {
  strings.push_back(spec);
  return add(NodeKind::kString, strings.size() - 1);
}
NodeId Program::add_list(NodeKind kind, std::vector<NodeId> list) {
  lists.push_back(std::move(list));
  return add(kind, lists.size() - 1);
}

void Program::compute_heights() {
  // Heights only shrink from "never", so this reaches a fixed point. Children mostly follow their
  // parents: going backwards settles them first.
  for (bool changed = true; changed;) {
    changed = false;
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      const uint32_t height = node_height(*this, *node);
      if (height >= node->height) continue;
      node->height = height;
      changed = true;
    }
  }
}

}  // namespace weft::text::grammar
