// Numbers that a measurement is summed up in: percentiles of repeated times, and the share of the
// machine's limit that a piece of work reached. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>

namespace weft::bench {

// q-th quantile (0..1) of the values, interpolated between neighbours; 0 when there are none.
double quantile(std::span<const double> values, double q);

struct Summary {
  double median = 0, p10 = 0, p90 = 0, best = 0, total = 0;
  uint64_t count = 0;
};
Summary summarize(std::span<const double> seconds);

// What the machine can do, measured. 0 = not measured or not present.
struct Peaks {
  double read_bytes = 0;  // per second, all threads
  double f32_flops = 0;
  double bf16_flops = 0;  // dot products of bf16 pairs; 0 when the CPU has none
  double int8_ops = 0;
  // The fastest way to multiply floating-point numbers at the precision of bf16 weights.
  double matmul_flops() const { return bf16_flops > f32_flops ? bf16_flops : f32_flops; }
};

// The time that nothing can beat: all bytes at the read bandwidth or all operations at `flops` per
// second, whichever takes longer. 0 when neither limit is known.
double roofline_seconds(double bytes, double flop, double bytes_per_second,
                        double flops_per_second);

}  // namespace weft::bench
