// The table of kernels: one row per (op, variant, weight dtype). Adding a variant means adding a
// namespace with run functions and rows here; nothing else knows the variants by name.
#pragma once

#include <cstdint>

#include "weft/kernels.h"

namespace weft::kernels_cpu {

uint32_t kernel_count();
// Row i with `score` settled for this machine: negative when the CPU lacks the row's instruction
// set.
weft_kernel kernel_at(uint32_t i);

// weft_plan.bits_class of the variants.
enum BitsClass : uint32_t {
  kBitsRef = 1,
  kBitsAvx2 = 2,
  kBitsAvx512 = 3,
  kBitsAvx512Bf16 = 4,
  kBitsAmx = 5
};

}  // namespace weft::kernels_cpu
