// A model's caches without a model: prompts whose every prefix has a number of its own, and a
// "computation" that leaves these numbers in the rows and states a sequence owns. What a later
// request finds there tells whether the cache gave it the right memory. One test, one thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/cache/coordinator.h"

namespace weft::engine {

// What a check of the tests found wrong.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

#define FAULT_UNLESS(expr, ...)                                                   \
  do {                                                                            \
    if (!(expr)) throw Fault(std::string(#expr ": ") + fmt::format(__VA_ARGS__)); \
  } while (false)

struct Layout {
  std::vector<weft_cache_group> groups;
  std::vector<uint32_t> units;
};

inline std::unique_ptr<Caches> make_caches(const Layout& layout) {
  weft_mem_plan plan = {};
  plan.struct_size = sizeof(plan);
  plan.n_groups = static_cast<uint32_t>(layout.groups.size());
  for (size_t i = 0; i < layout.groups.size(); ++i) plan.groups[i] = layout.groups[i];
  CacheSizes sizes;
  sizes.units = layout.units;
  auto made = Caches::make(plan, sizes, /*poison=*/true);
  WEFT_CHECK(made.ok());
  return std::move(*made);
}

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u + b;
  x = (x ^ (x >> 31)) * 0x94d049bb133111ebu;
  return x ^ (x >> 29);
}

// Tokens of one tenant with images in them. hash(n) names the first n tokens: computed from single
// tokens and image rows, in another way than the keys of the cache.
class Stream {
 public:
  Stream() : Stream(0) {}
  explicit Stream(uint32_t tenant) : tenant_(tenant), chain_(root_of(tenant)) {
    hash_.push_back(mix(77, tenant));
  }

  static cache::Key128 root_of(uint32_t tenant) {
    return cache::root_key("model", "t" + std::to_string(tenant / 2),
                           tenant % 2 == 0 ? "" : "salt");
  }
  struct Image {
    uint32_t first = 0, rows = 0;
    uint64_t content = 0;
  };

  // Images come in order and may lie beyond the tokens there are now.
  void add_image(uint32_t first, uint32_t rows, uint64_t content) {
    images_.push_back({first, rows, content});
    rekey(tenant_);
  }
  void append(int32_t token) {
    const auto at = static_cast<uint32_t>(tokens_.size());
    uint64_t id = static_cast<uint32_t>(token);
    for (const Image& image : images_) {
      if (at >= image.first && at < image.first + image.rows) {
        id = mix(mix(id, image.content), at - image.first + 1);
      }
    }
    tokens_.push_back(token);
    hash_.push_back(mix(hash_.back(), id));
  }
  // Mistakes on purpose: keys that know nothing of the images, or of the tenant.
  void forget_images() { chain_ = cache::KeyChain(root_of(tenant_)); }
  void forget_tenant() { rekey(0); }
  // After appending.
  void seal() { chain_.extend(tokens_); }

  uint32_t tenant() const { return tenant_; }
  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<Image>& images() const { return images_; }
  const cache::KeyChain& chain() const { return chain_; }
  uint64_t hash(uint32_t n) const { return hash_[n]; }
  PrefixView view(uint32_t limit) const { return {&chain_, tokens_, limit}; }

 private:
  void rekey(uint32_t tenant) {
    std::vector<cache::MediaSpan> spans;
    for (const Image& i : images_) spans.push_back({i.first, i.rows, {i.content, ~i.content}});
    chain_ = cache::KeyChain(root_of(tenant), spans);
    chain_.extend(tokens_);
  }

  uint32_t tenant_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<Image> images_;
  std::vector<uint64_t> hash_;
  cache::KeyChain chain_;
};

// A mark stands at the begin and at the end of its bytes, so that a copy that is too short shows.
inline void put_mark(unsigned char* at, uint64_t bytes, uint64_t mark) {
  const uint64_t end = ~mark;
  std::memcpy(at, &mark, sizeof(mark));
  if (bytes >= 16) std::memcpy(at + bytes - sizeof(end), &end, sizeof(end));
}

inline bool has_mark(const unsigned char* at, uint64_t bytes, uint64_t mark) {
  uint64_t first = 0, last = 0;
  std::memcpy(&first, at, sizeof(first));
  std::memcpy(&last, at + bytes - sizeof(last), sizeof(last));
  return first == mark && (bytes < 16 || last == ~mark);
}

inline unsigned char* row_at(const Caches& caches, const SequenceCache& s, size_t g, uint32_t row) {
  const Caches::Group& group = caches.groups()[g];
  return caches.data(g, s.rows(g).unit(row / group.unit_tokens)) +
         row % group.unit_tokens * (group.unit_bytes / group.unit_tokens);
}

// Rows [from, to) are what the tokens imply.
inline void check_rows(const Caches& caches, const SequenceCache& s, const Stream& stream,
                       uint32_t from, uint32_t to) {
  for (size_t g = 0; g < caches.groups().size(); ++g) {
    const Caches::Group& group = caches.groups()[g];
    if (!group.rows) continue;
    const uint64_t bytes = group.unit_bytes / group.unit_tokens;
    for (uint32_t row = from; row < to; ++row) {
      FAULT_UNLESS(row / group.unit_tokens < s.rows(g).size(), "row {} of group {} has no page",
                   row, g);
      FAULT_UNLESS(has_mark(row_at(caches, s, g, row), bytes, stream.hash(row + 1)),
                   "row {} of group {} (unit {}) is not what the tokens imply", row, g,
                   s.rows(g).unit(row / group.unit_tokens));
    }
  }
}

// The state that the next step reads has seen exactly `length` tokens.
inline void check_state(const Caches& caches, const SequenceCache& s, const Stream& stream,
                        uint32_t length) {
  for (size_t g = 0; g < caches.groups().size() && length > 0; ++g) {
    const Caches::Group& group = caches.groups()[g];
    if (group.rows) continue;
    FAULT_UNLESS(has_mark(caches.data(g, s.read_slot(g)), group.unit_bytes, stream.hash(length)),
                 "state of group {} in slot {} has not seen exactly the first {} tokens", g,
                 s.read_slot(g), length);
  }
}

// One step of the engine: tokens [from, to). Reads the state, writes rows and state it owns.
inline void compute(const Caches& caches, SequenceCache* s, const Stream& stream, uint32_t from,
                    uint32_t to) {
  check_state(caches, *s, stream, from);
  for (size_t g = 0; g < caches.groups().size(); ++g) {
    const Caches::Group& group = caches.groups()[g];
    if (!group.rows) {
      FAULT_UNLESS(s->state(g).own.valid(), "no slot to write the state of group {} to", g);
      put_mark(caches.data(g, s->write_slot(g)), group.unit_bytes, stream.hash(to));
      continue;
    }
    for (uint32_t row = from; row < to; ++row) {
      const uint32_t page = row / group.unit_tokens;
      FAULT_UNLESS(page >= s->rows(g).shared.size() && page < s->rows(g).size(),
                   "row {} of group {} would be written to page {}, but {} are shared and {} owned",
                   row, g, page, s->rows(g).shared.size(), s->rows(g).owned.size());
      put_mark(row_at(caches, *s, g, row), group.unit_bytes / group.unit_tokens,
               stream.hash(row + 1));
    }
  }
  s->stepped();
}

}  // namespace weft::engine
