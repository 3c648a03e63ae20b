// Measured time of steps by their number of rows: what plans and the prices of the prefix cache
// are made from. Engine thread only.
#pragma once

#include <weft/scheduler.h>

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace weft::engine {

class StepCosts {
 public:
  void add(uint32_t rows, uint64_t ns) {
    Bucket& b = buckets_[std::bit_width(rows)];
    const double weight = b.samples < 8 ? 1.0 / (b.samples + 1) : 0.1;
    b.rows += (rows - b.rows) * weight;
    b.ns += (static_cast<double>(ns) - b.ns) * weight;
    ++b.samples;
  }
  // One point per power of two that was seen, by rising rows, never falling times.
  void list(std::vector<weft_sched_cost>* out) const {
    out->clear();
    for (const Bucket& b : buckets_) {
      if (b.samples == 0) continue;
      auto ns = static_cast<uint64_t>(b.ns);
      if (!out->empty() && out->back().ns > ns) ns = out->back().ns;
      out->push_back({static_cast<uint32_t>(b.rows + 0.5), b.samples, ns});
    }
  }
  // Prompt tokens per second in the largest steps seen; 0 = not known yet.
  double prefill_rate() const {
    for (auto b = buckets_.rbegin(); b != buckets_.rend(); ++b) {
      if (b->samples > 0 && b->rows >= 16 && b->ns >= 1) return b->rows / b->ns * 1e9;
    }
    return 0;
  }

 private:
  struct Bucket {
    double rows = 0, ns = 0;
    uint32_t samples = 0;
  };
  std::array<Bucket, 33> buckets_ = {};
};

}  // namespace weft::engine
