// Rows of activations, quantised for weights that are: each row by itself, in groups of 32, so that a
// row's result does not depend on the other rows of its batch.
//
// A group is coarse, 8 bits a code, or fine, 14 bits in two bytes, code = 128 * high + low, for twice
// the multiplications and an error a hundred times smaller. Fine are the groups that hold a value far
// from the row's others: the error of a group grows with its largest value, so nearly all of a coarse
// row's error is theirs (docs/decisions/0007 has the figures).
#pragma once

#include <cmath>
#include <new>
#include <vector>

#include "products.h"
#include "simd.h"

namespace helexa {

// Begins where a cache line does: a vector that lies across two costs twice as much.
template <typename T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <typename U>
  LineAllocator(const LineAllocator<U>&) {}

  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* from, size_t) { ::operator delete(from, kLine); }
  bool operator==(const LineAllocator&) const = default;
};

template <typename T>
using Lines = std::vector<T, LineAllocator<T>>;

// It never shrinks.
template <typename T>
void grow(Lines<T>& buffer, size_t size) {
  if (buffer.size() < size) buffer.resize(size);
}

constexpr int kGroup = 32;
constexpr int kTileRows = 8;
constexpr int kCodeZero = 8;  // the weight's code that zeros are made for; formats have multiples of it

// Pairs are of a row's even group and the next one, and odd groups have nothing: an instruction multiplies
// both. Where there is none each group has its own.
#if defined(HELEXA_MULTIPLIES_PAIRS)
struct GroupSum {
  uint16_t even, odd;
};
#else
using GroupSum = float;
#endif

#if defined(HELEXA_SHORT_SUMS)
constexpr int kShortZero = 32;  // as kCodeZero, of formats of two parts

// Initial values of 16-bit sums over half of a group: -kShortZero * sum of the codes that meet in each, the
// first two and the other two of every four.
struct ShortZeros {
  int16_t first, second;

  static ShortZeros of(const int8_t* codes) {
    int first = 0, second = 0;
    for (int i = 0; i < kLanes; i += 4) {
      first += codes[i] + codes[i + 1];
      second += codes[i + 2] + codes[i + 3];
    }
    return {int16_t(-kShortZero * first), int16_t(-kShortZero * second)};
  }
};
#endif

// One group of features of eight rows: what a tile of a product needs of it, side by side.
struct alignas(64) TileGroup {
  float scales[kTileRows];
  int32_t zeros[kTileRows];     // -kCodeZero * sum of the row's codes: dot products begin with it
  GroupSum sums[kTileRows];     // scale * sum of codes, as a bfloat16
  uint8_t fine[kTileRows];      // 1 where codes have 14 bits
  alignas(64) int8_t high[kTileRows][kGroup];
  int8_t low[kTileRows][kGroup];  // in -64..63; zero where codes are not fine
  float half_sums[2][kTileRows];  // scale * sum of codes of either half; only for formats of two parts
  int32_t fine_zeros[kTileRows];  // zeros - 128 * zeros: what fine dots need once they are moved up
#if defined(HELEXA_SHORT_SUMS)
  ShortZeros short_zeros[2][2][kTileRows];  // of high codes and low ones, either half; as half_sums
#endif

  // Row `r` becomes row `from` of `source`.
  void take(int r, const TileGroup& source, int from) {
    scales[r] = source.scales[from];
    zeros[r] = source.zeros[from];
    sums[r] = source.sums[from];
    fine[r] = source.fine[from];
    std::memcpy(high[r], source.high[from], sizeof high[r]);
    std::memcpy(low[r], source.low[from], sizeof low[r]);
    for (int half = 0; half < 2; half++) half_sums[half][r] = source.half_sums[half][from];
    fine_zeros[r] = source.fine_zeros[from];
#if defined(HELEXA_SHORT_SUMS)
    for (int low = 0; low < 2; low++)
      for (int half = 0; half < 2; half++)
        short_zeros[low][half][r] = source.short_zeros[low][half][from];
#endif
  }
};

// Rows of activations ready for a Linear: as they are, and quantised where a format wants it.
struct Activations {
  float* values;      // (rows, width)
  TileGroup* groups;  // (rows / 8, width / 32)
  int width;

  int num_groups() const { return width / kGroup; }
  TileGroup* tile(int row) const { return groups + int64_t(row / kTileRows) * num_groups(); }
};

constexpr float kCoarseCode = 127.0f;
constexpr float kFineCode = 127.0f * 64.0f;
constexpr float kFinePeak = 4.0f;  // times the row's root mean square

// Group `g` of row `r`'s, a bfloat16.
HELEXA_INLINE void keep_sum(TileGroup* groups, int g, int r, uint16_t sum) {
#if defined(HELEXA_MULTIPLIES_PAIRS)
  GroupSum& pair = groups[g / 2 * 2].sums[r];
  (g % 2 ? pair.odd : pair.even) = sum;
#else
  groups[g].sums[r] = widen_bf16(sum);
#endif
}

// Quantises groups [first, last) of one row whose values have the mean square `mean`. Where that is
// no number, because a value is none, the row's scales are none either.
inline void quantize_groups(const Activations& x, int row, int first, int last, float mean,
                            bool with_half_sums) {
  const float peak = kFinePeak * kFinePeak * mean, zero_or_nan = mean - mean;
  const float* values = x.values + int64_t(row) * x.width;
  TileGroup* groups = x.tile(row);
  const int r = row % kTileRows;
  for (int g = first; g < last; g++) {
    TileGroup& group = groups[g];
    const f32x16 left = load(values + g * kGroup), right = load(values + g * kGroup + kLanes);
    const float largest = max(vmax(magnitude(left), magnitude(right)));
    const bool fine = largest * largest > peak;
    const float largest_code = fine ? kFineCode : kCoarseCode;
    const float inverse = largest > 0 ? largest_code / largest : 0.0f;
    const float scale = largest / largest_code + zero_or_nan;
    const i32x16 codes[2] = {round_to_int(left * inverse), round_to_int(right * inverse)};
    for (int half = 0; half < 2; half++) {
      int8_t *high = group.high[r] + half * kLanes, *low = group.low[r] + half * kLanes;
      const i32x16 above = (codes[half] + 64) >> 7;
      store_bytes(high, fine ? above : codes[half]);
      if (fine) store_bytes(low, codes[half] - (above << 7));
      else std::memset(low, 0, kLanes);
    }
    const int32_t total = sum(codes[0] + codes[1]);
    group.scales[r] = scale;
    group.fine[r] = fine;
    group.zeros[r] = -kCodeZero * total;
    group.fine_zeros[r] = 127 * kCodeZero * total;
    keep_sum(groups, g, r, round_bf16(scale * float(total)));
    if (!with_half_sums) continue;
    const int32_t right_total = sum(codes[1]);
    group.half_sums[0][r] = scale * float(total - right_total);
    group.half_sums[1][r] = scale * float(right_total);
#if defined(HELEXA_SHORT_SUMS)
    for (int half = 0; half < 2; half++) {
      group.short_zeros[0][half][r] = ShortZeros::of(group.high[r] + half * kLanes);
      group.short_zeros[1][half][r] = ShortZeros::of(group.low[r] + half * kLanes);
    }
#endif
  }
#if defined(HELEXA_MULTIPLIES_PAIRS)
  if (last % 2 == 1 && last == x.num_groups()) groups[last - 1].sums[r].odd = 0;
#endif
}

inline float mean_square(const float* values, int width) {
  return sum_of_squares(values, width) / float(width);
}

inline void quantize_row(const Activations& x, int row, bool with_half_sums) {
  const float mean = mean_square(x.values + int64_t(row) * x.width, x.width);
  quantize_groups(x, row, 0, x.num_groups(), mean, with_half_sums);
}

// Dot products of `Vectors` times four features, added to `even` and `odd`: `weights` as vectors of
// four features each, whose codes are `Largest` at most.
template <int Largest, int Vectors>
HELEXA_INLINE i32x16 dot_bytes(i32x16 even, i32x16 odd, const i32x16* weights, const int8_t* codes) {
#if defined(HELEXA_SHORT_SUMS)
  if constexpr (kShortSums<Largest> > 1)
    return add_short_sums<Largest, Vectors>(even + odd, weights, codes);
#endif
#pragma GCC unroll 4
  for (int j = 0; j < Vectors; j += 2) {
    even = add_byte_products<Largest>(even, weights[j], repeat_bytes(codes + 4 * j));
    odd = add_byte_products<Largest>(odd, weights[j + 1], repeat_bytes(codes + 4 * j + 4));
  }
  return even + odd;
}

// The same for high codes of `Rows` rows of a tile, added to `totals`.
template <int First, int Rows, int Largest, int Vectors>
HELEXA_INLINE void dot_high(const i32x16* weights, const TileGroup& group, int from, i32x16* totals) {
#if defined(HELEXA_SHORT_SUMS)
  if constexpr (kShortSums<Largest> > 1) {
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
      totals[i] = add_short_sums<Largest, Vectors>(totals[i], weights, group.high[First + i] + from);
    return;
  }
#endif
#pragma GCC unroll 8
  for (int j = 0; j < Vectors; j++)
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
      totals[i] = add_byte_products<Largest>(totals[i], weights[j],
                                             repeat_bytes(group.high[First + i] + from + 4 * j));
}

// Dot products of `Rows` rows of a tile from `First` on, from feature `from` of the group on. `Zero`:
// the code of a weight that counts as zero. Few rows wait for each multiplication and so take the low
// bytes, zero in a coarse group, without asking: a wrong guess of the flag would cost more. Either way
// gives the same whole numbers.
template <int First, int Rows, int Largest, int Vectors, int Zero>
HELEXA_INLINE void dot_group(const i32x16* weights, const TileGroup& group, int from, i32x16* totals) {
  static_assert(Zero % kCodeZero == 0);
  const auto repeat = [](int32_t zeros) { return (i32x16{} + zeros) * (Zero / kCodeZero); };
  const auto dot = [&](i32x16 even, i32x16 odd, const int8_t* codes) {
    return dot_bytes<Largest, Vectors>(even, odd, weights, codes + from);
  };
  if (Rows <= 2) {
    for (int i = 0, r = First; i < Rows; i++, r++) {
      const i32x16 high = dot(i32x16{}, i32x16{}, group.high[r]);
      totals[i] = dot(repeat(group.zeros[r]), i32x16{}, group.low[r]) + (high << (7 * group.fine[r]));
    }
    return;
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; i++) totals[i] = repeat(group.zeros[First + i]);
  dot_high<First, Rows, Largest, Vectors>(weights, group, from, totals);
  uint64_t is_any_fine;
  static_assert(sizeof group.fine == sizeof is_any_fine);
  std::memcpy(&is_any_fine, group.fine, sizeof is_any_fine);
  if (!is_any_fine) return;
#pragma GCC unroll 8
  for (int i = 0; i < Rows; i++) {
    const int r = First + i;
    if (group.fine[r]) totals[i] = dot(totals[i] << 7, repeat(group.fine_zeros[r]), group.low[r]);
  }
}

#if defined(HELEXA_SHORT_SUMS)
// Dot products of a group's row whose weights have scales for either half, whole numbers, in both halves of
// each word: they are multiplied in where 16-bit sums become 32-bit ones. A sum around the middle code fits
// 16 bits, and what runs over on the way comes back.
template <int Largest, int Zero>
HELEXA_INLINE i32x16 dot_scaled_halves(const i32x16* weights, const i32x16* scales, const int8_t* codes,
                                       const ShortZeros (*zeros)[kTileRows], int row) {
  static_assert(kShortSums<Largest> > 0 && kShortZero % Zero == 0 && 8 * 127 * kShortZero <= 32767);
  i32x16 total{};
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    i32x16 sums = divide_shorts<kShortZero / Zero>(repeat_bytes(&zeros[half][row]));
#pragma GCC unroll 4
    for (int j = 4 * half; j < 4 * half + 4; j++)
      sums = add_shorts(sums, multiply_pairs(weights[j], repeat_bytes(codes + 4 * j)));
    total += multiply_shorts(sums, scales[half]);
  }
  return total;
}

// The same for `Rows` rows of a tile from `First` on.
template <int First, int Rows, int Largest, int Zero>
HELEXA_INLINE void dot_scaled_group(const i32x16* weights, const i32x16* scales, const TileGroup& group,
                                    i32x16* totals) {
  const auto dot = [&](const int8_t* codes, const ShortZeros (*zeros)[kTileRows], int row) {
    return dot_scaled_halves<Largest, Zero>(weights, scales, codes, zeros, row);
  };
#pragma GCC unroll 8
  for (int i = 0; i < Rows; i++)
    totals[i] = dot(group.high[First + i], group.short_zeros[0], First + i);
#pragma GCC unroll 8
  for (int i = 0, r = First; i < Rows; i++, r++)
    if (group.fine[r]) totals[i] = (totals[i] << 7) + dot(group.low[r], group.short_zeros[1], r);
}
#endif

}  // namespace helexa
