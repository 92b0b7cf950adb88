// What a forward pass keeps between its steps, row by row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "activations.h"
#include "model.h"

namespace helexa {

struct Buffers {
  std::vector<float> hidden, qkv, gate_up;
  std::vector<float> values, scales, sums, half_sums;
  std::vector<int8_t> high, low;
  std::vector<uint8_t> fine;
  int row_stride = 0;

  // Room for `rows` rows; grows and never shrinks.
  void reserve(const Model& m, int rows) {
    // An odd number of eights: groups a power of two apart would share their cache lines.
    row_stride = (rows + 7) / 8 * 8 | 8;
    const size_t n = rows;
    const size_t qkv_width = size_t(m.num_heads + 2 * m.num_kv_heads) * m.head_dim;
    const size_t attended_width = size_t(m.num_heads) * m.head_dim;
    const size_t widest =
        std::max({size_t(m.hidden_size), size_t(m.intermediate_size), attended_width});
    grow(hidden, n * m.hidden_size);
    grow(qkv, n * qkv_width);
    grow(gate_up, n * 2 * m.intermediate_size);
    grow(values, n * widest);
    grow(high, n * widest);
    grow(low, n * widest);
    grow(scales, size_t(row_stride) * (widest / kGroup + 1));
    grow(sums, size_t(row_stride) * (widest / kGroup + 1));
    grow(half_sums, size_t(row_stride) * (widest / kGroup + 1) * 2);
    grow(fine, size_t(row_stride) * (widest / kGroup + 1));
  }

  Activations activations(int width) {
    return {values.data(), high.data(), low.data(), scales.data(), sums.data(), half_sums.data(),
            fine.data(), width, row_stride};
  }

 private:
  template <typename T>
  static void grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  }
};

}  // namespace helexa
