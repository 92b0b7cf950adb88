// Buffers that a forward pass keeps between its steps, row by row.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "activations.h"
#include "attention.h"
#include "experts.h"
#include "latent_attention.h"
#include "low_rank.h"
#include "model.h"
#include "recurrent.h"
#include "thread_team.h"

namespace helexa {

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

// A crew's rows, counted from its first, from step to step.
struct Scratch {
  Lines<float> gate_up, values, inner;
  Lines<float> absorbed;  // queries as wide as latents, then the latents that they sum up
  Lines<float> added;  // what is still to be added to the rows, where that is not done at once
  Lines<TileGroup> groups;
  ExpertScratch experts;
  std::atomic<int> next_task{0};
  int gate_up_stride = 0;

  // `expert_tiles`: how many at a time, where there are that many. `inner_floats`: of adapters.
  void reserve(const Model& m, int rows, int expert_tiles, size_t inner_floats) {
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
    grow(inner, inner_floats);
    for (int i = 0; i < m.num_layers; i++)
      if (const Experts* of_layer = m.layers[i].experts)
        experts.reserve(*of_layer, m.hidden_size, rows, expert_tiles);
  }

  Activations activations(int width) { return {values.data(), groups.data(), width}; }
};

// Each member's own buffers. Room for a pass's tiles of rows is made before the team runs: a member that
// found no memory would leave the others waiting at the next barrier for ever.
struct OwnPlace {
  QueryTile tile;
  std::vector<RowTile> row_tiles, runs;
  Routes routes;
  DeltaScratch delta;
  LatentScratch latent;
  AdaptedRows adapted;

  // Rows [first, last) of `batch`, one sequence's each: as many as meet its keys together, and all.
  void cut_into_tiles(const Model& m, const Batch& batch, int first, int last) {
    const int most = std::max(1, kTileQueries / m.heads_per_kv_head());
    row_tiles.clear();
    runs.clear();
    for (int row = first; row < last; row++) {
      const bool joins = row > first && batch.sequences[row] == batch.sequences[row - 1] &&
                         batch.positions[row] > batch.positions[row - 1];
      if (joins && row_tiles.back().count < most) row_tiles.back().count++;
      else row_tiles.push_back({row, 1});
      if (joins) runs.back().count++;
      else runs.push_back({row, 1});
    }
  }
};

// The buffers of a pass: of all rows, of its own rows, and of the member.
struct Workplace {
  Buffers& all;
  Scratch& own;
  OwnPlace& member;
  Progress* turns = nullptr;  // blocks done in each layer, where each has a pass of its own
  int block = 0;
};

}  // namespace helexa
