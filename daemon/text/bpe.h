// Byte-pair merging of one piece: repeatedly merge the adjacent pair of lowest rank, leftmost on
// ties. Short pieces use a scan per merge, long ones a heap with lazy deletion; both give the same
// result.
//
// Pure templates; a Scratch belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace weft::text {

struct PairMerge {
  static constexpr uint32_t kNever = UINT32_MAX;
  uint32_t rank = kNever;
  int32_t id = -1;
};

struct BpeScratch {
  struct Part {
    uint32_t begin;
    int32_t id;
    PairMerge next;  // merge with the part to the right
  };
  std::vector<Part> parts;
};

// Pieces of more bytes than this use the heap.
constexpr size_t kBpeScanMax = 96;

namespace bpe_detail {

template <class Pair>
void merge_scan(std::vector<BpeScratch::Part>& parts, size_t end_byte, Pair&& pair) {
  const auto end_of = [&](size_t i) {
    return i + 1 < parts.size() ? parts[i + 1].begin : end_byte;
  };
  const auto renew = [&](size_t i) {
    parts[i].next = i + 1 < parts.size() ? pair(parts[i].begin, end_of(i), end_of(i + 1),
                                                parts[i].id, parts[i + 1].id)
                                         : PairMerge{};
  };
  for (size_t i = 0; i < parts.size(); ++i) renew(i);
  while (parts.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < parts.size(); ++i)
      if (parts[i].next.rank < parts[best].next.rank) best = i;
    if (parts[best].next.rank == PairMerge::kNever) return;
    parts[best].id = parts[best].next.id;
    parts.erase(parts.begin() + static_cast<long>(best) + 1);
    renew(best);
    if (best > 0) renew(best - 1);
  }
}

struct HeapEntry {
  uint32_t rank;
  uint32_t left;   // index of the left part: its position in the piece, so ties go to the leftmost
  uint32_t right;  // index of the right part when the entry was made
  uint32_t stamp;  // sum of both parts' versions then
  bool operator<(const HeapEntry& o) const {
    return rank != o.rank ? rank > o.rank : left > o.left;
  }
};

template <class Pair>
void merge_heap(std::vector<BpeScratch::Part>& parts, size_t end_byte, Pair&& pair) {
  constexpr uint32_t kEnd = UINT32_MAX;
  const auto n = static_cast<uint32_t>(parts.size());
  std::vector<uint32_t> next(n), before(n), version(n, 0);
  std::vector<bool> gone(n, false);
  for (uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1 < n ? i + 1 : kEnd;
    before[i] = i == 0 ? kEnd : i - 1;
  }
  std::priority_queue<HeapEntry> heap;
  const auto push = [&](uint32_t left) {
    const uint32_t right = next[left];
    if (right == kEnd) return;
    const size_t end = next[right] == kEnd ? end_byte : parts[next[right]].begin;
    parts[left].next =
        pair(parts[left].begin, parts[right].begin, end, parts[left].id, parts[right].id);
    if (parts[left].next.rank != PairMerge::kNever)
      heap.push({parts[left].next.rank, left, right, version[left] + version[right]});
  };
  for (uint32_t i = 0; i < n; ++i) push(i);
  while (!heap.empty()) {
    const HeapEntry top = heap.top();
    heap.pop();
    // Stale when either part was merged away or has grown since.
    if (gone[top.left] || gone[top.right] || next[top.left] != top.right ||
        version[top.left] + version[top.right] != top.stamp)
      continue;
    parts[top.left].id = parts[top.left].next.id;
    ++version[top.left];
    gone[top.right] = true;
    next[top.left] = next[top.right];
    if (next[top.left] != kEnd) before[next[top.left]] = top.left;
    push(top.left);
    if (before[top.left] != kEnd) push(before[top.left]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < n; ++i)
    if (!gone[i]) parts[kept++] = parts[i];
  parts.resize(kept);
}

}  // namespace bpe_detail

// scratch.parts holds the starting parts (one per byte); afterwards the merged ones. pair(begin,
// middle, end, left_id, right_id) says whether [begin, middle) and [middle, end) merge, at which
// rank, into which id.
template <class Pair>
void bpe_merge(BpeScratch& scratch, size_t end_byte, Pair&& pair, size_t scan_max = kBpeScanMax) {
  if (scratch.parts.size() <= scan_max)
    bpe_detail::merge_scan(scratch.parts, end_byte, pair);
  else
    bpe_detail::merge_heap(scratch.parts, end_byte, pair);
}

}  // namespace weft::text
