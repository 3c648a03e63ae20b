#include "text/utf8_stream.h"

#include <cstdint>

namespace weft::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Scan {
  size_t used;  // bytes of the sequence, or of its broken prefix
  enum { kGood, kBad, kShort } what;
};

// Looks at the sequence at the start of `bytes` (not empty). The second byte's bounds exclude
// overlong forms, surrogates and values above U+10FFFF, so a prefix that passes here can always be
// completed.
Scan scan(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {1, Scan::kGood};
  if (lead < 0xC2 || lead > 0xF4) return {1, Scan::kBad};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, Scan::kShort};
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (at(i) < low || at(i) > high) return {i, Scan::kBad};
  }
  return {length, Scan::kGood};
}

}  // namespace

void Utf8Stream::feed(std::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    if (pending_size_ == 0) {
      const Scan s = scan(bytes);
      if (s.what == Scan::kShort) {
        pending_size_ = bytes.copy(pending_, bytes.size());
        return;
      }
      *out += s.what == Scan::kGood ? bytes.substr(0, s.used) : kReplacement;
      bytes.remove_prefix(s.used);
      continue;
    }
    pending_[pending_size_] = bytes.front();
    const Scan s = scan({pending_, pending_size_ + 1});
    if (s.what ==
        Scan::kBad) {  // the new byte does not belong: replace what waited, look at the byte again
      *out += kReplacement;
      pending_size_ = 0;
      continue;
    }
    bytes.remove_prefix(1);
    ++pending_size_;
    if (s.what == Scan::kGood) {
      out->append(pending_, pending_size_);
      pending_size_ = 0;
    }
  }
}

void Utf8Stream::flush(std::string* out) {
  if (pending_size_ > 0) *out += kReplacement;
  pending_size_ = 0;
}

std::string decode_lossy(std::string_view bytes) {
  std::string out;
  Utf8Stream stream;
  stream.feed(bytes, &out);
  stream.flush(&out);
  return out;
}

}  // namespace weft::text
