#include "text/grammar/regex.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace weft::text::grammar {
namespace {

constexpr char32_t kLast = 0x10FFFF;
constexpr int kGroupDepthMax = 64;
constexpr uint32_t kRepeatMax = 4'096;
constexpr uint32_t kUnbounded = UINT32_MAX;

using Ranges = std::vector<std::pair<char32_t, char32_t>>;

Ranges complement(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges out;
  char32_t next = 0;
  for (const auto& [low, high] : ranges) {
    if (low > next) out.emplace_back(next, low - 1);
    next = std::max(next, static_cast<char32_t>(high + 1));
  }
  if (next <= kLast) out.emplace_back(next, kLast);
  return out;
}

const Ranges kDigit = {{'0', '9'}};
const Ranges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Ranges kSpace = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                       {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                       {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const Ranges kLineEnds = {{0x0A, 0x0A}, {0x0D, 0x0D}, {0x2028, 0x2029}};

// Every piece is parsed once into the automaton; a counted repetition parses its text again for
// each copy.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Dfa> run() {
    const Nfa::State start = nfa_.add_state(), end = nfa_.add_state();
    if (!alternatives(start, end, 0)) return std::move(error_);
    if (pos_ != text_.size())
      return make_error(ErrorCode::kInvalid, "unmatched ')' in the pattern");
    return determinize(nfa_, start, end);
  }

 private:
  bool fail(std::string_view what) {
    error_ = make_error(ErrorCode::kInvalid, "pattern, byte {}: {}", pos_, what);
    return false;
  }
  bool at(char c) const { return pos_ < text_.size() && text_[pos_] == c; }
  bool take(char c) { return at(c) ? (++pos_, true) : false; }

  void any_text(Nfa::State state) { nfa_.add_code_points(state, 0, kLast, state); }

  bool alternatives(Nfa::State from, Nfa::State to, int depth) {
    if (depth > kGroupDepthMax) return fail("groups are nested too deeply");
    do {
      Nfa::State at_state = nfa_.add_state();
      nfa_.add_epsilon(from, at_state);
      if (depth == 0 && !take('^')) any_text(at_state);
      if (!sequence(&at_state, depth)) return false;
      if (depth == 0 && !take('$')) {
        const Nfa::State tail = nfa_.add_state();
        nfa_.add_epsilon(at_state, tail);
        any_text(tail);
        at_state = tail;
      }
      nfa_.add_epsilon(at_state, to);
    } while (take('|'));
    return true;
  }

  bool sequence(Nfa::State* state, int depth) {
    while (pos_ < text_.size() && !at('|') && !at(')')) {
      const bool last_dollar =
          depth == 0 && at('$') && (pos_ + 1 == text_.size() || text_[pos_ + 1] == '|');
      if (last_dollar) return true;
      if (nfa_.full()) return fail("the pattern is too large");
      if (!repeated(state, depth)) return false;
    }
    return true;
  }

  struct Count {
    uint32_t min = 1;
    uint32_t max = 1;  // kUnbounded: none
  };
  bool quantifier(Count* count) {
    if (take('*'))
      *count = {0, kUnbounded};
    else if (take('+'))
      *count = {1, kUnbounded};
    else if (take('?'))
      *count = {0, 1};
    else if (at('{')) {
      ++pos_;
      uint32_t min = 0, max = 0;
      if (!integer(&min)) return false;
      *count = {min, min};
      if (take(',')) {
        count->max = kUnbounded;
        if (!at('}')) {
          if (!integer(&max)) return false;
          if (max < min) return fail("{m,n} with n below m");
          count->max = max;
        }
      }
      if (!take('}')) return fail("expected '}'");
    } else {
      return true;
    }
    take('?');  // lazy
    if (at('*') || at('+') || at('?') || at('{')) return fail("nothing to repeat");
    return true;
  }
  bool integer(uint32_t* out) {
    if (pos_ >= text_.size() || text_[pos_] < '0' || text_[pos_] > '9')
      return fail("expected a number");
    *out = 0;
    while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') {
      *out = *out * 10 + static_cast<uint32_t>(text_[pos_++] - '0');
      if (*out > kRepeatMax) return fail("a repetition count is too large");
    }
    return true;
  }

  bool repeated(Nfa::State* state, int depth) {
    // The first copy finds where the atom ends and how often it is wanted.
    const size_t begin = pos_;
    const Nfa::State first = nfa_.add_state();
    Nfa::State end = nfa_.add_state();
    if (!atom(first, end, depth)) return false;
    Count count;
    if (!quantifier(&count)) return false;
    const size_t after = pos_;
    const Nfa::State out = nfa_.add_state();
    if (count.max == 0) return true;  // parsed, never entered
    nfa_.add_epsilon(*state, first);
    if (count.min == 0) nfa_.add_epsilon(*state, out);
    Nfa::State last_first = first;
    const uint32_t copies = count.max != kUnbounded ? count.max : std::max(count.min, 1u);
    for (uint32_t i = 1; i < copies; ++i) {
      if (i >= count.min) nfa_.add_epsilon(end, out);
      if (nfa_.full()) return fail("the pattern is too large");
      const Nfa::State copy = nfa_.add_state(), copy_end = nfa_.add_state();
      nfa_.add_epsilon(end, copy);
      pos_ = begin;
      if (!atom(copy, copy_end, depth)) return false;
      last_first = copy;
      end = copy_end;
    }
    pos_ = after;
    if (count.max == kUnbounded) nfa_.add_epsilon(end, last_first);
    nfa_.add_epsilon(end, out);
    *state = out;
    return true;
  }

  bool atom(Nfa::State from, Nfa::State to, int depth) {
    const char c = text_[pos_];
    switch (c) {
      case '(':
        return group(from, to, depth);
      case '[':
        return char_class(from, to);
      case '.':
        ++pos_;
        return add(from, to, complement(kLineEnds));
      case '\\': {
        Ranges ranges;
        return escape(&ranges, false) && add(from, to, ranges);
      }
      case '^':
      case '$':
        return fail("anchors are supported only at the ends of the whole pattern");
      case '*':
      case '+':
      case '?':
      case '{':
        return fail("nothing to repeat");
      default:
        break;
    }
    char32_t cp = 0;
    if (!code_point(&cp)) return false;
    return add(from, to, {{cp, cp}});
  }
  bool code_point(char32_t* out) {
    const size_t length = decode_utf8(text_, pos_, out);
    if (length == 0) return fail("invalid UTF-8");
    pos_ += length;
    return true;
  }
  bool add(Nfa::State from, Nfa::State to, const Ranges& ranges) {
    for (const auto& [low, high] : ranges) nfa_.add_code_points(from, low, high, to);
    return true;
  }

  bool group(Nfa::State from, Nfa::State to, int depth) {
    ++pos_;
    if (take('?')) {
      if (take('<')) {  // a named group; look-behind has = or ! here
        if (at('=') || at('!')) return fail("look-around is not supported");
        while (pos_ < text_.size() && !at('>')) ++pos_;
        if (!take('>')) return fail("expected '>'");
      } else if (!take(':')) {
        return fail("look-around and flags are not supported");
      }
    }
    if (!alternatives(from, to, depth + 1)) return false;
    return take(')') || fail("expected ')'");
  }

  bool hex(int digits, char32_t* out) {
    *out = 0;
    for (int i = 0; i < digits; ++i, ++pos_) {
      const char c = pos_ < text_.size() ? text_[pos_] : '\0';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return fail("expected a hex digit");
      *out = *out * 16 + static_cast<char32_t>(digit);
    }
    return true;
  }

  bool escape(Ranges* out, bool in_class) {
    ++pos_;
    if (pos_ >= text_.size()) return fail("the pattern ends with a backslash");
    const char c = text_[pos_++];
    const auto one = [&](char32_t cp) {
      *out = {{cp, cp}};
      return true;
    };
    char32_t cp = 0;
    switch (c) {
      case 'd':
        *out = kDigit;
        return true;
      case 'D':
        *out = complement(kDigit);
        return true;
      case 'w':
        *out = kWord;
        return true;
      case 'W':
        *out = complement(kWord);
        return true;
      case 's':
        *out = kSpace;
        return true;
      case 'S':
        *out = complement(kSpace);
        return true;
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x':
        return hex(2, &cp) && one(cp);
      case 'u':
        return hex(4, &cp) && one(cp);
      case 'b':
        if (in_class) return one('\b');
        break;
      default:
        break;
    }
    const bool letter = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (letter) return --pos_, fail("this escape is not supported");
    --pos_;
    return code_point(&cp) && one(cp);
  }

  bool char_class(Nfa::State from, Nfa::State to) {
    ++pos_;
    const bool negated = take('^');
    Ranges ranges;
    while (!at(']')) {
      if (pos_ >= text_.size()) return fail("expected ']'");
      Ranges low;
      if (!class_atom(&low)) return false;
      const bool range = at('-') && pos_ + 1 < text_.size() && text_[pos_ + 1] != ']';
      if (range && low.size() == 1 && low[0].first == low[0].second) {
        ++pos_;
        Ranges high;
        if (!class_atom(&high)) return false;
        if (high.size() != 1 || high[0].first != high[0].second || high[0].first < low[0].first)
          return fail("a class range is out of order");
        low[0].second = high[0].first;
      }
      ranges.insert(ranges.end(), low.begin(), low.end());
    }
    ++pos_;
    return add(from, to, negated ? complement(std::move(ranges)) : ranges);
  }
  bool class_atom(Ranges* out) {
    if (pos_ >= text_.size()) return fail("expected ']'");
    if (at('\\')) return escape(out, true);
    char32_t cp = 0;
    if (!code_point(&cp)) return false;
    *out = {{cp, cp}};
    return true;
  }

  std::string_view text_;
  size_t pos_ = 0;
  Nfa nfa_;
  Error error_;
};

}  // namespace

Result<Dfa> compile_pattern(std::string_view pattern) { return Parser(pattern).run(); }

}  // namespace weft::text::grammar
