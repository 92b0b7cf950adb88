// Projections with packed weights: y = x W^T + b.
//
// Weights lie in panels of sixteen output features, so that one vector holds sixteen outputs and
// no sum runs across lanes. Within a panel, group g covers input features [32 g, 32 g + 32):
//
//   q4  [16 x f16 scale][16 x f16 minimum][4 x 64 bytes]   w = scale * nibble + minimum
//       byte (j, r, i): low nibble  = feature 8 j + i     of output r     j < 4, r < 16, i < 4
//                       high nibble = feature 8 j + 4 + i
//   q8  [16 x f16 scale][8 x 64 bytes]                     w = scale * (byte - 128)
//       byte (j, r, i) = feature 4 j + i of output r       j < 8
//   f32 [in_features x 16 floats]
//
// Quantised weights meet activations quantised in the same groups of 32, each row by itself, so a
// row's result does not depend on the other rows of its batch. A group is coarse, 8 bits a code, or
// fine, 14 bits in two bytes, code = 128 * high + low, for twice the multiplications and an error a
// hundred times smaller. Fine are the groups that hold a value far from the row's others, a fifth to
// a third of them: the error of a group grows with its largest value, so nearly all of a coarse
// row's error is theirs (docs/decisions/0004 has the figures).
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace helexa {

constexpr int kGroup = 32;
constexpr int kQ4Block = 64 + 256;
constexpr int kQ8Block = 32 + 512;

enum Format : int32_t { kF32 = 0, kQ4 = 1, kQ8 = 2 };

struct Linear {
  int32_t format;
  int32_t in_features;
  int32_t out_features;
  const uint8_t* panels;
  const float* bias;  // null: none

  int num_panels() const { return (out_features + kLanes - 1) / kLanes; }
  int num_groups() const { return in_features / kGroup; }
};

// Rows of activations ready for a Linear: as they are, and quantised where a format wants it. What
// belongs to a group lies group by group, so that a tile of rows finds its own side by side.
struct Activations {
  float* values;  // (rows, width)
  int8_t* high;   // (rows, width)
  int8_t* low;    // (rows, width), in -64..63; zero in groups that are not fine
  float* scales;  // (width / 32, row_stride)
  float* sums;    // (width / 32, row_stride): scale * sum of the group's codes
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
    x.sums[group] = scale * float(sum(codes[0] + codes[1]));
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
inline i32x16 dot4(i32x16 total, i32x16 packed, int32_t codes) {
#if defined(__AVX512VNNI__)
  return (i32x16)_mm512_dpbusd_epi32((__m512i)total, (__m512i)packed, _mm512_set1_epi32(codes));
#else
  const int8_t* code = reinterpret_cast<const int8_t*>(&codes);
  for (int i = 0; i < 4; i++) total += ((packed >> (8 * i)) & 255) * int32_t(code[i]);
  return total;
#endif
}

inline int32_t load_codes(const int8_t* from) {
  int32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Dot products of one group's 32 features: `weights` as eight vectors of four features each.
inline i32x16 dot_bytes(i32x16 even, const i32x16* weights, const int8_t* codes) {
  i32x16 odd{};
  for (int j = 0; j < 8; j += 2) {
    even = dot4(even, weights[j], load_codes(codes + 4 * j));
    odd = dot4(odd, weights[j + 1], load_codes(codes + 4 * j + 4));
  }
  return even + odd;
}

// The same for the codes of `Rows` rows from `at` on, whose flags are `fine`. Few rows wait for each
// multiplication and so take the low bytes, zero in a coarse group, without asking: a wrong guess of
// the flag would cost more. Either way gives the same whole numbers.
template <int Rows>
inline void dot_group(const i32x16* weights, const Activations& x, int64_t at, const uint8_t* fine,
                      i32x16* totals) {
  if (Rows <= 2) {
    for (int r = 0; r < Rows; r++) {
      const i32x16 high = dot_bytes(i32x16{}, weights, x.high + at + r * x.width);
      totals[r] = dot_bytes(i32x16{}, weights, x.low + at + r * x.width) + (high << (7 * fine[r]));
    }
    return;
  }
  for (int r = 0; r < Rows; r++) totals[r] = i32x16{};
  for (int j = 0; j < 8; j++)
    for (int r = 0; r < Rows; r++)
      totals[r] = dot4(totals[r], weights[j], load_codes(x.high + at + r * x.width + 4 * j));
  for (int r = 0; r < Rows; r++)
    if (fine[r]) totals[r] = dot_bytes(totals[r] << 7, weights, x.low + at + r * x.width);
}

// Outputs of one panel for `Rows` rows: result[r] = sum over groups, in group order.
template <int Rows>
inline void panel_q4(const Linear& w, int panel, const Activations& x, int row, f32x16* result) {
  const int num_groups = w.num_groups();
  const uint8_t* block = w.panels + int64_t(panel) * num_groups * kQ4Block;
  int64_t at = int64_t(row) * x.width;
  int64_t group = row;
  for (int r = 0; r < Rows; r++) result[r] = f32x16{};
  for (int g = 0; g < num_groups; g++, block += kQ4Block, at += kGroup, group += x.row_stride) {
    i32x16 weights[8];
    for (int j = 0; j < 4; j++) {
      const i32x16 bytes = load_words(block + 64 + 64 * j);
      weights[2 * j] = bytes & 0x0f0f0f0f;
      weights[2 * j + 1] = (i32x16)((u32x16)bytes >> 4) & 0x0f0f0f0f;
    }
    i32x16 dots[Rows];
    dot_group<Rows>(weights, x, at, x.fine + group, dots);
    const f32x16 scale = load_f16(block), minimum = load_f16(block + 32);
    const float *scales = x.scales + group, *sums = x.sums + group;
    for (int r = 0; r < Rows; r++) {
      result[r] += scale * (to_float(dots[r]) * scales[r]);
      result[r] += minimum * sums[r];
    }
  }
}

template <int Rows>
inline void panel_q8(const Linear& w, int panel, const Activations& x, int row, f32x16* result) {
  const int num_groups = w.num_groups();
  const uint8_t* block = w.panels + int64_t(panel) * num_groups * kQ8Block;
  int64_t at = int64_t(row) * x.width;
  int64_t group = row;
  for (int r = 0; r < Rows; r++) result[r] = f32x16{};
  for (int g = 0; g < num_groups; g++, block += kQ8Block, at += kGroup, group += x.row_stride) {
    i32x16 weights[8];
    for (int j = 0; j < 8; j++) weights[j] = load_words(block + 32 + 64 * j);
    i32x16 dots[Rows];
    dot_group<Rows>(weights, x, at, x.fine + group, dots);
    const f32x16 scale = load_f16(block);
    // The bytes are offset by 128 to be unsigned; the sum of the codes takes it out again.
    const float *scales = x.scales + group, *sums = x.sums + group;
    for (int r = 0; r < Rows; r++)
      result[r] += scale * (to_float(dots[r]) * scales[r] - 128.0f * sums[r]);
  }
}

template <int Rows>
inline void panel_f32(const Linear& w, int panel, const Activations& x, int row, f32x16* result) {
  const float* column =
      reinterpret_cast<const float*>(w.panels) + int64_t(panel) * w.in_features * kLanes;
  const float* values = x.values + int64_t(row) * x.width;
  for (int r = 0; r < Rows; r++) result[r] = f32x16{};
  for (int k = 0; k < w.in_features; k++, column += kLanes) {
    const f32x16 weights = load(column);
    for (int r = 0; r < Rows; r++) result[r] += weights * values[int64_t(r) * x.width + k];
  }
}

// Stores one panel's result for a row, without the lanes that only fill up the last panel.
inline void write_panel(const Linear& w, int panel, f32x16 result, float* out, bool add) {
  const int begin = panel * kLanes;
  const int count = std::min(kLanes, w.out_features - begin);
  float* to = out + begin;
  if (w.bias) {
    f32x16 bias{};
    std::memcpy(&bias, w.bias + begin, count * sizeof(float));
    result += bias;
  }
  if (count == kLanes) {
    store(to, add ? load(to) + result : result);
    return;
  }
  for (int i = 0; i < count; i++) to[i] = add ? to[i] + result[i] : result[i];
}

template <int Rows>
inline void tile(const Linear& w, int panel, const Activations& x, int row, float* out,
                 int64_t out_stride, bool add) {
  f32x16 result[Rows];
  switch (w.format) {
    case kQ4: panel_q4<Rows>(w, panel, x, row, result); break;
    case kQ8: panel_q8<Rows>(w, panel, x, row, result); break;
    default: panel_f32<Rows>(w, panel, x, row, result);
  }
  for (int r = 0; r < Rows; r++)
    write_panel(w, panel, result[r], out + (row + r) * out_stride, add);
}

// Panels [first, last) for all rows: out[row] = (or +=) W x[row] + b. Rows go in blocks whose codes
// fill half of a small first-level cache, and stay there while the panels stream by.
inline void linear(const Linear& w, const Activations& x, int num_rows, int first, int last,
                   float* out, int64_t out_stride, bool add) {
  constexpr int kTile = 8, kBlockBytes = 16384;
  const int row_block = std::max(1, kBlockBytes / w.in_features / kTile) * kTile;
  for (int block = 0; block < num_rows; block += row_block) {
    const int end = std::min(num_rows, block + row_block);
    for (int panel = first; panel < last; panel++) {
      int row = block;
      for (; row + kTile <= end; row += kTile) tile<kTile>(w, panel, x, row, out, out_stride, add);
      for (; row + 2 <= end; row += 2) tile<2>(w, panel, x, row, out, out_stride, add);
      for (; row < end; row++) tile<1>(w, panel, x, row, out, out_stride, add);
    }
  }
}

}  // namespace helexa
