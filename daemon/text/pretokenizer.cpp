#include "text/pretokenizer.h"

#include <array>
#include <utility>

#include "base/utf8.h"

namespace weft::text {
namespace {

bool is_newline(char32_t c) { return c == '\r' || c == '\n'; }

struct Matcher {
  const CodePoints& t;
  const size_t n;

  explicit Matcher(const CodePoints& text) : t(text), n(text.size()) {}

  bool has(size_t i, uint16_t mask) const { return (t.flags[i] & mask) != 0; }
  template <class F>
  size_t run(size_t i, F&& in) const {
    while (i < n && in(i)) ++i;
    return i;
  }
  size_t run_of(size_t i, uint16_t mask) const {
    return run(i, [&](size_t k) { return has(k, mask); });
  }
  size_t newlines(size_t i) const {
    return run(i, [&](size_t k) { return is_newline(t.cp[k]); });
  }
  bool other(size_t i) const { return !has(i, kSpace | kLetter | kNumber); }

  // 's 't 're 've 'm 'll 'd at i, case-blind (simple folding: U+017F is an s). Returns the end, or
  // i.
  size_t contraction(size_t i, bool any_case = true) const {
    if (i >= n || t.cp[i] != '\'' || i + 1 >= n) return i;
    const auto lower = [&](size_t k) -> char32_t {
      const char32_t c = t.cp[k];
      if (!any_case) return c;
      if (c >= 'A' && c <= 'Z') return c + 32;
      return c == 0x17F ? U's' : c;
    };
    const char32_t a = lower(i + 1);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if (i + 2 >= n) return i;
    const char32_t b = lower(i + 2);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
    return i;
  }

  size_t numbers(size_t i, size_t most) const {
    size_t k = i;
    while (k < n && k - i < most && has(k, kNumber)) ++k;
    return k;
  }

  // " ?[^\s\p{L}\p{N}]+[\r\n]*", with '/' added to the tail for o200k.
  size_t punctuation(size_t i, bool newline_tail, bool slash_tail = false) const {
    const size_t j = i + (t.cp[i] == ' ' ? 1 : 0);
    const size_t k = run(j, [&](size_t p) { return other(p); });
    if (k == j) return i;
    if (!newline_tail) return k;
    return run(k, [&](size_t p) { return is_newline(t.cp[p]) || (slash_tail && t.cp[p] == '/'); });
  }

  // "\s*[\r\n]+ | \s+(?!\S) | \s+": a blank before a word is left to the word.
  size_t white_space(size_t i, bool newline_rule) const {
    const size_t end = run_of(i, kSpace);
    if (end == i) return i;
    if (newline_rule)
      for (size_t k = end; k > i; --k)
        if (is_newline(t.cp[k - 1])) return k;
    if (end == n) return end;
    return end - i >= 2 ? end - 1 : end;
  }

  // "[^\r\n\p{L}\p{N}]?\p{L}+"
  size_t word(size_t i) const {
    const size_t start = has(i, kLetter | kNumber) || is_newline(t.cp[i]) ? i : i + 1;
    const size_t end = run_of(start, kLetter);
    return end == start ? i : end;
  }

  // The case-aware words: P? U* L+ C? and then P? U+ L* C?. `excluded` classes never count as U or
  // L.
  size_t cased_word(size_t i, uint16_t excluded) const {
    const auto upper = [&](size_t k) { return has(k, kUpper) && !has(k, excluded); };
    const auto lower = [&](size_t k) { return has(k, kLower) && !has(k, excluded); };
    const bool prefix = !has(i, kLetter | kNumber) && !is_newline(t.cp[i]);
    const std::array<size_t, 2> starts = {prefix ? i + 1 : i, i};
    for (size_t s = 0; s < (prefix ? 2u : 1u); ++s) {
      const size_t u = run(starts[s], upper);
      if (u < n && lower(u)) return contraction(run(u, lower));
      for (size_t k = u; k > starts[s];
           --k)  // give back to L+ the last character that is in both classes
        if (lower(k - 1)) return contraction(k);
    }
    for (size_t s = 0; s < (prefix ? 2u : 1u); ++s) {
      const size_t u = run(starts[s], upper);
      if (u > starts[s]) return contraction(run(u, lower));
    }
    return i;
  }

  size_t kimi(size_t i) const {
    if (has(i, kHan)) return run_of(i, kHan);
    return cased_tail(i, kHan, false);
  }
  size_t cased_tail(size_t i, uint16_t excluded, bool slash) const {
    if (const size_t e = cased_word(i, excluded); e > i) return e;
    if (has(i, kNumber)) return numbers(i, 3);
    if (const size_t e = punctuation(i, true, slash); e > i) return e;
    return white_space(i, true);
  }
  size_t cl100k(size_t i, size_t digits) const {
    if (const size_t e = contraction(i); e > i) return e;
    if (const size_t e = word(i); e > i) return e;
    if (has(i, kNumber)) return numbers(i, digits);
    if (const size_t e = punctuation(i, true); e > i) return e;
    return white_space(i, true);
  }
  size_t gpt2(size_t i) const {
    if (const size_t e = contraction(i, false); e > i) return e;
    const size_t j = i + (t.cp[i] == ' ' ? 1 : 0);
    for (const uint16_t mask : {uint16_t{kLetter}, uint16_t{kNumber}})
      if (const size_t e = run_of(j, mask); e > j) return e;
    if (const size_t e = punctuation(i, false); e > i) return e;
    return white_space(i, false);
  }
  size_t cjk_kana(size_t i) const {
    return run(i, [&](size_t k) {
      const char32_t c = t.cp[k];
      return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
    });
  }
  size_t deepseek(size_t i) const {
    const auto ascii_letter = [&](size_t k) {
      return (t.cp[k] >= 'a' && t.cp[k] <= 'z') || (t.cp[k] >= 'A' && t.cp[k] <= 'Z');
    };
    if (t.cp[i] > ' ' && t.cp[i] < 0x7F && has(i, kPunct | kSymbol))
      if (const size_t e = run(i + 1, ascii_letter); e > i + 1) return e;
    const bool prefix = !is_newline(t.cp[i]) && !has(i, kLetter | kPunct | kSymbol);
    for (const size_t start : {prefix ? i + 1 : i, i})
      if (const size_t e = run_of(start, kLetter | kMark); e > start) return e;
    const size_t j = i + (t.cp[i] == ' ' ? 1 : 0);
    if (const size_t e = run_of(j, kPunct | kSymbol); e > j) return newlines(e);
    return white_space(i, true);
  }
};

}  // namespace

size_t match_piece(SplitPattern pattern, const CodePoints& text, size_t i) {
  const Matcher m(text);
  switch (pattern) {
    case SplitPattern::kKimi:
      return m.kimi(i);
    case SplitPattern::kGpt2:
      return m.gpt2(i);
    case SplitPattern::kCl100k3:
      return m.cl100k(i, 3);
    case SplitPattern::kCl100k1:
      return m.cl100k(i, 1);
    case SplitPattern::kO200k:
      return m.cased_tail(i, 0, true);
    case SplitPattern::kDigitsBy3:
      return m.numbers(i, 3);
    case SplitPattern::kDigitsSingle:
      return m.numbers(i, 1);
    case SplitPattern::kDigitRuns:
      return m.run_of(i, kNumber);
    case SplitPattern::kCjkKana:
      return m.cjk_kana(i);
    case SplitPattern::kDeepSeekGeneral:
      return m.deepseek(i);
  }
  return i;
}

std::optional<SplitPattern> known_split_pattern(std::string_view regex) {
  static constexpr std::pair<std::string_view, SplitPattern> kKnown[] = {
      {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
       SplitPattern::kGpt2},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
       R"( ?[^\s\p{L}\p{N}]+[\r\n]*|)"
       R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
       SplitPattern::kCl100k3},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
       R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
       SplitPattern::kCl100k1},
      {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
       R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
       R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|)"
       R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
       SplitPattern::kO200k},
      {R"(\p{N}{1,3})", SplitPattern::kDigitsBy3},
      {R"(\p{N})", SplitPattern::kDigitsSingle},
      {"[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
       SplitPattern::kCjkKana},
      {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
       R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       SplitPattern::kDeepSeekGeneral}};
  for (const auto& [spelling, pattern] : kKnown)
    if (spelling == regex) return pattern;
  return std::nullopt;
}

void split_runs(std::string_view text, size_t part_max, size_t run_max,
                const std::function<void(std::string_view)>& part) {
  size_t begin = 0, in_part = 0, in_run = 0;
  bool last_space = false;
  for (size_t i = 0; i < text.size();) {
    char32_t cp = 0;
    size_t length = decode_utf8(text, i, &cp);
    if (length == 0) length = 1;
    const bool space = is_python_space(cp);
    bool cut = false;
    if (in_part == part_max) {  // a new part starts with fresh counters
      cut = true;
      in_part = 0;
      in_run = 1;
    } else if (in_part > 0 && space == last_space) {
      if (++in_run > run_max) {
        cut = true;
        in_run = 1;
      }
    } else {
      in_run = 1;
    }
    if (cut && i > begin) {
      part(text.substr(begin, i - begin));
      begin = i;
    }
    ++in_part;
    last_space = space;
    i += length;
  }
  if (begin < text.size()) part(text.substr(begin));
}

}  // namespace weft::text
