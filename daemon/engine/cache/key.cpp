#include "engine/cache/key.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"

namespace weft::engine::cache {
namespace {

Key128 of(XXH128_hash_t h) { return {h.low64, h.high64}; }

// One link of the chain: everything goes into one buffer, so that long prompts cost one pass.
Key128 link(const Key128& previous, std::span<const int32_t> tokens, const Key128& media) {
  unsigned char buffer[2 * sizeof(Key128) + kMatchUnit * sizeof(int32_t)];
  WEFT_CHECK(tokens.size() <= kMatchUnit);
  std::memcpy(buffer, &previous, sizeof(Key128));
  std::memcpy(buffer + sizeof(Key128), &media, sizeof(Key128));
  std::memcpy(buffer + 2 * sizeof(Key128), tokens.data(), tokens.size_bytes());
  // The length is part of the hash: a partial unit never equals a full one.
  return of(XXH3_128bits(buffer, 2 * sizeof(Key128) + tokens.size_bytes()));
}

}  // namespace

Key128 hash_bytes(std::string_view bytes) { return of(XXH3_128bits(bytes.data(), bytes.size())); }

Key128 root_key(std::string_view model, std::string_view tenant, std::string_view salt) {
  std::string text;
  for (const std::string_view part : {model, tenant, salt}) {
    const uint64_t size = part.size();
    text.append(reinterpret_cast<const char*>(&size), sizeof(size));
    text.append(part);
  }
  return hash_bytes(text);
}

void KeyChain::extend(std::span<const int32_t> tokens) {
  for (uint32_t i = units(); size_t{i + 1} * kMatchUnit <= tokens.size(); ++i) {
    const uint32_t begin = i * kMatchUnit;
    keys_.push_back(
        link(after(i), tokens.subspan(begin, kMatchUnit), media_in(begin, begin + kMatchUnit)));
  }
}

Key128 KeyChain::media_in(uint32_t begin, uint32_t end) const {
  Key128 key;
  for (const MediaSpan& m : media_) {
    if (m.first >= end || m.first + m.rows <= begin) continue;
    const int64_t all[6] = {
        static_cast<int64_t>(m.first) - begin, m.rows,
        static_cast<int64_t>(m.content.low),   static_cast<int64_t>(m.content.high),
        static_cast<int64_t>(key.low),         static_cast<int64_t>(key.high)};
    key = of(XXH3_128bits(all, sizeof(all)));
  }
  return key;
}

uint32_t KeyChain::next_media(uint32_t begin) const {
  uint32_t next = UINT32_MAX;
  for (const MediaSpan& m : media_) {
    if (m.first + m.rows > begin) next = std::min(next, std::max(m.first, begin));
  }
  return next;
}

Key128 prefix_key(const KeyChain& chain, std::span<const int32_t> tokens, uint32_t length) {
  const uint32_t units = length / kMatchUnit;
  WEFT_CHECK(units <= chain.units() && length <= tokens.size());
  const uint32_t begin = units * kMatchUnit;
  if (begin == length) return chain.after(units);
  return link(chain.after(units), tokens.subspan(begin, length - begin),
              chain.media_in(begin, length));
}

}  // namespace weft::engine::cache
