// Who runs in the next step: first come, first served, many sequences at once.
//
// Rules. Decodes come first, then prefill pieces of the oldest sequences, then admissions, within a
// budget of rows. A sequence is admitted when its state slots and the pages of all its known tokens
// are free; prefill therefore never runs out, only decodes ask for more pages. When a decode finds
// none, the youngest running sequence is preempted: its units are freed and its tokens, output
// included, are computed again later. Every running sequence is older than every waiting one, the
// oldest can take the pages of all others, and no prompt is accepted that the whole pool cannot
// hold: the oldest always progresses. Engine thread only; no I/O, no clock.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "engine/sequence.h"

namespace weft::engine {

struct SchedulerLimits {
  // Running at once; at most max_batch_tokens, so that every decode fits a step.
  uint32_t max_sequences = 1;
  uint32_t max_batch_tokens = 1;  // rows of a step
  uint32_t max_logit_rows = 2;    // > max_sequences: the surplus serves prompt log-probabilities
  uint32_t prefill_chunk = 0;  // most prefill rows of one sequence in a step; 0 = the budget alone
  uint32_t max_waiting = 1;
  uint64_t max_waiting_bytes = 0;
};

struct PlannedRun {
  Sequence* sequence = nullptr;
  uint32_t rows = 0;  // starting at sequence->computed
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerLimits limits);

  // kUnavailable when the queue is full, kInvalid when the id is in use; the sequence is destroyed
  // then.
  Status enqueue(std::unique_ptr<Sequence> sequence);
  // Plans a step: preempts and admits as needed. The result stays valid until the next call or
  // remove(). Never empty while there is work. Newly admitted sequences are among the runs.
  const std::vector<PlannedRun>& plan();
  // Takes a sequence out, whatever it was doing; its units return when the caller lets it go. NULL
  // when unknown.
  std::unique_ptr<Sequence> remove(uint64_t id);

  bool has_work() const { return !running_.empty() || !waiting_.empty(); }
  size_t running() const { return running_.size(); }
  size_t waiting() const { return waiting_.size(); }
  uint64_t preemptions() const { return preemptions_; }
  // Ids in arrival order, running first.
  std::vector<uint64_t> ids() const;

 private:
  void plan_decodes();
  void plan_prefills();
  void admit();
  void preempt_youngest();
  void add_run(Sequence* sequence, uint32_t rows);
  uint32_t prefill_rows(const Sequence& sequence) const;
  void add_prefill(Sequence* sequence);
  void use_spare_rows();

  const SchedulerLimits limits_;
  std::vector<std::unique_ptr<Sequence>> running_;  // oldest first
  std::deque<std::unique_ptr<Sequence>> waiting_;   // oldest first
  std::unordered_map<uint64_t, Sequence*> by_id_;
  uint64_t waiting_bytes_ = 0;
  uint64_t preemptions_ = 0;

  std::vector<PlannedRun> runs_;
  uint32_t rows_left_ = 0;
  uint32_t prompt_logit_rows_left_ = 0;
  bool preempted_ = false;  // in this plan
};

}  // namespace weft::engine
