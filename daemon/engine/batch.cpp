#include "engine/batch.h"

#include <algorithm>

namespace weft::engine {

BatchBuilder::BatchBuilder(BatchLimits limits, const Caches& caches)
    : limits_(limits), caches_(caches) {
  const size_t groups = caches.groups().size();
  token_.reserve(limits.max_rows);
  seq_start_.reserve(size_t{limits.max_sequences} + 1);
  context_.reserve(limits.max_sequences);
  logit_row_.reserve(limits.max_logit_rows);
  media_row_.reserve(limits.max_rows);
  maps_.resize(groups);
  table_.resize(groups);
  read_slot_.resize(groups);
  write_slot_.resize(groups);
  for (size_t g = 0; g < groups; ++g) {
    const Caches::Group& group = caches.groups()[g];
    if (group.rows) {  // reserved, not touched: resident only as far as steps really reach
      const size_t stride = limits.max_context / group.unit_tokens + 1;
      table_[g].reserve(stride * limits.max_sequences);
    } else {
      read_slot_[g].reserve(limits.max_sequences);
      write_slot_[g].reserve(limits.max_sequences);
    }
  }
  logits_ = std::make_unique_for_overwrite<float[]>(size_t{limits.max_logit_rows} * limits.vocab);
}

const weft_batch& BatchBuilder::build(std::span<const PlannedRun> runs) {
  token_.clear();
  seq_start_.clear();
  context_.clear();
  logit_row_.clear();
  media_row_.clear();
  media_.clear();
  for (const PlannedRun& run : runs) add_run(run);
  seq_start_.push_back(static_cast<uint32_t>(token_.size()));
  fill_maps(runs);
  WEFT_CHECK(token_.size() <= limits_.max_rows && runs.size() <= limits_.max_sequences);
  WEFT_CHECK(logit_row_.size() <= limits_.max_logit_rows);
  batch_ = {};
  batch_.struct_size = sizeof(batch_);
  batch_.flags = limits_.flags;
  batch_.n_seqs = static_cast<uint32_t>(runs.size());
  batch_.n_rows = static_cast<uint32_t>(token_.size());
  batch_.n_logit_rows = static_cast<uint32_t>(logit_row_.size());
  batch_.n_media_rows = static_cast<uint32_t>(media_row_.size());
  batch_.token = token_.data();
  batch_.seq_start = seq_start_.data();
  batch_.context = context_.data();
  batch_.maps = maps_.data();
  batch_.logit_row = logit_row_.data();
  batch_.logits = logits_.get();
  batch_.media_row = media_row_.data();
  batch_.media = media_.data();
  return batch_;
}

void BatchBuilder::add_run(const PlannedRun& run) {
  const Sequence& s = *run.sequence;
  WEFT_CHECK(run.rows >= 1 && run.rows <= s.pending());
  const auto first_row = static_cast<uint32_t>(token_.size());
  seq_start_.push_back(first_row);
  context_.push_back(s.computed);
  for (uint32_t i = 0; i < run.rows; ++i) {
    const uint32_t position = s.computed + i;
    token_.push_back(s.tokens[position]);
    if (s.wants_prompt_row(position) || position + 1 == s.length()) {
      logit_row_.push_back(first_row + i);
    }
  }
  if (!s.request.media.empty()) add_media(s, first_row, run.rows);
}

void BatchBuilder::add_media(const Sequence& s, uint32_t first_row, uint32_t rows) {
  for (const MediaInput& m : s.request.media) {
    const uint32_t begin = std::max(m.first, s.computed);
    const uint32_t end = std::min(m.first + m.rows, s.computed + rows);
    for (uint32_t position = begin; position < end; ++position) {
      media_row_.push_back(first_row + position - s.computed);
      const float* row = m.encoded.data() + size_t{position - m.first} * limits_.hidden;
      media_.insert(media_.end(), row, row + limits_.hidden);
    }
  }
}

void BatchBuilder::fill_maps(std::span<const PlannedRun> runs) {
  for (size_t g = 0; g < maps_.size(); ++g) {
    maps_[g] = {};
    if (caches_.groups()[g].rows) {
      size_t stride = 1;
      for (const PlannedRun& run : runs) {
        stride = std::max(stride, run.sequence->cache.rows(g).size());
      }
      table_[g].assign(stride * runs.size(), -1);
      for (size_t i = 0; i < runs.size(); ++i) {
        int32_t* entry = table_[g].data() + i * stride;
        const SequenceCache::Rows& rows = runs[i].sequence->cache.rows(g);
        for (const cache::LiveRef& page : rows.shared) *entry++ = page.unit();
        for (const cache::OwnedUnit& page : rows.owned) *entry++ = page.unit();
      }
      maps_[g].table = table_[g].data();
      maps_[g].table_stride = stride;
    } else {
      read_slot_[g].clear();
      write_slot_[g].clear();
      for (const PlannedRun& run : runs) {
        const SequenceCache& cache = run.sequence->cache;
        read_slot_[g].push_back(run.sequence->computed == 0 ? -1 : cache.read_slot(g));
        write_slot_[g].push_back(cache.write_slot(g));
      }
      maps_[g].read_slot = read_slot_[g].data();
      maps_[g].write_slot = write_slot_[g].data();
    }
  }
}

}  // namespace weft::engine
