// Decimal automata: a range of whole numbers is a union over digit counts, and within one count a
// walk that remembers whether the digits so far equal those of the lower or the upper bound.
#include <algorithm>
#include <string>

#include "text/grammar/automaton.h"

namespace weft::text::grammar {
namespace {

class MagnitudeRange {
 public:
  MagnitudeRange(Nfa& nfa, Nfa::State from, Nfa::State to) : nfa_(nfa), from_(from), to_(to) {}

  void add(uint64_t min, std::optional<uint64_t> max) {
    const std::string low = std::to_string(min);
    if (!max) {
      add_same_length(low, std::string(low.size(), '9'));
      add_longer_than(low.size());
      return;
    }
    const std::string high = std::to_string(*max);
    for (size_t length = low.size(); length <= high.size(); ++length)
      add_same_length(length == low.size() ? low : "1" + std::string(length - 1, '0'),
                      length == high.size() ? high : std::string(length, '9'));
  }

 private:
  void add_longer_than(size_t length) {
    Nfa::State at = nfa_.add_state();
    nfa_.add_edge(from_, '1', '9', at);
    for (size_t i = 0; i < length; ++i) at = digit(at);
    nfa_.add_edge(at, '0', '9', at);
    nfa_.add_epsilon(at, to_);
  }
  Nfa::State digit(Nfa::State at) {
    const Nfa::State next = nfa_.add_state();
    nfa_.add_edge(at, '0', '9', next);
    return next;
  }

  void add_same_length(const std::string& low, const std::string& high) {
    // tight[k]: the state whose digits equal the bound so far; k = 0 both bounds, 1 low only, 2
    // high only, 3 neither.
    constexpr Nfa::State kNone = UINT32_MAX;
    Nfa::State tight[4] = {from_, kNone, kNone, kNone};
    for (size_t i = 0; i < low.size(); ++i) {
      Nfa::State next[4] = {kNone, kNone, kNone, kNone};
      const auto target = [&](int kind) {
        if (i + 1 == low.size()) return to_;
        if (next[kind] == kNone) next[kind] = nfa_.add_state();
        return next[kind];
      };
      for (int kind = 0; kind < 4; ++kind) {
        if (tight[kind] == kNone) continue;
        const bool low_tight = kind == 0 || kind == 1, high_tight = kind == 0 || kind == 2;
        const char first = low_tight ? low[i] : '0';
        const char last = high_tight ? high[i] : '9';
        for (char c = first; c <= last; ++c) {
          const bool still_low = low_tight && c == low[i], still_high = high_tight && c == high[i];
          const int to = still_low ? (still_high ? 0 : 1) : (still_high ? 2 : 3);
          nfa_.add_edge(tight[kind], static_cast<uint8_t>(c), static_cast<uint8_t>(c), target(to));
        }
      }
      std::copy(next, next + 4, tight);
    }
  }

  Nfa& nfa_;
  Nfa::State from_;
  Nfa::State to_;
};

uint64_t magnitude(int64_t value) {
  return value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
}

}  // namespace

void add_integer_range(Nfa& nfa, Nfa::State from, Nfa::State to, std::optional<int64_t> min,
                       std::optional<int64_t> max) {
  if (min && max && *min > *max) return;
  if (!max || *max >= 0) {
    const uint64_t low = min && *min > 0 ? static_cast<uint64_t>(*min) : 0;
    MagnitudeRange(nfa, from, to).add(low, max ? std::optional(magnitude(*max)) : std::nullopt);
  }
  if (!min || *min < 0) {
    const Nfa::State minus = nfa.add_state();
    nfa.add_edge(from, '-', '-', minus);
    const uint64_t low = max && *max < 0 ? magnitude(*max) : (!min && !max ? 0 : 1);
    MagnitudeRange(nfa, minus, to).add(low, min ? std::optional(magnitude(*min)) : std::nullopt);
  }
}

void add_number(Nfa& nfa, Nfa::State from, Nfa::State to) {
  const Nfa::State whole = nfa.add_state();
  add_integer_range(nfa, from, whole, std::nullopt, std::nullopt);
  const Nfa::State point = nfa.add_state(), fraction = nfa.add_state(), exponent = nfa.add_state();
  const Nfa::State sign = nfa.add_state(), power = nfa.add_state();
  nfa.add_edge(whole, '.', '.', point);
  nfa.add_edge(point, '0', '9', fraction);
  nfa.add_edge(fraction, '0', '9', fraction);
  for (Nfa::State before : {whole, fraction})
    for (char e : {'e', 'E'})
      nfa.add_edge(before, static_cast<uint8_t>(e), static_cast<uint8_t>(e), exponent);
  for (char s : {'+', '-'})
    nfa.add_edge(exponent, static_cast<uint8_t>(s), static_cast<uint8_t>(s), sign);
  nfa.add_epsilon(exponent, sign);
  nfa.add_edge(sign, '0', '9', power);
  nfa.add_edge(power, '0', '9', power);
  for (Nfa::State end : {whole, fraction, power}) nfa.add_epsilon(end, to);
}

}  // namespace weft::text::grammar
