#include "text/nfc.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/utf8.h"
#include "text/unicode_data.h"

namespace weft::text {
namespace {

// Hangul syllables are arithmetic, not table: L (19) x V (21) x T (28, 0 = none).
constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr char32_t kLCount = 19, kVCount = 21, kTCount = 28, kSCount = kLCount * kVCount * kTCount;

struct NfcTables {
  std::unordered_map<char32_t, std::pair<char32_t, char32_t>> decompose;
  std::unordered_map<uint64_t, char32_t> compose;

  static const NfcTables& get() {
    static const NfcTables tables;
    return tables;
  }
  NfcTables() {
    for (size_t i = 0; i + 2 < kDecompositions_count; i += 3) {
      const char32_t cp = kDecompositions[i], first = kDecompositions[i + 1],
                     second = kDecompositions[i + 2] >> 1;
      decompose[cp] = {first, second};
      if ((kDecompositions[i + 2] & 1) != 0) compose[uint64_t{first} << 32 | second] = cp;
    }
  }
};

uint8_t combining_class(char32_t cp) {
  const uint32_t* end = kCombiningRuns + kCombiningRuns_count;
  const uint32_t* next = std::upper_bound(kCombiningRuns, end, cp,
                                          [](char32_t c, uint32_t run) { return c < (run >> 8); });
  return next == kCombiningRuns ? 0 : static_cast<uint8_t>(next[-1] & 0xFF);
}

void decompose_into(std::vector<char32_t>& out, char32_t cp) {
  if (cp >= kSBase && cp < kSBase + kSCount) {
    const char32_t s = cp - kSBase;
    out.push_back(kLBase + s / (kVCount * kTCount));
    out.push_back(kVBase + s % (kVCount * kTCount) / kTCount);
    if (s % kTCount != 0) out.push_back(kTBase + s % kTCount);
    return;
  }
  const auto& table = NfcTables::get().decompose;
  const auto it = table.find(cp);
  if (it == table.end()) {
    out.push_back(cp);
    return;
  }
  decompose_into(out, it->second.first);
  if (it->second.second != 0) decompose_into(out, it->second.second);
}

char32_t compose_pair(char32_t a, char32_t b) {
  if (a >= kLBase && a < kLBase + kLCount && b >= kVBase && b < kVBase + kVCount)
    return kSBase + ((a - kLBase) * kVCount + (b - kVBase)) * kTCount;
  if (a >= kSBase && a < kSBase + kSCount && (a - kSBase) % kTCount == 0 && b > kTBase &&
      b < kTBase + kTCount)
    return a + (b - kTBase);
  const auto& table = NfcTables::get().compose;
  const auto it = table.find(uint64_t{a} << 32 | b);
  return it == table.end() ? 0 : it->second;
}

// Marks between two starters are put in order of their class; equal classes keep their order.
void reorder(std::vector<char32_t>& text) {
  for (size_t i = 0; i < text.size();) {
    if (combining_class(text[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(
        text.begin() + static_cast<long>(i), text.begin() + static_cast<long>(end),
        [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
}

void compose(std::vector<char32_t>& text) {
  size_t out = 0;
  size_t starter = SIZE_MAX;
  uint8_t last_class = 0;  // class of the last character kept after the starter
  for (const char32_t cp : text) {
    const uint8_t cls = combining_class(cp);
    const bool blocked = starter != SIZE_MAX && starter + 1 != out && last_class >= cls;
    if (starter != SIZE_MAX && !blocked) {
      if (const char32_t merged = compose_pair(text[starter], cp)) {
        text[starter] = merged;
        continue;
      }
    }
    if (cls == 0) starter = out;
    last_class = cls;
    text[out++] = cp;
  }
  text.resize(out);
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // ASCII never changes.
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; }))
    return std::string(text);
  std::vector<char32_t> points;
  points.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    char32_t cp = 0;
    const size_t n = decode_utf8(text, i, &cp);
    decompose_into(points, n == 0 ? 0xFFFD : cp);
    i += n == 0 ? 1 : n;
  }
  reorder(points);
  compose(points);
  std::string out;
  out.reserve(text.size());
  for (const char32_t cp : points) append_utf8(out, cp);
  return out;
}

}  // namespace weft::text
