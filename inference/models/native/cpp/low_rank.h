// Adapters (LoRA): what a row's adapter adds to what a projection gave for the row.
//
//   x ─▶ down (rank, in) ─▶ inner, of every part ─▶ up (out, rank) ─▶ + to the output
//             · scale of each rank                  · scale of each output
//
// Rows of one adapter meet its weights together, as many as there are registers for. How a row's sums are
// added up depends neither on the other rows nor on the crew.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "linear.h"
#include "simd.h"
#include "thread_team.h"

namespace helexa {

enum LowRankFormat : int32_t { kLowRankFloat = 0, kLowRankBfloat16 = 1, kLowRankInt8 = 2 };

// An adapter's matrices for one of a projection's weights, in panels of sixteen outputs, feature by feature.
struct LowRank {
  int32_t rank;
  int32_t first_output;  // among the projection's
  int32_t out_features;
  int32_t format;  // a LowRankFormat
  const void* down;          // (panels of rank, in_features, 16)
  const void* up;            // (panels of out_features, rank, 16)
  const float* down_scales;  // (panels of rank, 16), what each output is multiplied with
  const float* up_scales;    // (panels of out_features, 16)

  int num_rank_panels() const { return (rank + kLanes - 1) / kLanes; }
  int num_panels() const { return (out_features + kLanes - 1) / kLanes; }
};

constexpr int kMaxAdaptedParts = 4;

// An adapter's parts for one projection of a layer; no parts: it leaves that as it is.
struct AdaptedProjection {
  int32_t num_parts;
  LowRank parts[kMaxAdaptedParts];

  int num_rank_panels() const {
    int total = 0;
    for (int i = 0; i < num_parts; i++) total += parts[i].num_rank_panels();
    return total;
  }
  int num_panels() const {
    int total = 0;
    for (int i = 0; i < num_parts; i++) total += parts[i].num_panels();
    return total;
  }
};

enum AdaptedKind : int32_t { kQkv = 0, kOutput = 1, kGateUp = 2, kDown = 3, kQueries = 4, kNumAdaptedKinds = 5 };

struct Adapter {
  int32_t inner_width;  // the most that any projection's parts have between down and up
  const AdaptedProjection* projections;  // (num_layers, kNumAdaptedKinds)

  const AdaptedProjection& of(int layer, AdaptedKind kind) const {
    return projections[layer * kNumAdaptedKinds + kind];
  }
};

HELEXA_INLINE f32x16 load_weights(const float* from) { return load(from); }
HELEXA_INLINE f32x16 load_weights(const uint8_t* from) { return load_i8(from); }
HELEXA_INLINE f32x16 load_weights(const uint16_t* from) {
#if defined(__AVX512F__)
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
#else
  uint32_t words[kLanes];
  for (int i = 0; i < kLanes; i++) words[i] = uint32_t(from[i]) << 16;
  return (f32x16)load_words(words);
#endif
}

// Sixteen outputs for each of `Rows` rows. Four sums a row, so that one need not wait for the other.
template <typename W, int Rows>
HELEXA_INLINE void low_rank_panel(const W* column, int in_features, const float* const* rows,
                                  f32x16* result) {
  constexpr int kSums = 4;
  f32x16 sums[Rows][kSums];
  for (int r = 0; r < Rows; r++)
    for (int s = 0; s < kSums; s++) sums[r][s] = f32x16{};
  int k = 0;
  for (; k + kSums <= in_features; k += kSums) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(column);
    prefetch<kSums * kLanes * int(sizeof(W))>(bytes + kPrefetchBytes);
#pragma GCC unroll 4
    for (int s = 0; s < kSums; s++, column += kLanes) {
      const f32x16 weights = load_weights(column);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; r++) sums[r][s] += weights * rows[r][k + s];
    }
  }
  for (; k < in_features; k++, column += kLanes) {
    const f32x16 weights = load_weights(column);
    for (int r = 0; r < Rows; r++) sums[r][0] += weights * rows[r][k];
  }
  for (int r = 0; r < Rows; r++)
    result[r] = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
}

// Rows of a pass that have one adapter.
struct AdapterRows {
  const Adapter* adapter;
  int first, count;  // among the sorted rows
};

// The rows of a pass that have adapters, sorted by adapter and then as they stand.
class AdaptedRows {
 public:
  void reserve(int num_rows) {
    rows_.reserve(num_rows);
    groups_.reserve(num_rows);
  }

  // `adapter_of(row)`: null where it has none.
  template <typename AdapterOf>
  void sort(int num_rows, AdapterOf adapter_of) {
    rows_.clear();
    groups_.clear();
    for (int row = 0; row < num_rows; row++) {
      const Adapter* adapter = adapter_of(row);
      if (!adapter) continue;
      const auto is_its = [&](const AdapterRows& group) { return group.adapter == adapter; };
      const auto known = std::find_if(groups_.begin(), groups_.end(), is_its);
      if (known != groups_.end()) known->count++;
      else groups_.push_back({adapter, 0, 1});
    }
    int first = 0;
    for (AdapterRows& group : groups_) {
      group.first = first;
      first += group.count;
      for (int row = 0; row < num_rows; row++)
        if (adapter_of(row) == group.adapter) rows_.push_back(row);
    }
  }

  const std::vector<AdapterRows>& groups() const { return groups_; }
  const int* rows() const { return rows_.data(); }

 private:
  std::vector<int> rows_;
  std::vector<AdapterRows> groups_;
};

// Where a projection's input and output rows lie, and room for what is between down and up.
struct AdaptedPlace {
  const float* inputs;
  int64_t input_stride;
  float* outputs;
  int64_t output_stride;
  float* inner;
  int64_t inner_stride;
};

namespace low_rank {

// Calls use(first, constant of 1, 2 or 4 rows) until `count` rows are through.
template <typename Use>
HELEXA_INLINE void in_pieces(int count, Use use) {
  int row = 0;
  for (; row + 4 <= count; row += 4) use(row, std::integral_constant<int, 4>());
  if (row + 2 <= count) {
    use(row, std::integral_constant<int, 2>());
    row += 2;
  }
  if (row < count) use(row, std::integral_constant<int, 1>());
}

// Calls run with a number of the type that the part's panels hold.
template <typename Run>
HELEXA_INLINE void with_weights(const LowRank& part, Run run) {
  if (part.format == kLowRankInt8) run(uint8_t());
  else if (part.format == kLowRankBfloat16) run(uint16_t());
  else run(float());
}

template <typename W>
inline void down_panel(const LowRank& part, int panel, int in_features, const int* rows, int first,
                       int count, int inner_at, const AdaptedPlace& at) {
  const W* column = static_cast<const W*>(part.down) + int64_t(panel) * in_features * kLanes;
  in_pieces(count, [&](int from, auto size) {
    constexpr int kRows = decltype(size)::value;
    const float* inputs[kRows];
    f32x16 result[kRows];
    for (int r = 0; r < kRows; r++) inputs[r] = at.inputs + rows[from + r] * at.input_stride;
    low_rank_panel<W, kRows>(column, in_features, inputs, result);
    const f32x16 scales = load(part.down_scales + panel * kLanes);
    for (int r = 0; r < kRows; r++)
      store(at.inner + (first + from + r) * at.inner_stride + inner_at, result[r] * scales);
  });
}

template <typename W>
inline void up_panel(const LowRank& part, int panel, const int* rows, int first, int count, int inner_at,
                     const AdaptedPlace& at) {
  const W* column = static_cast<const W*>(part.up) + int64_t(panel) * part.rank * kLanes;
  const int begin = panel * kLanes, width = std::min(kLanes, part.out_features - begin);
  in_pieces(count, [&](int from, auto size) {
    constexpr int kRows = decltype(size)::value;
    const float* inputs[kRows];
    f32x16 result[kRows];
    for (int r = 0; r < kRows; r++)
      inputs[r] = at.inner + (first + from + r) * at.inner_stride + inner_at;
    low_rank_panel<W, kRows>(column, part.rank, inputs, result);
    const f32x16 scales = load(part.up_scales + panel * kLanes);
    for (int r = 0; r < kRows; r++) {
      const f32x16 added = result[r] * scales;
      float* to = at.outputs + rows[from + r] * at.output_stride + part.first_output + begin;
      if (width == kLanes) store(to, load(to) + added);
      else
        for (int i = 0; i < width; i++) to[i] += added[i];
    }
  });
}

// Calls use(group, part, panel of the part, where its inner values begin) for the panels, counted
// through groups and parts, of the member's share. `count_of(part)`: how many panels a part has.
template <typename CountOf, typename Use>
inline void for_panels(const AdaptedRows& adapted, int layer, AdaptedKind kind, const Crew& crew,
                       CountOf count_of, Use use) {
  int total = 0;
  for (const AdapterRows& group : adapted.groups()) {
    const AdaptedProjection& projection = group.adapter->of(layer, kind);
    for (int i = 0; i < projection.num_parts; i++) total += count_of(projection.parts[i]);
  }
  const Share mine = crew.share(total);
  int begin = 0;
  for (const AdapterRows& group : adapted.groups()) {
    const AdaptedProjection& projection = group.adapter->of(layer, kind);
    int inner_at = 0;
    for (int i = 0; i < projection.num_parts; i++) {
      const LowRank& part = projection.parts[i];
      const int count = count_of(part);
      const int last = std::min(count, mine.end - begin);
      for (int panel = std::max(0, mine.begin - begin); panel < last; panel++)
        use(group, part, panel, inner_at);
      begin += count;
      inner_at += part.num_rank_panels() * kLanes;
    }
  }
}

}  // namespace low_rank

// The first half: `inner` of the sorted rows. Members share the panels of all groups.
inline void adapt_down(const AdaptedRows& adapted, int layer, AdaptedKind kind, int in_features,
                       const Crew& crew, const AdaptedPlace& at) {
  const auto count_of = [](const LowRank& part) { return part.num_rank_panels(); };
  low_rank::for_panels(adapted, layer, kind, crew, count_of,
                       [&](const AdapterRows& group, const LowRank& part, int panel, int inner_at) {
    const int *rows = adapted.rows() + group.first, place = inner_at + panel * kLanes;
    const auto run = [&]<typename W>(W) {
      low_rank::down_panel<W>(part, panel, in_features, rows, group.first, group.count, place, at);
    };
    low_rank::with_weights(part, run);
  });
}

// The second: adds to the outputs, once all of `inner` is there.
inline void adapt_up(const AdaptedRows& adapted, int layer, AdaptedKind kind, const Crew& crew,
                     const AdaptedPlace& at) {
  const auto count_of = [](const LowRank& part) { return part.num_panels(); };
  low_rank::for_panels(adapted, layer, kind, crew, count_of,
                       [&](const AdapterRows& group, const LowRank& part, int panel, int inner_at) {
    const int* rows = adapted.rows() + group.first;
    const auto run = [&]<typename W>(W) {
      low_rank::up_panel<W>(part, panel, rows, group.first, group.count, inner_at, at);
    };
    low_rank::with_weights(part, run);
  });
}

}  // namespace helexa
