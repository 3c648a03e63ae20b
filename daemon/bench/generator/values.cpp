#include "bench/generator/values.h"

#include <cmath>
#include <cstring>

#include "bench/random.h"

namespace weft::bench {
namespace {

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Nearly normal: the sum of four 16-bit uniforms, scaled to deviation 1. The tails end at 3.46,
// which is what a weight matrix needs and takes a fraction of the time of logarithms.
float normal_of(uint64_t bits) {
  const auto sum = static_cast<float>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                      (bits >> 32 & 0xffff) + (bits >> 48));
  constexpr float kMean = 2 * 65535.0f, kDeviation = 37837.0f;  // 65536 / sqrt(3)
  return (sum - kMean) / kDeviation;
}

float uniform_of(uint64_t bits) { return static_cast<float>(bits >> 40) * 0x1p-24f; }

template <class Store>
void fill_numbers(const PlannedTensor& t, uint64_t stream, uint64_t begin, uint64_t count,
                  Store store) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = begin + i;
    float value = 0;
    if (at < t.live) {
      const uint64_t bits = random_at(stream, at);
      value = t.base + t.scale * (t.fill == Fill::kNormal ? normal_of(bits) : uniform_of(bits));
    }
    store(i, value);
  }
}

void fill_bytes(const PlannedTensor& t, uint64_t stream, uint64_t begin, uint64_t count,
                uint8_t* out) {
  const auto base = static_cast<uint8_t>(t.base);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = begin + i;
    // Eight bytes of one number: codes make up most of a checkpoint.
    const auto byte = static_cast<uint8_t>(random_at(stream, at / 8) >> (at % 8 * 8));
    out[i] = t.fill == Fill::kCodes ? byte : static_cast<uint8_t>(base - 1 + byte % 3);
  }
}

void fill_codes(uint64_t stream, uint64_t begin, uint64_t count, uint8_t* out) {
  for (uint64_t i = 0; i < count / 8; ++i) {
    const uint64_t bits = random_at(stream, begin / 8 + i);
    std::memcpy(out + i * 8, &bits, 8);
  }
}

}  // namespace

uint64_t tensor_stream(const std::string& name, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return mix_bits(hash ^ mix_bits(seed + kRandomStep));
}

void fill_values(const PlannedTensor& t, uint64_t stream, uint64_t begin, uint64_t count,
                 void* out) {
  if (t.dtype[0] == 'B') {
    auto* p = static_cast<uint16_t*>(out);
    fill_numbers(t, stream, begin, count, [p](uint64_t i, float v) { p[i] = to_bf16(v); });
  } else if (t.dtype[0] == 'F') {
    auto* p = static_cast<float*>(out);
    fill_numbers(t, stream, begin, count, [p](uint64_t i, float v) { p[i] = v; });
  } else if (t.fill == Fill::kCodes && begin % 8 == 0 && count % 8 == 0) {
    fill_codes(stream, begin, count, static_cast<uint8_t*>(out));
  } else {
    fill_bytes(t, stream, begin, count, static_cast<uint8_t*>(out));
  }
}

}  // namespace weft::bench
