#include "text/unicode.h"

#include <map>

#include "base/utf8.h"
#include "text/unicode_data.h"

namespace weft::text {

const CharClasses& CharClasses::get() {
  static const CharClasses table;
  return table;
}

CharClasses::CharClasses() {
  std::map<std::vector<uint16_t>, uint16_t> known;  // equal blocks are stored once
  size_t run = 0;
  std::vector<uint16_t> block(256);
  for (uint32_t page = 0; page < 0x1100; ++page) {
    for (uint32_t i = 0; i < 256; ++i) {
      const uint32_t cp = page * 256 + i;
      while (run + 1 < kClassRuns_count && (kClassRuns[run + 1] >> 9) <= cp) ++run;
      block[i] = static_cast<uint16_t>(kClassRuns[run] & 0x1FF);
    }
    const auto [it, fresh] = known.emplace(block, static_cast<uint16_t>(known.size()));
    if (fresh) blocks_.insert(blocks_.end(), block.begin(), block.end());
    index_[page] = it->second;
  }
  for (uint32_t cp = 0; cp < 128; ++cp) ascii_[cp] = blocks_[index_[0] * 256u + cp];
}

bool is_python_space(char32_t cp) {
  return (CharClasses::get()[cp] & kSpace) != 0 || (cp >= 0x1C && cp <= 0x1F);
}

bool is_blank(std::string_view text) {
  const CharClasses& classes = CharClasses::get();
  for (size_t i = 0; i < text.size();) {
    char32_t cp = 0;
    const size_t n = decode_utf8(text, i, &cp);
    if (n == 0 || (classes[cp] & kSpace) == 0) return false;
    i += n;
  }
  return true;
}

void CodePoints::assign(std::string_view text) {
  const CharClasses& classes = CharClasses::get();
  cp.clear();
  flags.clear();
  offset.clear();
  cp.reserve(text.size());
  flags.reserve(text.size());
  offset.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size();) {
    char32_t c = static_cast<uint8_t>(text[i]);
    size_t n = 1;
    if (c >= 0x80) {
      n = decode_utf8(text, i, &c);
      if (n == 0) {
        n = 1;
        c = 0xFFFD;
      }
    }
    cp.push_back(c);
    flags.push_back(classes[c]);
    offset.push_back(static_cast<uint32_t>(i));
    i += n;
  }
  offset.push_back(static_cast<uint32_t>(text.size()));
}

}  // namespace weft::text
