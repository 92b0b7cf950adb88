// What a forward pass keeps between its steps, row by row.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <vector>

#include "activations.h"
#include "attention.h"
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

// Of all rows of a batch, from layer to layer.
struct Buffers {
  Lines<float> hidden, qkv;

  void reserve(const Model& m, int rows) {
    grow(hidden, size_t(rows) * m.hidden_size);
    grow(qkv, size_t(rows) * m.qkv_width());
  }
};

// Of the rows that a crew has in hand, counted from its first, from step to step.
struct Scratch {
  Lines<float> gate_up, values;
  Lines<TileGroup> groups;
  std::atomic<int> next_task{0};
  int gate_up_stride = 0;

  void reserve(const Model& m, int rows) {
    const size_t n = rows, num_tiles = (n + kTileRows - 1) / kTileRows;
    // Rows whole pages apart would share their cache lines.
    gate_up_stride = 2 * m.intermediate_size + 2 * kLanes;
    const size_t widest = std::max({m.hidden_size, m.intermediate_size, m.query_width()});
    grow(gate_up, n * gate_up_stride);
    grow(values, num_tiles * kTileRows * widest);
    grow(groups, num_tiles * (widest / kGroup + 1));
  }

  Activations activations(int width) { return {values.data(), groups.data(), width}; }
};

}  // namespace helexa
