#include "engine/cache/host_tier.h"

#include <cstring>

namespace weft::engine::cache {
namespace {

// Before anything was measured: a copy through memory.
constexpr double kBytesPerUs = 3000;
constexpr uint64_t kFixedUs = 200;
// A snapshot goes to disk when it, or what it grew from, was used this often; what nobody came back
// for is not worth the writes.
constexpr uint32_t kSpillHeat = 2;

}  // namespace

HostTier::HostTier(Caches* caches, PrefixTree* tree, HostTierOptions options)
    : caches_(caches), tree_(tree), options_(std::move(options)), queue_(options_.inline_copies) {
  budget_.total = options_.bytes;
  budget_.disk_total = options_.disk_dir.empty() ? 0 : options_.disk_bytes;
}

// ---- prices -----------------------------------------------------------------------------------

// Bytes of the prefix that one tier lacks: what a copy in that direction has to move.
uint64_t HostTier::bytes_lacking(const Snapshot& s, bool on_host) const {
  uint64_t bytes = 0;
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    const Caches::Group& group = caches_->groups()[g];
    if (!group.rows) {
      bytes += group.unit_bytes;
      continue;
    }
    const Node* n = s.node;
    while (n->parent != nullptr && (on_host ? n->host_need : n->device_need) == 0) n = n->parent;
    bytes += uint64_t{group.pages(s.length) - n->units * kMatchUnit / group.unit_tokens} *
             group.unit_bytes;
  }
  return bytes;
}

uint64_t HostTier::restore_us(const Snapshot& s) const {
  const uint64_t copied = queue_.copied_bytes(), took = queue_.copy_us();
  const double rate = copied > (64u << 20) && took > 0
                          ? static_cast<double>(copied) / static_cast<double>(took)
                          : kBytesPerUs;
  return kFixedUs +
         static_cast<uint64_t>(static_cast<double>(bytes_lacking(s, /*on_host=*/false)) / rate);
}

// ---- saving -----------------------------------------------------------------------------------

struct HostTier::Save {
  std::shared_ptr<CopyTask> task = std::make_shared<CopyTask>();
  std::vector<LiveRef> sources;  // in use until the copy is over
  struct NodeCopy {
    Node* node = nullptr;
    std::vector<std::vector<BlobRef>> pages;  // per group
  };
  std::vector<NodeCopy> nodes;
  std::vector<std::vector<BlobRef>> tail;  // per group
  std::vector<BlobRef> state;
};

bool HostTier::add_page(size_t group, const CachedRef& unit, std::vector<BlobRef>* blobs,
                        Save* save) {
  const uint64_t bytes = caches_->groups()[group].unit_bytes;
  BlobRef blob = Blob::make(&budget_, bytes);
  if (blob == nullptr) return false;
  CopyPart part;
  part.from = caches_->data(group, unit.unit());
  part.to = blob->data();
  part.bytes = bytes;
  part.blob = blob;
  save->task->parts.push_back(std::move(part));
  save->sources.push_back(unit.use());
  blobs->push_back(std::move(blob));
  return true;
}

bool HostTier::collect_save(const Snapshot& s, Save* save) {
  const size_t groups = caches_->groups().size();
  for (Node* n = s.node; n != nullptr && n->host_need == 0; n = n->parent) {
    save->nodes.push_back({n, std::vector<std::vector<BlobRef>>(groups)});
    for (size_t g = 0; g < groups && n->units > 0; ++g) {
      for (const CachedRef& page : n->pages[g].device) {
        if (!add_page(g, page, &save->nodes.back().pages[g], save)) return false;
      }
    }
  }
  save->tail.resize(groups);
  size_t state = 0;
  for (size_t g = 0; g < groups; ++g) {
    if (!caches_->groups()[g].rows) {
      if (!add_page(g, s.state[state++], &save->state, save)) return false;
      continue;
    }
    for (const CachedRef& page : s.pages[g].device) {
      if (!add_page(g, page, &save->tail[g], save)) return false;
    }
  }
  return true;
}

void HostTier::attach(Snapshot* s, Save* save) {
  for (Save::NodeCopy& copy : save->nodes) {
    for (size_t g = 0; g < copy.pages.size(); ++g) {
      copy.node->pages[g].host = std::move(copy.pages[g]);
    }
  }
  for (size_t g = 0; g < save->tail.size(); ++g) s->pages[g].host = std::move(save->tail[g]);
  s->host_state = std::move(save->state);
  for (Node* n = s->node; n != nullptr; n = n->parent) ++n->host_need;
  s->on_host = true;
}

bool HostTier::save(Snapshot* s, bool now, bool pin) {
  WEFT_CHECK(s->on_device);
  if (pin && s->pins > 0) {  // two sequences with the same tokens
    ++s->pins;
    return true;
  }
  if (s->on_host) drop(s);  // a copy that is not complete yet is no use to who needs it now
  if (pin && swap_size(*s) > room()) return false;
  // What goes to make room may take copies of rows along that this one could have shared.
  uint64_t bytes = 0;
  do {
    bytes = bytes_lacking(*s, /*on_host=*/true);
    if (!make_room(bytes, s)) return false;
  } while (bytes_lacking(*s, /*on_host=*/true) > bytes);
  auto save = std::make_shared<Save>();
  if (!collect_save(*s, save.get())) return false;
  attach(s, save.get());
  saved_bytes_ += bytes;
  ++changes_;
  if (pin) {
    s->pins = 1;
    pinned_bytes_ += swap_size(*s);
  }
  if (now) {
    for (CopyPart& part : save->task->parts) {
      std::memcpy(part.to, part.from, part.bytes);
      part.blob->ready.store(true, std::memory_order_release);
    }
    return true;
  }
  const uint64_t id = s->id;
  save->task->done = [this, id, save_sources = save](bool ok) {
    save_sources->sources.clear();
    Snapshot* saved = tree_->by_id(id);
    if (!ok && saved != nullptr && saved->on_host) drop(saved);
  };
  queue_.submit(save->task);
  save->task.reset();  // the queue owns it now; its `done` owns the sources
  trim();
  return true;
}

uint64_t HostTier::swap_size(const Snapshot& s) const {
  uint64_t bytes = 0;
  for (const Caches::Group& g : caches_->groups()) {
    bytes += g.rows ? uint64_t{g.pages(s.length)} * g.unit_bytes : g.unit_bytes;
  }
  return bytes;
}

void HostTier::unpin(Snapshot* s) {
  if (s->pins == 0 || --s->pins > 0) return;
  ++changes_;  // from now on it is offered only where the copy is worth it
  pinned_bytes_ -= swap_size(*s);
  if (s->on_host) order_.emplace(s->host_score, s->id);
}

// ---- loading ----------------------------------------------------------------------------------

std::vector<HostTier::Load> HostTier::collect(const Snapshot& s) const {
  std::vector<Load> loads;
  std::vector<const Node*> path;
  for (const Node* n = s.node; n != nullptr && n->device_need == 0; n = n->parent) {
    path.push_back(n);
  }
  size_t state = 0;
  for (size_t g = 0; g < caches_->groups().size(); ++g) {
    if (!caches_->groups()[g].rows) {
      loads.push_back({g, 0, s.host_state[state++]});
      continue;
    }
    const uint32_t per_page = caches_->groups()[g].unit_tokens;
    for (auto n = path.rbegin(); n != path.rend(); ++n) {
      if ((*n)->units == 0) continue;
      uint32_t page = ((*n)->units - 1) * kMatchUnit / per_page;
      for (const BlobRef& blob : (*n)->pages[g].host) loads.push_back({g, page++, blob});
    }
    uint32_t page = s.node->units * kMatchUnit / per_page;
    for (const BlobRef& blob : s.pages[g].host) loads.push_back({g, page++, blob});
  }
  return loads;
}

std::shared_ptr<CopyTask> HostTier::start(std::vector<Load> loads, const SequenceCache& sequence) {
  auto task = std::make_shared<CopyTask>();
  for (const Load& load : loads) {
    CopyPart part;
    part.blob = load.blob;
    part.bytes = load.blob->bytes();
    if (caches_->groups()[load.group].rows) {
      const auto& rows = sequence.rows(load.group);
      WEFT_CHECK(load.page >= rows.shared.size());
      part.to = caches_->data(load.group, rows.unit(load.page));
    } else {
      part.to = caches_->data(load.group, sequence.state(load.group).own.unit());
    }
    if (load.blob->in_memory()) {
      part.from = load.blob->data();
    } else {
      part.kind = CopyPart::Kind::kFromFile;
      part.path = load.blob->file();
    }
    ++load.blob->readers;
    loaded_bytes_ += part.bytes;
    task->parts.push_back(std::move(part));
  }
  task->done = [this, blobs = std::move(loads)](bool) {
    bool broken = false;
    for (const Load& load : blobs) {
      --load.blob->readers;
      broken = broken || load.blob->broken.load(std::memory_order_relaxed);
    }
    if (broken) drop_broken();
  };
  queue_.submit(task);
  return task;
}

// ---- giving up --------------------------------------------------------------------------------

void HostTier::set_score(Snapshot* s, double score) {
  forget_order(s);
  s->host_score = score;
  if (s->pins == 0) order_.emplace(score, s->id);
}

void HostTier::forget_order(Snapshot* s) { order_.erase({s->host_score, s->id}); }

void HostTier::drop(Snapshot* s) {
  WEFT_CHECK(s->on_host);
  ++changes_;
  s->pins = std::min(s->pins, 1u);
  unpin(s);
  forget_order(s);
  s->on_host = false;
  s->host_state.clear();
  for (PageList& list : s->pages) list.host.clear();
  for (Node* n = s->node; n != nullptr; n = n->parent) {
    WEFT_CHECK(n->host_need > 0);
    if (--n->host_need > 0) continue;
    for (PageList& list : n->pages) list.host.clear();
  }
  if (!s->on_device) tree_->remove(s);
}

void HostTier::drop_all() {
  while (!order_.empty()) drop(tree_->by_id(order_.begin()->second));
}

void HostTier::drop_pinned() {
  std::vector<Snapshot*> pinned;
  tree_->each_node([&](const Node& node) {
    for (const auto& s : node.snapshots) {
      if (s->pins > 0) pinned.push_back(s.get());
    }
  });
  for (Snapshot* s : pinned) drop(s);
}

// True when one of the snapshot's copies is so. sole_nodes: rows that others need too do not count.
bool HostTier::any_copy(const Snapshot& s, bool (*is)(const Blob&), bool sole_nodes) {
  const auto any = [&](const std::vector<BlobRef>& blobs) {
    return std::any_of(blobs.begin(), blobs.end(), [&](const BlobRef& b) { return is(*b); });
  };
  const auto any_page = [&](const PageList& list) { return any(list.host); };
  if (any(s.host_state) || std::any_of(s.pages.begin(), s.pages.end(), any_page)) return true;
  for (const Node* n = s.node; n != nullptr && (!sole_nodes || n->host_need == 1); n = n->parent) {
    if (std::any_of(n->pages.begin(), n->pages.end(), any_page)) return true;
  }
  return false;
}

// What needs lost bytes is no use any more, and would spoil what is saved on top of it.
void HostTier::drop_broken() {
  std::vector<Snapshot*> lost;
  const auto broken = [](const Blob& b) { return b.broken.load(std::memory_order_relaxed); };
  tree_->each_node([&](const Node& node) {
    for (const auto& s : node.snapshots) {
      if (s->on_host && any_copy(*s, broken, /*sole_nodes=*/false)) lost.push_back(s.get());
    }
  });
  for (Snapshot* s : lost) drop(s);
}

bool HostTier::make_room(uint64_t bytes, const Snapshot* keep) {
  if (bytes > budget_.total) return false;
  const auto in_memory = [](const Blob& b) { return b.in_memory(); };
  const bool disk_room = budget_.disk_used < budget_.disk_total / 10 * 9;
  // First what would not go to disk either, then what frees memory alone; what lies on disk goes
  // only when it shares rows in memory.
  for (const int round : {0, 1, 2}) {
    for (auto at = order_.begin(); at != order_.end() && budget_.used + bytes > budget_.total;) {
      Snapshot* s = tree_->by_id(at->second);
      ++at;
      if (s == keep || (round == 0 && disk_room && s->heat >= kSpillHeat)) continue;
      if (any_copy(*s, in_memory, /*sole_nodes=*/round < 2)) drop(s);
    }
  }
  return budget_.used + bytes <= budget_.total;
}

// ---- disk -------------------------------------------------------------------------------------

// Keeps a tenth of host memory free, so that a save seldom waits for room; what is worth it goes to
// disk.
void HostTier::trim() {
  if (budget_.disk_total == 0) return;
  trim_disk();
  for (auto at = order_.begin();
       at != order_.end() && budget_.used - spilling_bytes_ > budget_.total - budget_.total / 10;) {
    Snapshot* s = tree_->by_id(at->second);
    ++at;
    if (s->heat < kSpillHeat) {
      drop(s);
    } else {
      spill(s);  // its memory comes back when the files are complete
    }
  }
}

// And a tenth of the disk, for what comes down next: what lies there alone and is worth least goes.
void HostTier::trim_disk() {
  const auto in_memory = [](const Blob& b) { return b.in_memory(); };
  for (auto at = order_.begin();
       at != order_.end() && budget_.disk_used > budget_.disk_total - budget_.disk_total / 10;) {
    Snapshot* s = tree_->by_id(at->second);
    ++at;
    if (!any_copy(*s, in_memory, /*sole_nodes=*/false)) drop(s);
  }
}

void HostTier::spill(Snapshot* s) {
  std::shared_ptr<CopyTask> task;
  for (const BlobRef& blob : s->host_state) spill_blob(blob, &task);
  for (const PageList& list : s->pages) {
    for (const BlobRef& blob : list.host) spill_blob(blob, &task);
  }
  // Rows that others need too stay until everything else of this one has gone.
  const bool shared = task == nullptr;
  for (const Node* n = s->node; n != nullptr && (shared || n->host_need == 1); n = n->parent) {
    for (const PageList& list : n->pages) {
      for (const BlobRef& blob : list.host) spill_blob(blob, &task);
    }
  }
  if (task == nullptr) return;
  std::vector<std::pair<BlobRef, std::string>> files;
  for (const CopyPart& part : task->parts) files.emplace_back(part.spilled, part.path);
  task->done = [this, files = std::move(files)](bool ok) {
    for (const auto& [blob, path] : files) {
      spilling_bytes_ -= blob->bytes();
      blob->spilled(ok, path);
    }
  };
  queue_.submit(std::move(task));
}

void HostTier::spill_blob(const BlobRef& blob, std::shared_ptr<CopyTask>* task) {
  if (!blob->in_memory() || blob->spilling || blob->readers > 0 ||
      !blob->ready.load(std::memory_order_acquire) ||
      budget_.disk_used + blob->bytes() > budget_.disk_total) {
    return;
  }
  if (*task == nullptr) *task = std::make_shared<CopyTask>();
  blob->spilling = true;
  spilling_bytes_ += blob->bytes();
  budget_.disk_used += blob->bytes();
  CopyPart part;
  part.kind = CopyPart::Kind::kToFile;
  part.from = blob->data();
  part.bytes = blob->bytes();
  part.path = fmt::format("{}/{}.unit", options_.disk_dir, next_file_++);
  part.spilled = blob;
  (*task)->parts.push_back(std::move(part));
}

}  // namespace weft::engine::cache
