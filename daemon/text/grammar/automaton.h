// Byte automata for the parts of a grammar that are regular: patterns, integer ranges,
// enumerations, numbers. An Nfa is built piece by piece, then turned into a Dfa whose every state
// can still reach acceptance.
//
// Sizes are bounded: a pattern that would need too many states is refused. Values; no sharing while
// built.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::text::grammar {

class Nfa {
 public:
  static constexpr size_t kStatesMax = 40'000;
  using State = uint32_t;

  State add_state() {
    states_.emplace_back();
    return static_cast<State>(states_.size() - 1);
  }
  void add_edge(State from, uint8_t low, uint8_t high, State to) {
    states_[from].edges.push_back({low, high, to});
  }
  void add_epsilon(State from, State to) { states_[from].epsilon.push_back(to); }
  // A chain of the bytes from `from`; returns its end.
  State add_text(State from, std::string_view bytes);
  // One code point of [low, high], as UTF-8.
  void add_code_points(State from, char32_t low, char32_t high, State to);
  bool full() const { return states_.size() > kStatesMax; }

  struct Edge {
    uint8_t low;
    uint8_t high;
    State to;
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<State> epsilon;
  };
  const std::vector<Node>& states() const { return states_; }

 private:
  std::vector<Node> states_;
};

struct Dfa {
  static constexpr uint16_t kDead = 0xFFFF;
  static constexpr size_t kStatesMax = 16'384;

  std::vector<std::array<uint16_t, 256>> next;
  std::vector<uint8_t> accepting;
  uint16_t start = kDead;  // kDead: the language is empty

  bool empty() const { return start == kDead; }
  bool matches(std::string_view bytes) const;
};

// Fails when the automaton has too many states.
Result<Dfa> determinize(const Nfa& nfa, Nfa::State start, Nfa::State accept);
// The strings of `dfa` whose number of code points lies in the range. Fails when that is too large.
Result<Dfa> limit_length(const Dfa& dfa, uint32_t min, std::optional<uint32_t> max);
// The JSON spellings of the strings of `dfa`, without quotes: `"`, `\` and control characters as
// short escapes, everything else as it is.
Result<Dfa> json_escaped(const Dfa& dfa);

// Whole numbers in decimal without leading zeros or plus sign; an absent bound is open.
void add_integer_range(Nfa& nfa, Nfa::State from, Nfa::State to, std::optional<int64_t> min,
                       std::optional<int64_t> max);
// A JSON number.
void add_number(Nfa& nfa, Nfa::State from, Nfa::State to);

// UTF-8 well-formedness, byte by byte: 0 is between code points.
inline constexpr uint8_t kUtf8Start = 0;
inline constexpr uint8_t kUtf8Bad = 0xFF;
uint8_t utf8_next(uint8_t state, uint8_t byte);

}  // namespace weft::text::grammar
