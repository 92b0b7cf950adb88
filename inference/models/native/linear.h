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
// row's result does not depend on the other rows of its batch. Codes have 14 bits, in two bytes,
// code = 128 * high + low: twice the multiplications of 8-bit codes, and an error a hundred times
// smaller (docs/decisions says what that is worth).
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

// Rows of activations ready for a Linear: as they are, and quantised where a format wants it.
struct Activations {
  float* values;  // (rows, width)
  int8_t* high;   // (rows, width)
  int8_t* low;    // (rows, width), in -64..63
  float* scales;  // (rows, width / 32)
  float* sums;    // (rows, width / 32): scale * sum of the group's codes
  int width;
};

constexpr float kLargestCode = 127.0f * 64.0f;

// Quantises groups [first, last) of one row.
inline void quantize_groups(const Activations& x, int row, int first, int last) {
  const int num_groups = x.width / kGroup;
  for (int g = first; g < last; g++) {
    const int64_t at = int64_t(row) * x.width + g * kGroup;
    const f32x16 left = load(x.values + at), right = load(x.values + at + kLanes);
    const float largest = max(vmax(vmax(left, -left), vmax(right, -right)));
    const float scale = largest / kLargestCode;
    const float inverse = largest > 0 ? kLargestCode / largest : 0.0f;
    const i32x16 codes[2] = {round_to_int(left * inverse), round_to_int(right * inverse)};
    x.scales[int64_t(row) * num_groups + g] = scale;
    x.sums[int64_t(row) * num_groups + g] = scale * float(sum(codes[0] + codes[1]));
    for (int half = 0; half < 2; half++) {
      const i32x16 high = (codes[half] + 64) >> 7;
      store_bytes(x.high + at + half * kLanes, high);
      store_bytes(x.low + at + half * kLanes, codes[half] - (high << 7));
    }
  }
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
inline i32x16 dot_bytes(const i32x16* weights, const int8_t* codes) {
  i32x16 even{}, odd{};
  for (int j = 0; j < 8; j += 2) {
    even = dot4(even, weights[j], load_codes(codes + 4 * j));
    odd = dot4(odd, weights[j + 1], load_codes(codes + 4 * j + 4));
  }
  return even + odd;
}

inline f32x16 dot_group(const i32x16* weights, const Activations& x, int64_t at) {
  return to_float((dot_bytes(weights, x.high + at) << 7) + dot_bytes(weights, x.low + at));
}

// Outputs of one panel for `Rows` rows: result[r] = sum over groups, in group order.
template <int Rows>
inline void panel_q4(const Linear& w, int panel, const Activations& x, int row, f32x16* result) {
  const int num_groups = w.num_groups();
  const uint8_t* block = w.panels + int64_t(panel) * num_groups * kQ4Block;
  const float* scales = x.scales + int64_t(row) * num_groups;
  const float* sums = x.sums + int64_t(row) * num_groups;
  int64_t at = int64_t(row) * x.width;
  for (int r = 0; r < Rows; r++) result[r] = f32x16{};
  for (int g = 0; g < num_groups; g++, block += kQ4Block, at += kGroup) {
    i32x16 weights[8];
    for (int j = 0; j < 4; j++) {
      const i32x16 bytes = load_words(block + 64 + 64 * j);
      weights[2 * j] = bytes & 0x0f0f0f0f;
      weights[2 * j + 1] = (i32x16)((u32x16)bytes >> 4) & 0x0f0f0f0f;
    }
    const f32x16 scale = load_f16(block), minimum = load_f16(block + 32);
    for (int r = 0; r < Rows; r++) {
      const f32x16 dots = dot_group(weights, x, at + r * x.width);
      result[r] += scale * (dots * scales[r * num_groups + g]);
      result[r] += minimum * sums[r * num_groups + g];
    }
  }
}

template <int Rows>
inline void panel_q8(const Linear& w, int panel, const Activations& x, int row, f32x16* result) {
  const int num_groups = w.num_groups();
  const uint8_t* block = w.panels + int64_t(panel) * num_groups * kQ8Block;
  const float* scales = x.scales + int64_t(row) * num_groups;
  const float* sums = x.sums + int64_t(row) * num_groups;
  int64_t at = int64_t(row) * x.width;
  for (int r = 0; r < Rows; r++) result[r] = f32x16{};
  for (int g = 0; g < num_groups; g++, block += kQ8Block, at += kGroup) {
    i32x16 weights[8];
    for (int j = 0; j < 8; j++) weights[j] = load_words(block + 32 + 64 * j);
    const f32x16 scale = load_f16(block);
    for (int r = 0; r < Rows; r++) {
      const f32x16 dots = dot_group(weights, x, at + r * x.width);
      // The bytes are offset by 128 to be unsigned; the sum of the codes takes it out again.
      result[r] +=
          scale * (dots * scales[r * num_groups + g] - 128.0f * sums[r * num_groups + g]);
    }
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
// stay in the first-level cache while the panels stream by.
inline void linear(const Linear& w, const Activations& x, int num_rows, int first, int last,
                   float* out, int64_t out_stride, bool add) {
  constexpr int kRowBlock = 32, kTile = 8;
  for (int block = 0; block < num_rows; block += kRowBlock) {
    const int end = std::min(num_rows, block + kRowBlock);
    for (int panel = first; panel < last; panel++) {
      int row = block;
      for (; row + kTile <= end; row += kTile) tile<kTile>(w, panel, x, row, out, out_stride, add);
      for (; row + 2 <= end; row += 2) tile<2>(w, panel, x, row, out, out_stride, add);
      for (; row < end; row++) tile<1>(w, panel, x, row, out, out_stride, add);
    }
  }
}

}  // namespace helexa
