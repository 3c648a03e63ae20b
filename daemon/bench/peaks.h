// Loops that do nothing but one kind of work as fast as one thread can: reading memory, and
// multiply-adds on registers. Each instruction set has its own loop, chosen at run time, compiled
// with the target attributes of its function alone. Pure apart from the work; any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::bench {

struct ComputeLoop {
  const char* kind;               // "f32", "bf16", "int8"
  const char* name;               // "avx512_bf16", ...
  double ops_per_round;           // multiplications and additions
  float (*run)(uint64_t rounds);  // the result only keeps the work from being optimised away
};
// What this CPU and its operating system can run, the fastest of a kind last.
std::vector<ComputeLoop> compute_loops();

// Reads every byte once; bytes a multiple of 1024, begin 64-byte aligned.
using ReadLoop = uint64_t (*)(const void* begin, uint64_t bytes);
ReadLoop read_loop();

}  // namespace weft::bench
