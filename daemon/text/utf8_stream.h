// Incremental UTF-8 decoder for token bytes: a token may end in the middle of a code point.
// Complete code points are let through, up to three bytes wait, and an ill-formed sequence becomes
// one U+FFFD per maximal subpart (the broken prefix is replaced, the offending byte is looked at
// again).
//
// One per choice, used by the one thread that owns the choice.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace weft::text {

class Utf8Stream {
 public:
  // Appends the text that is now certain.
  void feed(std::string_view bytes, std::string* out);
  // Appends U+FFFD for an unfinished sequence and starts afresh.
  void flush(std::string* out);
  bool pending() const { return pending_size_ > 0; }

 private:
  char pending_[4] = {};
  size_t pending_size_ = 0;
};

// The whole of it at once.
std::string decode_lossy(std::string_view bytes);

}  // namespace weft::text
