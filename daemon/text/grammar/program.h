// A compiled grammar: nodes that the acceptor walks. Regular parts are byte automata; objects,
// arrays and calls are nodes of their own, so that keys may come in any order without expanding
// permutations.
//
// Immutable after compilation, shared by all requests with the same description.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"
#include "text/grammar/automaton.h"

namespace weft::text::grammar {

// Bytes 0..255, then the four structural tokens.
using Symbol = uint16_t;
inline constexpr Symbol kOpenToken = 256;
inline constexpr Symbol kCloseToken = 257;
inline constexpr Symbol kSepToken = 258;
inline constexpr Symbol kEndToken = 259;
inline constexpr size_t kSymbolCount = 260;

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = UINT32_MAX;

enum class NodeKind : uint8_t {
  kSymbols,  // a fixed sequence
  kDfa,
  kFree,    // any bytes, up to a limit, until a structural token
  kString,  // text with a length limit: JSON string or raw
  kArray,
  kObject,     // JSON object
  kArguments,  // the same members as argument blocks of a call
  kCalls,      // one or more calls
  kAlternatives,
  kSequence
};

struct Node {
  NodeKind kind;
  uint32_t index;  // into the vector of its kind
  uint32_t height =
      UINT32_MAX;  // nesting needed to finish it at least; UINT32_MAX: it cannot be finished
};

struct FreeSpec {
  std::optional<uint32_t> bytes_max;
};
struct StringSpec {
  bool json = false;
  uint32_t min = 0;
  std::optional<uint32_t> max;
};
struct ArraySpec {
  std::vector<NodeId> prefix;
  NodeId items = kNoNode;  // after the prefix; kNoNode: none allowed
  uint32_t min = 0;
  std::optional<uint32_t> max;
};

// The six words of the `type` attribute.
enum class ValueType : uint8_t { kString, kNumber, kBoolean, kNull, kArray, kObject };
inline constexpr size_t kTypeCount = 6;
inline constexpr std::array<std::string_view, kTypeCount> kTypeNames = {
    "string", "number", "boolean", "null", "array", "object"};

// What may stand at one place: as a JSON value, or as an argument body by type (strings raw there).
struct ValueSpec {
  NodeId json = kNoNode;
  std::array<NodeId, kTypeCount> body = {kNoNode, kNoNode, kNoNode, kNoNode, kNoNode, kNoNode};
};

// Bytes of the keys as a tree; the keys below a node are a contiguous range, because they are
// sorted.
class KeyTrie {
 public:
  // `keys` are sorted and distinct.
  void build(const std::vector<std::string>& keys);
  struct TrieNode {
    std::vector<std::pair<uint8_t, uint32_t>> children;
    uint32_t low = 0;  // [low, high) of the keys below
    uint32_t high = 0;
    int32_t key = -1;  // the key that ends here
  };
  const TrieNode& node(uint32_t id) const { return nodes_[id]; }
  static constexpr uint32_t kOff = UINT32_MAX;
  uint32_t child(uint32_t id, uint8_t byte) const;

 private:
  std::vector<TrieNode> nodes_;
};

struct ObjectSpec {
  struct Property {
    std::string key;  // as it is spelled in the output
    bool required = false;
    ValueSpec value;
  };
  std::vector<Property> properties;  // sorted by spelling
  KeyTrie trie;
  uint32_t required = 0;
  bool open = false;  // other keys are allowed
  ValueSpec extra;
  uint32_t min = 0;
  std::optional<uint32_t> max;
};

struct CallsSpec {
  std::vector<std::string> names;  // sorted
  std::vector<NodeId> arguments;   // per name
  KeyTrie trie;
  uint32_t max = 1;
};

struct Program {
  std::vector<Node> nodes;
  std::vector<std::vector<Symbol>> symbols;
  std::vector<Dfa> dfas;
  std::vector<FreeSpec> frees;
  std::vector<StringSpec> strings;
  std::vector<ArraySpec> arrays;
  std::vector<ObjectSpec> objects;
  std::vector<CallsSpec> calls;
  std::vector<std::vector<NodeId>> lists;  // alternatives and sequences
  NodeId start = kNoNode;

  NodeId add(NodeKind kind, size_t index) {
    nodes.push_back({kind, static_cast<uint32_t>(index)});
    return static_cast<NodeId>(nodes.size() - 1);
  }
  NodeId add_symbols(std::vector<Symbol> sequence);
  NodeId add_dfa(Dfa dfa);
  NodeId add_free(std::optional<uint32_t> bytes_max);
  NodeId add_string(StringSpec spec);
  NodeId add_list(NodeKind kind, std::vector<NodeId> list);

  // Fills in Node::height. What stays at UINT32_MAX has no finite member.
  void compute_heights();
};

// Deepest nesting that the acceptor enters.
inline constexpr uint32_t kDepthMax = 192;

}  // namespace weft::text::grammar
