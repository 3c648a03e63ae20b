// Names of prefixes: a 128-bit hash chained over units of kMatchUnit tokens.
//
// key(i) = H(key(i-1), tokens of unit i, images whose rows lie in it); key(-1) is the root: the
// model (revision, cache layout), the tenant and the request's cache salt. A prefix that does not
// end on a unit is named by the chain and the tokens of its last, partial unit. Equal keys are not
// trusted: the tree compares tokens too, so a crafted collision can cause a miss and never a wrong
// answer. The hash is XXH3 (128 bits): same on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace weft::engine::cache {

inline constexpr uint32_t kMatchUnit = 128;

struct Key128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Key128&) const = default;
  bool zero() const { return low == 0 && high == 0; }
};

struct KeyHash {
  size_t operator()(const Key128& k) const { return static_cast<size_t>(k.low); }
};

Key128 hash_bytes(std::string_view bytes);
// Root of all prefixes of one tenant and salt on one model.
Key128 root_key(std::string_view model, std::string_view tenant, std::string_view salt);

// Rows of an image in a prompt.
struct MediaSpan {
  uint32_t first = 0;
  uint32_t rows = 0;
  Key128 content;
};

// The chain of one sequence; grows with it. Holds no tokens.
class KeyChain {
 public:
  explicit KeyChain(Key128 root, std::vector<MediaSpan> media = {})
      : root_(root), media_(std::move(media)) {}

  // Hashes the units that are complete now. Tokens hashed before must not have changed.
  void extend(std::span<const int32_t> tokens);
  const Key128& root() const { return root_; }
  uint32_t units() const { return static_cast<uint32_t>(keys_.size()); }
  // Key after `units` units; 0 = root.
  const Key128& after(uint32_t units) const { return units == 0 ? root_ : keys_[units - 1]; }
  // Identity of the images in tokens [begin, end); zero without any.
  Key128 media_in(uint32_t begin, uint32_t end) const;
  // First token at or after `begin` that is an image row; UINT32_MAX when there is none.
  uint32_t next_media(uint32_t begin) const;

 private:
  Key128 root_;
  std::vector<MediaSpan> media_;
  std::vector<Key128> keys_;
};

// Key of the prefix of `length` tokens. chain must cover length / kMatchUnit units.
Key128 prefix_key(const KeyChain& chain, std::span<const int32_t> tokens, uint32_t length);

}  // namespace weft::engine::cache
