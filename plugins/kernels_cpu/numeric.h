// Number formats of weights and pages, one value at a time. Everything has internal linkage on
// purpose: files compiled for a newer instruction set include this header too, and a shared inline
// symbol built there must never be picked for baseline code. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <cstring>

#include "weft/kernels.h"

namespace weft::kernels_cpu {

static inline float float_of_bits(uint32_t bits) {
  float out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

static inline uint32_t bits_of_float(float value) {
  uint32_t out;
  memcpy(&out, &value, sizeof out);
  return out;
}

static inline float float_of_bf16(uint16_t bits) {
  return float_of_bits(static_cast<uint32_t>(bits) << 16);
}

// Nearest, ties to even. A NaN stays a (quiet) NaN whatever its payload.
static inline uint16_t bf16_of_float(float value) {
  const uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Twice the magnitude of an E2M1 code with its sign: 0, .5, 1, 1.5, 2, 3, 4, 6 as small integers.
static constexpr int8_t kE2m1Twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Half an E8M0 scale: 2^(byte - 128), which keeps the product with kE2m1Twice exact. 255 is NaN.
// Bytes 0..2 give subnormal numbers.
static inline float half_e8m0(uint8_t byte) {
  if (byte == 255) return float_of_bits(0x7fc00000u);
  if (byte >= 2) return float_of_bits(static_cast<uint32_t>(byte - 1) << 23);
  return float_of_bits(byte == 1 ? 0x00400000u : 0x00200000u);
}

static inline float mxfp4_value(const uint8_t* packed, const uint8_t* scales, uint64_t column) {
  const uint8_t byte = packed[column / 2];
  const int code = (column & 1) != 0 ? byte >> 4 : byte & 15;
  return static_cast<float>(kE2m1Twice[code]) * half_e8m0(scales[column / 32]);
}

// E4M3 without infinities: bias 7, largest 448, 0x7f and 0xff are NaN.
static inline float float_of_f8e4m3(uint8_t byte) {
  const uint32_t sign = static_cast<uint32_t>(byte & 0x80u) << 24;
  const uint32_t exponent = (byte >> 3) & 15u;
  const uint32_t mantissa = byte & 7u;
  if (exponent == 15 && mantissa == 7) return float_of_bits(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * (1.0f / 512.0f);
    return sign != 0 ? -magnitude : magnitude;
  }
  return float_of_bits(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

// Nearest, ties to even; magnitudes beyond 448 (and infinities) saturate, NaN stays NaN.
static inline uint8_t f8e4m3_of_float(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // >= 448
  if (magnitude < 0x3c800000u) {  // below 2^-6: steps of 2^-9; adding 2^14 leaves exactly those
                                  // steps in the mantissa
    const float shifted = float_of_bits(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (bits_of_float(shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

static inline uint64_t dtype_bytes(uint32_t dtype) {
  switch (dtype) {
    case WEFT_F32:
      return 4;
    case WEFT_BF16:
      return 2;
    case WEFT_F8E4M3:
      return 1;
    default:
      return 0;
  }
}

// Element `column` of a page row or an unquantised weight row.
static inline float plain_value(const void* row, uint32_t dtype, uint64_t column) {
  switch (dtype) {
    case WEFT_BF16:
      return float_of_bf16(static_cast<const uint16_t*>(row)[column]);
    case WEFT_F8E4M3:
      return float_of_f8e4m3(static_cast<const uint8_t*>(row)[column]);
    default:
      return static_cast<const float*>(row)[column];
  }
}

static inline void plain_put(void* row, uint32_t dtype, uint64_t column, float value) {
  switch (dtype) {
    case WEFT_BF16:
      static_cast<uint16_t*>(row)[column] = bf16_of_float(value);
      break;
    case WEFT_F8E4M3:
      static_cast<uint8_t*>(row)[column] = f8e4m3_of_float(value);
      break;
    default:
      static_cast<float*>(row)[column] = value;
      break;
  }
}

static inline const uint8_t* weight_row(const weft_weight& w, uint64_t n) {
  const uint64_t bytes = w.dtype == WEFT_MXFP4 ? w.k / 2 : w.k * dtype_bytes(w.dtype);
  return static_cast<const uint8_t*>(w.data) + n * bytes;
}

static inline const uint8_t* scale_row(const weft_weight& w, uint64_t n) {
  return w.dtype == WEFT_MXFP4 ? static_cast<const uint8_t*>(w.scale) + n * (w.k / 32) : nullptr;
}

static inline float weight_value(const weft_weight& w, uint64_t n, uint64_t k) {
  if (w.dtype == WEFT_MXFP4) return mxfp4_value(weight_row(w, n), scale_row(w, n), k);
  return plain_value(weight_row(w, n), w.dtype, k);
}

static inline bool is_finite(float value) {
  return (bits_of_float(value) & 0x7f800000u) != 0x7f800000u;
}

// Bits of weft_op_head.err.
static constexpr uint32_t kErrNotFinite = 1;
static constexpr uint32_t kErrBadIndex = 2;

static inline void raise(const weft_op_head& head, uint32_t bit) {
  if (head.err != nullptr) __atomic_fetch_or(head.err, bit, __ATOMIC_RELAXED);
}

}  // namespace weft::kernels_cpu
