// Adapters (LoRA): what a row's adapter adds to what a projection gave for the row.
//
//   x ─▶ down ─▶ · scale ─▶ inner, of every part ─▶ up ─▶ + to the output
//
// Both are products as any other, of floats beside floats and of codes beside codes, whose input is what the
// projection read. So how a row's sums are added up depends neither on the other rows nor on the crew.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "activations.h"
#include "linear.h"
#include "thread_team.h"

namespace helexa {

// An adapter's matrices for one of a projection's weights. Ranks are filled up with zeros: to whole panels as
// outputs of `down`, and to whole groups of codes as inputs of `up`.
struct LowRank {
  int32_t first_output;  // among the projection's
  float scale;
  Linear down, up;
};

constexpr int kMaxAdaptedParts = 4;

// An adapter's parts for one projection of a layer; no parts: it leaves that as it is.
struct AdaptedProjection {
  int32_t num_parts;
  LowRank parts[kMaxAdaptedParts];

  int inner_width() const {
    int total = 0;
    for (int i = 0; i < num_parts; i++) total += parts[i].up.in_features;
    return total;
  }
};

enum AdaptedKind : int32_t { kQkv = 0, kOutput = 1, kGateUp = 2, kDown = 3, kQueries = 4, kNumAdaptedKinds = 5 };

struct Adapter {
  const AdaptedProjection* projections;  // (num_layers, kNumAdaptedKinds)

  const AdaptedProjection& of(int layer, AdaptedKind kind) const {
    return projections[layer * kNumAdaptedKinds + kind];
  }
};

// Rows of a pass that have one adapter: `count` from `first` on among the sorted ones.
struct AdapterRows {
  const Adapter* adapter;
  int first, count;
  int place;  // of their inner values, which begin with a tile
};

// The rows of a pass that have adapters, sorted by adapter and then as they stand; and a member's codes of
// their inner values.
class AdaptedRows {
 public:
  // Places of `num_rows` rows of as many sequences.
  static int most_places(int num_rows, int num_sequences) {
    return num_rows + (kTileRows - 1) * std::min(num_rows, num_sequences);
  }

  void reserve(int num_rows, int num_sequences, int inner_width) {
    rows_.reserve(num_rows);
    groups_.reserve(num_rows);
    grow(codes_, size_t(most_places(num_rows, num_sequences) / kTileRows) * (inner_width / kGroup));
  }

  // `adapter_of(row)`: null where it has none.
  template <typename AdapterOf>
  void sort(int num_rows, AdapterOf adapter_of) {
    rows_.clear();
    groups_.clear();
    for (int row = 0; row < num_rows; row++) {
      const Adapter* adapter = adapter_of(row);
      const auto is_its = [&](const AdapterRows& group) { return group.adapter == adapter; };
      if (adapter && std::none_of(groups_.begin(), groups_.end(), is_its))
        groups_.push_back({adapter, 0, 0, 0});
    }
    int place = 0;
    for (AdapterRows& group : groups_) {
      group.first = int(rows_.size());
      group.place = place;
      for (int row = 0; row < num_rows; row++)
        if (adapter_of(row) == group.adapter) rows_.push_back(row);
      group.count = int(rows_.size()) - group.first;
      place += (group.count + kTileRows - 1) / kTileRows * kTileRows;
    }
  }

  // Adds to the rows at `out`, `stride` apart, which have their projection's outputs. `inner` (places,
  // inner_width) is the crew's.
  void adapt(int layer, AdaptedKind kind, const Activations& x, float* inner, int inner_width,
             const Crew& crew, float* out, int64_t stride) {
    int task = 0;
    for (const AdapterRows& group : groups_) {
      float* to = inner + int64_t(group.place) * inner_width;
      for_parts(group, layer, kind, [&](const LowRank& part, int at) {
        for (int panel = 0; panel < part.down.num_panels(); panel++)
          if (task++ % crew.size() == crew.member()) go_down(group, part, panel, x, to + at, inner_width);
      });
    }
    crew.barrier();
    for (const AdapterRows& group : groups_) {
      const int width = group.adapter->of(layer, kind).inner_width();
      Activations between{inner + int64_t(group.place) * inner_width,
                          codes_.data() + group.place / kTileRows * (inner_width / kGroup), inner_width};
      for_parts(group, layer, kind, [&](const LowRank& part, int at) {
        if (at == 0 && part.up.reads_codes()) quantize(between, group.count, width);
        const Activations own{between.values + at, between.groups + at / kGroup, inner_width};
        share(part.up, own, group.count, crew,
              {out + part.first_output, stride, rows_.data() + group.first}, true);
      });
    }
  }

  bool empty() const { return rows_.empty(); }

 private:
  // Calls use(part, where its inner values begin) for the parts of a group's projection.
  template <typename Use>
  static void for_parts(const AdapterRows& group, int layer, AdaptedKind kind, Use use) {
    const AdaptedProjection& projection = group.adapter->of(layer, kind);
    int at = 0;
    for (int i = 0; i < projection.num_parts; at += projection.parts[i++].up.in_features)
      use(projection.parts[i], at);
  }

  // A tile of the pass's rows is multiplied where one of them has the adapter, up to the last that has.
  void go_down(const AdapterRows& group, const LowRank& part, int panel, const Activations& x, float* inner,
               int inner_width) const {
    alignas(64) float found[kTileRows][kLanes];
    const int begin = panel * kLanes, num_outputs = part.down.out_features;
    const int32_t *row = rows_.data() + group.first, *const last = row + group.count;
    while (row < last) {
      const int first = *row / kTileRows * kTileRows;
      const int32_t* end = std::find_if(row, last, [&](int32_t r) { return r >= first + kTileRows; });
      const OutRows out{found[0] - begin - int64_t(first) * kLanes, kLanes};
      tile(part.down, panel, x, first, end[-1] - first + 1, out, false);
      for (; row < end; row++, inner += inner_width) {
        store(inner + begin, load(found[*row - first]) * part.scale);
        if (begin + kLanes == num_outputs)
          std::fill(inner + num_outputs, inner + part.up.in_features, 0.0f);
      }
    }
  }

  // Each member for itself: they are few, and waiting for each other would take longer.
  static void quantize(const Activations& x, int num_rows, int width) {
    for (int row = 0; row < num_rows; row++) {
      const float mean = mean_square(x.values + int64_t(row) * x.width, width);
      quantize_groups(x, row, 0, width / kGroup, mean, false);
    }
  }

  std::vector<int32_t> rows_;
  std::vector<AdapterRows> groups_;
  Lines<TileGroup> codes_;
};

}  // namespace helexa
