// The state machine of the cache's test: an engine of a few sequences that does what a list of
// random operations says, and a naive model that knows what every answer of the cache may be at
// most.
//
// Everything follows from a Scenario, so a failing one can be run again with fewer operations
// (shrink.h). Operations that make no sense at their moment do nothing. One process, one thread but
// for the copies.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "temp_dir.h"
#include "unit/engine_cache/cache_kit.h"

namespace weft::engine {

enum class OpKind : uint8_t {
  kAdmit,
  kStep,
  kExtend,
  kPublish,
  kFinish,
  kCancel,
  kSwapOut,
  kSwapIn,
  kRelease,
  kPoll,
  kTick,
  kRate,
  kWatch,
  kDamage,
  kDropAll,
  kAudit,
  kCount
};

struct Op {
  OpKind kind = OpKind::kAudit;
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

// Mistakes that the harness makes on purpose: each must be found.
enum class Inject : uint8_t {
  kNone,
  kWrongRow,     // a step writes a wrong row
  kWrongState,   // a step leaves a wrong state
  kSkippedCopy,  // the partly filled page of a hit was not copied
  kSharedWrite,  // a step writes into a page that others share
  kLeak,         // a unit is held by nobody that is known
  kTenants,      // two tenants have one root
  kForgotten,    // the sequence's images are not part of its keys
  kGap,          // bytes between two units are written
  kCrash,        // the process dies
};

struct Scenario {
  uint64_t seed = 0;
  Layout layout;
  uint32_t max_tokens = 200;
  uint64_t host_bytes = 0;
  uint64_t disk_bytes = 0;
  bool threaded = false;
  bool drain = true;  // waits for all copies before the end
  Inject inject = Inject::kNone;
  std::vector<Op> ops;
};

Scenario draw_scenario(uint64_t seed, uint32_t n_ops);
std::string describe(const Scenario& scenario);

// What a run has exercised: a test that never hits proves nothing.
struct RunCounts {
  uint64_t ops = 0, steps = 0, admitted = 0, refused = 0, hits = 0, host_hits = 0, published = 0;
  uint64_t declined = 0, evicted = 0, swaps = 0, loads_failed = 0, abandoned = 0, exact = 0;
  uint64_t spilled = 0, media_hits = 0;
  void add(const RunCounts& o);
  std::string text() const;
};

class World {
 public:
  explicit World(const Scenario& scenario);
  // Throws Fault.
  void run();
  const RunCounts& counts() const { return counts_; }

 private:
  struct Slot {
    enum class Phase : uint8_t { kEmpty, kRunning, kLoading, kSwapped } phase = Phase::kEmpty;
    Stream stream;
    std::unique_ptr<SequenceCache> cache;
    uint32_t computed = 0;
    uint64_t last = 0;
    std::shared_ptr<cache::CopyTask> loading;
    uint32_t loading_to = 0;
    uint64_t pinned = 0;
    uint32_t document = 0;
  };
  // Everything that a refused call must leave as it was.
  struct Books {
    std::vector<uint32_t> free, active;
    size_t snapshots = 0;
    uint64_t version = 0, made = 0, evicted = 0, host_used = 0, disk_used = 0;
    bool operator==(const Books&) const = default;
  };
  struct Watch {
    bool on = false;
    Stream stream;
    uint32_t limit = 0;
    uint64_t version = 0;
    CacheProbe answer;
  };

  void apply(const Op& op);
  Slot* pick(const Op& op);
  void admit(const Op& op, Slot* slot);
  void admit_stream(const Op& op, Slot* slot);
  void check_admission(const Slot& slot, const CacheProbe& probe, const CacheAdmission& got,
                       const Books& before, uint32_t limit, uint32_t tokens, uint32_t spare);
  void step(const Op& op, Slot* slot);
  void extend(const Op& op, Slot* slot);
  void publish(const Op& op, Slot* slot);
  void finish(const Op& op, Slot* slot);
  void cancel(Slot* slot);
  void swap_out(Slot* slot);
  void swap_in(const Op& op, Slot* slot);
  void release(Slot* slot);
  void poll(const Op& op);
  void set_watch(const Op& op);
  void damage(const Op& op);
  static void damage_file(const std::string& path, const Op& op);
  void drop_all(const Op& op);
  void drop_everything();
  void leave(Slot* slot);
  void end();

  Stream draw_stream(const Op& op);
  uint32_t longest_known(const Stream& stream, uint32_t limit) const;
  uint32_t most_common(const Stream& stream) const;
  void check_probe(const Stream& stream, uint32_t limit, const CacheProbe& probe);
  void check_books();
  void check_watch();
  void check_gaps() const;
  Books books() const;
  bool settled() const { return !coordinator_->copying(); }
  void inject_after_step(Slot* slot, uint32_t from);
  void inject_after_admission(Slot* slot, uint32_t hit);

  const Scenario& scenario_;
  TempDir dir_;
  std::unique_ptr<Caches> caches_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<cache::OwnedUnit> leaked_;
  uint64_t now_us_ = 1;
  bool damaged_ = false;
  std::array<Slot, 6> slots_;
  std::array<Stream, 8> documents_;
  std::unordered_set<uint64_t> published_;  // by Stream::hash
  // Every prefix of anything published: what a prompt can have in common.
  std::unordered_set<uint64_t> known_;
  Watch watch_;
  RunCounts counts_;
};

}  // namespace weft::engine
