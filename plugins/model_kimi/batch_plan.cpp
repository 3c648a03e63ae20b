#include "batch_plan.h"

#include <algorithm>

namespace weft_kimi {
namespace {

uint32_t rows_of(const weft_batch& b, uint32_t seq) {
  return b.seq_start[seq + 1] - b.seq_start[seq];
}

uint64_t pages_for(uint64_t tokens, uint32_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

// The sequence that owns `row`, given that rows are asked for in ascending order.
uint32_t advance(const weft_batch& b, uint32_t seq, uint32_t row) {
  while (b.seq_start[seq + 1] <= row) ++seq;
  return seq;
}

}  // namespace

void BatchPlan::resize(const BatchShape& shape) {
  shape_ = shape;
  seq_at_.resize(shape.max_seqs);
  new_start_.resize(shape.max_seqs);
  step_start_.resize(uint64_t{shape.max_seqs} + 1);
  chunk_start_.resize(uint64_t{shape.max_seqs} + 1);
  context_.resize(shape.max_seqs);
  table_.resize(shape.max_seqs * shape.table_stride());
  read_slot_.resize(shape.max_seqs);
  write_slot_.resize(shape.max_seqs);
  token_.resize(shape.max_rows);
  logit_row_.resize(shape.max_logit_rows);
  media_row_.resize(shape.has_media ? shape.max_rows : 0);
  page_stamp_.assign(shape.n_pages, 0);
  page_owner_.assign(shape.n_pages, 0);
  slot_stamp_.assign(shape.n_slots, 0);
  slot_owner_.assign(shape.n_slots, 0);
  round_ = 0;
}

uint64_t BatchPlan::bytes() const {
  const uint64_t seqs = seq_at_.size() + new_start_.size() + step_start_.size() +
                        chunk_start_.size() + context_.size() + read_slot_.size() +
                        write_slot_.size();
  const uint64_t rows = token_.size() + logit_row_.size() + media_row_.size();
  return 4 * (seqs + rows + table_.size());
}

Fault BatchPlan::check_header(const weft_batch& b) const {
  if (b.struct_size < sizeof(weft_batch)) {
    return fault(WEFT_E_ARG, "batch.struct_size: expected {}, got {}", sizeof(weft_batch),
                 b.struct_size);
  }
  const auto limit = [](const char* name, uint32_t got, uint32_t low, uint32_t high) -> Fault {
    if (got >= low && got <= high) return {};
    return fault(WEFT_E_ARG, "batch.{}: expected {} to {}, got {}", name, low, high, got);
  };
  KIMI_TRY(limit("n_seqs", b.n_seqs, 1, shape_.max_seqs));
  KIMI_TRY(limit("n_rows", b.n_rows, b.n_seqs, shape_.max_rows));
  KIMI_TRY(limit("n_logit_rows", b.n_logit_rows, 0, std::min(b.n_rows, shape_.max_logit_rows)));
  KIMI_TRY(limit("n_media_rows", b.n_media_rows, 0, shape_.has_media ? b.n_rows : 0));
  const auto present = [](const char* name, const void* p) -> Fault {
    if (p != nullptr) return {};
    return fault(WEFT_E_ARG, "batch.{}: expected a pointer, got NULL", name);
  };
  KIMI_TRY(present("token", b.token));
  KIMI_TRY(present("seq_start", b.seq_start));
  KIMI_TRY(present("context", b.context));
  KIMI_TRY(present("maps", b.maps));
  if (b.n_logit_rows != 0) {
    KIMI_TRY(present("logit_row", b.logit_row));
    KIMI_TRY(present("logits", b.logits));
  }
  if (b.n_media_rows != 0) {
    KIMI_TRY(present("media_row", b.media_row));
    KIMI_TRY(present("media", b.media));
  }
  return {};
}

Fault BatchPlan::check_sequences(const weft_batch& b) {
  if (b.seq_start[0] != 0)
    return fault(WEFT_E_ARG, "batch.seq_start[0]: expected 0, got {}", b.seq_start[0]);
  for (uint32_t i = 0; i < b.n_seqs; ++i) {
    const uint64_t from = b.seq_start[i], to = b.seq_start[i + 1];
    if (to <= from || to > b.n_rows) {
      return fault(WEFT_E_ARG,
                   "batch.seq_start[{}]: expected {} to {} (every sequence has rows), got {}",
                   i + 1, from + 1, b.n_rows, to);
    }
    if (b.context[i] + (to - from) > shape_.max_context) {
      return fault(WEFT_E_ARG,
                   "sequence {}: {} cached tokens and {} new ones exceed the context limit of {}",
                   i, b.context[i], to - from, shape_.max_context);
    }
  }
  if (b.seq_start[b.n_seqs] != b.n_rows) {
    return fault(WEFT_E_ARG, "batch.seq_start[{}]: expected n_rows ({}), got {}", b.n_seqs,
                 b.n_rows, b.seq_start[b.n_seqs]);
  }
  for (uint32_t r = 0; r < b.n_rows; ++r) {
    if (b.token[r] < 0 || static_cast<uint32_t>(b.token[r]) >= shape_.vocab) {
      return fault(WEFT_E_ARG, "batch.token[{}]: expected 0 to {}, got {}", r, shape_.vocab - 1,
                   b.token[r]);
    }
  }
  return {};
}

// Where the decode forms, which cost more for each new row and nothing for the context, are ahead.
constexpr uint32_t kLongContext = 4096;
constexpr uint32_t kShortPiece = 112;

// Decodes first, prompt pieces after them, each in the caller's order.
void BatchPlan::order(const weft_batch& b) {
  const bool all_steps = (b.flags & WEFT_BATCH_RECURRENT) != 0;
  const auto is_step = [&](uint32_t i) {
    const uint32_t rows = rows_of(b, i);
    // The prefill form expands the rows of the whole context first: few new rows never earn that back.
    const bool short_piece = rows < kShortPiece && b.context[i] >= kLongContext;
    return all_steps || rows < shape_.prefill_min_rows || short_piece;
  };
  uint32_t at = 0, row = 0;
  const auto append = [&](uint32_t i, std::vector<uint32_t>& starts, uint32_t index,
                          uint32_t base) {
    seq_at_[at++] = i;
    new_start_[i] = row;
    starts[index] = row - base;
    row += rows_of(b, i);
    starts[index + 1] = row - base;
  };
  uint32_t steps = 0, chunks = 0;
  for (uint32_t i = 0; i < b.n_seqs; ++i) {
    if (is_step(i)) append(i, step_start_, steps++, 0);
  }
  const uint32_t step_rows = row;
  for (uint32_t i = 0; i < b.n_seqs; ++i) {
    if (!is_step(i)) append(i, chunk_start_, chunks++, step_rows);
  }
  for (uint32_t p = 0; p < b.n_seqs; ++p) {
    const uint32_t i = seq_at_[p];
    context_[p] = b.context[i];
    std::copy_n(b.token + b.seq_start[i], rows_of(b, i), token_.begin() + new_start_[i]);
  }
  set_ranges(steps, step_rows);
}

void BatchPlan::set_ranges(uint32_t steps, uint32_t step_rows) {
  const auto range = [&](uint32_t row, uint32_t n_rows, uint32_t seq, uint32_t n_seqs,
                         const std::vector<uint32_t>& starts) {
    RowRange r;
    r.first_row = row;
    r.n_rows = n_rows;
    r.first_seq = seq;
    r.n_seqs = n_seqs;
    r.seq_start = starts.data();
    r.context = context_.data() + seq;
    r.table = table_.empty() ? nullptr : table_.data() + seq * shape_.table_stride();
    r.read_slot = read_slot_.data() + seq;
    r.write_slot = write_slot_.data() + seq;
    return r;
  };
  step_ = range(0, step_rows, 0, steps, step_start_);
  chunk_ = range(step_rows, n_rows_ - step_rows, steps, n_seqs_ - steps, chunk_start_);
}

// Copies the page numbers that the step touches and notes who writes which page.
Fault BatchPlan::take_pages(const weft_batch& b, const weft_cache_map& map) {
  if (map.table == nullptr)
    return fault(WEFT_E_ARG, "maps[mla].table: expected a pointer, got NULL");
  for (uint32_t p = 0; p < b.n_seqs; ++p) {
    const uint32_t i = seq_at_[p];
    const uint64_t pages = pages_for(uint64_t{b.context[i]} + rows_of(b, i), shape_.page_tokens);
    if (pages > map.table_stride) {
      return fault(WEFT_E_ARG,
                   "maps[mla].table_stride: sequence {} needs {} pages, got room for {}", i, pages,
                   map.table_stride);
    }
    const int32_t* from = map.table + i * map.table_stride;
    int32_t* to = table_.data() + p * shape_.table_stride();
    const uint64_t first_written = b.context[i] / shape_.page_tokens;
    for (uint64_t k = 0; k < pages; ++k) {
      const int32_t page = from[k];
      if (page < 0 || static_cast<uint64_t>(page) >= shape_.n_pages) {
        return fault(WEFT_E_ARG,
                     "maps[mla].table: sequence {}, entry {}: expected a page from 0 to {}, got {}",
                     i, k, static_cast<int64_t>(shape_.n_pages) - 1, page);
      }
      to[k] = page;
      if (k < first_written) continue;
      if (page_stamp_[page] == round_) {
        return fault(WEFT_E_ARG,
                     "maps[mla].table: page {} is written by sequence {} and by sequence {}", page,
                     page_owner_[page], i);
      }
      page_stamp_[page] = round_;
      page_owner_[page] = i;
    }
  }
  return check_shared_pages(b);
}

// A page that one sequence writes must not be read by another one: their rows would mix.
Fault BatchPlan::check_shared_pages(const weft_batch& b) {
  for (uint32_t p = 0; p < b.n_seqs; ++p) {
    const uint32_t i = seq_at_[p];
    const int32_t* pages = table_.data() + p * shape_.table_stride();
    for (uint64_t k = 0; k < b.context[i] / shape_.page_tokens; ++k) {
      if (page_stamp_[pages[k]] != round_) continue;
      return fault(WEFT_E_ARG,
                   "maps[mla].table: page {} is read by sequence {} while sequence {} writes it",
                   pages[k], i, page_owner_[pages[k]]);
    }
  }
  return {};
}

Fault BatchPlan::take_slots(const weft_batch& b, const weft_cache_map& map) {
  if (map.read_slot == nullptr || map.write_slot == nullptr) {
    return fault(WEFT_E_ARG, "maps[kda].read_slot and write_slot: expected pointers, got NULL");
  }
  for (uint32_t p = 0; p < b.n_seqs; ++p) {
    const uint32_t i = seq_at_[p];
    const int32_t read = map.read_slot[i], write = map.write_slot[i];
    if (write < 0 || static_cast<uint64_t>(write) >= shape_.n_slots) {
      return fault(WEFT_E_ARG, "maps[kda].write_slot[{}]: expected 0 to {}, got {}", i,
                   static_cast<int64_t>(shape_.n_slots) - 1, write);
    }
    if (read >= 0 && static_cast<uint64_t>(read) >= shape_.n_slots) {
      return fault(WEFT_E_ARG, "maps[kda].read_slot[{}]: expected at most {}, got {}", i,
                   static_cast<int64_t>(shape_.n_slots) - 1, read);
    }
    if ((read < 0) != (b.context[i] == 0)) {
      return fault(
          WEFT_E_ARG,
          "maps[kda].read_slot[{}]: expected a negative number exactly for sequences without "
          "context, got {} with {} cached tokens",
          i, read, b.context[i]);
    }
    if (slot_stamp_[write] == round_) {
      return fault(WEFT_E_ARG,
                   "maps[kda].write_slot: slot {} is written by sequence {} and by sequence {}",
                   write, slot_owner_[write], i);
    }
    slot_stamp_[write] = round_;
    slot_owner_[write] = i;
    read_slot_[p] = read;
    write_slot_[p] = write;
  }
  for (uint32_t p = 0; p < b.n_seqs; ++p) {
    const int32_t read = read_slot_[p];
    if (read < 0 || slot_stamp_[read] != round_ || slot_owner_[read] == seq_at_[p]) continue;
    return fault(WEFT_E_ARG,
                 "maps[kda].read_slot: slot {} is read by sequence {} while sequence {} writes it",
                 read, seq_at_[p], slot_owner_[read]);
  }
  return {};
}

Fault BatchPlan::take_rows(const weft_batch& b) {
  uint32_t seq = 0;
  for (uint32_t k = 0; k < b.n_logit_rows; ++k) {
    const uint32_t row = b.logit_row[k];
    if (row >= b.n_rows || (k > 0 && row <= b.logit_row[k - 1])) {
      return fault(WEFT_E_ARG, "batch.logit_row[{}]: expected ascending rows below {}, got {}", k,
                   b.n_rows, row);
    }
    seq = advance(b, seq, row);
    logit_row_[k] = new_start_[seq] + (row - b.seq_start[seq]);
  }
  seq = 0;
  for (uint32_t k = 0; k < b.n_media_rows; ++k) {
    const uint32_t row = b.media_row[k];
    if (row >= b.n_rows || (k > 0 && row <= b.media_row[k - 1])) {
      return fault(WEFT_E_ARG, "batch.media_row[{}]: expected ascending rows below {}, got {}", k,
                   b.n_rows, row);
    }
    seq = advance(b, seq, row);
    media_row_[k] = new_start_[seq] + (row - b.seq_start[seq]);
  }
  return {};
}

Fault BatchPlan::check(const weft_batch& b) {
  KIMI_TRY(check_header(b));
  KIMI_TRY(check_sequences(b));
  if (++round_ == 0) {  // the stamps of 2^32 steps ago would look fresh
    std::fill(page_stamp_.begin(), page_stamp_.end(), 0u);
    std::fill(slot_stamp_.begin(), slot_stamp_.end(), 0u);
    round_ = 1;
  }
  n_rows_ = b.n_rows;
  n_seqs_ = b.n_seqs;
  n_logit_rows_ = b.n_logit_rows;
  n_media_rows_ = b.n_media_rows;
  order(b);
  const weft_cache_map* map = b.maps;
  if (shape_.page_tokens != 0) KIMI_TRY(take_pages(b, *map++));
  if (shape_.has_state) KIMI_TRY(take_slots(b, *map));
  return take_rows(b);
}

}  // namespace weft_kimi
