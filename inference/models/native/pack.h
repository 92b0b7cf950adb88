// Quantised weights into the panels of formats.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace helexa {

extern "C" {

// A weight as files hold it, taken apart: a byte for each code. Mirrored field by field in packing.py.
struct TakenApart {
  int64_t out_features, in_features;
  const uint8_t* codes;       // (out_features, in_features)
  const uint16_t* heads[2];   // (out_features, blocks) float16 each: what a block begins with
  const uint8_t* smalls[2];   // (out_features, groups * parts) each: what a group begins with
  int32_t num_heads, num_smalls;
  int32_t block_groups;       // groups of a block
  int32_t parts;              // scales, or minimums, of a group
  int32_t added;              // to each code, modulo 256
  int32_t num_planes;
  int32_t plane_bits[2];      // low bits first
};

}  // extern "C"

// Panels one after the other, lanes that only fill up the last one being zero.
class PanelWriter {
 public:
  PanelWriter(const TakenApart& weight, uint8_t* panels) : w_(weight), to_(panels) {}

  void write() {
    const int64_t num_blocks = w_.in_features / (kGroupCodes * w_.block_groups);
    for (int64_t row = 0; row < w_.out_features; row += kLanes) {
      num_rows_ = int(std::min<int64_t>(kLanes, w_.out_features - row));
      for (int64_t block = 0; block < num_blocks; block++) {
        for (int i = 0; i < w_.num_heads; i++) put_lanes(w_.heads[i], row, num_blocks, block);
        for (int g = 0; g < w_.block_groups; g++) put_group(row, block * w_.block_groups + g);
      }
    }
  }

 private:
  static constexpr int kGroupCodes = 32;
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
    const int64_t num_parts = w_.in_features / kGroupCodes * w_.parts;
    for (int i = 0; i < w_.num_smalls; i++)
      for (int part = 0; part < w_.parts; part++)
        put_lanes(w_.smalls[i], row, num_parts, group * w_.parts + part);
    for (int i = 0, shift = 0; i < w_.num_planes; shift += w_.plane_bits[i++]) {
      switch (w_.plane_bits[i]) {
        case 1: put_plane<1>(row, group, shift); break;
        case 2: put_plane<2>(row, group, shift); break;
        case 4: put_plane<4>(row, group, shift); break;
        default: put_plane<8>(row, group, shift);
      }
    }
  }

  // Four codes at a time, `Width` bits of each from `shift` on.
  template <int Width>
  void put_plane(int64_t row, int64_t group, int shift) {
    constexpr int kPerByte = 8 / Width;
    constexpr uint32_t kMask = ((1u << Width) - 1) * kEachByte;
    for (int r = 0; r < kLanes; r++) {
      uint32_t words[8]{};
      if (r < num_rows_) {
        std::memcpy(words, w_.codes + (row + r) * w_.in_features + group * kGroupCodes, sizeof words);
        for (uint32_t& word : words) word = with_added(word) >> shift & kMask;
      }
      for (int j = 0; j < Width; j++) {
        uint32_t joined = 0;
        for (int k = 0; k < kPerByte; k++) joined |= words[kPerByte * j + k] << (Width * k);
        std::memcpy(to_ + (j * kLanes + r) * sizeof joined, &joined, sizeof joined);
      }
    }
    to_ += 4 * kLanes * Width;
  }

  // To each of four bytes, none of which reaches into the next.
  uint32_t with_added(uint32_t bytes) const {
    const uint32_t added = uint32_t(w_.added) * kEachByte, high = 0x80 * kEachByte;
    return ((bytes & ~high) + (added & ~high)) ^ ((bytes ^ added) & high);
  }

  const TakenApart& w_;
  uint8_t* to_;
  int num_rows_ = 0;
};

}  // namespace helexa
