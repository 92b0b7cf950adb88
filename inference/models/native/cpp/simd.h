// Vectors of sixteen lanes, f32x16, i32x16 and u32x16, the operators on them, and the few functions that
// the decoder needs.
//
// They are GCC/Clang vector extensions: the same source is AVX-512 or NEON code as the target has it.
// With AVX2 they are a class of two, because GCC keeps an extension that is wider than a register in
// memory, where every operation loads and stores it (docs/decisions/0018).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// For what is a few instructions: left to itself GCC calls some of it, with vectors in memory.
#define HELEXA_INLINE [[gnu::always_inline]] inline

namespace helexa {

constexpr int kLanes = 16;

#if defined(__AVX2__) && defined(__F16C__) && !defined(__AVX512F__)
#define HELEXA_TWO_HALVES

template <typename T>
struct Vector {
  typedef T Half __attribute__((vector_size(32)));
  Half low, high;

  Vector() = default;
  HELEXA_INLINE Vector(Half low, Half high) : low(low), high(high) {}
  HELEXA_INLINE Vector(T value) : low(Half{} + value), high(low) {}
  template <typename... Values>
    requires(sizeof...(Values) == kLanes)
  HELEXA_INLINE Vector(Values... values) {
    const T all[kLanes] = {T(values)...};
    std::memcpy(&low, all, sizeof low);
    std::memcpy(&high, all + kLanes / 2, sizeof high);
  }
  // The same bits.
  template <typename U>
  HELEXA_INLINE explicit Vector(const Vector<U>& other)
      : low((Half)other.low), high((Half)other.high) {}

  HELEXA_INLINE T operator[](int lane) const { return lane < 8 ? low[lane] : high[lane - 8]; }

#define HELEXA_OPERATOR(op)                                                     \
  HELEXA_INLINE friend Vector operator op(const Vector& a, const Vector& b) {   \
    return {a.low op b.low, a.high op b.high};                                  \
  }                                                                             \
  HELEXA_INLINE Vector& operator op##=(const Vector& b) { return *this = *this op b; }
  HELEXA_OPERATOR(+)
  HELEXA_OPERATOR(-)
  HELEXA_OPERATOR(*)
  HELEXA_OPERATOR(/)
  HELEXA_OPERATOR(&)
  HELEXA_OPERATOR(|)
  HELEXA_OPERATOR(<<)
  HELEXA_OPERATOR(>>)
#undef HELEXA_OPERATOR

#define HELEXA_COMPARISON(op)                                                            \
  HELEXA_INLINE friend Vector<int32_t> operator op(const Vector& a, const Vector& b) {   \
    return {a.low op b.low, a.high op b.high};                                           \
  }
  HELEXA_COMPARISON(<)
  HELEXA_COMPARISON(<=)
  HELEXA_COMPARISON(>)
  HELEXA_COMPARISON(>=)
  HELEXA_COMPARISON(==)
  HELEXA_COMPARISON(!=)
#undef HELEXA_COMPARISON

  HELEXA_INLINE friend Vector operator-(const Vector& a) { return {-a.low, -a.high}; }
};

using f32x16 = Vector<float>;
using i32x16 = Vector<int32_t>;
using u32x16 = Vector<uint32_t>;

HELEXA_INLINE void set_lane(f32x16& vector, int lane, float value) {
  if (lane < 8) vector.low[lane] = value;
  else vector.high[lane - 8] = value;
}

template <typename T>
HELEXA_INLINE Vector<T> select(i32x16 condition, Vector<T> yes, Vector<T> no) {
  return {condition.low ? yes.low : no.low, condition.high ? yes.high : no.high};
}

// Sixteen numbers as they lie in memory.
template <typename V>
HELEXA_INLINE V load_vector(const void* from) {
  V value;
  std::memcpy(&value.low, from, sizeof value.low);
  std::memcpy(&value.high, static_cast<const char*>(from) + sizeof value.low, sizeof value.high);
  return value;
}

template <typename V>
HELEXA_INLINE void store_vector(void* to, V value) {
  std::memcpy(to, &value.low, sizeof value.low);
  std::memcpy(static_cast<char*>(to) + sizeof value.low, &value.high, sizeof value.high);
}

#else

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));

HELEXA_INLINE void set_lane(f32x16& vector, int lane, float value) { vector[lane] = value; }

template <typename V>
HELEXA_INLINE V select(i32x16 condition, V yes, V no) {
  return condition ? yes : no;
}

template <typename V>
HELEXA_INLINE V load_vector(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename V>
HELEXA_INLINE void store_vector(void* to, V value) {
  std::memcpy(to, &value, sizeof value);
}

#endif

// An instruction on whole vectors, by its intrinsic's name without the size.
#if defined(HELEXA_TWO_HALVES)
#define HELEXA_HAS_INTRINSICS
#define HELEXA_FLOATS(name, a, b) f32x16(_mm256_##name(a.low, b.low), _mm256_##name(a.high, b.high))
#define HELEXA_INTEGERS(name, a, b)                                       \
  i32x16((i32x16::Half)_mm256_##name((__m256i)(a).low, (__m256i)(b).low), \
         (i32x16::Half)_mm256_##name((__m256i)(a).high, (__m256i)(b).high))
#define HELEXA_INTEGER(name, a, ...)                                                 \
  i32x16((i32x16::Half)_mm256_##name((__m256i)(a).low __VA_OPT__(, ) __VA_ARGS__),   \
         (i32x16::Half)_mm256_##name((__m256i)(a).high __VA_OPT__(, ) __VA_ARGS__))
#elif defined(__AVX512BW__)
#define HELEXA_HAS_INTRINSICS
#define HELEXA_FLOATS(name, a, b) (f32x16)_mm512_##name((__m512)(a), (__m512)(b))
#define HELEXA_INTEGERS(name, a, b) (i32x16)_mm512_##name((__m512i)(a), (__m512i)(b))
#define HELEXA_INTEGER(name, a, ...) (i32x16)_mm512_##name((__m512i)(a)__VA_OPT__(, ) __VA_ARGS__)
#endif

HELEXA_INLINE f32x16 load(const float* from) { return load_vector<f32x16>(from); }
HELEXA_INLINE void store(float* to, f32x16 value) { store_vector(to, value); }
HELEXA_INLINE i32x16 load_words(const void* from) { return load_vector<i32x16>(from); }

HELEXA_INLINE f32x16 splat(float value) { return f32x16{} + value; }

HELEXA_INLINE f32x16 to_float(i32x16 value) {
#if defined(HELEXA_TWO_HALVES)
  return {_mm256_cvtepi32_ps((__m256i)value.low), _mm256_cvtepi32_ps((__m256i)value.high)};
#else
  return __builtin_convertvector(value, f32x16);
#endif
}

// Each byte of `places`, under 16, becomes the byte of `table` at that place; every sixteen bytes of
// `table` are the same.
HELEXA_INLINE i32x16 look_up(i32x16 table, i32x16 places) {
#if defined(HELEXA_HAS_INTRINSICS)
  return HELEXA_INTEGERS(shuffle_epi8, table, places);
#else
  uint8_t values[64], bytes[64];
  store_vector(values, table);
  store_vector(bytes, places);
  for (uint8_t& byte : bytes) byte = values[byte];
  return load_words(bytes);
#endif
}

// Nearest whole number, ties to even, for |value| under 2**22.
HELEXA_INLINE i32x16 round_to_int(f32x16 value) {
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2**23: adding it leaves no fraction bits
  return (i32x16)(value + magic) - (i32x16)magic;
}

// The low bytes of sixteen integers.
HELEXA_INLINE void store_bytes(int8_t* to, i32x16 value) {
#if defined(HELEXA_TWO_HALVES)
  const __m256i firsts = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                          -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
  const auto store_half = [&](int8_t* half, i32x16::Half words) {
    const __m256i bytes = _mm256_shuffle_epi8((__m256i)words, firsts);
    const __m128i both =
        _mm_or_si128(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(half), both);
  };
  store_half(to, value.low);
  store_half(to + 8, value.high);
#else
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  const Bytes bytes = __builtin_convertvector(value, Bytes);
  std::memcpy(to, &bytes, sizeof bytes);
#endif
}

HELEXA_INLINE f32x16 load_f16(const uint8_t* from) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(HELEXA_TWO_HALVES)
  const __m128i* halves = reinterpret_cast<const __m128i*>(from);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
#else
  typedef _Float16 Halves __attribute__((vector_size(32)));
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return __builtin_convertvector(halves, f32x16);
#endif
}

HELEXA_INLINE f32x16 load_bf16(const uint16_t* from) {
#if defined(__AVX512F__)
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
#else
  uint32_t words[kLanes];
  for (int i = 0; i < kLanes; i++) words[i] = uint32_t(from[i]) << 16;
  return (f32x16)load_words(words);
#endif
}

// Sixteen signed bytes. GCC would convert them one by one.
HELEXA_INLINE i32x16 load_i8_words(const uint8_t* from) {
#if defined(__AVX512F__)
  return (i32x16)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(HELEXA_TWO_HALVES)
  const auto half = [&](int at) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + at));
    return (i32x16::Half)_mm256_cvtepi8_epi32(bytes);
  };
  return {half(0), half(8)};
#else
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, i32x16);
#endif
}
HELEXA_INLINE f32x16 load_i8(const uint8_t* from) { return to_float(load_i8_words(from)); }

#if defined(HELEXA_HAS_INTRINSICS)
HELEXA_INLINE f32x16 vmax(f32x16 a, f32x16 b) { return HELEXA_FLOATS(max_ps, a, b); }
HELEXA_INLINE f32x16 vmin(f32x16 a, f32x16 b) { return HELEXA_FLOATS(min_ps, a, b); }
#else
HELEXA_INLINE f32x16 vmax(f32x16 a, f32x16 b) { return select(a > b, a, b); }
HELEXA_INLINE f32x16 vmin(f32x16 a, f32x16 b) { return select(a < b, a, b); }
#endif

#if defined(__AVX512F__)
HELEXA_INLINE f32x16 round_to_whole(f32x16 x) {
  return (f32x16)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

HELEXA_INLINE f32x16 times_power_of_two(f32x16 x, f32x16 power) {
  return (f32x16)_mm512_scalef_ps((__m512)x, (__m512)power);
}
#else
HELEXA_INLINE f32x16 round_to_whole(f32x16 x) { return to_float(round_to_int(x)); }

// In two steps, because the power itself may be under the smallest normal float.
HELEXA_INLINE f32x16 times_power_of_two(f32x16 x, f32x16 power) {
  const i32x16 whole = round_to_int(power), half = whole / 2, rest = whole - half;
  const f32x16 first = (f32x16)((half + 127) << 23), second = (f32x16)((rest + 127) << 23);
  return x * first * second;
}
#endif

HELEXA_INLINE f32x16 magnitude(f32x16 x) { return (f32x16)((i32x16)x & 0x7fffffff); }

// Lane i of `yes` where bit i of `bits` is set, else of `no`.
HELEXA_INLINE f32x16 select_bits(uint16_t bits, f32x16 yes, f32x16 no) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_mask_blend_ps(bits, (__m512)no, (__m512)yes);
#else
  const i32x16 lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return select((i32x16{} + bits >> lanes & 1) != 0, yes, no);
#endif
}

// Stores the lanes that are `least` or more one after the other; writes a whole vector. Returns how
// many they are.
HELEXA_INLINE int store_from(float* to, f32x16 value, f32x16 least) {
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

#if defined(__AVX512F__)
HELEXA_INLINE bool any(i32x16 condition) {
  return _mm512_test_epi32_mask((__m512i)condition, (__m512i)condition) != 0;
}
HELEXA_INLINE float sum(f32x16 value) { return _mm512_reduce_add_ps((__m512)value); }
HELEXA_INLINE int32_t sum(i32x16 value) { return _mm512_reduce_add_epi32((__m512i)value); }
HELEXA_INLINE float max(f32x16 value) { return _mm512_reduce_max_ps((__m512)value); }
#else
HELEXA_INLINE bool any(i32x16 condition) {
#if defined(HELEXA_TWO_HALVES)
  const __m256i found = (__m256i)(condition.low | condition.high);
  return !_mm256_testz_si256(found, found);
#else
  int32_t found = 0;
  for (int i = 0; i < kLanes; i++) found |= condition[i];
  return found != 0;
#endif
}

template <typename V>
HELEXA_INLINE auto sum(V value) {
  decltype(value[0] + 0) total = 0;
  for (int i = 0; i < kLanes; i++) total += value[i];
  return total;
}

HELEXA_INLINE float max(f32x16 value) {
  float best = value[0];
  for (int i = 1; i < kLanes; i++) best = value[i] > best ? value[i] : best;
  return best;
}
#endif

// The sum of squares of `count` floats; in four sums, because each addition waits for the one before.
HELEXA_INLINE float sum_of_squares(const float* values, int count) {
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

// A polynomial by its coefficients, the highest power's first.
template <typename... Rest>
HELEXA_INLINE f32x16 polynomial(f32x16 x, float highest, Rest... rest) {
  f32x16 p = splat(highest);
  ((p = p * x + rest), ...);
  return p;
}

// Under any float's exponent: what exp2 makes zero of.
constexpr float kNoPower = -160.0f;

// 2**x, and zero for a masked score; x under 128. To about two ulps, or `Coarse`: to 8e-5 (a minimax
// cubic), for weights that are rounded to eight bits next.
template <bool Coarse = false>
HELEXA_INLINE f32x16 exp2(f32x16 x) {
  x = vmax(splat(kNoPower), x);
  const f32x16 whole = round_to_whole(x), r = x - whole;
  const f32x16 p = Coarse ? polynomial(r, 5.5171644e-2f, 2.4261112e-1f, 6.9326099e-1f, 9.9992807e-1f)
                          : polynomial(r, 1.5345809e-4f, 1.3399931e-3f, 9.6184889e-3f, 5.5503287e-2f,
                                       2.4022646e-1f, 6.9314720e-1f, 1.0f);
  return times_power_of_two(p, whole);
}

// e**x to about two ulps (range reduction by ln 2 and the Cephes polynomial, as expf uses); zero for
// what is under the smallest float, so that exp(-infinity) is zero and a masked score weighs nothing.
HELEXA_INLINE f32x16 exp(f32x16 x) {
  x = vmax(splat(-104.0f), vmin(splat(88.7f), x));
  const f32x16 whole = round_to_whole(x * 1.44269504088896341f);
  const f32x16 r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  const f32x16 p = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                              1.6666665459e-1f, 5.0000001201e-1f);
  return times_power_of_two(p * r * r + r + 1.0f, whole);
}

HELEXA_INLINE f32x16 silu(f32x16 x) { return x / (1.0f + exp(-x)); }

// x / 2 * (1 + tanh(y)), where y is nearly x / root 2: the same as x times the sigmoid of 2 y.
HELEXA_INLINE f32x16 gelu_tanh(f32x16 x) {
  const f32x16 y = (x + x * x * x * 0.044715f) * 0.7978845608028654f;
  return x / (1.0f + exp(y * -2.0f));
}

}  // namespace helexa
