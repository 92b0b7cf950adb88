// Rows of activations, quantised for weights that are: each row by itself, in groups of 32, so that a
// row's result does not depend on the other rows of its batch.
//
// A group is coarse, 8 bits a code, or fine, 14 bits in two bytes, code = 128 * high + low, for twice
// the multiplications and an error a hundred times smaller. Fine are the groups that hold a value far
// from the row's others, a fifth to a third of them: the error of a group grows with its largest
// value, so nearly all of a coarse row's error is theirs (docs/decisions/0007 has the figures).
#pragma once

#include <cmath>

#include "simd.h"

namespace helexa {

constexpr int kGroup = 32;

// Rows of activations ready for a Linear: as they are, and quantised where a format wants it. What
// belongs to a group lies group by group, so that a tile of rows finds its own side by side.
struct Activations {
  float* values;  // (rows, width)
  int8_t* high;   // (rows, width)
  int8_t* low;    // (rows, width), in -64..63; zero in groups that are not fine
  float* scales;  // (width / 32, row_stride)
  float* sums;    // (width / 32, row_stride): scale * sum of the group's codes
  float* half_sums;  // (width / 16, row_stride): the same of either half
  uint8_t* fine;  // (width / 32, row_stride): 1 where codes have 14 bits
  int width;
  int row_stride;
};

constexpr float kCoarseCode = 127.0f;
constexpr float kFineCode = 127.0f * 64.0f;
constexpr float kFinePeak = 3.0f;  // times the row's root mean square

inline float mean_square(const float* values, int width) {
  f32x16 squares{};
  for (int i = 0; i < width; i += kLanes) squares += load(values + i) * load(values + i);
  return sum(squares) / float(width);
}

// Quantises groups [first, last) of one row whose values have the mean square `mean`.
inline void quantize_groups(const Activations& x, int row, int first, int last, float mean) {
  const float peak = kFinePeak * kFinePeak * mean;
  for (int g = first; g < last; g++) {
    const int64_t at = int64_t(row) * x.width + g * kGroup;
    const int64_t group = int64_t(g) * x.row_stride + row;
    const f32x16 left = load(x.values + at), right = load(x.values + at + kLanes);
    const float largest = max(vmax(vmax(left, -left), vmax(right, -right)));
    const bool fine = largest * largest > peak;
    const float largest_code = fine ? kFineCode : kCoarseCode;
    const float scale = largest / largest_code;
    const float inverse = largest > 0 ? largest_code / largest : 0.0f;
    const i32x16 codes[2] = {round_to_int(left * inverse), round_to_int(right * inverse)};
    x.scales[group] = scale;
    const int32_t halves[2] = {sum(codes[0]), sum(codes[1])};
    x.sums[group] = scale * float(halves[0] + halves[1]);
    float* half_sums = x.half_sums + int64_t(2 * g) * x.row_stride + row;
    half_sums[0] = scale * float(halves[0]);
    half_sums[x.row_stride] = scale * float(halves[1]);
    x.fine[group] = fine;
    for (int half = 0; half < 2; half++) {
      const i32x16 high = fine ? (codes[half] + 64) >> 7 : codes[half];
      store_bytes(x.high + at + half * kLanes, high);
      store_bytes(x.low + at + half * kLanes, fine ? codes[half] - (high << 7) : i32x16{});
    }
  }
}

inline void quantize_row(const Activations& x, int row) {
  const float mean = mean_square(x.values + int64_t(row) * x.width, x.width);
  quantize_groups(x, row, 0, x.width / kGroup, mean);
}

// Sixteen dot products of four unsigned weight bytes with the same four signed codes.
[[gnu::always_inline]] inline i32x16 dot4(i32x16 total, i32x16 packed, int32_t codes) {
#if defined(__AVX512VNNI__)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)total, (__m512i)packed, _mm512_set1_epi32(codes));
#else
  const int8_t* code = reinterpret_cast<const int8_t*>(&codes);
  for (int i = 0; i < 4; i++) total += ((packed >> (8 * i)) & 255) * int32_t(code[i]);
  return total;
#endif
}

[[gnu::always_inline]] inline int32_t load_codes(const int8_t* from) {
  int32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Dot products of `Vectors` times four features: `weights` as vectors of four features each.
template <int Vectors>
[[gnu::always_inline]] inline i32x16 dot_bytes(i32x16 even, const i32x16* weights, const int8_t* codes) {
  i32x16 odd{};
  for (int j = 0; j < Vectors; j += 2) {
    even = dot4(even, weights[j], load_codes(codes + 4 * j));
    odd = dot4(odd, weights[j + 1], load_codes(codes + 4 * j + 4));
  }
  return even + odd;
}

// The same for the codes of `Rows` rows from `at` on, whose flags are `fine`. Few rows wait for each
// multiplication and so take the low bytes, zero in a coarse group, without asking: a wrong guess of
// the flag would cost more. Either way gives the same whole numbers.
template <int Rows, int Vectors>
[[gnu::always_inline]] inline void dot_group(const i32x16* weights, const Activations& x, int64_t at, const uint8_t* fine,
                      i32x16* totals) {
  if (Rows <= 2) {
    for (int r = 0; r < Rows; r++) {
      const i32x16 high = dot_bytes<Vectors>(i32x16{}, weights, x.high + at + r * x.width);
      totals[r] = dot_bytes<Vectors>(i32x16{}, weights, x.low + at + r * x.width) + (high << (7 * fine[r]));
    }
    return;
  }
  for (int r = 0; r < Rows; r++) totals[r] = i32x16{};
  for (int j = 0; j < Vectors; j++)
    for (int r = 0; r < Rows; r++)
      totals[r] = dot4(totals[r], weights[j], load_codes(x.high + at + r * x.width + 4 * j));
  for (int r = 0; r < Rows; r++)
    if (fine[r]) totals[r] = dot_bytes<Vectors>(totals[r] << 7, weights, x.low + at + r * x.width);
}

}  // namespace helexa
