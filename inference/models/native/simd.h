// Vectors of sixteen floats and the few functions on them that the decoder needs.
// GCC/Clang vector extensions: the same source is AVX-512, AVX2 or NEON code as the target has it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace helexa {

constexpr int kLanes = 16;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int8_t i8x16 __attribute__((vector_size(16)));
typedef _Float16 f16x16 __attribute__((vector_size(32)));

inline f32x16 load(const float* from) {
  f32x16 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store(float* to, f32x16 value) { std::memcpy(to, &value, sizeof value); }

inline f32x16 splat(float value) { return f32x16{} + value; }

inline f32x16 to_float(i32x16 value) { return __builtin_convertvector(value, f32x16); }

// Nearest whole number, ties to even, for |value| under 2**22.
inline i32x16 round_to_int(f32x16 value) {
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2**23: adding it leaves no fraction bits
  return (i32x16)(value + magic) - (i32x16)magic;
}

// The low bytes of sixteen integers.
inline void store_bytes(int8_t* to, i32x16 value) {
  const i8x16 bytes = __builtin_convertvector(value, i8x16);
  std::memcpy(to, &bytes, sizeof bytes);
}

inline i32x16 load_words(const void* from) {
  i32x16 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// total + low * low + high * high, the halves of each word being bfloat16 (a float's upper half).
inline f32x16 add_pair_products(f32x16 total, i32x16 words, uint32_t factors) {
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
inline uint16_t round_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return uint16_t((bits + 0x8000) >> 16);
}

// Sixteen pairs of them.
inline i32x16 join_pairs(f32x16 low, f32x16 high) {
  const u32x16 half = u32x16{} + 0x8000;
  return (i32x16)((((u32x16)low + half) >> 16) | (((u32x16)high + half) & 0xffff0000));
}

// Round to nearest, ties to even; a NaN stays a NaN because its top mantissa bit is set.
inline uint16_t narrow_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16) | 0x40;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Thirty-two floats as bfloat16, in order.
inline void store_pairs(uint32_t* to, f32x16 first, f32x16 second) {
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

inline void store_element(float* to, float value) { *to = value; }
inline void store_element(uint16_t* to, float value) { *to = narrow_bf16(value); }

inline f32x16 load_f16(const uint8_t* from) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  f16x16 half;
  std::memcpy(&half, from, sizeof half);
  return __builtin_convertvector(half, f32x16);
#endif
}

// Sixteen signed bytes. GCC would convert them one by one.
inline f32x16 load_i8(const uint8_t* from) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (f32x16)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
  __m256 halves[2];
  for (int half = 0; half < 2; half++) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * half));
    halves[half] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
  f32x16 value;
  std::memcpy(&value, halves, sizeof value);
  return value;
#else
  i8x16 bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return to_float(__builtin_convertvector(bytes, i32x16));
#endif
}

inline f32x16 select(i32x16 condition, f32x16 yes, f32x16 no) {
  return condition ? yes : no;
}

#if defined(__AVX512F__)
inline f32x16 vmax(f32x16 a, f32x16 b) { return (f32x16)_mm512_max_ps((__m512)a, (__m512)b); }
inline f32x16 vmin(f32x16 a, f32x16 b) { return (f32x16)_mm512_min_ps((__m512)a, (__m512)b); }

inline f32x16 round_to_whole(f32x16 x) {
  return (f32x16)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline f32x16 times_power_of_two(f32x16 x, f32x16 power) {
  return (f32x16)_mm512_scalef_ps((__m512)x, (__m512)power);
}
#else
inline f32x16 vmax(f32x16 a, f32x16 b) { return select(a > b, a, b); }
inline f32x16 vmin(f32x16 a, f32x16 b) { return select(a < b, a, b); }

inline f32x16 round_to_whole(f32x16 x) { return to_float(round_to_int(x)); }

// In two steps, because the power itself may be under the smallest normal float.
inline f32x16 times_power_of_two(f32x16 x, f32x16 power) {
  const i32x16 whole = round_to_int(power), half = whole / 2, rest = whole - half;
  const f32x16 first = (f32x16)((half + 127) << 23), second = (f32x16)((rest + 127) << 23);
  return x * first * second;
}
#endif

inline f32x16 magnitude(f32x16 x) { return (f32x16)((i32x16)x & 0x7fffffff); }

// Lane i of `yes` where bit i of `bits` is set, else of `no`.
inline f32x16 select_bits(uint16_t bits, f32x16 yes, f32x16 no) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_mask_blend_ps(bits, (__m512)no, (__m512)yes);
#else
  const i32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return select((i32x16{} + bits >> lanes & 1) != 0, yes, no);
#endif
}

// Stores the lanes that are `least` or more one after the other; writes a whole vector. Returns how
// many they are.
inline int store_from(float* to, f32x16 value, f32x16 least) {
#if defined(__AVX512F__)
  const __mmask16 kept = _mm512_cmp_ps_mask((__m512)value, (__m512)least, _CMP_GE_OQ);
  if (kept) store(to, (f32x16)_mm512_maskz_compress_ps(kept, (__m512)value));
  return __builtin_popcount(kept);
#else
  int count = 0;
  for (int i = 0; i < kLanes; i++) {
    to[count] = value[i];
    count += value[i] >= least[i];
  }
  return count;
#endif
}

inline bool any(i32x16 condition) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)condition, (__m512i)condition) != 0;
#endif
  int32_t found = 0;
  for (int i = 0; i < kLanes; i++) found |= condition[i];
  return found != 0;
}

inline float sum(f32x16 value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)value);
#endif
  float total = 0;
  for (int i = 0; i < kLanes; i++) total += value[i];
  return total;
}

inline int32_t sum(i32x16 value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)value);
#endif
  int32_t total = 0;
  for (int i = 0; i < kLanes; i++) total += value[i];
  return total;
}

inline float max(f32x16 value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)value);
#endif
  float best = value[0];
  for (int i = 1; i < kLanes; i++) best = value[i] > best ? value[i] : best;
  return best;
}

// Of `count` floats; in four sums, because each addition waits for the one before.
inline float sum_of_squares(const float* values, int count) {
  f32x16 sums[4]{};
  int i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
    for (int j = 0; j < 4; j++) {
      const f32x16 x = load(values + i + j * kLanes);
      sums[j] += x * x;
    }
  for (; i + kLanes <= count; i += kLanes) sums[0] += load(values + i) * load(values + i);
  float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < count; i++) total += values[i] * values[i];
  return total;
}

// Under any float's exponent: what exp2 makes zero of.
constexpr float kNoPower = -160.0f;

// 2**x to about two ulps, and zero for a masked score; x under 128.
inline f32x16 exp2(f32x16 x) {
  x = vmax(splat(kNoPower), x);
  const f32x16 whole = round_to_whole(x), r = x - whole;
  f32x16 p = splat(1.5345809e-4f);
  p = p * r + 1.3399931e-3f;
  p = p * r + 9.6184889e-3f;
  p = p * r + 5.5503287e-2f;
  p = p * r + 2.4022646e-1f;
  p = p * r + 6.9314720e-1f;
  return times_power_of_two(p * r + 1.0f, whole);
}

// The same to 8e-5 (a minimax cubic): for weights that are rounded to eight bits next.
inline f32x16 exp2_coarse(f32x16 x) {
  x = vmax(splat(kNoPower), x);
  const f32x16 whole = round_to_whole(x), r = x - whole;
  f32x16 p = splat(5.5171644e-2f);
  p = p * r + 2.4261112e-1f;
  p = p * r + 6.9326099e-1f;
  return times_power_of_two(p * r + 9.9992807e-1f, whole);
}

// e**x to about two ulps (range reduction by ln 2 and the Cephes polynomial, as expf uses); zero for
// what is under the smallest float, so that exp(-infinity) is zero and a masked score weighs nothing.
inline f32x16 exp(f32x16 x) {
  x = vmax(splat(-104.0f), vmin(splat(88.7f), x));
  const f32x16 whole = round_to_whole(x * 1.44269504088896341f);
  const f32x16 r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  f32x16 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return times_power_of_two(p * r * r + r + 1.0f, whole);
}

}  // namespace helexa
