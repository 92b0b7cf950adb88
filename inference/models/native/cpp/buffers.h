// Buffers that a forward pass keeps between its steps, row by row.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <vector>

#include "activations.h"
#include "model.h"

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

// All rows of a batch, from layer to layer.
struct Buffers {
  Lines<float> hidden, projected;
  int row_width = 0;  // of what a mixer's first projection gives, in the layer where that is widest

  void reserve(const Model& m, int rows) {
    for (int i = 0; i < m.num_layers; i++)
      row_width = std::max(row_width, m.row_width(m.layers[i]));
    grow(hidden, size_t(rows) * m.hidden_size);
    grow(projected, size_t(rows) * row_width);
  }
};

// Between the steps of some experts' work: see experts.h.
struct ExpertScratch {
  Lines<float> scores, inputs, gate_up, values;
  Lines<TileGroup> input_groups, groups;
  int num_tiles = 0, gate_up_stride = 0, inner_groups = 0;

  void reserve(const Experts& e, int hidden_size, int num_rows, int most_tiles) {
    const int num_entries = num_rows * e.entries_per_row();
    // A tile for every eight entries, and one that is not full for each expert.
    const int needed = num_entries / kTileRows + std::min(num_entries, e.num_all());
    num_tiles = std::max(num_tiles, std::min(most_tiles, needed));
    gate_up_stride = std::max(gate_up_stride, 2 * e.intermediate_size + 2 * kLanes);
    inner_groups = std::max(inner_groups, e.intermediate_size / kGroup + 1);
    const size_t num_places = size_t(num_tiles) * kTileRows;
    grow(scores, size_t(num_rows) * e.num_scores());
    grow(inputs, e.reads_values() ? num_places * hidden_size : 0);
    grow(input_groups, size_t(num_tiles) * (hidden_size / kGroup + 1));
    grow(gate_up, num_places * gate_up_stride);
    grow(values, num_places * inner_groups * kGroup);
    grow(groups, size_t(num_tiles) * inner_groups);
  }
};

// One member's sixteen queries, and one head's rows: see latent_attention.h.
struct LatentScratch {
  Lines<float> queries, context, outputs, values;
  Lines<TileGroup> groups;
  alignas(64) float weights[kBlockTokens * kLanes];

  void reserve(const Latent& l) {
    const size_t widest = std::max(l.plain_dim, l.kv_rank);
    grow(queries, size_t(l.width()) * kLanes);
    grow(context, size_t(kBlockTokens) * l.width());
    grow(outputs, size_t(kLanes) * l.kv_rank);
    grow(values, kTileRows * widest);
    grow(groups, widest / kGroup + 1);
  }

  Activations activations(int width) { return {values.data(), groups.data(), width}; }
};

// A crew's rows, counted from its first, from step to step.
struct Scratch {
  Lines<float> gate_up, values, inner;
  Lines<float> absorbed;  // queries as wide as latents, then the latents that they sum up
  Lines<float> added;  // what is still to be added to the rows, where that is not done at once
  Lines<TileGroup> groups;
  ExpertScratch experts;
  std::atomic<int> next_task{0};
  int gate_up_stride = 0;

  // `expert_tiles`: how many at a time, where there are that many. `inner_width`: of adapters.
  void reserve(const Model& m, int rows, int expert_tiles, int inner_width) {
    const size_t n = rows, num_tiles = (n + kTileRows - 1) / kTileRows;
    // Rows whole pages apart would share their cache lines.
    gate_up_stride = 2 * m.intermediate_size + 2 * kLanes;
    int widest = std::max(m.hidden_size, m.intermediate_size);
    if (m.join) widest = std::max(widest, 2 * m.hidden_size);
    bool adds_plainly = true;
    for (int i = 0; i < m.num_layers; i++) {
      const Layer& layer = m.layers[i];
      if (layer.delta) widest = std::max(widest, layer.delta->value_features());
      if (layer.conv) widest = std::max(widest, layer.conv->channels);
      if (layer.mamba) widest = std::max(widest, layer.mamba->features());
      if (layer.latent) {
        const int of_values = m.num_heads * layer.latent->value_dim;
        widest = std::max({widest, of_values, int(layer.latent->query_rank)});
        grow(absorbed, n * m.query_width());
      } else if (!layer.has_state()) {
        widest = std::max(widest, m.query_width());
      }
      adds_plainly &= m.adds_plainly(layer.mixed_norm) && m.adds_plainly(layer.mlp_added_norm);
    }
    if (!adds_plainly) grow(added, n * m.hidden_size);
    grow(gate_up, n * gate_up_stride);
    grow(values, num_tiles * kTileRows * widest);
    grow(groups, num_tiles * (widest / kGroup + 1));
    grow(inner, n * inner_width);
    for (int i = 0; i < m.num_layers; i++)
      if (const Experts* of_layer = m.layers[i].experts)
        experts.reserve(*of_layer, m.hidden_size, rows, expert_tiles);
  }

  Activations activations(int width) { return {values.data(), groups.data(), width}; }
};

}  // namespace helexa
