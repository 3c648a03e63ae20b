// A scheduler without sense: every plan obeys weft/scheduler.h and is otherwise random. Who runs,
// with how many rows, who is admitted, who loses its place and how: drawn from the view's seed and
// step. Whatever it does, answers must not change.
#pragma once

#include <weft/scheduler.h>

#include <algorithm>
#include <array>
#include <memory>

#include "engine/plan/planner.h"
#include "unit/engine/test_rng.h"

namespace weft::engine {

class ChaosScheduler {
 public:
  static std::unique_ptr<Planner> planner() {
    static const weft_scheduler_v1 kTable = [] {
      weft_scheduler_v1 t = {};
      t.head = {sizeof(t), 1, 0};
      t.admit = [](weft_instance*, const weft_sched_view*, const weft_seq*, uint64_t*, weft_err*) {
        return weft_status{WEFT_OK};
      };
      t.plan = [](weft_instance*, const weft_sched_view* view, weft_sched_plan* out) {
        plan(*view, out);
        return weft_status{WEFT_OK};
      };
      t.finished = [](weft_instance*, uint64_t, weft_status, uint64_t) {};
      return t;
    }();
    SchedulerRef ref;
    ref.table = &kTable;
    ref.name = "chaos";
    return std::make_unique<Planner>(ref);
  }

 private:
  using Free = std::array<int64_t, WEFT_CACHE_GROUPS_MAX>;

  static int64_t need(const weft_sched_group& g, uint32_t context, uint32_t held) {
    const uint32_t units =
        g.kind == WEFT_CACHE_ROWS ? (context + g.unit_tokens - 1) / g.unit_tokens : 1;
    return units > held ? units - held : 0;
  }
  static bool take(const weft_sched_view& v, const weft_seq& s, uint32_t context, bool held,
                   Free* free) {
    Free left = *free;
    for (uint32_t g = 0; g < v.n_groups; ++g) {
      left[g] -= need(v.groups[g], context, held ? s.held[g] : 0);
      if (left[g] < 0) return false;
    }
    *free = left;
    return true;
  }
  static uint32_t rows_of(TestRng& rng, const weft_seq& s, uint32_t most) {
    most = std::min(most, s.rows_max);
    if (most == 0) return 0;
    uint32_t rows = rng.below(3) == 0 ? most : 1 + rng.below(most);
    // Sensible in half of the cases: ends where the state can be kept.
    if (s.boundary > s.context && s.boundary - s.context <= most && rng.below(2) == 0) {
      rows = s.boundary - s.context;
    }
    return rows;
  }

  static void plan(const weft_sched_view& v, weft_sched_plan* out) {
    TestRng rng(static_cast<uint32_t>(v.seed * 7919 + v.step * 31 + v.now_ns));
    Free free = {};
    for (uint32_t g = 0; g < v.n_groups; ++g) free[g] = v.groups[g].free;
    uint32_t rows_left = v.token_budget, running = v.n_run;
    const bool preempts = rng.below(6) == 0;
    for (uint32_t i = 0; i < v.n_run; ++i) {
      const weft_seq& s = v.run[i];
      if (preempts && v.n_run > 1 && rng.below(3) == 0 && (s.flags & WEFT_SEQ_PINNED) == 0) {
        out->preempt[out->n_preempt++] = {i, rng.below(2) == 0 && s.swap_bytes > 0
                                                 ? uint32_t{WEFT_PREEMPT_SWAP}
                                                 : uint32_t{WEFT_PREEMPT_RECOMPUTE}};
        --running;
        continue;
      }
      if (rng.below(4) == 0) continue;
      const uint32_t rows = rows_of(rng, s, rows_left);
      if (rows == 0 || !take(v, s, s.context + rows, true, &free)) continue;
      rows_left -= rows;
      out->run[out->n_run++] = {i, rows, 0, 0};
    }
    for (uint32_t i = 0; i < v.n_wait && running < v.run_budget; ++i) {
      const weft_seq& s = v.wait[i];
      if (rng.below(3) == 0) continue;
      const bool restores = s.restore_ns > 0;
      const uint32_t rows = restores ? 0 : rows_of(rng, s, rows_left);
      if (!restores && rows == 0) continue;
      if (!take(v, s, s.known, out->n_preempt == 0, &free)) continue;
      rows_left -= rows;
      out->admit[out->n_admit++] = {i, rows, 0, 0};
      ++running;
    }
  }
};

}  // namespace weft::engine
