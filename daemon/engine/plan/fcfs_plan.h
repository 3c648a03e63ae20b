// The built-in policy: first come, first served. A pure function of the view, used when no
// scheduler plugin is configured, for the steps whose plugin plan was refused, and for all steps
// after the plugin was switched off.
//
// Rules. Every running sequence has a claim on the units of all its known tokens. While the claims
// exceed what is free, the youngest running sequence leaves (its tokens are computed again later),
// never the oldest. Decodes come first, then prefill pieces, oldest first; a piece leaves a quarter
// of the remaining rows to those behind it and never runs past a useful boundary. Then waiting
// sequences are admitted in order while their claim fits above the watermark, except in a step that
// preempted; one whose prefix is about to be computed by a running sequence waits for it, and those
// behind it may pass. Rows that nobody took go back to the prefills. Late requests are dropped.
//
// Therefore the oldest running sequence always progresses as long as the cache can hold it alone,
// and when nothing runs, something is admitted. Engine thread; linear, no allocation after warm-up.
#pragma once

#include <weft/scheduler.h>

#include <array>
#include <cstdint>
#include <vector>

namespace weft::engine {

class FcfsPlan {
 public:
  // out->cap must be at least max(view.n_run, view.n_wait).
  void plan(const weft_sched_view& view, weft_sched_plan* out);

 private:
  using Units = std::array<uint64_t, WEFT_CACHE_GROUPS_MAX>;

  Units claim(const weft_seq& seq) const;
  bool covered(const Units& claims) const;
  void preempt();
  void drop_late();
  void run_decodes();
  void run_prefills(bool decodes_too);
  void run(uint32_t index);
  void admit();
  bool admit_one(uint32_t index);
  void use_spare_rows();
  // Most rows up to `wanted` that the units at hand allow.
  uint32_t rows_that_fit(const weft_seq& seq, uint32_t ended_rows, uint32_t wanted) const;
  void take_units(const weft_seq& seq, uint32_t ended_rows, uint32_t rows);
  uint32_t piece(const weft_seq& seq) const;

  const weft_sched_view* view_ = nullptr;
  weft_sched_plan* out_ = nullptr;
  std::vector<uint8_t> preempted_, dropped_;  // by index into view.run, view.wait
  Units free_ = {};                           // units at hand
  Units claims_ = {};                         // of the running sequences, not yet taken from free_
  uint32_t rows_left_ = 0, seqs_left_ = 0, running_ = 0;
};

}  // namespace weft::engine
