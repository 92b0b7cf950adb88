// What a forward pass keeps between its steps, row by row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "activations.h"
#include "model.h"

namespace helexa {

struct Buffers {
  std::vector<float> hidden, qkv, gate_up, values;
  std::vector<TileGroup> groups;
  int gate_up_stride = 0;

  // Room for `rows` rows; grows and never shrinks.
  void reserve(const Model& m, int rows) {
    const size_t n = rows, num_tiles = (n + kTileRows - 1) / kTileRows;
    // Rows whole pages apart would share their cache lines.
    gate_up_stride = 2 * m.intermediate_size + 2 * kLanes;
    const size_t qkv_width = size_t(m.num_heads + 2 * m.num_kv_heads) * m.head_dim;
    const size_t attended_width = size_t(m.num_heads) * m.head_dim;
    const size_t widest =
        std::max({size_t(m.hidden_size), size_t(m.intermediate_size), attended_width});
    grow(hidden, n * m.hidden_size);
    grow(qkv, n * qkv_width);
    grow(gate_up, n * gate_up_stride);
    grow(values, num_tiles * kTileRows * widest);
    grow(groups, num_tiles * (widest / kGroup + 1));
  }

  Activations activations(int width) {
    return {values.data(), groups.data(), width};
  }

 private:
  template <typename T>
  static void grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  }
};

}  // namespace helexa
