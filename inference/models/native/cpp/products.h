// Sums of products, several a lane and instruction: two of bfloat16, four of bytes.
//
// For bytes AVX-512 VNNI and AVX-VNNI have an instruction. AVX-512 and AVX2 alone take three: products are
// added by twos in 16 bits, those sums by twos in 32, and these to the rest. Codes of few bits leave room
// for more in 16 bits first (short sums), and so take little over two. They are whole numbers, and the
// same either way.
#pragma once

#include <algorithm>
#include <bit>

#include "simd.h"

#if defined(__AVX512BF16__)
#define HELEXA_MULTIPLIES_PAIRS
#endif

#if (defined(__AVX512BW__) && !defined(__AVX512VNNI__)) || \
    (defined(HELEXA_TWO_HALVES) && !defined(__AVXVNNI__))
#define HELEXA_SHORT_SUMS
#endif

namespace helexa {

// The other factor of a pair of bfloat16: a pair, where there is an instruction for that, else floats, which
// would have to be made of it every time.
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

// In place of the largest code: bytes of either sign, -127..127.
constexpr int kSignedBytes = -1;

// The same four bytes in every lane.
HELEXA_INLINE i32x16 repeat_bytes(const void* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof word);
  return i32x16{} + word;
}

#if defined(HELEXA_HAS_INTRINSICS)
// Thirty-two sums of two products, in 16 bits.
HELEXA_INLINE i32x16 multiply_pairs(i32x16 unsigned_bytes, i32x16 signed_bytes) {
  return HELEXA_INTEGERS(maddubs_epi16, unsigned_bytes, signed_bytes);
}

HELEXA_INLINE i32x16 add_shorts(i32x16 a, i32x16 b) { return HELEXA_INTEGERS(add_epi16, a, b); }

// The two halves of each word, times the same of `b`, as one sum.
HELEXA_INLINE i32x16 multiply_shorts(i32x16 a, i32x16 b) { return HELEXA_INTEGERS(madd_epi16, a, b); }

// Each of thirty-two by a power of two that divides it.
template <int Divisor>
HELEXA_INLINE i32x16 divide_shorts(i32x16 value) {
  constexpr int kBits = std::countr_zero(unsigned(Divisor));
  if constexpr (kBits == 0) return value;
  else return HELEXA_INTEGER(srai_epi16, value, kBits);
}

// Bytes with the signs of `signs`; those where it is zero may be anything.
HELEXA_INLINE i32x16 move_signs(i32x16 bytes, i32x16 signs) {
#if defined(HELEXA_TWO_HALVES)
  return HELEXA_INTEGERS(sign_epi8, bytes, signs);
#else
  const __mmask64 is_negative = _mm512_movepi8_mask((__m512i)signs);
  return (i32x16)_mm512_mask_sub_epi8((__m512i)bytes, is_negative, __m512i{}, (__m512i)bytes);
#endif
}
#endif

// Sixteen dot products of four unsigned bytes, `Largest` at most, with four signed ones. Without an
// instruction for them two products are added in 16 bits where 2 * Largest * 128 fits; the first bytes
// may have signs as well then (kSignedBytes), which move to the others.
template <int Largest>
HELEXA_INLINE i32x16 add_byte_products(i32x16 total, i32x16 unsigned_bytes, i32x16 signed_bytes) {
#if defined(__AVX512VNNI__)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)total, (__m512i)unsigned_bytes, (__m512i)signed_bytes);
#elif defined(HELEXA_TWO_HALVES) && defined(__AVXVNNI__)
  const auto add = [](i32x16::Half sum, i32x16::Half factors, i32x16::Half codes) {
    return (i32x16::Half)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)factors, (__m256i)codes);
  };
  return {add(total.low, unsigned_bytes.low, signed_bytes.low),
          add(total.high, unsigned_bytes.high, signed_bytes.high)};
#elif defined(HELEXA_HAS_INTRINSICS)
  const i32x16 ones = i32x16{} + 0x00010001;
  if constexpr (Largest == kSignedBytes) {
    const i32x16 moved = move_signs(signed_bytes, unsigned_bytes);
    return total + multiply_shorts(multiply_pairs(HELEXA_INTEGER(abs_epi8, unsigned_bytes), moved), ones);
  }
  if constexpr (Largest < 128)
    return total + multiply_shorts(multiply_pairs(unsigned_bytes, signed_bytes), ones);
  const i32x16 low = HELEXA_INTEGER(srai_epi16, HELEXA_INTEGER(slli_epi16, signed_bytes, 8), 8);
  const i32x16 even = multiply_shorts(unsigned_bytes & 0x00ff00ff, low);
  const i32x16 odd = multiply_shorts(HELEXA_INTEGER(srli_epi16, unsigned_bytes, 8),
                                     HELEXA_INTEGER(srai_epi16, signed_bytes, 8));
  return total + (even + odd);
#else
  for (int i = 0; i < 4; i++)
    total += ((unsigned_bytes >> (8 * i)) & 255) * ((signed_bytes << (24 - 8 * i)) >> 24);
  return total;
#endif
}

#if defined(HELEXA_SHORT_SUMS)
// Number of sums of two products that fit 16 bits together, of `Largest` and 127 each.
template <int Largest>
constexpr int kShortSums = 32767 / (2 * 127 * Largest);

// Sixteen dot products of `4 * Vectors` unsigned codes with `bytes`, in -127..127, added to `total`.
template <int Largest, int Vectors>
HELEXA_INLINE i32x16 add_short_sums(i32x16 total, const i32x16* codes, const int8_t* bytes) {
  constexpr int kStep = kShortSums<Largest>;
  const i32x16 ones = i32x16{} + 0x00010001;
#pragma GCC unroll 8
  for (int first = 0; first < Vectors; first += kStep) {
    i32x16 sums = multiply_pairs(codes[first], repeat_bytes(bytes + 4 * first));
#pragma GCC unroll 8
    for (int j = first + 1; j < std::min(Vectors, first + kStep); j++)
      sums = add_shorts(sums, multiply_pairs(codes[j], repeat_bytes(bytes + 4 * j)));
    total += multiply_shorts(sums, ones);
  }
  return total;
}
#endif

}  // namespace helexa
