// Random scenarios: layouts of groups, sizes of pools and tiers, and what happens.
#include "unit/engine/test_rng.h"
#include "unit/engine_cache/world.h"

namespace weft::engine {
namespace {

constexpr const char* kKindNames[] = {
    "kAdmit",   "kStep", "kExtend", "kPublish", "kFinish", "kCancel", "kSwapOut", "kSwapIn",
    "kRelease", "kPoll", "kTick",   "kRate",    "kWatch",  "kDamage", "kDropAll", "kAudit"};
// How often each kind comes, relative to the others.
constexpr uint32_t kWeights[] = {30, 40, 5, 20, 12, 2, 4, 6, 1, 16, 6, 1, 6, 6, 1, 2};
static_assert(std::size(kKindNames) == static_cast<size_t>(OpKind::kCount));
static_assert(std::size(kWeights) == static_cast<size_t>(OpKind::kCount));

OpKind draw_kind(TestRng& rng) {
  uint32_t sum = 0;
  for (const uint32_t w : kWeights) sum += w;
  uint32_t at = rng.below(sum);
  for (size_t i = 0;; ++i) {
    if (at < kWeights[i]) return static_cast<OpKind>(i);
    at -= kWeights[i];
  }
}

Layout draw_layout(TestRng& rng, uint32_t max_tokens) {
  constexpr uint32_t kPages[] = {1, 3, 16, 64, 96, 128, 300};
  constexpr uint32_t kStates[] = {1, 4, 8, 12, 30, 80};
  Layout out;
  const uint32_t rows = rng.below(3);
  const uint32_t states = rows == 0 ? 1 + rng.below(2) : rng.below(3);
  for (uint32_t i = 0; i < rows; ++i) {
    weft_cache_group g = {};
    g.name = i == 0 ? "rows a" : "rows b";
    g.kind = WEFT_CACHE_ROWS;
    g.unit_tokens = kPages[rng.below(7)];
    g.unit_bytes = uint64_t{g.unit_tokens} * (8 + 8 * rng.below(3));
    const uint32_t one = (max_tokens + g.unit_tokens - 1) / g.unit_tokens;
    const uint32_t sizes[] = {1, one, 2 * one, 4 * one, 8 * one, 8 * one, 40 * one};
    out.groups.push_back(g);
    out.units.push_back(sizes[rng.below(7)]);
  }
  for (uint32_t i = 0; i < states; ++i) {
    weft_cache_group g = {};
    g.name = i == 0 ? "state a" : "state b";
    g.kind = WEFT_CACHE_STATE;
    g.unit_bytes = 8 + rng.below(200);
    const size_t at = rng.below(static_cast<uint32_t>(out.groups.size()) + 1);
    out.groups.insert(out.groups.begin() + static_cast<ptrdiff_t>(at), g);
    out.units.insert(out.units.begin() + static_cast<ptrdiff_t>(at), kStates[rng.below(6)]);
  }
  return out;
}

}  // namespace

Scenario draw_scenario(uint64_t seed, uint32_t n_ops) {
  TestRng rng(static_cast<uint32_t>(seed * 2654435761u));
  Scenario s;
  s.seed = seed;
  constexpr uint32_t kLengths[] = {20, 150, 150, 300, 300, 700};
  s.max_tokens = kLengths[rng.below(6)];
  s.layout = draw_layout(rng, s.max_tokens);
  uint64_t one = 0;  // bytes of a whole sequence
  for (const weft_cache_group& g : s.layout.groups) {
    one += g.kind == WEFT_CACHE_ROWS
               ? (s.max_tokens + g.unit_tokens - 1) / g.unit_tokens * g.unit_bytes
               : g.unit_bytes;
  }
  const uint64_t hosts[] = {0, 2 * one, 2 * one, 3 * one, 10 * one, 100 * one};
  s.host_bytes = hosts[rng.below(6)];
  const uint64_t disks[] = {0, 5 * one, 100 * one, 100 * one};
  s.disk_bytes = s.host_bytes == 0 ? 0 : disks[rng.below(4)];
  s.drain = rng.below(4) != 0;
  // Some scenarios never damage a file: there a load must not fail.
  const bool may_damage = rng.below(2) == 0;
  while (s.ops.size() < n_ops) {
    const OpKind kind = draw_kind(rng);
    if (kind == OpKind::kDamage && !may_damage) continue;
    s.ops.push_back({kind, rng(), rng(), rng(), rng()});
  }
  return s;
}

std::string describe(const Scenario& s) {
  std::string out = fmt::format(
      "Scenario s = draw_scenario({}, 0);  // {} tokens, {} host bytes, {} disk bytes{}{}\n",
      s.seed, s.max_tokens, s.host_bytes, s.disk_bytes, s.threaded ? ", copy thread" : "",
      s.drain ? "" : ", ends amid copies");
  for (size_t g = 0; g < s.layout.groups.size(); ++g) {
    const weft_cache_group& group = s.layout.groups[g];
    out += fmt::format("//   {}: {} units of {} bytes, {} tokens each\n", group.name,
                       s.layout.units[g], group.unit_bytes, group.unit_tokens);
  }
  if (s.threaded) out += "s.threaded = true;\n";
  if (s.inject != Inject::kNone) {
    out += fmt::format("s.inject = Inject({});\n", static_cast<int>(s.inject));
  }
  out += "s.ops = {\n";
  for (const Op& op : s.ops) {
    out += fmt::format("    {{OpKind::{}, {}u, {}u, {}u, {}u}},\n",
                       kKindNames[static_cast<size_t>(op.kind)], op.a, op.b, op.c, op.d);
  }
  return out + "};\n";
}

}  // namespace weft::engine
