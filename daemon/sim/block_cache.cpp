#include "sim/block_cache.h"

namespace weft::sim {

size_t BlockCache::match(const std::vector<uint64_t>& blocks) const {
  size_t n = 0;
  while (n < blocks.size() && places_.count(blocks[n]) != 0) ++n;
  return n;
}

size_t BlockCache::match_promised(const std::vector<uint64_t>& blocks) const {
  size_t n = match(blocks);
  while (n < blocks.size() && (places_.count(blocks[n]) != 0 || promised_.count(blocks[n]) != 0)) {
    ++n;
  }
  return n;
}

void BlockCache::insert(const std::vector<uint64_t>& blocks) {
  // Last block first, so that the beginning of a prefix is forgotten last.
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto found = places_.find(blocks[i]);
    if (found != places_.end()) {
      by_use_.splice(by_use_.begin(), by_use_, found->second);
      continue;
    }
    by_use_.push_front(blocks[i]);
    places_[blocks[i]] = by_use_.begin();
  }
  while (capacity_ > 0 && places_.size() > capacity_) {
    places_.erase(by_use_.back());
    by_use_.pop_back();
  }
}

void BlockCache::promise(const std::vector<uint64_t>& blocks) {
  for (const uint64_t b : blocks) ++promised_[b];
}

void BlockCache::end_promise(const std::vector<uint64_t>& blocks) {
  for (const uint64_t b : blocks) {
    const auto found = promised_.find(b);
    if (found != promised_.end() && --found->second == 0) promised_.erase(found);
  }
}

}  // namespace weft::sim
