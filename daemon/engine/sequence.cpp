#include "engine/sequence.h"

namespace weft::engine {

uint32_t common_prefix(const Sequence& a, const Sequence& b) {
  if (a.chain.root() != b.chain.root()) return 0;
  // Keys are chained: equal at i means equal up to i.
  uint32_t low = 0, high = std::min(a.chain.units(), b.chain.units());
  while (low < high) {
    const uint32_t middle = (low + high + 1) / 2;
    if (a.chain.after(middle) == b.chain.after(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const uint32_t begin = low * cache::kMatchUnit;
  uint32_t end = std::min({a.length(), b.length(), begin + cache::kMatchUnit});
  end = std::min({end, a.chain.next_media(begin), b.chain.next_media(begin)});
  uint32_t i = begin;
  while (i < end && a.tokens[i] == b.tokens[i]) ++i;
  return i;
}

}  // namespace weft::engine
