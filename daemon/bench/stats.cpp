#include "bench/stats.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace weft::bench {

double quantile(std::span<const double> values, double q) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double at = std::clamp(q, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(std::floor(at));
  const size_t high = std::min(low + 1, sorted.size() - 1);
  const double part = at - static_cast<double>(low);
  return sorted[low] + (sorted[high] - sorted[low]) * part;
}

Summary summarize(std::span<const double> seconds) {
  Summary s;
  s.count = seconds.size();
  if (seconds.empty()) return s;
  s.median = quantile(seconds, 0.5);
  s.p10 = quantile(seconds, 0.1);
  s.p90 = quantile(seconds, 0.9);
  s.best = *std::min_element(seconds.begin(), seconds.end());
  for (const double v : seconds) s.total += v;
  return s;
}

double roofline_seconds(double bytes, double flop, double bytes_per_second,
                        double flops_per_second) {
  const double memory = bytes_per_second > 0 ? bytes / bytes_per_second : 0;
  const double compute = flops_per_second > 0 ? flop / flops_per_second : 0;
  return std::max(memory, compute);
}

}  // namespace weft::bench
