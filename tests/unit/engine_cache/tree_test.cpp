#include "engine/cache/tree.h"

#include <doctest/doctest.h>

#include <chrono>

using namespace weft::engine;
using namespace weft::engine::cache;

namespace {

struct Prompt {
  std::vector<int32_t> tokens;
  KeyChain chain;
  Prompt(std::vector<int32_t> t, std::vector<MediaSpan> media = {},
         Key128 root = root_key("m", "t", ""))
      : tokens(std::move(t)), chain(root, std::move(media)) {
    chain.extend(tokens);
  }
};

std::vector<int32_t> count(size_t n, int32_t from = 0) {
  std::vector<int32_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = from + static_cast<int32_t>(i % 5000);
  return out;
}

Snapshot* keep(PrefixTree* tree, const Prompt& p, uint32_t length) {
  const auto tokens = std::span<const int32_t>(p.tokens).first(length);
  Node* node = tree->path(p.chain, tokens, length / kMatchUnit);
  if (node == nullptr) return nullptr;
  Snapshot* s = tree->add(node, p.chain, tokens);
  s->on_device = true;
  return s;
}

uint32_t hit(const PrefixTree& tree, const Prompt& p, uint32_t limit = UINT32_MAX) {
  const auto m = tree.match(p.chain, p.tokens, limit);
  return m.device == nullptr ? 0 : m.device->length;
}

}  // namespace

TEST_CASE("the longest snapshot of exactly these tokens is found, at any length") {
  PrefixTree tree;
  const Prompt p(count(1000));
  for (const uint32_t n : {1u, 127u, 128u, 129u, 400u, 512u, 999u}) keep(&tree, p, n);
  CHECK(hit(tree, p) == 999);
  CHECK(hit(tree, p, 998) == 512);
  CHECK(hit(tree, p, 511) == 400);
  CHECK(hit(tree, p, 128) == 128);
  CHECK(hit(tree, p, 127) == 127);
  CHECK(hit(tree, p, 0) == 0);
  CHECK(tree.find(p.chain, p.tokens, 400)->length == 400);
  CHECK(tree.find(p.chain, p.tokens, 401) == nullptr);
  for (const uint32_t cut : {0u, 100u, 127u, 128u, 399u, 450u, 511u}) {
    Prompt edited(p.tokens);
    edited.tokens[cut] += 1;
    edited = Prompt(edited.tokens);
    const auto m = tree.match(edited.chain, edited.tokens, UINT32_MAX);
    CHECK(m.common == cut);
    CHECK(hit(tree, edited) <= cut);
  }
  const Prompt stranger(count(1000), {}, root_key("m", "other", ""));
  CHECK(hit(tree, stranger) == 0);
  CHECK(tree.match(stranger.chain, stranger.tokens, UINT32_MAX).common == 0);
}

TEST_CASE("removing snapshots removes the nodes that lead nowhere") {
  PrefixTree tree;
  const Prompt p(count(600));
  Prompt q(count(600));
  q.tokens[300] = -1;
  q = Prompt(q.tokens);
  Snapshot* a = keep(&tree, p, 600);
  Snapshot* b = keep(&tree, q, 600);
  Snapshot* c = keep(&tree, p, 256);
  CHECK(tree.nodes() == 1 + 2 + 2 + 2);
  const uint64_t id = b->id;
  tree.remove(b);
  CHECK(tree.by_id(id) == nullptr);
  CHECK(tree.nodes() == 1 + 4);
  tree.remove(a);
  CHECK(tree.nodes() == 1 + 2);
  CHECK(hit(tree, p) == 256);
  tree.remove(c);
  CHECK(tree.nodes() == 0);
  CHECK(tree.snapshots() == 0);
}

TEST_CASE("images are part of the prefix, also where they cross units or end in the tail") {
  PrefixTree tree;
  const Prompt one(count(400), {{100, 200, {1, 1}}});
  const Prompt two(count(400), {{100, 200, {2, 2}}});
  const Prompt none(count(400));
  for (const uint32_t n : {90u, 110u, 200u, 290u, 310u, 400u}) {
    keep(&tree, one, n);
    CHECK(hit(tree, one) == n);
    CHECK(hit(tree, two) == 90);
    CHECK(hit(tree, none) == 90);
    CHECK(tree.match(two.chain, two.tokens, UINT32_MAX).common <= 100);
    CHECK(tree.match(one.chain, one.tokens, UINT32_MAX).common >= n);
  }
  keep(&tree, two, 300);
  CHECK(hit(tree, two) == 300);
  CHECK(hit(tree, one) == 400);
}

TEST_CASE("a collision of keys is a miss and changes nothing") {
  PrefixTree tree;
  const Prompt p(count(300));
  keep(&tree, p, 300);
  // The same keys with other tokens: what a found collision would be.
  Prompt crafted(p.tokens);
  crafted.tokens[200] += 1;
  CHECK(hit(tree, crafted) == 0);
  CHECK(tree.match(crafted.chain, crafted.tokens, UINT32_MAX).common == 200);
  CHECK(keep(&tree, crafted, 300) == nullptr);
  CHECK(tree.find(crafted.chain, crafted.tokens, 300) == nullptr);
  // A root that equals the key of somebody's first unit.
  const Prompt inner(count(200), {}, p.chain.after(1));
  CHECK(keep(&tree, inner, 200) == nullptr);
  CHECK(tree.nodes() == 1 + 2);
  CHECK(tree.snapshots() == 1);
  CHECK(hit(tree, p) == 300);
}

TEST_CASE("what is common is found among brothers") {
  PrefixTree tree;
  for (int32_t i = 0; i < 20; ++i) {
    Prompt p(count(300));
    p.tokens[128 + static_cast<size_t>(i) * 5] = -1 - i;
    keep(&tree, Prompt(p.tokens), 300);
  }
  const Prompt p(count(256));
  CHECK(tree.match(p.chain, p.tokens, 256).common == 128 + 95);
}

TEST_CASE("a prompt of a million tokens is looked up exactly") {
  PrefixTree tree;
  std::vector<int32_t> tokens = count(1000000);
  const Prompt p(tokens);
  keep(&tree, p, 1000);
  keep(&tree, p, 999999);
  tokens[999998] += 1;
  const Prompt edited(std::move(tokens));
  const auto begin = std::chrono::steady_clock::now();
  const bool found = hit(tree, p) == 999999 && hit(tree, edited) == 1000;
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(found);
  CHECK(tree.match(edited.chain, edited.tokens, UINT32_MAX).common == 999998);
  MESSAGE("two look-ups of 1M tokens: "
          << std::chrono::duration_cast<std::chrono::microseconds>(took).count() << " us");
}
