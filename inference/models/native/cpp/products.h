// Sums of products of bfloat16, two a lane and instruction.
#pragma once

#include "simd.h"

#if defined(__AVX512BF16__)
#define HELEXA_MULTIPLIES_PAIRS
#endif

namespace helexa {

// What a pair of bfloat16 is multiplied by: another one, where there is an instruction for that, else
// floats, which would have to be made of it every time.
#if defined(HELEXA_MULTIPLIES_PAIRS)
using PairFactors = uint32_t;
#else
struct PairFactors {
  float low, high;
};
#endif

// total + low * low + high * high, the halves of each word being bfloat16 (a float's upper half).
HELEXA_INLINE f32x16 add_pair_products(f32x16 total, i32x16 words, PairFactors factors) {
#if defined(HELEXA_MULTIPLIES_PAIRS)
  return (f32x16)_mm512_dpbf16_ps((__m512)total, (__m512bh)words,
                                  (__m512bh)_mm512_set1_epi32(int32_t(factors)));
#else
  total += (f32x16)(words << 16) * factors.low;
  return total + (f32x16)(words & int32_t(0xffff0000)) * factors.high;
#endif
}

// The nearest bfloat16, halves rounded up, of numbers that may be infinite but not NaN.
HELEXA_INLINE uint16_t round_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return uint16_t((bits + 0x8000) >> 16);
}

HELEXA_INLINE float widen_bf16(uint16_t value) {
  const uint32_t bits = uint32_t(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Sixteen of them as floats, and sixteen pairs.
HELEXA_INLINE f32x16 round_bf16(f32x16 value) {
  return (f32x16)(((u32x16)value + 0x8000) & 0xffff0000);
}
HELEXA_INLINE i32x16 join_pairs(f32x16 low, f32x16 high) {
  const u32x16 half = u32x16{} + 0x8000;
  return (i32x16)((((u32x16)low + half) >> 16) | (((u32x16)high + half) & 0xffff0000));
}

// Round to nearest, ties to even; a NaN stays a NaN because its top mantissa bit is set.
HELEXA_INLINE uint16_t narrow_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16) | 0x40;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if defined(HELEXA_MULTIPLIES_PAIRS)
// Thirty-two floats as bfloat16, in order.
HELEXA_INLINE void store_pairs(uint32_t* to, f32x16 first, f32x16 second) {
  const __m512bh pairs = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
  std::memcpy(to, &pairs, sizeof pairs);
}
#endif

HELEXA_INLINE void store_element(float* to, float value) { *to = value; }
HELEXA_INLINE void store_element(uint16_t* to, float value) { *to = narrow_bf16(value); }

}  // namespace helexa
