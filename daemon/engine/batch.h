// Turns planned runs into the arrays of a weft_batch. All arrays are as large as the limits allow
// from the start, so that building a step allocates nothing (media rows excepted: their buffer
// grows to the largest step seen). Engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/cache/arenas.h"
#include "engine/sequence.h"
#include "weft/model.h"

namespace weft::engine {

struct PlannedRun {
  Sequence* sequence = nullptr;
  uint32_t rows = 0;  // starting at sequence->computed
};

struct BatchLimits {
  uint32_t max_rows = 1;
  uint32_t max_sequences = 1;
  uint32_t max_logit_rows = 1;
  uint32_t max_context = 1;
  uint32_t vocab = 1;
  uint32_t hidden = 1;
  uint32_t flags = 0;  // WEFT_BATCH_* of every step
};

class BatchBuilder {
 public:
  BatchBuilder(BatchLimits limits, const Caches& caches);

  // Media of the runs' rows must be encoded. The result is valid until the next call.
  const weft_batch& build(std::span<const PlannedRun> runs);
  // Logits of the built batch in order: for each run first its prompt rows, then its sampling row.
  std::span<float> logits(uint32_t logit_row) {
    return {logits_.get() + size_t{logit_row} * limits_.vocab, limits_.vocab};
  }

 private:
  void add_run(const PlannedRun& run);
  void add_media(const Sequence& sequence, uint32_t first_row, uint32_t rows);
  void fill_maps(std::span<const PlannedRun> runs);

  const BatchLimits limits_;
  const Caches& caches_;
  weft_batch batch_ = {};
  std::vector<int32_t> token_;
  std::vector<uint32_t> seq_start_, context_, logit_row_, media_row_;
  std::vector<float> media_;
  std::vector<weft_cache_map> maps_;
  std::vector<std::vector<int32_t>> table_, read_slot_, write_slot_;  // per group
  std::unique_ptr<float[]> logits_;
};

}  // namespace weft::engine
