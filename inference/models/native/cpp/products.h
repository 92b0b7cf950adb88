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

#if defined(HELEXA_TWO_HALVES)
// Eight of the dot products below.
template <int Largest>
HELEXA_INLINE __m256i add_byte_products(__m256i total, __m256i factors, __m256i codes) {
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(total, factors, codes);
#else
  if constexpr (Largest == kSignedBytes) {
    const __m256i signed_codes = _mm256_sign_epi8(codes, factors);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(factors), signed_codes);
    return _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  if constexpr (Largest < 128) {
    const __m256i pairs = _mm256_maddubs_epi16(factors, codes);
    return _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(factors, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(factors, 8), _mm256_srai_epi16(codes, 8));
  return _mm256_add_epi32(total, _mm256_add_epi32(even, odd));
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
#elif defined(__AVX512BW__)
  const __m512i sum = (__m512i)total, factors = (__m512i)unsigned_bytes, codes = (__m512i)signed_bytes;
  if constexpr (Largest == kSignedBytes) {
    const __mmask64 is_negative = _mm512_movepi8_mask(factors);
    const __m512i moved = _mm512_mask_sub_epi8(codes, is_negative, _mm512_setzero_si512(), codes);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(factors), moved);
    return (i32x16)_mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  if constexpr (Largest < 128) {
    const __m512i pairs = _mm512_maddubs_epi16(factors, codes);
    return (i32x16)_mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(factors, _mm512_set1_epi16(255)),
                                         _mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 8));
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(factors, 8), _mm512_srai_epi16(codes, 8));
  return (i32x16)_mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
#elif defined(HELEXA_TWO_HALVES)
  const auto add = [](i32x16::Half sum, i32x16::Half factors, i32x16::Half codes) {
    return (i32x16::Half)add_byte_products<Largest>((__m256i)sum, (__m256i)factors, (__m256i)codes);
  };
  return {add(total.low, unsigned_bytes.low, signed_bytes.low),
          add(total.high, unsigned_bytes.high, signed_bytes.high)};
#else
  for (int i = 0; i < 4; i++)
    total += ((unsigned_bytes >> (8 * i)) & 255) * ((signed_bytes << (24 - 8 * i)) >> 24);
  return total;
#endif
}

#if defined(HELEXA_SHORT_SUMS)
// Thirty-two sums of two products, in 16 bits.
HELEXA_INLINE i32x16 multiply_pairs(i32x16 unsigned_bytes, i32x16 signed_bytes) {
#if defined(HELEXA_TWO_HALVES)
  using Half = i32x16::Half;
  return {(Half)_mm256_maddubs_epi16((__m256i)unsigned_bytes.low, (__m256i)signed_bytes.low),
          (Half)_mm256_maddubs_epi16((__m256i)unsigned_bytes.high, (__m256i)signed_bytes.high)};
#else
  return (i32x16)_mm512_maddubs_epi16((__m512i)unsigned_bytes, (__m512i)signed_bytes);
#endif
}

HELEXA_INLINE i32x16 add_shorts(i32x16 a, i32x16 b) {
#if defined(HELEXA_TWO_HALVES)
  using Half = i32x16::Half;
  return {(Half)_mm256_add_epi16((__m256i)a.low, (__m256i)b.low),
          (Half)_mm256_add_epi16((__m256i)a.high, (__m256i)b.high)};
#else
  return (i32x16)_mm512_add_epi16((__m512i)a, (__m512i)b);
#endif
}

// The two halves of each word, times the same of `b`, as one sum.
HELEXA_INLINE i32x16 multiply_shorts(i32x16 a, i32x16 b) {
#if defined(HELEXA_TWO_HALVES)
  using Half = i32x16::Half;
  return {(Half)_mm256_madd_epi16((__m256i)a.low, (__m256i)b.low),
          (Half)_mm256_madd_epi16((__m256i)a.high, (__m256i)b.high)};
#else
  return (i32x16)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#endif
}

// Each of thirty-two by a power of two that divides it.
template <int Divisor>
HELEXA_INLINE i32x16 divide_shorts(i32x16 value) {
  constexpr int kBits = std::countr_zero(unsigned(Divisor));
  if constexpr (kBits == 0) return value;
#if defined(HELEXA_TWO_HALVES)
  using Half = i32x16::Half;
  return {(Half)_mm256_srai_epi16((__m256i)value.low, kBits),
          (Half)_mm256_srai_epi16((__m256i)value.high, kBits)};
#else
  return (i32x16)_mm512_srai_epi16((__m512i)value, kBits);
#endif
}

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
