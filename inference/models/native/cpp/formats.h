// Packed weights: byte layouts, and how a group of 32 input features comes out of them.
//
// Weights lie in panels of sixteen output features, so that one vector holds sixteen outputs and no
// sum runs across lanes. A panel is a row of blocks, a block its scales and then its groups of 32
// input features, [32 g, 32 g + 32) for group g:
//
//   panel   block  block  block ...
//   block   [scales][group]                         q4 q5_0 q5_1 q6 q8 t2 t4 t4h: one group
//           [super-scales][[scales][group]] x 8     q2k q3k q4k q5k q6k t3k t4k: eight groups
//   group   [plane] or [plane of the low bits][plane of the high bits]
//
//           bits of   weight =                                  scale and minimum,  bytes per
//           the planes                                          each for            weight
//   q4      4         scale * code + minimum                    32 features         0.625
//   q5_0    4 + 1     scale * (code - 16)                       32                  0.6875
//   q5_1    4 + 1     scale * code + minimum                    32                  0.75
//   q6      4 + 2     scale * (code - 32)                       32                  0.8125
//   q8      8         scale * (code - 128)                      32                  1.0625
//   q2k     2         (super * scale) * code + superm * minimum 16                  0.390625
//   q3k     2 + 1     (super * scale) * (code - 4)              16                  0.4453125
//   q4k     4         (super * scale) * code + superm * minimum 32                  0.578125
//   q5k     4 + 1     (super * scale) * code + superm * minimum 32                  0.703125
//   q6k     4 + 2     (super * scale) * (code - 32)             16                  0.8203125
//   t2      2         scale * unit * table[code]                32                  0.3125
//   t4      4         scale * unit * table[code]                32                  0.5625
//   t4h     4         scale * unit * table[code]                16                  0.625
//   t3k     2 + 1     (super * scale) * unit * table[code]      16                  0.4453125
//   t4k     4         (super * scale) * unit * table[code]      32                  0.5390625
//   f32     [in_features x 16 floats], no blocks                                    4
//
// Table and unit are the weight's own (Codebook). A t2's values are -8..7, a t3k's -48..48, a t4h's
// -16..15, others' -127..127.
//
// Scales, minimums and supers are sixteen float16 (supers: of 256 features), in the k formats scales
// and minimums sixteen signed bytes, first all scales of the group, then all minimums.
//
// A plane of W bits a code is W times 64 bytes:
//   byte (j, r, i), bits [W k, W k + W) = code of feature 4 (8 / W j + k) + i of output r
//                                         j < W, r < 16, i < 4, k < 8 / W
#pragma once

#include "activations.h"
#include "simd.h"

namespace helexa {

enum Format : int32_t {
  kF32, kQ4, kQ8, kQ5_0, kQ5_1, kQ2K, kQ3K, kQ4K, kQ5K, kQ6K, kQ6, kT2, kT4, kT4H, kT3K, kT4K
};

// Values of a t format's codes.
struct Codebook {
  int8_t values[16];
  float unit;
};

// Vector j of a plane's codes of four features each, moved up by `Shift` bits.
template <int Width, int Shift>
HELEXA_INLINE i32x16 plane_codes(const uint8_t* plane, int j) {
  constexpr int kPerByte = 8 / Width;
  constexpr uint32_t kMask = ((1u << Width) - 1) * 0x01010101u << Shift;
  const u32x16 bytes = (u32x16)load_words(plane + 64 * (j / kPerByte));
  const int right = Width * (j % kPerByte) - Shift;
  return (i32x16)((right >= 0 ? bytes >> right : bytes << -right) & kMask);
}

template <int Bits>
HELEXA_INLINE void unpack_codes(const uint8_t* from, i32x16* codes) {
  constexpr int kLow = Bits >= 8 ? 8 : Bits >= 4 ? 4 : 2;
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++) {
    codes[j] = plane_codes<kLow, 0>(from, j);
    if constexpr (Bits > kLow) codes[j] |= plane_codes<Bits - kLow, kLow>(from + 64 * kLow, j);
  }
}

// The beginning of a block. `minimum` is zero in formats without; where a group's two scales are in its
// head the second is in its place.
struct Head {
  f32x16 scale, minimum;
};

// For values of any size: unsigned bytes for where an instruction multiplies them.
#if defined(HELEXA_SHORT_SUMS)
constexpr int kTableZero = 0, kTableLargest = kSignedBytes;
#else
constexpr int kTableZero = 128, kTableLargest = 255;
#endif

// A format: `Parts` equal parts of a group have scales, and minimums, of their own. `IsSuper`: whole
// numbers that the super-scales of eight groups multiply. `Largest`, if not zero: codes go through a
// table whose values, with `Zero` added, are at most that.
template <int Bits, int Parts, bool IsSuper, bool HasMinimum, int Zero = 1 << (Bits - 1), int Largest = 0>
struct Packed {
  static constexpr bool kHasTable = Largest != 0, kMinimum = HasMinimum;
  static constexpr bool kShortScales = IsSuper && Parts == 2 && !HasMinimum && !kHasTable;
  static constexpr int kBits = Bits, kParts = Parts, kBlockGroups = IsSuper ? 8 : 1;
  static constexpr int kZero = Zero, kLargest = kHasTable ? Largest : (1 << Bits) - 1;
  static constexpr int kHeads = (IsSuper ? 1 : Parts) + HasMinimum, kHeadBytes = 32 * kHeads;
  static constexpr int kScaleBytes = IsSuper ? kLanes * Parts * (1 + HasMinimum) : 0;
  static constexpr int kGroupBytes = kScaleBytes + 64 * Bits;

  // Reads codes and heads.
  class Reader {
   public:
    explicit Reader([[maybe_unused]] const Codebook& book) {
      if constexpr (kHasTable) {
        uint8_t bytes[64];
        for (int i = 0; i < 64; i++) bytes[i] = uint8_t(book.values[i % 16] + Zero);
        table_ = load_words(bytes);
        unit_ = book.unit;
      }
    }

    HELEXA_INLINE void unpack(const uint8_t* group, i32x16* codes) const {
      unpack_codes<Bits>(group + kScaleBytes, codes);
      if constexpr (kHasTable) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) codes[j] = look_up(table_, codes[j]);
      }
    }

    HELEXA_INLINE Head head(const uint8_t* block) const {
      Head head{load_f16(block), f32x16{}};
      if constexpr (kHeads == 2) head.minimum = load_f16(block + 32);
      if constexpr (!kHasTable) return head;
      else return {head.scale * unit_, head.minimum * unit_};
    }

   private:
    i32x16 table_;
    float unit_;
  };

  HELEXA_INLINE static Head part(const Head& head, [[maybe_unused]] const uint8_t* group, int part) {
    if constexpr (!IsSuper) {
      if constexpr (Parts == 1) return head;
      else return {part ? head.minimum : head.scale, f32x16{}};
    } else {
      const f32x16 scale = head.scale * load_i8(group + kLanes * part);
      if constexpr (!HasMinimum) return {scale, f32x16{}};
      else return {scale, head.minimum * load_i8(group + kLanes * (Parts + part))};
    }
  }

  // The scales of a part as whole numbers, in both halves of each word.
  HELEXA_INLINE static i32x16 short_scales(const uint8_t* group, int part) {
    const i32x16 scales = load_i8_words(group + kLanes * part);
    return (scales & 0xffff) | (scales << 16);
  }
};

// Calls `use` with the format's type. Inlined: a call would pass what `use` holds through memory.
template <typename Use>
HELEXA_INLINE void with_format(Format format, const Use& use) {
  switch (format) {
    case kQ4: return use(Packed<4, 1, false, true>{});
    case kQ5_0: return use(Packed<5, 1, false, false>{});
    case kQ5_1: return use(Packed<5, 1, false, true>{});
    case kQ6: return use(Packed<6, 1, false, false>{});
    case kQ8: return use(Packed<8, 1, false, false>{});
    case kQ2K: return use(Packed<2, 2, true, true>{});
    case kQ3K: return use(Packed<3, 2, true, false>{});
    case kQ4K: return use(Packed<4, 1, true, true>{});
    case kQ5K: return use(Packed<5, 1, true, true>{});
    case kQ6K: return use(Packed<6, 2, true, false>{});
    case kT2: return use(Packed<2, 1, false, false, 8, 15>{});
    case kT4: return use(Packed<4, 1, false, false, kTableZero, kTableLargest>{});
    case kT4H: return use(Packed<4, 2, false, false, 16, 31>{});
    case kT3K: return use(Packed<3, 2, true, false, 48, 96>{});
    case kT4K: return use(Packed<4, 1, true, false, kTableZero, kTableLargest>{});
    case kF32: break;
  }
}

template <typename F>
constexpr int64_t panel_bytes(int num_groups) {
  return int64_t(num_groups) / F::kBlockGroups * (F::kHeadBytes + F::kBlockGroups * F::kGroupBytes);
}

// Weights of one output feature, `lane` of the panel at `block`.
template <typename F>
inline void read_row(const uint8_t* block, const Codebook& book, int num_groups, int lane, float* out) {
  const typename F::Reader reader(book);
  for (int first = 0; first < num_groups; first += F::kBlockGroups) {
    const Head head = reader.head(block);
    block += F::kHeadBytes;
    for (int g = 0; g < F::kBlockGroups; g++, block += F::kGroupBytes, out += kGroup) {
      i32x16 codes[8];
      reader.unpack(block, codes);
      for (int k = 0; k < kGroup; k++) {
        const Head part = F::part(head, block, k * F::kParts / kGroup);
        const int byte = codes[k / 4][lane] >> (8 * (k % 4)) & 255;
        const int code = F::kLargest == kSignedBytes ? int8_t(byte) : byte;
        const int zero = F::kMinimum ? 0 : F::kZero;
        out[k] = part.scale[lane] * float(code - zero) + part.minimum[lane];
      }
    }
  }
}

}  // namespace helexa
