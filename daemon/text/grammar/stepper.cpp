#include "text/grammar/stepper.h"

#include <algorithm>

namespace weft::text::grammar {
namespace {

// States of kString.
enum StringState : uint32_t {
  kQuote,
  kText,
  kEscape,
  kHex1,
  kHex2,
  kHex2Low,
  kHex3,
  kHex4,
  kStringDone
};
// States of kArray; count is the number of elements begun.
enum ArrayState : uint32_t { kBracket, kFirstItem, kItemDone, kItemGap, kItem, kArrayDone };

bool is_hex(uint8_t b) {
  return (b >= '0' && b <= '9') || (b >= 'a' && b <= 'f') || (b >= 'A' && b <= 'F');
}

bool string_complete(const StringSpec& spec, const Frame& frame) {
  if (spec.json) return frame.state == kStringDone;
  return frame.pos == kUtf8Start && frame.count >= spec.min;
}

bool same_seen(const Frame& a, const Frame& b) {
  if (a.seen == b.seen) return true;
  return a.seen != nullptr && b.seen != nullptr && *a.seen == *b.seen;
}

}  // namespace

bool same_place(const Frame& first, const Frame& second) {
  const Frame* a = &first;
  const Frame* b = &second;
  while (a != b) {
    if (a == nullptr || b == nullptr) return false;
    if (a->node != b->node || a->state != b->state || a->pos != b->pos || a->count != b->count ||
        a->aux != b->aux || a->aux2 != b->aux2 || a->depth != b->depth || !same_seen(*a, *b))
      return false;
    a = a->parent.get();
    b = b->parent.get();
  }
  return true;
}

void Stepper::keep(Frame frame) {
  for (const Frame& other : *out_)
    if (same_place(frame, other)) return;
  // Beyond the limit a reading is dropped. The others are all able to finish, so the language only
  // gets smaller.
  if (out_->size() < Acceptor::kThreadsMax) out_->push_back(std::move(frame));
}

void Stepper::leave(const Frame& frame, Symbol symbol) {
  if (frame.parent != nullptr) step(*frame.parent, symbol);
}

bool Stepper::fits(NodeId node, uint32_t parent_depth) const {
  if (node == kNoNode) return false;
  const uint32_t height = program_.nodes[node].height;
  return height != UINT32_MAX && parent_depth + height <= kDepthMax;
}

void Stepper::enter(NodeId node, FramePtr parent, Symbol symbol) {
  const uint32_t depth = parent == nullptr ? 0 : parent->depth;
  if (!fits(node, depth)) return;
  const Node& n = program_.nodes[node];
  if (n.kind == NodeKind::kAlternatives) {
    for (NodeId child : program_.lists[n.index]) enter(child, parent, symbol);
    return;
  }
  Frame frame;
  frame.node = node;
  frame.depth = depth + 1;
  frame.parent = std::move(parent);
  if (n.kind == NodeKind::kDfa) frame.state = program_.dfas[n.index].start;
  if (n.kind == NodeKind::kString && !program_.strings[n.index].json) frame.state = kText;
  step(frame, symbol);
}

void Stepper::enter_child(const Frame& frame, uint32_t after_state, NodeId child, Symbol symbol) {
  auto parent = std::make_shared<Frame>(frame);
  parent->state = after_state;
  parent->pos = 0;
  enter(child, std::move(parent), symbol);
}

void Stepper::step(const Frame& frame, Symbol symbol) {
  const Node& node = program_.nodes[frame.node];
  switch (node.kind) {
    case NodeKind::kSymbols:
      return step_symbols(frame, symbol);
    case NodeKind::kDfa:
      return step_dfa(frame, symbol);
    case NodeKind::kFree:
      return step_free(frame, symbol);
    case NodeKind::kString:
      return step_string(frame, symbol);
    case NodeKind::kArray:
      return step_array(frame, symbol);
    case NodeKind::kObject:
      return step_object(frame, symbol);
    case NodeKind::kArguments:
      return step_arguments(frame, symbol);
    case NodeKind::kCalls:
      return step_calls(frame, symbol);
    case NodeKind::kAlternatives:
      return enter(frame.node, frame.parent, symbol);
    case NodeKind::kSequence: {
      const auto& list = program_.lists[node.index];
      if (frame.state >= list.size()) return leave(frame, symbol);
      return enter_child(frame, frame.state + 1, list[frame.state], symbol);
    }
  }
}

void Stepper::step_symbols(const Frame& frame, Symbol symbol) {
  const auto& sequence = program_.symbols[program_.nodes[frame.node].index];
  if (frame.state >= sequence.size()) return leave(frame, symbol);
  if (sequence[frame.state] != symbol) return;
  Frame next = frame;
  ++next.state;
  keep(std::move(next));
}

void Stepper::step_dfa(const Frame& frame, Symbol symbol) {
  const Dfa& dfa = program_.dfas[program_.nodes[frame.node].index];
  if (symbol < 256) {
    const uint16_t to = dfa.next[frame.state][symbol];
    if (to != Dfa::kDead) {
      Frame next = frame;
      next.state = to;
      keep(std::move(next));
    }
  }
  if (dfa.accepting[frame.state] != 0) leave(frame, symbol);
}

void Stepper::step_free(const Frame& frame, Symbol symbol) {
  if (symbol >= 256) return leave(frame, symbol);
  const auto& limit = program_.frees[program_.nodes[frame.node].index].bytes_max;
  if (limit && frame.count >= *limit) return;
  Frame next = frame;
  if (limit) ++next.count;
  keep(std::move(next));
}

bool Stepper::escape_char(Frame* next, uint8_t byte) {
  switch (next->state) {
    case kEscape:
      if (byte == 'u') return next->state = kHex1, true;
      next->state = kText;
      return std::string_view("\"\\/bfnrt").find(static_cast<char>(byte)) != std::string_view::npos;
    case kHex1:
      // A surrogate alone is no character, and a pair can be written as it is: D must be followed
      // by 0 to 7.
      next->state = byte == 'd' || byte == 'D' ? kHex2Low : kHex2;
      return is_hex(byte);
    case kHex2Low:
      next->state = kHex3;
      return byte >= '0' && byte <= '7';
    case kHex2:
      next->state = kHex3;
      return is_hex(byte);
    case kHex3:
      next->state = kHex4;
      return is_hex(byte);
    case kHex4:
      next->state = kText;
      return is_hex(byte);
    default:
      return false;
  }
}

// pos is the UTF-8 state, count the code points begun.
void Stepper::step_string(const Frame& frame, Symbol symbol) {
  const StringSpec& spec = program_.strings[program_.nodes[frame.node].index];
  if (symbol >= 256 || (spec.json && frame.state == kStringDone)) {
    if (string_complete(spec, frame)) leave(frame, symbol);
    return;
  }
  const auto byte = static_cast<uint8_t>(symbol);
  Frame next = frame;
  if (spec.json && frame.state == kQuote) {
    if (byte != '"') return;
    next.state = kText;
    return keep(std::move(next));
  }
  if (frame.state != kText) {
    if (escape_char(&next, byte)) keep(std::move(next));
    return;
  }
  if (spec.json && byte == '"' && frame.pos == kUtf8Start) {
    if (frame.count < spec.min) return;
    next.state = kStringDone;
    return keep(std::move(next));
  }
  if (spec.json && byte < 0x20) return;
  const bool begins = frame.pos == kUtf8Start;
  const uint8_t utf8 = utf8_next(static_cast<uint8_t>(frame.pos), byte);
  if (utf8 == kUtf8Bad || (begins && spec.max && frame.count >= *spec.max)) return;
  next.pos = utf8;
  // Without a maximum, counting beyond the minimum would only multiply places.
  if (begins && (spec.max || frame.count < spec.min)) ++next.count;
  if (spec.json && byte == '\\') next.state = kEscape;
  keep(std::move(next));
}

void Stepper::step_array(const Frame& frame, Symbol symbol) {
  const ArraySpec& spec = program_.arrays[program_.nodes[frame.node].index];
  const auto item = [&] {
    const NodeId node = frame.count < spec.prefix.size() ? spec.prefix[frame.count] : spec.items;
    Frame begun = frame;
    ++begun.count;
    enter_child(begun, kItemDone, node, symbol);
  };
  const auto move = [&](ArrayState state) {
    Frame next = frame;
    next.state = state;
    keep(std::move(next));
  };
  const NodeId following = frame.count < spec.prefix.size() ? spec.prefix[frame.count] : spec.items;
  const bool more = (!spec.max || frame.count < *spec.max) && fits(following, frame.depth);
  switch (frame.state) {
    case kBracket:
      if (symbol == '[') move(kFirstItem);
      return;
    case kFirstItem:
      if (symbol == ']' && spec.min == 0) return move(kArrayDone);
      if (more) item();
      return;
    case kItemDone:
      if (symbol == ']' && frame.count >= spec.min) return move(kArrayDone);
      if (symbol == ',' && more) move(kItemGap);
      return;
    case kItemGap:
      if (symbol == ' ') return move(kItem);
      [[fallthrough]];
    case kItem:
      return item();
    default:
      return leave(frame, symbol);
  }
}

bool Stepper::between_characters(const Frame& string) {
  return string.state == kText && string.pos == kUtf8Start;
}

std::optional<uint32_t> Stepper::text_left(const StringSpec& spec, const Frame& frame) {
  if (!between_characters(frame)) return 0;
  if (!spec.max) return std::nullopt;
  return *spec.max - frame.count;
}

bool Stepper::may_end(const Program& program, const Frame& frame) {
  const Node& node = program.nodes[frame.node];
  bool complete = false;
  switch (node.kind) {
    case NodeKind::kSymbols:
      complete = frame.state >= program.symbols[node.index].size();
      break;
    case NodeKind::kDfa:
      complete = program.dfas[node.index].accepting[frame.state] != 0;
      break;
    case NodeKind::kFree:
      complete = true;
      break;
    case NodeKind::kString:
      complete = string_complete(program.strings[node.index], frame);
      break;
    case NodeKind::kSequence:
      complete = frame.state >= program.lists[node.index].size();
      break;
    case NodeKind::kArray:
      complete = frame.state == kArrayDone;
      break;
    default:
      break;  // objects and calls are always followed by a structural token
  }
  return complete && (frame.parent == nullptr || may_end(program, *frame.parent));
}

}  // namespace weft::text::grammar
