// The second half of Stepper: keys and calls. A key is followed in the tree of declared keys and,
// where other keys are allowed, as free text beside it; the closing quote decides.
#include <fmt/format.h>

#include <algorithm>

#include "text/grammar/stepper.h"

namespace weft::text::grammar {
namespace {

// States of kObject.
enum ObjectState : uint32_t {
  kBrace,
  kFirstKey,
  kKey,
  kColon,
  kGap,
  kValue,
  kMemberDone,
  kKeyGap,
  kNextKey,
  kObjectDone
};
// States of kArguments.
enum ArgumentState : uint32_t {
  kBetween,
  kArgumentTag,
  kArgumentKey,
  kTypeTag,
  kTypeName,
  kBodySep,
  kBodyDone
};
// States of kCalls; count is the number of calls begun.
enum CallState : uint32_t { kBetweenCalls, kCallTag, kCallName, kCallIndex, kCallSep, kCallDone };

constexpr std::string_view kArgumentTagText = "argument key=\"";
constexpr std::string_view kTypeTagText = " type=\"";
constexpr std::string_view kCallTagText = "call tool=\"";
constexpr int32_t kOtherKey = -1;

// Progress of a key as free text, in Frame::aux: a UTF-8 state, or one of these.
constexpr int32_t kExtraEscape = 100;
constexpr int32_t kExtraDead = 101;

// Keys outside the declared ones are written in one way only, so that none can be a declared key in
// disguise: JSON keys use short escapes, attribute keys hold neither quotes nor ampersands.
int32_t extra_next(int32_t state, uint8_t byte, bool json) {
  if (state == kExtraDead) return kExtraDead;
  if (state == kExtraEscape)
    return std::string_view("\"\\bfnrt").find(static_cast<char>(byte)) == std::string_view::npos
               ? kExtraDead
               : kUtf8Start;
  if (byte < 0x20 || (!json && byte == '&')) return kExtraDead;
  if (json && byte == '\\') return state == kUtf8Start ? kExtraEscape : kExtraDead;
  const uint8_t next = utf8_next(static_cast<uint8_t>(state), byte);
  return next == kUtf8Bad ? kExtraDead : next;
}

bool was_seen(const Frame& frame, size_t property) {
  return frame.seen != nullptr && (((*frame.seen)[property / 64] >> (property % 64)) & 1) != 0;
}

}  // namespace

bool Stepper::value_fits(const ValueSpec& value, bool json, uint32_t depth) const {
  if (json) return fits(value.json, depth);
  return std::any_of(value.body.begin(), value.body.end(),
                     [&](NodeId id) { return fits(id, depth); });
}

// How many members beyond the required ones may still come. Frame::count: members begun; aux2:
// required ones among them.
uint32_t Stepper::slack(const Frame& frame, const ObjectSpec& spec) {
  if (!spec.max) return UINT32_MAX;
  const uint32_t reserved = frame.count + (spec.required - frame.aux2);
  return *spec.max > reserved ? *spec.max - reserved : 0;
}

bool Stepper::may_use(const Frame& frame, const ObjectSpec& spec, size_t property,
                      bool json) const {
  const auto& p = spec.properties[property];
  return !was_seen(frame, property) && (p.required || slack(frame, spec) > 0) &&
         value_fits(p.value, json, frame.depth);
}
bool Stepper::may_use_extra(const Frame& frame, const ObjectSpec& spec, bool json) const {
  return spec.open && slack(frame, spec) > 0 && value_fits(spec.extra, json, frame.depth);
}
bool Stepper::may_use_any(const Frame& frame, const ObjectSpec& spec, bool json) const {
  if (may_use_extra(frame, spec, json)) return true;
  for (size_t i = 0; i < spec.properties.size(); ++i)
    if (may_use(frame, spec, i, json)) return true;
  return false;
}
bool Stepper::complete(const Frame& frame, const ObjectSpec& spec) {
  return frame.aux2 == spec.required && frame.count >= spec.min;
}

bool Stepper::takes_any_key(const Frame& frame) const {
  const Node& node = program_.nodes[frame.node];
  const bool json = node.kind == NodeKind::kObject && frame.state == kKey;
  const bool attribute = node.kind == NodeKind::kArguments && frame.state == kArgumentKey;
  return (json || attribute) && frame.aux == kUtf8Start &&
         may_use_extra(frame, program_.objects[node.index], json);
}

Stepper::KeyStep Stepper::step_key(const Frame& frame, const ObjectSpec& spec, bool json,
                                   uint8_t byte, Frame* next, int32_t* chosen) const {
  const bool extra = may_use_extra(frame, spec, json);
  // A spelled key holds a quote only after a backslash.
  const bool escaped =
      frame.aux == kExtraEscape || spec.trie.child(frame.pos, '"') != KeyTrie::kOff;
  if (byte == '"' && !escaped) {
    const int32_t key = frame.pos == KeyTrie::kOff ? -1 : spec.trie.node(frame.pos).key;
    if (key >= 0) {
      *chosen = key;
      return may_use(frame, spec, static_cast<size_t>(key), json) ? KeyStep::kChosen
                                                                  : KeyStep::kRefused;
    }
    // An argument without a key would be lost, so other keys of calls are not empty.
    const bool begun = json || frame.pos != 0;
    *chosen = kOtherKey;
    return extra && begun && frame.aux == kUtf8Start ? KeyStep::kChosen : KeyStep::kRefused;
  }
  next->pos = spec.trie.child(frame.pos, byte);
  next->aux = extra ? extra_next(frame.aux, byte, json) : kExtraDead;
  if (next->aux != kExtraDead) return KeyStep::kGoesOn;
  if (next->pos == KeyTrie::kOff) return KeyStep::kRefused;
  const auto& below = spec.trie.node(next->pos);
  for (uint32_t i = below.low; i < below.high; ++i)
    if (may_use(frame, spec, i, json)) return KeyStep::kGoesOn;
  return KeyStep::kRefused;
}

void Stepper::mark(Frame* frame, const ObjectSpec& spec, int32_t property) const {
  // Beyond every bound the number of members no longer matters.
  if (spec.max || frame->count < spec.min) ++frame->count;
  frame->aux = property;
  frame->pos = 0;
  if (property < 0) return;
  const auto index = static_cast<size_t>(property);
  auto seen = frame->seen == nullptr ? std::vector<uint64_t>((spec.properties.size() + 63) / 64)
                                     : *frame->seen;
  seen[index / 64] |= uint64_t{1} << (index % 64);
  frame->seen = std::make_shared<const std::vector<uint64_t>>(std::move(seen));
  if (spec.properties[index].required) ++frame->aux2;
}

void Stepper::step_object(const Frame& frame, Symbol symbol) {
  const ObjectSpec& spec = program_.objects[program_.nodes[frame.node].index];
  if (frame.state == kObjectDone) return leave(frame, symbol);
  if (symbol >= 256) return;
  const auto byte = static_cast<uint8_t>(symbol);
  Frame next = frame;
  const auto move = [&](uint32_t state) {
    next.state = state;
    keep(std::move(next));
  };
  const auto begin_key = [&] {
    next.pos = 0;
    next.aux = kUtf8Start;
    move(kKey);
  };
  switch (frame.state) {
    case kBrace:
      if (byte == '{') move(kFirstKey);
      return;
    case kFirstKey:
      if (byte == '}' && complete(frame, spec)) return move(kObjectDone);
      if (byte == '"' && may_use_any(frame, spec, true)) begin_key();
      return;
    case kKey: {
      int32_t chosen = kOtherKey;
      const KeyStep result = step_key(frame, spec, true, byte, &next, &chosen);
      if (result == KeyStep::kRefused) return;
      if (result == KeyStep::kChosen) {
        mark(&next, spec, chosen);
        next.state = kColon;
      }
      return keep(std::move(next));
    }
    case kColon:
      if (byte == ':') move(kGap);
      return;
    case kGap:
      if (byte == ' ') return move(kValue);
      [[fallthrough]];
    case kValue: {
      const NodeId value = frame.aux < 0
                               ? spec.extra.json
                               : spec.properties[static_cast<size_t>(frame.aux)].value.json;
      return enter_child(frame, kMemberDone, value, symbol);
    }
    case kMemberDone:
      if (byte == '}' && complete(frame, spec)) return move(kObjectDone);
      if (byte == ',' && may_use_any(frame, spec, true)) move(kKeyGap);
      return;
    case kKeyGap:
      if (byte == ' ') return move(kNextKey);
      [[fallthrough]];
    default:
      if (byte == '"') begin_key();
      return;
  }
}

// The next byte of a fixed text; after its last byte the frame goes to `next_state`.
bool Stepper::literal(const Frame& frame, std::string_view text, Symbol symbol, uint32_t next_state,
                      Frame* next) const {
  if (symbol != static_cast<uint8_t>(text[frame.pos])) return false;
  ++next->pos;
  if (next->pos == text.size()) {
    next->pos = 0;
    next->state = next_state;
  }
  return true;
}

void Stepper::step_type(const Frame& frame, const ObjectSpec& spec, uint8_t byte) {
  // pos packs how many bytes were read (low byte) and which words are still possible (above).
  const ValueSpec& value =
      frame.aux < 0 ? spec.extra : spec.properties[static_cast<size_t>(frame.aux)].value;
  const uint32_t length = frame.pos & 0xFF;
  const uint32_t words = length == 0 ? (1u << kTypeCount) - 1 : frame.pos >> 8;
  uint32_t left = 0;
  for (size_t t = 0; t < kTypeCount; ++t) {
    if ((words >> t & 1) == 0 || !fits(value.body[t], frame.depth)) continue;
    const std::string_view name = kTypeNames[t];
    const bool end = byte == '"' && name.size() == length;
    if (end || (length < name.size() && static_cast<uint8_t>(name[length]) == byte))
      left |= 1u << t;
  }
  if (left == 0) return;
  Frame next = frame;
  next.pos = left << 8 | (length + 1);
  if (byte == '"') next.state = kBodySep;
  keep(std::move(next));
}

void Stepper::step_arguments(const Frame& frame, Symbol symbol) {
  const ObjectSpec& spec = program_.objects[program_.nodes[frame.node].index];
  Frame next = frame;
  switch (frame.state) {
    case kBetween:
      if (symbol == kOpenToken && may_use_any(frame, spec, false)) {
        next.state = kArgumentTag;
        next.pos = 0;
        keep(std::move(next));
      }
      if (complete(frame, spec)) leave(frame, symbol);
      return;
    case kArgumentTag:
      next.aux = kUtf8Start;
      if (literal(frame, kArgumentTagText, symbol, kArgumentKey, &next)) keep(std::move(next));
      return;
    case kArgumentKey: {
      if (symbol >= 256) return;
      int32_t chosen = kOtherKey;
      const KeyStep result =
          step_key(frame, spec, false, static_cast<uint8_t>(symbol), &next, &chosen);
      if (result == KeyStep::kRefused) return;
      if (result == KeyStep::kChosen) {
        mark(&next, spec, chosen);
        next.state = kTypeTag;
      }
      return keep(std::move(next));
    }
    case kTypeTag:
      if (literal(frame, kTypeTagText, symbol, kTypeName, &next)) keep(std::move(next));
      return;
    case kTypeName:
      if (symbol < 256) step_type(frame, spec, static_cast<uint8_t>(symbol));
      return;
    case kBodySep:
      if (symbol != kSepToken) return;
      next.state = kBodyDone;
      return keep(std::move(next));
    default:
      break;
  }
  // kBodyDone: pos still holds the chosen type until the body was entered, then counts through the
  // closing tag.
  const uint32_t chosen_type = frame.pos >> 8;
  if (chosen_type != 0) {
    const ValueSpec& value =
        frame.aux < 0 ? spec.extra : spec.properties[static_cast<size_t>(frame.aux)].value;
    for (size_t t = 0; t < kTypeCount; ++t)
      if ((chosen_type >> t & 1) != 0) enter_child(frame, kBodyDone, value.body[t], symbol);
    return;
  }
  constexpr std::string_view kEnd = "argument";
  const bool fine = frame.pos == 0             ? symbol == kCloseToken
                    : frame.pos <= kEnd.size() ? symbol == static_cast<uint8_t>(kEnd[frame.pos - 1])
                                               : symbol == kSepToken;
  if (!fine) return;
  ++next.pos;
  if (symbol == kSepToken) {
    next.state = kBetween;
    next.pos = 0;
    next.aux = 0;
  }
  keep(std::move(next));
}

// aux is the chosen tool.
void Stepper::step_calls(const Frame& frame, Symbol symbol) {
  const CallsSpec& spec = program_.calls[program_.nodes[frame.node].index];
  Frame next = frame;
  switch (frame.state) {
    case kBetweenCalls:
      if (symbol == kOpenToken && frame.count < spec.max) {
        next.state = kCallTag;
        ++next.count;
        keep(std::move(next));
      }
      if (frame.count > 0) leave(frame, symbol);
      return;
    case kCallTag:
      if (literal(frame, kCallTagText, symbol, kCallName, &next)) keep(std::move(next));
      return;
    case kCallName: {
      if (symbol >= 256) return;
      const auto& at = spec.trie.node(frame.pos);
      if (symbol == '"' && at.key >= 0 &&
          fits(spec.arguments[static_cast<size_t>(at.key)], frame.depth)) {
        next.aux = at.key;
        next.state = kCallIndex;
        next.pos = 0;
        return keep(std::move(next));
      }
      next.pos = spec.trie.child(frame.pos, static_cast<uint8_t>(symbol));
      if (next.pos == KeyTrie::kOff) return;
      const auto& below = spec.trie.node(next.pos);
      for (uint32_t i = below.low; i < below.high; ++i)
        if (fits(spec.arguments[i], frame.depth)) return keep(std::move(next));
      return;
    }
    case kCallIndex:
      if (literal(frame, fmt::format(" index=\"{}\"", frame.count), symbol, kCallSep, &next))
        keep(std::move(next));
      return;
    case kCallSep:
      if (symbol != kSepToken) return;
      next.state = kCallDone;
      next.aux2 = 1;  // the arguments come next
      return keep(std::move(next));
    default:
      break;
  }
  if (frame.aux2 != 0) {
    Frame begun = frame;
    begun.aux2 = 0;
    return enter_child(begun, kCallDone, spec.arguments[static_cast<size_t>(frame.aux)], symbol);
  }
  constexpr std::string_view kEnd = "call";
  const bool fine = frame.pos == 0             ? symbol == kCloseToken
                    : frame.pos <= kEnd.size() ? symbol == static_cast<uint8_t>(kEnd[frame.pos - 1])
                                               : symbol == kSepToken;
  if (!fine) return;
  ++next.pos;
  if (symbol == kSepToken) {
    next.state = kBetweenCalls;
    next.pos = 0;
    next.aux = 0;
  }
  keep(std::move(next));
}

}  // namespace weft::text::grammar
