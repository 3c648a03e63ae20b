// SplitMix64: random numbers that are the same on every machine for one seed, and that any element
// of a tensor can draw by its position, so that threads fill one tensor together. Pure.
#pragma once

#include <cstdint>

namespace weft::bench {

constexpr uint64_t kRandomStep = 0x9e3779b97f4a7c15ull;

constexpr uint64_t mix_bits(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Number k of the stream that starts at `start`.
constexpr uint64_t random_at(uint64_t start, uint64_t k) {
  return mix_bits(start + (k + 1) * kRandomStep);
}

constexpr uint64_t next_random(uint64_t* state) {
  *state += kRandomStep;
  return mix_bits(*state);
}

}  // namespace weft::bench
