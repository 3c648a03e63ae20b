#include "panels.h"

#include <cstring>

namespace weft::kernels_cpu {

namespace {

void pack_bf16(const weft_weight& w, uint64_t first, uint32_t count, uint8_t* data) {
  memset(data, 0, panel_bytes(w));
  auto* out = reinterpret_cast<uint16_t*>(data);
  for (uint32_t o = 0; o < count; ++o) {
    const auto* row = reinterpret_cast<const uint16_t*>(weight_row(w, first + o));
    for (uint64_t k = 0; k < w.k; ++k) out[k / 2 * 2 * kPanelOutputs + o * 2 + k % 2] = row[k];
  }
}

// The two columns of a byte lie in words of different parity at the same nibble.
void pack_codes(const uint8_t* row, uint64_t k, uint32_t o, uint16_t* out) {
  for (uint64_t block = 0; block < k / kBlockColumns; ++block) {
    uint16_t* words = out + block * (kPanelOutputs * kBlockColumns / 4);
    for (uint32_t byte = 0; byte < kBlockColumns / 2; ++byte) {
      const uint32_t group = byte / 4, shift = byte % 4 * 4;
      uint16_t* pair = words + ((group * 2 + o / 16) * 16 + o % 16) * 2;
      const uint8_t codes = row[block * (kBlockColumns / 2) + byte];
      pair[0] = static_cast<uint16_t>(pair[0] | (codes & 15) << shift);
      pair[1] = static_cast<uint16_t>(pair[1] | (codes >> 4) << shift);
    }
  }
}

}  // namespace

void pack_panel(const weft_weight& w, uint64_t panel, uint8_t* data, uint8_t* scale) {
  const uint64_t first = panel * kPanelOutputs;
  const uint32_t count =
      w.n - first < kPanelOutputs ? static_cast<uint32_t>(w.n - first) : kPanelOutputs;
  if (w.dtype != WEFT_MXFP4) return pack_bf16(w, first, count, data);
  memset(data, 0, panel_bytes(w));
  memset(scale, 127, panel_scale_bytes(w));
  for (uint32_t o = 0; o < count; ++o) {
    pack_codes(weight_row(w, first + o), w.k, o, reinterpret_cast<uint16_t*>(data));
    const uint8_t* scales = scale_row(w, first + o);
    for (uint64_t block = 0; block < w.k / kBlockColumns; ++block)
      scale[block * kPanelOutputs + o] = scales[block];
  }
}

}  // namespace weft::kernels_cpu
