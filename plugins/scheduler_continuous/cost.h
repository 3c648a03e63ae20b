// How long a step of so many rows takes: a rising line through the measured points. Below the first
// point a step costs what the first one did, above the last one the line goes on. Owned by the
// planner, rebuilt for every view.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "weft/scheduler.h"

namespace scheduler_continuous {

class CostModel {
 public:
  void load(const weft_sched_view& view) {
    points_.clear();
    double highest = 0;  // noise may make a larger step look faster: the line never falls
    for (uint32_t i = 0; i < view.n_costs; ++i) {
      const weft_sched_cost& cost = view.costs[i];
      if (cost.samples == 0 || cost.rows == 0) continue;
      highest = std::max(highest, static_cast<double>(cost.ns));
      points_.push_back({static_cast<double>(cost.rows), highest});
    }
  }

  bool known() const { return !points_.empty(); }

  double step_ns(uint32_t rows) const {
    if (points_.empty()) return 0;
    const double x = rows;
    if (x <= points_.front().rows) return points_.front().ns;
    const auto above = std::lower_bound(points_.begin(), points_.end(), x,
                                        [](const Point& p, double r) { return p.rows < r; });
    if (above == points_.end()) return points_.back().ns + (x - points_.back().rows) * slope();
    const Point& low = *(above - 1);
    return low.ns + (above->ns - low.ns) * (x - low.rows) / (above->rows - low.rows);
  }

  // The most rows, at most `limit`, whose step keeps within target_ns; 0 when one row is too slow.
  uint32_t rows_within(uint64_t target_ns, uint32_t limit) const {
    const double target = static_cast<double>(target_ns);
    uint32_t low = 0, high = limit;
    while (low < high) {
      const uint32_t middle = high - (high - low) / 2;
      if (step_ns(middle) <= target) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

 private:
  struct Point {
    double rows, ns;
  };

  // The steeper of the last piece and of the whole line: a flat last piece says nothing yet.
  double slope() const {
    const Point& first = points_.front();
    const Point& last = points_.back();
    if (points_.size() == 1) return last.ns / last.rows;
    const Point& before = points_[points_.size() - 2];
    return std::max((last.ns - before.ns) / (last.rows - before.rows),
                    (last.ns - first.ns) / (last.rows - first.rows));
  }

  std::vector<Point> points_;
};

}  // namespace scheduler_continuous
