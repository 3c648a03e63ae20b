#include "text/token_table.h"

#include <xxhash.h>

#include <bit>

namespace weft::text {

void TokenTable::reserve(size_t tokens, size_t bytes) {
  arena_.reserve(bytes);
  spans_.reserve(tokens);
  grow(std::bit_ceil(tokens * 2 + 16));
}

void TokenTable::grow(size_t slots) {
  if (slots <= slots_.size()) return;
  slots_.assign(slots, Slot{});
  for (size_t id = 0; id < spans_.size(); ++id)
    if (spans_[id].used) insert(static_cast<int32_t>(id));
}

void TokenTable::insert(int32_t id) {
  const std::string_view text = bytes(id);
  const uint64_t hash = XXH3_64bits(text.data(), text.size());
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].id != kNone) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {id, static_cast<uint32_t>(hash >> 32)};
}

bool TokenTable::add(std::string_view text, int32_t id) {
  if (id < 0 || id > kIdMax || has(id) || find(text) != kNone || text.size() >= (1u << 30))
    return false;
  if (arena_.size() + text.size() > UINT32_MAX) return false;
  if (static_cast<size_t>(id) >= spans_.size()) spans_.resize(static_cast<size_t>(id) + 1);
  Span& span = spans_[static_cast<size_t>(id)];
  span.offset = static_cast<uint32_t>(arena_.size());
  span.length = static_cast<uint32_t>(text.size()) & 0x7FFFFFFFu;
  span.used = 1;
  arena_ += text;
  ++count_;
  if ((count_ + 1) * 2 > slots_.size())
    grow(std::bit_ceil(count_ * 4 + 16));
  else
    insert(id);
  return true;
}

int32_t TokenTable::find(std::string_view text) const {
  if (slots_.empty()) return kNone;
  const uint64_t hash = XXH3_64bits(text.data(), text.size());
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t at = hash & (slots_.size() - 1); slots_[at].id != kNone;
       at = (at + 1) & (slots_.size() - 1))
    if (slots_[at].tag == tag && bytes(slots_[at].id) == text) return slots_[at].id;
  return kNone;
}

}  // namespace weft::text
