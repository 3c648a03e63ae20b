// One request inside the engine: its tokens, its cache units, and what must survive preemption
// (sampler state, recorded prompt log-probabilities, timings). Owned by the roster; engine thread
// only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/cache/coordinator.h"
#include "engine/cache/key.h"
#include "engine/cache/sequence_cache.h"
#include "engine/request.h"

namespace weft::engine {

// A length of the prompt at which the state is worth keeping.
struct Boundary {
  uint32_t length = 0;
  cache::SnapshotKind kind = cache::SnapshotKind::kPrefix;
};

struct Sequence {
  // root: of its tenant and salt, see cache/key.h.
  Sequence(Request r, Caches* caches, uint64_t order_number, uint64_t now_us,
           cache::Key128 root = {})
      : request(std::move(r)),
        order(order_number),
        prompt_tokens(static_cast<uint32_t>(request.prompt.size())),
        tokens(std::move(request.prompt)),
        chain(root, media_spans(request)),
        cache(caches),
        arrived_us(now_us) {
    if (request.sampling.penalises()) counts.add_prompt(tokens);
    for (const uint32_t b : request.boundaries) {
      boundaries.push_back({b, cache::SnapshotKind::kPrefix});
    }
    boundaries.push_back({prompt_tokens, cache::SnapshotKind::kTurn});
  }

  Request request;       // request.prompt has moved into tokens
  const uint64_t order;  // arrival: smaller is older
  const uint32_t prompt_tokens;
  std::vector<int32_t> tokens;  // prompt, then output
  uint32_t computed = 0;        // tokens whose rows are in the caches
  cache::KeyChain chain;        // of the tokens
  SequenceCache cache;

  // Lengths at which the state is kept, ascending; the last one is the prompt's.
  std::vector<Boundary> boundaries;
  uint64_t last_snapshot = 0;                // id of what it came from or left last
  std::shared_ptr<cache::CopyTask> loading;  // its prefix is being copied in
  uint32_t loading_tokens = 0;               // what will be computed then
  std::vector<uint64_t> left;                // snapshots it has made
  bool slow_loads = false;                   // copies took too long: only what is at hand is reused
  uint64_t swapped = 0;                      // snapshot id that is pinned for it, 0 = not swapped
  CacheProbe probe;                          // while waiting; of coordinator version probe_version
  uint64_t probe_version = 0;

  bool announced = false;     // its admission has been reported
  bool counted = false;       // local + host + computed = prompt has been recorded
  uint32_t cached_local = 0;  // of its first admission
  uint32_t cached_host = 0;
  uint32_t high_water = 0;       // most tokens ever computed: beyond it rows are new work
  uint32_t admitted_output = 0;  // output when it was last admitted
  uint32_t preemptions = 0;
  uint32_t tenant = 0;  // number in the tenant book

  TokenCounts counts;
  std::vector<float> prompt_logprobs;   // entry i: of token i + 1
  std::vector<TopLogprob> prompt_tops;  // prompt_top_count per entry
  uint32_t prompt_top_count = 0;

  uint64_t waiting_bytes = 0;  // what it counts for in the waiting queue
  uint64_t arrived_us = 0;
  uint64_t queued_us = 0;       // when it began to wait, the last time
  uint64_t progress_us = 0;     // when it last got rows or was admitted
  uint64_t admitted_us = 0;     // 0 = never yet
  uint64_t first_token_us = 0;  // 0 = never yet

  uint64_t batch_mark = 0;  // the output batch that entry_index belongs to
  int entry_index = 0;

  uint64_t id() const { return request.id; }
  uint32_t length() const { return static_cast<uint32_t>(tokens.size()); }
  uint32_t generated() const { return length() - prompt_tokens; }
  // Rows to run before the next token can be sampled; at least 1.
  uint32_t pending() const { return length() - computed; }
  // A decode runs one row and samples; everything else is prefill (first time, or again after
  // preemption).
  bool decoding() const { return computed > 0 && pending() == 1; }
  // True when the logits of this position are still to be recorded as prompt log-probabilities.
  bool wants_prompt_row(uint32_t position) const {
    return request.sampling.prompt_logprobs >= 0 && position + 1 < prompt_tokens &&
           position >= prompt_logprobs.size();
  }
  // The longest prefix that may come from a cache: the last token must run for its logits, and so
  // must every position whose log-probability is still owed.
  uint32_t reusable() const {
    if (request.no_cache) return 0;
    uint32_t most = length() - 1;
    if (request.sampling.prompt_logprobs >= 0 && prompt_logprobs.size() + 1 < prompt_tokens) {
      most = std::min(most, static_cast<uint32_t>(prompt_logprobs.size()));
    }
    return most;
  }
  PrefixView view() const { return {&chain, tokens, reusable(), slow_loads}; }
  // The next useful length above `from`; 0 = none.
  uint32_t next_boundary(uint32_t from) const {
    for (const Boundary& b : boundaries) {
      if (b.length > from) return b.length;
    }
    return 0;
  }
  void add_boundary(uint32_t length, cache::SnapshotKind kind) {
    const auto at = std::find_if(boundaries.begin(), boundaries.end(),
                                 [&](const Boundary& b) { return b.length >= length; });
    if (at != boundaries.end() && at->length == length) return;
    boundaries.insert(at, {length, kind});
  }

 private:
  static std::vector<cache::MediaSpan> media_spans(const Request& request) {
    std::vector<cache::MediaSpan> spans;
    for (const MediaInput& m : request.media) spans.push_back({m.first, m.rows, m.content});
    return spans;
  }
};

// Tokens that both begin with, as far as their keys tell: good enough for plans, not for reuse.
uint32_t common_prefix(const Sequence& a, const Sequence& b);

}  // namespace weft::engine
