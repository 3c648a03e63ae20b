// Coordinator, second part: what is kept, at which price, and what goes.
#include <algorithm>
#include <cmath>

#include "engine/cache/coordinator.h"

namespace weft::engine {

using cache::kMatchUnit;
using cache::Node;
using cache::Snapshot;
using cache::SnapshotKind;

namespace {

// Time after which an unused snapshot counts half as much again: agents come back within seconds to
// minutes.
constexpr double kReuseHorizonUs = 120e6;

// How likely a later request goes on exactly there, relative to the end of a turn.
double weight_of(const Snapshot& s) {
  const double base = s.kind == SnapshotKind::kPrefix   ? 4.0
                      : s.kind == SnapshotKind::kBranch ? 2.0
                                                        : 1.0;
  return s.superseded ? base * 0.2 : base;
}

}  // namespace

// ---- prices -----------------------------------------------------------------------------------

// Bytes that giving the snapshot up would free: its state, and the rows that nothing shorter needs.
uint64_t Coordinator::bytes_of(const Snapshot& s, uint32_t previous) const {
  uint64_t bytes = state_bytes_;
  for (const Caches::Group& g : caches_->groups()) {
    if (g.rows) bytes += uint64_t{s.length - previous} * g.unit_bytes / g.unit_tokens;
  }
  return bytes;
}

double Coordinator::score_of(const Snapshot& s, bool on_device) const {
  uint32_t previous = 0;
  for (const Node* n = s.node; n != nullptr && previous == 0; n = n->parent) {
    for (const auto& other : n->snapshots) {
      const bool counts = on_device ? other->on_device : other->on_host;
      if (counts && other->length < s.length) previous = std::max(previous, other->length);
    }
  }
  double saved_us = static_cast<double>(s.length - previous) / tokens_per_us_;
  if (on_device && s.on_host) {
    saved_us = std::min(saved_us, static_cast<double>(host_.restore_us(s)));
  }
  const auto bytes = static_cast<double>(std::max<uint64_t>(bytes_of(s, previous), 1));
  return std::log(weight_of(s) * (1.0 + s.uses)) + std::log(std::max(saved_us, 1e-3) / bytes) +
         static_cast<double>(s.last_use_us) / kReuseHorizonUs;
}

void Coordinator::rescore(Snapshot* s) {
  if (s->on_device) {
    device_order_.erase({s->score, s->id});
    s->score = score_of(*s, true);
    device_order_.emplace(s->score, s->id);
  }
  if (s->on_host) host_.set_score(s, score_of(*s, false));
}

void Coordinator::touch(Snapshot* s) {
  ++s->uses;
  ++s->heat;
  s->last_use_us = options_.now_us();
  s->superseded = false;
  rescore(s);
}

// ---- giving up --------------------------------------------------------------------------------

// True when giving the snapshot up frees at least one unit of the group now.
bool Coordinator::frees(const Snapshot& s, size_t group) const {
  if (!caches_->groups()[group].rows) {
    size_t state = 0;
    for (size_t g = 0; g < group; ++g) state += caches_->groups()[g].rows ? 0 : 1;
    return s.state[state].sole();
  }
  const auto& tail = s.pages[group].device;
  if (std::any_of(tail.begin(), tail.end(), [](const auto& page) { return page.sole(); })) {
    return true;
  }
  for (const Node* n = s.node; n != nullptr && n->device_need == 1; n = n->parent) {
    if (n->pages.empty()) continue;
    const auto& pages = n->pages[group].device;
    if (std::any_of(pages.begin(), pages.end(), [](const auto& page) { return page.sole(); })) {
      return true;
    }
  }
  return false;
}

// The snapshot of least worth that frees a unit of the group; when none does alone, the one of
// least worth at all.
Snapshot* Coordinator::cheapest(size_t group) const {
  for (const auto& [score, id] : device_order_) {
    Snapshot* s = tree_.by_id(id);
    if (frees(*s, group)) return s;
  }
  return device_order_.empty() ? nullptr : tree_.by_id(device_order_.begin()->second);
}

void Coordinator::evict(Snapshot* s) {
  WEFT_CHECK(s->on_device);
  device_order_.erase({s->score, s->id});
  s->on_device = false;
  s->state.clear();
  for (cache::PageList& list : s->pages) list.device.clear();
  for (Node* n = s->node; n != nullptr; n = n->parent) {
    WEFT_CHECK(n->device_need > 0);
    if (--n->device_need > 0) continue;
    for (cache::PageList& list : n->pages) list.device.clear();
  }
  ++stats_.evicted;
  ++version_;
  if (!s->on_host) tree_.remove(s);
}

void Coordinator::make_room(size_t group, uint32_t units) {
  while (caches_->groups()[group].pool->free() < units) {
    Snapshot* s = cheapest(group);
    WEFT_CHECK(s != nullptr);  // the caller has made sure of it
    evict(s);
  }
}

// Room for something of this worth: takes only what is worth less.
bool Coordinator::afford(size_t group, uint32_t units, double score) {
  while (caches_->groups()[group].pool->free() < units) {
    Snapshot* s = cheapest(group);
    if (s == nullptr || s->score >= score || !frees(*s, group)) return false;
    evict(s);
  }
  return true;
}

void Coordinator::drop_all() {
  while (!device_order_.empty()) evict(tree_.by_id(device_order_.begin()->second));
  host_.drop_all();
  ++version_;
}

// ---- keeping ----------------------------------------------------------------------------------

bool Coordinator::can_keep(uint32_t length, double score, bool goes_on,
                           const SequenceCache& sequence) {
  if (!goes_on) return true;
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    const bool needs =
        group.rows ? length % group.unit_tokens != 0 : !sequence.state(g).source.valid();
    if (needs && !afford(g, 1, score)) return false;
  }
  return true;
}

bool Coordinator::publish(const PrefixView& view, uint32_t length, SnapshotKind kind, bool goes_on,
                          SequenceCache* sequence, uint64_t* last) {
  if (!options_.keep_prefixes || length == 0) return false;
  const std::span<const int32_t> tokens = view.tokens.first(length);
  Snapshot* s = tree_.find(*view.chain, tokens, length);
  if (s != nullptr && s->on_device) {
    s->last_use_us = options_.now_us();
    rescore(s);
    *last = s->id;
    return true;
  }
  Snapshot candidate;
  const auto known = tree_.match(*view.chain, tokens, length - 1);
  candidate.length = length;
  candidate.kind = kind;
  candidate.last_use_us = options_.now_us();
  const uint32_t previous = known.device == nullptr ? 0 : known.device->length;
  const double saved_us = static_cast<double>(length - previous) / tokens_per_us_;
  const double score = std::log(weight_of(candidate)) +
                       std::log(saved_us / static_cast<double>(std::max<uint64_t>(
                                               bytes_of(candidate, previous), 1))) +
                       static_cast<double>(candidate.last_use_us) / kReuseHorizonUs;
  const uint64_t id = s == nullptr ? 0 : s->id;
  if (!can_keep(length, score, goes_on, *sequence)) {
    ++stats_.declined;
    return false;
  }
  s = id == 0 ? nullptr : tree_.by_id(id);
  if (s == nullptr) {
    Node* node = tree_.path(*view.chain, tokens, length / kMatchUnit);
    if (node == nullptr) return false;
    s = tree_.add(node, *view.chain, tokens);
    s->kind = kind;
  }
  s->last_use_us = candidate.last_use_us;
  std::vector<Node*> path;
  for (Node* n = s->node; n != nullptr; n = n->parent) path.push_back(n);
  for (auto n = path.rbegin(); n != path.rend(); ++n) attach_pages(*n, sequence);
  attach_tail(s, goes_on, sequence);
  attach_state(s, goes_on, sequence);
  s->on_device = true;
  ++stats_.made;
  ++version_;
  Snapshot* before = *last == 0 ? nullptr : tree_.by_id(*last);
  if (before != nullptr && before != s && before->kind != SnapshotKind::kPrefix &&
      before->kind != SnapshotKind::kBranch && before->length < length) {
    before->superseded = true;
    rescore(before);
  }
  if (before != nullptr && before != s) s->heat = std::max(s->heat, before->heat);
  *last = s->id;
  rescore(s);
  // A sequence that is swapped out is copied by swap_out(), at once.
  if (host_.enabled() && kind != SnapshotKind::kPreempted && !s->on_host &&
      static_cast<double>(host_.restore_us(*s)) < saved_us) {
    host_.save(s, /*now=*/false, /*pin=*/false);
    if (s->on_host) rescore(s);
  }
  return true;
}

// Pages that end inside the node's unit: the tree's when it has them, else the sequence's.
void Coordinator::attach_pages(Node* node, SequenceCache* sequence) {
  if (node->pages.empty()) node->pages.resize(caches_->groups().size());
  for (size_t g = 0; g < caches_->groups().size() && node->units > 0; ++g) {
    if (!caches_->groups()[g].rows) continue;
    const uint32_t first = full_pages(g, (node->units - 1) * kMatchUnit);
    const uint32_t last = full_pages(g, node->units * kMatchUnit);
    sequence->freeze(g, last);
    auto& shared = sequence->rows(g).shared;
    auto& kept = node->pages[g].device;
    for (uint32_t i = first; i < last; ++i) {
      if (node->device_need > 0) {
        shared[i] = kept[i - first].use();  // computed twice: one copy is enough
      } else {
        kept.push_back(shared[i].keep());
      }
    }
  }
  ++node->device_need;
}

void Coordinator::attach_tail(Snapshot* s, bool goes_on, SequenceCache* sequence) {
  s->pages.resize(caches_->groups().size());
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    if (!group.rows) continue;
    const uint32_t first = full_pages(g, s->node->units * kMatchUnit);
    const uint32_t full = full_pages(g, s->length);
    SequenceCache::Rows& rows = sequence->rows(g);
    sequence->freeze(g, full);
    auto& kept = s->pages[g].device;
    for (uint32_t i = first; i < full; ++i) kept.push_back(rows.shared[i].keep());
    if (s->length % group.unit_tokens == 0) continue;
    if (!goes_on) {
      sequence->freeze(g, full + 1);
      kept.push_back(rows.shared[full].keep());
      continue;
    }
    cache::OwnedUnit copy = group.pool->take();
    caches_->copy(g, rows.unit(full), copy.unit());
    kept.push_back(std::move(copy).freeze().keep());
  }
}

void Coordinator::attach_state(Snapshot* s, bool goes_on, SequenceCache* sequence) {
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    if (caches_->groups()[g].rows) continue;
    SequenceCache::State& state = sequence->state(g);
    const bool frozen = !state.source.valid();
    if (frozen) state.source = std::move(state.own).freeze();
    s->state.push_back(state.source.keep());
    if (frozen && goes_on) state.own = caches_->groups()[g].pool->take();
  }
}

// ---- swapping ---------------------------------------------------------------------------------

uint64_t Coordinator::swap_bytes(uint32_t length) const {
  if (!host_.enabled()) return 0;
  uint64_t bytes = state_bytes_;
  for (const Caches::Group& g : caches_->groups()) {
    if (g.rows) bytes += uint64_t{g.pages(length)} * g.unit_bytes;
  }
  return bytes;
}

uint64_t Coordinator::swap_out(const PrefixView& view, uint32_t length, SequenceCache* sequence,
                               uint64_t* last) {
  const bool kept =
      publish(view, length, SnapshotKind::kPreempted, /*goes_on=*/false, sequence, last);
  sequence->clear();
  if (!kept || !host_.enabled()) return 0;
  Snapshot* s = tree_.by_id(*last);
  if (s == nullptr || !host_.save(s, /*now=*/true, /*pin=*/true)) return 0;
  rescore(s);
  return s->id;
}

void Coordinator::release(uint64_t snapshot) {
  Snapshot* s = tree_.by_id(snapshot);
  if (s != nullptr) host_.unpin(s);
}

void Coordinator::discard(uint64_t snapshot) {
  Snapshot* s = tree_.by_id(snapshot);
  if (s == nullptr || s->pins > 0) return;  // pinned: a sequence without an error left it later
  if (s->on_device) evict(s);
  s = tree_.by_id(snapshot);
  if (s != nullptr && s->on_host) host_.drop(s);
}

}  // namespace weft::engine
