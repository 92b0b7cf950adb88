// Quantised weights into the panels of formats.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "formats.h"
#include "simd.h"

// GCC has Clang's name for it from version 12 on.
#if defined(__clang__)
#define HELEXA_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define HELEXA_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, uint32x8{__VA_ARGS__})
#endif

namespace helexa {

extern "C" {

// A weight as files hold it, taken apart: a byte for each code.
struct TakenApart {
  Format format;
  int64_t out_features, in_features;
  const uint8_t* codes;       // (out_features, in_features)
  const uint16_t* heads[2];   // (out_features, blocks) float16 each: what a block begins with
  const uint8_t* smalls[2];   // (out_features, groups * parts) each: what a group begins with
  int32_t added;              // to each code, modulo 256
};

}  // extern "C"

// How many numbers a block and its groups begin with, for each lane.
struct Layout {
  int num_heads, num_smalls, block_groups, parts, bits;

  explicit Layout(Format format) {
    with_format(format, [&]<typename F>(F) {
      num_heads = F::kHeads, num_smalls = F::kScaleBytes / (kLanes * F::kParts);
      block_groups = F::kBlockGroups, parts = F::kParts, bits = F::kBits;
    });
  }
};

// Panels one after the other, lanes that only fill up the last one being zero.
class PanelWriter {
 public:
  PanelWriter(const TakenApart& weight, uint8_t* panels)
      : w_(weight), layout_(weight.format), to_(panels) {}

  void write() {
    const int64_t num_blocks = w_.in_features / (kGroupCodes * layout_.block_groups);
    for (int64_t row = 0; row < w_.out_features; row += kLanes) {
      num_rows_ = int(std::min<int64_t>(kLanes, w_.out_features - row));
      for (int64_t block = 0; block < num_blocks; block++) {
        for (int i = 0; i < layout_.num_heads; i++) put_lanes(w_.heads[i], row, num_blocks, block);
        for (int g = 0; g < layout_.block_groups; g++) put_group(row, block * layout_.block_groups + g);
      }
    }
  }

  // Behind what was written.
  uint8_t* end() const { return to_; }

 private:
  typedef uint32_t uint32x8 __attribute__((vector_size(32)));
  static constexpr int kGroupCodes = 32, kWords = 8;
  static constexpr uint32_t kEachByte = 0x01010101;

  // One number of each lane's row: `at` of `width`.
  template <typename T>
  void put_lanes(const T* from, int64_t row, int64_t width, int64_t at) {
    T lanes[kLanes]{};
    for (int r = 0; r < num_rows_; r++) lanes[r] = from[(row + r) * width + at];
    std::memcpy(to_, lanes, sizeof lanes);
    to_ += sizeof lanes;
  }

  void put_group(int64_t row, int64_t group) {
    const int64_t num_parts = w_.in_features / kGroupCodes * layout_.parts;
    for (int i = 0; i < layout_.num_smalls; i++)
      for (int part = 0; part < layout_.parts; part++)
        put_lanes(w_.smalls[i], row, num_parts, group * layout_.parts + part);
    uint32x8 words[2][kWords];
    load_words_of_lanes(row, group, words);
    switch (layout_.bits) {
      case 2: return put_plane<2>(words, 0);
      case 3: return put_plane<2>(words, 0), put_plane<1>(words, 2);
      case 4: return put_plane<4>(words, 0);
      case 5: return put_plane<4>(words, 0), put_plane<1>(words, 4);
      case 6: return put_plane<4>(words, 0), put_plane<2>(words, 4);
      default: return put_plane<8>(words, 0);
    }
  }

  // Four codes of each lane at a time: lane r's word w is words[r / 8][w][r % 8].
  void load_words_of_lanes(int64_t row, int64_t group, uint32x8 (&words)[2][kWords]) const {
    const uint8_t* from = w_.codes + row * w_.in_features + group * kGroupCodes;
    // To each byte, none of which reaches into the next.
    const uint32_t added = uint32_t(w_.added) * kEachByte, high = 0x80 * kEachByte;
    for (int r = 0; r < kLanes; r++) {
      uint32x8 own{};
      if (r < num_rows_) {
        std::memcpy(&own, from + r * w_.in_features, sizeof own);
        own = ((own & ~high) + (added & ~high)) ^ ((own ^ added) & high);
      }
      words[r / 8][r % 8] = own;
    }
    transpose(words[0]);
    transpose(words[1]);
  }

  static void transpose(uint32x8 (&m)[kWords]) {
    uint32x8 t[kWords];
    for (int i = 0; i < 8; i += 2) {  // pairs of rows: words 0 1 4 5, then 2 3 6 7
      t[i] = HELEXA_SHUFFLE(m[i], m[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
      t[i + 1] = HELEXA_SHUFFLE(m[i], m[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)  // fours of rows: word k and k + 4 in m[i + k]
      for (int j = 0; j < 2; j++) {
        m[i + 2 * j] = HELEXA_SHUFFLE(t[i + j], t[i + 2 + j], 0, 1, 8, 9, 4, 5, 12, 13);
        m[i + 2 * j + 1] = HELEXA_SHUFFLE(t[i + j], t[i + 2 + j], 2, 3, 10, 11, 6, 7, 14, 15);
      }
    for (int k = 0; k < 4; k++) {
      t[k] = HELEXA_SHUFFLE(m[k], m[4 + k], 0, 1, 2, 3, 8, 9, 10, 11);
      t[4 + k] = HELEXA_SHUFFLE(m[k], m[4 + k], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    std::memcpy(m, t, sizeof t);
  }

  // `Width` bits of each code, from `shift` on.
  template <int Width>
  void put_plane(const uint32x8 (&words)[2][kWords], int shift) {
    constexpr int kPerByte = 8 / Width;
    constexpr uint32_t kMask = ((1u << Width) - 1) * kEachByte;
    for (int j = 0; j < Width; j++)
      for (int half = 0; half < 2; half++) {
        uint32x8 joined{};
        for (int k = 0; k < kPerByte; k++)
          joined |= (words[half][kPerByte * j + k] >> shift & kMask) << (Width * k);
        std::memcpy(to_, &joined, sizeof joined);
        to_ += sizeof joined;
      }
  }

  const TakenApart& w_;
  const Layout layout_;
  uint8_t* to_;
  int num_rows_ = 0;
};

}  // namespace helexa
