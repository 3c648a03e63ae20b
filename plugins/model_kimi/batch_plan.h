// One step's batch, checked and put in the order of the graph. Nothing of the caller's numbers is
// trusted: token ids, pages, slots and positions are checked before any kernel sees them. Sequences
// that decode come first, sequences with a prompt piece after them, so that each attention form
// gets one contiguous range of rows. Buffers are sized once; check() does not allocate. Engine
// thread.
#pragma once

#include <weft/model.h>

#include <cstdint>
#include <vector>

#include "fault.h"

namespace weft_kimi {

struct BatchShape {
  uint32_t vocab = 0;
  uint32_t max_rows = 0, max_seqs = 0, max_context = 0, max_logit_rows = 0;
  uint32_t page_tokens = 0;  // 0 = the model has no row group
  bool has_state = false;
  bool has_media = false;
  uint32_t prefill_min_rows = 1;
  uint64_t n_pages = 0, n_slots = 0;

  uint64_t table_stride() const {
    return page_tokens == 0 ? 0 : (uint64_t{max_context} + page_tokens - 1) / page_tokens;
  }
};

// A contiguous range of rows and sequences; seq_start counts from the range's first row.
struct RowRange {
  uint32_t first_row = 0, first_seq = 0;
  uint32_t n_rows = 0, n_seqs = 0;
  const uint32_t* seq_start = nullptr;
  const uint32_t* context = nullptr;
  const int32_t* table = nullptr;
  const int32_t* read_slot = nullptr;
  const int32_t* write_slot = nullptr;
};

class BatchPlan {
 public:
  void resize(const BatchShape& shape);
  uint64_t bytes() const;
  // WEFT_E_ARG naming what is wrong; the batch is then untouched and so is every cache.
  Fault check(const weft_batch& batch);

  // The batch in graph order, valid until the next check().
  uint32_t rows() const { return n_rows_; }
  const int32_t* tokens() const { return token_.data(); }
  const RowRange& step_range() const { return step_; }    // token by token
  const RowRange& chunk_range() const { return chunk_; }  // prefill forms
  uint32_t logit_rows() const { return n_logit_rows_; }
  const uint32_t* logit_row() const { return logit_row_.data(); }
  uint64_t table_stride() const { return shape_.table_stride(); }
  uint32_t media_rows() const { return n_media_rows_; }
  const uint32_t* media_row() const { return media_row_.data(); }

 private:
  Fault check_header(const weft_batch& b) const;
  Fault check_sequences(const weft_batch& b);
  Fault take_pages(const weft_batch& b, const weft_cache_map& map);
  Fault check_shared_pages(const weft_batch& b);
  Fault take_slots(const weft_batch& b, const weft_cache_map& map);
  Fault take_rows(const weft_batch& b);
  void order(const weft_batch& b);
  void set_ranges(uint32_t steps, uint32_t step_rows);

  BatchShape shape_;
  uint32_t n_rows_ = 0, n_seqs_ = 0, n_logit_rows_ = 0, n_media_rows_ = 0;
  RowRange step_, chunk_;
  std::vector<uint32_t> seq_at_;     // graph position -> the caller's sequence
  std::vector<uint32_t> new_start_;  // the caller's sequence -> first row in graph order
  std::vector<uint32_t> step_start_, chunk_start_;
  std::vector<uint32_t> context_;
  std::vector<int32_t> table_;
  std::vector<int32_t> read_slot_, write_slot_;
  std::vector<int32_t> token_;
  std::vector<uint32_t> logit_row_, media_row_;
  // Who writes a page or slot in this step: owner[unit] is valid when stamp[unit] == round_.
  std::vector<uint32_t> page_stamp_, page_owner_, slot_stamp_, slot_owner_;
  uint32_t round_ = 0;
};

}  // namespace weft_kimi
