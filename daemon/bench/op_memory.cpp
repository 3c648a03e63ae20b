#include "bench/op_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "bench/random.h"
#include "plugin/host_memory.h"
#include "plugin/status.h"

namespace weft::bench {
namespace {

constexpr uint64_t kBlockBytes = 64ull << 20;
constexpr uint64_t kAlign = 64;

uint64_t round_up(uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

// More than this is never there, and sums of what is below it do not overflow.
uint64_t machine_bytes() {
  static const uint64_t bytes = static_cast<uint64_t>(std::max(0l, sysconf(_SC_PHYS_PAGES))) *
                                static_cast<uint64_t>(std::max(0l, sysconf(_SC_PAGESIZE)));
  return bytes;
}

uint64_t data_bytes(uint32_t dtype, uint64_t n, uint64_t k) {
  if (dtype == WEFT_MXFP4) return n * k / 2;
  return n * k * (dtype == WEFT_F32 ? 4 : 2);
}

}  // namespace

OpMemory::~OpMemory() {
  for (const Block& block : blocks_) plugin::release_host(block.base, block.bytes);
}

uint64_t OpMemory::random() { return next_random(&state_); }

void* OpMemory::bytes(uint64_t n) {
  if (n > machine_bytes()) return nullptr;
  const uint64_t size = round_up(std::max<uint64_t>(n, 1));
  if (blocks_.empty() || blocks_.back().bytes - blocks_.back().at < size) {
    Block block;
    block.bytes = std::max(size, kBlockBytes);
    auto memory = plugin::allocate_host(block.bytes, plugin::kHugePage);
    if (!memory.ok()) return nullptr;
    block.base = static_cast<char*>(*memory);
    blocks_.push_back(block);
  }
  Block& block = blocks_.back();
  void* p = block.base + block.at;
  block.at += size;
  used_ += size;
  return p;
}

float* OpMemory::floats(uint64_t n, float low, float high) {
  if (n > machine_bytes()) return nullptr;
  auto* p = static_cast<float*>(bytes(n * sizeof(float)));
  for (uint64_t i = 0; p != nullptr && i < n; ++i) {
    p[i] = low + (high - low) * static_cast<float>(random() >> 40) * 0x1p-24f;
  }
  return p;
}

void OpMemory::fill_row_major(weft_weight* w, void* data, void* scale) {
  const float range = std::sqrt(3.0f / static_cast<float>(w->k));
  const uint64_t count = w->n * w->k;
  if (w->dtype == WEFT_MXFP4) {
    auto* codes = static_cast<uint8_t*>(data);
    for (uint64_t i = 0; i < count / 2; ++i) codes[i] = static_cast<uint8_t>(random() >> 56);
    // Uniform codes have a deviation of about 3.
    const auto exponent = static_cast<uint8_t>(127 - std::lround(std::log2(3 / range)));
    std::memset(scale, exponent, count / 32);
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    const float value = range * (static_cast<float>(random() >> 40) * 0x1p-23f - 1);
    if (w->dtype == WEFT_F32) {
      static_cast<float*>(data)[i] = value;
      continue;
    }
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(bits >> 16);
  }
}

Result<weft_weight> OpMemory::weight(uint32_t dtype, uint64_t n, uint64_t k, bool row_major) {
  if (dtype == WEFT_MXFP4 && k % 32 != 0) {
    return make_error(ErrorCode::kInvalid, "MXFP4 matrices need inputs in multiples of 32, not {}",
                      k);
  }
  const auto out_of_memory = [&] {
    return make_error(ErrorCode::kUnavailable, "no memory for a matrix of {} x {}", n, k);
  };
  // Packing needs it twice for a moment.
  if (n == 0 || k > machine_bytes() / n || data_bytes(dtype, n, k) > machine_bytes() / 2) {
    return out_of_memory();
  }
  weft_weight w{dtype, 0, n, k, nullptr, nullptr};
  const uint64_t stored = data_bytes(dtype, n, k);
  uint64_t size = stored, scale_size = dtype == WEFT_MXFP4 ? n * k / 32 : 0;
  const uint64_t stored_scale = scale_size;
  if (!row_major) {
    const weft_status status = kernels_.pack_plan(&w, &w.layout, &size, &scale_size);
    if (status != WEFT_OK) {
      return plugin::plugin_error(status, plugin::make_err(), "planning the layout of a matrix");
    }
  }
  void* data = bytes(size);
  void* scale = scale_size == 0 ? nullptr : bytes(scale_size);
  if (data == nullptr || (scale_size != 0 && scale == nullptr)) return out_of_memory();
  w.data = data;
  w.scale = scale;
  if (w.layout == 0) {
    fill_row_major(&w, data, scale);
    return w;
  }
  const auto source = std::make_unique<char[]>(stored + 64);
  const auto source_scale = std::make_unique<char[]>(stored_scale + 64);
  weft_weight plain{dtype, 0, n, k, source.get(), stored_scale == 0 ? nullptr : source_scale.get()};
  fill_row_major(&plain, source.get(), source_scale.get());
  weft_err err = plugin::make_err();
  const weft_status status = kernels_.pack(&plain, &w, &err);
  if (status != WEFT_OK) return plugin::plugin_error(status, err, "packing a matrix");
  return w;
}

}  // namespace weft::bench
