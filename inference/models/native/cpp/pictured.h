// Rows of a prompt whose hidden states come of its images.
#pragma once

#include "model.h"

namespace helexa {

// Which of the images' rows it is; below 0: none.
inline int64_t pictured_row(const Batch& batch, int row) {
  return batch.images ? batch.images->pictured[row] : -1;
}

// Adds what its image adds to a row after one of the first layers.
inline void add_deepstack_row(const Model& m, const Batch& batch, int layer, int row, float* hidden) {
  const int64_t pictured = pictured_row(batch, row);
  if (pictured < 0) return;
  const Images& images = *batch.images;
  const float* added = images.deepstack + int64_t(layer) * images.num_pictured * m.hidden_size;
  for (int i = 0; i < m.hidden_size; i++) hidden[i] += added[pictured * m.hidden_size + i];
}

}  // namespace helexa
