// Finds the leftmost special token string in text, the longest on ties. The strings are few
// (hundreds), so they are grouped by first byte.
//
// Built by one thread, then read only from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::text {

class SpecialMatcher {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    int32_t id = -1;
  };

  void add(std::string_view token, int32_t id);  // the empty string is ignored
  bool empty() const { return count_ == 0; }
  // First match at or after `from`; false when there is none.
  bool find(std::string_view text, size_t from, Match* match) const;

 private:
  struct Entry {
    std::string token;
    int32_t id;
  };
  std::array<std::vector<Entry>, 256> by_first_;  // longest first
  std::string first_bytes_;
  size_t count_ = 0;
};

}  // namespace weft::text
