#include <algorithm>
#include <filesystem>
#include <fstream>

#include "unit/engine/test_rng.h"
#include "unit/engine_cache/world.h"

namespace weft::engine {
namespace {

using cache::SnapshotKind;

constexpr int32_t kPlaceholder = 9;

SnapshotKind kind_of(uint32_t number) {
  constexpr SnapshotKind kKinds[] = {SnapshotKind::kPrefix, SnapshotKind::kTurn,
                                     SnapshotKind::kOutput, SnapshotKind::kBranch};
  return kKinds[number % 4];
}

}  // namespace

World::World(const Scenario& scenario) : scenario_(scenario) {
  caches_ = make_caches(scenario.layout);
  CoordinatorOptions options;
  options.now_us = [this] { return now_us_; };
  options.host.bytes = scenario.host_bytes;
  options.host.disk_dir = scenario.disk_bytes > 0 ? dir_.path() : "";
  options.host.disk_bytes = scenario.disk_bytes;
  options.host.inline_copies = !scenario.threaded;
  coordinator_ = std::make_unique<Coordinator>(caches_.get(), std::move(options));
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const weft_arena& arena = caches_->arenas()[g];
    const uint64_t used = caches_->groups()[g].unit_bytes;
    for (uint32_t u = 0; u < caches_->groups()[g].total(); ++u) {
      std::memset(caches_->data(g, static_cast<int32_t>(u)) + used, 0x5a, arena.stride - used);
    }
  }
}

void World::run() {
  for (size_t i = 0; i < scenario_.ops.size(); ++i) {
    const Op& op = scenario_.ops[i];
    try {
      apply(op);
      check_watch();
      if (i % 16 == 15) check_books();
    } catch (const Fault& fault) {
      throw Fault(fmt::format("operation {}: {}", i, fault.what()));
    }
    ++counts_.ops;
  }
  end();
}

// The first slot at or after the one that the operation names for which it makes sense.
World::Slot* World::pick(const Op& op) {
  using Phase = Slot::Phase;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[(op.a + i) % slots_.size()];
    const bool unfinished = slot.computed < slot.stream.size();
    switch (op.kind) {
      case OpKind::kAdmit:
        if (slot.phase == Phase::kEmpty) return &slot;
        break;
      case OpKind::kSwapIn:
      case OpKind::kRelease:
        if (slot.phase == Phase::kSwapped) return &slot;
        break;
      case OpKind::kCancel:
        if (slot.phase == Phase::kRunning || slot.phase == Phase::kLoading) return &slot;
        break;
      case OpKind::kStep:
        if (slot.phase == Phase::kRunning && unfinished) return &slot;
        break;
      default:
        if (slot.phase == Phase::kRunning) return &slot;
    }
  }
  return &slots_[op.a % slots_.size()];
}

void World::apply(const Op& op) {
  Slot* slot = pick(op);
  switch (op.kind) {
    case OpKind::kAdmit:
      return admit(op, slot);
    case OpKind::kStep:
      return step(op, slot);
    case OpKind::kExtend:
      return extend(op, slot);
    case OpKind::kPublish:
      return publish(op, slot);
    case OpKind::kFinish:
      return finish(op, slot);
    case OpKind::kCancel:
      return cancel(slot);
    case OpKind::kSwapOut:
      return swap_out(slot);
    case OpKind::kSwapIn:
      return swap_in(op, slot);
    case OpKind::kRelease:
      return release(slot);
    case OpKind::kPoll:
      return poll(op);
    case OpKind::kTick:
      now_us_ += op.b % 3 == 0 ? op.c % 200000000 : op.c % 1000;
      return;
    case OpKind::kRate: {
      constexpr double kRates[] = {1, 1e3, 1e6, 1e9};
      coordinator_->set_prefill_rate(kRates[op.b % 4]);
      watch_.on = false;
      return;
    }
    case OpKind::kWatch:
      return set_watch(op);
    case OpKind::kDamage:
      return damage(op);
    case OpKind::kDropAll:
      return drop_all(op);
    case OpKind::kAudit:
    case OpKind::kCount:
      return check_books();
  }
}

// ---- prompts ----------------------------------------------------------------------------------

// The next prompt of a document: the same again, a part of it with something new, one token in the
// middle changed, another tenant's, another image behind the same tokens, or something fresh.
Stream World::draw_stream(const Op& op) {
  TestRng rng(op.c);
  const Stream& source = documents_[op.b % documents_.size()];
  const uint32_t how = op.d % 16;
  const uint32_t n = source.size();
  uint32_t keep = how == 3 ? 0 : (op.b >> 8) % (n + 1);
  if (how < 3 || (how >= 7 && how <= 10 && n < scenario_.max_tokens * 3 / 4)) keep = n;
  if (how >= 13) keep = n - n / 8;
  // The same tokens of another tenant, or with other images: often as a whole.
  if ((how == 4 || how == 5) && op.b % 4 != 0) keep = n;
  uint32_t tenant = source.tenant();
  if (how == 4 || n == 0) tenant = rng.below(4);
  Stream out(tenant);
  const bool other_image = how == 5;
  for (const Stream::Image& image : source.images()) {
    if (image.first + image.rows > (how == 6 ? n : keep)) continue;
    // An image's number implies its rows.
    const uint64_t content = other_image ? image.content + 256 : image.content;
    out.add_image(image.first, image.rows, content);
  }
  for (uint32_t i = 0; i < keep; ++i) out.append(source.tokens()[i]);
  if (how == 6) {
    for (uint32_t i = keep; i < n; ++i) {
      const int32_t token = source.tokens()[i];
      out.append(i == keep && token < 3 ? (token + 1) % 3 : token);
    }
  } else if (how != 0 || n == 0) {
    uint32_t more = 1 + rng.below(scenario_.max_tokens / 2);
    if (rng.below(3) == 0) more = (out.size() / 128 + 1) * 128 - out.size() + rng.below(2);
    if (out.size() + more > scenario_.max_tokens) {
      more = scenario_.max_tokens - std::min(scenario_.max_tokens, out.size());
    }
    const bool with_image = more > 4 && rng.below(4) == 0;
    const uint32_t rows = with_image ? 1 + rng.below(std::min(more - 2, 250u)) : 0;
    const uint32_t text = (more - rows) / 2;
    for (uint32_t i = 0; i < text; ++i) out.append(static_cast<int32_t>(rng.below(3)));
    if (with_image) out.add_image(out.size(), rows, rng.below(3) * 256 + rows);
    for (uint32_t i = 0; i < rows; ++i) out.append(kPlaceholder);
    for (uint32_t i = text + rows; i < more; ++i) out.append(static_cast<int32_t>(rng.below(3)));
  }
  if (out.size() == 0) out.append(0);
  if (scenario_.inject == Inject::kForgotten) out.forget_images();
  if (scenario_.inject == Inject::kTenants) out.forget_tenant();
  out.seal();
  return out;
}

// ---- operations -------------------------------------------------------------------------------

void World::admit(const Op& op, Slot* slot) {
  if (slot->phase != Slot::Phase::kEmpty) return;
  slot->stream = draw_stream(op);
  slot->document = (op.d >> 8) % static_cast<uint32_t>(documents_.size());
  documents_[slot->document] = slot->stream;
  admit_stream(op, slot);
}

void World::admit_stream(const Op& op, Slot* slot) {
  TestRng rng(op.c ^ 0x55aa);
  const uint32_t n = slot->stream.size();
  const uint32_t limit = rng.below(4) == 0 ? rng.below(n + 1) : n - 1;
  const uint32_t tokens = rng.below(3) == 0 ? 1 + rng.below(n) : n;
  const uint32_t spare = rng.below(4) == 0 ? rng.below(4) : 0;
  slot->cache = std::make_unique<SequenceCache>(caches_.get());
  slot->computed = 0;
  slot->last = 0;
  const PrefixView view = slot->stream.view(limit);
  const CacheProbe probe = coordinator_->probe(view);
  check_probe(slot->stream, limit, probe);
  const Books before = books();
  CacheAdmission got = coordinator_->admit(view, tokens, spare, slot->cache.get());
  check_admission(*slot, probe, got, before, limit, tokens, spare);
  if (!got.ok) {
    ++counts_.refused;
    slot->cache.reset();
    return;
  }
  ++counts_.admitted;
  slot->phase = Slot::Phase::kRunning;
  slot->last = got.snapshot;
  const uint32_t hit = got.local + got.host;
  if (hit > 0) ++(got.host > 0 ? counts_.host_hits : counts_.hits);
  if (hit > 0 && !slot->stream.images().empty()) ++counts_.media_hits;
  if (got.loading != nullptr) {
    slot->phase = Slot::Phase::kLoading;
    slot->loading = std::move(got.loading);
    slot->loading_to = hit;
    return;
  }
  inject_after_admission(slot, hit);
  slot->computed = hit;
  check_rows(*caches_, *slot->cache, slot->stream, 0, hit);
  check_state(*caches_, *slot->cache, slot->stream, hit);
}

void World::step(const Op& op, Slot* slot) {
  if (slot->phase != Slot::Phase::kRunning) return;
  const uint32_t left = slot->stream.size() - slot->computed;
  if (left == 0) return;
  uint32_t n = op.c % 3 == 0 ? left : 1 + op.b % left;
  // Ends of units are where mistakes are.
  if (op.c % 3 == 1) n = std::min(left, 128 - slot->computed % 128);
  const uint32_t to = slot->computed + n;
  const Books before = books();
  bool room = true;
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    if (!group.rows) continue;
    const uint64_t have = slot->cache->rows(g).size();
    const uint64_t need = group.pages(to);
    if (need > have && need - have > coordinator_->available(g)) room = false;
  }
  const bool grown = coordinator_->grow(slot->cache.get(), to);
  FAULT_UNLESS(grown == room, "grow to {} tokens says {}", to, grown);
  if (!grown) {
    FAULT_UNLESS(books() == before, "a grow that failed has changed something");
    return;
  }
  const uint32_t from = slot->computed;
  compute(*caches_, slot->cache.get(), slot->stream, from, to);
  slot->computed = to;
  ++counts_.steps;
  inject_after_step(slot, from);
}

void World::extend(const Op& op, Slot* slot) {
  if (slot->phase != Slot::Phase::kRunning) return;
  TestRng rng(op.c);
  const uint32_t n = 1 + op.b % 20;
  for (uint32_t i = 0; i < n && slot->stream.size() < scenario_.max_tokens + 100; ++i) {
    slot->stream.append(static_cast<int32_t>(rng.below(3)));
  }
  slot->stream.seal();
}

void World::publish(const Op& op, Slot* slot) {
  if (slot->phase != Slot::Phase::kRunning || slot->computed == 0) return;
  const uint64_t declined = coordinator_->stats().declined;
  const bool kept = coordinator_->publish(slot->stream.view(0), slot->computed, kind_of(op.b),
                                          /*goes_on=*/true, slot->cache.get(), &slot->last);
  FAULT_UNLESS(kept || coordinator_->stats().declined == declined + 1, "not kept for no reason");
  if (kept) {
    leave(slot);
    const uint32_t device = coordinator_->probe(slot->stream.view(slot->computed)).device;
    FAULT_UNLESS(device == slot->computed, "{} tokens published, {} found", slot->computed, device);
  }
  check_rows(*caches_, *slot->cache, slot->stream, 0, slot->computed);
  check_state(*caches_, *slot->cache, slot->stream, slot->computed);
}

// The model hears that the slot's computed tokens can be found from now on.
void World::leave(Slot* slot) {
  ++counts_.published;
  published_.insert(slot->stream.hash(slot->computed));
  for (uint32_t n = slot->computed; n > 0 && known_.insert(slot->stream.hash(n)).second; --n) {
  }
}

void World::finish(const Op& op, Slot* slot) {
  if (slot->phase != Slot::Phase::kRunning) return;
  documents_[slot->document] = slot->stream;
  if (slot->computed > 0) {
    const bool kept = coordinator_->publish(slot->stream.view(0), slot->computed, kind_of(op.b),
                                            /*goes_on=*/false, slot->cache.get(), &slot->last);
    FAULT_UNLESS(kept, "the end of a sequence costs no memory but was not kept");
    leave(slot);
  }
  cancel(slot);
}

void World::cancel(Slot* slot) {
  if (slot->phase == Slot::Phase::kSwapped) return;
  if (slot->phase == Slot::Phase::kLoading) {
    coordinator_->abandon(std::move(slot->loading), std::move(*slot->cache));
    ++counts_.abandoned;
  } else if (slot->phase == Slot::Phase::kRunning) {
    slot->cache->clear();
    FAULT_UNLESS(slot->cache->empty(), "cleared");
  }
  slot->loading.reset();
  slot->cache.reset();
  slot->phase = Slot::Phase::kEmpty;
}

void World::swap_out(Slot* slot) {
  if (slot->phase != Slot::Phase::kRunning || slot->computed == 0) return;
  const uint64_t id =
      coordinator_->swap_out(slot->stream.view(0), slot->computed, slot->cache.get(), &slot->last);
  FAULT_UNLESS(slot->cache->empty(), "a swapped sequence holds units");
  leave(slot);
  slot->cache.reset();
  slot->pinned = id;
  slot->phase = id == 0 ? Slot::Phase::kEmpty : Slot::Phase::kSwapped;
  counts_.swaps += id == 0 ? 0 : 1;
  if (id != 0) {
    FAULT_UNLESS(scenario_.host_bytes >= coordinator_->swap_bytes(slot->computed),
                 "more was pinned than there is");
  }
}

void World::swap_in(const Op& op, Slot* slot) {
  if (slot->phase != Slot::Phase::kSwapped) return;
  const CacheProbe probe = coordinator_->probe(slot->stream.view(slot->computed));
  if (!damaged_ && settled()) {
    FAULT_UNLESS(std::max(probe.device, probe.host) == slot->computed,
                 "{} tokens were swapped out and are pinned, but there are {} and {}",
                 slot->computed, probe.device, probe.host);
  }
  const uint64_t pinned = slot->pinned;
  const uint32_t computed = slot->computed;
  admit_stream(op, slot);
  if (slot->phase == Slot::Phase::kSwapped) {  // refused
    slot->computed = computed;
    return;
  }
  coordinator_->release(pinned);
  slot->pinned = 0;
}

void World::release(Slot* slot) {
  if (slot->phase != Slot::Phase::kSwapped) return;
  coordinator_->release(slot->pinned);
  slot->pinned = 0;
  slot->phase = Slot::Phase::kEmpty;
}

void World::poll(const Op& op) {
  if (scenario_.threaded && op.b % 4 == 0) coordinator_->host().queue().wait(200);
  coordinator_->poll();
  for (Slot& slot : slots_) {
    if (slot.phase != Slot::Phase::kLoading || !slot.loading->over()) continue;
    slot.phase = Slot::Phase::kRunning;
    if (slot.loading->ok()) {
      slot.computed = slot.loading_to;
      check_rows(*caches_, *slot.cache, slot.stream, 0, slot.computed);
      check_state(*caches_, *slot.cache, slot.stream, slot.computed);
      slot.loading.reset();
      continue;
    }
    FAULT_UNLESS(damaged_, "a load failed although no file was damaged");
    ++counts_.loads_failed;
    slot.loading.reset();
    cancel(&slot);
  }
}

void World::set_watch(const Op& op) {
  watch_.on = !scenario_.threaded;
  watch_.stream = draw_stream(op);
  watch_.limit = watch_.stream.size();
  watch_.version = coordinator_->version();
  watch_.answer = coordinator_->probe(watch_.stream.view(watch_.limit));
  check_probe(watch_.stream, watch_.limit, watch_.answer);
}

// Flips a bit of a file, cuts it off, or removes it: of one file or of all.
void World::damage(const Op& op) {
  if (scenario_.disk_bytes == 0) return;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    files.push_back(entry.path().string());
  }
  if (files.empty()) return;
  std::sort(files.begin(), files.end());
  damaged_ = true;
  for (size_t i = 0; i < files.size(); ++i) {
    if (op.d % 2 == 0 || i == op.b % files.size()) damage_file(files[i], op);
  }
}

void World::damage_file(const std::string& path, const Op& op) {
  std::error_code ignored;
  const auto size = std::filesystem::file_size(path, ignored);
  if (ignored || size == 0) return;
  if (op.c % 3 == 0) {
    std::filesystem::resize_file(path, (op.c >> 8) % size, ignored);
  } else if (op.c % 3 == 1) {
    std::filesystem::remove(path, ignored);
  } else {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>((op.c >> 8) % size);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ (1 << (op.b >> 8) % 8)));
  }
}

void World::drop_all(const Op& op) {
  if (op.b % 8 == 0) drop_everything();  // rare: what is to be tested grows slowly
}

void World::drop_everything() {
  coordinator_->drop_all();
  published_.clear();
  known_.clear();
  for (Slot& slot : slots_) {
    if (slot.phase != Slot::Phase::kSwapped) continue;
    leave(&slot);
    --counts_.published;
  }
  FAULT_UNLESS(coordinator_->snapshots() == 0, "prefixes are left on the device");
}

void World::end() {
  for (Slot& slot : slots_) {
    release(&slot);
    cancel(&slot);
  }
  while (scenario_.drain && coordinator_->copying()) {
    coordinator_->host().queue().wait(1000);
    coordinator_->poll();
  }
  if (scenario_.drain) {
    counts_.evicted += coordinator_->stats().evicted;
    counts_.declined += coordinator_->stats().declined;
    drop_everything();
    check_books();
    for (const Caches::Group& g : caches_->groups()) {
      FAULT_UNLESS(g.pool->free() == g.total(), "at the end {} of {} units of {} are free",
                   g.pool->free(), g.total(), g.name);
    }
    const cache::HostBudget& budget = coordinator_->host().budget();
    FAULT_UNLESS(budget.used == 0 && budget.disk_used == 0, "at the end {} + {} bytes are in use",
                 budget.used, budget.disk_used);
  }
  check_gaps();
  coordinator_.reset();
  const Status audit = caches_->audit();
  FAULT_UNLESS(audit.ok(), "{}", audit.error().message);
  for (const Caches::Group& g : caches_->groups()) {
    FAULT_UNLESS(g.pool->free() == g.total(), "after the end {} of {} units of {} are free",
                 g.pool->free(), g.total(), g.name);
  }
  FAULT_UNLESS(std::filesystem::is_empty(dir_.path()), "files are left behind");
}

}  // namespace weft::engine
