#include "engine/cache/key.h"

#include <doctest/doctest.h>
#include <xxhash.h>

#include <algorithm>
#include <string>

#include "unit/engine/test_rng.h"

using namespace weft::engine;
using namespace weft::engine::cache;

namespace {

std::vector<int32_t> random_tokens(uint32_t seed, size_t n) {
  TestRng rng(seed);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(rng.below(160000));
  return out;
}

void put(std::string* text, const void* data, size_t bytes) {
  text->append(static_cast<const char*>(data), bytes);
}

Key128 hash_of(const std::string& text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return {h.low64, h.high64};
}

// The definition, written down once more.
Key128 naive_key(const Key128& root, const std::vector<int32_t>& tokens,
                 const std::vector<MediaSpan>& media, uint32_t length) {
  Key128 key = root;
  for (uint32_t begin = 0; begin < length; begin += 128) {
    const uint32_t end = std::min(length, begin + 128);
    Key128 images;
    for (const MediaSpan& m : media) {
      if (m.first >= end || m.first + m.rows <= begin) continue;
      std::string text;
      const int64_t where = int64_t{m.first} - begin, rows = m.rows;
      put(&text, &where, 8);
      put(&text, &rows, 8);
      put(&text, &m.content, 16);
      put(&text, &images, 16);
      images = hash_of(text);
    }
    std::string text;
    put(&text, &key, 16);
    put(&text, &images, 16);
    put(&text, tokens.data() + begin, (end - begin) * 4);
    key = hash_of(text);
  }
  return key;
}

}  // namespace

TEST_CASE("chain keys are what the definition says, however the chain grew") {
  TestRng rng(1);
  for (int round = 0; round < 200; ++round) {
    const auto tokens = random_tokens(rng(), rng.below(900));
    std::vector<MediaSpan> media;
    uint32_t at = 0;
    while (rng.below(3) != 0) {
      at += rng.below(200);
      media.push_back({at, 1 + rng.below(300), {rng(), rng()}});
      at += media.back().rows;
    }
    const Key128 root = root_key("m", "t", std::to_string(rng()));
    KeyChain chain(root, media);
    for (size_t n = 0; n < tokens.size();) {
      n = std::min(tokens.size(), n + 1 + rng.below(200));
      chain.extend(std::span(tokens).first(n));
      REQUIRE(chain.units() == n / 128);
    }
    for (uint32_t u = 0; u <= chain.units(); ++u) {
      REQUIRE(chain.after(u) == naive_key(root, tokens, media, u * 128));
    }
    const auto length = static_cast<uint32_t>(rng.below(static_cast<uint32_t>(tokens.size()) + 1));
    CHECK(prefix_key(chain, tokens, length) == naive_key(root, tokens, media, length));
  }
}

TEST_CASE("roots differ by model, tenant and salt, and by where one ends") {
  const Key128 a = root_key("m", "t", "s");
  CHECK(a == root_key("m", "t", "s"));
  CHECK_FALSE(a == root_key("m", "t", ""));
  CHECK_FALSE(a == root_key("m", "ts", ""));
  CHECK_FALSE(a == root_key("m", "", "ts"));
  CHECK_FALSE(a == root_key("mt", "", "s"));
  CHECK_FALSE(root_key("", "", "").zero());
}

TEST_CASE("another image behind the same tokens is another prefix, in every unit it touches") {
  const auto tokens = random_tokens(3, 128 * 5);
  const auto chain_of = [&](std::vector<MediaSpan> media) {
    KeyChain chain(root_key("m", "t", ""), std::move(media));
    chain.extend(tokens);
    return chain;
  };
  // Rows 200..329: the second and the third unit.
  const KeyChain one = chain_of({{200, 130, {1, 1}}}), two = chain_of({{200, 130, {2, 1}}});
  CHECK(one.after(1) == two.after(1));
  for (uint32_t u = 2; u <= 5; ++u) CHECK_FALSE(one.after(u) == two.after(u));
  CHECK_FALSE(one.after(2) == chain_of({}).after(2));
  CHECK_FALSE(one.after(2) == chain_of({{201, 130, {1, 1}}}).after(2));
  CHECK_FALSE(one.after(2) == chain_of({{200, 131, {1, 1}}}).after(2));
  CHECK_FALSE(chain_of({{200, 10, {1, 1}}, {220, 10, {2, 2}}}).after(2) ==
              chain_of({{200, 10, {2, 2}}, {220, 10, {1, 1}}}).after(2));
  CHECK(one.media_in(0, 200).zero());
  CHECK_FALSE(one.media_in(0, 201).zero());
  CHECK_FALSE(one.media_in(256, 384) == two.media_in(256, 384));
  CHECK(one.media_in(330, 640).zero());
  CHECK(one.next_media(0) == 200);
  CHECK(one.next_media(250) == 250);
  CHECK(one.next_media(330) == UINT32_MAX);
}

TEST_CASE("a partial unit never has the key of a full one") {
  const auto tokens = random_tokens(4, 256);
  KeyChain chain(root_key("m", "t", ""));
  chain.extend(tokens);
  CHECK(prefix_key(chain, tokens, 256) == chain.after(2));
  for (uint32_t n = 129; n < 256; ++n) CHECK_FALSE(prefix_key(chain, tokens, n) == chain.after(2));
}
