// GGUF's quantised blocks, taken apart while they are packed: what inference/loading/gguf/quants.py
// and codebooks.py do in numpy, a tile of sixteen rows at a time.
//
//   sixteen rows of blocks ─ 256 features ─▶ Tile: a byte a code, scales ─ PanelWriter ─▶ panel
//
// Formats: ggml/src/ggml-common.h. Codes come out unsigned, as formats.h has them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "pack.h"

namespace helexa {

// The numbers that GGUF has for them; mirrored in packing.py.
enum BlockType : int32_t {
  kBlockQ4_0 = 2, kBlockQ4_1 = 3, kBlockQ5_0 = 6, kBlockQ5_1 = 7, kBlockQ8_0 = 8, kBlockQ2K = 10,
  kBlockQ3K = 11, kBlockQ4K = 12, kBlockQ5K = 13, kBlockQ6K = 14, kBlockIQ4NL = 20,
  kBlockIQ4XS = 23, kBlockTQ2_0 = 35, kBlockMXFP4 = 39, kBlockQ1_0 = 41
};

extern "C" {

// Rows of blocks, in any order and of several tensors whose panels are alike.
struct BlockRows {
  const uint8_t* const* rows;  // (out_features): where each begins
  const int32_t* types;        // (out_features): its BlockType
};

}  // extern "C"

// Where a block's parts go in a tile: those of its own row and features.
struct BlockParts {
  uint8_t* codes;
  uint16_t* heads[2];
  uint8_t* smalls[2];
};

inline uint16_t half_at(const uint8_t* from) { return uint16_t(from[0] | from[1] << 8); }
inline uint16_t negated(uint16_t half) { return half ^ 0x8000; }

// Takes all lowest `Width` bits of each `Span` bytes, then all next ones: a byte each, moved up by `Shift`
// and joined with what is there where that is not zero.
template <int Width, int Span, int Shift = 0>
inline void spread(const uint8_t* from, int num_bytes, uint8_t* to) {
  constexpr int kMask = (1 << Width) - 1;
  for (int span = 0; span < num_bytes; span += Span, from += Span)
    for (int k = 0; k < 8; k += Width, to += Span)
      for (int i = 0; i < Span; i++) {
        const uint8_t digit = uint8_t((from[i] >> k & kMask) << Shift);
        to[i] = Shift ? uint8_t(to[i] | digit) : digit;
      }
}

// `count` bits from `from` on, the lowest of each byte first, to bytes at `Shift`.
template <int Shift>
inline void spread_bits(const uint8_t* from, int count, uint8_t* to) {
  for (int i = 0; i < count; i++) {
    const uint8_t bit = uint8_t((from[i / 8] >> i % 8 & 1) << Shift);
    to[i] = Shift ? uint8_t(to[i] | bit) : bit;
  }
}

// -8 times a float16, rounded as float16 is: what is too large becomes infinite.
inline uint16_t times_minus_8(uint16_t half) {
  const int sign = half & 0x8000, exponent = half >> 10 & 31, fraction = half & 0x3ff;
  if (exponent == 31) return uint16_t(fraction ? half | 0x0200 : half ^ 0x8000);  // quiet
  if (exponent) {
    const bool overflows = exponent + 3 > 30;
    return uint16_t((sign ^ 0x8000) | (overflows ? 0x7c00 : (exponent + 3) << 10 | fraction));
  }
  // Eight times a number below the smallest normal one: its leading bit becomes an exponent.
  int scaled = fraction << 3, power = 1;
  while (scaled >= 0x800) scaled >>= 1, power++;  // exact: what leaves is a zero of the three
  const bool is_normal = scaled >= 0x400;
  return uint16_t((sign ^ 0x8000) | (is_normal ? power << 10 | (scaled & 0x3ff) : scaled));
}

// 2 ** (exponent - 128), rounded to float16.
inline uint16_t power_of_two(int exponent) {
  const int power = exponent - 128;
  if (power > 15) return 0x7c00;
  if (power >= -14) return uint16_t((power + 15) << 10);
  return power >= -24 ? uint16_t(1 << (power + 24)) : 0;
}

// Twelve bytes: eight scales and eight minimums of 6 bits.
inline void k_scales(const uint8_t* from, uint8_t* scales, uint8_t* minimums) {
  for (int i = 0; i < 4; i++) {
    const int first = from[i], second = from[4 + i], third = from[8 + i];
    scales[i] = uint8_t(first & 0x3f);
    scales[4 + i] = uint8_t((third & 0x0f) | (first >> 2 & 0x30));
    minimums[i] = uint8_t(second & 0x3f);
    minimums[4 + i] = uint8_t(third >> 4 | (second >> 2 & 0x30));
  }
}

struct BlockSize {
  int features, bytes;
};

inline BlockSize block_size(int32_t type) {
  switch (type) {
    case kBlockQ4_0: case kBlockIQ4NL: return {32, 18};
    case kBlockQ4_1: return {32, 20};
    case kBlockQ5_0: return {32, 22};
    case kBlockQ5_1: return {32, 24};
    case kBlockQ8_0: return {32, 34};
    case kBlockMXFP4: return {32, 17};
    case kBlockQ2K: return {256, 84};
    case kBlockQ3K: return {256, 110};
    case kBlockQ4K: return {256, 144};
    case kBlockQ5K: return {256, 176};
    case kBlockQ6K: return {256, 210};
    case kBlockIQ4XS: return {256, 136};
    case kBlockTQ2_0: return {256, 66};
    default: return {128, 18};  // kBlockQ1_0
  }
}

inline void take_apart(int32_t type, const uint8_t* from, const BlockParts& to) {
  uint8_t *codes = to.codes, *const *smalls = to.smalls;
  uint16_t *scale = to.heads[0], *minimum = to.heads[1];
  switch (type) {
    case kBlockQ4_0:
      *scale = half_at(from);
      *minimum = times_minus_8(*scale);
      return spread<4, 16>(from + 2, 16, codes);
    case kBlockQ4_1:
      *scale = half_at(from);
      *minimum = half_at(from + 2);
      return spread<4, 16>(from + 4, 16, codes);
    case kBlockQ5_0:
      *scale = half_at(from);
      spread<4, 16>(from + 6, 16, codes);
      return spread_bits<4>(from + 2, 32, codes);
    case kBlockQ5_1:
      *scale = half_at(from);
      *minimum = half_at(from + 2);
      spread<4, 16>(from + 8, 16, codes);
      return spread_bits<4>(from + 4, 32, codes);
    case kBlockQ8_0:
      *scale = half_at(from);
      for (int i = 0; i < 32; i++) codes[i] = uint8_t(from[2 + i] ^ 0x80);
      return;
    case kBlockQ2K:
      *scale = half_at(from + 80);
      *minimum = negated(half_at(from + 82));
      for (int i = 0; i < 16; i++) {
        smalls[0][i] = from[i] & 0x0f;
        smalls[1][i] = from[i] >> 4;
      }
      return spread<2, 32>(from + 16, 64, codes);
    case kBlockQ3K:
      *scale = half_at(from + 108);
      for (int i = 0; i < 16; i++) {
        const int low = from[96 + i % 8] >> (i / 8 * 4) & 0x0f, high = from[104 + i % 4] >> (i / 4 * 2) & 3;
        smalls[0][i] = uint8_t((low | high << 4) - 32);
      }
      spread<2, 32>(from + 32, 64, codes);
      return spread<1, 32, 2>(from, 32, codes);
    case kBlockQ4K:
      *scale = half_at(from);
      *minimum = negated(half_at(from + 2));
      k_scales(from + 4, smalls[0], smalls[1]);
      return spread<4, 32>(from + 16, 128, codes);
    case kBlockQ5K:
      *scale = half_at(from);
      *minimum = negated(half_at(from + 2));
      k_scales(from + 4, smalls[0], smalls[1]);
      spread<4, 32>(from + 48, 128, codes);
      return spread<1, 32, 4>(from + 16, 32, codes);
    case kBlockQ6K:
      *scale = half_at(from + 208);
      std::memcpy(smalls[0], from + 192, 16);
      spread<4, 64>(from, 128, codes);
      return spread<2, 32, 4>(from + 128, 64, codes);
    case kBlockIQ4NL:
      *scale = half_at(from);
      return spread<4, 16>(from + 2, 16, codes);
    case kBlockIQ4XS:
      *scale = half_at(from);
      for (int i = 0; i < 8; i++) {
        const int low = from[4 + i / 2] >> (i % 2 * 4) & 0x0f, high = half_at(from + 2) >> 2 * i & 3;
        smalls[0][i] = uint8_t((low | high << 4) - 32);
      }
      return spread<4, 16>(from + 8, 128, codes);
    case kBlockTQ2_0:
      std::fill_n(scale, 8, half_at(from + 64));
      return spread<2, 32>(from, 64, codes);
    case kBlockMXFP4:
      *scale = power_of_two(from[0]);
      spread<4, 16>(from + 1, 16, codes);
      for (int i = 0; i < 32; i++) codes[i] = codes[i] == 8 ? 0 : codes[i];  // nothing is 0
      return;
    case kBlockQ1_0:
      std::fill_n(scale, 4, half_at(from));
      return spread_bits<0>(from + 2, 128, codes);
  }
}

// Panels of rows of blocks. `shape` is a weight taken apart, of which no pointer is read.
class BlockPacker {
 public:
  BlockPacker(const BlockRows& source, const TakenApart& shape, uint8_t* panels)
      : source_(source), shape_(shape), layout_(shape.format), to_(panels) {}

  void write() {
    for (int64_t row = 0; row < shape_.out_features; row += kLanes) {
      const int num_rows = int(std::min<int64_t>(kLanes, shape_.out_features - row));
      for (int64_t first = 0; first < shape_.in_features; first += kTileFeatures) {
        const int width = int(std::min<int64_t>(kTileFeatures, shape_.in_features - first));
        for (int r = 0; r < num_rows; r++) fill(row + r, r, first, width);
        write_tile(num_rows, width);
      }
    }
  }

 private:
  static constexpr int kTileFeatures = 256, kGroupCodes = 32, kTileGroups = kTileFeatures / kGroupCodes;
  static constexpr int kMaxParts = 2;

  int heads_of(int width) const { return width / (kGroupCodes * layout_.block_groups); }
  int smalls_of(int width) const { return width / kGroupCodes * layout_.parts; }

  void fill(int64_t row, int r, int64_t first, int width) {
    const int32_t type = source_.types[row];
    const BlockSize size = block_size(type);
    const uint8_t* from = source_.rows[row] + first / size.features * size.bytes;
    BlockParts to{codes_ + r * width, {}, {}};
    for (int i = 0; i < 2; i++) {
      to.heads[i] = heads_[i] + r * heads_of(width);
      to.smalls[i] = smalls_[i] + r * smalls_of(width);
    }
    const int num_heads = heads_of(size.features), num_smalls = smalls_of(size.features);
    for (int done = 0; done < width; done += size.features, from += size.bytes) {
      take_apart(type, from, to);
      to.codes += size.features;
      for (int i = 0; i < 2; i++) {
        to.heads[i] += num_heads;
        to.smalls[i] += num_smalls;
      }
    }
  }

  void write_tile(int num_rows, int width) {
    TakenApart tile = shape_;
    tile.out_features = num_rows;
    tile.in_features = width;
    tile.codes = codes_;
    tile.added = 0;
    for (int i = 0; i < 2; i++) {
      tile.heads[i] = heads_[i];
      tile.smalls[i] = smalls_[i];
    }
    PanelWriter writer(tile, to_);
    writer.write();
    to_ = writer.end();
  }

  const BlockRows& source_;
  const TakenApart& shape_;
  const Layout layout_;
  uint8_t* to_;
  uint8_t codes_[kLanes * kTileFeatures];
  uint16_t heads_[2][kLanes * kTileGroups];
  uint8_t smalls_[2][kLanes * kTileGroups * kMaxParts];
};

}  // namespace helexa
