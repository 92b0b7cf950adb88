// Operations on one row by itself: its embedding, norms, the gates of its MLP, its image's part, and the
// logits' cap.
#pragma once

#include <algorithm>
#include <cmath>

#include "linear.h"
#include "model.h"
#include "simd.h"
#include "thread_team.h"

namespace helexa {

// `in` may be `out`.
inline void rms_norm_row(const float* in, const float* weight, int width, float eps, float* out) {
  const float total = sum_of_squares(in, width);
  const float factor = 1.0f / std::sqrt(total / float(width) + eps);
  for (int i = 0; i < width; i++) out[i] = in[i] * factor * weight[i];
}

// In double: a mean is subtracted from what may be much smaller than it.
inline void layer_norm_row(const float* in, const Norm& norm, int width, float eps, float* out) {
  double total = 0, squares = 0;
  for (int i = 0; i < width; i++) total += in[i];
  const double mean = total / width;
  for (int i = 0; i < width; i++) squares += (in[i] - mean) * (in[i] - mean);
  const float middle = float(mean), factor = float(1.0 / std::sqrt(squares / width + double(eps)));
  for (int i = 0; i < width; i++)
    out[i] = (in[i] - middle) * factor * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
}

// Norms a row as wide as the model; copies it where there is no norm.
inline void norm_row(const Model& m, const Norm& norm, const float* in, float* out) {
  if (!norm.weight) std::copy_n(in, in == out ? 0 : m.hidden_size, out);
  else if (m.norm_kind == kLayerNorm) layer_norm_row(in, norm, m.hidden_size, m.norm_eps, out);
  else rms_norm_row(in, norm.weight, m.hidden_size, m.norm_eps, out);
}

// Vectors [first, last) of one row: out = activation(gates) * ups, or activation(ups) where there are
// no gates. `gate_up`: a row of gates, where the model has them, and then ups. intermediate_size is a
// multiple of kLanes.
inline void gate_row(const Model& m, const float* gate_up, int first, int last, float* out) {
  const float* ups = m.is_gated ? gate_up + m.intermediate_size : nullptr;
  const auto activate = [&](auto activation) {
    for (int i = first * kLanes; i < last * kLanes; i += kLanes) {
      const f32x16 active = activation(load(gate_up + i));
      store(out + i, ups ? active * load(ups + i) : active);
    }
  };
  if (m.activation == kGeluTanh) activate([](f32x16 x) { return gelu_tanh(x); });
  else activate([](f32x16 x) { return silu(x); });
}

// The index of a row among the images' rows; below 0: it is none of them.
inline int64_t image_row_of(const Batch& batch, int row) {
  return batch.images ? batch.images->image_rows[row] : -1;
}

// Adds what its image adds to a row after one of the first layers.
inline void add_deepstack_row(const Model& m, const Batch& batch, int layer, int row, float* hidden) {
  const int64_t image_row = image_row_of(batch, row);
  if (image_row < 0) return;
  const Images& images = *batch.images;
  const float* added = images.deepstack + int64_t(layer) * images.num_image_rows * m.hidden_size;
  for (int i = 0; i < m.hidden_size; i++) hidden[i] += added[image_row * m.hidden_size + i];
}

// Reads one output feature of a packed table: the embedding of one token.
inline void read_embedding(const Model& m, int token, float* out) {
  const Linear& table = m.embedding;
  const int64_t panel = token / kLanes;
  const int lane = token % kLanes;
  if (table.format == kF32) {
    const float* column = reinterpret_cast<const float*>(table.panels) + panel * m.hidden_size * kLanes;
    for (int k = 0; k < m.hidden_size; k++) out[k] = column[k * kLanes + lane];
    return;
  }
  with_format(table.format, [&]<typename F>(F) {
    const uint8_t* block = table.panels + panel * panel_bytes<F>(table.num_groups());
    read_row<F>(block, table.codebook, table.num_groups(), lane, out);
  });
}

inline void embed_row(const Model& m, int token, float* out) {
  read_embedding(m, token, out);
  if (m.embedding_multiplier == 1.0f) return;
  for (int i = 0; i < m.hidden_size; i++) out[i] *= m.embedding_multiplier;
}

// logits = cap * tanh(logits * multiplier / cap), of some of the vocabulary's panels.
inline void finish_logits(const Model& m, float* all_logits, int num_rows, const Share& panels) {
  const int vocab_size = m.head.out_features;
  const int first = panels.begin * kLanes, last = std::min(vocab_size, panels.end * kLanes);
  const float cap = m.logit_cap;
  for (int row = 0; row < num_rows; row++) {
    float* logits = all_logits + int64_t(row) * vocab_size;
    for (int i = first; i < last; i++) {
      const float x = logits[i] * m.logit_multiplier;
      logits[i] = cap > 0 ? cap * std::tanh(x / cap) : x;
    }
  }
}

}  // namespace helexa
