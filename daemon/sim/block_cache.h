// Which blocks of prompts a simulated prefix cache has, and which a running sequence is about to
// leave in it. Blocks are hashes that name the whole prefix up to their end, as in published
// traces; least recently used ones are forgotten first. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

namespace weft::sim {

class BlockCache {
 public:
  // capacity 0 = nothing is ever forgotten.
  explicit BlockCache(size_t capacity) : capacity_(capacity) {}

  // Number of leading blocks that are there.
  size_t match(const std::vector<uint64_t>& blocks) const;
  // The same, counting those that running sequences have promised.
  size_t match_promised(const std::vector<uint64_t>& blocks) const;
  void insert(const std::vector<uint64_t>& blocks);

  void promise(const std::vector<uint64_t>& blocks);
  void end_promise(const std::vector<uint64_t>& blocks);

 private:
  const size_t capacity_;
  std::list<uint64_t> by_use_;  // latest first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
  std::unordered_map<uint64_t, uint32_t> promised_;
};

}  // namespace weft::sim
