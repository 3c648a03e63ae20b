#include "engine/scheduler.h"

#include <algorithm>

namespace weft::engine {

Scheduler::Scheduler(SchedulerLimits limits) : limits_(limits) {
  WEFT_CHECK(limits_.max_sequences >= 1 && limits_.max_sequences <= limits_.max_batch_tokens);
  WEFT_CHECK(limits_.max_logit_rows > limits_.max_sequences);
  running_.reserve(limits_.max_sequences);
  runs_.reserve(limits_.max_sequences);
}

Status Scheduler::enqueue(std::unique_ptr<Sequence> sequence) {
  if (by_id_.count(sequence->id()) != 0) {
    return make_error(ErrorCode::kInvalid, "request id {} is already in use", sequence->id());
  }
  const size_t most = size_t{limits_.max_waiting} + limits_.max_sequences;
  if (running_.size() + waiting_.size() >= most) {
    return make_error(ErrorCode::kUnavailable,
                      "{} requests are running and {} waiting, no more are taken: try again later",
                      running_.size(), waiting_.size());
  }
  const uint64_t bytes = sequence->length() * sizeof(int32_t) + sequence->request.bytes();
  if (!waiting_.empty() && waiting_bytes_ + bytes > limits_.max_waiting_bytes) {
    return make_error(ErrorCode::kUnavailable,
                      "the waiting requests hold {} bytes, the limit is {}: try again later",
                      waiting_bytes_, limits_.max_waiting_bytes);
  }
  sequence->waiting_bytes = bytes;
  waiting_bytes_ += bytes;
  by_id_.emplace(sequence->id(), sequence.get());
  waiting_.push_back(std::move(sequence));
  return {};
}

const std::vector<PlannedRun>& Scheduler::plan() {
  runs_.clear();
  rows_left_ = limits_.max_batch_tokens;
  prompt_logit_rows_left_ = limits_.max_logit_rows - limits_.max_sequences;
  preempted_ = false;
  plan_decodes();
  plan_prefills();
  if (!preempted_) admit();
  use_spare_rows();
  WEFT_CHECK(!runs_.empty() || !has_work());
  return runs_;
}

void Scheduler::plan_decodes() {
  // Preempting removes from the back of running_, never what has been planned already (older ones).
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* sequence = running_[i].get();
    if (!sequence->decoding()) continue;
    bool kept = true;
    while (kept && !sequence->cache.reserve(sequence->length(), 0)) {
      kept = running_.back().get() != sequence;
      WEFT_CHECK(kept || i > 0);  // alone, a sequence always has its pages
      preempt_youngest();
    }
    if (kept) add_run(sequence, 1);
  }
}

void Scheduler::plan_prefills() {
  for (const auto& sequence : running_) {
    if (!sequence->decoding()) add_prefill(sequence.get());
  }
}

// Rows that were kept for newcomers and found no taker go to the prefills, oldest first.
void Scheduler::use_spare_rows() {
  for (PlannedRun& run : runs_) {
    if (rows_left_ == 0) return;
    if (run.sequence->decoding() || run.sequence->request.sampling.prompt_logprobs >= 0) continue;
    const uint32_t chunk = limits_.prefill_chunk > 0 ? limits_.prefill_chunk : UINT32_MAX;
    const uint32_t wanted = std::min(run.sequence->pending(), chunk);
    const uint32_t extra = wanted > run.rows ? std::min(wanted - run.rows, rows_left_) : 0;
    run.rows += extra;
    rows_left_ -= extra;
  }
}

void Scheduler::admit() {
  while (rows_left_ > 0 && !waiting_.empty() && running_.size() < limits_.max_sequences) {
    Sequence* sequence = waiting_.front().get();
    // One page per running sequence stays free, or the newcomer would soon be preempted again.
    const auto spare = static_cast<uint32_t>(running_.size());
    if (!sequence->cache.reserve(sequence->length(), spare)) {
      WEFT_CHECK(!running_.empty());
      return;
    }
    waiting_bytes_ -= std::exchange(sequence->waiting_bytes, 0);
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    add_prefill(sequence);
  }
}

void Scheduler::preempt_youngest() {
  Sequence* sequence = running_.back().get();
  sequence->cache.clear();
  sequence->computed = 0;
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++preemptions_;
  preempted_ = true;
}

void Scheduler::add_run(Sequence* sequence, uint32_t rows) {
  WEFT_CHECK(rows <= rows_left_);
  rows_left_ -= rows;
  runs_.push_back({sequence, rows});
}

uint32_t Scheduler::prefill_rows(const Sequence& sequence) const {
  // A quarter of what is left stays for those behind: a long prompt must not make short ones wait
  // for its end.
  const uint32_t share = std::max(1u, rows_left_ - rows_left_ / 4);
  uint32_t rows = std::min(sequence.pending(), std::min(share, rows_left_));
  if (limits_.prefill_chunk > 0) rows = std::min(rows, limits_.prefill_chunk);
  if (sequence.request.sampling.prompt_logprobs < 0) return rows;
  uint32_t logit_rows = 0;
  for (uint32_t i = 0; i < rows; ++i) {
    if (!sequence.wants_prompt_row(sequence.computed + i)) continue;
    if (++logit_rows > prompt_logit_rows_left_) return i;
  }
  return rows;
}

void Scheduler::add_prefill(Sequence* sequence) {
  const uint32_t rows = prefill_rows(*sequence);
  if (rows == 0) return;
  for (uint32_t i = 0; i < rows; ++i) {
    if (sequence->wants_prompt_row(sequence->computed + i)) --prompt_logit_rows_left_;
  }
  add_run(sequence, rows);
}

std::unique_ptr<Sequence> Scheduler::remove(uint64_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  Sequence* sequence = found->second;
  by_id_.erase(found);
  runs_.clear();
  const auto is_it = [&](const std::unique_ptr<Sequence>& s) { return s.get() == sequence; };
  std::unique_ptr<Sequence> out;
  const auto run = std::find_if(running_.begin(), running_.end(), is_it);
  if (run != running_.end()) {
    out = std::move(*run);
    running_.erase(run);
  } else {
    const auto wait = std::find_if(waiting_.begin(), waiting_.end(), is_it);
    WEFT_CHECK(wait != waiting_.end());
    out = std::move(*wait);
    waiting_.erase(wait);
    waiting_bytes_ -= std::exchange(out->waiting_bytes, 0);
  }
  return out;
}

std::vector<uint64_t> Scheduler::ids() const {
  std::vector<uint64_t> out;
  for (const auto& s : running_) out.push_back(s->id());
  for (const auto& s : waiting_) out.push_back(s->id());
  return out;
}

}  // namespace weft::engine
