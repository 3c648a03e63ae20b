// Counter-based random numbers (Philox 4x32, 10 rounds: Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", 2011).
//
// A number is a pure function of (seed, position, stream): what one sequence draws does not depend
// on which others share its batch, on how its prompt was cut, or on whether it was preempted and
// computed again. Any thread.
#pragma once

#include <array>
#include <cstdint>

namespace weft::engine {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// Uses of randomness that must not share numbers.
enum class RandomStream : uint32_t { kSample = 0 };

// Uniform in [0, 1), 53 bits.
constexpr double uniform_at(uint64_t seed, uint64_t position, RandomStream stream) {
  const PhiloxCounter out =
      philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                  static_cast<uint32_t>(stream), 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{out[1]} << 32 | out[0]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace weft::engine
