// Vectors of sixteen lanes: f32x16, i32x16, u32x16, and the operators on them.
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

}  // namespace helexa
