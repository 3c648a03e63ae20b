#include "text/grammar/automaton.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/utf8.h"

namespace weft::text::grammar {
namespace {

using StateSet = std::vector<Nfa::State>;  // sorted

void close_over_epsilon(const Nfa& nfa, StateSet* set) {
  std::vector<Nfa::State> work = *set;
  std::vector<Nfa::State> all = *set;
  std::sort(all.begin(), all.end());
  while (!work.empty()) {
    const Nfa::State state = work.back();
    work.pop_back();
    for (Nfa::State to : nfa.states()[state].epsilon) {
      const auto place = std::lower_bound(all.begin(), all.end(), to);
      if (place != all.end() && *place == to) continue;
      all.insert(place, to);
      work.push_back(to);
    }
  }
  *set = std::move(all);
}

Error too_large() {
  return make_error(ErrorCode::kInvalid,
                    "the pattern or enumeration needs more than {} automaton states; simplify it",
                    Dfa::kStatesMax);
}

// Removes states that cannot reach acceptance, so that every live prefix can be finished.
void trim(Dfa* dfa) {
  const size_t count = dfa->next.size();
  std::vector<std::vector<uint16_t>> back(count);
  for (size_t s = 0; s < count; ++s)
    for (uint16_t to : dfa->next[s])
      if (to != Dfa::kDead && (back[to].empty() || back[to].back() != s))
        back[to].push_back(static_cast<uint16_t>(s));
  std::vector<uint8_t> live(dfa->accepting.begin(), dfa->accepting.end());
  std::vector<uint16_t> work;
  for (size_t s = 0; s < count; ++s)
    if (live[s]) work.push_back(static_cast<uint16_t>(s));
  while (!work.empty()) {
    const uint16_t state = work.back();
    work.pop_back();
    for (uint16_t from : back[state])
      if (!live[from]) {
        live[from] = 1;
        work.push_back(from);
      }
  }
  for (auto& row : dfa->next)
    for (uint16_t& to : row)
      if (to != Dfa::kDead && !live[to]) to = Dfa::kDead;
  if (dfa->start != Dfa::kDead && !live[dfa->start]) dfa->start = Dfa::kDead;
}

std::array<uint16_t, 256> dead_row() {
  std::array<uint16_t, 256> row;
  row.fill(Dfa::kDead);
  return row;
}

// Numbers new states by a key, building each once.
template <class Key>
class StateTable {
 public:
  explicit StateTable(Dfa* dfa) : dfa_(dfa) {}
  std::optional<uint16_t> get(const Key& key) {
    const auto [place, fresh] = ids_.emplace(key, static_cast<uint16_t>(dfa_->next.size()));
    if (!fresh) return place->second;
    if (dfa_->next.size() >= Dfa::kStatesMax) return std::nullopt;
    dfa_->next.push_back(dead_row());
    dfa_->accepting.push_back(0);
    order_.push_back(key);
    return place->second;
  }
  size_t size() const { return order_.size(); }
  const Key& key(size_t id) const { return order_[id]; }

 private:
  Dfa* dfa_;
  std::map<Key, uint16_t> ids_;
  std::vector<Key> order_;
};

}  // namespace

Nfa::State Nfa::add_text(State from, std::string_view bytes) {
  for (char c : bytes) {
    const State to = add_state();
    add_edge(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    from = to;
  }
  return from;
}

void Nfa::add_code_points(State from, char32_t low, char32_t high, State to) {
  // Split where the encoded length changes, around the surrogates, and where a common prefix ends.
  constexpr std::array<char32_t, 5> kEnds = {0x7F, 0x7FF, 0xD7FF, 0xFFFF, 0x10FFFF};
  for (char32_t end : kEnds) {
    if (low > high) return;
    if (low >= 0xD800 && low <= 0xDFFF) low = 0xE000;
    if (low > end) continue;
    char32_t top = std::min(high, end);
    const int tail = top <= 0x7F ? 0 : top <= 0x7FF ? 1 : top <= 0xFFFF ? 2 : 3;
    for (int i = 1; i <= tail && low <= top;) {
      const char32_t span = (char32_t{1} << (6 * i)) - 1;
      if ((low & ~span) != (top & ~span)) {
        if ((low & span) != 0) {
          add_code_points(from, low, low | span, to);
          low = (low | span) + 1;
          i = 1;
          continue;
        }
        if ((top & span) != span) {
          add_code_points(from, top & ~span, top, to);
          top = (top & ~span) - 1;
          i = 1;
          continue;
        }
      }
      ++i;
    }
    if (low <= top) {
      std::string first, last;
      append_utf8(first, low);
      append_utf8(last, top);
      State at = from;
      for (size_t i = 0; i < first.size(); ++i) {
        const State next = i + 1 == first.size() ? to : add_state();
        add_edge(at, static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]), next);
        at = next;
      }
    }
    if (high <= end) return;
    low = end + 1;
  }
}

bool Dfa::matches(std::string_view bytes) const {
  uint16_t state = start;
  for (size_t i = 0; i < bytes.size() && state != kDead; ++i)
    state = next[state][static_cast<uint8_t>(bytes[i])];
  return state != kDead && accepting[state] != 0;
}

Result<Dfa> determinize(const Nfa& nfa, Nfa::State start, Nfa::State accept) {
  if (nfa.full()) return too_large();
  Dfa dfa;
  StateTable<StateSet> table(&dfa);
  StateSet first = {start};
  close_over_epsilon(nfa, &first);
  dfa.start = *table.get(first);
  for (size_t id = 0; id < table.size(); ++id) {
    const StateSet set = table.key(id);
    dfa.accepting[id] = std::binary_search(set.begin(), set.end(), accept) ? 1 : 0;
    // Only bytes where an edge begins or ends can change the target.
    std::array<bool, 257> cut{};
    cut[0] = true;
    for (Nfa::State s : set)
      for (const Nfa::Edge& edge : nfa.states()[s].edges) {
        cut[edge.low] = true;
        cut[static_cast<size_t>(edge.high) + 1] = true;
      }
    for (size_t low = 0; low < 256;) {
      size_t high = low + 1;
      while (high < 256 && !cut[high]) ++high;
      StateSet target;
      for (Nfa::State s : set)
        for (const Nfa::Edge& edge : nfa.states()[s].edges)
          if (edge.low <= low && low <= edge.high) target.push_back(edge.to);
      if (!target.empty()) {
        std::sort(target.begin(), target.end());
        target.erase(std::unique(target.begin(), target.end()), target.end());
        close_over_epsilon(nfa, &target);
        const auto to = table.get(target);
        if (!to) return too_large();
        for (size_t b = low; b < high; ++b) dfa.next[id][b] = *to;
      }
      low = high;
    }
  }
  trim(&dfa);
  return dfa;
}

Result<Dfa> limit_length(const Dfa& dfa, uint32_t min, std::optional<uint32_t> max) {
  if (dfa.empty()) return dfa;
  Dfa out;
  StateTable<std::pair<uint16_t, uint32_t>> table(&out);
  const uint32_t cap = max ? *max : min;  // without a maximum, counting stops at the minimum
  out.start = *table.get({dfa.start, 0});
  for (size_t id = 0; id < table.size(); ++id) {
    const auto [state, length] = table.key(id);
    out.accepting[id] = dfa.accepting[state] != 0 && length >= min ? 1 : 0;
    for (size_t b = 0; b < 256; ++b) {
      const uint16_t to = dfa.next[state][b];
      if (to == Dfa::kDead) continue;
      const bool starts = (b & 0xC0) != 0x80;
      if (starts && max && length == *max) continue;
      const auto next = table.get({to, std::min(cap, length + (starts ? 1u : 0u))});
      if (!next) return too_large();
      out.next[id][b] = *next;
    }
  }
  trim(&out);
  return out;
}

Result<Dfa> json_escaped(const Dfa& dfa) {
  if (dfa.empty()) return dfa;
  const size_t count = dfa.next.size();
  Dfa out = dfa;
  // State count + s: after a backslash in state s.
  for (size_t s = 0; s < count; ++s) {
    out.next.push_back(dead_row());
    out.accepting.push_back(0);
    auto& plain = out.next[s];
    for (size_t b = 0; b < 0x20; ++b) plain[b] = Dfa::kDead;
    plain['"'] = Dfa::kDead;
    plain['\\'] = static_cast<uint16_t>(count + s);
    constexpr std::array<std::pair<char, char>, 7> kEscapes = {{{'"', '"'},
                                                                {'\\', '\\'},
                                                                {'b', '\b'},
                                                                {'f', '\f'},
                                                                {'n', '\n'},
                                                                {'r', '\r'},
                                                                {'t', '\t'}}};
    for (const auto& [letter, byte] : kEscapes)
      out.next[count + s][static_cast<uint8_t>(letter)] = dfa.next[s][static_cast<uint8_t>(byte)];
  }
  trim(&out);
  return out;
}

uint8_t utf8_next(uint8_t state, uint8_t byte) {
  // 1..3: that many continuation bytes to come; 4..7: after E0, ED, F0, F4, whose second byte is
  // restricted.
  const bool continuation = (byte & 0xC0) == 0x80;
  switch (state) {
    case 0:
      if (byte < 0x80) return 0;
      if (byte >= 0xC2 && byte <= 0xDF) return 1;
      if (byte == 0xE0) return 4;
      if (byte == 0xED) return 5;
      if (byte >= 0xE1 && byte <= 0xEF) return 2;
      if (byte == 0xF0) return 6;
      if (byte == 0xF4) return 7;
      if (byte >= 0xF1 && byte <= 0xF3) return 3;
      return kUtf8Bad;
    case 1:
      return continuation ? 0 : kUtf8Bad;
    case 2:
      return continuation ? 1 : kUtf8Bad;
    case 3:
      return continuation ? 2 : kUtf8Bad;
    case 4:
      return continuation && byte >= 0xA0 ? 1 : kUtf8Bad;
    case 5:
      return continuation && byte <= 0x9F ? 1 : kUtf8Bad;
    case 6:
      return continuation && byte >= 0x90 ? 2 : kUtf8Bad;
    case 7:
      return continuation && byte <= 0x8F ? 2 : kUtf8Bad;
    default:
      return kUtf8Bad;
  }
}

}  // namespace weft::text::grammar
