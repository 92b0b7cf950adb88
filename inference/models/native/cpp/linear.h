// Projections: y = x W^T + b, of float activations by float weights, or of quantised activations by
// the packed weights of formats.h.
#pragma once

#include <algorithm>
#include <type_traits>

#include "activations.h"
#include "formats.h"
#include "products.h"
#include "simd.h"
#include "thread_team.h"

namespace helexa {

struct Linear {
  Format format;
  int32_t in_features;
  int32_t out_features;
  const uint8_t* panels;
  const float* bias;  // null: none
  Codebook codebook;

  int num_panels() const { return (out_features + kLanes - 1) / kLanes; }
  int num_groups() const { return in_features / kGroup; }

  bool reads_codes() const { return format != kF32; }
  bool reads_half_sums() const {
    bool reads = false;
    with_format(format, [&]<typename F>(F) { reads = F::kParts == 2; });
    return reads;
  }

  int64_t bytes() const {
    int64_t of_panel = int64_t(in_features) * kLanes * sizeof(float);
    with_format(format, [&]<typename F>(F) { of_panel = panel_bytes<F>(num_groups()); });
    return num_panels() * of_panel;
  }
};

constexpr int kMaxParts = 4;

// Weights that one input meets, in different formats: their outputs lie one after the other.
struct Projection {
  int32_t num_parts;
  Linear parts[kMaxParts];

  int in_features() const { return parts[0].in_features; }
  int num_panels() const {
    int total = 0;
    for (int i = 0; i < num_parts; i++) total += parts[i].num_panels();
    return total;
  }
  int64_t bytes() const {
    int64_t total = 0;
    for (int i = 0; i < num_parts; i++) total += parts[i].bytes();
    return total;
  }
  bool reads_codes() const {
    return std::any_of(parts, parts + num_parts, [](const Linear& w) { return w.reads_codes(); });
  }
  bool reads_half_sums() const {
    return std::any_of(parts, parts + num_parts, [](const Linear& w) { return w.reads_half_sums(); });
  }
  bool reads_values() const {
    return std::any_of(parts, parts + num_parts, [](const Linear& w) { return !w.reads_codes(); });
  }
};

// The distance ahead of the arithmetic at which weights are prefetched. The processor's own prefetching
// ends with each page of memory.
constexpr int kPrefetchBytes = 8192;

template <int Bytes>
HELEXA_INLINE void prefetch(const uint8_t* from) {
#pragma GCC unroll 16
  for (int line = 0; line < Bytes; line += 64) __builtin_prefetch(from + line);
}

#if defined(HELEXA_MULTIPLIES_PAIRS)
// Adds the minimums of an even group and the next, times the sums of the rows' activations.
template <int First, int Rows>
HELEXA_INLINE void add_minimums(f32x16 even, f32x16 odd, const TileGroup& even_group, f32x16* totals) {
  const i32x16 minimums = join_pairs(even, odd);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
    uint32_t sums;
    std::memcpy(&sums, &even_group.sums[First + r], sizeof sums);
    totals[r] = add_pair_products(totals[r], minimums, sums);
  }
}
#else
// Adds a group's minimums times the sums of the rows' activations.
template <int First, int Rows>
HELEXA_INLINE void add_minimums(f32x16 minimums, const TileGroup& group, f32x16* totals) {
  const f32x16 rounded = round_bf16(minimums);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) totals[r] += rounded * group.sums[First + r];
}
#endif

// Outputs of the panel at `block` for `Rows` rows of a tile from `First` on: sums over groups, in group
// order. Whoever is the first to read the panel `Fetches` it from memory; for others it is in a cache.
// Not inlined: side by side in one function, the formats' loops would get each other's registers.
template <typename F, int First, int Rows, bool Fetches>
[[gnu::noinline]] void panel_packed(const uint8_t* block, const Codebook& book, int num_groups,
                                    const TileGroup* group, f32x16* result) {
  constexpr int kVectors = 8 / F::kParts, kDotZero = F::kParts == 1 ? F::kZero : 0;
  constexpr int kLargest = F::kLargest;
  const typename F::Reader reader(book);
  f32x16 totals[Rows];
  [[maybe_unused]] f32x16 even_minimum{};  // where two groups are multiplied at once
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) totals[r] = f32x16{};
  for (int at = 0; at < num_groups;) {
    const Head head = reader.head(block);
    block += F::kHeadBytes;
    for (int g = 0; g < F::kBlockGroups; g++, at++, block += F::kGroupBytes, group++) {
      if constexpr (Fetches)
        prefetch<F::kGroupBytes + F::kHeadBytes / F::kBlockGroups>(block + kPrefetchBytes);
      i32x16 codes[8];
      reader.unpack(block, codes);
#if defined(HELEXA_SHORT_SUMS)
      if constexpr (F::kShortScales) {
        const i32x16 scales[] = {F::short_scales(block, 0), F::short_scales(block, 1)};
        i32x16 dots[Rows];
        dot_scaled_group<First, Rows, kLargest, F::kZero>(codes, scales, *group, dots);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; r++)
          totals[r] += head.scale * (to_float(dots[r]) * group->scales[First + r]);
        continue;
      }
#endif
#pragma GCC unroll 2
      for (int p = 0; p < F::kParts; p++) {
        i32x16 dots[Rows];
        dot_group<First, Rows, kLargest, kVectors, kDotZero>(codes + p * kVectors, *group,
                                                            4 * p * kVectors, dots);
        const Head part = F::part(head, block, p);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; r++) {
          const f32x16 dot = to_float(dots[r]) * group->scales[First + r];
          const float sum = group->half_sums[p][First + r];
          if (F::kParts == 1 || F::kMinimum) totals[r] += part.scale * dot;
          else totals[r] += part.scale * (dot - float(F::kZero) * sum);
          if (F::kParts == 2 && F::kMinimum) totals[r] += part.minimum * sum;
        }
        if constexpr (F::kParts == 1 && F::kMinimum) {
          // A code of zero weighs -kZero * scale in the dots.
          const f32x16 minimum = part.minimum + part.scale * float(F::kZero);
#if defined(HELEXA_MULTIPLIES_PAIRS)
          if (at % 2) add_minimums<First, Rows>(even_minimum, minimum, group[-1], totals);
          else if (at + 1 == num_groups) add_minimums<First, Rows>(minimum, f32x16{}, *group, totals);
          even_minimum = minimum;
#else
          add_minimums<First, Rows>(minimum, *group, totals);
#endif
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) result[r] = totals[r];
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

// Where the rows of a product go.
struct OutRows {
  float* first;
  int64_t stride;
  const int32_t* rows = nullptr;  // null: one after the other

  float* at(int row) const { return first + int64_t(rows ? rows[row] : row) * stride; }
};

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

// Multiplies `Rows` rows from `row` on, which is the tile's row `First`, and writes `count` of them.
template <int First, int Rows, bool Fetches>
inline void tile_of(const Linear& w, int panel, const Activations& x, int row, int count,
                    const OutRows& out, bool add) {
  f32x16 result[Rows];
  if (!w.reads_codes()) panel_f32<Rows>(w, panel, x, row, result);
  with_format(w.format, [&]<typename F>(F) {
    const uint8_t* block = w.panels + panel * panel_bytes<F>(w.num_groups());
    // Asking for what is there costs a format with a table little, and a copy of its loop much.
    constexpr bool kFetches = Fetches || F::kHasTable;
    panel_packed<F, First, Rows, kFetches>(block, w.codebook, w.num_groups(), x.tile(row), result);
  });
  for (int r = 0; r < count; r++) write_panel(w, panel, result[r], out.at(row + r), add);
}

template <int First, int Rows>
inline void rows_of_tile(const Linear& w, int panel, const Activations& x, int row, int count,
                         const OutRows& out, bool add) {
  if (row == 0) tile_of<First, Rows, true>(w, panel, x, row, count, out, add);
  else tile_of<First, Rows, false>(w, panel, x, row, count, out, add);
}

// The first `count` rows of the tile that begins with `row`. Sixteen registers have room for half of it.
inline void tile(const Linear& w, int panel, const Activations& x, int row, int count,
                 const OutRows& out, bool add) {
#if defined(__AVX512F__)
  if (count > 4) return rows_of_tile<0, 8>(w, panel, x, row, count, out, add);
#else
  if (count > 4) {
    rows_of_tile<0, 4>(w, panel, x, row, 4, out, add);
    return rows_of_tile<4, 4>(w, panel, x, row + 4, count - 4, out, add);
  }
#endif
  if (count > 2) return rows_of_tile<0, 4>(w, panel, x, row, count, out, add);
  if (count == 2) return rows_of_tile<0, 2>(w, panel, x, row, count, out, add);
  rows_of_tile<0, 1>(w, panel, x, row, count, out, add);
}

// Panels [first, last) for all rows: out[row] = (or +=) W x[row] + b. Rows meet a panel one tile after
// the other, as many as have their codes in half of a second-level cache: what is not in a cache, the
// weights, comes from the memory as seldom as can be. Rows that do not fill a tile are multiplied with
// what is in its other rows: that takes less time than a few at once.
inline void linear(const Linear& w, const Activations& x, int num_rows, int first, int last,
                   const OutRows& out, bool add) {
  constexpr int kBlockBytes = 1 << 19;
  const int row_block = std::max(1, kBlockBytes / w.in_features / kTileRows) * kTileRows;
  for (int block = 0; block < num_rows; block += row_block) {
    const int end = std::min(num_rows, block + row_block);
    for (int panel = first; panel < last; panel++) {
      for (int row = block; row < end; row += kTileRows) {
        tile(w, panel, x, row, std::min(kTileRows, end - row), out, add);
      }
    }
  }
}

// The same for a projection's panels [first, last), counted through its parts.
inline void project(const Projection& projection, const Activations& x, int num_rows, int first,
                    int last, OutRows out, bool add) {
  for (int i = 0; i < projection.num_parts; i++) {
    const Linear& w = projection.parts[i];
    const int end = std::min(last, w.num_panels());
    if (first < end) linear(w, x, num_rows, std::max(0, first), end, out, add);
    first -= w.num_panels();
    last -= w.num_panels();
    out.first += w.out_features;
  }
}

// A member's share of the same. `w`: a Linear or a Projection.
template <typename Weights>
inline void share(const Weights& w, const Activations& x, int num_rows, const Crew& crew,
                  const OutRows& out, bool add = false) {
  const Share panels = crew.share(w.num_panels());
  if constexpr (std::is_same_v<Weights, Linear>)
    linear(w, x, num_rows, panels.begin, panels.end, out, add);
  else project(w, x, num_rows, panels.begin, panels.end, out, add);
}

// Quantises a row for the weights that read it next, if they read codes.
template <typename Next>
inline void quantize_for(const Next& next, const Activations& x, int row) {
  if (next.reads_codes()) quantize_row(x, row, next.reads_half_sums());
}

}  // namespace helexa
