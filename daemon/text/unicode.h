// Character classes for the pre-tokenizers: general categories, Script=Han and White_Space as bits
// per code point.
//
// One constant table for the process, built from generated runs on first use. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace weft::text {

enum CharFlag : uint16_t {
  kLetter = 1,    // \p{L}
  kNumber = 2,    // \p{N}
  kMark = 4,      // \p{M}
  kUpper = 8,     // Lu Lt Lm Lo M
  kLower = 16,    // Ll Lm Lo M
  kHan = 32,      // Script=Han
  kSpace = 64,    // White_Space
  kPunct = 128,   // \p{P}
  kSymbol = 256,  // \p{S}
};

class CharClasses {
 public:
  static const CharClasses& get();
  uint16_t operator[](char32_t cp) const {
    return cp < 128 ? ascii_[cp] : blocks_[index_[(cp >> 8) & 0x1FFF] * 256u + (cp & 0xFF)];
  }

 private:
  CharClasses();
  std::array<uint16_t, 128> ascii_{};
  std::array<uint16_t, 0x2000> index_{};
  std::vector<uint16_t> blocks_;
};

// Python's str.isspace: White_Space and the four separators U+001C..U+001F.
bool is_python_space(char32_t cp);
// True when every code point is White_Space (true for the empty string).
bool is_blank(std::string_view text);

// Text as arrays: code points, their flags and byte offsets (one more offset than code points).
// Invalid UTF-8 bytes count as U+FFFD of one byte each.
struct CodePoints {
  std::vector<char32_t> cp;
  std::vector<uint16_t> flags;
  std::vector<uint32_t> offset;
  void assign(std::string_view text);  // up to 4 GiB - 1
  size_t size() const { return cp.size(); }
};

}  // namespace weft::text
