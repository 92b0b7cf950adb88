// Sums of products of narrow numbers: four bytes a lane and instruction, or two bfloat16.
#pragma once

#include "simd.h"

namespace helexa {

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
// instruction for them two products are added in 16 bits where 2 * Largest * 128 fits.
template <int Largest>
HELEXA_INLINE i32x16 add_byte_products(i32x16 total, i32x16 unsigned_bytes, i32x16 signed_bytes) {
#if defined(__AVX512VNNI__)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)total, (__m512i)unsigned_bytes, (__m512i)signed_bytes);
#elif defined(__AVX512BW__)
  const __m512i sum = (__m512i)total, factors = (__m512i)unsigned_bytes, codes = (__m512i)signed_bytes;
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

// total + low * low + high * high, the halves of each word being bfloat16 (a float's upper half).
HELEXA_INLINE f32x16 add_pair_products(f32x16 total, i32x16 words, uint32_t factors) {
#if defined(__AVX512BF16__)
  return (f32x16)_mm512_dpbf16_ps((__m512)total, (__m512bh)words,
                                  (__m512bh)_mm512_set1_epi32(int32_t(factors)));
#else
  const i32x16 factor = i32x16{} + int32_t(factors);
  total += (f32x16)(words << 16) * (f32x16)(factor << 16);
  return total + (f32x16)(words & int32_t(0xffff0000)) * (f32x16)(factor & int32_t(0xffff0000));
#endif
}

// The nearest bfloat16, halves rounded up, of numbers that may be infinite but not NaN.
HELEXA_INLINE uint16_t round_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return uint16_t((bits + 0x8000) >> 16);
}

// Sixteen pairs of them.
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

// Thirty-two floats as bfloat16, in order.
HELEXA_INLINE void store_pairs(uint32_t* to, f32x16 first, f32x16 second) {
#if defined(__AVX512BF16__)
  const __m512bh pairs = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
  std::memcpy(to, &pairs, sizeof pairs);
#else
  for (int i = 0; i < kLanes; i += 2) {
    to[i / 2] = narrow_bf16(first[i]) | uint32_t(narrow_bf16(first[i + 1])) << 16;
    to[(kLanes + i) / 2] = narrow_bf16(second[i]) | uint32_t(narrow_bf16(second[i + 1])) << 16;
  }
#endif
}

HELEXA_INLINE void store_element(float* to, float value) { *to = value; }
HELEXA_INLINE void store_element(uint16_t* to, float value) { *to = narrow_bf16(value); }

}  // namespace helexa
