// Byte strings of a vocabulary, both ways: bytes -> id by an open-addressing hash, id -> bytes by
// offset. One arena, no allocation per token: 163,584 tokens take about 7 MB.
//
// Built by one thread, then read only from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::text {

class TokenTable {
 public:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kIdMax = (1 << 24) - 1;

  void reserve(size_t tokens, size_t bytes);
  // False when the id or the byte string is taken, or the id is out of [0, kIdMax]. The table is
  // then unchanged.
  bool add(std::string_view bytes, int32_t id);

  int32_t find(std::string_view bytes) const;
  bool has(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < spans_.size() && spans_[id].used;
  }
  // Empty for an id that is not there.
  std::string_view bytes(int32_t id) const {
    if (!has(id)) return {};
    const Span& span = spans_[static_cast<size_t>(id)];
    return {arena_.data() + span.offset, span.length};
  }
  size_t size() const { return count_; }
  int32_t id_end() const { return static_cast<int32_t>(spans_.size()); }  // largest id + 1

 private:
  struct Slot {
    int32_t id = kNone;
    uint32_t tag = 0;  // other half of the hash, so that most misses touch no bytes
  };
  struct Span {
    uint32_t offset = 0;
    uint32_t length : 31 = 0;
    uint32_t used : 1 = 0;
  };
  void grow(size_t slots);
  void insert(int32_t id);

  std::string arena_;
  std::vector<Span> spans_;
  std::vector<Slot> slots_;  // power of two, at most half full
  size_t count_ = 0;
};

}  // namespace weft::text
