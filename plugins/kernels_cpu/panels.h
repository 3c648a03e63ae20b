// The packed layout of weights for kernels that keep one output per vector lane: panels of 32
// outputs, inside a panel K ascending, so that a panel is one sequential stream. Functions of sizes
// and single values here; pack_panel() in panels.cpp fills them. Internal linkage: see numeric.h.
//
// BF16: [n/32][k/2][32 outputs][2 columns]. MXFP4: codes [n/32][k/32][4 groups][2 halves][16
// outputs] [2 parities][16 bits], where bits 4j..4j+3 hold column 8*group + 2*j + parity of the
// block; scales [n/32][k/32][32 outputs]. n is padded to 32 with zero weights, an odd k by a zero
// column.
#pragma once

#include <cstdint>

#include "numeric.h"
#include "weft/kernels.h"

namespace weft::kernels_cpu {

enum Layout : uint32_t { kLayoutRows = 0, kLayoutPanels = 1 };
static constexpr uint64_t kPanelAlign = 64;
static constexpr uint32_t kPanelOutputs = 32;
static constexpr uint32_t kBlockColumns = 32;  // MXFP4 columns that share a scale

static inline uint64_t panel_count(uint64_t n) { return (n + kPanelOutputs - 1) / kPanelOutputs; }

// Bytes of one panel's values (a multiple of kPanelAlign) and of its scales.
static inline uint64_t panel_bytes(const weft_weight& w) {
  return w.dtype == WEFT_MXFP4 ? kPanelOutputs * w.k / 2 : (w.k + 1) / 2 * 2 * 2 * kPanelOutputs;
}
static inline uint64_t panel_scale_bytes(const weft_weight& w) {
  return w.dtype == WEFT_MXFP4 ? kPanelOutputs * (w.k / kBlockColumns) : 0;
}

static inline float panel_bf16_value(const weft_weight& w, uint64_t n, uint64_t k) {
  const uint64_t at = n / kPanelOutputs * (panel_bytes(w) / 2) + k / 2 * 2 * kPanelOutputs +
                      n % kPanelOutputs * 2 + k % 2;
  return float_of_bf16(static_cast<const uint16_t*>(w.data)[at]);
}

static inline float panel_mxfp4_value(const weft_weight& w, uint64_t n, uint64_t k) {
  const uint64_t o = n % kPanelOutputs, panel = n / kPanelOutputs, block = k / kBlockColumns;
  const uint64_t c = k % kBlockColumns, group = c / 8, j = c % 8 / 2, parity = c % 2;
  const uint64_t word = ((group * 2 + o / 16) * 16 + o % 16) * 2 + parity;
  const auto* words = reinterpret_cast<const uint16_t*>(static_cast<const uint8_t*>(w.data) +
                                                        panel * panel_bytes(w) +
                                                        block * kPanelOutputs * kBlockColumns / 2);
  const uint8_t scale = static_cast<const uint8_t*>(
      w.scale)[panel * panel_scale_bytes(w) + block * kPanelOutputs + o];
  return static_cast<float>(kE2m1Twice[(words[word] >> (4 * j)) & 15]) * half_e8m0(scale);
}

// Element of a weight in either layout: the slow, obvious way.
static inline float any_weight_value(const weft_weight& w, uint64_t n, uint64_t k) {
  if (w.layout != kLayoutPanels) return weight_value(w, n, k);
  return w.dtype == WEFT_MXFP4 ? panel_mxfp4_value(w, n, k) : panel_bf16_value(w, n, k);
}

// Writes panel `panel` of a row-major BF16 or MXFP4 weight. data: panel_bytes(w), scale:
// panel_scale_bytes(w) (not touched for BF16).
void pack_panel(const weft_weight& w, uint64_t panel, uint8_t* data, uint8_t* scale);

}  // namespace weft::kernels_cpu
